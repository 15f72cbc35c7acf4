//! The columns of a Parquet file as fields of a sample.

use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as PhysicalType};
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor, Type};

/// A leaf column of the schema.
#[derive(Debug, PartialEq)]
pub(super) struct ParquetColumn {
    /// The name of the field.
    pub(super) name: Arc<str>,
    /// The index of the column in each row group.
    pub(super) leaf: usize,
    pub(super) kind: ColumnKind,
    pub(super) descriptor: ColumnDescPtr,
    /// For a list, the minimum definition level of an item.
    pub(super) item_level: Option<i16>,
}

impl ParquetColumn {
    /// What the column holds, as a plural noun, if it can hold no labels.
    pub(super) fn no_labels(&self) -> Option<&'static str> {
        match (self.kind, self.descriptor.logical_type_ref()) {
            _ if self.item_level.is_some() => Some("lists"),
            (_, Some(LogicalType::Unknown)) => Some("only nulls"),
            (ColumnKind::Bool, _) => Some("booleans"),
            _ => None,
        }
    }
}

/// The value type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnKind {
    Bool,
    Integer,
    /// Unsigned, with at most 32 bits.
    SmallUnsigned,
    Unsigned,
    Float,
    Half,
    Text,
    Json,
    Bytes,
    /// A type that no field can hold, as a plural noun.
    Unsupported(&'static str),
}

/// The columns of a schema with the names of their fields.
///
/// Names of groups and members are joined by dots. Lists add no name. A Hugging Face image is a group of
/// `bytes` and `path`. The field of `bytes` has the name of the group; `path` adds the suffix `.path`.
pub(super) fn columns(schema: &SchemaDescriptor) -> Vec<ParquetColumn> {
    let mut columns = SchemaWalk::whole(schema).columns;
    // If several columns have the same name, the first one is used.
    let mut seen = std::collections::HashSet::new();
    columns.retain(|column| seen.insert(Arc::clone(&column.name)));
    columns
}

/// The groups of a schema that are no field, with the names of their types.
pub(super) fn structs(schema: &SchemaDescriptor) -> Vec<(Arc<str>, &'static str)> {
    SchemaWalk::whole(schema).structs
}

struct SchemaWalk<'a> {
    schema: &'a SchemaDescriptor,
    leaf: usize,
    columns: Vec<ParquetColumn>,
    structs: Vec<(Arc<str>, &'static str)>,
}

#[derive(Clone, Default)]
struct SchemaPath {
    name: String,
    definition: i16,
    repetition: i16,
    item_level: Option<i16>,
}

#[derive(Clone, Copy)]
enum NameUse {
    /// The node adds its name to the path.
    Own,
    /// The item of a list, or the bytes of an image.
    None,
}

impl<'a> SchemaWalk<'a> {
    fn whole(schema: &'a SchemaDescriptor) -> Self {
        let mut walk = SchemaWalk { schema, leaf: 0, columns: Vec::new(), structs: Vec::new() };
        for field in schema.root_schema().get_fields() {
            walk.node(field, SchemaPath::default(), NameUse::Own);
        }
        walk
    }

