//! Samples of several fields: where their values lie, and the values themselves.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use crate::archive::NpyArray;
use crate::fetch::{Fetcher, Key};

/// Where bytes lie: in a whole object of a store, or in a part of one.
///
/// ```
/// use spdl_io::records::Extent;
/// let image = Extent::part("shard-000000.tar", 1024..3072);
/// assert_eq!(image.to_string(), "shard-000000.tar[1024..3072]");
/// assert_eq!(Extent::whole("a.jpg").range, None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The object.
    pub object: Key,
    /// From the first byte to the one behind the last; `None` for all of it.
    pub range: Option<Range<u64>>,
}

impl Extent {
    /// All of an object.
    pub fn whole(object: impl Into<Key>) -> Self {
        Extent { object: object.into(), range: None }
    }

    /// These bytes of an object.
    pub fn part(object: impl Into<Key>, range: Range<u64>) -> Self {
        Extent { object: object.into(), range: Some(range) }
    }

    /// How many bytes it is; `None` where that is known to the store alone.
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

/// The value of a field of a sample, ready to use.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub enum FieldValue {
    /// Bytes as they are: an image, a sound, or what is decoded elsewhere.
    Bytes(Bytes),
    /// Text.
    Text(Arc<str>),
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A number.
    Float(f64),
    /// A list of whole numbers.
    Integers(Vec<i64>),
    /// A list of numbers.
    Floats(Vec<f64>),
    /// A list of anything.
    List(Vec<FieldValue>),
    /// An array of NumPy.
    Array(NpyArray),
    /// What a JSON text says.
    Json(serde_json::Value),
    /// Nothing: the field is there, and empty.
    Null,
}

impl FieldValue {
    /// What it is, for messages: `bytes`, `text`, `a list of integers`.
    pub fn kind(&self) -> &'static str {
        match self {
            FieldValue::Bytes(_) => "bytes",
            FieldValue::Text(_) => "text",
            FieldValue::Bool(_) => "a truth value",
            FieldValue::Integer(_) => "an integer",
            FieldValue::Float(_) => "a number",
            FieldValue::Integers(_) => "a list of integers",
            FieldValue::Floats(_) => "a list of numbers",
            FieldValue::List(_) => "a list",
            FieldValue::Array(_) => "an array",
            FieldValue::Json(_) => "JSON",
            FieldValue::Null => "null",
        }
    }

    /// The bytes; `None` where it is something else.
    pub fn as_bytes(&self) -> Option<&Bytes> {
        match self {
            FieldValue::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The text, also where it is a text in JSON; `None` where it is something else.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            FieldValue::Text(text) => Some(text),
            FieldValue::Json(value) => value.as_str(),
            _ => None,
        }
    }

    /// The whole number, also where it is one in JSON; `None` where it is something else.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            FieldValue::Integer(number) => Some(*number),
            FieldValue::Json(value) => value.as_i64(),
            _ => None,
        }
    }

    /// The number, of whichever kind; whole numbers beyond 2⁵³ are rounded. `None` where it is
    /// something else.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            FieldValue::Float(number) => Some(*number),
            FieldValue::Integer(number) => Some(*number as f64),
            FieldValue::Json(value) => value.as_f64(),
            _ => None,
        }
    }
}

/// How the bytes of a field say its value.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// They are the value: [`FieldValue::Bytes`].
    Bytes,
    /// Text in UTF-8: [`FieldValue::Text`], as it stands, line ends included.
    Text,
    /// A whole number in decimal digits, with space around it allowed: [`FieldValue::Integer`].
    Integer,
    /// JSON of at most 128 levels: [`FieldValue::Json`].
    Json,
    /// An array of NumPy, `.npy`: [`FieldValue::Array`].
    Npy,
    /// Python's pickle. Reading it would run code that the file brings along, so its value is
    /// `Unsupported`, always. Where the bytes are wanted, say [`Encoding::Bytes`].
    Pickle,
}

