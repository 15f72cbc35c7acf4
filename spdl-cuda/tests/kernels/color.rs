//! Colour conversion: without resizing, bytes are the exact result, rounded to nearest.

// promise of this file: G7

use spdl_core::DType;
use spdl_cuda::pixels::{ChromaSiting, ColorMatrix, ColorRange, ColorStandard, PixelFormat};

use crate::host::{floats, run_one};
use crate::picture::{BT601, BT709, BT2020, Colors, Picture, noise};
use crate::reference::Case;
use spdl_media::transform::TensorSpec;
use spdl_media::{ImageTransform, Layout, ResizeFilter, SampleColor, Size};

const RANGES: [ColorRange; 2] = [ColorRange::Limited, ColorRange::Full];

fn all_colors() -> impl Iterator<Item = Colors> {
    [BT601, BT709, BT2020]
        .into_iter()
        .flat_map(|(kr, kb)| RANGES.map(|range| Colors { kr, kb, range }))
}

/// Compares every byte of a sample of the picture's size.
fn assert_exact(picture: &Picture, case: &Case) {
    let (width, height) = (picture.width(), picture.height());
    let Some(found) = run_one(picture, case, &TensorSpec::new(Size::new(width, height))) else {
        return;
    };
    let expected = case.nearest_bytes(picture);
    assert_eq!(found.len(), 3 * expected.len());
    for (at, (pixel, nearest)) in found.as_chunks::<3>().0.iter().zip(&expected).enumerate() {
        assert_eq!(
            pixel, nearest,
            "{:?} {} bits {:?} {:?}: pixel {at} of {width} x {height}",
            picture.format, picture.bits, picture.colors, case.siting
        );
    }
}

fn same_size(picture: &Picture) -> Case {
    Case::whole(picture, picture.width(), picture.height(), ResizeFilter::Bilinear)
}

#[test]
fn g7_8_bit_colors_become_the_nearest_bytes() {
    // Red does not depend on Cb, nor blue on Cr, so all their inputs are tested. For green, 4 of 256 are.
    for colors in all_colors() {
        let picture =
            Picture::new(PixelFormat::Yuv444, 256, 1024, 8, colors, |at, x, y| match at {
                0 => x,
                1 => y % 256,
                _ => (64 * (y / 256) + y % 256 + noise(x, y, 9) % 64) % 256,
            });
        assert_exact(&picture, &same_size(&picture));
        let picture = Picture::new(PixelFormat::Yuv444, 256, 256, 8, colors, |at, x, y| match at {
            0 => x,
            1 => noise(x, y, 8) % 256,
            _ => y,
        });
        assert_exact(&picture, &same_size(&picture));
    }
}

#[test]
fn g7_10_and_12_bit_colors_become_the_nearest_bytes() {
    for colors in all_colors() {
        for (bits, side) in [(10, 512), (12, 512)] {
            // One of 4 pairs for 10 bits, one of 64 for 12 bits.
            let step = (1 << bits) / side;
            let sample = |at: u32, x: u32, y: u32| match at {
                0 => step * x + noise(x, y, 7) % step,
                1 => step * y + noise(x, y, 6) % step,
                _ => step * ((x + y + noise(x, y, 5) % 64) % side) + noise(x, y, 4) % step,
            };
            let picture = Picture::new(PixelFormat::Yuv444P16, side, side, bits, colors, sample);
            assert_exact(&picture, &same_size(&picture));
        }
    }
}

#[test]
fn g7_odd_sizes_are_exact_for_every_chroma_siting() {
    for (format, bits) in [
        (PixelFormat::Nv12, 8),
        (PixelFormat::Yuv420, 8),
        (PixelFormat::P016, 8 + 2),
        (PixelFormat::P016, 8 + 4),
        (PixelFormat::Yuv444, 8),
        (PixelFormat::Yuv444P16, 8 + 4),
    ] {
        for (width, height) in [(1, 1), (7, 5), (33, 17), (321, 241)] {
            for colors in [Colors::VIDEO, Colors::JPEG] {
                let picture = Picture::noise(format, width, height, bits, colors);
                for siting in [ChromaSiting::Left, ChromaSiting::Center, ChromaSiting::TopLeft] {
                    assert_exact(&picture, &Case { siting, ..same_size(&picture) });
                }
            }
        }
    }
}

