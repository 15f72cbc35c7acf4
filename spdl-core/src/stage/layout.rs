//! The fields of a batch: [`Field`], [`Collation`], [`BatchLayout`].

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::memory::array::{DType, Element};
use crate::stage::batch::PREFETCH;

/// How a batch collates the values of a field.
///
/// The examples are of a batch of two samples with boxes: one box, and three boxes.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Collation {
    /// All samples have one shape. The array has the shape `[samples, …]`. Samples are written in
    /// place, without a copy.
    #[default]
    Stacked,
    /// Samples differ in the length of their first dimension. The array holds the samples one after
    /// another: `[4, 4]` in the example. A second array, `NAME.offsets`, has the start of each
    /// sample and the end of the last one: `i64 [samples + 1]`, `[0, 1, 4]`. Each sample is copied
    /// once.
    Ragged,
    /// Samples differ in size. The array has the shape of the largest sample in each dimension:
    /// `[2, 3, 4]` in the example. Elements outside a sample are [`Field::padding`], by default 0. A second array, `NAME.sizes`,
    /// has the size of each sample in the dimensions that differ: `i64 [samples, 1]`,
    /// `[[1], [3]]`. Each sample is copied once.
    Padded,
    /// Samples differ in size. [`Batch::list`](crate::Batch::list) has one array per sample,
    /// `[1, 4]` and `[3, 4]` in the example. Samples are not copied.
    List,
}

/// Name, element type, per-sample shape and collation of one field of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name, such as `images` or `labels`.
    pub name: Arc<str>,
    /// The type of the elements.
    pub dtype: DType,
    /// The shape of one sample, without the batch dimension; empty for a scalar. 0 stands for any
    /// length, which [`Collation::Stacked`] does not allow.
    pub shape: Vec<usize>,
    /// How the samples of a batch are collated.
    pub collation: Collation,
    /// The bytes of an element outside a padded sample; empty for zeros. See [`padding`](Field::padding).
    pub padding: Vec<u8>,
}

impl Field {
    /// Creates a stacked field from its name, element type and per-sample shape.
    pub fn new(name: &str, dtype: DType, shape: &[usize]) -> Self {
        let collation = Collation::Stacked;
        let padding = Vec::new();
        Field { name: name.into(), dtype, shape: shape.to_vec(), collation, padding }
    }

    /// Sets the elements outside the samples of a [padded](Collation::Padded) field, of the field's type.
    /// Default: 0.
    ///
    /// ```
    /// use spdl_core::stage::Collation;
    /// use spdl_core::{DType, Field};
    /// let mask = Field::new("mask", DType::U8, &[0, 0]).collation(Collation::Padded).padding(255_u8);
    /// assert!(mask.validate().is_ok());
    /// ```
    #[must_use]
    pub fn padding<T: Element>(mut self, element: T) -> Self {
        self.padding = bytemuck::bytes_of(&element).to_vec();
        self
    }

    /// Sets the collation. Default: [`Collation::Stacked`].
    ///
    /// ```
    /// use spdl_core::stage::Collation;
    /// use spdl_core::{DType, Field};
    /// let boxes = Field::new("boxes", DType::F32, &[0, 4]).collation(Collation::Ragged);
    /// assert!(boxes.accepts(&[7, 4]) && !boxes.accepts(&[7, 5]));
    /// ```
    #[must_use]
    pub fn collation(mut self, collation: Collation) -> Self {
        self.collation = collation;
        self
    }

    /// Size of one sample of a stacked field in bytes, and 0 for other collations; `None` if it
    /// overflows `usize`.
    pub fn row_bytes(&self) -> Option<usize> {
        match self.collation {
            Collation::Stacked => self.bytes_of(&self.shape),
            Collation::Ragged | Collation::Padded | Collation::List => Some(0),
        }
    }

    /// Whether a sample may have this shape.
    pub fn accepts(&self, shape: &[usize]) -> bool {
        let fits = |(&own, &found): (&usize, &usize)| own == 0 || own == found;
        self.shape.len() == shape.len() && self.shape.iter().zip(shape).all(fits)
    }

    /// The name of the array that has the offsets or sizes of the samples.
    pub(crate) fn second_array(&self) -> Option<Arc<str>> {
        match self.collation {
            Collation::Ragged => Some(format!("{}.offsets", self.name).into()),
            Collation::Padded => Some(format!("{}.sizes", self.name).into()),
            Collation::Stacked | Collation::List => None,
        }
    }

    /// Size of an array of this shape in bytes; `None` if it overflows `usize`.
    pub(crate) fn bytes_of(&self, shape: &[usize]) -> Option<usize> {
        shape.iter().try_fold(self.dtype.size(), |bytes, &n| bytes.checked_mul(n))
    }

    /// Checks that the shape fits the collation.
    ///
    /// # Errors
    /// `InvalidArgument` if it does not.
    pub fn validate(&self) -> Result<()> {
        let Field { name, shape, .. } = self;
        self.shape_fault().map_or(Ok(()), |fault| {
            let message = format!("field {name:?} has the shape {shape:?}; {fault}");
            Err(Error::new(ErrorKind::InvalidArgument, message))
        })
    }

