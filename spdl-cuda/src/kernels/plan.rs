//! From a part of a stored image to a sample: crop box, size, filter, orientation and flips.

use spdl_core::{Error, ErrorKind, Result};
use spdl_media::image::CropBox;
use spdl_media::transform::Placement;
use spdl_media::{Orientation, Rect, ResizeFilter, Size};

use super::invalid;
use crate::pixels::{MAX_SIDE, SourceImage};

/// How a part of a stored image becomes a sample.
///
/// The part is resized, then transposed, then flipped. The eight EXIF orientations are the
/// combinations of transposition and flips.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResizePlan {
    pub(super) source: CropBox,
    pub(super) bounds: Option<Rect>,
    pub(super) size: Size,
    pub(super) filter: ResizeFilter,
    pub(super) transpose: bool,
    pub(super) horizontal_flip: bool,
    pub(super) vertical_flip: bool,
}

impl ResizePlan {
    /// Resizes `source` to `size` with the bilinear filter, without transposition and flips.
    ///
    /// Both arguments are in the coordinates of the stored image. If the image is transposed, width
    /// and height of `size` are exchanged in the sample.
    pub fn new(source: CropBox, size: Size) -> Self {
        ResizePlan {
            source,
            bounds: None,
            size,
            filter: ResizeFilter::default(),
            transpose: false,
            horizontal_flip: false,
            vertical_flip: false,
        }
    }

    /// Resizes a whole stored image to an upright sample.
    pub fn whole(stored: Size, orientation: Orientation, sample: Size) -> Self {
        let upright = Rect::full(orientation.apply(stored));
        ResizePlan::upright(upright.into(), upright, stored, orientation, sample)
    }