#[test]
fn rgb_of_the_same_size_is_copied() {
    for (width, height) in [(1, 1), (7, 5), (321, 241)] {
        let picture = Picture::noise(PixelFormat::Rgb8, width, height, 8, Colors::JPEG);
        assert_exact(&picture, &same_size(&picture));
        assert_exact(&picture, &Case { filter: ResizeFilter::Bicubic, ..same_size(&picture) });
    }
}

#[test]
fn matrix_coefficients_of_videos_are_known_or_refused() {
    for (code, standard) in
        [(1, ColorStandard::BT709), (5, ColorStandard::BT601), (9, ColorStandard::BT2020)]
    {
        assert_eq!(ColorStandard::of_video(code).unwrap(), standard);
    }
    assert_ne!(ColorStandard::of_video(7).unwrap(), ColorStandard::BT709);
    for (code, what) in [(0, "RGB"), (2, "unspecified"), (8, "YCgCo"), (14, "unknown")] {
        let error = ColorStandard::of_video(code).unwrap_err();
        assert_eq!(error.kind(), spdl_core::ErrorKind::Unsupported);
        assert!(error.message().contains(what), "{error}");
    }
}

#[test]
fn grey_stays_grey_from_black_to_white() {
    for colors in all_colors() {
        let standard = ColorStandard::new(colors.kr, colors.kb).unwrap();
        for bits in [8, 10, 12, 16] {
            let matrix = ColorMatrix::new(standard, colors.range, bits).unwrap();
            let zero = matrix.zero();
            let span = match colors.range {
                ColorRange::Limited => 219.0 * f64::from(1 << (bits - 8)),
                ColorRange::Full => f64::from((1u32 << bits) - 1),
            };
            for [luma, ..] in matrix.matrix() {
                assert!((luma * span - 255.0).abs() < 1e-9, "{colors:?} {bits}");
            }
            assert_eq!(zero[1..], [f64::from(1u32 << (bits - 1)); 2]);
        }
    }
}

/// Compares grey bytes with the luma in `f64`, within rounding.
fn assert_grey(picture: &Picture, layout: Layout) {
    let (width, height) = (picture.width(), picture.height());
    let format = *ImageTransform::with_size(Size::new(width, height))
        .color(SampleColor::Grey)
        .layout(layout)
        .tensor();
    assert_eq!(format.bytes(), u64::from(width * height));
    let case = same_size(picture);
    let Some(found) = run_one(picture, &case, &format) else { return };
    let expected = case.colors(picture, false);
    assert_eq!(found.len(), expected.len());
    for (at, (byte, [red, green, blue])) in found.iter().zip(expected).enumerate() {
        let luma = 0.299 * red + 0.587 * green + 0.114 * blue;
        let distance = (f64::from(*byte) - luma.clamp(0.0, 255.0)).abs();
        assert!(distance <= 0.5 + 1e-6, "{:?} pixel {at}: {byte}, {luma}", picture.format);
    }
}

#[test]
fn grey_is_the_luma_of_rgb() {
    for layout in [Layout::Nhwc, Layout::Nchw] {
        for (format, bits) in
            [(PixelFormat::Rgb8, 8), (PixelFormat::Nv12, 8), (PixelFormat::Yuv444P16, 10)]
        {
            assert_grey(&Picture::noise(format, 33, 17, bits, Colors::VIDEO), layout);
        }
    }
}

#[test]
fn normalised_grey_uses_the_first_mean_and_standard_deviation() {
    let picture = Picture::noise(PixelFormat::Rgb8, 8, 6, 8, Colors::JPEG);
    let format = *ImageTransform::with_size(Size::new(8, 6))
        .color(SampleColor::Grey)
        .dtype(DType::F32)
        .normalization([0.5, 0.1, 0.2], [0.25, 0.3, 0.4])
        .tensor();
    let Some(found) = run_one(&picture, &same_size(&picture), &format) else { return };
    let expected = same_size(&picture).colors(&picture, false);
    for (value, [red, green, blue]) in floats(&found).into_iter().zip(expected) {
        let luma = 0.299 * red + 0.587 * green + 0.114 * blue;
        assert!((f64::from(value) - (luma / 255.0 - 0.5) / 0.25).abs() < 1e-4);
    }
}
