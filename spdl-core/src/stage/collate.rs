//! Joins the rows of samples to the arrays of a batch, and makes batches of one sample.

use std::borrow::Cow;

use bytes::BytesMut;

use crate::error::{Error, ErrorKind, Result};
use crate::memory::array::{Array, DType};
use crate::memory::buffer::{BufferPool, HostBuffer, RowBuffer, aligned};
use crate::source::sample::SampleId;
use crate::stage::batch::Batch;
use crate::stage::layout::{Collation, Field};
use crate::stage::slot::{Fill, FillContext, Row, SlotMut};

/// The rows of one field in an open batch. A row is absent while a worker writes it.
#[derive(Debug)]
pub(crate) enum FieldRows {
    /// Rows of one buffer.
    Stacked(RowBuffer),
    /// Rows with a buffer each.
    Varying(Vec<Option<Row>>),
}

impl FieldRows {
    /// The rows of `count` samples. The memory of stacked fields is taken from the pool.
    pub(crate) fn new(field: &Field, count: usize, pool: &BufferPool) -> Result<Self> {
        Ok(match field.collation {
            Collation::Stacked => {
                let row = field.row_bytes().unwrap_or(0);
                FieldRows::Stacked(pool.take(row * count)?.into_rows(count, row))
            }
            _ => FieldRows::Varying((0..count).map(|_| Some(Row::default())).collect()),
        })
    }

    pub(crate) fn lend(&mut self, slot: usize) -> Option<Row> {
        match self {
            FieldRows::Stacked(rows) => rows.lend(slot).map(Row::from),
            FieldRows::Varying(rows) => rows[slot].take(),
        }
    }

    pub(crate) fn return_row(&mut self, slot: usize, row: Row) {
        match self {
            FieldRows::Stacked(rows) => rows.return_row(slot, row.bytes),
            FieldRows::Varying(rows) => rows[slot] = Some(row),
        }
    }

    /// Copies the sample in `row` to a slot, or exchanges the rows.
    pub(crate) fn move_in(&mut self, slot: usize, row: &mut Row) {
        match self {
            FieldRows::Stacked(rows) => {
                if let Some(own) = rows.row_mut(slot) {
                    own.copy_from_slice(&row.bytes);
                }
            }
            FieldRows::Varying(rows) => {
                if let Some(own) = &mut rows[slot] {
                    std::mem::swap(own, row);
                }
            }
        }
    }

    /// Returns the buffer to its pool.
    pub(crate) fn discard(self) {
        if let FieldRows::Stacked(rows) = self {
            // A buffer with a missing row is not reused.
            drop(rows.into_buffer(0));
        }
    }
}

impl Batch {
    /// Writes one sample into a batch, outside a [`fill`](crate::PipelineBuilder::fill) stage.
    ///
    /// The memory of stacked fields is taken from `pool`.
    ///
    /// ```
    /// use spdl_core::memory::BufferPool;
    /// use spdl_core::{Batch, DType, Field, Fill, FillContext, Result, SampleId, SlotMut};
    ///
    /// struct Squared;
    /// impl Fill<i64> for Squared {
    ///     fn fill(&mut self, number: i64, mut slot: SlotMut<'_>, _: &mut FillContext<'_>) -> Result<()> {
    ///         slot.set(0, number * number)
    ///     }
    /// }
    /// let mut cx = FillContext::new(0, SampleId { epoch: 0, index: 7 }, "filter", None);
    /// let fields = [Field::new("squared", DType::I64, &[])];
    /// let batch = Batch::of_one(&fields, &BufferPool::new(), &mut Squared, 3, &mut cx)?;
    /// assert_eq!(batch.array("squared").expect("the field").as_slice::<i64>()?, [9]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of `fill`; `LimitExceeded` if memory cannot be allocated.
    pub fn of_one<In>(
        fields: &[Field],
        pool: &BufferPool,
        fill: &mut impl Fill<In>,
        item: In,
        cx: &mut FillContext<'_>,
    ) -> Result<Batch> {
        let rows = fields.iter().map(|field| FieldRows::new(field, 1, pool));
        let mut rows = rows.collect::<Result<Vec<_>>>()?;
        let lent: Option<Vec<Row>> = rows.iter_mut().map(|rows| rows.lend(0)).collect();
        let mut lent = lent.ok_or_else(missing)?;
        fill.fill(item, SlotMut::new(fields, &mut lent), cx)?;
        for (rows, row) in rows.iter_mut().zip(lent) {
            rows.return_row(0, row);
        }
        collate(fields, rows, vec![cx.id()])
    }
}

