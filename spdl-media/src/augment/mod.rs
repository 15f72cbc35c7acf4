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
mod setting;

use std::fmt;
use std::sync::Arc;

use spdl_core::source::Fingerprint;
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
use setting::{Setting, parts_behind};

/// A random change of an image.
///
/// ```
/// use spdl_core::{Result, SampleRng};
/// use spdl_core::source::Fingerprint;
/// use spdl_media::augment::{Augment, ImageMut, Scratch};
/// /// Adds levels of red, half of the time.
/// #[derive(Debug)]
/// struct Redder {
///     levels: u8,
/// }
/// impl Augment for Redder {
///     fn apply(
///         &self,
///         image: &mut ImageMut<'_>,
///         rng: &mut SampleRng,
///         _scratch: &mut Scratch,
///     ) -> Result<()> {
///         if rng.chance(0.5) {
///             for red in image.pixels_mut().iter_mut().step_by(3) {
///                 *red = red.saturating_add(self.levels);
///             }
///         }
///         Ok(())
///     }
///
///     fn fingerprint(&self) -> Fingerprint {
///         Fingerprint::default().with("", "Redder").with("levels", self.levels.to_string())
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

    /// What it is, under the empty name, and all settings that decide what it does, each under a name
    /// of its own: so that a run which is resumed with another augmentation is told what differs (see
    /// [`Augmenter::parameters`]). A setting that is left out here may change unnoticed. Texts should
    /// not depend on the compiler, as derived `Debug` of values with fields may.
    fn fingerprint(&self) -> Fingerprint;

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

    /// All augmentations and their settings, by name, for
    /// [`StageOptions::parameters`](spdl_core::StageOptions::parameters) of the stage that applies
    /// them: so a run that is resumed with others is told what differs. They are numbered from 1:
    /// `augmentation 1` is what the first is, `augmentation 1 brightness` a setting of it.
    ///
    /// ```
    /// use spdl_core::StageOptions;
    /// use spdl_media::ImageTransform;
    /// use spdl_media::augment::{Augmenter, ColorJitter};
    /// let transform = ImageTransform::new(224);
    /// let augmenter = Augmenter::new().then(ColorJitter::new().brightness(0.5));
    /// let told: Vec<(String, String)> = augmenter.parameters().collect();
    /// assert_eq!(told[0], ("augmentation 1".into(), "ColorJitter".into()));
    /// assert_eq!(told[1], ("augmentation 1 brightness".into(), "0.5 to 1.5".into()));
    /// let decode = StageOptions::new("decode")
    ///     .parameters(transform.parameters())
    ///     .parameters(augmenter.parameters());
    /// # let _ = decode;
    /// ```
    pub fn parameters(&self) -> impl Iterator<Item = (String, String)> {
        (1..).zip(&self.steps).flat_map(|(number, step)| {
            parts_behind(&format!("augmentation {number}"), &step.fingerprint())
        })
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

    fn fingerprint(&self) -> Fingerprint {
        let RandomApply { augment, probability } = self;
        let own = Fingerprint::default()
            .with("", "RandomApply")
            .with("probability", Setting::text(probability));
        parts_behind("of", &augment.fingerprint())
            .into_iter()
            .fold(own, |all, (part, value)| all.with(part, value))
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
