//! Checks of encoded values on which the `parquet` crate would panic.
//!
//! The checks follow the numbers of bytes that the crate reads. Values that the crate rejects itself are
//! accepted here.

use super::thrift::Thrift;

/// The maximum number of values of a block in `DELTA_BINARY_PACKED`. Writers use 128 to a few thousand.
const MAX_BLOCK: u64 = 1 << 20;

/// The bits that a level of at most `max_level` takes.
pub(super) fn level_bits(max_level: i16) -> u32 {
    i16::BITS - max_level.leading_zeros()
}

/// A run of values in the RLE and bit-packing hybrid.
enum Run<'a> {
    Repeated { value: u64, count: u64 },
    Packed(&'a [u8]),
}

/// Calls `visit` for each run of a hybrid until it has `count` values, or ends. `None` if a number has
/// more than ten bytes, on which the crate panics.
fn visit_runs<'a>(
    bytes: &'a [u8],
    bits: u32,
    count: u64,
    mut visit: impl FnMut(Run<'a>),
) -> Option<()> {
    let (mut at, mut seen) = (0, 0_u64);
    while seen < count && at < bytes.len() {
        let Some(header) = varint(bytes, &mut at)? else { break };
        let run = header >> 1;
        let values = if header & 1 == 0 {
            let Some(value) = bytes.get(at..).and_then(|it| it.get(..bits.div_ceil(8) as usize))
            else {
                break;
            };
            at += value.len();
            let value = value.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            visit(Run::Repeated { value, count: run });
            run
        } else {
            let len = run.saturating_mul(bits.into());
            let end = usize::try_from(len).map_or(bytes.len(), |len| at.saturating_add(len));
            // Some writers truncate the last run.
            let packed = &bytes[at..end.min(bytes.len())];
            at += packed.len();
            visit(Run::Packed(packed));
            run.saturating_mul(8)
        };
        // Padding at the end.
        if header == 0 {
            break;
        }
        seen = seen.saturating_add(values);
    }
    Some(())
}

/// Checks a hybrid of up to `count` values.
pub(super) fn check_hybrid(bytes: &[u8], bits: u32, count: u64) -> Option<()> {
    visit_runs(bytes, bits, count, |_| {})
}

/// The number of values of a hybrid that equal `value`, of the first `count`.
pub(super) fn count_in_hybrid(bytes: &[u8], bits: u32, count: u64, value: u64) -> Option<u64> {
    let (mut found, mut left) = (0, count);
    visit_runs(bytes, bits, count, |run| match run {
        Run::Repeated { value: repeated, count } => {
            let count = count.min(left);
            found += if repeated == value { count } else { 0 };
            left -= count;
        }
        Run::Packed(packed) => {
            let count = (packed.len() as u64 * 8 / u64::from(bits.max(1))).min(left);
            found += count_packed(packed, bits, count, value);
            left -= count;
        }
    })?;
    Some(found)
}

/// The number of bit-packed values that equal `value`, of the first `count`.
pub(super) fn count_packed(packed: &[u8], bits: u32, count: u64, value: u64) -> u64 {
    let mut packed = Packed { bytes: packed, bit: 0 };
    (0..count).filter(|_| packed.next(bits) == Some(value)).count() as u64
}

/// Checks byte arrays that are stored with their lengths: at least `count` of them.
pub(super) fn check_byte_arrays(bytes: &[u8], count: u64) -> Option<()> {
    let mut at = 0_usize;
    for _ in 0..count {
        let len = u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?);
        at = at.checked_add(4)?.checked_add(usize::try_from(len).ok()?)?;
        if at > bytes.len() {
            return None;
        }
    }
    Some(())
}

/// Checks values whose bytes are stored in streams: at least `count` values of `size` bytes.
pub(super) fn check_streams(bytes: &[u8], size: usize, count: u64) -> Option<()> {
    let values = (bytes.len() as u64).checked_div(size as u64)?;
    (count <= values).then_some(())
}

/// Checks integers in `DELTA_BINARY_PACKED`, of which at least `count` are read.
pub(super) fn check_deltas(bytes: &[u8], count: u64) -> Option<()> {
    let mut deltas = Deltas::new(bytes)?;
    // The crate subtracts the first value from the number of values.
    if deltas.values == 0 && count > 0 {
        return None;
    }
    // The crate reports the end of the data itself.
    let _ = deltas.visit(|_| Some(()))?;
    Some(())
}

