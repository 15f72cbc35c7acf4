//! What a sample looks like in the batch.

use std::fmt;
use std::str::FromStr;

use spdl_core::{DType, Error, ErrorKind, Field, Result, SampleRng};

use super::crop::{Crop, Mode, Placement};
use super::resize::ResizeFilter;
use crate::image::{OnTruncated, Size};

/// The mean of ImageNet's training images, per channel (red, green, blue), as a share of 255.
pub const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
/// Their standard deviation, likewise.
pub const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];
/// The largest side of a sample.
const MAX_SIZE: u32 = 16_384;

/// In which order a sample's values lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[height, width, channels]`: rows of interleaved pixels.
    #[default]
    Nhwc,
    /// `[channels, height, width]`: a plane for each channel.
    Nchw,
}

/// In which order a sample's values lie in memory, and their type. Written as `nhwc-u8`: `nhwc` or
/// `nchw`, and `u8`, `f16`, `bf16` or `f32`.
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
    /// The order.
    pub layout: Layout,
    /// The type: `U8`, `F16`, `BF16` or `F32`.
    pub dtype: DType,
}

impl SampleFormat {
    /// `nhwc-u8`: interleaved pixels, 0 to 255.
    pub const NHWC_U8: SampleFormat = SampleFormat { layout: Layout::Nhwc, dtype: DType::U8 };
    /// `nchw-f32`: a plane for each channel, normalised.
    pub const NCHW_F32: SampleFormat = SampleFormat { layout: Layout::Nchw, dtype: DType::F32 };
}

impl Default for SampleFormat {
    fn default() -> Self {
        SampleFormat::NHWC_U8
    }
}

const LAYOUTS: [(Layout, &str); 2] = [(Layout::Nhwc, "nhwc"), (Layout::Nchw, "nchw")];
const DTYPES: [(DType, &str); 4] =
    [(DType::U8, "u8"), (DType::F16, "f16"), (DType::BF16, "bf16"), (DType::F32, "f32")];

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
                    "expected a layout, \"nhwc-\" or \"nchw-\" with \"u8\", \"f16\", \"bf16\" or \
                     \"f32\", such as \"nhwc-u8\" or \"nchw-f32\", found {name:?}"
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
    /// One channel: Pillow's `L`, (19595 R + 38470 G + 7471 B + 32768) ÷ 65536, cut.
    Grey,
}

impl SampleColor {
    /// How many channels that is.
    pub fn channels(self) -> usize {
        match self {
            SampleColor::Rgb | SampleColor::Bgr => 3,
            SampleColor::Grey => 1,
        }
    }
}

/// From an image of any size to a sample of one size: which part is taken, how it is resized,
/// mirrored, and laid out.
///
/// The order is: turn upright, crop and resize in one, mirror, change the channels, normalise.
///
/// ```
/// use spdl_core::DType;
/// use spdl_media::{Crop, ResizeFilter, ImageTransform, Layout, Mode, Size, image_fields};
/// let transform = ImageTransform::new(224).mode(Mode::Train).layout(Layout::Nchw).dtype(DType::F16);
/// let fields = image_fields(&transform);
/// assert_eq!((&fields[0].shape[..], fields[0].dtype), (&[3, 224, 224][..], DType::F16));
/// assert_eq!(&*fields[1].name, "labels");
///
/// // torchvision's Resize(256), CenterCrop((192, 224)).
/// let transform = ImageTransform::with_size(Size::new(224, 192))
///     .crop(Crop::ResizedCenter { covering: Size::new(256, 256) })
///     .filter(ResizeFilter::Bicubic);
/// assert_eq!(image_fields(&transform)[0].shape, [192, 224, 3]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ImageTransform {
    size: Size,
    crop: Crop,
    /// The probabilities of mirroring left to right, and top to bottom.
    flips: (f64, f64),
    filter: ResizeFilter,
    format: SampleFormat,
    color: SampleColor,
    mean: [f32; 3],
    std: [f32; 3],
    exact: bool,
    on_truncated: OnTruncated,
}

impl ImageTransform {
    /// Samples of `side` × `side` pixels, in the mode `eval`, RGB, as `nhwc-u8`.
    pub fn new(side: u32) -> Self {
        ImageTransform::with_size(Size::new(side, side))
    }

