//! Samples as sequences of tokens, and batches of grouped samples: [`SampleTokens`], [`SequenceLayout`],
//! [`FillSequence`].

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use bytes::BytesMut;

use super::{Packed, Sequence, invalid};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::array::{Array, DType};
use crate::memory::buffer::{BufferPool, aligned};
use crate::source::sample::SampleId;
use crate::stage::batch::Batch;
use crate::stage::collate::{RowRef, append, array};
use crate::stage::layout::{Collation, Field};
use crate::stage::slot::{Fill, FillContext, Row, SlotMut};
use crate::stage::{Stage, StageContext};

/// A sample of several fields, or a range of its tokens.
///
/// Parts of a sample share its memory. Made by the stage [`FillSequence`].
#[derive(Clone, Debug)]
pub struct SampleTokens {
    sample: Arc<WrittenSample>,
    range: Range<u64>,
}

/// A sample with one row for each field of its layout.
#[derive(Debug)]
struct WrittenSample {
    id: SampleId,
    rows: Vec<Row>,
}

/// The [`Stage`] that writes each item by a [`Fill`], as a sample of a [`SequenceLayout`]. Made by
/// [`SequenceLayout::stage`].
#[derive(Debug)]
pub struct FillSequence<F> {
    layout: Arc<SequenceLayout>,
    fill: F,
}

impl<In, F: Fill<In>> Stage<In> for FillSequence<F> {
    type Out = SampleTokens;

    fn process(&mut self, item: In, cx: &mut StageContext<'_, SampleTokens>) -> Result<()> {
        let (id, lineage) = (cx.header.id, cx.header.lineage);
        let mut of_item =
            FillContext { id, lineage, key: cx.key(), seed: cx.seed, stage: cx.stage };
        let mut rows = self.layout.empty_rows()?;
        self.fill.fill(item, SlotMut::new(&self.layout.fields, &mut rows), &mut of_item)?;
        let sample = self.layout.sample(WrittenSample { id, rows })?;
        cx.emit(sample)
    }
}

impl Sequence for SampleTokens {
    fn tokens(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn slice(&self, range: Range<u64>) -> Self {
        let place = |at: u64| self.range.start.saturating_add(at).min(self.range.end);
        let range = place(range.start)..place(range.end);
        SampleTokens { sample: Arc::clone(&self.sample), range }
    }
}

/// How samples with sequences of tokens become batches.
///
/// Some fields are sequences: their first dimension has any length, which is the same for all of
/// them, with one row for each token. Other fields belong to the sample.
///
/// The steps are: the [`stage`](Self::stage) that writes samples, a stage that groups samples, and
/// [`join`](Self::join) or [`join_packed`](Self::join_packed).
///
/// ```
/// use std::sync::Arc;
/// use spdl_core::stage::{Collation, Packing, Sequence, SequenceLayout};
/// use spdl_core::{DType, Field, Fill, FillContext, PipelineBuilder, Result, SlotMut};
///
/// struct Bytes;
/// impl Fill<&'static str> for Bytes {
///     fn fill(&mut self, text: &str, mut slot: SlotMut<'_>, _: &mut FillContext<'_>) -> Result<()> {
///         slot.resize(0, &[text.len()])?.copy_from_slice(text.as_bytes());
///         Ok(())
///     }
/// }
/// let text = Field::new("text", DType::U8, &[0]).collation(Collation::List);
/// let layout = Arc::new(SequenceLayout::new([text]).sequence("text", 46.0, None)?);
/// let join = Arc::clone(&layout);
/// let mut pipeline = PipelineBuilder::from_iter(["sevens!", "quite", "one"])
///     .stage("bytes", move || layout.stage(Bytes))
///     .pack("pack", Packing::new(10), |sample| sample.tokens())
///     .batch("batch", 2, false)
///     .map("join", move |packed| join.join_packed(&packed))
///     .deterministic()
///     .build()?;
/// let batch = pipeline.next().expect("one batch")?;
/// assert_eq!(batch.array("text").map(|text| text.as_bytes()), Some(&b"sevens!onequite....."[..]));
/// let ends = batch.array("cu_seqlens").expect("offsets").as_slice::<i32>()?;
/// assert_eq!(ends, [0, 7, 10, 15, 20]);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SequenceLayout {
    fields: Vec<Field>,
    sequences: Vec<SequenceField>,
    /// The memory of packed sequences, which have one size.
    pool: BufferPool,
}