    /// Creates the plan that places an upright image in its sample as `placement` defines.
    ///
    /// # Errors
    /// `Unsupported` if the placed image does not cover the whole sample.
    pub fn of_placement(
        placement: &Placement,
        stored: Size,
        orientation: Orientation,
        sample: Size,
    ) -> Result<Self> {
        if placement.target != Rect::full(sample) {
            let message = format!(
                "the device cannot pad an image: the resized image covers only {:?} of a sample of \
                 {sample} pixels",
                placement.target
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let Placement { source, bounds, mirrored, upended, .. } = *placement;
        let mut plan = ResizePlan::upright(source, bounds, stored, orientation, sample);
        plan.horizontal_flip ^= mirrored;
        plan.vertical_flip ^= upended;
        Ok(plan)
    }

    /// Resizes a part of the upright image.
    fn upright(
        source: CropBox,
        bounds: Rect,
        stored: Size,
        orientation: Orientation,
        sample: Size,
    ) -> Self {
        let transpose = orientation.swaps_sides();
        let (from_right, from_bottom) = orientation.mirrors();
        let mut plan =
            ResizePlan::new(orientation.box_to_stored(source, stored), orientation.apply(sample));
        plan.bounds = Some(stored_rect(bounds, stored, orientation));
        plan.transpose = transpose;
        (plan.horizontal_flip, plan.vertical_flip) =
            if transpose { (from_bottom, from_right) } else { (from_right, from_bottom) };
        plan
    }

    /// The pixels that the filter may read. Default: only the pixels that the source touches, so
    /// that the result is the same as if the image were cropped first.
    #[must_use]
    pub fn bounds(mut self, bounds: Rect) -> Self {
        self.bounds = Some(bounds);
        self
    }

    /// The resize filter: bilinear or bicubic. Default: [`ResizeFilter::Bilinear`].
    #[must_use]
    pub fn filter(mut self, filter: ResizeFilter) -> Self {
        self.filter = filter;
        self
    }

    /// Whether rows become columns. Default: no.
    #[must_use]
    pub fn transpose(mut self, transpose: bool) -> Self {
        self.transpose = transpose;
        self
    }

    /// Whether the sample is mirrored left to right. Default: no.
    #[must_use]
    pub fn horizontal_flip(mut self, flip: bool) -> Self {
        self.horizontal_flip = flip;
        self
    }

    /// Whether the sample is mirrored top to bottom. Default: no.
    #[must_use]
    pub fn vertical_flip(mut self, flip: bool) -> Self {
        self.vertical_flip = flip;
        self
    }

    /// The source range on each axis of `image`.
    pub(super) fn spans(&self, image: &SourceImage) -> Result<[AxisSpan; 2]> {
        let CropBox { left, top, width, height } = self.source;
        let bounds = |bound: fn(&Rect) -> (u32, u32)| self.bounds.as_ref().map(bound);
        let x = AxisSpan::new(left, width, bounds(|rect| (rect.left, rect.width)), image.width);
        let y = AxisSpan::new(top, height, bounds(|rect| (rect.top, rect.height)), image.height);
        match (x, y) {
            (Some(x), Some(y)) => Ok([x, y]),
            _ => Err(invalid(format!(
                "invalid crop {:?} with bounds {:?}: not inside the image of {}x{} pixels",
                self.source, self.bounds, image.width, image.height
            ))),
        }
    }
}

/// Converts a rectangle of the upright image to a rectangle of the stored image. If the rectangle
/// is not inside the image, the result is not inside either, and [`ResizePlan::spans`] rejects it.
fn stored_rect(upright: Rect, stored: Size, orientation: Orientation) -> Rect {
    // The computation is exact: `f64` represents all 32-bit integers and their differences.
    let CropBox { left, top, width, height } = orientation.box_to_stored(upright.into(), stored);
    let start = |value: f64| if value < 0.0 { u32::MAX } else { value as u32 };
    Rect { left: start(left), top: start(top), width: width as u32, height: height as u32 }
}

/// A source range on one axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct AxisSpan {
    pub(super) start: f64,
    pub(super) extent: f64,
    /// The pixels that the filter may read: from `first` up to, but not including, `end`.
    pub(super) first: u32,
    pub(super) end: u32,
}

impl AxisSpan {
    fn new(start: f64, extent: f64, bounds: Option<(u32, u32)>, length: u32) -> Option<Self> {
        let farthest = 2.0 * f64::from(MAX_SIDE);
        let is_valid = start.abs() <= farthest && extent > 0.0 && extent <= farthest;
        if !is_valid {
            return None;
        }
        let last = f64::from(length) - 1.0;
        let (first, count) = bounds.unwrap_or_else(|| {
            // The range is clamped to the image: it contains at least the first or the last pixel.
            let first = start.floor().clamp(0.0, last);
            let end = (start + extent).ceil().clamp(first + 1.0, last + 1.0);
            (first as u32, (end - first) as u32)
        });
        let end = first.checked_add(count)?;
        let is_inside = count > 0 && end <= length;
        is_inside.then_some(AxisSpan { start, extent, first, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pixel_of_the_upright_image_is_read_where_it_is_stored() {
        let stored = Size::new(7, 5);
        for orientation in Orientation::ALL {
            let upright = orientation.apply(stored);
            let (width, height) = (upright.width, upright.height);
            for (x, y) in (0..height).flat_map(|y| (0..width).map(move |x| (x, y))) {
                let bounds = Rect { left: x, top: y, width: 1, height: 1 };
                let placement = Placement {
                    source: bounds.into(),
                    bounds,
                    target: Rect { left: 0, top: 0, width: 1, height: 1 },
                    mirrored: false,
                    upended: false,
                };
                let sample = Size::new(1, 1);
                let plan =
                    ResizePlan::of_placement(&placement, stored, orientation, sample).unwrap();
                let (left, top) = orientation.point_to_stored(x, y, stored);
                let pixel = Rect { left, top, width: 1, height: 1 };
                assert_eq!(plan.source, pixel.into(), "{orientation:?}, pixel {x}, {y}");
                assert_eq!(plan.bounds, Some(pixel), "{orientation:?}, pixel {x}, {y}");
            }
        }
    }

    #[test]
    fn an_orientation_is_a_transposition_and_flips() {
        // EXIF 2.32, 4.6.4: transpose, horizontal flip, vertical flip.
        let expected = [
            (false, false, false),
            (false, true, false),
            (false, true, true),
            (false, false, true),
            (true, false, false),
            (true, true, false),
            (true, true, true),
            (true, false, true),
        ];
        for (orientation, expected) in Orientation::ALL.into_iter().zip(expected) {
            let plan = ResizePlan::whole(Size::new(4, 3), orientation, Size::new(8, 6));
            let found = (plan.transpose, plan.horizontal_flip, plan.vertical_flip);
            assert_eq!(found, expected, "{orientation:?}");
            assert_eq!(plan.size, orientation.apply(Size::new(8, 6)));
            assert_eq!(plan.source, Rect::full(Size::new(4, 3)).into());
        }
    }

    #[test]
    fn two_flips_cancel() {
        let (stored, sample) = (Size::new(4, 3), Size::new(8, 6));
        let whole = Rect::full(stored);
        let placement = Placement {
            source: whole.into(),
            bounds: whole,
            target: Rect::full(sample),
            mirrored: true,
            upended: false,
        };
        let flipped = Orientation::FlippedHorizontally;
        let plan = ResizePlan::of_placement(&placement, stored, flipped, sample).unwrap();
        assert_eq!(plan, ResizePlan::whole(stored, Orientation::Upright, sample));
    }

    #[test]
    fn a_padded_sample_is_unsupported() {
        let placement = Placement {
            source: Rect::full(Size::new(4, 2)).into(),
            bounds: Rect::full(Size::new(4, 2)),
            target: Rect { left: 0, top: 2, width: 8, height: 4 },
            mirrored: false,
            upended: false,
        };
        let plan = ResizePlan::of_placement(
            &placement,
            Size::new(4, 2),
            Orientation::Upright,
            Size::new(8, 8),
        );
        assert_eq!(plan.unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
