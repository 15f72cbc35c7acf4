//! Random Erasing (Zhong et al. 2020, arXiv:1708.04896).

use spdl_core::{Result, SampleRng};

use super::draw::{integer, normal, uniform};
use super::functional::check;
use super::{Augment, ImageMut, Scratch, check_probability, check_range};
use crate::pixels::CHANNELS;
use crate::{Rect, Size};

/// How often a rectangle is drawn anew where it does not fit.
const ATTEMPTS: u32 = 10;

/// What is left in an erased rectangle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ErasingValue {
    /// Red, green and blue: levels from 0 to 255 in an image, numbers as they are in normalised
    /// planes.
    Constant([f32; 3]),
    /// For every pixel and channel its own: uniform levels in an image, standard normal numbers in
    /// normalised planes.
    Random,
}

/// Erases a random rectangle.
///
/// torchvision's users put it behind the normalisation, where 0 is the mean colour: then it is
/// [`erase_planes`](RandomErasing::erase_planes), or [`draw`](RandomErasing::draw) for data of
/// another kind. As an [`Augment`] it erases levels of an image, where 0 is black.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomErasing {
    probability: f64,
    area: (f64, f64),
    aspect: (f64, f64),
    value: ErasingValue,
}

impl RandomErasing {
    /// With probability ½, 2 % to 33 % of the area, height ÷ width from 0.3 to 3.3, zeros.
    #[allow(clippy::new_without_default, reason = "as the others")]
    pub fn new() -> Self {
        RandomErasing {
            probability: 0.5,
            area: (0.02, 0.33),
            aspect: (0.3, 3.3),
            value: ErasingValue::Constant([0.0; 3]),
        }
    }

    /// How likely it is done, 0 to 1. Default: 0.5.
    #[must_use]
    pub fn probability(mut self, probability: f64) -> Self {
        self.probability = probability;
        self
    }

    /// The range of the share of the image's area, 0 to 1. Default: 0.02 to 0.33.
    #[must_use]
    pub fn area_between(mut self, low: f64, high: f64) -> Self {
        self.area = (low, high);
        self
    }

    /// The range of height ÷ width; positive. Uniform in the logarithm. Default: 0.3 to 3.3.
    #[must_use]
    pub fn aspect_between(mut self, low: f64, high: f64) -> Self {
        self.aspect = (low, high);
        self
    }

    /// What is left in the rectangle. Default: zeros.
    #[must_use]
    pub fn value(mut self, value: ErasingValue) -> Self {
        self.value = value;
        self
    }

    /// The rectangle to erase in an image of this size; `None` where nothing is erased: by the
    /// probability, or because none of ten rectangles was smaller than the image.
    pub fn draw(&self, size: Size, rng: &mut SampleRng) -> Option<Rect> {
        if !rng.chance(self.probability) {
            return None;
        }
        let ratio = (self.aspect.0.ln(), self.aspect.1.ln());
        for _ in 0..ATTEMPTS {
            let area = size.pixels() as f64 * uniform(rng, self.area);
            let aspect = uniform(rng, ratio).exp();
            let height = (area * aspect).sqrt().round_ties_even();
            let width = (area / aspect).sqrt().round_ties_even();
            if height < f64::from(size.height) && width < f64::from(size.width) {
                let (width, height) = (width as u32, height as u32);
                let top = integer(rng, 0, i64::from(size.height - height)) as u32;
                let left = integer(rng, 0, i64::from(size.width - width)) as u32;
                return (width > 0 && height > 0).then_some(Rect { left, top, width, height });
            }
        }
        None
    }

    /// Erases in planes of red, green and blue, `[3, height, width]`, after normalisation. Returns
    /// what was erased.
    ///
    /// # Errors
    /// `InvalidArgument` where `planes` is not of that size.
    pub fn erase_planes(
        &self,
        planes: &mut [f32],
        size: Size,
        rng: &mut SampleRng,
    ) -> Result<Option<Rect>> {
        check(planes.len() as u64 == size.pixels().saturating_mul(CHANNELS as u64), || {
            format!("three planes of {size} are not {} numbers", planes.len())
        })?;
        let Some(rect) = self.draw(size, rng) else { return Ok(None) };
        let columns = rect.left as usize..(rect.left + rect.width) as usize;
        let plane = planes.len() / CHANNELS;
        for (channel, plane) in planes.chunks_exact_mut(plane).enumerate() {
            let rows = plane.chunks_exact_mut(size.width as usize);
            for row in rows.skip(rect.top as usize).take(rect.height as usize) {
                match self.value {
                    ErasingValue::Constant(value) => row[columns.clone()].fill(value[channel]),
                    ErasingValue::Random => {
                        row[columns.clone()].fill_with(|| normal(rng) as f32);
                    }
                }
            }
        }
        Ok(Some(rect))
    }
}

impl Augment for RandomErasing {
    fn apply(
        &self,
        image: &mut ImageMut<'_>,
        rng: &mut SampleRng,
        _scratch: &mut Scratch,
    ) -> Result<()> {
        let Some(rect) = self.draw(image.size(), rng) else { return Ok(()) };
        let columns = rect.left as usize..(rect.left + rect.width) as usize;
        let row = image.size().width as usize * CHANNELS;
        let rows = image.pixels_mut().chunks_exact_mut(row);
        for row in rows.skip(rect.top as usize).take(rect.height as usize) {
            let pixels = &mut row.as_chunks_mut::<CHANNELS>().0[columns.clone()];
            match self.value {
                // Numbers become levels by saturation: the check has seen them.
                ErasingValue::Constant(value) => {
                    pixels.fill(value.map(|level| level.round() as u8))
                }
                ErasingValue::Random => {
                    pixels.as_flattened_mut().fill_with(|| rng.below(256) as u8);
                }
            }
        }
        Ok(())
    }

    fn validate(&self) -> Result<()> {
        check_probability(self.probability)?;
        check_range("areas", self.area, 0.0, 1.0)?;
        check_range("aspect ratios", self.aspect, f64::MIN_POSITIVE, f64::INFINITY)?;
        match self.value {
            ErasingValue::Constant(value) => check(value.iter().all(|it| it.is_finite()), || {
                format!("expected finite values to erase with, found {value:?}")
            }),
            ErasingValue::Random => Ok(()),
        }
    }
}
