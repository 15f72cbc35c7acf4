//! Decodes and transforms one image into its slot of a batch.

use bytes::Bytes;
use spdl_core::observe::Counter;
use spdl_core::stage::Collation;
use spdl_core::{
    DType, Error, ErrorKind, Field, Fill, FillContext, Labeled, Result, SampleId, SampleRng,
    SlotMut,
};

#[cfg(feature = "records")]
use super::geometry::Warp;
#[cfg(feature = "augment")]
use crate::augment::{Augmenter, ImageMut};
use crate::image::{
    CHANNELS, CodecRegistry, CropBox, DecodeRequest, Decoded, Decoder, ImageInfo, Limits,
    Orientation, Picture, Rect, Retention, RgbaPicture, SampleDepth, Size, contradicts_header,
};
use crate::transform::{
    CanvasPart, Crop, Flip, ImageTransform, PlacedPart, Placement, ResizeRequest, ResizedPlanes,
    Resizer, RgbaRequest, RgbaResizer, Sample, SampleColor, SampleFormat, SampleWriter, TensorSpec,
    filter_reach, needed_region,
};

/// Field 0 of the batch layout: the pixels.
const IMAGES: usize = 0;
/// Field 1 of the batch layout: the class label.
const LABELS: usize = 1;

/// Decodes, crops, resizes, flips, normalises and lays out one image, directly in its batch slot.
///
/// Create one per worker: it keeps decoders and scratch memory. Once the scratch memory has grown
/// to the size that the images need, this type and the JPEG decoder of this crate allocate nothing;
/// some libraries for other formats allocate per image. Scratch memory of more than 32 MiB is
/// released after about twenty images that need less than a quarter of it. As a [`Fill`], this type
/// requires a batch with the [`image_fields`](crate::image_fields) of the same transform.
///
/// With [`OnTruncated::Partial`](crate::OnTruncated::Partial), a part of a sample may be black:
/// [`write`](FillImage::write) returns the valid part, and
/// [`count_partial`](FillImage::count_partial) counts such samples.
///
/// ```
/// use spdl_core::BatchLayout;
/// use spdl_media::{CodecRegistry, FillImage, ImageTransform, Limits, image_fields};
/// let registry = CodecRegistry::with_defaults();
/// let transform = ImageTransform::new(224);
/// let layout = BatchLayout::new(32, image_fields(&transform));
/// // For `PipelineBuilder::fill`: called once per worker.
/// let factory = move || FillImage::new(&registry, &transform, &Limits::default());
/// # factory()?;
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct FillImage {
    decoder: Decoder,
    transform: ImageTransform,
    /// The decoded part of the image, not yet upright.
    picture: Picture,
    retention: Retention,
    partial_samples: Counter,
    resizer: Resizer,
    /// The resized, upright part of the image.
    resized: ResizedPlanes,
    writer: SampleWriter,
    #[cfg(feature = "augment")]
    augmentation: Option<Augmentation>,
    /// Present if a sample is an array of several crops.
    crops: Option<Box<Crops>>,
    /// Present if alpha or 16 bits are kept.
    rgba: Option<Box<RgbaPixels>>,
}

/// A decoded and resized image with alpha or 16 bits.
#[derive(Default)]
struct RgbaPixels {
    picture: RgbaPicture,
    resizer: RgbaResizer,
}

/// The maximum scratch memory that is kept for images with alpha or 16 bits.
const KEPT_RGBA_BYTES: usize = 32 << 20;

/// Several crops of one resized image.
struct Crops {
    /// Makes the resized image, of any size.
    whole: FillImage,
    /// Interleaved RGB pixels of the resized image.
    pixels: Vec<u8>,
    /// Interleaved RGB pixels of a crop.
    crop: Vec<u8>,
}

impl Crops {
    fn new(registry: &CodecRegistry, transform: &ImageTransform, limits: &Limits) -> Result<Self> {
        let whole = transform.clone().crop(Crop::Stretch).format(SampleFormat::NHWC_U8);
        let whole = FillImage::new(registry, &whole.color(SampleColor::Rgb), limits)?;
        Ok(Crops { whole, pixels: Vec::new(), crop: Vec::new() })
    }

    /// Copies a part of the resized image, flipped, to `self.crop`.
    fn cut(&mut self, part: Rect, flip: Option<Flip>) {
        let Crops { whole, pixels, crop } = self;
        let row_bytes = whole.transform.size().width as usize * CHANNELS;
        let (left, width) = (part.left as usize * CHANNELS, part.width as usize * CHANNELS);
        crop.clear();
        for row in 0..part.height {
            let row = if flip == Some(Flip::Vertical) { part.height - 1 - row } else { row };
            let row = &pixels[(part.top + row) as usize * row_bytes + left..][..width];
            match flip {
                Some(Flip::Horizontal) => {
                    crop.extend(row.as_chunks::<CHANNELS>().0.iter().rev().flatten());
                }
                _ => crop.extend_from_slice(row),
            }
        }
    }
}

/// Augmentation before normalisation and layout.
#[cfg(feature = "augment")]
struct Augmentation {
    augmenter: Augmenter,
    /// Interleaved RGB pixels of the sample.
    pixels: Vec<u8>,
    writer: SampleWriter,
}

