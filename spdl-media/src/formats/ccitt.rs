//! Bilevel images as fax machines code them: ITU-T T.4 (group 3, with one or two dimensions), T.6
//! (group 4), and the variant of T.4 without marks that TIFF calls compression 2.

use fax::BitReader;
use fax::maps::{Mode, black, mode, white};

/// How rows are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// Runs; each row starts at a byte.
    Runs,
    /// Runs; rows are set apart by marks, and where `two_dimensional` is set, the bit behind one
    /// tells whether the next row is coded by its differences to the last.
    Group3 { two_dimensional: bool },
    /// Every row is coded by its differences to the last.
    Group4,
}

/// Why a row could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The data end, by themselves or by their own mark.
    Ended,
    /// No code starts like the data.
    BadCode,
}

/// Reads rows of `width` pixels, 8 in a byte, highest bit first, a bit of 1 for black. Says how many
/// rows were read before a fault.
pub(super) fn decode(
    data: &[u8],
    lowest_bit_first: bool,
    scheme: Scheme,
    width: u32,
    rows: &mut [u8],
) -> Result<(), (usize, Fault)> {
    let mut bits = Bits { data, at: 0, lowest_bit_first };
    // Where the colour changes: at even places from white to black.
    let (mut last, mut current) = (Vec::new(), Vec::new());
    let row_bytes = (width as usize).div_ceil(8).max(1);
    for (index, row) in rows.chunks_exact_mut(row_bytes).enumerate() {
        current.clear();
        let outcome = match scheme {
            Scheme::Runs => {
                bits.at = bits.at.next_multiple_of(8);
                read_runs(&mut bits, width, &mut current)
            }
            Scheme::Group3 { two_dimensional } => bits.pass_mark().and_then(|()| {
                if two_dimensional && !bits.take() {
                    read_differences(&mut bits, width, &last, &mut current)
                } else {
                    read_runs(&mut bits, width, &mut current)
                }
            }),
            Scheme::Group4 => read_differences(&mut bits, width, &last, &mut current),
        };
        if let Err(fault) = outcome {
            return Err((index, if bits.is_at_end() { Fault::Ended } else { fault }));
        }
        if bits.is_beyond() {
            return Err((index, Fault::Ended));
        }
        row.fill(0);
        for run in current.chunks(2) {
            let end = run.get(1).copied().unwrap_or(width);
            blacken(row, run[0] as usize, end as usize);
        }
        std::mem::swap(&mut last, &mut current);
    }
    Ok(())
}

/// Sets the bits of the pixels from `start` to before `end`.
fn blacken(row: &mut [u8], start: usize, end: usize) {
    for x in start..end {
        if x % 8 == 0 && x + 8 <= end {
            row[x / 8] = 0xFF;
        } else {
            row[x / 8] |= 0x80 >> (x % 8);
        }
    }
}

/// A row of runs, white first.
fn read_runs(bits: &mut Bits<'_>, width: u32, changes: &mut Vec<u32>) -> Result<(), Fault> {
    let (mut at, mut is_black) = (0, false);
    while at < width {
        at = at.saturating_add(read_run(bits, is_black)?).min(width);
        changes.push(at);
        is_black = !is_black;
    }
    Ok(())
}

/// The length of a run: codes for multiples of 64, and one for the rest.
fn read_run(bits: &mut Bits<'_>, is_black: bool) -> Result<u32, Fault> {
    let mut sum = 0u32;
    loop {
        let code = if is_black { black::decode(bits) } else { white::decode(bits) };
        let length = u32::from(code.ok_or(Fault::BadCode)?);
        sum = sum.saturating_add(length);
        if length < 64 {
            return Ok(sum);
        }
    }
}

/// A row that is coded by its differences to the last one (T.4, 4.2; T.6, 2.2).
fn read_differences(
    bits: &mut Bits<'_>,
    width: u32,
    last: &[u32],
    changes: &mut Vec<u32>,
) -> Result<(), Fault> {
    let (mut at, mut is_black) = (0, false);
    let (mut is_start, mut index) = (true, 0);
    while at < width {
        // The first change of the last row to the right, to the colour that is not the present one.
        while index > 0 && last.get(index - 1).is_some_and(|&change| change > at) {
            index -= 1;
        }
        while last.get(index).is_some_and(|&change| change < at || (change == at && !is_start))
            || index % 2 != usize::from(is_black)
        {
            index += 1;
        }
        let change = |index: usize| last.get(index).copied().unwrap_or(width);
        match mode::decode(bits).ok_or(Fault::BadCode)? {
            Mode::Pass => at = change(index + 1),
            Mode::Horizontal => {
                for is_black in [is_black, !is_black] {
                    at = at.saturating_add(read_run(bits, is_black)?).min(width);
                    changes.push(at);
                }
            }
            Mode::Vertical(by) => {
                let next = change(index).saturating_add_signed(by.into()).min(width);
                if next < at {
                    return Err(Fault::BadCode);
                }
                at = next;
                changes.push(at);
                is_black = !is_black;
            }
            Mode::EOF => return Err(Fault::Ended),
            // Uncompressed parts, which nobody writes.
            Mode::Extension => return Err(Fault::BadCode),
        }
        is_start = false;
    }
    Ok(())
}

