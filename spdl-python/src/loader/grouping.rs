//! Samples grouped by their number of tokens: packed sequences, blocks, buckets.

use std::sync::Arc;

use pyo3::prelude::*;
use spdl_core::stage::{Bucketing, Packing, Sequence, SequenceLayout, pieces};
use spdl_core::{Array, Batch, Field, PipelineBuilder, Result, StageOptions};
use spdl_media::fill::{SampleSpec, Sequences};
use spdl_media::{Layout, Size};

use crate::operators::Described;

/// How samples are grouped to batches.
pub(crate) struct Grouping {
    method: Method,
    sequences: Vec<SequenceSettings>,
    /// The number of tokens of the parts of longer samples.
    split: Option<u64>,
}

enum Method {
    /// Whole samples or parts of them in sequences of equal length.
    Pack(Packing),
    /// Concatenated samples in sequences of this length.
    Blocks(u64),
    /// Samples of similar length.
    Bucket(Bucketing),
    /// Images of one of these sizes.
    SameSize(Arc<SizesOfImage>),
}

/// The sizes that an image can have.
struct SizesOfImage {
    image: String,
    layout: Layout,
    sizes: Vec<Size>,
}

impl SizesOfImage {
    /// The number of the size of a sample, from 1. An absent image counts as one of the first size.
    fn number(&self, sample: &Batch) -> usize {
        let array = sample.list(&self.image).and_then(<[Array]>::first);
        let (height, width) = match (array.map(Array::shape), self.layout) {
            (Some(&[height, width, _]), Layout::Nhwc) => (height, width),
            (Some(&[_, height, width]), Layout::Nchw) => (height, width),
            _ => (0, 0),
        };
        let is_own = |size: &Size| (size.height as usize, size.width as usize) == (height, width);
        self.sizes.iter().position(is_own).unwrap_or(0) + 1
    }
}

/// A field with one row for each token.
struct SequenceSettings {
    name: String,
    padding: f64,
    separator: Option<f64>,
}

impl Grouping {
    /// The grouping for the name and the parameters of a Python class, and the lengths of samples that
    /// it accepts.
    pub(super) fn of(
        (kind, settings): Described<'_>,
        spec: &SampleSpec,
    ) -> PyResult<(Self, Sequences)> {
        let setting = |name: &str| settings.as_any().get_item(name);
        if kind == "SameSize" {
            let image: String = setting("image")?.extract()?;
            let transform = spec.transform_of(&image);
            let sizes = transform.map(|it| it.list_of_sizes().to_vec()).unwrap_or_default();
            let layout = transform.map_or(Layout::Nhwc, |it| it.sample_format().layout);
            let method = Method::SameSize(Arc::new(SizesOfImage { image, layout, sizes }));
            return Ok((
                Grouping { method, sequences: Vec::new(), split: None },
                Sequences::default(),
            ));
        }
        let number = |name: &str| setting(name)?.extract::<Option<u64>>();
        let fields: Vec<(String, f64, Option<f64>)> = setting("fields")?.extract()?;
        let limits = Sequences::of(fields.iter().map(|(name, ..)| name.as_str()));
        let sequences = fields.into_iter().map(|(name, padding, separator)| SequenceSettings {
            name,
            padding,
            separator,
        });
        let length = number("length")?;
        let method = match kind.as_str() {
            "Pack" => {
                let packing = Packing::new(length.unwrap_or(0));
                let packing = packing.open(setting("open_sequences")?.extract()?);
                let most = setting("max_samples")?.extract::<Option<usize>>()?;
                Method::Pack(most.map_or(packing.clone(), |most| packing.most_items(most)))
            }
            "ConcatAndSplit" => Method::Blocks(length.unwrap_or(0)),
            _ => {
                let boundaries: Vec<f64> = setting("boundaries")?.extract()?;
                let bucketing = Bucketing::boundaries(boundaries);
                let budget = number("max_tokens")?;
                Method::Bucket(match budget {
                    Some(budget) => bucketing.budget(budget),
                    None => bucketing,
                })
            }
        };
        let limits = if matches!(method, Method::Bucket(_)) { limits } else { limits.at_least(1) };
        let long: String = setting("long")?.extract()?;
        let most = length.map(|length| usize::try_from(length).unwrap_or(usize::MAX));
        let (limits, split) = match (long.as_str(), most) {
            ("split", _) => (limits, length),
            ("truncate", Some(most)) => (limits.at_most(most).truncated(), None),
            (_, Some(most)) => (limits.at_most(most), None),
            (_, None) => (limits, None),
        };
        // Samples of any length are concatenated.
        let split = split.filter(|_| !matches!(method, Method::Blocks(_)));
        Ok((Grouping { method, sequences: sequences.collect(), split }, limits))
    }

