//! The bytes of an image file become a sample in its place in a batch.

use bytes::Bytes;
use spdl_core::observe::Counter;
use spdl_core::{
    DType, Error, ErrorKind, Field, Fill, FillContext, Labeled, Result, SampleRng, SlotMut,
};

#[cfg(feature = "augment")]
use crate::augment::{Augmenter, ImageMut};
use crate::image::{
    CodecRegistry, CropBox, DecodeRequest, Decoded, Decoder, ImageInfo, Limits, Orientation,
    Picture, Rect, Retention, Size,
};
#[cfg(feature = "augment")]
use crate::transform::SampleColor;
use crate::transform::{
    ImageTransform, Placement, ResizeRequest, ResizedPlanes, Resizer, Sample, SampleFormat,
    SampleWriter, needed_region, reach,
};

/// Field 0 of the layout: the pixels.
const IMAGES: usize = 0;
/// Field 1: the class.
const LABELS: usize = 1;

/// Decodes, turns upright, crops, resizes, mirrors and lays out one image, straight into its slot.
///
/// One per worker: it keeps decoders and scratch memory. Once it has seen images of the largest size,
/// it allocates nothing itself, and neither does this crate's JPEG decoder; the libraries behind some
/// other formats do, for every image. What one image much larger than the others has needed is given
/// back after some twenty of them. The batch must have the fields of
/// [`image_fields`](crate::image_fields) for the same transform.
///
/// With [`OnTruncated::Partial`](crate::OnTruncated::Partial) a sample may be black in part:
/// [`write`](FillImage::write) tells which part is not, and
/// [`count_partial`](FillImage::count_partial) counts such samples in a pipeline.
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
    /// The decoded part of the image, as stored.
    picture: Picture,
    retention: Retention,
    partial_samples: Counter,
    resizer: Resizer,
    /// The part of the image as it is seen in the sample.
    resized: ResizedPlanes,
    writer: SampleWriter,
    #[cfg(feature = "augment")]
    augmentation: Option<Augmentation>,
}

/// Random changes of a sample before it is laid out.
#[cfg(feature = "augment")]
struct Augmentation {
    augmenter: Augmenter,
    /// Interleaved RGB of the sample's size.
    pixels: Vec<u8>,
    writer: SampleWriter,
}

/// What was written to a sample.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The size of the sample.
    pub size: Size,
    /// The part of the sample, as it is laid out, that shows what the file says. All of it, except
    /// where the data end early and [`OnTruncated::Partial`](crate::OnTruncated::Partial) allows that:
    /// then what else there is of the image is black, or mixed with black. It may be empty. Where the
    /// image was turned or mirrored, it need not be at the top.
    pub valid: Rect,
}

impl Written {
    /// Whether a part of the sample shows nothing because its data end early.
    pub fn is_partial(&self) -> bool {
        self.valid != Rect::full(self.size)
    }
}

/// What of a stored image becomes the sample, and how it is turned.
struct Plan {
    placement: Placement,
    orientation: Orientation,
    stored: Size,
    /// What is resized, in the stored image.
    source: CropBox,
    /// What of the stored image has influence.
    bounds: Rect,
}