/// A field with one row for each token.
#[derive(Clone, Debug)]
struct SequenceField {
    /// Index of the field.
    at: usize,
    /// The bytes of one element of padding, and of a separator.
    padding: Vec<u8>,
    separator: Option<Vec<u8>>,
}

impl SequenceField {
    /// The number of tokens that follow each sample.
    fn separators(&self) -> u64 {
        self.separator.is_some().into()
    }
}

impl SequenceLayout {
    /// The names of the arrays that [`join_packed`](Self::join_packed) adds.
    pub const ADDED: [&'static str; 3] = ["position_ids", "segment_ids", "cu_seqlens"];

    /// A layout of batches with these fields, none of which is a sequence.
    pub fn new(fields: impl IntoIterator<Item = Field>) -> Self {
        let (sequences, pool) = Default::default();
        SequenceLayout { fields: fields.into_iter().collect(), sequences, pool }
    }

    /// Makes a field a sequence. The first such field determines the number of tokens of a sample.
    ///
    /// `padding` is the value after the last token of a packed sequence. `separator` is a value that
    /// follows the tokens of each sample; all sequences have one, or none of them.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such field, its first dimension does not have any length, the
    /// field's type cannot hold one of the values, or only some fields have a separator.
    pub fn sequence(mut self, name: &str, padding: f64, separator: Option<f64>) -> Result<Self> {
        let Some(at) = self.fields.iter().position(|field| *field.name == *name) else {
            return Err(invalid(format!("there is no field {name:?}")));
        };
        let Field { dtype, shape, .. } = &self.fields[at];
        if shape.first() != Some(&0) {
            return Err(invalid(format!(
                "field {name:?} has the shape {shape:?}; the first dimension of a sequence has any \
                 length (0)"
            )));
        }
        let value = |value| {
            element(*dtype, value)
                .ok_or_else(|| invalid(format!("field {name:?} cannot hold {value} as {dtype}")))
        };
        let padding = value(padding)?;
        let separator = separator.map(value).transpose()?;
        let sequence = SequenceField { at, padding, separator };
        if self.sequences.first().is_some_and(|one| one.separators() != sequence.separators()) {
            return Err(invalid(format!(
                "field {name:?}: all sequences have a separator, or none of them"
            )));
        }
        self.sequences.push(sequence);
        Ok(self)
    }

    /// The stage that writes each item by `fill`.
    ///
    /// # Errors
    /// Those of [`Fill::check_fields`].
    pub fn stage<In, F: Fill<In>>(self: &Arc<Self>, fill: F) -> Result<FillSequence<F>> {
        fill.check_fields(&self.fields)?;
        Ok(FillSequence { layout: Arc::clone(self), fill })
    }

    /// Memory for a sample.
    fn empty_rows(&self) -> Result<Vec<Row>> {
        let row = |field: &Field| match field.collation {
            Collation::Stacked => aligned(field.row_bytes().unwrap_or(usize::MAX)).map(Row::from),
            _ => Ok(Row::default()),
        };
        self.fields.iter().map(row).collect()
    }

    /// A sample with all its tokens.
    ///
    /// # Errors
    /// `InvalidArgument` if the sequences differ in length.
    fn sample(&self, written: WrittenSample) -> Result<SampleTokens> {
        let WrittenSample { id, rows } = written;
        let shaped = self.fields.iter().zip(rows).map(|(field, row)| match field.collation {
            Collation::Stacked => row,
            _ => row.or_empty(field),
        });
        let rows: Vec<Row> = shaped.collect();
        let mut lengths = self.sequences.iter().map(|one| {
            let tokens = rows.get(one.at).and_then(|row| row.shape.first().copied());
            tokens.unwrap_or(0) as u64 + one.separators()
        });
        let tokens = lengths.next().unwrap_or(0);
        if let Some(length) = lengths.find(|&length| length != tokens) {
            return Err(invalid(format!(
                "sequences of one sample differ in length: {tokens} and {length} tokens"
            )));
        }
        let sample = Arc::new(WrittenSample { id, rows });
        Ok(SampleTokens { sample, range: 0..tokens })
    }

    /// Joins samples to a batch with the collations of the fields.
    ///
    /// # Errors
    /// `InvalidArgument` if the samples are of another layout; `LimitExceeded` if memory cannot be
    /// allocated.
    pub fn join(&self, samples: &[SampleTokens]) -> Result<Batch> {
        let mut batch = self.empty(samples.iter());
        for at in 0..self.fields.len() {
            self.append(&mut batch, at, samples.iter())?;
        }
        Ok(batch)
    }

    /// Joins packed sequences, which have one capacity, to a batch.
    ///
    /// Each field that is a sequence has the shape `[sequences, capacity, …]`, with padding after
    /// the last token of a sequence. Other fields have one element for each sample or part of a
    /// sample, in the order of the sequences, collated as usual. Three arrays follow:
    ///
    /// - `position_ids`, `i64 [sequences, capacity]`: the position of each token in its part,
    /// - `segment_ids`, `i32 [sequences, capacity]`: the number of the part in its sequence, counted
    ///   from 1; 0 for padding,
    /// - `cu_seqlens`, `i32`: the start of each part in the flattened tokens, and the end of the last
    ///   one. The padding of a sequence is one more part.
    ///
    /// # Errors
    /// The errors of [`join`](Self::join); `InvalidArgument` if the capacities differ, or a sequence
    /// has any length in another dimension than the first; `LimitExceeded` if the batch has more than
    /// 2³¹ − 1 tokens.
    pub fn join_packed(&self, packed: &[Packed<SampleTokens>]) -> Result<Batch> {
        let capacity = packed.first().map_or(0, |one| one.capacity);
        if let Some(other) = packed.iter().find(|one| one.capacity != capacity) {
            let other = other.capacity;
            return Err(invalid(format!(
                "sequences have different capacities: {capacity}, {other}"
            )));
        }
        let total = capacity.checked_mul(packed.len() as u64);
        if total.is_none_or(|total| i32::try_from(total).is_err()) {
            let message = format!(
                "{} sequences of {capacity} tokens exceed the maximum of {} tokens in a batch",
                packed.len(),
                i32::MAX
            );
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        let capacity = capacity as usize;
        let parts = || packed.iter().flat_map(|one| &one.items);
        let mut batch = self.empty(parts());
        for at in 0..self.fields.len() {
            match self.sequences.iter().find(|one| one.at == at) {
                Some(sequence) => self.append_packed(&mut batch, sequence, packed, capacity)?,
                None => self.append(&mut batch, at, parts())?,
            }
        }
        append_boundaries(&mut batch, packed, capacity, &self.pool)?;
        Ok(batch)
    }

    /// A batch without fields.
    fn empty<'a>(&self, samples: impl Iterator<Item = &'a SampleTokens>) -> Batch {
        let (ids, starts): (Vec<SampleId>, Vec<u64>) =
            samples.map(|one| (one.sample.id, one.range.start)).unzip();
        let starts = if starts.iter().all(|&start| start == 0) { Vec::new() } else { starts };
        Batch { starts, ..Batch::empty(ids) }
    }

    fn append<'a>(
        &self,
        batch: &mut Batch,
        at: usize,
        samples: impl Iterator<Item = &'a SampleTokens>,
    ) -> Result<()> {
        let field = &self.fields[at];
        let is_sequence = self.sequences.iter().any(|one| one.at == at);
        let rows = samples.map(|one| match is_sequence {
            true => one.tokens_of(at),
            false => one.row(at, field),
        });
        append(batch, field, &rows.collect::<Result<Vec<_>>>()?)
    }

