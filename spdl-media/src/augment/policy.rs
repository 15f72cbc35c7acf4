//! Policies that pick operations and their strength: RandAugment, TrivialAugment, AutoAugment and
//! AugMix.

use spdl_core::source::Fingerprint;
use spdl_core::{Result, SampleRng};

use super::draw::{check_alpha, dirichlet, integer};
use super::functional::{self, Affine, Interpolation, check};
use super::setting::fingerprint_of;
use super::{Augment, ImageMut, Scratch, check_probability};
use crate::image::Size;

/// What a policy may do to an image. Its strength is a magnitude, whose unit depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Nothing.
    Identity,
    /// Shears along x from the upper left corner; the magnitude is the shear's tangent.
    ShearX,
    /// Shears along y from the upper left corner.
    ShearY,
    /// Shifts to the right by the whole pixels of the magnitude.
    TranslateX,
    /// Shifts down.
    TranslateY,
    /// Rotates counter-clockwise by degrees.
    Rotate,
    /// Multiplies the brightness by 1 + magnitude.
    Brightness,
    /// The saturation.
    Color,
    /// The contrast.
    Contrast,
    /// The sharpness.
    Sharpness,
    /// Keeps as many bits as the magnitude's integer part says.
    Posterize,
    /// Inverts from a level on, that is a share of 255.
    Solarize,
    /// Stretches the levels; no magnitude.
    AutoContrast,
    /// Spreads the levels evenly; no magnitude.
    Equalize,
    /// Inverts all levels; no magnitude.
    Invert,
}

use Operation::{
    AutoContrast, Brightness, Color, Contrast, Equalize, Identity, Invert, Posterize, Rotate,
    Sharpness, ShearX, ShearY, Solarize, TranslateX, TranslateY,
};

impl Operation {
    /// Does it; `fill` is as in [`functional::affine`].
    ///
    /// # Errors
    /// `InvalidArgument` for a magnitude that the operation cannot have.
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

    /// Whether the magnitude's sign is drawn: half of the time it is negative.
    pub fn is_signed(self) -> bool {
        match self {
            ShearX | ShearY | TranslateX | TranslateY | Rotate => true,
            Brightness | Color | Contrast | Sharpness => true,
            Identity | Posterize | Solarize | AutoContrast | Equalize | Invert => false,
        }
    }
}

/// What the operations of RandAugment and TrivialAugment are drawn from.
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

/// What those of AugMix are drawn from: the first nine where only some are wanted.
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

/// The largest magnitudes of a policy; they rise to it in equal steps from 0.
struct Space {
    shear: f32,
    /// Pixels of a side that is this long.
    translate: fn(f64) -> f64,
    rotate: f32,
    factor: f32,
    /// The bits that the weakest posterization keeps, and how many less the strongest does.
    posterize: (f32, f32),
}

const STANDARD: Space = Space {
    shear: 0.3,
    translate: |side| 150.0 / 331.0 * side,
    rotate: 30.0,
    factor: 0.9,
    posterize: (8.0, 4.0),
};
const WIDE: Space =
    Space { shear: 0.99, translate: |_| 32.0, rotate: 135.0, factor: 0.99, posterize: (8.0, 6.0) };
const MIX: Space = Space { translate: |side| side / 3.0, posterize: (4.0, 4.0), ..STANDARD };

impl Space {
    /// The magnitude of step `bin` of `bins`, without its sign; `None` where there is none.
    fn magnitude(&self, operation: Operation, bin: usize, bins: usize, size: Size) -> Option<f64> {
        let last = bins.saturating_sub(1);
        let bin = bin.min(last);
        // Steps from either end, as torch's `linspace`.
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
            Identity | AutoContrast | Equalize | Invert => return None,
        };
        Some(f64::from(step(0.0, most)))
    }
}

/// How a policy's operations look up pixels and what is outside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sampling {
    pub(super) interpolation: Interpolation,
    pub(super) fill: Option<[u8; 3]>,
}

