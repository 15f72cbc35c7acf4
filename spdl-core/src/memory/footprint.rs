//! Memory footprint of values, which the memory budget counts.

use std::fmt;
use std::mem::{size_of, size_of_val};
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::Error;
use crate::memory::array::Array;
use crate::memory::buffer::HostBuffer;

/// Memory footprint of a value: its own size plus the heap memory that it owns, in bytes.
///
/// A pipeline calls [`footprint`](Footprint::footprint) for each output of each
/// [measured](crate::PipelineBuilder::measured) stage, so the call should be cheap. For a `Vec` of
/// numbers, the elements are not visited, because [`FIXED`](Footprint::FIXED) is the footprint of
/// each element. Elements are visited only if their sizes can differ, as in `Vec<String>`.
///
/// Shared memory ([`Arc`]) counts in full for each owner, so the sum over all items counts it
/// several times. Static data (`&'static str`) counts only the size of the reference.
///
/// ```
/// use spdl_core::Footprint;
///
/// struct Clip {
///     name: String,
///     samples: Vec<f32>,
///     rate_hz: u32,
/// }
///
/// impl Footprint for Clip {
///     fn footprint(&self) -> usize {
///         self.name.footprint() + self.samples.footprint() + self.rate_hz.footprint()
///     }
/// }
///
/// let clip = Clip { name: "a".into(), samples: vec![0.0; 48_000], rate_hz: 48_000 };
/// assert!((192_000..192_100).contains(&clip.footprint()));
/// ```
pub trait Footprint {
    /// The footprint in bytes, if it is the same for all values of the type, for example for
    /// numbers. The elements of collections of such values are not visited. Default: `None`.
    const FIXED: Option<usize> = None;

    /// Returns the footprint in bytes, including the value's own size.
    fn footprint(&self) -> usize;
}

/// Returns the heap memory of a value in bytes.
pub(crate) fn heap<T: Footprint>(value: &T) -> usize {
    match T::FIXED {
        Some(fixed) => fixed.saturating_sub(size_of::<T>()),
        None => value.footprint().saturating_sub(size_of::<T>()),
    }
}

/// Returns the heap memory of each value of a type in bytes, if it is fixed.
pub(crate) const fn fixed_heap<T: Footprint>() -> Option<usize> {
    match T::FIXED {
        Some(fixed) => Some(fixed.saturating_sub(size_of::<T>())),
        None => None,
    }
}

macro_rules! plain {
    ($($type:ty),* $(,)?) => {$(
        impl Footprint for $type {
            const FIXED: Option<usize> = Some(size_of::<$type>());
            fn footprint(&self) -> usize {
                size_of::<$type>()
            }
        }
    )*};
}

plain!(
    (),
    bool,
    char,
    u8,
    u16,
    u32,
    u64,
    u128,
    usize,
    i8,
    i16,
    i32,
    i64,
    i128,
    isize,
    f32,
    f64,
    &'static str
);

impl Footprint for String {
    fn footprint(&self) -> usize {
        size_of::<Self>() + self.capacity()
    }
}

impl Footprint for PathBuf {
    fn footprint(&self) -> usize {
        size_of::<Self>() + self.capacity()
    }
}

/// Returns the footprint of a slice. Takes constant time for elements with a fixed footprint.
fn slice<T: Footprint>(values: &[T]) -> usize {
    let heap = match fixed_heap::<T>() {
        Some(each) => each.saturating_mul(values.len()),
        None => values.iter().map(heap).fold(0, usize::saturating_add),
    };
    size_of_val(values).saturating_add(heap)
}

impl<T: Footprint> Footprint for Vec<T> {
    /// Counts the capacity, not the length. Takes constant time if the elements have a
    /// [fixed](Footprint::FIXED) footprint.
    fn footprint(&self) -> usize {
        let spare = (self.capacity() - self.len()).saturating_mul(size_of::<T>());
        slice(self).saturating_add(spare + size_of::<Self>())
    }
}

impl<T: Footprint, const N: usize> Footprint for [T; N] {
    const FIXED: Option<usize> = match fixed_heap::<T>() {
        Some(each) => Some(size_of::<Self>() + each * N),
        None => None,
    };
    fn footprint(&self) -> usize {
        slice(self)
    }
}

/// Size of the two reference counters of an [`Arc`].
const ARC_COUNTERS: usize = 2 * size_of::<usize>();