    /// What is wrong with the shape or the padding.
    fn shape_fault(&self) -> Option<&'static str> {
        let varying = |shape: &[usize]| shape.contains(&0);
        if !self.padding.is_empty() && self.padding.len() != self.dtype.size() {
            return Some("its padding has another type");
        }
        match (self.collation, &self.shape[..]) {
            (Collation::Stacked, shape) if varying(shape) => {
                Some("all dimensions must be at least 1")
            }
            (Collation::Ragged, [0, rest @ ..]) if !varying(rest) => None,
            (Collation::Ragged, _) => {
                Some("a ragged field has any length (0) in its first dimension only")
            }
            (Collation::List, []) => Some("a list field has at least one dimension"),
            (Collation::Padded, shape) if !varying(shape) => {
                Some("a padded field has any length (0) in at least one dimension")
            }
            _ => None,
        }
    }
}

/// Name, element type and shape; the collation, unless the field is stacked.
impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Field { name, dtype, shape, collation, .. } = self;
        match collation {
            Collation::Stacked => write!(f, "{name} {dtype} {shape:?}"),
            _ => write!(f, "{name} {dtype} {} {collation:?}", AnyShape(shape)),
        }
    }
}

/// A shape in which `*` stands for any length.
pub(crate) struct AnyShape<'a>(pub(crate) &'a [usize]);

impl fmt::Display for AnyShape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |&side: &usize| if side == 0 { "*".to_owned() } else { side.to_string() };
        write!(f, "[{}]", self.0.iter().map(side).collect::<Vec<_>>().join(", "))
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
    /// two arrays of one name, a field whose shape does not fit its collation, and an array larger
    /// than `isize::MAX / 2` bytes.
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

    /// The fields, in the order in which a [`SlotMut`](crate::SlotMut) numbers them.
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

    /// Checks that the shapes fit their collations and that no array is too large.
    pub(crate) fn validate(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        if self.batch_size == 0 {
            return invalid("the batch size is 0; it must be at least 1".into());
        }
        if self.fields.is_empty() {
            return invalid("the batch layout has no fields; add at least one".into());
        }
        let size = self.batch_size;
        for (at, field) in self.fields.iter().enumerate() {
            let is_taken = |name: &str| self.fields.iter().any(|other| *other.name == *name);
            if self.fields[..at].iter().any(|other| other.name == field.name) {
                return invalid(format!("two fields have the name {:?}", field.name));
            }
            if let Some(name) = field.second_array().filter(|name| is_taken(name)) {
                let owner = &field.name;
                return invalid(format!("field {name:?} has the name of an array of {owner:?}"));
            }
            let Field { name, shape, .. } = field;
            field.validate()?;
            let bytes = field.row_bytes().and_then(|row| row.checked_mul(size));
            if bytes.is_none_or(|bytes| bytes > isize::MAX as usize / 2) {
                return invalid(format!(
                    "field {name:?} of shape {shape:?} is too large for a batch of {size} samples"
                ));
            }
        }
        Ok(())
    }

    /// Whether samples of a field may differ in size.
    pub(crate) fn varies(&self) -> bool {
        self.fields.iter().any(|field| field.collation != Collation::Stacked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn shapes_fit_their_collations() {
        let check = |collation, shape: &[usize]| {
            let field = Field::new("a", DType::U8, shape).collation(collation);
            BatchLayout::new(4, [field]).validate().map_err(|error| error.to_string())
        };
        assert_eq!(check(Collation::Stacked, &[2, 3]), Ok(()));
        assert_eq!(check(Collation::Ragged, &[0, 3]), Ok(()));
        assert_eq!(check(Collation::Padded, &[2, 0]), Ok(()));
        assert_eq!(check(Collation::List, &[0, 0, 3]), Ok(()));
        let faults = [
            (Collation::Stacked, &[2, 0][..], "all dimensions must be at least 1"),
            (Collation::Ragged, &[2, 0], "in its first dimension only"),
            (Collation::Ragged, &[0, 0], "in its first dimension only"),
            (Collation::Ragged, &[], "in its first dimension only"),
            (Collation::List, &[], "at least one dimension"),
            (Collation::Padded, &[2, 3], "in at least one dimension"),
        ];
        for (collation, shape, expected) in faults {
            let error = check(collation, shape).unwrap_err();
            assert!(error.contains(expected), "{collation:?} {shape:?}: {error}");
        }
    }

    #[test]
    fn names_of_arrays_do_not_repeat() {
        let ragged = || Field::new("a", DType::U8, &[0]).collation(Collation::Ragged);
        let padded = || Field::new("a", DType::U8, &[0]).collation(Collation::Padded);
        let check = |first: Field, second: &str| {
            let fields = [first, Field::new(second, DType::U8, &[])];
            BatchLayout::new(4, fields).validate().map_err(|error| error.to_string())
        };
        assert_eq!(check(ragged(), "a.sizes"), Ok(()));
        for (first, second) in [(ragged(), "a.offsets"), (padded(), "a.sizes"), (padded(), "a")] {
            let error = check(first, second).unwrap_err();
            assert!(error.contains("name") && error.contains(second), "{error}");
        }
    }
}
