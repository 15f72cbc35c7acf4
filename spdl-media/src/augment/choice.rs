//! Lists of augmentations of which one is chosen, or whose order is random.

use std::sync::Arc;

use spdl_core::source::Fingerprint;
use spdl_core::{Result, SampleRng};

use super::augmenter::Augment;
use super::checks::check;
use super::draw::shuffle;
use super::image::{ImageMut, Scratch};
use super::setting::{Setting, prefixed_parts};

/// Applies one of several augmentations, chosen at random for each image.
///
/// ```
/// use spdl_media::augment::{Augmenter, GaussianBlur, RandomChoice, RandomInvert};
/// let blur_or_invert = RandomChoice::new()
///     .or(GaussianBlur::new(9))
///     .or_weighted(RandomInvert::new().probability(1.0), 3.0);
/// let augmenter = Augmenter::new().then(blur_or_invert);
/// augmenter.validate()?;
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RandomChoice {
    choices: Vec<(Arc<dyn Augment>, f64)>,
}

impl RandomChoice {
    /// An empty list, which is not valid: add augmentations.
    pub fn new() -> Self {
        RandomChoice::default()
    }

    /// Adds an augmentation with weight 1.
    #[must_use]
    pub fn or(self, augment: impl Augment) -> Self {
        self.or_weighted(augment, 1.0)
    }

    /// Adds an augmentation. Its probability is its weight divided by the sum of all weights.
    #[must_use]
    pub fn or_weighted(mut self, augment: impl Augment, weight: f64) -> Self {
        self.choices.push((Arc::new(augment), weight));
        self
    }

    fn sum(&self) -> f64 {
        self.choices.iter().map(|(_, weight)| weight).sum()
    }
}

impl Augment for RandomChoice {
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let mut left = rng.unit() * self.sum();
        let mut possible = self.choices.iter().filter(|(_, weight)| *weight > 0.0);
        // The last one if rounding leaves a rest.
        let last = possible.clone().next_back();
        let chosen = possible.find(|(_, weight)| {
            left -= weight;
            left < 0.0
        });
        match chosen.or(last) {
            Some((augment, _)) => augment.apply(image, rng, scratch),
            None => Ok(()),
        }
    }

    fn fingerprint(&self) -> Fingerprint {
        let weights: Vec<f64> = self.choices.iter().map(|(_, weight)| *weight).collect();
        let own = Fingerprint::default()
            .with("", "RandomChoice")
            .with("weights", Setting::text(&weights));
        with_parts(own, self.choices.iter().map(|(augment, _)| augment))
    }

    fn validate(&self) -> Result<()> {
        let is_weight = |(_, weight): &(_, f64)| weight.is_finite() && *weight >= 0.0;
        let sum = self.sum();
        check(self.choices.iter().all(is_weight) && sum > 0.0 && sum.is_finite(), || {
            "invalid choice: expected at least one augmentation, and weights of at least 0 with a positive, finite sum"
                .into()
        })?;
        self.choices.iter().try_for_each(|(augment, _)| augment.validate())
    }

    fn keeps_positions(&self) -> bool {
        self.choices.iter().all(|(augment, _)| augment.keeps_positions())
    }

    fn can_be_followed(&self) -> bool {
        self.choices.iter().all(|(augment, _)| augment.can_be_followed())
    }
}

/// Applies all of several augmentations, in an order that is random for each image.
///
/// ```
/// use spdl_media::augment::{Augmenter, RandomInvert, RandomOrder, RandomPosterize};
/// let both = RandomOrder::new().and(RandomInvert::new()).and(RandomPosterize::new(4));
/// Augmenter::new().then(both).validate()?;
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RandomOrder {
    steps: Vec<Arc<dyn Augment>>,
}

impl RandomOrder {
    /// An empty list, which leaves images unchanged.
    pub fn new() -> Self {
        RandomOrder::default()
    }

    /// Adds an augmentation.
    #[must_use]
    pub fn and(mut self, augment: impl Augment) -> Self {
        self.steps.push(Arc::new(augment));
        self
    }
}

impl Augment for RandomOrder {
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let mut order: Vec<_> = self.steps.iter().collect();
        shuffle(rng, &mut order);
        order.into_iter().try_for_each(|step| step.apply(image, rng, scratch))
    }

    fn fingerprint(&self) -> Fingerprint {
        with_parts(Fingerprint::default().with("", "RandomOrder"), &self.steps)
    }

    fn validate(&self) -> Result<()> {
        self.steps.iter().try_for_each(|step| step.validate())
    }

    fn keeps_positions(&self) -> bool {
        self.steps.iter().all(|step| step.keeps_positions())
    }

    fn can_be_followed(&self) -> bool {
        self.steps.iter().all(|step| step.can_be_followed())
    }
}

/// Adds the fingerprints of the augmentations of a list, which are numbered from 1.
fn with_parts<'a>(
    own: Fingerprint,
    augments: impl IntoIterator<Item = &'a Arc<dyn Augment>>,
) -> Fingerprint {
    let parts = (1..).zip(augments).flat_map(|(number, augment): (usize, _)| {
        prefixed_parts(&format!("of {number}"), &augment.fingerprint())
    });
    parts.fold(own, |all, (part, value)| all.with(part, value))
}
