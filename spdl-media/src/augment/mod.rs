//! Random augmentations of training images, with the parameters, defaults and pixels of
//! torchvision's v2 transforms.
//!
//! - [`Augmenter`] applies a list of [`Augment`]s in place, and keeps their scratch memory.
//! - Random numbers are drawn only from [`SampleRng`](spdl_core::SampleRng), so they depend on
//!   seed, epoch, sample and stage. They have the same distributions as in torchvision, but
//!   different values.
//! - [`functional`] has the operations with explicit parameters.
//! - [`Mixup`], [`CutMix`] and [`Mix`] work on whole batches, and so does [`RandomErasing`] as a
//!   stage after the normalisation.
//!
//! An [`Augment`] changes interleaved RGB images with 8 bits per channel, and keeps their size. To
//! write a custom augmentation, implement [`Augment`].
//!
//! | file | content |
//! |---|---|
//! | `augmenter` | [`Augment`], [`Augmenter`], [`RandomApply`] |
//! | `choice` | [`RandomChoice`] and [`RandomOrder`] |
//! | `color`, `geometry`, `erasing`, `policy` | the augmentations |
//! | `batches` | [`Mixup`] and [`CutMix`] |
//! | `mix` | [`Mix`]: one of them, chosen for each batch |
//! | `functional` | operations with explicit parameters |
//! | `image` | the mutable image and scratch memory |
//! | `draw` | random numbers of non-uniform distributions |
//! | `setting`, `checks` | settings as text for fingerprints, and parameter checks |
//!
//! Imports: [`image`](crate::image).
//!
//! ```
//! use spdl_core::{SampleId, SampleRng};
//! use spdl_media::Size;
//! use spdl_media::augment::{Augmenter, ColorJitter, ImageMut, RandomApply, RandomGrayscale};
//! let jitter = ColorJitter::new().brightness(0.4).contrast(0.4).saturation(0.2).hue(0.1);
//! let mut augmenter = Augmenter::new()
//!     .then(RandomApply::new(jitter).probability(0.8))
//!     .then(RandomGrayscale::new().probability(0.2));
//! let mut pixels = vec![100; 224 * 224 * 3];
//! let mut image = ImageMut::new(&mut pixels, Size::new(224, 224))?;
//! let mut rng = SampleRng::new(7, SampleId { epoch: 0, index: 42 }, "augment");
//! augmenter.apply(&mut image, &mut rng)?;
//! # Ok::<(), spdl_core::Error>(())
//! ```

mod augmenter;
mod batches;
mod checks;
mod choice;
mod color;
mod draw;
mod erasing;
pub mod functional;
mod geometry;
mod image;
mod mix;
mod policy;
mod setting;

pub use augmenter::{Augment, Augmenter, RandomApply};
pub use batches::{CutMix, Mixup};
pub use choice::{RandomChoice, RandomOrder};
pub use color::{
    ColorJitter, GaussianBlur, RandomAdjustSharpness, RandomAutocontrast, RandomEqualize,
    RandomGrayscale, RandomInvert, RandomPosterize, RandomSolarize,
};
pub use erasing::{ErasingValue, RandomErasing};
pub use functional::Interpolation;
pub use geometry::{RandomAffine, RandomPerspective, RandomRotation};
pub use image::{ImageMut, Scratch};
pub use mix::Mix;
pub use policy::{
    AugMix, AutoAugment, Operation, PolicyStep, RandAugment, TimmAugMix, TimmRandAugment,
    TrivialAugmentWide,
};
