//! CCITT fax decoding of bilevel images: ITU-T T.4 (group 3, one- and two-dimensional), T.6 (group
//! 4), and modified Huffman coding without EOL codes (TIFF compression 2).

use fax::BitReader;
use fax::maps::{Mode, black, mode, white};

/// The coding scheme of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CcittScheme {
    /// One-dimensional, without EOL codes; each row starts at a byte boundary.
    ModifiedHuffman,
    /// One-dimensional with EOL codes. If `two_dimensional` is set, a tag bit after each EOL
    /// selects one- or two-dimensional coding of the next row.
    Group3 { two_dimensional: bool },
    /// Two-dimensional coding of every row.
    Group4,
}

/// Why a row could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CcittError {
    /// The data end, or an end-of-data code follows.
    EndOfData,
    /// No code word matches the data.
    InvalidCode,
}

/// Decodes rows of `width` pixels into packed bits, most significant bit first, 1 for black. An
/// error includes the number of complete rows.
pub(super) fn decode(
    data: &[u8],
    lsb_first: bool,
    scheme: CcittScheme,
    width: u32,
    rows: &mut [u8],
) -> Result<(), (usize, CcittError)> {
    let mut bits = CcittBitReader { data, at: 0, lsb_first };
    // The changing elements (positions where the colour changes) of the reference row and of the
    // coding row; even indices change from white to black.
    let (mut reference, mut current) = (Vec::new(), Vec::new());
    let row_bytes = (width as usize).div_ceil(8).max(1);
    // Whether EOL codes precede the rows. The data may lack all of them.
    let mut has_eol = None;
    for (index, row) in rows.chunks_exact_mut(row_bytes).enumerate() {
        current.clear();
        let outcome = match scheme {
            CcittScheme::ModifiedHuffman => {
                bits.at = bits.at.next_multiple_of(8);
                read_one_dimensional(&mut bits, width, &mut current)
            }
            CcittScheme::Group3 { two_dimensional } => bits.skip_eol().and_then(|found| {
                // Between damaged rows, other decoders skip data until the next EOL.
                if *has_eol.get_or_insert(found) != found {
                    return Err(CcittError::InvalidCode);
                }
                if two_dimensional && !bits.next_bit() {
                    read_two_dimensional(&mut bits, width, &reference, &mut current)
                } else {
                    read_one_dimensional(&mut bits, width, &mut current)
                }
            }),
            CcittScheme::Group4 => read_two_dimensional(&mut bits, width, &reference, &mut current),
        };
        if let Err(error) = outcome {
            return Err((index, if bits.is_at_end() { CcittError::EndOfData } else { error }));
        }
        if bits.is_beyond() {
            return Err((index, CcittError::EndOfData));
        }
        row.fill(0);
        for run in current.chunks(2) {
            let end = run.get(1).copied().unwrap_or(width);
            set_bits(row, run[0] as usize, end as usize);
        }
        std::mem::swap(&mut reference, &mut current);
    }
    Ok(())
}

/// Sets the bits of the pixels `start..end`.
fn set_bits(row: &mut [u8], start: usize, end: usize) {
    for x in start..end {
        if x % 8 == 0 && x + 8 <= end {
            row[x / 8] = 0xFF;
        } else {
            row[x / 8] |= 0x80 >> (x % 8);
        }
    }
}

/// One-dimensional coding: runs of alternating colour, white first.
fn read_one_dimensional(
    bits: &mut CcittBitReader<'_>,
    width: u32,
    changes: &mut Vec<u32>,
) -> Result<(), CcittError> {
    let (mut at, mut is_black) = (0, false);
    while at < width {
        at = within(at.saturating_add(read_run(bits, is_black)?), width)?;
        changes.push(at);
        is_black = !is_black;
    }
    Ok(())
}

/// A position in a row. Other decoders clamp runs that exceed the row and warn.
fn within(at: u32, width: u32) -> Result<u32, CcittError> {
    if at > width { Err(CcittError::InvalidCode) } else { Ok(at) }
}

/// The length of a run: make-up codes for multiples of 64, and a terminating code.
fn read_run(bits: &mut CcittBitReader<'_>, is_black: bool) -> Result<u32, CcittError> {
    let mut sum = 0u32;
    loop {
        let code = if is_black { black::decode(bits) } else { white::decode(bits) };
        let length = u32::from(code.ok_or(CcittError::InvalidCode)?);
        sum = sum.saturating_add(length);
        if length < 64 {
            return Ok(sum);
        }
    }
}

