//! Sizes, rectangles, crop boxes, and EXIF orientations.

use std::fmt;

/// A width and a height in pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Size {
    /// Pixels in a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

impl Size {
    /// `width` × `height` pixels.
    pub const fn new(width: u32, height: u32) -> Self {
        Size { width, height }
    }

    /// The number of pixels.
    pub fn pixels(self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Width and height exchanged.
    pub const fn transposed(self) -> Self {
        Size { width: self.height, height: self.width }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

/// A rectangle of whole pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rect {
    /// The first column.
    pub left: u32,
    /// The first row.
    pub top: u32,
    /// The number of columns.
    pub width: u32,
    /// The number of rows.
    pub height: u32,
}

impl Rect {
    /// The rectangle that covers an image.
    pub const fn full(size: Size) -> Self {
        Rect { left: 0, top: 0, width: size.width, height: size.height }
    }

    /// Width and height.
    pub const fn size(self) -> Size {
        Size { width: self.width, height: self.height }
    }

    /// Whether the rectangle holds at least one pixel and lies within an image of this size.
    pub fn is_within(self, size: Size) -> bool {
        let inside = |start: u32, extent: u32, limit: u32| {
            extent > 0 && start.checked_add(extent).is_some_and(|end| end <= limit)
        };
        inside(self.left, self.width, size.width) && inside(self.top, self.height, size.height)
    }
}

/// A rectangle at sub-pixel positions: pixel `(x, y)` covers `[x, x+1) × [y, y+1)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CropBox {
    /// Distance from the left edge of the image.
    pub left: f64,
    /// Distance from the top edge of the image.
    pub top: f64,
    /// Extent to the right.
    pub width: f64,
    /// Extent downwards.
    pub height: f64,
}

impl From<Rect> for CropBox {
    fn from(rect: Rect) -> Self {
        CropBox {
            left: f64::from(rect.left),
            top: f64::from(rect.top),
            width: f64::from(rect.width),
            height: f64::from(rect.height),
        }
    }
}

/// The EXIF tag `Orientation`, 1 to 8: how the stored rows and columns become the upright image.
///
/// "Stored" rows and columns are in the order of the file; "upright" is the image as a viewer
/// displays it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Orientation {
    /// 1: stored upright.
    #[default]
    Upright,
    /// 2: flipped horizontally.
    FlippedHorizontally,
    /// 3: rotated by 180 degrees.
    Rotated180,
    /// 4: flipped vertically.
    FlippedVertically,
    /// 5: transposed; rows and columns are exchanged.
    Transposed,
    /// 6: upright after a clockwise rotation by 90 degrees.
    Rotated90,
    /// 7: mirrored at the anti-diagonal.
    Transversed,
    /// 8: upright after a clockwise rotation by 270 degrees.
    Rotated270,
}

impl Orientation {
    /// All orientations, in the order of their EXIF numbers.
    pub const ALL: [Orientation; 8] = [
        Orientation::Upright,
        Orientation::FlippedHorizontally,
        Orientation::Rotated180,
        Orientation::FlippedVertically,
        Orientation::Transposed,
        Orientation::Rotated90,
        Orientation::Transversed,
        Orientation::Rotated270,
    ];

