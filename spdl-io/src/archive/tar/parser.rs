//! [`TarParser`]: a state machine over the headers of an archive, without I/O.

use std::ops::Range;

use spdl_core::{Error, ErrorKind, Result};

use super::extended::{DuplicateRecords, PaxValue, PaxValues};
use super::header::{BLOCK, TarHeader, corrupt, until_zero};
use super::{AfterEnd, TarEntry, TarKind, TarOptions};
use crate::fetch::Key;

/// A parser for the headers of a tar archive that performs no I/O.
///
/// [`wants`](TarParser::wants) returns the next byte range to read; [`supply`](TarParser::supply) parses
/// those bytes. The parser never requests the data of members.
///
/// [`TarSlice`](super::TarSlice), [`TarStream`](super::TarStream) and [`TarRanges`](super::TarRanges) run the
/// parser over memory, a stream, and range requests.
///
/// ```
/// use spdl_io::archive::{TarEvent, TarOptions, TarParser};
/// # let archive = [0_u8; 1024];
/// let mut parser = TarParser::new(TarOptions::default());
/// loop {
///     let wanted = parser.wants();
///     // Seek, skip or fetch here.
///     match parser.supply(&archive[wanted.start as usize..wanted.end as usize])? {
///         TarEvent::More => {}
///         TarEvent::Entry(entry) => println!("{}: {:?}", entry.key, entry.data_range()),
///         TarEvent::End => break,
///     }
/// }
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Debug)]
pub struct TarParser {
    options: TarOptions,
    state: ParserState,
    /// The offset of the next bytes to read.
    offset: u64,
    /// The extended headers before the next member.
    pending: PendingHeaders,
    global: PaxValues,
}

/// What the next bytes are.
#[derive(Debug)]
enum ParserState {
    /// A header, or the first zero block of the end-of-archive marker.
    Header,
    /// The block after a zero block.
    SecondZeroBlock,
    /// Padding after the end-of-archive marker.
    AfterEnd,
    /// The data of an extended header.
    Extension { flag: u8, size: usize },
    /// A further block with the map of a sparse file.
    SparseMap(TarEntry),
    /// No bytes: the archive ended, or an error occurred.
    Done,
}

#[derive(Debug, Default)]
struct PendingHeaders {
    /// The offset of the first header of the next member.
    start: Option<u64>,
    extended: Option<PaxValues>,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
}

/// The result of [`TarParser::supply`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TarEvent {
    /// The parser needs more bytes.
    More,
    /// A member.
    Entry(TarEntry),
    /// The end of the archive.
    End,
}

impl TarParser {
    /// A parser at the start of an archive.
    pub fn new(options: TarOptions) -> Self {
        TarParser {
            options,
            state: ParserState::Header,
            offset: 0,
            pending: PendingHeaders::default(),
            global: PaxValues::default(),
        }
    }

    /// A parser at the end of an archive.
    pub(super) fn ended() -> Self {
        TarParser { state: ParserState::Done, ..TarParser::new(TarOptions::default()) }
    }

    /// The next byte range to read.
    ///
    /// Ranges are in increasing order. A range has 512 bytes, or at most
    /// [`TarOptions::max_extension_bytes`] for the data of an extended header. The range is empty
    /// at the end, and after an error.
    pub fn wants(&self) -> Range<u64> {
        let len = match self.state {
            ParserState::Extension { size, .. } => size,
            ParserState::Done => 0,
            _ => BLOCK,
        };
        self.offset..self.offset.saturating_add(len as u64)
    }

