//! What a `.npy` file says of its array, before the elements.

use std::ops::Range;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use super::NpyType;
use super::npy::corrupt;

/// The longest header that is read, in bytes. NumPy refuses more than 10,000 itself.
const MAX_HEADER: u64 = 64 << 10;
/// More dimensions than this NumPy does not have.
const MAX_DIMENSIONS: usize = 64;
/// The bytes before the header itself: magic, version and length, at most.
const START: u64 = 12;

/// The header of a `.npy` file of version 1, 2 or 3, wherever the file lies: only its first bytes
/// are read.
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
    /// Where in the file the type stands.
    pub(super) descr_offset: usize,
    element: Option<NpyType>,
    is_big_endian: bool,
    is_fortran_order: bool,
    shape: Vec<usize>,
    data: Range<u64>,
}

impl NpyHeader {
    /// Reads the header of a file of `len` bytes. `read` is asked for parts of it: the first few
    /// bytes, then the header.
    ///
    /// # Errors
    /// `Truncated` where the file is cut, be it in the elements; `Corrupt` where it is no such file,
    /// or its header is malformed; `Unsupported` for arrays of Python objects or records, and later
    /// versions; `LimitExceeded` for a header of more than 64 KiB or 64 dimensions; what `read`
    /// answers.
    pub fn read(len: u64, mut read: impl FnMut(Range<u64>) -> Result<Bytes>) -> Result<Self> {
        let cut = |what: &str| {
            let message = format!("the file ends inside {what}");
            Error::new(ErrorKind::Truncated, message).with_offset(len)
        };
        let first = read(0..len.min(START))?;
        let magic = b"\x93NUMPY";
        if !first.starts_with(&magic[..first.len().min(magic.len())]) {
            return Err(corrupt("this is no .npy file", 0));
        }
        let version = first.get(6..8).ok_or_else(|| cut("its first bytes"))?;
        let (start, header_len) = match version {
            [1, 0] => (10, first.get(8..10)),
            [2 | 3, 0] => (12, first.get(8..12)),
            other => {
                let message = format!("version {}.{} of .npy", other[0], other[1]);
                return Err(Error::new(ErrorKind::Unsupported, message).with_offset(6));
            }
        };
        let header_len = header_len.ok_or_else(|| cut("its first bytes"))?;
        let header_len =
            header_len.iter().rev().fold(0_u64, |len, &byte| len << 8 | u64::from(byte));
        if header_len > MAX_HEADER {
            let message = format!("a header of {header_len} bytes, of {MAX_HEADER} allowed");
            return Err(Error::new(ErrorKind::LimitExceeded, message).with_offset(8));
        }
        let data_start = start + header_len;
        if data_start > len {
            return Err(cut("its header"));
        }
        let text = read(start..data_start)?;
        let Fields { descr, is_fortran_order, shape } =
            Literal { text: &text, at: 0, start: start as usize }.header()?;
        let bytes = shape.iter().try_fold(descr.item_size as u64, |bytes, &extent| {
            bytes.checked_mul(u64::try_from(extent).ok()?)
        });
        // Where one extent is 0, the others may be anything.
        let bytes = if shape.contains(&0) { Some(0) } else { bytes };
        let data_end = bytes.and_then(|bytes| bytes.checked_add(data_start));
        let data_end = data_end.filter(|&end| end <= len).ok_or_else(|| cut("its data"))?;
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

    /// NumPy's code of the type of the elements: byte order, kind and size, `<f4` say. It is one of
    /// numbers, of texts (`S`, `U`), of bytes (`V`), or of times (`M8[s]`, `m8[s]`), all of a fixed
    /// size.
    pub fn descr(&self) -> &str {
        &self.descr
    }

    /// The type of the elements, where they are numbers that [`NpyArray`](super::NpyArray) holds.
    pub fn element(&self) -> Option<NpyType> {
        self.element
    }

    /// Whether the most significant byte of an element comes first.
    pub fn is_big_endian(&self) -> bool {
        self.is_big_endian
    }

    /// Whether the first index is the one that changes fastest (the order of Fortran), not the last.
    pub fn is_fortran_order(&self) -> bool {
        self.is_fortran_order
    }

    /// The extent of each dimension; none for a single element.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Where in the file the elements are. What is behind them is not looked at.
    pub fn data_range(&self) -> Range<u64> {
        self.data.clone()
    }
}

struct Fields {
    descr: Descr,
    is_fortran_order: bool,
    shape: Vec<usize>,
}

/// The type of the elements.
struct Descr {
    text: String,
    offset: usize,
    element: Option<NpyType>,
    item_size: usize,
    is_big_endian: bool,
}

/// The header: a dictionary as Python writes it, of three known keys. It is read letter by letter,
/// and never evaluated.
struct Literal<'a> {
    text: &'a [u8],
    at: usize,
    /// Where in the file the text starts.
    start: usize,
}

