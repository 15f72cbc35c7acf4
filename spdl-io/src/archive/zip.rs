//! Zip archives, member by member in any order, by their central directory.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use crate::{Fetcher, Key};

/// The record at the end of an archive, without its comment.
const END: usize = 22;
const END_SIGNATURE: u32 = 0x0605_4B50;
/// What says where the record with numbers of 64 bits is; it stands right before the end.
const LOCATOR: usize = 20;
const LOCATOR_SIGNATURE: u32 = 0x0706_4B50;
const END_64: usize = 56;
const END_64_SIGNATURE: u32 = 0x0606_4B50;
/// A record of the central directory, without name, extra fields and comment.
const CENTRAL: usize = 46;
const CENTRAL_SIGNATURE: u32 = 0x0201_4B50;
/// A header before a member's data, without name and extra fields.
const LOCAL: usize = 30;
const LOCAL_SIGNATURE: u32 = 0x0403_4B50;
/// How much of an archive's end may have to be looked at: the longest comment, and what is before.
const TAIL: u64 = (LOCATOR + END + 0xFFFF + END_64) as u64;
/// No deflated byte stands for more than this many.
const MAX_DEFLATE_RATIO: u64 = 1_032;

/// One member of a zip archive, as the central directory describes it.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZipEntry {
    /// Its name in UTF-8; that of old archives is decoded from code page 437. It may be absolute, or
    /// climb with `..`, and is never used as a path here.
    pub key: Key,
    /// What it is.
    pub kind: ZipKind,
    /// The length of its data in bytes.
    pub size: u64,
    /// Their length in the archive in bytes.
    pub compressed_size: u64,
    /// Where in the archive its local header starts.
    pub header_offset: u64,
    /// How the data are stored.
    pub method: ZipMethod,
    /// Whether they are encrypted. Reading them is `Unsupported`.
    pub is_encrypted: bool,
    crc32: u32,
    /// The name as stored.
    raw_name: Bytes,
    /// Where the next member, or the directory, starts.
    limit: u64,
}

/// What a member of a zip archive is.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZipKind {
    /// A file with its data.
    File,
    /// A folder: its name ends with a slash.
    Directory,
    /// A link by name, which is its data.
    SymbolicLink,
}

/// How the data of a member are stored.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZipMethod {
    /// As they are.
    Stored,
    /// By DEFLATE.
    Deflated,
    /// By another method, of this number. Reading them is `Unsupported`.
    Other(u16),
}

/// What a reader of zip archives allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZipOptions {
    max_directory_bytes: u64,
    max_file_bytes: u64,
}

impl Default for ZipOptions {
    /// 256 MiB for the central directory, 1 GiB for a file.
    fn default() -> Self {
        ZipOptions { max_directory_bytes: 256 << 20, max_file_bytes: 1 << 30 }
    }
}

impl ZipOptions {
    /// The most bytes of the central directory, of which there are 46 and a name for each member.
    /// Default: 256 MiB.
    #[must_use]
    pub fn max_directory_bytes(mut self, max_directory_bytes: u64) -> Self {
        self.max_directory_bytes = max_directory_bytes;
        self
    }

    /// The most bytes of one file that is read into memory, once decompressed. Default: 1 GiB.
    #[must_use]
    pub fn max_file_bytes(mut self, max_file_bytes: u64) -> Self {
        self.max_file_bytes = max_file_bytes;
        self
    }
}

/// The members of a zip archive, wherever it lies: only its directory is read.
///
/// Members that overlap, lie behind the directory, or are more or fewer than the archive says, make
/// the whole archive `Corrupt`.
///
/// ```
/// use spdl_io::archive::{ZipDirectory, ZipOptions};
/// # let mut archive = b"PK\x05\x06".to_vec();
/// # archive.resize(22, 0);
/// # let archive = bytes::Bytes::from(archive);
/// let read = |range: std::ops::Range<u64>| Ok(archive.slice(range.start as usize..range.end as usize));
/// let directory = ZipDirectory::read(archive.len() as u64, ZipOptions::default(), read)?;
/// for entry in directory.entries() {
///     println!("{}: bytes {:?}", entry.key, directory.stored_range(entry, read)?);
/// }
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct ZipDirectory {
    entries: Vec<ZipEntry>,
    by_name: HashMap<Key, usize>,
    options: ZipOptions,
}

