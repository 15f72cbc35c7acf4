//! Batches that are filled in place: what a batch looks like, and who writes a sample into it.

use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;

use crate::error::{Error, ErrorKind, Result};
use crate::memory::array::{Array, DType, Element, expect_dtype};
use crate::memory::footprint::{Footprint, heap};
use crate::source::random::SampleRng;
use crate::source::sample::SampleId;

/// How many items (batches, mostly) wait for the consumer.
pub(crate) const PREFETCH: usize = 2;

/// One array of a batch, as each sample sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// What consumers call it: `images`, `labels`.
    pub name: Arc<str>,
    /// The type of its elements.
    pub dtype: DType,
    /// The shape of one sample, without the batch dimension; empty for a number.
    pub shape: Vec<usize>,
}

impl Field {
    /// A field with its name, type and per-sample shape.
    pub fn new(name: &str, dtype: DType, shape: &[usize]) -> Self {
        Field { name: name.into(), dtype, shape: shape.to_vec() }
    }

    /// The bytes of one sample; `None` where they overflow.
    pub fn row_bytes(&self) -> Option<usize> {
        self.shape.iter().try_fold(self.dtype.size(), |bytes, &n| bytes.checked_mul(n))
    }
}

/// The arrays of a batch and how many samples they hold.
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
    /// Batches of `batch_size` samples with these fields. The last batch of an epoch may be short.
    pub fn new(batch_size: usize, fields: impl IntoIterator<Item = Field>) -> Self {
        BatchLayout { batch_size, drop_last: false, fields: fields.into_iter().collect() }
    }

    /// Whether a short last batch is left out. Default: no. What is left out is counted.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// Samples in a full batch.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// Whether a short last batch is left out.
    pub fn drops_last(&self) -> bool {
        self.drop_last
    }

    /// The fields, in the order in which a [`SlotMut`] numbers them.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// How many batches exist at once, at most, in a pipeline of which `workers` write them and which
    /// prefetches [as many as it does by default](crate::PipelineBuilder::prefetch) of large ones: those
    /// that the workers can be writing and one more, two that wait, and the consumer's own.
    ///
    /// ```
    /// use spdl_core::{BatchLayout, DType, Field};
    /// let layout = |size| BatchLayout::new(size, [Field::new("labels", DType::I64, &[])]);
    /// assert_eq!(layout(32).live_batches(8), 5);
    /// assert_eq!(layout(1).live_batches(64), 68);
    /// assert_eq!(layout(32).live_bytes(8), 5 * 32 * 8);
    /// ```
    pub fn live_batches(&self, workers: usize) -> usize {
        // As the stage has places in its queue, and the consumer's.
        let written = workers.div_ceil(self.batch_size.max(1)).saturating_add(1);
        written.saturating_add(PREFETCH + 1)
    }

    /// The bytes of all those batches, which a memory budget needs to hold; `usize::MAX` where there
    /// are more.
    pub fn live_bytes(&self, workers: usize) -> usize {
        let row = self.fields.iter().try_fold(0usize, |sum, field| {
            field.row_bytes().and_then(|bytes| sum.checked_add(bytes))
        });
        let rows = self.batch_size.checked_mul(self.live_batches(workers));
        row.zip(rows).and_then(|(row, rows)| row.checked_mul(rows)).unwrap_or(usize::MAX)
    }

    /// Checks that a batch of this layout can exist.
    pub(crate) fn validate(&self) -> Result<()> {
        let fault = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        if self.batch_size == 0 {
            return fault("the batch size is 0; it must be at least 1".into());
        }
        if self.fields.is_empty() {
            return fault("a batch layout needs at least one field".into());
        }
        for field in &self.fields {
            match field.row_bytes().and_then(|row| row.checked_mul(self.batch_size)) {
                Some(0) => {
                    return fault(format!("field {:?} is empty: {:?}", field.name, field.shape));
                }
                Some(bytes) if bytes <= isize::MAX as usize / 2 => {}
                _ => {
                    return fault(format!(
                        "field {:?} is too large: {:?}",
                        field.name, field.shape
                    ));
                }
            }
        }
        Ok(())
    }
}

/// A step that writes its result straight into its place in a batch under assembly.
///
/// One instance per worker, so `&mut self` needs no lock and scratch memory may live in it. The
/// scheduler calls [`fill`](Fill::fill) from its worker threads, for different samples at once on
/// different instances. A sample whose `fill` fails leaves its slot to the next one: what was
/// written there is written over.
pub trait Fill<In>: Send + 'static {
    /// Writes every field of `slot` from `item`.
    ///
    /// # Errors
    /// Whatever keeps the sample from being written. The stage's policy decides what follows.
    fn fill(&mut self, item: In, slot: SlotMut<'_>, cx: &mut FillContext<'_>) -> Result<()>;

    /// Checks that it can write batches of these fields: asked of each instance when it is made, of the
    /// first when the pipeline is [built](crate::PipelineBuilder::fill). Default: yes.
    ///
    /// # Errors
    /// What does not fit, and how it could. The pipeline is not built then, or ends.
    fn check_fields(&self, fields: &[Field]) -> Result<()> {
        let _ = fields;
        Ok(())
    }
}

