//! Where the bytes of a media file are read from.

use std::ops::Range;

use spdl_core::{Error, ErrorKind, Result};

/// A media file whose parts are read by position: memory, a file, or an object in a store.
///
/// ```
/// use spdl_media::MediaSource;
/// let file: &[u8] = b"....ftypisom";
/// let mut memory = Vec::new();
/// assert_eq!(file.read(4..8, &mut memory)?, b"ftyp");
/// assert_eq!(file.read(8..99, &mut memory).unwrap_err().offset(), Some(12));
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub trait MediaSource {
    /// The size in bytes.
    fn size(&self) -> u64;

    /// The bytes of `range`. Sources that are not in memory read them into `memory`, whose content is
    /// replaced.
    ///
    /// # Errors
    /// `Truncated` at the end of the file if `range` exceeds it; the errors of the store.
    fn read<'a>(&'a self, range: Range<u64>, memory: &'a mut Vec<u8>) -> Result<&'a [u8]>;
}

impl MediaSource for [u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read<'a>(&'a self, range: Range<u64>, _memory: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        let bounds = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        let bytes = bounds.and_then(|(start, end)| self.get(start..end));
        bytes.ok_or_else(|| outside(&range, self.len() as u64))
    }
}

impl MediaSource for bytes::Bytes {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read<'a>(&'a self, range: Range<u64>, memory: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        self[..].read(range, memory)
    }
}

impl<T: MediaSource + ?Sized> MediaSource for &T {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn read<'a>(&'a self, range: Range<u64>, memory: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        (**self).read(range, memory)
    }
}

#[cfg(unix)]
impl MediaSource for std::fs::File {
    fn size(&self) -> u64 {
        self.metadata().map_or(0, |metadata| metadata.len())
    }

    fn read<'a>(&'a self, range: Range<u64>, memory: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        use std::os::unix::fs::FileExt;
        let size = MediaSource::size(self);
        if range.end > size || range.start > range.end {
            return Err(outside(&range, size));
        }
        let bytes = (range.end - range.start) as usize;
        memory.clear();
        memory.try_reserve_exact(bytes).map_err(|_| {
            let message = format!("cannot allocate {bytes} bytes for a part of a media file");
            Error::new(ErrorKind::LimitExceeded, message)
        })?;
        memory.resize(bytes, 0);
        self.read_exact_at(memory, range.start).map_err(|error| {
            let message = format!("cannot read bytes {range:?} of the media file: {error}");
            Error::new(ErrorKind::Io, message).with_offset(range.start)
        })?;
        Ok(memory)
    }
}

/// The error for bytes that the file does not have.
pub(crate) fn outside(range: &Range<u64>, size: u64) -> Error {
    let message = format!(
        "truncated media file: bytes {} to {} are beyond the end of the file of {size} bytes",
        range.start, range.end
    );
    Error::new(ErrorKind::Truncated, message).with_offset(size)
}
