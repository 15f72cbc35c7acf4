//! Objects of other images of a batch, pasted with their boxes.

use spdl_core::{Array, Batch, Error, ErrorKind, Result, SampleRng, Stage, StageContext};

use super::{BoxField, CombinedFields, Piece, PlacedBox, fraction, unchanged};
use crate::fill::spec::SampleSpec;
use crate::image::{Rect, Size};

/// Pastes objects of other images of a batch onto its images, with their boxes and masks.
///
/// For each image, another image of the batch is drawn, and some of its objects. The pixels of the box of
/// each replace those at the same place, with the pixels of the masks. This is Copy-Paste (Ghiasi et al.
/// 2021, arXiv:2012.07177) for objects that have boxes but no outlines.
///
/// A box of the image itself becomes the smallest box around its visible part; it is dropped if that part is
/// below the limits of its field, with the rows of the fields that
/// [belong to it](crate::fill::SampleField::rows_of). The same applies to the objects of the other image that were
/// not drawn, which may be visible in the boxes of drawn objects. Visible parts are measured in whole pixels.
/// Fields that do not follow the image remain as they are.
///
/// Made by [`SampleSpec::copy_paste`]. As a stage of batches, it uses the random numbers of the first
/// sample of the batch.
///
/// ```
/// use spdl_core::DType;
/// use spdl_core::stage::Collation;
/// use spdl_media::ImageTransform;
/// use spdl_media::fill::{Boxes, SampleField, SampleSpec};
/// let boxes = SampleField::boxes(Boxes::like("image").min_visibility(0.3));
/// let spec = SampleSpec::new()
///     .with("image", SampleField::image(ImageTransform::new(640)))
///     .with("boxes", boxes.collation(Collation::List))
///     .with("classes", SampleField::numbers(DType::I64, &[0]).rows_of("boxes").collation(Collation::List));
/// let paste = spec.copy_paste("image")?.probability(0.5)?.share(0.3)?;
/// # let _ = paste;
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CopyPaste {
    probability: f64,
    share: f64,
    fields: CombinedFields,
    boxes: BoxField,
}

