//! The columns of a Parquet file as fields of a sample.

use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as PhysicalType};
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor, Type};

/// A column of single values: a leaf of the schema.
#[derive(Debug, PartialEq)]
pub(super) struct Column {
    /// The field's name.
    pub(super) name: Arc<str>,
    /// The place of the column in each row group.
    pub(super) leaf: usize,
    pub(super) kind: Kind,
    pub(super) descriptor: ColumnDescPtr,
    /// For a list, the definition level from which on it has items.
    pub(super) item_level: Option<i16>,
}

/// What the values of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bool,
    Integer,
    /// Of no more than 32 bits.
    SmallUnsigned,
    Unsigned,
    Float,
    Half,
    Text,
    Json,
    Bytes,
    /// Lists of lists, and what no field can hold; with a reason.
    Unsupported(&'static str),
}

/// The columns by the names of their fields.
///
/// The names of groups and their members are joined by dots. Lists add none, and so an image as Hugging
/// Face writes it, a group of `bytes` and `path`, is a field of the group's name, and one with `.path`.
pub(super) fn columns(schema: &SchemaDescriptor) -> Vec<Column> {
    let mut walk = Walk { schema, leaf: 0, columns: Vec::new() };
    for field in schema.root_schema().get_fields() {
        walk.node(field, Place::default(), Name::Own);
    }
    let mut columns = walk.columns;
    // Of two with one name the first one counts.
    let mut seen = std::collections::HashSet::new();
    columns.retain(|column| seen.insert(Arc::clone(&column.name)));
    columns
}

struct Walk<'a> {
    schema: &'a SchemaDescriptor,
    leaf: usize,
    columns: Vec<Column>,
}

#[derive(Clone, Default)]
struct Place {
    name: String,
    definition: i16,
    repetition: i16,
    item_level: Option<i16>,
}

#[derive(Clone, Copy)]
enum Name {
    /// A node adds its name.
    Own,
    /// It is the inside of a list, or the bytes of an image.
    None,
}

impl Walk<'_> {
    fn node(&mut self, node: &Type, mut place: Place, name: Name) {
        if let Name::Own = name {
            if !place.name.is_empty() {
                place.name.push('.');
            }
            place.name.push_str(node.name());
        }
        let info = node.get_basic_info();
        match if info.has_repetition() { info.repetition() } else { Repetition::REQUIRED } {
            Repetition::REQUIRED => {}
            Repetition::OPTIONAL => place.definition += 1,
            Repetition::REPEATED => {
                place.definition += 1;
                place.repetition += 1;
                place.item_level = Some(place.definition);
            }
        }
        if node.is_primitive() {
            return self.push(place);
        }
        let is_list = matches!(info.logical_type_ref(), Some(LogicalType::List))
            || info.converted_type() == ConvertedType::LIST;
        let fields = node.get_fields();
        match fields {
            // The repeated node of a list, and inside it the item, where that is a node of its own.
            [repeated] if is_list => {
                if repeated.is_group() && is_wrapper(repeated, node.name()) {
                    place.definition += 1;
                    place.repetition += 1;
                    place.item_level = Some(place.definition);
                    let [item] = repeated.get_fields() else { return };
                    self.node(item, place, Name::None);
                } else {
                    self.node(repeated, place, Name::None);
                }
            }
            _ => {
                let mut names: Vec<_> = fields.iter().map(|field| field.name()).collect();
                names.sort_unstable();
                let is_image = names == ["bytes", "path"];
                for field in fields {
                    let is_bytes = is_image && field.name() == "bytes" && field.is_primitive();
                    let name = if is_bytes { Name::None } else { Name::Own };
                    self.node(field, place.clone(), name);
                }
            }
        }
    }

    fn push(&mut self, place: Place) {
        let leaf = self.leaf;
        self.leaf += 1;
        let Some(descriptor) = self.schema.columns().get(leaf) else { return };
        let is_as_expected = descriptor.max_def_level() == place.definition
            && descriptor.max_rep_level() == place.repetition;
        let kind = match place.repetition {
            _ if !is_as_expected => Kind::Unsupported("columns nested in this way"),
            0 | 1 => kind_of(descriptor),
            _ => Kind::Unsupported("lists of lists"),
        };
        self.columns.push(Column {
            name: place.name.into(),
            leaf,
            kind,
            descriptor: Arc::clone(descriptor),
            item_level: place.item_level,
        });
    }
}

/// Whether the repeated group in a list has the item in it, and is not the item itself: by the rules
/// for files of old writers in Parquet's description of lists.
fn is_wrapper(repeated: &Type, list: &str) -> bool {
    let name = repeated.name();
    repeated.get_fields().len() == 1 && name != "array" && name != format!("{list}_tuple")
}

fn kind_of(column: &ColumnDescPtr) -> Kind {
    let (logical, converted) = (column.logical_type_ref(), column.converted_type());
    if matches!(logical, Some(LogicalType::Decimal(_))) || converted == ConvertedType::DECIMAL {
        return Kind::Unsupported("decimal numbers");
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
        PhysicalType::BOOLEAN => Kind::Bool,
        PhysicalType::INT32 if is_unsigned => Kind::SmallUnsigned,
        PhysicalType::INT64 if is_unsigned => Kind::Unsigned,
        PhysicalType::INT32 | PhysicalType::INT64 => Kind::Integer,
        PhysicalType::FLOAT | PhysicalType::DOUBLE => Kind::Float,
        PhysicalType::INT96 => Kind::Unsupported("times of 96 bits"),
        PhysicalType::FIXED_LEN_BYTE_ARRAY => match logical {
            Some(LogicalType::Float16) => Kind::Half,
            _ => Kind::Bytes,
        },
        PhysicalType::BYTE_ARRAY => match (logical, converted) {
            (Some(LogicalType::Json), _) | (_, ConvertedType::JSON) => Kind::Json,
            (Some(LogicalType::String | LogicalType::Enum), _)
            | (_, ConvertedType::UTF8 | ConvertedType::ENUM) => Kind::Text,
            _ => Kind::Bytes,
        },
    }
}
