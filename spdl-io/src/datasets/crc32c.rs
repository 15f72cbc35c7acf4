//! The checksum of TFRecord: CRC-32C (Castagnoli), and the mask that is put over it.

/// The polynomial, its lowest bit first.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// `TABLES[k][byte]` is what a byte does to the checksum when `k` more bytes follow it.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[k - 1][byte];
            tables[k][byte] = before >> 8 ^ tables[0][(before & 0xFF) as usize];
            byte += 1;
        }
        k += 1;
    }
    tables
}

/// The CRC-32C of `data`, eight bytes a step.
pub(crate) fn crc32c(data: &[u8]) -> u32 {
    let at = |table: usize, word: u32, shift: u32| TABLES[table][(word >> shift & 0xFF) as usize];
    let (eights, rest) = data.as_chunks::<8>();
    let mut crc = !0;
    for [a, b, c, d, e, f, g, h] in eights {
        let low = crc ^ u32::from_le_bytes([*a, *b, *c, *d]);
        let high = u32::from_le_bytes([*e, *f, *g, *h]);
        crc = at(7, low, 0)
            ^ at(6, low, 8)
            ^ at(5, low, 16)
            ^ at(4, low, 24)
            ^ at(3, high, 0)
            ^ at(2, high, 8)
            ^ at(1, high, 16)
            ^ at(0, high, 24);
    }
    for &byte in rest {
        crc = crc >> 8 ^ at(0, crc ^ u32::from(byte), 0);
    }
    !crc
}

/// What a TFRecord file holds for `data`: the checksum turned by 15 bits, plus a constant.
pub(crate) fn masked_crc32c(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xA282_EAD8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standard() {
        // RFC 3720, B.4, and the check value of catalogues of checksums.
        assert_eq!(crc32c(b""), 0);
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&rising), 0x46DD_794E);
    }

    #[test]
    fn eight_bytes_at_a_time_are_as_one_at_a_time() {
        let data: Vec<u8> = (0..100_u32).map(|i| (i * i * 7 + 3) as u8).collect();
        for len in 0..data.len() {
            let slow = !data[..len]
                .iter()
                .fold(!0, |crc: u32, &byte| crc >> 8 ^ TABLES[0][(crc as u8 ^ byte) as usize]);
            assert_eq!(crc32c(&data[..len]), slow, "{len} bytes");
        }
    }
}
