//! Pages and packets of Ogg. Source of the format: RFC 3533.

use std::ops::Range;

use spdl_core::{Error, ErrorKind, Result};

use crate::audio::codec::truncated;
use crate::audio::crc::Crc;

/// The largest position: 2,900 years of frames at 48 kHz.
const MAX_POSITION: i64 = 1 << 52;
/// The size of a page header without its table of segments.
const HEADER: usize = 27;

/// One page.
#[derive(Clone, Debug)]
pub(super) struct OggPage {
    /// The offset in the file.
    pub(super) start: usize,
    /// The place of the content in the file.
    pub(super) content: Range<usize>,
    /// The place of the table of segments.
    segments: Range<usize>,
    /// The position after the last packet that ends on this page; `None` if none does.
    pub(super) position: Option<i64>,
    pub(super) serial: u32,
    /// The number of the page in its stream.
    pub(super) sequence: u32,
    /// Whether the page continues a packet of the page before.
    pub(super) continues: bool,
    pub(super) is_first: bool,
    pub(super) is_last: bool,
}

impl OggPage {
    /// The page at an offset; `None` at the end of the file.
    ///
    /// # Errors
    /// `Truncated` if the file ends inside the page, `Corrupt` if there is none.
    pub(super) fn read(file: &[u8], start: usize) -> Result<Option<OggPage>> {
        let rest = file.get(start..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        if !rest.starts_with(b"OggS") && !b"OggS".starts_with(rest) {
            return Err(corrupt("expected a page", start));
        }
        let Some(header) = rest.first_chunk::<HEADER>() else { return Err(truncated("Ogg", file)) };
        if header[4] != 0 {
            return Err(corrupt("unknown version of a page", start));
        }
        let segments = start + HEADER..start + HEADER + usize::from(header[26]);
        let Some(table) = file.get(segments.clone()) else { return Err(truncated("Ogg", file)) };
        let size: usize = table.iter().map(|size| usize::from(*size)).sum();
        let content = segments.end..segments.end + size;
        if content.end > file.len() {
            return Err(truncated("Ogg", file));
        }
        let position = i64::from_le_bytes(std::array::from_fn(|byte| header[6 + byte]));
        if !(-1..=MAX_POSITION).contains(&position) {
            return Err(corrupt("invalid position of a page", start));
        }
        let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        Ok(Some(OggPage {
            start,
            content,
            segments,
            position: (position != -1).then_some(position),
            serial: number(14),
            sequence: number(18),
            continues: header[5] & 1 != 0,
            is_first: header[5] & 2 != 0,
            is_last: header[5] & 4 != 0,
        }))
    }

    /// Compares the content with its checksum.
    ///
    /// # Errors
    /// `Corrupt` if it differs.
    pub(super) fn check(&self, file: &[u8]) -> Result<()> {
        let page = &file[self.start..self.content.end];
        let stored: [u8; 4] = std::array::from_fn(|byte| page[22 + byte]);
        static CRC: Crc = Crc::new(0x04C1_1DB7);
        // The checksum itself counts as 0.
        let before = CRC.update(CRC.update(0, &page[..22]), &[0; 4]);
        let crc = CRC.update(before, &page[26..]);
        if crc != u32::from_le_bytes(stored) {
            return Err(corrupt("the checksum of a page differs", self.start));
        }
        Ok(())
    }

    /// The places of the pieces of packets, and whether each piece ends its packet.
    pub(super) fn pieces(&self, file: &[u8]) -> impl Iterator<Item = (Range<usize>, bool)> {
        let mut start = self.content.start;
        let mut end = start;
        let table = &file[self.segments.clone()];
        let count = table.len();
        let pieces = table.iter().enumerate().filter_map(move |(number, &size)| {
            end += usize::from(size);
            let ends = size < 255;
            (ends || number + 1 == count).then(|| {
                let piece = start..end;
                start = end;
                (piece, ends)
            })
        });
        pieces.collect::<Vec<_>>().into_iter()
    }
}

/// The packets of one stream, from a page on.
#[derive(Debug)]
pub(super) struct OggPackets<'a> {
    file: &'a [u8],
    serial: u32,
    /// The offset of the next page, and its number; `None` before the first one.
    next: usize,
    sequence: Option<u32>,
    pieces: std::vec::IntoIter<(Range<usize>, bool)>,
    /// The position of the page of `pieces`, and whether it is the last page.
    position: Option<i64>,
    is_last: bool,
    /// The start of a packet that continues on the next page.
    begun: Vec<u8>,
    has_begun: bool,
}

/// A packet.
#[derive(Debug)]
pub(super) struct OggPacket {
    pub(super) data: Vec<u8>,
    /// The offset of its last piece in the file.
    pub(super) offset: usize,
    /// The position after this packet, if it is the last one that ends on its page.
    pub(super) position: Option<i64>,
    /// Whether it is on the last page.
    pub(super) is_last: bool,
}

impl<'a> OggPackets<'a> {
    /// The packets of the stream `serial` that begin on the page at the offset `at`, or after it.
    pub(super) fn new(file: &'a [u8], serial: u32, at: usize) -> Self {
        OggPackets {
            file,
            serial,
            next: at,
            sequence: None,
            pieces: Vec::new().into_iter(),
            position: None,
            is_last: false,
            begun: Vec::new(),
            has_begun: false,
        }
    }

    /// The offset of the next page to read.
    pub(super) fn next_page(&self) -> usize {
        self.next
    }

    /// The next packet; `None` at the end of the stream.
    ///
    /// # Errors
    /// `Truncated` if the file ends before the last page, `Corrupt` for a page that is corrupt.
    pub(super) fn next(&mut self) -> Result<Option<OggPacket>> {
        loop {
            while let Some((piece, ends)) = self.pieces.next() {
                self.begun.extend_from_slice(&self.file[piece.clone()]);
                self.has_begun = true;
                if ends {
                    self.has_begun = false;
                    let is_last_of_page = !self.pieces.as_slice().iter().any(|(_, ends)| *ends);
                    return Ok(Some(OggPacket {
                        data: std::mem::take(&mut self.begun),
                        offset: piece.start,
                        position: self.position.filter(|_| is_last_of_page),
                        is_last: self.is_last,
                    }));
                }
            }
            if self.is_last {
                return Ok(None);
            }
            let Some(page) = OggPage::read(self.file, self.next)? else {
                return Err(truncated("Ogg", self.file));
            };
            self.next = page.content.end;
            if page.serial != self.serial {
                continue;
            }
            page.check(self.file)?;
            if self.sequence.is_some_and(|expected| expected != page.sequence) {
                return Err(corrupt("a page is missing", page.start));
            }
            self.sequence = Some(page.sequence.wrapping_add(1));
            let mut pieces: Vec<_> = page.pieces(self.file).collect();
            match (page.continues, self.has_begun) {
                // The packet began before the page from which packets are read.
                (true, false) if !pieces.is_empty() => drop(pieces.remove(0)),
                (false, true) => return Err(corrupt("a packet has no end", page.start)),
                _ => {}
            }
            self.pieces = pieces.into_iter();
            self.position = page.position;
            self.is_last = page.is_last;
        }
    }
}

pub(super) fn corrupt(message: &str, offset: usize) -> Error {
    let message = format!("corrupt Ogg: {message}");
    Error::new(ErrorKind::Corrupt, message).with_offset(offset as u64)
}
