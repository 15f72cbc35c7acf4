//! What mixes the samples of a batch: mixup and CutMix.

use half::{bf16, f16};
use spdl_core::memory::{BufferPool, Element};
use spdl_core::source::Fingerprint;
use spdl_core::{Array, Batch, DType, Error, ErrorKind, Result, SampleRng, Stage, StageContext};

use super::draw::{beta, check_alpha};
use super::functional::check;
use super::setting::{Setting, stage_parameters};
use crate::image::{CHANNELS, Rect, Size};

/// The fields that are mixed, by their names.
const IMAGES: &str = "images";
const LABELS: &str = "labels";

/// Blends every image of a batch with the one before it (the first with the last), and their labels
/// in the same proportion, which is drawn from Beta(alpha, alpha) once for a batch (Zhang et al.
/// 2018, arXiv:1710.09412).
///
/// `images` are `f32`, `f16`, `bf16` or `u8`: all but `f32` are computed in `f32` and rounded to the
/// nearest, ties to even. `labels` become `f32 [batch, classes]`: each class's part. They may be so
/// before, for one mix after another.
///
/// ```
/// # use spdl_core::{Batch, PipelineBuilder, Result, SampleRng, StageOptions};
/// # use spdl_media::augment::Mixup;
/// // In a pipeline; a run that is resumed with another alpha is told so.
/// # fn stage(builder: PipelineBuilder<Batch>) -> Result<PipelineBuilder<Batch>> {
/// let mixup = Mixup::new(1000, 0.2)?;
/// let options = StageOptions::new("mixup").parameters(mixup.parameters());
/// let builder = builder.stage(options, move || Ok(mixup.clone()));
/// # Ok(builder)
/// # }
/// // By hand:
/// # fn mixed(batch: Batch) -> Result<Batch> {
/// let mut rng = SampleRng::new(7, batch.ids()[0], "mixup");
/// Mixup::new(1000, 0.2)?.apply(batch, &mut rng)
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Mixup {
    alpha: f64,
    labels: SoftLabels,
}

impl Mixup {
    /// For labels of 0 to `classes` − 1. torchvision's default alpha is 1.
    ///
    /// # Errors
    /// `InvalidArgument` where there are no classes, or alpha is not a positive number.
    pub fn new(classes: usize, alpha: f64) -> Result<Self> {
        check_alpha(alpha)?;
        Ok(Mixup { alpha, labels: SoftLabels::new(classes)? })
    }

    /// Its name and all settings, for [`StageOptions::parameters`](spdl_core::StageOptions::parameters):
    /// so a run that is resumed with others is told what differs.
    pub fn parameters(&self) -> impl Iterator<Item = (String, String)> {
        let Mixup { alpha, labels } = self;
        stage_parameters(&labels.fingerprint("Mixup", *alpha))
    }

    /// Draws the proportion, and mixes.
    ///
    /// # Errors
    /// As [`mix`](Mixup::mix).
    pub fn apply(&mut self, batch: Batch, rng: &mut SampleRng) -> Result<Batch> {
        self.mix(batch, beta(rng, self.alpha))
    }

    /// Mixes `own` of each sample with 1 − `own` of the one before it.
    ///
    /// # Errors
    /// `InvalidArgument` where the batch has no `images` of these types, or no `labels` as said
    /// above; the message names the sample.
    pub fn mix(&mut self, mut batch: Batch, own: f64) -> Result<Batch> {
        let soft = self.labels.mixed(&batch, own)?;
        let (own, other) = (own as f32, (1.0 - own) as f32);
        let images = images(&mut batch)?;
        let mixed = |own_value: f32, before: f32| before * other + own_value * own;
        match images.dtype() {
            DType::F32 => blend(images, mixed)?,
            DType::F16 => blend(images, |own: f16, before| {
                f16::from_f32(mixed(own.to_f32(), before.to_f32()))
            })?,
            DType::BF16 => blend(images, |own: bf16, before| {
                bf16::from_f32(mixed(own.to_f32(), before.to_f32()))
            })?,
            DType::U8 => blend(images, |own: u8, before| {
                mixed(own.into(), before.into()).round_ties_even() as u8
            })?,
            found => return Err(unfit(&format!("of u8, f16, bf16 or f32, found {found}"))),
        }
        batch.replace(LABELS, soft)?;
        Ok(batch)
    }
}

