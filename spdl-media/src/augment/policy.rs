//! Augmentation policies: RandAugment (of torchvision and of timm), TrivialAugment, AutoAugment and AugMix.

use spdl_core::source::Fingerprint;
use spdl_core::{Result, SampleRng};

use super::augmenter::Augment;
use super::checks::{check, check_probability};
use super::draw::{check_alpha, dirichlet, integer, normal, uniform};
use super::functional::{self, Affine, Interpolation};
use super::image::{ImageMut, Scratch};
use super::setting::{Setting, fingerprint_of, settings_by_name};
use crate::image::Size;

/// An operation of a policy. The unit of its magnitude depends on the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// No change.
    Identity,
    /// Shear along x, the top left corner fixed; the magnitude is the tangent of the angle.
    ShearX,
    /// Shear along y, the top left corner fixed; the magnitude is the tangent of the angle.
    ShearY,
    /// Translation to the right, in whole pixels.
    TranslateX,
    /// Translation downwards, in whole pixels.
    TranslateY,
    /// Rotation counter-clockwise, in degrees.
    Rotate,
    /// Brightness by the factor 1 + magnitude.
    Brightness,
    /// Saturation by the factor 1 + magnitude.
    Color,
    /// Contrast by the factor 1 + magnitude.
    Contrast,
    /// Sharpness by the factor 1 + magnitude.
    Sharpness,
    /// Posterisation to the integer part of the magnitude, in bits.
    Posterize,
    /// Solarisation with the magnitude as threshold, as a fraction of 255.
    Solarize,
    /// Addition of the magnitude, in whole levels, to levels below 128.
    SolarizeAdd,
    /// Autocontrast; no magnitude.
    AutoContrast,
    /// Histogram equalisation; no magnitude.
    Equalize,
    /// Inversion of all levels; no magnitude.
    Invert,
}

use Operation::{
    AutoContrast, Brightness, Color, Contrast, Equalize, Identity, Invert, Posterize, Rotate,
    Sharpness, ShearX, ShearY, Solarize, SolarizeAdd, TranslateX, TranslateY,
};

impl Operation {
    /// Applies the operation. For `fill`, see [`functional::affine`].
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid magnitude.
    pub fn apply(
        self,
        image: &mut ImageMut<'_>,
        magnitude: f64,
        interpolation: Interpolation,
        fill: Option<[u8; 3]>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let mut affine = Affine::default();
        let degrees = magnitude.atan().to_degrees();
        match self {
            Identity => return Ok(()),
            Brightness => return functional::adjust_brightness(image, 1.0 + magnitude),
            Color => return functional::adjust_saturation(image, 1.0 + magnitude),
            Contrast => return functional::adjust_contrast(image, 1.0 + magnitude),
            Sharpness => return functional::adjust_sharpness(image, 1.0 + magnitude, scratch),
            Posterize => return functional::posterize(image, magnitude as u32),
            Solarize => return functional::solarize(image, 255.0 * magnitude),
            SolarizeAdd => {
                functional::solarize_add(image, magnitude as u8);
                return Ok(());
            }
            AutoContrast => {
                functional::autocontrast(image);
                return Ok(());
            }
            Equalize => {
                functional::equalize(image);
                return Ok(());
            }
            Invert => {
                functional::invert(image);
                return Ok(());
            }
            Rotate => {
                return functional::rotate(image, magnitude, interpolation, None, fill, scratch);
            }
            ShearX => (affine.shear, affine.center) = ([degrees, 0.0], Some([0.0; 2])),
            ShearY => (affine.shear, affine.center) = ([0.0, degrees], Some([0.0; 2])),
            TranslateX => affine.translate[0] = magnitude.trunc(),
            TranslateY => affine.translate[1] = magnitude.trunc(),
        }
        functional::affine(image, &affine, interpolation, fill, scratch)
    }

    /// Whether the sign of the magnitude is random: negative with probability ½.
    pub fn is_signed(self) -> bool {
        match self {
            ShearX | ShearY | TranslateX | TranslateY | Rotate => true,
            Brightness | Color | Contrast | Sharpness => true,
            Identity | Posterize | Solarize | SolarizeAdd => false,
            AutoContrast | Equalize | Invert => false,
        }
    }
}

settings_by_name!(Operation);