impl ZipDirectory {
    /// Reads the directory of an archive of `len` bytes. `read` is asked for parts of it.
    ///
    /// # Errors
    /// As [`ZipSlice::new`], and what `read` answers.
    pub fn read(
        len: u64,
        options: ZipOptions,
        mut read: impl FnMut(Range<u64>) -> Result<Bytes>,
    ) -> Result<Self> {
        let tail = tail(len);
        let end = End::find(&read(tail.clone())?, tail.start, len)?;
        let end = match end.far_record() {
            Some(range) => end.with_record(&read(range.clone())?, range.start)?,
            None => end,
        };
        let range = end.directory(&options)?;
        ZipDirectory::parse(&read(range.clone())?, &end, range, options)
    }

    /// The members, in the order of the directory.
    pub fn entries(&self) -> &[ZipEntry] {
        &self.entries
    }

    /// The member with this name; of several, the last.
    pub fn find(&self, name: &Key) -> Option<&ZipEntry> {
        self.entries.get(*self.by_name.get(name)?)
    }

    /// Where in the archive the data of a member are, as they are stored. `read` is asked for the
    /// header in front of them. Nobody has compared them with [`ZipEntry::crc32`] then.
    ///
    /// # Errors
    /// As [`ZipSlice::data`], and what `read` answers.
    pub fn stored_range(
        &self,
        entry: &ZipEntry,
        mut read: impl FnMut(Range<u64>) -> Result<Bytes>,
    ) -> Result<Range<u64>> {
        let span = entry.check(&self.options)?;
        let header = span.start + (LOCAL + entry.raw_name.len()) as u64;
        let start = entry.check_local(&read(span.start..header.min(span.end))?)?;
        let start = span.start + start as u64;
        let end = start.checked_add(entry.compressed_size).filter(|&end| end <= span.end);
        let end =
            end.ok_or_else(|| entry.corrupt("reaches into the next member or the directory"))?;
        Ok(start..end)
    }

    /// The data of a member, decompressed. `read` is asked for their part of the archive.
    ///
    /// # Errors
    /// As [`ZipSlice::data`], and what `read` answers.
    pub fn data(
        &self,
        entry: &ZipEntry,
        mut read: impl FnMut(Range<u64>) -> Result<Bytes>,
    ) -> Result<Bytes> {
        entry.extract(read(entry.check(&self.options)?)?)
    }
}

/// A zip archive in memory.
///
/// ```
/// use spdl_io::archive::ZipSlice;
/// # let mut bytes = b"PK\x05\x06".to_vec();
/// # bytes.resize(22, 0);
/// let archive = ZipSlice::new(bytes)?;
/// for entry in archive.entries() {
///     println!("{}: {} bytes", entry.key, archive.data(entry)?.len());
/// }
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct ZipSlice {
    archive: Bytes,
    directory: ZipDirectory,
}

impl ZipSlice {
    /// Reads the directory of an archive, within default limits.
    ///
    /// # Errors
    /// `Corrupt` and `Truncated` where this is no zip archive or its directory is damaged;
    /// `Unsupported` for one in several parts; `LimitExceeded`.
    pub fn new(archive: impl Into<Bytes>) -> Result<Self> {
        ZipSlice::with_options(archive, ZipOptions::default())
    }

    /// Reads the directory of an archive.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_options(archive: impl Into<Bytes>, options: ZipOptions) -> Result<Self> {
        let archive = archive.into();
        let read = |range| part(&archive, range);
        let directory = ZipDirectory::read(archive.len() as u64, options, read)?;
        Ok(ZipSlice { archive, directory })
    }

    /// The members, in the order of the directory.
    pub fn entries(&self) -> &[ZipEntry] {
        &self.directory.entries
    }

    /// The member with this name; of several, the last.
    pub fn find(&self, name: &Key) -> Option<&ZipEntry> {
        self.directory.find(name)
    }

    /// The data of a member of this archive: a part of it where they are stored as they are.
    ///
    /// # Errors
    /// `Corrupt` where they contradict their checksum, their size or the directory; `Unsupported`
    /// where they are encrypted, or compressed by something else than DEFLATE; `LimitExceeded` for a
    /// file larger than [`ZipOptions::max_file_bytes`].
    pub fn data(&self, entry: &ZipEntry) -> Result<Bytes> {
        let behind = |_| entry.corrupt("lies behind the end of the archive");
        self.directory.data(entry, |range| part(&self.archive, range).map_err(behind))
    }
}