#[cfg(feature = "augment")]
impl Augmentation {
    /// `pixels` is memory for reuse.
    fn new(augmenter: Augmenter, mut pixels: Vec<u8>, transform: &ImageTransform) -> Self {
        let rgb = transform.clone().format(SampleFormat::NHWC_U8).color(SampleColor::Rgb);
        pixels.resize(rgb.tensor().values() as usize, 0);
        Augmentation { augmenter, pixels, writer: SampleWriter::new(&rgb) }
    }
}

/// The origin and the valid part of a written sample.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Written {
    /// The size of the upright image.
    pub image: Size,
    /// Which part of the upright image became which part of the sample.
    pub placement: Placement,
    /// The size of the sample.
    pub size: Size,
    /// The rectangle of the sample that shows decoded pixels: the whole sample, unless the file is
    /// truncated and [`OnTruncated::Partial`](crate::OnTruncated::Partial) is set. Outside the
    /// rectangle, the missing rows of the image are black or blended with black, before any
    /// augmentation. The rectangle may be empty. Because of orientation and flips, the rectangle
    /// need not be at the top.
    pub valid: Rect,
    /// The part of a canvas that was resized in place of the image, if there is a canvas.
    pub(super) canvas: Option<PlacedPart>,
}

impl Written {
    /// Whether a part of the sample is missing because the file is truncated.
    pub fn is_partial(&self) -> bool {
        self.valid != Rect::full(self.size)
    }
}

/// An image whose header was read.
struct InspectedImage {
    info: ImageInfo,
    /// The part of the canvas that is resized in place of the image, if there is a canvas.
    part: Option<CanvasPart>,
    /// The generator of the sample, if the transform or the augmentations are random.
    rng: Option<SampleRng>,
}

/// How a stored image becomes the sample.
struct FillPlan {
    placement: Placement,
    canvas: Option<PlacedPart>,
    orientation: Orientation,
    stored: Size,
    /// See [`ImageInfo::working_bytes`].
    working_bytes: u64,
    /// The part of the stored image that is resized.
    source: CropBox,
    /// The pixels of the stored image that may influence the result.
    bounds: Rect,
}

impl FillImage {
    /// Creates the decoder and transform of one worker.
    ///
    /// # Errors
    /// The errors of [`ImageTransform::validate`].
    pub fn new(
        registry: &CodecRegistry,
        transform: &ImageTransform,
        limits: &Limits,
    ) -> Result<Self> {
        transform.validate()?;
        let crops = transform.crops().map(|_| Crops::new(registry, transform, limits));
        Ok(FillImage {
            crops: crops.transpose()?.map(Box::new),
            rgba: transform.keeps_alpha_or_16_bits().then(Box::default),
            decoder: Decoder::new(registry, limits),
            writer: SampleWriter::new(transform),
            transform: transform.clone(),
            picture: Picture::new(),
            retention: Retention::default(),
            partial_samples: Counter::default(),
            resizer: Resizer::new(limits),
            resized: ResizedPlanes::default(),
            #[cfg(feature = "augment")]
            augmentation: None,
        })
    }

    /// Sets augmentations that are applied after resize and flips, before normalisation and layout.
    /// The augmentations change the whole sample, including the fill colour around the image. The
    /// augmentations draw random numbers from the generator of the sample, after the crop and the
    /// flips.
    ///
    /// ```
    /// use spdl_core::StageOptions;
    /// use spdl_media::augment::{Augmenter, TrivialAugmentWide};
    /// use spdl_media::{CodecRegistry, FillImage, ImageTransform, Limits, Mode};
    /// let transform = ImageTransform::new(224).mode(Mode::Train);
    /// let augmenter = Augmenter::new().then(TrivialAugmentWide::new());
    /// // A run that resumes with other parameters reports the difference.
    /// let decode = StageOptions::new("decode")
    ///     .parameters(transform.parameters())
    ///     .parameters(augmenter.parameters());
    /// let fill = FillImage::new(&CodecRegistry::with_defaults(), &transform, &Limits::default())?
    ///     .augment(augmenter)?;
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Augmenter::validate`]; `Unsupported` if a sample is an array of
    /// [several crops](ImageTransform::crops), or has alpha or 16 bits.
    #[cfg(feature = "augment")]
    pub fn augment(mut self, augmenter: Augmenter) -> Result<Self> {
        augmenter.validate()?;
        if !augmenter.is_empty() {
            self.transform.check_augmentable()?;
        }
        self.augmentation = (!augmenter.is_empty())
            .then(|| Augmentation::new(augmenter, Vec::new(), &self.transform));
        Ok(self)
    }

    /// Counts [partial](Written::is_partial) samples with `counter`. Clones of one counter can
    /// count the samples of all workers.
    ///
    /// ```
    /// use spdl_core::observe::Counter;
    /// use spdl_media::{CodecRegistry, FillImage, ImageTransform, Limits, OnTruncated};
    /// let registry = CodecRegistry::with_defaults();
    /// let transform = ImageTransform::new(224).on_truncated(OnTruncated::Partial);
    /// let partial = Counter::default();
    /// let counter = partial.clone();
    /// let factory = move || {
    ///     Ok(FillImage::new(&registry, &transform, &Limits::default())?
    ///         .count_partial(counter.clone()))
    /// };
    /// # let _: spdl_core::Result<FillImage> = factory();
    /// // After the run:
    /// println!("{} samples are partial", partial.get());
    /// ```
    #[must_use]
    pub fn count_partial(mut self, counter: Counter) -> Self {
        if let Some(crops) = &mut self.crops {
            crops.whole.partial_samples = counter.clone();
        }
        self.partial_samples = counter;
        self
    }

