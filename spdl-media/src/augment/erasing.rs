//! Random Erasing (Zhong et al. 2020, arXiv:1708.04896).

use half::{bf16, f16};
use spdl_core::memory::Element;
use spdl_core::source::Fingerprint;
use spdl_core::{Array, Batch, DType, Result, SampleRng, Stage, StageContext};

use super::augmenter::Augment;
use super::batches::{BatchImageLayout, images, invalid_images};
use super::checks::{check, check_probability, check_range};
use super::draw::{integer, normal, uniform};
use super::image::{ImageMut, Scratch};
use super::setting::{Setting, fingerprint_of, stage_parameters};
use crate::image::{CHANNELS, Rect, Size};

/// The maximum number of draws for a rectangle that fits the image.
const ATTEMPTS: u32 = 10;

/// The content of an erased rectangle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ErasingValue {
    /// A value per channel, in the order of the channels: levels 0 to 255 in an image, or
    /// normalised numbers. Grey images use the first value.
    Constant([f32; 3]),
    /// Random values per pixel and channel: uniform levels in an image, standard normal numbers
    /// after normalisation.
    Random,
}

impl Setting for ErasingValue {
    fn text(&self) -> String {
        match self {
            ErasingValue::Constant(value) => value.text(),
            ErasingValue::Random => "random".into(),
        }
    }
}

/// Erases a random rectangle.
///
/// torchvision users apply this augmentation after the normalisation, where 0 is the mean colour.
/// To do the same, use this type as a stage on batches; the stage draws a rectangle per image.
/// [`erase_planes`](RandomErasing::erase_planes) erases in one normalised image, and
/// [`draw`](RandomErasing::draw) only draws the rectangle. As an [`Augment`], it erases levels of
/// an image, where 0 is black.
///
/// ```
/// # use spdl_core::{Batch, PipelineBuilder, StageOptions};
/// # use spdl_media::augment::RandomErasing;
/// # fn erased(builder: PipelineBuilder<Batch>) -> PipelineBuilder<Batch> {
/// // After the stage that fills normalised batches.
/// let erasing = RandomErasing::new().probability(0.25);
/// let erase = StageOptions::new("erase").parameters(erasing.parameters());
/// builder.stage(erase, move || Ok(erasing.clone()))
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RandomErasing {
    probability: f64,
    area: (f64, f64),
    aspect: (f64, f64),
    value: ErasingValue,
}

impl RandomErasing {
    /// Erases with zeros, with probability ½: 2 % to 33 % of the area, height ÷ width from 0.3 to
    /// 3.3.
    #[allow(clippy::new_without_default, reason = "consistent with the other augmentations")]
    pub fn new() -> Self {
        RandomErasing {
            probability: 0.5,
            area: (0.02, 0.33),
            aspect: (0.3, 3.3),
            value: ErasingValue::Constant([0.0; 3]),
        }
    }

    /// The probability, 0 to 1. Default: 0.5.
    #[must_use]
    pub fn probability(mut self, probability: f64) -> Self {
        self.probability = probability;
        self
    }

    /// The range of the area as a fraction of the image, 0 to 1. Default: 0.02 to 0.33.
    #[must_use]
    pub fn area_between(mut self, low: f64, high: f64) -> Self {
        self.area = (low, high);
        self
    }

    /// The range of height ÷ width, positive; log-uniform. Default: 0.3 to 3.3.
    #[must_use]
    pub fn aspect_between(mut self, low: f64, high: f64) -> Self {
        self.aspect = (low, high);
        self
    }

    /// The content of the rectangle. Default: zeros.
    #[must_use]
    pub fn value(mut self, value: ErasingValue) -> Self {
        self.value = value;
        self
    }

    /// The name and all settings of a stage on batches, for
    /// [`StageOptions::parameters`](spdl_core::StageOptions::parameters). A run that resumes with
    /// other settings reports the difference.
    pub fn parameters(&self) -> impl Iterator<Item = (String, String)> {
        stage_parameters(&Augment::fingerprint(self))
    }