impl Setting for PolicyStep {
    fn text(&self) -> String {
        let PolicyStep { operation, probability, magnitude } = self;
        format!("{} {probability} {magnitude}", operation.text())
    }
}

impl Setting for Sampling {
    fn text(&self) -> String {
        let Sampling { interpolation, fill } = self;
        format!("{}, outside {}", interpolation.text(), fill.text())
    }
}

/// The operations of RandAugment and TrivialAugment.
const OPERATIONS: [Operation; 14] = [
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
];

/// The operations of AugMix; without `all_operations`, only the first nine.
const MIXED_OPERATIONS: [Operation; 13] = [
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
    Brightness,
    Color,
    Contrast,
    Sharpness,
];
const GEOMETRIC_AND_TONAL: usize = 9;

/// The maximum magnitudes of a policy. Magnitudes increase from 0 in equal steps, but the threshold
/// of `Solarize` decreases from 1 to 0, and the bits of `Posterize` decrease.
struct MagnitudeRange {
    shear: f32,
    /// The maximum translation in pixels, for a side of this length.
    translate: fn(f64) -> f64,
    rotate: f32,
    factor: f32,
    /// The number of bits that the weakest posterisation keeps, and how many fewer the strongest
    /// keeps.
    posterize: (f32, f32),
}

const STANDARD: MagnitudeRange = MagnitudeRange {
    shear: 0.3,
    translate: |side| 150.0 / 331.0 * side,
    rotate: 30.0,
    factor: 0.9,
    posterize: (8.0, 4.0),
};
const WIDE: MagnitudeRange = MagnitudeRange {
    shear: 0.99,
    translate: |_| 32.0,
    rotate: 135.0,
    factor: 0.99,
    posterize: (8.0, 6.0),
};
const MIX: MagnitudeRange =
    MagnitudeRange { translate: |side| side / 3.0, posterize: (4.0, 4.0), ..STANDARD };

impl MagnitudeRange {
    /// The magnitude of step `bin` of `bins`, without its sign; `None` for operations without
    /// magnitude.
    fn magnitude(&self, operation: Operation, bin: usize, bins: usize, size: Size) -> Option<f64> {
        let last = bins.saturating_sub(1);
        let bin = bin.min(last);
        // Computed from the nearer end of the range, like torch's `linspace`.
        let step = |from: f32, to: f32| {
            let step = (to - from) / last.max(1) as f32;
            if bin < bins / 2 {
                step.mul_add(bin as f32, from)
            } else {
                step.mul_add(-((last - bin) as f32), to)
            }
        };
        let most = match operation {
            ShearX | ShearY => self.shear,
            TranslateX => (self.translate)(f64::from(size.width)) as f32,
            TranslateY => (self.translate)(f64::from(size.height)) as f32,
            Rotate => self.rotate,
            Brightness | Color | Contrast | Sharpness => self.factor,
            Posterize => {
                let (weakest, less) = self.posterize;
                let bits = weakest - bin as f32 / (last as f32 / less);
                return Some(f64::from(bits.round_ties_even()));
            }
            Solarize => return Some(f64::from(step(1.0, 0.0))),
            Identity | SolarizeAdd | AutoContrast | Equalize | Invert => return None,
        };
        Some(f64::from(step(0.0, most)))
    }
}

/// The interpolation and fill colour of a policy's operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sampling {
    pub(super) interpolation: Interpolation,
    pub(super) fill: Option<[u8; 3]>,
}

impl Sampling {
    /// Draws the sign and applies the operation.
    fn apply(
        self,
        operation: Operation,
        magnitude: Option<f64>,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let mut magnitude = magnitude.unwrap_or(0.0);
        if operation.is_signed() && rng.chance(0.5) {
            magnitude = -magnitude;
        }
        operation.apply(image, magnitude, self.interpolation, self.fill, scratch)
    }
}

/// The setter methods that all policies share.
macro_rules! sampling_setters {
    ($default:literal) => {
        #[doc = concat!("The interpolation. Default: `", $default, "`.")]
        #[must_use]
        pub fn interpolation(mut self, interpolation: Interpolation) -> Self {
            self.sampling.interpolation = interpolation;
            self
        }

        /// The colour outside the image; see [`functional::affine`]. Default: none, which is black.
        #[must_use]
        pub fn fill(mut self, fill: Option<[u8; 3]>) -> Self {
            self.sampling.fill = fill;
            self
        }
    };
}

