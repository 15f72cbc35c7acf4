//! Mixup and CutMix in one stage.

use spdl_core::source::Fingerprint;
use spdl_core::{Batch, Error, Result, SampleRng, Stage, StageContext};

use super::batches::{CutMix, Mixup, SoftLabels};
use super::checks::check_probability;
use super::setting::{Setting, stage_parameters};

/// Mixes each batch by [`Mixup`] or by [`CutMix`], at random, or only makes its labels soft.
///
/// Labels become `f32 [batch, classes]`, the weight of each class, in all batches.
///
/// ```
/// use spdl_media::augment::Mix;
/// // The settings of DeiT (Touvron et al. 2021, arXiv:2012.12877).
/// let mix = Mix::new(1000)?.mixup(0.8)?.cutmix(1.0)?.smoothing(0.1)?;
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mix {
    mixup: Option<Mixup>,
    cutmix: Option<CutMix>,
    labels: SoftLabels,
    probability: f64,
    cutmix_probability: f64,
    smoothing: f64,
    fingerprint: Fingerprint,
}

impl Mix {
    /// Makes labels from 0 to `classes` − 1 soft, and mixes nothing yet.
    ///
    /// # Errors
    /// `InvalidArgument` if `classes` is 0.
    pub fn new(classes: usize) -> Result<Mix> {
        Ok(Mix {
            mixup: None,
            cutmix: None,
            labels: SoftLabels::new(classes)?,
            probability: 1.0,
            cutmix_probability: 0.5,
            smoothing: 0.0,
            fingerprint: Fingerprint::default().with("", "Mix").with("classes", classes.text()),
        })
    }

    fn with(mut self, name: &str, value: f64) -> Mix {
        self.fingerprint = self.fingerprint.with(name, value.text());
        self
    }

    fn classes(&self) -> usize {
        self.labels.classes()
    }

    /// Mixes by [`Mixup`].
    ///
    /// # Errors
    /// `InvalidArgument` if alpha is not a positive number.
    pub fn mixup(mut self, alpha: f64) -> Result<Mix> {
        self.mixup = Some(Mixup::new(self.classes(), alpha)?);
        Ok(self.with("mixup", alpha))
    }

    /// Mixes by [`CutMix`].
    ///
    /// # Errors
    /// `InvalidArgument` if alpha is not a positive number.
    pub fn cutmix(mut self, alpha: f64) -> Result<Mix> {
        self.cutmix = Some(CutMix::new(self.classes(), alpha)?);
        Ok(self.with("cutmix", alpha))
    }

    /// The probability that a batch is mixed. Default: 1.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not 0 to 1.
    pub fn probability(mut self, probability: f64) -> Result<Mix> {
        check_probability(probability)?;
        self.probability = probability;
        Ok(self.with("probability", probability))
    }

    /// The probability of CutMix for a batch that is mixed, if both kinds are set. Default: 0.5.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not 0 to 1.
    pub fn cutmix_probability(mut self, probability: f64) -> Result<Mix> {
        check_probability(probability)?;
        self.cutmix_probability = probability;
        Ok(self.with("cutmix probability", probability))
    }

    /// The fraction of the weight of each label that all classes share equally. Default: 0.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not 0 to 1.
    pub fn smoothing(mut self, fraction: f64) -> Result<Mix> {
        check_probability(fraction)?;
        self.smoothing = fraction;
        Ok(self.with("smoothing", fraction))
    }

    /// The name of the field of labels.
    pub fn label(&self) -> &str {
        self.labels.label()
    }

    /// Sets the names of the fields. Default: `images` and `labels`.
    #[must_use]
    pub fn fields(mut self, images: &str, labels: &str) -> Mix {
        self.labels.set_names(images, labels);
        let given = [("images", images), ("labels", labels)];
        // The default names are not part of it.
        for (name, field) in given.into_iter().filter(|(name, field)| name != field) {
            self.fingerprint = self.fingerprint.with(name, field);
        }
        self.mixup = self.mixup.map(|mixup| mixup.fields(images, labels));
        self.cutmix = self.cutmix.map(|cutmix| cutmix.fields(images, labels));
        self
    }

    /// The name and all settings; see [`Mixup::parameters`].
    pub fn parameters(&self) -> impl Iterator<Item = (String, String)> {
        stage_parameters(&self.fingerprint)
    }

    /// Draws the kind and mixes.
    ///
    /// # Errors
    /// The errors of [`Mixup::mix`] and [`CutMix::mix`].
    pub fn apply(&mut self, batch: Batch, rng: &mut SampleRng) -> Result<Batch> {
        // Drawn for every batch, so that the settings do not change later random numbers.
        let (is_mixed, is_cut) =
            (rng.chance(self.probability), rng.chance(self.cutmix_probability));
        let mut batch = match (&mut self.mixup, &mut self.cutmix) {
            _ if !is_mixed => self.labels.convert(batch)?,
            (None, None) => self.labels.convert(batch)?,
            (Some(mixup), None) => mixup.apply(batch, rng)?,
            (Some(mixup), Some(_)) if !is_cut => mixup.apply(batch, rng)?,
            (_, Some(cutmix)) => cutmix.apply(batch, rng)?,
        };
        if self.smoothing > 0.0 {
            self.labels.smooth(&mut batch, self.smoothing)?;
        }
        Ok(batch)
    }
}

/// Uses the random numbers of the first sample of the batch. Errors are fatal: the settings are at fault,
/// not a sample.
impl Stage<Batch> for Mix {
    type Out = Batch;

    fn process(&mut self, batch: Batch, cx: &mut StageContext<'_, Batch>) -> Result<()> {
        let mixed = self.apply(batch, &mut cx.rng()).map_err(Error::fatal)?;
        cx.emit(mixed)
    }
}
