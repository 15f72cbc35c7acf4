//! Mosaics of the images of a batch, with their boxes and masks.

use spdl_core::{Array, Batch, Result, SampleRng, Stage, StageContext};

use super::{BoxField, CombinedFields, Piece, PlacedBox, fraction, invalid, unchanged};
use crate::fill::Written;
use crate::fill::geometry::Mapping;
use crate::fill::spec::SampleSpec;
use crate::image::{Rect, Size};
use crate::transform::Placement;

/// Replaces images of a batch by mosaics of four of its images, with their boxes and masks.
///
/// The four images, of which one is the image itself, meet at a random centre. Each keeps its size and is
/// clipped, as in the mosaic of YOLOv4 (Bochkovskiy et al. 2020, arXiv:2004.10934). Boxes are moved and
/// clipped; those below the limits of their field are dropped, with the rows of the fields that
/// [belong to them](crate::fill::SampleField::rows_of). Fields that do not follow the image remain as they are.
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
    fields: CombinedFields,
}

impl SampleSpec {
    /// Mosaics of the images of a field, with the boxes and masks that follow it.
    ///
    /// # Errors
    /// `InvalidArgument` if the field is not an image of one size; `Unsupported` if key points or a
    /// geometry follow the image, or if the boxes or their rows are not
    /// [lists](spdl_core::stage::Collation::List).
    pub fn mosaic(&self, image: &str) -> Result<Mosaic> {
        let fields = CombinedFields::new(self, image, "a mosaic")?;
        Ok(Mosaic { probability: 1.0, center: (0.25, 0.75), fields })
    }
}

impl Mosaic {
    /// The probability that an image becomes a mosaic. Default: 1.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not 0 to 1.
    pub fn probability(mut self, probability: f64) -> Result<Self> {
        self.probability = fraction("probability", probability)?;
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
        let Mosaic { probability, center: (least, most), fields } = self;
        [
            ("augmentation", "Mosaic".to_owned()),
            ("probability", probability.to_string()),
            ("center", format!("{least} to {most}")),
            ("images", fields.image().to_owned()),
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
        let all: Vec<Vec<Piece>> = (0..count).map(|own| self.draw(own, count, rng)).collect();
        self.fields.copy_pixels(&mut batch, &all)?;
        for field in &self.fields.boxes {
            let list = self.fields.boxes_of(field, &batch)?;
            let boxes = all.iter().enumerate();
            let boxes: Vec<Vec<PlacedBox>> = boxes
                .map(|(own, pieces)| self.boxes_in(field, list, own, pieces))
                .collect::<Result<_>>()?;
            self.fields.replace_boxes(field, &mut batch, &boxes)?;
        }
        Ok(batch)
    }

    /// Draws the pieces of the mosaic for the sample `own`; none if it remains as it is.
    fn draw(&self, own: usize, count: usize, rng: &mut SampleRng) -> Vec<Piece> {
        let size = self.fields.size;
        // All are drawn for every sample, so that the probability does not change later ones.
        let is_mosaic = rng.chance(self.probability);
        let (least, most) = self.center;
        let center = [size.width, size.height].map(|side| {
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
        if is_mosaic { places(samples, center, size).into() } else { Vec::new() }
    }

    fn boxes_in(
        &self,
        field: &BoxField,
        list: &[Array],
        own: usize,
        pieces: &[Piece],
    ) -> Result<Vec<PlacedBox>> {
        if pieces.is_empty() {
            return unchanged(list, own);
        }
        let size = self.fields.size;
        let mut boxes = Vec::new();
        for piece in pieces.iter().filter(|piece| piece.target.size().pixels() > 0) {
            let placement =
                Placement { target: piece.target, ..Placement::part(piece.source, size) };
            let valid = Rect::full(size);
            let written = Written { image: size, placement, size, valid, canvas: None };
            let mapping = Mapping::new(&written);
            boxes.extend(unchanged(list, piece.sample)?.into_iter().filter_map(|one| {
                let values = field.boxes.moved(one.values, &mapping, size, size, &[])?;
                Some(PlacedBox { values, ..one })
            }));
        }
        Ok(boxes)
    }
}

/// The pieces of a mosaic: its samples are at the upper left, upper right, lower left and lower right.
fn places(samples: [usize; 4], [x, y]: [u32; 2], size: Size) -> [Piece; 4] {
    // Of an axis: the start in the image, the start in the mosaic, and the length.
    let axis = |center: u32, side: u32| [(side - center, 0, center), (0, center, side - center)];
    let (across, down) = (axis(x, size.width), axis(y, size.height));
    std::array::from_fn(|at| {
        let ((left, to_left, width), (top, to_top, height)) = (across[at % 2], down[at / 2]);
        let source = Rect { left, top, width, height };
        Piece { sample: samples[at], source, target: Rect { left: to_left, top: to_top, ..source } }
    })
}

/// Uses the random numbers of the first sample of the batch.
impl Stage<Batch> for Mosaic {
    type Out = Batch;

    fn process(&mut self, batch: Batch, cx: &mut StageContext<'_, Batch>) -> Result<()> {
        let made = self.apply(batch, &mut cx.rng())?;
        cx.emit(made)
    }
}