/// Two-dimensional coding, relative to the reference row (T.4, 4.2; T.6, 2.2).
fn read_two_dimensional(
    bits: &mut CcittBitReader<'_>,
    width: u32,
    reference: &[u32],
    changes: &mut Vec<u32>,
) -> Result<(), CcittError> {
    let (mut at, mut is_black) = (0, false);
    let mut index = 0;
    while at < width {
        // b1 in T.4: the first changing element of the reference row to the right that has the
        // opposite colour. As in libtiff, it may be at the current position before the first change.
        while index > 0 && reference.get(index - 1).is_some_and(|&change| change > at) {
            index -= 1;
        }
        let is_start = changes.is_empty();
        while reference.get(index).is_some_and(|&change| change < at || (change == at && !is_start))
            || index % 2 != usize::from(is_black)
        {
            index += 1;
        }
        let change = |index: usize| reference.get(index).copied().unwrap_or(width);
        match mode::decode(bits).ok_or(CcittError::InvalidCode)? {
            // Without b1 there is no b2.
            Mode::Pass if change(index) >= width => return Err(CcittError::InvalidCode),
            Mode::Pass => at = change(index + 1),
            Mode::Horizontal => {
                for is_black in [is_black, !is_black] {
                    at = within(at.saturating_add(read_run(bits, is_black)?), width)?;
                    changes.push(at);
                }
            }
            Mode::Vertical(by) => {
                let next = change(index).checked_add_signed(by.into());
                let next = next.filter(|&next| next >= at).ok_or(CcittError::InvalidCode)?;
                let next = within(next, width)?;
                at = next;
                changes.push(at);
                is_black = !is_black;
            }
            Mode::EOF => return Err(CcittError::EndOfData),
            // This code selects the uncompressed mode, which no known encoder writes.
            Mode::Extension => return Err(CcittError::InvalidCode),
        }
    }
    Ok(())
}

/// A bit reader; zeros follow the data.
struct CcittBitReader<'a> {
    data: &'a [u8],
    /// The position in bits.
    at: usize,
    lsb_first: bool,
}

impl CcittBitReader<'_> {
    fn is_beyond(&self) -> bool {
        self.at > 8 * self.data.len()
    }

    /// Whether the remaining bits may be the start of a truncated code word.
    fn is_at_end(&self) -> bool {
        const LONGEST_CODE: usize = 13;
        self.at + LONGEST_CODE > 8 * self.data.len()
    }

    fn byte(&self, at: usize) -> u32 {
        let byte = self.data.get(at).copied().unwrap_or(0);
        u32::from(if self.lsb_first { byte.reverse_bits() } else { byte })
    }

    /// The next 16 bits.
    fn peek_16(&self) -> u32 {
        let at = self.at / 8;
        let bytes = self.byte(at) << 16 | self.byte(at + 1) << 8 | self.byte(at + 2);
        bytes >> (8 - self.at % 8) & 0xFFFF
    }

    fn next_bit(&mut self) -> bool {
        let bit = self.peek_16() >> 15 == 1;
        self.at += 1;
        bit
    }

    /// Skips an EOL code (11 or more zeros and a one) before a row, and returns whether there is one.
    /// Two EOL codes mean end of data.
    fn skip_eol(&mut self) -> Result<bool, CcittError> {
        let is_eol = |bits: &Self| bits.peek_16() >> 5 == 0;
        let found = is_eol(self);
        if found {
            while !self.next_bit() {
                if self.is_beyond() {
                    return Err(CcittError::EndOfData);
                }
            }
            if is_eol(self) {
                return Err(CcittError::EndOfData);
            }
        }
        Ok(found)
    }
}

