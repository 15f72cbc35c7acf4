//! Writing a sample into its place in a batch: [`Fill`], [`SlotMut`], [`FillContext`].

use std::fmt;

use bytes::BytesMut;

use crate::error::{Error, ErrorKind, Result};
use crate::memory::array::{Array, Element, expect_dtype};
use crate::memory::buffer::{BufferPool, aligned};
use crate::source::random::{ItemRng, SampleRng, StageRng, stage_number};
use crate::source::sample::SampleId;
use crate::stage::layout::{AnyShape, BatchLayout, Collation, Field};

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

/// The memory of one sample in one field.
#[derive(Debug, Default)]
pub(crate) struct Row {
    pub(crate) bytes: BytesMut,
    /// The shape of the sample; unused in stacked fields.
    pub(crate) shape: Vec<usize>,
}

impl From<BytesMut> for Row {
    fn from(bytes: BytesMut) -> Self {
        Row { bytes, shape: Vec::new() }
    }
}

impl Row {
    /// Makes the row empty. The memory is kept.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.shape.clear();
    }

    /// Makes the row `len` zeros.
    fn clear_to(&mut self, len: usize) -> Result<()> {
        self.bytes.clear();
        if self.bytes.capacity() < len {
            self.bytes = aligned(len)?;
        }
        self.bytes.resize(len, 0);
        Ok(())
    }
}

/// The slot of one sample in a batch: one memory range per field.
///
/// The memory of a [stacked](Collation::Stacked) field contains arbitrary bytes until it is
/// written. In other fields, a sample is empty until [`resize`](Self::resize) sets its shape.
pub struct SlotMut<'a> {
    fields: &'a [Field],
    rows: &'a mut [Row],
}

/// The elements of a row. The pointer of an empty row may be unaligned.
fn elements<T: Element>(bytes: &mut [u8]) -> &mut [T] {
    if bytes.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(bytes) }
}

impl<'a> SlotMut<'a> {
    pub(crate) fn new(fields: &'a [Field], rows: &'a mut [Row]) -> Self {
        SlotMut { fields, rows }
    }

    /// Sets the shape of the sample in field number `field`. Returns its elements, which are 0, in
    /// C order.
    ///
    /// ```
    /// use spdl_core::stage::Collation;
    /// use spdl_core::{BatchLayout, DType, Field, Fill, FillContext, PipelineBuilder, Result, SlotMut};
    ///
    /// struct Bytes;
    /// impl Fill<&'static str> for Bytes {
    ///     fn fill(&mut self, text: &str, mut slot: SlotMut<'_>, _: &mut FillContext<'_>) -> Result<()> {
    ///         slot.resize(0, &[text.len()])?.copy_from_slice(text.as_bytes());
    ///         Ok(())
    ///     }
    /// }
    /// let text = Field::new("text", DType::U8, &[0]).collation(Collation::Ragged);
    /// let mut pipeline = PipelineBuilder::from_iter(["ab", "", "cde"])
    ///     .fill("bytes", BatchLayout::new(3, [text]), || Ok(Bytes))
    ///     .build()?;
    /// let batch = pipeline.next().expect("one batch")?;
    /// assert_eq!(batch.array("text").map(|values| values.as_bytes()), Some(&b"abcde"[..]));
    /// let offsets = batch.array("text.offsets").expect("offsets").as_slice::<i64>()?;
    /// assert_eq!(offsets, [0, 2, 2, 5]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if the field is stacked and has another shape, if the field does not
    /// [accept](Field::accepts) the shape, or if `T` is not the field's element type;
    /// `LimitExceeded` if the memory cannot be allocated.
    ///
    /// # Panics
    /// If the layout has no field of this number.
    pub fn resize<T: Element>(&mut self, field: usize, shape: &[usize]) -> Result<&mut [T]> {
        let Field { name, dtype, shape: expected, collation, .. } = &self.fields[field];
        expect_dtype::<T>(*dtype)?;
        if !self.fields[field].accepts(shape) {
            let expected = AnyShape(expected);
            let message = format!("field {name:?} expects the shape {expected}, found {shape:?}");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let row = &mut self.rows[field];
        if *collation == Collation::Stacked {
            row.bytes.fill(0);
        } else {
            let bytes = self.fields[field].bytes_of(shape).unwrap_or(usize::MAX);
            row.clear_to(bytes)?;
            row.shape.clear();
            row.shape.extend_from_slice(shape);
        }
        Ok(elements(&mut row.bytes))
    }

    /// The fields, in the layout's order.
    pub fn fields(&self) -> &'a [Field] {
        self.fields
    }

