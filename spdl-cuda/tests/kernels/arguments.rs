//! Invalid arguments are refused.

use spdl_core::{DType, ErrorKind, Result};
use spdl_cuda::kernels::{BatchTable, ResizePlan};
use spdl_cuda::pixels::{
    ColorMatrix, ColorRange, ColorStandard, DevicePlane, PixelFormat, SourceImage,
};
use spdl_media::image::CropBox;
use spdl_media::transform::TensorSpec;
use spdl_media::{ImageTransform, Rect, Size};

fn assert_refused<T: std::fmt::Debug>(result: Result<T>, words: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains(words), "{error}");
}

fn plane(pitch: u64) -> DevicePlane {
    DevicePlane { address: 0x1000, pitch }
}

#[test]
fn planes_smaller_than_the_image_are_refused() {
    assert!(SourceImage::rgb8(5, 4, plane(15)).is_ok());
    assert_refused(
        SourceImage::rgb8(5, 4, plane(14)),
        "invalid pitch 14 of plane 0 of Rgb8: a row has 15 bytes",
    );
    assert_refused(SourceImage::rgb8(5, 4, plane(u64::MAX)), "invalid pitch");
    assert_refused(SourceImage::rgb8(0, 4, plane(15)), "invalid image size 0x4");
    assert_refused(SourceImage::rgb8(5, 1 << 25, plane(15)), "from 1 to 16777216");
    let nowhere = DevicePlane { address: 0, pitch: 15 };
    assert_refused(SourceImage::rgb8(5, 4, nowhere), "invalid address 0x0");
    for (address, pitch) in [(u64::MAX - 10, 15), (0x1000, i64::MAX as u64)] {
        let beyond = DevicePlane { address, pitch };
        assert_refused(SourceImage::rgb8(5, 4, beyond), "exceeds the address space");
    }
    let jpeg = ColorMatrix::jpeg();
    let yuv = |format, planes: &[DevicePlane], color| SourceImage::yuv(format, 5, 4, planes, color);
    assert!(yuv(PixelFormat::Nv12, &[plane(5), plane(6)], jpeg).is_ok());
    assert_refused(yuv(PixelFormat::Nv12, &[plane(5), plane(5)], jpeg), "plane 1 of Nv12");
    assert_refused(yuv(PixelFormat::Nv12, &[plane(5)], jpeg), "Nv12 has 2 planes, found 1");
    assert_refused(yuv(PixelFormat::Yuv420, &[plane(5), plane(3), plane(2)], jpeg), "plane 2");
    assert_refused(yuv(PixelFormat::Rgb8, &[plane(15)], jpeg), "SourceImage::rgb8");
}

#[test]
fn samples_of_two_bytes_must_be_aligned() {
    let matrix = ColorMatrix::new(ColorStandard::BT2020, ColorRange::Limited, 10).unwrap();
    let image = |address, pitch| {
        let plane = DevicePlane { address, pitch };
        SourceImage::yuv(PixelFormat::P016, 5, 4, &[plane, plane], matrix)
    };
    assert!(image(0x1000, 12).is_ok());
    assert_refused(image(0x1001, 12), "multiples of 2");
    assert_refused(image(0x1000, 13), "multiples of 2");
}

#[test]
fn a_matrix_must_have_the_bit_depth_of_the_format() {
    let wide = ColorMatrix::new(ColorStandard::BT709, ColorRange::Limited, 10).unwrap();
    let planes = [plane(64); 3];
    let image = |format, color| SourceImage::yuv(format, 5, 4, &planes, color);
    assert_refused(image(PixelFormat::Yuv444, wide), "Yuv444 has 8 bits, and the matrix is for 10");
    assert_refused(image(PixelFormat::Yuv444P16, ColorMatrix::jpeg()), "has 9 to 16 bits");
    for bits in [0, 7, 17, 99] {
        let matrix = ColorMatrix::new(ColorStandard::BT709, ColorRange::Full, bits);
        assert_refused(matrix, &format!("bit depth {bits}"));
    }
    for (kr, kb) in [(0.0, 0.1), (0.6, 0.4), (f64::NAN, 0.1), (0.1, -0.1)] {
        assert_refused(ColorStandard::new(kr, kb), "positive numbers");
    }
}