    /// Samples of this width and height, in the mode `eval`, RGB, as `nhwc-u8`.
    pub fn with_size(size: Size) -> Self {
        ImageTransform {
            size,
            crop: Crop::eval(size),
            flips: (0.0, 0.0),
            filter: ResizeFilter::default(),
            format: SampleFormat::default(),
            color: SampleColor::default(),
            mean: IMAGENET_MEAN,
            std: IMAGENET_STD,
            exact: false,
            on_truncated: OnTruncated::default(),
        }
    }

    /// All settings of the transform, by name, for
    /// [`StageOptions::parameters`](spdl_core::StageOptions::parameters): so a run that is resumed
    /// with another transform is told what differs.
    ///
    /// Augmentations are told by their own
    /// [`Augmenter::parameters`](crate::augment::Augmenter::parameters), behind these. Not told are the
    /// registered codecs, and the [`Limits`](crate::Limits): those decide which images fail, not what
    /// a sample looks like.
    ///
    /// ```
    /// use spdl_core::StageOptions;
    /// use spdl_media::{ImageTransform, Mode};
    /// let transform = ImageTransform::new(224).mode(Mode::Train);
    /// let decode = StageOptions::new("decode").parameters(transform.parameters());
    /// # let _ = decode;
    /// ```
    pub fn parameters(&self) -> impl Iterator<Item = (&'static str, String)> {
        let ImageTransform {
            size,
            crop,
            flips: (horizontal, vertical),
            filter,
            format,
            color,
            mean,
            std,
            exact,
            on_truncated,
        } = self;
        let is_normalised = format.dtype != DType::U8;
        [
            ("size", size.to_string()),
            ("crop", format!("{crop:?}")),
            ("flips", format!("{horizontal} {vertical}")),
            ("filter", format!("{filter:?}")),
            ("format", format.to_string()),
            ("color", format!("{color:?}")),
            ("exact", exact.to_string()),
            ("truncated", format!("{on_truncated:?}")),
        ]
        .into_iter()
        .chain(is_normalised.then(|| ("mean", format!("{mean:?}"))))
        .chain(is_normalised.then(|| ("std", format!("{std:?}"))))
    }

    /// The same for another size.
    pub(crate) fn resized_to(mut self, size: Size) -> Self {
        self.size = size;
        self
    }

