//! [`ArrayBytes`]: arrays in stored bytes.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};
use spdl_io::FieldValue;
use spdl_io::archive::{NpyArray, NpyType, NpzArchive};

/// The first byte of a `.npy` file, with which no UTF-8 text begins.
const NPY_START: u8 = 0x93;
/// The first bytes of a `.npy` file.
const NPY_SIGNATURE: &[u8] = b"\x93NUMPY";
/// The signatures of the first record of a zip archive with and without members.
const ZIP_STARTS: [&[u8]; 2] = [b"PK\x03\x04", b"PK\x05\x06"];
/// The maximum number of names in a message.
const MAX_LISTED: usize = 20;

/// How stored bytes hold an array: see [`SampleField::array_bytes`](super::SampleField::array_bytes).
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ArrayBytes {
    /// A `.npy` file, a `.npz` file with one array, or text with a number: detected by the first bytes.
    #[default]
    Detected,
    /// The array with this name in a `.npz` file.
    Member(Arc<str>),
    /// Elements of this type in C order and little-endian byte order, without a header.
    Raw(NpyType),
}

impl ArrayBytes {
    /// The array of a value; `None` if the value is no array, such as text or a list.
    ///
    /// # Errors
    /// The errors of [`NpyArray::from_bytes`], [`NpzArchive::new`] and [`NpzArchive::get`]; `Truncated` or
    /// `InvalidArgument` if raw elements do not fit `shape`, in which 0 stands for any length.
    pub(super) fn array<'a>(
        &self,
        value: &'a FieldValue,
        shape: &[usize],
    ) -> Result<Option<Cow<'a, NpyArray>>> {
        let bytes = match value {
            FieldValue::Array(array) => return Ok(Some(Cow::Borrowed(array))),
            FieldValue::Bytes(bytes) => bytes,
            _ => return Ok(None),
        };
        let array = match self {
            ArrayBytes::Detected => return Ok(detected(bytes)?.map(Cow::Owned)),
            ArrayBytes::Member(name) => member(bytes, Some(name))?,
            ArrayBytes::Raw(element) => raw(bytes, *element, shape)?,
        };
        Ok(Some(Cow::Owned(array)))
    }

    /// Checks that the length of raw elements determines the shape of a sample.
    pub(super) fn validate(&self, shape: &[usize]) -> Result<()> {
        let message = match self {
            ArrayBytes::Raw(NpyType::Complex(_)) => "raw elements are real numbers".to_owned(),
            ArrayBytes::Raw(_) if shape.iter().filter(|side| **side == 0).count() > 1 => {
                format!(
                    "raw elements have at most one dimension of any length, unlike the shape {shape:?}"
                )
            }
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }
}

/// The array of a `.npy` file, or of a `.npz` file with one array; `None` for other bytes.
pub(super) fn detected(bytes: &Bytes) -> Result<Option<NpyArray>> {
    if bytes.first() == Some(&NPY_START) {
        return NpyArray::from_bytes(bytes.clone()).map(Some);
    }
    match ZIP_STARTS.iter().any(|start| bytes.starts_with(start)) {
        true => member(bytes, None).map(Some),
        false => Ok(None),
    }
}

/// An array of a `.npz` file; without a name, the only one.
fn member(bytes: &Bytes, name: Option<&str>) -> Result<NpyArray> {
    let fault = |message: String| Error::new(ErrorKind::InvalidArgument, message);
    let archive = NpzArchive::new(bytes.clone()).map_err(|error| {
        let prefixed = Error::new(error.kind(), format!("not a .npz file: {}", error.message()));
        match error.offset() {
            Some(offset) => prefixed.with_offset(offset).with_cause_of(error),
            None => prefixed.with_cause_of(error),
        }
    })?;
    let names: Vec<&str> = archive.names().collect();
    let listed = || {
        let more = if names.len() > MAX_LISTED { ", ..." } else { "" };
        format!("{}{more}", names[..names.len().min(MAX_LISTED)].join(", "))
    };
    let name = match (name, &names[..]) {
        (Some(name), names) => {
            let name = name.strip_suffix(".npy").unwrap_or(name);
            if !names.contains(&name) {
                let message =
                    format!("no array {name:?} in the .npz file; the arrays are {}", listed());
                return Err(Error::new(ErrorKind::NotFound, message));
            }
            name
        }
        (None, [name]) => name,
        (None, []) => return Err(fault("the .npz file has no arrays".to_owned())),
        (None, _) => {
            let message =
                format!("the .npz file has several arrays, {}; choose a member", listed());
            return Err(fault(message));
        }
    };
    archive.get(name).map_err(|error| {
        let message = format!("array {name:?} of the .npz file: {}", error.message());
        Error::new(error.kind(), message).with_cause_of(error)
    })
}

/// Elements without a header.
fn raw(bytes: &Bytes, element: NpyType, shape: &[usize]) -> Result<NpyArray> {
    if bytes.starts_with(NPY_SIGNATURE) {
        let message = "the bytes are a .npy file, whose header would be read as elements; read it \
                       without a type of raw elements";
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    let fixed = shape.iter().filter(|side| **side > 0);
    let row = fixed.fold(element.size(), |bytes, side| bytes.saturating_mul(*side));
    let (len, is_fixed) = (bytes.len(), !shape.contains(&0));
    if (is_fixed && len < row) || (!is_fixed && !len.is_multiple_of(row)) {
        let message = match is_fixed {
            true => format!("{len} bytes are less than the {row} bytes of {element} {shape:?}"),
            false => format!(
                "{len} bytes are not a whole number of rows of {row} bytes: {element} {shape:?}"
            ),
        };
        return Err(Error::new(ErrorKind::Truncated, message));
    }
    if is_fixed && len > row {
        let message = format!("{len} bytes exceed the {row} bytes of {element} {shape:?}");
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    let shape: Vec<usize> =
        shape.iter().map(|&side| if side == 0 { len / row } else { side }).collect();
    NpyArray::from_little_endian(element, shape, bytes.clone())
}