impl<'a> Literal<'a> {
    fn header(mut self) -> Result<Fields> {
        let (mut descr, mut order, mut shape) = (None, None, None);
        self.expect(b'{')?;
        while !self.next_is(b'}') {
            let at = self.at;
            let key = self.string()?;
            self.expect(b':')?;
            let is_new = match key {
                b"descr" => descr.replace(self.descr()?).is_none(),
                b"fortran_order" => order.replace(self.truth()?).is_none(),
                b"shape" => shape.replace(self.shape()?).is_none(),
                _ => false,
            };
            if !is_new {
                return Err(corrupt("a key that is unknown or there twice", self.start + at));
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
                Ok(Fields { descr, is_fortran_order, shape })
            }
            _ => Err(corrupt("the header lacks descr, fortran_order or shape", self.start)),
        }
    }

    fn malformed(&self) -> Error {
        corrupt("the header of this array is malformed", self.start + self.at)
    }

    fn skip_spaces(&mut self) {
        let spaces = |byte: &&u8| matches!(byte, b' ' | b'\n' | b'\t');
        self.at += self.text[self.at..].iter().take_while(spaces).count();
    }

    /// Whether this letter is next; if so, it is passed over.
    fn next_is(&mut self, letter: u8) -> bool {
        self.skip_spaces();
        let is_it = self.text.get(self.at) == Some(&letter);
        self.at += usize::from(is_it);
        is_it
    }

    fn expect(&mut self, letter: u8) -> Result<()> {
        if self.next_is(letter) { Ok(()) } else { Err(self.malformed()) }
    }

    /// A text in quotation marks, with nothing escaped.
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

    fn truth(&mut self) -> Result<bool> {
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
            return unsupported("an array of records".to_owned(), offset);
        }
        let text = self.string()?;
        let (order, rest) = match text {
            [order @ (b'<' | b'>' | b'|' | b'='), rest @ ..] => (*order, rest),
            rest => (b'=', rest),
        };
        if let [b'O', ..] = rest {
            let message = "an array of Python objects: reading it would run code of the file";
            return unsupported(message.to_owned(), offset);
        }
        let element = rest.split_first().and_then(|(&letter, size)| NpyType::of(letter, size));
        let item_size = element.map(NpyType::size).or_else(|| item_size(rest));
        match (item_size, str::from_utf8(text)) {
            (Some(item_size), Ok(text)) => {
                let is_big_endian = order == b'>' || (order != b'<' && cfg!(target_endian = "big"));
                Ok(Descr { text: text.to_owned(), offset, element, item_size, is_big_endian })
            }
            _ => unsupported(unknown_elements(text), offset),
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
                let message = format!("an array of more than {MAX_DIMENSIONS} dimensions");
                let error = Error::new(ErrorKind::LimitExceeded, message);
                return Err(error.with_offset((self.start + self.at) as u64));
            }
            self.at += digits.len();
            // Python 2 marks long numbers.
            self.at += usize::from(self.text.get(self.at) == Some(&b'L'));
            if !self.next_is(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(shape)
    }
}

/// That the elements are of a type that is not known.
pub(super) fn unknown_elements(descr: &[u8]) -> String {
    format!("elements of type '{}'", descr.escape_ascii())
}

/// The size of elements that are no numbers, or such as not every machine has.
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
        // `[s]`, `[25us]`.
        (b'M' | b'm', 8, [b'[', unit @ .., b']']) if unit.iter().all(u8::is_ascii_alphanumeric) => {
            Some(size)
        }
        _ => None,
    }
}
