//! Markers: what stands before the entropy-coded data, and between its scans.

use std::ops::{Deref, DerefMut};

use spdl_core::Result;

use super::arithmetic::Conditioning;
use super::huffman::{AcTable, HuffmanTable};
use super::scan::Quantization;
use super::{corrupt, truncated, unsupported};
use crate::{Orientation, Size, exif};

/// The side of a block of samples.
pub(super) const BLOCK: usize = 8;
/// A block's coefficients.
pub(super) const BLOCK_AREA: usize = BLOCK * BLOCK;
/// The most components of an image that can become RGB.
pub(super) const MAX_COMPONENTS: usize = 4;
/// The most blocks of a minimum coded unit (ITU-T T.81, B.2.3).
const MAX_BLOCKS_IN_UNIT: usize = 10;

const SOI: u8 = 0xD8;
const EOI: u8 = 0xD9;
const SOS: u8 = 0xDA;
const DQT: u8 = 0xDB;
const DHT: u8 = 0xC4;
const DAC: u8 = 0xCC;
const DRI: u8 = 0xDD;
const APP0: u8 = 0xE0;
const APP1: u8 = 0xE1;
const APP14: u8 = 0xEE;

/// The order in which a block's coefficients are stored: row × 8 + column of each. What lies
/// beyond the block goes to a place behind it.
pub(super) const ZIGZAG: [u8; 2 * BLOCK_AREA] = zigzag();

const fn zigzag() -> [u8; 2 * BLOCK_AREA] {
    let mut order = [BLOCK_AREA as u8; 2 * BLOCK_AREA];
    let (mut at, mut diagonal) = (0, 0);
    while diagonal < 2 * BLOCK - 1 {
        let mut step = 0;
        while step <= diagonal {
            // Odd diagonals run downwards, even ones upwards.
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

/// How coefficients are spread over scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    /// Baseline and extended: each scan has its components' coefficients whole.
    Sequential,
    /// Each scan has some coefficients, or some of their bits.
    Progressive,
}

/// How coefficients become bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntropyCoding {
    Huffman,
    Arithmetic,
}

/// A colour component.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Component {
    pub(super) id: u8,
    /// Blocks of a coded unit side by side: the horizontal sampling factor.
    pub(super) across: usize,
    /// Blocks of a coded unit on top of each other: the vertical sampling factor.
    pub(super) down: usize,
    pub(super) quantization: usize,
    /// Samples of a row and of a column that belong to the image.
    pub(super) width: usize,
    pub(super) height: usize,
    /// Blocks of a row and of a column that hold those samples.
    pub(super) blocks_wide: usize,
    pub(super) blocks_high: usize,
    /// The same, filled up to whole coded units.
    pub(super) padded_wide: usize,
    pub(super) padded_high: usize,
}

/// What the frame header tells.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) coding: Coding,
    pub(super) entropy: EntropyCoding,
    pub(super) size: Size,
    pub(super) components: PerComponent<Component>,
    /// The largest sampling factors.
    pub(super) across: usize,
    pub(super) down: usize,
    /// Coded units of a row and of a column.
    pub(super) units_wide: usize,
    pub(super) units_high: usize,
}

impl Frame {
    /// How many rows of the image a row of coded units holds.
    pub(super) fn unit_height(&self) -> usize {
        self.down * BLOCK
    }
}

/// One thing for each component, without memory of its own.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PerComponent<T> {
    items: [T; MAX_COMPONENTS],
    count: usize,
}

impl<T> PerComponent<T> {
    /// Adds one; more than there may be are left out, which those who read headers see to.
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

/// A component's part in a scan.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScanComponent {
    pub(super) component: usize,
    pub(super) dc: usize,
    pub(super) ac: usize,
}

/// What a scan header tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scan {
    pub(super) components: PerComponent<ScanComponent>,
    /// The first and the last coefficient, in zigzag order.
    pub(super) first: usize,
    pub(super) last: usize,
    /// How many low bits the scan before left out (0: there was none), and this one leaves out.
    pub(super) high: u32,
    pub(super) low: u32,
}

/// Tables that markers set and scans use.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// In row order, not zigzag.
    pub(super) quantization: [Option<Quantization>; 4],
    pub(super) dc: [HuffmanTable; 4],
    pub(super) ac: [AcTable; 4],
    /// Coded units between restart markers; 0 where there are none.
    pub(super) restart_interval: usize,
    pub(super) conditioning: Conditioning,
}

impl Tables {
    fn clear(&mut self) {
        self.quantization = [None; 4];
        self.dc.iter_mut().for_each(HuffmanTable::clear);
        self.ac.iter_mut().for_each(|table| table.codes.clear());
        self.restart_interval = 0;
        self.conditioning = Conditioning::default();
    }
}