impl FillImage {
    /// A worker's own transform.
    ///
    /// # Errors
    /// As [`ImageTransform::validate`].
    pub fn new(
        registry: &CodecRegistry,
        transform: &ImageTransform,
        limits: &Limits,
    ) -> Result<Self> {
        transform.validate()?;
        Ok(FillImage {
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

    /// Changes samples at random once they are resized and mirrored, and before they are normalised
    /// and laid out: the whole sample, with what is around the image. The random numbers are the
    /// sample's own, and follow those that the crop was drawn with.
    ///
    /// ```
    /// use spdl_core::StageOptions;
    /// use spdl_media::augment::{Augmenter, TrivialAugmentWide};
    /// use spdl_media::{CodecRegistry, FillImage, ImageTransform, Limits, Mode};
    /// let transform = ImageTransform::new(224).mode(Mode::Train);
    /// let augmenter = Augmenter::new().then(TrivialAugmentWide::new());
    /// // For the stage: so a run that is resumed with others is told what differs.
    /// let decode = StageOptions::new("decode")
    ///     .parameters(transform.parameters())
    ///     .parameters(augmenter.parameters());
    /// let fill = FillImage::new(&CodecRegistry::with_defaults(), &transform, &Limits::default())?
    ///     .augment(augmenter)?;
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Augmenter::validate`].
    #[cfg(feature = "augment")]
    pub fn augment(mut self, augmenter: Augmenter) -> Result<Self> {
        augmenter.validate()?;
        let rgb = self.transform.clone().format(SampleFormat::NHWC_U8).color(SampleColor::Rgb);
        self.augmentation = (!augmenter.is_empty()).then(|| Augmentation {
            augmenter,
            pixels: vec![0; rgb.tensor().values() as usize],
            writer: SampleWriter::new(&rgb),
        });
        Ok(self)
    }

    /// Counts with `counter` the samples that [`write`](FillImage::write) and the pipeline's stage
    /// deliver though their data end early: those that are [partial](Written::is_partial). All
    /// workers may count with clones of one counter.
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
    /// // Once the pipeline has run:
    /// println!("{} samples are not whole", partial.get());
    /// ```
    #[must_use]
    pub fn count_partial(mut self, counter: Counter) -> Self {
        self.partial_samples = counter;
        self
    }

    /// Writes `encoded` to `sample`, with `rng` for what is random in the transform. Tells which
    /// part of the sample shows what the file says.
    ///
    /// # Errors
    /// As [`Decoder::decode_planes`]; `InvalidArgument` where `sample` has not the transform's size
    /// or type.
    pub fn write(
        &mut self,
        encoded: &[u8],
        sample: Sample<'_>,
        rng: impl FnOnce() -> SampleRng,
    ) -> Result<Written> {
        self.check_room(&sample)?;
        let info = self.decoder.inspect(encoded)?;
        let mut rng = self.draws().then(rng);
        let placement = self.transform.place_with(info.upright_size(), rng.as_mut());
        self.write_plan(encoded, sample, &Plan::new(&info, placement), rng)
    }

    /// Writes `encoded` to a field of a slot, as [`write`](FillImage::write) does with the random
    /// numbers of the context: for a [`Fill`] of yours that writes other fields too. Two of them that
    /// are given the same context, as an image and its mask, draw the same crop and the same
    /// mirroring, where both have the same [`Crop`](crate::Crop) and flips, and their images are of
    /// one size.
    ///
    /// # Errors
    /// As for [`write`](FillImage::write) and [`check_field`](FillImage::check_field).
    ///
    /// # Panics
    /// Where the layout has no such field.
    pub fn write_field(
        &mut self,
        encoded: &[u8],
        slot: &mut SlotMut<'_>,
        field: usize,
        cx: &FillContext<'_>,
    ) -> Result<Written> {
        self.check_field(&slot.fields()[field])?;
        let sample = match self.transform.sample_format().dtype {
            DType::F16 => Sample::F16(slot.typed_mut(field)?),
            DType::BF16 => Sample::BF16(slot.typed_mut(field)?),
            DType::F32 => Sample::F32(slot.typed_mut(field)?),
            _ => Sample::U8(slot.typed_mut(field)?),
        };
        self.write(encoded, sample, || cx.rng())
    }

    /// Checks that a field is as samples are: their type and their shape.
    ///
    /// # Errors
    /// `InvalidArgument`, with what both are, where it is not.
    pub fn check_field(&self, field: &Field) -> Result<()> {
        let format = self.transform.sample_format();
        let shape = self.transform.tensor().shape();
        if (field.dtype, &field.shape[..]) == (format.dtype, &shape[..]) {
            return Ok(());
        }
        Err(mismatch(format!(
            "the transform gives {} {shape:?} ({format}, {} pixels), but the field {:?} of the batch \
             is {} {:?}; make the layout with `image_fields` of the same transform, or set the \
             transform's `format`, `color` or size",
            format.dtype,
            self.transform.size(),
            field.name,
            field.dtype,
            field.shape
        )))
    }

    /// Whether anything of a sample is random.
    fn draws(&self) -> bool {
        #[cfg(feature = "augment")]
        if self.augmentation.is_some() {
            return true;
        }
        self.transform.is_random()
    }

    /// Writes this part of `encoded`, resized, to the whole of `sample`, whatever the transform
    /// crops, and without augmentations. `crop` lies in the upright image; what is outside has no
    /// influence.
    ///
    /// # Errors
    /// As [`write`](FillImage::write); `InvalidArgument` where `crop` is not inside the image.
    pub fn write_crop(
        &mut self,
        encoded: &[u8],
        sample: Sample<'_>,
        crop: Rect,
        mirrored: bool,
    ) -> Result<Written> {
        self.check_room(&sample)?;
        let info = self.decoder.inspect(encoded)?;
        if !crop.is_within(info.upright_size()) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{crop:?} is not inside an image of {} pixels", info.upright_size()),
            ));
        }
        let placement = Placement { mirrored, ..Placement::part(crop, self.transform.size()) };
        self.write_plan(encoded, sample, &Plan::new(&info, placement), None)
    }

