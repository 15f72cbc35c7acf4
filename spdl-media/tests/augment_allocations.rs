//! Augmentations do not allocate after the first images of a size.

// promise of this file: IMG9
#![cfg(feature = "augment")]

use std::alloc::System;

use spdl_core::{SampleId, SampleRng};
use spdl_media::Size;
use spdl_media::augment::{
    AugMix, Augmenter, AutoAugment, ColorJitter, GaussianBlur, ImageMut, RandAugment, RandomAffine,
    RandomErasing, RandomPerspective, TrivialAugmentWide,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn augmentations_do_not_allocate_after_warm_up() {
    let mut augmenter = Augmenter::new()
        .then(ColorJitter::new().brightness(0.4).contrast(0.4).saturation(0.4).hue(0.1))
        .then(GaussianBlur::new(9))
        .then(RandomAffine::new(10.0))
        .then(RandomPerspective::new())
        .then(RandAugment::new())
        .then(TrivialAugmentWide::new())
        .then(AutoAugment::new())
        .then(AugMix::new())
        .then(RandomErasing::new());
    let mut pixels = vec![0; 40 * 30 * 3];
    let mut run = |samples: std::ops::Range<u64>| {
        for index in samples {
            pixels.iter_mut().enumerate().for_each(|(at, level)| *level = at as u8);
            let mut rng = SampleRng::new(0, SampleId { epoch: 0, index }, "augment");
            let mut image = ImageMut::new(&mut pixels, Size::new(40, 30)).unwrap();
            augmenter.apply(&mut image, &mut rng).unwrap();
        }
    };
    // Warm-up: every random branch runs.
    run(0..200);
    let before = ALLOCATOR.stats();
    run(200..700);
    let change = ALLOCATOR.stats() - before;
    // The threads of the test harness may allocate a few times.
    assert!(change.allocations + change.reallocations < 5, "{change:?}");
}
