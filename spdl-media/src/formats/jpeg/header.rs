//! Markers: the frame header, scan headers, and the segments between scans.

use std::ops::{Deref, DerefMut};

use spdl_core::Result;

use super::errors::{corrupt, truncated, unsupported};
use crate::image::{ImageInfo, Orientation, Size, exif};

/// Width and height of a block in samples.
pub(super) const BLOCK: usize = 8;
/// The number of samples of a block.
pub(super) const BLOCK_AREA: usize = BLOCK * BLOCK;
/// The maximum number of components that can be converted to RGB.
pub(super) const MAX_COMPONENTS: usize = 4;
/// The maximum number of blocks of an MCU (ITU-T T.81, B.2.3).
const MAX_BLOCKS_PER_MCU: usize = 10;

pub(super) const RST0: u8 = 0xD0;
const SOF0: u8 = 0xC0;
const SOI: u8 = 0xD8;
const EOI: u8 = 0xD9;
const SOS: u8 = 0xDA;
pub(super) const DHT: u8 = 0xC4;
pub(super) const DAC: u8 = 0xCC;
const APP0: u8 = 0xE0;
const APP1: u8 = 0xE1;
const APP14: u8 = 0xEE;

/// The zigzag order: the index (row × 8 + column) of each stored coefficient. Invalid positions
/// beyond the block map to an unused element after the block.
pub(super) const ZIGZAG: [u8; 2 * BLOCK_AREA] = zigzag();

const fn zigzag() -> [u8; 2 * BLOCK_AREA] {
    let mut order = [BLOCK_AREA as u8; 2 * BLOCK_AREA];
    let (mut at, mut diagonal) = (0, 0);
    while diagonal < 2 * BLOCK - 1 {
        let mut step = 0;
        while step <= diagonal {
            // Odd diagonals run downwards, even diagonals upwards.
            let (row, column) =
                if diagonal % 2 == 1 { (step, diagonal - step) } else { (diagonal - step, step) };
            if row < BLOCK && column < BLOCK {
                order[at] = (row * BLOCK + column) as u8;
                at += 1;
            }
            step += 1;
        }
        diagonal += 1;
    }
    order
}

/// The quantisation steps of a block in row order, modulo 2¹⁶.
#[cfg(feature = "jpeg")]
pub(super) type Quantization = [i16; BLOCK_AREA];

/// The coding process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    /// Baseline and extended sequential DCT: each scan has all coefficients of its components.
    Sequential,
    /// Progressive DCT: each scan has a band of coefficients, or some of their bits.
    Progressive,
    /// Lossless: samples instead of coefficients.
    Lossless,
}

/// The entropy coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntropyCoding {
    Huffman,
    Arithmetic,
}

/// A component of the frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Component {
    pub(super) id: u8,
    /// The sampling factors as stored, horizontal and vertical.
    pub(super) sampling: (u8, u8),
    /// The horizontal sampling factor: blocks of an MCU horizontally.
    pub(super) across: usize,
    /// The vertical sampling factor: blocks of an MCU vertically.
    pub(super) down: usize,
    pub(super) quantization: usize,
    /// Width and height of the component in samples.
    pub(super) width: usize,
    pub(super) height: usize,
    /// Blocks per row and per column that hold samples of the image.
    pub(super) blocks_wide: usize,
    pub(super) blocks_high: usize,
    /// Blocks per row and per column, padded to whole MCUs.
    pub(super) padded_wide: usize,
    pub(super) padded_high: usize,
}

/// The frame header.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) coding: Coding,
    pub(super) entropy: EntropyCoding,
    /// Whether the frame header is SOF0.
    pub(super) is_baseline: bool,
    /// Bits per sample.
    pub(super) precision: u8,
    pub(super) size: Size,
    pub(super) components: PerComponent<Component>,
    /// The maximum sampling factors.
    pub(super) across: usize,
    pub(super) down: usize,
    /// MCUs per row, and the number of MCU rows.
    pub(super) mcus_per_row: usize,
    pub(super) mcu_rows: usize,
}

