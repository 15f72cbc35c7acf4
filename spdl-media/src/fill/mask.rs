//! Segmentation masks that follow an image.

use std::sync::Arc;

use spdl_core::{DType, Error, ErrorKind, Result, SlotMut};

use super::image::Written;
use crate::formats::png::{self, PngNumbers};
use crate::image::Limits;

/// A mask of class numbers that follows an image: see [`SampleField::mask`](super::SampleField::mask).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask {
    pub(super) like: Arc<str>,
    outside: u8,
}

impl Mask {
    /// A mask of the image of the field `like`.
    pub fn like(like: impl Into<Arc<str>>) -> Self {
        Mask { like: like.into(), outside: 0 }
    }

    /// Sets the number of pixels outside the image, such as the ignored class 255, and of all pixels
    /// if a sample lacks its mask or its image. Default: 0.
    #[must_use]
    pub fn outside(mut self, number: u8) -> Self {
        self.outside = number;
        self
    }

    /// Writes a mask without a pixel of the image.
    ///
    /// # Errors
    /// `InvalidArgument` if the field has another type than `uint8` and `int64`.
    pub(super) fn write_outside(&self, slot: &mut SlotMut<'_>, field: usize) -> Result<()> {
        match slot.fields()[field].dtype {
            DType::U8 => slot.typed_mut::<u8>(field)?.fill(self.outside),
            DType::I64 => slot.typed_mut::<i64>(field)?.fill(self.outside.into()),
            other => return Err(wrong_dtype(other)),
        }
        Ok(())
    }
}

/// Decodes masks. Keeps its memory.
#[derive(Debug, Default)]
pub(super) struct MaskDecoder {
    pixels: Vec<u8>,
    /// The column of the mask for each column of the sample that shows the image.
    columns: Vec<usize>,
}

impl MaskDecoder {
    /// Writes a mask into a field, with the crop, resize and flips of its image.
    ///
    /// # Errors
    /// `Unsupported` if the mask is not a grey or palette PNG; the errors of its decoder;
    /// `InvalidArgument` if the mask and its image differ in size, or if the field's type cannot
    /// hold a number.
    pub(super) fn write(
        &mut self,
        mask: &Mask,
        encoded: &[u8],
        limits: &Limits,
        written: &Written,
        slot: &mut SlotMut<'_>,
        field: usize,
    ) -> Result<()> {
        let MaskDecoder { pixels, columns } = self;
        let stored = png::decode_numbers(encoded, limits, pixels)?;
        if stored.size != written.image {
            let (size, expected) = (stored.size, written.image);
            let message = format!("the mask has {size} pixels, but its image has {expected}");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        match slot.fields()[field].dtype {
            DType::U8 => {
                let out = slot.typed_mut::<u8>(field)?;
                sample(&stored, columns, mask, written, out, |number| number.try_into().ok())
            }
            DType::I64 => {
                let out = slot.typed_mut::<i64>(field)?;
                sample(&stored, columns, mask, written, out, |number| Some(number.into()))
            }
            other => Err(wrong_dtype(other)),
        }
    }
}

/// Writes the numbers that the pixels of a sample show. `columns` is memory that is kept.
fn sample<T: Copy>(
    stored: &PngNumbers<'_>,
    columns: &mut Vec<usize>,
    mask: &Mask,
    written: &Written,
    out: &mut [T],
    convert: impl Fn(u16) -> Option<T>,
) -> Result<()> {
    let number = |number: u16| {
        convert(number).ok_or_else(|| {
            let message = format!("class number {number} exceeds 255; use int64");
            Error::new(ErrorKind::InvalidArgument, message)
        })
    };
    let (placement, size) = (written.placement, written.size);
    let (source, target, bounds) = (placement.source, placement.target, placement.bounds);
    out.fill(number(mask.outside.into())?);
    // The source position of the centre of a target position, as for `ResizeFilter::Nearest`.
    let nearest = |at: u32, start: f64, per_pixel: f64, first: u32, side: u32| {
        let middle = start + (f64::from(at) + 0.5) * per_pixel;
        (middle.max(0.0) as u32).clamp(first, first + side - 1) as usize
    };
    let per_column = source.width / f64::from(target.width);
    let per_row = source.height / f64::from(target.height);
    let column = |at| nearest(at, source.left, per_column, bounds.left, bounds.width);
    columns.clear();
    columns.extend((0..target.width).map(column));
    for at in 0..target.height {
        let row = nearest(at, source.top, per_row, bounds.top, bounds.height);
        let y = target.top + at;
        let y = if placement.upended { size.height - 1 - y } else { y };
        let to = &mut out[(y * size.width) as usize..][..size.width as usize];
        for (at, &column) in columns.iter().enumerate() {
            let x = target.left as usize + at;
            let x = if placement.mirrored { to.len() - 1 - x } else { x };
            to[x] = number(stored.get(row, column))?;
        }
    }
    Ok(())
}

fn wrong_dtype(dtype: DType) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("a mask is uint8 or int64, not {dtype}"))
}
