//! The walk over an archive's headers, without any reading of its own.

use std::ops::Range;

use spdl_core::{Error, ErrorKind, Result};

use super::extended::{Extended, Repeats, Said};
use super::header::{BLOCK, Header, corrupt, until_zero};
use super::{AfterEnd, TarEntry, TarKind, TarOptions};
use crate::fetch::Key;

/// Reads the headers of a tar archive, wherever its bytes come from: it says which bytes it
/// [`wants`](TarParser::wants), is [given](TarParser::supply) them, and says what they are. It never
/// wants the data of members.
///
/// [`TarSlice`](super::TarSlice), [`TarStream`](super::TarStream) and
/// [`TarRanges`](super::TarRanges) drive it over bytes in memory, a stream, and ranges of an object.
///
/// ```
/// use spdl_io::archive::{TarEvent, TarOptions, TarParser};
/// # let archive = [0_u8; 1024];
/// let mut parser = TarParser::new(TarOptions::default());
/// loop {
///     let wanted = parser.wants();
///     // Here is the place to seek, to skip or to fetch.
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
    state: State,
    /// Where the bytes start that are wanted.
    offset: u64,
    /// What the headers before the next member say of it.
    pending: Pending,
    global: Extended,
}

#[derive(Debug)]
enum State {
    /// A header, or the zero block that starts the end marker.
    Header,
    /// The block behind a zero block.
    SecondZeroBlock,
    /// More of the end, where nothing may follow it.
    BehindEnd,
    /// The data of a header that belongs to the next member, or to all that follow.
    Extension { flag: u8, size: usize },
    /// A block with more of the map of a sparse file.
    SparseMap(TarEntry),
    /// There is nothing more to be known.
    Done,
}

#[derive(Debug, Default)]
struct Pending {
    /// Where the first header is that belongs to the next member.
    start: Option<u64>,
    extended: Option<Extended>,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
}

/// What a [`TarParser`] made of the bytes it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TarEvent {
    /// Nothing yet: it wants more.
    More,
    /// A member.
    Entry(TarEntry),
    /// The end of the archive.
    End,
}

impl TarParser {
    /// At the first byte of an archive.
    pub fn new(options: TarOptions) -> Self {
        TarParser {
            options,
            state: State::Header,
            offset: 0,
            pending: Pending::default(),
            global: Extended::default(),
        }
    }

    /// One that wants nothing more.
    pub(super) fn ended() -> Self {
        TarParser { state: State::Done, ..TarParser::new(TarOptions::default()) }
    }

    /// The bytes of the archive that it wants next: never behind those it wanted before, and as many
    /// as [`TarOptions::max_extension_bytes`] at most. None behind the end, and after an error.
    pub fn wants(&self) -> Range<u64> {
        let len = match self.state {
            State::Extension { size, .. } => size,
            State::Done => 0,
            _ => BLOCK,
        };
        self.offset..self.offset.saturating_add(len as u64)
    }