    /// Decodes and transforms `encoded` into `sample`, with random numbers from `rng`. Returns the
    /// valid part of the sample; of several crops, the valid part of the image that they show.
    ///
    /// # Errors
    /// The errors of [`Decoder::decode_planes`] and of the augmentations; `InvalidArgument` if
    /// `sample` has another size or data type than the transform; `Unsupported` if the transform needs boxes.
    pub fn write(
        &mut self,
        encoded: &[u8],
        sample: Sample<'_>,
        rng: impl FnOnce() -> SampleRng,
    ) -> Result<Written> {
        self.check_sample(&sample)?;
        self.check_no_boxes()?;
        if self.crops.is_some() {
            return self.write_crops(encoded, sample);
        }
        let image = self.inspect_for(encoded, |_| Vec::new(), rng)?;
        self.write_inspected(encoded, sample, image)
    }

    /// Parses the header, and draws the part of the canvas.
    fn inspect_for(
        &mut self,
        encoded: &[u8],
        boxes: impl FnOnce(Size) -> Vec<[f64; 4]>,
        rng: impl FnOnce() -> SampleRng,
    ) -> Result<InspectedImage> {
        let info = self.inspect(encoded)?;
        let mut rng = self.draws().then(rng);
        let size = info.upright_size();
        let part = self.transform.canvas_part(size, || boxes(size), rng.as_mut());
        Ok(InspectedImage { info, part, rng })
    }

    fn write_inspected(
        &mut self,
        encoded: &[u8],
        sample: Sample<'_>,
        InspectedImage { info, part, mut rng }: InspectedImage,
    ) -> Result<Written> {
        let placed = self.transform.place_with(info.upright_size(), part, rng.as_mut());
        self.write_plan(encoded, sample, &FillPlan::new(&info, placed), rng)
    }

