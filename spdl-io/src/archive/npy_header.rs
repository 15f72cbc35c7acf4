//! [`NpyHeader`]: the header of a `.npy` file.

use std::ops::Range;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use super::NpyType;
use super::npy::corrupt;

/// The maximum length of a header, in bytes. NumPy refuses more than 10,000.
const MAX_HEADER: u64 = 64 << 10;
/// NumPy's maximum number of dimensions.
const MAX_DIMENSIONS: usize = 64;
/// The maximum total size of the magic string, the version and the header length field, in bytes.
const PREFIX: u64 = 12;

/// The header of a `.npy` file of version 1, 2 or 3. Only the start of the file is read.
///
/// ```
/// # let mut file = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
/// # let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
/// # file.extend_from_slice(format!("{header:<117}\n").as_bytes());
/// # file.extend_from_slice(&[0; 24]);
/// # let file = bytes::Bytes::from(file);
/// use spdl_io::archive::NpyHeader;
/// let read = |range: std::ops::Range<u64>| Ok(file.slice(range.start as usize..range.end as usize));
/// let header = NpyHeader::read(file.len() as u64, read)?;
/// assert_eq!((header.descr(), header.shape(), header.data_range()), ("<f4", &[2, 3][..], 128..152));
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpyHeader {
    descr: String,
    /// The offset of the element type in the file.
    pub(super) descr_offset: usize,
    element: Option<NpyType>,
    is_big_endian: bool,
    is_fortran_order: bool,
    shape: Vec<usize>,
    data: Range<u64>,
}

impl NpyHeader {
    /// Reads the header of a file of `len` bytes. `read` returns byte ranges of the file.
    ///
    /// # Errors
    /// - `Truncated` if the file ends early, in the header or in the elements.
    /// - `Corrupt` if the file is not a `.npy` file, or if its header is malformed.
    /// - `Unsupported` for arrays of Python objects, structured arrays, unknown element types, and
    ///   unknown versions.
    /// - `LimitExceeded` for a header of more than 64 KiB, and for more than 64 dimensions.
    /// - The errors of `read`.
    pub fn read(len: u64, mut read: impl FnMut(Range<u64>) -> Result<Bytes>) -> Result<Self> {
        let truncated = |what: &str| {
            let message = format!("the .npy file ends inside {what}");
            Error::new(ErrorKind::Truncated, message).with_offset(len)
        };
        let first = read(0..len.min(PREFIX))?;
        let magic = b"\x93NUMPY";
        if !first.starts_with(&magic[..first.len().min(magic.len())]) {
            return Err(corrupt("not a .npy file: magic string not found", 0));
        }
        let version = first.get(6..8).ok_or_else(|| truncated("the format version"))?;
        let (start, header_len) = match version {
            [1, 0] => (10, first.get(8..10)),
            [2 | 3, 0] => (12, first.get(8..12)),
            other => {
                let message = format!("unsupported .npy version {}.{}", other[0], other[1]);
                return Err(Error::new(ErrorKind::Unsupported, message).with_offset(6));
            }
        };
        let header_len = header_len.ok_or_else(|| truncated("the header length"))?;
        let header_len =
            header_len.iter().rev().fold(0_u64, |len, &byte| len << 8 | u64::from(byte));
        if header_len > MAX_HEADER {
            let message =
                format!("header of {header_len} bytes exceeds the limit of {MAX_HEADER} bytes");
            return Err(Error::new(ErrorKind::LimitExceeded, message).with_offset(8));
        }
        let data_start = start + header_len;
        if data_start > len {
            return Err(truncated("the header"));
        }
        let text = read(start..data_start)?;
        let NpyFields { descr, is_fortran_order, shape } =
            HeaderParser { text: &text, at: 0, start: start as usize }.header()?;
        let bytes = shape.iter().try_fold(descr.item_size as u64, |bytes, &extent| {
            bytes.checked_mul(u64::try_from(extent).ok()?)
        });
        // If one extent is 0, the product of the others may overflow.
        let bytes = if shape.contains(&0) { Some(0) } else { bytes };
        let data_end = bytes.and_then(|bytes| bytes.checked_add(data_start));
        let data_end = data_end.filter(|&end| end <= len).ok_or_else(|| truncated("the data"))?;
        Ok(NpyHeader {
            descr: descr.text,
            descr_offset: descr.offset,
            element: descr.element,
            is_big_endian: descr.is_big_endian,
            is_fortran_order,
            shape,
            data: data_start..data_end,
        })
    }

