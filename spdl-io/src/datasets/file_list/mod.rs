//! [`FileList`]: a list of files as a data set.
//!
//! | file | what it holds |
//! |---|---|
//! | `rows` | parsers for lines, CSV and JSON Lines |
//! | `columns` | which columns are path, label and other fields |
//! | `coco` | annotations in the format of COCO |
//! | `voc` | annotations in the format of Pascal VOC |
//! | `imagenet` | labels of the validation images of ImageNet |
//! | `json_lines` | JSON Lines that name no files, such as text corpora |
//! | `addresses` | rows that are addresses of stores |
//! | `row_stores` | the fetcher of a list whose rows lie in several stores |
//! | `several` | several lists as one data set |
//! | `options` | [`FileListOptions`] |

mod addresses;
mod coco;
mod columns;
mod imagenet;
#[expect(unreachable_pub, reason = "the macro for data sets makes methods public")]
mod json_lines;
mod options;
mod row_stores;
mod rows;
mod several;
mod voc;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use spdl_core::runtime::{STALL_TIMEOUT, read_file};
use spdl_core::{Dataset, Error, ErrorKind, Result};
use twox_hash::XxHash3_128;

use self::addresses::RowAddresses;
pub(crate) use self::coco::CocoDocument;
pub(crate) use self::columns::{FILE_FIELD, LABEL_COLUMNS};
use self::columns::{FileMembers, ListColumns, ListRow};
pub(crate) use self::imagenet::{VALIDATION_IMAGE, is_validation_labels};
pub(crate) use self::json_lines::{JsonLines, is_compressed, is_json_lines};
pub use self::options::FileListOptions;
pub(crate) use self::row_stores::RowStores;
use self::rows::{corrupt, csv_row, json_line, line};
pub(crate) use self::several::FileLists;
pub(crate) use self::voc::folder_of_image_set;
use crate::datasets::common::row_key;
use crate::fetch::{Fetcher, Key};
use crate::files::os_error;
use crate::records::label_text::{LabelColumn, LabelText};
use crate::records::{Encoding, Extent, FieldValue, StoredRecord};

/// A data set of files that a list names, each with a label and other fields.
///
/// | list | example of a row | format |
/// |---|---|---|
/// | `.txt` | `cats/1.jpg` | one path per line, taken literally |
/// | `.csv` | `cats/1.jpg,cat` | RFC 4180; the header is optional |
/// | `.jsonl`, `.ndjson` | `{"path": "cats/1.jpg", "label": 0, "caption": "a cat"}` | JSON Lines |
///
/// - [`FileListOptions::value_columns`] makes the path column of CSV optional. A sample without a path has no field
///   `file`, and its key is `LIST:ROW`; rows count from 0.
/// - Path column: the first existing one of `path`, `file`, `file_name`, `filename`, `file_path`,
///   `filepath`, `key`, `url`, `uri`, `image`, `img`, `image_path` and `img_path`.
/// - Label column: the first existing one of `label`, `class` and `cls`. Further label columns become fields.
///   [`FileListOptions`] sets other names.
/// - The first CSV row is a header if it names a path column. Without a header, there are one or two
///   columns: path and label. A row that looks like a header but names no path column is an error.
/// - The labels of a list are either all integers (`3.0` is an integer, `7e10` is not) or all class names. A
///   class name becomes its index in [`classes`](FileList::classes). A mixture is an error. An empty or missing
///   label is −1.
/// - Relative paths are relative to the folder of the list. Absolute paths, and addresses with `://`, stay
///   unchanged. Opening does not check that the files exist. The fetcher must support addresses as keys; the
///   fetcher of [`OpenedDataset`](super::OpenedDataset) opens the store of each row.
/// - Each sample has the field `file` with the bytes of the file, and one field per other column.
///   CSV columns become texts, in column order; empty cells become null. JSON members keep their types, and are sorted by
///   name. The columns of [`FileListOptions::file_columns`] hold the bytes of further files.
/// - Blank lines and a UTF-8 byte order mark are ignored.
///
/// Memory use: the list itself and 12 bytes per row.
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
    /// The offset of each row.
    starts: Vec<u32>,
    labels: Vec<i64>,
    /// The number of rows without a label, and the first such row. A literal −1 is a label.
    unlabeled: Option<(u64, u64)>,
    classes: Vec<String>,
    columns: ListColumns,
    /// The prefix of relative paths: empty, or with a separator at its end.
    folder: Vec<u8>,
    addresses: RowAddresses,
    /// The name of the list in messages.
    name: Option<Arc<str>>,
    /// Whether the rows were made from annotations of COCO, so messages name images instead of lines.
    has_image_ids: bool,
    /// The fields with one value per box that annotations define.
    box_fields: BoxFields,
    /// The errors of samples whose annotations are missing or damaged, by row.
    failures: BTreeMap<u64, Error>,
}

/// Names of fields, and the format of those which are boxes: `xyxy` or `xywh`.
pub(crate) type BoxFields = &'static [(&'static str, Option<&'static str>)];