impl Component {
    /// The number of blocks of all MCUs.
    pub(super) fn blocks(&self) -> usize {
        self.padded_wide * self.padded_high
    }
}

impl Frame {
    /// The number of image rows of an MCU row.
    pub(super) fn mcu_height(&self) -> usize {
        self.down * BLOCK
    }
}

/// A list with one value per component, without a heap allocation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PerComponent<T> {
    items: [T; MAX_COMPONENTS],
    count: usize,
}

impl<T> PerComponent<T> {
    /// Appends a value. Header parsing has checked the number of components.
    fn push(&mut self, item: T) {
        if let Some(place) = self.items.get_mut(self.count) {
            *place = item;
            self.count += 1;
        }
    }
}

impl<T> Deref for PerComponent<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        &self.items[..self.count]
    }
}

impl<T> DerefMut for PerComponent<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items[..self.count]
    }
}

/// A component of a scan, with its entropy coding tables.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScanComponent {
    pub(super) component: usize,
    pub(super) dc: usize,
    pub(super) ac: usize,
}

/// The scan header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scan {
    pub(super) components: PerComponent<ScanComponent>,
    /// Spectral selection: the first and the last coefficient, in zigzag order.
    pub(super) first: usize,
    pub(super) last: usize,
    /// Successive approximation: the bit positions of the previous scan (0 for the first scan) and
    /// of this scan.
    pub(super) high: u32,
    pub(super) low: u32,
}

/// The colour space of the stored components.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Color {
    Grey,
    Rgb,
    YCbCr,
    /// CMYK, stored inverted: Adobe's programs write CMYK in this way, and all decoders expect it.
    Cmyk,
    /// CMYK, stored inverted, with the first three components as Y, Cb, Cr.
    Ycck,
    /// CMYK, not inverted: 0 means no ink.
    #[cfg_attr(not(feature = "tiff"), allow(dead_code, reason = "only TIFF has it"))]
    PlainCmyk,
}

/// A callback for table segments: marker, content, offset.
pub(in crate::formats) type OnTable<'a> = &'a mut dyn FnMut(u8, &[u8], usize) -> Result<()>;

/// Everything before the entropy-coded data of the first scan.
#[derive(Debug)]
pub(in crate::formats) struct Header {
    pub(super) frame: Frame,
    pub(super) scan: Scan,
    /// The offset of the entropy-coded data of the first scan.
    pub(super) data: usize,
    pub(super) orientation: Orientation,
    /// Whether the file has a JFIF APP0 marker.
    pub(super) jfif: bool,
    /// The colour transform that the Adobe APP14 marker gives.
    pub(super) adobe: Option<u8>,
}

/// The maximum number of block visits over all scans of a file. Usual files have about ten scans.
/// Files with more scans than needed are larger, and the maximum grows with the file size.
pub(in crate::formats) fn max_block_visits(blocks: u64, encoded_bytes: u64) -> u64 {
    const VISITS_OF_A_BLOCK: u64 = 32;
    const VISITS_OF_A_BYTE: u64 = 8;
    blocks * VISITS_OF_A_BLOCK + encoded_bytes * VISITS_OF_A_BYTE
}

/// The segments after a scan.
pub(super) enum Next {
    Scan { scan: Scan, data: usize },
    EndOfImage,
    EndOfData,
}

impl Header {
    /// Parses up to the entropy-coded data of the first scan. The caller has checked the SOI
    /// marker.
    pub(in crate::formats) fn read(encoded: &[u8], on_table: OnTable<'_>) -> Result<Header> {
        Header::read_after_soi(encoded, &[8], on_table)
    }