macro_rules! pointer {
    ($pointer:ident, $overhead:expr) => {
        impl<T: Footprint> Footprint for $pointer<T> {
            const FIXED: Option<usize> = match T::FIXED {
                Some(fixed) => Some(size_of::<Self>() + $overhead + fixed),
                None => None,
            };
            fn footprint(&self) -> usize {
                (**self).footprint().saturating_add(size_of::<Self>() + $overhead)
            }
        }

        impl<T: Footprint> Footprint for $pointer<[T]> {
            fn footprint(&self) -> usize {
                slice(self).saturating_add(size_of::<Self>() + $overhead)
            }
        }

        impl Footprint for $pointer<str> {
            fn footprint(&self) -> usize {
                self.len() + size_of::<Self>() + $overhead
            }
        }
    };
}

pointer!(Box, 0);
pointer!(Arc, ARC_COUNTERS);

impl Footprint for bytes::Bytes {
    /// Counts the length. The allocation may be larger and shared.
    fn footprint(&self) -> usize {
        size_of::<Self>() + self.len()
    }
}

impl<T: Footprint> Footprint for Option<T> {
    const FIXED: Option<usize> = match fixed_heap::<T>() {
        Some(0) => Some(size_of::<Self>()),
        _ => None,
    };
    fn footprint(&self) -> usize {
        self.as_ref().map_or(0, heap).saturating_add(size_of::<Self>())
    }
}

impl<T: Footprint, E: Footprint> Footprint for Result<T, E> {
    const FIXED: Option<usize> = match (fixed_heap::<T>(), fixed_heap::<E>()) {
        (Some(0), Some(0)) => Some(size_of::<Self>()),
        _ => None,
    };
    fn footprint(&self) -> usize {
        self.as_ref().map_or_else(heap, heap).saturating_add(size_of::<Self>())
    }
}

macro_rules! tuple {
    ($($name:ident)*) => {
        impl<$($name: Footprint),*> Footprint for ($($name,)*) {
            const FIXED: Option<usize> = {
                let mut total = Some(size_of::<Self>());
                $(
                    total = match (total, fixed_heap::<$name>()) {
                        (Some(total), Some(heap)) => Some(total + heap),
                        _ => None,
                    };
                )*
                total
            };
            fn footprint(&self) -> usize {
                #[expect(non_snake_case, reason = "each value is named as its type")]
                let ($($name,)*) = self;
                let mut total = size_of::<Self>();
                $(total = total.saturating_add(heap($name));)*
                total
            }
        }
    };
}

tuple!(A);
tuple!(A B);
tuple!(A B C);
tuple!(A B C D);
tuple!(A B C D E);
tuple!(A B C D E F);

impl Footprint for HostBuffer {
    fn footprint(&self) -> usize {
        size_of::<Self>() + self.len()
    }
}

impl Footprint for Array {
    /// Counts the whole buffer, even if an incomplete last batch uses only a part.
    fn footprint(&self) -> usize {
        size_of::<Self>() + self.buffer_len() + size_of_val(self.shape())
    }
}

impl Footprint for Error {
    /// Counts the strings of the error, but not its cause, whose size is unknown.
    fn footprint(&self) -> usize {
        let strings = [Some(self.message()), self.stage(), self.key()];
        size_of::<Self>() + strings.into_iter().flatten().map(str::len).sum::<usize>()
    }
}

