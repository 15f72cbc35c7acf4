//! The JPEG codecs `turbojpeg` and `zune-jpeg`, compared with ours.

use spdl_core::{ErrorKind, Result, SampleId, SampleRng};
use spdl_media::formats::{TurboJpegCodec, ZuneJpegCodec};
use spdl_media::image::{ColorModel, DecodeRequest, Decoded, ImageCodec, Picture, PixelsMut};
use spdl_media::testing::codec_contract;
use spdl_media::{CodecRegistry, Decoder, Limits, Rect, Size};

use crate::files::{common, corpora, difference, names, own};

fn decoder(codec: impl ImageCodec, limits: &Limits) -> Decoder {
    let mut registry = CodecRegistry::with_defaults();
    registry.register(codec);
    Decoder::new(&registry, limits)
}

fn ours() -> Decoder {
    Decoder::new(&CodecRegistry::with_defaults(), &Limits::default())
}

fn photographs() -> Vec<(String, Vec<u8>)> {
    let small = names("tests/data").into_iter().filter(|name| name.ends_with(".jpg"));
    let mut files: Vec<_> = small.map(|name| (name.clone(), common(&name))).collect();
    for name in names("../assets/photos").into_iter().filter(|name| name.ends_with(".jpg")) {
        let file = std::fs::read(own("../assets/photos").join(&name)).unwrap();
        files.push((name, file));
    }
    assert!(files.len() > 20);
    files
}

// promise: IMG2
#[test]
fn libjpeg_turbo_and_our_decoder_give_equal_pixels() {
    let (mut ours, mut turbo) = (ours(), decoder(TurboJpegCodec, &Limits::default()));
    for (name, file) in photographs() {
        let expected = ours.decode_rgb(&file).unwrap();
        let found = turbo.decode_rgb(&file).unwrap();
        assert_eq!(found.size, expected.size, "{name}");
        assert!(found.pixels == expected.pixels, "{name}: {:?}", {
            difference(&found.pixels, &expected.pixels)
        });
    }
}

/// `file` with 1 to 4 random bytes replaced.
fn damaged(file: &[u8], random: &mut SampleRng) -> Vec<u8> {
    let mut file = file.to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(file.len() as u64) as usize;
        file[at] = random.below(256) as u8;
    }
    file
}

// promise: R23
#[test]
fn damaged_jpegs_have_the_pixels_of_libjpeg_turbo() {
    let limits = Limits::default().strict(false);
    let mut turbo = decoder(TurboJpegCodec, &limits);
    let mut ours = Decoder::new(&CodecRegistry::with_defaults(), &limits);
    let files: Vec<_> = names("tests/data")
        .into_iter()
        .filter(|name| name.ends_with(".jpg"))
        .map(|name| (common(&name), name))
        .collect();
    let mut compared = 0;
    for number in 0..6000 {
        let mut random = SampleRng::new(0, SampleId { epoch: 0, index: number }, "damage");
        let (file, name) = &files[random.below(files.len() as u64) as usize];
        let file = damaged(file, &mut random);
        let (Ok(expected), Ok(found)) = (turbo.decode_rgb(&file), ours.decode_rgb(&file)) else {
            continue;
        };
        assert_eq!(found.size, expected.size, "{name}, copy {number}");
        assert!(found.pixels == expected.pixels, "{name}, copy {number}: {:?}", {
            difference(&found.pixels, &expected.pixels)
        });
        compared += 1;
    }
    assert!(compared > 2000, "{compared}");
}

#[test]
fn zune_jpeg_and_our_decoder_give_similar_pixels() {
    let (mut ours, mut zune) = (ours(), decoder(ZuneJpegCodec, &Limits::default()));
    // It misreads images that are smaller than an MCU.
    let large = |name: &str| !["narrow", "tall", "tiny"].iter().any(|part| name.contains(part));
    let mut compared = 0;
    for (name, file) in photographs().into_iter().filter(|(name, _)| large(name)) {
        let expected = ours.decode_rgb(&file).unwrap();
        let found = match zune.decode_rgb(&file) {
            Ok(found) => found,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
                continue;
            }
        };
        assert_eq!(found.size, expected.size, "{name}");
        let (largest, mean) = difference(&found.pixels, &expected.pixels);
        assert!(mean < 1.5, "{name}: differs by {largest}, mean {mean:.3}");
        compared += 1;
    }
    assert!(compared > 20, "{compared}");
}