/// Replaces every row by what `blend` makes of its elements and those of the row before; that of the
/// first is the last.
fn blend<T: Element + Copy + Default>(array: &mut Array, blend: impl Fn(T, T) -> T) -> Result<()> {
    /// Elements of all rows that are blended together, so that little must be remembered.
    const SPAN: usize = 1024;
    let rows = array.shape().first().copied().unwrap_or(0);
    let elements = array.as_mut_slice::<T>()?;
    let row = elements.len() / rows.max(1);
    let mut last = [T::default(); SPAN];
    for start in (0..row).step_by(SPAN) {
        let span = SPAN.min(row - start);
        let last = &mut last[..span];
        last.copy_from_slice(&elements[(rows - 1) * row + start..][..span]);
        // From the last row on, the one before is always as it was.
        for at in (1..rows).rev() {
            let (before, own) = elements.split_at_mut(at * row);
            let before = &before[(at - 1) * row + start..][..span];
            for (own, before) in own[start..start + span].iter_mut().zip(before) {
                *own = blend(*own, *before);
            }
        }
        for (own, before) in elements[start..start + span].iter_mut().zip(last.iter()) {
            *own = blend(*own, *before);
        }
    }
    Ok(())
}

/// Puts a rectangle of the image before it into every image of a batch (the last one's into the
/// first), and mixes the labels by area. The area's share is drawn from Beta(alpha, alpha) once for
/// a batch, its place uniformly; what would reach beyond the image is cut off (Yun et al. 2019,
/// arXiv:1905.04899).
///
/// `images` are `[batch, channels, height, width]` or `[batch, height, width, channels]`, of any type,
/// with 3 channels or 1; `labels` are as for [`Mixup`], and so is the stage.
#[derive(Clone, Debug)]
pub struct CutMix {
    alpha: f64,
    labels: SoftLabels,
    last: Vec<u8>,
}

impl CutMix {
    /// For labels of 0 to `classes` − 1. torchvision's default alpha is 1.
    ///
    /// # Errors
    /// `InvalidArgument` where there are no classes, or alpha is not a positive number.
    pub fn new(classes: usize, alpha: f64) -> Result<Self> {
        check_alpha(alpha)?;
        Ok(CutMix { alpha, labels: SoftLabels::new(classes)?, last: Vec::new() })
    }

    /// As [`Mixup::parameters`].
    pub fn parameters(&self) -> impl Iterator<Item = (String, String)> {
        let CutMix { alpha, labels, last: _ } = self;
        stage_parameters(&labels.fingerprint("CutMix", *alpha))
    }

    /// Draws the rectangle, and mixes.
    ///
    /// # Errors
    /// As [`mix`](CutMix::mix).
    pub fn apply(&mut self, mut batch: Batch, rng: &mut SampleRng) -> Result<Batch> {
        let size = Planes::of(images(&mut batch)?)?.size;
        let own = beta(rng, self.alpha);
        let x = rng.below(u64::from(size.width)) as u32;
        let y = rng.below(u64::from(size.height)) as u32;
        self.mix(batch, CutMix::cut_box(own, (x, y), size))
    }

    /// The rectangle that is taken from another image: `own` is the share that stays, 0 to 1, before
    /// what reaches beyond the image is cut off; `center` is the column and row of its middle.
    pub fn cut_box(own: f64, center: (u32, u32), size: Size) -> Rect {
        let half = 0.5 * (1.0 - own).max(0.0).sqrt();
        let axis = |center: u32, side: u32| {
            let reach = (half * f64::from(side)) as u32;
            let start = center.saturating_sub(reach).min(side);
            (start, center.saturating_add(reach).min(side) - start)
        };
        let (left, width) = axis(center.0, size.width);
        let (top, height) = axis(center.1, size.height);
        Rect { left, top, width, height }
    }

