//! The columns of a file list: path, label and other fields.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value};
use spdl_core::{Error, ErrorKind, Result};

use super::rows::{CsvRow, corrupt, csv_row};
use super::{FileListOptions, ListFormat};
use crate::fetch::Key;
use crate::records::label_text::to_integer;
use crate::records::{FieldValue, Remedy, abbreviated};

/// The default path columns.
const PATH_COLUMNS: [&str; 13] = [
    "path",
    "file",
    "file_name",
    "filename",
    "file_path",
    "filepath",
    "key",
    "url",
    "uri",
    "image",
    "img",
    "image_path",
    "img_path",
];
/// The maximum number of member names in a message.
const MAX_LISTED: usize = 20;
/// The name of the field that holds the bytes of the file.
pub(crate) const FILE_FIELD: &str = "file";
/// The default label columns.
pub(crate) const LABEL_COLUMNS: [&str; 3] = ["label", "class", "cls"];

/// The columns of a CSV list, or the members to look up in JSON Lines.
#[derive(Default)]
pub(super) struct ListColumns {
    /// The names of all CSV columns, from the header.
    pub(super) names: Vec<Arc<str>>,
    /// Whether the list itself names its columns: in a CSV header, or as JSON members.
    pub(super) are_named: bool,
    /// For CSV, the index of the path column; `None` if rows name no files.
    path: Option<usize>,
    /// For CSV, the index of the label column.
    label: Option<usize>,
    /// For JSON, the names of the path member; the first existing one is used.
    path_names: Vec<String>,
    /// For JSON, the names of the label member; the first existing one is used.
    label_names: Vec<String>,
    /// The names of further columns or members that name files.
    file_names: Vec<Arc<str>>,
    /// For CSV, the columns of these files, and the names of their fields.
    file_columns: Vec<(usize, Arc<str>)>,
    /// For JSON, the members that name files in some row.
    members: FileMembers,
}

/// The JSON members that name files in some row.
///
/// The flag of a member is true if the member has a default name, and is the path of each row that has it. A row
/// whose path has another default name has the same file, so the member is not missing there.
#[derive(Default)]
pub(super) struct FileMembers(Vec<(Arc<str>, bool)>);

impl FileMembers {
    pub(super) fn add(&mut self, row: &ListRow<'_>) {
        for (name, _) in &row.files {
            let is_path = row.path_field.as_ref() == Some(name) && PATH_COLUMNS.contains(&&**name);
            match self.0.iter_mut().find(|(member, _)| member == name) {
                Some((_, is_always_path)) => *is_always_path &= is_path,
                None => self.0.push((Arc::clone(name), is_path)),
            }
        }
    }
}

/// A row of a list. The label is not yet a number.
pub(super) struct ListRow<'a> {
    pub(super) path: Cow<'a, [u8]>,
    pub(super) label: Option<String>,
    /// The fields that hold the bytes of files, and the paths of these files, which may be empty.
    pub(super) files: Vec<(Arc<str>, Cow<'a, [u8]>)>,
    pub(super) others: Vec<(Arc<str>, FieldValue)>,
    /// For JSON, the field of `files` that is the path member too.
    path_field: Option<Arc<str>>,
}

impl<'a> ListRow<'a> {
    /// A row with only a path.
    pub(super) fn of_path(path: &'a [u8]) -> Self {
        let (files, others) = (Vec::new(), Vec::new());
        ListRow { path: Cow::Borrowed(path), label: None, files, others, path_field: None }
    }
}

impl ListRow<'_> {
    /// The paths of all files of the row.
    pub(super) fn paths(&self) -> impl Iterator<Item = &[u8]> {
        let others = self.files.iter().map(|(_, path)| &**path);
        [&*self.path].into_iter().chain(others)
    }
}

