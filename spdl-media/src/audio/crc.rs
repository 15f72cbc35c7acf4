//! Checksums of FLAC frames and Ogg pages.

/// A cyclic redundancy check of 32 bits that processes the highest bit first, starts with 0, and is
/// not inverted. One of 16 bits is one of 32 whose polynomial is shifted by 16 bits.
pub(super) struct Crc {
    tables: [[u32; 256]; 8],
}

impl Crc {
    pub(super) const fn new(polynomial: u32) -> Self {
        let mut tables = [[0; 256]; 8];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = (byte as u32) << 24;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 1 << 31 != 0 { crc << 1 ^ polynomial } else { crc << 1 };
                bit += 1;
            }
            tables[0][byte] = crc;
            byte += 1;
        }
        let mut table = 1;
        while table < 8 {
            let mut byte = 0;
            while byte < 256 {
                let crc: u32 = tables[table - 1][byte];
                tables[table][byte] = crc << 8 ^ tables[0][(crc >> 24) as usize];
                byte += 1;
            }
            table += 1;
        }
        Crc { tables }
    }

    /// The checksum of `data` after data with the checksum `crc`, eight bytes a step.
    pub(super) fn update(&self, crc: u32, data: &[u8]) -> u32 {
        let tables = &self.tables;
        let (words, rest) = data.as_chunks::<8>();
        let crc = words.iter().fold(crc, |crc, word| {
            let [a, b, c, d] = crc.to_be_bytes();
            let mixed = [word[0] ^ a, word[1] ^ b, word[2] ^ c, word[3] ^ d];
            let mixed = mixed.iter().chain(&word[4..]).enumerate();
            mixed.fold(0, |sum, (at, byte)| sum ^ tables[7 - at][usize::from(*byte)])
        });
        rest.iter()
            .fold(crc, |crc, byte| crc << 8 ^ tables[0][usize::from((crc >> 24) as u8 ^ byte)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // 0xFEE8 is the check value of CRC-16/UMTS in the catalogue of CRC algorithms.
    #[test]
    fn checksums_equal_those_computed_bit_by_bit() {
        let bit_by_bit = |polynomial: u32, data: &[u8]| {
            data.iter().fold(0_u32, |crc, byte| {
                (0..8).fold(crc ^ u32::from(*byte) << 24, |crc, _| {
                    if crc & 1 << 31 != 0 { crc << 1 ^ polynomial } else { crc << 1 }
                })
            })
        };
        let data: Vec<u8> = (0..100).map(|at| (at * 37 + 11) as u8).collect();
        for polynomial in [0x8005 << 16, 0x04C1_1DB7] {
            for length in [0, 1, 7, 8, 9, 63, 100] {
                let found = Crc::new(polynomial).update(0, &data[..length]);
                assert_eq!(found, bit_by_bit(polynomial, &data[..length]));
            }
        }
        assert_eq!(Crc::new(0x8005 << 16).update(0, b"123456789") >> 16, 0xFEE8);
    }
}