    /// The shape of the sample in field number `field`; empty if it was not
    /// [resized](Self::resize).
    ///
    /// # Panics
    /// If the layout has no field of this number.
    pub fn shape(&self, field: usize) -> &[usize] {
        match self.fields[field].collation {
            Collation::Stacked => &self.fields[field].shape,
            _ => &self.rows[field].shape,
        }
    }

    /// Removes the rows (of the first dimension) from number `rows` on, if field number `field` has
    /// more. The first dimension of the field must have any length.
    ///
    /// ```
    /// use spdl_core::stage::Collation;
    /// use spdl_core::{BatchLayout, DType, Field, Fill, FillContext, PipelineBuilder, Result, SlotMut};
    ///
    /// struct Bytes;
    /// impl Fill<&'static str> for Bytes {
    ///     fn fill(&mut self, text: &str, mut slot: SlotMut<'_>, _: &mut FillContext<'_>) -> Result<()> {
    ///         slot.resize(0, &[text.len()])?.copy_from_slice(text.as_bytes());
    ///         slot.truncate(0, 2);
    ///         Ok(())
    ///     }
    /// }
    /// let text = Field::new("text", DType::U8, &[0]).collation(Collation::List);
    /// let mut pipeline = PipelineBuilder::from_iter(["abc"])
    ///     .fill("bytes", BatchLayout::new(1, [text]), || Ok(Bytes))
    ///     .build()?;
    /// let batch = pipeline.next().expect("one batch")?;
    /// assert_eq!(batch.list("text").map(|list| list[0].as_bytes()), Some(&b"ab"[..]));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the layout has no field of this number.
    pub fn truncate(&mut self, field: usize, rows: usize) {
        let Row { bytes, shape } = &mut self.rows[field];
        if let [count, ..] = &mut shape[..]
            && self.fields[field].shape.first() == Some(&0)
            && *count > rows
        {
            bytes.truncate(bytes.len() / *count * rows);
            *count = rows;
        }
    }

    /// The bytes of field number `field`, in native byte order.
    ///
    /// # Panics
    /// If the layout has no field of this number.
    pub fn bytes_mut(&mut self, field: usize) -> &mut [u8] {
        &mut self.rows[field].bytes
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
        Ok(elements(&mut self.rows[field].bytes))
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

/// The memory of one sample outside of a batch, for direct calls of a [`Fill`].
///
/// ```
/// use spdl_core::stage::SampleBuffer;
/// use spdl_core::{BatchLayout, DType, Field, Fill, FillContext, Result, SampleId, SlotMut};
///
/// struct Squares;
/// impl Fill<i64> for Squares {
///     fn fill(&mut self, number: i64, mut slot: SlotMut<'_>, _: &mut FillContext<'_>) -> Result<()> {
///         slot.set(0, number * number)
///     }
/// }
/// let layout = BatchLayout::new(32, [Field::new("square", DType::I64, &[])]);
/// let mut sample = SampleBuffer::new(&layout)?;
/// let mut cx = FillContext::new(0, SampleId { epoch: 0, index: 0 }, "square", None);
/// Squares.fill(3, sample.slot(), &mut cx)?;
/// let arrays = sample.to_arrays()?;
/// assert_eq!((arrays[0].shape(), arrays[0].as_slice::<i64>()?), (&[][..], &[9][..]));
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Debug)]
pub struct SampleBuffer {
    fields: Vec<Field>,
    rows: Vec<Row>,
    pool: BufferPool,
}

impl SampleBuffer {
    /// Allocates the memory of one sample. The batch size of `layout` is not used.
    ///
    /// # Errors
    /// `LimitExceeded` if the memory cannot be allocated.
    pub fn new(layout: &BatchLayout) -> Result<Self> {
        let fields = layout.fields().to_vec();
        let row = |field: &Field| match field.collation {
            Collation::Stacked => {
                let mut row = Row::default();
                row.clear_to(field.row_bytes().unwrap_or(usize::MAX)).map(|()| row)
            }
            _ => Ok(Row::default()),
        };
        let rows = fields.iter().map(row).collect::<Result<_>>()?;
        Ok(SampleBuffer { fields, rows, pool: BufferPool::new() })
    }

