//! Random rotations, affine and perspective transforms.

use spdl_core::source::Fingerprint;
use spdl_core::{Result, SampleRng};

use super::augmenter::Augment;
use super::checks::{check, check_probability, check_range};
use super::draw::{integer, uniform};
use super::functional::{self, Affine, Interpolation};
use super::image::{ImageMut, Scratch};
use super::setting::fingerprint_of;

/// Rotates by a uniform random angle; see [`functional::rotate`]. The size does not change: corners
/// are cropped.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomRotation {
    degrees: (f64, f64),
    interpolation: Interpolation,
    center: Option<[f64; 2]>,
    fill: Option<[u8; 3]>,
}

impl RandomRotation {
    /// Rotates by −`degrees` to `degrees` around the centre; nearest neighbour, black outside.
    pub fn new(degrees: f64) -> Self {
        RandomRotation::between(-degrees, degrees)
    }

    /// Rotates by `low` to `high` degrees, counter-clockwise.
    pub fn between(low: f64, high: f64) -> Self {
        RandomRotation {
            degrees: (low, high),
            interpolation: Interpolation::Nearest,
            center: None,
            fill: Some([0; 3]),
        }
    }

    /// The interpolation. Default: [`Interpolation::Nearest`].
    #[must_use]
    pub fn interpolation(mut self, interpolation: Interpolation) -> Self {
        self.interpolation = interpolation;
        self
    }

    /// The centre of rotation, in pixels from the top left corner. Default: the image centre.
    #[must_use]
    pub fn center(mut self, x: f64, y: f64) -> Self {
        self.center = Some([x, y]);
        self
    }

    /// The colour outside the image; see [`functional::affine`]. Default: `Some([0, 0, 0])`.
    #[must_use]
    pub fn fill(mut self, fill: Option<[u8; 3]>) -> Self {
        self.fill = fill;
        self
    }
}

impl Augment for RandomRotation {
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let angle = uniform(rng, self.degrees);
        functional::rotate(image, angle, self.interpolation, self.center, self.fill, scratch)
    }

    fn fingerprint(&self) -> Fingerprint {
        fingerprint_of!(self, RandomRotation { degrees, interpolation, center, fill })
    }

    fn validate(&self) -> Result<()> {
        check_range("degrees", self.degrees, f64::NEG_INFINITY, f64::INFINITY)?;
        check_center(self.center)
    }

    fn can_be_followed(&self) -> bool {
        true
    }
}

fn check_center(center: Option<[f64; 2]>) -> Result<()> {
    check(center.is_none_or(|center| center.iter().all(|number| number.is_finite())), || {
        format!("invalid centre {center:?}: expected finite numbers")
    })
}

/// Rotates, translates, scales and shears by uniform random amounts; see [`functional::affine`].
#[derive(Clone, Debug, PartialEq)]
pub struct RandomAffine {
    degrees: (f64, f64),
    translate: [f64; 2],
    scale: (f64, f64),
    shear: [(f64, f64); 2],
    interpolation: Interpolation,
    center: Option<[f64; 2]>,
    fill: Option<[u8; 3]>,
}

impl RandomAffine {
    /// Rotates by −`degrees` to `degrees` around the centre; nearest neighbour, black outside.
    pub fn new(degrees: f64) -> Self {
        RandomAffine {
            degrees: (-degrees, degrees),
            translate: [0.0; 2],
            scale: (1.0, 1.0),
            shear: [(0.0, 0.0); 2],
            interpolation: Interpolation::Nearest,
            center: None,
            fill: Some([0; 3]),
        }
    }

    /// Rotates by `low` to `high` degrees, clockwise.
    #[must_use]
    pub fn degrees_between(mut self, low: f64, high: f64) -> Self {
        self.degrees = (low, high);
        self
    }

    /// The maximum translation as fractions of width and height, 0 to 1, rounded to whole pixels.
    /// Default: none.
    #[must_use]
    pub fn translate(mut self, across: f64, down: f64) -> Self {
        self.translate = [across, down];
        self
    }

    /// The range of the scale; positive. Default: 1.
    #[must_use]
    pub fn scale_between(mut self, low: f64, high: f64) -> Self {
        self.scale = (low, high);
        self
    }

    /// Shear along x by −`degrees` to `degrees`, and none along y. Default: no shear.
    #[must_use]
    pub fn shear(self, degrees: f64) -> Self {
        self.shear_between((-degrees, degrees), (0.0, 0.0))
    }

    /// The ranges of the shear along x and along y, in degrees.
    #[must_use]
    pub fn shear_between(mut self, along_x: (f64, f64), along_y: (f64, f64)) -> Self {
        self.shear = [along_x, along_y];
        self
    }

    /// The interpolation. Default: [`Interpolation::Nearest`].
    #[must_use]
    pub fn interpolation(mut self, interpolation: Interpolation) -> Self {
        self.interpolation = interpolation;
        self
    }

    /// The centre of rotation, in pixels from the top left corner. Default: the image centre.
    #[must_use]
    pub fn center(mut self, x: f64, y: f64) -> Self {
        self.center = Some([x, y]);
        self
    }

