//! Batches that are filled in place: [`BatchLayout`], [`Fill`] and [`Batch`].

use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;

use crate::error::{Error, ErrorKind, Result};
use crate::memory::array::{Array, DType, Element, expect_dtype};
use crate::memory::footprint::{Footprint, heap};
use crate::source::random::SampleRng;
use crate::source::sample::SampleId;

/// Default number of items, mostly batches, that are prefetched for the consumer.
pub(crate) const PREFETCH: usize = 2;

/// Name, element type and per-sample shape of one array of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name, such as `images` or `labels`.
    pub name: Arc<str>,
    /// The type of the elements.
    pub dtype: DType,
    /// The shape of one sample, without the batch dimension; empty for a scalar.
    pub shape: Vec<usize>,
}

impl Field {
    /// Creates a field from its name, element type and per-sample shape.
    pub fn new(name: &str, dtype: DType, shape: &[usize]) -> Self {
        Field { name: name.into(), dtype, shape: shape.to_vec() }
    }

    /// Size of one sample in bytes; `None` if it overflows `usize`.
    pub fn row_bytes(&self) -> Option<usize> {
        self.shape.iter().try_fold(self.dtype.size(), |bytes, &n| bytes.checked_mul(n))
    }
}

/// The fields of a batch and its number of samples.
///
/// ```
/// use spdl_core::{BatchLayout, DType, Field};
/// let layout = BatchLayout::new(32, [
///     Field::new("images", DType::U8, &[224, 224, 3]),
///     Field::new("labels", DType::I64, &[]),
/// ]);
/// assert_eq!(layout.batch_size(), 32);
/// assert!(!layout.drops_last());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchLayout {
    batch_size: usize,
    drop_last: bool,
    fields: Vec<Field>,
}

impl BatchLayout {
    /// A layout of `batch_size` samples with these fields.
    ///
    /// The last batch of an epoch may be shorter: see [`drop_last`](Self::drop_last).
    /// [`build`](crate::PipelineBuilder::build) rejects a batch size of 0, a layout without fields,
    /// a field whose shape contains 0, and an array larger than `isize::MAX / 2` bytes.
    pub fn new(batch_size: usize, fields: impl IntoIterator<Item = Field>) -> Self {
        BatchLayout { batch_size, drop_last: false, fields: fields.into_iter().collect() }
    }

    /// Sets whether the samples of an incomplete last batch are left out. Default: `false`.
    ///
    /// [`Statistics::left_out`](crate::Statistics::left_out) counts these samples.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// Number of samples in a full batch.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// Whether an incomplete last batch is left out.
    pub fn drops_last(&self) -> bool {
        self.drop_last
    }

    /// The fields, in the order in which a [`SlotMut`] numbers them.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Maximum number of batches that exist at the same time if `workers` workers fill them.
    ///
    /// The number is ⌈workers / batch size⌉ + 1 batches in assembly, 2 prefetched batches, and the
    /// batch of the consumer. The number assumes that the fill is the last stage, that queue and
    /// [prefetch](crate::PipelineBuilder::prefetch) have their defaults, and that the consumer
    /// holds one batch at a time.
    ///
    /// ```
    /// use spdl_core::{BatchLayout, DType, Field};
    /// let layout = |size| BatchLayout::new(size, [Field::new("labels", DType::I64, &[])]);
    /// assert_eq!(layout(32).live_batches(8), 5);
    /// assert_eq!(layout(1).live_batches(64), 68);
    /// assert_eq!(layout(32).live_bytes(8), 5 * 32 * 8);
    /// ```
    pub fn live_batches(&self, workers: usize) -> usize {
        // The capacity of the stage's queue, plus the batch of the consumer.
        let written = workers.div_ceil(self.batch_size.max(1)).saturating_add(1);
        written.saturating_add(PREFETCH + 1)
    }

    /// Size in bytes of the [live batches](Self::live_batches): a memory budget that fits them all.
    /// `usize::MAX` if the size overflows.
    pub fn live_bytes(&self, workers: usize) -> usize {
        let row = self.fields.iter().try_fold(0usize, |sum, field| {
            field.row_bytes().and_then(|bytes| sum.checked_add(bytes))
        });
        let rows = self.batch_size.checked_mul(self.live_batches(workers));
        row.zip(rows).and_then(|(row, rows)| row.checked_mul(rows)).unwrap_or(usize::MAX)
    }

