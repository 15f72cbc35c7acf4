//! Boxes of ISO base media files, and the numbers in them.

use spdl_core::{Error, ErrorKind, Result};

use crate::source::MediaSource;
use crate::video::limits::VideoLimits;

/// A four-character code.
pub(super) type FourCc = [u8; 4];

/// The header of a box: size and type.
pub(super) const BOX_HEADER: u64 = 8;
/// The header of a box with a 64-bit size.
const LONG_BOX_HEADER: u64 = 16;
/// The maximum number of top-level boxes; a fragment of one frame takes two.
const MAX_TOP_LEVEL_BOXES: u64 = 20_000_000;

/// A box in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mp4Box<'a> {
    pub(super) kind: FourCc,
    pub(super) content: &'a [u8],
    /// The position of the content in the file.
    pub(super) offset: u64,
}

impl<'a> Mp4Box<'a> {
    /// The boxes inside this one, from byte `start` of its content on.
    pub(super) fn children_from(self, start: usize) -> Children<'a> {
        let content = self.content.get(start..).unwrap_or_default();
        Children { content, offset: self.offset + start as u64 }
    }

    pub(super) fn children(self) -> Children<'a> {
        self.children_from(0)
    }

    /// The first box of this type inside this one.
    pub(super) fn child(self, kind: &FourCc) -> Option<Mp4Box<'a>> {
        self.children().find(|child| child.kind == *kind)
    }

    /// `N` bytes at `at`.
    pub(super) fn array<const N: usize>(self, at: usize) -> Result<[u8; N]> {
        let bytes = self.content.get(at..).and_then(<[u8]>::first_chunk);
        bytes.copied().ok_or_else(|| self.corrupt("is too short"))
    }

    pub(super) fn u8(self, at: usize) -> Result<u8> {
        Ok(self.array::<1>(at)?[0])
    }

    pub(super) fn u16(self, at: usize) -> Result<u16> {
        Ok(u16::from_be_bytes(self.array(at)?))
    }

    pub(super) fn u32(self, at: usize) -> Result<u32> {
        Ok(u32::from_be_bytes(self.array(at)?))
    }

    pub(super) fn u64(self, at: usize) -> Result<u64> {
        Ok(u64::from_be_bytes(self.array(at)?))
    }

    /// The entries of a table of `entry` bytes each; their number is at `at`, before them.
    pub(super) fn table(self, at: usize, entry: usize) -> Result<&'a [u8]> {
        let count = u64::from(self.u32(at)?);
        let bytes = usize::try_from(count * entry as u64).ok();
        let entries = bytes.and_then(|bytes| self.content.get(at + 4..)?.get(..bytes));
        entries.ok_or_else(|| self.corrupt(&format!("is too short for {count} entries")))
    }

    /// The error for this box.
    pub(super) fn corrupt(self, problem: &str) -> Error {
        let message = format!("corrupt MP4: the box {:?} {problem}", text(&self.kind));
        Error::new(ErrorKind::Corrupt, message).with_offset(self.offset)
    }
}

/// The boxes inside a box. A box that is larger than the rest of its parent ends with the parent.
/// An invalid size ends the list.
#[derive(Clone, Debug)]
pub(super) struct Children<'a> {
    content: &'a [u8],
    offset: u64,
}

impl<'a> Iterator for Children<'a> {
    type Item = Mp4Box<'a>;

    fn next(&mut self) -> Option<Mp4Box<'a>> {
        let (size, kind) = size_and_kind(self.content)?;
        let (header, size) = match size {
            0 => (BOX_HEADER, self.content.len() as u64),
            1 => (LONG_BOX_HEADER, u64::from_be_bytes(*self.content.get(8..)?.first_chunk()?)),
            size => (BOX_HEADER, size),
        };
        if size < header {
            return None;
        }
        let size = size.min(self.content.len() as u64) as usize;
        let (child, rest) = self.content.split_at(size);
        let content = child.get(header as usize..)?;
        let child = Mp4Box { kind, content, offset: self.offset + header };
        self.content = rest;
        self.offset += size as u64;
        Some(child)
    }
}

fn size_and_kind(header: &[u8]) -> Option<(u64, FourCc)> {
    let size = u32::from_be_bytes(*header.first_chunk()?);
    Some((u64::from(size), *header.get(4..)?.first_chunk()?))
}

/// A four-character code as text.
pub(super) fn text(kind: &FourCc) -> String {
    String::from_utf8_lossy(kind).into_owned()
}

/// A box at the top level of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct TopLevelBox {
    pub(super) kind: FourCc,
    /// The position of the header.
    pub(super) start: u64,
    content: u64,
    /// May be beyond the end of the file.
    pub(super) end: u64,
}

impl TopLevelBox {
    /// Reads the content.
    ///
    /// # Errors
    /// `LimitExceeded`, `Truncated`, and the errors of the source.
    pub(super) fn read<'a>(
        &self,
        file: &'a dyn MediaSource,
        limits: &VideoLimits,
        memory: &'a mut Vec<u8>,
    ) -> Result<Mp4Box<'a>> {
        limits.check_index_bytes(self.end - self.content)?;
        let content = file.read(self.content..self.end, memory)?;
        Ok(Mp4Box { kind: self.kind, content, offset: self.content })
    }
}

/// The boxes at the top level of a file. Only their headers are read.
pub(super) struct TopLevelBoxes<'a> {
    file: &'a dyn MediaSource,
    memory: Vec<u8>,
    at: u64,
    count: u64,
}

impl<'a> TopLevelBoxes<'a> {
    pub(super) fn new(file: &'a dyn MediaSource) -> Self {
        TopLevelBoxes::starting_at(file, 0)
    }

    /// The boxes from a position on.
    pub(super) fn starting_at(file: &'a dyn MediaSource, at: u64) -> Self {
        TopLevelBoxes { file, memory: Vec::new(), at, count: 0 }
    }

    /// Whether the last box extends beyond the end of the file.
    pub(super) fn is_truncated(&self) -> bool {
        self.at > self.file.size()
    }

    /// The next box; `None` at the end of the file, or where no box is.
    ///
    /// # Errors
    /// `LimitExceeded` for too many boxes, and the errors of the source.
    pub(super) fn next_box(&mut self) -> Result<Option<TopLevelBox>> {
        let size = self.file.size();
        if self.at.saturating_add(BOX_HEADER) > size {
            return Ok(None);
        }
        self.count += 1;
        if self.count > MAX_TOP_LEVEL_BOXES {
            let message = format!("more than {MAX_TOP_LEVEL_BOXES} boxes at the top level of MP4");
            return Err(Error::new(ErrorKind::LimitExceeded, message).with_offset(self.at));
        }
        let start = self.at;
        let header_end = start.saturating_add(LONG_BOX_HEADER).min(size);
        let header = self.file.read(start..header_end, &mut self.memory)?;
        let Some((short, kind)) = size_and_kind(header) else { return Ok(None) };
        let (header, bytes) = match short {
            0 => (BOX_HEADER, size - start),
            1 => match header.get(8..).and_then(<[u8]>::first_chunk) {
                Some(long) => (LONG_BOX_HEADER, u64::from_be_bytes(*long)),
                None => return Ok(None),
            },
            short => (BOX_HEADER, short),
        };
        if bytes < header {
            return Ok(None);
        }
        self.at = start.saturating_add(bytes);
        Ok(Some(TopLevelBox { kind, start, content: start + header, end: self.at }))
    }
}
