//! Segmentation masks and depth maps that follow an image.

use std::sync::Arc;

use spdl_core::memory::Element;
use spdl_core::stage::Collation;
use spdl_core::{DType, Error, ErrorKind, Field, Result, SlotMut};

use super::geometry::ImageGeometry;
use crate::formats::png::{self, PngNumbers};
use crate::image::{Limits, Size};

/// A mask of class numbers, or a depth map, that follows an image: see
/// [`SampleField::mask`](super::SampleField::mask).
#[derive(Clone, Debug, PartialEq)]
pub struct Mask {
    pub(super) like: Arc<str>,
    outside: i64,
    scale: f32,
}

impl Mask {
    /// A mask of the image of the field `like`.
    pub fn like(like: impl Into<Arc<str>>) -> Self {
        Mask { like: like.into(), outside: 0, scale: 1.0 }
    }

    /// Sets the number of pixels outside the image, such as the ignored class 255 or −100, and of all pixels
    /// if a sample lacks its mask or its image. Default: 0. Range: that of the field's integer type, or that of
    /// `uint16` in a field of `float32`.
    #[must_use]
    pub fn outside(mut self, number: i64) -> Self {
        self.outside = number;
        self
    }

    /// Sets a factor for all numbers of a field of dtype `float32`, such as the unit of a depth map.
    /// Default: 1.
    #[must_use]
    pub fn scale(mut self, factor: f32) -> Self {
        self.scale = factor;
        self
    }

    /// Checks that the field's type can hold the numbers.
    pub(super) fn validate(&self, dtype: DType) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        let outside = self.outside;
        let (least, most) = match dtype {
            DType::U8 => (0, u8::MAX.into()),
            DType::I32 => (i32::MIN.into(), i32::MAX.into()),
            DType::I64 => (i64::MIN, i64::MAX),
            _ => (0, u16::MAX.into()),
        };
        match dtype {
            _ if !(least..=most).contains(&outside) => invalid(format!(
                "outside: expected {least} to {most} for dtype {dtype}, found {outside}"
            )),
            DType::F32 if !self.scale.is_finite() => {
                invalid(format!("invalid factor of a mask: {}", self.scale))
            }
            DType::F32 => Ok(()),
            DType::U8 | DType::U16 | DType::I32 | DType::I64 if self.scale == 1.0 => Ok(()),
            DType::U8 | DType::U16 | DType::I32 | DType::I64 => {
                invalid(format!("a mask of dtype {dtype} has no factor; use float32"))
            }
            other => Err(wrong_dtype(other)),
        }
    }

    /// The element for a stored number; `None` if the type cannot hold it.
    fn element<T: MaskElement>(&self, number: i64) -> Option<T> {
        T::of(number, self.scale)
    }

    /// Sets the padding of masks of different sizes: the number outside the image.
    pub(super) fn padded(&self, field: Field) -> Field {
        macro_rules! padded {
            ($element:ty) => {
                match self.element::<$element>(self.outside) {
                    Some(element) => field.padding(element),
                    None => field,
                }
            };
        }
        match field.dtype {
            DType::U8 => padded!(u8),
            DType::U16 => padded!(u16),
            DType::I32 => padded!(i32),
            DType::I64 => padded!(i64),
            DType::F32 => padded!(f32),
            _ => field,
        }
    }

    /// Writes a mask without a pixel of the image. Without the `size` of its image, a mask whose size
    /// depends on it is empty.
    ///
    /// # Errors
    /// `InvalidArgument` if a mask cannot have the field's type.
    pub(super) fn write_outside(
        &self,
        slot: &mut SlotMut<'_>,
        field: usize,
        size: Option<Size>,
    ) -> Result<()> {
        macro_rules! fill {
            ($element:ty) => {{
                let element = self.element::<$element>(self.outside);
                elements(slot, field, size.unwrap_or(Size::new(0, 0)))?
                    .fill(element.ok_or_else(|| too_large::<$element>(self.outside))?);
                Ok(())
            }};
        }
        match slot.fields()[field].dtype {
            DType::U8 => fill!(u8),
            DType::U16 => fill!(u16),
            DType::I32 => fill!(i32),
            DType::I64 => fill!(i64),
            DType::F32 => fill!(f32),
            other => Err(wrong_dtype(other)),
        }
    }
}

/// The elements of a mask, which has the size of its image in the batch.
fn elements<'a, T: Element>(
    slot: &'a mut SlotMut<'_>,
    field: usize,
    size: Size,
) -> Result<&'a mut [T]> {
    match slot.fields()[field].collation {
        Collation::Stacked => slot.typed_mut(field),
        _ => slot.resize(field, &[size.height as usize, size.width as usize]),
    }
}

/// A type of the elements of masks.
trait MaskElement: Element {
    /// The element for a stored number; `None` if the type cannot hold it. Only `f32` is scaled.
    fn of(number: i64, scale: f32) -> Option<Self>
    where
        Self: Sized;
}

macro_rules! whole_mask_elements {
    ($($element:ty)*) => { $(
        impl MaskElement for $element {
            fn of(number: i64, _scale: f32) -> Option<$element> {
                number.try_into().ok()
            }
        }
    )* };
}
whole_mask_elements!(u8 u16 i32 i64);

impl MaskElement for f32 {
    fn of(number: i64, scale: f32) -> Option<f32> {
        Some(number as f32 * scale)
    }
}

