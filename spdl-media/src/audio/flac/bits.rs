//! Bits of a FLAC frame, most significant first.

use spdl_core::Result;

use crate::audio::codec::truncated;

/// Reads bits. After the end of the data it reads zeros; [`check_end`](Self::check_end) reports it.
#[derive(Debug)]
pub(super) struct FlacBits<'a> {
    data: &'a [u8],
    /// The index of the first byte that is not in `cache`.
    at: usize,
    /// The next bits, most significant first. Only `count` of them are valid; the lower bits are
    /// zeros, or bits of the next bytes.
    cache: u64,
    count: u32,
}

impl<'a> FlacBits<'a> {
    /// Reads from the byte `at` of a file.
    pub(super) fn new(data: &'a [u8], at: usize) -> Self {
        FlacBits { data, at, cache: 0, count: 0 }
    }

    /// Loads 56 to 63 bits.
    #[inline(always)]
    fn refill(&mut self) {
        match self.data.get(self.at..self.at + 8).and_then(<[u8]>::first_chunk) {
            Some(word) => {
                self.cache |= u64::from_be_bytes(*word) >> self.count;
                self.at += ((63 - self.count) >> 3) as usize;
                self.count |= 56;
            }
            None => self.refill_at_end(),
        }
    }

    #[cold]
    fn refill_at_end(&mut self) {
        // Bits below `count` may be those of the next byte, which is loaded again.
        self.cache &= !(u64::MAX >> 1 >> (self.count.max(1) - 1));
        if self.count == 0 {
            self.cache = 0;
        }
        while self.count < 56 {
            let byte = self.data.get(self.at).copied().unwrap_or(0);
            self.cache |= u64::from(byte) << (56 - self.count);
            self.count += 8;
            self.at += 1;
        }
    }

    #[inline(always)]
    fn consume(&mut self, bits: u32) {
        self.cache <<= bits;
        self.count -= bits;
    }

    /// The next bits as a number, at most 32.
    #[inline(always)]
    pub(super) fn read(&mut self, bits: u32) -> u32 {
        debug_assert!(bits <= 32);
        if self.count < bits {
            self.refill();
        }
        let value = (self.cache >> 1) >> (63 - bits);
        self.consume(bits);
        value as u32
    }

    /// The next bits as a number in two's complement, at most 33.
    #[inline(always)]
    pub(super) fn read_signed(&mut self, bits: u32) -> i64 {
        debug_assert!(bits <= 33);
        if bits == 0 {
            return 0;
        }
        if self.count < bits {
            self.refill();
        }
        let value = self.cache as i64 >> (64 - bits);
        self.consume(bits);
        value
    }

    /// The number of zeros before the next one, which is read too.
    ///
    /// # Errors
    /// `Truncated` if the data end before a one.
    #[inline(always)]
    pub(super) fn unary(&mut self) -> Result<u32> {
        let mut total = 0;
        loop {
            self.refill();
            let zeros = self.cache.leading_zeros();
            if zeros < self.count {
                // At most 63 bits.
                self.consume(zeros + 1);
                return Ok(total + zeros);
            }
            total += self.count;
            (self.cache, self.count) = (0, 0);
            self.check_end()?;
        }
    }

    /// A Rice code: a quotient in unary, a remainder of `parameter` bits (at most 30), and the sign
    /// as the lowest bit.
    ///
    /// # Errors
    /// `Truncated` if the data end inside the quotient.
    #[inline(always)]
    pub(super) fn rice(&mut self, parameter: u32) -> Result<i32> {
        self.refill();
        let zeros = self.cache.leading_zeros();
        let (quotient, remainder) = if zeros + 1 + parameter <= self.count {
            let rest = self.cache << (zeros + 1);
            let remainder = (rest >> 1) >> (63 - parameter);
            self.consume(zeros + 1 + parameter);
            (zeros, remainder as u32)
        } else {
            (self.unary()?, self.read(parameter))
        };
        // A quotient that is too large occurs only in corrupt frames, which their checksum detects.
        let code = (quotient << parameter) | remainder;
        Ok((code >> 1) as i32 ^ -((code & 1) as i32))
    }

    /// Skips to the next whole byte, and returns its offset.
    pub(super) fn align(&mut self) -> usize {
        let partial = self.count % 8;
        self.consume(partial);
        self.at - (self.count / 8) as usize
    }

    /// # Errors
    /// `Truncated` if bits after the end of the data were read.
    pub(super) fn check_end(&self) -> Result<()> {
        let unread = (self.count / 8) as usize;
        if self.at - unread > self.data.len() { Err(truncated("FLAC", self.data)) } else { Ok(()) }
    }
}