const NEAREST: Sampling = Sampling { interpolation: Interpolation::Nearest, fill: None };
const BILINEAR: Sampling = Sampling { interpolation: Interpolation::Bilinear, fill: None };

fn pick(operations: &[Operation], rng: &mut SampleRng) -> Operation {
    operations[rng.below(operations.len() as u64) as usize]
}

/// The maximum number of operations of a policy.
const MAX_OPERATIONS: usize = 1000;

/// Checks the number of operations of an image.
fn check_operations(operations: usize) -> Result<()> {
    check(operations <= MAX_OPERATIONS, || {
        format!("invalid number of operations {operations}: expected at most {MAX_OPERATIONS}")
    })
}

fn check_bins(bins: usize) -> Result<()> {
    check(bins >= 2, || format!("invalid number of magnitudes {bins}: expected at least 2"))
}

/// Applies several random operations in sequence, all with the same magnitude index (Cubuk et al.
/// 2020, arXiv:1909.13719).
#[derive(Clone, Debug, PartialEq)]
pub struct RandAugment {
    operations: usize,
    magnitude: usize,
    bins: usize,
    sampling: Sampling,
}

impl RandAugment {
    /// Two operations with magnitude index 9 of 0 to 30, nearest neighbour, black outside.
    #[allow(clippy::new_without_default, reason = "consistent with the other augmentations")]
    pub fn new() -> Self {
        RandAugment { operations: 2, magnitude: 9, bins: 31, sampling: NEAREST }
    }

    /// The number of operations. Default: 2.
    #[must_use]
    pub fn operations(mut self, count: usize) -> Self {
        self.operations = count;
        self
    }

    /// The index of the magnitude, less than the number of magnitudes. Default: 9.
    #[must_use]
    pub fn magnitude(mut self, magnitude: usize) -> Self {
        self.magnitude = magnitude;
        self
    }

    /// The number of magnitudes, at least 2. Default: 31.
    #[must_use]
    pub fn magnitudes(mut self, bins: usize) -> Self {
        self.bins = bins;
        self
    }

    sampling_setters!("Nearest");

    /// The magnitude that index `bin` denotes for an operation, without sign; `None` if the
    /// operation has no magnitude.
    pub fn magnitude_of(&self, operation: Operation, bin: usize, size: Size) -> Option<f64> {
        STANDARD.magnitude(operation, bin, self.bins, size)
    }
}

impl Augment for RandAugment {
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()> {
        for _ in 0..self.operations {
            let operation = pick(&OPERATIONS, rng);
            let magnitude = self.magnitude_of(operation, self.magnitude, image.size());
            self.sampling.apply(operation, magnitude, image, rng, scratch)?;
        }
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        fingerprint_of!(self, RandAugment { operations, magnitude, bins, sampling })
    }

    fn validate(&self) -> Result<()> {
        check_bins(self.bins)?;
        check_operations(self.operations)?;
        check(self.magnitude < self.bins, || {
            format!("invalid magnitude {}: expected less than {}", self.magnitude, self.bins)
        })
    }

    fn can_be_followed(&self) -> bool {
        true
    }
}

/// Applies several random operations, each with a probability and a random magnitude, as
/// RandAugment of timm does.
///
/// Magnitudes are levels, of which 10 is the usual maximum. Differences to timm: interpolation is
/// nearest neighbour or bilinear, and translations are whole pixels.
#[derive(Clone, Debug, PartialEq)]
pub struct TimmRandAugment {
    operations: usize,
    probability: f64,
    magnitude: f64,
    /// The standard deviation of the level; `None` for levels uniform from 0 to `magnitude`.
    deviation: Option<f64>,
    maximum: f64,
    increasing: bool,
    sampling: Sampling,
}

impl TimmRandAugment {
    /// The operations; each is drawn with the same probability.
    const OPERATIONS: [Operation; 15] = [
        AutoContrast,
        Equalize,
        Invert,
        Rotate,
        Posterize,
        Solarize,
        SolarizeAdd,
        Color,
        Contrast,
        Brightness,
        Sharpness,
        ShearX,
        ShearY,
        TranslateX,
        TranslateY,
    ];
    /// The level of the strongest usual operations.
    const LEVELS: f64 = 10.0;
    /// The largest reduction of a factor.
    const MAX_REDUCTION: f64 = 0.9;

