//! Batches of arrays: [`Batch`].

use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::memory::array::Array;
use crate::memory::footprint::{Footprint, heap};
use crate::source::sample::SampleId;
use crate::stage::layout::Field;

/// Default number of items, mostly batches, that are prefetched for the consumer.
pub(crate) const PREFETCH: usize = 2;

/// Samples as arrays, with the id of each sample.
///
/// Each array has the shape `[number of samples, …]`, except the values and offsets of
/// [ragged](crate::stage::Collation::Ragged) fields, and the arrays of
/// [packed sequences](crate::stage::SequenceLayout::join_packed).
pub struct Batch {
    /// One field per array.
    pub(crate) fields: Vec<Field>,
    pub(crate) arrays: Vec<Array>,
    /// One array per sample.
    pub(crate) lists: Vec<(Field, Vec<Array>)>,
    pub(crate) ids: Vec<SampleId>,
    /// See [`starts`](Batch::starts).
    pub(crate) starts: Vec<u64>,
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
        let mut batch = Batch::empty(ids);
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

    /// A batch of these samples without fields.
    pub(crate) fn empty(ids: Vec<SampleId>) -> Self {
        let (fields, arrays) = (Vec::new(), Vec::new());
        Batch { fields, arrays, lists: Vec::new(), ids, starts: Vec::new() }
    }

    /// Adds an array that the caller has checked.
    pub(crate) fn push(&mut self, field: Field, array: Array) {
        self.fields.push(field);
        self.arrays.push(array);
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

    /// The first token of each sample that is a part of a [split](crate::stage::pieces) sample, and 0 for
    /// others; empty if no sample is a later part. Parts of one sample have the same id.
    pub fn starts(&self) -> &[u64] {
        &self.starts
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

    /// The arrays of the samples in the field `name`, whose collation is
    /// [`List`](crate::stage::Collation::List); `None` if the batch has no such field.
    pub fn list(&self, name: &str) -> Option<&[Array]> {
        let mut lists = self.lists.iter();
        lists.find(|(field, _)| &*field.name == name).map(|(_, list)| &list[..])
    }

    /// The names and arrays of all fields with the collation
    /// [`List`](crate::stage::Collation::List), which leave the batch.
    pub fn take_lists(&mut self) -> impl Iterator<Item = (std::sync::Arc<str>, Vec<Array>)> {
        std::mem::take(&mut self.lists).into_iter().map(|(field, list)| (field.name, list))
    }

    /// Replaces the arrays of the field `name`, whose collation is
    /// [`List`](crate::stage::Collation::List); returns the old arrays.
    ///
    /// # Errors
    /// `InvalidArgument` if the batch has no such field, or `list` has not one array for each sample, or
    /// an array has a type or shape that the field does not accept.
    pub fn replace_list(&mut self, name: &str, list: Vec<Array>) -> Result<Vec<Array>> {
        let (samples, count) = (self.len(), list.len());
        let invalid = |message: String| Error::new(ErrorKind::InvalidArgument, message);
        let found = self.lists.iter_mut().find(|(field, _)| &*field.name == name);
        let (field, old) =
            found.ok_or_else(|| invalid(format!("the batch has no list named {name:?}")))?;
        if count != samples {
            return Err(invalid(format!("list {name:?} has {count} arrays for {samples} samples")));
        }
        let fits = |one: &Array| one.dtype() == field.dtype && field.accepts(one.shape());
        if let Some(other) = list.iter().find(|one| !fits(one)) {
            let (dtype, shape) = (other.dtype(), other.shape());
            return Err(invalid(format!("the field {field} does not accept {dtype} {shape:?}")));
        }
        Ok(std::mem::replace(old, list))
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

    /// All arrays, in the order of the layout, or in the order given to [`new`](Self::new). The
    /// second array of a ragged or padded field follows the first one. Lists are not included.
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
        for (field, list) in &self.lists {
            map.entry(&field.name, list);
        }
        map.finish()
    }
}

impl Footprint for Batch {
    fn footprint(&self) -> usize {
        // All batches share the names, which the layout owns.
        let fields = self.fields.iter().map(|field| size_of_val(field) + heap(&field.shape));
        let lists = self.lists.iter().map(|(field, list)| size_of_val(field) + heap(list));
        let own = size_of::<Self>() + fields.sum::<usize>() + lists.sum::<usize>();
        own + heap(&self.arrays) + heap(&self.ids) + heap(&self.starts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::array::DType;
    use crate::memory::buffer::BufferPool;
    use crate::stage::layout::BatchLayout;

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
    fn a_list_of_a_batch_can_be_replaced() {
        let mut batch = Batch::empty(vec![SampleId::default(); 2]);
        let field = Field::new("boxes", DType::F32, &[0, 4]);
        let of = |rows: &[usize]| -> Vec<Array> {
            rows.iter().map(|&rows| array(DType::F32, &[rows, 4])).collect()
        };
        batch.lists.push((field.collation(crate::stage::Collation::List), of(&[1, 2])));
        let before = batch.replace_list("boxes", of(&[3, 0])).unwrap();
        assert_eq!(before[1].shape(), [2, 4]);
        assert_eq!(batch.list("boxes").unwrap()[0].shape(), [3, 4]);
        let wrong = vec![array(DType::F32, &[1, 5]), array(DType::F32, &[1, 4])];
        for (name, list) in [("boxes", of(&[1])), ("boxes", wrong), ("masks", of(&[1, 1]))] {
            let error = batch.replace_list(name, list).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
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
        let batch = Batch { fields: layout.fields().to_vec(), arrays, ..Batch::empty(ids) };
        let own = size_of::<Batch>() + 2 * (size_of::<Array>() + size_of::<Field>());
        let shapes = 3 * 8 + 8;
        assert_eq!(batch.footprint(), own + shapes + 3000 + 80 + 10 * 16);
    }
}