/// A part of an archive in memory.
fn part(archive: &Bytes, range: Range<u64>) -> Result<Bytes> {
    match (usize::try_from(range.start), usize::try_from(range.end)) {
        (Ok(start), Ok(end)) if start <= end && end <= archive.len() => {
            Ok(archive.slice(start..end))
        }
        _ => Err(corrupt("the archive ends before that", archive.len() as u64)),
    }
}

impl fmt::Debug for ZipSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZipSlice({} members)", self.entries().len())
    }
}

/// A zip archive that a [`Fetcher`] reads by ranges: its directory, and those members that are asked
/// for, each by one request.
#[derive(Debug)]
pub struct ZipRanges {
    fetcher: Arc<dyn Fetcher>,
    key: Key,
    directory: ZipDirectory,
}

impl ZipRanges {
    /// Reads the directory of the archive that is stored under `key` and holds `len` bytes.
    ///
    /// # Errors
    /// As [`ZipSlice::new`], and what the fetcher answers.
    pub async fn open(
        fetcher: Arc<dyn Fetcher>,
        key: Key,
        len: u64,
        options: ZipOptions,
    ) -> Result<Self> {
        let named = |error: Error| error.with_key(key.display_name());
        let tail = tail(len);
        let bytes = fetch(&*fetcher, &key, tail.clone()).await?;
        let end = End::find(&bytes, tail.start, len).map_err(named)?;
        let end = match end.far_record() {
            Some(range) => {
                let bytes = fetch(&*fetcher, &key, range.clone()).await?;
                end.with_record(&bytes, range.start).map_err(named)?
            }
            None => end,
        };
        let range = end.directory(&options).map_err(named)?;
        let bytes = if tail.start <= range.start {
            let at = |offset: u64| (offset - tail.start) as usize;
            bytes.slice(at(range.start)..at(range.end))
        } else {
            fetch(&*fetcher, &key, range.clone()).await?
        };
        let directory = ZipDirectory::parse(&bytes, &end, range, options).map_err(named)?;
        Ok(ZipRanges { fetcher, key, directory })
    }

    /// The members, in the order of the directory.
    pub fn entries(&self) -> &[ZipEntry] {
        &self.directory.entries
    }

    /// The member with this name; of several, the last.
    pub fn find(&self, name: &Key) -> Option<&ZipEntry> {
        self.directory.find(name)
    }

    /// The data of a member of this archive. They are decompressed where the future is polled.
    ///
    /// # Errors
    /// As [`ZipSlice::data`], and what the fetcher answers.
    pub async fn data(&self, entry: &ZipEntry) -> Result<Bytes> {
        let range = entry.check(&self.directory.options)?;
        entry.extract(fetch(&*self.fetcher, &self.key, range).await?)
    }
}

async fn fetch(fetcher: &dyn Fetcher, key: &Key, range: Range<u64>) -> Result<Bytes> {
    let wanted = range.end - range.start;
    let bytes = fetcher.read(key, Some(range)).await?;
    if bytes.len() as u64 != wanted {
        let message = format!("{} bytes came for a range of {wanted}", bytes.len());
        return Err(Error::new(ErrorKind::Io, message).with_key(key.display_name()));
    }
    Ok(bytes)
}

impl fmt::Debug for ZipDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZipDirectory({} members)", self.entries.len())
    }
}

/// Numbers of a record, least byte first. What is not there is 0: lengths are checked before.
fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let bytes = bytes.get(at..at + len).unwrap_or_default();
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    number(bytes, at, 2) as u16
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    number(bytes, at, 4) as u32
}

fn corrupt(message: impl Into<String>, offset: u64) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_offset(offset)
}

/// The part of an archive of this length that holds its end.
fn tail(len: u64) -> Range<u64> {
    len.saturating_sub(TAIL)..len
}

/// What the end of an archive says of its directory.
#[derive(Clone, Debug)]
struct End {
    /// Where the directory ends: where the records of the end start.
    directory_end: u64,
    directory_size: u64,
    /// As stored: counted from the start of the archive, before which there may be other bytes.
    directory_offset: u64,
    count: u64,
    /// Where the record with numbers of 64 bits may be, that has not been seen yet, and what the
    /// short record says.
    far_record: Option<Range<u64>>,
}

