//! Resizing, compared with the definitions, with PyTorch and with `spdl-media`.

use spdl_core::DType;
use spdl_cuda::pixels::{ChromaSiting, PixelFormat};
use spdl_media::image::{ColorModel, PlaneShape};
use spdl_media::{
    CodecRegistry, Crop, FillImage, ImageTransform, Limits, Orientation, Rect, ResizeFilter,
    Sample, Size,
};

use crate::host::{floats, plain, run_one};
use crate::picture::{Colors, Picture, noise};
use crate::reference::Case;
use spdl_media::image::CropBox;
use spdl_media::transform::TensorSpec;

const FILTERS: [ResizeFilter; 2] = [ResizeFilter::Bilinear, ResizeFilter::Bicubic];
const FORMATS: [(PixelFormat, u32); 6] = [
    (PixelFormat::Rgb8, 8),
    (PixelFormat::Nv12, 8),
    (PixelFormat::P016, 10),
    (PixelFormat::Yuv420, 8),
    (PixelFormat::Yuv444, 8),
    (PixelFormat::Yuv444P16, 12),
];

/// Compares samples of `f32` and of bytes with the definitions.
fn assert_defined(picture: &Picture, case: &Case) {
    let (width, height) = (case.width, case.height);
    let Some(found) = run_one(picture, case, &plain(width, height)) else { return };
    let expected = case.colors(picture, false).into_iter().flatten();
    for (at, (found, expected)) in floats(&found).into_iter().zip(expected).enumerate() {
        let expected = expected.clamp(0.0, 255.0);
        // The tolerance covers the rounding of sums of hundreds of weights to 24 bits.
        assert!(
            (f64::from(found) - expected).abs() < 2e-3,
            "{:?} {case:?}: value {at} is {found}, not {expected}",
            picture.format
        );
    }
    let Some(found) = run_one(picture, case, &TensorSpec::new(Size::new(width, height))) else {
        return;
    };
    let expected = case.colors(picture, true).into_iter().flatten();
    for (at, (found, expected)) in found.into_iter().zip(expected).enumerate() {
        let expected = expected.clamp(0.0, 255.0);
        assert!(
            (f64::from(found) - expected).abs() < 0.5 + 2e-3,
            "{:?} {case:?}: byte {at} is {found}, not {expected}",
            picture.format
        );
    }
}

// promise: G8
#[test]
fn whole_images_match_the_definition() {
    for (format, bits) in FORMATS {
        for (size, target) in [
            ((1, 1), (5, 3)),
            ((7, 5), (1, 1)),
            ((7, 5), (33, 18)),
            ((7, 5), (3, 9)),
            ((321, 241), (64, 48)),
            ((321, 241), (37, 250)),
            ((640, 9), (2, 3)),
            ((3, 999), (40, 5)),
        ] {
            let picture = Picture::noise(format, size.0, size.1, bits, Colors::VIDEO);
            for filter in FILTERS {
                assert_defined(&picture, &Case::whole(&picture, target.0, target.1, filter));
            }
        }
    }
}

// promise: G8
#[test]
fn crops_match_the_definition_within_their_bounds() {
    for (format, bits) in FORMATS {
        let picture = Picture::noise(format, 101, 77, bits, Colors::JPEG);
        for filter in FILTERS {
            for (source, bounds) in [
                // Integer pixels; fractional pixels; wider bounds; beyond the image; below one pixel.
                ((13.0, 7.0, 51.0, 41.0), None),
                ((13.25, 7.75, 51.5, 40.125), None),
                ((30.0, 20.0, 20.0, 20.0), Some((11, 9, 63, 55))),
                ((-3.5, -2.0, 107.5, 81.0), None),
                ((50.5, 40.5, 0.25, 0.125), None),
            ] {
                for siting in [ChromaSiting::Left, ChromaSiting::Center, ChromaSiting::TopLeft] {
                    let (left, top, width, height) = source;
                    let bounds =
                        bounds.map(|(left, top, width, height)| Rect { left, top, width, height });
                    let source = CropBox { left, top, width, height };
                    let case = Case { source, bounds, width: 40, height: 23, filter, siting };
                    assert_defined(&picture, &case);
                }
            }
        }
    }
}

#[test]
fn a_large_reduction_uses_every_pixel() {
    for filter in FILTERS {
        let picture = Picture::noise(PixelFormat::Rgb8, 1200, 700, 8, Colors::JPEG);
        assert_defined(&picture, &Case::whole(&picture, 3, 2, filter));
    }
}

/// PyTorch's samples of noise, with `kind` `u8` or `f32`.
fn golden(
    kind: &str,
) -> impl Iterator<Item = ((u32, u32), (u32, u32), ResizeFilter, &'static [u8])> {
    const LIST: &str = include_str!("golden/torch.tsv");
    const CONTENT: &[u8] = include_bytes!("golden/torch.bin");
    LIST.lines().filter_map(move |line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let number = |at: usize| fields[at].parse::<u32>().unwrap();
        let filter =
            if fields[0] == "bicubic" { ResizeFilter::Bicubic } else { ResizeFilter::Bilinear };
        let content = &CONTENT[number(6) as usize..][..number(7) as usize];
        let sizes = ((number(2), number(3)), (number(4), number(5)));
        (fields[1] == kind).then_some((sizes.0, sizes.1, filter, content))
    })
}

fn golden_picture(size: (u32, u32)) -> Picture {
    Picture::noise(PixelFormat::Rgb8, size.0, size.1, 8, Colors::JPEG)
}

