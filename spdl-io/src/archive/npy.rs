//! Arrays of NumPy: `.npy`, and with the feature `zip` also `.npz`.

use std::fmt;

use bytes::{Buf, Bytes};
use spdl_core::memory::BufferPool;
use spdl_core::{Array, DType, Error, ErrorKind, Result};

use super::NpyHeader;
use super::npy_header::unknown_elements;

/// The type of the elements of a [`NpyArray`]: numbers in the order of this machine.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NpyType {
    /// A truth value: one byte, 0 or 1.
    Bool,
    /// A signed integer of so many bytes: 1, 2, 4 or 8.
    Int(u8),
    /// An unsigned integer of so many bytes: 1, 2, 4 or 8.
    UInt(u8),
    /// A floating-point number of so many bytes: 2, 4 or 8.
    Float(u8),
    /// Two floating-point numbers, of so many bytes together: 8 or 16.
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

    /// The same type of an [`Array`], where it has one: `uint8`, `int64`, `float16` and `float32`.
    pub fn dtype(self) -> Option<DType> {
        match self {
            NpyType::UInt(1) => Some(DType::U8),
            NpyType::Int(8) => Some(DType::I64),
            NpyType::Float(2) => Some(DType::F16),
            NpyType::Float(4) => Some(DType::F32),
            _ => None,
        }
    }

    /// The type by NumPy's letter and size.
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
    /// NumPy's name: `float32`.
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

/// An array as a `.npy` file of version 1, 2 or 3 holds it. The elements are a part of the file, not
/// a copy, but where their bytes had to be put into this machine's order.
///
/// Arrays of Python objects are refused: reading them would run code that the file brings along. So
/// are those of records, texts and times, as `Unsupported`.
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
    /// Reads a file that holds one array.
    ///
    /// # Errors
    /// `Truncated` where it is cut; `Corrupt` where it is no such file, its header is malformed, or
    /// something is left over; `Unsupported` for elements that are no numbers, and later versions;
    /// `LimitExceeded` for a header of more than 64 KiB or 64 dimensions.
    pub fn from_bytes(file: impl Into<Bytes>) -> Result<Self> {
        let mut rest = file.into();
        let len = rest.len();
        let array = NpyArray::take(&mut rest)?;
        if rest.is_empty() {
            return Ok(array);
        }
        let message = format!("{} bytes are behind the array", rest.len());
        Err(corrupt(message, len - rest.len()))
    }

    /// Reads the first of several arrays that were written one behind the other, and leaves the
    /// rest.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes); the bytes are as they were.
    pub fn take(file: &mut Bytes) -> Result<Self> {
        let header = NpyHeader::read(file.len() as u64, |range| {
            Ok(file.slice(range.start as usize..range.end as usize))
        })?;
        let element = header.element().ok_or_else(|| {
            let message = unknown_elements(header.descr().as_bytes());
            let error = Error::new(ErrorKind::Unsupported, message);
            error.with_offset(header.descr_offset as u64)
        })?;
        // Both lie within the file, which is in memory.
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

    /// An array of elements that are stored otherwise: in the order of C, the least significant byte
    /// first.
    ///
    /// # Errors
    /// `Corrupt` where there are more or fewer bytes than elements need.
    pub(crate) fn from_little_endian(
        element: NpyType,
        shape: Vec<usize>,
        data: Bytes,
    ) -> Result<Self> {
        let bytes =
            shape.iter().try_fold(element.size(), |bytes, &extent| bytes.checked_mul(extent));
        if bytes != Some(data.len()) {
            let message = format!("{} bytes for an array of {element} {shape:?}", data.len());
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let data = if cfg!(target_endian = "big") { swapped(&data, element) } else { data };
        Ok(NpyArray { element, shape, is_fortran_order: false, data })
    }

    /// The type of the elements.
    pub fn element(&self) -> NpyType {
        self.element
    }

    /// The extent of each dimension; none for a single number.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Whether the first index is the one that changes fastest (the order of Fortran), not the last.
    pub fn is_fortran_order(&self) -> bool {
        self.is_fortran_order
    }

    /// The elements, in the order that [`is_fortran_order`](Self::is_fortran_order) says, their bytes
    /// in that of this machine. They start at any address.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// A copy as an array of the pipeline, in the order of C: the last index changes fastest.
    ///
    /// # Errors
    /// `Unsupported` where [`NpyType::dtype`] has no such type; `LimitExceeded` where there is no
    /// memory for it; `InvalidArgument` where it is empty, and its other extents are absurd.
    pub fn to_array(&self, pool: &BufferPool) -> Result<Array> {
        let dtype = self.element.dtype().ok_or_else(|| {
            let message = format!("there are no arrays of {} in a pipeline", self.element);
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

/// The bytes of each number in the other order.
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
    /// Reads the list of arrays, within default limits.
    ///
    /// # Errors
    /// As [`ZipSlice::new`](super::ZipSlice::new).
    pub fn new(file: impl Into<Bytes>) -> Result<Self> {
        super::ZipSlice::new(file).map(NpzArchive)
    }

    /// The names of the arrays, in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let names = self.0.entries().iter().filter_map(|entry| entry.key.as_str());
        names.filter_map(|name| name.strip_suffix(".npy"))
    }

    /// An array by its name.
    ///
    /// # Errors
    /// `NotFound`; as [`NpyArray::from_bytes`] and [`ZipSlice::data`](super::ZipSlice::data).
    pub fn get(&self, name: &str) -> Result<NpyArray> {
        let key = crate::fetch::Key::from(format!("{name}.npy"));
        let entry = self.0.find(&key).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "there is no such array").with_key(key.display_name())
        })?;
        let array = NpyArray::from_bytes(self.0.data(entry)?);
        array.map_err(|error| error.with_key(key.display_name()))
    }
}