    /// Writes an image that is decoded already to `sample`, with `rng` for what is random in the
    /// transform. `picture` is as stored, and must be turned by `orientation`; what it does not hold
    /// of its image has no influence.
    ///
    /// # Errors
    /// `InvalidArgument` where `sample` has not the transform's size or type, or where the picture
    /// holds nothing of what is to be seen.
    pub fn write_picture(
        &mut self,
        picture: &Picture,
        orientation: Orientation,
        sample: Sample<'_>,
        rng: impl FnOnce() -> SampleRng,
    ) -> Result<()> {
        self.check_room(&sample)?;
        let info = ImageInfo::new(picture.image(), orientation);
        let mut rng = self.draws().then(rng);
        let placement = self.transform.place_with(info.upright_size(), rng.as_mut());
        let request = Plan::new(&info, placement).resize_request(&self.transform);
        self.resizer.resize(picture, &request, &mut self.resized)?;
        self.lay_out(placement.target_once_mirrored(&self.transform), sample, rng)
    }

    /// Writes the resized planes to their place in the sample, changed where `rng` is given and
    /// there are augmentations.
    fn lay_out(&mut self, target: Rect, sample: Sample<'_>, rng: Option<SampleRng>) -> Result<()> {
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
        plan: &Plan,
        rng: Option<SampleRng>,
    ) -> Result<Written> {
        let stored = plan.stored;
        let request = plan.decode_request(&self.transform);
        let decoded = if self.transform.is_exact() {
            self.picture.start_rgb(stored, request.region_of(stored))?;
            self.decoder.decode_into(encoded, &request, self.picture.rgb_mut()?)?
        } else {
            self.decoder.decode_planes(encoded, &request, &mut self.picture)?
        };
        let region = request.region_of(stored);
        let request = plan.resize_request(&self.transform);
        self.resizer.resize(&self.picture, &request, &mut self.resized)?;
        if self.retention.is_excess(self.picture.needed_bytes(), self.picture.held_bytes()) {
            self.picture = Picture::new();
        }
        self.lay_out(plan.placement.target_once_mirrored(&self.transform), sample, rng)?;
        let written = plan.written(&self.transform, region, decoded);
        self.partial_samples.add(written.is_partial().into());
        Ok(written)
    }

    pub(crate) fn decoder(&mut self) -> &mut Decoder {
        &mut self.decoder
    }

    /// Samples of another size from now on, and nothing else changed.
    pub(crate) fn set_size(&mut self, size: Size) -> Result<()> {
        if self.transform.size() != size {
            self.transform = self.transform.clone().resized_to(size);
            self.transform.validate()?;
            self.writer = SampleWriter::new(&self.transform);
        }
        Ok(())
    }

    fn check_room(&self, sample: &Sample<'_>) -> Result<()> {
        let expected = self.transform.tensor().values() as usize;
        let format = self.transform.sample_format();
        let found = SampleFormat { dtype: sample.dtype(), ..format };
        if found != format || sample.len() != expected {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "expected room for {expected} values as {format}, found {} as {found}",
                    sample.len()
                ),
            ));
        }
        Ok(())
    }
}

/// Whether there are fields for the images and for the labels, and no other.
fn check_count(fields: &[Field]) -> Result<()> {
    if fields.len() == LABELS + 1 {
        return Ok(());
    }
    let names: Vec<&str> = fields.iter().map(|field| &*field.name).collect();
    Err(mismatch(format!(
        "`FillImage` writes images and labels, two fields, but the batch has {}: {}; a `Fill` of \
         yours that calls `FillImage::write_field` writes others too",
        names.len(),
        names.join(", ")
    )))
}

fn mismatch(message: String) -> Error {
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

    /// As [`check_field`](FillImage::check_field) of the first; the second is an `i64`.
    fn check_fields(&self, fields: &[Field]) -> Result<()> {
        check_count(fields)?;
        self.check_field(&fields[IMAGES])?;
        let labels = &fields[LABELS];
        if labels.dtype == DType::I64 && labels.shape.is_empty() {
            return Ok(());
        }
        Err(mismatch(format!(
            "a label is one {}, but the field {:?} of the batch is {} {:?}",
            DType::I64,
            labels.name,
            labels.dtype,
            labels.shape
        )))
    }
}

impl Plan {
    fn new(info: &ImageInfo, placement: Placement) -> Self {
        let ImageInfo { size: stored, orientation } = *info;
        // Whole pixels stay whole.
        let bounds = orientation.box_to_stored(placement.bounds.into(), stored);
        Plan {
            placement,
            orientation,
            stored,
            source: orientation.box_to_stored(placement.source, stored),
            bounds: Rect {
                left: bounds.left as u32,
                top: bounds.top as u32,
                width: bounds.width as u32,
                height: bounds.height as u32,
            },
        }
    }