    fn check_no_boxes(&self) -> Result<()> {
        if !self.transform.needs_boxes() {
            return Ok(());
        }
        let message = "an IoU crop needs boxes, which only fields of a `SampleSpec` have";
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Like [`write`](FillImage::write), into a field of a slot, with the random generator of the
    /// context. Use this method in a custom [`Fill`] that writes other fields as well.
    ///
    /// Two calls with the same context, for an image and its mask, draw the same crop and flips if
    /// [`Crop`](crate::Crop), flip probabilities, upright image sizes and sample sizes are equal.
    ///
    /// # Errors
    /// The errors of [`write`](FillImage::write) and [`check_field`](FillImage::check_field).
    ///
    /// # Panics
    /// If the layout has no such field.
    pub fn write_field(
        &mut self,
        encoded: &[u8],
        slot: &mut SlotMut<'_>,
        field: usize,
        cx: &FillContext<'_>,
    ) -> Result<Written> {
        self.check_no_boxes()?;
        self.write_field_with(encoded, slot, field, |_| Vec::new(), || cx.rng())
    }

    /// Parses the header. If the orientation is not applied, the image counts as upright.
    fn inspect(&mut self, encoded: &[u8]) -> Result<ImageInfo> {
        let mut info = self.decoder.inspect(encoded)?;
        if !self.transform.applies_exif_orientation() {
            info.orientation = Orientation::Upright;
        }
        Ok(info)
    }

    /// Decodes and resizes the image once, and writes the crops of it.
    fn write_crops(&mut self, encoded: &[u8], mut sample: Sample<'_>) -> Result<Written> {
        let Some(crops) = &mut self.crops else { return Err(one_sample()) };
        let (crop, tensor) = (self.transform.cropping(), *self.transform.tensor());
        let resized = crop.resized(crops.whole.inspect(encoded)?.upright_size());
        let parts = crop.parts(resized, tensor.size)?;
        crops.whole.set_size(resized)?;
        crops.pixels.resize(resized.pixels() as usize * CHANNELS, 0);
        let none = || SampleRng::new(0, SampleId::default(), "");
        let written = crops.whole.write(encoded, Sample::U8(&mut crops.pixels), none)?;
        let values = tensor.values() as usize;
        for (at, (part, flip)) in parts.enumerate() {
            crops.cut(part, flip);
            self.writer.write_pixels(&crops.crop, sample.part(at * values..(at + 1) * values));
        }
        Ok(written)
    }

    /// The geometric operations of the augmentations of the last sample, in order.
    #[cfg(feature = "records")]
    pub(super) fn warps(&self) -> &[Warp] {
        #[cfg(feature = "augment")]
        if let Some(augmentation) = &self.augmentation {
            return augmentation.augmenter.warps();
        }
        &[]
    }

    /// Like [`write_field`](FillImage::write_field), with another random generator. `boxes` returns left, top, right and
    /// bottom of the boxes in an upright image of a size.
    pub(super) fn write_field_with(
        &mut self,
        encoded: &[u8],
        slot: &mut SlotMut<'_>,
        field: usize,
        boxes: impl FnOnce(Size) -> Vec<[f64; 4]>,
        rng: impl FnOnce() -> SampleRng,
    ) -> Result<Written> {
        self.check_field(&slot.fields()[field])?;
        let is_fixed = slot.fields()[field].collation == Collation::Stacked;
        let image = match self.crops {
            Some(_) => None,
            None => Some(self.inspect_for(encoded, boxes, rng)?),
        };
        if let Some(InspectedImage { info, part, .. }) = &image
            && !is_fixed
        {
            let shown = part.map_or(info.upright_size(), |part| part.size);
            if let Some(size) = self.transform.size_of(shown) {
                self.set_size(size)?;
            }
        }
        let shape = match self.transform.crops() {
            None => self.transform.tensor().shape().to_vec(),
            Some(_) => self.transform.shape(),
        };
        macro_rules! values {
            () => {
                // A field with one shape has its memory already.
                if is_fixed { slot.typed_mut(field)? } else { slot.resize(field, &shape)? }
            };
        }
        let sample = match self.transform.sample_format().dtype {
            DType::U16 => Sample::U16(values!()),
            DType::F16 => Sample::F16(values!()),
            DType::BF16 => Sample::BF16(values!()),
            DType::F32 => Sample::F32(values!()),
            _ => Sample::U8(values!()),
        };
        self.check_sample(&sample)?;
        match image {
            Some(image) => self.write_inspected(encoded, sample, image),
            None => self.write_crops(encoded, sample),
        }
    }

    /// Checks that a field has the data type and shape of the samples.
    ///
    /// # Errors
    /// `InvalidArgument` if it differs.
    pub fn check_field(&self, field: &Field) -> Result<()> {
        let format = self.transform.sample_format();
        let shape = self.transform.shape();
        if (field.dtype, &field.shape[..]) == (format.dtype, &shape[..]) {
            return Ok(());
        }
        Err(invalid(format!(
            "field {:?} of the batch is {} {:?}, but the transform produces {} {shape:?} ({format}, {} \
                 pixels); create the layout with `image_fields` of the same transform, or change its \
                 format, color or size",
            field.name,
            field.dtype,
            field.shape,
            format.dtype,
            self.transform.size()
        )))
    }

    /// Whether a sample needs random numbers.
    fn draws(&self) -> bool {
        #[cfg(feature = "augment")]
        if self.augmentation.is_some() {
            return true;
        }
        self.transform.is_random()
    }

    /// Resizes the rectangle `crop` of the upright image to the whole `sample`, and flips the
    /// sample horizontally if `mirrored` is set. The crop and flips of the transform, and the
    /// augmentations, are not used.
    ///
    /// Pixels outside `crop` have no influence, with one exception: in a JPEG with subsampled
    /// chroma or at reduced size, a position at the edge of `crop` may cover pixels outside it.
    ///
    /// # Errors
    /// The errors of [`write`](FillImage::write); `InvalidArgument` if `crop` is not inside the
    /// image; `Unsupported` if a sample is an array of [several crops](ImageTransform::crops).
    pub fn write_crop(
        &mut self,
        encoded: &[u8],
        sample: Sample<'_>,
        crop: Rect,
        mirrored: bool,
    ) -> Result<Written> {
        if self.crops.is_some() {
            return Err(one_sample());
        }
        self.check_sample(&sample)?;
        let info = self.inspect(encoded)?;
        if !crop.is_within(info.upright_size()) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("crop {crop:?} is not inside the image of {} pixels", info.upright_size()),
            ));
        }
        let placement = Placement { mirrored, ..Placement::part(crop, self.transform.size()) };
        self.write_plan(encoded, sample, &FillPlan::new(&info, (placement, None)), None)
    }

    /// Transforms a decoded image into `sample`, with random numbers from `rng`. `picture` is not
    /// yet upright: `orientation` is its orientation. If `picture` holds only a region of the
    /// image, pixels outside the region have no influence.
    ///
    /// # Errors
    /// `InvalidArgument` if `sample` has another size or data type than the transform, or the
    /// picture holds none of the [pixels that may influence the sample](Placement::bounds);
    /// `LimitExceeded` if scratch memory exceeds the limits; the errors of the augmentations;
    /// `Unsupported` if a sample is an array of [several crops](ImageTransform::crops), or has alpha or 16 bits, or if
    /// the transform needs boxes.
    pub fn write_picture(
        &mut self,
        picture: &Picture,
        orientation: Orientation,
        sample: Sample<'_>,
        rng: impl FnOnce() -> SampleRng,
    ) -> Result<()> {
        if self.crops.is_some() {
            return Err(one_sample());
        }
        self.transform.check_rgb8("decoded planes are supported")?;
        self.check_sample(&sample)?;
        self.check_no_boxes()?;
        let info = ImageInfo::new(picture.image(), orientation);
        let (size, mut rng) = (info.upright_size(), self.draws().then(rng));
        let part = self.transform.canvas_part(size, Vec::new, rng.as_mut());
        let plan = FillPlan::new(&info, self.transform.place_with(size, part, rng.as_mut()));
        self.resizer.resize(picture, &plan.resize_request(&self.transform), &mut self.resized)?;
        self.write_resized(plan.placement.flipped_target(&self.transform), sample, rng)
    }

    /// Writes the resized planes to `target` in the sample, augmented if there is an augmentation
    /// and `rng` is given.
    fn write_resized(
        &mut self,
        target: Rect,
        sample: Sample<'_>,
        rng: Option<SampleRng>,
    ) -> Result<()> {
        #[cfg(feature = "augment")]
        if let (Some(augmentation), Some(mut rng)) = (&mut self.augmentation, rng) {
            let Augmentation { augmenter, pixels, writer } = augmentation;
            writer.write(&self.resized, target, Sample::U8(pixels))?;
            augmenter.apply(&mut ImageMut::new(pixels, self.transform.size())?, &mut rng)?;
            self.writer.write_pixels(pixels, sample);
            return Ok(());
        }
        #[cfg(not(feature = "augment"))]
        drop(rng);
        self.writer.write(&self.resized, target, sample)
    }

    fn write_plan(
        &mut self,
        encoded: &[u8],
        sample: Sample<'_>,
        plan: &FillPlan,
        rng: Option<SampleRng>,
    ) -> Result<Written> {
        if self.rgba.is_some() {
            return self.write_rgba(encoded, sample, plan);
        }
        let memory = self.decoder.limits().start_decode(plan.working_bytes);
        let written = self.read_plan(encoded, plan);
        let held = self.picture.held_bytes();
        if self.retention.is_excess(self.picture.needed_bytes(), held)
            || memory.is_too_much_scratch(held as u64)
        {
            self.picture = Picture::new();
        }
        self.decoder.end_decode(memory);
        let written = written?;
        self.write_resized(plan.placement.flipped_target(&self.transform), sample, rng)?;
        self.partial_samples.add(written.is_partial().into());
        Ok(written)
    }

    /// Decodes, resizes and writes an image with alpha or 16 bits.
    fn write_rgba(
        &mut self,
        encoded: &[u8],
        sample: Sample<'_>,
        plan: &FillPlan,
    ) -> Result<Written> {
        let mut rgba = self.rgba.take().unwrap_or_default();
        let region = plan.decode_request(&self.transform).region_of(plan.stored);
        let bytes = region.size().pixels().saturating_mul(RgbaPicture::PIXEL_BYTES);
        let memory = self.decoder.limits().start_decode(plan.working_bytes.saturating_add(bytes));
        let written = self.read_rgba(encoded, plan, &mut rgba);
        self.decoder.end_decode(memory);
        let written = written.and_then(|written| {
            let Placement { mirrored, upended, .. } = plan.placement;
            let target = plan.placement.flipped_target(&self.transform);
            let (fill, tensor) = (self.transform.fill(), self.transform.tensor());
            rgba.resizer.write(target, (mirrored, upended), fill, tensor, sample)?;
            Ok(written)
        });
        let held = rgba.picture.held_bytes() + rgba.resizer.held_bytes();
        self.rgba = Some(if held > KEPT_RGBA_BYTES { Box::default() } else { rgba });
        let written = written?;
        self.partial_samples.add(written.is_partial().into());
        Ok(written)
    }

    /// Decodes and resizes an image with alpha or 16 bits.
    fn read_rgba(
        &mut self,
        encoded: &[u8],
        plan: &FillPlan,
        RgbaPixels { picture, resizer }: &mut RgbaPixels,
    ) -> Result<Written> {
        let request = plan.decode_request(&self.transform);
        let tensor = self.transform.tensor();
        let depth = match tensor.format.dtype {
            DType::U16 => SampleDepth::Sixteen,
            _ => SampleDepth::Eight,
        };
        let decoded = self.decoder.decode_rgba(encoded, &request, depth, picture);
        let decoded = decoded.map_err(contradicts_header)?;
        let region = request.region_of(plan.stored);
        let written = plan.written(&self.transform, region, decoded);
        if written.is_partial() {
            plan.check_rows(&self.transform, region, decoded)
                .map_err(|error| error.with_offset(encoded.len() as u64))?;
        }
        let request = RgbaRequest {
            source: plan.placement.source,
            bounds: plan.placement.bounds,
            orientation: plan.orientation,
            target: plan.placement.target.size(),
            filter: self.transform.resize_filter(),
            keeps_alpha: tensor.color == SampleColor::Rgba,
        };
        resizer.resize(picture, &request, self.decoder.limits())?;
        Ok(written)
    }

    /// Decodes and resizes an image.
    fn read_plan(&mut self, encoded: &[u8], plan: &FillPlan) -> Result<Written> {
        let stored = plan.stored;
        let request = plan.decode_request(&self.transform);
        let decoded = if self.transform.is_exact() {
            self.picture.start_rgb(stored, request.region_of(stored))?;
            self.decoder.decode_into(encoded, &request, self.picture.rgb_mut()?)
        } else {
            self.decoder.decode_planes(encoded, &request, &mut self.picture)
        };
        let decoded = decoded.map_err(contradicts_header)?;
        let region = request.region_of(stored);
        let written = plan.written(&self.transform, region, decoded);
        if written.is_partial() {
            plan.check_rows(&self.transform, region, decoded)
                .map_err(|error| error.with_offset(encoded.len() as u64))?;
        }
        let request = plan.resize_request(&self.transform);
        self.resizer.resize(&self.picture, &request, &mut self.resized)?;
        Ok(written)
    }

    pub(crate) fn decoder(&mut self) -> &mut Decoder {
        &mut self.decoder
    }

    /// The tensor that a sample becomes.
    pub(super) fn tensor(&self) -> &TensorSpec {
        self.transform.tensor()
    }

    /// Changes only the sample size of the transform.
    pub(crate) fn set_size(&mut self, size: Size) -> Result<()> {
        if self.transform.size() != size {
            let transform = self.transform.clone().resized_to(size);
            transform.validate()?;
            self.transform = transform;
            self.writer = SampleWriter::new(&self.transform);
            #[cfg(feature = "augment")]
            if let Some(Augmentation { augmenter, pixels, .. }) = self.augmentation.take() {
                let augmentation = Augmentation::new(augmenter, pixels, &self.transform);
                self.augmentation = Some(augmentation);
            }
        }
        Ok(())
    }

    fn check_sample(&self, sample: &Sample<'_>) -> Result<()> {
        let crops = self.transform.crops().unwrap_or(1);
        let expected = self.transform.tensor().values() as usize * crops;
        let format = self.transform.sample_format();
        let found = SampleFormat { dtype: sample.dtype(), ..format };
        if found != format || sample.len() != expected {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "cannot write {expected} {format} values to a buffer of {} {found} values",
                    sample.len()
                ),
            ));
        }
        Ok(())
    }
}

