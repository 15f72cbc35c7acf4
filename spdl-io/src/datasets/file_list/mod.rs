//! Lists of files as data sets.

mod addresses;
mod columns;
mod options;
mod row_stores;
mod rows;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use spdl_core::{Dataset, Error, ErrorKind, Result};
use twox_hash::XxHash3_128;

use self::addresses::RowAddresses;
use self::columns::{Columns, Row};
pub(crate) use self::columns::{FILE_FIELD, LABEL_COLUMNS};
pub use self::options::FileListOptions;
pub(crate) use self::row_stores::RowStores;
use self::rows::{corrupt, csv_row, json_line, line};
use crate::fetch::{Fetcher, Key};
use crate::files::os_error;
use crate::records::label_text::{LabelText, LabelTexts};
use crate::records::{Encoding, Extent, OptionNames, StoredRecord};

/// A data set of files that a list names, with a label and other fields for each.
///
/// | list | a row | |
/// |---|---|---|
/// | `.txt` | `cats/1.jpg` | one path a line, as it stands |
/// | `.csv` | `cats/1.jpg,cat` | RFC 4180; the first row may name the columns |
/// | `.jsonl`, `.ndjson` | `{"path": "cats/1.jpg", "label": 0, "caption": "a cat"}` | one object a line |
///
/// - The column of the path is the first of `path`, `file`, `file_name`, `filename`, `file_path`,
///   `filepath`, `key`, `url`, `uri`, `image`, `img`, `image_path` and `img_path` that is there; that of the
///   label `label`, `class` or `cls`. [`FileListOptions`] may name others. The first row of CSV is a header
///   where it names a column of paths; without a header there are one or two columns, path and label. What
///   looks like a header and names no such column is refused.
/// - Labels are all whole numbers (`3.0` is one, `7e10` is none), or all names: then a label is the name's place among all of
///   them sorted by their bytes: [`classes`](FileList::classes). A mixture is refused. An empty one, or
///   none, is −1.
/// - Of several columns of labels the first in that order counts, and the others are fields.
/// - A path is relative to the folder of the list, unless it is absolute or an address with `://`.
///   Nothing is looked at: a file that is missing is noticed when it is read. What reads addresses is
///   up to the fetcher; [`OpenedDataset`](super::OpenedDataset) brings one that opens the store of each.
/// - Each sample has the field `file`, the file's bytes, and the list's other columns, as texts from CSV,
///   and with their own types from JSON, sorted by their names.
/// - Empty lines count for nothing; a mark of UTF-8 at the start is passed over.
///
/// In memory it takes the list itself, and 12 bytes a row.
///
/// ```
/// use spdl_core::Dataset;
/// use spdl_io::datasets::{FileList, FileListOptions, ListFormat};
/// let text = "path,label,caption\ncats/1.jpg,cat,\"small, and grey\"\ndogs/2.jpg,dog,large\n";
/// let list = FileList::parse(text, ListFormat::Csv, "data", &FileListOptions::default())?;
/// assert_eq!(list.classes(), ["cat", "dog"]);
/// let sample = list.item(1)?;
/// assert_eq!((sample.key.as_str(), sample.label), (Some("data/dogs/2.jpg"), 1));
/// assert_eq!(sample.names().collect::<Vec<_>>(), ["file", "caption"]);
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct FileList {
    text: Bytes,
    format: ListFormat,
    /// Where each row starts.
    starts: Vec<u32>,
    labels: Vec<i64>,
    /// How many rows have none, and the first.
    unlabeled: Option<(u64, u64)>,
    classes: Vec<String>,
    columns: Columns,
    /// Comes before relative paths: empty, or with a separator at its end.
    folder: Vec<u8>,
    /// What paths mean that are addresses.
    addresses: RowAddresses,
    /// What the list is called in messages.
    shown: Option<Arc<str>>,
    option_names: OptionNames,
}

/// How the rows of a list are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListFormat {
    /// One path a line.
    Lines,
    /// Comma-separated values.
    Csv,
    /// One object of JSON a line.
    JsonLines,
}

impl ListFormat {
    /// By the name of the list: `.csv`, `.jsonl` and `.ndjson` in any case; all others are lines.
    pub fn of_name(name: &Key) -> Self {
        let name = name.as_bytes().to_ascii_lowercase();
        match &name[..] {
            name if name.ends_with(b".csv") => ListFormat::Csv,
            name if name.ends_with(b".jsonl") || name.ends_with(b".ndjson") => {
                ListFormat::JsonLines
            }
            _ => ListFormat::Lines,
        }
    }
}