impl ListColumns {
    /// Finds the columns, and the offset of the first row.
    pub(super) fn read(
        text: &[u8],
        start: usize,
        format: ListFormat,
        options: &FileListOptions,
    ) -> Result<(Self, usize)> {
        let names_or_default = |name: &Option<String>, default: &[&'static str]| match name {
            Some(name) => vec![name.clone()],
            None => default.iter().map(|&name| name.to_owned()).collect(),
        };
        let mut path_names = names_or_default(&options.path, &PATH_COLUMNS);
        if let Some(first) = &options.first_path {
            path_names.insert(0, first.clone());
        }
        if options.path.is_none() {
            path_names.extend(options.other_paths.iter().cloned());
            path_names.retain(|name| !options.values.contains(name));
        }
        let label_names = names_or_default(&options.label, &options.default_labels);
        let are_named = format != ListFormat::Lines;
        // The field `file` is always the file of the path.
        let files = options
            .files
            .iter()
            .enumerate()
            .filter(|(at, name)| **name != FILE_FIELD && !options.files[..*at].contains(name));
        let file_names = files.map(|(_, name)| name.as_str().into()).collect();
        let mut columns = ListColumns {
            are_named,
            path: Some(0),
            path_names,
            label_names,
            file_names,
            ..ListColumns::default()
        };
        if format != ListFormat::Csv || text.len() == start {
            return Ok((columns, start));
        }
        let first = csv_row(text, start)?;
        let names: Vec<Arc<str>> =
            first.cells.iter().map(|cell| String::from_utf8_lossy(cell).trim().into()).collect();
        let find = |wanted: &[String]| {
            wanted
                .iter()
                .find_map(|wanted| names.iter().position(|name| name.eq_ignore_ascii_case(wanted)))
        };
        let invalid = |message: String| {
            Error::new(ErrorKind::InvalidArgument, message).with_offset(start as u64)
        };
        // The row may hold signed addresses; `Key` hides the signatures.
        let listed: Vec<String> = names.iter().map(|name| Key::from(&**name).to_string()).collect();
        let listed = listed.join(", ");
        let missing = |name: &str| invalid(format!("no column {name:?}: the columns are {listed}"));
        let has_options = options.path.is_some() || options.label.is_some();
        let (path, label) = (find(&columns.path_names), find(&columns.label_names));
        let has_value = names.iter().any(|name| options.values.iter().any(|it| **it == **name));
        if path.is_none() && !has_value {
            if let Some(name) = options.values.first() {
                return Err(missing(name));
            }
            if let Some(name) = &options.path {
                return Err(missing(name));
            }
            let is_label =
                |name: &Arc<str>| LABEL_COLUMNS.iter().any(|it| name.eq_ignore_ascii_case(it));
            let is_header = names.iter().any(is_label) || looks_like_header(text, &first);
            if has_options || names.len() > 2 || is_header {
                let mut expected: Vec<&str> = Vec::new();
                for name in &columns.path_names {
                    if !expected.contains(&&**name) {
                        expected.push(name);
                    }
                }
                let mut message = format!(
                    "no path column: the columns are {listed}; expected one of {}; rename the column \
                     that names the files to `path`",
                    expected.join(", "),
                );
                if names.len() <= 2 && !has_options {
                    let header = if names.len() == 2 { "path,label" } else { "path" };
                    message += &format!(
                        "; if this row is not a header, add the line `{header}` before it"
                    );
                }
                return Err(invalid(message).with_source(Remedy::ImageField));
            }
            columns.names = names;
            columns.are_named = false;
            columns.label = (columns.names.len() == 2).then_some(1);
            return Ok((columns, start));
        }
        if let (None, Some(name)) = (label, options.label.as_deref()) {
            return Err(missing(name));
        }
        for (at, name) in names.iter().enumerate() {
            let is_other = Some(at) != path && Some(at) != label;
            if is_other && (&**name == FILE_FIELD || names[..at].contains(name)) {
                let message = match &**name {
                    FILE_FIELD => {
                        format!("the column name {name:?} is reserved for the content of the file")
                    }
                    _ => format!("duplicate column name {name:?}"),
                };
                return Err(invalid(message));
            }
        }
        // As for the path column, letter case is ignored, but an exact match takes precedence.
        let column_of = |wanted: &Arc<str>| {
            let exact = names.iter().position(|name| name == wanted);
            let at = exact.or_else(|| find(&[wanted.to_string()]))?;
            Some((at, Arc::clone(wanted)))
        };
        let file_columns = columns.file_names.iter().filter_map(column_of).collect();
        Ok((ListColumns { names, path, label, file_columns, ..columns }, first.end))
    }