    /// Whether batches consist of sequences of equal length.
    pub(super) fn packs(&self) -> bool {
        matches!(self.method, Method::Pack(_) | Method::Blocks(_))
    }

    pub(super) fn contains(&self, field: &str) -> bool {
        self.sequences.iter().any(|one| one.name == field)
    }

    /// The number of stages of [`add`](Self::add) that take part in the memory budget.
    pub(super) fn measured_stages(&self) -> usize {
        match self.method {
            // sequence, pack, batch
            Method::Pack(_) | Method::Blocks(_) => 3,
            Method::Bucket(_) | Method::SameSize(_) => 2,
        }
    }

    /// The layout of batches of these fields.
    pub(super) fn layout(&self, fields: &[Field]) -> Result<SequenceLayout> {
        let layout = SequenceLayout::new(fields.iter().cloned());
        self.sequences.iter().try_fold(
            layout,
            |layout, SequenceSettings { name, padding, separator }| {
                layout.sequence(name, *padding, *separator)
            },
        )
    }

    /// Adds the stages that group batches of one sample, and join each group to a batch.
    ///
    /// sequence ──► [split] ──► pack ──► batch ──► join
    pub(super) fn add(
        &self,
        pipeline: PipelineBuilder<Batch>,
        layout: &SequenceLayout,
        batch_size: usize,
        drop_last: bool,
    ) -> PipelineBuilder<Batch> {
        let layout = Arc::new(layout.clone());
        let (one, join) = (Arc::clone(&layout), layout);
        // Grouped samples do not count in the memory budget: their number is limited by the grouping, and
        // the budget would be too small for some groupings.
        let samples = pipeline.map("sequence", move |sample| one.sample(sample)).measured_by(|_| 0);
        let samples = match self.split {
            None => samples,
            Some(most) => samples.flat_map("split", move |sample| {
                pieces(sample, most).map(|piece| piece.map(|piece| piece.part))
            }),
        };
        let options = StageOptions::new("join").parameters([("sequences", self.description())]);
        match &self.method {
            Method::Pack(packing) => samples
                .pack("pack", packing.clone(), Sequence::tokens)
                .batch("batch", batch_size, drop_last)
                .map(options, move |packed| join.join_packed(&packed)),
            Method::Blocks(length) => samples
                .concat_and_split("concatenate", *length, drop_last)
                .batch("batch", batch_size, drop_last)
                .map(options, move |blocks| {
                    let parts = blocks.into_iter().map(|block| block.map(|piece| piece.part));
                    join.join_packed(&parts.collect::<Vec<_>>())
                }),
            Method::Bucket(bucketing) => {
                let bucketing = with_size(bucketing.clone(), batch_size, drop_last);
                samples
                    .bucket("bucket", bucketing, |sample| sample.tokens() as f64)
                    .map(options, move |bucket| join.join(&bucket.items))
            }
            Method::SameSize(sizes) => {
                let boundaries = (1..sizes.sizes.len()).map(|number| number as f64);
                let bucketing = with_size(Bucketing::boundaries(boundaries), batch_size, drop_last);
                let sizes = Arc::clone(sizes);
                samples
                    .bucket("bucket", bucketing, move |sample| sizes.number(sample.sample()) as f64)
                    .map(options, move |bucket| join.join(&bucket.items))
            }
        }
    }

    fn description(&self) -> String {
        if let Method::SameSize(sizes) = &self.method {
            return format!("{} of one size", sizes.image);
        }
        let fields = self.sequences.iter().map(|SequenceSettings { name, padding, separator }| {
            let separator = separator.map(|one| format!(", separator {one}")).unwrap_or_default();
            format!("{name} (padding {padding}{separator})")
        });
        let split = self.split.map(|most| format!(", split to {most} tokens")).unwrap_or_default();
        format!("{}{split}", fields.collect::<Vec<_>>().join(", "))
    }
}

fn with_size(bucketing: Bucketing, batch_size: usize, drop_last: bool) -> Bucketing {
    let bucketing = bucketing.batch_size(batch_size);
    if drop_last { bucketing.drop_last() } else { bucketing }
}
