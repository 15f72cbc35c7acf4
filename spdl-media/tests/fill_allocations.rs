//! A worker that has seen images of a size allocates nothing for the next of it.

use std::alloc::System;

use spdl_core::{DType, SampleId, SampleRng};
use spdl_media::{
    CodecRegistry, ColorModel, FillImage, ImageTransform, Layout, Limits, Mode, Orientation,
    Picture, PlaneShape, Rect, Sample, Size,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn a_worker_allocates_nothing_once_it_has_seen_the_largest_image() {
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
        assert_eq!((change.allocations, change.reallocations), (0, 0), "{mode}");
    }
}
