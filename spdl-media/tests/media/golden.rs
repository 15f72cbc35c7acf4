//! Pixels equal Pillow's. `golden/make_golden.py` makes the expected pixels.

// promise of this file: IMG2, R23

use std::io::Read;
use std::path::PathBuf;

use spdl_media::{
    CodecRegistry, Decoder, FillImage, Image, ImageTransform, Limits, Rect, Sample, Size,
};

use crate::files;

/// The maximum difference of a decoded lossy format. Lossless formats must be equal.
const LOSSY_MAX: u8 = 1;
/// The maximum difference of a resized image.
const RESIZE_MAX: u8 = 2;
/// The maximum mean difference of a resized image.
const RESIZE_MEAN: f64 = 0.5;

/// A line of `golden.tsv`.
struct Expectation {
    place: String,
    path: String,
    action: String,
    size: Size,
    step: usize,
    pixels: Vec<u8>,
}

fn expectations(place: &str) -> Vec<Expectation> {
    let folder = files::own("tests/golden");
    let table = std::fs::read_to_string(folder.join("golden.tsv")).unwrap();
    let packed = std::fs::read(folder.join("golden.bin")).unwrap();
    let mut content = Vec::new();
    flate2::read::ZlibDecoder::new(&packed[..]).read_to_end(&mut content).unwrap();
    let mut rest = &content[..];
    let mut all = Vec::new();
    for line in table.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let number = |at: usize| fields[at].parse::<usize>().unwrap();
        let (pixels, after) = rest.split_at(number(6));
        rest = after;
        all.push(Expectation {
            place: fields[0].into(),
            path: fields[1].into(),
            action: fields[2].into(),
            size: Size::new(number(3) as u32, number(4) as u32),
            step: number(5),
            pixels: pixels.into(),
        });
    }
    assert!(rest.is_empty(), "golden.bin is longer than golden.tsv specifies");
    all.retain(|expectation| expectation.place == place);
    all
}

/// Runs the action of an expectation on `encoded`.
fn act(decoder: &mut Decoder, encoded: &[u8], action: &str) -> spdl_core::Result<Image> {
    let words: Vec<&str> = action.split(' ').collect();
    let numbers: Vec<u32> = words[1..].iter().map(|word| word.parse().unwrap()).collect();
    let fill = |side: u32| -> spdl_core::Result<_> {
        let registry = CodecRegistry::with_defaults();
        let pixels = vec![0; (side * side * 3) as usize];
        // Another test covers separately resized chroma.
        let transform = ImageTransform::new(side).exact(true);
        let fill = FillImage::new(&registry, &transform, &Limits::default())?;
        Ok((fill, pixels, Size::new(side, side)))
    };
    match (words[0], &numbers[..]) {
        ("decode", []) => decoder.decode_rgb(encoded),
        ("eval", &[side]) => {
            let (mut fill, mut pixels, size) = fill(side)?;
            fill.write(encoded, Sample::U8(&mut pixels), || unreachable!("eval draws nothing"))?;
            Ok(Image { size, pixels })
        }
        ("crop", &[left, top, width, height, side]) => {
            let (mut fill, mut pixels, size) = fill(side)?;
            let crop = Rect { left, top, width, height };
            fill.write_crop(encoded, Sample::U8(&mut pixels), crop, false)?;
            Ok(Image { size, pixels })
        }
        _ => panic!("unknown action: {action}"),
    }
}

/// Whether decoders may differ by rounding: JPEG and lossy WebP.
fn is_lossy(encoded: &[u8]) -> bool {
    encoded.starts_with(&[0xFF, 0xD8]) || encoded.windows(4).any(|kind| kind == b"VP8 ")
}

/// Compares all expectations of a place. Returns their number.
fn check(place: &str, folder: PathBuf) -> usize {
    let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
    let mut faults = Vec::new();
    let (mut worst_decode, mut worst_resize, mut worst_mean) = (0, 0, 0.0f64);
    let expectations = expectations(place);
    for Expectation { path, action, size, step, pixels, .. } in &expectations {
        let encoded = std::fs::read(folder.join(path)).unwrap();
        let image = match act(&mut decoder, &encoded, action) {
            Ok(image) => image,
            Err(error) => {
                faults.push(format!("{path}, {action}: {error}"));
                continue;
            }
        };
        assert_eq!(image.size, *size, "{path}, {action}");
        let found = image.pixels.chunks_exact(3).step_by(*step).flatten();
        assert_eq!(found.clone().count(), pixels.len(), "{path}, {action}");
        let differences = found.zip(pixels).map(|(&found, &expected)| found.abs_diff(expected));
        let largest = differences.clone().max().unwrap();
        let mean = differences.map(f64::from).sum::<f64>() / pixels.len() as f64;
        let within = if action == "decode" {
            worst_decode = worst_decode.max(largest);
            largest <= if is_lossy(&encoded) { LOSSY_MAX } else { 0 }
        } else {
            worst_resize = worst_resize.max(largest);
            worst_mean = worst_mean.max(mean);
            largest <= RESIZE_MAX && mean <= RESIZE_MEAN
        };
        if !within {
            faults.push(format!("{path}, {action}: differs by {largest}, mean {mean:.3}"));
        }
    }
    println!(
        "{place}: {} expectations; largest difference: decode {worst_decode}, resize {worst_resize} (mean {worst_mean:.3})",
        expectations.len()
    );
    assert!(faults.is_empty(), "{place}:\n{}", faults.join("\n"));
    expectations.len()
}

#[test]
fn small_files_of_every_format_equal_pillow() {
    assert!(check("data", files::own("tests/data")) > 80);
}

#[test]
fn photos_equal_pillow() {
    assert_eq!(check("photos", files::photos()), 5 * 4);
}

#[test]
fn third_party_files_equal_pillow() {
    if let Some(corpora) = files::corpora() {
        assert!(check("corpora", corpora) >= 50 * 4);
    }
}
