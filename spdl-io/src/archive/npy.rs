//! [`NpyArray`] (`.npy`), and `NpzArchive` (`.npz`, feature `zip`).

use std::fmt;

use bytes::{Buf, Bytes};
use spdl_core::memory::BufferPool;
use spdl_core::{Array, DType, Error, ErrorKind, Result};

use super::NpyHeader;
use super::npy_header::unsupported_element;

/// The element type of a [`NpyArray`], in native byte order.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NpyType {
    /// A boolean: one byte, 0 or 1.
    Bool,
    /// A signed integer with a size of 1, 2, 4 or 8 bytes.
    Int(u8),
    /// An unsigned integer with a size of 1, 2, 4 or 8 bytes.
    UInt(u8),
    /// A floating-point number with a size of 2, 4 or 8 bytes.
    Float(u8),
    /// A complex number with a size of 8 or 16 bytes.
    Complex(u8),
}

impl NpyType {
    /// The size of one element in bytes.
    pub fn size(self) -> usize {
        match self {
            NpyType::Bool => 1,
            NpyType::Int(size) | NpyType::UInt(size) => usize::from(size),
            NpyType::Float(size) | NpyType::Complex(size) => usize::from(size),
        }
    }

    /// The corresponding type of an [`Array`]; `None` for other types.
    pub fn dtype(self) -> Option<DType> {
        match self {
            NpyType::UInt(1) => Some(DType::U8),
            NpyType::UInt(2) => Some(DType::U16),
            NpyType::Int(2) => Some(DType::I16),
            NpyType::Int(4) => Some(DType::I32),
            NpyType::Int(8) => Some(DType::I64),
            NpyType::Float(2) => Some(DType::F16),
            NpyType::Float(4) => Some(DType::F32),
            NpyType::Float(8) => Some(DType::F64),
            _ => None,
        }
    }

    /// The type for NumPy's type character and size.
    pub(super) fn of(letter: u8, size: &[u8]) -> Option<Self> {
        let size = match size {
            [digit @ b'1'..=b'8'] => digit - b'0',
            b"16" => 16,
            _ => return None,
        };
        match (letter, size) {
            (b'b', 1) => Some(NpyType::Bool),
            (b'i', 1 | 2 | 4 | 8) => Some(NpyType::Int(size)),
            (b'u', 1 | 2 | 4 | 8) => Some(NpyType::UInt(size)),
            (b'f', 2 | 4 | 8) => Some(NpyType::Float(size)),
            (b'c', 8 | 16) => Some(NpyType::Complex(size)),
            _ => None,
        }
    }
}

impl fmt::Display for NpyType {
    /// NumPy's name, such as `float32`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            NpyType::Bool => return f.write_str("bool"),
            NpyType::Int(_) => "int",
            NpyType::UInt(_) => "uint",
            NpyType::Float(_) => "float",
            NpyType::Complex(_) => "complex",
        };
        write!(f, "{name}{}", self.size() * 8)
    }
}

/// An array of a `.npy` file of version 1, 2 or 3.
///
/// The elements share the memory of the file, unless their byte order must be swapped. Arrays of Python objects
/// fail with `Unsupported`, because reading them executes code from the file. Structured arrays, and arrays of
/// strings and times, are not supported either.
///
/// ```
/// # let mut file = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
/// # let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
/// # file.extend_from_slice(format!("{header:<117}\n").as_bytes());
/// # file.extend_from_slice(&[0; 24]);
/// use spdl_io::archive::NpyArray;
/// let array = NpyArray::from_bytes(file)?;
/// assert_eq!((array.element().to_string().as_str(), array.shape()), ("float32", &[2, 3][..]));
/// let array = array.to_array(&spdl_core::memory::BufferPool::new())?;
/// assert_eq!(array.as_slice::<f32>()?, [0.0; 6]);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct NpyArray {
    element: NpyType,
    shape: Vec<usize>,
    is_fortran_order: bool,
    data: Bytes,
}