impl Encoding {
    /// The value that these bytes say. `Bytes` and arrays are not copied.
    ///
    /// ```
    /// use spdl_io::FieldValue;
    /// use spdl_io::records::Encoding;
    /// assert_eq!(Encoding::Integer.decode("7\n".into())?, FieldValue::Integer(7));
    /// assert_eq!(Encoding::Text.decode("a cat".into())?.as_str(), Some("a cat"));
    /// assert!(Encoding::Pickle.decode("I7\n.".into()).is_err());
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` where they do not say such a value, and `Truncated` where an array is cut, with the
    /// byte at which that was noticed; `Unsupported` for pickles, and for arrays of which
    /// [`NpyArray`] says so.
    pub fn decode(self, bytes: Bytes) -> Result<FieldValue> {
        match self {
            Encoding::Bytes => Ok(FieldValue::Bytes(bytes)),
            Encoding::Text => Ok(FieldValue::Text(text(&bytes)?.into())),
            Encoding::Integer => {
                let text = text(&bytes)?;
                let number = text.trim().parse().map_err(|error| {
                    corrupt(format!("a whole number was expected, and {} found", shown(text)), 0)
                        .with_source(error)
                })?;
                Ok(FieldValue::Integer(number))
            }
            Encoding::Json => {
                serde_json::from_slice(&bytes).map(FieldValue::Json).map_err(|error| {
                    let offset =
                        line_start(&bytes, error.line()) + error.column().saturating_sub(1);
                    corrupt("this is no JSON", offset.min(bytes.len())).with_source(error)
                })
            }
            Encoding::Npy => NpyArray::from_bytes(bytes).map(FieldValue::Array),
            Encoding::Pickle => {
                let message = "a pickle of Python, which is not read: that would run code that the \
                    file brings along. Select other fields, or take this one as bytes";
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|error| {
        corrupt("text in UTF-8 was expected", error.valid_up_to()).with_source(error)
    })
}

/// A text as far as it fits into a message.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 40;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{:?} and more", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// Where a line starts, counted from 1.
fn line_start(bytes: &[u8], line: usize) -> usize {
    let mut ends =
        bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    match line.checked_sub(2) {
        Some(before) => ends.nth(before).unwrap_or(bytes.len()),
        None => 0,
    }
}

fn corrupt(message: impl Into<String>, offset: usize) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_offset(offset as u64)
}

/// How a field is stored.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub enum StoredField {
    /// Its value is known already: nothing has to be read.
    Known(FieldValue),
    /// Its value is to be read there, and decoded so.
    At(Extent, Encoding),
}

/// A sample that was not read yet: who it is, and where its fields lie. What a data set of samples
/// with several fields names, and [`FetchRecord`](crate::FetchRecord) reads.
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
    /// What people call the sample; for one inside an object, `OBJECT:NAME`.
    pub key: Key,
    /// The class, counted from 0; −1 where there is none, or it is in a field.
    pub label: i64,
    /// Its own fields in their order; no name is there twice.
    pub fields: Vec<(Arc<str>, StoredField)>,
    /// A row that is read together with others; its fields come behind the own ones.
    pub row: Option<StoredRow>,
    /// What tells the objects that it lies in from others of the same keys, as a listing told: a hash of
    /// their sizes and versions, for caches. `None` where nobody has said it.
    pub version: Option<u64>,
}

impl StoredRecord {
    /// A sample of no fields, without a label.
    pub fn new(key: impl Into<Key>) -> Self {
        StoredRecord { key: key.into(), label: -1, fields: Vec::new(), row: None, version: None }
    }

    /// Says which class it is of.
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

    /// Adds a field that is to be read.
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

    /// Says which version of its objects it lies in.
    #[must_use]
    pub fn with_version(mut self, version: Option<u64>) -> Self {
        self.version = version;
        self
    }

    /// Adds the fields of a row that is read together with others.
    #[must_use]
    pub fn with_row(mut self, group: Arc<dyn PackedRows>, row: u64) -> Self {
        self.row = Some(StoredRow { group, row });
        self
    }

    /// The names of all its fields, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let of_row = self.row.iter().flat_map(|row| row.group.names());
        self.fields.iter().map(|(name, _)| name).chain(of_row).map(|name| &**name)
    }
}

/// A row of a part that is read once for many samples.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct StoredRow {
    /// The part.
    pub group: Arc<dyn PackedRows>,
    /// Which of its rows, counted from 0.
    pub row: u64,
}

/// Samples that are stored together, and can be read only together: a row group of Parquet, a
/// compressed shard.
///
/// All samples of a group hold it by one `Arc`. What a call had to read is kept as long as another
/// call of the same group is under way, or as long as the group's own rule says (the last few groups,
/// so many bytes), and is dropped then: a group that nobody reads holds nothing but its place.
#[async_trait]
pub trait PackedRows: fmt::Debug + Send + Sync + 'static {
    /// The names of the fields that every row has, in their order.
    fn names(&self) -> &[Arc<str>];

    /// The object that they are read from, where it is one: a cache asks whether it has changed.
    fn object(&self) -> Option<&Key> {
        None
    }

    /// The different texts of a field in all rows, where that is a field of texts and they can be had
    /// without reading others; else `None`, as the provided method says.
    ///
    /// # Errors
    /// As [`read`](PackedRows::read); `LimitExceeded` for more than `most` texts.
    async fn texts(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        name: &str,
        most: usize,
    ) -> Result<Option<BTreeSet<String>>> {
        let _ = (fetcher, name, most);
        Ok(None)
    }

    /// The fields of a row that are asked for, in their order. One that is asked for and not there
    /// is left out: the caller says so.
    ///
    /// # Errors
    /// What the fetcher answers; `Corrupt` or `Truncated` where the group is damaged, with the byte
    /// in the object; `InvalidArgument` where there is no such row; `LimitExceeded` where the
    /// fields are larger than the request allows.
    async fn read(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        row: u64,
        request: &FieldRequest,
    ) -> Result<Vec<(Arc<str>, FieldValue)>>;
}

/// Which fields of a sample are to be read, and how large they may be.
#[derive(Clone, Debug)]
pub struct FieldRequest {
    names: Option<Arc<[Arc<str>]>>,
    max_bytes: u64,
}

impl FieldRequest {
    /// All fields, of at most `max_bytes` together.
    pub fn all(max_bytes: u64) -> Self {
        FieldRequest { names: None, max_bytes }
    }

    /// Only these fields; a name that is there twice counts once.
    #[must_use]
    pub fn only<N: Into<Arc<str>>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        let mut unique: Vec<Arc<str>> = Vec::new();
        for name in names.into_iter().map(Into::into) {
            if !unique.contains(&name) {
                unique.push(name);
            }
        }
        self.names = Some(unique.into());
        self
    }

    /// The names of the fields that are asked for; `None` where all are.
    pub fn names(&self) -> Option<&[Arc<str>]> {
        self.names.as_deref()
    }

    /// Whether the field of this name is asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.names().is_none_or(|names| names.iter().any(|wanted| **wanted == *name))
    }

    /// The most bytes that all fields of a sample may have together.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }
}

/// A sample with the values of its fields.
///
/// ```
/// use spdl_io::{FieldValue, Record};
/// let mut record = Record::new("shard-000000.tar:0001").with_field("txt", FieldValue::Text("cat".into()));
/// assert_eq!(record.get("txt")?.as_str(), Some("cat"));
/// assert!(record.get("jpg").unwrap_err().message().contains("txt"));
/// assert_eq!(record.take("txt")?, FieldValue::Text("cat".into()));
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// What people call the sample.
    pub key: Key,
    /// The class, counted from 0; −1 where there is none, or it is in a field.
    pub label: i64,
    /// Names and values, in their order; no name is there twice.
    pub fields: Vec<(Arc<str>, FieldValue)>,
}

