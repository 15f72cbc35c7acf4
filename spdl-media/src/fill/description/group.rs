//! How samples become batches by their number of tokens, or by the size of an image, from descriptions.

use std::sync::Arc;

use serde_json::Value;
use spdl_core::stage::{
    Bucketing, Collation, Packing, SampleTokens, Sequence, SequenceLayout, pieces,
};
use spdl_core::{Batch, BatchLayout, DType, Field, Fill, PipelineBuilder, Result, StageOptions};

use super::settings::{Names, PerField, Settings, folded, invalid, unknown};
use super::{LIKE, SampleSpec};
use crate::fill::Sequences;
use crate::image::Size;
use crate::transform::Layout;

const TYPES: [&str; 4] = ["Pack", "ConcatAndSplit", "Bucket", "SameSize"];

/// How the samples of a [`SampleSpec`] are grouped to batches: see
/// [`grouped_from_description`](SampleSpec::grouped_from_description).
#[derive(Clone, Debug)]
pub struct Grouping {
    method: Method,
    sequences: Vec<SequenceSettings>,
    /// The number of tokens of the parts of longer samples.
    split: Option<u64>,
    truncates: bool,
    layout: Arc<SequenceLayout>,
    /// The fields of a batch of one sample.
    fields: Vec<Field>,
}

#[derive(Clone, Debug)]
enum Method {
    /// Whole samples or parts of them in sequences of equal length.
    Pack(u64, Packing),
    /// Concatenated samples in sequences of this length.
    Blocks(u64),
    /// Samples of similar length.
    Bucket(Bucketing),
    /// Images of one of these sizes.
    SameSize(Arc<SizesOfImage>),
}

/// The sizes that an image can have.
#[derive(Debug)]
struct SizesOfImage {
    image: String,
    /// The number of the field of the image.
    at: usize,
    layout: Layout,
    sizes: Vec<Size>,
}

impl SizesOfImage {
    /// The number of the size of a sample, from 1. An absent image counts as one of the first size.
    fn number(&self, sample: &SampleTokens) -> usize {
        let (height, width) = match (sample.shape(self.at), self.layout) {
            (&[height, width, _], Layout::Nhwc) => (height, width),
            (&[_, height, width], Layout::Nchw) => (height, width),
            _ => (0, 0),
        };
        let is_own = |size: &Size| (size.height as usize, size.width as usize) == (height, width);
        self.sizes.iter().position(is_own).unwrap_or(0) + 1
    }
}

/// A field with one row for each token.
#[derive(Clone, Debug)]
struct SequenceSettings {
    name: String,
    padding: f64,
    separator: Option<f64>,
}

