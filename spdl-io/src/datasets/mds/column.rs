//! The columns of a sample, and the encodings of MDS and LitData.

use std::sync::Arc;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use super::tagged::tagged;
use crate::archive::{NpyArray, NpyType};
use crate::datasets::common::{half_to_f64, u32_at, unsigned, with_context};
use crate::records::{Encoding, FieldRequest, FieldValue};

/// The maximum number of images in a list. Each image takes more memory than its size in the file.
const MAX_IMAGES: usize = 1 << 20;

/// The maximum number of columns of a shard.
const MAX_COLUMNS: usize = 4096;

/// The columns of a shard, in the order of the sample data.
#[derive(Debug, PartialEq)]
pub(in crate::datasets) struct Columns {
    pub(in crate::datasets) names: Vec<Arc<str>>,
    columns: Vec<Column>,
}

#[derive(Debug, PartialEq)]
struct Column {
    encoding: ColumnEncoding,
    /// In bytes; `None` if each sample stores the size.
    size: Option<u32>,
}

#[derive(Debug, PartialEq)]
enum ColumnEncoding {
    /// An encoding that other formats share.
    Common(Encoding),
    Number(NpyType),
    Float,
    Array {
        element: Option<NpyType>,
        shape: Option<Vec<usize>>,
    },
    /// An array after its type, number of dimensions and shape, as 32-bit numbers: `numpy` of LitData, or
    /// `tensor` with big-endian numbers.
    HeadedArray {
        is_tensor: bool,
    },
    /// A one-dimensional array. `None` for an unsupported type.
    Vector(Option<NpyType>),
    Bool,
    /// Lists and dictionaries of LitData.
    Tagged,
    /// Raw pixels after width, height and mode.
    Pixels,
    /// A count, sizes and byte strings, after `skip` unused bytes.
    List {
        skip: usize,
    },
    /// An unknown encoding.
    Unknown(Box<str>),
}

impl Columns {
    /// The columns of MDS.
    ///
    /// # Errors
    /// `Corrupt` for lists of different lengths, and for sizes of 4 GiB or more; the errors of
    /// [`new`](Columns::new).
    pub(super) fn of_mds(
        names: &[String],
        encodings: &[String],
        sizes: &[Option<u64>],
    ) -> Result<Self> {
        if names.is_empty() || names.len() != encodings.len() || names.len() != sizes.len() {
            let (names, encodings, sizes) = (names.len(), encodings.len(), sizes.len());
            let message = format!(
                "numbers of column names ({names}), encodings ({encodings}) and sizes ({sizes}) must \
                 be equal and at least 1"
            );
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let columns = encodings.iter().zip(sizes).map(|(encoding, size)| {
            // 0 and `null` mean a variable size.
            let size = size.filter(|size| *size > 0).map(u32::try_from).transpose();
            let too_large = |_| Error::new(ErrorKind::Corrupt, "column size must be below 4 GiB");
            let size = size.map_err(too_large)?;
            Ok(Column { encoding: ColumnEncoding::parse(encoding), size })
        });
        Columns::new(names, columns.collect::<Result<_>>()?)
    }

    /// The leaves of a LitData sample. All have a variable size.
    ///
    /// # Errors
    /// The errors of [`new`](Columns::new).
    pub(in crate::datasets) fn of_litdata(names: &[String], formats: &[String]) -> Result<Self> {
        let columns = formats
            .iter()
            .map(|format| Column { encoding: ColumnEncoding::parse_litdata(format), size: None });
        Columns::new(names, columns.collect())
    }

    /// # Errors
    /// `LimitExceeded` for more than 4,096 columns; `Corrupt` for duplicate names.
    fn new(names: &[String], columns: Vec<Column>) -> Result<Self> {
        if names.len() > MAX_COLUMNS {
            let message = format!("{} columns exceed the limit of {MAX_COLUMNS}", names.len());
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        if let Some(twice) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name))
        {
            let message = format!("duplicate column {:?}", twice.1);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        Ok(Columns { names: names.iter().map(|name| name.as_str().into()).collect(), columns })
    }

    /// Decodes the fields of a sample: the sizes of the variable columns, followed by the values. Offsets
    /// of errors are relative to the sample.
    pub(super) fn decode(
        &self,
        sample: &Bytes,
        request: &FieldRequest,
    ) -> Result<Vec<(Arc<str>, FieldValue)>> {
        let too_small = || Error::new(ErrorKind::Corrupt, "the sample is smaller than its columns");
        let mut header = 0;
        let mut at = 4 * self.columns.iter().filter(|column| column.size.is_none()).count();
        let mut fields = Vec::new();
        for (name, column) in self.names.iter().zip(&self.columns) {
            let size = match column.size {
                Some(size) => size,
                None => {
                    header += 4;
                    u32_at(sample, header - 4).ok_or_else(too_small)?
                }
            };
            let end = at.checked_add(size as usize).filter(|end| *end <= sample.len());
            let end = end.ok_or_else(|| too_small().with_offset(at as u64))?;
            if request.wants(name) {
                let value = column.encoding.decode(sample.slice(at..end)).map_err(|error| {
                    let within = error.offset().unwrap_or_default();
                    with_context(error, &format!("column {name:?}")).with_offset(at as u64 + within)
                })?;
                fields.push((Arc::clone(name), value));
            }
            at = end;
        }
        if at != sample.len() {
            let message = format!("{} unexpected bytes after the columns", sample.len() - at);
            return Err(Error::new(ErrorKind::Corrupt, message).with_offset(at as u64));
        }
        Ok(fields)
    }
}

impl ColumnEncoding {
    fn parse(text: &str) -> Self {
        let number = |element| ColumnEncoding::Number(element);
        match text {
            // A decoder detects the image format by its content.
            "bytes" | "jpeg" | "png" => ColumnEncoding::Common(Encoding::Bytes),
            // Arbitrary-precision decimals stay text.
            "str" | "str_decimal" => ColumnEncoding::Common(Encoding::Text),
            "json" => ColumnEncoding::Common(Encoding::Json),
            "pkl" => ColumnEncoding::Common(Encoding::Pickle),
            "str_int" => ColumnEncoding::Common(Encoding::Integer),
            "str_float" => ColumnEncoding::Float,
            "int" => number(NpyType::Int(8)),
            "pil" => ColumnEncoding::Pixels,
            "jpeg_array" | "jpegarray" => ColumnEncoding::List { skip: 0 },
            "list[jpeg]" | "list[png]" => ColumnEncoding::List { skip: 4 },
            "ndarray" => ColumnEncoding::Array { element: None, shape: None },
            _ => match text.strip_prefix("ndarray:") {
                Some(parts) => ColumnEncoding::array(parts),
                None => element_of(text).map(number),
            }
            .unwrap_or_else(|| ColumnEncoding::Unknown(text.into())),
        }
    }

