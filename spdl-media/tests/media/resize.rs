//! Resize: Pillow's pixels, subsampled planes, and invariants.

use std::io::Read;

use proptest::prelude::*;
use spdl_media::image::{ColorModel, Picture, PlaneShape};
use spdl_media::{
    CodecRegistry, Crop, Decoder, FillImage, Image, ImageTransform, Limits, Orientation, Rect,
    ResizeFilter, Sample, SampleColor, Size,
};

use crate::files;

fn filler(transform: &ImageTransform) -> FillImage {
    FillImage::new(&CodecRegistry::with_defaults(), transform, &Limits::default()).unwrap()
}

fn no_rng() -> spdl_core::SampleRng {
    unreachable!("nothing is random")
}

/// `picture`, resized and converted to RGB.
fn resized(picture: &Picture, orientation: Orientation, transform: &ImageTransform) -> Image {
    let mut pixels = vec![0; transform.size().pixels() as usize * 3];
    filler(transform).write_picture(picture, orientation, Sample::U8(&mut pixels), no_rng).unwrap();
    Image { size: transform.size(), pixels }
}

fn stretched(size: Size, filter: ResizeFilter) -> ImageTransform {
    ImageTransform::with_size(size).crop(Crop::Stretch).filter(filter)
}

// promise: IMG6
#[test]
fn resized_pixels_equal_pillow() {
    let folder = files::own("tests/golden");
    let table = std::fs::read_to_string(folder.join("resize.tsv")).unwrap();
    let packed = std::fs::read(folder.join("resize.bin")).unwrap();
    let mut content = Vec::new();
    flate2::read::ZlibDecoder::new(&packed[..]).read_to_end(&mut content).unwrap();
    let mut rest = &content[..];
    let mut worst = 0;
    for line in table.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let folder = if fields[0] == "data" { files::own("tests/data") } else { files::photos() };
        let encoded = std::fs::read(folder.join(fields[1])).unwrap();
        let size = Size::new(fields[5].parse().unwrap(), fields[6].parse().unwrap());
        let color = if fields[2] == "L" { SampleColor::Grey } else { SampleColor::Rgb };
        let (action, numbers) = fields[4].split_once(' ').unwrap_or((fields[4], ""));
        let numbers: Vec<u32> = numbers.split(' ').filter_map(|word| word.parse().ok()).collect();
        let crop = match numbers[..] {
            [width, height] => Crop::ResizedCenter { covering: Size::new(width, height) },
            _ => Crop::Stretch,
        };
        let transform = ImageTransform::with_size(size)
            .crop(crop)
            .filter(fields[3].parse().unwrap())
            .color(color)
            .exact(true);
        let mut found = vec![0; size.pixels() as usize * color.channels()];
        let sample = Sample::U8(&mut found);
        let mut fill = filler(&transform);
        match (action, &numbers[..]) {
            ("crop", &[left, top, width, height]) => {
                let crop = Rect { left, top, width, height };
                fill.write_crop(&encoded, sample, crop, false).unwrap();
            }
            _ => {
                fill.write(&encoded, sample, no_rng).unwrap();
            }
        }
        let (expected, after) = rest.split_at(found.len());
        rest = after;
        let largest = found.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        worst = worst.max(largest);
        assert!(largest <= 1, "{line}: differs by {largest}");
    }
    assert!(rest.is_empty());
    println!("{} expectations; largest difference {worst}", table.lines().count());
    assert_eq!(table.lines().count(), 60);
}

