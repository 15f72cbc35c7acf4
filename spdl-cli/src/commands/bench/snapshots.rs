//! Periodic snapshots of the pipeline's counters, for charts over time.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use spdl_core::Statistics;
use spdl_core::pipeline::Monitor;

/// The initial interval between snapshots; it doubles whenever [`MAX_SNAPSHOTS`] is reached.
const FIRST_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of snapshots, however long the run is.
const MAX_SNAPSHOTS: usize = 600;

/// The counters at one point in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Snapshot {
    /// Time since the start.
    pub(crate) at: Duration,
    /// Number of images in batches so far, not counting failures.
    pub(crate) images: u64,
    /// The busy time of each stage so far.
    pub(crate) busy: Vec<Duration>,
    /// The current concurrency of each stage.
    pub(crate) concurrency: Vec<usize>,
    /// The current number of items in each queue.
    pub(crate) queued: Vec<usize>,
}

impl Snapshot {
    fn of(statistics: &Statistics) -> Self {
        let last = statistics.stages.last();
        Snapshot {
            at: statistics.elapsed,
            // The last stage is counted in items (images), which increase steadily; batches would
            // increase in large steps.
            images: last.map_or(0, |stage| stage.items - stage.failures.min(stage.items)),
            busy: statistics.stages.iter().map(|stage| stage.busy).collect(),
            concurrency: statistics.stages.iter().map(|stage| stage.concurrency).collect(),
            queued: statistics.queues.iter().map(|queue| queue.len).collect(),
        }
    }
}

/// A thread that takes snapshots until it is stopped or dropped.
#[derive(Debug)]
pub(crate) struct SnapshotThread {
    /// Dropping the sender stops the thread.
    stop: Sender<()>,
    thread: JoinHandle<Vec<Snapshot>>,
}

impl SnapshotThread {
    /// Starts the thread.
    pub(crate) fn start(monitor: Monitor) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let watch = move || {
            let snapshot = || Snapshot::of(&monitor.statistics());
            let mut history = History::default();
            history.add(Snapshot { at: Duration::ZERO, ..snapshot() });
            while stopped.recv_timeout(history.interval) == Err(RecvTimeoutError::Timeout) {
                history.add(snapshot());
            }
            history.add(snapshot());
            history.snapshots
        };
        let thread = Builder::new().name("watch".into()).spawn(watch)?;
        Ok(SnapshotThread { stop, thread })
    }

    /// Stops the thread and returns at most [`MAX_SNAPSHOTS`] snapshots.
    pub(crate) fn stop(self) -> Vec<Snapshot> {
        drop(self.stop);
        // If the thread panics, the report has no charts over time, but the other results are
        // valid.
        self.thread.join().unwrap_or_default()
    }
}

struct History {
    snapshots: Vec<Snapshot>,
    interval: Duration,
}

impl Default for History {
    fn default() -> Self {
        History { snapshots: Vec::new(), interval: FIRST_INTERVAL }
    }
}

impl History {
    fn add(&mut self, snapshot: Snapshot) {
        if self.snapshots.len() == MAX_SNAPSHOTS {
            // Keep every second snapshot: counters are cumulative, so only resolution is lost.
            let mut number = 0;
            self.snapshots.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.interval = self.interval.saturating_mul(2);
        }
        self.snapshots.push(snapshot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_keeps_a_bounded_number_of_snapshots() {
        let mut history = History::default();
        for number in 0..100_000 {
            history.add(Snapshot { images: number, ..Snapshot::default() });
            assert!(history.snapshots.len() <= MAX_SNAPSHOTS);
        }
        assert!(history.snapshots.len() > MAX_SNAPSHOTS / 2);
        assert_eq!(history.snapshots[0].images, 0);
        assert_eq!(history.snapshots.last().unwrap().images, 99_999);
        assert!(history.snapshots.is_sorted_by_key(|snapshot| snapshot.images));
        assert!(history.interval > FIRST_INTERVAL);
    }
}