fn one_sample() -> Error {
    let message = "several crops of an image are written by `FillImage::write` only";
    Error::new(ErrorKind::Unsupported, message)
}

/// Checks that the batch has two fields: images and labels.
fn check_count(fields: &[Field]) -> Result<()> {
    if fields.len() == LABELS + 1 {
        return Ok(());
    }
    let names: Vec<&str> = fields.iter().map(|field| &*field.name).collect();
    Err(invalid(format!(
        "`FillImage` writes two fields, images and labels, but the batch has {}: {}; to write \
             other fields, call `FillImage::write_field` from a custom `Fill`",
        names.len(),
        names.join(", ")
    )))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

impl Fill<Labeled<Bytes>> for FillImage {
    fn fill(
        &mut self,
        item: Labeled<Bytes>,
        mut slot: SlotMut<'_>,
        cx: &mut FillContext<'_>,
    ) -> Result<()> {
        check_count(slot.fields())?;
        self.write_field(&item.value, &mut slot, IMAGES, cx)?;
        slot.set(LABELS, item.label)
    }

    /// Checks that the first field holds the samples, and the second field an `i64` label.
    fn check_fields(&self, fields: &[Field]) -> Result<()> {
        check_count(fields)?;
        self.check_field(&fields[IMAGES])?;
        let labels = &fields[LABELS];
        if labels.dtype == DType::I64 && labels.shape.is_empty() {
            return Ok(());
        }
        Err(invalid(format!(
            "field {:?} of the batch is {} {:?}, but a label is a scalar of type {}",
            labels.name,
            labels.dtype,
            labels.shape,
            DType::I64
        )))
    }
}

impl FillPlan {
    fn new(info: &ImageInfo, (placement, canvas): (Placement, Option<PlacedPart>)) -> Self {
        let ImageInfo { size: stored, orientation, working_bytes } = *info;
        // The box consists of whole pixels, in stored coordinates too.
        let bounds = orientation.box_to_stored(placement.bounds.into(), stored);
        FillPlan {
            placement,
            canvas,
            orientation,
            stored,
            working_bytes,
            source: orientation.box_to_stored(placement.source, stored),
            bounds: Rect {
                left: bounds.left as u32,
                top: bounds.top as u32,
                width: bounds.width as u32,
                height: bounds.height as u32,
            },
        }
    }

    /// The region to decode, and the minimum size of a reduced result: the target size times the
    /// minimum ratio of the filter.
    fn decode_request(&self, transform: &ImageTransform) -> DecodeRequest {
        let target = self.orientation.apply(self.placement.target.size());
        let needed = needed_region(self.source, target, transform.resize_filter(), self.stored);
        let axis = |needed: (u32, u32), bounds: (u32, u32)| {
            let first = needed.0.max(bounds.0);
            let end = (needed.0 + needed.1).min(bounds.0 + bounds.1);
            // An empty box at an edge of the image still gives a region of at least one pixel.
            (first.min(bounds.0 + bounds.1 - 1), end.saturating_sub(first).max(1))
        };
        let bounds = self.bounds;
        let (left, width) = axis((needed.left, needed.width), (bounds.left, bounds.width));
        let (top, height) = axis((needed.top, needed.height), (bounds.top, bounds.height));
        let ratio = transform.resize_filter().min_decode_ratio();
        let smallest = |region: u32, target: u32, source: f64| {
            let resized = f64::from(region) * f64::from(target) / source;
            ((resized * ratio).ceil() as u32).clamp(1, region)
        };
        let smallest = Size::new(
            smallest(width, target.width, self.source.width),
            smallest(height, target.height, self.source.height),
        );
        DecodeRequest::full()
            .region(Rect { left, top, width, height })
            .at_least(smallest)
            .on_truncated(transform.truncation())
            .exact(transform.is_exact())
    }

    /// The end of the decoded rows of `region`, in pixels of the stored image.
    fn decoded_end(region: Rect, decoded: Decoded) -> f64 {
        let scale = f64::from(region.height) / f64::from(decoded.size.height);
        f64::from(region.top) + f64::from(decoded.rows_valid) * scale
    }

    /// Checks that the decoded rows are a sufficient share of the rows that the sample shows.
    fn check_rows(&self, transform: &ImageTransform, region: Rect, decoded: Decoded) -> Result<()> {
        let rows = Self::decoded_end(region, decoded) - self.source.top;
        let share = (rows / self.source.height).clamp(0.0, 1.0);
        let least = transform.min_partial_share();
        if share >= least {
            return Ok(());
        }
        let (found, least) = (share * 100.0, least * 100.0);
        let message = format!(
            "truncated image: {found:.0} % of the rows of the crop were decoded; expected at least \
             {least:.0} %"
        );
        Err(Error::new(ErrorKind::Truncated, message))
    }

    /// The valid part of the sample, given the decoded rows of `region`.
    fn written(&self, transform: &ImageTransform, region: Rect, decoded: Decoded) -> Written {
        let size = transform.size();
        let (image, placement) = (self.orientation.apply(self.stored), self.placement);
        let canvas = self.canvas;
        let whole = Written { image, placement, size, valid: Rect::full(size), canvas };
        if decoded.rows_valid >= decoded.size.height {
            return whole;
        }
        let target = self.orientation.apply(self.placement.target.size());
        // In pixels of the stored image: the first missing row, and how far a filter extends from
        // the centre of a pixel.
        let end = Self::decoded_end(region, decoded);
        let per_row = self.source.height / f64::from(target.height);
        let reach = filter_reach(per_row, transform.resize_filter());
        let rows = (end - reach - self.source.top) / per_row + 0.5;
        let rows = (rows.floor().max(0.0) as u32).min(target.height);
        if rows == target.height {
            return whole;
        }
        // Stored rows are rows or columns of the upright image, counted from the start or from the
        // end.
        let start = if self.orientation.mirrors().1 { target.height - rows } else { 0 };
        let mut valid = self.placement.target;
        if self.orientation.swaps_sides() {
            (valid.left, valid.width) = (valid.left + start, rows);
        } else {
            (valid.top, valid.height) = (valid.top + start, rows);
        }
        if self.placement.mirrored {
            valid.left = size.width - valid.left - valid.width;
        }
        if self.placement.upended {
            valid.top = size.height - valid.top - valid.height;
        }
        Written { valid, ..whole }
    }

    fn resize_request(&self, transform: &ImageTransform) -> ResizeRequest {
        ResizeRequest {
            source: self.source,
            bounds: self.bounds,
            orientation: self.orientation,
            mirrored: (self.placement.mirrored, self.placement.upended),
            target: self.placement.target.size(),
            filter: transform.resize_filter(),
        }
    }
}

impl Placement {
    /// The rectangle of the image in the sample after flips.
    fn flipped_target(&self, transform: &ImageTransform) -> Rect {
        let Rect { left, top, width, height } = self.target;
        let sample = transform.size();
        Rect {
            left: if self.mirrored { sample.width - left - width } else { left },
            top: if self.upended { sample.height - top - height } else { top },
            width,
            height,
        }
    }
}

impl std::fmt::Debug for FillImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FillImage")
            .field("decoder", &self.decoder)
            .field("transform", &self.transform)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::OnTruncated;
    use crate::transform::{Crop, ResizeFilter};

    #[test]
    fn only_the_needed_region_and_scale_are_requested() {
        // The upright image has 300 x 400 pixels. It is resized to 75 x 100 and cropped to rows 12
        // to 87.
        let stored = Size::new(400, 300);
        let info = ImageInfo::new(stored, Orientation::Rotated90);
        let transform = ImageTransform::with_size(Size::new(75, 75))
            .crop(Crop::ResizedCenter { covering: Size::new(75, 75) })
            .filter(ResizeFilter::Area)
            .on_truncated(OnTruncated::Partial);
        let none = || unreachable!("the crop is not random");
        let plan = FillPlan::new(&info, (transform.place(info.upright_size(), none), None));
        let request = plan.decode_request(&transform);
        let region = Rect { left: 48, top: 0, width: 300, height: 300 };
        assert_eq!(request.region_of(stored), region);
        // The area filter needs every pixel, so the image is not reduced.
        assert_eq!(request.smallest(), Some(Size::new(300, 300)));
        assert_eq!(request.truncation(), OnTruncated::Partial);
        // Filters with a larger support need a margin, which is scaled with the region. The decoded
        // size may be halved if at least 1.5 times the sample's size remains.
        let request = plan.decode_request(&transform.clone().filter(ResizeFilter::Bilinear));
        let region = Rect { left: 42, top: 0, width: 312, height: 300 };
        assert_eq!(request.region_of(stored), region);
        assert_eq!(request.smallest(), Some(Size::new(117, 113)));
        assert_eq!(plan.decode_request(&transform.clone().exact(true)).smallest(), None);
        // If the part of the image is given, pixels outside it have no influence: only the part is
        // decoded, for every filter.
        let part = Rect { left: 10, top: 120, width: 200, height: 160 };
        let plan = FillPlan::new(&info, (Placement::part(part, transform.size()), None));
        let wide = transform.clone().filter(ResizeFilter::Lanczos3);
        let region = Rect { left: 120, top: 90, width: 160, height: 200 };
        assert_eq!(plan.decode_request(&wide).region_of(stored), region);
        // If the sample is larger than the region, the request is not enlarged.
        let larger = ImageTransform::new(900).crop(Crop::Stretch);
        let plan = FillPlan::new(&info, (larger.place(info.upright_size(), none), None));
        assert_eq!(plan.decode_request(&larger).smallest(), Some(stored));
    }

    // promise: R4
    #[test]
    fn a_decode_waits_for_the_memory_of_other_decodes() {
        let encoded = include_bytes!("../../tests/data/420.jpg");
        let limits = Limits::default().concurrent_bytes(1);
        let transform = ImageTransform::new(8);
        let registry = CodecRegistry::with_defaults();
        let mut fill = FillImage::new(&registry, &transform, &limits).unwrap();
        let other = limits.start_decode(1);
        let (send, done) = std::sync::mpsc::channel();
        let decode = std::thread::spawn(move || {
            let mut pixels = vec![0; 8 * 8 * 3];
            let none = || unreachable!("the crop is not random");
            let written = fill.write(encoded, Sample::U8(&mut pixels), none);
            send.send(written.is_ok()).unwrap();
        });
        let waits = done.recv_timeout(std::time::Duration::from_millis(300));
        assert!(waits.is_err(), "the decode did not wait");
        drop(other);
        assert!(done.recv().unwrap());
        decode.join().unwrap();
    }

    #[cfg(all(feature = "png", feature = "records"))]
    // promise: IMG8
    #[test]
    fn images_on_a_canvas_equal_those_of_torchvision() {
        use crate::transform::canvas_tests as canvas;
        use crate::transform::{CanvasAxis, RandomZoomOut};
        let mut totals = [0, 0];
        for (case, part) in canvas::golden() {
            let side = |name: &str, at: usize| case[name][at].as_u64().unwrap() as u32;
            let size = Size::new(side("size", 0), side("size", 1));
            let digits = case["mask"].as_str().unwrap();
            let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
            let encoded: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
            let transform = ImageTransform::with_size(size)
                .crop(Crop::Stretch)
                .zoom_out(RandomZoomOut::new().fill([114; 3]))
                .color(SampleColor::Grey)
                .exact(true);
            let registry = CodecRegistry::with_defaults();
            let mut fill = FillImage::new(&registry, &transform, &Limits::default()).unwrap();
            let mut found = vec![0; size.pixels() as usize];
            let info = fill.inspect(&encoded).unwrap();
            let image = InspectedImage { info, part: Some(part), rng: None };
            let written = fill.write_inspected(&encoded, Sample::U8(&mut found), image).unwrap();
            let expected = case["moved_image"].as_array().unwrap();
            let placed = written.canvas.unwrap();
            // Edges of the image are not blended with the canvas: only pixels are compared whose filter shows one of
            // them.
            let filter = |axis: &CanvasAxis, at: u32, side: u32| {
                let (middle, reach) = (f64::from(at) + 0.5, axis.scale.max(1.0) + 0.5 * axis.scale);
                let (start, end) = axis.shown;
                // The image ends at an edge of the sample if it is cropped there.
                let is_inside = (start < 1e-9 || middle - reach >= start)
                    && (end > f64::from(side) - 1e-9 || middle + reach <= end);
                (is_inside, middle + reach <= start || middle - reach >= end)
            };
            let mut compared = [0, 0];
            for (at, expected) in expected.iter().enumerate() {
                let (x, y) = (at as u32 % size.width, at as u32 / size.width);
                let (across, down) =
                    (filter(&placed.x, x, size.width), filter(&placed.y, y, size.height));
                let difference = i64::from(found[at]) - expected.as_i64().unwrap();
                if across.1 || down.1 {
                    assert_eq!((difference, found[at]), (0, 114), "{x}, {y} of {case}");
                    compared[1] += 1;
                } else if across.0 && down.0 {
                    assert!(difference.abs() <= 1, "{difference} at {x}, {y} of {case}");
                    compared[0] += 1;
                }
            }
            totals[0] += compared[0];
            totals[1] += compared[1];
        }
        assert!(totals.iter().all(|&total| total > 1000), "{totals:?}");
    }
}