    /// Puts `rect` of the image before it into every image. An empty one changes nothing but the
    /// labels' type.
    ///
    /// # Errors
    /// `InvalidArgument` where the batch has no `images` or `labels` as said above, or the rectangle
    /// is not inside the images.
    pub fn mix(&mut self, mut batch: Batch, rect: Rect) -> Result<Batch> {
        let planes = Planes::of(images(&mut batch)?)?;
        let empty = rect.width == 0 || rect.height == 0;
        check(empty || rect.is_within(planes.size), || {
            format!("{rect:?} is not inside images of {}", planes.size)
        })?;
        let own = 1.0 - rect.size().pixels() as f64 / planes.size.pixels() as f64;
        let soft = self.labels.mixed(&batch, own)?;
        if !empty {
            planes.roll(images(&mut batch)?, rect, &mut self.last);
        }
        batch.replace(LABELS, soft)?;
        Ok(batch)
    }
}

/// How the images of a batch lie in memory.
pub(super) struct Planes {
    pub(super) size: Size,
    /// 3 or 1.
    pub(super) channels: usize,
    /// As many as channels, or one in which those are interleaved.
    planes: usize,
    /// From one column to the next.
    pixel_bytes: usize,
}

impl Planes {
    /// Which dimension is the channels' is told by its length, 3 or else 1; where both are, bytes
    /// are interleaved and numbers are not, as most write them.
    pub(super) fn of(images: &Array) -> Result<Self> {
        let unfit = || {
            unfit(&format!(
                "[batch, channels, height, width] or [batch, height, width, channels] with 3 \
                 channels or 1, found {:?}",
                images.shape()
            ))
        };
        let [_, first, middle, last] = *images.shape() else { return Err(unfit()) };
        let interleaved = |channels: usize| match (first == channels, last == channels) {
            (true, true) => Some(images.dtype() == DType::U8),
            (planar, interleaved) => (planar || interleaved).then_some(interleaved),
        };
        let found = [CHANNELS, 1]
            .into_iter()
            .find_map(|channels| interleaved(channels).map(|interleaved| (channels, interleaved)));
        let Some((channels, interleaved)) = found else { return Err(unfit()) };
        let side = |side: usize| u32::try_from(side).unwrap_or(u32::MAX);
        let bytes = images.dtype().size();
        Ok(if interleaved {
            let size = Size::new(side(middle), side(first));
            Planes { size, channels, planes: 1, pixel_bytes: channels * bytes }
        } else {
            let size = Size::new(side(last), side(middle));
            Planes { size, channels, planes: channels, pixel_bytes: bytes }
        })
    }

    /// Writes to a rectangle of one image what `value` gives for each channel.
    pub(super) fn fill<T: Element>(
        &self,
        image: &mut [T],
        rect: Rect,
        mut value: impl FnMut(usize) -> T,
    ) {
        let per_pixel = self.channels / self.planes;
        let row = self.size.width as usize * per_pixel;
        for plane in 0..self.planes {
            for y in rect.top..rect.top + rect.height {
                let y = plane * self.size.height as usize + y as usize;
                let start = y * row + rect.left as usize * per_pixel;
                let values = &mut image[start..][..rect.width as usize * per_pixel];
                for (at, place) in values.iter_mut().enumerate() {
                    *place = value(plane + at % per_pixel);
                }
            }
        }
    }

    /// Copies the rectangle of every image to the next one.
    fn roll(&self, images: &mut Array, rect: Rect, last: &mut Vec<u8>) {
        let count = images.shape()[0];
        let bytes = images.as_bytes_mut();
        let image = bytes.len() / count.max(1);
        let row = self.size.width as usize * self.pixel_bytes;
        let plane = self.size.height as usize * row;
        let rows = (0..self.planes).flat_map(|at| {
            let first = at * plane + rect.left as usize * self.pixel_bytes;
            (rect.top as usize..(rect.top + rect.height) as usize).map(move |y| first + y * row)
        });
        let len = rect.width as usize * self.pixel_bytes;
        for start in rows {
            let of = |at: usize| at * image + start;
            last.clear();
            last.extend_from_slice(&bytes[of(count - 1)..][..len]);
            for at in (1..count).rev() {
                bytes.copy_within(of(at - 1)..of(at - 1) + len, of(at));
            }
            bytes[of(0)..][..len].copy_from_slice(last);
        }
    }
}