/// Data, bit by bit; zeros follow them.
struct Bits<'a> {
    data: &'a [u8],
    /// In bits.
    at: usize,
    lowest_bit_first: bool,
}

impl Bits<'_> {
    fn is_beyond(&self) -> bool {
        self.at > 8 * self.data.len()
    }

    /// Whether so few bits are left that a code may have been cut.
    fn is_at_end(&self) -> bool {
        const LONGEST_CODE: usize = 13;
        self.at + LONGEST_CODE > 8 * self.data.len()
    }

    fn byte(&self, at: usize) -> u32 {
        let byte = self.data.get(at).copied().unwrap_or(0);
        u32::from(if self.lowest_bit_first { byte.reverse_bits() } else { byte })
    }

    /// The next 16 bits.
    fn next(&self) -> u32 {
        let at = self.at / 8;
        let bytes = self.byte(at) << 16 | self.byte(at + 1) << 8 | self.byte(at + 2);
        bytes >> (8 - self.at % 8) & 0xFFFF
    }

    fn take(&mut self) -> bool {
        let bit = self.next() >> 15 == 1;
        self.at += 1;
        bit
    }

    /// Passes over the mark before a row, 11 zeros or more and a one, where there is one. A second
    /// one means the end.
    fn pass_mark(&mut self) -> Result<(), Fault> {
        let is_mark = |bits: &Self| bits.next() >> 5 == 0;
        if is_mark(self) {
            while !self.take() {
                if self.is_beyond() {
                    return Err(Fault::Ended);
                }
            }
            if is_mark(self) {
                return Err(Fault::Ended);
            }
        }
        Ok(())
    }
}

impl BitReader for Bits<'_> {
    type Error = std::convert::Infallible;

    fn peek(&self, bits: u8) -> Option<u16> {
        16u32.checked_sub(bits.into()).map(|beyond| (self.next() >> beyond) as u16)
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

    /// Bits as a text of `0` and `1`, filled up with zeros.
    fn packed(text: &str) -> Vec<u8> {
        let bits: Vec<u8> = text.bytes().filter(|byte| *byte != b' ').map(|b| b - b'0').collect();
        let byte = |bits: &[u8]| bits.iter().rev().fold(0, |byte, bit| byte >> 1 | bit << 7);
        bits.chunks(8).map(byte).collect()
    }

    fn read(text: &str, scheme: Scheme, rows: usize) -> (Vec<u8>, Result<(), (usize, Fault)>) {
        let mut found = vec![0xAA; rows];
        let outcome = decode(&packed(text), false, scheme, 8, &mut found);
        (found, outcome)
    }

    const MARK: &str = "000000000001";
    // By table 2 of T.4: 3 white, 2 black, 3 white.
    const ROW: &str = "1000 11 1000";

    #[test]
    fn rows_are_those_that_the_recommendations_describe() {
        let lines = format!("{MARK} {ROW} 0000 {MARK} {ROW}");
        let found = read(&lines, Scheme::Group3 { two_dimensional: false }, 2);
        assert_eq!(found, (vec![0b0001_1000; 2], Ok(())));
        // The second row: both changes lie one further to the right, and the end as before.
        let lines = format!("{MARK} 1 {ROW} {MARK} 0 011 011 1");
        let found = read(&lines, Scheme::Group3 { two_dimensional: true }, 2);
        assert_eq!(found, (vec![0b0001_1000, 0b0000_1100], Ok(())));
        // A row of runs, one that passes the black of the last, one that ends where it did not.
        let found = read("001 1000 11 1 0001 1", Scheme::Group4, 2);
        assert_eq!(found, (vec![0b0001_1000, 0], Ok(())));
        let found = read(&format!("{ROW} 000000 {ROW}"), Scheme::Runs, 2);
        assert_eq!(found, (vec![0b0001_1000; 2], Ok(())));
    }

    #[test]
    fn what_ends_early_or_means_nothing_is_told_with_the_rows_before() {
        let group3 = Scheme::Group3 { two_dimensional: false };
        let end = MARK.repeat(6);
        let found = read(&format!("{MARK} {ROW} {end}"), group3, 3);
        assert_eq!((found.0[0], found.1), (0b0001_1000, Err((1, Fault::Ended))));
        assert_eq!(read(&format!("{MARK} {ROW}"), group3, 3).1, Err((1, Fault::Ended)));
        assert_eq!(
            read(&format!("00000000{}", "1".repeat(40)), group3, 1).1,
            Err((0, Fault::BadCode))
        );
        assert_eq!(read("000000000001 000000000001", Scheme::Group4, 1).1, Err((0, Fault::Ended)));
        assert_eq!(read("", Scheme::Group4, 1).1, Err((0, Fault::Ended)));
    }

    #[test]
    fn the_lowest_bit_may_come_first() {
        let mut data = packed(&format!("{MARK} {ROW}"));
        data.iter_mut().for_each(|byte| *byte = byte.reverse_bits());
        let mut found = [0; 1];
        let scheme = Scheme::Group3 { two_dimensional: false };
        decode(&data, true, scheme, 8, &mut found).unwrap();
        assert_eq!(found, [0b0001_1000]);
    }
}
