//! Numbers of any stored type as elements of a batch.

use spdl_core::memory::Element;
use spdl_core::{DType, Error, ErrorKind, Field, Result, SlotMut};
use spdl_io::FieldValue;
use spdl_io::archive::{NpyArray, NpyType};

use super::stored_array;

/// Numbers with a shape, in C order. Keeps its memory.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    values: Vec<Number>,
    shape: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Integer(i64),
    Float(f64),
}

/// An element type, and the conversion of numbers to it.
trait FromNumber: Element {
    /// Returns `None` if the type cannot hold the number.
    fn from_number(number: Number) -> Option<Self>
    where
        Self: Sized;
}

fn whole(number: Number) -> Option<i64> {
    // 2^63 is the first value that `i64` cannot hold.
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    match number {
        Number::Integer(value) => Some(value),
        Number::Float(value) if value.fract() == 0.0 && (-LIMIT..LIMIT).contains(&value) => {
            Some(value as i64)
        }
        Number::Float(_) => None,
    }
}

fn real(number: Number) -> f64 {
    match number {
        Number::Integer(value) => value as f64,
        Number::Float(value) => value,
    }
}

macro_rules! from_whole_number {
    ($($element:ty)*) => { $(
        impl FromNumber for $element {
            fn from_number(number: Number) -> Option<$element> {
                whole(number).and_then(|value| value.try_into().ok())
            }
        }
    )* };
}
from_whole_number!(u8 u16 i16 i32 i64);

impl FromNumber for f64 {
    fn from_number(number: Number) -> Option<f64> {
        Some(real(number))
    }
}

impl FromNumber for f32 {
    fn from_number(number: Number) -> Option<f32> {
        Some(real(number) as f32)
    }
}

impl FromNumber for half::f16 {
    fn from_number(number: Number) -> Option<half::f16> {
        Some(half::f16::from_f64(real(number)))
    }
}

impl FromNumber for half::bf16 {
    fn from_number(number: Number) -> Option<half::bf16> {
        Some(half::bf16::from_f64(real(number)))
    }
}

/// Sets the padding of a field of numbers; `None` if its type cannot hold the number.
pub(super) fn padded(field: Field, value: f64) -> Option<Field> {
    macro_rules! padded {
        ($element:ty) => {
            Some(field.padding(<$element>::from_number(Number::Float(value))?))
        };
    }
    match field.dtype {
        DType::U8 => padded!(u8),
        DType::U16 => padded!(u16),
        DType::I16 => padded!(i16),
        DType::I32 => padded!(i32),
        DType::I64 => padded!(i64),
        DType::F32 => padded!(f32),
        DType::F64 => padded!(f64),
        DType::F16 => padded!(half::f16),
        DType::BF16 => padded!(half::bf16),
        _ => None,
    }
}

impl Numbers {
    /// Checks that all numbers are 0 or 1.
    ///
    /// # Errors
    /// `InvalidArgument` if one is another.
    pub(super) fn check_flags(&self) -> Result<()> {
        let other = self.values.iter().find(|&&one| !matches!(whole(one), Some(0 | 1)));
        other.map_or(Ok(()), |&other| {
            Err(invalid(format!("cannot store {} as bool: expected 0 or 1", real(other))))
        })
    }

    /// Writes the current numbers into a field.
    ///
    /// # Errors
    /// `InvalidArgument` if the field's type cannot hold one of them, or if their shape does not
    /// fit.
    pub(super) fn store(&mut self, slot: &mut SlotMut<'_>, field: usize) -> Result<()> {
        if let ([0], [0, of_row @ ..]) = (&self.shape[..], &slot.fields()[field].shape[..]) {
            // An empty list has one dimension, whatever its rows would have.
            self.shape.extend_from_slice(of_row);
        }
        match slot.fields()[field].dtype {
            DType::U8 => self.convert::<u8>(slot, field),
            DType::U16 => self.convert::<u16>(slot, field),
            DType::I16 => self.convert::<i16>(slot, field),
            DType::I32 => self.convert::<i32>(slot, field),
            DType::I64 => self.convert::<i64>(slot, field),
            DType::F32 => self.convert::<f32>(slot, field),
            DType::F64 => self.convert::<f64>(slot, field),
            DType::F16 => self.convert::<half::f16>(slot, field),
            DType::BF16 => self.convert::<half::bf16>(slot, field),
            other => Err(Error::new(
                ErrorKind::Unsupported,
                format!("numbers of type {other} are not supported"),
            )),
        }
    }

    fn convert<T: FromNumber>(&self, slot: &mut SlotMut<'_>, field: usize) -> Result<()> {
        let elements = slot.resize::<T>(field, &self.shape)?;
        for (element, &number) in elements.iter_mut().zip(&self.values) {
            *element = T::from_number(number).ok_or_else(|| {
                let number = match number {
                    Number::Integer(value) => value.to_string(),
                    Number::Float(value) => value.to_string(),
                };
                invalid(format!("cannot store {number} as {}", T::DTYPE))
            })?;
        }
        Ok(())
    }

