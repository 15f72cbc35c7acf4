//! Mosaics of the images of a batch, with their boxes and masks.

use std::sync::Arc;

use spdl_core::memory::BufferPool;
use spdl_core::stage::Collation;
use spdl_core::{Array, Batch, DType, Error, ErrorKind, Result, SampleRng, Stage, StageContext};

use super::geometry::{Boxes, Mapping};
use super::image::Written;
use super::spec::{FieldKind, SampleField, SampleSpec};
use crate::image::{Rect, Size};
use crate::transform::{Layout, Placement};

/// Replaces images of a batch by mosaics of four of its images, with their boxes and masks.
///
/// The four images, of which one is the image itself, meet at a random centre. Each keeps its size and is
/// clipped, as in the mosaic of YOLOv4 (Bochkovskiy et al. 2020, arXiv:2004.10934). Boxes are moved and
/// clipped; those below the limits of their field are dropped, with the rows of the fields that
/// [belong to them](SampleField::rows_of). Fields that do not follow the image remain as they are.
///
/// Made by [`SampleSpec::mosaic`]. As a stage of batches, it uses the random numbers of the first sample
/// of the batch.
///
/// ```
/// use spdl_core::DType;
/// use spdl_core::stage::Collation;
/// use spdl_media::ImageTransform;
/// use spdl_media::fill::{Boxes, SampleField, SampleSpec};
/// let boxes = SampleField::boxes(Boxes::like("image").min_visibility(0.1));
/// let spec = SampleSpec::new()
///     .with("image", SampleField::image(ImageTransform::new(640)))
///     .with("boxes", boxes.collation(Collation::List))
///     .with("classes", SampleField::numbers(DType::I64, &[0]).rows_of("boxes").collation(Collation::List));
/// let mosaic = spec.mosaic("image")?.probability(0.5)?;
/// # let _ = mosaic;
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mosaic {
    probability: f64,
    center: (f64, f64),
    size: Size,
    pixels: Vec<PixelField>,
    boxes: Vec<BoxField>,
    pool: BufferPool,
}

/// An array of pixels that are moved.
#[derive(Clone, Debug)]
struct PixelField {
    name: Arc<str>,
    planes: usize,
    pixel_bytes: usize,
}

#[derive(Clone, Debug)]
struct BoxField {
    name: Arc<str>,
    boxes: Boxes,
    /// The fields whose rows belong to the boxes.
    rows: Vec<Arc<str>>,
}

/// The parts of one mosaic.
#[derive(Clone, Copy, Debug)]
struct Parts {
    center: [u32; 2],
    /// The samples at the upper left, upper right, lower left and lower right.
    samples: [usize; 4],
}