    /// What ImageNet is trained and evaluated with: sets [`crop`](Self::crop) and
    /// [`horizontal_flip`](Self::horizontal_flip), and mirrors nothing top to bottom. Default:
    /// [`Mode::Eval`].
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        (self.crop, self.flips) = match mode {
            Mode::Eval => (Crop::eval(self.size), (0.0, 0.0)),
            Mode::Train => (Crop::TRAIN, (0.5, 0.0)),
        };
        self
    }

    /// Which part of the image is taken. Default: that of [`Mode::Eval`].
    #[must_use]
    pub fn crop(mut self, crop: Crop) -> Self {
        self.crop = crop;
        self
    }

    /// How often a sample is mirrored left to right, from 0 to 1 (`RandomHorizontalFlip`). Default:
    /// 0.
    #[must_use]
    pub fn horizontal_flip(mut self, probability: f64) -> Self {
        self.flips.0 = probability;
        self
    }

    /// How often a sample is mirrored top to bottom, from 0 to 1 (`RandomVerticalFlip`). Default: 0.
    #[must_use]
    pub fn vertical_flip(mut self, probability: f64) -> Self {
        self.flips.1 = probability;
        self
    }

    /// How pixels are weighed. Default: [`ResizeFilter::Bilinear`].
    #[must_use]
    pub fn filter(mut self, filter: ResizeFilter) -> Self {
        self.filter = filter;
        self
    }

    /// In which order the values lie in memory. Default: [`Layout::Nhwc`].
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.format.layout = layout;
        self
    }

    /// The type of the values: `U8` (0 to 255), or `F16`, `BF16` or `F32`, normalised. Default: `U8`.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.format.dtype = dtype;
        self
    }

    /// Sets [`layout`](Self::layout) and [`dtype`](Self::dtype).
    #[must_use]
    pub fn format(mut self, format: SampleFormat) -> Self {
        self.format = format;
        self
    }

    /// Which channels there are, and in which order. Default: [`SampleColor::Rgb`].
    #[must_use]
    pub fn color(mut self, color: SampleColor) -> Self {
        self.color = color;
        self
    }

    /// The mean and standard deviation of normalised values, for red, green and blue, as shares of
    /// 255; of grey, the first of each. Default: ImageNet's.
    ///
    /// A byte becomes `value · scale + offset`, multiplied and added in `f32` with a rounding after
    /// each, where `scale` is 1 ÷ (255 · std) and `offset` is −mean ÷ std, both computed in `f64`
    /// and rounded to `f32`. `F16` and `BF16` are that, rounded to the nearest (ties to even). So a
    /// normalised sample tells the bytes of the plain one, to the last bit.
    #[must_use]
    pub fn normalization(mut self, mean: [f32; 3], std: [f32; 3]) -> Self {
        self.mean = mean;
        self.std = std;
        self
    }

    /// Whether images are decoded at full size and to RGB before they are resized. Default: no.
    ///
    /// Otherwise the chroma of JPEG, of which there may be less than of luma, goes straight to the
    /// sample's size, and JPEG may be decoded at a half, a quarter or an eighth of its size: with the
    /// bilinear filter where that is 1.5 times what it is resized to or more, with the bicubic one and
    /// Lanczos' where it is 1.75 times, never with the others. That is much faster, and not the same
    /// to the last bit: the PSNR is 40 dB or more on photographs, with the area filter 38 dB.
    #[must_use]
    pub fn exact(mut self, exact: bool) -> Self {
        self.exact = exact;
        self
    }

    /// What becomes of images whose data end early. Default: [`OnTruncated::Error`].
    #[must_use]
    pub fn on_truncated(mut self, on_truncated: OnTruncated) -> Self {
        self.on_truncated = on_truncated;
        self
    }

    /// Width and height of a sample in pixels.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Which part of the image is taken.
    pub fn cropping(&self) -> Crop {
        self.crop
    }

    /// How the values lie in memory.
    pub fn sample_format(&self) -> SampleFormat {
        self.format
    }

    /// Which channels there are.
    pub fn sample_color(&self) -> SampleColor {
        self.color
    }

    /// What weighs the pixels.
    pub fn resize_filter(&self) -> ResizeFilter {
        self.filter
    }

    /// Whether images are decoded at full size and to RGB.
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// What becomes of images whose data end early.
    pub fn truncation(&self) -> OnTruncated {
        self.on_truncated
    }

    /// The values of a sample.
    pub(crate) fn values(&self) -> usize {
        self.size.pixels() as usize * self.color.channels()
    }

    /// Which part of an upright image of this size is seen where in its sample. `rng` is called
    /// where something is random. An image without pixels counts as one of one pixel.
    pub fn place(&self, image: Size, rng: impl FnOnce() -> SampleRng) -> Placement {
        let mut rng = self.is_random().then(rng);
        self.place_with(image, rng.as_mut())
    }

    /// Whether [`place`](Self::place) draws anything.
    pub(crate) fn is_random(&self) -> bool {
        let (horizontal, vertical) = self.flips;
        self.crop.is_random() || horizontal > 0.0 || vertical > 0.0
    }

    /// The same with a generator that goes on being used; it must be there where the transform is
    /// random.
    pub(crate) fn place_with(&self, image: Size, rng: Option<&mut SampleRng>) -> Placement {
        let image = Size::new(image.width.max(1), image.height.max(1));
        let mut rng = rng.filter(|_| self.is_random());
        let mut placement = self.crop.place(image, self.size, rng.as_deref_mut());
        if let Some(rng) = rng {
            let (horizontal, vertical) = self.flips;
            placement.mirrored = horizontal > 0.0 && rng.chance(horizontal);
            placement.upended = vertical > 0.0 && rng.chance(vertical);
        }
        placement
    }

    /// Checks that such samples can exist.
    ///
    /// # Errors
    /// `InvalidArgument` where a side is not in 1 to 16,384, a mean is not finite, a standard
    /// deviation is not a positive number, values are of another type than the four, a probability
    /// is not in 0 to 1, or where the crop is not possible.
    pub fn validate(&self) -> Result<()> {
        let fault = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        let sides = 1..=MAX_SIZE;
        if !sides.contains(&self.size.width) || !sides.contains(&self.size.height) {
            return fault(format!(
                "the sample size is {} pixels; expected 1 to {MAX_SIZE} for each side",
                self.size
            ));
        }
        let sound = (0..3).all(|channel| {
            let (scale, offset) = self.scale_and_offset(channel);
            self.std[channel].is_normal()
                && self.std[channel] > 0.0
                && self.mean[channel].is_finite()
                && scale.is_finite()
                && (scale * 255.0 + offset).is_finite()
                && offset.is_finite()
        });
        if !sound {
            return fault(format!(
                "expected finite means and positive standard deviations, found {:?} and {:?}",
                self.mean, self.std
            ));
        }
        if !DTYPES.iter().any(|(dtype, _)| *dtype == self.format.dtype) {
            return fault(format!(
                "expected values of the type u8, f16, bf16 or f32, found {}",
                self.format.dtype.name()
            ));
        }
        let (horizontal, vertical) = self.flips;
        if !(0.0..=1.0).contains(&horizontal) || !(0.0..=1.0).contains(&vertical) {
            return fault(format!(
                "expected probabilities of flips from 0 to 1, found {horizontal} and {vertical}"
            ));
        }
        self.crop.validate(self.size)
    }

    /// The shape of a sample.
    pub(crate) fn shape(&self) -> [usize; 3] {
        let (width, height) = (self.size.width as usize, self.size.height as usize);
        let channels = self.color.channels();
        match self.format.layout {
            Layout::Nhwc => [height, width, channels],
            Layout::Nchw => [channels, height, width],
        }
    }

    /// What a byte of a channel is multiplied by, and what is added then.
    pub(crate) fn scale_and_offset(&self, channel: usize) -> (f32, f32) {
        let (mean, std) = (f64::from(self.mean[channel]), f64::from(self.std[channel]));
        ((1.0 / (255.0 * std)) as f32, (-mean / std) as f32)
    }
}