    /// Checks that every field has at least one byte and that no array is too large.
    pub(crate) fn validate(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        if self.batch_size == 0 {
            return invalid("the batch size is 0; it must be at least 1".into());
        }
        if self.fields.is_empty() {
            return invalid("the batch layout has no fields; add at least one".into());
        }
        let size = self.batch_size;
        for field in &self.fields {
            let Field { name, shape, .. } = field;
            match field.row_bytes().and_then(|row| row.checked_mul(size)) {
                Some(0) => {
                    return invalid(format!(
                        "field {name:?} has the shape {shape:?}; all dimensions must be at least 1"
                    ));
                }
                Some(bytes) if bytes <= isize::MAX as usize / 2 => {}
                _ => {
                    return invalid(format!(
                        "field {name:?} of shape {shape:?} is too large for a batch of {size} \
                         samples"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// A stage that writes its result directly into a slot of a batch.
///
/// Only one worker at a time uses an instance, so `&mut self` needs no lock, and an instance may
/// own scratch memory. The workers call [`fill`](Fill::fill) on different instances concurrently.
/// If `fill` fails and the failure policy drops the sample, the next sample overwrites the slot.
pub trait Fill<In>: Send + 'static {
    /// Writes every field of `slot` from `item`.
    ///
    /// # Errors
    /// Any error fails the sample. The stage's failure policy decides whether the pipeline
    /// continues.
    fn fill(&mut self, item: In, slot: SlotMut<'_>, cx: &mut FillContext<'_>) -> Result<()>;

    /// Checks that the instance can write these fields. The default accepts all.
    ///
    /// The engine calls `check_fields` on each new instance.
    /// [`PipelineBuilder::fill`](crate::PipelineBuilder::fill) documents when instances are
    /// created.
    ///
    /// # Errors
    /// If the pipeline is being built, any error fails the build. Later, any error ends the
    /// pipeline.
    fn check_fields(&self, fields: &[Field]) -> Result<()> {
        let _ = fields;
        Ok(())
    }
}

/// The slot of one sample in a batch: one memory range per field.
///
/// The memory contains arbitrary bytes until it is written.
pub struct SlotMut<'a> {
    fields: &'a [Field],
    rows: &'a mut [BytesMut],
}

impl<'a> SlotMut<'a> {
    pub(crate) fn new(fields: &'a [Field], rows: &'a mut [BytesMut]) -> Self {
        SlotMut { fields, rows }
    }

    /// The fields, in the layout's order.
    pub fn fields(&self) -> &'a [Field] {
        self.fields
    }

    /// The bytes of field number `field`, in native byte order.
    ///
    /// # Panics
    /// If the layout has no field of this number.
    pub fn bytes_mut(&mut self, field: usize) -> &mut [u8] {
        &mut self.rows[field]
    }

    /// The elements of field number `field`, in C order.
    ///
    /// # Errors
    /// `InvalidArgument` if `T` is not the field's element type.
    ///
    /// # Panics
    /// If the layout has no field of this number.
    pub fn typed_mut<T: Element>(&mut self, field: usize) -> Result<&mut [T]> {
        expect_dtype::<T>(self.fields[field].dtype)?;
        // Aligned: a row starts at a multiple of its length, which is a multiple of the element
        // size.
        Ok(bytemuck::cast_slice_mut(&mut self.rows[field]))
    }

    /// Sets each element of field number `field` to `value`.
    ///
    /// # Errors
    /// `InvalidArgument` if `T` is not the field's element type.
    ///
    /// # Panics
    /// If the layout has no field of this number.
    pub fn set<T: Element>(&mut self, field: usize, value: T) -> Result<()> {
        self.typed_mut(field)?.fill(value);
        Ok(())
    }
}

impl fmt::Debug for SlotMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotMut").field("fields", &self.fields).finish_non_exhaustive()
    }
}

/// The current sample of a [`Fill`], and its random numbers.
#[derive(Debug)]
pub struct FillContext<'a> {
    pub(crate) id: SampleId,
    pub(crate) lineage: u64,
    pub(crate) key: Option<&'a str>,
    pub(crate) seed: u64,
    pub(crate) stage: u64,
}

impl<'a> FillContext<'a> {
    /// Creates a context outside a pipeline, for tests and direct calls of a `Fill`.
    pub fn new(seed: u64, id: SampleId, stage: &str, key: Option<&'a str>) -> Self {
        FillContext { id, lineage: 0, key, seed, stage: crate::source::random::stage_number(stage) }
    }

    /// Epoch and position of the sample.
    pub fn id(&self) -> SampleId {
        self.id
    }

    /// The sample's key, such as a path or an object key, if the source provides one.
    pub fn key(&self) -> Option<&'a str> {
        self.key
    }

    /// A random number generator that depends only on the seed, the sample, the epoch and the stage's
    /// name. Every call returns a new generator with the same sequence.
    pub fn rng(&self) -> SampleRng {
        SampleRng::for_stage(self.seed, self.id, self.lineage, self.stage)
    }

