//! Which part of an image becomes which target.

use spdl_core::Result;

use super::invalid;
use crate::pixels::{MAX_SIDE, SourceImage};

/// How pixels are weighed. Both are stretched by a reduction, so that every pixel counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Filter {
    /// A triangle, one pixel to each side.
    #[default]
    Bilinear,
    /// Keys' cubic with a = −½, two pixels to each side.
    Bicubic,
}

/// A rectangle whose sides may lie between pixels: pixel `(x, y)` covers `[x, x+1) × [y, y+1)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PixelBox {
    /// Distance of the left side from the image's.
    pub left: f64,
    /// Distance of the upper side from the image's.
    pub top: f64,
    /// Extent to the right.
    pub width: f64,
    /// Extent downwards.
    pub height: f64,
}

/// A rectangle of whole pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelRect {
    /// Distance of the left side from the image's.
    pub left: u32,
    /// Distance of the upper side from the image's.
    pub top: u32,
    /// Extent to the right.
    pub width: u32,
    /// Extent downwards.
    pub height: u32,
}

/// Which part of an image becomes the sample, and how: it is resized first, then rows and columns are
/// exchanged, then it is mirrored. The eight orientations of EXIF are the last three in all their
/// combinations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResizePlan {
    pub(super) source: PixelBox,
    pub(super) bounds: Option<PixelRect>,
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) filter: Filter,
    pub(super) transposed: bool,
    pub(super) mirrored: bool,
    pub(super) upended: bool,
}

impl ResizePlan {
    /// `source` becomes `width` × `height` pixels, with the bilinear filter, neither turned nor
    /// mirrored. These are pixels of the stored image: where rows and columns are exchanged, the
    /// sample has `height` columns.
    pub fn new(source: PixelBox, width: u32, height: u32) -> Self {
        ResizePlan {
            source,
            bounds: None,
            width,
            height,
            filter: Filter::default(),
            transposed: false,
            mirrored: false,
            upended: false,
        }
    }

    /// The pixels that the filter may see. Default: those that `source` touches, as if they had been
    /// cut out first.
    #[must_use]
    pub fn bounds(mut self, bounds: PixelRect) -> Self {
        self.bounds = Some(bounds);
        self
    }

    /// How pixels are weighed. Default: [`Filter::Bilinear`].
    #[must_use]
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Whether rows become columns. Default: no.
    #[must_use]
    pub fn transposed(mut self, transposed: bool) -> Self {
        self.transposed = transposed;
        self
    }

    /// Whether the sample is mirrored left to right. Default: no.
    #[must_use]
    pub fn mirrored(mut self, mirrored: bool) -> Self {
        self.mirrored = mirrored;
        self
    }

    /// Whether the sample is mirrored top to bottom. Default: no.
    #[must_use]
    pub fn upended(mut self, upended: bool) -> Self {
        self.upended = upended;
        self
    }

    /// What the plan says for each axis of `image`.
    pub(super) fn spans(&self, image: &SourceImage) -> Result<[AxisSpan; 2]> {
        let PixelBox { left, top, width, height } = self.source;
        let bounds = |bound: fn(&PixelRect) -> (u32, u32)| self.bounds.as_ref().map(bound);
        let across =
            AxisSpan::new(left, width, bounds(|rect| (rect.left, rect.width)), image.width);
        let down = AxisSpan::new(top, height, bounds(|rect| (rect.top, rect.height)), image.height);
        match (across, down) {
            (Some(across), Some(down)) => Ok([across, down]),
            _ => Err(invalid(format!(
                "expected a part of an image of {} x {} pixels, found {:?} with the bounds {:?}",
                image.width, image.height, self.source, self.bounds
            ))),
        }
    }
}

/// A part of one axis of an image.
#[derive(Clone, Copy, Debug)]
pub(super) struct AxisSpan {
    pub(super) start: f64,
    pub(super) extent: f64,
    /// The first pixel that the filter may see, and the one behind the last.
    pub(super) first: u32,
    pub(super) end: u32,
}

impl AxisSpan {
    fn new(start: f64, extent: f64, bounds: Option<(u32, u32)>, length: u32) -> Option<Self> {
        let farthest = 2.0 * f64::from(MAX_SIDE);
        let is_sound = start.abs() <= farthest && extent > 0.0 && extent <= farthest;
        if !is_sound {
            return None;
        }
        let last = f64::from(length) - 1.0;
        let (first, count) = bounds.unwrap_or_else(|| {
            // Cut to the image: numbers outside become its first or last pixel.
            let first = start.floor().clamp(0.0, last);
            let end = (start + extent).ceil().clamp(first + 1.0, last + 1.0);
            (first as u32, (end - first) as u32)
        });
        let end = first.checked_add(count)?;
        let is_inside = count > 0 && end <= length;
        is_inside.then_some(AxisSpan { start, extent, first, end })
    }
}