/// Checks byte arrays in `DELTA_LENGTH_BYTE_ARRAY`, of which up to `most` are read.
pub(super) fn check_delta_lengths(bytes: &[u8], most: u64) -> Option<()> {
    let mut deltas = Deltas::new(bytes)?;
    if deltas.values > most {
        return None;
    }
    let mut sum = 0_u64;
    let end = deltas.visit(|length| {
        sum = sum.checked_add(u64::try_from(length).ok()?)?;
        Some(())
    })?;
    let left = bytes.len().checked_sub(end?)?;
    (sum <= left as u64).then_some(())
}

/// Reader of `DELTA_BINARY_PACKED` integers of 32 bits.
struct Deltas<'a> {
    bytes: &'a [u8],
    at: usize,
    mini_blocks: u64,
    mini_block: u64,
    values: u64,
    first: i64,
}

impl<'a> Deltas<'a> {
    /// Reads the header. `None` if the crate would panic, or rejects the header.
    fn new(bytes: &'a [u8]) -> Option<Self> {
        let mut at = 0;
        let mut number = || varint(bytes, &mut at)?;
        let (block, mini_blocks, values) = (number()?, number()?, number()?);
        let first = zigzag(number()?);
        let is_valid = (1..=MAX_BLOCK).contains(&block) && block % mini_blocks.max(1) == 0;
        let mini_block = block.checked_div(mini_blocks)?;
        (is_valid && mini_block % 32 == 0).then_some(Deltas {
            bytes,
            at,
            mini_blocks,
            mini_block,
            values,
            first,
        })
    }

    /// Calls `visit` for each value, as an integer of 32 bits. Returns the end of the last block, or
    /// `Some(None)` if the data end before. `None` if the crate would panic, or `visit` returns it.
    fn visit(&mut self, mut visit: impl FnMut(i32) -> Option<()>) -> Option<Option<usize>> {
        if self.values == 0 {
            return Some(Some(self.at));
        }
        let mut value = self.first as i32;
        visit(value)?;
        let mut left = self.values - 1;
        while left > 0 {
            let Some(least) = varint(self.bytes, &mut self.at)? else { return Some(None) };
            let least = zigzag(least) as i32;
            let widths = self.bytes.get(self.at..).unwrap_or_default();
            let Some(widths) = widths.get(..self.mini_blocks as usize) else { return Some(None) };
            self.at += widths.len();
            for width in widths {
                if left == 0 {
                    break;
                }
                let len = usize::from(*width) * self.mini_block as usize / 8;
                let packed = self.bytes.get(self.at..).unwrap_or_default().get(..len);
                // Wider values are an error of the crate.
                let Some(packed) = packed.filter(|_| *width <= 32) else { return Some(None) };
                self.at += len;
                let mut packed = Packed { bytes: packed, bit: 0 };
                let count = left.min(self.mini_block);
                for _ in 0..count {
                    let delta = packed.next((*width).into()).unwrap_or_default() as i32;
                    value = value.wrapping_add(least).wrapping_add(delta);
                    visit(value)?;
                }
                left -= count;
            }
        }
        Some(Some(self.at))
    }
}

/// Reader of bit-packed values, lowest bit first.
struct Packed<'a> {
    bytes: &'a [u8],
    bit: usize,
}

impl Packed<'_> {
    /// The next value of at most 32 bits; `None` at the end.
    fn next(&mut self, bits: u32) -> Option<u64> {
        let end = self.bit + bits as usize;
        if end > self.bytes.len() * 8 {
            return None;
        }
        let window = self.bytes[self.bit / 8..end.div_ceil(8)].iter().rev();
        let window = window.fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        let value = window >> (self.bit % 8) & ((1 << bits) - 1);
        self.bit = end;
        Some(value)
    }
}

/// A number of 7 bits per byte. `Some(None)` if the data end before its end; `None` if it has more than
/// ten bytes.
fn varint(bytes: &[u8], at: &mut usize) -> Option<Option<u64>> {
    let mut thrift = Thrift { bytes, at: *at };
    let number = thrift.varint().ok();
    if number.is_none() && bytes.len() - *at > 10 {
        return None;
    }
    *at = thrift.at;
    Some(number)
}