    /// The slot for a call of [`Fill::fill`]. Samples of fields that are not stacked are empty again.
    pub fn slot(&mut self) -> SlotMut<'_> {
        for (field, row) in self.fields.iter().zip(&mut self.rows) {
            if field.collation != Collation::Stacked {
                row.clear();
            }
        }
        SlotMut::new(&self.fields, &mut self.rows)
    }

    /// Copies the values of each field to an array of the shape of the sample.
    ///
    /// # Errors
    /// `LimitExceeded` if the memory cannot be allocated.
    pub fn to_arrays(&self) -> Result<Vec<Array>> {
        let array = |(field, row): (&Field, &Row)| {
            let shape = match field.collation {
                Collation::Stacked => &field.shape,
                _ => &row.shape,
            };
            let mut array =
                Array::new(field.dtype, shape.clone(), self.pool.take(row.bytes.len())?)?;
            array.as_bytes_mut().copy_from_slice(&row.bytes);
            Ok(array)
        };
        self.fields.iter().zip(&self.rows).map(array).collect()
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
        FillContext { id, lineage: 0, key, seed, stage: stage_number(stage) }
    }

    /// The context of an item of another stage, as if it were in the stage `stage` of a pipeline with seed
    /// `seed`.
    ///
    /// ```
    /// use spdl_core::{FillContext, PipelineBuilder, Result, Stage, StageContext};
    /// struct Draw;
    /// impl Stage<u64> for Draw {
    ///     type Out = bool;
    ///     fn process(&mut self, _: u64, cx: &mut StageContext<'_, bool>) -> Result<()> {
    ///         let same = FillContext::of_item(cx.item_rng(), 7, "decode").rng().next_u64();
    ///         cx.emit(cx.rng_of(7, "decode").next_u64() == same)
    ///     }
    /// }
    /// let numbers = PipelineBuilder::from_iter(0..2).stage("draw", || Ok(Draw));
    /// assert_eq!(numbers.build()?.collect::<Result<Vec<_>>>()?, [true, true]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn of_item(item: ItemRng, seed: u64, stage: &str) -> FillContext<'static> {
        let ItemRng { id, lineage } = item;
        FillContext { id, lineage, key: None, seed, stage: stage_number(stage) }
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

    /// A generator that is independent of [`rng`](Self::rng), for a part of the sample, such as a
    /// second view of an image. Each name has its own sequence.
    ///
    /// ```
    /// use spdl_core::{FillContext, SampleId};
    /// let cx = FillContext::new(0, SampleId { epoch: 1, index: 42 }, "decode", None);
    /// let first = |part: &str| cx.rng_of_part(part).next_u64();
    /// assert_eq!(first("view 1"), first("view 1"));
    /// assert_ne!(first("view 1"), first("view 2"));
    /// assert_ne!(first("view 1"), cx.rng().next_u64());
    /// ```
    pub fn rng_of_part(&self, part: &str) -> SampleRng {
        let FillContext { seed, id, lineage, stage, .. } = *self;
        StageRng { seed, id, lineage, stage }.rng_of_part(part)
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
        SampleRng::for_stage(seed, self.id, self.lineage, stage_number(stage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::memory::array::DType;

    #[test]
    fn a_sample_has_a_shape_that_its_field_accepts() {
        let fields = [
            Field::new("boxes", DType::F32, &[0, 4]).collation(Collation::Ragged),
            Field::new("label", DType::I64, &[2]),
        ];
        let mut rows = [Row::default(), Row::from(aligned(16).unwrap())];
        let mut slot = SlotMut::new(&fields, &mut rows);
        slot.resize::<f32>(0, &[3, 4]).unwrap().fill(1.0);
        assert_eq!(slot.resize::<f32>(0, &[2, 4]).unwrap(), [0.0; 8]);
        assert_eq!(slot.typed_mut::<f32>(0).unwrap().len(), 8);
        let mut empty = [Row::default(), Row::default()];
        let mut slot = SlotMut::new(&fields, &mut empty);
        assert!(slot.typed_mut::<f32>(0).unwrap().is_empty());
        assert!(slot.resize::<f32>(0, &[0, 4]).unwrap().is_empty());
        let mut slot = SlotMut::new(&fields, &mut rows);
        slot.typed_mut::<i64>(1).unwrap().fill(9);
        assert_eq!(slot.resize::<i64>(1, &[2]).unwrap(), [0, 0]);
        let mut fault = |field, shape: &[usize]| match field {
            0 => slot.resize::<f32>(field, shape).unwrap_err(),
            _ => slot.resize::<i64>(field, shape).unwrap_err(),
        };
        let error = fault(0, &[2, 5]);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.message(), "field \"boxes\" expects the shape [*, 4], found [2, 5]");
        assert!(fault(0, &[4]).message().ends_with("found [4]"));
        assert!(fault(1, &[3]).message().contains("expects the shape [2]"));
        assert_eq!(fault(0, &[usize::MAX, 4]).kind(), ErrorKind::LimitExceeded);
        assert!(slot.resize::<u8>(0, &[1, 4]).is_err());
    }
}