    /// Two operations of level 10, each with probability ½; bilinear, grey outside.
    #[allow(clippy::new_without_default, reason = "consistent with the other augmentations")]
    pub fn new() -> Self {
        TimmRandAugment {
            operations: 2,
            probability: 0.5,
            magnitude: TimmRandAugment::LEVELS,
            deviation: Some(0.0),
            maximum: TimmRandAugment::LEVELS,
            increasing: false,
            sampling: Sampling { fill: Some([128; 3]), ..BILINEAR },
        }
    }

    /// The number of operations (`n`). Default: 2.
    #[must_use]
    pub fn operations(mut self, count: usize) -> Self {
        self.operations = count;
        self
    }

    /// The probability of each operation, 0 to 1 (`p`). Default: 0.5.
    #[must_use]
    pub fn probability(mut self, probability: f64) -> Self {
        self.probability = probability;
        self
    }

    /// The mean level (`m`). Default: 10.
    #[must_use]
    pub fn magnitude(mut self, level: f64) -> Self {
        self.magnitude = level;
        self
    }

    /// The standard deviation of the level, which is normally distributed (`mstd`). Default: 0.
    #[must_use]
    pub fn deviation(mut self, deviation: f64) -> Self {
        self.deviation = Some(deviation);
        self
    }

    /// Draws levels uniformly from 0 to [`magnitude`](Self::magnitude) (`mstd101`).
    #[must_use]
    pub fn uniform(mut self) -> Self {
        self.deviation = None;
        self
    }

    /// The level above which levels are clipped (`mmax`). Default: 10.
    #[must_use]
    pub fn maximum(mut self, level: f64) -> Self {
        self.maximum = level;
        self
    }

    /// Whether higher levels are stronger for all operations (`inc`). Otherwise, the strengths of
    /// posterisation and solarisation decrease, and level 5 leaves brightness, colour, contrast and
    /// sharpness as they are. Default: no.
    #[must_use]
    pub fn increasing(mut self, increasing: bool) -> Self {
        self.increasing = increasing;
        self
    }

    sampling_setters!("Bilinear");

    /// The magnitude that a level denotes for an operation, without random sign; `None` if the
    /// operation has no magnitude. A threshold of more than 255 leaves the image as it is.
    pub fn magnitude_of(&self, operation: Operation, level: f64, size: Size) -> Option<f64> {
        let share = level / TimmRandAugment::LEVELS;
        let whole = |steps: f64| match self.increasing {
            true => steps - (share * steps).trunc(),
            false => (share * steps).trunc(),
        };
        Some(match operation {
            ShearX | ShearY => 0.3 * share,
            TranslateX => 0.45 * share * f64::from(size.width),
            TranslateY => 0.45 * share * f64::from(size.height),
            Rotate => 30.0 * share,
            Brightness | Color | Contrast | Sharpness => match self.increasing {
                true => 0.9 * share,
                false => 1.8 * share - TimmRandAugment::MAX_REDUCTION,
            },
            Posterize => whole(4.0).clamp(0.0, 8.0),
            Solarize => whole(256.0).clamp(0.0, 256.0) / 255.0,
            SolarizeAdd => (110.0 * share).trunc().min(128.0),
            Identity | AutoContrast | Equalize | Invert => return None,
        })
    }

    fn is_signed(&self, operation: Operation) -> bool {
        match operation {
            Brightness | Color | Contrast | Sharpness => self.increasing,
            other => other.is_signed(),
        }
    }

    /// Draws the level and the sign, and applies the operation.
    fn apply_one(
        &self,
        operation: Operation,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let Sampling { interpolation, fill } = self.sampling;
        let level = match self.deviation {
            None => uniform(rng, (0.0, self.magnitude)),
            Some(0.0) => self.magnitude,
            Some(deviation) => self.magnitude + deviation * normal(rng),
        };
        let level = level.clamp(0.0, self.maximum);
        let mut magnitude = self.magnitude_of(operation, level, image.size()).unwrap_or_default();
        if self.is_signed(operation) && rng.chance(0.5) {
            magnitude = -magnitude;
        }
        match operation {
            Solarize if magnitude > 1.0 => return Ok(()),
            Brightness | Color | Contrast | Sharpness => {
                magnitude = magnitude.max(-TimmRandAugment::MAX_REDUCTION);
            }
            _ => {}
        }
        operation.apply(image, magnitude, interpolation, fill, scratch)
    }
}