/// How components become RGB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Color {
    Grey,
    Rgb,
    YCbCr,
    /// Inks, stored inverted, as Adobe's programs do and all readers expect.
    Cmyk,
    /// The same, whose first three inks are stored as Y, Cb, Cr.
    Ycck,
}

/// Everything before the first scan's data.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) frame: Frame,
    pub(super) scan: Scan,
    /// Where the first scan's data start.
    pub(super) data: usize,
    pub(super) orientation: Orientation,
    jfif: bool,
    /// The colour transform that Adobe's marker tells.
    adobe: Option<u8>,
}

/// What stands between two scans.
pub(super) enum Next {
    Scan { scan: Scan, data: usize },
    EndOfImage,
    EndOfData,
}

impl Header {
    /// Reads up to the first scan's data. Without `tables`, those are skipped.
    pub(super) fn read(encoded: &[u8], mut tables: Option<&mut Tables>) -> Result<Header> {
        if let Some(tables) = tables.as_deref_mut() {
            tables.clear();
        }
        let mut markers = Markers { encoded, at: 2 };
        let mut frame = None;
        let (mut orientation, mut jfif, mut adobe) = (Orientation::Upright, false, None);
        loop {
            let at = markers.at;
            let Some(marker) = markers.next() else {
                return Err(truncated("the JPEG header ends early", encoded.len()));
            };
            match marker {
                0xC0..=0xCF if marker != DHT && marker != DAC && marker != 0xC8 => {
                    if frame.is_some() {
                        return Err(corrupt("a second JPEG frame header; expected one", at));
                    }
                    let (coding, entropy) = match marker {
                        0xC0 | 0xC1 => (Coding::Sequential, EntropyCoding::Huffman),
                        0xC2 => (Coding::Progressive, EntropyCoding::Huffman),
                        0xC9 => (Coding::Sequential, EntropyCoding::Arithmetic),
                        0xCA => (Coding::Progressive, EntropyCoding::Arithmetic),
                        0xC3 | 0xCB => return Err(unsupported("a lossless JPEG", at)),
                        _ => return Err(unsupported("a hierarchical JPEG", at)),
                    };
                    frame = Some(read_frame(markers.segment()?, coding, entropy, at)?);
                }
                SOS => {
                    let segment = markers.segment()?;
                    let Some(frame) = frame else {
                        return Err(corrupt("a JPEG scan before the frame header", at));
                    };
                    let scan = read_scan(segment, &frame, at)?;
                    return Ok(Header { frame, scan, data: markers.at, orientation, jfif, adobe });
                }
                EOI => return Err(corrupt("the JPEG holds no image data", at)),
                APP0 => jfif |= markers.segment()?.starts_with(b"JFIF\0"),
                APP1 => {
                    let segment = markers.segment()?;
                    if segment.starts_with(b"Exif\0\0") {
                        orientation = exif::orientation(segment);
                    }
                }
                APP14 => {
                    let segment = markers.segment()?;
                    if segment.starts_with(b"Adobe") && segment.len() >= 12 {
                        adobe = Some(segment[11]);
                    }
                }
                _ => markers.table(marker, at, tables.as_deref_mut())?,
            }
        }
    }

    /// How components become RGB: by the rules of libjpeg, which everyone follows.
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
            (count, _) => Err(unsupported(format!("a JPEG of {count} components"), 0)),
        }
    }
}

/// Reads what stands from `at` up to the next scan's data.
pub(super) fn read_between_scans(
    encoded: &[u8],
    at: usize,
    frame: &Frame,
    tables: &mut Tables,
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
                return Err(corrupt("a second JPEG frame header; expected one", at));
            }
            Some(marker) => markers.table(marker, at, Some(tables))?,
        }
    }
}

/// Walks from marker to marker.
struct Markers<'a> {
    encoded: &'a [u8],
    at: usize,
}

impl<'a> Markers<'a> {
    /// The next marker. Bytes that belong to none are passed over, as all readers do.
    fn next(&mut self) -> Option<u8> {
        let mut after_ff = false;
        for (index, &byte) in self.encoded.get(self.at..)?.iter().enumerate() {
            match byte {
                0xFF => after_ff = true,
                0 => after_ff = false,
                _ if after_ff => {
                    self.at += index + 1;
                    return Some(byte);
                }
                _ => {}
            }
        }
        self.at = self.encoded.len();
        None
    }

