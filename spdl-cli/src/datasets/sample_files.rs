//! Reads a sample as one file per field, for `spdl pack`, `cat`, `verify` and `stat`.
//!
//! Members of tar archives, and files, are returned unchanged. Values of table rows become files,
//! depending on their type: a text `caption` becomes `caption.txt`, a number or JSON `NAME.json`, an
//! array or other list of numbers `NAME.npy`.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use spdl_core::{AsyncContext, AsyncStage, Error, ErrorKind, Result};
use spdl_io::archive::NpyArray;
use spdl_io::datasets::{DatasetKind, OpenedDataset};
use spdl_io::records::{Encoding, StoredField};
use spdl_io::{FetchLabeled, FetchRecord, Fetcher, FieldValue, Key, StoredRecord};
use spdl_media::CodecRegistry;

use super::extensions::MediaType;
use super::member_name::extension_of;

/// The fields of a sample.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) files: Vec<SampleFile>,
    /// The class number, from a field or from the data set; negative if the sample has no class.
    pub(crate) label: i64,
}

impl Sample {
    /// The total size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.files.iter().map(|file| file.data.len()).sum()
    }
}

/// A field of a sample.
#[derive(Debug)]
pub(crate) struct SampleFile {
    /// The name in the data set.
    pub(crate) field: Arc<str>,
    /// The name as a member of a shard.
    pub(crate) name: String,
    /// The offset of the data in the file or object, in bytes, if known.
    pub(crate) offset: Option<u64>,
    pub(crate) data: Bytes,
    pub(crate) role: Role,
}

/// The role of a field: media file, label or other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The image of the sample, or a field with audio or video.
    Media(MediaType),
    Label,
    Other,
}

/// Whether each sample of a data set of this kind is a separate file.
pub(crate) fn are_files(kind: DatasetKind) -> bool {
    matches!(kind, DatasetKind::ImageFolder | DatasetKind::FileList)
}

/// The type of the audio or video in a field; `None` for other fields.
///
/// In folders and lists of files, the extension of the file decides, in archives the name of the
/// field. `is_main` states whether the field is the default image field of the data set.
pub(crate) fn timed_media(
    kind: DatasetKind,
    sample: &Key,
    field: &str,
    is_main: bool,
) -> Option<MediaType> {
    let media = match kind {
        kind if are_files(kind) && (is_main || ["audio", "video"].contains(&field)) => {
            MediaType::of_name(extension_of(sample)?.as_bytes())
        }
        DatasetKind::TarShards | DatasetKind::ZipShards => MediaType::of_name(field.as_bytes()),
        _ => None,
    };
    media.filter(|media| media.is_timed())
}

/// Reads samples of a data set, and converts their fields to files.
pub(crate) struct SampleReader {
    fetcher: Arc<dyn Fetcher>,
    max_bytes: u64,
    kind: DatasetKind,
    labeled: FetchLabeled,
    /// Whether the label field was given on the command line.
    has_label_field: bool,
    /// Whether image and label are read in addition to `others`.
    reads_named: bool,
    /// Names of the fields to read, in addition to image and label if `reads_named` is true; `None`
    /// for all fields.
    others: Option<Vec<String>>,
    formats: CodecRegistry,
}

impl SampleReader {
    pub(crate) fn new(set: &OpenedDataset) -> Self {
        SampleReader {
            fetcher: Arc::clone(&set.fetcher),
            max_bytes: set.max_file_bytes(),
            kind: set.kind,
            labeled: set.fetch_labeled(),
            has_label_field: false,
            reads_named: true,
            others: None,
            formats: CodecRegistry::with_defaults(),
        }
    }

    /// Sets the image field and the label field, if given.
    pub(crate) fn with_names(mut self, image: Option<&str>, label: Option<&str>) -> Self {
        if let Some(image) = image {
            self.labeled = self.labeled.with_value_fields([image]);
        }
        if let Some(label) = label {
            self.labeled = self.labeled.with_label_fields([label]);
            self.has_label_field = true;
        }
        self
    }

    /// Reads only these fields besides image and label; `None` for all fields.
    pub(crate) fn with_others(mut self, others: Option<&[String]>) -> Self {
        self.others = others.map(<[_]>::to_vec);
        self
    }

    /// Reads only this field.
    pub(crate) fn with_only(mut self, field: &str) -> Self {
        self.others = Some(vec![field.to_owned()]);
        self.reads_named = false;
        self
    }

