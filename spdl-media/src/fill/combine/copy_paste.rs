//! Objects of other images of a batch, pasted with their boxes.

use spdl_core::{Array, Batch, Error, ErrorKind, Result, SampleRng, Stage, StageContext};

use super::{BoxField, CombinedFields, Piece, PlacedBox, fraction, unchanged};
use crate::fill::spec::SampleSpec;
use crate::image::{Rect, Size};

/// Pastes objects of other images of a batch onto its images, with their boxes and masks.
///
/// For each image, another image of the batch is drawn, and some of its objects. The pixels of the box of
/// each replace those at the same place, with the pixels of the masks. This is Copy-Paste (Ghiasi et al.
/// 2021, arXiv:2012.07177) for objects that have boxes but no outlines. A box of the image itself becomes
/// the smallest box around its visible part; it is dropped if that part is below the limits of its field,
/// with the rows of the fields that [belong to it](crate::fill::SampleField::rows_of). Fields that do not follow the
/// image remain as they are.
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
        let count = batch.len();
        let size = self.fields.size;
        let list = self.fields.boxes_of(&self.boxes, &batch)?;
        let (mut pieces, mut boxes) = (Vec::new(), Vec::new());
        for own in 0..count {
            let pasted = self.draw(list, own, rng)?;
            let rects: Vec<Rect> =
                pasted.iter().map(|one| self.pixels_of(one.values, size)).collect();
            let pastes = pasted.iter().zip(&rects).map(|(one, &rect)| Piece {
                sample: one.sample,
                source: rect,
                target: rect,
            });
            let whole = Rect::full(size);
            let background = Piece { sample: own, source: whole, target: whole };
            let mut remaining = unchanged(list, own)?;
            if !rects.is_empty() {
                remaining =
                    remaining.into_iter().filter_map(|one| self.below(one, &rects)).collect();
            }
            pieces.push([background].into_iter().chain(pastes).collect());
            boxes.push(remaining.into_iter().chain(pasted).collect());
        }
        self.fields.copy_pixels(&mut batch, &pieces)?;
        self.fields.replace_boxes(&self.boxes, &mut batch, &boxes)?;
        Ok(batch)
    }

    /// Draws the objects that are pasted onto the sample `own`.
    fn draw(&self, list: &[Array], own: usize, rng: &mut SampleRng) -> Result<Vec<PlacedBox>> {
        let others = list.len().saturating_sub(1);
        let is_pasted = rng.chance(self.probability);
        let other = (own + 1 + rng.below(others as u64) as usize) % list.len();
        if !is_pasted || others == 0 {
            return Ok(Vec::new());
        }
        let mut drawn = unchanged(list, other)?;
        drawn.retain(|one| {
            rng.chance(self.share)
                && self.pixels_of(one.values, self.fields.size).size().pixels() > 0
        });
        Ok(drawn)
    }

    /// The pixels of which any part is in a box.
    fn pixels_of(&self, values: [f64; 4], size: Size) -> Rect {
        let [left, top, right, bottom] = self.boxes.boxes.corners(values, size);
        let axis = |start: f64, end: f64, side: u32| {
            let (start, end) = (start.floor().max(0.0) as u32, end.ceil().max(0.0) as u32);
            let end = end.min(side);
            (start.min(end), end - start.min(end))
        };
        let (left, width) = axis(left, right, size.width);
        let (top, height) = axis(top, bottom, size.height);
        Rect { left, top, width, height }
    }

    /// A box of which `rects` cover parts: the smallest box around the visible part; `None` if that is
    /// too small.
    fn below(&self, one: PlacedBox, rects: &[Rect]) -> Option<PlacedBox> {
        let (size, boxes) = (self.fields.size, &self.boxes.boxes);
        let corners = boxes.corners(one.values, size);
        let (visible, area) = uncovered(corners, rects)?;
        let [left, top, right, bottom] = corners;
        if !boxes.is_kept(area, (right - left) * (bottom - top)) {
            return None;
        }
        // An unchanged box keeps its exact numbers.
        if visible == corners {
            return Some(one);
        }
        Some(PlacedBox { values: boxes.with_corners(visible, size), ..one })
    }
}

/// The smallest box around the part of a box that no rectangle covers, and the area of that part; `None`
/// if nothing is visible.
fn uncovered([left, top, right, bottom]: [f64; 4], rects: &[Rect]) -> Option<([f64; 4], f64)> {
    let edges = |rect: &Rect| {
        let (x, y) = (f64::from(rect.left), f64::from(rect.top));
        [x, y, x + f64::from(rect.width), y + f64::from(rect.height)]
    };
    let covering: Vec<[f64; 4]> = rects
        .iter()
        .map(edges)
        .filter(|it| it[0] < right && it[2] > left && it[1] < bottom && it[3] > top)
        .collect();
    // All edges divide the box into cells, each of which is covered wholly or not at all.
    let cuts = |start: f64, end: f64, axis: usize| {
        let mut cuts = vec![start, end];
        cuts.extend(covering.iter().flat_map(|it| [it[axis], it[axis + 2]]));
        cuts.retain(|at| (start..=end).contains(at));
        cuts.sort_by(f64::total_cmp);
        cuts
    };
    let (across, down) = (cuts(left, right, 0), cuts(top, bottom, 1));
    let (mut visible, mut area): (Option<[f64; 4]>, f64) = (None, 0.0);
    for x in across.windows(2) {
        for y in down.windows(2) {
            let [x0, y0, x1, y1] = [x[0], y[0], x[1], y[1]];
            let is_covered =
                covering.iter().any(|it| it[0] <= x0 && it[1] <= y0 && it[2] >= x1 && it[3] >= y1);
            let cell = (x1 - x0) * (y1 - y0);
            if is_covered || cell <= 0.0 {
                continue;
            }
            area += cell;
            let [a, b, c, d] = visible.unwrap_or([x0, y0, x1, y1]);
            visible = Some([a.min(x0), b.min(y0), c.max(x1), d.max(y1)]);
        }
    }
    visible.map(|visible| (visible, area))
}

/// Uses the random numbers of the first sample of the batch.
impl Stage<Batch> for CopyPaste {
    type Out = Batch;

    fn process(&mut self, batch: Batch, cx: &mut StageContext<'_, Batch>) -> Result<()> {
        let made = self.apply(batch, &mut cx.rng())?;
        cx.emit(made)
    }
}