fn zigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number of eleven bytes.
    const ENDLESS: [u8; 11] = [0x80; 11];

    // promise: R1
    #[test]
    fn numbers_of_more_than_ten_bytes_are_refused() {
        assert!(check_hybrid(&ENDLESS, 1, 8).is_none());
        assert!(check_hybrid(&ENDLESS[..10], 1, 8).is_some(), "the crate ends there");
        assert!(check_deltas(&ENDLESS, 1).is_none());
        // 128 values in 4 mini blocks; the second number is the first value.
        let deltas = [&[0x80, 1, 4, 2, 0][..], &ENDLESS].concat();
        assert!(check_deltas(&deltas, 1).is_none());
        assert!(check_deltas(&deltas[..9], 1).is_some(), "the crate ends there");
    }

    #[test]
    fn levels_are_counted_in_all_runs() {
        // Three times 1, then 8 values of 1 bit: 0b1011_0001.
        let runs = [6, 1, 3, 0b1011_0001];
        assert_eq!(count_in_hybrid(&runs, 1, 11, 1), Some(7));
        assert_eq!(count_in_hybrid(&runs, 1, 11, 0), Some(4));
        assert_eq!(count_in_hybrid(&runs, 1, 5, 1), Some(4));
        assert_eq!(count_in_hybrid(&runs, 1, 2, 1), Some(2));
        // 8 values of 2 bits: 0, 1, 2, 3 and so on.
        assert_eq!(count_in_hybrid(&[3, 0b1110_0100, 0b1110_0100], 2, 8, 2), Some(2));
        assert_eq!(count_packed(&[0b1110_0100], 2, 4, 3), 1);
    }

    // promise: R1
    #[test]
    fn byte_arrays_beyond_their_page_are_refused() {
        let bytes = [&[2, 0, 0, 0][..], b"ab", &[0, 0, 0, 0]].concat();
        assert!(check_byte_arrays(&bytes, 2).is_some());
        for (len, count) in [(10, 3), (9, 2), (5, 1), (3, 1)] {
            assert!(check_byte_arrays(&bytes[..len], count).is_none(), "{len} {count}");
        }
        assert!(check_byte_arrays(&[0xFF; 8], 1).is_none());
        assert!(check_streams(&[0; 8], 4, 2).is_some());
        assert!(check_streams(&[0; 8], 4, 3).is_none());
        assert!(check_streams(&[0; 8], 0, 0).is_none());
    }

    // promise: R1
    #[test]
    fn delta_lengths_beyond_their_page_are_refused() {
        // Lengths 3 and 1: a first value of 3 (zigzag 6), a delta of −2 (zigzag 3) and widths of 0.
        let lengths = [0x80, 1, 4, 2, 6, 3, 0, 0, 0, 0];
        let with = |bytes: &[u8]| [&lengths[..], bytes].concat();
        assert!(check_delta_lengths(&with(b"abcd"), 2).is_some());
        assert!(check_delta_lengths(&with(b"abc"), 2).is_none());
        assert!(check_delta_lengths(&with(b"abcd"), 1).is_none());
        assert!(check_delta_lengths(&lengths[..9], 2).is_none());
        // Lengths 3 and −1.
        let negative = [&[0x80, 1, 4, 2, 6, 7, 0, 0, 0, 0][..], b"abcd"].concat();
        assert!(check_delta_lengths(&negative, 2).is_none());
        // A delta of 2 in 2 bits: 3 and 5.
        let packed = [&[0x80, 1, 4, 2, 6, 0, 2, 0, 0, 0, 2][..], &[0; 7], b"abcdefgh"].concat();
        assert!(check_delta_lengths(&packed, 2).is_some());
        assert!(check_delta_lengths(&packed[..25], 2).is_none());
        // Without values.
        assert!(check_deltas(&[0x80, 1, 4, 0, 0], 0).is_some());
        assert!(check_deltas(&[0x80, 1, 4, 0, 0], 1).is_none());
        // A block that is too large, empty, or not divisible.
        for header in [&[0x80, 0x80, 0x80, 1, 4][..], &[0, 4], &[0x80, 1, 0], &[0x80, 1, 3]] {
            assert!(check_deltas(&[header, &[1, 0]].concat(), 1).is_none(), "{header:?}");
        }
    }
}