/// The error for a row that is missing. After a failure that halts the stage, a row may be missing.
fn missing() -> Error {
    Error::new(ErrorKind::Io, "internal error: a row of a finished batch is missing")
}

/// Joins the first `ids.len()` rows of each field.
///
/// # Errors
/// `Io` if a row is missing; `LimitExceeded` if memory cannot be allocated.
pub(crate) fn collate(fields: &[Field], rows: Vec<FieldRows>, ids: Vec<SampleId>) -> Result<Batch> {
    let len = ids.len();
    let mut batch = Batch::empty(ids);
    for (field, rows) in fields.iter().zip(rows) {
        let rows = match rows {
            FieldRows::Stacked(rows) => {
                let buffer = rows.into_buffer(len).ok_or_else(missing)?;
                let shape = std::iter::once(len).chain(field.shape.iter().copied()).collect();
                batch.push(field.clone(), Array::new(field.dtype, shape, buffer)?);
                continue;
            }
            FieldRows::Varying(rows) => rows.into_iter().take(len).collect::<Option<Vec<_>>>(),
        };
        let rows = rows.ok_or_else(missing)?;
        if field.collation == Collation::List {
            let list = rows.into_iter().map(|row| {
                let Row { bytes, shape } = row.or_empty(field);
                let bytes = if bytes.is_empty() { aligned(0)? } else { bytes };
                array(field.dtype, shape, bytes)
            });
            batch.lists.push((field.clone(), list.collect::<Result<_>>()?));
            continue;
        }
        let views: Vec<RowRef<'_>> = rows.iter().map(Row::view).collect();
        append(&mut batch, field, &views)?;
    }
    Ok(batch)
}

/// A view of the elements of one sample in one field.
pub(crate) struct RowRef<'a> {
    pub(crate) bytes: &'a [u8],
    /// Empty if the stage has not resized the sample.
    pub(crate) shape: Cow<'a, [usize]>,
}

impl Row {
    /// The row with a shape. A sample that the stage has not resized is empty.
    pub(crate) fn or_empty(mut self, field: &Field) -> Self {
        if self.shape.len() != field.shape.len() {
            self.shape.clone_from(&field.shape);
            if !self.shape.contains(&0) {
                self.shape.fill(0);
            }
        }
        self
    }

    fn view(&self) -> RowRef<'_> {
        RowRef { bytes: &self.bytes, shape: Cow::Borrowed(&self.shape) }
    }
}