/// The planes of an image as in a JPEG with 4:2:0 chroma.
fn subsampled(image: &Image) -> Picture {
    let Size { width, height } = image.size;
    let chroma = Size::new(width.div_ceil(2), height.div_ceil(2));
    let shape = |size: Size, pixels: u32| PlaneShape {
        channels: 1,
        area: Rect::full(size),
        across: pixels,
        down: pixels,
        stride: size.width as usize,
    };
    let mut picture = Picture::new();
    let shapes = [shape(image.size, 1), shape(chroma, 2), shape(chroma, 2)];
    picture.start(image.size, ColorModel::YCbCr, &shapes).unwrap();
    let factors =
        [[0.299, 0.587, 0.114], [-0.168_736, -0.331_264, 0.5], [0.5, -0.418_688, -0.081_312]];
    for (component, plane) in picture.planes_mut().iter_mut().enumerate() {
        let PlaneShape { area, across, .. } = plane.shape();
        for y in 0..area.height {
            for x in 0..area.width {
                let (mut sum, mut count) = (0.0, 0.0);
                for y in y * across..((y + 1) * across).min(height) {
                    for x in x * across..((x + 1) * across).min(width) {
                        let pixel = &image.pixels[(y * width + x) as usize * 3..][..3];
                        let parts = pixel.iter().zip(factors[component]);
                        sum += parts.map(|(&value, factor)| f64::from(value) * factor).sum::<f64>();
                        count += 1.0;
                    }
                }
                let middle = if component == 0 { 0.0 } else { 128.0 };
                let value = (sum / count + middle).round().clamp(0.0, 255.0) as u8;
                plane.samples_mut()[(y * area.width + x) as usize] = value;
            }
        }
    }
    picture
}

/// Floating-point RGB of such planes: triangle filter for chroma.
fn decoded(picture: &Picture) -> Picture {
    let size = picture.image();
    let chroma = |component: usize, x: u32, y: u32| {
        let plane = &picture.planes()[component];
        let Size { width, height } = plane.shape().area.size();
        // A quarter of a chroma sample towards the pixel.
        let beside = |at: u32, limit: u32| {
            let near = at / 2;
            let far = if at.is_multiple_of(2) {
                near.saturating_sub(1)
            } else {
                (near + 1).min(limit - 1)
            };
            [(near, 0.75), (far, 0.25)]
        };
        let mut sum = 0.0;
        for (y, down) in beside(y, height) {
            for (x, across) in beside(x, width) {
                sum += f64::from(plane.row(y)[x as usize]) * down * across;
            }
        }
        sum - 128.0
    };
    let mut rgb = Picture::new();
    rgb.start_rgb(size, Rect::full(size)).unwrap();
    let mut pixels = rgb.rgb_mut().unwrap();
    for y in 0..size.height {
        for x in 0..size.width {
            let luma = f64::from(picture.planes()[0].row(y)[x as usize]);
            let (cb, cr) = (chroma(1, x, y), chroma(2, x, y));
            let color =
                [luma + 1.402 * cr, luma - 0.344_14 * cb - 0.714_14 * cr, luma + 1.772 * cb];
            let place = &mut pixels.row_mut(y)[x as usize * 3..][..3];
            place.copy_from_slice(&color.map(|value| value.round().clamp(0.0, 255.0) as u8));
        }
    }
    rgb
}

fn psnr(a: &Image, b: &Image) -> f64 {
    let squares = a.pixels.iter().zip(&b.pixels);
    let sum: f64 = squares.map(|(&a, &b)| f64::from(a.abs_diff(b)).powi(2)).sum();
    10.0 * (255.0f64.powi(2) * a.pixels.len() as f64 / sum).log10()
}

// promise: IMG5
#[test]
fn separately_resized_chroma_is_close_to_the_exact_result() {
    let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
    let mut worst = f64::INFINITY;
    for name in ["astronaut.jpg", "chelsea.jpg", "coffee.jpg", "rocket.jpg"] {
        let encoded = std::fs::read(files::photos().join(name)).unwrap();
        let planes = subsampled(&decoder.decode_stored(&encoded).unwrap());
        let rgb = decoded(&planes);
        for filter in [
            ResizeFilter::Area,
            ResizeFilter::Bilinear,
            ResizeFilter::Bicubic,
            ResizeFilter::Lanczos3,
        ] {
            for side in [64, 224] {
                let transform = ImageTransform::new(side).filter(filter);
                let direct = resized(&planes, Orientation::Upright, &transform);
                let through = resized(&rgb, Orientation::Upright, &transform);
                let psnr = psnr(&direct, &through);
                worst = worst.min(psnr);
                assert!(psnr >= 40.0, "{name}, {filter}, {side}: {psnr:.1} dB");
            }
        }
    }
    println!("minimum PSNR: {worst:.1} dB");
}