    /// Adds a sequence field, one row for each packed sequence.
    fn append_packed(
        &self,
        batch: &mut Batch,
        sequence: &SequenceField,
        packed: &[Packed<SampleTokens>],
        capacity: usize,
    ) -> Result<()> {
        let field = &self.fields[sequence.at];
        let of_token = &field.shape[1..];
        if of_token.contains(&0) {
            return Err(invalid(format!(
                "field {:?} cannot be packed: only its first dimension may have any length",
                field.name
            )));
        }
        let shape: Vec<usize> =
            [packed.len(), capacity].into_iter().chain(of_token.iter().copied()).collect();
        let bytes_of_token = field.bytes_of(of_token).unwrap_or(usize::MAX);
        let mut values = self.pool.take(field.bytes_of(&shape).unwrap_or(usize::MAX))?;
        let bytes_of_row = bytes_of_token * capacity;
        for (at, one) in packed.iter().enumerate() {
            let mut rest = &mut values[at * bytes_of_row..][..bytes_of_row];
            for part in &one.items {
                let tokens = part.tokens_of(sequence.at)?.bytes;
                let (own, after) = rest.split_at_mut(part.tokens() as usize * bytes_of_token);
                let (own, separator) = own.split_at_mut(tokens.len().min(own.len()));
                own.copy_from_slice(&tokens[..own.len()]);
                fill(separator, sequence.separator.as_ref().unwrap_or(&sequence.padding));
                rest = after;
            }
            fill(rest, &sequence.padding);
        }
        let field = Field::new(&field.name, field.dtype, &shape[1..]);
        let values = Array::new(field.dtype, shape, values)?;
        batch.push(field, values);
        Ok(())
    }
}