/// The fields of a batch of such samples: `images`, and `labels` (`i64`, a number each).
pub fn image_fields(transform: &ImageTransform) -> Vec<Field> {
    vec![
        Field::new("images", transform.format.dtype, &transform.shape()),
        Field::new("labels", DType::I64, &[]),
    ]
}

#[cfg(test)]
mod tests {
    use spdl_core::SampleId;

    use super::*;

    #[test]
    fn format_names_are_read_as_they_are_written() {
        for layout in [Layout::Nhwc, Layout::Nchw] {
            for dtype in [DType::U8, DType::F16, DType::BF16, DType::F32] {
                let format = SampleFormat { layout, dtype };
                assert_eq!(format.to_string().parse::<SampleFormat>().unwrap(), format);
            }
        }
        assert_eq!(SampleFormat::NCHW_F32.to_string(), "nchw-f32");
        assert!("nchw".parse::<SampleFormat>().is_err());
        assert!("nchw-i64".parse::<SampleFormat>().is_err());
    }

    #[test]
    fn impossible_samples_are_refused() {
        let new = ImageTransform::new;
        assert!(new(224).validate().is_ok());
        assert!(new(0).validate().is_err());
        assert!(new(16_385).validate().is_err());
        assert!(ImageTransform::with_size(Size::new(1, 0)).validate().is_err());
        let normalised = |mean: f32, std: f32| {
            ImageTransform::new(1).normalization([mean; 3], [std; 3]).validate()
        };
        assert!(normalised(0.0, 1.0).is_ok());
        assert!(normalised(f32::NAN, 1.0).is_err());
        assert!(normalised(0.0, 0.0).is_err());
        assert!(normalised(0.0, -1.0).is_err());
        assert!(normalised(1e38, 1e-3).is_err());
        assert!(new(8).dtype(DType::I64).validate().is_err());
        assert!(new(8).horizontal_flip(1.5).validate().is_err());
        assert!(new(8).vertical_flip(f64::NAN).validate().is_err());
        assert!(new(8).crop(Crop::Random { padding: 8, fill: [0; 3] }).validate().is_err());
    }

    #[test]
    fn samples_are_mirrored_as_often_as_was_asked_for() {
        let transform = ImageTransform::new(8).mode(Mode::Train).vertical_flip(0.25);
        let (mut mirrored, mut upended) = (0, 0);
        for index in 0..10_000 {
            let rng = || SampleRng::new(0, SampleId { epoch: 0, index }, "t");
            let placement = transform.place(Size::new(300, 200), rng);
            mirrored += u32::from(placement.mirrored);
            upended += u32::from(placement.upended);
        }
        // 5,000 and 2,500 ± 5 standard deviations of 50.
        assert!((4_750..=5_250).contains(&mirrored), "{mirrored}");
        assert!((2_250..=2_750).contains(&upended), "{upended}");
    }
}