impl Sampling {
    /// Draws the sign, and applies.
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

/// The setters that all policies have.
macro_rules! sampling_setters {
    ($default:literal) => {
        #[doc = concat!("How levels are read between pixels. Default: `", $default, "`.")]
        #[must_use]
        pub fn interpolation(mut self, interpolation: Interpolation) -> Self {
            self.sampling.interpolation = interpolation;
            self
        }

        /// The colour outside; see [`functional::affine`]. Default: none, which is black.
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

fn check_bins(bins: usize) -> Result<()> {
    check(bins >= 2, || format!("expected 2 or more magnitudes, found {bins}"))
}

/// A few operations one after another, all of the same magnitude (Cubuk et al. 2020,
/// arXiv:1909.13719).
#[derive(Clone, Debug, PartialEq)]
pub struct RandAugment {
    operations: usize,
    magnitude: usize,
    bins: usize,
    sampling: Sampling,
}

impl RandAugment {
    /// Two operations of magnitude 9 of 0 to 30, the nearest pixels, outside black.
    #[allow(clippy::new_without_default, reason = "as the others")]
    pub fn new() -> Self {
        RandAugment { operations: 2, magnitude: 9, bins: 31, sampling: NEAREST }
    }

    /// How many operations are applied. Default: 2.
    #[must_use]
    pub fn operations(mut self, count: usize) -> Self {
        self.operations = count;
        self
    }

    /// Which magnitude, counted from 0; less than there are. Default: 9.
    #[must_use]
    pub fn magnitude(mut self, magnitude: usize) -> Self {
        self.magnitude = magnitude;
        self
    }

    /// How many magnitudes there are, 2 or more. Default: 31.
    #[must_use]
    pub fn magnitudes(mut self, bins: usize) -> Self {
        self.bins = bins;
        self
    }

    sampling_setters!("Nearest");

    /// What magnitude number `bin` is for an operation, but for the sign.
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
        check(self.magnitude < self.bins, || {
            format!("expected a magnitude less than {}, found {}", self.bins, self.magnitude)
        })
    }
}

/// One operation of any magnitude (Müller and Hutter 2021, arXiv:2103.10158).
#[derive(Clone, Debug, PartialEq)]
pub struct TrivialAugmentWide {
    bins: usize,
    sampling: Sampling,
}

impl TrivialAugmentWide {
    /// One of 31 magnitudes, the nearest pixels, outside black.
    #[allow(clippy::new_without_default, reason = "as the others")]
    pub fn new() -> Self {
        TrivialAugmentWide { bins: 31, sampling: NEAREST }
    }

    /// How many magnitudes there are, 2 or more. Default: 31.
    #[must_use]
    pub fn magnitudes(mut self, bins: usize) -> Self {
        self.bins = bins;
        self
    }

    sampling_setters!("Nearest");

    /// What magnitude number `bin` is for an operation, but for the sign.
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
}

/// A step of an [`AutoAugment`] policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyStep {
    /// What is done.
    pub operation: Operation,
    /// How likely, 0 to 1.
    pub probability: f64,
    /// Which magnitude, 0 to 9; of no meaning where the operation has none.
    pub magnitude: usize,
}

/// One pair of operations of a list, each with its own probability and magnitude (Cubuk et al. 2019,
/// arXiv:1805.09501).
#[derive(Clone, Debug, PartialEq)]
pub struct AutoAugment {
    policies: Vec<[PolicyStep; 2]>,
    sampling: Sampling,
}

impl AutoAugment {
    /// How many magnitudes there are.
    const BINS: usize = 10;

    /// The policies that were found for ImageNet, the nearest pixels, outside black.
    #[allow(clippy::new_without_default, reason = "as the others")]
    pub fn new() -> Self {
        let step =
            |(operation, probability, magnitude)| PolicyStep { operation, probability, magnitude };
        let policies = IMAGENET.iter().map(|&(first, second)| [step(first), step(second)]);
        AutoAugment { policies: policies.collect(), sampling: NEAREST }
    }

    /// Other policies; at least one.
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

