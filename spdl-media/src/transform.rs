//! What a sample looks like in the batch.

use std::fmt;
use std::str::FromStr;

use spdl_core::{DType, Error, ErrorKind, Field, Result};

use crate::Mode;

/// The mean of ImageNet's training images, per channel (red, green, blue), as a share of 255.
pub const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
/// Their standard deviation, likewise.
pub const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];
/// The largest side of a sample.
const MAX_SIZE: u32 = 16_384;

/// How a sample's pixels lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `u8 [size, size, 3]`: rows of interleaved RGB pixels, 0 to 255. Named `nhwc-u8`.
    #[default]
    NhwcU8,
    /// `f32 [3, size, size]`: a plane each of red, green and blue, (value ÷ 255 − mean) ÷ std.
    /// Named `nchw-f32`.
    NchwF32,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layout::NhwcU8 => "nhwc-u8",
            Layout::NchwF32 => "nchw-f32",
        })
    }
}

impl FromStr for Layout {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "nhwc-u8" => Ok(Layout::NhwcU8),
            "nchw-f32" => Ok(Layout::NchwF32),
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("expected a layout, \"nhwc-u8\" or \"nchw-f32\", found {name:?}"),
            )),
        }
    }
}

/// From an image of any size to a square sample.
///
/// ```
/// use spdl_media::{ImageTransform, Layout, Mode, image_fields};
/// let transform = ImageTransform::new(224).mode(Mode::Train).layout(Layout::NchwF32);
/// let fields = image_fields(&transform);
/// assert_eq!(fields[0].shape, [3, 224, 224]);
/// assert_eq!(&*fields[1].name, "labels");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ImageTransform {
    size: u32,
    mode: Mode,
    layout: Layout,
    mean: [f32; 3],
    std: [f32; 3],
}

impl ImageTransform {
    /// Samples of `size` × `size` pixels, in the mode `eval`, as `nhwc-u8`.
    pub fn new(size: u32) -> Self {
        ImageTransform {
            size,
            mode: Mode::default(),
            layout: Layout::default(),
            mean: IMAGENET_MEAN,
            std: IMAGENET_STD,
        }
    }

    /// Which part of the image is taken. Default: [`Mode::Eval`].
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// How the sample lies in memory. Default: [`Layout::NhwcU8`].
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// The mean and standard deviation of [`Layout::NchwF32`], per channel, as shares of 255.
    /// Default: ImageNet's.
    #[must_use]
    pub fn normalization(mut self, mean: [f32; 3], std: [f32; 3]) -> Self {
        self.mean = mean;
        self.std = std;
        self
    }

    /// The side of a sample in pixels.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Which part of the image is taken.
    pub fn crop_mode(&self) -> Mode {
        self.mode
    }

    /// How the sample lies in memory.
    pub fn pixel_layout(&self) -> Layout {
        self.layout
    }

    /// Checks that such samples can exist.
    ///
    /// # Errors
    /// `InvalidArgument` where the size is not in 1 to 16,384, or where a mean is not finite or a
    /// standard deviation not a positive number.
    pub fn validate(&self) -> Result<()> {
        if !(1..=MAX_SIZE).contains(&self.size) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the sample size is {} pixels; expected 1 to {MAX_SIZE}", self.size),
            ));
        }
        let sound = self.mean.iter().all(|mean| mean.is_finite())
            && self.std.iter().all(|std| std.is_normal() && *std > 0.0);
        if !sound {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "expected finite means and positive standard deviations, found {:?} and {:?}",
                    self.mean, self.std
                ),
            ));
        }
        Ok(())
    }

    /// The normalised value of each byte, per channel.
    pub(crate) fn lookup(&self) -> Vec<[f32; 256]> {
        let normalised = |channel: usize, byte: usize| {
            (byte as f32 / 255.0 - self.mean[channel]) / self.std[channel]
        };
        (0..3).map(|channel| std::array::from_fn(|byte| normalised(channel, byte))).collect()
    }
}

/// The fields of a batch of such samples: `images`, and `labels` (`i64`, a number each).
pub fn image_fields(transform: &ImageTransform) -> Vec<Field> {
    let side = transform.size as usize;
    let images = match transform.layout {
        Layout::NhwcU8 => Field::new("images", DType::U8, &[side, side, 3]),
        Layout::NchwF32 => Field::new("images", DType::F32, &[3, side, side]),
    };
    vec![images, Field::new("labels", DType::I64, &[])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_names_are_read_as_they_are_written() {
        for layout in [Layout::NhwcU8, Layout::NchwF32] {
            assert_eq!(layout.to_string().parse::<Layout>().unwrap(), layout);
        }
        assert!("nchw".parse::<Layout>().is_err());
    }

    #[test]
    fn impossible_samples_are_refused() {
        assert!(ImageTransform::new(224).validate().is_ok());
        assert!(ImageTransform::new(0).validate().is_err());
        assert!(ImageTransform::new(16_385).validate().is_err());
        let normalised = |mean: f32, std: f32| {
            ImageTransform::new(1).normalization([mean; 3], [std; 3]).validate()
        };
        assert!(normalised(0.0, 1.0).is_ok());
        assert!(normalised(f32::NAN, 1.0).is_err());
        assert!(normalised(0.0, 0.0).is_err());
        assert!(normalised(0.0, -1.0).is_err());
    }
}