/// Adds a field, whose samples are copied from `rows`, to a batch.
///
/// # Errors
/// `LimitExceeded` if memory cannot be allocated.
pub(crate) fn append(batch: &mut Batch, field: &Field, rows: &[RowRef<'_>]) -> Result<()> {
    let (values, integers) = match field.collation {
        Collation::Stacked => {
            let shape = std::iter::once(rows.len()).chain(field.shape.iter().copied()).collect();
            batch.push(field.clone(), array(field.dtype, shape, concatenated(rows)?)?);
            return Ok(());
        }
        Collation::List => {
            let copied = rows.iter().map(|row| {
                let mut bytes = aligned(row.bytes.len())?;
                bytes.copy_from_slice(row.bytes);
                array(field.dtype, row.shape.to_vec(), bytes)
            });
            batch.lists.push((field.clone(), copied.collect::<Result<_>>()?));
            return Ok(());
        }
        Collation::Padded => padded(field, rows)?,
        Collation::Ragged => ragged(field, rows)?,
    };
    batch.push(field.clone(), values);
    if let Some(name) = field.second_array() {
        batch.push(Field::new(&name, DType::I64, &integers.shape()[1..]), integers);
    }
    Ok(())
}

fn concatenated(rows: &[RowRef<'_>]) -> Result<BytesMut> {
    let mut values = aligned(rows.iter().map(|row| row.bytes.len()).sum())?;
    let mut at = 0;
    for RowRef { bytes, .. } in rows {
        values[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    }
    Ok(values)
}

/// The concatenated rows, and their offsets.
fn ragged(field: &Field, rows: &[RowRef<'_>]) -> Result<(Array, Array)> {
    let values = concatenated(rows)?;
    let (mut offsets, mut end) = (vec![0], 0);
    for row in rows {
        // A sample that the stage has not resized is empty.
        end += row.shape.first().copied().unwrap_or(0);
        offsets.push(end as i64);
    }
    let shape = std::iter::once(end).chain(field.shape[1..].iter().copied()).collect();
    let offsets = integers(vec![rows.len() + 1], &offsets)?;
    Ok((array(field.dtype, shape, values)?, offsets))
}

/// The rows, each at the start of an area of the largest size, and their sizes.
fn padded(field: &Field, rows: &[RowRef<'_>]) -> Result<(Array, Array)> {
    // A sample that the stage has not resized is empty.
    let side = |row: &RowRef<'_>, axis: usize| row.shape.get(axis).copied().unwrap_or(0);
    let axes = 0..field.shape.len();
    let largest: Vec<usize> = axes
        .clone()
        .map(|axis| rows.iter().map(|row| side(row, axis)).max().unwrap_or(0))
        .collect();
    let varying: Vec<usize> = axes.filter(|&axis| field.shape[axis] == 0).collect();
    let area = field.bytes_of(&largest).unwrap_or(usize::MAX);
    let mut values = aligned(area.saturating_mul(rows.len()))?;
    if field.padding.iter().any(|&byte| byte != 0) {
        values
            .chunks_exact_mut(field.padding.len())
            .for_each(|it| it.copy_from_slice(&field.padding));
    }
    let mut sizes = Vec::with_capacity(rows.len() * varying.len());
    for (at, row) in rows.iter().enumerate() {
        sizes.extend(varying.iter().map(|&axis| side(row, axis) as i64));
        if !row.bytes.is_empty() {
            let area = &mut values[at * area..][..area];
            copy_to_corner(row.bytes, &row.shape, area, &largest, field.dtype.size());
        }
    }
    let shape = std::iter::once(rows.len()).chain(largest).collect();
    let sizes = integers(vec![rows.len(), varying.len()], &sizes)?;
    Ok((array(field.dtype, shape, values)?, sizes))
}

/// Copies an array of a shape to the start of each dimension of a larger one.
fn copy_to_corner(from: &[u8], shape: &[usize], to: &mut [u8], larger: &[usize], element: usize) {
    match (shape, larger) {
        ([side, shape @ ..], [_, larger @ ..]) if shape != larger => {
            let bytes = |shape: &[usize]| shape.iter().product::<usize>() * element;
            let (step, larger_step) = (bytes(shape), bytes(larger));
            for at in 0..*side {
                let to = &mut to[at * larger_step..][..larger_step];
                copy_to_corner(&from[at * step..][..step], shape, to, larger, element);
            }
        }
        _ => to[..from.len()].copy_from_slice(from),
    }
}

pub(crate) fn integers(shape: Vec<usize>, values: &[i64]) -> Result<Array> {
    let mut bytes = aligned(size_of_val(values))?;
    bytes.copy_from_slice(bytemuck::cast_slice(values));
    array(DType::I64, shape, bytes)
}

pub(crate) fn array(dtype: DType, shape: Vec<usize>, bytes: BytesMut) -> Result<Array> {
    Array::new(dtype, shape, HostBuffer::unpooled(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_without_a_shape_is_empty() {
        let field = |collation| Field::new("a", DType::I64, &[0, 2]).collation(collation);
        for collation in [Collation::Ragged, Collation::Padded, Collation::List] {
            let rows = FieldRows::Varying(vec![Some(Row::default())]);
            let ids = vec![SampleId::default()];
            let batch = collate(&[field(collation)], vec![rows], ids).unwrap();
            let array = match collation {
                Collation::List => &batch.list("a").unwrap()[0],
                _ => batch.array("a").unwrap(),
            };
            assert!(array.as_slice::<i64>().unwrap().is_empty(), "{collation:?}");
        }
    }
}