    /// Checks the SOI marker; accepts files whose samples have one of these numbers of bits.
    #[cfg(feature = "jpeg")]
    pub(super) fn read_with(
        encoded: &[u8],
        precisions: &[u8],
        on_table: OnTable<'_>,
    ) -> Result<Header> {
        let start = &encoded[..encoded.len().min(2)];
        if start.len() < 2 && [0xFF, SOI].starts_with(start) {
            return Err(truncated(
                "truncated JPEG: the file ends inside the SOI marker",
                encoded.len(),
            ));
        }
        if start != [0xFF, SOI] {
            return Err(corrupt("SOI marker not found: not a JPEG", 0));
        }
        Header::read_after_soi(encoded, precisions, on_table)
    }

    fn read_after_soi(encoded: &[u8], precisions: &[u8], on_table: OnTable<'_>) -> Result<Header> {
        let mut markers = Markers { encoded, at: 2 };
        let mut frame = None;
        let (mut orientation, mut jfif, mut adobe) = (None, false, None);
        loop {
            let at = markers.at;
            let Some(marker) = markers.next() else {
                return Err(truncated(
                    "truncated JPEG: the file ends before the first scan",
                    encoded.len(),
                ));
            };
            match marker {
                0xC0..=0xCF if marker != DHT && marker != DAC && marker != 0xC8 => {
                    if frame.is_some() {
                        return Err(corrupt("corrupt JPEG: second frame header", at));
                    }
                    let (coding, entropy) = match marker {
                        0xC0 | 0xC1 => (Coding::Sequential, EntropyCoding::Huffman),
                        0xC2 => (Coding::Progressive, EntropyCoding::Huffman),
                        0xC9 => (Coding::Sequential, EntropyCoding::Arithmetic),
                        0xCA => (Coding::Progressive, EntropyCoding::Arithmetic),
                        0xC3 => (Coding::Lossless, EntropyCoding::Huffman),
                        0xCB => (Coding::Lossless, EntropyCoding::Arithmetic),
                        _ => return Err(unsupported("unsupported JPEG: hierarchical process", at)),
                    };
                    let segment = markers.segment()?;
                    let mut read = read_frame(segment, precisions, coding, entropy, at)?;
                    read.is_baseline = marker == SOF0;
                    frame = Some(read);
                }
                SOS => {
                    let segment = markers.segment()?;
                    let Some(frame) = frame else {
                        return Err(corrupt(
                            "corrupt JPEG: SOS marker before the frame header",
                            at,
                        ));
                    };
                    let scan = read_scan(segment, &frame, at)?;
                    let (data, orientation) = (markers.at, orientation.unwrap_or_default());
                    return Ok(Header { frame, scan, data, orientation, jfif, adobe });
                }
                EOI => return Err(corrupt("corrupt JPEG: EOI marker before the first scan", at)),
                APP0 => jfif |= markers.segment()?.starts_with(b"JFIF\0"),
                APP1 => {
                    let segment = markers.segment()?;
                    // Further EXIF segments are a continuation of the first one.
                    if orientation.is_none() && segment.starts_with(b"Exif\0\0") {
                        orientation = Some(exif::orientation(segment));
                    }
                }
                APP14 => {
                    let segment = markers.segment()?;
                    if segment.starts_with(b"Adobe") && segment.len() >= 12 {
                        adobe = Some(segment[11]);
                    }
                }
                _ => markers.table(marker, at, on_table)?,
            }
        }
    }

    pub(in crate::formats) fn info(&self) -> ImageInfo {
        let planes = self.blocks().saturating_mul(BLOCK_AREA as u64);
        // Coefficients without AC need 1 / 64 more, and a bit mask of 8 bytes for each block.
        let coefficients = self.coefficient_bytes().saturating_mul(9) / 8;
        let size = self.frame.size;
        let bytes = planes.min(size.pixels().saturating_mul(4)).saturating_add(coefficients);
        ImageInfo::new(size, self.orientation).with_working_bytes(bytes)
    }

