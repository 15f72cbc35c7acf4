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

    /// All bytes, if they are in memory, one after the other. The provided method returns `None`.
    fn as_bytes(&self) -> Option<&[u8]> {
        None
    }

    /// The index of the packets of a video that is stored apart from it. The provided method returns `None`.
    #[cfg(feature = "records")]
    fn part_index(&self) -> Option<&[u8]> {
        None
    }

    /// Announces ranges that may be read soon, so that a source that is far away can read them together. Returns
    /// whether the source makes use of announcements. The provided method returns no.
    fn will_read(&self, ranges: &[Range<u64>]) -> bool {
        let _ = ranges;
        false
    }
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

    fn as_bytes(&self) -> Option<&[u8]> {
        Some(self)
    }
}

impl MediaSource for bytes::Bytes {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read<'a>(&'a self, range: Range<u64>, memory: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        self[..].read(range, memory)
    }

    fn as_bytes(&self) -> Option<&[u8]> {
        Some(self)
    }
}

impl<T: MediaSource + ?Sized> MediaSource for &T {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn read<'a>(&'a self, range: Range<u64>, memory: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        (**self).read(range, memory)
    }

    fn as_bytes(&self) -> Option<&[u8]> {
        (**self).as_bytes()
    }

    #[cfg(feature = "records")]
    fn part_index(&self) -> Option<&[u8]> {
        (**self).part_index()
    }

    fn will_read(&self, ranges: &[Range<u64>]) -> bool {
        (**self).will_read(ranges)
    }
}

/// Bytes that are not in memory are read from the store; the calling thread waits.
#[cfg(feature = "records")]
impl MediaSource for spdl_io::records::PartialFile {
    fn size(&self) -> u64 {
        self.size()
    }

    fn read<'a>(&'a self, range: Range<u64>, memory: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        check_range(&range, self.size())?;
        self.read(range, memory)
    }

    fn part_index(&self) -> Option<&[u8]> {
        self.part_index()
    }
}

/// Objects in stores are read by range requests; the calling thread waits.
#[cfg(feature = "records")]
impl MediaSource for spdl_io::fetch::BlockReader {
    fn size(&self) -> u64 {
        self.size()
    }

    fn read<'a>(&'a self, range: Range<u64>, memory: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        check_range(&range, self.size())?;
        self.read(range, memory)
    }
}

/// A part of a file, up to its end.
pub(crate) struct Tail<'a> {
    file: &'a dyn MediaSource,
    start: u64,
}

impl<'a> Tail<'a> {
    /// The bytes from `start` on, which is at most the size.
    pub(crate) fn new(file: &'a dyn MediaSource, start: u64) -> Self {
        Tail { file, start }
    }
}

impl MediaSource for Tail<'_> {
    fn size(&self) -> u64 {
        self.file.size().saturating_sub(self.start)
    }

    fn read<'a>(&'a self, range: Range<u64>, memory: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        let moved = |at: u64| at.saturating_add(self.start);
        self.file.read(moved(range.start)..moved(range.end), memory)
    }

    fn as_bytes(&self) -> Option<&[u8]> {
        self.file.as_bytes()?.get(usize::try_from(self.start).ok()?..)
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
        check_range(&range, size)?;
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

/// Checks that a file of this size has the bytes of a range.
#[cfg(any(unix, feature = "records"))]
fn check_range(range: &Range<u64>, size: u64) -> Result<()> {
    match range.start <= range.end && range.end <= size {
        true => Ok(()),
        false => Err(outside(range, size)),
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
