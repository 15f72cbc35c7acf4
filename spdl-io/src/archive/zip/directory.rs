//! [`ZipDirectory`]: the central directory of a zip archive.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use super::end::{EndRecord, tail};
use super::entry::{LOCAL, OVERLAP, ZipEntry, ZipKind, ZipMethod, ZipOptions};
use super::numbers::{corrupt, crc32, number, u16_at, u32_at};
use crate::fetch::Key;

/// The size of a central directory record without name, extra fields and comment, in bytes.
const CENTRAL: usize = 46;
const CENTRAL_SIGNATURE: u32 = 0x0201_4B50;

/// The members of a zip archive. Only the central directory is read.
///
/// Reading fails with `Corrupt` if members overlap each other or the central directory. The same
/// applies if the end-of-central-directory record states another number of members.
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
    pub(super) entries: Vec<ZipEntry>,
    by_name: HashMap<Key, usize>,
    pub(super) options: ZipOptions,
}

impl ZipDirectory {
    /// Reads the central directory of an archive of `len` bytes. `read` returns byte ranges of the
    /// archive.
    ///
    /// # Errors
    /// The errors of [`ZipSlice::new`](super::ZipSlice::new) and of `read`.
    pub fn read(
        len: u64,
        options: ZipOptions,
        mut read: impl FnMut(Range<u64>) -> Result<Bytes>,
    ) -> Result<Self> {
        let tail = tail(len);
        let end = EndRecord::find(&read(tail.clone())?, tail.start, len)?;
        let end = match end.far_record() {
            Some(range) => end.with_record(&read(range.clone())?, range.start)?,
            None => end,
        };
        let range = end.directory(&options)?;
        ZipDirectory::parse(&read(range.clone())?, &end, range, options)
    }

    /// The members, in the order of the central directory.
    pub fn entries(&self) -> &[ZipEntry] {
        &self.entries
    }

    /// The last member with this name.
    pub fn find(&self, name: &Key) -> Option<&ZipEntry> {
        self.entries.get(*self.by_name.get(name)?)
    }

    /// The byte range of the data of a member as stored, which may be compressed. `read` returns
    /// byte ranges of the archive, and is called for the local header only. The checksum
    /// [`ZipEntry::crc32`] is not verified.
    ///
    /// # Errors
    /// The errors of [`ZipSlice::data`](super::ZipSlice::data) and of `read`.
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
        let end = end.ok_or_else(|| entry.corrupt(OVERLAP))?;
        Ok(start..end)
    }

    /// The uncompressed data of a member. `read` returns byte ranges of the archive.
    ///
    /// # Errors
    /// The errors of [`ZipSlice::data`](super::ZipSlice::data) and of `read`.
    pub fn data(
        &self,
        entry: &ZipEntry,
        mut read: impl FnMut(Range<u64>) -> Result<Bytes>,
    ) -> Result<Bytes> {
        entry.extract(read(entry.check(&self.options)?)?)
    }
}

impl fmt::Debug for ZipDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZipDirectory({} members)", self.entries.len())
    }
}

impl ZipDirectory {
    pub(super) fn parse(
        bytes: &Bytes,
        end: &EndRecord,
        range: Range<u64>,
        options: ZipOptions,
    ) -> Result<Self> {
        // Data before the archive, such as a self-extracting program, shift all offsets.
        let shift = range.start - end.directory_offset;
        let mut entries = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let offset = range.start + at as u64;
            let record = bytes.slice(at..);
            if record.len() < CENTRAL || u32_at(&record, 0) != CENTRAL_SIGNATURE {
                return Err(corrupt("invalid record in the zip central directory", offset));
            }
            let lens = [28, 30, 32].map(|at| usize::from(u16_at(&record, at)));
            let len = CENTRAL + lens.iter().sum::<usize>();
            if record.len() < len {
                return Err(corrupt("a record extends beyond the zip central directory", offset));
            }
            entries.push(central_record(&record.slice(..len), lens, shift, offset)?);
            at += len;
        }
        // The count of the plain record has 16 bits and wraps around.
        let count = entries.len() as u64;
        if count != end.count && (count < 0x1_0000 || count & 0xFFFF != end.count) {
            let message = format!(
                "the zip central directory lists {count} members, but the \
                 end-of-central-directory record states {}",
                end.count
            );
            return Err(corrupt(message, range.start));
        }
        check_overlap(&mut entries, range.start)?;
        let by_name =
            entries.iter().enumerate().map(|(at, entry)| (entry.key.clone(), at)).collect();
        Ok(ZipDirectory { entries, by_name, options })
    }
}