    /// The number of blocks of all MCUs.
    pub(in crate::formats) fn blocks(&self) -> u64 {
        self.frame.components.iter().map(|component| component.blocks() as u64).sum()
    }

    /// The memory in bytes for the coefficients of the whole image, which the decoder needs if the
    /// image has several scans; otherwise 0.
    pub(in crate::formats) fn coefficient_bytes(&self) -> u64 {
        let at_once = self.scan.components.len() == self.frame.components.len();
        match self.frame.coding {
            Coding::Sequential | Coding::Lossless if at_once => 0,
            _ => self.blocks() * (BLOCK_AREA * size_of::<i16>()) as u64,
        }
    }

    /// Checks that an EOI marker follows the last scan. The check is needed for decoders that
    /// invent missing data instead of reporting truncation.
    pub(in crate::formats) fn check_end(&self, encoded: &[u8]) -> Result<()> {
        let mut markers = Markers { encoded, at: self.data };
        loop {
            match markers.next() {
                None => return Err(truncated("truncated JPEG: no EOI marker", encoded.len())),
                Some(EOI) => return Ok(()),
                Some(marker) => markers.table(marker, markers.at, &mut |_, _, _| Ok(()))?,
            }
        }
    }

    /// The colour space of the components, by the rules of libjpeg.
    pub(super) fn color(&self) -> Result<Color> {
        let components = &self.frame.components;
        let ids = components.iter().map(|component| component.id);
        match (components.len(), self.adobe) {
            (1, _) => Ok(Color::Grey),
            (3, Some(0)) if !self.jfif => Ok(Color::Rgb),
            (3, None) if !self.jfif && ids.eq(*b"RGB") => Ok(Color::Rgb),
            (3, _) => Ok(Color::YCbCr),
            (4, None | Some(0)) => Ok(Color::Cmyk),
            (4, Some(_)) => Ok(Color::Ycck),
            (count, _) => Err(unsupported(format!("unsupported JPEG with {count} components"), 0)),
        }
    }
}

/// Parses the segments from `at` to the entropy-coded data of the next scan.
pub(super) fn read_between_scans(
    encoded: &[u8],
    at: usize,
    frame: &Frame,
    on_table: OnTable<'_>,
) -> Result<Next> {
    let mut markers = Markers { encoded, at };
    loop {
        let at = markers.at;
        match markers.next() {
            None => return Ok(Next::EndOfData),
            Some(EOI) => return Ok(Next::EndOfImage),
            Some(SOS) => {
                let scan = read_scan(markers.segment()?, frame, at)?;
                return Ok(Next::Scan { scan, data: markers.at });
            }
            Some(0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF) => {
                return Err(corrupt("corrupt JPEG: second frame header", at));
            }
            Some(marker) => markers.table(marker, at, on_table)?,
        }
    }
}

/// The first marker from `at` on, and the offset after it. Skips stray bytes, and zeros stuffed
/// after 0xFF.
pub(super) fn find_marker(encoded: &[u8], mut at: usize) -> Option<(u8, usize)> {
    loop {
        at += find_ff(encoded.get(at..)?)?;
        at += encoded[at..].iter().position(|&byte| byte != 0xFF)?;
        match encoded[at] {
            0 => at += 1,
            marker => return Some((marker, at + 1)),
        }
    }
}

/// The position of the first byte 0xFF.
fn find_ff(bytes: &[u8]) -> Option<usize> {
    const WIDE: usize = 64;
    // The loop has no early exit, so that the compiler vectorises the comparison.
    let has = |part: &[u8; WIDE]| part.iter().fold(0, |any, &byte| any | u8::from(byte == 0xFF));
    let (parts, _) = bytes.as_chunks::<WIDE>();
    let start = WIDE * parts.iter().take_while(|part| has(part) == 0).count();
    bytes[start..].iter().position(|&byte| byte == 0xFF).map(|found| start + found)
}

