//! Entropy-coded data without stuffed bytes, read as bits.

use fearless_simd::prelude::*;
use fearless_simd::{Level, dispatch, u8x32};

use super::header::find_marker;

/// Bytes of unstuffed data in the window; a larger window would exceed the L1 cache.
const WINDOW: usize = 8 << 10;
/// The maximum size of an MCU: 10 blocks of 64 codes with values of 31 bits each.
const MAX_MCU_BYTES: usize = 10 * 64 * 31 / 8 + 64;
/// Bytes loaded per refill.
const WORD: usize = 8;

/// Memory for a window of unstuffed data.
#[derive(Debug)]
pub(super) struct EntropyWindow(Box<[u8; WINDOW + WORD]>);

impl Default for EntropyWindow {
    fn default() -> Self {
        EntropyWindow(Box::new([0; WINDOW + WORD]))
    }
}

/// Reads the entropy-coded data of a scan, up to the next marker.
#[derive(Debug)]
pub(super) struct EntropyReader<'a> {
    encoded: &'a [u8],
    window: &'a mut EntropyWindow,
    /// The number of data bytes in the window; [`WORD`] zero bytes follow, which may be read too.
    filled: usize,
    /// The file offset of the first byte of the window.
    start: usize,
    /// The file offset of the first byte after the window.
    source: usize,
    /// Whether `source` is the offset of a marker or the end of the file.
    ended: bool,
    position: BitPosition,
    level: Level,
}

/// The position of the bit reader.
#[derive(Clone, Copy, Debug, Default)]
struct BitPosition {
    /// The index in the window of the first byte that is not in `bits`. Zeros follow the data.
    at: usize,
    /// The next bits, most significant first. Only `count` of them are valid; the lower bits are
    /// zeros, or bits of the next bytes.
    bits: u64,
    count: u32,
}

impl<'a> EntropyReader<'a> {
    /// Reads `encoded` from the offset `at`.
    pub(super) fn new(
        encoded: &'a [u8],
        at: usize,
        window: &'a mut EntropyWindow,
        level: Level,
    ) -> Self {
        let mut reader = EntropyReader {
            encoded,
            window,
            filled: 0,
            start: at,
            source: at,
            ended: false,
            position: BitPosition::default(),
            level,
        };
        reader.fill();
        reader
    }

    /// A bit reader with enough data for an MCU. Zeros follow the end of the data.
    #[inline(always)]
    pub(super) fn bits(&mut self) -> BitReader<'_> {
        if self.position.at + MAX_MCU_BYTES > self.filled && !self.ended {
            self.fill();
        }
        BitReader { data: &self.window.0[..self.filled + WORD], position: self.position }
    }

    /// Stores the position of the reader of [`bits`](Self::bits).
    #[inline(always)]
    pub(super) fn set_position(&mut self, position: BitReaderPosition) {
        self.position = position.0;
    }

    /// Whether more bits were read than the data contain.
    #[inline(always)]
    pub(super) fn is_overrun(&self) -> bool {
        self.is_beyond(0)
    }

    /// Whether the remaining bits may be the start of a truncated code.
    pub(super) fn is_at_end(&self) -> bool {
        self.ended && self.is_beyond(16)
    }

    #[inline(always)]
    fn is_beyond(&self, more: usize) -> bool {
        8 * self.position.at + more > 8 * self.filled + self.position.count as usize
    }

    /// The approximate file offset of the bit position. The result may be a few bytes too large,
    /// but is not after the next marker.
    pub(super) fn offset(&self) -> usize {
        self.start + stuffed_length(&self.window.0[..self.position.at.min(self.filled)])
    }

    /// Moves the remaining data to the start of the window, and refills it.
    #[inline(never)]
    fn fill(&mut self) {
        let done = self.position.at.min(self.filled);
        // The remaining bytes are fewer than those that were read.
        self.start = self.source - stuffed_length(&self.window.0[done..self.filled]);
        self.window.0.copy_within(done..self.filled, 0);
        self.filled -= done;
        self.position.at -= done;
        let window = &mut self.window.0[..WINDOW];
        while self.filled < WINDOW {
            let rest = &self.encoded[self.source.min(self.encoded.len())..];
            let target = &mut window[self.filled..];
            let plain = dispatch!(self.level, simd => copy_plain(simd, rest, target));
            self.filled += plain;
            self.source += plain;
            if plain == target.len() {
                break;
            }
            match rest[plain..] {
                [0xFF, 0, ..] => {
                    window[self.filled] = 0xFF;
                    self.filled += 1;
                    self.source += 2;
                }
                _ => {
                    self.ended = true;
                    break;
                }
            }
        }
        self.window.0[self.filled..][..WORD].fill(0);
    }

    /// Skips to the next marker and reads it; `None` at the end of the file.
    pub(super) fn next_marker(&mut self) -> Option<u8> {
        let marker = self.find_marker();
        self.source = marker.map_or(self.encoded.len(), |(_, end)| end);
        (self.start, self.filled, self.position) = (self.source, 0, BitPosition::default());
        self.ended = false;
        self.fill();
        marker.map(|(marker, _)| marker)
    }

    /// The next marker; `None` at the end of the file.
    pub(super) fn peek_marker(&self) -> Option<u8> {
        self.find_marker().map(|(marker, _)| marker)
    }

    /// The next marker, and the offset after it.
    fn find_marker(&self) -> Option<(u8, usize)> {
        find_marker(self.encoded, self.source)
    }
}

