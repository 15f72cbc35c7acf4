//! Alpha and 16 bits, compared with Pillow, NumPy and tifffile; EXIF orientations that are not applied.

use std::io::Read;

use spdl_core::{DType, ErrorKind, SampleId, SampleRng};
use spdl_media::augment::{Augmenter, ColorJitter};
use spdl_media::image::{DecodeRequest, Picture, RgbaPicture, SampleDepth};
use spdl_media::{
    CodecRegistry, Crop, Decoder, FillImage, ImageTransform, Layout, Limits, OnTruncated,
    Orientation, Rect, Sample, SampleColor, Size,
};

use crate::files;

fn filler(transform: &ImageTransform) -> FillImage {
    FillImage::new(&CodecRegistry::with_defaults(), transform, &Limits::default()).unwrap()
}

fn no_rng() -> SampleRng {
    unreachable!("nothing is random")
}

/// A line of the table: kind, file, filter, crop, size; and its expected bytes.
struct Expectation {
    kind: String,
    name: String,
    filter: String,
    crop: Rect,
    size: Size,
    bytes: Vec<u8>,
}

fn expectations() -> Vec<Expectation> {
    let folder = files::own("tests/golden");
    let table = std::fs::read_to_string(folder.join("rgba.tsv")).unwrap();
    let packed = std::fs::read(folder.join("rgba.bin")).unwrap();
    let mut content = Vec::new();
    flate2::read::ZlibDecoder::new(&packed[..]).read_to_end(&mut content).unwrap();
    let mut rest = &content[..];
    let expectations = table.lines().map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let number = |at: usize| fields[at].parse::<u32>().unwrap();
        let crop = Rect { left: number(3), top: number(4), width: number(5), height: number(6) };
        let size = Size::new(number(7), number(8));
        let per_pixel = if fields[0] == "wide" { 8 } else { 4 };
        let (bytes, after) = rest.split_at(size.pixels() as usize * per_pixel);
        rest = after;
        Expectation {
            kind: fields[0].into(),
            name: fields[1].into(),
            filter: fields[2].into(),
            crop,
            size,
            bytes: bytes.to_vec(),
        }
    });
    let expectations: Vec<_> = expectations.collect();
    assert!(rest.is_empty());
    expectations
}

fn of_kind(kind: &str) -> impl Iterator<Item = Expectation> {
    let mut found = expectations().into_iter().filter(move |it| it.kind == kind).peekable();
    assert!(found.peek().is_some());
    found
}

impl Expectation {
    fn transform(&self) -> ImageTransform {
        ImageTransform::with_size(self.size)
            .crop(Crop::Stretch)
            .filter(self.filter.parse().unwrap())
            .color(SampleColor::Rgba)
    }

    /// The crop, resized, as words.
    fn words(&self, transform: &ImageTransform) -> Vec<u16> {
        let transform = transform.clone().dtype(DType::U16);
        let mut words = vec![0; transform.tensor().values() as usize];
        let sample = Sample::U16(&mut words);
        let mut fill = filler(&transform);
        fill.write_crop(&files::data(&self.name), sample, self.crop, false).unwrap();
        words
    }
}

#[test]
fn alpha_equals_that_of_pillow() {
    for expected in of_kind("rgba") {
        let mut found = vec![0; expected.bytes.len()];
        let sample = Sample::U8(&mut found);
        let mut fill = filler(&expected.transform());
        let file = files::data(&expected.name);
        fill.write_crop(&file, sample, expected.crop, false).unwrap();
        let differ: Vec<_> = found
            .chunks(4)
            .zip(expected.bytes.chunks(4))
            // WebP and JPEG decoders may round colours in another way; alpha is lossless.
            .filter(|(a, b)| a[3] != b[3] || a.iter().zip(*b).any(|(a, b)| a.abs_diff(*b) > 1))
            .collect();
        assert!(differ.is_empty(), "{}: {differ:?}", expected.name);
    }
}

#[test]
fn premultiplied_pixels_are_resized_as_by_pillow() {
    let mut worst = 0.0_f64;
    for expected in of_kind("premultiplied") {
        let found = expected.words(&expected.transform());
        for (pixel, expected_pixel) in found.chunks(4).zip(expected.bytes.chunks(4)) {
            let alpha = f64::from(pixel[3]) / 257.0;
            for channel in 0..4 {
                let level = f64::from(pixel[channel]) / 257.0;
                let expected_level = f64::from(expected_pixel[channel]);
                // A filter that overshoots can make a premultiplied colour larger than alpha. The conversion
                // from RGBa to RGBA clips such a colour to alpha, here as in Pillow.
                let difference = match channel {
                    3 => level - expected_level,
                    _ => level * alpha / 255.0 - expected_level.min(f64::from(expected_pixel[3])),
                };
                worst = worst.max(difference.abs());
                // Pillow rounds to bytes before and after each pass: three times by at most 0.5. Negative
                // weights amplify the first two.
                let overshoots = ["bicubic", "lanczos3"].contains(&&*expected.filter);
                let most = if overshoots { 1.65 } else { 1.5 };
                assert!(
                    difference.abs() <= most,
                    "{} {}: {difference}",
                    expected.name,
                    expected.filter
                );
            }
        }
    }
    println!("largest difference of a premultiplied level: {worst:.3}");
}