    /// Reads a sample.
    ///
    /// # Errors
    /// Errors of [`FetchRecord`]; `NotFound` if the given label field is missing; `InvalidArgument`
    /// if its value is neither an integer nor a class, or if the image field does not hold bytes;
    /// `Unsupported` if a value cannot be stored as a file.
    pub(crate) async fn read(&self, record: StoredRecord, cx: &AsyncContext) -> Result<Sample> {
        let (image, label) = self.labeled.fields_of(&record);
        if self.has_label_field && label.is_none() {
            let there = record.names().collect::<Vec<_>>().join(", ");
            let message = format!("the label field is missing; fields of the sample: {there}");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        let mut fetch = FetchRecord::new(Arc::clone(&self.fetcher)).with_max_bytes(self.max_bytes);
        if let Some(others) = &self.others {
            let (kind, key) = (self.kind, record.key.clone());
            let is_timed =
                |name: &str| image.is_none() && timed_media(kind, &key, name, false).is_some();
            let is_read = |name: &&str| {
                let is_named = [&image, &label].iter().any(|it| it.as_deref() == Some(*name))
                    || is_timed(name);
                (is_named && self.reads_named) || others.iter().any(|other| other == name)
            };
            fetch = fetch.with_fields(record.names().filter(is_read).map(Arc::<str>::from));
        }
        let offsets: HashMap<Arc<str>, u64> = record.fields.iter().filter_map(offset_of).collect();
        let mut sample = Sample { files: Vec::new(), label: record.label };
        let read = fetch.process(as_stored(record), cx).await?;
        for (field, value) in read.fields {
            let is = |name: &Option<Arc<str>>| name.as_ref() == Some(&field);
            let (is_image, is_label) = (is(&image), is(&label));
            let in_field = |error: Error| {
                let key = [read.key.as_bytes(), b".", field.as_bytes()].concat();
                error.with_key(Key::from_bytes(&key).display_name())
            };
            // If only one field is read, it is returned unchanged, even if it holds the name of a
            // class.
            let is_name = !self.reads_named && matches!(value, FieldValue::Text(_));
            let number = self.labeled.label_of(&value).filter(|_| is_label && !is_name);
            if is_label && self.has_label_field && number.is_none() {
                let message = format!("expected an integer label, found {}", value.kind());
                return Err(in_field(Error::new(ErrorKind::InvalidArgument, message)));
            }
            sample.label = number.unwrap_or(sample.label);
            let timed = timed_media(self.kind, &read.key, &field, is_image)
                .filter(|_| matches!(value, FieldValue::Bytes(_)));
            let role = match (timed, number) {
                (Some(media), None) => Role::Media(media),
                _ if is_image => Role::Media(MediaType::Image),
                (_, Some(_)) => Role::Label,
                (None, None) => Role::Other,
            };
            let mut files = match (role, number) {
                // Members of archives stay unchanged.
                (Role::Label, Some(number)) if !self.keeps_names() || self.has_label_field => {
                    vec![("cls".to_owned(), number.to_string().into())]
                }
                (Role::Media(MediaType::Image), _) if !matches!(value, FieldValue::Bytes(_)) => {
                    let message = format!("expected an image, found {}", value.kind());
                    return Err(in_field(Error::new(ErrorKind::InvalidArgument, message)));
                }
                _ => self.files(&field, value).map_err(in_field)?,
            };
            if let (Role::Media(media), Some(extension)) = (role, extension_of(&read.key))
                && media.is_timed()
                && are_files(self.kind)
            {
                files.iter_mut().for_each(|(name, _)| *name = extension.to_lowercase());
            }
            sample.files.extend(files.into_iter().map(|(name, data)| SampleFile {
                field: Arc::clone(&field),
                name,
                offset: offsets.get(&field).copied(),
                data,
                role,
            }));
        }
        Ok(sample)
    }

    /// Whether fields are members of archives. The names of members contain the file type.
    fn keeps_names(&self) -> bool {
        self.kind == DatasetKind::TarShards
    }

    /// Converts a value to files: no file for a null, several files for a list that JSON cannot
    /// represent, such as a list of bytes, and one file for any other value.
    fn files(&self, field: &str, value: FieldValue) -> Result<Vec<(String, Bytes)>> {
        if self.keeps_names() {
            let FieldValue::Bytes(bytes) = value else {
                return Err(Error::new(
                    ErrorKind::Internal,
                    "the data of an archive member is not bytes",
                ));
            };
            return Ok(vec![(field.to_owned(), bytes)]);
        }
        let name = member_name(field);
        match value {
            FieldValue::Null => return Ok(Vec::new()),
            FieldValue::List(values) if values.iter().any(|value| as_json(value).is_none()) => {
                let mut files = Vec::new();
                for (number, value) in values.into_iter().enumerate() {
                    files.extend(self.files(&format!("{name}.{number}"), value)?);
                }
                return Ok(files);
            }
            _ => {}
        }
        let (extension, bytes) = self.file(value)?;
        let has_extension = extension.is_empty() || name.rsplit('.').next() == Some(extension);
        Ok(vec![(if has_extension { name } else { format!("{name}.{extension}") }, bytes)])
    }

    /// The file name extension for a value, and its bytes.
    fn file(&self, value: FieldValue) -> Result<(&str, Bytes)> {
        Ok(match value {
            FieldValue::Bytes(bytes) => {
                let format = self.formats.find(&bytes).map_or("", |format| format.name());
                (extension(format), bytes)
            }
            FieldValue::Text(text) => ("txt", Bytes::from(text.as_bytes().to_vec())),
            FieldValue::Array(array) => ("npy", npy_of(&array)),
            FieldValue::Integers(numbers) => {
                let data: Vec<u8> = numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
                ("npy", npy("<i8", false, &[numbers.len()], &data))
            }
            FieldValue::Floats(numbers) => {
                let data: Vec<u8> = numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
                ("npy", npy("<f8", false, &[numbers.len()], &data))
            }
            // JSON has no infinity and no NaN.
            FieldValue::Float(number) if !number.is_finite() => {
                ("npy", npy("<f8", false, &[], &number.to_le_bytes()))
            }
            other => match as_json(&other) {
                Some(value) => ("json", value.to_string().into()),
                None => {
                    let message = format!("cannot store a value of type {}", other.kind());
                    return Err(Error::new(ErrorKind::Unsupported, message));
                }
            },
        })
    }
}

/// The usual file name extension of an image format.
pub(crate) fn extension(format: &str) -> &str {
    match format {
        "jpeg" => "jpg",
        "tiff" => "tif",
        other => other,
    }
}

/// Sets the encoding of all stored fields to raw bytes.
fn as_stored(mut record: StoredRecord) -> StoredRecord {
    for (_, field) in &mut record.fields {
        if let StoredField::At(_, encoding) = field {
            *encoding = Encoding::Bytes;
        }
    }
    record
}

fn offset_of((name, field): &(Arc<str>, StoredField)) -> Option<(Arc<str>, u64)> {
    match field {
        StoredField::At(extent, _) => Some((Arc::clone(name), extent.range.as_ref()?.start)),
        _ => None,
    }
}

/// The name of a field as part of a file name: in lower case, as WebDataset readers expect, and
/// without slashes.
fn member_name(field: &str) -> String {
    let name = field.to_lowercase().replace(['/', '\0'], "_");
    if name.is_empty() { "field".to_owned() } else { name }
}

/// A value as JSON; `None` if JSON cannot represent it.
fn as_json(value: &FieldValue) -> Option<serde_json::Value> {
    Some(match value {
        FieldValue::Null => serde_json::Value::Null,
        FieldValue::Bool(value) => (*value).into(),
        FieldValue::Integer(number) => (*number).into(),
        FieldValue::Float(number) => serde_json::Number::from_f64(*number)?.into(),
        FieldValue::Text(text) => (&**text).into(),
        FieldValue::Json(value) => value.clone(),
        FieldValue::List(values) => {
            serde_json::Value::Array(values.iter().map(as_json).collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

/// An array in the NPY format.
fn npy_of(array: &NpyArray) -> Bytes {
    // NumPy's name of `int32` is `i4`.
    let letter = array.element().to_string().chars().next().unwrap_or_default();
    let size = array.element().size();
    let order = match size {
        1 => '|',
        _ if cfg!(target_endian = "big") => '>',
        _ => '<',
    };
    npy(&format!("{order}{letter}{size}"), array.is_fortran_order(), array.shape(), array.data())
}

/// An NPY file of version 1.0; the header is padded so that the data begin at a multiple of 64 bytes.
fn npy(element: &str, is_fortran_order: bool, shape: &[usize], data: &[u8]) -> Bytes {
    let extents: String = shape.iter().map(|extent| format!("{extent}, ")).collect();
    let order = if is_fortran_order { "True" } else { "False" };
    let header =
        format!("{{'descr': '{element}', 'fortran_order': {order}, 'shape': ({extents}), }}");
    let len = (10 + header.len() + 1).next_multiple_of(64) - 10;
    // With 64 dimensions, the maximum of NumPy, a header has less than 2 KiB, so its length fits `u16`.
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend_from_slice(&(len as u16).to_le_bytes());
    file.extend_from_slice(format!("{header:<width$}\n", width = len - 1).as_bytes());
    file.extend_from_slice(data);
    file.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use spdl_io::MemoryFetcher;
    use spdl_io::archive::NpyType;

    fn reader(kind: DatasetKind) -> SampleReader {
        let fetcher: Arc<dyn Fetcher> = Arc::new(MemoryFetcher::new());
        SampleReader {
            max_bytes: u64::MAX,
            labeled: FetchLabeled::new(Arc::clone(&fetcher)),
            fetcher,
            kind,
            has_label_field: false,
            reads_named: true,
            others: None,
            formats: CodecRegistry::with_defaults(),
        }
    }

    fn names(kind: DatasetKind, field: &str, value: FieldValue) -> Vec<(String, Bytes)> {
        reader(kind).files(field, value).unwrap()
    }

    #[test]
    fn row_values_become_files_by_type() {
        let rows = DatasetKind::Parquet;
        for (field, value, name, data) in [
            ("caption", FieldValue::Text("a cat".into()), "caption.txt", "a cat"),
            ("Image/Height", FieldValue::Integer(7), "image_height.json", "7"),
            ("score", FieldValue::Float(0.5), "score.json", "0.5"),
            ("ok", FieldValue::Bool(true), "ok.json", "true"),
            ("meta.json", FieldValue::Json(serde_json::json!({"a": 1})), "meta.json", "{\"a\":1}"),
            ("blob", FieldValue::Bytes("x".into()), "blob", "x"),
            ("", FieldValue::Bytes("x".into()), "field", "x"),
        ] {
            assert_eq!(
                names(rows, field, value),
                [(name.to_owned(), Bytes::from(data))],
                "{field}"
            );
        }
        assert!(names(rows, "nothing", FieldValue::Null).is_empty());
        let png = Bytes::from_static(b"\x89PNG\r\n\x1a\n and so on");
        assert_eq!(names(rows, "mask", FieldValue::Bytes(png.clone()))[0].0, "mask.png");
        // Lists of bytes become one file per value.
        let list = FieldValue::List(vec![FieldValue::Bytes("a".into()), FieldValue::Bytes(png)]);
        let files: Vec<_> = names(rows, "all", list).into_iter().map(|(name, _)| name).collect();
        assert_eq!(files, ["all.0", "all.1.png"]);
        let texts = FieldValue::List(vec![FieldValue::Text("a".into())]);
        assert_eq!(names(rows, "tags", texts), [("tags.json".to_owned(), Bytes::from("[\"a\"]"))]);
    }

    #[test]
    fn members_of_archives_keep_their_names_and_bytes() {
        for field in ["txt", "seg.png", "bin", "pkl"] {
            let value = FieldValue::Bytes("7".into());
            let found = names(DatasetKind::TarShards, field, value);
            assert_eq!(found, [(field.to_owned(), Bytes::from("7"))]);
        }
    }

    #[test]
    fn lists_and_non_finite_numbers_become_npy_files() {
        for (value, element, shape, data) in [
            (FieldValue::Integers(vec![1, -2]), NpyType::Int(8), &[2][..], vec![1, -2]),
            (
                FieldValue::Floats(vec![f64::INFINITY]),
                NpyType::Float(8),
                &[1],
                vec![f64::INFINITY.to_bits() as i64],
            ),
            (FieldValue::Float(f64::NAN), NpyType::Float(8), &[], vec![f64::NAN.to_bits() as i64]),
        ] {
            let (name, file) = names(DatasetKind::TfRecord, "x", value).remove(0);
            assert_eq!((name.as_str(), file.len() % 64), ("x.npy", data.len() * 8 % 64));
            let array = NpyArray::from_bytes(file.clone()).unwrap();
            assert_eq!((array.element(), array.shape()), (element, shape));
            let expected: Vec<u8> = data.iter().flat_map(|it| it.to_le_bytes()).collect();
            assert_eq!(array.data()[..], expected[..]);
            // An array that is read from an NPY file is written as the same file.
            let again = names(DatasetKind::Mds, "x", FieldValue::Array(array));
            assert_eq!(again, [(name, file)]);
        }
    }
}
