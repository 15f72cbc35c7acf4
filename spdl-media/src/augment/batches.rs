//! Augmentations that mix the samples of a batch: Mixup and CutMix.

use std::sync::Arc;

use half::{bf16, f16};
use spdl_core::memory::{BufferPool, Element};
use spdl_core::source::Fingerprint;
use spdl_core::{Array, Batch, DType, Error, ErrorKind, Result, SampleRng, Stage, StageContext};

use super::checks::check;
use super::draw::{beta, check_alpha};
use super::setting::{Setting, stage_parameters};
use crate::image::{CHANNELS, Rect, Size};

/// The default names of the mixed fields.
const IMAGES: &str = "images";
const LABELS: &str = "labels";

/// Blends each image of a batch with the previous one (the first with the last), and their labels
/// in the same ratio (Zhang et al. 2018, arXiv:1710.09412).
///
/// The ratio is drawn from Beta(alpha, alpha) once per batch. `images` are `f32`, `f16`, `bf16` or
/// `u8`; types other than `f32` are computed in `f32` and rounded to nearest, ties to even.
/// `labels` become `f32 [batch, classes]`, the weight of each class. `labels` may already have this
/// form, so that mixing stages can be chained.
///
/// ```
/// # use spdl_core::{Batch, PipelineBuilder, Result, SampleRng, StageOptions};
/// # use spdl_media::augment::Mixup;
/// // In a pipeline. A run that resumes with another alpha reports the difference.
/// # fn stage(builder: PipelineBuilder<Batch>) -> Result<PipelineBuilder<Batch>> {
/// let mixup = Mixup::new(1000, 0.2)?;
/// let options = StageOptions::new("mixup").parameters(mixup.parameters());
/// let builder = builder.stage(options, move || Ok(mixup.clone()));
/// # Ok(builder)
/// # }
/// // Without a pipeline:
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
    /// Mixes samples with labels from 0 to `classes` − 1. torchvision's default alpha is 1.
    ///
    /// # Errors
    /// `InvalidArgument` if `classes` is 0, or alpha is not a positive number.
    pub fn new(classes: usize, alpha: f64) -> Result<Self> {
        check_alpha(alpha)?;
        Ok(Mixup { alpha, labels: SoftLabels::new(classes)? })
    }

    /// Sets the names of the fields. Default: `images` and `labels`.
    #[must_use]
    pub fn fields(mut self, images: &str, labels: &str) -> Self {
        self.labels.set_names(images, labels);
        self
    }

    /// The name and all settings, for
    /// [`StageOptions::parameters`](spdl_core::StageOptions::parameters). A run that resumes with
    /// other settings reports the difference.
    pub fn parameters(&self) -> impl Iterator<Item = (String, String)> {
        let Mixup { alpha, labels } = self;
        stage_parameters(&labels.fingerprint("Mixup", *alpha))
    }

    /// Draws the ratio and mixes.
    ///
    /// # Errors
    /// The errors of [`mix`](Mixup::mix).
    pub fn apply(&mut self, batch: Batch, rng: &mut SampleRng) -> Result<Batch> {
        self.mix(batch, beta(rng, self.alpha))
    }

    /// Blends each sample, with weight `own`, and the previous sample, with weight 1 − `own`.
    ///
    /// # Errors
    /// `InvalidArgument` if the batch has no `images` of a type that [`Mixup`] lists, or no valid
    /// `labels`. If a label is out of range, the message names its sample.
    pub fn mix(&mut self, mut batch: Batch, own: f64) -> Result<Batch> {
        let soft = self.labels.mixed(&batch, own)?;
        let (own, other) = (own as f32, (1.0 - own) as f32);
        let images = self.labels.images(&mut batch)?;
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
            found => {
                return Err(invalid_images(&format!(
                    "data type {found}: expected u8, f16, bf16 or f32"
                )));
            }
        }
        batch.replace(&self.labels.names[1], soft)?;
        Ok(batch)
    }
}

