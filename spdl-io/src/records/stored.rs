//! [`StoredRecord`]: a sample that has not been read yet.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use spdl_core::{Error, Result};

use crate::fetch::{Fetcher, Key, ObjectMeta};
use crate::records::{Encoding, FieldRequest, FieldValue};

/// A whole object of a store, or a byte range of one.
///
/// ```
/// use spdl_io::records::Extent;
/// let image = Extent::part("shard-000000.tar", 1024..3072);
/// assert_eq!(image.to_string(), "shard-000000.tar[1024..3072]");
/// assert_eq!(Extent::whole("a.jpg").range, None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The key of the object.
    pub object: Key,
    /// The byte range; `None` for the whole object.
    pub range: Option<Range<u64>>,
    /// The low 64 bits of the XXH3-128 hash of the bytes. Bytes with another hash are read again; at
    /// last, the read fails with `Corrupt`. Default: `None`, any bytes.
    pub xxh3: Option<u64>,
    /// Where the parts of the file are: see [`IndexParts`](crate::shards::IndexParts).
    pub(crate) part_index: Option<Bytes>,
    /// The version that a whole object must have.
    pub(crate) version: Option<Arc<str>>,
    /// The size that a whole object must have.
    pub(crate) object_size: Option<u64>,
}

impl Extent {
    /// A whole object.
    pub fn whole(object: impl Into<Key>) -> Self {
        let object = object.into();
        Extent {
            object,
            range: None,
            xxh3: None,
            part_index: None,
            version: None,
            object_size: None,
        }
    }

    /// A whole object that must have the size and the version of a listing.
    pub(crate) fn listed(meta: ObjectMeta) -> Self {
        // Listings without sizes report 0.
        let object_size = (meta.size > 0).then_some(meta.size);
        Extent { version: meta.version, object_size, ..Extent::whole(meta.key) }
    }

    /// A byte range of an object.
    pub fn part(object: impl Into<Key>, range: Range<u64>) -> Self {
        Extent { range: Some(range), ..Extent::whole(object) }
    }

    /// Sets the low 64 bits of the XXH3-128 hash of the bytes.
    #[must_use]
    pub fn with_xxh3(mut self, xxh3: Option<u64>) -> Self {
        self.xxh3 = xxh3;
        self
    }

    /// Sets where the parts of the file are.
    #[must_use]
    pub(crate) fn with_part_index(mut self, part_index: Option<Bytes>) -> Self {
        self.part_index = part_index;
        self
    }

    /// The size in bytes; `None` for a whole object, whose size only the store knows.
    pub fn size(&self) -> Option<u64> {
        self.range.as_ref().map(|range| range.end.saturating_sub(range.start))
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.range {
            Some(Range { start, end }) => write!(f, "{}[{start}..{end}]", self.object),
            None => write!(f, "{}", self.object),
        }
    }
}

/// The stored form of one field.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub enum StoredField {
    /// The value itself; no read is needed.
    Known(FieldValue),
    /// Where to read the value, and how to decode it.
    At(Extent, Encoding),
}

/// A sample that has not been read yet: its key, and the location of each field.
///
/// Data sets with several fields per sample return this type. [`FetchRecord`](crate::FetchRecord) reads the
/// fields.
///
/// ```
/// use spdl_io::{FieldValue, StoredRecord};
/// use spdl_io::records::{Encoding, Extent};
/// let record = StoredRecord::new("shard-000000.tar:0001")
///     .with_label(7)
///     .with_stored("jpg", Extent::part("shard-000000.tar", 512..9000), Encoding::Bytes)
///     .with_known("source", FieldValue::Text("web".into()));
/// assert_eq!(record.names().collect::<Vec<_>>(), ["jpg", "source"]);
/// ```
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct StoredRecord {
    /// The name of the sample in messages; `OBJECT:NAME` for a sample inside an object.
    pub key: Key,
    /// The class label, counted from 0; −1 if the sample has no label, or if the label is one of the fields.
    pub label: i64,
    /// The fields, in the order of the data set. Names are unique.
    pub fields: Vec<(Arc<str>, StoredField)>,
    /// A row of a group, such as a Parquet row group. The fields of the row follow `fields`.
    pub row: Option<StoredRow>,
    /// A hash of the sizes and versions of the sample's objects, from a listing or
    /// [`stat`](Fetcher::stat) of the store. Caches compare it to detect changed objects. `None` if
    /// unknown.
    pub version: Option<u64>,
    /// The number of the sample's data set, if the source consists of several: see
    /// [`OpenedDataset::parts`](crate::datasets::OpenedDataset::parts). Default: 0.
    pub part: u32,
}

impl StoredRecord {
    /// A sample without fields and without a label.
    pub fn new(key: impl Into<Key>) -> Self {
        StoredRecord {
            key: key.into(),
            label: -1,
            fields: Vec::new(),
            row: None,
            version: None,
            part: 0,
        }
    }

    /// Sets the class label.
    #[must_use]
    pub fn with_label(mut self, label: i64) -> Self {
        self.label = label;
        self
    }

