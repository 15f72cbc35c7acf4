//! The bytes of an image file become a sample in its place in a batch.

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Fill, FillContext, Labeled, Result, SampleRng, SlotMut};

use crate::crop::{eval_box, train_box};
use crate::pixels::CHANNELS;
use crate::resize::{SquareResizer, needed_region};
use crate::{
    CodecRegistry, CropBox, DecodeRequest, Decoder, ImageInfo, ImageTransform, Layout, Limits,
    Mode, Orientation, PixelsMut, Rect, Size,
};

/// Field 0 of the layout: the pixels.
const IMAGES: usize = 0;
/// Field 1: the class.
const LABELS: usize = 1;

/// Decodes, turns upright, crops, resizes, mirrors and lays out one image, straight into its slot.
///
/// One per worker: it keeps decoders and scratch memory. The batch must have the fields of
/// [`image_fields`](crate::image_fields) for the same transform.
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
    resizer: SquareResizer,
    /// The normalised value of each byte, per channel; empty where bytes are delivered.
    lookup: Vec<[f32; 256]>,
    /// The decoded part of the image, as stored.
    decoded: Vec<u8>,
    /// The resized crop, as stored, where it cannot be resized straight into the slot.
    resized: Vec<u8>,
}

/// What of the stored image becomes the sample, and how it is turned.
struct Plan {
    /// What must be decoded.
    region: Rect,
    /// What is resized, measured from the region's corner.
    crop: CropBox,
    orientation: Orientation,
    mirrored: bool,
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
            lookup: match transform.pixel_layout() {
                Layout::NhwcU8 => Vec::new(),
                Layout::NchwF32 => transform.lookup(),
            },
            transform: transform.clone(),
            resizer: SquareResizer::new(),
            decoded: Vec::new(),
            resized: Vec::new(),
        })
    }

    /// Writes `encoded` to `sample`, with `rng` for the choices of [`Mode::Train`].
    ///
    /// # Errors
    /// As [`Decoder::decode_into`]; `InvalidArgument` where `sample` has not the transform's size.
    pub fn write(
        &mut self,
        encoded: &[u8],
        sample: Sample<'_>,
        rng: impl FnOnce() -> SampleRng,
    ) -> Result<()> {
        self.check_room(&sample)?;
        let info = self.decoder.inspect(encoded)?;
        let plan = match self.transform.crop_mode() {
            Mode::Eval => Plan::centre(&info, self.transform.size()),
            Mode::Train => {
                let (crop, mirrored) = train_box(info.upright_size(), &mut rng());
                Plan::crop(&info, crop, mirrored)
            }
        };
        self.write_plan(encoded, sample, &plan)
    }

    /// Writes this part of `encoded`, resized, to `sample`, whatever the transform's mode. `crop`
    /// lies in the upright image; what is outside has no influence.
    ///
    /// # Errors
    /// As [`write`](FillImage::write); `InvalidArgument` where `crop` is not inside the image.
    pub fn write_crop(
        &mut self,
        encoded: &[u8],
        sample: Sample<'_>,
        crop: Rect,
        mirrored: bool,
    ) -> Result<()> {
        self.check_room(&sample)?;
        let info = self.decoder.inspect(encoded)?;
        if !crop.is_within(info.upright_size()) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{crop:?} is not inside an image of {} pixels", info.upright_size()),
            ));
        }
        self.write_plan(encoded, sample, &Plan::crop(&info, crop, mirrored))
    }

    fn write_plan(&mut self, encoded: &[u8], sample: Sample<'_>, plan: &Plan) -> Result<()> {
        let region = plan.region.size();
        let bytes = region.pixels() as usize * CHANNELS;
        if self.decoded.len() < bytes {
            self.decoded.resize(bytes, 0);
        }
        let decoded = &mut self.decoded[..bytes];
        let request = DecodeRequest::full().region(plan.region);
        self.decoder.decode_into(encoded, &request, PixelsMut::new(decoded, region)?)?;

        let side = self.transform.size();
        match sample {
            Sample::U8(slot) if plan.orientation == Orientation::Upright => {
                self.resizer.resize(decoded, region, plan.crop, slot, side)?;
                if plan.mirrored {
                    mirror(slot, side);
                }
            }
            Sample::U8(slot) => {
                let resized = scratch(&mut self.resized, side);
                self.resizer.resize(decoded, region, plan.crop, resized, side)?;
                let mut target = slot.chunks_exact_mut(CHANNELS);
                plan.for_each_pixel(resized, side, |pixel| {
                    if let Some(place) = target.next() {
                        place.copy_from_slice(pixel);
                    }
                });
            }
            Sample::F32(slot) => {
                let resized = scratch(&mut self.resized, side);
                self.resizer.resize(decoded, region, plan.crop, resized, side)?;
                let [red, green, blue] = &self.lookup[..] else {
                    unreachable!("made with the layout")
                };
                let (reds, rest) = slot.split_at_mut(slot.len() / CHANNELS);
                let (greens, blues) = rest.split_at_mut(reds.len());
                let mut places = reds.iter_mut().zip(greens).zip(blues);
                plan.for_each_pixel(resized, side, |pixel| {
                    if let Some(((r, g), b)) = places.next() {
                        *r = red[usize::from(pixel[0])];
                        *g = green[usize::from(pixel[1])];
                        *b = blue[usize::from(pixel[2])];
                    }
                });
            }
        }
        Ok(())
    }

    fn check_room(&self, sample: &Sample<'_>) -> Result<()> {
        let expected = (self.transform.size() as usize).pow(2) * CHANNELS;
        let (layout, found) = match sample {
            Sample::U8(slot) => (Layout::NhwcU8, slot.len()),
            Sample::F32(slot) => (Layout::NchwF32, slot.len()),
        };
        if layout != self.transform.pixel_layout() || found != expected {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "expected room for {expected} values as {}, found {found} as {layout}",
                    self.transform.pixel_layout()
                ),
            ));
        }
        Ok(())
    }
}

