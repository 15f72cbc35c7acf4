//! The trait of an augmentation, and lists of augmentations.

use std::fmt;
use std::sync::Arc;

use spdl_core::source::Fingerprint;
use spdl_core::{Result, SampleRng};

use super::checks::check_probability;
#[cfg(feature = "records")]
use super::functional::Warp;
use super::image::{ImageMut, Scratch};
use super::setting::{Setting, prefixed_parts};

/// A random augmentation of an image.
///
/// ```
/// use spdl_core::{Result, SampleRng};
/// use spdl_core::source::Fingerprint;
/// use spdl_media::augment::{Augment, ImageMut, Scratch};
/// /// Adds to the red channel, half of the time.
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
    /// Changes the image with random numbers from `rng`, and takes scratch memory from `scratch`.
    ///
    /// # Errors
    /// `InvalidArgument` if the parameters do not fit the image.
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()>;

    /// The name of the augmentation, under the empty key, and every setting that affects the
    /// result.
    ///
    /// A run that resumes with another augmentation reports the difference (see
    /// [`Augmenter::parameters`]). If a setting is missing here, a change of it is not detected. Do
    /// not use derived `Debug` of types with fields: its text may change with the compiler.
    fn fingerprint(&self) -> Fingerprint;

    /// Checks the parameters before the first image. The default implementation accepts all
    /// parameters.
    ///
    /// # Errors
    /// `InvalidArgument` if a parameter is invalid.
    fn validate(&self) -> Result<()> {
        Ok(())
    }

    /// Whether the content of the image keeps its position, so that boxes, points and masks of the
    /// image stay valid. The default implementation returns `false`.
    fn keeps_positions(&self) -> bool {
        false
    }

    /// Whether boxes, points and masks can follow the image: only the functions
    /// [`affine`](super::functional::affine), [`rotate`](super::functional::rotate) and
    /// [`perspective`](super::functional::perspective), with the given scratch memory, move its
    /// content, and each changes the whole image. The default implementation returns
    /// [`keeps_positions`](Self::keeps_positions).
    fn can_be_followed(&self) -> bool {
        self.keeps_positions()
    }
}

/// A list of augmentations, with their scratch memory; create one per worker.
///
/// A clone shares the augmentations and has separate scratch memory.
#[derive(Debug, Default)]
pub struct Augmenter {
    steps: Vec<Arc<dyn Augment>>,
    /// Whether all parameters were checked.
    validated: bool,
    scratch: Scratch,
}

impl Augmenter {
    /// An empty list, which leaves images unchanged.
    pub fn new() -> Self {
        Augmenter::default()
    }

    /// Appends an augmentation. Its parameters are checked by [`validate`](Augmenter::validate),
    /// which [`FillImage::augment`](crate::FillImage::augment) calls.
    #[must_use]
    pub fn then(mut self, step: impl Augment) -> Self {
        self.steps.push(Arc::new(step));
        self.validated = false;
        self
    }

    /// Checks all parameters.
    ///
    /// # Errors
    /// `InvalidArgument` for the first invalid parameter.
    pub fn validate(&self) -> Result<()> {
        self.steps.iter().try_for_each(|step| step.validate())
    }

    /// All augmentations and their settings by name, for
    /// [`StageOptions::parameters`](spdl_core::StageOptions::parameters) of the stage that applies
    /// them. A run that resumes with other augmentations reports the difference.
    ///
    /// Augmentations are numbered from 1. The key `augmentation 1` has the name of the first
    /// augmentation, and the key `augmentation 1 brightness` has one of its settings.
    ///
    /// ```
    /// use spdl_core::StageOptions;
    /// use spdl_media::ImageTransform;
    /// use spdl_media::augment::{Augmenter, ColorJitter};
    /// let transform = ImageTransform::new(224);
    /// let augmenter = Augmenter::new().then(ColorJitter::new().brightness(0.5));
    /// let parameters: Vec<(String, String)> = augmenter.parameters().collect();
    /// assert_eq!(parameters[0], ("augmentation 1".into(), "ColorJitter".into()));
    /// assert_eq!(parameters[1], ("augmentation 1 brightness".into(), "0.5 to 1.5".into()));
    /// let decode = StageOptions::new("decode")
    ///     .parameters(transform.parameters())
    ///     .parameters(augmenter.parameters());
    /// # let _ = decode;
    /// ```
    pub fn parameters(&self) -> impl Iterator<Item = (String, String)> {
        (1..).zip(&self.steps).flat_map(|(number, step)| {
            prefixed_parts(&format!("augmentation {number}"), &step.fingerprint())
        })
    }

    /// Whether the content of the image [keeps its position](Augment::keeps_positions).
    pub fn keeps_positions(&self) -> bool {
        self.steps.iter().all(|step| step.keeps_positions())
    }

    /// Whether boxes, points and masks [can follow](Augment::can_be_followed) the image.
    pub fn can_be_followed(&self) -> bool {
        self.steps.iter().all(|step| step.can_be_followed())
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Applies all augmentations in order, with one random generator.
    ///
    /// # Errors
    /// The errors of [`validate`](Augmenter::validate), before any change; the errors of
    /// [`Augment::apply`], after which the image may be partly changed.
    pub fn apply(&mut self, image: &mut ImageMut<'_>, rng: &mut SampleRng) -> Result<()> {
        if !self.validated {
            self.validate()?;
            self.validated = true;
        }
        self.scratch.start_record();
        self.steps.iter().try_for_each(|step| step.apply(image, rng, &mut self.scratch))
    }

    /// The geometric operations of the last image, in order.
    #[cfg(feature = "records")]
    pub(crate) fn warps(&self) -> &[Warp] {
        self.scratch.warps()
    }
}

impl Clone for Augmenter {
    fn clone(&self) -> Self {
        let Augmenter { steps, validated, .. } = self;
        Augmenter { steps: steps.clone(), validated: *validated, scratch: Scratch::new() }
    }
}

/// Applies another augmentation with a probability.
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

    /// The probability, 0 to 1. Default: 0.5.
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
        prefixed_parts("of", &augment.fingerprint())
            .into_iter()
            .fold(own, |all, (part, value)| all.with(part, value))
    }

    fn validate(&self) -> Result<()> {
        check_probability(self.probability)?;
        self.augment.validate()
    }

    fn keeps_positions(&self) -> bool {
        self.augment.keeps_positions()
    }

    fn can_be_followed(&self) -> bool {
        self.augment.can_be_followed()
    }
}