impl SampleSpec {
    /// Mosaics of the images of a field, with the boxes and masks that follow it.
    ///
    /// # Errors
    /// `InvalidArgument` if the field is not an image of one size; `Unsupported` if key points or a
    /// geometry follow the image, or if the boxes or their rows are not [lists](Collation::List).
    pub fn mosaic(&self, image: &str) -> Result<Mosaic> {
        self.validate()?;
        let transform = match self.transform_of(image) {
            Some(transform) if transform.crops().is_none() => transform,
            _ => return Err(invalid(format!("field {image:?} is not an image of one crop"))),
        };
        let size = transform.fixed_size();
        if size.pixels() == 0 {
            return Err(invalid(format!(
                "a mosaic needs images of one size; choose another crop for {image:?}"
            )));
        }
        let mut mosaic = Mosaic {
            probability: 1.0,
            center: (0.25, 0.75),
            size,
            pixels: Vec::new(),
            boxes: Vec::new(),
            pool: BufferPool::new(),
        };
        let (format, channels) = (transform.sample_format(), transform.sample_color().channels());
        let (planes, per_pixel) = match format.layout {
            Layout::Nhwc => (1, channels),
            Layout::Nchw => (channels, 1),
        };
        let pixel_bytes = per_pixel * format.dtype.size();
        mosaic.pixels.push(PixelField { name: image.into(), planes, pixel_bytes });
        for (name, field) in self.fields() {
            let fault = |what: &str| {
                let message = format!("field {name:?}: {what}");
                Err(Error::new(ErrorKind::Unsupported, message))
            };
            match &field.kind {
                #[cfg(feature = "png")]
                FieldKind::Mask(mask) if *mask.like == *image => {
                    let pixel_bytes = field.dtype().size();
                    mosaic.pixels.push(PixelField { name: name.into(), planes: 1, pixel_bytes });
                }
                FieldKind::Boxes(boxes) if *boxes.like == *image => {
                    let rows =
                        self.fields().filter(|(_, one)| one.rows_of.as_deref() == Some(name));
                    let rows = rows.map(|(name, one)| (Arc::from(name), one));
                    let rows: Vec<(Arc<str>, &SampleField)> = rows.collect();
                    let mut lists = rows.iter().map(|(_, one)| *one).chain([field]);
                    if !lists.all(|one| one.collated() == Collation::List) {
                        return fault("a mosaic needs lists of boxes and of their rows");
                    }
                    mosaic.boxes.push(BoxField {
                        name: name.into(),
                        boxes: boxes.clone(),
                        rows: rows.into_iter().map(|(name, _)| name).collect(),
                    });
                }
                FieldKind::Points(points) if *points.like == *image => {
                    return fault("key points cannot follow a mosaic");
                }
                FieldKind::Geometry(like) if **like == *image => {
                    return fault("a mosaic of several images has no geometry");
                }
                _ => {}
            }
        }
        Ok(mosaic)
    }
}

