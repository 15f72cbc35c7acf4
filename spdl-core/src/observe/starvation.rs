//! [`Starvation`]: a consumer that waited for data for much of the time.

use std::fmt;
use std::time::{Duration, Instant};

use crate::error::guarded;
use crate::observe::diagnosis::Diagnosis;
use crate::observe::interval::{Interval, RawSnapshot, Snapshotter};

/// Default time between two checks.
pub(crate) const STARVATION_INTERVAL: Duration = Duration::from_secs(60);

/// A consumer starves if it waits for more than this share of the time.
const STARVES: f64 = 0.25;

/// A consumer that waited for data for more than a quarter of the time.
///
/// [`PipelineBuilder::on_starvation`](crate::PipelineBuilder::on_starvation) reports starvation. `Display` writes one
/// line for a log, with the diagnosis.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Starvation {
    /// The share of the time after start-up in which the consumer waited, in 0..=1.
    pub waited: f64,
    /// The time since the last check, without start-up.
    pub length: Duration,
    /// What limits the pipeline in this time, and what would help.
    pub diagnosis: Diagnosis,
}

impl fmt::Display for Starvation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waited, seconds) = (self.waited * 100.0, self.length.as_secs_f64());
        write!(
            f,
            "the consumer waited for data {waited:.0} % of the last {seconds:.1} s. {}",
            self.diagnosis
        )
    }
}

impl Starvation {
    /// The starvation in an interval, if the consumer starved.
    fn in_interval(interval: &Interval) -> Option<Self> {
        let start_up = interval.queues.last().map_or(Duration::ZERO, |queue| queue.first_wait);
        let length = interval.length.saturating_sub(start_up);
        let waited = interval.consumer.waited.saturating_sub(start_up).as_secs_f64();
        // Not a number if there was nothing but start-up.
        let waited = waited / length.as_secs_f64();
        let waited = if waited.is_nan() { 0.0 } else { waited.min(1.0) };
        (waited > STARVES).then(|| Starvation { waited, length, diagnosis: interval.diagnose() })
    }
}

pub(crate) type StarvationListener = Box<dyn Fn(&Starvation) + Send + Sync>;

/// Checks at deliveries, at most once in an interval, whether the consumer starves.
///
/// A delivery costs one comparison of times. If there are no deliveries, the watch for stalls reports the cause.
pub(crate) struct StarvationWatch {
    interval: Duration,
    listener: Option<StarvationListener>,
    /// `None` before the first delivery.
    next: Option<Instant>,
    snapshots: Snapshotter,
}

impl StarvationWatch {
    /// Creates a watch; `None` if there is neither a listener nor a log.
    pub(crate) fn new(interval: Duration, listener: Option<StarvationListener>) -> Option<Self> {
        let reports = listener.is_some() || cfg!(feature = "tracing");
        let snapshots = Snapshotter::default();
        reports.then_some(StarvationWatch { interval, listener, next: None, snapshots })
    }

    /// Checks the time since the last check, if a check is due at this delivery.
    pub(crate) fn delivered(&mut self, now: Instant, snapshot: impl FnOnce() -> RawSnapshot) {
        // An interval that ends later than any clock means no checks.
        let Some(after) = now.checked_add(self.interval) else { return };
        if now < *self.next.get_or_insert(after) {
            return;
        }
        self.next = Some(after);
        let interval = self.snapshots.interval(snapshot());
        let Some(starvation) = Starvation::in_interval(&interval) else { return };
        #[cfg(feature = "tracing")]
        tracing::warn!(target: "spdl", pipeline = interval.pipeline, "{starvation}");
        if let Some(listener) = &self.listener {
            // The panic hook has already reported a panic.
            let _ = guarded(|| {
                listener(&starvation);
                Ok(())
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::statistics::{ConsumerStatistics, QueueStatistics};

    const SECOND: Duration = Duration::from_secs(1);

    fn interval(length: u32, start_up: u32, waited: u32) -> Interval {
        Interval {
            length: SECOND * length,
            queues: vec![QueueStatistics { first_wait: SECOND * start_up, ..Default::default() }],
            consumer: ConsumerStatistics { waited: SECOND * waited, ..Default::default() },
            ..Default::default()
        }
    }

    #[test]
    fn start_up_is_no_starvation() {
        let share = |length, start_up, waited| {
            Starvation::in_interval(&interval(length, start_up, waited)).map(|it| it.waited)
        };
        assert_eq!(share(60, 0, 15), None);
        assert_eq!(share(60, 0, 30), Some(0.5));
        assert_eq!(share(100, 60, 70), None);
        assert_eq!(share(100, 60, 80), Some(0.5));
        assert_eq!(share(60, 60, 60), None, "nothing but start-up");
        assert_eq!(share(60, 0, 61), Some(1.0), "a wait from the interval before");
    }

    #[test]
    fn the_text_has_the_share_the_time_and_the_diagnosis() {
        let starvation = Starvation::in_interval(&interval(61, 1, 31)).unwrap();
        let text = starvation.to_string();
        assert!(
            text.starts_with("the consumer waited for data 50 % of the last 60.0 s. "),
            "{text}"
        );
        assert!(text.ends_with(&starvation.diagnosis.to_string()), "{text}");
    }
}