/// The file of a mask.
#[derive(Clone, Copy)]
pub(super) struct EncodedMask<'a> {
    pub(super) bytes: &'a [u8],
    /// Whether an EXIF orientation, which is not supported, would have to be applied.
    pub(super) applies_exif: bool,
}

/// Decodes masks. Keeps its memory; a mask that follows a warp allocates memory for a copy.
#[derive(Debug, Default)]
pub(super) struct MaskDecoder {
    pixels: Vec<u8>,
    /// The column of the mask for each column of the sample that shows the image.
    columns: Vec<usize>,
}

impl MaskDecoder {
    /// Writes a mask into a field, with the crop, resize, flips and warps of its image.
    ///
    /// # Errors
    /// `Unsupported` if the mask is not a grey or palette PNG; the errors of its decoder;
    /// `InvalidArgument` if the mask and its image differ in size, or if the field's type cannot
    /// hold a number.
    pub(super) fn write(
        &mut self,
        mask: &Mask,
        EncodedMask { bytes, applies_exif }: EncodedMask<'_>,
        limits: &Limits,
        geometry: &ImageGeometry,
        slot: &mut SlotMut<'_>,
        field: usize,
    ) -> Result<()> {
        let MaskDecoder { pixels, columns } = self;
        let written = &geometry.written;
        let stored = png::decode_numbers(bytes, limits, applies_exif, pixels)?;
        if stored.size != written.image {
            let (size, expected) = (stored.size, written.image);
            let message = format!("the mask has {size} pixels, but its image has {expected}");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        macro_rules! sample_as {
            ($element:ty) => {
                sample::<$element>(
                    &stored,
                    columns,
                    mask,
                    geometry,
                    elements(slot, field, written.size)?,
                )
            };
        }
        match slot.fields()[field].dtype {
            DType::U8 => sample_as!(u8),
            DType::U16 => sample_as!(u16),
            DType::I32 => sample_as!(i32),
            DType::I64 => sample_as!(i64),
            DType::F32 => sample_as!(f32),
            other => Err(wrong_dtype(other)),
        }
    }
}

/// Writes the numbers that the pixels of a sample show. `columns` is memory that is kept.
fn sample<T: MaskElement>(
    stored: &PngNumbers<'_>,
    columns: &mut Vec<usize>,
    mask: &Mask,
    ImageGeometry { written, warps }: &ImageGeometry,
    out: &mut [T],
) -> Result<()> {
    let number = |number: i64| mask.element(number).ok_or_else(|| too_large::<T>(number));
    let (placement, size) = (written.placement, written.size);
    let (source, target, bounds) = (placement.source, placement.target, placement.bounds);
    let outside = number(mask.outside)?;
    out.fill(outside);
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
            to[x] = number(stored.get(row, column).into())?;
        }
    }
    for warp in warps {
        let source = out.to_vec();
        warp.nearest(&source, out, outside);
    }
    Ok(())
}

fn too_large<T: Element>(number: i64) -> Error {
    let message = format!("class number {number} exceeds the range of {}; use int64", T::DTYPE);
    Error::new(ErrorKind::InvalidArgument, message)
}

fn wrong_dtype(dtype: DType) -> Error {
    let message = format!("a mask is uint8, uint16, int32, int64 or float32, not {dtype}");
    Error::new(ErrorKind::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::super::geometry::tests::{canvas_golden, golden};
    use super::*;

    #[test]
    fn masks_equal_those_of_torchvision() {
        let on_canvas = canvas_golden().into_iter().map(|(case, geometry)| (case, geometry, 200));
        let cases = golden().into_iter().map(|(case, geometry)| (case, geometry, 0));
        for (case, geometry, outside) in cases.chain(on_canvas) {
            let written = &geometry.written;
            let digits = case["mask"].as_str().unwrap().as_bytes();
            let digit = |at: usize| char::from(digits[at]).to_digit(16).unwrap() as u8;
            let encoded: Vec<u8> =
                (0..digits.len()).step_by(2).map(|at| 16 * digit(at) + digit(at + 1)).collect();
            let mut pixels = Vec::new();
            let limits = Limits::default();
            let stored = png::decode_numbers(&encoded, &limits, true, &mut pixels).unwrap();
            let mut found = vec![0_i64; (written.size.width * written.size.height) as usize];
            let mask = Mask::like("image").outside(outside);
            sample(&stored, &mut Vec::new(), &mask, &geometry, &mut found).unwrap();
            let expected: Vec<i64> = serde_json::from_value(case["moved_mask"].clone()).unwrap();
            // A centre between two pixels of the part of a canvas is rounded in single precision by torchvision.
            let is_between = |at: u32, side: u32, pixels: usize| {
                let pixels = case["part"][pixels].as_f64().unwrap();
                let at = (f64::from(at) + 0.5) * pixels / f64::from(side);
                (at - at.round()).abs() < 1e-6
            };
            let differs = |at: &usize| found[*at] != expected[*at];
            for at in (0..found.len().max(expected.len())).filter(differs) {
                let (width, height) = (written.size.width, written.size.height);
                let (x, y) = (at as u32 % width, at as u32 / width);
                // The sides of the part are its third and fourth number.
                let x = if written.placement.mirrored { width - 1 - x } else { x };
                let y = if written.placement.upended { height - 1 - y } else { y };
                assert!(is_between(x, width, 2) || is_between(y, height, 3), "{x}, {y} of {case}");
            }
        }
    }
}