impl FileList {
    /// Reads a list of this machine, of the format that its name says.
    ///
    /// # Errors
    /// As [`parse`](FileList::parse), and what the operating system answers; `LimitExceeded` for a
    /// list that is larger than allowed.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        FileList::open_with(path, &FileListOptions::default())
    }

    /// The same with options of the caller's.
    ///
    /// # Errors
    /// As [`open`](FileList::open).
    pub fn open_with(path: impl AsRef<Path>, options: &FileListOptions) -> Result<Self> {
        use std::io::Read;
        let path = path.as_ref();
        let key = Key::from_path(path);
        let failed = |error| os_error("cannot read this list", &key, error);
        let file = std::fs::File::open(path).map_err(failed)?;
        let mut text = Vec::new();
        file.take(options.limit().saturating_add(1)).read_to_end(&mut text).map_err(failed)?;
        FileList::of(key, text.into(), options)
    }

    /// Reads a list of a store, of the format that its name says. Its paths are keys of that store.
    ///
    /// # Errors
    /// As [`parse`](FileList::parse), and what the fetcher answers.
    pub async fn fetch(
        fetcher: &Arc<dyn Fetcher>,
        key: impl Into<Key>,
        options: &FileListOptions,
    ) -> Result<Self> {
        let key = key.into();
        let text = fetcher.read_at_most(&key, options.limit()).await?;
        FileList::of(key, text, options)
    }

    fn of(key: Key, text: Bytes, options: &FileListOptions) -> Result<Self> {
        let name = key.as_bytes();
        let is_separator = |byte: &u8| *byte == b'/' || (cfg!(windows) && *byte == b'\\');
        let folder = &name[..name.iter().rposition(is_separator).map_or(0, |slash| slash + 1)];
        let format = ListFormat::of_name(&key);
        let list = FileList::parse(text, format, Key::from_bytes(folder), options);
        let shown = key.display_name();
        list.map(|list| FileList { shown: Some(Arc::clone(&shown)), ..list })
            .map_err(|error| error.with_key(shown))
    }

    /// The files that `text` lists, whose relative paths are below `folder`.
    ///
    /// # Errors
    /// With the byte in the text, and the line and the column in the message: `Corrupt` and `Truncated`
    /// where it is not of that format, a row of CSV has more or fewer cells than the first one, or a row has
    /// no path; `InvalidArgument` where a column that was asked for is missing, the header of a CSV names no
    /// column of paths, a CSV without a header has more than two columns, a column is named `file` beside
    /// that of the paths, or labels are neither all whole numbers nor all names; `NotFound` where it lists nothing; `LimitExceeded` where it is larger than
    /// allowed.
    pub fn parse(
        text: impl Into<Bytes>,
        format: ListFormat,
        folder: impl Into<Key>,
        options: &FileListOptions,
    ) -> Result<Self> {
        let text = text.into();
        if text.len() as u64 > options.limit() {
            let message = format!("a list of more than {} bytes", options.limit());
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        let mut folder = folder.into().as_bytes().to_vec();
        if !folder.is_empty() && !folder.ends_with(b"/") {
            folder.push(b'/');
        }
        let mut list = FileList {
            text,
            format,
            starts: Vec::new(),
            labels: Vec::new(),
            unlabeled: None,
            classes: Vec::new(),
            columns: Columns::default(),
            folder,
            addresses: RowAddresses::AsTheyStand,
            shown: None,
            option_names: options.option_names,
        };
        let bytes = list.text.clone();
        let start = if bytes.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 };
        let columns = Columns::read(&bytes, start, format, options);
        columns
            .and_then(|(columns, start)| {
                list.columns = columns;
                list.read_rows(start)
            })
            .map_err(|error| located(error, &bytes))?;
        match list.starts.is_empty() {
            true => Err(Error::new(ErrorKind::NotFound, "the list names no files")),
            false => Ok(list),
        }
    }

    fn read_rows(&mut self, mut start: usize) -> Result<()> {
        let text = self.text.clone();
        // Each text once, with what it says.
        let mut numbers: HashMap<String, i64> = HashMap::new();
        let (mut texts, mut column) = (Vec::new(), LabelTexts::default());
        while start < text.len() {
            let (first_line, next_line) = line(&text, start);
            if first_line.iter().all(u8::is_ascii_whitespace) {
                start = next_line;
                continue;
            }
            let (row, end) = self.row(&text, start)?;
            // Below 4 GiB, as the list is.
            self.starts.push(start as u32);
            self.labels.push(match row.label {
                None => {
                    let row = self.labels.len() as u64;
                    let (count, first) = self.unlabeled.unwrap_or((0, row));
                    self.unlabeled = Some((count + 1, first));
                    -1
                }
                Some(label) => match numbers.get(label.trim()) {
                    Some(number) => *number,
                    None => {
                        let label = label.trim().to_owned();
                        let says = column.add(&label, start as u64).map_err(|fault| {
                            let line_name = |at| format!("in line {}", line_number(&text, at));
                            let option = self.option_names.label_field;
                            let message = fault.message(&label, line_name, option, true);
                            Error::new(ErrorKind::InvalidArgument, message)
                                .with_offset(start as u64)
                        })?;
                        texts.push((label.clone(), says));
                        numbers.insert(label, texts.len() as i64 - 1);
                        texts.len() as i64 - 1
                    }
                },
            });
            start = end;
        }
        if column.are_names() {
            self.classes = texts.iter().map(|(name, _)| name.clone()).collect();
            self.classes.sort_unstable();
        }
        let label_of = |(name, says): &(String, LabelText)| match says {
            LabelText::Whole(number) => *number,
            _ => self.classes.binary_search(name).map_or(-1, |place| place as i64),
        };
        let values: Vec<i64> = texts.iter().map(label_of).collect();
        for label in &mut self.labels {
            *label = usize::try_from(*label).map_or(-1, |number| values[number]);
        }
        self.starts.shrink_to_fit();
        self.labels.shrink_to_fit();
        Ok(())
    }

    /// The row that starts at `start`, and where the next one does.
    fn row<'a>(&self, text: &'a [u8], start: usize) -> Result<(Row<'a>, usize)> {
        let (row, end) = match self.format {
            ListFormat::Lines => {
                let (path, end) = line(text, start);
                (Row { path: Cow::Borrowed(path), label: None, others: Vec::new() }, end)
            }
            ListFormat::Csv => {
                let row = csv_row(text, start)?;
                (self.columns.row_of_cells(row.cells, start)?, row.end)
            }
            ListFormat::JsonLines => {
                let row = self.columns.row_of_members(json_line(text, start)?, start)?;
                (row, line(text, start).1)
            }
        };
        match row.path.is_empty() {
            true => Err(corrupt("a row without a path", start)),
            false => Ok((row, end)),
        }
    }

    /// How many rows have no label, and the first of them; a −1 that is written is one.
    pub(crate) fn unlabeled(&self) -> Option<(u64, u64)> {
        self.unlabeled
    }

    /// Whether its labels are those of the column `name`, of the usual ones.
    pub(crate) fn has_label_column(&self, name: &str) -> bool {
        let has_labels = self.unlabeled.is_none_or(|(count, _)| count < self.len());
        match self.format {
            ListFormat::Lines => false,
            ListFormat::Csv => self.columns.is_label(name),
            ListFormat::JsonLines => has_labels && self.columns.is_label(name),
        }
    }

    /// Whether it has names of columns, as a header gives them.
    pub(crate) fn has_named_columns(&self) -> bool {
        self.columns.are_named
    }

    /// The names of the classes; a label is an index into them. Empty where labels are whole numbers, and
    /// where there are none.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    fn key_of(&self, path: &[u8]) -> Key {
        if let Some(Ok(key)) = self.addresses.key_of(path) {
            return key;
        }
        let is_address = path.windows(3).any(|part| part == b"://");
        let is_absolute = path.starts_with(b"/") || Key::from_bytes(path).to_path().is_absolute();
        match is_address || is_absolute {
            true => Key::from_bytes(path),
            false => Key::from_bytes(&[&self.folder, path].concat()),
        }
    }
}

