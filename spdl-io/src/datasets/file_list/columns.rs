//! The columns of a list of files: which there are, and what they hold of a row.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value};
use spdl_core::{Error, ErrorKind, Result};

use super::rows::{CsvRow, corrupt, csv_row};
use super::{FileListOptions, ListFormat};
use crate::fetch::Key;
use crate::records::label_text::whole;
use crate::records::{FieldValue, shown};

/// The columns that name the file, where nothing else is said.
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
/// So many names of members are told, where none is known.
const MOST_TOLD: usize = 20;
/// What the field of the files is called.
pub(crate) const FILE_FIELD: &str = "file";
/// The columns that name the class.
pub(crate) const LABEL_COLUMNS: [&str; 3] = ["label", "class", "cls"];

/// Which columns of a CSV there are, or which members of JSON are looked for.
#[derive(Default)]
pub(super) struct Columns {
    /// The names of all columns, as the header of a CSV gives them.
    names: Vec<Arc<str>>,
    /// Whether people named them: in a header, or as members of JSON.
    pub(super) are_named: bool,
    /// The columns of a CSV: path and label.
    path: usize,
    label: Option<usize>,
    /// The members of JSON, the first that is there: path and label.
    path_names: Vec<String>,
    label_names: Vec<String>,
}

/// A row, with its label not yet a number.
pub(super) struct Row<'a> {
    pub(super) path: Cow<'a, [u8]>,
    pub(super) label: Option<String>,
    pub(super) others: Vec<(Arc<str>, FieldValue)>,
}

impl Columns {
    /// Finds the columns, and where the rows start.
    pub(super) fn read(
        text: &[u8],
        start: usize,
        format: ListFormat,
        options: &FileListOptions,
    ) -> Result<(Self, usize)> {
        let told = |name: &Option<String>, usual: &[&'static str]| match name {
            Some(name) => vec![name.clone()],
            None => usual.iter().map(|&name| name.to_owned()).collect(),
        };
        let mut path_names = told(&options.path, &PATH_COLUMNS);
        if let Some(first) = &options.first_path {
            path_names.insert(0, first.clone());
        }
        let label_names = told(&options.label, &options.usual_labels);
        let are_named = format != ListFormat::Lines;
        let mut columns = Columns { are_named, path_names, label_names, ..Columns::default() };
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
        let wrong = |message: String| {
            Error::new(ErrorKind::InvalidArgument, message).with_offset(start as u64)
        };
        // It may be a row of addresses as well, which may be signed.
        let shown: Vec<String> = names.iter().map(|name| Key::from(&**name).to_string()).collect();
        let shown = shown.join(", ");
        let missing = |name: &str| wrong(format!("there is no column {name:?}, but {shown}"));
        let is_told = options.path.is_some() || options.label.is_some();
        let (path, label) = (find(&columns.path_names), find(&columns.label_names));
        let Some(path) = path else {
            if let Some(name) = &options.path {
                return Err(missing(name));
            }
            let is_usual =
                |name: &Arc<str>| LABEL_COLUMNS.iter().any(|it| name.eq_ignore_ascii_case(it));
            let is_header = names.iter().any(is_usual) || looks_like_header(text, &first);
            if is_told || names.len() > 2 || is_header {
                let mut message = format!(
                    "the columns are {shown}, of which none is known to name the files ({}): call the one \
                     that does `path`, or say which it is ({})",
                    columns.path_names.join(", "),
                    options.option_names.image_field,
                );
                if names.len() <= 2 && !is_told {
                    let header = if names.len() == 2 { "path,label" } else { "path" };
                    message +=
                        &format!("; if this is a file and no header, write `{header}` above it");
                }
                return Err(wrong(message));
            }
            columns.names = names;
            columns.are_named = false;
            columns.label = (columns.names.len() == 2).then_some(1);
            return Ok((columns, start));
        };
        if let (None, Some(name)) = (label, options.label.as_deref()) {
            return Err(missing(name));
        }
        for (at, name) in names.iter().enumerate() {
            let is_other = at != path && Some(at) != label;
            if is_other && (&**name == FILE_FIELD || names[..at].contains(name)) {
                let message = format!("a second column, or field, would be named {name:?}");
                return Err(wrong(message));
            }
        }
        Ok((Columns { names, path, label, ..columns }, first.end))
    }

