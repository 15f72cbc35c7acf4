//! Images that are made of parts of several images of a batch, with their boxes and masks.
//!
//! | file | content |
//! |---|---|
//! | `mosaic` | [`Mosaic`]: four images around a centre |
//! | `copy_paste` | [`CopyPaste`]: objects of another image on an image |
//!
//! Both draw the parts of each new image. [`CombinedFields`] copies their pixels, and gathers their boxes.

mod copy_paste;
mod mosaic;

use std::sync::Arc;

use spdl_core::memory::BufferPool;
use spdl_core::stage::Collation;
use spdl_core::{Array, Batch, DType, Error, ErrorKind, Result};

pub use self::copy_paste::CopyPaste;
pub use self::mosaic::Mosaic;
use super::geometry::Boxes;
use super::spec::{FieldKind, SampleField, SampleSpec};
use crate::image::{Rect, Size};
use crate::transform::Layout;

/// The fields of a batch that change if parts of its images are combined: one image, the masks and
/// the boxes that follow it, and the rows that belong to the boxes.
#[derive(Clone, Debug)]
struct CombinedFields {
    /// The size of all images.
    size: Size,
    /// The image is the first.
    pixels: Vec<PixelField>,
    boxes: Vec<BoxField>,
    pool: BufferPool,
}

/// An array of pixels that are copied.
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

/// A part of an image of the batch, and its place in the new image. Both have the same size.
#[derive(Clone, Copy, Debug)]
struct Piece {
    sample: usize,
    source: Rect,
    target: Rect,
}

/// A box of a new image, and its sample and row in the old batch.
#[derive(Clone, Copy, Debug)]
struct PlacedBox {
    values: [f64; 4],
    sample: usize,
    row: usize,
}

impl CombinedFields {
    /// The fields that follow `image`. `what` names the combination in errors.
    ///
    /// # Errors
    /// `InvalidArgument` if the field is not an image of one size; `Unsupported` if key points or a
    /// geometry follow the image, or if the boxes or their rows are not [lists](Collation::List).
    fn new(spec: &SampleSpec, image: &str, what: &str) -> Result<Self> {
        spec.validate()?;
        let transform = match spec.transform_of(image) {
            Some(transform) if transform.crops().is_none() => transform,
            _ => return Err(invalid(format!("field {image:?} is not an image of one crop"))),
        };
        let size = transform.fixed_size();
        if size.pixels() == 0 {
            return Err(invalid(format!(
                "{what} needs images of one size; choose another crop for {image:?}"
            )));
        }
        let (format, channels) = (transform.sample_format(), transform.sample_color().channels());
        let (planes, per_pixel) = match format.layout {
            Layout::Nhwc => (1, channels),
            Layout::Nchw => (channels, 1),
        };
        let pixel_bytes = per_pixel * format.dtype.size();
        let (mut pixels, mut boxes) = (Vec::new(), Vec::new());
        pixels.push(PixelField { name: image.into(), planes, pixel_bytes });
        for (name, field) in spec.fields() {
            let fault = |what: &str| {
                let message = format!("field {name:?}: {what}");
                Err(Error::new(ErrorKind::Unsupported, message))
            };
            match &field.kind {
                #[cfg(feature = "png")]
                FieldKind::Mask(mask) if *mask.like == *image => {
                    let pixel_bytes = field.dtype().size();
                    pixels.push(PixelField { name: name.into(), planes: 1, pixel_bytes });
                }
                FieldKind::Boxes(own) if *own.like == *image => {
                    let rows =
                        spec.fields().filter(|(_, one)| one.rows_of.as_deref() == Some(name));
                    let rows: Vec<(Arc<str>, &SampleField)> =
                        rows.map(|(name, one)| (Arc::from(name), one)).collect();
                    let mut lists = rows.iter().map(|(_, one)| *one).chain([field]);
                    if !lists.all(|one| one.collated() == Collation::List) {
                        return fault(&format!("{what} needs lists of boxes and of their rows"));
                    }
                    boxes.push(BoxField {
                        name: name.into(),
                        boxes: own.clone(),
                        rows: rows.into_iter().map(|(name, _)| name).collect(),
                    });
                }
                FieldKind::Points(points) if *points.like == *image => {
                    return fault(&format!("key points cannot follow {what}"));
                }
                FieldKind::Geometry(like) if **like == *image => {
                    return fault(&format!("the result of {what} has no geometry"));
                }
                _ => {}
            }
        }
        Ok(CombinedFields { size, pixels, boxes, pool: BufferPool::new() })
    }

    /// The name of the image.
    fn image(&self) -> &str {
        self.pixels.first().map_or("", |one| &one.name)
    }

    /// Replaces the pixels of each sample by its pieces, later ones above earlier ones. A sample
    /// without pieces remains as it is.
    fn copy_pixels(&self, batch: &mut Batch, pieces: &[Vec<Piece>]) -> Result<()> {
        for field in &self.pixels {
            let array = batch.array(&field.name).ok_or_else(|| missing(&field.name))?;
            let copied = self.copied(field, array, pieces)?;
            batch.replace(&field.name, copied)?;
        }
        Ok(())
    }

