//! A worker does not allocate after the largest image, and releases the memory of a very large one.

// promise of this file: IMG9

use std::alloc::System;
use std::sync::Mutex;

use spdl_core::{DType, SampleId, SampleRng};
use spdl_media::image::{ColorModel, Picture, PlaneShape};
use spdl_media::{
    CodecRegistry, Crop, FillImage, ImageTransform, Layout, Limits, Mode, Orientation, Rect,
    Sample, Size,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Serialises the tests: allocations are counted for all threads.
static ALONE: Mutex<()> = Mutex::new(());
/// Tolerance for allocations by the threads of the test harness. Each pass has 100 images or more.
const A_FEW: usize = 50;

#[test]
fn a_worker_does_not_allocate_after_the_largest_image() {
    let _alone = ALONE.lock().unwrap();
    let size = Size::new(120, 90);
    let shape = |pixels: u32| {
        let area = Rect::full(Size::new(size.width.div_ceil(pixels), size.height.div_ceil(pixels)));
        let stride = area.width as usize;
        PlaneShape { channels: 1, area, across: pixels, down: pixels, stride }
    };
    let mut planes = Picture::new();
    planes.start(size, ColorModel::YCbCr, &[shape(1), shape(2), shape(2)]).unwrap();
    let mut rgb = Picture::new();
    rgb.start_rgb(size, Rect::full(size)).unwrap();
    for mode in [Mode::Eval, Mode::Train] {
        let transform = ImageTransform::new(48).mode(mode).layout(Layout::Nchw).dtype(DType::F16);
        let mut fill =
            FillImage::new(&CodecRegistry::with_defaults(), &transform, &Limits::default())
                .unwrap();
        let mut values = vec![Default::default(); 48 * 48 * 3];
        let mut pass = || {
            for picture in [&planes, &rgb] {
                for orientation in Orientation::ALL {
                    for index in 0..20 {
                        let rng = || SampleRng::new(0, SampleId { epoch: 0, index }, "t");
                        let sample = Sample::F16(&mut values);
                        fill.write_picture(picture, orientation, sample, rng).unwrap();
                    }
                }
            }
        };
        pass();
        let region = Region::new(ALLOCATOR);
        pass();
        let change = region.change();
        assert!(change.allocations + change.reallocations < A_FEW, "{mode}: {change:?}");
    }
}

#[cfg(feature = "jpeg")]
#[test]
fn a_worker_does_not_allocate_for_further_jpeg_files() {
    let _alone = ALONE.lock().unwrap();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let names = ["420.jpg", "422-progressive.jpg", "grey.jpg", "orientation-6.jpg", "cmyk.jpg"];
    let files = names.map(|name| std::fs::read(folder.join(name)).unwrap());
    for exact in [false, true] {
        let transform = ImageTransform::new(16).mode(Mode::Train).exact(exact);
        let mut fill =
            FillImage::new(&CodecRegistry::with_defaults(), &transform, &Limits::default())
                .unwrap();
        let mut values = vec![0; 16 * 16 * 3];
        let mut pass = || {
            for file in &files {
                for index in 0..20 {
                    let rng = || SampleRng::new(0, SampleId { epoch: 0, index }, "t");
                    fill.write(file, Sample::U8(&mut values), rng).unwrap();
                }
            }
        };
        pass();
        let region = Region::new(ALLOCATOR);
        pass();
        let change = region.change();
        assert!(change.allocations + change.reallocations < A_FEW, "exact: {exact}, {change:?}");
    }
}

/// A black image with 24 bits per pixel.
#[cfg(feature = "bmp")]
fn bmp(width: u32, height: u32) -> Vec<u8> {
    let bytes = width.next_multiple_of(4) * height * 3;
    let header: [u32; 13] =
        [54 + bytes, 0, 54, 40, width, height, 1 | 24 << 16, 0, bytes, 0, 0, 0, 0];
    let mut file = b"BM".to_vec();
    file.extend(header.iter().flat_map(|field| field.to_le_bytes()));
    file.resize(54 + bytes as usize, 0);
    file
}

#[cfg(feature = "bmp")]
#[test]
fn memory_of_a_large_image_is_released_later() {
    let _alone = ALONE.lock().unwrap();
    let (large, small) = (bmp(4000, 3000), bmp(64, 48));
    let transform = ImageTransform::new(16).crop(Crop::Stretch);
    let mut fill =
        FillImage::new(&CodecRegistry::with_defaults(), &transform, &Limits::default()).unwrap();
    let mut values = vec![0; 16 * 16 * 3];
    let region = Region::new(ALLOCATOR);
    let mut write = |file: &[u8]| {
        fill.write(file, Sample::U8(&mut values), || unreachable!()).unwrap();
        let change = region.change();
        change.bytes_allocated as i64 - change.bytes_deallocated as i64
    };
    assert!(write(&large) > 32 << 20);
    // Not yet: more large images may follow.
    assert!(write(&small) > 32 << 20);
    assert!((0..40).map(|_| write(&small)).last() < Some(1 << 20));
}