/// One sample's place in a batch: a piece of memory per field. It holds arbitrary bytes at first.
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

    /// The bytes of a field.
    ///
    /// # Panics
    /// Where the layout has no such field.
    pub fn bytes_mut(&mut self, field: usize) -> &mut [u8] {
        &mut self.rows[field]
    }

    /// The elements of a field.
    ///
    /// # Errors
    /// `InvalidArgument` where `T` is not the field's type.
    ///
    /// # Panics
    /// Where the layout has no such field.
    pub fn typed_mut<T: Element>(&mut self, field: usize) -> Result<&mut [T]> {
        expect_dtype::<T>(self.fields[field].dtype)?;
        // Rows start at a multiple of their own length, itself one of the element's size.
        Ok(bytemuck::cast_slice_mut(&mut self.rows[field]))
    }

    /// Writes a field that is a single number, or sets each of its elements.
    ///
    /// # Errors
    /// `InvalidArgument` where `T` is not the field's type.
    ///
    /// # Panics
    /// Where the layout has no such field.
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

/// What a [`Fill`] may know about the sample at hand.
#[derive(Debug)]
pub struct FillContext<'a> {
    pub(crate) id: SampleId,
    pub(crate) lineage: u64,
    pub(crate) key: Option<&'a str>,
    pub(crate) seed: u64,
    pub(crate) stage: u64,
}

impl<'a> FillContext<'a> {
    /// A context outside a pipeline, for tests and for calling a `Fill` by hand.
    pub fn new(seed: u64, id: SampleId, stage: &str, key: Option<&'a str>) -> Self {
        FillContext { id, lineage: 0, key, seed, stage: crate::source::random::stage_number(stage) }
    }

    /// Who the sample is.
    pub fn id(&self) -> SampleId {
        self.id
    }

    /// What people call it: a path, an object key.
    pub fn key(&self) -> Option<&'a str> {
        self.key
    }

    /// The sample's random numbers in this stage, from their start.
    pub fn rng(&self) -> SampleRng {
        SampleRng::for_stage(self.seed, self.id, self.lineage, self.stage)
    }

    /// The random numbers that the sample would have in the stage of this name of a run with this
    /// seed: for a stage that has a seed of its own, and draws what another pipeline draws.
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

/// Samples side by side: an array per field, and who they are.
pub struct Batch {
    pub(crate) fields: Vec<Field>,
    pub(crate) arrays: Vec<Array>,
    pub(crate) ids: Vec<SampleId>,
}

impl Batch {
    /// A batch of these samples, with an array `[ids.len(), …]` for each name.
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
    /// `InvalidArgument` where an array has not a row for each sample, or two have one name.
    pub fn new<'a>(
        ids: Vec<SampleId>,
        arrays: impl IntoIterator<Item = (&'a str, Array)>,
    ) -> Result<Self> {
        let mut batch = Batch { fields: Vec::new(), arrays: Vec::new(), ids };
        for (name, array) in arrays {
            if batch.array(name).is_some() {
                let message = format!("two arrays of a batch are called {name:?}");
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
            batch.fields.push(batch.field_of(name, &array)?);
            batch.arrays.push(array);
        }
        Ok(batch)
    }

    /// How many samples it holds.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether it holds none. A pipeline never delivers such a batch.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The epoch its samples belong to; a batch never mixes epochs.
    pub fn epoch(&self) -> u64 {
        self.ids.first().map_or(0, |id| id.epoch)
    }

    /// Who the samples are, in their order in the batch.
    pub fn ids(&self) -> &[SampleId] {
        &self.ids
    }

    /// The array of the field with this name, `[len, …]`.
    pub fn array(&self, name: &str) -> Option<&Array> {
        let at = self.fields.iter().position(|field| &*field.name == name)?;
        self.arrays.get(at)
    }

    /// The same, to be written.
    pub fn array_mut(&mut self, name: &str) -> Option<&mut Array> {
        let at = self.fields.iter().position(|field| &*field.name == name)?;
        self.arrays.get_mut(at)
    }

    /// Puts another array in the place of the one with this name, which it returns. Type and shape
    /// may be others.
    ///
    /// # Errors
    /// `InvalidArgument` where there is none of that name, or `array` has not a row for each sample.
    pub fn replace(&mut self, name: &str, array: Array) -> Result<Array> {
        let field = self.field_of(name, &array)?;
        let Some(at) = self.fields.iter().position(|field| &*field.name == name) else {
            let message = format!("the batch has no array {name:?}");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        self.fields[at] = field;
        Ok(std::mem::replace(&mut self.arrays[at], array))
    }

    /// What a row of `array` is, of which there must be one for each sample.
    fn field_of(&self, name: &str, array: &Array) -> Result<Field> {
        match array.shape() {
            [rows, shape @ ..] if *rows == self.len() => Ok(Field::new(name, array.dtype(), shape)),
            shape => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("expected {} rows of {name:?}, found the shape {shape:?}", self.len()),
            )),
        }
    }

    /// All arrays in the layout's order.
    pub fn arrays(&self) -> &[Array] {
        &self.arrays
    }

    /// Takes the arrays out, in the layout's order.
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
        // The names belong to the layout, which all batches share.
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
    fn every_array_of_a_batch_has_a_row_for_each_sample() {
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
    fn small_batches_are_counted_for_every_worker() {
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
        // More than there is memory anywhere, or than there are numbers.
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
    fn a_batch_holds_its_arrays_and_its_ids() {
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