pub(super) fn images(batch: &mut Batch) -> Result<&mut Array> {
    batch.array_mut(IMAGES).ok_or_else(|| unfit("a field of that name, found none"))
}

pub(super) fn unfit(what: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("expected images {what}"))
}

/// Labels as parts of classes.
#[derive(Clone, Debug)]
struct SoftLabels {
    classes: usize,
    pool: BufferPool,
}

impl SoftLabels {
    fn new(classes: usize) -> Result<Self> {
        check(classes > 0, || "expected a class or more, found none".into())?;
        Ok(SoftLabels { classes, pool: BufferPool::new() })
    }

    /// Of an augmentation that mixes them with this alpha.
    fn fingerprint(&self, kind: &str, alpha: f64) -> Fingerprint {
        let SoftLabels { classes, pool: _ } = self;
        Fingerprint::default()
            .with("", kind)
            .with("alpha", alpha.text())
            .with("classes", classes.text())
    }

    /// `own` of each sample's classes and 1 − `own` of those before it.
    fn mixed(&self, batch: &Batch, own: f64) -> Result<Array> {
        let classes = self.classes;
        let (own, other) = (own as f32, (1.0 - own) as f32);
        let unfit = |found: String| {
            let message =
                format!("expected labels as i64 [batch] or f32 [batch, {classes}], found {found}");
            Error::new(ErrorKind::InvalidArgument, message)
        };
        let Some(labels) = batch.array(LABELS) else { return Err(unfit("none".into())) };
        let shape = vec![batch.len(), classes];
        let bytes = batch.len().saturating_mul(classes).saturating_mul(size_of::<f32>());
        let mut soft = Array::new(DType::F32, shape, self.pool.take(bytes)?)?;
        let parts = soft.as_mut_slice::<f32>()?;
        match (labels.dtype(), labels.shape()) {
            (DType::I64, [_]) => {
                parts.fill(0.0);
                let labels = labels.as_slice::<i64>()?;
                for (at, label) in labels.iter().enumerate() {
                    let class = usize::try_from(*label).ok().filter(|&class| class < classes);
                    let Some(class) = class else {
                        let message = format!(
                            "label {label} of {} is none of the {classes} classes, counted from 0",
                            batch.ids()[at]
                        );
                        return Err(Error::new(ErrorKind::InvalidArgument, message));
                    };
                    parts[at * classes + class] += own;
                    parts[(at + 1) % labels.len() * classes + class] += other;
                }
            }
            (DType::F32, [_, width]) if *width == classes => {
                let labels = labels.as_slice::<f32>()?;
                let last = labels.len().saturating_sub(classes);
                let before = labels[last..].iter().chain(labels);
                for ((part, label), before) in parts.iter_mut().zip(labels).zip(before) {
                    *part = before * other + label * own;
                }
            }
            (dtype, shape) => return Err(unfit(format!("{dtype} {shape:?}"))),
        }
        Ok(soft)
    }
}

/// Mixes by random numbers of the batch's first sample in this stage.
impl Stage<Batch> for Mixup {
    type Out = Batch;

    fn process(&mut self, batch: Batch, cx: &mut StageContext<'_, Batch>) -> Result<()> {
        let mixed = self.apply(batch, &mut cx.rng())?;
        cx.emit(mixed)
    }
}

/// Mixes by random numbers of the batch's first sample in this stage.
impl Stage<Batch> for CutMix {
    type Out = Batch;

    fn process(&mut self, batch: Batch, cx: &mut StageContext<'_, Batch>) -> Result<()> {
        let mixed = self.apply(batch, &mut cx.rng())?;
        cx.emit(mixed)
    }
}