/// The number of bytes of the file that this part of the window occupies: in the file, a stuffed zero
/// follows every 0xFF.
fn stuffed_length(part: &[u8]) -> usize {
    const LOW_BITS: u64 = 0x7F7F_7F7F_7F7F_7F7F;
    let (words, rest) = part.as_chunks::<WORD>();
    // Each byte of a sum counts up to 255 bytes. Whether a compiler vectorises a loop over single bytes
    // depends on the code around it.
    let in_words = words.chunks(255).map(|words| {
        let sums: u64 = words
            .iter()
            .map(|word| {
                let complement = !u64::from_le_bytes(*word);
                // The highest bits of the bytes that are zero in the complement.
                !(((complement & LOW_BITS) + LOW_BITS) | complement | LOW_BITS) >> 7
            })
            .sum();
        sums.to_le_bytes().map(usize::from).iter().sum::<usize>()
    });
    let in_rest = rest.iter().filter(|&&byte| byte == 0xFF).count();
    part.len() + in_words.sum::<usize>() + in_rest
}

/// Copies the bytes before the first 0xFF, as many as fit. Returns their number.
#[inline(always)]
fn copy_plain<S: Simd>(simd: S, from: &[u8], to: &mut [u8]) -> usize {
    const WIDE: usize = 32;
    let mut copied = 0;
    for (from, to) in from.chunks_exact(WIDE).zip(to.chunks_exact_mut(WIDE)) {
        let bytes = u8x32::from_slice(simd, from);
        bytes.store_slice(to);
        if bytes.simd_eq(u8x32::splat(simd, 0xFF)).any_true() {
            break;
        }
        copied += WIDE;
    }
    let words = from[copied..].chunks_exact(WORD).zip(to[copied..].chunks_exact_mut(WORD));
    for (from, to) in words {
        to.copy_from_slice(from);
        let word = u64::from_le_bytes([
            from[0], from[1], from[2], from[3], from[4], from[5], from[6], from[7],
        ]);
        // In the complement, a byte 0xFF is a zero byte. The search for zero bytes is exact for the
        // lowest match.
        let found = (!word).wrapping_sub(0x0101_0101_0101_0101) & word & 0x8080_8080_8080_8080;
        if found != 0 {
            return copied + found.trailing_zeros() as usize / 8;
        }
        copied += WORD;
    }
    for (&from, to) in from[copied..].iter().zip(&mut to[copied..]) {
        if from == 0xFF {
            break;
        }
        *to = from;
        copied += 1;
    }
    copied
}

/// Reads bits of the data.
#[derive(Debug)]
pub(super) struct BitReader<'a> {
    data: &'a [u8],
    position: BitPosition,
}

/// The position of a [`BitReader`].
pub(super) struct BitReaderPosition(BitPosition);