    /// What must be decoded, and how small it may be: so many times as large as what it is resized
    /// to as its filter wants.
    fn decode_request(&self, transform: &ImageTransform) -> DecodeRequest {
        let target = self.orientation.apply(self.placement.target.size());
        let needed = needed_region(self.source, target, transform.resize_filter(), self.stored);
        let axis = |needed: (u32, u32), bounds: (u32, u32)| {
            let first = needed.0.max(bounds.0);
            let end = (needed.0 + needed.1).min(bounds.0 + bounds.1);
            // A box of no width at a bound's edge could leave nothing.
            (first.min(bounds.0 + bounds.1 - 1), end.saturating_sub(first).max(1))
        };
        let bounds = self.bounds;
        let (left, width) = axis((needed.left, needed.width), (bounds.left, bounds.width));
        let (top, height) = axis((needed.top, needed.height), (bounds.top, bounds.height));
        let ratio = transform.resize_filter().least_ratio();
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

    /// Which part of the sample is as it should be where `region` was decoded to that.
    fn written(&self, transform: &ImageTransform, region: Rect, decoded: Decoded) -> Written {
        let size = transform.size();
        let whole = Written { size, valid: Rect::full(size) };
        if decoded.rows_valid >= decoded.size.height {
            return whole;
        }
        let target = self.orientation.apply(self.placement.target.size());
        // In pixels of the stored image: the first row that is not there, and how far a filter looks
        // beyond the middle of a pixel.
        let scale = f64::from(region.height) / f64::from(decoded.size.height);
        let end = f64::from(region.top) + f64::from(decoded.rows_valid) * scale;
        let per_row = self.source.height / f64::from(target.height);
        let reach = reach(per_row, transform.resize_filter());
        let rows = (end - reach - self.source.top) / per_row + 0.5;
        let rows = (rows.floor().max(0.0) as u32).min(target.height);
        if rows == target.height {
            return whole;
        }
        // Stored rows are rows or columns of the upright image, counted from either side.
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
        Written { size, valid }
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
    /// Where the image is in the sample in the end.
    fn target_once_mirrored(&self, transform: &ImageTransform) -> Rect {
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
    fn as_little_is_decoded_as_the_sample_needs() {
        // Upright, the image is 300 pixels wide and 400 high: it is resized to 75 x 100, of which
        // rows 12 to 87 are seen.
        let stored = Size::new(400, 300);
        let info = ImageInfo::new(stored, Orientation::Rotated90);
        let transform = ImageTransform::with_size(Size::new(75, 75))
            .crop(Crop::ResizedCenter { covering: Size::new(75, 75) })
            .filter(ResizeFilter::Area)
            .on_truncated(OnTruncated::Partial);
        let none = || unreachable!("nothing is random");
        let plan = Plan::new(&info, transform.place(info.upright_size(), none));
        let request = plan.decode_request(&transform);
        let region = Rect { left: 48, top: 0, width: 300, height: 300 };
        assert_eq!(request.region_of(stored), region);
        // Every pixel counts.
        assert_eq!(request.smallest(), Some(Size::new(300, 300)));
        assert_eq!(request.truncation(), OnTruncated::Partial);
        // A wider filter sees more, which is as much smaller as the rest; at half the size, four
        // pixels may have become eight. What is left may be halved while it is half as large again as
        // the sample.
        let request = plan.decode_request(&transform.clone().filter(ResizeFilter::Bilinear));
        let region = Rect { left: 42, top: 0, width: 312, height: 300 };
        assert_eq!(request.region_of(stored), region);
        assert_eq!(request.smallest(), Some(Size::new(117, 113)));
        assert_eq!(plan.decode_request(&transform.clone().exact(true)).smallest(), None);
        // A part that nothing else has influence on is all of what is decoded, however far the
        // filter looks.
        let part = Rect { left: 10, top: 120, width: 200, height: 160 };
        let plan = Plan::new(&info, Placement::part(part, transform.size()));
        let wide = transform.clone().filter(ResizeFilter::Lanczos3);
        let region = Rect { left: 120, top: 90, width: 160, height: 200 };
        assert_eq!(plan.decode_request(&wide).region_of(stored), region);
        // Nothing is asked for that is larger than the region.
        let larger = ImageTransform::new(900).crop(Crop::Stretch);
        let plan = Plan::new(&info, larger.place(info.upright_size(), none));
        assert_eq!(plan.decode_request(&larger).smallest(), Some(stored));
    }
}
