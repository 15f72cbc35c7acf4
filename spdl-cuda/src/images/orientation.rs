//! From a part of the upright image to what the kernels are told of the stored one.

use crate::kernels::{Filter, PixelBox, PixelRect, ResizePlan};

/// Which part of an upright image becomes the whole of the sample, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placed {
    /// The part.
    pub source: PixelBox,
    /// The pixels that have influence on it.
    pub bounds: PixelRect,
    /// Whether the sample is mirrored left to right.
    pub mirrored: bool,
    /// Whether the sample is mirrored top to bottom.
    pub upended: bool,
}

impl Placed {
    /// All of an image of so many pixels.
    pub fn whole(width: u32, height: u32) -> Placed {
        Placed {
            source: PixelBox { left: 0.0, top: 0.0, width: width.into(), height: height.into() },
            bounds: PixelRect { left: 0, top: 0, width, height },
            mirrored: false,
            upended: false,
        }
    }

    /// What the kernels are told, so that a stored image of so many columns and rows, turned upright as
    /// its [header](crate::jpeg::JpegHeader::orientation) says, becomes a sample of so many.
    pub fn plan(
        &self,
        orientation: u8,
        stored: (u32, u32),
        sample: (u32, u32),
        filter: Filter,
    ) -> ResizePlan {
        Turn::of(orientation).plan(self, stored, sample, filter)
    }
}

/// How a stored image is turned upright: rows and columns are exchanged, then it is mirrored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    transposed: bool,
    mirrored: bool,
    upended: bool,
}

impl Turn {
    /// That of an orientation of EXIF. What is none counts as upright.
    pub(super) fn of(orientation: u8) -> Turn {
        let (transposed, mirrored, upended) = match orientation {
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, true, false),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => (false, false, false),
        };
        Turn { transposed, mirrored, upended }
    }

    /// The columns and rows of the upright image.
    pub(super) fn upright(self, (width, height): (u32, u32)) -> (u32, u32) {
        if self.transposed { (height, width) } else { (width, height) }
    }

    /// The plan for a stored image of which this part, once upright, becomes a sample of so many
    /// columns and rows.
    pub(super) fn plan(
        self,
        placed: &Placed,
        stored: (u32, u32),
        (columns, rows): (u32, u32),
        filter: Filter,
    ) -> ResizePlan {
        let (width, height) = self.upright(stored);
        let PixelBox { left, top, width: across, height: down } = placed.source;
        let left = if self.mirrored { f64::from(width) - left - across } else { left };
        let top = if self.upended { f64::from(height) - top - down } else { top };
        let PixelRect { left: first, top: above, width: wide, height: high } = placed.bounds;
        // Bounds that are not inside the image are found out by the table.
        let other_end = |all: u32, start: u32, count: u32| {
            all.checked_sub(start).and_then(|rest| rest.checked_sub(count)).unwrap_or(u32::MAX)
        };
        let first = if self.mirrored { other_end(width, first, wide) } else { first };
        let above = if self.upended { other_end(height, above, high) } else { above };
        let plan = if self.transposed {
            let source = PixelBox { left: top, top: left, width: down, height: across };
            let bounds = PixelRect { left: above, top: first, width: high, height: wide };
            ResizePlan::new(source, rows, columns).bounds(bounds)
        } else {
            let source = PixelBox { left, top, width: across, height: down };
            let bounds = PixelRect { left: first, top: above, width: wide, height: high };
            ResizePlan::new(source, columns, rows).bounds(bounds)
        };
        plan.filter(filter)
            .transposed(self.transposed)
            .mirrored(self.mirrored != placed.mirrored)
            .upended(self.upended != placed.upended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a pixel of the upright image comes from in the stored one, by the words of EXIF: what is
    /// at the left and at the top.
    fn stored(orientation: u8, (x, y): (u32, u32), (width, height): (u32, u32)) -> (u32, u32) {
        let (right, bottom) = (width - 1, height - 1);
        match orientation {
            2 => (right - x, y),
            3 => (right - x, bottom - y),
            4 => (x, bottom - y),
            5 => (y, x),
            6 => (y, bottom - x),
            7 => (right - y, bottom - x),
            8 => (right - y, x),
            _ => (x, y),
        }
    }

    #[test]
    fn a_pixel_of_the_upright_image_is_read_where_it_is_stored() {
        let size = (7, 5);
        for orientation in 0..=9 {
            let turn = Turn::of(orientation);
            let (width, height) = turn.upright(size);
            for (x, y) in (0..height).flat_map(|y| (0..width).map(move |x| (x, y))) {
                let source = PixelBox { left: x.into(), top: y.into(), width: 1.0, height: 1.0 };
                let bounds = PixelRect { left: x, top: y, width: 1, height: 1 };
                let placed = Placed { source, bounds, mirrored: false, upended: false };
                let plan = turn.plan(&placed, size, (1, 1), Filter::Bilinear);
                let (across, down) = stored(orientation, (x, y), size);
                let source = PixelBox { left: across.into(), top: down.into(), ..source };
                let bounds = PixelRect { left: across, top: down, ..bounds };
                let expected = ResizePlan::new(source, 1, 1)
                    .bounds(bounds)
                    .transposed(turn.transposed)
                    .mirrored(turn.mirrored)
                    .upended(turn.upended);
                assert_eq!(plan, expected, "orientation {orientation}, pixel {x}, {y}");
            }
        }
    }

    #[test]
    fn mirroring_twice_is_not_mirroring() {
        let placed = Placed { mirrored: true, ..Placed::whole(4, 3) };
        let plan = Turn::of(2).plan(&placed, (4, 3), (8, 6), Filter::Bicubic);
        let whole = Placed::whole(4, 3);
        let plain = ResizePlan::new(whole.source, 8, 6).bounds(whole.bounds);
        assert_eq!(plan, plain.filter(Filter::Bicubic));
    }
}