    /// The orientation with this EXIF number; `None` outside 1 to 8.
    pub fn from_exif(number: u16) -> Option<Self> {
        Orientation::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// The EXIF number, 1 to 8.
    pub fn exif(self) -> u16 {
        Orientation::ALL.iter().position(|&other| other == self).map_or(1, |at| at as u16 + 1)
    }

    /// Whether width and height are exchanged.
    pub fn swaps_sides(self) -> bool {
        use Orientation::*;
        matches!(self, Transposed | Rotated90 | Transversed | Rotated270)
    }

    /// The upright size of an image of this stored size, and vice versa.
    pub fn apply(self, size: Size) -> Size {
        if self.swaps_sides() { size.transposed() } else { size }
    }

    /// The stored position of a box of the upright image.
    pub fn box_to_stored(self, upright: CropBox, stored: Size) -> CropBox {
        let (from_right, from_bottom) = self.mirrors();
        let CropBox { left, top, width, height } = if self.swaps_sides() {
            CropBox {
                left: upright.top,
                top: upright.left,
                width: upright.height,
                height: upright.width,
            }
        } else {
            upright
        };
        CropBox {
            left: if from_right { f64::from(stored.width) - left - width } else { left },
            top: if from_bottom { f64::from(stored.height) - top - height } else { top },
            width,
            height,
        }
    }

    /// The stored position of pixel `(x, y)` of the upright image.
    pub fn point_to_stored(self, x: u32, y: u32, stored: Size) -> (u32, u32) {
        let (from_right, from_bottom) = self.mirrors();
        let (x, y) = if self.swaps_sides() { (y, x) } else { (x, y) };
        (
            if from_right { stored.width - 1 - x } else { x },
            if from_bottom { stored.height - 1 - y } else { y },
        )
    }

    /// Whether stored columns count from the right, and whether stored rows count from the bottom,
    /// after rows and columns are exchanged if [`swaps_sides`](Self::swaps_sides) is true.
    pub fn mirrors(self) -> (bool, bool) {
        use Orientation::*;
        match self {
            Upright | Transposed => (false, false),
            FlippedHorizontally | Rotated270 => (true, false),
            Rotated180 | Transversed => (true, true),
            FlippedVertically | Rotated90 => (false, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The position of a stored pixel in the upright image; the test has a separate formula per
    /// orientation.
    fn upright_point(orientation: Orientation, x: u32, y: u32, stored: Size) -> (u32, u32) {
        let (right, bottom) = (stored.width - 1 - x, stored.height - 1 - y);
        match orientation {
            Orientation::Upright => (x, y),
            Orientation::FlippedHorizontally => (right, y),
            Orientation::Rotated180 => (right, bottom),
            Orientation::FlippedVertically => (x, bottom),
            Orientation::Transposed => (y, x),
            // After a clockwise rotation, the left column becomes the upper row.
            Orientation::Rotated90 => (bottom, x),
            Orientation::Transversed => (bottom, right),
            Orientation::Rotated270 => (y, right),
        }
    }

    #[test]
    fn exif_numbers_are_read_as_they_are_written() {
        for number in 1..=8 {
            assert_eq!(Orientation::from_exif(number).unwrap().exif(), number);
        }
        assert_eq!(Orientation::from_exif(0), None);
        assert_eq!(Orientation::from_exif(9), None);
    }

    #[test]
    fn a_rectangle_beyond_the_image_is_not_within_it() {
        let size = Size::new(10, 5);
        assert!(Rect::full(size).is_within(size));
        assert!(!Rect { left: 1, ..Rect::full(size) }.is_within(size));
        assert!(!Rect { width: 0, ..Rect::full(size) }.is_within(size));
        assert!(!Rect { top: u32::MAX, height: 2, ..Rect::full(size) }.is_within(size));
    }

    proptest! {
        #[test]
        fn points_map_to_the_stored_image_and_back(
            width in 1u32..50, height in 1u32..50, x: u32, y: u32, number in 1u16..=8,
        ) {
            let orientation = Orientation::from_exif(number).unwrap();
            let stored = Size::new(width, height);
            let (x, y) = (x % width, y % height);
            let (u, v) = upright_point(orientation, x, y, stored);
            let upright = orientation.apply(stored);
            prop_assert!(u < upright.width && v < upright.height);
            prop_assert_eq!(orientation.point_to_stored(u, v, stored), (x, y));
        }

        #[test]
        fn a_stored_box_holds_the_pixels_of_the_upright_one(
            width in 1u32..40, height in 1u32..40, corner: (u32, u32), extent: (u32, u32),
            number in 1u16..=8,
        ) {
            let orientation = Orientation::from_exif(number).unwrap();
            let stored = Size::new(width, height);
            let upright = orientation.apply(stored);
            let (left, top) = (corner.0 % upright.width, corner.1 % upright.height);
            let rect = Rect {
                left,
                top,
                width: 1 + extent.0 % (upright.width - left),
                height: 1 + extent.1 % (upright.height - top),
            };
            let found = orientation.box_to_stored(rect.into(), stored);
            let holds = |x: u32, y: u32| {
                let (x, y) = (f64::from(x) + 0.5, f64::from(y) + 0.5);
                x > found.left && x < found.left + found.width
                    && y > found.top && y < found.top + found.height
            };
            for y in 0..height {
                for x in 0..width {
                    let (u, v) = upright_point(orientation, x, y, stored);
                    let wanted = (left..left + rect.width).contains(&u)
                        && (top..top + rect.height).contains(&v);
                    prop_assert_eq!(holds(x, y), wanted, "stored ({}, {})", x, y);
                }
            }
        }
    }
}