/// The offset after the next `count` restart markers. `None` if another marker precedes them, or if
/// their numbers are out of order.
pub(super) fn skip_restarts(encoded: &[u8], mut at: usize, count: usize) -> Option<usize> {
    for number in 0..count {
        let (marker, end) = find_marker(encoded, at)?;
        if marker != RST0 + (number % 8) as u8 {
            return None;
        }
        at = end;
    }
    Some(at)
}

/// Iterates over markers.
struct Markers<'a> {
    encoded: &'a [u8],
    at: usize,
}

impl<'a> Markers<'a> {
    /// The next marker. Stray bytes are skipped, as in other decoders.
    fn next(&mut self) -> Option<u8> {
        let found = find_marker(self.encoded, self.at);
        self.at = found.map_or(self.encoded.len(), |(_, end)| end);
        found.map(|(marker, _)| marker)
    }

    /// The segment of the current marker.
    fn segment(&mut self) -> Result<&'a [u8]> {
        let rest = &self.encoded[self.at..];
        let Some(length) = rest.first_chunk() else {
            return Err(truncated(
                "truncated JPEG: the file ends inside a segment length",
                self.encoded.len(),
            ));
        };
        let length = usize::from(u16::from_be_bytes(*length));
        if length < 2 {
            return Err(corrupt(
                format!("corrupt JPEG: segment length {length}: expected at least 2"),
                self.at,
            ));
        }
        let Some(segment) = rest.get(2..length) else {
            return Err(truncated(
                format!("truncated JPEG: the file ends inside a segment of {length} bytes"),
                self.encoded.len(),
            ));
        };
        self.at += length;
        Ok(segment)
    }

    /// Passes a table segment to `on_table`.
    fn table(&mut self, marker: u8, at: usize, on_table: OnTable<'_>) -> Result<()> {
        // These markers have no segment.
        if matches!(marker, 0x01 | 0xD0..=0xD7 | SOI) {
            return Ok(());
        }
        on_table(marker, self.segment()?, at)
    }
}

fn read_frame(
    segment: &[u8],
    precisions: &[u8],
    coding: Coding,
    entropy: EntropyCoding,
    at: usize,
) -> Result<Frame> {
    let [bits, h0, h1, w0, w1, count, ref rest @ ..] = *segment else {
        return Err(corrupt("corrupt JPEG: frame header too short", at));
    };
    if !precisions.contains(&bits) {
        let accepted: Vec<_> = precisions.iter().map(u8::to_string).collect();
        let accepted = accepted.join(" or ");
        let message = format!("unsupported JPEG with {bits} bits per sample: expected {accepted}");
        return Err(unsupported(message, at));
    }
    let size = Size::new(u16::from_be_bytes([w0, w1]).into(), u16::from_be_bytes([h0, h1]).into());
    let count = usize::from(count);
    if rest.len() != 3 * count || count == 0 {
        return Err(corrupt(
            format!(
                "corrupt JPEG: component count {count} is 0, or does not match the length of the \
                 frame header"
            ),
            at,
        ));
    }
    if count > MAX_COMPONENTS {
        return Err(unsupported(format!("unsupported JPEG with {count} components"), at));
    }
    if size.pixels() == 0 {
        return Err(corrupt(format!("corrupt JPEG: invalid size {size}"), at));
    }
    let mut components = PerComponent::<Component>::default();
    for part in rest.chunks_exact(3) {
        let (across, down) = (usize::from(part[1] >> 4), usize::from(part[1] & 15));
        let quantization = usize::from(part[2]);
        if !(1..=4).contains(&across) || !(1..=4).contains(&down) || quantization > 3 {
            return Err(corrupt(
                format!(
                    "corrupt JPEG: invalid sampling factors {across}x{down} or quantisation table \
                     {quantization}"
                ),
                at,
            ));
        }
        components.push(Component {
            id: part[0],
            sampling: (part[1] >> 4, part[1] & 15),
            across,
            down,
            quantization,
            ..Component::default()
        });
    }
    // The scan of a single component is not interleaved: its MCU is one block (A.2.2).
    if let [component] = &mut *components {
        (component.across, component.down) = (1, 1);
    }
    let across = components.iter().map(|component| component.across).max().unwrap_or(1);
    let down = components.iter().map(|component| component.down).max().unwrap_or(1);
    let (width, height) = (size.width as usize, size.height as usize);
    let mcus_per_row = width.div_ceil(across * BLOCK);
    let mcu_rows = height.div_ceil(down * BLOCK);
    for component in components.iter_mut() {
        if across % component.across != 0 || down % component.down != 0 {
            return Err(unsupported(
                "unsupported JPEG: sampling factors that do not divide the maximum",
                at,
            ));
        }
        component.width = (width * component.across).div_ceil(across);
        component.height = (height * component.down).div_ceil(down);
        component.blocks_wide = component.width.div_ceil(BLOCK);
        component.blocks_high = component.height.div_ceil(BLOCK);
        component.padded_wide = mcus_per_row * component.across;
        component.padded_high = mcu_rows * component.down;
    }
    Ok(Frame {
        coding,
        entropy,
        is_baseline: false,
        precision: bits,
        size,
        components,
        across,
        down,
        mcus_per_row,
        mcu_rows,
    })
}

