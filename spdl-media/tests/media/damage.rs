//! Corrupt and truncated files are typed errors: no panic, no invented pixels, bounded memory and time.

// promise of this file: R1

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use spdl_core::{Error, ErrorKind, Result};
use spdl_media::image::{DecodeRequest, Decoded, ImageCodec, ImageDecoder, ImageInfo, PixelsMut};
use spdl_media::{
    CodecRegistry, Decoder, FillImage, ImageTransform, Limits, Orientation, Sample, Size,
    decode_rgb,
};

use crate::files::{self, data};

fn kind_of(encoded: &[u8]) -> Option<ErrorKind> {
    decode_rgb(encoded).err().map(|error| error.kind())
}

/// Per format, a file whose header claims 65,500 × 65,500 pixels.
fn bombs() -> Vec<(&'static str, Vec<u8>)> {
    const SIDE: u16 = 65_500;
    let replaced = |name: &str, at: usize, bytes: &[u8]| {
        let mut file = data(name);
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let wide = u32::from(SIDE);
    // Frame header: marker, length, precision, height, width.
    let frame = |name: &str, marker: u8| {
        let file = data(name);
        file.windows(2).position(|pair| pair == [0xFF, marker]).unwrap() + 5
    };
    let sides = [SIDE.to_be_bytes(), SIDE.to_be_bytes()].concat();
    let mut png = replaced("rgb.png", 16, &[wide.to_be_bytes(), wide.to_be_bytes()].concat());
    let checksum = {
        let mut hasher = flate2::Crc::new();
        hasher.update(&png[12..29]);
        hasher.sum()
    };
    png[29..33].copy_from_slice(&checksum.to_be_bytes());
    // WebP stores width − 1 and height − 1 of the canvas in 24 bits.
    let canvas = (wide - 1).to_le_bytes();
    let tiff = {
        let mut file = data("rgb.tiff");
        let directory = u32::from_le_bytes(file[4..8].try_into().unwrap()) as usize;
        for entry in 0..usize::from(file[directory]) {
            let at = directory + 2 + entry * 12;
            // Width, height, and the rows of the only strip.
            if matches!(u16::from_le_bytes([file[at], file[at + 1]]), 256 | 257 | 278) {
                file[at + 2..at + 4].copy_from_slice(&4u16.to_le_bytes());
                file[at + 8..at + 12].copy_from_slice(&wide.to_le_bytes());
            }
        }
        file
    };
    vec![
        ("jpeg", replaced("420.jpg", frame("420.jpg", 0xC0), &sides)),
        ("progressive jpeg", {
            let name = "420-progressive.jpg";
            replaced(name, frame(name, 0xC2), &sides)
        }),
        ("png", png),
        ("webp", replaced("animated.webp", 24, &[&canvas[..3], &canvas[..3]].concat())),
        ("gif", replaced("palette.gif", 6, &[SIDE.to_le_bytes(), SIDE.to_le_bytes()].concat())),
        ("bmp", replaced("rgb.bmp", 18, &[wide.to_le_bytes(), wide.to_le_bytes()].concat())),
        ("tiff", tiff),
    ]
}

#[test]
fn headers_of_65500_by_65500_pixels_fail_before_allocation() {
    for (format, bomb) in bombs() {
        let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
        let started = Instant::now();
        let inspected = decoder.inspect(&bomb).unwrap_err();
        assert_eq!(inspected.kind(), ErrorKind::LimitExceeded, "{format}: {inspected}");
        // `decode` enforces the limits without a call of `inspect`.
        let mut pixel = [0; 3];
        let out = PixelsMut::new(&mut pixel, Size::new(1, 1)).unwrap();
        let request = DecodeRequest::full();
        let decoded = decoder.decode_into(&bomb, &request, out).unwrap_err();
        assert_eq!(decoded.kind(), ErrorKind::LimitExceeded, "{format}: {decoded}");
        // Too short for four billion pixels.
        assert!(started.elapsed() < Duration::from_secs(1), "{format}");
    }
}

#[test]
fn a_photo_truncated_anywhere_is_an_error() {
    let file = std::fs::read(files::photos().join("chelsea.jpg")).unwrap();
    let registry = CodecRegistry::with_defaults();
    let transform = ImageTransform::new(64).mode(spdl_media::Mode::Train);
    let mut fill = FillImage::new(&registry, &transform, &Limits::default()).unwrap();
    let mut sample = vec![0; 64 * 64 * 3];
    for percent in (0..100).chain([99]) {
        let cut = &file[..file.len() * percent / 100];
        let error = decode_rgb(cut).expect_err("no pixels are made up");
        let expected = if cut.len() < 3 && !cut.is_empty() {
            ErrorKind::Unsupported
        } else {
            ErrorKind::Truncated
        };
        assert_eq!(error.kind(), expected, "{percent} %: {error}");
        // For every crop: the crop must not decide whether a file is an error.
        for index in 0..5 {
            let id = spdl_core::SampleId { epoch: 0, index };
            let rng = || spdl_core::SampleRng::new(0, id, "fill");
            let outcome = fill.write(cut, Sample::U8(&mut sample), rng);
            assert!(outcome.is_err(), "{percent} %, crop {index}");
        }
    }
}

#[test]
fn a_webp_truncated_anywhere_is_reported_as_truncated() {
    for name in ["lossy.webp", "lossless.webp", "lossless-alpha.webp", "animated.webp"] {
        let file = data(name);
        for end in 12..file.len() {
            assert_eq!(kind_of(&file[..end]), Some(ErrorKind::Truncated), "{name} to {end} bytes");
        }
    }
}

#[test]
fn other_files_are_reported_as_unsupported() {
    assert_eq!(kind_of(b""), Some(ErrorKind::Truncated));
    assert_eq!(kind_of(b"not a picture, though it is named .jpg"), Some(ErrorKind::Unsupported));
    assert_eq!(kind_of(&[0; 5000]), Some(ErrorKind::Unsupported));
    let error = decode_rgb(b"<html>").unwrap_err();
    assert!(error.message().contains("<html>") && error.message().contains("jpeg"), "{error}");
}

#[test]
fn a_flipped_bit_in_a_png_is_corrupt() {
    let mut file = data("rgb.png");
    let middle = file.len() / 2;
    file[middle] ^= 1;
    assert!(matches!(kind_of(&file), Some(ErrorKind::Corrupt)), "{:?}", kind_of(&file));
}

#[test]
fn missing_restart_markers_are_corrupt() {
    let file = data("restarts.jpg");
    let marker = file.windows(2).position(|pair| pair == [0xFF, 0xD0]).unwrap();
    let mut other = file.clone();
    other[marker + 1] = 0xD5;
    assert_eq!(kind_of(&other), Some(ErrorKind::Corrupt));
    let mut without = file;
    without.drain(marker..marker + 2);
    assert_eq!(kind_of(&without), Some(ErrorKind::Corrupt));
}

// promise: R3
#[test]
fn memory_limits_include_scratch_memory() {
    // A progressive image needs two bytes per coefficient in addition to the pixels.
    let file = data("444-progressive.jpg");
    let pixels = 37 * 29 * 3;
    let tight = Limits::default().max_bytes(pixels);
    let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &tight);
    let error = decoder.decode_rgb(&file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    assert!(decoder.decode_rgb(&data("444.jpg")).is_ok());
}

/// A codec whose decode panics.
#[derive(Debug)]
struct Fragile;

struct FragileDecoder {
    calls: u32,
}

impl ImageCodec for Fragile {
    fn name(&self) -> &'static str {
        "fragile"
    }

    fn sniff(&self, head: &[u8]) -> bool {
        head.starts_with(b"fragile")
    }

    fn decoder(&self, _: &Limits) -> Result<Box<dyn ImageDecoder>> {
        Ok(Box::new(FragileDecoder { calls: 0 }))
    }
}

