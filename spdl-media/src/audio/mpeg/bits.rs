//! [`MpegBits`]: bits of a frame, the most significant bit first.

/// Reads bits; after the end of the data, it reads zeros.
#[derive(Clone, Debug)]
pub(super) struct MpegBits<'a> {
    data: &'a [u8],
    /// The next bits, from the most significant one. Below the first `count`, they are zeros or
    /// those of the data.
    bits: u64,
    count: u32,
    /// The number of bytes in `bits` and before.
    next: usize,
}

impl<'a> MpegBits<'a> {
    /// Reads from the bit `position`.
    #[inline(always)]
    pub(super) fn new(data: &'a [u8], position: usize) -> Self {
        let mut reader = MpegBits { data, bits: 0, count: 0, next: position / 8 };
        reader.refill();
        reader.skip((position % 8) as u32);
        reader
    }

    /// The number of bits before the next one.
    #[inline(always)]
    pub(super) fn position(&self) -> usize {
        8 * self.next - self.count as usize
    }

    /// Makes at least 56 bits available to [`Self::peek`] and [`Self::skip`].
    #[inline(always)]
    pub(super) fn refill(&mut self) {
        let rest = self.data.get(self.next..).and_then(<[u8]>::first_chunk);
        let word = match rest {
            Some(bytes) => u64::from_be_bytes(*bytes),
            None => self.last_bytes(),
        };
        self.bits |= word >> self.count;
        self.next += (63 - self.count as usize) / 8;
        self.count |= 56;
    }

    /// The last bytes of the data, then zeros.
    #[cold]
    #[inline(never)]
    fn last_bytes(&self) -> u64 {
        let rest = self.data.get(self.next..).unwrap_or_default();
        let bytes = std::array::from_fn(|at| rest.get(at).copied().unwrap_or(0));
        u64::from_be_bytes(bytes)
    }

    /// The next `count` bits, 0 to 32, which must be available.
    #[inline(always)]
    pub(super) fn peek(&self, count: u32) -> u32 {
        ((self.bits >> 1) >> (63 - count)) as u32
    }

    /// Skips `count` bits, which must be available.
    #[inline(always)]
    pub(super) fn skip(&mut self, count: u32) {
        debug_assert!(count <= self.count);
        self.bits <<= count;
        self.count -= count;
    }

    /// Reads `count` bits, 0 to 32, which must be available.
    #[inline(always)]
    pub(super) fn take(&mut self, count: u32) -> u32 {
        let value = self.peek(count);
        self.skip(count);
        value
    }

    /// Reads `count` bits, 0 to 32.
    #[inline(always)]
    pub(super) fn read(&mut self, count: u32) -> u32 {
        if self.count < count {
            self.refill();
        }
        self.take(count)
    }

    #[inline(always)]
    pub(super) fn flag(&mut self) -> bool {
        self.read(1) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_bits_in_order_and_zeros_after_the_end() {
        let data: Vec<u8> = (0..40).map(|at| (at * 37 + 11) as u8).collect();
        let bit =
            |at: usize| data.get(at / 8).map_or(0, |byte| u32::from(byte >> (7 - at % 8) & 1));
        for start in [0, 3, 8, 77] {
            let mut reader = MpegBits::new(&data, start);
            let mut at = start;
            for count in (0..=32).cycle().take(40) {
                let expected = (at..at + count).fold(0, |value, at| value << 1 | bit(at));
                assert_eq!(reader.position(), at);
                assert_eq!(reader.read(count as u32), expected);
                at += count;
            }
        }
    }
}