    /// The shape of the current numbers.
    pub(super) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The extent of the first dimension; 0 for a single number.
    pub(super) fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    /// The number at a position in C order.
    pub(super) fn get(&self, at: usize) -> f64 {
        real(self.values[at])
    }

    /// Replaces the number at a position in C order.
    pub(super) fn set(&mut self, at: usize, value: f64) {
        self.values[at] = Number::Float(value);
    }

    /// Exchanges two numbers.
    pub(super) fn swap(&mut self, a: usize, b: usize) {
        self.values.swap(a, b);
    }

    /// Sets a list of integers.
    pub(super) fn set_integers(&mut self, values: impl Iterator<Item = i64>) {
        self.values.clear();
        self.values.extend(values.map(Number::Integer));
        self.shape.clear();
        self.shape.push(self.values.len());
    }

    /// Appends a number to a list until it has `rows` elements.
    pub(super) fn pad(&mut self, rows: usize, value: f64) {
        if let [count] = &mut self.shape[..] {
            *count = rows.max(*count);
            self.values.resize(*count, Number::Float(value));
        }
    }

    /// Removes the rows after the first `rows`.
    pub(super) fn truncate(&mut self, rows: usize) {
        let Some((count, of_row)) = self.shape.split_first_mut() else { return };
        *count = rows.min(*count);
        self.values.truncate(*count * of_row.iter().product::<usize>());
    }

    /// Keeps the rows with these indices, which ascend.
    pub(super) fn keep_rows(&mut self, rows: &[usize]) {
        let Some((count, of_row)) = self.shape.split_first() else { return };
        if rows.len() == *count {
            return;
        }
        let width: usize = of_row.iter().product();
        for (to, &from) in rows.iter().enumerate() {
            self.values.copy_within(from * width..(from + 1) * width, to * width);
        }
        self.values.truncate(rows.len() * width);
        self.shape[0] = rows.len();
    }

    /// Reads the numbers of a value.
    ///
    /// # Errors
    /// `InvalidArgument` if the value holds no numbers.
    pub(super) fn read(&mut self, value: &FieldValue) -> Result<()> {
        self.values.clear();
        self.shape.clear();
        match value {
            FieldValue::Text(text) => self.values.push(parse(text)?),
            FieldValue::Bytes(bytes) => {
                if let Some(array) = stored_array::detected(bytes)? {
                    return self.read_array(&array);
                }
                let text = std::str::from_utf8(bytes);
                self.values.push(parse(text.map_err(|_| not_numbers("bytes"))?)?);
            }
            FieldValue::Array(array) => self.read_array(array)?,
            value => self.read_nested(value, 0)?,
        }
        Ok(())
    }

    /// Reads a number, or a list of numbers or lists. `depth` is the number of enclosing lists.
    fn read_nested(&mut self, value: &FieldValue, depth: usize) -> Result<()> {
        match value {
            FieldValue::Json(json) => return self.read_json(json, depth),
            FieldValue::Bool(value) => self.leaf(Number::Integer((*value).into()), depth)?,
            FieldValue::Integer(value) => self.leaf(Number::Integer(*value), depth)?,
            FieldValue::Float(value) => self.leaf(Number::Float(*value), depth)?,
            FieldValue::Integers(values) => {
                self.enter(depth, values.len())?;
                for value in values {
                    self.leaf(Number::Integer(*value), depth + 1)?;
                }
            }
            FieldValue::Floats(values) => {
                self.enter(depth, values.len())?;
                for value in values {
                    self.leaf(Number::Float(*value), depth + 1)?;
                }
            }
            FieldValue::List(values) => {
                self.enter(depth, values.len())?;
                for value in values {
                    self.read_nested(value, depth + 1)?;
                }
            }
            other => return Err(not_numbers(other.kind())),
        }
        Ok(())
    }