impl SampleSpec {
    /// Copy-Paste for the images of a field, with the boxes and masks that follow it.
    ///
    /// # Errors
    /// `InvalidArgument` if the field is not an image of one size; `Unsupported` if not exactly one field
    /// of boxes follows it, if key points or a geometry follow it, or if the boxes or their rows are not
    /// [lists](spdl_core::stage::Collation::List).
    pub fn copy_paste(&self, image: &str) -> Result<CopyPaste> {
        let fields = CombinedFields::new(self, image, "Copy-Paste")?;
        let [boxes] = &fields.boxes[..] else {
            let count = fields.boxes.len();
            let message = format!(
                "Copy-Paste needs one field of boxes that follow {image:?}; there are {count}"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        Ok(CopyPaste { probability: 1.0, share: 0.5, boxes: boxes.clone(), fields })
    }
}

impl CopyPaste {
    /// The probability that objects are pasted onto an image. Default: 1.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not 0 to 1.
    pub fn probability(mut self, probability: f64) -> Result<Self> {
        self.probability = fraction("probability", probability)?;
        Ok(self)
    }

    /// The probability of each object of the other image to be pasted. Default: 0.5.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not 0 to 1.
    pub fn share(mut self, share: f64) -> Result<Self> {
        self.share = fraction("share", share)?;
        Ok(self)
    }

    /// The name and all settings, for
    /// [`StageOptions::parameters`](spdl_core::StageOptions::parameters).
    pub fn parameters(&self) -> impl Iterator<Item = (String, String)> {
        let CopyPaste { probability, share, fields, .. } = self;
        [
            ("augmentation", "CopyPaste".to_owned()),
            ("probability", probability.to_string()),
            ("share", share.to_string()),
            ("images", fields.image().to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
    }

    /// Draws the objects for each image of a batch, and pastes them.
    ///
    /// # Errors
    /// `InvalidArgument` if the batch lacks a field, or the rows of a field are not those of its boxes;
    /// `LimitExceeded` if memory cannot be allocated.
    pub fn apply(&self, mut batch: Batch, rng: &mut SampleRng) -> Result<Batch> {
        let list = self.fields.boxes_of(&self.boxes, &batch)?;
        let whole = Rect::full(self.fields.size);
        let mut covered = PixelSet::new(self.fields.size);
        let (mut pieces, mut boxes) = (Vec::new(), Vec::new());
        for own in 0..batch.len() {
            let (other, rects) = self.draw(list, own, rng)?;
            covered.clear();
            rects.iter().for_each(|&rect| covered.insert(rect));
            let paste = |&rect: &Rect| Piece { sample: other, source: rect, target: rect };
            let background = Piece { sample: own, source: whole, target: whole };
            pieces.push([background].into_iter().chain(rects.iter().map(paste)).collect());
            let mut placed = unchanged(list, own)?;
            if !rects.is_empty() {
                let below = placed.into_iter().filter_map(|one| self.visible(one, &covered, false));
                // Also the objects that were not drawn, where they are visible in those that were.
                let above = unchanged(list, other)?.into_iter();
                let above = above.filter_map(|one| self.visible(one, &covered, true));
                placed = below.chain(above).collect();
            }
            boxes.push(placed);
        }
        self.fields.copy_pixels(&mut batch, &pieces)?;
        self.fields.replace_boxes(&self.boxes, &mut batch, &boxes)?;
        Ok(batch)
    }

    /// Draws another sample, and the pixels of its objects that are pasted onto the sample `own`.
    fn draw(&self, list: &[Array], own: usize, rng: &mut SampleRng) -> Result<(usize, Vec<Rect>)> {
        let others = list.len().saturating_sub(1);
        let is_pasted = rng.chance(self.probability);
        let other = (own + 1 + rng.below(others as u64) as usize) % list.len();
        if !is_pasted || others == 0 {
            return Ok((other, Vec::new()));
        }
        let drawn = unchanged(list, other)?.into_iter().filter(|_| rng.chance(self.share));
        let rects = drawn.map(|one| pixels_of(self.corners(&one), self.fields.size));
        Ok((other, rects.filter(|rect| rect.size().pixels() > 0).collect()))
    }

    fn corners(&self, one: &PlacedBox) -> [f64; 4] {
        self.boxes.boxes.corners(one.values, self.fields.size)
    }

    /// The smallest box around the pixels of a box that are in `covered` (`inside`) or not; `None` if they are
    /// below the limits.
    fn visible(&self, one: PlacedBox, covered: &PixelSet, inside: bool) -> Option<PlacedBox> {
        let (size, boxes) = (self.fields.size, &self.boxes.boxes);
        let [left, top, right, bottom] = self.corners(&one);
        let pixels = pixels_of([left, top, right, bottom], size);
        let (count, around) = covered.part_of(pixels, inside)?;
        // A box that is visible as a whole keeps its exact numbers.
        if count == pixels.size().pixels() {
            return Some(one);
        }
        let area = (right - left) * (bottom - top);
        let share = count as f64 / pixels.size().pixels() as f64;
        if !boxes.is_kept(area * share, area) {
            return None;
        }
        let end = |start: u32, length: u32| f64::from(start + length);
        let corners = [
            left.max(f64::from(around.left)),
            top.max(f64::from(around.top)),
            right.min(end(around.left, around.width)),
            bottom.min(end(around.top, around.height)),
        ];
        Some(PlacedBox { values: boxes.with_corners(corners, size), ..one })
    }
}

/// The part of a pixel's side that rounding may add to a box.
const ROUNDING: f64 = 1e-3;

/// The pixels of which any part is in a box, except for rounding errors.
fn pixels_of([left, top, right, bottom]: [f64; 4], size: Size) -> Rect {
    let axis = |start: f64, end: f64, side: u32| {
        let start = (start + ROUNDING).floor().max(0.0) as u32;
        let end = ((end - ROUNDING).ceil().max(0.0) as u32).min(side);
        (start.min(end), end - start.min(end))
    };
    let (left, width) = axis(left, right, size.width);
    let (top, height) = axis(top, bottom, size.height);
    Rect { left, top, width, height }
}

/// A set of pixels of an image: one bit each.
struct PixelSet {
    bits: Vec<u64>,
    words_per_row: usize,
}

impl PixelSet {
    fn new(size: Size) -> Self {
        let words_per_row = size.width.div_ceil(64) as usize;
        PixelSet { bits: vec![0; words_per_row * size.height as usize], words_per_row }
    }

    fn clear(&mut self) {
        self.bits.fill(0);
    }

    fn insert(&mut self, rect: Rect) {
        for y in rect.top..rect.top + rect.height {
            let row = &mut self.bits[y as usize * self.words_per_row..];
            words_of(rect).for_each(|(word, mask)| row[word as usize] |= mask);
        }
    }

    /// The number of pixels of `rect` that are in the set (`inside`) or not, and the smallest rectangle around
    /// them; `None` if there are none.
    fn part_of(&self, rect: Rect, inside: bool) -> Option<(u64, Rect)> {
        let (mut count, mut columns, mut rows) = (0, (u32::MAX, 0), (u32::MAX, 0));
        for y in rect.top..rect.top + rect.height {
            let row = &self.bits[y as usize * self.words_per_row..];
            for (word, mask) in words_of(rect) {
                let bits = row[word as usize];
                let found = mask & if inside { bits } else { !bits };
                if found != 0 {
                    count += u64::from(found.count_ones());
                    let (first, end) = (found.trailing_zeros(), 64 - found.leading_zeros());
                    columns = (columns.0.min(64 * word + first), columns.1.max(64 * word + end));
                    rows = (rows.0.min(y), y + 1);
                }
            }
        }
        let (left, top) = (columns.0, rows.0);
        (count > 0).then(|| {
            let (width, height) = (columns.1 - left, rows.1 - top);
            (count, Rect { left, top, width, height })
        })
    }
}

/// The numbers of the words of a row that hold pixels of a rectangle, with the bits of these pixels.
fn words_of(rect: Rect) -> impl Iterator<Item = (u32, u64)> {
    let (start, end) = (rect.left, rect.left + rect.width);
    (start / 64..end.div_ceil(64)).map(move |word| {
        let (first, last) = (start.saturating_sub(64 * word), (end - 64 * word).min(64));
        (word, (u64::MAX << first) & (u64::MAX >> (64 - last)))
    })
}

/// Uses the random numbers of the first sample of the batch.
impl Stage<Batch> for CopyPaste {
    type Out = Batch;

    fn process(&mut self, batch: Batch, cx: &mut StageContext<'_, Batch>) -> Result<()> {
        let made = self.apply(batch, &mut cx.rng())?;
        cx.emit(made)
    }
}

#[cfg(test)]
mod tests {
    use spdl_core::stage::Collation;

    use super::*;
    use crate::fill::SampleField;
    use crate::fill::geometry::{BoxFormat, Boxes};
    use crate::transform::ImageTransform;

    const SIZE: Size = Size { width: 640, height: 480 };

    fn copy_paste(boxes: Boxes) -> CopyPaste {
        let boxes = SampleField::boxes(boxes).collation(Collation::List);
        let image = SampleField::image(ImageTransform::with_size(SIZE));
        SampleSpec::new().with("image", image).with("boxes", boxes).copy_paste("image").unwrap()
    }

    /// A box as batches store it.
    fn placed(paste: &CopyPaste, corners: [f64; 4]) -> PlacedBox {
        let values = paste.boxes.boxes.with_corners(corners, SIZE);
        PlacedBox { values: values.map(|side| f64::from(side as f32)), sample: 0, row: 0 }
    }

    /// The corners of the visible part of a box.
    fn part(paste: &CopyPaste, one: PlacedBox, covered: &[Rect], inside: bool) -> Option<[f64; 4]> {
        let mut set = PixelSet::new(SIZE);
        covered.iter().for_each(|&rect| set.insert(rect));
        Some(paste.corners(&paste.visible(one, &set, inside)?))
    }

    #[test]
    fn boxes_at_the_edges_are_covered_as_a_whole_or_in_part() {
        let right = Rect { left: 600, top: 0, width: 40, height: 480 };
        let formats = [BoxFormat::Xyxy, BoxFormat::Xywh, BoxFormat::Cxcywh];
        for (format, is_normalized) in formats.into_iter().flat_map(|it| [(it, false), (it, true)])
        {
            let paste = copy_paste(Boxes::like("image").format(format).normalized(is_normalized));
            for number in (1..400).map(f64::from) {
                let (left, top) = (1.37 * number, 1.11 * number);
                let one = placed(&paste, [left, top, 640.0, 480.0]);
                let whole = pixels_of(paste.corners(&one), SIZE);
                assert_eq!(part(&paste, one, &[whole], false), None, "{format:?} {number}");
                assert_eq!(part(&paste, one, &[whole], true), Some(paste.corners(&one)));
                for (inside, expected) in
                    [(false, [left, top, 600.0, 480.0]), (true, [600.0, top, 640.0, 480.0])]
                {
                    let found = part(&paste, one, &[right], inside).unwrap();
                    let is_close =
                        found.iter().zip(expected).all(|(found, it)| (found - it).abs() < 1e-3);
                    assert!(is_close, "{format:?}: {found:?}, expected {expected:?}");
                }
            }
        }
    }

    #[test]
    fn rounding_neither_adds_pixels_nor_leaves_boxes() {
        let paste = copy_paste(Boxes::like("image").format(BoxFormat::Cxcywh).normalized(true));
        for number in 1..300 {
            let rect = Rect { left: number, top: number, width: number + 7, height: 100 };
            let corners = [number, number, 2 * number + 7, number + 100].map(f64::from);
            let one = placed(&paste, corners);
            assert_eq!(pixels_of(paste.corners(&one), SIZE), rect);
            assert_eq!(part(&paste, one, &[rect], false), None);
        }
    }

    #[test]
    fn limits_apply_to_the_visible_pixels() {
        let rect = |left, width, height| Rect { left, top: 0, width, height };
        let paste = copy_paste(Boxes::like("image").min_visibility(0.5).min_area(500.0));
        let one = placed(&paste, [10.0, 0.0, 210.0, 100.0]);
        let seen = |covered: &[Rect], inside| part(&paste, one, covered, inside);
        // A corner is covered: the box around the rest is the whole box.
        assert_eq!(seen(&[rect(0, 110, 50)], false), Some([10.0, 0.0, 210.0, 100.0]));
        assert_eq!(seen(&[rect(0, 110, 100)], false), Some([110.0, 0.0, 210.0, 100.0]));
        assert_eq!(seen(&[rect(0, 110, 100)], true), Some([10.0, 0.0, 110.0, 100.0]));
        assert_eq!(seen(&[rect(0, 111, 100)], false), None);
        assert_eq!(seen(&[rect(0, 109, 100)], true), None);
        // Overlapping rectangles count once.
        let twice = [rect(0, 110, 100), rect(60, 50, 100)];
        assert_eq!(seen(&twice, false), Some([110.0, 0.0, 210.0, 100.0]));
        let small = placed(&paste, [0.0, 0.0, 30.0, 20.0]);
        assert_eq!(part(&paste, small, &[rect(0, 4, 20)], false), Some([4.0, 0.0, 30.0, 20.0]));
        assert_eq!(part(&paste, small, &[rect(0, 6, 20)], false), None);
    }
}