    /// Draws the rectangle to erase in an image of this size. Returns `None` with probability
    /// 1 − [`probability`](Self::probability), if none of ten drawn rectangles has both a smaller
    /// height and a smaller width than the image, or if the rectangle rounds to an empty one.
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

    /// Erases a rectangle in normalised planes of red, green and blue, `[3, height, width]`.
    /// Returns the rectangle, or `None` if [`draw`](RandomErasing::draw) returns `None`.
    ///
    /// # Errors
    /// `InvalidArgument` if the length of `planes` is not 3 × height × width.
    pub fn erase_planes(
        &self,
        planes: &mut [f32],
        size: Size,
        rng: &mut SampleRng,
    ) -> Result<Option<Rect>> {
        check(planes.len() as u64 == size.pixels().saturating_mul(CHANNELS as u64), || {
            format!(
                "buffer of {} values does not match three planes of {size} pixels",
                planes.len()
            )
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

impl RandomErasing {
    /// Erases a rectangle in some images of a batch: in each image with the configured probability.
    /// The field `images` is `[batch, channels, height, width]` or
    /// `[batch, height, width, channels]`, with 3 channels or 1: `f32`, `f16` or `bf16` after
    /// normalisation, or `u8` levels.
    ///
    /// # Errors
    /// `InvalidArgument` if the batch has no such field, or a parameter is invalid.
    pub fn erase_batch(&self, mut batch: Batch, rng: &mut SampleRng) -> Result<Batch> {
        self.validate()?;
        let images = images(&mut batch)?;
        let planes = BatchImageLayout::of(images)?;
        match images.dtype() {
            DType::F32 => self.erase(images, &planes, rng, |number| number),
            DType::F16 => self.erase(images, &planes, rng, f16::from_f32),
            DType::BF16 => self.erase(images, &planes, rng, bf16::from_f32),
            // A cast to levels saturates.
            DType::U8 => self.erase(images, &planes, rng, |number| number.round() as u8),
            found => {
                Err(invalid_images(&format!("data type {found}: expected u8, f16, bf16 or f32")))
            }
        }?;
        Ok(batch)
    }

    fn erase<T: Element>(
        &self,
        images: &mut Array,
        planes: &BatchImageLayout,
        rng: &mut SampleRng,
        convert: impl Fn(f32) -> T,
    ) -> Result<()> {
        let pixels = planes.size.pixels() as usize;
        if pixels == 0 {
            return Ok(());
        }
        for image in images.as_mut_slice::<T>()?.chunks_exact_mut(pixels * planes.channels) {
            let Some(rect) = self.draw(planes.size, rng) else { continue };
            match self.value {
                ErasingValue::Constant(value) => {
                    planes.fill(image, rect, |channel| convert(value[channel]));
                }
                ErasingValue::Random if T::DTYPE == DType::U8 => {
                    planes.fill(image, rect, |_| convert(rng.below(256) as f32));
                }
                ErasingValue::Random => planes.fill(image, rect, |_| convert(normal(rng) as f32)),
            }
        }
        Ok(())
    }
}

/// Uses the random numbers of the first sample of the batch.
impl Stage<Batch> for RandomErasing {
    type Out = Batch;

    fn process(&mut self, batch: Batch, cx: &mut StageContext<'_, Batch>) -> Result<()> {
        let erased = self.erase_batch(batch, &mut cx.rng())?;
        cx.emit(erased)
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
                // A cast to levels saturates; the values are finite.
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

    fn fingerprint(&self) -> Fingerprint {
        fingerprint_of!(self, RandomErasing { probability, area, aspect, value })
    }

    fn validate(&self) -> Result<()> {
        check_probability(self.probability)?;
        check_range("areas", self.area, 0.0, 1.0)?;
        check_range("aspect ratios", self.aspect, f64::MIN_POSITIVE, f64::INFINITY)?;
        match self.value {
            ErasingValue::Constant(value) => check(value.iter().all(|it| it.is_finite()), || {
                format!("invalid erasing value {value:?}: expected finite numbers")
            }),
            ErasingValue::Random => Ok(()),
        }
    }

    fn keeps_positions(&self) -> bool {
        true
    }
}