    /// The colour outside the image; see [`functional::affine`]. Default: `Some([0, 0, 0])`.
    #[must_use]
    pub fn fill(mut self, fill: Option<[u8; 3]>) -> Self {
        self.fill = fill;
        self
    }
}

impl Augment for RandomAffine {
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let size = image.size();
        let angle = uniform(rng, self.degrees);
        let mut shift = |share: f64, side: u32| {
            let most = share * f64::from(side);
            uniform(rng, (-most, most)).round_ties_even()
        };
        let translate =
            [shift(self.translate[0], size.width), shift(self.translate[1], size.height)];
        let affine = Affine {
            angle,
            translate,
            scale: uniform(rng, self.scale),
            shear: self.shear.map(|range| uniform(rng, range)),
            center: self.center,
        };
        functional::affine(image, &affine, self.interpolation, self.fill, scratch)
    }

    fn fingerprint(&self) -> Fingerprint {
        fingerprint_of!(
            self,
            RandomAffine { degrees, translate, scale, shear, interpolation, center, fill }
        )
    }

    fn validate(&self) -> Result<()> {
        check_range("degrees", self.degrees, f64::NEG_INFINITY, f64::INFINITY)?;
        check(self.translate.iter().all(|share| (0.0..=1.0).contains(share)), || {
            format!("invalid translation {:?}: expected fractions from 0 to 1", self.translate)
        })?;
        check_range("scales", self.scale, f64::MIN_POSITIVE, f64::INFINITY)?;
        for range in self.shear {
            check_range("shear", range, f64::NEG_INFINITY, f64::INFINITY)?;
        }
        check_center(self.center)
    }

    fn can_be_followed(&self) -> bool {
        true
    }
}

/// Perspective distortion: moves the corners inwards by random whole pixels; see
/// [`functional::perspective`].
#[derive(Clone, Debug, PartialEq)]
pub struct RandomPerspective {
    distortion: f64,
    probability: f64,
    interpolation: Interpolation,
    fill: Option<[u8; 3]>,
}

impl RandomPerspective {
    /// A distortion of ½ with probability ½, bilinear, black outside.
    #[allow(clippy::new_without_default, reason = "as the others")]
    pub fn new() -> Self {
        RandomPerspective {
            distortion: 0.5,
            probability: 0.5,
            interpolation: Interpolation::Bilinear,
            fill: Some([0; 3]),
        }
    }

    /// The maximum shift of a corner, as a fraction of half the width and height, 0 to 1. Default:
    /// 0.5.
    #[must_use]
    pub fn distortion(mut self, distortion: f64) -> Self {
        self.distortion = distortion;
        self
    }

    /// The probability, 0 to 1. Default: 0.5.
    #[must_use]
    pub fn probability(mut self, probability: f64) -> Self {
        self.probability = probability;
        self
    }

    /// The interpolation. Default: [`Interpolation::Bilinear`].
    #[must_use]
    pub fn interpolation(mut self, interpolation: Interpolation) -> Self {
        self.interpolation = interpolation;
        self
    }

    /// The colour outside the image; see [`functional::affine`]. Default: `Some([0, 0, 0])`.
    #[must_use]
    pub fn fill(mut self, fill: Option<[u8; 3]>) -> Self {
        self.fill = fill;
        self
    }
}

impl Augment for RandomPerspective {
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        scratch: &mut Scratch,
    ) -> Result<()> {
        if !rng.chance(self.probability) {
            return Ok(());
        }
        let size = image.size();
        let (right, bottom) = (i64::from(size.width) - 1, i64::from(size.height) - 1);
        let most = |side: u32| (self.distortion * f64::from(side / 2)) as i64;
        let (across, down) = (most(size.width), most(size.height));
        let mut corner = |at_right: bool, at_bottom: bool| {
            let x = integer(rng, 0, across);
            let y = integer(rng, 0, down);
            [
                (if at_right { right - x } else { x }) as f64,
                (if at_bottom { bottom - y } else { y }) as f64,
            ]
        };
        let end =
            [corner(false, false), corner(true, false), corner(true, true), corner(false, true)];
        let (right, bottom) = (right as f64, bottom as f64);
        let start = [[0.0, 0.0], [right, 0.0], [right, bottom], [0.0, bottom]];
        // If corners coincide, as in an image with a single row, no perspective transform exists.
        let Ok(coefficients) = functional::perspective_coefficients(&start, &end) else {
            return Ok(());
        };
        functional::perspective(image, &coefficients, self.interpolation, self.fill, scratch)
    }

    fn fingerprint(&self) -> Fingerprint {
        fingerprint_of!(self, RandomPerspective { distortion, probability, interpolation, fill })
    }

    fn validate(&self) -> Result<()> {
        check_probability(self.probability)?;
        check((0.0..=1.0).contains(&self.distortion), || {
            format!("invalid distortion {}: expected 0 to 1", self.distortion)
        })
    }

    fn can_be_followed(&self) -> bool {
        true
    }
}