impl SampleTokens {
    /// The shape of the whole sample in field number `field`, whose collation is not
    /// [stacked](Collation::Stacked); empty if there is no such field.
    pub fn shape(&self, field: usize) -> &[usize] {
        self.sample.rows.get(field).map_or(&[], |row| &row.shape)
    }

    /// The value of field number `at`.
    fn row<'a>(&'a self, at: usize, field: &'a Field) -> Result<RowRef<'a>> {
        let row = self.sample.rows.get(at).ok_or_else(|| other_layout(at))?;
        let shape = match field.collation {
            Collation::Stacked => &field.shape,
            _ => &row.shape,
        };
        Ok(RowRef { bytes: &row.bytes, shape: Cow::Borrowed(shape) })
    }

    /// The rows of the tokens in field number `at`, without a separator.
    fn tokens_of(&self, at: usize) -> Result<RowRef<'_>> {
        let Row { bytes, shape } = self.sample.rows.get(at).ok_or_else(|| other_layout(at))?;
        let rows = shape.first().copied().unwrap_or(0);
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(rows);
        let (start, end) = (place(self.range.start), place(self.range.end));
        let of_row = bytes.len() / rows.max(1);
        let mut shape = shape.clone();
        if let Some(first) = shape.first_mut() {
            *first = end - start;
        }
        Ok(RowRef { bytes: &bytes[start * of_row..end * of_row], shape: Cow::Owned(shape) })
    }
}

fn other_layout(at: usize) -> Error {
    invalid(format!("a sample of another layout has no field number {at}"))
}