    /// What magnitude number `bin` is for an operation, but for the sign.
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
        check(!self.policies.is_empty(), || "expected a policy or more, found none".into())?;
        for step in self.policies.iter().flatten() {
            check_probability(step.probability)?;
            check(step.magnitude < AutoAugment::BINS, || {
                format!("expected a magnitude from 0 to 9, found {}", step.magnitude)
            })?;
        }
        Ok(())
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
    /// How many magnitudes there are, of which the severity takes the first.
    const BINS: usize = 10;
    /// The longest chain whose length is drawn.
    const MAX_DRAWN_DEPTH: i64 = 3;

    /// Three chains of one to three operations, severity 3, alpha 1, all operations, interpolated,
    /// outside black.
    #[allow(clippy::new_without_default, reason = "as the others")]
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

    /// How many magnitudes are drawn from, from the weakest on, 1 to 10. Default: 3.
    #[must_use]
    pub fn severity(mut self, severity: usize) -> Self {
        self.severity = severity;
        self
    }

    /// How many chains there are, 1 or more. Default: 3.
    #[must_use]
    pub fn mixture_width(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// How many operations a chain has, 1 or more; `None` draws from 1 to 3. Default: `None`.
    #[must_use]
    pub fn chain_depth(mut self, depth: Option<usize>) -> Self {
        self.depth = depth;
        self
    }

    /// The alpha of the distributions (Dirichlet, and Beta) that weights are drawn from; positive.
    /// Default: 1.
    #[must_use]
    pub fn alpha(mut self, alpha: f64) -> Self {
        self.alpha = alpha;
        self
    }

    /// Whether brightness, color, contrast and sharpness are among the operations. Default: yes.
    #[must_use]
    pub fn all_operations(mut self, all: bool) -> Self {
        self.all_operations = all;
        self
    }

    sampling_setters!("Bilinear");

    /// What magnitude number `bin` is for an operation, but for the sign.
    pub fn magnitude_of(&self, operation: Operation, bin: usize, size: Size) -> Option<f64> {
        MIX.magnitude(operation, bin, AugMix::BINS, size)
    }

    /// Blends the image with as many changed ones as there are `weights`: `shares` are those of the
    /// image as it is and of the changed ones together, `weights` the parts of these. `change` makes
    /// the changed images, of which it gets the number. Levels lose their fractions.
    ///
    /// # Errors
    /// What `change` answers.
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
        let mut shares = [0.0; 2];
        dirichlet(rng, self.alpha, &mut shares);
        let mut weights = scratch.take_floats(self.width);
        dirichlet(rng, self.alpha, &mut weights);
        let operations = match self.all_operations {
            true => &MIXED_OPERATIONS[..],
            false => &MIXED_OPERATIONS[..GEOMETRIC_AND_TONAL],
        };
        let outcome = AugMix::mix(image, shares, &weights, scratch, |_, changed, scratch| {
            let drawn = |rng: &mut SampleRng| integer(rng, 1, AugMix::MAX_DRAWN_DEPTH) as usize;
            for _ in 0..self.depth.unwrap_or_else(|| drawn(rng)) {
                let operation = pick(operations, rng);
                let bin = rng.below(self.severity as u64) as usize;
                let magnitude = self.magnitude_of(operation, bin, changed.size());
                self.sampling.apply(operation, magnitude, changed, rng, scratch)?;
            }
            Ok(())
        });
        scratch.give_floats(weights);
        outcome
    }

    fn fingerprint(&self) -> Fingerprint {
        fingerprint_of!(self, AugMix { severity, width, depth, alpha, all_operations, sampling })
    }

    fn validate(&self) -> Result<()> {
        check((1..=AugMix::BINS).contains(&self.severity), || {
            format!("expected a severity from 1 to 10, found {}", self.severity)
        })?;
        check(self.width >= 1 && self.depth != Some(0), || {
            format!("expected chains with operations, found {} of {:?}", self.width, self.depth)
        })?;
        check_alpha(self.alpha)
    }
}