impl Record {
    /// A sample of no fields, without a label.
    pub fn new(key: impl Into<Key>) -> Self {
        Record { key: key.into(), label: -1, fields: Vec::new() }
    }

    /// Says which class it is of.
    #[must_use]
    pub fn with_label(mut self, label: i64) -> Self {
        self.label = label;
        self
    }

    /// Adds a field.
    #[must_use]
    pub fn with_field(mut self, name: impl Into<Arc<str>>, value: FieldValue) -> Self {
        self.fields.push((name.into(), value));
        self
    }

    /// The names of its fields, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| &**name)
    }

    /// The value of a field.
    ///
    /// # Errors
    /// `NotFound` where there is no field of this name, with the names of those that are there.
    pub fn get(&self, name: &str) -> Result<&FieldValue> {
        let found = self.fields.iter().find(|(found, _)| **found == *name);
        found.map(|(_, value)| value).ok_or_else(|| self.lacks(name))
    }

    /// Takes a field out, with its value.
    ///
    /// # Errors
    /// As [`get`](Record::get).
    pub fn take(&mut self, name: &str) -> Result<FieldValue> {
        let at = self.fields.iter().position(|(found, _)| **found == *name);
        at.map(|at| self.fields.remove(at).1).ok_or_else(|| self.lacks(name))
    }

    fn lacks(&self, name: &str) -> Error {
        no_such_field(&self.key, name, self.names())
    }
}

/// That a sample has no field of this name, but only these.
pub(crate) fn no_such_field<'a>(
    key: &Key,
    name: &str,
    names: impl Iterator<Item = &'a str>,
) -> Error {
    const MOST: usize = 20;
    let mut there: Vec<_> = names.take(MOST + 1).collect();
    let more = there.len() > MOST;
    there.truncate(MOST);
    let there = match there.is_empty() {
        true => "none at all".to_owned(),
        false => there.join(", ") + if more { " and more" } else { "" },
    };
    Error::new(ErrorKind::NotFound, format!("there is no field {name:?}, but {there}"))
        .with_key(key.display_name())
}