    /// NumPy's type string: byte order, kind and size, such as `<f4`. The kinds are numbers, strings (`S`,
    /// `U`), bytes (`V`) and times (`M8[s]`, `m8[s]`), all of a fixed size.
    pub fn descr(&self) -> &str {
        &self.descr
    }

    /// The element type; `None` if [`NpyArray`](super::NpyArray) does not support it.
    pub fn element(&self) -> Option<NpyType> {
        self.element
    }

    /// Whether the elements are big-endian.
    pub fn is_big_endian(&self) -> bool {
        self.is_big_endian
    }

    /// Whether the elements are in Fortran order: the first index changes fastest.
    pub fn is_fortran_order(&self) -> bool {
        self.is_fortran_order
    }

    /// The extent of each dimension; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The byte range of the elements in the file. The file may continue after this range.
    pub fn data_range(&self) -> Range<u64> {
        self.data.clone()
    }
}

struct NpyFields {
    descr: Descr,
    is_fortran_order: bool,
    shape: Vec<usize>,
}

/// The element type.
struct Descr {
    text: String,
    offset: usize,
    element: Option<NpyType>,
    item_size: usize,
    is_big_endian: bool,
}

/// A parser for the header: a Python dictionary literal with three known keys.
struct HeaderParser<'a> {
    text: &'a [u8],
    at: usize,
    /// The offset of `text` in the file.
    start: usize,
}