/// Adds the arrays of [`SequenceLayout::ADDED`].
fn append_boundaries(
    batch: &mut Batch,
    packed: &[Packed<SampleTokens>],
    capacity: usize,
    pool: &BufferPool,
) -> Result<()> {
    let tokens = packed.len() * capacity;
    let mut positions = pool.take(tokens * size_of::<i64>())?;
    let mut segments = pool.take(tokens * size_of::<i32>())?;
    let mut ends = vec![0_i32];
    let mut rest: (&mut [i64], &mut [i32]) =
        (bytemuck::cast_slice_mut(&mut positions[..]), bytemuck::cast_slice_mut(&mut segments[..]));
    let mut part = |tokens: u64, segment: i32| {
        let (positions, segments) = std::mem::take(&mut rest);
        let (own_positions, positions) = positions.split_at_mut(tokens as usize);
        let (own_segments, segments) = segments.split_at_mut(tokens as usize);
        own_positions.iter_mut().zip(0..).for_each(|(position, at)| *position = at);
        own_segments.fill(segment);
        rest = (positions, segments);
        // At most `i32::MAX`, as the caller has checked.
        ends.push(ends.last().copied().unwrap_or(0) + tokens as i32);
    };
    for one in packed {
        for (number, tokens) in one.lengths().enumerate() {
            part(tokens, number as i32 + 1);
        }
        let padding = one.capacity - one.used();
        if padding > 0 {
            part(padding, 0);
        }
    }
    let (shape, of_row) = (vec![packed.len(), capacity], [capacity]);
    let [position_ids, segment_ids, cu_seqlens] = SequenceLayout::ADDED;
    let positions = Array::new(DType::I64, shape.clone(), positions)?;
    batch.push(Field::new(position_ids, DType::I64, &of_row), positions);
    let segments = Array::new(DType::I32, shape, segments)?;
    batch.push(Field::new(segment_ids, DType::I32, &of_row), segments);
    let mut bytes: BytesMut = aligned(size_of_val(&ends[..]))?;
    bytes.copy_from_slice(bytemuck::cast_slice(&ends));
    batch
        .push(Field::new(cu_seqlens, DType::I32, &[]), array(DType::I32, vec![ends.len()], bytes)?);
    Ok(())
}

/// Repeats the bytes of an element.
fn fill(bytes: &mut [u8], element: &[u8]) {
    match element.iter().any(|&byte| byte != 0) {
        true => {
            bytes.chunks_exact_mut(element.len()).for_each(|chunk| chunk.copy_from_slice(element));
        }
        false => bytes.fill(0),
    }
}

/// The bytes of a number; `None` if the type cannot hold it.
fn element(dtype: DType, value: f64) -> Option<Vec<u8>> {
    let whole = |least: f64, end: f64| {
        (value.fract() == 0.0 && (least..end).contains(&value)).then_some(value as i64)
    };
    Some(match dtype {
        DType::U8 => vec![whole(0.0, 256.0)? as u8],
        DType::U16 => (whole(0.0, 2f64.powi(16))? as u16).to_ne_bytes().into(),
        DType::I16 => (whole(-2f64.powi(15), 2f64.powi(15))? as i16).to_ne_bytes().into(),
        DType::I32 => (whole(-2f64.powi(31), 2f64.powi(31))? as i32).to_ne_bytes().into(),
        DType::I64 => whole(-2f64.powi(63), 2f64.powi(63))?.to_ne_bytes().into(),
        DType::F16 => half::f16::from_f64(value).to_ne_bytes().into(),
        DType::BF16 => half::bf16::from_f64(value).to_ne_bytes().into(),
        DType::F32 => (value as f32).to_ne_bytes().into(),
        DType::F64 => value.to_ne_bytes().into(),
    })
}

#[cfg(test)]
#[cfg(not(any(spdl_loom, spdl_shuttle)))]
mod tests {
    use super::*;
    use crate::stage::{ConcatAndSplit, Packer, Packing, pieces};

    fn row(shape: &[usize], numbers: &[i64]) -> Row {
        let mut bytes = aligned(size_of_val(numbers)).unwrap();
        bytes.copy_from_slice(bytemuck::cast_slice(numbers));
        Row { bytes, shape: shape.into() }
    }