impl End {
    /// Looks for the end in the last bytes of an archive, which start at `start`.
    fn find(tail: &[u8], start: u64, len: u64) -> Result<Self> {
        let signature = END_SIGNATURE.to_le_bytes();
        let fits = |&at: &usize| {
            tail[at..].starts_with(&signature)
                && at + END + usize::from(u16_at(tail, at + 20)) <= tail.len()
        };
        let last = tail.len().checked_sub(END);
        let at = last.and_then(|last| (0..=last).rev().find(fits)).ok_or_else(|| {
            let message = "there is no end of a zip archive: this is none, or it is cut";
            Error::new(ErrorKind::Truncated, message).with_offset(len)
        })?;
        let record = &tail[at..];
        let offset = start + at as u64;
        let disks = [u16_at(record, 4), u16_at(record, 6)];
        let counts = [u16_at(record, 8), u16_at(record, 10)];
        if counts[0] != counts[1] || disks.iter().any(|&disk| disk != 0 && disk != 0xFFFF) {
            let message = "a zip archive in several parts";
            return Err(Error::new(ErrorKind::Unsupported, message).with_offset(offset));
        }
        let end = End {
            directory_end: offset,
            directory_size: number(record, 12, 4),
            directory_offset: number(record, 16, 4),
            count: u64::from(counts[1]),
            far_record: None,
        };
        let locator = at.checked_sub(LOCATOR).map(|at| &tail[at..at + LOCATOR]);
        match locator {
            Some(locator) if u32_at(locator, 0) == LOCATOR_SIGNATURE => {
                let locator_offset = offset - LOCATOR as u64;
                if u32_at(locator, 16) > 1 {
                    let message = "a zip archive in several parts";
                    return Err(Error::new(ErrorKind::Unsupported, message).with_offset(offset));
                }
                // Right before the locator, but where it has been extended.
                let near = (at - LOCATOR).checked_sub(END_64).map(|at| &tail[at..at + END_64]);
                match near {
                    Some(near) if u32_at(near, 0) == END_64_SIGNATURE => {
                        end.with_record(near, locator_offset - END_64 as u64)
                    }
                    _ => {
                        let stated = number(locator, 8, 8);
                        let stated_end = stated.checked_add(END_64 as u64);
                        match stated_end.filter(|&end| end <= locator_offset) {
                            Some(stated_end) => {
                                Ok(End { far_record: Some(stated..stated_end), ..end })
                            }
                            None => end.without_record(locator_offset),
                        }
                    }
                }
            }
            _ => Ok(end),
        }
    }

    /// What has to be read for the record with numbers of 64 bits.
    fn far_record(&self) -> Option<Range<u64>> {
        self.far_record.clone()
    }

    /// The short end alone, where what looks like a long one is none. A name may look like it.
    fn without_record(self, offset: u64) -> Result<Self> {
        let needs_it = self.count == 0xFFFF
            || self.directory_size == 0xFFFF_FFFF
            || self.directory_offset == 0xFFFF_FFFF;
        if needs_it {
            return Err(corrupt("the long end of a zip archive is missing", offset));
        }
        Ok(End { far_record: None, ..self })
    }

    /// Takes the record with numbers of 64 bits in, which stands at `offset`.
    fn with_record(self, record: &[u8], offset: u64) -> Result<Self> {
        if record.len() < END_64 || u32_at(record, 0) != END_64_SIGNATURE {
            return self.without_record(offset);
        }
        let end = End {
            directory_end: offset,
            directory_size: number(record, 40, 8),
            directory_offset: number(record, 48, 8),
            count: number(record, 32, 8),
            far_record: None,
        };
        if number(record, 24, 8) != end.count {
            let message = "a zip archive in several parts";
            return Err(Error::new(ErrorKind::Unsupported, message).with_offset(offset));
        }
        // The short record says the same, or that it cannot.
        let agrees = |short: u64, long: u64, cannot: u64| short == long || short == cannot;
        if !agrees(self.count, end.count, 0xFFFF)
            || !agrees(self.directory_size, end.directory_size, 0xFFFF_FFFF)
            || !agrees(self.directory_offset, end.directory_offset, 0xFFFF_FFFF)
        {
            return Err(corrupt("the two ends of a zip archive contradict each other", offset));
        }
        Ok(end)
    }

