//! The values of a sample in a batch: size, layout, data type, channels, normalisation.

use std::fmt;
use std::str::FromStr;

use spdl_core::{DType, Error, ErrorKind, Result};

use crate::image::Size;

/// The mean of the ImageNet training images per channel (red, green, blue), as fractions of 255.
pub const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
/// The standard deviation of the ImageNet training images per channel, as fractions of 255.
pub const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];
/// The largest width or height of a sample.
const MAX_SIZE: u32 = 16_384;

/// Memory order of a sample's values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[height, width, channels]`: rows of interleaved pixels.
    #[default]
    Nhwc,
    /// `[channels, height, width]`: one plane per channel.
    Nchw,
}

/// Layout and data type of a sample's values.
///
/// The text form is `nhwc` or `nchw`, a hyphen, and `u8`, `u16`, `f16`, `bf16` or `f32`.
///
/// ```
/// use spdl_core::DType;
/// use spdl_media::{Layout, SampleFormat};
/// let format: SampleFormat = "nchw-f32".parse()?;
/// assert_eq!((format.layout, format.dtype), (Layout::Nchw, DType::F32));
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SampleFormat {
    /// The memory order.
    pub layout: Layout,
    /// The data type: `U8`, `U16`, `F16`, `BF16` or `F32`.
    pub dtype: DType,
}

impl SampleFormat {
    /// `nhwc-u8`: interleaved pixels, 0 to 255.
    pub const NHWC_U8: SampleFormat = SampleFormat { layout: Layout::Nhwc, dtype: DType::U8 };
    /// `nchw-f32`: one normalised plane per channel.
    pub const NCHW_F32: SampleFormat = SampleFormat { layout: Layout::Nchw, dtype: DType::F32 };

    /// Whether values are normalised: `F16`, `BF16` and `F32`.
    pub fn is_normalized(self) -> bool {
        !matches!(self.dtype, DType::U8 | DType::U16)
    }
}

impl Default for SampleFormat {
    fn default() -> Self {
        SampleFormat::NHWC_U8
    }
}

const LAYOUTS: [(Layout, &str); 2] = [(Layout::Nhwc, "nhwc"), (Layout::Nchw, "nchw")];
const DTYPES: [(DType, &str); 5] = [
    (DType::U8, "u8"),
    (DType::U16, "u16"),
    (DType::F16, "f16"),
    (DType::BF16, "bf16"),
    (DType::F32, "f32"),
];

impl fmt::Display for SampleFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layout = LAYOUTS.iter().find(|(layout, _)| *layout == self.layout);
        let dtype = DTYPES.iter().find(|(dtype, _)| *dtype == self.dtype);
        let dtype = dtype.map_or(self.dtype.name(), |(_, name)| name);
        write!(f, "{}-{dtype}", layout.map_or("", |(_, name)| name))
    }
}

impl FromStr for SampleFormat {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let parts = name.split_once('-').and_then(|(layout, dtype)| {
            let (layout, _) = LAYOUTS.iter().find(|(_, name)| *name == layout)?;
            let (dtype, _) = DTYPES.iter().find(|(_, name)| *name == dtype)?;
            Some(SampleFormat { layout: *layout, dtype: *dtype })
        });
        parts.ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "unknown sample format {name:?}: expected \"nhwc-\" or \"nchw-\", followed by \
                     \"u8\", \"u16\", \"f16\", \"bf16\" or \"f32\", such as \"nhwc-u8\""
                ),
            )
        })
    }
}

/// The channels of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SampleColor {
    /// Red, green, blue.
    #[default]
    Rgb,
    /// Blue, green, red.
    Bgr,
    /// One channel, as Pillow's mode `L`: (19595 R + 38470 G + 7471 B + 32768) ÷ 65536, rounded
    /// down.
    Grey,
    /// Red, green, blue, alpha: not premultiplied, 0 is transparent.
    ///
    /// Alpha is that of PNG, WebP, GIF, TIFF and BMP files, and opaque for other files and outside the image.
    /// As in Pillow, pixels are resized premultiplied, so that transparent pixels do not change the colours of
    /// others; pixels that become transparent are black. Pixels that are only copied keep their colour.
    Rgba,
}

impl SampleColor {
    /// The number of channels.
    pub fn channels(self) -> usize {
        match self {
            SampleColor::Rgb | SampleColor::Bgr => 3,
            SampleColor::Grey => 1,
            SampleColor::Rgba => 4,
        }
    }
}

/// Mean and standard deviation per channel (red, green, blue), as fractions of 255.
///
/// For data types other than `U8` and `U16`, a byte becomes `value · scale + offset`, computed in `f32` with
/// one rounding after the multiplication and one after the addition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalization {
    /// The mean of each channel.
    pub mean: [f32; 3],
    /// The standard deviation of each channel.
    pub std: [f32; 3],
}

impl Normalization {
    /// [`IMAGENET_MEAN`] and [`IMAGENET_STD`].
    pub const IMAGENET: Normalization = Normalization { mean: IMAGENET_MEAN, std: IMAGENET_STD };

    /// `scale` = 1 ÷ (255 · std) and `offset` = −mean ÷ std of a channel, each computed in `f64`
    /// and rounded to `f32`.
    ///
    /// # Panics
    /// If `channel` is greater than 2.
    pub fn scale_and_offset(&self, channel: usize) -> (f32, f32) {
        let (mean, std) = (f64::from(self.mean[channel]), f64::from(self.std[channel]));
        ((1.0 / (255.0 * std)) as f32, (-mean / std) as f32)
    }