/// The format of the rows of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListFormat {
    /// One path per line.
    Lines,
    /// Comma-separated values.
    Csv,
    /// JSON Lines: one JSON object per line.
    JsonLines,
}

impl ListFormat {
    /// The format by file name: `.csv`, `.jsonl` and `.ndjson` in any case; lines for any other name.
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
    /// Reads a local list. Its name determines the format.
    ///
    /// # Errors
    /// The errors of [`parse`](FileList::parse) and of the operating system.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        FileList::open_with(path, &FileListOptions::default())
    }

    /// Reads a local list with `options`.
    ///
    /// # Errors
    /// The errors of [`open`](FileList::open).
    pub fn open_with(path: impl AsRef<Path>, options: &FileListOptions) -> Result<Self> {
        let path = path.as_ref();
        let key = Key::from_path(path);
        let failed = |error| os_error("cannot read the list", &key, error);
        let max_bytes = options.limit().saturating_add(1);
        let text = read_file(path, max_bytes, STALL_TIMEOUT).map_err(failed)?;
        FileList::of(key, text.into(), options)
    }

    /// Reads a list of a store. Its name determines the format. Its paths are keys of that store.
    ///
    /// # Errors
    /// The errors of [`parse`](FileList::parse) and of the fetcher.
    pub async fn fetch(
        fetcher: &Arc<dyn Fetcher>,
        key: impl Into<Key>,
        options: &FileListOptions,
    ) -> Result<Self> {
        let key = key.into();
        let text = fetcher.read_whole(&key, &options.limit()).await?;
        FileList::of(key, text, options)
    }

    fn of(key: Key, text: Bytes, options: &FileListOptions) -> Result<Self> {
        let name = key.as_bytes();
        let is_separator = |byte: &u8| *byte == b'/' || (cfg!(windows) && *byte == b'\\');
        let folder = &name[..name.iter().rposition(is_separator).map_or(0, |slash| slash + 1)];
        let format = ListFormat::of_name(&key);
        let list = FileList::parse(text, format, Key::from_bytes(folder), options);
        let name = key.display_name();
        list.map(|list| FileList { name: Some(Arc::clone(&name)), ..list })
            .map_err(|error| error.with_key(name))
    }

    /// Parses a list. Relative paths are relative to `folder`.
    ///
    /// # Errors
    /// The message names the line and column; the offset is a position in `text`.
    ///
    /// - `Corrupt` or `Truncated` for invalid CSV or JSON, a CSV row with a different number of cells,
    ///   and a row without a path.
    /// - `InvalidArgument` if a CSV header lacks a column of the options or the path column, and
    ///   for duplicate CSV column names.
    /// - `InvalidArgument` for a CSV list without a header but with more than two columns.
    /// - `InvalidArgument` for labels that are neither all integers nor all names.
    /// - `NotFound` for a list without rows.
    /// - `LimitExceeded` for a list above [`FileListOptions::max_bytes`], and for a CSV row with
    ///   more than 10,000 cells.
    pub fn parse(
        text: impl Into<Bytes>,
        format: ListFormat,
        folder: impl Into<Key>,
        options: &FileListOptions,
    ) -> Result<Self> {
        let text = text.into();
        if text.len() as u64 > options.limit() {
            let message = format!("the list is larger than the limit of {} bytes", options.limit());
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
            columns: ListColumns::default(),
            folder,
            addresses: RowAddresses::Unchanged,
            name: None,
            has_image_ids: false,
            box_fields: &[],
            failures: BTreeMap::new(),
        };
        let bytes = list.text.clone();
        let start = if bytes.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 };
        let columns = ListColumns::read(&bytes, start, format, options);
        columns
            .and_then(|(columns, start)| {
                list.columns = columns;
                list.read_rows(start)
            })
            .map_err(|error| with_line(error, &bytes))?;
        match list.starts.is_empty() {
            true => Err(Error::new(ErrorKind::NotFound, "the list contains no paths")),
            false => Ok(list),
        }
    }

    fn read_rows(&mut self, mut start: usize) -> Result<()> {
        let text = self.text.clone();
        // The index of each distinct label in `texts`.
        let mut numbers: HashMap<String, i64> = HashMap::new();
        let (mut texts, mut column) = (Vec::new(), LabelColumn::default());
        let mut members = FileMembers::default();
        while start < text.len() {
            let (first_line, next_line) = line(&text, start);
            if first_line.iter().all(u8::is_ascii_whitespace) {
                start = next_line;
                continue;
            }
            let (row, end) = self.row(&text, start)?;
            // Lossless: the list is smaller than 4 GiB.
            self.starts.push(start as u32);
            members.add(&row);
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
                        let parsed = column.add(&label, start as u64).map_err(|invalid| {
                            let line_name = |at| format!("in line {}", line_number(&text, at));
                            invalid.error(&label, line_name, true).with_offset(start as u64)
                        })?;
                        texts.push((label.clone(), parsed));
                        numbers.insert(label, texts.len() as i64 - 1);
                        texts.len() as i64 - 1
                    }
                },
            });
            start = end;
        }
        if self.format == ListFormat::JsonLines {
            self.columns.set_members(members);
        }
        if column.are_names() {
            self.classes = texts.iter().map(|(name, _)| name.clone()).collect();
            self.classes.sort_unstable();
        }
        let label_of = |(name, parsed): &(String, LabelText)| match parsed {
            LabelText::Integer(number) => *number,
            _ => self.classes.binary_search(name).map_or(-1, |index| index as i64),
        };
        let values: Vec<i64> = texts.iter().map(label_of).collect();
        for label in &mut self.labels {
            *label = usize::try_from(*label).map_or(-1, |number| values[number]);
        }
        self.starts.shrink_to_fit();
        self.labels.shrink_to_fit();
        Ok(())
    }

    /// The row at offset `start`, and the offset of the next row.
    fn row<'a>(&self, text: &'a [u8], start: usize) -> Result<(ListRow<'a>, usize)> {
        let (row, end) = match self.format {
            ListFormat::Lines => {
                let (path, end) = line(text, start);
                (ListRow::of_path(path), end)
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
        match row.path.is_empty() && self.columns.has_path() {
            true => Err(corrupt("the path of this row is empty", start)),
            false => Ok((row, end)),
        }
    }

    /// Whether the labels come from the default column `name`.
    fn has_label_column(&self, name: &str) -> bool {
        let has_labels = self.unlabeled.is_none_or(|(count, _)| count < self.len());
        match self.format {
            ListFormat::Lines => false,
            ListFormat::Csv => self.columns.is_label(name),
            ListFormat::JsonLines => has_labels && self.columns.is_label(name),
        }
    }

    /// The class names, sorted by their bytes; a label is an index. Empty if labels are integers, or if the
    /// list has no labels.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The first local path for which `condition` holds.
    fn first_path(&self, condition: impl Fn(&Path) -> bool) -> Option<PathBuf> {
        if !self.columns.has_path() {
            return None;
        }
        let path = |start: &u32| {
            let (row, _) = self.row(&self.text, *start as usize).ok()?;
            Some(self.key_of(&row.path).to_path().into_owned())
        };
        self.starts.iter().filter_map(path).find(|path| condition(path))
    }

    fn key_of(&self, path: &[u8]) -> Key {
        if let Some(Ok(key)) = self.addresses.key_of(path) {
            return key;
        }
        match is_relative(path) {
            true => Key::from_bytes(&[&self.folder, path].concat()),
            false => Key::from_bytes(path),
        }
    }
}

/// Whether a path is neither absolute nor an address.
fn is_relative(path: &[u8]) -> bool {
    let is_address = path.windows(3).any(|part| part == b"://");
    let is_absolute = path.starts_with(b"/") || Key::from_bytes(path).to_path().is_absolute();
    !is_address && !is_absolute
}

/// The number of the line at an offset, counted from 1.
fn line_number(text: &[u8], offset: u64) -> usize {
    let before = usize::try_from(offset).ok().and_then(|offset| text.get(..offset));
    before.unwrap_or(text).iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// Adds line and column to the message of an error. Both count from 1; column 1 is omitted.
fn with_line(error: Error, text: &[u8]) -> Error {
    let Some(offset) = error.offset() else { return error };
    let before = usize::try_from(offset).ok().and_then(|offset| text.get(..offset));
    let before = before.unwrap_or(text);
    let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let line = line_number(text, offset);
    let in_line = String::from_utf8_lossy(&before[line_start..]);
    // The byte order mark is not a character of the line.
    let column = in_line.trim_start_matches('\u{feff}').chars().count() + 1;
    let column = if column == 1 { String::new() } else { format!(", column {column}") };
    let message = format!("line {line}{column}: {}", error.message());
    Error::new(error.kind(), message).with_offset(offset).with_cause_of(error)
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
            let message =
                format!("index {index} is out of range: the list has {} files", self.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        if let Some(error) = self.failures.get(&index) {
            return Err(error.clone());
        }
        let (row, _) = self.row(&self.text, start as usize)?;
        let mut record = match self.columns.has_path() {
            true => {
                let key = self.key_of(&row.path);
                let file = Extent::whole(key.clone());
                StoredRecord::new(key).with_stored(FILE_FIELD, file, Encoding::Bytes)
            }
            false => {
                let list = self.name.as_deref().unwrap_or("list");
                StoredRecord::new(row_key(&list.into(), index))
            }
        };
        record = record.with_label(label);
        for (name, path) in row.files {
            record = match path.is_empty() {
                true => record.with_known(name, FieldValue::Null),
                false => {
                    let file = Extent::whole(self.key_of(&path));
                    record.with_stored(name, file, Encoding::Bytes)
                }
            };
        }
        for (name, value) in row.others {
            record = record.with_known(name, value);
        }
        Ok(record)
    }

    /// The lower half of the XXH3-128 hash of the list, independent of its location.
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
            .field("list", &self.name)
            .field("format", &self.format)
            .field("files", &self.len())
            .field("classes", &self.classes.len())
            .finish()
    }
}
