//! How many items came when.

use std::time::{Duration, Instant};

/// The most stretches of time that are told apart.
const MOST: u32 = 120;
/// How long each is at first.
const SHORTEST: Duration = Duration::from_millis(1);

/// How many items came in each of equal stretches of time, the first of which begins with the first
/// item. The longer it goes on, the longer they are, so that this stays small.
pub(crate) struct Pace {
    began: Option<Instant>,
    stretch: Duration,
    counts: Vec<u64>,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { began: None, stretch: SHORTEST, counts: Vec::new() }
    }
}

impl Pace {
    /// Counts an item.
    pub(crate) fn came(&mut self, now: Instant) {
        let began = *self.began.get_or_insert(now);
        let since = now.saturating_duration_since(began);
        while since >= self.stretch * MOST {
            self.counts = self.counts.chunks(2).map(|two| two.iter().sum()).collect();
            self.stretch *= 2;
        }
        // Less than `MOST`, by the loop above.
        let at = (since.as_nanos() / self.stretch.as_nanos()) as usize;
        if at >= self.counts.len() {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
    }

    /// How many seconds a stretch takes, and the counts; the last stretch may not be over.
    pub(crate) fn told(&self) -> (f64, Vec<u64>) {
        (self.stretch.as_secs_f64(), self.counts.clone())
    }
}