fn read_scan(segment: &[u8], frame: &Frame, at: usize) -> Result<Scan> {
    let count = usize::from(*segment.first().unwrap_or(&0));
    if !(1..=MAX_COMPONENTS).contains(&count) || segment.len() != 4 + 2 * count {
        return Err(corrupt(
            format!(
                "corrupt JPEG: component count {count} is not 1 to 4, or does not match the length \
                 of the scan header"
            ),
            at,
        ));
    }
    let mut components = PerComponent::<ScanComponent>::default();
    for part in segment[1..1 + 2 * count].chunks_exact(2) {
        let position = frame.components.iter().position(|component| component.id == part[0]);
        let taken =
            |found: usize| components.iter().any(|other: &ScanComponent| other.component == found);
        let Some(component) = position.filter(|&found| !taken(found)) else {
            return Err(corrupt(
                format!("corrupt JPEG: scan of unknown or repeated component {}", part[0]),
                at,
            ));
        };
        let (dc, ac) = (usize::from(part[1] >> 4), usize::from(part[1] & 15));
        if frame.entropy == EntropyCoding::Huffman && (dc > 3 || ac > 3) {
            return Err(corrupt(
                format!("corrupt JPEG: scan with Huffman tables {dc} and {ac}: expected 0 to 3"),
                at,
            ));
        }
        components.push(ScanComponent { component, dc, ac });
    }
    let blocks = |part: &ScanComponent| {
        let component = &frame.components[part.component];
        component.across * component.down
    };
    if count > 1 && components.iter().map(blocks).sum::<usize>() > MAX_BLOCKS_PER_MCU {
        return Err(corrupt("corrupt JPEG: more than 10 blocks per MCU", at));
    }
    let parameters = &segment[1 + 2 * count..];
    let (first, last) = (usize::from(parameters[0]), usize::from(parameters[1]));
    let (high, low) = (u32::from(parameters[2] >> 4), u32::from(parameters[2] & 15));
    match frame.coding {
        // In sequential files these values may be invalid, and all decoders ignore them. Decoders
        // of lossless files parse them separately.
        Coding::Sequential | Coding::Lossless => {
            Ok(Scan { components, first: 0, last: 63, high: 0, low: 0 })
        }
        Coding::Progressive => {
            let band =
                if first == 0 { last == 0 } else { last >= first && last < 64 && count == 1 };
            if !band || low > 13 || (high != 0 && high != low + 1) {
                return Err(corrupt(
                    format!(
                        "corrupt JPEG: invalid progressive scan of coefficients {first} to {last}, \
                         bits {high} to {low}"
                    ),
                    at,
                ));
            }
            Ok(Scan { components, first, last, high, low })
        }
    }
}

