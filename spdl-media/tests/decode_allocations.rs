//! JPEG decoding does not allocate after the first images.
//!
//! A separate test program, because allocations are counted for the whole process.

// promise of this file: IMG9
#![cfg(feature = "jpeg")]

use std::alloc::System;

use spdl_media::image::{DecodeRequest, Picture, PixelsMut};
use spdl_media::{CodecRegistry, Decoder, Limits, Rect, Size};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn jpeg_decoding_does_not_allocate_after_warm_up() {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/");
    let photos = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/photos/");
    let files = [
        format!("{data}444.jpg"),
        format!("{data}grey.jpg"),
        format!("{data}420-progressive.jpg"),
        format!("{data}optimized.jpg"),
        format!("{data}restarts.jpg"),
        format!("{photos}chelsea.jpg"),
        format!("{photos}rocket.jpg"),
    ]
    .map(|path| std::fs::read(path).unwrap());
    let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
    let mut picture = Picture::new();
    let mut pixels = vec![0; 700 * 700 * 3];
    let mut decode_all = || {
        for encoded in &files {
            let size = decoder.inspect(encoded).unwrap().size;
            let region = Rect {
                left: size.width / 3,
                top: size.height / 4,
                width: size.width / 3,
                height: size.height / 2,
            };
            let whole = DecodeRequest::full();
            for request in [
                whole,
                whole.exact(true),
                whole.region(region),
                whole.at_least(Size::new(size.width / 2, size.height / 2)),
                whole.region(region).at_least(Size::new(1, 1)),
            ] {
                decoder.decode_planes(encoded, &request, &mut picture).unwrap();
                let out = PixelsMut::new(&mut pixels, request.region_of(size).size()).unwrap();
                decoder.decode_into(encoded, &request, out).unwrap();
            }
        }
    };
    decode_all();
    let counted = Region::new(HEAP);
    decode_all();
    let change = counted.change();
    assert_eq!((change.allocations, change.reallocations), (0, 0), "{change:?}");
}