    /// Parses the bytes of the range that [`wants`](TarParser::wants) returned.
    ///
    /// # Errors
    /// After an error other than `InvalidArgument`, the parser is at its end.
    ///
    /// - `Corrupt` for invalid, contradictory or ambiguous headers.
    /// - `LimitExceeded` for an extended header above the limit.
    /// - `InvalidArgument` for a different number of bytes.
    pub fn supply(&mut self, bytes: &[u8]) -> Result<TarEvent> {
        let wanted = self.wants();
        let len = wanted.end - wanted.start;
        if bytes.len() as u64 != len {
            let message = format!("expected {len} bytes of the archive, got {}", bytes.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        match std::mem::replace(&mut self.state, ParserState::Done) {
            ParserState::Header => self.header(block(bytes)?),
            ParserState::SecondZeroBlock => self.after_zero_block(block(bytes)?),
            ParserState::AfterEnd => self.after_end(bytes),
            ParserState::Extension { flag, size } => self.extension(flag, size, bytes),
            ParserState::SparseMap(entry) => self.sparse_map(entry, bytes),
            ParserState::Done => Ok(TarEvent::End),
        }
    }

    /// Ends the archive inside the range that [`wants`](TarParser::wants) returned. `rest` is the
    /// available part of that range.
    ///
    /// # Errors
    /// `Truncated` if the archive ends within a header, or between an extended header and its
    /// member. Also if the end-of-archive marker is missing, unless
    /// [`TarOptions::accept_missing_end`] is set. `Corrupt` if `rest` is refused by
    /// [`AfterEnd::Refuse`].
    pub fn finish(&mut self, rest: &[u8]) -> Result<()> {
        let end = self.offset.saturating_add(rest.len() as u64);
        let truncated = |message: &str| {
            Err(Error::new(ErrorKind::Truncated, message.to_owned()).with_offset(end))
        };
        match std::mem::replace(&mut self.state, ParserState::Done) {
            ParserState::Done => Ok(()),
            ParserState::Extension { .. } => {
                truncated("the archive ends inside an extended header")
            }
            ParserState::SparseMap(_) => {
                truncated("the archive ends inside the map of a sparse file")
            }
            ParserState::SecondZeroBlock | ParserState::AfterEnd => {
                self.after_end(rest)?;
                self.state = ParserState::Done;
                Ok(())
            }
            ParserState::Header if !is_zero(rest) => truncated("the archive ends inside a header"),
            ParserState::Header if self.pending.start.is_some() => {
                truncated("the archive ends after an extended header, before its member")
            }
            ParserState::Header if self.options.accepts_missing_end() => Ok(()),
            ParserState::Header => truncated(
                "end-of-archive marker not found: the archive may be truncated; copy it again from \
                 its source",
            ),
        }
    }

    fn header(&mut self, block: &[u8; BLOCK]) -> Result<TarEvent> {
        let offset = self.offset;
        if is_zero(block) {
            if let Some(start) = self.pending.start {
                let message = "the archive ends after this extended header, before its member";
                return Err(corrupt(message, start));
            }
            self.offset = self.advance(offset, BLOCK as u64)?;
            self.state = match self.options.after_end_marker() {
                AfterEnd::Continue => {
                    // An end-of-archive marker was found, so the last archive needs none.
                    self.options = self.options.accept_missing_end(true);
                    ParserState::Header
                }
                AfterEnd::Ignore | AfterEnd::Refuse => ParserState::SecondZeroBlock,
            };
            return Ok(TarEvent::More);
        }
        let header = TarHeader::parse(block, offset)?;
        let data = self.advance(offset, BLOCK as u64)?;
        let flag = header.type_flag();
        if let b'x' | b'X' | b'g' | b'L' | b'K' = flag {
            let size = header.size()?;
            let limit = self.options.extension_limit();
            if size > limit as u64 {
                let message =
                    format!("extended header of {size} bytes exceeds the limit of {limit} bytes");
                return Err(Error::new(ErrorKind::LimitExceeded, message).with_offset(offset));
            }
            if flag != b'g' {
                self.pending.start.get_or_insert(offset);
            }
            self.offset = data;
            self.state = ParserState::Extension { flag, size: size as usize };
            return Ok(TarEvent::More);
        }
        let entry = self.entry(&header, data)?;
        if flag == b'S' && header.has_more_sparse_map() {
            self.offset = data;
            self.state = ParserState::SparseMap(entry);
            return Ok(TarEvent::More);
        }
        self.member(entry)
    }

    /// Combines the headers of a member whose data start at `data_offset`.
    fn entry(&mut self, header: &TarHeader<'_>, data_offset: u64) -> Result<TarEntry> {
        let offset = self.offset;
        let pending = std::mem::take(&mut self.pending);
        let local = pending.extended.unwrap_or_default();
        let path = effective(&local.path, &self.global.path);
        let link_path = effective(&local.link_path, &self.global.link_path);
        agree(path, pending.long_name.as_ref(), "name", offset)?;
        agree(link_path, pending.long_link.as_ref(), "link target", offset)?;
        let is_sparse = local.is_sparse || self.global.is_sparse;
        let sparse_name = effective(&local.sparse_name, &self.global.sparse_name);

        let key = match sparse_name.or(path).or(pending.long_name.as_ref()) {
            Some(name) => Key::from_bytes(name),
            None => match header.prefix() {
                [] => Key::from_bytes(header.name()),
                prefix => Key::from_bytes(&[prefix, b"/", header.name()].concat()),
            },
        };
        let flag = header.type_flag();
        let is_folder_by_name = key.as_bytes().last() == Some(&b'/');
        let kind = match flag {
            b'0' | 0 | b'7' if is_sparse => TarKind::Sparse,
            // Before POSIX, a trailing slash marked a directory.
            b'0' | 0 | b'7' if is_folder_by_name => TarKind::Directory,
            b'0' | 0 | b'7' => TarKind::File,
            b'1' => TarKind::HardLink,
            b'2' => TarKind::SymbolicLink,
            b'3' => TarKind::CharacterDevice,
            b'4' => TarKind::BlockDevice,
            b'5' | b'D' => TarKind::Directory,
            b'6' => TarKind::Fifo,
            b'S' => TarKind::Sparse,
            other => TarKind::Other(other),
        };
        let pax_size = effective(&local.size, &self.global.size).copied();
        let size = size_of_data(header, pax_size, kind, offset)
            .map_err(|error| error.with_key(key.display_name()))?;
        let link_target = match kind {
            TarKind::HardLink | TarKind::SymbolicLink => {
                let long = link_path.or(pending.long_link.as_ref());
                Some(Key::from_bytes(long.map_or(header.link_target(), |name| name)))
            }
            _ => None,
        };
        let pax_mtime = local.mtime.or(self.global.mtime);
        Ok(TarEntry {
            key,
            kind,
            link_target,
            size,
            header_offset: pending.start.unwrap_or(offset),
            data_offset,
            mtime: pax_mtime.unwrap_or_else(|| header.mtime()),
        })
    }

    /// Returns a member, and continues after its data.
    fn member(&mut self, entry: TarEntry) -> Result<TarEvent> {
        self.offset = self.advance_over_data(entry.data_offset, entry.size)?;
        self.state = ParserState::Header;
        Ok(TarEvent::Entry(entry))
    }

    fn sparse_map(&mut self, mut entry: TarEntry, block: &[u8]) -> Result<TarEvent> {
        self.offset = self.advance(self.offset, BLOCK as u64)?;
        entry.data_offset = self.offset;
        if block.get(504).is_some_and(|&more| more != 0) {
            self.state = ParserState::SparseMap(entry);
            return Ok(TarEvent::More);
        }
        self.member(entry)
    }

    fn extension(&mut self, flag: u8, size: usize, data: &[u8]) -> Result<TarEvent> {
        let offset = self.offset;
        match flag {
            b'g' => self.global.add(data, offset, DuplicateRecords::Replace)?,
            b'L' => put_name(&mut self.pending.long_name, data, "name", offset)?,
            b'K' => put_name(&mut self.pending.long_link, data, "link target", offset)?,
            _ => {
                let extended = self.pending.extended.get_or_insert_default();
                extended.add(data, offset, DuplicateRecords::MustAgree)?;
            }
        }
        self.offset = self.advance_over_data(offset, size as u64)?;
        self.state = ParserState::Header;
        Ok(TarEvent::More)
    }

    fn after_zero_block(&mut self, block: &[u8; BLOCK]) -> Result<TarEvent> {
        if !is_zero(block) && self.options.after_end_marker() == AfterEnd::Refuse {
            let message = "data after a single zero block: the end-of-archive marker is two zero \
                blocks";
            return Err(corrupt(message, self.offset));
        }
        self.after_end(block)
    }

    fn after_end(&mut self, bytes: &[u8]) -> Result<TarEvent> {
        if self.options.after_end_marker() != AfterEnd::Refuse {
            return Ok(TarEvent::End);
        }
        if let Some(at) = bytes.iter().position(|&byte| byte != 0) {
            let offset = self.offset + at as u64;
            return Err(corrupt("data after the end-of-archive marker", offset));
        }
        self.offset = self.advance(self.offset, bytes.len() as u64)?;
        self.state = ParserState::AfterEnd;
        Ok(TarEvent::More)
    }

    /// `offset + len`.
    fn advance(&self, offset: u64, len: u64) -> Result<u64> {
        offset.checked_add(len).ok_or_else(|| {
            corrupt(format!("size of {len} bytes exceeds the range of file offsets"), self.offset)
        })
    }

    /// The offset of the block after `len` bytes of data.
    fn advance_over_data(&self, offset: u64, len: u64) -> Result<u64> {
        let end = self.advance(offset, len)?;
        let padding = (BLOCK as u64 - end % BLOCK as u64) % BLOCK as u64;
        self.advance(end, padding)
    }
}

/// The value of the member's extended header, or else of the global extended headers.
fn effective<'a, T>(local: &'a PaxValue<T>, global: &'a PaxValue<T>) -> Option<&'a T> {
    local.as_ref().or(global.as_ref()).and_then(Option::as_ref)
}

/// The size of the data after a header.
///
/// For member types without data, programs disagree on whether the size field is meaningful. Some programs skip
/// that many bytes, others do not, so they find different members. A size above 0 is therefore an error.
fn size_of_data(
    header: &TarHeader<'_>,
    pax_size: Option<u64>,
    kind: TarKind,
    offset: u64,
) -> Result<u64> {
    let in_header = header.size()?;
    let size = pax_size.unwrap_or(in_header);
    match kind {
        // Not ambiguous: old programs store the size of the directory itself; type `D` of GNU tar has data.
        TarKind::Directory if header.type_flag() == b'5' => Ok(0),
        TarKind::HardLink if pax_size.is_none_or(|size| size == 0) => Ok(0),
        TarKind::HardLink
        | TarKind::SymbolicLink
        | TarKind::CharacterDevice
        | TarKind::BlockDevice
        | TarKind::Fifo
            if size != 0 =>
        {
            let message = format!(
                "{kind} with {size} bytes of data: the start of the next member is ambiguous"
            );
            Err(corrupt(message, offset))
        }
        TarKind::Directory if header.type_flag() == 0 && size != 0 => {
            let message = format!(
                "a directory with {size} bytes of data: the start of the next member is ambiguous"
            );
            Err(corrupt(message, offset))
        }
        // If the size fits in the header field, the field must hold the same size or 0.
        _ if pax_size.is_some_and(|pax| in_header != 0 && in_header != pax && pax < 1 << 33) => {
            let message = format!(
                "the size is {in_header} bytes in the header but {size} in the extended header: \
                 the start of the next member is ambiguous"
            );
            Err(corrupt(message, offset))
        }
        _ => Ok(size),
    }
}

/// Checks that a pax record and a GNU header do not conflict.
fn agree(
    extended: Option<&Vec<u8>>,
    long: Option<&Vec<u8>>,
    what: &str,
    offset: u64,
) -> Result<()> {
    match (extended, long) {
        (Some(extended), Some(long)) if extended != long => {
            let (extended, long) = (extended.escape_ascii(), long.escape_ascii());
            let message = format!("conflicting {what}s of a member: \"{extended}\" and \"{long}\"");
            Err(corrupt(message, offset))
        }
        _ => Ok(()),
    }
}

/// Stores the data of a GNU long-name header.
fn put_name(slot: &mut Option<Vec<u8>>, data: &[u8], what: &str, offset: u64) -> Result<()> {
    let name = until_zero(data);
    if name.is_empty() {
        let message = format!("empty {what} in a GNU long-name or long-link header");
        return Err(corrupt(message, offset));
    }
    agree(slot.as_ref(), Some(&name.to_vec()), what, offset)?;
    *slot = Some(name.to_vec());
    Ok(())
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// The bytes as one block.
fn block(bytes: &[u8]) -> Result<&[u8; BLOCK]> {
    bytes.try_into().map_err(|_| {
        let message = format!("expected a block of {BLOCK} bytes, got {}", bytes.len());
        Error::new(ErrorKind::Internal, message)
    })
}