    fn read_json(&mut self, json: &serde_json::Value, depth: usize) -> Result<()> {
        use serde_json::Value;
        match json {
            Value::Bool(value) => self.leaf(Number::Integer((*value).into()), depth),
            Value::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => self.leaf(Number::Integer(integer), depth),
                (None, Some(float)) => self.leaf(Number::Float(float), depth),
                (None, None) => Err(not_numbers("a JSON number out of range")),
            },
            Value::Array(values) => {
                self.enter(depth, values.len())?;
                values.iter().try_for_each(|value| self.read_json(value, depth + 1))
            }
            Value::Null => Err(not_numbers("null")),
            Value::String(_) => Err(not_numbers("text")),
            Value::Object(_) => Err(not_numbers("a JSON object")),
        }
    }

    /// Begins a list of `len` elements.
    fn enter(&mut self, depth: usize, len: usize) -> Result<()> {
        if self.shape.len() == depth && self.values.is_empty() {
            self.shape.push(len);
            return Ok(());
        }
        match self.shape.get(depth) {
            Some(&expected) if expected == len => Ok(()),
            Some(expected) => Err(invalid(format!(
                "nested lists differ in length: {expected} and {len} elements; expected equal lengths"
            ))),
            None => Err(invalid("nested lists differ in depth".to_owned())),
        }
    }

    fn leaf(&mut self, number: Number, depth: usize) -> Result<()> {
        if self.shape.len() != depth {
            return Err(invalid("nested lists differ in depth".to_owned()));
        }
        self.values.push(number);
        Ok(())
    }

    /// Writes a list of integers into a field of one dimension and of the same type. Returns `false` for other values
    /// and fields.
    ///
    /// # Errors
    /// The errors of [`SlotMut::resize`].
    pub(super) fn copy_integers(
        value: &FieldValue,
        slot: &mut SlotMut<'_>,
        field: usize,
    ) -> Result<bool> {
        let Field { dtype, shape, .. } = &slot.fields()[field];
        let FieldValue::Integers(values) = value else { return Ok(false) };
        if *dtype != DType::I64 || shape.len() != 1 {
            return Ok(false);
        }
        slot.resize::<i64>(field, &[values.len()])?.copy_from_slice(values);
        Ok(true)
    }

    /// Writes an array into a field of the type of its elements. Returns `false` if the types differ.
    ///
    /// # Errors
    /// The errors of [`SlotMut::resize`]; `Unsupported` for Fortran order.
    pub(super) fn copy(array: &NpyArray, slot: &mut SlotMut<'_>, field: usize) -> Result<bool> {
        let Field { dtype, shape: expected, .. } = &slot.fields()[field];
        if array.element().dtype() != Some(*dtype) {
            return Ok(false);
        }
        check_order(array)?;
        let mut shape = array.shape().to_vec();
        if let ([0], [0, of_row @ ..]) = (&shape[..], &expected[..]) {
            shape.extend_from_slice(of_row);
        }
        macro_rules! copied {
            ($element:ty) => {{
                let elements = slot.resize::<$element>(field, &shape)?;
                let (stored, _) = array.data().as_chunks::<{ size_of::<$element>() }>();
                for (element, stored) in elements.iter_mut().zip(stored) {
                    *element = <$element>::from_ne_bytes(*stored);
                }
            }};
        }
        match dtype {
            DType::U8 => copied!(u8),
            DType::U16 => copied!(u16),
            DType::I16 => copied!(i16),
            DType::I32 => copied!(i32),
            DType::I64 => copied!(i64),
            DType::F16 => copied!(half::f16),
            DType::F32 => copied!(f32),
            DType::F64 => copied!(f64),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads the numbers of an array.
    ///
    /// # Errors
    /// `InvalidArgument` for elements that are no real numbers; `Unsupported` for Fortran order.
    pub(super) fn set_array(&mut self, array: &NpyArray) -> Result<()> {
        self.values.clear();
        self.shape.clear();
        self.read_array(array)
    }

    fn read_array(&mut self, array: &NpyArray) -> Result<()> {
        check_order(array)?;
        let data = array.data();
        macro_rules! elements {
            ($type:ty, $number:expr) => {{
                let (chunks, _) = data.as_chunks::<{ size_of::<$type>() }>();
                self.values
                    .extend(chunks.iter().map(|bytes| $number(<$type>::from_ne_bytes(*bytes))))
            }};
        }
        let integer = Number::Integer;
        let float = Number::Float;
        match array.element() {
            NpyType::Bool | NpyType::UInt(1) => elements!(u8, |it: u8| integer(it.into())),
            NpyType::Int(1) => elements!(i8, |it: i8| integer(it.into())),
            NpyType::Int(2) => elements!(i16, |it: i16| integer(it.into())),
            NpyType::Int(4) => elements!(i32, |it: i32| integer(it.into())),
            NpyType::Int(8) => elements!(i64, integer),
            NpyType::UInt(2) => elements!(u16, |it: u16| integer(it.into())),
            NpyType::UInt(4) => elements!(u32, |it: u32| integer(it.into())),
            // Values above the range of `i64` fit only floating-point types.
            NpyType::UInt(8) => elements!(u64, |it: u64| match i64::try_from(it) {
                Ok(value) => integer(value),
                Err(_) => float(it as f64),
            }),
            NpyType::Float(2) => elements!(u16, |it: u16| float(half::f16::from_bits(it).into())),
            NpyType::Float(4) => elements!(f32, |it: f32| float(it.into())),
            NpyType::Float(8) => elements!(f64, float),
            other => return Err(not_numbers(&format!("an array of {other}"))),
        }
        self.shape.extend_from_slice(array.shape());
        Ok(())
    }
}

fn check_order(array: &NpyArray) -> Result<()> {
    if array.is_fortran_order() && array.shape().len() > 1 {
        let message = "arrays in Fortran order are not supported; save them with \
                       `numpy.ascontiguousarray`";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(())
}

fn parse(text: &str) -> Result<Number> {
    let text = text.trim();
    let integer = || text.parse().ok().map(Number::Integer);
    let float = || text.parse().ok().map(Number::Float);
    integer().or_else(float).ok_or_else(|| not_numbers("text"))
}

fn not_numbers(found: &str) -> Error {
    invalid(format!("expected numbers, found {found}"))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}