/// The line of a byte, counted from 1.
fn line_number(text: &[u8], offset: u64) -> usize {
    let before = usize::try_from(offset).ok().and_then(|offset| text.get(..offset));
    before.unwrap_or(text).iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// The same error with the place as people count it: lines, and characters in them, from 1. The first
/// stands for the whole line.
fn located(error: Error, text: &[u8]) -> Error {
    let Some(offset) = error.offset() else { return error };
    let before = usize::try_from(offset).ok().and_then(|offset| text.get(..offset));
    let before = before.unwrap_or(text);
    let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let line = line_number(text, offset);
    let in_line = String::from_utf8_lossy(&before[line_start..]);
    // The mark before the first line is not seen.
    let column = in_line.trim_start_matches('\u{feff}').chars().count() + 1;
    let column = if column == 1 { String::new() } else { format!(", column {column}") };
    let message = format!("line {line}{column}: {}", error.message());
    let located = Error::new(error.kind(), message).with_offset(offset);
    match std::error::Error::source(&error) {
        Some(cause) => located.with_source(cause.to_string()),
        None => located,
    }
}

impl Dataset for FileList {
    type Item = StoredRecord;

    fn len(&self) -> u64 {
        self.starts.len() as u64
    }

    fn item(&self, index: u64) -> Result<StoredRecord> {
        let found = usize::try_from(index).ok();
        let found = found.and_then(|at| self.starts.get(at).zip(self.labels.get(at)));
        let Some((&start, &label)) = found else {
            let message = format!("file {index} of {} was asked for", self.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        let (row, _) = self.row(&self.text, start as usize)?;
        let key = self.key_of(&row.path);
        let mut record = StoredRecord::new(key.clone()).with_label(label);
        record = record.with_stored(FILE_FIELD, Extent::whole(key), Encoding::Bytes);
        for (name, value) in row.others {
            record = record.with_known(name, value);
        }
        Ok(record)
    }

    /// Of the list as it stands: half of its XXH3 sum of 128 bits. Where it lies does not matter.
    fn content_hash(&self) -> Option<u64> {
        Some(XxHash3_128::oneshot(&self.text) as u64)
    }

    fn key(&self, item: &StoredRecord) -> Option<Arc<str>> {
        Some(item.key.display_name())
    }
}

impl fmt::Debug for FileList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileList")
            .field("list", &self.shown)
            .field("format", &self.format)
            .field("files", &self.len())
            .field("classes", &self.classes.len())
            .finish()
    }
}