impl ImageDecoder for FragileDecoder {
    fn inspect(&mut self, _: &[u8]) -> Result<ImageInfo> {
        self.calls += 1;
        Ok(ImageInfo::new(Size::new(self.calls, 1), Orientation::Upright))
    }

    fn decode_into(&mut self, _: &[u8], _: &DecodeRequest, _: PixelsMut<'_>) -> Result<Decoded> {
        panic!("a bug in the codec")
    }
}

#[test]
fn a_panic_in_a_codec_is_an_error_and_replaces_its_decoder() {
    let mut registry = CodecRegistry::with_defaults();
    registry.register(Fragile);
    let mut decoder = Decoder::new(&registry, &Limits::default());
    assert_eq!(decoder.inspect(b"fragile").unwrap().size.width, 1);
    assert_eq!(decoder.inspect(b"fragile").unwrap().size.width, 2);
    let error: Error = decoder.decode_rgb(b"fragile").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Panicked);
    assert!(error.message().contains("a bug in the codec"), "{error}");
    assert_eq!(decoder.inspect(b"fragile").unwrap().size.width, 1);
}

/// A codec whose decode finds another size than its inspect.
#[derive(Debug)]
struct Contradicting;

impl ImageCodec for Contradicting {
    fn name(&self) -> &'static str {
        "contradicting"
    }

    fn sniff(&self, head: &[u8]) -> bool {
        head.starts_with(b"two sizes")
    }

    fn decoder(&self, _: &Limits) -> Result<Box<dyn ImageDecoder>> {
        Ok(Box::new(Contradicting))
    }
}