    /// Where the directory is.
    fn directory(&self, options: &ZipOptions) -> Result<Range<u64>> {
        let start = self.directory_end.checked_sub(self.directory_size);
        let start = start.filter(|&start| start >= self.directory_offset).ok_or_else(|| {
            let message = "the directory of a zip archive does not fit before its end";
            corrupt(message, self.directory_end)
        })?;
        if self.directory_size > options.max_directory_bytes {
            let message = format!(
                "the directory of a zip archive holds {} bytes, of {} allowed",
                self.directory_size, options.max_directory_bytes
            );
            return Err(Error::new(ErrorKind::LimitExceeded, message).with_offset(start));
        }
        Ok(start..self.directory_end)
    }
}

impl ZipDirectory {
    fn parse(bytes: &Bytes, end: &End, range: Range<u64>, options: ZipOptions) -> Result<Self> {
        // What stands before an archive (a program that unpacks it, say) shifts all of it.
        let shift = range.start - end.directory_offset;
        let mut entries = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let offset = range.start + at as u64;
            let record = bytes.slice(at..);
            if record.len() < CENTRAL || u32_at(&record, 0) != CENTRAL_SIGNATURE {
                return Err(corrupt("a record of the zip directory is damaged", offset));
            }
            let lens = [28, 30, 32].map(|at| usize::from(u16_at(&record, at)));
            let len = CENTRAL + lens.iter().sum::<usize>();
            if record.len() < len {
                return Err(corrupt("a record of the zip directory reaches past its end", offset));
            }
            entries.push(central_record(&record.slice(..len), lens, shift, offset)?);
            at += len;
        }
        // The count of the short record goes around at 65,536.
        let count = entries.len() as u64;
        if count != end.count && (count < 0x1_0000 || count & 0xFFFF != end.count) {
            let message = format!("a zip archive of {} members lists {count}", end.count);
            return Err(corrupt(message, range.start));
        }
        check_overlap(&mut entries, range.start)?;
        let by_name =
            entries.iter().enumerate().map(|(at, entry)| (entry.key.clone(), at)).collect();
        Ok(ZipDirectory { entries, by_name, options })
    }
}

/// Refuses members that lie in each other, and finds out where each ends at most.
fn check_overlap(entries: &mut [ZipEntry], directory: u64) -> Result<()> {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_unstable_by_key(|&at| std::cmp::Reverse(entries[at].header_offset));
    let mut limit = directory;
    for at in order {
        let entry = &mut entries[at];
        let least = (LOCAL + entry.raw_name.len()) as u64;
        let end = entry.header_offset.checked_add(least);
        let end = end.and_then(|end| end.checked_add(entry.compressed_size));
        if end.is_none_or(|end| end > limit) {
            return Err(entry.corrupt("reaches into the next member or the directory"));
        }
        entry.limit = limit;
        limit = entry.header_offset;
    }
    Ok(())
}

/// Reads one record of the central directory, which stands at `offset`.
fn central_record(
    record: &Bytes,
    [name_len, extra_len, _]: [usize; 3],
    shift: u64,
    offset: u64,
) -> Result<ZipEntry> {
    let raw_name = record.slice(CENTRAL..CENTRAL + name_len);
    let extra = &record[CENTRAL + name_len..CENTRAL + name_len + extra_len];
    let extra = extra_fields(extra, offset)?;
    let flags = u16_at(record, 8);
    if flags & 1 << 13 != 0 {
        let message = "a zip archive with an encrypted directory";
        return Err(Error::new(ErrorKind::Unsupported, message).with_offset(offset));
    }
    let key = name_of(&raw_name, &extra, flags & 1 << 11 != 0, offset)?;
    let mut sizes = [number(record, 24, 4), number(record, 20, 4), number(record, 42, 4)];
    let mut disk = u64::from(u16_at(record, 34));
    let too_short = || corrupt("a zip member lacks its sizes of 64 bits", offset);
    if sizes.contains(&0xFFFF_FFFF) || disk == 0xFFFF {
        // Those that do not fit stand here, in this order.
        let mut long = field_of(&extra, 1).ok_or_else(too_short)?;
        let mut next = |len: usize| {
            let (value, rest) = long.split_at_checked(len)?;
            long = rest;
            Some(number(value, 0, len))
        };
        for size in sizes.iter_mut().filter(|size| **size == 0xFFFF_FFFF) {
            *size = next(8).ok_or_else(too_short)?;
        }
        if disk == 0xFFFF {
            disk = next(4).ok_or_else(too_short)?;
        }
    }
    if disk != 0 {
        let message = "a zip archive in several parts";
        return Err(Error::new(ErrorKind::Unsupported, message).with_offset(offset));
    }
    let [size, compressed_size, header_offset] = sizes;
    // Unix keeps the mode of a file here.
    let is_of_unix = record[5] == 3;
    let is_link = is_of_unix && u32_at(record, 38) >> 28 == 0o12;
    let kind = match (key.as_bytes().last(), is_link) {
        (Some(b'/'), _) => ZipKind::Directory,
        (_, true) => ZipKind::SymbolicLink,
        _ => ZipKind::File,
    };
    let header_offset = header_offset
        .checked_add(shift)
        .ok_or_else(|| corrupt("a zip member starts where no file goes", offset))?;
    Ok(ZipEntry {
        key,
        kind,
        size,
        compressed_size,
        header_offset,
        method: match u16_at(record, 10) {
            0 => ZipMethod::Stored,
            8 => ZipMethod::Deflated,
            other => ZipMethod::Other(other),
        },
        is_encrypted: flags & 1 != 0,
        crc32: u32_at(record, 16),
        raw_name,
        limit: 0,
    })
}