impl BitReader<'_> {
    #[inline(always)]
    pub(super) fn position(self) -> BitReaderPosition {
        BitReaderPosition(self.position)
    }

    /// Fills the bit buffer to at least 56 bits.
    #[inline(always)]
    pub(super) fn refill(&mut self) {
        let BitPosition { at, bits, count } = &mut self.position;
        let next = self.data.get(*at..).and_then(|rest| rest.first_chunk());
        let word = next.map_or(0, |next| u64::from_be_bytes(*next));
        *bits |= word >> *count;
        *at += ((63 - *count) >> 3) as usize;
        *count |= 56;
    }

    /// The next bits; the first bit is the most significant.
    #[inline(always)]
    pub(super) fn peek(&self) -> u64 {
        self.position.bits
    }

    /// Skips bits; at most the number of valid bits.
    #[inline(always)]
    pub(super) fn consume(&mut self, count: u32) {
        self.position.bits <<= count;
        self.position.count -= count;
    }

    /// The next `count` bits as a number; at most 16 bits.
    #[inline(always)]
    pub(super) fn take(&mut self, count: u32) -> u32 {
        self.refill();
        // Two shifts, because a shift by 64 is undefined.
        let bits = (self.position.bits >> 1 >> (63 - count)) as u32;
        self.consume(count);
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads all whole bytes of the bit buffer.
    fn read(encoded: &[u8], from: usize) -> (Vec<u8>, Option<u8>) {
        let mut window = EntropyWindow::default();
        let mut reader = EntropyReader::new(encoded, from, &mut window, Level::new());
        let mut found = Vec::new();
        loop {
            let mut bits = reader.bits();
            let byte = bits.take(8) as u8;
            let position = bits.position();
            reader.set_position(position);
            if reader.is_overrun() {
                return (found, reader.peek_marker());
            }
            found.push(byte);
        }
    }

    #[test]
    fn every_byte_0xff_is_followed_by_a_stuffed_zero() {
        let bytes: Vec<u8> =
            (0..5000_u32).map(|at| [0xFF, 0xFE, at as u8][at as usize % 3]).collect();
        for length in [0, 1, 7, 8, 9, 100, 255 * 8, 255 * 8 + 1, 4999, 5000] {
            let part = &bytes[..length];
            let expected = length + part.iter().filter(|&&byte| byte == 0xFF).count();
            assert_eq!(stuffed_length(part), expected, "{length}");
        }
        assert_eq!(stuffed_length(&[0xFF; 5000]), 10_000);
    }

    #[test]
    fn stuffed_zeros_are_removed_up_to_the_marker() {
        assert_eq!(read(&[7, 1, 0xFF, 0, 2, 0xFF, 0xD9, 3], 1), (vec![1, 0xFF, 2], Some(0xD9)));
        assert_eq!(read(&[1, 0xFF], 0), (vec![1], None));
        assert_eq!(read(&[0xFF, 0xFF, 0], 0), (vec![], None));
        assert_eq!(read(&[], 0), (vec![], None));
    }

    #[test]
    fn consecutive_windows_have_no_gap() {
        for step in [1usize, 2, 3, 5, 7, 8, 13, 64, 255, 256] {
            let data: Vec<u8> = (0..5 * WINDOW + step).map(|at| (at / step * 31) as u8).collect();
            let mut encoded = vec![9; 3];
            for &byte in &data {
                encoded.push(byte);
                if byte == 0xFF {
                    encoded.push(0);
                }
            }
            encoded.extend([0xFF, 0xD3]);
            assert!(read(&encoded, 3) == (data, Some(0xD3)), "{step}");
        }
    }

    #[test]
    fn the_end_begins_where_a_code_may_be_truncated() {
        let mut window = EntropyWindow::default();
        let mut reader = EntropyReader::new(&[1, 2, 3], 0, &mut window, Level::new());
        let mut ends = Vec::new();
        for _ in 0..25 {
            let mut bits = reader.bits();
            bits.take(1);
            let position = bits.position();
            reader.set_position(position);
            ends.push((reader.is_at_end(), reader.is_overrun()));
        }
        // The test reads 24 bits at a time; a code has up to 16 bits.
        assert!(ends[..8].iter().all(|&end| end == (false, false)), "{ends:?}");
        assert!(ends[8..24].iter().all(|&end| end == (true, false)), "{ends:?}");
        assert_eq!(ends[24], (true, true));
    }

    #[test]
    fn offsets_are_those_of_the_file() {
        let mut encoded: Vec<u8> = [0xFF, 0, 1].repeat(WINDOW);
        encoded.extend([0xFF, 0xD0, 5, 6, 0xFF, 0xD9]);
        let mut window = EntropyWindow::default();
        let mut reader = EntropyReader::new(&encoded, 0, &mut window, Level::new());
        let mut last = 0;
        for byte in 1..2 * WINDOW {
            let mut bits = reader.bits();
            bits.take(8);
            let position = bits.position();
            reader.set_position(position);
            // Two bytes of data are three bytes of the file; the reader has loaded one word in
            // advance.
            let (least, most) = (byte * 3 / 2, (byte + WORD) * 3 / 2 + 2);
            assert!((least..=most).contains(&reader.offset()), "{byte}: {}", reader.offset());
            assert!(reader.offset() >= last);
            last = reader.offset();
        }
        assert_eq!(reader.next_marker(), Some(0xD0));
        assert_eq!(reader.offset(), 3 * WINDOW + 2);
        assert_eq!(reader.bits().take(16), 0x0506);
        assert_eq!(reader.next_marker(), Some(0xD9));
        assert_eq!(reader.next_marker(), None);
    }
}