#[test]
fn words_of_a_crop_are_exact_and_resized_ones_within_one_level() {
    for expected in of_kind("wide") {
        let found = expected.words(&expected.transform());
        let words = expected.bytes.as_chunks::<2>().0.iter().map(|it| u16::from_le_bytes(*it));
        let is_exact = expected.crop.size() == expected.size || expected.filter == "nearest";
        let words: Vec<u16> = words.collect();
        for (found, expected_pixel) in found.chunks(4).zip(words.chunks(4)) {
            // The colours of nearly transparent pixels amplify rounding.
            let share = f64::from(expected_pixel[3].max(1)) / 65_535.0;
            for (channel, (a, b)) in found.iter().zip(expected_pixel).enumerate() {
                let most = match is_exact {
                    true => 0.0,
                    false => {
                        if channel < 3 {
                            1.0 / share
                        } else {
                            1.0
                        }
                    }
                };
                let (name, filter) = (&expected.name, &expected.filter);
                assert!(
                    f64::from(a.abs_diff(*b)) <= most,
                    "{name} {filter}: {found:?}, not {expected_pixel:?}"
                );
            }
        }
    }
}

#[test]
fn words_of_other_colors_are_those_of_rgba() {
    let expected = of_kind("wide").find(|it| it.name == "wide-rgb.png").unwrap();
    let rgba = expected.words(&expected.transform());
    let rgb = expected.words(&expected.transform().color(SampleColor::Rgb));
    let bgr = expected.words(&expected.transform().color(SampleColor::Bgr).layout(Layout::Nchw));
    let grey = expected.words(&expected.transform().color(SampleColor::Grey));
    let area = expected.size.pixels() as usize;
    for (at, pixel) in rgba.chunks(4).enumerate() {
        assert_eq!(rgb[3 * at..][..3], pixel[..3]);
        assert_eq!([bgr[at], bgr[area + at], bgr[2 * area + at]], [pixel[2], pixel[1], pixel[0]]);
        let [red, green, blue] = [pixel[0], pixel[1], pixel[2]].map(u64::from);
        let luma = (19_595 * red + 38_470 * green + 7_471 * blue + 32_768) >> 16;
        assert_eq!(u64::from(grey[at]), luma);
    }
}

#[test]
fn samples_of_8_bits_are_multiplied_by_257_and_equal_those_of_rgb() {
    for name in
        ["rgb.png", "grey16.png", "rgb16.png", "interlaced16.png", "palette4.png", "rgb.jpg"]
    {
        let file = files::data(name);
        let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
        let rgb = decoder.decode_stored(&file).unwrap();
        let mut picture = RgbaPicture::new();
        let request = DecodeRequest::full();
        decoder.decode_rgba(&file, &request, SampleDepth::Eight, &mut picture).unwrap();
        let rows = (0..rgb.size.height).flat_map(|row| picture.row(row));
        for (pixel, expected) in rows.zip(rgb.pixels.chunks(3)) {
            let expected: Vec<u16> = expected.iter().map(|level| u16::from(*level) * 257).collect();
            assert_eq!((&pixel[..3], pixel[3]), (&expected[..], 65_535), "{name}");
        }
    }
}

#[test]
fn pixels_outside_the_image_are_opaque_and_samples_flip() {
    let file = files::data("rgb-alpha.png");
    let fill = Crop::Letterbox { fill: [1, 2, 3] };
    let transform = ImageTransform::new(64).crop(fill).color(SampleColor::Rgba).dtype(DType::F32);
    let make = |transform: &ImageTransform| {
        let mut values = vec![0.0; 64 * 64 * 4];
        let rng = || SampleRng::new(0, SampleId::default(), "t");
        filler(transform).write(&file, Sample::F32(&mut values), rng).unwrap();
        values
    };
    let upright = make(&transform.clone().normalization([0.0; 3], [1.0; 3]));
    let expected = [1.0, 2.0, 3.0, 255.0].map(|level: f32| level / 255.0);
    let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(near(&upright[..4], &expected), "{:?}", &upright[..4]);
    // Alpha is not normalised.
    let normalised = make(&transform);
    let alphas = |values: &[f32]| values.iter().skip(3).step_by(4).copied().collect::<Vec<_>>();
    assert_eq!(alphas(&upright), alphas(&normalised));
    let flipped =
        transform.normalization([0.0; 3], [1.0; 3]).horizontal_flip(1.0).vertical_flip(1.0);
    let turned = make(&flipped);
    let reversed: Vec<f32> = turned.chunks(4).rev().flatten().copied().collect();
    assert_eq!(reversed, upright);
}

