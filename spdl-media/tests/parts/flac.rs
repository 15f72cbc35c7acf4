//! A small encoder of FLAC: constant and verbatim blocks, mono, 16 bits, 8 kHz.

/// Samples of a block.
const BLOCK: u32 = 4096;

/// A file of this number of samples. Half of its seconds are silent, so that the bit rate varies.
pub(crate) fn encode(samples: u32, seek_points: u32, has_total: bool) -> Vec<u8> {
    let blocks = samples.div_ceil(BLOCK);
    let mut audio = Vec::new();
    let mut starts = Vec::new();
    for block in 0..blocks {
        starts.push(audio.len() as u64);
        let count = BLOCK.min(samples - block * BLOCK);
        // More silence in the first half.
        let is_silent = block % if block < blocks / 2 { 2 } else { 8 } == 0;
        frame(block, count, is_silent, &mut audio);
    }
    let mut file = b"fLaC".to_vec();
    file.extend([if seek_points > 0 { 0 } else { 0x80 }, 0, 0, 34]);
    file.extend([(BLOCK >> 8) as u8, BLOCK as u8, (BLOCK >> 8) as u8, BLOCK as u8]);
    file.extend([0; 6]);
    let total = if has_total { u64::from(samples) } else { 0 };
    let packed = 8000_u64 << 44 | 15 << 36 | total;
    file.extend(packed.to_be_bytes());
    file.extend([0; 16]);
    if seek_points > 0 {
        file.push(0x83);
        file.extend(&(18 * seek_points).to_be_bytes()[1..]);
        for point in 0..seek_points {
            let block = blocks / seek_points * point;
            file.extend(u64::from(block * BLOCK).to_be_bytes());
            file.extend(starts[block as usize].to_be_bytes());
            file.extend((BLOCK as u16).to_be_bytes());
        }
    }
    file.extend(audio);
    file
}

fn frame(number: u32, count: u32, is_silent: bool, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend([0xFF, 0xF8, 0x70, 0x08]);
    match number {
        0..0x80 => out.push(number as u8),
        0x80..0x800 => out.extend([0xC0 | (number >> 6) as u8, 0x80 | (number & 0x3F) as u8]),
        _ => out.extend([
            0xE0 | (number >> 12) as u8,
            0x80 | (number >> 6 & 0x3F) as u8,
            0x80 | (number & 0x3F) as u8,
        ]),
    }
    out.extend((count as u16 - 1).to_be_bytes());
    out.push(crc(&out[start..], 8, 0x07) as u8);
    if is_silent {
        out.push(0);
        out.extend((number as u16).to_be_bytes());
    } else {
        out.push(2);
        let sample = |at: u32| ((number * BLOCK + at).wrapping_mul(40_503) >> 4) as u16;
        out.extend((0..count).flat_map(|at| sample(at).to_be_bytes()));
    }
    let checksum = crc(&out[start..], 16, 0x8005) as u16;
    out.extend(checksum.to_be_bytes());
}

/// A checksum of 8 or 16 bits.
fn crc(data: &[u8], bits: u32, polynomial: u32) -> u32 {
    let table: Vec<u32> = (0..256_u32)
        .map(|byte| {
            (0..8).fold(byte << (bits - 8), |value, _| {
                let next = value << 1;
                (if value >> (bits - 1) & 1 != 0 { next ^ polynomial } else { next })
                    & ((1 << bits) - 1)
            })
        })
        .collect();
    data.iter().fold(0, |value, byte| {
        let at = (value >> (bits - 8)) as u8 ^ byte;
        (value << 8 ^ table[usize::from(at)]) & ((1 << bits) - 1)
    })
}
