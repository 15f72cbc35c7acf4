//! The tables of DQT, DHT, DAC and DRI segments.

use spdl_core::Result;

use super::errors::corrupt;
use super::header::{BLOCK_AREA, DAC, DHT, Quantization, ZIGZAG};
use super::huffman::{AcTable, HuffmanTable};

const DQT: u8 = 0xDB;
const DRI: u8 = 0xDD;

/// The standard defines four tables of each kind. The marker can number 16 tables, and libjpeg
/// accepts all of them.
pub(super) const CONDITIONING_TABLES: usize = 16;

/// The conditioning of arithmetic coding from a DAC segment (T.81, B.2.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conditioning {
    /// Bounds L and U of small and large DC differences.
    pub(super) dc: [(u8, u8); CONDITIONING_TABLES],
    /// Kx: the last AC coefficient of low frequency.
    pub(super) ac: [u8; CONDITIONING_TABLES],
}

impl Default for Conditioning {
    fn default() -> Self {
        Conditioning { dc: [(0, 1); _], ac: [5; _] }
    }
}

/// The tables that scans use.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// In row order, not zigzag order.
    pub(super) quantization: [Option<Quantization>; 4],
    pub(super) dc: [HuffmanTable; 4],
    pub(super) ac: [AcTable; 4],
    /// MCUs between restart markers; 0 without restart markers.
    pub(super) restart_interval: usize,
    pub(super) conditioning: Conditioning,
}

impl Tables {
    /// Parses a table segment; other segments are ignored.
    pub(super) fn read(&mut self, marker: u8, segment: &[u8], at: usize) -> Result<()> {
        match marker {
            DQT => read_quantization(segment, self, at),
            DHT => read_huffman(segment, self, at),
            DAC => read_conditioning(segment, self, at),
            DRI => match *segment {
                [high, low] => {
                    self.restart_interval = usize::from(u16::from_be_bytes([high, low]));
                    Ok(())
                }
                _ => {
                    Err(corrupt("corrupt JPEG: invalid length of the restart interval segment", at))
                }
            },
            _ => Ok(()),
        }
    }

    pub(super) fn clear(&mut self) {
        self.quantization = [None; 4];
        self.dc.iter_mut().for_each(HuffmanTable::clear);
        self.ac.iter_mut().for_each(|table| table.codes.clear());
        self.restart_interval = 0;
        self.conditioning = Conditioning::default();
    }
}

fn read_quantization(mut segment: &[u8], tables: &mut Tables, at: usize) -> Result<()> {
    while let [kind, rest @ ..] = segment {
        let (wide, slot) = (kind >> 4, usize::from(kind & 15));
        let bytes = if wide == 0 { BLOCK_AREA } else { 2 * BLOCK_AREA };
        let (Some(values), true, true) = (rest.get(..bytes), slot < 4, wide < 2) else {
            return Err(corrupt(format!("corrupt JPEG: invalid quantisation table {slot}"), at));
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
        let invalid = || corrupt(format!("corrupt JPEG: invalid Huffman table {slot}"), at);
        let counts: &[u8; 16] = rest.first_chunk().ok_or_else(invalid)?;
        let total: usize = counts.iter().map(|&count| usize::from(count)).sum();
        let values = rest.get(16..16 + total).ok_or_else(invalid)?;
        // An invalid table counts as missing, because it is possible that no scan uses it.
        match (kind >> 4, tables.dc.get_mut(slot), tables.ac.get_mut(slot)) {
            (0, Some(table), _) => _ = table.build(counts, values, true),
            (1, _, Some(table)) => _ = table.build(counts, values),
            _ => return Err(invalid()),
        }
        segment = &rest[16 + total..];
    }
    Ok(())
}

/// Conditioning of arithmetic coding (B.2.4.3).
fn read_conditioning(segment: &[u8], tables: &mut Tables, at: usize) -> Result<()> {
    for &[kind, value] in segment.as_chunks().0 {
        let slot = usize::from(kind & 15);
        let (low, high) = (value & 15, value >> 4);
        let is_valid = match kind >> 4 {
            0 => low <= high,
            1 => (1..BLOCK_AREA).contains(&usize::from(value)),
            _ => false,
        };
        if !is_valid {
            return Err(corrupt(
                format!(
                    "corrupt JPEG: invalid arithmetic conditioning {value} of table {kind:#04x}"
                ),
                at,
            ));
        }
        match kind >> 4 {
            0 => tables.conditioning.dc[slot] = (low, high),
            _ => tables.conditioning.ac[slot] = value,
        }
    }
    Ok(())
}