impl NpyArray {
    /// An array in C order and native byte order.
    ///
    /// ```
    /// use spdl_io::archive::{NpyArray, NpyType};
    /// let array = NpyArray::new(NpyType::UInt(1), [2, 2], vec![1, 2, 3, 4])?;
    /// assert_eq!(array.shape(), [2, 2]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if the data do not have the size of the shape.
    pub fn new(
        element: NpyType,
        shape: impl Into<Vec<usize>>,
        data: impl Into<Bytes>,
    ) -> Result<Self> {
        let (shape, data) = (shape.into(), data.into());
        let sides = shape.iter().copied();
        let size = sides.chain([element.size()]).try_fold(1_usize, usize::checked_mul);
        if size != Some(data.len()) {
            let message =
                format!("{} bytes are no array of {element} and shape {shape:?}", data.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(NpyArray { element, shape, is_fortran_order: false, data })
    }

    /// Reads a file with one array.
    ///
    /// # Errors
    /// - `Truncated` if the file ends early.
    /// - `Corrupt` if the file is not a `.npy` file, its header is malformed, or data follow the array.
    /// - `Unsupported` for element types that [`NpyType`] lacks, and for unknown versions.
    /// - `LimitExceeded` for a header of more than 64 KiB, and for more than 64 dimensions.
    pub fn from_bytes(file: impl Into<Bytes>) -> Result<Self> {
        let mut rest = file.into();
        let len = rest.len();
        let array = NpyArray::take(&mut rest)?;
        if rest.is_empty() {
            return Ok(array);
        }
        let message = format!("{} unexpected bytes after the array", rest.len());
        Err(corrupt(message, len - rest.len()))
    }

    /// Reads the first of several concatenated arrays, and removes it from `file`.
    ///
    /// # Errors
    /// The errors of [`from_bytes`](Self::from_bytes). After an error, `file` is unchanged.
    pub fn take(file: &mut Bytes) -> Result<Self> {
        let header = NpyHeader::read(file.len() as u64, |range| {
            Ok(file.slice(range.start as usize..range.end as usize))
        })?;
        let element = header.element().ok_or_else(|| {
            let message = unsupported_element(header.descr().as_bytes());
            let error = Error::new(ErrorKind::Unsupported, message);
            error.with_offset(header.descr_offset as u64)
        })?;
        // Lossless: the file is in memory.
        let (start, end) = (header.data_range().start as usize, header.data_range().end as usize);
        let data = file.slice(start..end);
        let data = if header.is_big_endian() == cfg!(target_endian = "big") || element.size() == 1 {
            data
        } else {
            swapped(&data, element)
        };
        file.advance(end);
        let (shape, is_fortran_order) = (header.shape().to_vec(), header.is_fortran_order());
        Ok(NpyArray { element, shape, is_fortran_order, data })
    }

    /// An array from raw elements in C order and little-endian byte order.
    ///
    /// ```
    /// use spdl_io::archive::{NpyArray, NpyType};
    /// let array = NpyArray::from_little_endian(NpyType::UInt(2), vec![2], vec![1, 0, 0, 1].into())?;
    /// let array = array.to_array(&spdl_core::memory::BufferPool::new())?;
    /// assert_eq!(array.as_slice::<u16>()?, [1, 256]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Corrupt` if the number of bytes does not match the shape.
    pub fn from_little_endian(element: NpyType, shape: Vec<usize>, data: Bytes) -> Result<Self> {
        let bytes =
            shape.iter().try_fold(element.size(), |bytes, &extent| bytes.checked_mul(extent));
        if bytes != Some(data.len()) {
            let message = format!(
                "{} bytes do not match an array of type {element} and shape {shape:?}",
                data.len()
            );
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let data = if cfg!(target_endian = "big") { swapped(&data, element) } else { data };
        Ok(NpyArray { element, shape, is_fortran_order: false, data })
    }

    /// The element type.
    pub fn element(&self) -> NpyType {
        self.element
    }

    /// The extent of each dimension; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Whether the elements are in Fortran order: the first index changes fastest.
    pub fn is_fortran_order(&self) -> bool {
        self.is_fortran_order
    }

    /// The elements in native byte order, in C or [Fortran order](Self::is_fortran_order). The memory address
    /// may be unaligned.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// A copy as an [`Array`] in C order.
    ///
    /// # Errors
    /// - `Unsupported` if [`NpyType::dtype`] is `None`.
    /// - `LimitExceeded` if the memory cannot be allocated.
    /// - `InvalidArgument` if one extent is 0 and another extent is out of range.
    pub fn to_array(&self, pool: &BufferPool) -> Result<Array> {
        let dtype = self.element.dtype().ok_or_else(|| {
            let message = format!("arrays of {} are not supported in a pipeline", self.element);
            Error::new(ErrorKind::Unsupported, message)
        })?;
        let mut array = Array::new(dtype, self.shape.clone(), pool.take(self.data.len())?)?;
        if !self.is_fortran_order || self.shape.len() < 2 || self.data.is_empty() {
            array.as_bytes_mut().copy_from_slice(&self.data);
            return Ok(array);
        }
        let size = self.element.size();
        let mut index = vec![0; self.shape.len()];
        for target in array.as_bytes_mut().chunks_exact_mut(size) {
            let from =
                index.iter().zip(&self.shape).rev().fold(0, |at, (i, extent)| at * extent + i);
            target.copy_from_slice(&self.data[from * size..][..size]);
            for (i, &extent) in index.iter_mut().zip(&self.shape).rev() {
                *i += 1;
                if *i < extent {
                    break;
                }
                *i = 0;
            }
        }
        Ok(array)
    }
}

impl fmt::Debug for NpyArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if self.is_fortran_order { ", Fortran order" } else { "" };
        write!(f, "NpyArray({} {:?}{order})", self.element, self.shape)
    }
}

/// The elements with swapped byte order.
fn swapped(data: &[u8], element: NpyType) -> Bytes {
    let size = match element {
        NpyType::Complex(size) => usize::from(size) / 2,
        other => other.size(),
    };
    let mut swapped = data.to_vec();
    swapped.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    swapped.into()
}

pub(super) fn corrupt(message: impl Into<String>, offset: usize) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_offset(offset as u64)
}

