//! [`ObjectBuffer`]: memory for the bytes of one object.

use std::fmt;
use std::io;

use bytes::Bytes;
use memmap2::MmapMut;

/// Minimum length of a buffer that is mapped, in bytes.
///
/// Allocators keep freed memory for later allocations. glibc keeps up to 64 MiB in each thread, so
/// that a process which reads large files uses several times the memory budget. Mapped memory
/// returns to the operating system as soon as a buffer is dropped. For shorter buffers, the page
/// faults of a new mapping would take longer than copying the bytes.
const MIN_MAPPED: usize = 1 << 20;

/// Memory for the bytes of one object.
pub(crate) enum ObjectBuffer {
    Allocated(Vec<u8>),
    Mapped(MmapMut),
}

impl ObjectBuffer {
    /// A buffer of `len` zeros.
    ///
    /// # Errors
    /// `OutOfMemory`, or the error of the operating system.
    pub(crate) fn zeroed(len: usize) -> io::Result<Self> {
        if len >= MIN_MAPPED {
            return MmapMut::map_anon(len).map(ObjectBuffer::Mapped);
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        bytes.resize(len, 0);
        Ok(ObjectBuffer::Allocated(bytes))
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            ObjectBuffer::Allocated(bytes) => bytes,
            ObjectBuffer::Mapped(bytes) => bytes,
        }
    }

    /// Converts the first `len` bytes into [`Bytes`], without a copy.
    pub(crate) fn into_bytes(self, len: usize) -> Bytes {
        let mut bytes = match self {
            ObjectBuffer::Allocated(bytes) => Bytes::from(bytes),
            ObjectBuffer::Mapped(bytes) => Bytes::from_owner(bytes),
        };
        bytes.truncate(len);
        bytes
    }
}

impl fmt::Debug for ObjectBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, len) = match self {
            ObjectBuffer::Allocated(bytes) => ("Allocated", bytes.len()),
            ObjectBuffer::Mapped(bytes) => ("Mapped", bytes.len()),
        };
        write!(f, "{kind}({len} bytes)")
    }
}