    /// Checks that the normalised value of every byte is finite.
    ///
    /// # Errors
    /// `InvalidArgument` if a mean or a normalised value is not finite, or a standard deviation is
    /// not a positive normal number.
    pub fn validate(&self) -> Result<()> {
        let is_valid = (0..3).all(|channel| {
            let (scale, offset) = self.scale_and_offset(channel);
            self.std[channel].is_normal()
                && self.std[channel] > 0.0
                && self.mean[channel].is_finite()
                && scale.is_finite()
                && (scale * 255.0 + offset).is_finite()
                && offset.is_finite()
        });
        if is_valid {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "invalid normalisation with mean {:?} and standard deviation {:?}: expected finite \
                 means and positive standard deviations",
                self.mean, self.std
            ),
        ))
    }
}

/// The tensor that a sample becomes: size, layout, data type, channels, normalisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorSpec {
    /// Width and height in pixels.
    pub size: Size,
    /// Memory order and data type.
    pub format: SampleFormat,
    /// The channels and their order.
    pub color: SampleColor,
    /// The normalisation of every data type except `U8` and `U16`. [Grey](SampleColor::Grey) uses the
    /// values of the first channel. Alpha is not normalised: it becomes 0 to 1.
    pub normalization: Normalization,
}

impl TensorSpec {
    /// RGB samples of this size as `nhwc-u8`, with the normalisation of ImageNet.
    pub fn new(size: Size) -> Self {
        TensorSpec {
            size,
            format: SampleFormat::default(),
            color: SampleColor::default(),
            normalization: Normalization::IMAGENET,
        }
    }

    /// The shape of one sample: `[height, width, channels]` or `[channels, height, width]`.
    pub fn shape(&self) -> [usize; 3] {
        let (width, height) = (self.size.width as usize, self.size.height as usize);
        let channels = self.color.channels();
        match self.format.layout {
            Layout::Nhwc => [height, width, channels],
            Layout::Nchw => [channels, height, width],
        }
    }

    /// The number of values of one sample.
    pub fn values(&self) -> u64 {
        self.size.pixels().saturating_mul(self.color.channels() as u64)
    }

    /// The number of bytes of one sample; saturates at `u64::MAX`.
    pub fn bytes(&self) -> u64 {
        self.values().saturating_mul(self.format.dtype.size() as u64)
    }

    /// Scale and offset of an output channel, in the order of [`color`](Self::color).
    ///
    /// # Panics
    /// If `channel` is greater than 2, `color` is not grey, and the channel is not alpha.
    pub fn scale_and_offset(&self, channel: usize) -> (f32, f32) {
        if (self.color, channel) == (SampleColor::Rgba, 3) {
            return ((1.0_f64 / 255.0) as f32, 0.0);
        }
        self.normalization.scale_and_offset(match self.color {
            SampleColor::Rgb | SampleColor::Rgba => channel,
            SampleColor::Bgr => 2 - channel,
            SampleColor::Grey => 0,
        })
    }

    /// Checks that samples with this specification are possible.
    ///
    /// # Errors
    /// `InvalidArgument` if a side is not in 1 to 16,384, the normalisation is
    /// [invalid](Normalization::validate), or the data type is none of `U8`, `U16`, `F16`, `BF16`, `F32`.
    pub fn validate(&self) -> Result<()> {
        let sides = 1..=MAX_SIZE;
        if !sides.contains(&self.size.width) || !sides.contains(&self.size.height) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "invalid sample size {}: expected width and height from 1 to {MAX_SIZE}",
                    self.size
                ),
            ));
        }
        self.normalization.validate()?;
        if !DTYPES.iter().any(|(dtype, _)| *dtype == self.format.dtype) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "unsupported sample data type {}: expected u8, u16, f16, bf16 or f32",
                    self.format.dtype.name()
                ),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_names_round_trip() {
        for layout in [Layout::Nhwc, Layout::Nchw] {
            for dtype in [DType::U8, DType::U16, DType::F16, DType::BF16, DType::F32] {
                let format = SampleFormat { layout, dtype };
                assert_eq!(format.to_string().parse::<SampleFormat>().unwrap(), format);
            }
        }
        assert_eq!(SampleFormat::NCHW_F32.to_string(), "nchw-f32");
        assert!("nchw".parse::<SampleFormat>().is_err());
        assert!("nchw-i64".parse::<SampleFormat>().is_err());
    }

    #[test]
    fn a_tensor_has_the_shape_of_its_layout() {
        let mut spec = TensorSpec::new(Size::new(4, 2));
        assert_eq!((spec.shape(), spec.bytes()), ([2, 4, 3], 24));
        spec.format = SampleFormat::NCHW_F32;
        spec.color = SampleColor::Bgr;
        assert_eq!((spec.shape(), spec.bytes()), ([3, 2, 4], 96));
        assert_eq!(spec.scale_and_offset(0), spec.normalization.scale_and_offset(2));
        spec.color = SampleColor::Rgba;
        assert_eq!((spec.shape(), spec.scale_and_offset(3)), ([4, 2, 4], (1.0 / 255.0, 0.0)));
    }
}
