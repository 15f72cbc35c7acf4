//! Random colour changes, sharpness and blur.

use spdl_core::source::Fingerprint;
use spdl_core::{Result, SampleRng};

use super::augmenter::Augment;
use super::checks::{check, check_factor, check_probability, check_range};
use super::draw::{shuffle, uniform};
use super::functional::{self, check_kernel};
use super::image::{ImageMut, Scratch};
use super::setting::fingerprint_of;

/// Changes brightness, contrast, saturation and hue in a random order, each by a uniform random
/// factor (for hue, a fraction of a turn). Properties without a range stay unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColorJitter {
    brightness: Option<(f64, f64)>,
    contrast: Option<(f64, f64)>,
    saturation: Option<(f64, f64)>,
    hue: Option<(f64, f64)>,
}

impl ColorJitter {
    /// A jitter without ranges, which leaves images unchanged.
    pub fn new() -> Self {
        ColorJitter::default()
    }

    /// Brightness factor from max(0, 1 − `amount`) to 1 + `amount`.
    #[must_use]
    pub fn brightness(self, amount: f64) -> Self {
        let (low, high) = around_one(amount);
        self.brightness_between(low, high)
    }

    /// Brightness factor from `low` to `high`, both at least 0.
    #[must_use]
    pub fn brightness_between(mut self, low: f64, high: f64) -> Self {
        self.brightness = Some((low, high));
        self
    }

    /// Contrast factor from max(0, 1 − `amount`) to 1 + `amount`.
    #[must_use]
    pub fn contrast(self, amount: f64) -> Self {
        let (low, high) = around_one(amount);
        self.contrast_between(low, high)
    }

    /// Contrast factor from `low` to `high`, both at least 0.
    #[must_use]
    pub fn contrast_between(mut self, low: f64, high: f64) -> Self {
        self.contrast = Some((low, high));
        self
    }

    /// Saturation factor from max(0, 1 − `amount`) to 1 + `amount`.
    #[must_use]
    pub fn saturation(self, amount: f64) -> Self {
        let (low, high) = around_one(amount);
        self.saturation_between(low, high)
    }

    /// Saturation factor from `low` to `high`, both at least 0.
    #[must_use]
    pub fn saturation_between(mut self, low: f64, high: f64) -> Self {
        self.saturation = Some((low, high));
        self
    }

    /// Hue shift of −`amount` to `amount` turns; 0 to 0.5.
    #[must_use]
    pub fn hue(self, amount: f64) -> Self {
        self.hue_between(-amount, amount)
    }

    /// Hue shift of `low` to `high` turns; both −0.5 to 0.5.
    #[must_use]
    pub fn hue_between(mut self, low: f64, high: f64) -> Self {
        self.hue = Some((low, high));
        self
    }
}

/// Max(0, 1 − `amount`) to 1 + `amount`. A negative amount gives a reversed range, which the check
/// rejects.
fn around_one(amount: f64) -> (f64, f64) {
    if amount < 0.0 {
        (1.0 - amount, 1.0 + amount)
    } else {
        ((1.0 - amount).max(0.0), 1.0 + amount)
    }
}

impl Augment for ColorJitter {
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        _scratch: &mut Scratch,
    ) -> Result<()> {
        type Change = fn(&mut ImageMut<'_>, f64) -> Result<()>;
        let changes: [(Option<(f64, f64)>, Change); 4] = [
            (self.brightness, functional::adjust_brightness),
            (self.contrast, functional::adjust_contrast),
            (self.saturation, functional::adjust_saturation),
            (self.hue, functional::adjust_hue),
        ];
        let mut drawn = changes.map(|(range, change)| (range.map(|it| uniform(rng, it)), change));
        shuffle(rng, &mut drawn);
        for (factor, change) in drawn {
            if let Some(factor) = factor {
                change(image, factor)?;
            }
        }
        Ok(())
    }

    fn fingerprint(&self) -> Fingerprint {
        fingerprint_of!(self, ColorJitter { brightness, contrast, saturation, hue })
    }

    fn validate(&self) -> Result<()> {
        let factors = [
            ("brightness", self.brightness),
            ("contrast", self.contrast),
            ("saturation", self.saturation),
        ];
        for (name, range) in factors {
            check_range(name, range.unwrap_or_default(), 0.0, f64::INFINITY)?;
        }
        check_range("hue", self.hue.unwrap_or_default(), -0.5, 0.5)
    }

    fn keeps_positions(&self) -> bool {
        true
    }
}

