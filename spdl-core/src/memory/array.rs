//! Arrays on the host: a type, a shape, and a buffer that goes back to its pool.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::memory::buffer::HostBuffer;

/// The type of an array's elements.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// Unsigned, 8 bits.
    U8,
    /// Signed, 64 bits.
    I64,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper 16 bits of a binary32.
    BF16,
}

impl DType {
    /// The size of one element in bytes.
    pub fn size(self) -> usize {
        match self {
            DType::U8 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::F32 => 4,
            DType::I64 => 8,
        }
    }

    /// NumPy's name: `uint8`, `int64`, `float32`, `float16`; `bfloat16` is that of `ml_dtypes`.
    pub fn name(self) -> &'static str {
        match self {
            DType::U8 => "uint8",
            DType::I64 => "int64",
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that an array can hold: `u8`, `i64`, `f32`, and `f16` and `bf16` of the crate
/// `half`.
pub trait Element: private::Sealed {
    /// The matching [`DType`].
    const DTYPE: DType;
}

mod private {
    #[expect(unnameable_types, reason = "this is what keeps the trait closed")]
    pub trait Sealed: bytemuck::Pod {}
    impl Sealed for u8 {}
    impl Sealed for i64 {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

impl Element for u8 {
    const DTYPE: DType = DType::U8;
}
impl Element for i64 {
    const DTYPE: DType = DType::I64;
}
impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
impl Element for half::f16 {
    const DTYPE: DType = DType::F16;
}
impl Element for half::bf16 {
    const DTYPE: DType = DType::BF16;
}

/// A dense array in host memory, rows first (C order), its data aligned to 64 bytes.
///
/// Dropping it gives its buffer back to the pool it came from.
pub struct Array {
    dtype: DType,
    shape: Vec<usize>,
    buffer: HostBuffer,
}

impl Array {
    /// Puts a shape on a buffer.
    ///
    /// # Errors
    /// `InvalidArgument` where the buffer is shorter than the shape needs. A longer one is allowed:
    /// a short last batch lies in a buffer of full size.
    pub fn new(dtype: DType, shape: Vec<usize>, buffer: HostBuffer) -> Result<Self> {
        let needed = shape
            .iter()
            .try_fold(dtype.size(), |bytes, &n| bytes.checked_mul(n))
            .filter(|&bytes| bytes <= buffer.len());
        if needed.is_none() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("an array of {dtype} {shape:?} does not fit {} bytes", buffer.len()),
            ));
        }
        Ok(Array { dtype, shape, buffer })
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The extent of each dimension, slowest first: `[batch, height, width, channels]`.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// What it is made of.
    pub(crate) fn into_parts(self) -> (DType, Vec<usize>, HostBuffer) {
        (self.dtype, self.shape, self.buffer)
    }

    /// The bytes of the buffer behind it, used or not.
    pub(crate) fn buffer_len(&self) -> usize {
        self.buffer.len()
    }

    /// The elements as bytes in the machine's order.
    pub fn as_bytes(&self) -> &[u8] {
        let len = self.shape.iter().product::<usize>() * self.dtype.size();
        &self.buffer[..len]
    }

    /// The same, to be written.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        let len = self.as_bytes().len();
        &mut self.buffer[..len]
    }

    /// The elements.
    ///
    /// # Errors
    /// `InvalidArgument` where `T` is not the array's type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        expect_dtype::<T>(self.dtype)?;
        Ok(bytemuck::cast_slice(self.as_bytes()))
    }

    /// The elements, to be written.
    ///
    /// # Errors
    /// `InvalidArgument` where `T` is not the array's type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        expect_dtype::<T>(self.dtype)?;
        Ok(bytemuck::cast_slice_mut(self.as_bytes_mut()))
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} {:?})", self.dtype, self.shape)
    }
}

pub(crate) fn expect_dtype<T: Element>(dtype: DType) -> Result<()> {
    if T::DTYPE == dtype {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!("the elements are {dtype}, and were asked for as {}", T::DTYPE),
    ))
}