    fn node(&mut self, node: &Type, mut path: SchemaPath, name: NameUse) {
        if let NameUse::Own = name {
            if !path.name.is_empty() {
                path.name.push('.');
            }
            path.name.push_str(node.name());
        }
        let info = node.get_basic_info();
        match if info.has_repetition() { info.repetition() } else { Repetition::REQUIRED } {
            Repetition::REQUIRED => {}
            Repetition::OPTIONAL => path.definition += 1,
            Repetition::REPEATED => {
                path.definition += 1;
                path.repetition += 1;
                path.item_level = Some(path.definition);
            }
        }
        if node.is_primitive() {
            return self.push(path);
        }
        let is_list = matches!(info.logical_type_ref(), Some(LogicalType::List))
            || info.converted_type() == ConvertedType::LIST;
        let fields = node.get_fields();
        match fields {
            // The repeated node of a list, which may be a separate node around the item.
            [repeated] if is_list => {
                if repeated.is_group() && is_wrapper(repeated, node.name()) {
                    path.definition += 1;
                    path.repetition += 1;
                    path.item_level = Some(path.definition);
                    let [item] = repeated.get_fields() else { return };
                    self.node(item, path, NameUse::None);
                } else {
                    self.node(repeated, path, NameUse::None);
                }
            }
            _ => {
                let mut names: Vec<_> = fields.iter().map(|field| field.name()).collect();
                names.sort_unstable();
                let is_image = names == ["bytes", "path"];
                if !is_image {
                    let is_map = matches!(info.logical_type_ref(), Some(LogicalType::Map))
                        || matches!(
                            info.converted_type(),
                            ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE
                        );
                    let name = if is_map { "map" } else { "struct" };
                    self.structs.push((path.name.as_str().into(), name));
                }
                for field in fields {
                    let is_bytes = is_image && field.name() == "bytes" && field.is_primitive();
                    let name = if is_bytes { NameUse::None } else { NameUse::Own };
                    self.node(field, path.clone(), name);
                }
            }
        }
    }

    fn push(&mut self, path: SchemaPath) {
        let leaf = self.leaf;
        self.leaf += 1;
        let Some(descriptor) = self.schema.columns().get(leaf) else { return };
        let is_as_expected = descriptor.max_def_level() == path.definition
            && descriptor.max_rep_level() == path.repetition;
        let kind = match path.repetition {
            _ if !is_as_expected => ColumnKind::Unsupported("columns nested in this way are"),
            0 | 1 => kind_of(descriptor),
            _ => ColumnKind::Unsupported("nested lists are"),
        };
        self.columns.push(ParquetColumn {
            name: path.name.into(),
            leaf,
            kind,
            descriptor: Arc::clone(descriptor),
            item_level: path.item_level,
        });
    }
}

/// Whether the repeated group of a list contains the item, instead of being the item: by the
/// backward-compatibility rules of the Parquet specification for lists.
fn is_wrapper(repeated: &Type, list: &str) -> bool {
    let name = repeated.name();
    repeated.get_fields().len() == 1 && name != "array" && name != format!("{list}_tuple")
}

fn kind_of(column: &ColumnDescPtr) -> ColumnKind {
    let (logical, converted) = (column.logical_type_ref(), column.converted_type());
    if matches!(logical, Some(LogicalType::Decimal(_))) || converted == ConvertedType::DECIMAL {
        return ColumnKind::Unsupported("decimals are");
    }
    let is_unsigned = match logical {
        Some(LogicalType::Integer(integer)) => !integer.is_signed,
        _ => matches!(
            converted,
            ConvertedType::UINT_8
                | ConvertedType::UINT_16
                | ConvertedType::UINT_32
                | ConvertedType::UINT_64
        ),
    };
    match column.physical_type() {
        PhysicalType::BOOLEAN => ColumnKind::Bool,
        PhysicalType::INT32 if is_unsigned => ColumnKind::SmallUnsigned,
        PhysicalType::INT64 if is_unsigned => ColumnKind::Unsigned,
        PhysicalType::INT32 | PhysicalType::INT64 => ColumnKind::Integer,
        PhysicalType::FLOAT | PhysicalType::DOUBLE => ColumnKind::Float,
        PhysicalType::INT96 => ColumnKind::Unsupported("96-bit timestamps are"),
        PhysicalType::FIXED_LEN_BYTE_ARRAY => match logical {
            Some(LogicalType::Float16) => ColumnKind::Half,
            _ => ColumnKind::Bytes,
        },
        PhysicalType::BYTE_ARRAY => match (logical, converted) {
            (Some(LogicalType::Json), _) | (_, ConvertedType::JSON) => ColumnKind::Json,
            (Some(LogicalType::String | LogicalType::Enum), _)
            | (_, ConvertedType::UTF8 | ConvertedType::ENUM) => ColumnKind::Text,
            _ => ColumnKind::Bytes,
        },
    }
}