impl Augment for TimmRandAugment {
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()> {
        for _ in 0..self.operations {
            let operation = pick(&TimmRandAugment::OPERATIONS, rng);
            if rng.chance(self.probability) {
                self.apply_one(operation, image, rng, scratch)?;
            }
        }
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        fingerprint_of!(
            self,
            TimmRandAugment {
                operations,
                probability,
                magnitude,
                deviation,
                maximum,
                increasing,
                sampling
            }
        )
    }

    fn validate(&self) -> Result<()> {
        check_probability(self.probability)?;
        check_operations(self.operations)?;
        let TimmRandAugment { magnitude, deviation, maximum, .. } = *self;
        for (name, level) in [
            ("magnitude", magnitude),
            ("standard deviation", deviation.unwrap_or_default()),
            ("maximum magnitude", maximum),
        ] {
            check((0.0..=MAX_LEVEL).contains(&level), || {
                format!("invalid {name} {level}: expected 0 to {MAX_LEVEL}")
            })?;
        }
        Ok(())
    }

    fn can_be_followed(&self) -> bool {
        true
    }
}

/// The largest level of [`TimmRandAugment`]. Far below it, all operations are at their limits.
const MAX_LEVEL: f64 = 100.0;

/// Applies one random operation with a random magnitude (Müller and Hutter 2021, arXiv:2103.10158).
#[derive(Clone, Debug, PartialEq)]
pub struct TrivialAugmentWide {
    bins: usize,
    sampling: Sampling,
}

impl TrivialAugmentWide {
    /// 31 magnitudes, nearest neighbour, black outside.
    #[allow(clippy::new_without_default, reason = "consistent with the other augmentations")]
    pub fn new() -> Self {
        TrivialAugmentWide { bins: 31, sampling: NEAREST }
    }

    /// The number of magnitudes, at least 2. Default: 31.
    #[must_use]
    pub fn magnitudes(mut self, bins: usize) -> Self {
        self.bins = bins;
        self
    }

    sampling_setters!("Nearest");

    /// The magnitude that index `bin` denotes for an operation, without sign; `None` if the
    /// operation has no magnitude.
    pub fn magnitude_of(&self, operation: Operation, bin: usize, size: Size) -> Option<f64> {
        WIDE.magnitude(operation, bin, self.bins, size)
    }
}

impl Augment for TrivialAugmentWide {
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let operation = pick(&OPERATIONS, rng);
        let bin = rng.below(self.bins as u64) as usize;
        let magnitude = self.magnitude_of(operation, bin, image.size());
        self.sampling.apply(operation, magnitude, image, rng, scratch)
    }

    fn fingerprint(&self) -> Fingerprint {
        fingerprint_of!(self, TrivialAugmentWide { bins, sampling })
    }

    fn validate(&self) -> Result<()> {
        check_bins(self.bins)
    }

    fn can_be_followed(&self) -> bool {
        true
    }
}

/// A step of an [`AutoAugment`] policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyStep {
    /// The operation.
    pub operation: Operation,
    /// The probability, 0 to 1.
    pub probability: f64,
    /// The index of the magnitude, 0 to 9; ignored by operations without magnitude.
    pub magnitude: usize,
}

/// Applies a random pair of operations from a list, each with its probability and magnitude (Cubuk
/// et al. 2019, arXiv:1805.09501).
#[derive(Clone, Debug, PartialEq)]
pub struct AutoAugment {
    policies: Vec<[PolicyStep; 2]>,
    sampling: Sampling,
}

impl AutoAugment {
    /// The number of magnitudes.
    const BINS: usize = 10;

    /// The policies for ImageNet, nearest neighbour, black outside.
    #[allow(clippy::new_without_default, reason = "consistent with the other augmentations")]
    pub fn new() -> Self {
        let step =
            |(operation, probability, magnitude)| PolicyStep { operation, probability, magnitude };
        let policies = IMAGENET.iter().map(|&(first, second)| [step(first), step(second)]);
        AutoAugment { policies: policies.collect(), sampling: NEAREST }
    }

    /// Replaces the policies; the list must not be empty.
    #[must_use]
    pub fn policies(mut self, policies: impl Into<Vec<[PolicyStep; 2]>>) -> Self {
        self.policies = policies.into();
        self
    }