/// The arrays of a `.npz` file, by name.
///
/// ```no_run
/// let arrays = spdl_io::archive::NpzArchive::new(std::fs::read("arrays.npz")?)?;
/// for name in arrays.names() {
///     println!("{name}: {:?}", arrays.get(name)?);
/// }
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[cfg(feature = "zip")]
#[derive(Debug)]
pub struct NpzArchive(super::ZipSlice);

#[cfg(feature = "zip")]
impl NpzArchive {
    /// Reads the list of arrays, with default limits.
    ///
    /// # Errors
    /// The errors of [`ZipSlice::new`](super::ZipSlice::new).
    pub fn new(file: impl Into<Bytes>) -> Result<Self> {
        super::ZipSlice::new(file).map(NpzArchive)
    }

    /// The names of the arrays, in the order of the file, without arrays whose name is not UTF-8.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let names = self.0.entries().iter().filter_map(|entry| entry.key.as_str());
        names.filter_map(|name| name.strip_suffix(".npy"))
    }

    /// The array with this name.
    ///
    /// # Errors
    /// `NotFound` if there is no array with this name; the errors of [`NpyArray::from_bytes`] and
    /// [`ZipSlice::data`](super::ZipSlice::data).
    pub fn get(&self, name: &str) -> Result<NpyArray> {
        let key = crate::fetch::Key::from(format!("{name}.npy"));
        let entry = self.0.find(&key).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "array not found").with_key(key.display_name())
        })?;
        let array = NpyArray::from_bytes(self.0.data(entry)?);
        array.map_err(|error| error.with_key(key.display_name()))
    }
}