    /// Adds a field whose value is known.
    #[must_use]
    pub fn with_known(mut self, name: impl Into<Arc<str>>, value: FieldValue) -> Self {
        self.fields.push((name.into(), StoredField::Known(value)));
        self
    }

    /// Adds a field that must be read.
    #[must_use]
    pub fn with_stored(
        mut self,
        name: impl Into<Arc<str>>,
        extent: Extent,
        encoding: Encoding,
    ) -> Self {
        self.fields.push((name.into(), StoredField::At(extent, encoding)));
        self
    }

    /// Sets the hash of the versions of the sample's objects.
    #[must_use]
    pub fn with_version(mut self, version: Option<u64>) -> Self {
        self.version = version;
        self
    }

    /// Adds the fields of a row of a group.
    #[must_use]
    pub fn with_row(mut self, group: Arc<dyn PackedRows>, row: u64) -> Self {
        self.row = Some(StoredRow { group, row });
        self
    }

    /// The names of all fields, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let of_row = self.row.iter().flat_map(|row| row.group.names());
        self.fields.iter().map(|(name, _)| name).chain(of_row).map(|name| &**name)
    }
}

/// One row of a [`PackedRows`] group.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct StoredRow {
    /// The group.
    pub group: Arc<dyn PackedRows>,
    /// The number of the row, counted from 0.
    pub row: u64,
}

/// Samples that share data for reading: a Parquet row group, an MDS shard, a TFRecord file and so on.
///
/// All samples of a group share it through one `Arc`. A group holds the location of its data. An
/// implementation may also cache decoded data up to a size limit.
#[async_trait]
pub trait PackedRows: fmt::Debug + Send + Sync + 'static {
    /// The names of the fields of every row, in their order.
    fn names(&self) -> &[Arc<str>];

    /// The object that holds the rows; `None` if they are in several objects. Caches check whether
    /// the object has changed. The provided method returns `None`.
    fn object(&self) -> Option<&Key> {
        None
    }

    /// If the rows have the field `name`, but its type is not supported: the error of reading it. The
    /// provided method returns `None`.
    fn unsupported(&self, name: &str) -> Option<Error> {
        let _ = name;
        None
    }

    /// The names of the classes of which the field `name` holds the numbers, if the object names them. The
    /// provided method returns `None`.
    fn class_names(&self, name: &str) -> Option<&[String]> {
        let _ = name;
        None
    }

    /// If the rows have the field `name`, but its type cannot hold labels: the error of using it. The
    /// provided method returns `None`.
    fn no_labels(&self, name: &str) -> Option<Error> {
        let _ = name;
        None
    }

    /// The distinct values of a field of texts or floating-point numbers over all rows, as text; `None` if
    /// the field has another type, or cannot be read without other fields. Values after the first number
    /// that is not an integer may be missing. The provided method returns `None`.
    ///
    /// # Errors
    /// The errors of [`read`](PackedRows::read); `LimitExceeded` for more than `max_texts` values.
    async fn texts(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        name: &str,
        max_texts: usize,
    ) -> Result<Option<BTreeSet<String>>> {
        let _ = (fetcher, name, max_texts);
        Ok(None)
    }

    /// The value of the field `name` of a row in memory; `None` if the group has no such field, or must read the value.
    /// The provided method returns `None`.
    ///
    /// # Errors
    /// The errors of [`read`](PackedRows::read).
    fn value(&self, row: u64, name: &str) -> Result<Option<FieldValue>> {
        let _ = (row, name);
        Ok(None)
    }

    /// The memory that the requested fields of a row take, in bytes, if it is known before they are
    /// read. The pipeline reserves it in the memory budget. The provided method returns `None`.
    ///
    /// # Errors
    /// The errors of [`read`](PackedRows::read).
    async fn row_bytes(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        row: u64,
        request: &FieldRequest,
    ) -> Result<Option<u64>> {
        let _ = (fetcher, row, request);
        Ok(None)
    }

    /// The file that holds the value of the field `name`, which [`read`](PackedRows::read) returned as null; `None`
    /// if the row names no file. The provided method returns `None`.
    ///
    /// # Errors
    /// The errors of [`read`](PackedRows::read). `Unsupported` for a file that is not read.
    async fn file_of(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        row: u64,
        name: &str,
    ) -> Result<Option<Key>> {
        let _ = (fetcher, row, name);
        Ok(None)
    }

    /// The requested fields of a row, in the order in which the group stores them. A requested
    /// field that does not exist is omitted; the caller reports the missing field.
    ///
    /// # Errors
    /// - The errors of the fetcher.
    /// - `Corrupt` or `Truncated` if the group is damaged, with the offset in the object.
    /// - `InvalidArgument` if the row does not exist.
    /// - `LimitExceeded` if the fields are larger than the request allows.
    async fn read(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        row: u64,
        request: &FieldRequest,
    ) -> Result<Vec<(Arc<str>, FieldValue)>>;
}