    /// The generator that [`rng`](Self::rng) returns for this sample in the stage `stage` of a
    /// pipeline with seed `seed`.
    ///
    /// A stage can use `rng_of` to draw the same random numbers as a stage of another pipeline.
    ///
    /// ```
    /// use spdl_core::{FillContext, SampleId, SampleRng};
    /// let id = SampleId { epoch: 1, index: 42 };
    /// let cx = FillContext::new(0, id, "decode again", None);
    /// let mut expected = SampleRng::new(7, id, "decode");
    /// assert_eq!(cx.rng_of(7, "decode").next_u64(), expected.next_u64());
    /// ```
    pub fn rng_of(&self, seed: u64, stage: &str) -> SampleRng {
        SampleRng::for_stage(
            seed,
            self.id,
            self.lineage,
            crate::source::random::stage_number(stage),
        )
    }
}

/// Samples as arrays, one per field, with the id of each sample.
///
/// Each array has the shape `[number of samples, …]`.
pub struct Batch {
    pub(crate) fields: Vec<Field>,
    pub(crate) arrays: Vec<Array>,
    pub(crate) ids: Vec<SampleId>,
}

impl Batch {
    /// Creates a batch of these samples, with an array of shape `[ids.len(), …]` for each name.
    ///
    /// ```
    /// use spdl_core::{Array, Batch, DType, SampleId};
    /// use spdl_core::memory::BufferPool;
    /// let ids = vec![SampleId { epoch: 0, index: 0 }, SampleId { epoch: 0, index: 1 }];
    /// let labels = Array::new(DType::I64, vec![2], BufferPool::new().take(16)?)?;
    /// let batch = Batch::new(ids, [("labels", labels)])?;
    /// assert_eq!(batch.len(), 2);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if the first dimension of an array is not `ids.len()`, or a name repeats.
    pub fn new<'a>(
        ids: Vec<SampleId>,
        arrays: impl IntoIterator<Item = (&'a str, Array)>,
    ) -> Result<Self> {
        let mut batch = Batch { fields: Vec::new(), arrays: Vec::new(), ids };
        for (name, array) in arrays {
            if batch.array(name).is_some() {
                let message = format!("duplicate array name in a batch: {name:?}");
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
            batch.fields.push(batch.field_of(name, &array)?);
            batch.arrays.push(array);
        }
        Ok(batch)
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether the batch has no samples. A [`fill`](crate::PipelineBuilder::fill) stage never emits
    /// an empty batch.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The epoch of the first sample; 0 for an empty batch. A
    /// [`fill`](crate::PipelineBuilder::fill) stage never mixes epochs in a batch.
    pub fn epoch(&self) -> u64 {
        self.ids.first().map_or(0, |id| id.epoch)
    }

    /// Ids of the samples, in their order in the batch.
    pub fn ids(&self) -> &[SampleId] {
        &self.ids
    }

    /// The array of the field `name`, of shape `[len, …]`; `None` if the batch has no such field.
    pub fn array(&self, name: &str) -> Option<&Array> {
        let at = self.fields.iter().position(|field| &*field.name == name)?;
        self.arrays.get(at)
    }

    /// Mutable access to the array of the field `name`; `None` if the batch has no such field.
    pub fn array_mut(&mut self, name: &str) -> Option<&mut Array> {
        let at = self.fields.iter().position(|field| &*field.name == name)?;
        self.arrays.get_mut(at)
    }

    /// Replaces the array of the field `name`; returns the old array.
    ///
    /// The element type and the per-sample shape may differ from the old array.
    ///
    /// # Errors
    /// `InvalidArgument` if the batch has no such field, or the first dimension of `array` is not
    /// `len`.
    pub fn replace(&mut self, name: &str, array: Array) -> Result<Array> {
        let field = self.field_of(name, &array)?;
        let Some(at) = self.fields.iter().position(|field| &*field.name == name) else {
            let message = format!("the batch has no array named {name:?}");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        self.fields[at] = field;
        Ok(std::mem::replace(&mut self.arrays[at], array))
    }

    /// The field of `array`, whose first dimension must be the number of samples.
    fn field_of(&self, name: &str, array: &Array) -> Result<Field> {
        match array.shape() {
            [rows, shape @ ..] if *rows == self.len() => Ok(Field::new(name, array.dtype(), shape)),
            shape => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("array {name:?} has the shape {shape:?}; expected [{}, ...]", self.len()),
            )),
        }
    }

    /// All arrays, in the order of the layout, or in the order given to [`new`](Self::new).
    pub fn arrays(&self) -> &[Array] {
        &self.arrays
    }

    /// Returns the arrays, in the same order as [`arrays`](Self::arrays).
    pub fn into_arrays(self) -> Vec<Array> {
        self.arrays
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (field, array) in self.fields.iter().zip(&self.arrays) {
            map.entry(&field.name, array);
        }
        map.finish()
    }
}

impl Footprint for Batch {
    fn footprint(&self) -> usize {
        // All batches share the names, which the layout owns.
        let fields = self.fields.iter().map(|field| size_of_val(field) + heap(&field.shape));
        size_of::<Self>() + fields.sum::<usize>() + heap(&self.arrays) + heap(&self.ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::buffer::BufferPool;

    fn array(dtype: DType, shape: &[usize]) -> Array {
        let bytes = shape.iter().product::<usize>() * dtype.size();
        Array::new(dtype, shape.to_vec(), BufferPool::new().take(bytes).unwrap()).unwrap()
    }

    #[test]
    fn first_dimension_of_each_array_is_the_number_of_samples() {
        let ids = vec![SampleId::default(); 2];
        let labels = || array(DType::I64, &[2]);
        let kind = |result: Result<Batch>| result.unwrap_err().kind();
        let short = Batch::new(ids.clone(), [("labels", array(DType::I64, &[3]))]);
        assert_eq!(kind(short), ErrorKind::InvalidArgument);
        let number = Batch::new(ids.clone(), [("labels", array(DType::I64, &[]))]);
        assert_eq!(kind(number), ErrorKind::InvalidArgument);
        let twice = Batch::new(ids.clone(), [("labels", labels()), ("labels", labels())]);
        assert_eq!(kind(twice), ErrorKind::InvalidArgument);
        let batch = Batch::new(ids, [("labels", labels())]).unwrap();
        assert_eq!(batch.array("labels").unwrap().shape(), [2]);
    }

    #[test]
    fn live_batches_grow_with_the_number_of_workers() {
        let layout = |size, shape: &[usize]| {
            BatchLayout::new(
                size,
                [Field::new("a", DType::F32, shape), Field::new("b", DType::U8, &[])],
            )
        };
        assert_eq!(layout(32, &[]).live_batches(2), 5);
        assert_eq!(layout(32, &[]).live_batches(33), 6);
        assert_eq!(layout(1, &[]).live_batches(64), 68);
        assert_eq!(layout(2, &[3, 5]).live_bytes(1), 5 * 2 * (4 * 15 + 1));
        // Sizes that overflow.
        for layout in [layout(usize::MAX, &[]), layout(1, &[usize::MAX]), layout(0, &[usize::MAX])]
        {
            assert_eq!(layout.live_bytes(usize::MAX), usize::MAX);
        }
    }

    #[test]
    fn an_array_of_a_batch_can_be_written_and_replaced() {
        let ids = vec![SampleId::default(); 2];
        let mut batch = Batch::new(ids, [("labels", array(DType::I64, &[2]))]).unwrap();
        batch.array_mut("labels").unwrap().as_mut_slice().unwrap().copy_from_slice(&[3_i64, 4]);
        assert!(batch.array_mut("labels").unwrap().as_mut_slice::<f32>().is_err());
        assert!(batch.array_mut("images").is_none());
        assert!(batch.replace("labels", array(DType::F32, &[3, 5])).is_err());
        assert!(batch.replace("images", array(DType::F32, &[2, 5])).is_err());
        let before = batch.replace("labels", array(DType::F32, &[2, 5])).unwrap();
        assert_eq!(before.as_slice::<i64>().unwrap(), [3, 4]);
        assert_eq!(batch.array("labels").unwrap().shape(), [2, 5]);
        assert_eq!(batch.fields[0], Field::new("labels", DType::F32, &[5]));
    }

    #[test]
    fn footprint_of_a_batch_includes_arrays_and_ids() {
        let fields = [Field::new("a", DType::U8, &[300]), Field::new("b", DType::I64, &[])];
        let layout = BatchLayout::new(10, fields);
        let pool = BufferPool::new();
        let arrays = vec![
            Array::new(DType::U8, vec![10, 300], pool.take(3000).unwrap()).unwrap(),
            Array::new(DType::I64, vec![10], pool.take(80).unwrap()).unwrap(),
        ];
        let ids = vec![SampleId::default(); 10];
        let batch = Batch { fields: layout.fields().to_vec(), arrays, ids };
        let own = size_of::<Batch>() + 2 * (size_of::<Array>() + size_of::<Field>());
        let shapes = 3 * 8 + 8;
        assert_eq!(batch.footprint(), own + shapes + 3000 + 80 + 10 * 16);
    }
}