/// Noise in all planes.
fn noise(size: Size, color: ColorModel, chroma: (u32, u32), seed: u32) -> Picture {
    let shape = |(across, down): (u32, u32), channels: usize| {
        let area = Rect::full(Size::new(size.width.div_ceil(across), size.height.div_ceil(down)));
        // Rows with padding between them.
        PlaneShape { channels, area, across, down, stride: area.width as usize * channels + 5 }
    };
    let mut picture = Picture::new();
    match color {
        ColorModel::YCbCr => {
            picture.start(size, color, &[shape((1, 1), 1), shape(chroma, 1), shape(chroma, 1)])
        }
        ColorModel::Grey => picture.start(size, color, &[shape((1, 1), 1)]),
        _ => picture.start(size, color, &[shape((1, 1), 3)]),
    }
    .unwrap();
    let mut state = seed;
    for plane in picture.planes_mut() {
        plane.samples_mut().iter_mut().for_each(|sample| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *sample = (state >> 24) as u8;
        });
    }
    picture
}

#[test]
fn a_picture_without_the_crop_is_an_error() {
    let fill = [0; 3];
    let mut odd = noise(Size::new(4, 4), ColorModel::Rgb, (1, 1), 0);
    // Three channels, but the colour model has one.
    let shape = odd.planes()[0].shape();
    odd.start(Size::new(4, 4), ColorModel::Grey, &[shape]).unwrap();
    for picture in [Picture::new(), odd] {
        for crop in [
            Crop::ResizedCenter { covering: Size::new(5, 5) },
            Crop::RandomResized { area: (0.1, 1.0), aspect: (1.0, 1.0) },
            Crop::Stretch,
            Crop::Letterbox { fill },
            Crop::Center { fill },
            Crop::Random { padding: 1, fill },
            Crop::RandomScaled { shorter: (4, 6), fill },
        ] {
            let rng = || spdl_core::SampleRng::new(0, spdl_core::SampleId::default(), "t");
            let mut bytes = [0; 5 * 5 * 3];
            let error = filler(&ImageTransform::new(5).crop(crop))
                .write_picture(&picture, Orientation::Upright, Sample::U8(&mut bytes), rng)
                .unwrap_err();
            assert_eq!(error.kind(), spdl_core::ErrorKind::InvalidArgument, "{crop:?}");
        }
    }
}

fn color(number: u8) -> ColorModel {
    [ColorModel::Rgb, ColorModel::Grey, ColorModel::YCbCr][usize::from(number % 3)]
}

/// The image in upright orientation.
fn turned(image: &Image, orientation: Orientation) -> Image {
    let size = orientation.apply(image.size);
    let mut pixels = Vec::new();
    for y in 0..size.height {
        for x in 0..size.width {
            let (x, y) = orientation.point_to_stored(x, y, image.size);
            let at = (y * image.size.width + x) as usize * 3;
            pixels.extend_from_slice(&image.pixels[at..at + 3]);
        }
    }
    Image { size, pixels }
}

