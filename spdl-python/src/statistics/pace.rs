//! Counts of items over time.

use std::time::{Duration, Instant};

/// The maximum number of time slots.
const MAX_SLOTS: u32 = 120;
/// The initial length of a time slot.
const MIN_SLOT: Duration = Duration::from_millis(1);

/// Counts of items in consecutive time slots of equal length, from the first item on.
///
/// The slot length doubles as needed, so that the number of slots stays bounded.
pub(crate) struct Pace {
    began: Option<Instant>,
    slot: Duration,
    counts: Vec<u64>,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { began: None, slot: MIN_SLOT, counts: Vec::new() }
    }
}

impl Pace {
    /// Counts an item.
    pub(crate) fn count(&mut self, now: Instant) {
        let began = *self.began.get_or_insert(now);
        let since = now.saturating_duration_since(began);
        while since >= self.slot * MAX_SLOTS {
            self.counts = self.counts.chunks(2).map(|two| two.iter().sum()).collect();
            self.slot *= 2;
        }
        // Less than `MAX_SLOTS`, by the loop above.
        let at = (since.as_nanos() / self.slot.as_nanos()) as usize;
        if at >= self.counts.len() {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
    }

    /// The slot length in seconds, and the counts. The last slot may be incomplete.
    pub(crate) fn counts(&self) -> (f64, Vec<u64>) {
        (self.slot.as_secs_f64(), self.counts.clone())
    }
}
