//! All settings of the transform of one image: crop, flips, filter, tensor.

use spdl_core::{DType, Error, ErrorKind, Field, Result, SampleRng};

use super::canvas::{CanvasPart, PlacedPart, RandomIouCrop, RandomZoomOut};
use super::crop::{Crop, Mode, Placement};
use super::format::{Layout, Normalization, SampleColor, SampleFormat, TensorSpec};
use super::resize::ResizeFilter;
use crate::image::{OnTruncated, Size};

/// The largest standard deviation of a normalisation, as a fraction of 255.
const MAX_STD: f32 = 10.0;

/// The transform from an image of any size to a sample of one size.
///
/// Order of operations: apply the EXIF orientation; place the image on a canvas, and crop a part of it, if set; crop and
/// resize in one step, flip, convert the channels, normalise.
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
    /// The sizes of which a sample has the one nearest to the aspect ratio of its image.
    sizes: Vec<Size>,
    crop: Crop,
    zoom_out: Option<RandomZoomOut>,
    iou_crop: Option<RandomIouCrop>,
    /// The probabilities of a horizontal and a vertical flip.
    flips: (f64, f64),
    filter: ResizeFilter,
    exact: bool,
    on_truncated: OnTruncated,
    min_partial: f64,
    applies_exif: bool,
}

impl ImageTransform {
    /// Samples of `side` × `side` pixels, mode [`Mode::Eval`], RGB, `nhwc-u8`.
    pub fn new(side: u32) -> Self {
        ImageTransform::with_size(Size::new(side, side))
    }

    /// Samples of this width and height, mode [`Mode::Eval`], RGB, `nhwc-u8`.
    pub fn with_size(size: Size) -> Self {
        ImageTransform {
            tensor: TensorSpec::new(size),
            sizes: Vec::new(),
            crop: Crop::eval(size),
            zoom_out: None,
            iou_crop: None,
            flips: (0.0, 0.0),
            filter: ResizeFilter::default(),
            exact: false,
            on_truncated: OnTruncated::default(),
            min_partial: 0.5,
            applies_exif: true,
        }
    }

