//! Typed, shaped arrays in host memory.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::memory::buffer::HostBuffer;

/// The type of an array's elements.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 8-bit unsigned integer.
    U8,
    /// 16-bit unsigned integer.
    U16,
    /// 16-bit signed integer.
    I16,
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer.
    I64,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper 16 bits of a binary32.
    BF16,
    /// IEEE 754 binary64.
    F64,
}

impl DType {
    /// Returns the size of one element in bytes.
    pub fn size(self) -> usize {
        match self {
            DType::U8 => 1,
            DType::U16 | DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// Returns the NumPy name, such as `uint8` and `float32`; for `BF16` the name in `ml_dtypes`,
    /// `bfloat16`.
    pub fn name(self) -> &'static str {
        match self {
            DType::U8 => "uint8",
            DType::U16 => "uint16",
            DType::I16 => "int16",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::F64 => "float64",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that an array can hold: `u8`, `u16`, `i16`, `i32`, `i64`, `f32`, `f64`, and `f16`
/// and `bf16` of the crate `half`.
pub trait Element: private::Sealed {
    /// The matching [`DType`].
    const DTYPE: DType;
}

mod private {
    #[expect(unnameable_types, reason = "the private supertrait seals the trait")]
    pub trait Sealed: bytemuck::Pod {}
    impl Sealed for u8 {}
    impl Sealed for u16 {}
    impl Sealed for i16 {}
    impl Sealed for i32 {}
    impl Sealed for i64 {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

impl Element for u8 {
    const DTYPE: DType = DType::U8;
}
impl Element for u16 {
    const DTYPE: DType = DType::U16;
}
impl Element for i16 {
    const DTYPE: DType = DType::I16;
}
impl Element for i32 {
    const DTYPE: DType = DType::I32;
}
impl Element for i64 {
    const DTYPE: DType = DType::I64;
}
impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
impl Element for f64 {
    const DTYPE: DType = DType::F64;
}
impl Element for half::f16 {
    const DTYPE: DType = DType::F16;
}
impl Element for half::bf16 {
    const DTYPE: DType = DType::BF16;
}

/// A dense array in host memory, in C order, aligned to 64 bytes.
///
/// When dropped, the array returns its buffer to its pool.
pub struct Array {
    dtype: DType,
    shape: Vec<usize>,
    buffer: HostBuffer,
}

impl Array {
    /// Creates an array from a buffer. The buffer may be longer than the shape requires, for
    /// example if the last batch is incomplete.
    ///
    /// # Errors
    /// `InvalidArgument` if the buffer is shorter than the shape requires.
    pub fn new(dtype: DType, shape: Vec<usize>, buffer: HostBuffer) -> Result<Self> {
        let needed = shape
            .iter()
            .try_fold(dtype.size(), |bytes, &n| bytes.checked_mul(n))
            .filter(|&bytes| bytes <= buffer.len());
        if needed.is_none() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "cannot create an array of {dtype} with shape {shape:?}: the buffer has only \
                     {} bytes",
                    buffer.len()
                ),
            ));
        }
        Ok(Array { dtype, shape, buffer })
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the extents of the dimensions, for example `[batch, height, width, channels]`.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Splits the array into its parts.
    pub(crate) fn into_parts(self) -> (DType, Vec<usize>, HostBuffer) {
        (self.dtype, self.shape, self.buffer)
    }

    /// Returns the size of the whole buffer in bytes.
    pub(crate) fn buffer_len(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the elements as bytes, in the machine's byte order.
    pub fn as_bytes(&self) -> &[u8] {
        let len = self.shape.iter().product::<usize>() * self.dtype.size();
        &self.buffer[..len]
    }

    /// Returns the elements as mutable bytes.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        let len = self.as_bytes().len();
        &mut self.buffer[..len]
    }

    /// Returns the elements.
    ///
    /// # Errors
    /// `InvalidArgument` if `T` is not the element type of the array.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        expect_dtype::<T>(self.dtype)?;
        Ok(bytemuck::cast_slice(self.as_bytes()))
    }

    /// Returns the elements for writing.
    ///
    /// # Errors
    /// `InvalidArgument` if `T` is not the element type of the array.
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
        format!(
            "cannot access an array of {dtype} as {}; use the element type of the array",
            T::DTYPE
        ),
    ))
}