impl SampleSpec {
    /// The fields and the grouping that a JSON value describes: `Pack`, `ConcatAndSplit`, `Bucket` or `SameSize` of
    /// `spdl_rs.sequences` in Python.
    ///
    /// It is an object with the key `type`, the name of the class in any case, and the parameters of that class, with
    /// their defaults; or text such as `"Pack('tokens', length=2048)"`. The fields that are returned limit the lengths
    /// of samples. Images that `SameSize` groups, and the masks that follow them, become padded.
    ///
    /// ```
    /// use serde_json::json;
    /// use spdl_core::PipelineBuilder;
    /// use spdl_io::{MemoryFetcher, StoredRecord};
    /// use spdl_media::fill::SampleSpec;
    /// use spdl_media::{CodecRegistry, Limits};
    ///
    /// let tokens = json!({"type": "array", "shape": [0], "dtype": "int64"});
    /// let spec = SampleSpec::from_description(&json!({"tokens": tokens}))?;
    /// let (spec, group) = spec.grouped_from_description(&json!("Pack('tokens', length=6)"))?;
    /// # let record = |ids: &str| ids.parse().map(|ids| StoredRecord::new(format!("{ids}"))
    /// #     .with_known("tokens", spdl_io::FieldValue::Json(ids)));
    /// # let samples = [record("[1, 2, 3, 4]")?, record("[5, 6, 7]")?, record("[8, 9]")?];
    /// let pipeline = PipelineBuilder::from_iter(samples)
    ///     .async_stage("fetch", spec.fetch(std::sync::Arc::new(MemoryFetcher::new())));
    /// let filler = spec.filler(&CodecRegistry::with_defaults(), &Limits::default());
    /// let mut batches = group.add(pipeline, "decode", filler, 2, false).deterministic().build()?;
    /// let batch = batches.next().expect("one batch")?;
    /// let ids = batch.array("tokens").expect("a field").as_slice::<i64>()?;
    /// assert_eq!(ids, [1, 2, 3, 4, 8, 9, 5, 6, 7, 0, 0, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` with the key and the accepted values, or if a field cannot be grouped in this way.
    pub fn grouped_from_description(self, described: &Value) -> Result<(Self, Grouping)> {
        let place = "group";
        let (type_name, mut settings) =
            Settings::of(place, described, "\"Pack('tokens', length=2048)\"")?;
        let s = &mut settings;
        let kind = folded(&type_name);
        if kind == "samesize" {
            let image = s.get("image")?.unwrap_or_else(|| LIKE.to_owned());
            settings.finish()?;
            return self.of_same_size(image);
        }
        if !TYPES.iter().any(|known| folded(known) == kind) {
            return Err(unknown(place, &type_name, &TYPES));
        }
        let Names(names) = s.need("tokens")?;
        let is_bucket = kind == "bucket";
        let budget = if is_bucket { number(s, "max_tokens")? } else { None };
        let boundaries: Option<Vec<f64>> = if is_bucket { s.get("boundaries")? } else { None };
        let length = match number(s, "length")? {
            Some(length) if budget.is_some_and(|budget| length > budget) => {
                return Err(s.fault("length", format!("{length} exceeds max_tokens")));
            }
            None if !is_bucket => {
                let expected = "expected a whole number of at least 1";
                return Err(invalid(format!("{place}: length is missing; {expected}")));
            }
            length => length.or(budget),
        };
        let long = match kind.as_str() {
            "concatandsplit" => Long::Split,
            _ => {
                let choices =
                    [("error", Long::Error), ("truncate", Long::Truncate), ("split", Long::Split)];
                s.choice("long", &choices)?.unwrap_or(Long::Error)
            }
        };
        let separator: Option<PerField> =
            if kind == "concatandsplit" { s.get("separator")? } else { None };
        let pad: Option<PerField> = if is_bucket { None } else { s.get("pad")? };
        let capacity = length.unwrap_or(0);
        let method = match kind.as_str() {
            "pack" => {
                let mut packing = Packing::new(capacity);
                if let Some(open) = number(s, "open_sequences")? {
                    packing = packing.open(usize::try_from(open).unwrap_or(usize::MAX));
                }
                if let Some(most) = number(s, "max_samples")? {
                    packing = packing.most_items(usize::try_from(most).unwrap_or(usize::MAX));
                }
                Method::Pack(capacity, packing)
            }
            "bucket" => {
                let bucketing = Bucketing::boundaries(boundaries.unwrap_or_else(default_bounds));
                Method::Bucket(match budget {
                    Some(budget) => bucketing.budget(budget),
                    None => bucketing,
                })
            }
            _ => Method::Blocks(capacity),
        };
        for (key, values) in [("pad", &pad), ("separator", &separator)] {
            let unknown = values.as_ref().and_then(|values| values.unknown(&names));
            if let Some(name) = unknown {
                return Err(s.fault(key, format!("{name:?} is not in tokens")));
            }
        }
        let sequences = names.iter().map(|name| SequenceSettings {
            name: name.clone(),
            padding: pad.as_ref().map_or(0.0, |pad| pad.of(name)),
            separator: separator.as_ref().map(|separator| separator.of(name)),
        });
        let sequences = sequences.collect();
        settings.finish()?;
        let mut limits = Sequences::of(names.iter().map(String::as_str));
        if !is_bucket {
            limits = limits.at_least(1);
        }
        let most = length.map(|length| usize::try_from(length).unwrap_or(usize::MAX));
        limits = match (long, most) {
            (Long::Split, _) | (_, None) => limits,
            (Long::Truncate, Some(most)) => limits.at_most(most).truncated(),
            (Long::Error, Some(most)) => limits.at_most(most),
        };
        // `ConcatAndSplit` concatenates samples of any length.
        let split = length.filter(|_| long == Long::Split && !matches!(method, Method::Blocks(_)));
        let truncates = limits.truncates();
        let spec = self.sequences(limits);
        spec.validate()?;
        let grouping = Grouping::new(&spec, method, sequences, split, truncates)?;
        Ok((spec, grouping))
    }

    fn of_same_size(self, image: String) -> Result<(Self, Grouping)> {
        let Some(transform) = self.transform_of(&image).filter(|transform| transform.has_sizes())
        else {
            return Err(invalid(format!(
                "group: field {image:?} is not an image with the crop AspectBuckets"
            )));
        };
        let fields = self.layout(1);
        let at = fields.fields().iter().position(|field| *field.name == *image);
        let sizes = SizesOfImage {
            at: at.unwrap_or(usize::MAX),
            layout: transform.sample_format().layout,
            sizes: transform.list_of_sizes().to_vec(),
            image,
        };
        let spec = self.padded_like(&sizes.image);
        let method = Method::SameSize(Arc::new(sizes));
        let grouping = Grouping::new(&spec, method, Vec::new(), None, false)?;
        Ok((spec, grouping))
    }
}

/// What happens to samples that are longer than a sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Long {
    Error,
    Truncate,
    Split,
}

