//! Decides when to release scratch memory after an unusually large image.

/// Scratch memory of up to this many bytes is always kept.
const ALWAYS_KEPT: usize = 32 << 20;
/// Scratch memory may exceed the memory that recent images needed by this factor.
const MAX_EXCESS: usize = 4;
/// Each image reduces the recent need by 1 / `DECAY`, so that it decays exponentially.
const DECAY: usize = 16;

/// Tracks the recent memory need and decides when to release scratch memory.
#[derive(Debug, Default)]
pub(crate) struct Retention {
    /// The decaying maximum of bytes that recent images needed.
    recent: usize,
}

impl Retention {
    /// Whether to release `held` bytes after an image that needed `needed` bytes: if `held` exceeds
    /// 32 MiB and four times the recent need. After one large image among small ones, the recent
    /// need decays within about twenty images.
    pub(crate) fn is_excess(&mut self, needed: usize, held: usize) -> bool {
        self.recent = needed.max(self.recent - self.recent / DECAY);
        held > ALWAYS_KEPT && held / MAX_EXCESS > self.recent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn memory_of_one_large_image_is_released_after_some_small_ones() {
        let mut retention = Retention::default();
        assert!(!retention.is_excess(400 * MIB, 400 * MIB));
        let after = (1..100).find(|_| retention.is_excess(MIB, 400 * MIB)).unwrap();
        assert!((15..30).contains(&after), "{after}");
    }

    #[test]
    fn memory_that_is_needed_regularly_is_kept() {
        let mut retention = Retention::default();
        for image in 0..1000 {
            let needed = if image % 10 == 0 { 400 * MIB } else { MIB };
            assert!(!retention.is_excess(needed, 400 * MIB));
        }
    }

    #[test]
    fn little_memory_is_always_kept() {
        let mut retention = Retention::default();
        assert!((0..1000).all(|_| !retention.is_excess(10, 32 * MIB)));
    }
}
