//! [`Choices`]: decisions and numbers from the bytes of an input.

/// Reads decisions from bytes; after the last byte, all are 0.
pub(crate) struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Choices(bytes)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        byte
    }

    /// Happens for `share` of 256 bytes.
    pub(crate) fn happens(&mut self, share: u8) -> bool {
        // Not with the 0s after the end, so that these choose the simplest file.
        (1..=share).contains(&self.byte())
    }

    pub(crate) fn word(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        let number = if limit > 1 << 8 { self.word() } else { self.byte().into() };
        u64::from(number) % limit
    }

    /// A number of a table: mostly small, sometimes any number, or one at the end of a range.
    pub(crate) fn number(&mut self) -> u32 {
        const EXTREMES: [u32; 6] =
            [0, u32::MAX, 1 << 31, (1 << 31) - 1, u32::MAX - 480_000, 1 << 16];
        match self.byte() {
            small @ 0..=199 => (small % 40).into(),
            200..=239 => self.word() >> self.below(32),
            extreme => EXTREMES[usize::from(extreme) % EXTREMES.len()],
        }
    }
}