    /// Whether `name` may be the name of the label column.
    pub(super) fn is_label(&self, name: &str) -> bool {
        match self.label {
            Some(label) if self.are_named => self.names[label].eq_ignore_ascii_case(name),
            Some(_) => true,
            // `names` lists all CSV columns. In JSON, each row may have another label member.
            None => self.names.is_empty() && self.label_names.iter().any(|it| it == name),
        }
    }

    /// Whether rows name files.
    pub(super) fn has_path(&self) -> bool {
        self.path.is_some()
    }

    /// Whether a JSON member names files.
    fn is_file(&self, name: &str) -> bool {
        self.file_names.iter().any(|file| **file == *name)
    }

    /// Sets that JSON rows without one of these members have an empty path in its place.
    pub(super) fn set_members(&mut self, members: FileMembers) {
        self.members = members;
    }

    /// The members that name files in other rows, but are missing in a row with these files.
    fn missing(
        &self,
        files: &[(Arc<str>, Cow<'_, [u8]>)],
        path_field: Option<&Arc<str>>,
    ) -> Vec<Arc<str>> {
        let is_missing = |(name, is_path): &&(Arc<str>, bool)| {
            let is_path = *is_path && path_field.is_none();
            !is_path && files.iter().all(|(file, _)| file != name)
        };
        self.members.0.iter().filter(is_missing).map(|(name, _)| Arc::clone(name)).collect()
    }

    /// A row from CSV cells.
    pub(super) fn row_of_cells<'a>(
        &self,
        cells: Vec<Cow<'a, [u8]>>,
        start: usize,
    ) -> Result<ListRow<'a>> {
        if cells.len() != self.names.len() {
            let (found, expected) = (cells.len(), self.names.len());
            let message = format!("expected {expected} cells in this row, found {found}");
            return Err(corrupt(message, start));
        }
        let mut row = ListRow::of_path(b"");
        for (at, (cell, name)) in cells.into_iter().zip(&self.names).enumerate() {
            let fields = self.file_columns.iter().filter(|(column, _)| *column == at);
            let before = row.files.len();
            row.files.extend(fields.map(|(_, field)| (Arc::clone(field), cell.clone())));
            if Some(at) == self.path {
                row.path = cell;
                continue;
            }
            if row.files.len() > before {
                continue;
            }
            let text = std::str::from_utf8(&cell).map_err(|error| {
                corrupt(format!("invalid UTF-8 in column {name:?}"), start).with_source(error)
            })?;
            match Some(at) == self.label {
                true => row.label = Some(text.to_owned()).filter(|text| !text.trim().is_empty()),
                false => {
                    let value = match text {
                        "" => FieldValue::Null,
                        text => FieldValue::Text(text.into()),
                    };
                    row.others.push((Arc::clone(name), value));
                }
            }
        }
        Ok(row)
    }