    /// Takes the bytes that it [`wants`](TarParser::wants).
    ///
    /// # Errors
    /// `Corrupt` where they are no tar header, contradict one another, or can be understood in two
    /// ways; `LimitExceeded` for a header with more data than is allowed; `InvalidArgument` where
    /// they are not as many as were wanted. There is no going on after an error.
    pub fn supply(&mut self, bytes: &[u8]) -> Result<TarEvent> {
        let wanted = self.wants();
        let len = wanted.end - wanted.start;
        if bytes.len() as u64 != len {
            let message = format!("{} bytes of an archive were given for {len}", bytes.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        match std::mem::replace(&mut self.state, State::Done) {
            State::Header => self.header(block(bytes)?),
            State::SecondZeroBlock => self.behind_zero_block(block(bytes)?),
            State::BehindEnd => self.behind_end(bytes),
            State::Extension { flag, size } => self.extension(flag, size, bytes),
            State::SparseMap(entry) => self.sparse_map(entry, bytes),
            State::Done => Ok(TarEvent::End),
        }
    }

    /// Takes what there is of the bytes that it [`wants`](TarParser::wants), where the archive ends
    /// before the last of them.
    ///
    /// # Errors
    /// `Truncated` where the archive may not end here: within a header or before a member, and
    /// without the end marker unless [`TarOptions::accept_missing_end`] says so.
    pub fn finish(&mut self, rest: &[u8]) -> Result<()> {
        let end = self.offset.saturating_add(rest.len() as u64);
        let truncated = |message: &str| {
            Err(Error::new(ErrorKind::Truncated, message.to_owned()).with_offset(end))
        };
        match std::mem::replace(&mut self.state, State::Done) {
            State::Done => Ok(()),
            State::Extension { .. } => truncated("the archive ends inside an extended header"),
            State::SparseMap(_) => truncated("the archive ends inside the map of a sparse file"),
            State::SecondZeroBlock | State::BehindEnd => {
                self.behind_end(rest)?;
                self.state = State::Done;
                Ok(())
            }
            State::Header if !is_zero(rest) => truncated("the archive ends inside a header"),
            State::Header if self.pending.start.is_some() => {
                truncated("the archive ends before the member that its last header belongs to")
            }
            State::Header if self.options.accepts_missing_end() => Ok(()),
            State::Header => truncated(
                "the archive ends without its end marker, so it may be cut; copy it again from \
                 where it came",
            ),
        }
    }

    fn header(&mut self, block: &[u8; BLOCK]) -> Result<TarEvent> {
        let offset = self.offset;
        if is_zero(block) {
            if let Some(start) = self.pending.start {
                let message = "the archive ends before the member that this header belongs to";
                return Err(corrupt(message, start));
            }
            self.offset = self.behind(offset, BLOCK as u64)?;
            self.state = match self.options.behind_end() {
                AfterEnd::Continue => {
                    // That there was a marker is enough.
                    self.options = self.options.accept_missing_end(true);
                    State::Header
                }
                AfterEnd::Ignore | AfterEnd::Refuse => State::SecondZeroBlock,
            };
            return Ok(TarEvent::More);
        }
        let header = Header::parse(block, offset)?;
        let data = self.behind(offset, BLOCK as u64)?;
        let flag = header.type_flag();
        if let b'x' | b'X' | b'g' | b'L' | b'K' = flag {
            let size = header.size()?;
            let limit = self.options.extension_limit();
            if size > limit as u64 {
                let message = format!("an extended header holds {size} bytes, of {limit} allowed");
                return Err(Error::new(ErrorKind::LimitExceeded, message).with_offset(offset));
            }
            if flag != b'g' {
                self.pending.start.get_or_insert(offset);
            }
            self.offset = data;
            self.state = State::Extension { flag, size: size as usize };
            return Ok(TarEvent::More);
        }
        let entry = self.entry(&header, data)?;
        if flag == b'S' && header.has_more_sparse_map() {
            self.offset = data;
            self.state = State::SparseMap(entry);
            return Ok(TarEvent::More);
        }
        self.member(entry)
    }

    /// Puts together what is said of a member, whose data start at `data_offset`.
    fn entry(&mut self, header: &Header<'_>, data_offset: u64) -> Result<TarEntry> {
        let offset = self.offset;
        let pending = std::mem::take(&mut self.pending);
        let local = pending.extended.unwrap_or_default();
        let path = said(&local.path, &self.global.path);
        let link_path = said(&local.link_path, &self.global.link_path);
        agree(path, pending.long_name.as_ref(), "name", offset)?;
        agree(link_path, pending.long_link.as_ref(), "link target", offset)?;
        let is_sparse = local.is_sparse || self.global.is_sparse;
        let sparse_name = said(&local.sparse_name, &self.global.sparse_name);

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
            // How folders were told before there was a letter for them.
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
        let said_size = said(&local.size, &self.global.size).copied();
        let size = size_of_data(header, said_size, kind, offset)
            .map_err(|error| error.with_key(key.display_name()))?;
        let link_target = match kind {
            TarKind::HardLink | TarKind::SymbolicLink => {
                let long = link_path.or(pending.long_link.as_ref());
                Some(Key::from_bytes(long.map_or(header.link_target(), |name| name)))
            }
            _ => None,
        };
        let said_mtime = local.mtime.or(self.global.mtime);
        Ok(TarEntry {
            key,
            kind,
            link_target,
            size,
            header_offset: pending.start.unwrap_or(offset),
            data_offset,
            mtime: said_mtime.unwrap_or_else(|| header.mtime()),
        })
    }

    /// Goes on behind a member's data.
    fn member(&mut self, entry: TarEntry) -> Result<TarEvent> {
        self.offset = self.behind_data(entry.data_offset, entry.size)?;
        self.state = State::Header;
        Ok(TarEvent::Entry(entry))
    }

    fn sparse_map(&mut self, mut entry: TarEntry, block: &[u8]) -> Result<TarEvent> {
        self.offset = self.behind(self.offset, BLOCK as u64)?;
        entry.data_offset = self.offset;
        if block.get(504).is_some_and(|&more| more != 0) {
            self.state = State::SparseMap(entry);
            return Ok(TarEvent::More);
        }
        self.member(entry)
    }

    fn extension(&mut self, flag: u8, size: usize, data: &[u8]) -> Result<TarEvent> {
        let offset = self.offset;
        match flag {
            b'g' => self.global.add(data, offset, Repeats::Replace)?,
            b'L' => put_name(&mut self.pending.long_name, data, "name", offset)?,
            b'K' => put_name(&mut self.pending.long_link, data, "link target", offset)?,
            _ => {
                let extended = self.pending.extended.get_or_insert_default();
                extended.add(data, offset, Repeats::MustAgree)?;
            }
        }
        self.offset = self.behind_data(offset, size as u64)?;
        self.state = State::Header;
        Ok(TarEvent::More)
    }

    fn behind_zero_block(&mut self, block: &[u8; BLOCK]) -> Result<TarEvent> {
        if !is_zero(block) && self.options.behind_end() == AfterEnd::Refuse {
            let message = "a zero block, and then more: the end marker is two zero blocks";
            return Err(corrupt(message, self.offset));
        }
        self.behind_end(block)
    }

    fn behind_end(&mut self, bytes: &[u8]) -> Result<TarEvent> {
        if self.options.behind_end() != AfterEnd::Refuse {
            return Ok(TarEvent::End);
        }
        if let Some(at) = bytes.iter().position(|&byte| byte != 0) {
            let offset = self.offset + at as u64;
            return Err(corrupt("there are bytes behind the end marker", offset));
        }
        self.offset = self.behind(self.offset, bytes.len() as u64)?;
        self.state = State::BehindEnd;
        Ok(TarEvent::More)
    }

    /// The offset so many bytes on.
    fn behind(&self, offset: u64, len: u64) -> Result<u64> {
        offset.checked_add(len).ok_or_else(|| {
            corrupt(format!("{len} bytes of data end where no file does"), self.offset)
        })
    }

    /// The offset of the block behind so many bytes of data.
    fn behind_data(&self, offset: u64, len: u64) -> Result<u64> {
        let end = self.behind(offset, len)?;
        let padding = (BLOCK as u64 - end % BLOCK as u64) % BLOCK as u64;
        self.behind(end, padding)
    }
}

/// The value of the member's own extended header, or else that of the global ones.
fn said<'a, T>(local: &'a Said<T>, global: &'a Said<T>) -> Option<&'a T> {
    local.as_ref().or(global.as_ref()).and_then(Option::as_ref)
}

/// How many bytes of data lie behind a header.
///
/// Programs disagree on whether the size counts where a member has no data by its kind: those that
/// skip them and those that do not go on at different places, and see different members.
fn size_of_data(header: &Header<'_>, said: Option<u64>, kind: TarKind, offset: u64) -> Result<u64> {
    let in_header = header.size()?;
    let size = said.unwrap_or(in_header);
    match kind {
        // Here they agree: old programs note how much room a folder takes, and GNU's `D` has data.
        TarKind::Directory if header.type_flag() == b'5' => Ok(0),
        TarKind::HardLink if said.is_none_or(|size| size == 0) => Ok(0),
        TarKind::HardLink
        | TarKind::SymbolicLink
        | TarKind::CharacterDevice
        | TarKind::BlockDevice
        | TarKind::Fifo
            if size != 0 =>
        {
            let message = format!(
                "{kind} with {size} bytes of data: where the next member starts is ambiguous"
            );
            Err(corrupt(message, offset))
        }
        TarKind::Directory if header.type_flag() == 0 && size != 0 => {
            let message = format!(
                "a folder with {size} bytes of data: where the next member starts is ambiguous"
            );
            Err(corrupt(message, offset))
        }
        // A size that the header's field can hold is written there, or left out.
        _ if said.is_some_and(|said| in_header != 0 && in_header != said && said < 1 << 33) => {
            let message = format!(
                "its header says {in_header} bytes of data, its extended header {size}: \
                 where the next member starts is ambiguous"
            );
            Err(corrupt(message, offset))
        }
        _ => Ok(size),
    }
}

/// Refuses two names for one thing: an extended header's and one of GNU.
fn agree(
    extended: Option<&Vec<u8>>,
    long: Option<&Vec<u8>>,
    what: &str,
    offset: u64,
) -> Result<()> {
    match (extended, long) {
        (Some(extended), Some(long)) if extended != long => {
            let (extended, long) = (extended.escape_ascii(), long.escape_ascii());
            let message = format!("a member has two {what}s, \"{extended}\" and \"{long}\"");
            Err(corrupt(message, offset))
        }
        _ => Ok(()),
    }
}

/// Takes the data of a header that holds a long name.
fn put_name(slot: &mut Option<Vec<u8>>, data: &[u8], what: &str, offset: u64) -> Result<()> {
    let name = until_zero(data);
    if name.is_empty() {
        return Err(corrupt(format!("a long {what} is empty"), offset));
    }
    agree(slot.as_ref(), Some(&name.to_vec()), what, offset)?;
    *slot = Some(name.to_vec());
    Ok(())
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// The block that was asked for.
fn block(bytes: &[u8]) -> Result<&[u8; BLOCK]> {
    bytes.try_into().map_err(|_| {
        let message = format!("{} bytes are no block", bytes.len());
        Error::new(ErrorKind::Internal, message)
    })
}