    /// The content of the marker that was just met.
    fn segment(&mut self) -> Result<&'a [u8]> {
        let rest = &self.encoded[self.at..];
        let Some(length) = rest.first_chunk() else {
            return Err(truncated("the file ends inside a JPEG marker", self.encoded.len()));
        };
        let length = usize::from(u16::from_be_bytes(*length));
        if length < 2 {
            return Err(corrupt(
                format!("a JPEG segment of {length} bytes; expected 2 at least"),
                self.at,
            ));
        }
        let Some(segment) = rest.get(2..length) else {
            return Err(truncated(
                format!("the file ends inside a JPEG segment of {length} bytes"),
                self.encoded.len(),
            ));
        };
        self.at += length;
        Ok(segment)
    }

    /// Reads a table, or passes over a segment of no interest.
    fn table(&mut self, marker: u8, at: usize, tables: Option<&mut Tables>) -> Result<()> {
        // These stand alone: nothing follows them.
        if matches!(marker, 0x01 | 0xD0..=0xD7 | SOI) {
            return Ok(());
        }
        let segment = self.segment()?;
        match (marker, tables) {
            (DQT, Some(tables)) => read_quantization(segment, tables, at),
            (DHT, Some(tables)) => read_huffman(segment, tables, at),
            (DAC, Some(tables)) => read_conditioning(segment, tables, at),
            (DRI, Some(tables)) => match *segment {
                [high, low] => {
                    tables.restart_interval = usize::from(u16::from_be_bytes([high, low]));
                    Ok(())
                }
                _ => Err(corrupt("a JPEG restart interval of the wrong length", at)),
            },
            _ => Ok(()),
        }
    }
}

fn read_frame(segment: &[u8], coding: Coding, entropy: EntropyCoding, at: usize) -> Result<Frame> {
    let [bits, h0, h1, w0, w1, count, ref rest @ ..] = *segment else {
        return Err(corrupt("a JPEG frame header that is too short", at));
    };
    if bits != 8 {
        return Err(unsupported(format!("a JPEG of {bits} bits a sample; expected 8"), at));
    }
    let size = Size::new(u16::from_be_bytes([w0, w1]).into(), u16::from_be_bytes([h0, h1]).into());
    let count = usize::from(count);
    if rest.len() != 3 * count || count == 0 {
        return Err(corrupt(format!("a JPEG frame header of {count} components"), at));
    }
    if count > MAX_COMPONENTS {
        return Err(unsupported(format!("a JPEG of {count} components"), at));
    }
    if size.pixels() == 0 {
        return Err(corrupt(format!("a JPEG of {size} pixels"), at));
    }
    let mut components = PerComponent::<Component>::default();
    for part in rest.chunks_exact(3) {
        let (across, down) = (usize::from(part[1] >> 4), usize::from(part[1] & 15));
        let quantization = usize::from(part[2]);
        if !(1..=4).contains(&across) || !(1..=4).contains(&down) || quantization > 3 {
            return Err(corrupt(
                format!("JPEG sampling {across}x{down} with table {quantization}"),
                at,
            ));
        }
        components.push(Component {
            id: part[0],
            across,
            down,
            quantization,
            ..Component::default()
        });
    }
    // A lone component has no others to be sampled against: its unit is one block (A.2.2).
    if let [component] = &mut *components {
        (component.across, component.down) = (1, 1);
    }
    let across = components.iter().map(|component| component.across).max().unwrap_or(1);
    let down = components.iter().map(|component| component.down).max().unwrap_or(1);
    let (width, height) = (size.width as usize, size.height as usize);
    let units_wide = width.div_ceil(across * BLOCK);
    let units_high = height.div_ceil(down * BLOCK);
    for component in components.iter_mut() {
        if across % component.across != 0 || down % component.down != 0 {
            return Err(unsupported("JPEG sampling factors that do not divide each other", at));
        }
        component.width = (width * component.across).div_ceil(across);
        component.height = (height * component.down).div_ceil(down);
        component.blocks_wide = component.width.div_ceil(BLOCK);
        component.blocks_high = component.height.div_ceil(BLOCK);
        component.padded_wide = units_wide * component.across;
        component.padded_high = units_high * component.down;
    }
    Ok(Frame { coding, entropy, size, components, across, down, units_wide, units_high })
}

