//! All settings of the transform of one image: crop, flips, filter, tensor.

use spdl_core::{DType, Error, ErrorKind, Field, Result, SampleRng};

use super::crop::{Crop, Mode, Placement};
use super::format::{Layout, Normalization, SampleColor, SampleFormat, TensorSpec};
use super::resize::ResizeFilter;
use crate::image::{OnTruncated, Size};

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
    tensor: TensorSpec,
    crop: Crop,
    /// The probabilities of a horizontal and a vertical flip.
    flips: (f64, f64),
    filter: ResizeFilter,
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
            tensor: TensorSpec::new(size),
            crop: Crop::eval(size),
            flips: (0.0, 0.0),
            filter: ResizeFilter::default(),
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
            tensor: TensorSpec { size, format, color, normalization: Normalization { mean, std } },
            crop,
            flips: (horizontal, vertical),
            filter,
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
        self.tensor.size = size;
        self
    }

    /// What ImageNet is trained and evaluated with: sets [`crop`](Self::crop) and
    /// [`horizontal_flip`](Self::horizontal_flip), and mirrors nothing top to bottom. Default:
    /// [`Mode::Eval`].
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        (self.crop, self.flips) = match mode {
            Mode::Eval => (Crop::eval(self.tensor.size), (0.0, 0.0)),
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
        self.tensor.format.layout = layout;
        self
    }

    /// The type of the values: `U8` (0 to 255), or `F16`, `BF16` or `F32`, normalised. Default: `U8`.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.tensor.format.dtype = dtype;
        self
    }

    /// Sets [`layout`](Self::layout) and [`dtype`](Self::dtype).
    #[must_use]
    pub fn format(mut self, format: SampleFormat) -> Self {
        self.tensor.format = format;
        self
    }

    /// Which channels there are, and in which order. Default: [`SampleColor::Rgb`].
    #[must_use]
    pub fn color(mut self, color: SampleColor) -> Self {
        self.tensor.color = color;
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
        self.tensor.normalization = Normalization { mean, std };
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
        self.tensor.size
    }

    /// Which part of the image is taken.
    pub fn cropping(&self) -> Crop {
        self.crop
    }

    /// How the values lie in memory.
    pub fn sample_format(&self) -> SampleFormat {
        self.tensor.format
    }

    /// Which channels there are.
    pub fn sample_color(&self) -> SampleColor {
        self.tensor.color
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

    /// The tensor that a sample becomes.
    pub fn tensor(&self) -> &TensorSpec {
        &self.tensor
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
        let mut placement = self.crop.place(image, self.tensor.size, rng.as_deref_mut());
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
    /// `InvalidArgument` if the tensor is [invalid](TensorSpec::validate), a flip probability is not
    /// in 0 to 1, or the crop is not possible for this sample size.
    pub fn validate(&self) -> Result<()> {
        self.tensor.validate()?;
        let (horizontal, vertical) = self.flips;
        if !(0.0..=1.0).contains(&horizontal) || !(0.0..=1.0).contains(&vertical) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("invalid flip probabilities {horizontal} and {vertical}: expected 0 to 1"),
            ));
        }
        self.crop.validate(self.tensor.size)
    }
}

/// The fields of a batch of such samples: `images`, and `labels` (`i64`, a number each).
pub fn image_fields(transform: &ImageTransform) -> Vec<Field> {
    vec![
        Field::new("images", transform.tensor.format.dtype, &transform.tensor.shape()),
        Field::new("labels", DType::I64, &[]),
    ]
}

#[cfg(test)]
mod tests {
    use spdl_core::SampleId;

    use super::*;

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
