//! Layouts, channel orders, types and orientations of samples.

use half::{bf16, f16};
use spdl_core::DType;
use spdl_cuda::pixels::PixelFormat;

use crate::host::{run_one, run_plan};
use crate::picture::{Colors, Picture};
use crate::reference::Case;
use spdl_media::transform::TensorSpec;
use spdl_media::{ImageTransform, Layout, ResizeFilter, SampleColor, Size};

const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const STD: [f32; 3] = [0.229, 0.224, 0.225];

fn bits(dtype: DType, value: f32) -> Vec<u8> {
    match dtype {
        DType::F16 => f16::from_f32(value).to_ne_bytes().to_vec(),
        DType::BF16 => bf16::from_f32(value).to_ne_bytes().to_vec(),
        _ => value.to_ne_bytes().to_vec(),
    }
}

/// The normalised value of a channel in `spdl-media`.
fn normalized(value: f32, channel: usize, mean: [f32; 3], std: [f32; 3]) -> f32 {
    let (mean, std) = (f64::from(mean[channel]), f64::from(std[channel]));
    value * (1.0 / (255.0 * std)) as f32 + (-mean / std) as f32
}

// promise: IMG7
#[test]
fn values_are_equal_in_every_type_layout_and_channel_order() {
    let (width, height) = (45, 22);
    let picture = Picture::noise(PixelFormat::Rgb8, width, height, 8, Colors::JPEG);
    let case = Case::whole(&picture, width, height, ResizeFilter::Bilinear);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for layout in [Layout::Nhwc, Layout::Nchw] {
            for order in [SampleColor::Rgb, SampleColor::Bgr] {
                let format = *ImageTransform::with_size(Size::new(width, height))
                    .dtype(dtype)
                    .layout(layout)
                    .color(order)
                    .normalization(MEAN, STD)
                    .tensor();
                let Some(found) = run_one(&picture, &case, &format) else { return };
                for pixel in 0..(width * height) as usize {
                    for channel in 0..3 {
                        let value = f32::from(picture.components[channel].values[pixel]);
                        let place = match order {
                            SampleColor::Rgb => channel,
                            SampleColor::Bgr => 2 - channel,
                            _ => unreachable!("not in the list above"),
                        };
                        let at = match layout {
                            Layout::Nhwc => 3 * pixel + place,
                            Layout::Nchw => place * (width * height) as usize + pixel,
                        };
                        let expected = bits(dtype, normalized(value, channel, MEAN, STD));
                        let found = &found[at * dtype.size()..][..dtype.size()];
                        assert_eq!(found, expected, "{dtype:?} {layout:?} {order:?} {pixel}");
                    }
                }
            }
        }
    }
}

// promise: G7
#[test]
fn small_and_large_values_are_rounded_by_ieee_754() {
    let picture = Picture::noise(PixelFormat::Rgb8, 64, 64, 8, Colors::JPEG);
    let case = Case::whole(&picture, 64, 64, ResizeFilter::Bilinear);
    // Values of `f16` from overflow to subnormal and 0.
    let scales = [1e-6, 1.000_001e-5, 0.229, 3e3, 1e4, 3e5, 1e8].map(|std| (0.2, std));
    // Black is a tie between two values of `f16` or `bf16`, also between subnormal ones.
    let ties = [2049.0, 2051.0, 257.0, 259.0].map(|tie| (-tie, 1.0));
    let subnormal = [4.0, 12.0, 20.0].map(|tie| (-tie, (1u32 << 27) as f32));
    for (mean, std) in [&scales[..], &ties, &subnormal].concat() {
        for dtype in [DType::F16, DType::BF16] {
            let (means, stds) = ([mean; 3], [std; 3]);
            let format = *ImageTransform::with_size(Size::new(64, 64))
                .dtype(dtype)
                .normalization(means, stds)
                .tensor();
            let Some(found) = run_one(&picture, &case, &format) else { return };
            for (pixel, found) in found.as_chunks::<6>().0.iter().enumerate() {
                for channel in 0..3 {
                    let value = f32::from(picture.components[channel].values[pixel]);
                    let expected = normalized(value, channel, means, stds);
                    assert_eq!(
                        found[2 * channel..][..2],
                        bits(dtype, expected),
                        "{dtype:?}: {expected:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn samples_have_all_eight_orientations() {
    let picture = Picture::noise(PixelFormat::Rgb8, 50, 70, 8, Colors::JPEG);
    let (width, height) = (39, 21);
    let case = Case::whole(&picture, width, height, ResizeFilter::Bicubic);
    let Some(upright) = run_one(&picture, &case, &TensorSpec::new(Size::new(width, height))) else {
        return;
    };
    for orientation in 0..8 {
        let [transposed, mirrored, upended] = [1, 2, 4].map(|bit| orientation & bit != 0);
        let plan =
            case.plan().transpose(transposed).horizontal_flip(mirrored).vertical_flip(upended);
        let (columns, rows) = if transposed { (height, width) } else { (width, height) };
        let format = TensorSpec::new(Size::new(columns, rows));
        let found = run_plan(&picture, &case, &plan, &format).unwrap();
        for y in 0..rows {
            for x in 0..columns {
                let from_x = if mirrored { columns - 1 - x } else { x };
                let from_y = if upended { rows - 1 - y } else { y };
                let (from_x, from_y) = if transposed { (from_y, from_x) } else { (from_x, from_y) };
                let from = 3 * (from_y * width + from_x) as usize;
                let at = 3 * (y * columns + x) as usize;
                assert_eq!(found[at..at + 3], upright[from..from + 3], "{orientation}: {x}, {y}");
            }
        }
    }
}