/// Defines an augmentation that is applied with a probability.
macro_rules! random_change {
    (
        $(#[$documentation:meta])*
        $name:ident($($field:ident: $type:ty),*), probability $probability:literal,
        $change:expr, $check:expr
    ) => {
        $(#[$documentation])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $($field: $type,)*
            probability: f64,
        }

        impl $name {
            #[doc = concat!("An augmentation that is applied with probability ", $probability, ".")]
            #[allow(clippy::new_without_default, reason = "some types have parameters, and all have the same constructor")]
            pub fn new($($field: $type),*) -> Self {
                $name { $($field,)* probability: $probability }
            }

            #[doc = concat!("The probability, 0 to 1. Default: ", $probability, ".")]
            #[must_use]
            pub fn probability(mut self, probability: f64) -> Self {
                self.probability = probability;
                self
            }
        }

        impl Augment for $name {
            fn apply(
                &self,
                image: &mut ImageMut<'_>,
                rng: &mut SampleRng,
                scratch: &mut Scratch,
            ) -> Result<()> {
                if !rng.chance(self.probability) {
                    return Ok(());
                }
                let change: fn(&Self, &mut ImageMut<'_>, &mut Scratch) -> Result<()> = $change;
                change(self, image, scratch)
            }

            fn fingerprint(&self) -> Fingerprint {
                fingerprint_of!(self, $name { $($field,)* probability })
            }

            fn validate(&self) -> Result<()> {
                check_probability(self.probability)?;
                let check: fn(&Self) -> Result<()> = $check;
                check(self)
            }

            fn keeps_positions(&self) -> bool {
                true
            }
        }
    };
}

random_change!(
    /// Converts to grey; see [`functional::grayscale`].
    RandomGrayscale(),
    probability 0.1,
    |_, image, _| {
        functional::grayscale(image);
        Ok(())
    },
    |_| Ok(())
);

random_change!(
    /// Inverts all levels; see [`functional::invert`].
    RandomInvert(),
    probability 0.5,
    |_, image, _| {
        functional::invert(image);
        Ok(())
    },
    |_| Ok(())
);

random_change!(
    /// Equalises the histogram of each channel; see [`functional::equalize`].
    RandomEqualize(),
    probability 0.5,
    |_, image, _| {
        functional::equalize(image);
        Ok(())
    },
    |_| Ok(())
);

random_change!(
    /// Stretches the contrast of each channel; see [`functional::autocontrast`].
    RandomAutocontrast(),
    probability 0.5,
    |_, image, _| {
        functional::autocontrast(image);
        Ok(())
    },
    |_| Ok(())
);

random_change!(
    /// Keeps the upper `bits` bits of each level, 0 to 8; see [`functional::posterize`].
    RandomPosterize(bits: u32),
    probability 0.5,
    |this, image, _| functional::posterize(image, this.bits),
    |this| check(this.bits <= 8, || format!("invalid number of bits {}: expected 0 to 8", this.bits))
);

random_change!(
    /// Inverts levels that are at least `threshold`, a number of at most 255; see
    /// [`functional::solarize`].
    RandomSolarize(threshold: f64),
    probability 0.5,
    |this, image, _| functional::solarize(image, this.threshold),
    |this| check(this.threshold <= 255.0, || {
        format!("invalid threshold {}: expected at most 255", this.threshold)
    })
);

random_change!(
    /// Sharpens the image, or smooths it if `factor` is less than 1; see
    /// [`functional::adjust_sharpness`].
    RandomAdjustSharpness(factor: f64),
    probability 0.5,
    |this, image, scratch| functional::adjust_sharpness(image, this.factor, scratch),
    |this| check_factor("sharpness", this.factor)
);

/// Gaussian blur with a uniform random standard deviation; see [`functional::gaussian_blur`].
#[derive(Clone, Debug, PartialEq)]
pub struct GaussianBlur {
    kernel: [usize; 2],
    sigma: (f64, f64),
}

impl GaussianBlur {
    /// Blurs with a square kernel of side `kernel`, an odd number of pixels. The standard deviation
    /// is 0.1 to 2 pixels.
    pub fn new(kernel: usize) -> Self {
        GaussianBlur { kernel: [kernel; 2], sigma: (0.1, 2.0) }
    }

    /// Width and height of the kernel, odd numbers.
    #[must_use]
    pub fn kernel(mut self, across: usize, down: usize) -> Self {
        self.kernel = [across, down];
        self
    }

    /// The range of the standard deviation in pixels. Default: 0.1 to 2.
    #[must_use]
    pub fn sigma_between(mut self, low: f64, high: f64) -> Self {
        self.sigma = (low, high);
        self
    }
}

impl Augment for GaussianBlur {
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let sigma = uniform(rng, self.sigma);
        functional::gaussian_blur(image, self.kernel, [sigma; 2], scratch)
    }

    fn fingerprint(&self) -> Fingerprint {
        fingerprint_of!(self, GaussianBlur { kernel, sigma })
    }

    fn validate(&self) -> Result<()> {
        check_kernel(self.kernel)?;
        check_range("standard deviations", self.sigma, f64::MIN_POSITIVE, f64::INFINITY)
    }

    fn keeps_positions(&self) -> bool {
        true
    }
}