/// A whole number of at least 1; `None` if it is not given.
fn number(settings: &mut Settings, key: &'static str) -> Result<Option<u64>> {
    match settings.get::<usize>(key)? {
        Some(0) => Err(settings.fault(key, "expected at least 1, found 0")),
        number => Ok(number.map(|number| number as u64)),
    }
}

/// Four buckets for each doubling of the length, from 16 to 65,536.
fn default_bounds() -> Vec<f64> {
    (0..49).map(|step| (16.0 * 2_f64.powf(f64::from(step) / 4.0)).round()).collect()
}

impl Grouping {
    fn new(
        spec: &SampleSpec,
        method: Method,
        sequences: Vec<SequenceSettings>,
        split: Option<u64>,
        truncates: bool,
    ) -> Result<Self> {
        let fields = spec.layout(1).fields().to_vec();
        let mut layout = SequenceLayout::new(fields.iter().cloned());
        for SequenceSettings { name, padding, separator } in &sequences {
            layout = layout.sequence(name, *padding, *separator)?;
        }
        let grouping =
            Grouping { method, sequences, split, truncates, layout: Arc::new(layout), fields };
        if grouping.packs() {
            grouping.check_packed()?;
        }
        Ok(grouping)
    }

    /// Checks the fields of packed sequences.
    fn check_packed(&self) -> Result<()> {
        for field in &self.fields {
            let Field { name, shape, .. } = field;
            if SequenceLayout::ADDED.contains(&&**name) {
                let message =
                    format!("group: the field {name:?} has the name of an array that is added");
                return Err(invalid(message));
            }
            if self.contains(name) && shape[1..].contains(&0) {
                return Err(invalid(format!(
                    "group: field {name:?} cannot be packed: only its first dimension may have any length"
                )));
            }
        }
        Ok(())
    }

    /// Whether batches consist of sequences of equal length.
    pub fn packs(&self) -> bool {
        matches!(self.method, Method::Pack(..) | Method::Blocks(_))
    }

    /// Whether a field has one row for each token.
    pub fn contains(&self, field: &str) -> bool {
        self.sequences.iter().any(|one| one.name == field)
    }

    /// Whether long samples are truncated.
    pub fn truncates(&self) -> bool {
        self.truncates
    }

    /// The layout of a batch of one sample, for estimates of memory.
    pub fn layout_of_one(&self) -> BatchLayout {
        let fields = self.fields.iter().cloned().map(|field| match field.collation {
            Collation::Stacked => field,
            _ => field.collation(Collation::List),
        });
        BatchLayout::new(1, fields)
    }

    /// The fields of a grouped batch, except `position_ids` and `cu_seqlens`, which follow from `segment_ids`.
    pub fn fields(&self) -> Vec<Field> {
        let (Method::Pack(length, _) | Method::Blocks(length)) = self.method else {
            return self.fields.clone();
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let joined = |field: &Field| match self.contains(&field.name) {
            true => {
                let shape: Vec<_> = [length].into_iter().chain(field.shape[1..].to_vec()).collect();
                Field::new(&field.name, field.dtype, &shape).collation(Collation::Stacked)
            }
            false => field.clone(),
        };
        let [_, segment_ids, _] = SequenceLayout::ADDED;
        let segments = Field::new(segment_ids, DType::I32, &[length]);
        self.fields.iter().map(joined).chain([segments]).collect()
    }

    /// Adds the stages that decode samples, group them, and join each group to a batch.
    ///
    /// `decode` are the options of the stage whose instances `filler` makes. `batch_size` is the number of sequences in a
    /// batch, or the maximum number of samples. Batches are [measured](PipelineBuilder::measured).
    pub fn add<In: Send + 'static, F: Fill<In>>(
        &self,
        pipeline: PipelineBuilder<In>,
        decode: impl Into<StageOptions>,
        filler: impl Fn() -> Result<F> + Send + Sync + 'static,
        batch_size: usize,
        drop_last: bool,
    ) -> PipelineBuilder<Batch> {
        // decode ──► [split] ──► pack ──► batch ──► join
        let (write, join) = (Arc::clone(&self.layout), Arc::clone(&self.layout));
        // Grouped samples do not count in the memory budget: their number is limited by the grouping, and
        // the budget would be too small for some groupings.
        let samples = pipeline.stage(decode.into().unmeasured(), move || write.stage(filler()?));
        let samples = match self.split {
            None => samples,
            Some(most) => samples.flat_map("split", move |sample| {
                pieces(sample, most).map(|piece| piece.map(|piece| piece.part))
            }),
        };
        let options = StageOptions::new("join").parameters([("sequences", self.description())]);
        let joined = match &self.method {
            Method::Pack(_, packing) => samples
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
                    .bucket("bucket", bucketing, move |sample| sizes.number(sample) as f64)
                    .map(options, move |bucket| join.join(&bucket.items))
            }
        };
        joined.measured()
    }

    /// The settings that determine the batches and that no stage but `join` reports.
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