// promise: G8
#[test]
fn g8_bytes_are_within_one_level_of_pytorch() {
    let mut compared = 0;
    for (size, target, filter, expected) in golden("u8") {
        let picture = golden_picture(size);
        let case = Case::whole(&picture, target.0, target.1, filter);
        let format = TensorSpec::new(Size::new(target.0, target.1));
        let Some(found) = run_one(&picture, &case, &format) else { return };
        assert_eq!(found.len(), expected.len());
        let largest = found.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(largest <= Some(1), "{size:?} to {target:?}, {filter:?}: {largest:?}");
        compared += 1;
    }
    assert_eq!(compared, 10);
}

// promise: G8
#[test]
fn g8_f16_and_f32_are_within_a_thousandth_of_pytorch() {
    let mut compared = 0;
    for (size, target, filter, expected) in golden("f32") {
        let picture = golden_picture(size);
        let case = Case::whole(&picture, target.0, target.1, filter);
        for (dtype, tolerance) in [(DType::F16, 1e-3), (DType::F32, 1e-5)] {
            let format = *ImageTransform::with_size(Size::new(target.0, target.1))
                .dtype(dtype)
                .normalization([0.0; 3], [1.0; 3])
                .tensor();
            let Some(found) = run_one(&picture, &case, &format) else { return };
            let found: Vec<f32> = match dtype {
                DType::F16 => {
                    let (halves, _) = found.as_chunks::<2>();
                    halves.iter().map(|bytes| half::f16::from_ne_bytes(*bytes).to_f32()).collect()
                }
                _ => floats(&found),
            };
            let expected = floats(expected);
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                // PyTorch does not clamp the overshoot of the bicubic filter.
                let expected = expected.clamp(0.0, 1.0);
                assert!(
                    (found - expected).abs() <= tolerance,
                    "{size:?} to {target:?}, {filter:?}, {dtype:?}: {found}, not {expected}"
                );
            }
        }
        compared += 1;
    }
    assert_eq!(compared, 10);
}

/// The sample of `spdl-media`.
fn on_the_host(picture: &Picture, case: &Case) -> Vec<u8> {
    let image = Size::new(picture.width(), picture.height());
    let shape = |pixels: u32, channels: usize| {
        let area =
            Rect::full(Size::new(image.width.div_ceil(pixels), image.height.div_ceil(pixels)));
        let stride = area.width as usize * channels;
        PlaneShape { channels, area, across: pixels, down: pixels, stride }
    };
    let mut decoded = spdl_media::image::Picture::new();
    if picture.format == PixelFormat::Rgb8 {
        decoded.start(image, ColorModel::Rgb, &[shape(1, 3)]).unwrap();
        for y in 0..image.height {
            for x in 0..image.width {
                for channel in 0..3 {
                    let at = (y * image.width + x) as usize;
                    decoded.planes_mut()[0].samples_mut()[3 * at + channel] =
                        picture.components[channel].values[at] as u8;
                }
            }
        }
    } else {
        let shapes = [shape(1, 1), shape(2, 1), shape(2, 1)];
        decoded.start(image, ColorModel::YCbCr, &shapes).unwrap();
        for (plane, component) in decoded.planes_mut().iter_mut().zip(&picture.components) {
            for (place, value) in plane.samples_mut().iter_mut().zip(&component.values) {
                *place = *value as u8;
            }
        }
    }
    let transform = ImageTransform::with_size(Size::new(case.width, case.height))
        .crop(Crop::Stretch)
        .filter(case.filter);
    let mut fill = FillImage::new(&CodecRegistry::new(), &transform, &Limits::default()).unwrap();
    let mut sample = vec![0; (3 * case.width * case.height) as usize];
    let rng = || unreachable!("no random augmentation");
    fill.write_picture(&decoded, Orientation::Upright, Sample::U8(&mut sample), rng).unwrap();
    sample
}

// promise: G8
#[test]
fn bytes_are_within_one_level_of_the_host() {
    for (size, target) in
        [((1, 1), (3, 3)), ((7, 5), (16, 16)), ((321, 241), (64, 48)), ((321, 241), (400, 100))]
    {
        for filter in FILTERS {
            let picture = golden_picture(size);
            let case = Case::whole(&picture, target.0, target.1, filter);
            let format = TensorSpec::new(Size::new(target.0, target.1));
            let Some(found) = run_one(&picture, &case, &format) else { return };
            let expected = on_the_host(&picture, &case);
            let largest = found.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(largest <= Some(1), "{size:?} to {target:?}, {filter:?}: {largest:?}");
        }
    }
}

#[test]
fn yuv420_is_within_two_levels_of_the_host_which_rounds_planes_to_bytes() {
    // Smooth, so that colours stay within 0 to 255.
    let picture = Picture::new(PixelFormat::Yuv420, 321, 241, 8, Colors::JPEG, |at, x, y| {
        let smooth = if at == 0 { 60 + x / 3 + y / 9 } else { 100 + 20 * at + (x + y) / 9 };
        smooth + noise(x, y, at) % 8
    });
    for filter in FILTERS {
        let case = Case::whole(&picture, 100, 80, filter);
        let Some(found) = run_one(&picture, &case, &TensorSpec::new(Size::new(100, 80))) else {
            return;
        };
        let expected = on_the_host(&picture, &case);
        let largest = found.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(largest <= Some(2), "{filter:?}: {largest:?}");
    }
}