    /// All settings of the transform by name, for
    /// [`StageOptions::parameters`](spdl_core::StageOptions::parameters). A run that resumes with
    /// another transform reports the difference. Mean and standard deviation are omitted for the
    /// data types `U8` and `U16`, which do not use them.
    ///
    /// [`Augmenter::parameters`](crate::augment::Augmenter::parameters) lists the augmentations.
    /// The [`Limits`](crate::Limits) are not included: they decide which images fail, not the
    /// pixels of a sample. The registered codecs are not included either, although pixels may
    /// differ between two codecs of one format.
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
            sizes,
            crop,
            zoom_out,
            iou_crop,
            flips: (horizontal, vertical),
            filter,
            exact,
            on_truncated,
            min_partial,
            applies_exif,
        } = self;
        let truncated = match on_truncated {
            OnTruncated::Partial => format!("{on_truncated:?} from {min_partial}"),
            OnTruncated::Error => format!("{on_truncated:?}"),
        };
        let is_normalised = format.is_normalized();
        let size = match &sizes[..] {
            [] => size.to_string(),
            sizes => sizes.iter().map(Size::to_string).collect::<Vec<_>>().join(" or "),
        };
        [
            ("size", size),
            ("crop", format!("{crop:?}")),
            ("flips", format!("{horizontal} {vertical}")),
            ("filter", format!("{filter:?}")),
            ("format", format.to_string()),
            ("color", format!("{color:?}")),
            ("exact", exact.to_string()),
            ("truncated", truncated),
        ]
        .into_iter()
        .chain(zoom_out.as_ref().map(|zoom_out| ("zoom out", format!("{zoom_out:?}"))))
        .chain(iou_crop.as_ref().map(|iou_crop| ("iou crop", format!("{iou_crop:?}"))))
        .chain((!applies_exif).then(|| ("exif orientation", applies_exif.to_string())))
        .chain(is_normalised.then(|| ("mean", format!("{mean:?}"))))
        .chain(is_normalised.then(|| ("std", format!("{std:?}"))))
    }

    /// The same transform with another sample size.
    pub(crate) fn resized_to(mut self, size: Size) -> Self {
        self.tensor.size = size;
        self
    }

    /// Gives each sample the size of this list whose aspect ratio is nearest to that of the image: aspect
    /// ratio buckets. The ratio of two aspect ratios is compared; of equal ones, the first is chosen.
    ///
    /// Fields of images support this, see `SampleField::image`; their samples differ in size. The crop is
    /// usually [`Crop::Cover`].
    ///
    /// ```
    /// use spdl_media::{Crop, ImageTransform, Size};
    /// let sizes = [(1024, 1024), (1216, 832), (832, 1216)].map(|(w, h)| Size::new(w, h));
    /// let transform = ImageTransform::new(1024).sizes(sizes).crop(Crop::Cover { random: false });
    /// assert_eq!(transform.size_of(Size::new(3000, 2000)), Some(Size::new(1216, 832)));
    /// ```
    #[must_use]
    pub fn sizes(mut self, sizes: impl IntoIterator<Item = Size>) -> Self {
        self.sizes = sizes.into_iter().collect();
        self
    }

    /// The list of [`sizes`](Self::sizes).
    pub fn list_of_sizes(&self) -> &[Size] {
        &self.sizes
    }

    /// The size of the sample of an upright image, if it depends on the image; otherwise `None`. With
    /// [`zoom_out`](Self::zoom_out) or [`iou_crop`](Self::iou_crop), that of a part of the canvas of this size.
    pub fn size_of(&self, image: Size) -> Option<Size> {
        let aspect = |size: Size| f64::from(size.width.max(1)) / f64::from(size.height.max(1));
        let distance = |size: &Size| {
            let (own, other) = (aspect(*size), aspect(image));
            own.max(other) / own.min(other)
        };
        let nearest = self.sizes.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        nearest.copied().or_else(|| self.crop.size_of(image))
    }

    /// Sets [`crop`](Self::crop) and the flips to the usual values for training or evaluation on
    /// ImageNet. Default: [`Mode::Eval`].
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        (self.crop, self.flips) = match mode {
            Mode::Eval => (Crop::eval(self.tensor.size), (0.0, 0.0)),
            Mode::Train => (Crop::TRAIN, (0.5, 0.0)),
        };
        self
    }

    /// Which part of the image becomes the sample. Default: the crop of [`Mode::Eval`].
    #[must_use]
    pub fn crop(mut self, crop: Crop) -> Self {
        self.crop = crop;
        self
    }

    /// Places the image on a larger canvas before the crop, for training of object detectors. The crop is
    /// [`Crop::Stretch`], [`Crop::Letterbox`] with the same fill colour, or [`Crop::Resize`]. Pixels whose centres are outside
    /// the image have the fill colour. Default: none.
    ///
    /// ```
    /// use spdl_media::{Crop, ImageTransform, RandomIouCrop, RandomZoomOut};
    /// // The augmentations of SSD.
    /// let transform = ImageTransform::new(300)
    ///     .zoom_out(RandomZoomOut::new().fill([123, 117, 104]))
    ///     .iou_crop(RandomIouCrop::new())
    ///     .crop(Crop::Stretch)
    ///     .horizontal_flip(0.5);
    /// transform.validate()?;
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[must_use]
    pub fn zoom_out(mut self, zoom_out: RandomZoomOut) -> Self {
        self.zoom_out = Some(zoom_out);
        self
    }

    /// Crops a random part that overlaps a box, after [`zoom_out`](Self::zoom_out) and before the crop, which is one of
    /// those that `zoom_out` accepts. Only fields that boxes follow support this: see `SampleField::image`. Default:
    /// none.
    #[must_use]
    pub fn iou_crop(mut self, iou_crop: RandomIouCrop) -> Self {
        self.iou_crop = Some(iou_crop);
        self
    }

    /// The probability of a horizontal flip, 0 to 1 (`RandomHorizontalFlip`). Default: 0.
    #[must_use]
    pub fn horizontal_flip(mut self, probability: f64) -> Self {
        self.flips.0 = probability;
        self
    }

    /// The probability of a vertical flip, 0 to 1 (`RandomVerticalFlip`). Default: 0.
    #[must_use]
    pub fn vertical_flip(mut self, probability: f64) -> Self {
        self.flips.1 = probability;
        self
    }

    /// The resize filter. Default: [`ResizeFilter::Bilinear`].
    #[must_use]
    pub fn filter(mut self, filter: ResizeFilter) -> Self {
        self.filter = filter;
        self
    }

    /// The memory order of the values. Default: [`Layout::Nhwc`].
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.tensor.format.layout = layout;
        self
    }

    /// The data type of the values: `U8` (0 to 255), `U16` (0 to 65,535), or `F16`, `BF16` or `F32`,
    /// normalised. Default: `U8`.
    ///
    /// `U16` keeps the 16 bits of PNG and TIFF files. Grey TIFF files with 32-bit integers or floats are
    /// clamped to 0 to 65,535. Samples of 8 bits are multiplied by 257. The other data types use 8 bits of
    /// all files: the upper 8 of 16 bits, except that grey values of 16 bits are clamped to 255, as in Pillow.
    /// `U16` is slower than the other data types, and excludes augmentations and [several
    /// crops](Crop::Corners).
    ///
    /// ```
    /// use spdl_core::DType;
    /// use spdl_media::{Crop, FillImage, CodecRegistry, ImageTransform, Limits, Sample, SampleColor, Size};
    /// # #[cfg(feature = "png")] {
    /// # let file = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/grey16.png"));
    /// let transform = ImageTransform::new(16)
    ///     .crop(Crop::Center { fill: [0; 3] })
    ///     .color(SampleColor::Grey)
    ///     .dtype(DType::U16);
    /// let mut fill = FillImage::new(&CodecRegistry::with_defaults(), &transform, &Limits::default())?;
    /// let mut depth = vec![0; 16 * 16];
    /// fill.write(file, Sample::U16(&mut depth), || unreachable!("the crop is not random"))?;
    /// assert!(depth.iter().any(|level| level % 257 != 0));
    /// # }
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
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

    /// The channels and their order. Default: [`SampleColor::Rgb`].
    ///
    /// [`SampleColor::Rgba`] is slower than the other colours, and excludes augmentations and [several
    /// crops](Crop::Corners).
    #[must_use]
    pub fn color(mut self, color: SampleColor) -> Self {
        self.tensor.color = color;
        self
    }

    /// Mean and standard deviation for red, green and blue, as fractions of 255; grey uses the
    /// first mean and the first standard deviation. A mean is in 0 to 1, and a standard deviation is
    /// at most 10. Default: mean and standard deviation of ImageNet.
    ///
    /// With a mean of 0 and a standard deviation of 1, values are bytes divided by 255: from 0 to 1, not
    /// normalised otherwise, as `ToTensor` of torchvision.
    ///
    /// The data types `U8` and `U16`, and alpha, are not normalised. For the other data types, a byte becomes
    /// `value · scale + offset`, computed in `f32` with one rounding after the multiplication and
    /// one after the addition. `scale` is 1 ÷ (255 · std) and `offset` is −mean ÷ std, both
    /// computed in `f64` and rounded to `f32`. `F16` and `BF16` are rounded from `f32` to nearest,
    /// ties to even.
    #[must_use]
    pub fn normalization(mut self, mean: [f32; 3], std: [f32; 3]) -> Self {
        self.tensor.normalization = Normalization { mean, std };
        self
    }

    /// Whether images are decoded at full size and converted to RGB before the resize. Default: no.
    ///
    /// By default, JPEG luma and chroma planes are resized separately, and large JPEGs are decoded
    /// at ½, ¼ or ⅛ size. Reduced decoding requires that the reduced image is still 1.5 times the
    /// target size for the bilinear filter, or 1.75 times for bicubic and Lanczos; with the other
    /// filters, images are always decoded at full size. The default is much faster than exact
    /// samples, but not bit-identical to them: the PSNR on photographs is at least 40 dB, or 38 dB
    /// with the area filter.
    #[must_use]
    pub fn exact(mut self, exact: bool) -> Self {
        self.exact = exact;
        self
    }

    /// Whether the orientation in EXIF metadata, or in the tag `Orientation` of TIFF files, is applied.
    /// Default: yes.
    ///
    /// If not, rows and columns are those of the stored pixels, and so are the coordinates of boxes, key points
    /// and masks that follow the image.
    #[must_use]
    pub fn exif_orientation(mut self, applies: bool) -> Self {
        self.applies_exif = applies;
        self
    }

    /// What to do with truncated images. Default: [`OnTruncated::Error`].
    #[must_use]
    pub fn on_truncated(mut self, on_truncated: OnTruncated) -> Self {
        self.on_truncated = on_truncated;
        self
    }

    /// The minimum share of the rows of a sample's crop that a truncated image must contain, 0 to 1.
    /// If fewer rows are decoded, the error is `Truncated` despite [`OnTruncated::Partial`].
    /// Default: 0.5. With 0, a sample may be black.
    #[must_use]
    pub fn min_partial(mut self, share: f64) -> Self {
        self.min_partial = share;
        self
    }

    /// Width and height of a sample in pixels.
    pub fn size(&self) -> Size {
        self.tensor.size
    }

    /// Which part of the image becomes the sample.
    pub fn cropping(&self) -> Crop {
        self.crop
    }

    /// Whether a part of the image is chosen by its boxes.
    pub fn needs_boxes(&self) -> bool {
        self.iou_crop.is_some()
    }

    /// Whether the crop is applied to a canvas around the image, or to a part of it.
    pub fn has_canvas(&self) -> bool {
        self.zoom_out.is_some() || self.iou_crop.is_some()
    }

    /// The colour outside the image.
    pub(crate) fn fill(&self) -> [u8; 3] {
        self.zoom_out.as_ref().map_or_else(|| self.crop.fill(), RandomZoomOut::color)
    }

    /// Memory order and data type of the values.
    pub fn sample_format(&self) -> SampleFormat {
        self.tensor.format
    }

    /// The channels and their order.
    pub fn sample_color(&self) -> SampleColor {
        self.tensor.color
    }

    /// The resize filter.
    pub fn resize_filter(&self) -> ResizeFilter {
        self.filter
    }

    /// Whether images are decoded at full size and converted to RGB before the resize.
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// Whether the EXIF orientation is applied.
    pub fn applies_exif_orientation(&self) -> bool {
        self.applies_exif
    }

    /// Whether alpha or 16 bits are kept. Such samples are made on the host, one image at a time, without
    /// augmentations.
    pub fn keeps_alpha_or_16_bits(&self) -> bool {
        self.tensor.color == SampleColor::Rgba || self.tensor.format.dtype == DType::U16
    }

    /// The error of a function that supports RGB of 8 bits only, if samples have alpha or 16 bits.
    pub(crate) fn check_rgb8(&self, what: &str) -> Result<()> {
        if !self.keeps_alpha_or_16_bits() {
            return Ok(());
        }
        let found = match self.tensor.color {
            SampleColor::Rgba => "samples have alpha",
            _ => "samples have 16 bits",
        };
        let message =
            format!("{what} only for RGB, BGR and grey of 8 bits or floats, but the {found}");
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// The error of augmentations, if samples cannot be augmented: they have alpha or 16 bits, or are several crops.
    #[cfg(feature = "augment")]
    pub(crate) fn check_augmentable(&self) -> Result<()> {
        self.check_rgb8("augmentations are supported")?;
        if self.crops().is_none() {
            return Ok(());
        }
        let message = "several crops of an image are not augmented; omit the augmentations";
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// What to do with truncated images.
    pub fn truncation(&self) -> OnTruncated {
        self.on_truncated
    }

    /// The minimum share of rows that a truncated image must contain.
    pub fn min_partial_share(&self) -> f64 {
        self.min_partial
    }

    /// Like [`size`](Self::size), but 0 × 0 if the size depends on the image.
    pub(crate) fn fixed_size(&self) -> Size {
        match self.crop {
            Crop::Resize { .. } => Size::new(0, 0),
            _ if !self.sizes.is_empty() => Size::new(0, 0),
            _ => self.tensor.size,
        }
    }

    /// Whether each sample has one of several [sizes](Self::sizes).
    #[cfg(all(feature = "records", feature = "png", feature = "augment"))]
    pub(crate) fn has_sizes(&self) -> bool {
        !self.sizes.is_empty()
    }

    /// The number of crops in a sample, which is its first dimension, if the crop is
    /// [`Crop::Corners`]; otherwise `None`.
    ///
    /// ```
    /// use spdl_media::{Crop, ImageTransform, Size, image_fields};
    /// let crop = Crop::Corners { covering: Some(Size::new(256, 256)), flipped: None };
    /// let transform = ImageTransform::new(224).crop(crop);
    /// assert_eq!(transform.crops(), Some(5));
    /// assert_eq!(image_fields(&transform)[0].shape, [5, 224, 224, 3]);
    /// ```
    pub fn crops(&self) -> Option<usize> {
        self.crop.count()
    }

    /// The shape of a sample. 0 stands for any length.
    pub(crate) fn shape(&self) -> Vec<usize> {
        let tensor = TensorSpec { size: self.fixed_size(), ..self.tensor };
        self.crops().into_iter().chain(tensor.shape()).collect()
    }

    /// The tensor that a sample becomes.
    pub fn tensor(&self) -> &TensorSpec {
        &self.tensor
    }

    /// The placement of an upright image of this size in its sample. Calls `rng` only if the
    /// transform is random. A width or height of 0 counts as 1. The image has no boxes, so that
    /// [`iou_crop`](Self::iou_crop) has no effect.
    pub fn place(&self, image: Size, rng: impl FnOnce() -> SampleRng) -> Placement {
        let mut rng = self.is_random().then(rng);
        let part = self.canvas_part(image, Vec::new, rng.as_mut());
        self.place_with(image, part, rng.as_mut()).0
    }

    /// Whether [`place`](Self::place) draws random numbers.
    pub(crate) fn is_random(&self) -> bool {
        let (horizontal, vertical) = self.flips;
        self.crop.is_random() || self.has_canvas() || horizontal > 0.0 || vertical > 0.0
    }

    /// The part of the canvas that is cropped and resized in place of the image, if there is a canvas. `boxes` returns left,
    /// top, right and bottom of boxes inside the image. Draws from a generator that the caller continues to use.
    pub(crate) fn canvas_part(
        &self,
        image: Size,
        boxes: impl FnOnce() -> Vec<[f64; 4]>,
        rng: Option<&mut SampleRng>,
    ) -> Option<CanvasPart> {
        let rng = rng.filter(|_| self.has_canvas())?;
        let image = at_least_one_pixel(image);
        let canvas = match &self.zoom_out {
            Some(zoom_out) => zoom_out.draw(image, rng),
            None => CanvasPart::whole(image),
        };
        Some(match &self.iou_crop {
            Some(iou_crop) => iou_crop.draw(canvas, &boxes(), rng),
            None => canvas,
        })
    }

    /// Like [`place`](Self::place), but of a part of the canvas, and draws from a generator that the caller continues to
    /// use. The generator is required if the transform is random.
    pub(crate) fn place_with(
        &self,
        image: Size,
        part: Option<CanvasPart>,
        rng: Option<&mut SampleRng>,
    ) -> (Placement, Option<PlacedPart>) {
        let image = at_least_one_pixel(image);
        let mut rng = rng.filter(|_| self.is_random());
        let shown = part.map_or(image, |part| part.size);
        let mut placement = self.crop.place(shown, self.tensor.size, rng.as_deref_mut());
        if let Some(rng) = rng {
            let (horizontal, vertical) = self.flips;
            placement.mirrored = horizontal > 0.0 && rng.chance(horizontal);
            placement.upended = vertical > 0.0 && rng.chance(vertical);
        }
        match part.map(|part| part.place(image, placement)) {
            Some((placement, placed)) => (placement, Some(placed)),
            None => (placement, None),
        }
    }

    /// Checks the canvas, and whether the crop shows all of it.
    fn check_canvas(&self) -> Result<()> {
        self.zoom_out.as_ref().map_or(Ok(()), RandomZoomOut::validate)?;
        self.iou_crop.as_ref().map_or(Ok(()), RandomIouCrop::validate)?;
        let message = match (self.crop, &self.zoom_out) {
            (Crop::Letterbox { fill }, Some(zoom_out)) if fill != zoom_out.color() => format!(
                "the fill colours of the crop and of the zoom out differ: {fill:?} and {:?}",
                zoom_out.color()
            ),
            (Crop::Stretch | Crop::Letterbox { .. } | Crop::Resize { .. }, _) => return Ok(()),
            (crop, _) => format!(
                "a zoom out or an IoU crop cannot be combined with the crop {crop:?}: expected Stretch, Letterbox or \
                 Resize"
            ),
        };
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// Checks that samples with these settings are possible.
    ///
    /// # Errors
    /// `InvalidArgument` if the tensor is [invalid](TensorSpec::validate), a mean is not in 0 to 1, a
    /// standard deviation is above 10, a flip probability or the minimum share of rows is not in 0
    /// to 1, or the crop is not possible for this sample size; `Unsupported` for several crops with alpha or
    /// 16 bits.
    pub fn validate(&self) -> Result<()> {
        self.tensor.validate()?;
        let Normalization { mean, std } = self.tensor.normalization;
        // Values in the unit of pixels, such as a mean of 123.7, would scale all samples wrongly.
        if mean.iter().any(|mean| !(0.0..=1.0).contains(mean))
            || std.iter().any(|&std| std > MAX_STD)
        {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "invalid normalisation with mean {mean:?} and standard deviation {std:?}: expected \
                     fractions of 255, with means from 0 to 1 and standard deviations up to {MAX_STD}; \
                     divide values for pixels from 0 to 255 by 255"
                ),
            ));
        }
        let (horizontal, vertical) = self.flips;
        if !(0.0..=1.0).contains(&horizontal) || !(0.0..=1.0).contains(&vertical) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("invalid flip probabilities {horizontal} and {vertical}: expected 0 to 1"),
            ));
        }
        if !(0.0..=1.0).contains(&self.min_partial) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("invalid minimum share of rows {}: expected 0 to 1", self.min_partial),
            ));
        }
        if self.crops().is_some() {
            self.check_rgb8("several crops of an image are supported")?;
        }
        if self.crops().is_some() && self.flips != (0.0, 0.0) {
            let message =
                "several crops of an image are not flipped at random; set the probabilities to 0";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        if self.has_canvas() {
            self.check_canvas()?;
        }
        let varies = matches!(self.crop, Crop::Resize { .. } | Crop::Corners { .. });
        if varies && !self.sizes.is_empty() {
            let message =
                format!("a list of sizes cannot be combined with the crop {:?}", self.crop);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.sizes.iter().try_for_each(|&size| {
            TensorSpec { size, ..self.tensor }.validate()?;
            self.crop.validate(size)
        })?;
        self.crop.validate(self.tensor.size)
    }
}

