//! How long memory is kept that an image of unusual size has needed.

/// Up to so many bytes are always kept.
const KEPT: usize = 32 << 20;
/// How many times what is needed may be kept.
const SPARE: usize = 4;
/// Of what is remembered, such a part is forgotten with every image.
const FORGOTTEN: usize = 16;

/// Remembers how much memory images have needed lately, to tell what is too much to keep.
#[derive(Debug, Default)]
pub(crate) struct Retention {
    /// What the largest of the last images has needed; less for one that was long ago.
    recent: usize,
}

impl Retention {
    /// Whether `held` bytes are to be given back after an image that has needed `needed` of them:
    /// more than 32 MiB, and more than four times what the last images have needed. One large image
    /// among small ones is forgotten after some twenty.
    pub(crate) fn is_excess(&mut self, needed: usize, held: usize) -> bool {
        self.recent = needed.max(self.recent - self.recent / FORGOTTEN);
        held > KEPT && held / SPARE > self.recent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn what_one_large_image_has_needed_is_given_back_after_some_small_ones() {
        let mut retention = Retention::default();
        assert!(!retention.is_excess(400 * MIB, 400 * MIB));
        let after = (1..100).find(|_| retention.is_excess(MIB, 400 * MIB)).unwrap();
        assert!((15..30).contains(&after), "{after}");
    }

    #[test]
    fn what_is_needed_now_and_then_is_kept() {
        let mut retention = Retention::default();
        for image in 0..1000 {
            let needed = if image % 10 == 0 { 400 * MIB } else { MIB };
            assert!(!retention.is_excess(needed, 400 * MIB));
        }
    }

    #[test]
    fn a_little_is_always_kept() {
        let mut retention = Retention::default();
        assert!((0..1000).all(|_| !retention.is_excess(10, 32 * MIB)));
    }
}