fn read_scan(segment: &[u8], frame: &Frame, at: usize) -> Result<Scan> {
    let count = usize::from(*segment.first().unwrap_or(&0));
    if !(1..=MAX_COMPONENTS).contains(&count) || segment.len() != 4 + 2 * count {
        return Err(corrupt(format!("a JPEG scan header of {count} components"), at));
    }
    let mut components = PerComponent::<ScanComponent>::default();
    for part in segment[1..1 + 2 * count].chunks_exact(2) {
        let position = frame.components.iter().position(|component| component.id == part[0]);
        let taken =
            |found: usize| components.iter().any(|other: &ScanComponent| other.component == found);
        let Some(component) = position.filter(|&found| !taken(found)) else {
            return Err(corrupt(format!("a JPEG scan of the unknown component {}", part[0]), at));
        };
        let (dc, ac) = (usize::from(part[1] >> 4), usize::from(part[1] & 15));
        if frame.entropy == EntropyCoding::Huffman && (dc > 3 || ac > 3) {
            return Err(corrupt(format!("a JPEG scan with the tables {dc} and {ac}"), at));
        }
        components.push(ScanComponent { component, dc, ac });
    }
    let blocks = |part: &ScanComponent| {
        let component = &frame.components[part.component];
        component.across * component.down
    };
    if count > 1 && components.iter().map(blocks).sum::<usize>() > MAX_BLOCKS_IN_UNIT {
        return Err(corrupt("a JPEG scan of too many blocks a unit", at));
    }
    let parameters = &segment[1 + 2 * count..];
    let (first, last) = (usize::from(parameters[0]), usize::from(parameters[1]));
    let (high, low) = (u32::from(parameters[2] >> 4), u32::from(parameters[2] & 15));
    match frame.coding {
        // Odd values are met in files that everyone reads, and mean nothing.
        Coding::Sequential => Ok(Scan { components, first: 0, last: 63, high: 0, low: 0 }),
        Coding::Progressive => {
            let band =
                if first == 0 { last == 0 } else { last >= first && last < 64 && count == 1 };
            if !band || low > 13 || (high != 0 && high != low + 1) {
                return Err(corrupt(
                    format!("a progressive JPEG scan of {first} to {last}, bits {high} to {low}"),
                    at,
                ));
            }
            Ok(Scan { components, first, last, high, low })
        }
    }
}

fn read_quantization(mut segment: &[u8], tables: &mut Tables, at: usize) -> Result<()> {
    while let [kind, rest @ ..] = segment {
        let (wide, slot) = (kind >> 4, usize::from(kind & 15));
        let bytes = if wide == 0 { BLOCK_AREA } else { 2 * BLOCK_AREA };
        let (Some(values), true, true) = (rest.get(..bytes), slot < 4, wide < 2) else {
            return Err(corrupt(format!("a damaged JPEG quantization table {slot}"), at));
        };
        let mut table = [0; BLOCK_AREA];
        for (index, &place) in ZIGZAG[..BLOCK_AREA].iter().enumerate() {
            table[usize::from(place)] = match wide {
                0 => values[index].into(),
                _ => i16::from_be_bytes([values[2 * index], values[2 * index + 1]]),
            };
        }
        tables.quantization[slot] = Some(table);
        segment = &rest[bytes..];
    }
    Ok(())
}

fn read_huffman(mut segment: &[u8], tables: &mut Tables, at: usize) -> Result<()> {
    while let [kind, rest @ ..] = segment {
        let slot = usize::from(kind & 15);
        let damaged = || corrupt(format!("a damaged JPEG Huffman table {slot}"), at);
        let counts: &[u8; 16] = rest.first_chunk().ok_or_else(damaged)?;
        let total: usize = counts.iter().map(|&count| usize::from(count)).sum();
        let values = rest.get(16..16 + total).ok_or_else(damaged)?;
        // A table that cannot be is as good as none: it may be one that no scan uses.
        match (kind >> 4, tables.dc.get_mut(slot), tables.ac.get_mut(slot)) {
            (0, Some(table), _) => _ = table.build(counts, values, true),
            (1, _, Some(table)) => _ = table.build(counts, values),
            _ => return Err(damaged()),
        }
        segment = &rest[16 + total..];
    }
    Ok(())
}

/// What sets contexts of arithmetic coding apart (B.2.4.3).
fn read_conditioning(segment: &[u8], tables: &mut Tables, at: usize) -> Result<()> {
    for &[kind, value] in segment.as_chunks().0 {
        let slot = usize::from(kind & 15);
        let (low, high) = (value & 15, value >> 4);
        let sound = match kind >> 4 {
            0 => low <= high,
            1 => (1..BLOCK_AREA).contains(&usize::from(value)),
            _ => false,
        };
        if !sound {
            return Err(corrupt(format!("damaged JPEG conditioning {kind:#04x}: {value}"), at));
        }
        match kind >> 4 {
            0 => tables.conditioning.dc[slot] = (low, high),
            _ => tables.conditioning.ac[slot] = value,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