/// Where a sample's pixels go, in the layout of the transform.
#[derive(Debug)]
pub enum Sample<'a> {
    /// For [`Layout::NhwcU8`]: `size` × `size` × 3 bytes.
    U8(&'a mut [u8]),
    /// For [`Layout::NchwF32`]: 3 × `size` × `size` numbers.
    F32(&'a mut [f32]),
}

impl Fill<Labeled<Bytes>> for FillImage {
    fn fill(
        &mut self,
        item: Labeled<Bytes>,
        mut slot: SlotMut<'_>,
        cx: &mut FillContext<'_>,
    ) -> Result<()> {
        if slot.fields().len() != LABELS + 1 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("expected the fields images and labels, found {:?}", slot.fields()),
            ));
        }
        let sample = match self.transform.pixel_layout() {
            Layout::NhwcU8 => Sample::U8(slot.typed_mut(IMAGES)?),
            Layout::NchwF32 => Sample::F32(slot.typed_mut(IMAGES)?),
        };
        self.write(&item.value, sample, || cx.rng())?;
        slot.set(LABELS, item.label)
    }
}

impl Plan {
    /// The centre of the image once its shorter side is resized. The filter may look beyond the
    /// box, as it does when a whole image is resized first.
    fn centre(info: &ImageInfo, side: u32) -> Self {
        let ImageInfo { size: stored, orientation } = *info;
        let crop = orientation.box_to_stored(eval_box(info.upright_size(), side), stored);
        let region = needed_region(crop, Size::new(side, side), stored);
        let crop = CropBox {
            left: (crop.left - f64::from(region.left)).max(0.0),
            top: (crop.top - f64::from(region.top)).max(0.0),
            ..crop
        };
        Plan { region, crop, orientation, mirrored: false }
    }

    /// A part of the upright image, as if it were an image of its own.
    fn crop(info: &ImageInfo, crop: Rect, mirrored: bool) -> Self {
        let ImageInfo { size: stored, orientation } = *info;
        // Whole pixels stay whole.
        let crop = orientation.box_to_stored(crop.into(), stored);
        let region = Rect {
            left: crop.left as u32,
            top: crop.top as u32,
            width: crop.width as u32,
            height: crop.height as u32,
        };
        Plan { region, crop: Rect::full(region.size()).into(), orientation, mirrored }
    }

    /// Visits the pixels of the upright, perhaps mirrored sample, row by row.
    fn for_each_pixel(&self, resized: &[u8], side: u32, mut visit: impl FnMut(&[u8])) {
        let square = Size::new(side, side);
        let side = side as usize;
        let at = |(x, y): (u32, u32)| (y as usize * side + x as usize) * CHANNELS;
        for y in 0..square.height {
            // Along an upright row the stored position moves by the same step each time.
            let start = at(self.orientation.point_to_stored(0, y, square)) as isize;
            let step = match square.width {
                1 => 0,
                _ => at(self.orientation.point_to_stored(1, y, square)) as isize - start,
            };
            let last = start + step * (side as isize - 1);
            let (mut from, step) = if self.mirrored { (last, -step) } else { (start, step) };
            for _ in 0..side {
                visit(&resized[from as usize..from as usize + CHANNELS]);
                from += step;
            }
        }
    }
}

/// The first `side` × `side` pixels of a buffer that grows where it must.
fn scratch(buffer: &mut Vec<u8>, side: u32) -> &mut [u8] {
    buffer.resize((side as usize).pow(2) * CHANNELS, 0);
    buffer
}

/// Mirrors rows of RGB pixels left to right.
fn mirror(pixels: &mut [u8], side: u32) {
    for row in pixels.chunks_exact_mut(side as usize * CHANNELS) {
        let (pixels, _) = row.as_chunks_mut::<CHANNELS>();
        pixels.reverse();
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
