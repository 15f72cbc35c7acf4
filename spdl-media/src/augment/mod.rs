//! Random changes of training images, with the parameters, defaults and pixels of torchvision's v2
//! transforms.
//!
//! * [`Augmenter`] applies [`Augment`]s one after another, in place, and keeps their memory.
//! * What is drawn follows from the [`SampleRng`] alone, so from seed, epoch, sample and stage.
//!   The distributions are torchvision's, the random numbers are not.
//! * [`functional`] has what is done once the numbers are drawn.
//! * [`Mixup`] and [`CutMix`] work on whole batches, and so does [`RandomErasing`] where it is a
//!   stage behind the normalisation.
//!
//! Images are interleaved RGB, 8 bits a channel, and keep their size. An augmentation of your own
//! implements [`Augment`].
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

mod batches;
mod color;
mod draw;
mod erasing;
pub mod functional;
mod geometry;
mod image;
mod policy;

use std::fmt;
use std::sync::Arc;

use spdl_core::{Result, SampleRng};

pub use batches::{CutMix, Mixup};
pub use color::{
    ColorJitter, GaussianBlur, RandomAdjustSharpness, RandomAutocontrast, RandomEqualize,
    RandomGrayscale, RandomInvert, RandomPosterize, RandomSolarize,
};
pub use erasing::{ErasingValue, RandomErasing};
pub use functional::Interpolation;
pub use geometry::{RandomAffine, RandomPerspective, RandomRotation};
pub use image::{ImageMut, Scratch};
pub use policy::{AugMix, AutoAugment, Operation, PolicyStep, RandAugment, TrivialAugmentWide};

use functional::check;

/// A random change of an image.
///
/// ```
/// use spdl_core::{Result, SampleRng};
/// use spdl_media::augment::{Augment, ImageMut, Scratch};
/// /// Adds a level of red, half of the time.
/// #[derive(Debug)]
/// struct Redder;
/// impl Augment for Redder {
///     fn apply(
///         &self,
///         image: &mut ImageMut<'_>,
///         rng: &mut SampleRng,
///         _scratch: &mut Scratch,
///     ) -> Result<()> {
///         if rng.chance(0.5) {
///             image.pixels_mut().iter_mut().step_by(3).for_each(|red| *red = red.saturating_add(1));
///         }
///         Ok(())
///     }
/// }
/// ```
pub trait Augment: fmt::Debug + Send + Sync + 'static {
    /// Draws from `rng`, and changes the image. Memory comes from `scratch`.
    ///
    /// # Errors
    /// `InvalidArgument` where the parameters do not fit the image.
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()>;

    /// Checks the parameters, before there is an image. Default: they are sound.
    ///
    /// # Errors
    /// `InvalidArgument` where they are not.
    fn validate(&self) -> Result<()> {
        Ok(())
    }
}

/// Augmentations in a row, with the memory that they need: one for each worker.
///
/// A clone shares the augmentations, and has memory of its own.
#[derive(Debug, Default)]
pub struct Augmenter {
    steps: Vec<Arc<dyn Augment>>,
    /// Whether all parameters are known to be sound.
    validated: bool,
    scratch: Scratch,
}

impl Augmenter {
    /// Changes nothing.
    pub fn new() -> Self {
        Augmenter::default()
    }

    /// Adds an augmentation behind the others. Its parameters are checked by
    /// [`validate`](Augmenter::validate), which [`FillImage::augment`](crate::FillImage::augment) calls.
    #[must_use]
    pub fn then(mut self, step: impl Augment) -> Self {
        self.steps.push(Arc::new(step));
        self.validated = false;
        self
    }

    /// Checks the parameters of all.
    ///
    /// # Errors
    /// `InvalidArgument` where those of one are not sound: the first.
    pub fn validate(&self) -> Result<()> {
        self.steps.iter().try_for_each(|step| step.validate())
    }

    /// Whether nothing is ever changed.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Applies all in their order, each drawing from `rng` where the last one stopped.
    ///
    /// # Errors
    /// As [`validate`](Augmenter::validate), before anything is changed, and as [`Augment::apply`]; the
    /// image may be half changed then.
    pub fn apply(&mut self, image: &mut ImageMut<'_>, rng: &mut SampleRng) -> Result<()> {
        if !self.validated {
            self.validate()?;
            self.validated = true;
        }
        self.steps.iter().try_for_each(|step| step.apply(image, rng, &mut self.scratch))
    }
}

impl Clone for Augmenter {
    fn clone(&self) -> Self {
        let Augmenter { steps, validated, .. } = self;
        Augmenter { steps: steps.clone(), validated: *validated, scratch: Scratch::new() }
    }
}

/// Applies another augmentation only sometimes.
#[derive(Clone, Debug)]
pub struct RandomApply<A> {
    augment: A,
    probability: f64,
}

impl<A: Augment> RandomApply<A> {
    /// Applies `augment` with probability ½.
    pub fn new(augment: A) -> Self {
        RandomApply { augment, probability: 0.5 }
    }

    /// How likely it is applied, 0 to 1. Default: 0.5.
    #[must_use]
    pub fn probability(mut self, probability: f64) -> Self {
        self.probability = probability;
        self
    }
}

impl<A: Augment> Augment for RandomApply<A> {
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()> {
        if rng.chance(self.probability) { self.augment.apply(image, rng, scratch) } else { Ok(()) }
    }

    fn validate(&self) -> Result<()> {
        check_probability(self.probability)?;
        self.augment.validate()
    }
}

fn check_probability(probability: f64) -> Result<()> {
    check((0.0..=1.0).contains(&probability), || {
        format!("expected a probability from 0 to 1, found {probability}")
    })
}

/// Checks that `range` is in order and within `least` to `most`.
fn check_range(name: &str, range: (f64, f64), least: f64, most: f64) -> Result<()> {
    let sound = least <= range.0 && range.0 <= range.1 && range.1 <= most;
    check(sound && range.0.is_finite() && range.1.is_finite(), || {
        format!("expected a range of {name} from {least} to {most}, found {range:?}")
    })
}