/// The extra fields of a record: numbers and contents.
fn extra_fields(mut extra: &[u8], offset: u64) -> Result<Vec<(u16, &[u8])>> {
    let mut fields = Vec::new();
    // Fewer bytes than a field has fill some archives up.
    while extra.len() >= 4 {
        let (id, len) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
        let content = extra.get(4..4 + len).ok_or_else(|| {
            corrupt(format!("an extra field ({id:#06x}) of a zip member is cut"), offset)
        })?;
        fields.push((id, content));
        extra = &extra[4 + len..];
    }
    Ok(fields)
}

/// The content of the first extra field with this number.
fn field_of<'a>(fields: &[(u16, &'a [u8])], wanted: u16) -> Option<&'a [u8]> {
    fields.iter().find(|(id, _)| *id == wanted).map(|(_, content)| *content)
}

/// The name in UTF-8: as stored, from the field that gives it for old programs' sake, or from code
/// page 437.
fn name_of(raw: &[u8], extra: &[(u16, &[u8])], is_utf8: bool, offset: u64) -> Result<Key> {
    let utf8 = match field_of(extra, 0x7075) {
        _ if is_utf8 => Some(raw),
        // It belongs to the name whose checksum it has.
        Some([1, rest @ ..]) if rest.len() >= 4 && u32_at(rest, 0) == crc32(raw) => {
            Some(&rest[4..])
        }
        _ => None,
    };
    if utf8.unwrap_or(raw).contains(&0) {
        // Some programs would end it there, and others not.
        return Err(corrupt("the name of a zip member holds a zero byte", offset));
    }
    if let Some(utf8) = utf8 {
        return std::str::from_utf8(utf8).map(Key::from).map_err(|_| {
            corrupt("the name of a zip member is said to be UTF-8, and is not", offset)
        });
    }
    let decode = |&byte: &u8| match byte {
        0..=0x7F => char::from(byte),
        _ => CODE_PAGE_437.chars().nth(usize::from(byte) - 0x80).unwrap_or('\u{FFFD}'),
    };
    Ok(Key::from(raw.iter().map(decode).collect::<String>()))
}

/// The upper half of code page 437.
const CODE_PAGE_437: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐\
    └┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{A0}";

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

impl ZipEntry {
    /// The checksum that the data should have, once decompressed: CRC-32.
    pub fn crc32(&self) -> u32 {
        self.crc32
    }

    fn corrupt(&self, message: impl Into<String>) -> Error {
        corrupt(message, self.header_offset).with_key(self.key.display_name())
    }

