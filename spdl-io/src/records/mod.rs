//! Samples with several fields: where each field is stored, its value, and the pipeline stages that
//! read the fields.
//!
//! | file | what it holds |
//! |---|---|
//! | `value` | [`FieldValue`] and [`Encoding`], the type of one field and its stored encoding |
//! | `stored` | [`StoredRecord`]: a sample before it is read; [`Extent`], [`PackedRows`] |
//! | `record` | [`Record`]: a sample after it is read; [`FieldRequest`] |
//! | `fetch_record` | [`FetchRecord`]: the stage that reads all or some fields |
//! | `fetch_fields` | [`FetchFields`]: the stage that reads chosen fields under new names |
//! | `fetch_labeled` | [`FetchLabeled`]: the stage that reads one field and a class label |
//! | `parts` | the stages of a source that consists of several data sets |
//! | `read_fields` | range requests for the fields of one sample |
//! | `partial_file` | [`PartialFile`]: a file of which only some parts are in memory |
//! | `select_parts` | [`SelectParts`]: which parts of a file a sample needs |
//! | `read_parts` | reads the selected parts |
//! | `index_cache` | [`IndexCache`]: headers and tables of files, for other samples of them |
//! | `field_sizes` | the sizes of fields, compared with the limit of a request |
//! | `label_rule` | which field holds the label of a sample |
//! | `classes`, `label_text` | labels as text or numbers, and the classes that they name |
//! | `remedy` | [`Remedy`]: what a caller can specify to avoid an error |
//! | `extensions` | file name extensions of images, audio and video |
//! | `footprint` | memory use of records |
//!
//! Imports: `fetch`, `files`, `layers` (cache), `archive` (NumPy arrays).

mod classes;
mod extensions;
mod fetch_fields;
mod fetch_labeled;
mod fetch_record;
pub(crate) mod field_sizes;
mod footprint;
mod index_cache;
mod label_rule;
pub(crate) mod label_text;
mod partial_file;
mod parts;
mod read_fields;
mod read_parts;
mod record;
mod remedy;
mod select_parts;
mod stored;
mod value;

pub use self::extensions::{
    ARRAY_EXTENSIONS, AUDIO_EXTENSIONS, IMAGE_EXTENSIONS, VIDEO_EXTENSIONS,
};
pub use self::fetch_fields::{FetchFields, FieldChoice};
pub use self::fetch_labeled::FetchLabeled;
pub use self::fetch_record::FetchRecord;
pub use self::index_cache::IndexCache;
pub(crate) use self::label_rule::LABEL_FIELDS;
pub use self::partial_file::PartialFile;
pub(crate) use self::read_parts::WHOLE_BYTES;
pub(crate) use self::record::no_such_field;
pub use self::record::{FieldRequest, Record};
pub use self::remedy::Remedy;
pub use self::select_parts::{PartSelection, SelectParts};
pub use self::stored::{Extent, PackedRows, StoredField, StoredRecord, StoredRow};
pub(crate) use self::value::abbreviated;
pub use self::value::{Encoding, FieldValue};