#[test]
fn what_supports_rgb_of_8_bits_only_refuses_alpha_and_16_bits() {
    let rgba = ImageTransform::new(8).color(SampleColor::Rgba);
    let wide = ImageTransform::new(8).dtype(DType::U16);
    for transform in [&rgba, &wide] {
        let jitter = || Augmenter::new().then(ColorJitter::new().brightness(0.4));
        let error = filler(transform).augment(jitter()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().starts_with("augmentations are supported only for RGB"), "{error}");
        assert!(filler(transform).augment(Augmenter::new()).is_ok());
        let corners = transform.clone().crop(Crop::Corners { covering: None, flipped: None });
        assert_eq!(corners.validate().unwrap_err().kind(), ErrorKind::Unsupported);
        let outcome = filler(transform).write_picture(
            &Picture::new(),
            Orientation::Upright,
            Sample::U8(&mut []),
            no_rng,
        );
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

#[test]
fn missing_rows_of_a_truncated_file_are_opaque_black() {
    let file = files::data("rgb-alpha.png");
    let cut = &file[..file.len() * 3 / 4];
    let transform = ImageTransform::with_size(Size::new(37, 29))
        .crop(Crop::Stretch)
        .color(SampleColor::Rgba)
        .on_truncated(OnTruncated::Partial)
        .min_partial(0.1);
    let mut pixels = vec![9; 37 * 29 * 4];
    let written = filler(&transform).write(cut, Sample::U8(&mut pixels), no_rng).unwrap();
    assert!(written.is_partial());
    assert_eq!(pixels[pixels.len() - 4..], [0, 0, 0, 255]);
    let whole = transform.on_truncated(OnTruncated::Error);
    let error = filler(&whole).write(cut, Sample::U8(&mut pixels), no_rng).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated);
}

#[test]
fn a_picture_above_the_memory_limit_is_an_error() {
    let transform = ImageTransform::new(8).color(SampleColor::Rgba);
    let limits = Limits::default().max_bytes(37 * 29 * 11 - 1);
    let mut fill = FillImage::new(&CodecRegistry::with_defaults(), &transform, &limits).unwrap();
    let mut pixels = vec![0; 8 * 8 * 4];
    let file = files::data("rgb-alpha.png");
    let error = fill.write(&file, Sample::U8(&mut pixels), no_rng).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

#[test]
fn an_exif_orientation_is_applied_unless_it_is_disabled() {
    let make = |name: &str, transform: &ImageTransform| {
        let mut pixels = vec![0; transform.tensor().values() as usize];
        let written =
            filler(transform).write(&files::data(name), Sample::U8(&mut pixels), no_rng).unwrap();
        (written.image, pixels)
    };
    for (name, color) in [
        ("orientation-6.jpg", SampleColor::Rgb),
        ("orientation-6.png", SampleColor::Rgb),
        ("orientation-5.tiff", SampleColor::Rgb),
        ("orientation-8.webp", SampleColor::Rgba),
    ] {
        let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
        let info = decoder.inspect(&files::data(name)).unwrap();
        let stored = decoder.decode_stored(&files::data(name)).unwrap();
        assert!(info.orientation.swaps_sides());
        let transform = ImageTransform::with_size(info.size)
            .crop(Crop::Stretch)
            .color(color)
            .exact(true)
            .exif_orientation(false);
        let (image, pixels) = make(name, &transform);
        assert_eq!(image, info.size, "{name}");
        let found = pixels.chunks(color.channels()).flat_map(|pixel| &pixel[..3]);
        assert!(found.eq(&stored.pixels), "{name}");
        let upright = transform.exif_orientation(true);
        assert_eq!(make(name, &upright).0, info.upright_size());
        assert!(upright.parameters().all(|(key, _)| key != "exif orientation"));
    }
    let disabled = ImageTransform::new(8).exif_orientation(false);
    assert!(disabled.parameters().any(|it| it == ("exif orientation", "false".to_owned())));
    assert!(!disabled.applies_exif_orientation());
}