impl Mosaic {
    /// The probability that an image becomes a mosaic. Default: 1.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not 0 to 1.
    pub fn probability(mut self, probability: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&probability) {
            return Err(invalid(format!("invalid probability {probability}: expected 0 to 1")));
        }
        self.probability = probability;
        Ok(self)
    }

    /// The range of the centre, uniform, as fractions of width and height. Default: 0.25 to 0.75.
    ///
    /// 0 to 1 shows as much of each image as the mosaics of YOLOv5 and later, before their random scale.
    ///
    /// # Errors
    /// `InvalidArgument` if the bounds do not ascend from 0 to 1.
    pub fn center(mut self, least: f64, most: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&least) || !(least..=1.0).contains(&most) {
            return Err(invalid(format!(
                "invalid range of the centre, {least} to {most}: expected fractions that ascend"
            )));
        }
        self.center = (least, most);
        Ok(self)
    }

    /// The name and all settings, for
    /// [`StageOptions::parameters`](spdl_core::StageOptions::parameters).
    pub fn parameters(&self) -> impl Iterator<Item = (String, String)> {
        let Mosaic { probability, center: (least, most), pixels, .. } = self;
        let image = pixels.first().map_or("", |one| &one.name);
        [
            ("augmentation", "Mosaic".to_owned()),
            ("probability", probability.to_string()),
            ("center", format!("{least} to {most}")),
            ("images", image.to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
    }

    /// Draws the mosaics of a batch and makes them.
    ///
    /// # Errors
    /// `InvalidArgument` if the batch lacks a field, or the rows of a field are not those of its boxes;
    /// `LimitExceeded` if memory cannot be allocated.
    pub fn apply(&self, mut batch: Batch, rng: &mut SampleRng) -> Result<Batch> {
        let count = batch.len();
        let all: Vec<Option<Parts>> = (0..count).map(|own| self.draw(own, count, rng)).collect();
        for field in &self.pixels {
            let array = batch.array(&field.name).ok_or_else(|| missing(&field.name))?;
            let moved = self.moved_pixels(field, array, &all)?;
            batch.replace(&field.name, moved)?;
        }
        for field in &self.boxes {
            self.move_boxes(field, &mut batch, &all)?;
        }
        Ok(batch)
    }

    /// Draws the parts of the mosaic for the sample `own`; `None` if it remains as it is.
    fn draw(&self, own: usize, count: usize, rng: &mut SampleRng) -> Option<Parts> {
        // All are drawn for every sample, so that the probability does not change later ones.
        let is_mosaic = rng.chance(self.probability);
        let (least, most) = self.center;
        let center = [self.size.width, self.size.height].map(|side| {
            let at = (rng.range(least, most) * f64::from(side)).round() as u32;
            at.min(side)
        });
        let mut samples = [own; 4];
        let place = rng.below(4) as usize;
        for (at, sample) in samples.iter_mut().enumerate() {
            let other = rng.below(count.saturating_sub(1) as u64) as usize;
            if at != place && count > 1 {
                *sample = (own + 1 + other) % count;
            }
        }
        is_mosaic.then_some(Parts { center, samples })
    }

    fn moved_pixels(
        &self,
        field: &PixelField,
        array: &Array,
        all: &[Option<Parts>],
    ) -> Result<Array> {
        let PixelField { planes, pixel_bytes, .. } = *field;
        let from = array.as_bytes();
        let row = self.size.width as usize * pixel_bytes;
        let plane = self.size.height as usize * row;
        let sample = planes * plane;
        if from.len() != all.len() * sample {
            return Err(invalid(format!(
                "field {:?} has the shape {:?}, which is not that of its specification",
                field.name,
                array.shape()
            )));
        }
        let mut moved =
            Array::new(array.dtype(), array.shape().to_vec(), self.pool.take(from.len())?)?;
        let to = moved.as_bytes_mut();
        for (own, parts) in all.iter().enumerate() {
            let to = &mut to[own * sample..][..sample];
            let Some(parts) = parts else {
                to.copy_from_slice(&from[own * sample..][..sample]);
                continue;
            };
            for (other, source, target) in parts.places(self.size) {
                let from = &from[other * sample..][..sample];
                let bytes = target.width as usize * pixel_bytes;
                for at in 0..planes {
                    for y in 0..target.height {
                        let start = |rect: Rect| {
                            at * plane
                                + (rect.top + y) as usize * row
                                + rect.left as usize * pixel_bytes
                        };
                        to[start(target)..][..bytes]
                            .copy_from_slice(&from[start(source)..][..bytes]);
                    }
                }
            }
        }
        Ok(moved)
    }

    fn move_boxes(&self, field: &BoxField, batch: &mut Batch, all: &[Option<Parts>]) -> Result<()> {
        let list = batch.list(&field.name).ok_or_else(|| missing(&field.name))?;
        // The rows of each sample, as sample and row.
        let mut origins: Vec<Vec<(usize, usize)>> = Vec::new();
        let mut moved = Vec::new();
        for (own, parts) in all.iter().enumerate() {
            let mut rows = Vec::new();
            let mut values = Vec::<f32>::new();
            match parts {
                None => {
                    values.extend_from_slice(list[own].as_slice::<f32>()?);
                    rows.extend((0..values.len() / 4).map(|row| (own, row)));
                }
                Some(parts) => {
                    for (other, source, target) in parts.places(self.size) {
                        if target.size().pixels() == 0 {
                            continue;
                        }
                        let mapping = Mapping::new(&self.written(source, target));
                        let (boxes, _) = list[other].as_slice::<f32>()?.as_chunks::<4>();
                        for (row, one) in boxes.iter().enumerate() {
                            let one = one.map(f64::from);
                            if let Some(one) =
                                field.boxes.moved(one, &mapping, self.size, self.size, &[])
                            {
                                values.extend(one.map(|side| side as f32));
                                rows.push((other, row));
                            }
                        }
                    }
                }
            }
            let mut array = self.array(DType::F32, vec![rows.len(), 4])?;
            array.as_mut_slice::<f32>()?.copy_from_slice(&values);
            moved.push(array);
            origins.push(rows);
        }
        let counts: Vec<usize> = list.iter().map(rows_of).collect();
        batch.replace_list(&field.name, moved)?;
        for name in &field.rows {
            let list = batch.list(name).ok_or_else(|| missing(name))?;
            if let Some(at) = (0..list.len()).find(|&at| rows_of(&list[at]) != counts[at]) {
                return Err(invalid(format!(
                    "field {name:?} of the sample at {} has {} rows for {} boxes",
                    batch.ids()[at],
                    rows_of(&list[at]),
                    counts[at]
                )));
            }
            let lists =
                origins.iter().zip(list).map(|(rows, own)| self.gathered(name, list, own, rows));
            let lists = lists.collect::<Result<Vec<_>>>()?;
            batch.replace_list(name, lists)?;
        }
        Ok(())
    }

    /// The rows of a list of arrays. Without any row, the array has the further dimensions of `own`.
    fn gathered(
        &self,
        name: &str,
        list: &[Array],
        own: &Array,
        rows: &[(usize, usize)],
    ) -> Result<Array> {
        let of_row = match rows.first() {
            Some(&(sample, _)) => &list[sample].shape()[1..],
            None => own.shape().get(1..).unwrap_or(&[]),
        };
        let shape = [rows.len()].into_iter().chain(of_row.iter().copied()).collect();
        let mut array = self.array(own.dtype(), shape)?;
        let bytes = array.as_bytes().len() / rows.len().max(1);
        for (at, &(sample, row)) in rows.iter().enumerate() {
            let from = &list[sample];
            if &from.shape()[1..] != of_row {
                return Err(invalid(format!(
                    "the rows of field {name:?} differ in shape: {:?} and {of_row:?}",
                    &from.shape()[1..]
                )));
            }
            array.as_bytes_mut()[at * bytes..][..bytes]
                .copy_from_slice(&from.as_bytes()[row * bytes..][..bytes]);
        }
        Ok(array)
    }

    fn array(&self, dtype: DType, shape: Vec<usize>) -> Result<Array> {
        let bytes = shape.iter().product::<usize>() * dtype.size();
        Array::new(dtype, shape, self.pool.take(bytes)?)
    }

    /// A part of one image that became a part of the mosaic.
    fn written(&self, source: Rect, target: Rect) -> Written {
        let size = self.size;
        let placement = Placement { target, ..Placement::part(source, size) };
        Written { image: size, placement, size, valid: Rect::full(size) }
    }
}

impl Parts {
    /// The samples, the part of each image, and its place in the mosaic.
    fn places(self, size: Size) -> impl Iterator<Item = (usize, Rect, Rect)> {
        let [x, y] = self.center;
        // Of an axis: the start in the image, the start in the mosaic, and the length.
        let axis =
            |center: u32, side: u32| [(side - center, 0, center), (0, center, side - center)];
        let (across, down) = (axis(x, size.width), axis(y, size.height));
        self.samples.into_iter().enumerate().map(move |(at, sample)| {
            let ((left, to_left, width), (top, to_top, height)) = (across[at % 2], down[at / 2]);
            let source = Rect { left, top, width, height };
            (sample, source, Rect { left: to_left, top: to_top, width, height })
        })
    }
}

/// Uses the random numbers of the first sample of the batch.
impl Stage<Batch> for Mosaic {
    type Out = Batch;

    fn process(&mut self, batch: Batch, cx: &mut StageContext<'_, Batch>) -> Result<()> {
        let made = self.apply(batch, &mut cx.rng())?;
        cx.emit(made)
    }
}

fn rows_of(array: &Array) -> usize {
    array.shape().first().copied().unwrap_or(0)
}

fn missing(name: &str) -> Error {
    invalid(format!("the batch has no field {name:?}"))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}