    /// A sample of tokens `first..first + len`, in two fields, and a number.
    fn sample(first: i64, len: usize) -> WrittenSample {
        let numbers: Vec<i64> = (first..).take(len).collect();
        let pairs: Vec<i64> = numbers.iter().flat_map(|&number| [number, -number]).collect();
        let rows = vec![row(&[len], &numbers), row(&[len, 2], &pairs), row(&[], &[first])];
        WrittenSample { id: SampleId { epoch: 0, index: first as u64 }, rows }
    }

    fn layout(separator: Option<f64>) -> SequenceLayout {
        let fields = [
            Field::new("tokens", DType::I64, &[0]).collation(Collation::Padded),
            Field::new("pairs", DType::I64, &[0, 2]).collation(Collation::Ragged),
            Field::new("number", DType::I64, &[]),
        ];
        let layout = SequenceLayout::new(fields).sequence("tokens", -1.0, separator).unwrap();
        layout.sequence("pairs", 0.0, separator).unwrap()
    }

    fn numbers<'a>(batch: &'a Batch, name: &str) -> &'a [i64] {
        batch.array(name).unwrap().as_slice().unwrap()
    }

    fn small<'a>(batch: &'a Batch, name: &str) -> &'a [i32] {
        batch.array(name).unwrap().as_slice().unwrap()
    }

    #[test]
    fn parts_of_a_sample_are_known_by_their_starts() {
        let layout = layout(None);
        let samples = |lengths: &[usize]| -> Vec<SampleTokens> {
            let whole = lengths.iter().map(|&len| layout.sample(sample(5, len)).unwrap());
            let parts = whole.flat_map(|one| pieces(one, 3).map(|piece| piece.unwrap().part));
            parts.collect()
        };
        let batch = layout.join(&samples(&[7, 2])).unwrap();
        assert_eq!((batch.len(), batch.starts()), (4, &[0, 3, 6, 0][..]));
        assert!(layout.join(&samples(&[3, 2])).unwrap().starts().is_empty());
    }

    #[test]
    fn packed_sequences_have_their_tokens_padding_and_boundaries() {
        let layout = layout(None);
        let mut packer = Packer::new(Packing::new(6), SampleTokens::tokens).unwrap();
        let mut packed = Vec::new();
        use crate::stage::Aggregator;
        for (first, len) in [(10, 4), (20, 3), (30, 2)] {
            let sample = layout.sample(sample(first, len)).unwrap();
            packed.extend(packer.accumulate(sample).unwrap());
        }
        packed.extend(packer.flush().unwrap());
        let batch = layout.join_packed(&packed).unwrap();
        assert_eq!(batch.array("tokens").unwrap().shape(), [2, 6]);
        let tokens = [10, 11, 12, 13, 30, 31, 20, 21, 22, -1, -1, -1];
        assert_eq!(numbers(&batch, "tokens"), tokens);
        let pairs = numbers(&batch, "pairs");
        assert_eq!(batch.array("pairs").unwrap().shape(), [2, 6, 2]);
        assert_eq!(
            (&pairs[..4], &pairs[16..]),
            (&[10, -10, 11, -11][..], &[22, -22, 0, 0, 0, 0, 0, 0][..])
        );
        assert_eq!(numbers(&batch, "number"), [10, 30, 20]);
        assert_eq!(numbers(&batch, "position_ids"), [0, 1, 2, 3, 0, 1, 0, 1, 2, 0, 1, 2]);
        assert_eq!(small(&batch, "segment_ids"), [1, 1, 1, 1, 2, 2, 1, 1, 1, 0, 0, 0]);
        assert_eq!(small(&batch, "cu_seqlens"), [0, 4, 6, 9, 12]);
        let ids: Vec<u64> = batch.ids().iter().map(|id| id.index).collect();
        assert_eq!(ids, [10, 30, 20]);
    }

    #[test]
    fn a_separator_follows_each_sample_and_may_start_a_sequence() {
        use crate::stage::Aggregator;
        let layout = layout(Some(9.0));
        let mut concat = ConcatAndSplit::new(4, false).unwrap();
        let mut blocks = Vec::new();
        for (first, len) in [(10, 4), (20, 1)] {
            let mut next = concat.accumulate(layout.sample(sample(first, len)).unwrap()).unwrap();
            while let Some(block) = next {
                blocks.push(block.map(|piece| piece.part));
                next = concat.more().unwrap();
            }
        }
        blocks.extend(concat.flush().unwrap().map(|block| block.map(|piece| piece.part)));
        let batch = layout.join_packed(&blocks).unwrap();
        assert_eq!(numbers(&batch, "tokens"), [10, 11, 12, 13, 9, 20, 9, -1]);
        assert_eq!(numbers(&batch, "pairs")[8..12], [9, 9, 20, -20]);
        assert_eq!(numbers(&batch, "number"), [10, 10, 20]);
        assert_eq!(small(&batch, "cu_seqlens"), [0, 4, 5, 7, 8]);
    }

    #[test]
    fn parts_of_samples_are_collated_like_samples() {
        let layout = layout(None);
        let whole = [sample(10, 5), sample(20, 2)].map(|one| layout.sample(one).unwrap());
        let parts: Vec<_> = whole
            .into_iter()
            .flat_map(|one| pieces(one, 3))
            .map(|piece| piece.unwrap().part)
            .collect();
        let batch = layout.join(&parts).unwrap();
        assert_eq!(numbers(&batch, "tokens"), [10, 11, 12, 13, 14, 0, 20, 21, 0]);
        assert_eq!(numbers(&batch, "tokens.sizes"), [3, 2, 2]);
        assert_eq!(numbers(&batch, "pairs.offsets"), [0, 3, 5, 7]);
        assert_eq!(numbers(&batch, "number"), [10, 10, 20]);
    }

    #[test]
    fn padding_is_a_number_of_the_type() {
        assert_eq!(element(DType::U16, 65535.0), Some(u16::MAX.to_ne_bytes().into()));
        assert_eq!(element(DType::I16, -32768.0), Some(i16::MIN.to_ne_bytes().into()));
        assert_eq!(element(DType::I32, 2147483647.0), Some(i32::MAX.to_ne_bytes().into()));
        assert_eq!(element(DType::F64, 0.1), Some(0.1_f64.to_ne_bytes().into()));
        for (dtype, value) in
            [(DType::U16, 65536.0), (DType::I16, 32768.0), (DType::I32, 2147483648.0)]
        {
            assert_eq!(element(dtype, value), None, "{dtype}");
        }
    }

    #[test]
    fn invalid_layouts_and_samples_are_errors() {
        let fields = || [Field::new("a", DType::U8, &[0]), Field::new("b", DType::F32, &[2])];
        let fault = |name: &str, padding| {
            let error = SequenceLayout::new(fields()).sequence(name, padding, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            error.to_string()
        };
        assert!(fault("c", 0.0).contains("there is no field \"c\""));
        assert!(fault("b", 0.0).contains("[2]"));
        for padding in [-1.0, 256.0, 0.5, f64::NAN] {
            assert!(fault("a", padding).contains("cannot hold"), "{padding}");
        }
        let few =
            SequenceLayout::new([]).sample(WrittenSample { rows: Vec::new(), ..sample(1, 2) });
        let layout = layout(None);
        assert!(layout.join(&[few.unwrap()]).is_err());
        let mut uneven = sample(1, 3);
        uneven.rows[1] = row(&[2, 2], &[0; 4]);
        assert!(layout.sample(uneven).unwrap_err().to_string().contains("3 and 2 tokens"));
        let long = Packed { items: Vec::new(), offsets: vec![0], capacity: 1 << 31 };
        let error = layout.join_packed(&[long]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    }
}