#[cfg(test)]
mod tests {
    use spdl_core::ErrorKind;

    use super::*;

    fn data(name: &str) -> Vec<u8> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
        std::fs::read(format!("{folder}/{name}")).unwrap()
    }

    fn read(encoded: &[u8]) -> Result<Header> {
        Header::read(encoded, &mut |_, _, _| Ok(()))
    }

    #[test]
    fn the_header_has_size_orientation_and_coefficient_memory() {
        let read = |name| read(&data(name)).unwrap();
        let size = Size::new(37, 29);
        assert_eq!(read("420.jpg").info(), ImageInfo::new(size, Orientation::Upright));
        assert_eq!(read("420.jpg").coefficient_bytes(), 0);
        // 3 × 2 MCUs of 6 blocks, and 5 × 4 blocks of each of 3 components.
        assert_eq!(read("420-progressive.jpg").coefficient_bytes(), 3 * 2 * 6 * 128);
        assert_eq!(read("444-progressive.jpg").coefficient_bytes(), 5 * 4 * 3 * 128);
        assert_eq!(read("orientation-6.jpg").info().orientation.exif(), 6);
    }

    #[test]
    fn a_file_truncated_at_any_byte_has_no_end_marker() {
        for name in ["420.jpg", "restarts.jpg", "444-progressive.jpg", "grey.jpg"] {
            let file = data(name);
            assert!(read(&file).unwrap().check_end(&file).is_ok(), "{name}");
            for end in 2..file.len() {
                let cut = &file[..end];
                let outcome = read(cut).and_then(|header| header.check_end(cut));
                let kind = outcome.err().map(|error| error.kind());
                assert_eq!(kind, Some(ErrorKind::Truncated), "{name} cut to {end}");
            }
        }
    }

    #[test]
    fn invalid_headers_are_corrupt() {
        let kind = |bytes: &[u8]| read(bytes).err().map(|error| error.kind());
        assert_eq!(kind(b"\xFF\xD8\xFF\xD9"), Some(ErrorKind::Corrupt));
        assert_eq!(kind(b"\xFF\xD8\xFF\xFE\0\x01"), Some(ErrorKind::Corrupt));
        assert_eq!(kind(b"\xFF\xD8\xFF\xDA\0\x02"), Some(ErrorKind::Corrupt));
        assert_eq!(kind(b"\xFF\xD8\xFF\xC0\0\x08\x08\0\x01\0\x01\x03"), Some(ErrorKind::Corrupt));
    }

    #[test]
    fn markers_are_found_after_any_number_of_bytes() {
        for before in 0..200 {
            let mut bytes = vec![7; before];
            // A stuffed 0xFF, fill bytes, then the marker.
            bytes.extend([0xFF, 0, 1, 0xFF, 0xFF, 0xD3, 0xFF, 0xD9]);
            let end = before + 6;
            assert_eq!(find_marker(&bytes, 0), Some((0xD3, end)));
            assert_eq!(find_marker(&bytes, end), Some((0xD9, end + 2)));
            assert_eq!(find_marker(&bytes, end + 1), None);
            assert_eq!(find_marker(&bytes[..end - 1], 0), None);
        }
    }

    #[test]
    fn the_zigzag_order_is_that_of_the_standard() {
        // ITU-T T.81, figure 5.
        assert_eq!(ZIGZAG[..10], [0, 1, 8, 16, 9, 2, 3, 10, 17, 24]);
        assert_eq!(ZIGZAG[54..64], [39, 46, 53, 60, 61, 54, 47, 55, 62, 63]);
        let mut sorted = ZIGZAG[..BLOCK_AREA].to_vec();
        sorted.sort();
        assert_eq!(sorted, (0..BLOCK_AREA as u8).collect::<Vec<_>>());
    }
}