    /// The encoding of a leaf, such as `int`, `image:png` or `no_header_tensor:1`.
    fn parse_litdata(text: &str) -> Self {
        let (name, detail) = text.split_once(':').unwrap_or((text, ""));
        let element = |of: fn(u32) -> Option<NpyType>| detail.parse().ok().and_then(of);
        match name {
            "jpeg" | "png" | "image" | "bytes" | "file" | "tifffile" | "tiff" | "video"
            | "audio" | "pdf" | "mesh" | "nifti" => ColumnEncoding::Common(Encoding::Bytes),
            "str" | "string" | "text" => ColumnEncoding::Common(Encoding::Text),
            "pickle" | "graph" => ColumnEncoding::Common(Encoding::Pickle),
            "int" => ColumnEncoding::Number(NpyType::Int(8)),
            "float" => ColumnEncoding::Number(NpyType::Float(8)),
            "bool" => ColumnEncoding::Bool,
            "json" => ColumnEncoding::Tagged,
            "pil" => ColumnEncoding::Pixels,
            "jpeg_array" => ColumnEncoding::List { skip: 0 },
            "numpy" | "tensor" => ColumnEncoding::HeadedArray { is_tensor: name == "tensor" },
            "no_header_numpy" => ColumnEncoding::Vector(element(numpy_type)),
            "no_header_tensor" => ColumnEncoding::Vector(element(torch_type)),
            _ => ColumnEncoding::Unknown(text.into()),
        }
    }

    /// Parses `float32` or `float32:2,3`.
    fn array(parts: &str) -> Option<Self> {
        let (element, shape) = match parts.split_once(':') {
            Some((element, shape)) => (element, Some(shape)),
            None => (parts, None),
        };
        let element = Some(element_of(element)?);
        let extents = |shape: &str| -> Option<Vec<usize>> {
            shape.split(',').map(|extent| extent.trim().parse().ok()).collect()
        };
        let shape = match shape {
            Some(shape) => Some(extents(shape)?),
            None => None,
        };
        Some(ColumnEncoding::Array { element, shape })
    }

