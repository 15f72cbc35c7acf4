//! What a sample looks like in the batch.

use spdl_core::{DType, Result};

use super::invalid;

/// The largest side of a sample.
const MAX_SIDE: u32 = 16_384;
/// The mean and standard deviation of ImageNet's training images, as shares of 255.
const IMAGENET: ([f32; 3], [f32; 3]) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);

/// In which order a sample's values lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[height, width, channels]`: rows of interleaved pixels.
    #[default]
    Nhwc,
    /// `[channels, height, width]`: a plane for each channel.
    Nchw,
}

/// In which order a sample's channels come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChannelOrder {
    /// Red, green, blue.
    #[default]
    Rgb,
    /// Blue, green, red.
    Bgr,
    /// One channel: the luma of red, green and blue, as JPEG has it (BT.601).
    Grey,
}

impl ChannelOrder {
    /// How many channels there are.
    pub fn channels(self) -> u32 {
        match self {
            ChannelOrder::Rgb | ChannelOrder::Bgr => 3,
            ChannelOrder::Grey => 1,
        }
    }
}

/// What a sample looks like in the batch.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleFormat {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) layout: Layout,
    pub(super) dtype: DType,
    pub(super) order: ChannelOrder,
    pub(super) mean: [f32; 3],
    pub(super) std: [f32; 3],
}

impl SampleFormat {
    /// Samples of so many pixels: RGB bytes, rows of interleaved pixels.
    pub fn new(width: u32, height: u32) -> Self {
        SampleFormat {
            width,
            height,
            layout: Layout::default(),
            dtype: DType::U8,
            order: ChannelOrder::default(),
            mean: IMAGENET.0,
            std: IMAGENET.1,
        }
    }

    /// In which order the values lie in memory. Default: [`Layout::Nhwc`].
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// The type of the values: `U8` (0 to 255), or `F16`, `BF16` or `F32`, normalised. Default: `U8`.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// In which order the channels come. Default: [`ChannelOrder::Rgb`].
    #[must_use]
    pub fn order(mut self, order: ChannelOrder) -> Self {
        self.order = order;
        self
    }

    /// The mean and standard deviation of normalised values, for red, green and blue, as shares of
    /// 255. Default: ImageNet's. [Grey](ChannelOrder::Grey) has the first of them.
    ///
    /// A value from 0 to 255 becomes `value · scale + offset`, multiplied and added in `f32` with a
    /// rounding after each, where `scale` is 1 ÷ (255 · std) and `offset` is −mean ÷ std, both
    /// computed in `f64` and rounded to `f32`.
    #[must_use]
    pub fn normalization(mut self, mean: [f32; 3], std: [f32; 3]) -> Self {
        self.mean = mean;
        self.std = std;
        self
    }

    /// How many bytes a sample takes; beyond what can be, the largest number.
    pub fn bytes(&self) -> u64 {
        let pixels = u64::from(self.width) * u64::from(self.height);
        pixels.saturating_mul(u64::from(self.order.channels()) * self.dtype.size() as u64)
    }

    /// The columns and rows of a sample.
    pub fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    /// The type of its values.
    pub fn value_type(&self) -> DType {
        self.dtype
    }

    /// The shape of a sample: of its layout.
    pub fn shape(&self) -> [usize; 3] {
        let (width, height) = (self.width as usize, self.height as usize);
        let channels = self.order.channels() as usize;
        match self.layout {
            Layout::Nhwc => [height, width, channels],
            Layout::Nchw => [channels, height, width],
        }
    }

    /// Scale and offset of a channel.
    pub(super) fn scale_and_offset(&self, channel: usize) -> (f32, f32) {
        let channel = if self.order == ChannelOrder::Grey { 0 } else { channel };
        let (mean, std) = (f64::from(self.mean[channel]), f64::from(self.std[channel]));
        ((1.0 / (255.0 * std)) as f32, (-mean / std) as f32)
    }

    /// Checks that such samples can exist.
    pub(super) fn validate(&self) -> Result<()> {
        let sides = 1..=MAX_SIDE;
        if !sides.contains(&self.width) || !sides.contains(&self.height) {
            return Err(invalid(format!(
                "the sample size is {} x {} pixels; expected 1 to {MAX_SIDE} for each side",
                self.width, self.height
            )));
        }
        if !matches!(self.dtype, DType::U8 | DType::F16 | DType::BF16 | DType::F32) {
            return Err(invalid(format!(
                "expected samples of uint8, float16, bfloat16 or float32, found {}",
                self.dtype.name()
            )));
        }
        let is_sound = (0..3).all(|channel| {
            let (scale, offset) = self.scale_and_offset(channel);
            self.std[channel] > 0.0
                && scale.is_finite()
                && offset.is_finite()
                && (scale * 255.0 + offset).is_finite()
        });
        if !is_sound {
            return Err(invalid(format!(
                "expected finite means and positive standard deviations, found {:?} and {:?}",
                self.mean, self.std
            )));
        }
        Ok(())
    }
}