#[test]
fn both_codecs_pass_the_contract_tests() {
    // Small files only: each is decoded hundreds of times.
    let small: Vec<Vec<u8>> = names("tests/data")
        .iter()
        .filter(|name| name.ends_with(".jpg"))
        .map(|name| common(name))
        .collect();
    let files: Vec<&[u8]> = small.iter().map(Vec::as_slice).collect();
    codec_contract(&TurboJpegCodec, &files);
    codec_contract(&ZuneJpegCodec, &files);
}

#[test]
fn truncated_photos_are_reported_as_truncated() {
    let file = std::fs::read(own("../assets/photos/chelsea.jpg")).unwrap();
    for mut decoder in
        [decoder(TurboJpegCodec, &Limits::default()), decoder(ZuneJpegCodec, &Limits::default())]
    {
        for percent in 1..100 {
            let error = decoder.decode_rgb(&file[..file.len() * percent / 100]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Truncated, "{percent} %: {error}");
        }
    }
}

#[test]
fn coefficients_of_several_scans_count_against_the_memory_limit() {
    let file = common("444-progressive.jpg");
    let tight = Limits::default().max_bytes(37 * 29 * 3);
    for mut decoder in [decoder(TurboJpegCodec, &tight), decoder(ZuneJpegCodec, &tight)] {
        let error = decoder.decode_rgb(&file).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        assert!(decoder.decode_rgb(&common("444.jpg")).is_ok());
    }
}

#[test]
fn corruption_is_accepted_only_without_strict() {
    // A restart marker with a wrong number in valid data.
    let mut file = common("restarts.jpg");
    let marker = file.windows(2).position(|pair| pair == [0xFF, 0xD0]).unwrap();
    file[marker + 1] = 0xD5;
    let error = decoder(TurboJpegCodec, &Limits::default()).decode_rgb(&file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let mut lenient = decoder(TurboJpegCodec, &Limits::default().strict(false));
    assert!(lenient.decode_rgb(&file).is_ok());
    // Truncated data is always an error.
    let error = lenient.decode_rgb(&file[..file.len() - 40]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated, "{error}");
}

fn planes(file: &[u8], request: &DecodeRequest) -> Result<(Decoded, Picture)> {
    let mut picture = Picture::new();
    let decoded =
        decoder(TurboJpegCodec, &Limits::default()).decode_planes(file, request, &mut picture)?;
    Ok((decoded, picture))
}

/// The mean luma (ITU-R BT.601) of the full-size pixels that a plane sample covers.
fn mean_luma(pixels: &[u8], size: Size, x: u32, y: u32, factor: u32) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for y in y * factor..((y + 1) * factor).min(size.height) {
        for x in x * factor..((x + 1) * factor).min(size.width) {
            let at = ((y * size.width + x) * 3) as usize;
            let [red, green, blue] = [0, 1, 2].map(|channel| f64::from(pixels[at + channel]));
            sum += 0.299 * red + 0.587 * green + 0.114 * blue;
            count += 1.0;
        }
    }
    sum / count
}

#[test]
fn planes_have_the_subsampling_of_the_file_and_may_be_reduced() {
    for (name, across, down) in [("420.jpg", 2, 2), ("422.jpg", 2, 1), ("444.jpg", 1, 1)] {
        for factor in [1, 2, 4, 8] {
            let file = common(name);
            let whole = ours().decode_rgb(&file).unwrap();
            let Size { width, height } = whole.size;
            let smallest = Size::new(width / factor, height / factor);
            let (decoded, picture) =
                planes(&file, &DecodeRequest::full().at_least(smallest)).unwrap();
            assert_eq!(decoded.size, Size::new(width.div_ceil(factor), height.div_ceil(factor)));
            assert_eq!((picture.color(), picture.image()), (ColorModel::YCbCr, whole.size));
            let shapes: Vec<_> = picture.planes().iter().map(|plane| plane.shape()).collect();
            assert_eq!((shapes[0].across, shapes[0].down), (factor, factor), "{name}");
            assert_eq!((shapes[1].across, shapes[1].down), (factor * across, factor * down));
            assert_eq!(shapes[1], shapes[2]);
            assert_eq!(shapes[0].area.size(), decoded.size);
            let size = Size::new(width.div_ceil(factor * across), height.div_ceil(factor * down));
            assert_eq!(shapes[1].area.size(), size, "{name}");
            let mut sum = 0.0;
            for y in 0..decoded.size.height {
                for (x, &luma) in picture.planes()[0].row(y).iter().enumerate() {
                    let expected = mean_luma(&whole.pixels, whole.size, x as u32, y, factor);
                    sum += (f64::from(luma) - expected).abs();
                }
            }
            let mean = sum / decoded.size.pixels() as f64;
            assert!(mean < 6.0, "{name}, 1/{factor}: luma differs by {mean:.2}");
        }
    }
    let (_, picture) = planes(&common("grey.jpg"), &DecodeRequest::full()).unwrap();
    assert_eq!(picture.color(), ColorModel::Grey);
    let (_, picture) = planes(&common("cmyk.jpg"), &DecodeRequest::full()).unwrap();
    assert_eq!(picture.color(), ColorModel::Rgb);
}