impl BitReader for CcittBitReader<'_> {
    type Error = std::convert::Infallible;

    fn peek(&self, bits: u8) -> Option<u16> {
        16u32.checked_sub(bits.into()).map(|beyond| (self.peek_16() >> beyond) as u16)
    }

    fn consume(&mut self, bits: u8) -> Result<(), Self::Error> {
        self.at += usize::from(bits);
        Ok(())
    }

    fn bits_to_byte_boundary(&self) -> u8 {
        (self.at.next_multiple_of(8) - self.at) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a text of `0` and `1` into bytes, padded with zeros.
    fn packed(text: &str) -> Vec<u8> {
        let bits: Vec<u8> = text.bytes().filter(|byte| *byte != b' ').map(|b| b - b'0').collect();
        let byte = |bits: &[u8]| bits.iter().rev().fold(0, |byte, bit| byte >> 1 | bit << 7);
        bits.chunks(8).map(byte).collect()
    }

    fn read(
        text: &str,
        scheme: CcittScheme,
        rows: usize,
    ) -> (Vec<u8>, Result<(), (usize, CcittError)>) {
        let mut found = vec![0xAA; rows];
        let outcome = decode(&packed(text), false, scheme, 8, &mut found);
        (found, outcome)
    }

    const MARK: &str = "000000000001";
    // Codes of table 2 of T.4: 3 white, 2 black, 3 white.
    const ROW: &str = "1000 11 1000";

    #[test]
    fn rows_follow_the_itu_recommendations() {
        let lines = format!("{MARK} {ROW} 0000 {MARK} {ROW}");
        let found = read(&lines, CcittScheme::Group3 { two_dimensional: false }, 2);
        assert_eq!(found, (vec![0b0001_1000; 2], Ok(())));
        // The second row: both changes are one pixel further to the right than in the first row.
        let lines = format!("{MARK} 1 {ROW} {MARK} 0 011 011 1");
        let found = read(&lines, CcittScheme::Group3 { two_dimensional: true }, 2);
        assert_eq!(found, (vec![0b0001_1000, 0b0000_1100], Ok(())));
        // One row in horizontal mode; then a row in pass mode, without the black run of the row
        // before.
        let found = read("001 1000 11 1 0001 1", CcittScheme::Group4, 2);
        assert_eq!(found, (vec![0b0001_1000, 0], Ok(())));
        let found = read(&format!("{ROW} 000000 {ROW}"), CcittScheme::ModifiedHuffman, 2);
        assert_eq!(found, (vec![0b0001_1000; 2], Ok(())));
    }

    #[test]
    fn truncated_and_invalid_codes_are_errors_with_the_number_of_rows() {
        let group3 = CcittScheme::Group3 { two_dimensional: false };
        let end = MARK.repeat(6);
        let found = read(&format!("{MARK} {ROW} {end}"), group3, 3);
        assert_eq!((found.0[0], found.1), (0b0001_1000, Err((1, CcittError::EndOfData))));
        assert_eq!(read(&format!("{MARK} {ROW}"), group3, 3).1, Err((1, CcittError::EndOfData)));
        assert_eq!(
            read(&format!("00000000{}", "1".repeat(40)), group3, 1).1,
            Err((0, CcittError::InvalidCode))
        );
        assert_eq!(
            read("000000000001 000000000001", CcittScheme::Group4, 1).1,
            Err((0, CcittError::EndOfData))
        );
        assert_eq!(read("", CcittScheme::Group4, 1).1, Err((0, CcittError::EndOfData)));
    }

    #[test]
    fn rows_without_eol_codes_are_valid_only_if_all_rows_lack_them() {
        let group3 = CcittScheme::Group3 { two_dimensional: false };
        let found = read(&format!("{ROW} {ROW} {ROW}"), group3, 2);
        assert_eq!(found, (vec![0b0001_1000; 2], Ok(())));
        for lines in
            [format!("{MARK} {ROW} {ROW} {MARK} {ROW}"), format!("{ROW} {MARK} {ROW} {ROW}")]
        {
            assert_eq!(read(&lines, group3, 2).1, Err((1, CcittError::InvalidCode)), "{lines}");
        }
    }

    #[test]
    fn a_change_before_the_row_is_an_invalid_code() {
        // A row with a black pixel in column 0, and then V(L)1 relative to it.
        let found = read("001 00110101 010 1 010 000000000000000000", CcittScheme::Group4, 2);
        assert_eq!(found, (vec![0x80, 0xAA], Err((1, CcittError::InvalidCode))));
    }

    #[test]
    fn a_pass_mode_without_a_changing_element_is_an_invalid_code() {
        let found = read("0001 000000000000000000", CcittScheme::Group4, 1);
        assert_eq!(found.1, Err((0, CcittError::InvalidCode)));
    }

    #[test]
    fn empty_runs_of_the_reference_row_are_as_in_libtiff() {
        // White runs of 0 and 0, and black runs of 1 and 3; pass mode, and three times V(0).
        let row = "001 00110101 010 001 00110101 10 1";
        let found = read(&format!("{row} 0001 111"), CcittScheme::Group4, 2);
        assert_eq!(found, (vec![0b1111_0000, 0b0111_0000], Ok(())));
    }

    #[test]
    fn bytes_may_start_with_the_lowest_bit() {
        let mut data = packed(&format!("{MARK} {ROW}"));
        data.iter_mut().for_each(|byte| *byte = byte.reverse_bits());
        let mut found = [0; 1];
        let scheme = CcittScheme::Group3 { two_dimensional: false };
        decode(&data, true, scheme, 8, &mut found).unwrap();
        assert_eq!(found, [0b0001_1000]);
    }
}