    fn copied(&self, field: &PixelField, array: &Array, pieces: &[Vec<Piece>]) -> Result<Array> {
        let PixelField { planes, pixel_bytes, .. } = *field;
        let from = array.as_bytes();
        let row = self.size.width as usize * pixel_bytes;
        let plane = self.size.height as usize * row;
        let sample = planes * plane;
        if from.len() != pieces.len() * sample {
            return Err(invalid(format!(
                "field {:?} has the shape {:?}, which is not that of its specification",
                field.name,
                array.shape()
            )));
        }
        let mut copied =
            Array::new(array.dtype(), array.shape().to_vec(), self.pool.take(from.len())?)?;
        let to = copied.as_bytes_mut();
        for (own, pieces) in pieces.iter().enumerate() {
            let to = &mut to[own * sample..][..sample];
            if pieces.is_empty() {
                to.copy_from_slice(&from[own * sample..][..sample]);
            }
            for piece in pieces {
                let from = &from[piece.sample * sample..][..sample];
                let bytes = piece.target.width as usize * pixel_bytes;
                let start = |rect: Rect, at: usize, y: u32| {
                    at * plane + (rect.top + y) as usize * row + rect.left as usize * pixel_bytes
                };
                for at in 0..planes {
                    for y in 0..piece.target.height {
                        to[start(piece.target, at, y)..][..bytes]
                            .copy_from_slice(&from[start(piece.source, at, y)..][..bytes]);
                    }
                }
            }
        }
        Ok(copied)
    }

    /// Replaces the boxes of each sample, and the rows that belong to them.
    fn replace_boxes(
        &self,
        field: &BoxField,
        batch: &mut Batch,
        boxes: &[Vec<PlacedBox>],
    ) -> Result<()> {
        let list = self.boxes_of(field, batch)?;
        let counts: Vec<usize> = list.iter().map(rows_of).collect();
        let mut moved = Vec::new();
        for boxes in boxes {
            let mut array = self.array(DType::F32, vec![boxes.len(), 4])?;
            let values = boxes.iter().flat_map(|one| one.values).map(|side| side as f32);
            for (to, value) in array.as_mut_slice::<f32>()?.iter_mut().zip(values) {
                *to = value;
            }
            moved.push(array);
        }
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
                boxes.iter().zip(list).map(|(boxes, own)| self.gathered(name, list, own, boxes));
            let lists = lists.collect::<Result<Vec<_>>>()?;
            batch.replace_list(name, lists)?;
        }
        Ok(())
    }

    /// The boxes of each sample of a batch.
    fn boxes_of<'batch>(&self, field: &BoxField, batch: &'batch Batch) -> Result<&'batch [Array]> {
        batch.list(&field.name).ok_or_else(|| missing(&field.name))
    }

    /// The rows of a list of arrays. Without any row, the array has the further dimensions of `own`.
    fn gathered(
        &self,
        name: &str,
        list: &[Array],
        own: &Array,
        boxes: &[PlacedBox],
    ) -> Result<Array> {
        let of_row = match boxes.first() {
            Some(one) => &list[one.sample].shape()[1..],
            None => own.shape().get(1..).unwrap_or(&[]),
        };
        let shape = [boxes.len()].into_iter().chain(of_row.iter().copied()).collect();
        let mut array = self.array(own.dtype(), shape)?;
        let bytes = array.as_bytes().len() / boxes.len().max(1);
        for (at, one) in boxes.iter().enumerate() {
            let from = &list[one.sample];
            if &from.shape()[1..] != of_row {
                return Err(invalid(format!(
                    "the rows of field {name:?} differ in shape: {:?} and {of_row:?}",
                    &from.shape()[1..]
                )));
            }
            array.as_bytes_mut()[at * bytes..][..bytes]
                .copy_from_slice(&from.as_bytes()[one.row * bytes..][..bytes]);
        }
        Ok(array)
    }

    fn array(&self, dtype: DType, shape: Vec<usize>) -> Result<Array> {
        let bytes = shape.iter().product::<usize>() * dtype.size();
        Array::new(dtype, shape, self.pool.take(bytes)?)
    }
}

/// The boxes of a sample as they are.
fn unchanged(list: &[Array], sample: usize) -> Result<Vec<PlacedBox>> {
    let (boxes, _) = list[sample].as_slice::<f32>()?.as_chunks::<4>();
    let placed = boxes.iter().enumerate();
    Ok(placed.map(|(row, one)| PlacedBox { values: one.map(f64::from), sample, row }).collect())
}

fn fraction(name: &str, value: f64) -> Result<f64> {
    if (0.0..=1.0).contains(&value) {
        return Ok(value);
    }
    Err(invalid(format!("invalid {name} {value}: expected 0 to 1")))
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
