//! The columns of an Arrow table as fields of a sample.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_schema::{DataType, Fields, Schema};

/// A column of a table, or a member of a struct.
#[derive(Debug)]
pub(super) struct ArrowColumn {
    /// The name of the field.
    pub(super) name: Arc<str>,
    /// The index of the column in the table, followed by the indices of nested members.
    pub(super) path: Vec<usize>,
    pub(super) kind: ArrowColumnKind,
    pub(super) data_type: DataType,
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrowColumnKind {
    /// Values that a field can hold.
    Values,
    /// Files, such as images, of Hugging Face: structs of `bytes` and `path`, with the indices of both.
    Files { bytes: usize, path: usize },
    /// A type that no field can hold, as a plural noun.
    Unsupported(&'static str),
}

impl ArrowColumn {
    /// What the column holds, as a plural noun, if it can hold no labels.
    pub(super) fn no_labels(&self) -> Option<&'static str> {
        match value_type(&self.data_type) {
            DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => {
                Some("lists")
            }
            DataType::Null => Some("only nulls"),
            DataType::Boolean => Some("booleans"),
            DataType::Struct(_) => Some("structs"),
            _ => None,
        }
    }
}

/// The type of the values of a column: for a dictionary, that of its values.
pub(super) fn value_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => value_type(values),
        other => other,
    }
}

/// The columns of a schema, and the members of their structs, with names joined by dots.
pub(super) fn columns(schema: &Schema) -> Vec<ArrowColumn> {
    let mut columns = Vec::new();
    add_columns(schema.fields(), "", &[], &mut columns);
    // If several columns have the same name, the first one is used.
    let mut seen = HashSet::new();
    columns.retain(|column| seen.insert(Arc::clone(&column.name)));
    columns
}

fn add_columns(fields: &Fields, prefix: &str, path: &[usize], columns: &mut Vec<ArrowColumn>) {
    for (index, field) in fields.iter().enumerate() {
        let name = format!("{prefix}{}", field.name());
        let path = [path, &[index]].concat();
        let data_type = field.data_type();
        let members = match data_type {
            DataType::Struct(members) => members,
            _ => &Fields::empty(),
        };
        let kind = match (files_of(members), unsupported(data_type, false)) {
            (Some(files), _) => files,
            (None, Some(why)) => ArrowColumnKind::Unsupported(why),
            (None, None) => ArrowColumnKind::Values,
        };
        columns.push(ArrowColumn {
            name: name.as_str().into(),
            path: path.clone(),
            kind,
            data_type: data_type.clone(),
        });
        add_columns(members, &format!("{name}."), &path, columns);
        if let ArrowColumnKind::Files { .. } = kind {
            // The column itself is the field of the bytes.
            let bytes = format!("{name}.bytes");
            columns.retain(|column| *column.name != *bytes);
        }
    }
}

/// The indices of `bytes` and `path` if a struct has only these members.
fn files_of(members: &Fields) -> Option<ArrowColumnKind> {
    let (bytes, of_bytes) = members.find("bytes")?;
    let (path, of_path) = members.find("path")?;
    let is_file = members.len() == 2
        && matches!(
            of_bytes.data_type(),
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView
        )
        && matches!(of_path.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    is_file.then_some(ArrowColumnKind::Files { bytes, path })
}

/// Why a field cannot hold values of a type, as a plural noun and a verb. `in_struct`: the values become parts
/// of JSON.
fn unsupported(data_type: &DataType, in_struct: bool) -> Option<&'static str> {
    match data_type {
        DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => Some("decimals are"),
        DataType::Interval(_) => Some("intervals are"),
        DataType::Union(..) => Some("unions are"),
        DataType::Map(..) => Some("maps are"),
        DataType::RunEndEncoded(..) => Some("run-end encoded columns are"),
        DataType::ListView(_) | DataType::LargeListView(_) => Some("list views are"),
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_)
            if in_struct =>
        {
            Some("binary members of structs are")
        }
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            unsupported(item.data_type(), in_struct)
        }
        DataType::Struct(members) => {
            members.iter().find_map(|member| unsupported(member.data_type(), true))
        }
        DataType::Dictionary(_, values) => unsupported(values, in_struct),
        _ => None,
    }
}
