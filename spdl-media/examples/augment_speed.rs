//! Measures each augmentation on an image of 224 × 224 pixels and one core.
//!
//! ```text
//! cargo run --release -p spdl-media --example augment_speed
//! ```
//!
//! Prints the minimum of many runs. For random augmentations, prints the mean of 200 samples.
#![expect(clippy::print_stdout, reason = "prints a table")]

use std::time::{Duration, Instant};

use spdl_core::{Result, SampleId, SampleRng};
use spdl_media::Size;
use spdl_media::augment::functional::{self, Affine};
use spdl_media::augment::{
    AugMix, Augment, Augmenter, AutoAugment, ColorJitter, ImageMut, Interpolation, RandAugment,
    Scratch, TrivialAugmentWide,
};

/// An operation without parameters.
type Operation = fn(&mut ImageMut<'_>);

const SIZE: Size = Size::new(224, 224);
const TIME: Duration = Duration::from_millis(300);

fn main() -> Result<()> {
    let mut noise = SampleRng::new(0, SampleId::default(), "noise");
    let len = SIZE.pixels() as usize * 3;
    // Gradients with noise, similar to a photograph.
    let original: Vec<u8> = (0..len)
        .map(|at| {
            let (x, y) = ((at / 3 % 224) as u64, (at / 3 / 224) as u64);
            let channel = at as u64 % 3;
            (x / (1 + channel) + y / (3 - channel) + noise.below(20)).min(255) as u8
        })
        .collect();
    let scratch = &mut Scratch::new();
    println!("µs per image of {SIZE}:");
    let report = |name: &str, act: &mut dyn FnMut(&mut ImageMut<'_>) -> Result<()>| {
        let mut pixels = original.clone();
        let mut fastest = Duration::MAX;
        let start = Instant::now();
        while start.elapsed() < TIME {
            pixels.copy_from_slice(&original);
            let mut image = ImageMut::new(&mut pixels, SIZE)?;
            let begin = Instant::now();
            act(&mut image)?;
            fastest = fastest.min(begin.elapsed());
        }
        println!("{name:<28}{:>9.1}", fastest.as_secs_f64() * 1e6);
        Ok::<_, spdl_core::Error>(())
    };
    report("adjust_brightness", &mut |image| functional::adjust_brightness(image, 1.3))?;
    report("adjust_contrast", &mut |image| functional::adjust_contrast(image, 1.3))?;
    report("adjust_saturation", &mut |image| functional::adjust_saturation(image, 1.3))?;
    report("adjust_hue", &mut |image| functional::adjust_hue(image, 0.1))?;
    report("adjust_sharpness", &mut |image| functional::adjust_sharpness(image, 1.5, scratch))?;
    let operations: [(&str, Operation); 4] = [
        ("grayscale", functional::grayscale),
        ("invert", functional::invert),
        ("autocontrast", functional::autocontrast),
        ("equalize", functional::equalize),
    ];
    for (name, act) in operations {
        report(name, &mut |image| {
            act(image);
            Ok(())
        })?;
    }
    report("posterize", &mut |image| functional::posterize(image, 4))?;
    report("solarize", &mut |image| functional::solarize(image, 128.0))?;
    for kernel in [5, 23] {
        report(&format!("gaussian_blur {kernel}"), &mut |image| {
            functional::gaussian_blur(image, [kernel; 2], [1.5; 2], scratch)
        })?;
    }
    for mode in [Interpolation::Nearest, Interpolation::Bilinear] {
        for fill in [None, Some([0; 3])] {
            let affine = Affine { angle: 17.0, scale: 1.1, ..Affine::default() };
            let filled = if fill.is_some() { " filled" } else { "" };
            report(&format!("affine {mode:?}{filled}"), &mut |image| {
                functional::affine(image, &affine, mode, fill, scratch)
            })?;
        }
        let (right, corners) = (223.0, [[20.0, 10.0], [200.0, 0.0], [223.0, 190.0], [3.0, 220.0]]);
        let start = [[0.0, 0.0], [right, 0.0], [right, right], [0.0, right]];
        let coefficients = functional::perspective_coefficients(&start, &corners)?;
        report(&format!("perspective {mode:?}"), &mut |image| {
            functional::perspective(image, &coefficients, mode, None, scratch)
        })?;
    }
    let jitter = ColorJitter::new().brightness(0.4).contrast(0.4).saturation(0.4).hue(0.1);
    mean("ColorJitter", jitter, &original)?;
    mean("RandAugment", RandAugment::new(), &original)?;
    mean("TrivialAugmentWide", TrivialAugmentWide::new(), &original)?;
    mean("AutoAugment", AutoAugment::new(), &original)?;
    mean("AugMix", AugMix::new(), &original)
}

/// Prints the mean over many samples, each with its fastest run. The random numbers differ by sample.
fn mean(name: &str, step: impl Augment, original: &[u8]) -> Result<()> {
    const SAMPLES: u64 = 200;
    const RUNS: u32 = 5;
    let mut augmenter = Augmenter::new().then(step);
    let mut pixels = original.to_vec();
    let mut time = Duration::ZERO;
    for index in 0..SAMPLES {
        let mut fastest = Duration::MAX;
        for _ in 0..RUNS {
            pixels.copy_from_slice(original);
            let mut rng = SampleRng::new(0, SampleId { epoch: 0, index }, "augment");
            let begin = Instant::now();
            augmenter.apply(&mut ImageMut::new(&mut pixels, SIZE)?, &mut rng)?;
            fastest = fastest.min(begin.elapsed());
        }
        time += fastest;
    }
    println!("{:<28}{:>9.1}", format!("{name}, mean"), time.as_secs_f64() * 1e6 / SAMPLES as f64);
    Ok(())
}
