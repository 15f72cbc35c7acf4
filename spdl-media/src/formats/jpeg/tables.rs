//! Tables that markers set and scans use.

use spdl_core::Result;

use super::arithmetic::Conditioning;
use super::corrupt;
use super::header::{BLOCK_AREA, DAC, DHT, ZIGZAG};
use super::huffman::{AcTable, HuffmanTable};
use super::scan::Quantization;

const DQT: u8 = 0xDB;
const DRI: u8 = 0xDD;

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
    /// Takes what a marker tells; those of no interest are passed over.
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
                _ => Err(corrupt("a JPEG restart interval of the wrong length", at)),
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