/// Formats a number of bytes: `17 bytes`, `1.5 MiB`, `64 GiB`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteSize(pub(crate) usize);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => return f.write_str("1 byte"),
            bytes @ ..1024 => return write!(f, "{bytes} bytes"),
            _ => {}
        }
        let mut value = self.0 as f64;
        let mut unit = "bytes";
        for larger in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
            // A value that rounds to 1024 is printed in the next unit.
            if value < 1023.95 {
                break;
            }
            value /= 1024.0;
            unit = larger;
        }
        let tenths = (value * 10.0).round() / 10.0;
        // `{}` omits a zero fraction.
        write!(f, "{tenths} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::memory::array::DType;
    use crate::memory::buffer::BufferPool;

    thread_local! {
        static CALLS: Cell<usize> = const { Cell::new(0) };
    }

    /// Counts the calls of `footprint`.
    #[derive(Clone, Copy)]
    struct Number(#[expect(dead_code, reason = "only its size matters")] u32);
    impl Footprint for Number {
        const FIXED: Option<usize> = Some(4);
        fn footprint(&self) -> usize {
            CALLS.set(CALLS.get() + 1);
            4
        }
    }

    #[test]
    fn elements_of_fixed_size_are_not_visited() {
        let numbers = vec![Number(0); 1000];
        assert_eq!(numbers.footprint(), size_of::<Vec<Number>>() + 4000);
        assert_eq!(vec![(Number(0), 1u8, [1.0f32; 3]); 10].footprint(), 24 + 10 * 20);
        assert_eq!(vec![Some(Number(0)); 10].footprint(), 24 + 10 * 8);
        assert_eq!(CALLS.get(), 0);
    }

    #[test]
    fn numbers_count_their_own_size() {
        assert_eq!(7u8.footprint(), 1);
        assert_eq!(7.0f64.footprint(), 8);
        assert_eq!('x'.footprint(), 4);
        assert_eq!(true.footprint(), 1);
        assert_eq!(().footprint(), 0);
        assert_eq!("a text of any length".footprint(), 16);
    }

    #[test]
    fn spare_capacity_counts() {
        let mut text = String::with_capacity(100);
        text.push('x');
        assert_eq!(text.footprint(), 24 + 100);
        let mut numbers = Vec::<u32>::with_capacity(50);
        numbers.push(1);
        assert_eq!(numbers.footprint(), 24 + 200);
        let mut path = PathBuf::with_capacity(30);
        path.push("x");
        assert_eq!(path.footprint(), 24 + 30);
    }

    #[test]
    fn elements_of_a_collection_count_once() {
        let texts = vec![String::from("abc"), String::from("de")];
        assert_eq!(texts.footprint(), 24 + 2 * 24 + 3 + 2);
        let boxed: Box<[String]> = texts.into_boxed_slice();
        assert_eq!(boxed.footprint(), 16 + 2 * 24 + 3 + 2);
        assert_eq!([String::from("abc"), String::new()].footprint(), 2 * 24 + 3);
        assert_eq!((String::from("abc"), 1u8).footprint(), size_of::<(String, u8)>() + 3);
        assert_eq!((1u8, 2u8, 3u8, 4u8, 5u8, vec![6u8]).footprint(), 32 + 1);
        assert_eq!(Some(String::from("abc")).footprint(), 24 + 3);
        assert_eq!(None::<String>.footprint(), 24);
        assert_eq!(vec![Some(vec![0u8; 10]), None].footprint(), 24 + 2 * 24 + 10);
    }

    #[test]
    fn both_variants_of_a_result_count() {
        let fine: Result<Vec<u8>, Error> = Ok(vec![0; 100]);
        assert_eq!(fine.footprint(), size_of_val(&fine) + 100);
        let error =
            Error::new(crate::error::ErrorKind::User, "12345").with_key("67").with_stage("8");
        let failed: Result<Vec<u8>, Error> = Err(error);
        assert_eq!(failed.footprint(), size_of_val(&failed) + 8);
    }

    #[test]
    fn shared_memory_counts_in_full_for_each_owner() {
        let shared = Arc::new(vec![0u8; 1000]);
        let owners = vec![Arc::clone(&shared), shared];
        assert_eq!(owners.footprint(), 24 + 2 * (8 + 16 + 24 + 1000));
        assert_eq!(Arc::<str>::from("abc").footprint(), 16 + 16 + 3);
        assert_eq!(<Arc<u64> as Footprint>::FIXED, Some(8 + 16 + 8));
        assert_eq!(vec![Box::new(1u64); 3].footprint(), 24 + 3 * 16);
    }

    #[test]
    fn bytes_count_their_length() {
        let bytes = bytes::Bytes::from(vec![0; 1000]);
        assert_eq!(bytes.footprint(), size_of::<bytes::Bytes>() + 1000);
        assert_eq!(bytes.slice(..10).footprint(), size_of::<bytes::Bytes>() + 10);
    }

    #[test]
    fn an_array_counts_its_whole_buffer() {
        let buffer = BufferPool::new().take(4000).unwrap();
        assert_eq!(buffer.footprint(), size_of::<HostBuffer>() + 4000);
        let array = Array::new(DType::F32, vec![10, 10], buffer).unwrap();
        assert_eq!(array.footprint(), size_of::<Array>() + 4000 + 16);
    }

    #[test]
    fn implausible_footprints_do_not_overflow() {
        struct Nothing(#[expect(dead_code, reason = "only its size matters")] u64);
        impl Footprint for Nothing {
            fn footprint(&self) -> usize {
                0
            }
        }
        assert_eq!(vec![Nothing(1), Nothing(2)].footprint(), 24 + 16);
        struct Everything;
        impl Footprint for Everything {
            fn footprint(&self) -> usize {
                usize::MAX
            }
        }
        assert_eq!(vec![(Everything, 1u8), (Everything, 2)].footprint(), usize::MAX);
    }

    #[test]
    fn sizes_are_formatted_with_binary_units() {
        let cases = [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1 MiB"),
            (64 << 30, "64 GiB"),
            (usize::MAX, "16 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }
}