    /// What has to be read for the data: the local header and all that may belong to it.
    fn check(&self, options: &ZipOptions) -> Result<Range<u64>> {
        let refuse = |kind: ErrorKind, message: String| {
            let error = Error::new(kind, message).with_key(self.key.display_name());
            Err(error.with_offset(self.header_offset))
        };
        if self.is_encrypted {
            return refuse(ErrorKind::Unsupported, "is encrypted".to_owned());
        }
        if self.size > options.max_file_bytes {
            let limit = options.max_file_bytes;
            let message = format!("holds {} bytes, but at most {limit} are allowed", self.size);
            return refuse(ErrorKind::LimitExceeded, message);
        }
        let can_be = match self.method {
            ZipMethod::Stored => self.size == self.compressed_size,
            ZipMethod::Deflated => {
                self.size <= self.compressed_size.saturating_mul(MAX_DEFLATE_RATIO)
            }
            ZipMethod::Other(method) => {
                let message = format!("is compressed by method {method}, which is not known here");
                return refuse(ErrorKind::Unsupported, message);
            }
        };
        if !can_be {
            let (size, compressed) = (self.size, self.compressed_size);
            let message = format!("cannot be {size} bytes, stored as {compressed}");
            return Err(self.corrupt(message));
        }
        let most = (LOCAL + self.raw_name.len() + 0xFFFF) as u64 + self.compressed_size;
        Ok(self.header_offset..self.limit.min(self.header_offset.saturating_add(most)))
    }

    /// Takes the data out of the part of the archive that [`check`](Self::check) asked for.
    fn extract(&self, span: Bytes) -> Result<Bytes> {
        let start = self.check_local(&span)?;
        let compressed = usize::try_from(self.compressed_size).ok();
        let end = compressed.and_then(|len| start.checked_add(len));
        let end = end
            .filter(|&end| end <= span.len())
            .ok_or_else(|| self.corrupt("reaches into the next member or the directory"))?;
        let stored = span.slice(start..end);
        let data = match self.method {
            ZipMethod::Deflated => self.inflate(&stored)?,
            _ => stored,
        };
        let crc = crc32(&data);
        if crc != self.crc32 {
            let message = format!("has the checksum {crc:08x} and should have {:08x}", self.crc32);
            return Err(self.corrupt(message));
        }
        Ok(data)
    }

    /// Compares the local header with the directory. Returns where the data start.
    fn check_local(&self, span: &[u8]) -> Result<usize> {
        if span.len() < LOCAL || u32_at(span, 0) != LOCAL_SIGNATURE {
            return Err(self.corrupt("has no local header where the directory says"));
        }
        let (name_len, extra_len) = (usize::from(u16_at(span, 26)), usize::from(u16_at(span, 28)));
        let flags = u16_at(span, 6);
        let method = match self.method {
            ZipMethod::Stored => 0,
            ZipMethod::Deflated => 8,
            ZipMethod::Other(other) => other,
        };
        if span.get(LOCAL..LOCAL + name_len) != Some(&self.raw_name[..]) {
            return Err(self.corrupt("has another name in its local header"));
        }
        if u16_at(span, 8) != method || (flags & 1 != 0) != self.is_encrypted {
            return Err(self.corrupt("is stored otherwise by its local header"));
        }
        // Where data were written before their size was known, it stands behind them.
        let is_behind = flags & 1 << 3 != 0;
        let values = [
            (number(span, 14, 4), u64::from(self.crc32), false),
            (number(span, 18, 4), self.compressed_size, true),
            (number(span, 22, 4), self.size, true),
        ];
        for (local, central, may_be_long) in values {
            let agrees = local == central
                || (is_behind && local == 0)
                || (may_be_long && local == 0xFFFF_FFFF);
            if !agrees {
                return Err(self.corrupt("has another size or checksum in its local header"));
            }
        }
        Ok(LOCAL + name_len + extra_len)
    }

    fn inflate(&self, stored: &[u8]) -> Result<Bytes> {
        let no_memory = || {
            let message = format!("cannot get memory for {} bytes", self.size);
            Error::new(ErrorKind::LimitExceeded, message).with_key(self.key.display_name())
        };
        let len = usize::try_from(self.size).map_err(|_| no_memory())?;
        let mut data = Vec::new();
        // One byte more shows that there is more.
        data.try_reserve_exact(len + 1).map_err(|_| no_memory())?;
        let mut inflate = flate2::Decompress::new(false);
        let status = inflate.decompress_vec(stored, &mut data, flate2::FlushDecompress::Finish);
        match status {
            Ok(flate2::Status::StreamEnd)
                if data.len() == len && inflate.total_in() == stored.len() as u64 =>
            {
                Ok(data.into())
            }
            Ok(_) => Err(self.corrupt(format!("does not decompress to {len} bytes"))),
            Err(error) => Err(self.corrupt("cannot be decompressed").with_source(error)),
        }
    }
}