    fn decode(&self, bytes: Bytes) -> Result<FieldValue> {
        match self {
            ColumnEncoding::Common(encoding) => encoding.decode(bytes),
            ColumnEncoding::Number(element) => number(*element, &bytes),
            ColumnEncoding::Float => {
                let text = std::str::from_utf8(&bytes).ok();
                let number = text.and_then(|text| text.trim().parse().ok());
                number
                    .map(FieldValue::Float)
                    .ok_or_else(|| corrupt("invalid floating-point number"))
            }
            ColumnEncoding::Array { element, shape } => array(*element, shape.as_deref(), bytes),
            ColumnEncoding::HeadedArray { is_tensor } => headed_array(*is_tensor, bytes),
            ColumnEncoding::Vector(element) => {
                let element = element.ok_or_else(|| unsupported_type("of this column"))?;
                let shape = vec![bytes.len() / element.size()];
                NpyArray::from_little_endian(element, shape, bytes).map(FieldValue::Array)
            }
            ColumnEncoding::Bool => match bytes[..] {
                [byte] => Ok(FieldValue::Bool(byte != 0)),
                _ => Err(corrupt(format!("expected 1 byte for bool, found {}", bytes.len()))),
            },
            ColumnEncoding::Tagged => tagged(&bytes),
            ColumnEncoding::Pixels => pixels(bytes),
            ColumnEncoding::List { skip } => list(&bytes, *skip),
            ColumnEncoding::Unknown(name) => {
                let message = format!("unsupported column encoding {name:?}");
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }
}

/// The element type for NumPy's name.
fn element_of(name: &str) -> Option<NpyType> {
    let (kind, bits): (fn(u8) -> NpyType, _) = if let Some(bits) = name.strip_prefix("uint") {
        (NpyType::UInt, bits)
    } else if let Some(bits) = name.strip_prefix("int") {
        (NpyType::Int, bits)
    } else {
        (NpyType::Float, name.strip_prefix("float")?)
    };
    let element = match bits {
        "8" => kind(1),
        "16" => kind(2),
        "32" => kind(4),
        "64" => kind(8),
        _ => return None,
    };
    (element != NpyType::Float(1)).then_some(element)
}

fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, message)
}

fn number(element: NpyType, bytes: &[u8]) -> Result<FieldValue> {
    let wrong = || {
        corrupt(format!("expected {} bytes for {element}, found {}", element.size(), bytes.len()))
    };
    if bytes.len() != element.size() {
        return Err(wrong());
    }
    let bits = bytes.iter().rev().fold(0_u64, |bits, &byte| bits << 8 | u64::from(byte));
    let unused = 64 - 8 * element.size() as u32;
    match element {
        NpyType::UInt(_) => unsigned(bits),
        // Sign extension.
        NpyType::Int(_) => Ok(FieldValue::Integer((bits << unused) as i64 >> unused)),
        NpyType::Float(2) => Ok(FieldValue::Float(half_to_f64(bits as u16))),
        NpyType::Float(4) => Ok(FieldValue::Float(f64::from(f32::from_bits(bits as u32)))),
        NpyType::Float(8) => Ok(FieldValue::Float(f64::from_bits(bits))),
        _ => Err(wrong()),
    }
}

/// An array. Its type and shape precede the data unless the column defines them.
fn array(
    element: Option<NpyType>,
    shape: Option<&[usize]>,
    mut bytes: Bytes,
) -> Result<FieldValue> {
    let mut first = |what: &str| {
        (!bytes.is_empty())
            .then(|| bytes.split_to(1)[0])
            .ok_or_else(|| corrupt(format!("missing array {what}")))
    };
    let element = match element {
        Some(element) => element,
        None => {
            let code = first("type")?;
            let element = match code {
                8 => Some(NpyType::UInt(1)),
                9 => Some(NpyType::Int(1)),
                16 => Some(NpyType::UInt(2)),
                17 => Some(NpyType::Int(2)),
                18 => Some(NpyType::Float(2)),
                32 => Some(NpyType::UInt(4)),
                33 => Some(NpyType::Int(4)),
                34 => Some(NpyType::Float(4)),
                64 => Some(NpyType::UInt(8)),
                65 => Some(NpyType::Int(8)),
                66 => Some(NpyType::Float(8)),
                _ => None,
            };
            element.ok_or_else(|| corrupt(format!("unknown array type code {code}")))?
        }
    };
    let shape = match shape {
        Some(shape) => shape.to_vec(),
        None => {
            // The lowest two bits hold the base-2 logarithm of the bytes per extent; the others hold the number
            // of dimensions.
            let code = first("shape")?;
            let size = 1 << (code & 3);
            let len = usize::from(code >> 2) * size;
            if len > bytes.len() {
                return Err(corrupt("array ends inside its shape"));
            }
            let extents = bytes.split_to(len);
            let extent = |bytes: &[u8]| {
                bytes.iter().rev().fold(0_usize, |extent, &byte| extent << 8 | usize::from(byte))
            };
            extents.chunks_exact(size).map(extent).collect()
        }
    };
    NpyArray::from_little_endian(element, shape, bytes).map(FieldValue::Array)
}

/// LitData's number of a NumPy type.
fn numpy_type(code: u32) -> Option<NpyType> {
    Some(match code {
        0..=3 => NpyType::Int(1 << code),
        4..=7 => NpyType::UInt(1 << (code - 4)),
        8..=10 => NpyType::Float(1 << (code - 7)),
        11 | 12 => NpyType::Complex(1 << (code - 8)),
        13 => NpyType::Bool,
        _ => return None,
    })
}

/// LitData's number of a PyTorch type. Aliases of a type have separate numbers; 10 is `bfloat16`.
fn torch_type(code: u32) -> Option<NpyType> {
    Some(match code {
        0 | 1 => NpyType::Float(4),
        2 | 3 => NpyType::Float(8),
        4 | 5 => NpyType::Complex(8),
        6 | 7 => NpyType::Complex(16),
        8 | 9 => NpyType::Float(2),
        11 => NpyType::UInt(1),
        12 => NpyType::Int(1),
        13 | 14 => NpyType::Int(2),
        15 | 16 => NpyType::Int(4),
        17 | 18 => NpyType::Int(8),
        19 => NpyType::Bool,
        20 => NpyType::UInt(2),
        _ => return None,
    })
}

fn unsupported_type(what: &str) -> Error {
    let message = format!(
        "unsupported array type {what}; supported are boolean, integer, floating-point and \
                           complex numbers, except bfloat16"
    );
    Error::new(ErrorKind::Unsupported, message)
}

fn headed_array(is_tensor: bool, bytes: Bytes) -> Result<FieldValue> {
    let word = |at: usize| {
        let word = u32_at(&bytes, at).ok_or_else(|| corrupt("array ends inside its header"))?;
        Ok::<_, Error>(if is_tensor { word.swap_bytes() } else { word })
    };
    let code = word(0)?;
    let element = if is_tensor { torch_type(code) } else { numpy_type(code) };
    let element = element.ok_or_else(|| unsupported_type(&format!("code {code}")))?;
    let (rank, words) = (word(4)? as usize, bytes.len() / 4);
    if rank > words.saturating_sub(2) {
        return Err(corrupt(format!("array of {} bytes has {rank} dimensions", bytes.len())));
    }
    let shape = (0..rank).map(|axis| Ok(word(8 + 4 * axis)? as usize));
    let shape = shape.collect::<Result<Vec<_>>>()?;
    let data = bytes.slice(8 + 4 * rank..);
    NpyArray::from_little_endian(element, shape, data).map(FieldValue::Array)
}

/// A Pillow image: width, height, length of the mode, mode, pixels in row order. The result is an array of
/// shape (height, width), or (height, width, channels).
fn pixels(bytes: Bytes) -> Result<FieldValue> {
    let word = |at: usize| {
        let word = u32_at(&bytes, at).ok_or_else(|| corrupt("Pillow image ends inside its header"));
        word.map(|word| word as usize)
    };
    let (width, height, len) = (word(0)?, word(4)?, word(8)?);
    let start = 12_usize.checked_add(len).filter(|start| *start <= bytes.len());
    let start = start.ok_or_else(|| corrupt("Pillow image ends inside the name of its mode"))?;
    let (element, channels) = match &bytes[12..start] {
        b"L" | b"P" => (NpyType::UInt(1), 1),
        b"LA" | b"PA" => (NpyType::UInt(1), 2),
        b"RGB" | b"YCbCr" | b"LAB" | b"HSV" => (NpyType::UInt(1), 3),
        b"RGBA" | b"RGBX" | b"CMYK" => (NpyType::UInt(1), 4),
        b"I;16" => (NpyType::UInt(2), 1),
        b"I" => (NpyType::Int(4), 1),
        b"F" => (NpyType::Float(4), 1),
        mode => {
            let message = format!("unsupported Pillow image mode '{}'", mode.escape_ascii());
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
    };
    let mut shape = vec![height, width];
    if channels > 1 {
        shape.push(channels);
    }
    NpyArray::from_little_endian(element, shape, bytes.slice(start..)).map(FieldValue::Array)
}

/// A list of byte strings: their number, the size of each, and the data.
fn list(bytes: &Bytes, skip: usize) -> Result<FieldValue> {
    let wrong = || corrupt("size of the image list does not match its items");
    let count = u32_at(bytes, skip).ok_or_else(wrong)? as usize;
    if count > MAX_IMAGES {
        let message = format!("list of {count} images exceeds the limit of {MAX_IMAGES}");
        return Err(Error::new(ErrorKind::LimitExceeded, message));
    }
    let sizes = skip + 4;
    let mut at = sizes + 4 * count;
    let mut items = Vec::new();
    for item in 0..count {
        let size = u32_at(bytes, sizes + 4 * item).ok_or_else(wrong)? as usize;
        let end = at.checked_add(size).filter(|end| *end <= bytes.len()).ok_or_else(wrong)?;
        items.push(FieldValue::Bytes(bytes.slice(at..end)));
        at = end;
    }
    if at == bytes.len() { Ok(FieldValue::List(items)) } else { Err(wrong()) }
}