impl<'a> HeaderParser<'a> {
    fn header(mut self) -> Result<NpyFields> {
        let (mut descr, mut order, mut shape) = (None, None, None);
        self.expect(b'{')?;
        while !self.next_is(b'}') {
            let at = self.at;
            let key = self.string()?;
            self.expect(b':')?;
            let is_new = match key {
                b"descr" => descr.replace(self.descr()?).is_none(),
                b"fortran_order" => order.replace(self.boolean()?).is_none(),
                b"shape" => shape.replace(self.shape()?).is_none(),
                _ => false,
            };
            if !is_new {
                return Err(corrupt(
                    "unknown or duplicate key in the .npy header",
                    self.start + at,
                ));
            }
            if !self.next_is(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        self.skip_spaces();
        if self.at != self.text.len() {
            return Err(self.malformed());
        }
        match (descr, order, shape) {
            (Some(descr), Some(is_fortran_order), Some(shape)) => {
                Ok(NpyFields { descr, is_fortran_order, shape })
            }
            _ => {
                let message = "a .npy header needs the keys `descr`, `fortran_order` and `shape`";
                Err(corrupt(message, self.start))
            }
        }
    }

    fn malformed(&self) -> Error {
        corrupt("malformed .npy header", self.start + self.at)
    }

    fn skip_spaces(&mut self) {
        let spaces = |byte: &&u8| matches!(byte, b' ' | b'\n' | b'\t');
        self.at += self.text[self.at..].iter().take_while(spaces).count();
    }

    /// Consumes `letter` if it is next.
    fn next_is(&mut self, letter: u8) -> bool {
        self.skip_spaces();
        let is_it = self.text.get(self.at) == Some(&letter);
        self.at += usize::from(is_it);
        is_it
    }

    fn expect(&mut self, letter: u8) -> Result<()> {
        if self.next_is(letter) { Ok(()) } else { Err(self.malformed()) }
    }

    /// A string literal without escapes.
    fn string(&mut self) -> Result<&'a [u8]> {
        self.skip_spaces();
        let quote = self.text.get(self.at).copied().filter(|&quote| matches!(quote, b'\'' | b'"'));
        let quote = quote.ok_or_else(|| self.malformed())?;
        let rest = &self.text[self.at + 1..];
        let len = rest.iter().position(|&byte| byte == quote || byte == b'\\');
        let len = len.filter(|&len| rest[len] == quote).ok_or_else(|| self.malformed())?;
        self.at += len + 2;
        Ok(&rest[..len])
    }

    fn boolean(&mut self) -> Result<bool> {
        self.skip_spaces();
        for (word, value) in [(&b"True"[..], true), (b"False", false)] {
            if self.text[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.malformed())
    }

    fn descr(&mut self) -> Result<Descr> {
        let unsupported = |message: String, at: usize| {
            Err(Error::new(ErrorKind::Unsupported, message).with_offset(at as u64))
        };
        self.skip_spaces();
        let offset = self.start + self.at;
        if matches!(self.text.get(self.at), Some(b'[' | b'(')) {
            return unsupported("structured arrays are not supported".to_owned(), offset);
        }
        let text = self.string()?;
        let (order, rest) = match text {
            [order @ (b'<' | b'>' | b'|' | b'='), rest @ ..] => (*order, rest),
            rest => (b'=', rest),
        };
        if let [b'O', ..] = rest {
            let message = "arrays of Python objects are not supported: reading them executes \
                code from the file";
            return unsupported(message.to_owned(), offset);
        }
        let element = rest.split_first().and_then(|(&letter, size)| NpyType::of(letter, size));
        let item_size = element.map(NpyType::size).or_else(|| item_size(rest));
        match (item_size, str::from_utf8(text)) {
            (Some(item_size), Ok(text)) => {
                let is_big_endian = order == b'>' || (order != b'<' && cfg!(target_endian = "big"));
                Ok(Descr { text: text.to_owned(), offset, element, item_size, is_big_endian })
            }
            _ => unsupported(unsupported_element(text), offset),
        }
    }

    fn shape(&mut self) -> Result<Vec<usize>> {
        self.expect(b'(')?;
        let mut shape = Vec::new();
        while !self.next_is(b')') {
            self.skip_spaces();
            let digits = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit());
            let digits = &self.text[self.at..self.at + digits.count()];
            let value = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
            shape.push(value.ok_or_else(|| self.malformed())?);
            if shape.len() > MAX_DIMENSIONS {
                let message = format!("the array has more than {MAX_DIMENSIONS} dimensions");
                let error = Error::new(ErrorKind::LimitExceeded, message);
                return Err(error.with_offset((self.start + self.at) as u64));
            }
            self.at += digits.len();
            // Python 2 writes long integers with the suffix L.
            self.at += usize::from(self.text.get(self.at) == Some(&b'L'));
            if !self.next_is(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(shape)
    }
}

/// The message for an unsupported element type.
pub(super) fn unsupported_element(descr: &[u8]) -> String {
    format!("unsupported element type '{}'", descr.escape_ascii())
}

/// The size of elements that are not numbers, and of extended-precision numbers.
fn item_size(descr: &[u8]) -> Option<usize> {
    let (&letter, rest) = descr.split_first()?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (size, unit) = rest.split_at(digits);
    let size: usize = str::from_utf8(size).ok()?.parse().ok()?;
    match (letter, size, unit) {
        (b'S' | b'V', 1.., b"") => Some(size),
        (b'U', 1.., b"") => size.checked_mul(4),
        (b'f', 12 | 16, b"") | (b'c', 24 | 32, b"") => Some(size),
        (b'M' | b'm', 8, b"") => Some(size),
        // A unit such as `[s]` or `[25us]`.
        (b'M' | b'm', 8, [b'[', unit @ .., b']']) if unit.iter().all(u8::is_ascii_alphanumeric) => {
            Some(size)
        }
        _ => None,
    }
}