impl ImageDecoder for Contradicting {
    fn inspect(&mut self, _: &[u8]) -> Result<ImageInfo> {
        Ok(ImageInfo::new(Size::new(9, 9), Orientation::Upright))
    }

    fn decode_into(
        &mut self,
        _: &[u8],
        request: &DecodeRequest,
        out: PixelsMut<'_>,
    ) -> Result<Decoded> {
        let region = request.checked_region(Size::new(4, 4), &out)?;
        Ok(Decoded::new(region.size()))
    }
}

#[test]
fn a_file_that_contradicts_its_header_is_corrupt() {
    let mut registry = CodecRegistry::with_defaults();
    registry.register(Contradicting);
    let mut decoder = Decoder::new(&registry, &Limits::default());
    let error = decoder.decode_rgb(b"two sizes").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    for exact in [false, true] {
        let transform = ImageTransform::new(8).exact(exact);
        let mut fill = FillImage::new(&registry, &transform, &Limits::default()).unwrap();
        let mut sample = vec![0; 8 * 8 * 3];
        let rng = || unreachable!("the transform is not random");
        let error = fill.write(b"two sizes", Sample::U8(&mut sample), rng).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    // Arguments of the caller are not the fault of the file.
    let mut pixels = [0; 3];
    let out = PixelsMut::new(&mut pixels, Size::new(1, 1)).unwrap();
    let error = decoder.decode_into(b"two sizes", &DecodeRequest::full(), out).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

/// Numbers of files of a format that Pillow and this crate accept.
#[derive(Debug, Default)]
struct Agreement {
    both_accept: u32,
    both_refuse: u32,
    only_pillow: u32,
    only_we: u32,
    /// The part of `only_pillow` and `only_we` that `agreement_exceptions.tsv` lists.
    listed: u32,
}

/// The minimum of 1,000 files with the same result as Pillow.
const AGREEMENT_FLOOR: [(&str, u32); 6] =
    [("bmp", 970), ("gif", 980), ("jpeg", 905), ("png", 990), ("tiff", 925), ("webp", 980)];

/// The same without files that are listed with a reason, for files beyond those of the list.
const AGREEMENT_FLOOR_OF_OTHERS: u32 = 990;

/// Names of files whose pixels are not those of Pillow, with the reason: see
/// `docs/decisions/decoder-crates.md`.
const OTHER_PIXELS: [(&str, &str); 11] = {
    const PLANES: &str = "Pillow reads uncompressed planes of 16 bits as planes of bytes";
    const BLACK_AND_WHITE: &str = "Pillow reads a BMP with this palette as rows of 1 bit";
    [
        ("flower-rgb-planar-16.tif", PLANES),
        ("flower-separated-planar-16.tif", PLANES),
        ("anim.webp", "the colours of transparent pixels of an animation are black here"),
        ("id:000928,src:000715,op:flip1,pos:18.bmp", BLACK_AND_WHITE),
        ("id:000715,src:000208,op:arith32,pos:22,val:-35.bmp", BLACK_AND_WHITE),
        ("id:002027,src:000929,op:havoc,rep:2.bmp", BLACK_AND_WHITE),
        ("id:002029,src:000929,op:havoc,rep:8.bmp", BLACK_AND_WHITE),
        ("id:001663,src:001231,op:havoc,rep:1.bmp", BLACK_AND_WHITE),
        ("id:000153,src:000000,op:havoc,rep:8.bmp", BLACK_AND_WHITE),
        ("id:002066,src:001702,op:ext_AO,pos:20.bmp", BLACK_AND_WHITE),
        ("id:001317,src:001144,op:havoc,rep:32.bmp", BLACK_AND_WHITE),
    ]
};

/// Listed files by path: the class, and whether this crate accepts the file.
fn exceptions(table: &str) -> HashMap<&str, (&str, bool)> {
    let mut classes = HashMap::new();
    let mut files = HashMap::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        match line.split('\t').collect::<Vec<_>>()[..] {
            ["class", name, who, reason] if !reason.is_empty() => {
                classes.insert(name, who == "ours");
            }
            ["file", class, path] => {
                assert!(
                    files.insert(path, (class, classes[class])).is_none(),
                    "listed twice: {path}"
                );
            }
            _ => panic!("invalid line: {line}"),
        }
    }
    files
}

// promise: R1
#[test]
fn third_party_files_give_the_same_result_as_pillow() {
    let Some(corpora) = files::corpora() else { return };
    let oracle = std::fs::read_to_string(corpora.join("ORACLE_pillow.tsv")).unwrap();
    let judged: HashMap<&str, Vec<&str>> = oracle
        .lines()
        .skip(1)
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .map(|fields| (fields[0], fields))
        .collect();
    // The pixels of images of other modes, converted by Pillow: see `make_pillow_rgb.py`.
    let converted: HashMap<&str, &str> = include_str!("../pillow_rgb.tsv")
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .map(|fields| (fields[0], fields[2]))
        .collect();
    let (mut with_equal_pixels, mut with_other_pixels) = (0, Vec::new());
    let known_pixels: HashMap<&str, &str> = OTHER_PIXELS.into_iter().collect();
    let manifest = std::fs::read_to_string(corpora.join("MANIFEST.tsv")).unwrap();
    // The files for which reasons are listed. Corpora may contain others.
    let reviewed = std::fs::read_to_string(corpora.join("MANIFEST.handout.tsv"));
    let reviewed = reviewed.unwrap_or_else(|_| manifest.clone());
    let reviewed: HashSet<&str> = reviewed.lines().collect();
    let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
    let mut formats: BTreeMap<&str, Agreement> = BTreeMap::new();
    let table = include_str!("../agreement_exceptions.tsv");
    let exceptions = exceptions(table);
    let (mut stale, mut unlisted) = (Vec::new(), Vec::new());
    for line in manifest.lines().skip(1) {
        let [corpus, format, _, hash, _, path] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("invalid line: {line}");
        };
        let Ok(encoded) = std::fs::read(corpora.join(corpus).join("files").join(path)) else {
            continue;
        };
        let started = Instant::now();
        let outcome = decoder.decode_rgb(&encoded);
        // The largest is a WebP of 144 megapixels: 5 s without optimisation of this crate.
        assert!(started.elapsed() < Duration::from_secs(60), "{path}: {:?}", started.elapsed());
        if let Err(error) = &outcome {
            use ErrorKind::*;
            let kind = error.kind();
            assert!(
                matches!(kind, Truncated | Corrupt | Unsupported | LimitExceeded),
                "{path}: unexpected error kind {kind}: {error}"
            );
        }
        let Some(fields) = judged.get(hash) else { continue };
        let file = format!("{corpus}/files/{path}");
        // Mode and checksum of the pixels, without the orientation.
        let expected = match fields[5] {
            "RGB" => Some(fields[6]),
            _ => converted.get(hash).copied(),
        };
        let is_known = AGREEMENT_FLOOR.iter().any(|(name, _)| *name == format);
        if let (true, Some(expected)) = (is_known, expected)
            && let Ok(image) = decoder.decode_stored(&encoded)
        {
            let found = Sha256::digest(&image.pixels);
            let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
            let name = path.rsplit('/').next().unwrap_or(path);
            match (found == expected, known_pixels.get(name)) {
                (true, None) => with_equal_pixels += 1,
                (false, Some(_)) => {}
                _ if fields[5] == "RGB" || reviewed.contains(line) => {
                    with_other_pixels.push(format!("{file} ({})", fields[5]));
                }
                _ => println!("other pixels: {file} ({})", fields[5]),
            }
        }
        if is_known {
            let agreement = formats.entry(format).or_default();
            let (pillow, ours) = (fields[2] == "ok", outcome.is_ok());
            match exceptions.get(file.as_str()) {
                Some(&(_, accepts)) if ours != pillow && accepts == ours => agreement.listed += 1,
                // The result depends on the memory limits of the Pillow build.
                Some(&("limit", _)) => {}
                Some(_) => stale.push(file),
                None if ours != pillow => {
                    let ours = outcome.as_ref().map_or_else(|it| it.to_string(), |_| "ok".into());
                    println!("not listed: {file}: {ours}; Pillow: {}", fields[2]);
                    if reviewed.contains(line) {
                        unlisted.push(file);
                    }
                }
                None => {}
            }
            *match (pillow, outcome.is_ok()) {
                (true, true) => &mut agreement.both_accept,
                (false, false) => &mut agreement.both_refuse,
                (true, false) => &mut agreement.only_pillow,
                (false, true) => &mut agreement.only_we,
            } += 1;
        }
    }
    println!("format  both accept  both refuse  only Pillow accepts  only we accept  listed");
    for (format, it) in &formats {
        println!(
            "{format:6} {:12} {:12} {:20} {:15} {:7}",
            it.both_accept, it.both_refuse, it.only_pillow, it.only_we, it.listed
        );
    }
    for (format, floor) in AGREEMENT_FLOOR {
        let it = formats.get(format).unwrap_or_else(|| panic!("no {format} files"));
        let agreed = it.both_accept + it.both_refuse;
        let all = agreed + it.only_pillow + it.only_we;
        let share = 1000 * agreed / all;
        assert!(share >= floor, "{format}: {share} of 1,000 files; expected {floor}");
        let share = 1000 * agreed / (all - it.listed);
        let floor = AGREEMENT_FLOOR_OF_OTHERS;
        assert!(share >= floor, "{format}: {share} of 1,000 files not listed; expected {floor}");
    }
    println!("{with_equal_pixels} files have the pixels of Pillow");
    assert!(with_other_pixels.is_empty(), "not the expected pixels: {with_other_pixels:#?}");
    assert!(with_equal_pixels > 300, "{with_equal_pixels}");
    assert!(stale.is_empty(), "listed, but with the same result as Pillow: {stale:#?}");
    assert!(unlisted.is_empty(), "without a reason in the list: {unlisted:#?}");
}