#[test]
fn crops_outside_the_image_are_refused() {
    let image = SourceImage::rgb8(50, 40, plane(150)).unwrap();
    let mut table = BatchTable::new(&TensorSpec::new(Size::new(8, 8))).unwrap();
    let part = |left, top, width, height| CropBox { left, top, width, height };
    let mut push = |plan: &ResizePlan| table.push(&image, plan, 64);
    assert!(push(&ResizePlan::new(part(0.0, 0.0, 50.0, 40.0), Size::new(8, 8))).is_ok());
    for source in [
        part(f64::NAN, 0.0, 1.0, 1.0),
        part(0.0, f64::INFINITY, 1.0, 1.0),
        part(0.0, 0.0, 0.0, 1.0),
        part(0.0, 0.0, 1.0, -1.0),
        part(0.0, 0.0, 1e300, 1.0),
        part(-1e300, 0.0, 1.0, 1.0),
    ] {
        assert_refused(push(&ResizePlan::new(source, Size::new(8, 8))), "invalid crop");
    }
    for (left, top, width, height) in
        [(0, 0, 51, 40), (0, 0, 0, 40), (50, 0, 1, 40), (0, 1, 50, 40), (0, u32::MAX, 50, 2)]
    {
        let plan = ResizePlan::new(part(0.0, 0.0, 50.0, 40.0), Size::new(8, 8)).bounds(Rect {
            left,
            top,
            width,
            height,
        });
        assert_refused(push(&plan), "50x40 pixels");
    }
    assert_eq!(table.len(), 1);
}

#[test]
fn targets_must_have_the_size_of_samples() {
    let image = SourceImage::rgb8(50, 40, plane(150)).unwrap();
    let source = CropBox { left: 0.0, top: 0.0, width: 50.0, height: 40.0 };
    let format = *ImageTransform::with_size(Size::new(8, 6)).dtype(DType::F32).tensor();
    let mut table = BatchTable::new(&format).unwrap();
    assert_refused(table.push(&image, &ResizePlan::new(source, Size::new(6, 8)), 64), "6x8 pixels");
    let turned = ResizePlan::new(source, Size::new(6, 8)).transpose(true);
    assert!(table.push(&image, &turned, 64).is_ok());
    let plan = ResizePlan::new(source, Size::new(8, 6));
    assert_refused(table.push(&image, &plan, 66), "0x42");
    assert_refused(table.push(&image, &plan, 0), "address 0x0");
    assert_refused(table.push(&image, &plan, u64::MAX - 3), "0xfffffffffffffffc");
}

#[test]
fn invalid_sample_formats_are_refused() {
    let new = |format: &TensorSpec| BatchTable::new(format);
    assert_refused(new(&TensorSpec::new(Size::new(0, 8))), "0x8");
    assert_refused(new(&TensorSpec::new(Size::new(8, 16_385))), "from 1 to 16384");
    let largest = TensorSpec::new(Size::new(u32::MAX, u32::MAX));
    assert_eq!(largest.bytes(), u64::MAX);
    assert_refused(new(&largest), "from 1 to 16384");
    assert_refused(
        new(ImageTransform::with_size(Size::new(8, 8)).dtype(DType::I64).tensor()),
        "int64",
    );
    for (mean, std) in [(0.5, 0.0), (0.5, -1.0), (f32::NAN, 1.0), (0.5, f32::NAN), (0.5, 1e-45)] {
        let format =
            *ImageTransform::with_size(Size::new(8, 8)).normalization([mean; 3], [std; 3]).tensor();
        assert_refused(new(&format), "standard deviations");
    }
}