fn at_least_one_pixel(image: Size) -> Size {
    Size::new(image.width.max(1), image.height.max(1))
}

/// The fields of a batch: `images`, and `labels` (`i64`, one number per sample).
pub fn image_fields(transform: &ImageTransform) -> Vec<Field> {
    let shape: Vec<usize> = transform.crops().into_iter().chain(transform.tensor.shape()).collect();
    vec![
        Field::new("images", transform.tensor.format.dtype, &shape),
        Field::new("labels", DType::I64, &[]),
    ]
}

#[cfg(test)]
mod tests {
    use spdl_core::SampleId;

    use super::*;

    #[test]
    fn invalid_samples_are_rejected() {
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
        assert!(normalised(1.0, 10.0).is_ok());
        for (mean, std) in [(123.675, 0.2), (1.01, 0.2), (-0.1, 0.2), (0.5, 58.4)] {
            let error = normalised(mean, std).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("fractions of 255"), "{error}");
        }
        assert!(new(8).dtype(DType::I64).validate().is_err());
        assert!(new(8).horizontal_flip(1.5).validate().is_err());
        assert!(new(8).vertical_flip(f64::NAN).validate().is_err());
        assert!(new(8).min_partial(0.0).validate().is_ok());
        assert!(new(8).min_partial(1.1).validate().is_err());
        assert!(new(8).min_partial(f64::NAN).validate().is_err());
        assert!(new(8).crop(Crop::Random { padding: 8, fill: [0; 3] }).validate().is_err());
    }

    #[test]
    fn a_sample_has_the_size_of_the_nearest_aspect_ratio() {
        let new = ImageTransform::new;
        let sizes = [(64, 64), (96, 48), (48, 96), (32, 32)].map(|(w, h)| Size::new(w, h));
        let transform = new(64).sizes(sizes).crop(Crop::Cover { random: false });
        let size_of = |w: u32, h: u32| {
            let size = transform.size_of(Size::new(w, h)).unwrap();
            (size.width, size.height)
        };
        assert_eq!(size_of(10, 10), (64, 64));
        // The geometric mean of 1 and 2 is 1.414.
        assert_eq!((size_of(1414, 1000), size_of(1415, 1000)), ((64, 64), (96, 48)));
        assert_eq!((size_of(1000, 1414), size_of(1000, 1415)), ((64, 64), (48, 96)));
        assert_eq!((size_of(9000, 1), size_of(0, 5)), ((96, 48), (48, 96)));
        assert_eq!(transform.shape(), [0, 0, 3]);
        assert!(transform.validate().is_ok());
        assert!(transform.clone().sizes([Size::new(0, 3)]).validate().is_err());
        let resize = Crop::Resize { shorter: None, longest: None, multiple_of: 1 };
        assert!(transform.clone().crop(resize).validate().is_err());
        assert_eq!(new(64).size_of(Size::new(3, 4)), None);
        let size = |transform: &ImageTransform| transform.parameters().next().unwrap().1;
        assert_eq!(size(&transform), "64x64 or 96x48 or 48x96 or 32x32");
    }

    #[test]
    fn samples_are_flipped_with_the_given_probabilities() {
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