fn largest_difference(a: &Image, b: &Image) -> u8 {
    assert_eq!(a.size, b.size);
    a.pixels.iter().zip(&b.pixels).map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    // promise: IMG6
    #[test]
    fn a_constant_image_stays_constant(
        width in 1u32..70, height in 1u32..70, target in (1u32..70, 1u32..70), kind: u8,
        filter in 0usize..5, chroma in (1u32..=4, 1u32..=4), values: (u8, u8, u8), turn in 0usize..8,
    ) {
        let size = Size::new(width, height);
        let mut picture = noise(size, color(kind), chroma, 0);
        let values = [values.0, values.1, values.2];
        for (plane, value) in picture.planes_mut().iter_mut().zip(values) {
            let channels = plane.shape().channels;
            let (offsets, stride) = (values, plane.shape().stride);
            plane.samples_mut().iter_mut().enumerate().for_each(|(at, sample)| {
                *sample = if channels == 3 { offsets[at % stride % 3] } else { value };
            });
        }
        let transform = stretched(Size::new(target.0, target.1), ResizeFilter::ALL[filter]);
        let found = resized(&picture, Orientation::ALL[turn], &transform);
        let first = &found.pixels[..3];
        prop_assert!(found.pixels.chunks(3).all(|pixel| pixel == first));
        match color(kind) {
            ColorModel::Rgb => prop_assert_eq!(first, values),
            ColorModel::Grey => prop_assert_eq!(first, [values[0]; 3]),
            _ => {}
        }
    }

    // promise: IMG6
    #[test]
    fn flip_and_resize_commute(
        width in 1u32..90, height in 1u32..90, target in (1u32..50, 1u32..50), kind: u8, seed: u32,
        filter in 0usize..5, chroma in (1u32..=4, 1u32..=4), turn in 0usize..8,
    ) {
        let size = Size::new(width, height);
        let picture = noise(size, color(kind), chroma, seed);
        let transform = stretched(Size::new(target.0, target.1), ResizeFilter::ALL[filter]);
        let orientation = Orientation::ALL[turn];
        let plain = resized(&picture, orientation, &transform);
        // Probability 1 is deterministic.
        let flipped = |transform: &ImageTransform| {
            let mut pixels = vec![0; plain.pixels.len()];
            let rng = || spdl_core::SampleRng::new(0, spdl_core::SampleId::default(), "t");
            filler(transform)
                .write_picture(&picture, orientation, Sample::U8(&mut pixels), rng)
                .unwrap();
            Image { size: plain.size, pixels }
        };
        let mirrored = flipped(&transform.clone().horizontal_flip(1.0));
        prop_assert_eq!(&mirrored, &turned(&plain, Orientation::FlippedHorizontally));
        let upended = flipped(&transform.clone().vertical_flip(1.0));
        prop_assert_eq!(&upended, &turned(&plain, Orientation::FlippedVertically));
        let both = flipped(&transform.horizontal_flip(1.0).vertical_flip(1.0));
        prop_assert_eq!(&both, &turned(&plain, Orientation::Rotated180));
    }

    // promise: IMG6
    #[test]
    fn orientation_and_resize_commute(
        width in 1u32..90, height in 1u32..90, target in (1u32..50, 1u32..50), seed: u32,
        filter in 0usize..3, turn in 0usize..8,
    ) {
        let size = Size::new(width, height);
        let picture = noise(size, ColorModel::Rgb, (1, 1), seed);
        let stored = Image {
            size,
            pixels: (0..height).flat_map(|y| picture.planes()[0].row(y).to_vec()).collect(),
        };
        let orientation = Orientation::ALL[turn];
        let upright = turned(&stored, orientation);
        let mut turned_picture = Picture::new();
        turned_picture.start_rgb(upright.size, Rect::full(upright.size)).unwrap();
        turned_picture.planes_mut()[0].samples_mut()[..upright.pixels.len()]
            .copy_from_slice(&upright.pixels);
        let transform = stretched(Size::new(target.0, target.1), ResizeFilter::ALL[filter]);
        let expected = resized(&turned_picture, Orientation::Upright, &transform);
        let found = resized(&picture, orientation, &transform);
        prop_assert!(largest_difference(&found, &expected) <= 1);
    }
}