    sampling_setters!("Nearest");

    /// The policies.
    pub fn list(&self) -> &[[PolicyStep; 2]] {
        &self.policies
    }

    /// The magnitude that index `bin` denotes for an operation, without sign; `None` if the
    /// operation has no magnitude.
    pub fn magnitude_of(&self, operation: Operation, bin: usize, size: Size) -> Option<f64> {
        STANDARD.magnitude(operation, bin, AutoAugment::BINS, size)
    }
}

impl Augment for AutoAugment {
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let at = rng.below(self.policies.len() as u64) as usize;
        for step in self.policies.get(at).into_iter().flatten() {
            if rng.chance(step.probability) {
                let magnitude = self.magnitude_of(step.operation, step.magnitude, image.size());
                self.sampling.apply(step.operation, magnitude, image, rng, scratch)?;
            }
        }
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        fingerprint_of!(self, AutoAugment { policies, sampling })
    }

    fn validate(&self) -> Result<()> {
        check(!self.policies.is_empty(), || {
            "empty list of policies: expected at least one".into()
        })?;
        for step in self.policies.iter().flatten() {
            check_probability(step.probability)?;
            check(step.magnitude < AutoAugment::BINS, || {
                format!("invalid magnitude {}: expected 0 to 9", step.magnitude)
            })?;
        }
        Ok(())
    }

    fn can_be_followed(&self) -> bool {
        true
    }
}

type Step = (Operation, f64, usize);

/// Operation, probability, magnitude.
const IMAGENET: [(Step, Step); 25] = [
    ((Posterize, 0.4, 8), (Rotate, 0.6, 9)),
    ((Solarize, 0.6, 5), (AutoContrast, 0.6, 0)),
    ((Equalize, 0.8, 0), (Equalize, 0.6, 0)),
    ((Posterize, 0.6, 7), (Posterize, 0.6, 6)),
    ((Equalize, 0.4, 0), (Solarize, 0.2, 4)),
    ((Equalize, 0.4, 0), (Rotate, 0.8, 8)),
    ((Solarize, 0.6, 3), (Equalize, 0.6, 0)),
    ((Posterize, 0.8, 5), (Equalize, 1.0, 0)),
    ((Rotate, 0.2, 3), (Solarize, 0.6, 8)),
    ((Equalize, 0.6, 0), (Posterize, 0.4, 6)),
    ((Rotate, 0.8, 8), (Color, 0.4, 0)),
    ((Rotate, 0.4, 9), (Equalize, 0.6, 0)),
    ((Equalize, 0.0, 0), (Equalize, 0.8, 0)),
    ((Invert, 0.6, 0), (Equalize, 1.0, 0)),
    ((Color, 0.6, 4), (Contrast, 1.0, 8)),
    ((Rotate, 0.8, 8), (Color, 1.0, 2)),
    ((Color, 0.8, 8), (Solarize, 0.8, 7)),
    ((Sharpness, 0.4, 7), (Invert, 0.6, 0)),
    ((ShearX, 0.6, 5), (Equalize, 1.0, 0)),
    ((Color, 0.4, 0), (Equalize, 0.6, 0)),
    ((Equalize, 0.4, 0), (Solarize, 0.2, 4)),
    ((Solarize, 0.6, 5), (AutoContrast, 0.6, 0)),
    ((Invert, 0.6, 0), (Equalize, 1.0, 0)),
    ((Color, 0.6, 4), (Contrast, 1.0, 8)),
    ((Equalize, 0.8, 0), (Equalize, 0.6, 0)),
];

/// Blends the image with several chains of operations (Hendrycks et al. 2020, arXiv:1912.02781).
#[derive(Clone, Debug, PartialEq)]
pub struct AugMix {
    severity: usize,
    width: usize,
    depth: Option<usize>,
    alpha: f64,
    all_operations: bool,
    sampling: Sampling,
}

impl AugMix {
    /// The number of magnitudes; the severity limits how many of them are used.
    const BINS: usize = 10;
    /// The maximum number of operations in a chain, if the number is random.
    const MAX_DRAWN_DEPTH: i64 = 3;

    /// Three chains of one to three operations, severity 3, alpha 1, all operations, bilinear,
    /// black outside.
    #[allow(clippy::new_without_default, reason = "consistent with the other augmentations")]
    pub fn new() -> Self {
        AugMix {
            severity: 3,
            width: 3,
            depth: None,
            alpha: 1.0,
            all_operations: true,
            sampling: BILINEAR,
        }
    }