    /// Whether `name` may be what the column of labels is called.
    pub(super) fn is_label(&self, name: &str) -> bool {
        match self.label {
            Some(label) if self.are_named => self.names[label].eq_ignore_ascii_case(name),
            Some(_) => true,
            // A CSV has them all in `names`; each row of JSON may have another one.
            None => self.names.is_empty() && self.label_names.iter().any(|it| it == name),
        }
    }

    /// What the cells of a row of CSV hold.
    pub(super) fn row_of_cells<'a>(
        &self,
        cells: Vec<Cow<'a, [u8]>>,
        start: usize,
    ) -> Result<Row<'a>> {
        if cells.len() != self.names.len() {
            let (found, expected) = (cells.len(), self.names.len());
            let message = format!("a row of {found} cells, where {expected} were expected");
            return Err(corrupt(message, start));
        }
        let mut row = Row { path: Cow::Borrowed(b""), label: None, others: Vec::new() };
        for (at, (cell, name)) in cells.into_iter().zip(&self.names).enumerate() {
            if at == self.path {
                row.path = cell;
                continue;
            }
            let text = std::str::from_utf8(&cell).map_err(|error| {
                corrupt(format!("the cell {name:?} of a row is not UTF-8"), start)
                    .with_source(error)
            })?;
            match Some(at) == self.label {
                true => row.label = Some(text.to_owned()).filter(|text| !text.trim().is_empty()),
                false => row.others.push((Arc::clone(name), FieldValue::Text(text.into()))),
            }
        }
        Ok(row)
    }

    /// What the members of an object of JSON hold.
    pub(super) fn row_of_members(
        &self,
        mut members: Map<String, Value>,
        start: usize,
    ) -> Result<Row<'static>> {
        let mut take =
            |names: &[String]| names.iter().find_map(|name| members.remove(name.as_str()));
        let path = match take(&self.path_names) {
            Some(Value::String(path)) => path,
            Some(_) => return Err(corrupt("the path of a row is no text", start)),
            None => {
                let wanted = self.path_names.join(", ");
                let there: Vec<_> = members.keys().map(String::as_str).take(MOST_TOLD).collect();
                let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
                let message = format!(
                    "a row without a path: its members are {there}, and one of these was expected: {wanted}"
                );
                return Err(corrupt(message, start));
            }
        };
        let label = match take(&self.label_names) {
            None | Some(Value::Null) => None,
            Some(Value::String(name)) => Some(name).filter(|name| !name.trim().is_empty()),
            Some(Value::Number(number)) => {
                let whole = number.as_i64().or_else(|| whole(number.as_f64()?));
                let whole = whole.ok_or_else(|| no_label(&number.to_string(), start))?;
                Some(whole.to_string())
            }
            Some(other) => return Err(no_label(&other.to_string(), start)),
        };
        let mut others = Vec::with_capacity(members.len());
        for (name, value) in members {
            if name == FILE_FIELD {
                return Err(corrupt("a second field of a row would be named \"file\"", start));
            }
            others.push((name.into(), field_of(value)));
        }
        others.sort_by(|(a, _): &(Arc<str>, FieldValue), (b, _)| a.cmp(b));
        Ok(Row { path: Cow::Owned(path.into_bytes()), label, others })
    }
}

/// Whether the first row is one of names, and not of a file: it has neither an extension nor a folder, and
/// the file of the next row has an extension.
fn looks_like_header(text: &[u8], first: &CsvRow<'_>) -> bool {
    let is_name = |cell: &&Cow<'_, [u8]>| !cell.iter().any(|byte| b"./\\:".contains(byte));
    let has_extension = |cell: &Cow<'_, [u8]>| cell.iter().skip(1).any(|&byte| byte == b'.');
    let second = csv_row(text, first.end).ok();
    first.cells.first().filter(is_name).is_some()
        && second.and_then(|row| row.cells.first().map(has_extension)) == Some(true)
}

/// A value of JSON as a field.
fn field_of(value: Value) -> FieldValue {
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

fn no_label(value: &str, start: usize) -> Error {
    let value = shown(value);
    corrupt(format!("the label of a row is no whole number and no text, but {value}"), start)
}