/// Checks that members do not overlap, and sets the limit of each.
fn check_overlap(entries: &mut [ZipEntry], directory: u64) -> Result<()> {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_unstable_by_key(|&at| std::cmp::Reverse(entries[at].header_offset));
    let mut limit = directory;
    for at in order {
        let entry = &mut entries[at];
        let min_header = (LOCAL + entry.raw_name.len()) as u64;
        let end = entry.header_offset.checked_add(min_header);
        let end = end.and_then(|end| end.checked_add(entry.compressed_size));
        if end.is_none_or(|end| end > limit) {
            return Err(entry.corrupt(OVERLAP));
        }
        entry.limit = limit;
        limit = entry.header_offset;
    }
    Ok(())
}

/// Parses the central directory record at `offset`.
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
        let message = "encrypted zip central directories are not supported";
        return Err(Error::new(ErrorKind::Unsupported, message).with_offset(offset));
    }
    let key = name_of(&raw_name, &extra, flags & 1 << 11 != 0, offset)?;
    let mut sizes = [number(record, 24, 4), number(record, 20, 4), number(record, 42, 4)];
    let mut disk = u64::from(u16_at(record, 34));
    let too_short = || corrupt("the Zip64 extra field is missing or too short", offset);
    if sizes.contains(&0xFFFF_FFFF) || disk == 0xFFFF {
        // The Zip64 extra field holds only the values that do not fit, in this order.
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
        let message = "multi-part zip archives are not supported";
        return Err(Error::new(ErrorKind::Unsupported, message).with_offset(offset));
    }
    let [size, compressed_size, header_offset] = sizes;
    // On Unix, the external attributes hold the file mode.
    let is_of_unix = record[5] == 3;
    let is_link = is_of_unix && u32_at(record, 38) >> 28 == 0o12;
    let kind = match (key.as_bytes().last(), is_link) {
        (Some(b'/'), _) => ZipKind::Directory,
        (_, true) => ZipKind::SymbolicLink,
        _ => ZipKind::File,
    };
    let header_offset = header_offset.checked_add(shift).ok_or_else(|| {
        corrupt("offset of a zip member exceeds the range of file offsets", offset)
    })?;
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

/// The extra fields of a record: identifiers and contents.
fn extra_fields(mut extra: &[u8], offset: u64) -> Result<Vec<(u16, &[u8])>> {
    let mut fields = Vec::new();
    // Some archives end with padding shorter than a field header.
    while extra.len() >= 4 {
        let (id, len) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
        let content = extra.get(4..4 + len).ok_or_else(|| {
            corrupt(format!("truncated extra field {id:#06x} of a zip member"), offset)
        })?;
        fields.push((id, content));
        extra = &extra[4 + len..];
    }
    Ok(fields)
}

/// The content of the first extra field with this identifier.
fn field_of<'a>(fields: &[(u16, &'a [u8])], wanted: u16) -> Option<&'a [u8]> {
    fields.iter().find(|(id, _)| *id == wanted).map(|(_, content)| *content)
}

/// The name in UTF-8: as stored, from the Info-ZIP Unicode path extra field, or from code page 437.
fn name_of(raw: &[u8], extra: &[(u16, &[u8])], is_utf8: bool, offset: u64) -> Result<Key> {
    let utf8 = match field_of(extra, 0x7075) {
        _ if is_utf8 => Some(raw),
        // The field is valid if its checksum matches the stored name.
        Some([1, rest @ ..]) if rest.len() >= 4 && u32_at(rest, 0) == crc32(raw) => {
            Some(&rest[4..])
        }
        _ => None,
    };
    if utf8.unwrap_or(raw).contains(&0) {
        // Programs disagree on whether a name ends at a NUL byte.
        return Err(corrupt("NUL byte in the name of a zip member", offset));
    }
    if let Some(utf8) = utf8 {
        return std::str::from_utf8(utf8)
            .map(Key::from)
            .map_err(|_| corrupt("invalid UTF-8 in the name of a zip member", offset));
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