    /// The number of magnitudes to draw from, starting with the weakest, 1 to 10. Default: 3.
    #[must_use]
    pub fn severity(mut self, severity: usize) -> Self {
        self.severity = severity;
        self
    }

    /// The number of chains, at least 1. Default: 3.
    #[must_use]
    pub fn mixture_width(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// The number of operations per chain, at least 1; `None` draws from 1 to 3. Default: `None`.
    #[must_use]
    pub fn chain_depth(mut self, depth: Option<usize>) -> Self {
        self.depth = depth;
        self
    }

    /// The alpha of the Dirichlet and Beta distributions of the weights; positive. Default: 1.
    #[must_use]
    pub fn alpha(mut self, alpha: f64) -> Self {
        self.alpha = alpha;
        self
    }

    /// Whether brightness, color, contrast and sharpness are included. Default: yes.
    #[must_use]
    pub fn all_operations(mut self, all: bool) -> Self {
        self.all_operations = all;
        self
    }

    sampling_setters!("Bilinear");

    /// The magnitude that index `bin` denotes for an operation, without sign; `None` if the
    /// operation has no magnitude.
    pub fn magnitude_of(&self, operation: Operation, bin: usize, size: Size) -> Option<f64> {
        MIX.magnitude(operation, bin, AugMix::BINS, size)
    }

    /// Blends the image with changed copies. `shares` are the weights of the original, and of all
    /// copies together; `weights` has the weight of each copy. `change` produces copy number `n`.
    /// Results are truncated to integers.
    ///
    /// # Errors
    /// The errors of `change`.
    pub fn mix(
        image: &mut ImageMut<'_>,
        shares: [f32; 2],
        weights: &[f32],
        scratch: &mut Scratch,
        mut change: impl FnMut(usize, &mut ImageMut<'_>, &mut Scratch) -> Result<()>,
    ) -> Result<()> {
        let len = image.pixels().len();
        let mut sums = scratch.take_floats(len);
        let mut changed = scratch.take_bytes(len);
        let mut outcome = Ok(());
        for (sum, &level) in sums.iter_mut().zip(image.pixels()) {
            *sum = shares[0] * f32::from(level);
        }
        for (number, weight) in weights.iter().enumerate() {
            changed.copy_from_slice(image.pixels());
            outcome = ImageMut::new(&mut changed, image.size())
                .and_then(|mut changed| change(number, &mut changed, scratch));
            if outcome.is_err() {
                break;
            }
            let weight = weight * shares[1];
            for (sum, &level) in sums.iter_mut().zip(&changed) {
                *sum += weight * f32::from(level);
            }
        }
        if outcome.is_ok() {
            for (level, &sum) in image.pixels_mut().iter_mut().zip(&sums) {
                *level = sum as u8;
            }
        }
        scratch.give_bytes(changed);
        scratch.give_floats(sums);
        outcome
    }
}

impl Augment for AugMix {
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let operations = match self.all_operations {
            true => &MIXED_OPERATIONS[..],
            false => &MIXED_OPERATIONS[..GEOMETRIC_AND_TONAL],
        };
        let AugMix { alpha, width, depth, .. } = *self;
        mix_chains(image, alpha, (width, depth), rng, scratch, |changed, rng, scratch| {
            let operation = pick(operations, rng);
            let bin = rng.below(self.severity as u64) as usize;
            let magnitude = self.magnitude_of(operation, bin, changed.size());
            self.sampling.apply(operation, magnitude, changed, rng, scratch)
        })
    }

    fn fingerprint(&self) -> Fingerprint {
        fingerprint_of!(self, AugMix { severity, width, depth, alpha, all_operations, sampling })
    }

    fn validate(&self) -> Result<()> {
        check((1..=AugMix::BINS).contains(&self.severity), || {
            format!("invalid severity {}: expected 1 to 10", self.severity)
        })?;
        check_chains(self.width, self.depth)?;
        check_alpha(self.alpha)
    }
}

/// Blends the image with changed copies of it, which `change` makes by one operation at a time.
///
/// `width` is the number of copies. `depth` is the number of their operations, or drawn for each copy.
fn mix_chains(
    image: &mut ImageMut<'_>,
    alpha: f64,
    (width, depth): (usize, Option<usize>),
    rng: &mut SampleRng,
    scratch: &mut Scratch,
    mut change: impl FnMut(&mut ImageMut<'_>, &mut SampleRng, &mut Scratch) -> Result<()>,
) -> Result<()> {
    let mut shares = [0.0; 2];
    dirichlet(rng, alpha, &mut shares);
    let mut weights = scratch.take_floats(width);
    dirichlet(rng, alpha, &mut weights);
    let outcome = AugMix::mix(image, shares, &weights, scratch, |_, changed, scratch| {
        let drawn = |rng: &mut SampleRng| integer(rng, 1, AugMix::MAX_DRAWN_DEPTH) as usize;
        for _ in 0..depth.unwrap_or_else(|| drawn(rng)) {
            change(changed, rng, scratch)?;
        }
        Ok(())
    });
    scratch.give_floats(weights);
    outcome
}

fn check_chains(width: usize, depth: Option<usize>) -> Result<()> {
    check(width >= 1 && depth != Some(0), || {
        format!(
            "invalid mixture of width {width} and depth {depth:?}: expected at least 1 for each"
        )
    })
}

/// [`AugMix`] with the operations and levels of timm.
///
/// Levels are those of [`TimmRandAugment`] with [`increasing`](TimmRandAugment::increasing), of which
/// 10 is the maximum. Differences to timm: those of [`TimmRandAugment`], and levels of the result are
/// truncated once, not twice.
#[derive(Clone, Debug, PartialEq)]
pub struct TimmAugMix {
    magnitude: f64,
    deviation: Option<f64>,
    width: usize,
    depth: Option<usize>,
    alpha: f64,
    sampling: Sampling,
}

impl TimmAugMix {
    /// Three chains of one to three operations, levels uniform from 0 to 3, alpha 1; bilinear, grey
    /// outside.
    #[allow(clippy::new_without_default, reason = "consistent with the other augmentations")]
    pub fn new() -> Self {
        TimmAugMix {
            magnitude: 3.0,
            deviation: None,
            width: 3,
            depth: None,
            alpha: 1.0,
            sampling: Sampling { fill: Some([128; 3]), ..BILINEAR },
        }
    }

    /// The maximum of uniform levels, or the mean of normally distributed ones (`m`). Default: 3.
    #[must_use]
    pub fn magnitude(mut self, level: f64) -> Self {
        self.magnitude = level;
        self
    }

    /// Draws levels from a normal distribution with this standard deviation (`mstd`). Default: uniform
    /// levels.
    #[must_use]
    pub fn deviation(mut self, deviation: f64) -> Self {
        self.deviation = Some(deviation);
        self
    }

    /// The number of chains, at least 1 (`w`). Default: 3.
    #[must_use]
    pub fn mixture_width(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// The number of operations per chain, at least 1 (`d`); `None` draws from 1 to 3. Default: `None`.
    #[must_use]
    pub fn chain_depth(mut self, depth: Option<usize>) -> Self {
        self.depth = depth;
        self
    }

    /// The alpha of the Dirichlet and Beta distributions of the weights; positive (`a`). Default: 1.
    #[must_use]
    pub fn alpha(mut self, alpha: f64) -> Self {
        self.alpha = alpha;
        self
    }

    sampling_setters!("Bilinear");

    /// The policy that has the levels of the operations.
    fn levels(&self) -> TimmRandAugment {
        let TimmAugMix { magnitude, deviation, sampling, .. } = *self;
        let levels = TimmRandAugment::new().magnitude(magnitude).increasing(true);
        TimmRandAugment { deviation, sampling, ..levels }
    }
}

impl Augment for TimmAugMix {
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let levels = self.levels();
        let TimmAugMix { alpha, width, depth, .. } = *self;
        mix_chains(image, alpha, (width, depth), rng, scratch, |changed, rng, scratch| {
            levels.apply_one(pick(&MIXED_OPERATIONS, rng), changed, rng, scratch)
        })
    }

    fn fingerprint(&self) -> Fingerprint {
        fingerprint_of!(self, TimmAugMix { magnitude, deviation, width, depth, alpha, sampling })
    }

    fn validate(&self) -> Result<()> {
        self.levels().validate()?;
        check_chains(self.width, self.depth)?;
        check_alpha(self.alpha)
    }
}