/// Replaces each row by `blend` of its elements and the elements of the previous row. The row
/// before the first row is the last row.
fn blend<T: Element + Copy + Default>(array: &mut Array, blend: impl Fn(T, T) -> T) -> Result<()> {
    /// The number of elements of each row that are blended in one step; it bounds the scratch
    /// memory.
    const SPAN: usize = 1024;
    let rows = array.shape().first().copied().unwrap_or(0);
    let elements = array.as_mut_slice::<T>()?;
    let row = elements.len() / rows.max(1);
    let mut last = [T::default(); SPAN];
    for start in (0..row).step_by(SPAN) {
        let span = SPAN.min(row - start);
        let last = &mut last[..span];
        last.copy_from_slice(&elements[(rows - 1) * row + start..][..span]);
        // Start at the last row, so that the previous row is still unchanged.
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

/// Copies a rectangle of the previous image into each image of a batch (from the last into the
/// first), and mixes the labels by area (Yun et al. 2019, arXiv:1905.04899).
///
/// The area fraction is drawn from Beta(alpha, alpha) once per batch, the position uniformly. The
/// rectangle is clipped to the image. `images` are `[batch, channels, height, width]` or `[batch,
/// height, width, channels]` of any type, with 3 channels or 1; `labels` are as for [`Mixup`].
#[derive(Clone, Debug)]
pub struct CutMix {
    alpha: f64,
    labels: SoftLabels,
    last: Vec<u8>,
}

impl CutMix {
    /// Mixes samples with labels from 0 to `classes` − 1. torchvision's default alpha is 1.
    ///
    /// # Errors
    /// `InvalidArgument` if `classes` is 0, or alpha is not a positive number.
    pub fn new(classes: usize, alpha: f64) -> Result<Self> {
        check_alpha(alpha)?;
        Ok(CutMix { alpha, labels: SoftLabels::new(classes)?, last: Vec::new() })
    }

    /// Sets the names of the fields. Default: `images` and `labels`.
    #[must_use]
    pub fn fields(mut self, images: &str, labels: &str) -> Self {
        self.labels.set_names(images, labels);
        self
    }

    /// The name and all settings; see [`Mixup::parameters`].
    pub fn parameters(&self) -> impl Iterator<Item = (String, String)> {
        let CutMix { alpha, labels, last: _ } = self;
        stage_parameters(&labels.fingerprint("CutMix", *alpha))
    }

    /// Draws the rectangle and mixes.
    ///
    /// # Errors
    /// The errors of [`mix`](CutMix::mix).
    pub fn apply(&mut self, mut batch: Batch, rng: &mut SampleRng) -> Result<Batch> {
        let size = BatchImageLayout::of(self.labels.images(&mut batch)?)?.size;
        let own = beta(rng, self.alpha);
        let x = rng.below(u64::from(size.width)) as u32;
        let y = rng.below(u64::from(size.height)) as u32;
        self.mix(batch, CutMix::cut_box(own, (x, y), size))
    }

    /// The rectangle to copy from the previous image, clipped to the image. Before clipping, the
    /// rectangle covers a fraction of 1 − `own` of the image area; `own` is 0 to 1. `center` is the
    /// column and row of its centre.
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

    /// Copies `rect` of the previous image into each image. An empty rectangle only converts the
    /// labels.
    ///
    /// # Errors
    /// `InvalidArgument` if the batch has no valid `images` or `labels`, or the rectangle is not
    /// inside the images.
    pub fn mix(&mut self, mut batch: Batch, rect: Rect) -> Result<Batch> {
        let planes = BatchImageLayout::of(self.labels.images(&mut batch)?)?;
        let empty = rect.width == 0 || rect.height == 0;
        check(empty || rect.is_within(planes.size), || {
            format!("rectangle {rect:?} is not inside the images of {} pixels", planes.size)
        })?;
        let own = 1.0 - rect.size().pixels() as f64 / planes.size.pixels() as f64;
        let soft = self.labels.mixed(&batch, own)?;
        if !empty {
            planes.roll(self.labels.images(&mut batch)?, rect, &mut self.last);
        }
        batch.replace(&self.labels.names[1], soft)?;
        Ok(batch)
    }
}

/// The memory layout of the images of a batch.
pub(super) struct BatchImageLayout {
    pub(super) size: Size,
    /// 3 or 1.
    pub(super) channels: usize,
    /// The number of planes: one per channel, or one with interleaved channels.
    planes: usize,
    /// The distance between columns in bytes.
    pixel_bytes: usize,
}

impl BatchImageLayout {
    /// The channel dimension is the dimension after `batch`, or the last one. It has length 3, or
    /// length 1 if neither has length 3. If both dimensions match, `u8` counts as interleaved and
    /// other types as planar, which is the usual convention.
    pub(super) fn of(images: &Array) -> Result<Self> {
        let invalid = || {
            invalid_images(&format!(
                "shape {:?}: expected [batch, channels, height, width] or [batch, height, width, \
                 channels] with 3 channels or 1",
                images.shape()
            ))
        };
        let [_, first, middle, last] = *images.shape() else { return Err(invalid()) };
        let interleaved = |channels: usize| match (first == channels, last == channels) {
            (true, true) => Some(images.dtype() == DType::U8),
            (planar, interleaved) => (planar || interleaved).then_some(interleaved),
        };
        let found = [CHANNELS, 1]
            .into_iter()
            .find_map(|channels| interleaved(channels).map(|interleaved| (channels, interleaved)));
        let Some((channels, interleaved)) = found else { return Err(invalid()) };
        let side = |side: usize| u32::try_from(side).unwrap_or(u32::MAX);
        let bytes = images.dtype().size();
        Ok(if interleaved {
            let size = Size::new(side(middle), side(first));
            BatchImageLayout { size, channels, planes: 1, pixel_bytes: channels * bytes }
        } else {
            let size = Size::new(side(last), side(middle));
            BatchImageLayout { size, channels, planes: channels, pixel_bytes: bytes }
        })
    }

    /// Fills a rectangle of one image with `value` of each channel.
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

    /// Copies the rectangle of each image to the next image.
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
    batch.array_mut(IMAGES).ok_or_else(|| invalid_images("missing field"))
}

pub(super) fn invalid_images(what: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("cannot augment field \"images\": {what}"))
}

/// Labels as class weights.
#[derive(Clone, Debug)]
pub(super) struct SoftLabels {
    classes: usize,
    /// The names of the images and of the labels.
    names: [Arc<str>; 2],
    pool: BufferPool,
}

impl SoftLabels {
    pub(super) fn new(classes: usize) -> Result<Self> {
        check(classes > 0, || "invalid number of classes 0: expected at least 1".into())?;
        let names = [IMAGES.into(), LABELS.into()];
        Ok(SoftLabels { classes, names, pool: BufferPool::new() })
    }

    pub(super) fn classes(&self) -> usize {
        self.classes
    }

    pub(super) fn label(&self) -> &str {
        &self.names[1]
    }

    pub(super) fn set_names(&mut self, images: &str, labels: &str) {
        self.names = [images.into(), labels.into()];
    }

    fn images<'a>(&self, batch: &'a mut Batch) -> Result<&'a mut Array> {
        let name = &self.names[0];
        batch.array_mut(name).ok_or_else(|| {
            let message = format!("cannot mix field {name:?}: missing field");
            Error::new(ErrorKind::InvalidArgument, message)
        })
    }

    /// Replaces the labels of a batch by soft labels without mixing.
    pub(super) fn convert(&self, mut batch: Batch) -> Result<Batch> {
        let soft = self.mixed(&batch, 1.0)?;
        batch.replace(&self.names[1], soft)?;
        Ok(batch)
    }

    /// Moves a fraction of the weight of each label to all classes equally.
    pub(super) fn smooth(&self, batch: &mut Batch, fraction: f64) -> Result<()> {
        let Some(labels) = batch.array_mut(&self.names[1]) else { return Ok(()) };
        let (kept, added) = ((1.0 - fraction) as f32, (fraction / self.classes as f64) as f32);
        for weight in labels.as_mut_slice::<f32>()? {
            *weight = *weight * kept + added;
        }
        Ok(())
    }

    /// The fingerprint of a mixing augmentation with this alpha.
    fn fingerprint(&self, kind: &str, alpha: f64) -> Fingerprint {
        let SoftLabels { classes, names: _, pool: _ } = self;
        Fingerprint::default()
            .with("", kind)
            .with("alpha", alpha.text())
            .with("classes", classes.text())
    }

    /// Mixes each label, with weight `own`, and the previous label, with weight 1 − `own`.
    fn mixed(&self, batch: &Batch, own: f64) -> Result<Array> {
        let classes = self.classes;
        let (own, other) = (own as f32, (1.0 - own) as f32);
        let invalid = |found: String| {
            let message = format!(
                "cannot mix field {:?}: {found}: expected i64 [batch] or f32 [batch, {classes}]",
                self.names[1]
            );
            Error::new(ErrorKind::InvalidArgument, message)
        };
        let Some(labels) = batch.array(&self.names[1]) else {
            return Err(invalid("missing".into()));
        };
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
                            "label {label} is out of range ({}): expected 0 to {}",
                            batch.ids()[at],
                            classes - 1
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
            (dtype, shape) => return Err(invalid(format!("{dtype} {shape:?}"))),
        }
        Ok(soft)
    }
}

/// Uses the random numbers of the first sample of the batch.
impl Stage<Batch> for Mixup {
    type Out = Batch;

    fn process(&mut self, batch: Batch, cx: &mut StageContext<'_, Batch>) -> Result<()> {
        let mixed = self.apply(batch, &mut cx.rng())?;
        cx.emit(mixed)
    }
}

/// Uses the random numbers of the first sample of the batch.
impl Stage<Batch> for CutMix {
    type Out = Batch;

    fn process(&mut self, batch: Batch, cx: &mut StageContext<'_, Batch>) -> Result<()> {
        let mixed = self.apply(batch, &mut cx.rng())?;
        cx.emit(mixed)
    }
}