#[test]
fn reduced_results_are_means_of_the_whole() {
    let file = std::fs::read(own("../assets/photos/astronaut.jpg")).unwrap();
    let whole = ours().decode_stored(&file).unwrap();
    let Size { width, height } = whole.size;
    let mut turbo = decoder(TurboJpegCodec, &Limits::default());
    for factor in [2, 4, 8] {
        let mut pixels = vec![0; whole.pixels.len()];
        let out = PixelsMut::new(&mut pixels, whole.size).unwrap();
        let request = DecodeRequest::full().at_least(Size::new(width / factor, height / factor));
        let decoded = turbo.decode_into(&file, &request, out).unwrap();
        assert_eq!(decoded.size, Size::new(width.div_ceil(factor), height.div_ceil(factor)));
        let mut sum = 0.0;
        for y in 0..decoded.size.height {
            for x in 0..decoded.size.width {
                let at = ((y * width + x) * 3) as usize;
                let luma = 0.299 * f64::from(pixels[at])
                    + 0.587 * f64::from(pixels[at + 1])
                    + 0.114 * f64::from(pixels[at + 2]);
                sum += (luma - mean_luma(&whole.pixels, whole.size, x, y, factor)).abs();
            }
        }
        let mean = sum / decoded.size.pixels() as f64;
        assert!(mean < 4.0, "1/{factor}: differs by {mean:.2}");
    }
    // An exact decode has full size.
    let mut pixels = vec![0; whole.pixels.len()];
    let out = PixelsMut::new(&mut pixels, whole.size).unwrap();
    let request = DecodeRequest::full().at_least(Size::new(1, 1)).exact(true);
    assert_eq!(turbo.decode_into(&file, &request, out).unwrap().size, whole.size);
    assert!(pixels == whole.pixels);
}

// promise: IMG4
#[test]
fn a_region_outside_the_image_is_an_error() {
    let region = Rect { left: 1, top: 0, width: 37, height: 29 };
    let error = planes(&common("420.jpg"), &DecodeRequest::full().region(region)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

/// The minimum of 1,000 JPEGs, most of them from fuzzers, that libjpeg-turbo and our decoder both
/// accept or both reject.
const AGREEMENT_FLOOR: usize = 900;

#[test]
fn third_party_jpegs_give_pixels_or_typed_errors() {
    let Some(corpora) = corpora() else { return };
    let (mut ours, mut zune) = (ours(), decoder(ZuneJpegCodec, &Limits::default()));
    let mut turbo = decoder(TurboJpegCodec, &Limits::default());
    let manifest = std::fs::read_to_string(corpora.join("MANIFEST.tsv")).unwrap();
    let (mut files, mut alike, mut both, mut equal) = (0, 0, 0, 0);
    for line in manifest.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        if fields[1] != "jpeg" {
            continue;
        }
        let path = corpora.join(fields[0]).join("files").join(fields[5]);
        let Ok(encoded) = std::fs::read(&path) else { continue };
        let judged = [&mut turbo, &mut zune].map(|decoder| {
            let outcome = decoder.decode_stored(&encoded);
            if let Err(error) = &outcome {
                use ErrorKind::*;
                // zune-jpeg panics on some files.
                let kinds = [Truncated, Corrupt, Unsupported, LimitExceeded, Panicked];
                assert!(kinds.contains(&error.kind()), "{}: {error}", path.display());
            }
            outcome
        });
        let [turbo, _] = judged;
        let ours = ours.decode_stored(&encoded);
        files += 1;
        alike += usize::from(turbo.is_ok() == ours.is_ok());
        if let (Ok(turbo), Ok(ours)) = (turbo, ours) {
            both += 1;
            equal += usize::from(turbo == ours);
        }
    }
    println!(
        "{files} JPEGs: {alike} with the same result, {both} accepted by both, {equal} of them equal"
    );
    assert!(files > 200, "{files}");
    assert!(1000 * alike / files >= AGREEMENT_FLOOR, "{alike} of {files} with the same result");
    assert_eq!(equal, both, "files that both accept have equal pixels");
}