    /// A row from the members of a JSON object.
    pub(super) fn row_of_members(
        &self,
        mut members: Map<String, Value>,
        start: usize,
    ) -> Result<ListRow<'static>> {
        let mut take = |names: &[String]| {
            names.iter().find_map(|name| Some((name.clone(), members.remove(name.as_str())?)))
        };
        let (mut files, mut path_field) = (Vec::new(), None);
        let path = match take(&self.path_names) {
            Some((name, Value::String(path))) => {
                let path = path.into_bytes();
                if self.is_file(&name) {
                    let name: Arc<str> = name.into();
                    files.push((Arc::clone(&name), Cow::Owned(path.clone())));
                    path_field = Some(name);
                }
                path
            }
            Some(_) => return Err(corrupt("the path of this row is not a string", start)),
            None => {
                let wanted = self.path_names.join(", ");
                let listed: Vec<_> = members.keys().map(String::as_str).take(MAX_LISTED).collect();
                let listed = if listed.is_empty() { "none".to_owned() } else { listed.join(", ") };
                let message = format!(
                    "no path in this row: expected one of the members {wanted}; found {listed}"
                );
                return Err(corrupt(message, start));
            }
        };
        let label = match take(&self.label_names).map(|(_, label)| label) {
            None | Some(Value::Null) => None,
            Some(Value::String(name)) => Some(name).filter(|name| !name.trim().is_empty()),
            Some(Value::Number(number)) => {
                let integer = number.as_i64().or_else(|| to_integer(number.as_f64()?));
                let integer = integer.ok_or_else(|| invalid_label(&number.to_string(), start))?;
                Some(integer.to_string())
            }
            Some(other) => return Err(invalid_label(&other.to_string(), start)),
        };
        let mut others = Vec::with_capacity(members.len());
        for (name, value) in members {
            if name == FILE_FIELD {
                let message = "the member name \"file\" is reserved for the content of the file";
                return Err(corrupt(message, start));
            }
            match value {
                Value::String(path) if self.is_file(&name) => {
                    files.push((name.into(), Cow::Owned(path.into_bytes())));
                }
                Value::Null if self.is_file(&name) => {
                    files.push((name.into(), Cow::Owned(Vec::new())));
                }
                value if self.is_file(&name) => {
                    let value = abbreviated(&value.to_string());
                    let message = format!("{name:?} must be the path of a file, found {value}");
                    return Err(corrupt(message, start));
                }
                value => others.push((name.into(), field_of(value))),
            }
        }
        let missing = self.missing(&files, path_field.as_ref()).into_iter();
        files.extend(missing.map(|name| (name, Cow::Borrowed(&b""[..]))));
        files.sort_by(|(a, _): &(Arc<str>, _), (b, _)| a.cmp(b));
        others.sort_by(|(a, _): &(Arc<str>, FieldValue), (b, _)| a.cmp(b));
        Ok(ListRow { path: Cow::Owned(path), label, files, others, path_field })
    }
}

/// Whether the first row is a header: its first cell has neither an extension nor a folder, and the first
/// cell of the next row has an extension.
fn looks_like_header(text: &[u8], first: &CsvRow<'_>) -> bool {
    let is_name = |cell: &&Cow<'_, [u8]>| !cell.iter().any(|byte| b"./\\:".contains(byte));
    let has_extension = |cell: &Cow<'_, [u8]>| cell.iter().skip(1).any(|&byte| byte == b'.');
    let second = csv_row(text, first.end).ok();
    first.cells.first().filter(is_name).is_some()
        && second.and_then(|row| row.cells.first().map(has_extension)) == Some(true)
}

/// A JSON value as a field.
pub(super) fn field_of(value: Value) -> FieldValue {
    match value {
        Value::Null => FieldValue::Null,
        Value::Bool(value) => FieldValue::Bool(value),
        Value::String(text) => FieldValue::Text(text.into()),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => FieldValue::Integer(number),
            (None, Some(number)) => FieldValue::Float(number),
            (None, None) => FieldValue::Json(Value::Number(number)),
        },
        other => FieldValue::Json(other),
    }
}

fn invalid_label(value: &str, start: usize) -> Error {
    let value = abbreviated(value);
    corrupt(format!("the label must be an integer or a string, found {value}"), start)
}
