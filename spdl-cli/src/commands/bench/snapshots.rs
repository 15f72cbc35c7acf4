//! Snapshots of a running pipeline, for charts over time.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use spdl_core::Statistics;
use spdl_core::pipeline::Monitor;

/// The first pause between two snapshots. It doubles whenever there are too many of them.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// No more snapshots are kept: enough for a chart, little for any length of run.
const MOST_SNAPSHOTS: usize = 600;

/// The counters at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Snapshot {
    /// Time since the start.
    pub(crate) at: Duration,
    /// Images that were in a batch by then, not counting failures.
    pub(crate) images: u64,
    /// Each stage's busy time until then.
    pub(crate) busy: Vec<Duration>,
    /// Each stage's concurrency at that moment.
    pub(crate) concurrency: Vec<usize>,
    /// How many items each queue held at that moment.
    pub(crate) queued: Vec<usize>,
}

impl Snapshot {
    fn of(statistics: &Statistics) -> Self {
        let last = statistics.stages.last();
        Snapshot {
            at: statistics.elapsed,
            // Batches would come in leaps; what the last stage has finished grows evenly.
            images: last.map_or(0, |stage| stage.items - stage.failures.min(stage.items)),
            busy: statistics.stages.iter().map(|stage| stage.busy).collect(),
            concurrency: statistics.stages.iter().map(|stage| stage.concurrency).collect(),
            queued: statistics.queues.iter().map(|queue| queue.len).collect(),
        }
    }
}

/// A thread that takes snapshots until it is told to stop, or dropped.
#[derive(Debug)]
pub(crate) struct SnapshotThread {
    /// Hanging up tells the thread to stop.
    stop: Sender<()>,
    thread: JoinHandle<Vec<Snapshot>>,
}

impl SnapshotThread {
    /// Starts to watch.
    pub(crate) fn start(monitor: Monitor) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let watch = move || {
            let snapshot = || Snapshot::of(&monitor.statistics());
            let mut history = History::default();
            history.add(Snapshot { at: Duration::ZERO, ..snapshot() });
            while stopped.recv_timeout(history.pause) == Err(RecvTimeoutError::Timeout) {
                history.add(snapshot());
            }
            history.add(snapshot());
            history.snapshots
        };
        let thread = Builder::new().name("watch".into()).spawn(watch)?;
        Ok(SnapshotThread { stop, thread })
    }

    /// Stops, and gives the snapshots from the first to the last moment.
    pub(crate) fn stop(self) -> Vec<Snapshot> {
        drop(self.stop);
        // Were it to panic, its message would be out already, and a chart is not worth a run.
        self.thread.join().unwrap_or_default()
    }
}

struct History {
    snapshots: Vec<Snapshot>,
    pause: Duration,
}

impl Default for History {
    fn default() -> Self {
        History { snapshots: Vec::new(), pause: FIRST_PAUSE }
    }
}

impl History {
    fn add(&mut self, snapshot: Snapshot) {
        if self.snapshots.len() == MOST_SNAPSHOTS {
            // Counters only grow, so that every second one tells as much at half the resolution.
            let mut number = 0;
            self.snapshots.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.pause = self.pause.saturating_mul(2);
        }
        self.snapshots.push(snapshot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_keeps_few_snapshots_that_span_it() {
        let mut history = History::default();
        for number in 0..100_000 {
            history.add(Snapshot { images: number, ..Snapshot::default() });
            assert!(history.snapshots.len() <= MOST_SNAPSHOTS);
        }
        assert!(history.snapshots.len() > MOST_SNAPSHOTS / 2);
        assert_eq!(history.snapshots[0].images, 0);
        assert_eq!(history.snapshots.last().unwrap().images, 99_999);
        assert!(history.snapshots.is_sorted_by_key(|snapshot| snapshot.images));
        assert!(history.pause > FIRST_PAUSE);
    }
}
