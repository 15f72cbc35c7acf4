//! Random Erasing (Zhong et al. 2020, arXiv:1708.04896).

use half::{bf16, f16};
use spdl_core::memory::Element;
use spdl_core::source::Fingerprint;
use spdl_core::{Array, Batch, DType, Result, SampleRng, Stage, StageContext};

use super::batches::{Planes, images, unfit};
use super::draw::{integer, normal, uniform};
use super::functional::check;
use super::setting::{fingerprint_of, stage_parameters};
use super::{Augment, ImageMut, Scratch, check_probability, check_range};
use crate::image::{CHANNELS, Rect, Size};

/// How often a rectangle is drawn anew where it does not fit.
const ATTEMPTS: u32 = 10;

/// What is left in an erased rectangle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ErasingValue {
    /// For each channel: levels from 0 to 255 in an image, numbers as they are in normalised ones. In
    /// the order of the channels there: of RGB, red, green and blue; of grey, the first.
    Constant([f32; 3]),
    /// For every pixel and channel its own: uniform levels in an image, standard normal numbers in
    /// normalised ones.
    Random,
}

/// Erases a random rectangle.
///
/// torchvision's users put it behind the normalisation, where 0 is the mean colour: then it is a stage
/// on batches, which draws a rectangle for each image, or
/// [`erase_planes`](RandomErasing::erase_planes) for one image, or [`draw`](RandomErasing::draw) for
/// data of another kind. As an [`Augment`] it erases levels of an image, where 0 is black.
///
/// ```
/// # use spdl_core::{Batch, PipelineBuilder, StageOptions};
/// # use spdl_media::augment::RandomErasing;
/// # fn erased(builder: PipelineBuilder<Batch>) -> PipelineBuilder<Batch> {
/// // Behind the stage that fills normalised batches.
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

    /// Its name and all settings, for [`StageOptions::parameters`](spdl_core::StageOptions::parameters)
    /// of a stage on batches: so a run that is resumed with others is told what differs.
    pub fn parameters(&self) -> impl Iterator<Item = (String, String)> {
        stage_parameters(&Augment::fingerprint(self))
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

impl RandomErasing {
    /// Erases in every image of a batch a rectangle of its own, or none. The field `images` is
    /// `[batch, channels, height, width]` or `[batch, height, width, channels]`, with 3 channels or 1:
    /// `f32`, `f16` or `bf16` after normalisation, or levels as `u8`.
    ///
    /// # Errors
    /// `InvalidArgument` where the batch has no such field, or the parameters are not sound.
    pub fn erase_batch(&self, mut batch: Batch, rng: &mut SampleRng) -> Result<Batch> {
        self.validate()?;
        let images = images(&mut batch)?;
        let planes = Planes::of(images)?;
        match images.dtype() {
            DType::F32 => self.erase(images, &planes, rng, |number| number),
            DType::F16 => self.erase(images, &planes, rng, f16::from_f32),
            DType::BF16 => self.erase(images, &planes, rng, bf16::from_f32),
            // Numbers become levels by saturation.
            DType::U8 => self.erase(images, &planes, rng, |number| number.round() as u8),
            found => Err(unfit(&format!("of u8, f16, bf16 or f32, found {found}"))),
        }?;
        Ok(batch)
    }

    fn erase<T: Element>(
        &self,
        images: &mut Array,
        planes: &Planes,
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

/// Erases by random numbers of the batch's first sample in this stage.
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

    fn fingerprint(&self) -> Fingerprint {
        fingerprint_of!(self, RandomErasing { probability, area, aspect, value })
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
