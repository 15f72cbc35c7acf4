//! In-flight window: how many items an async stage processes at the same time, found by
//! measurement.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sync::Mutex;

/// The largest window that tuning sets.
const MAX_WINDOW: usize = 512;
/// A trial lasts until this many times the window size of items have completed, and at least
/// [`MIN_TRIAL_TIME`]. A shorter trial would measure noise.
const WINDOWS_PER_TRIAL: u64 = 2;
const MIN_TRIAL_TIME: Duration = Duration::from_millis(20);
/// Growth is kept if throughput gains at least this share of the possible gain, which is the
/// relative growth of the window, or if downstream no longer waits. If latency limits the stage,
/// throughput gains nearly all of the possible gain.
const MIN_GAIN: f64 = 0.25;
/// Number of trials without growth after growth that was undone. The number doubles each time, up
/// to [`LONGEST_PAUSE`].
const FIRST_PAUSE: u32 = 4;
const LONGEST_PAUSE: u32 = 64;
/// The window grows if downstream had no item for more than this share of the time.
const WAITING_TO_GROW: f64 = 0.05;
/// The window shrinks if downstream had no item for less than this share of the time, in
/// [`CALM_TRIALS`] consecutive trials.
const WAITING_TO_SHRINK: f64 = 0.01;
const CALM_TRIALS: u32 = 32;
/// The window shrinks if more than this share of items fails.
const FAILURES_TO_SHRINK: f64 = 0.1;

/// The number of items in flight of one stage, adjusted by measured throughput.
///
/// The window grows by half if it was full when most items of a trial completed, and downstream
/// still had to wait. Growth that neither raises throughput nor ends the waiting is undone, and not
/// tried again for [`FIRST_PAUSE`] or more trials. Many failures shrink the window by a quarter. If
/// downstream hardly waits in [`CALM_TRIALS`] consecutive trials, the window shrinks by an eighth,
/// but not below the number of items that were in flight. The window never shrinks below its
/// initial size.
#[derive(Clone, Debug)]
pub(crate) struct InFlightWindow {
    least: usize,
    size: usize,
    trial: Option<WindowTrial>,
    /// The size before it grew, and the throughput in items per second at that size.
    before: Option<(usize, f64)>,
    pause: u32,
    next_pause: u32,
    calm: u32,
    /// The maximum number of items in flight in the current series of calm trials.
    most_in_use: usize,
}

/// The windows of the stages of earlier runs, by identity of the stage.
#[derive(Clone, Debug, Default)]
pub(crate) struct LearnedWindows(Arc<Mutex<BTreeMap<Arc<str>, InFlightWindow>>>);

impl LearnedWindows {
    pub(crate) fn of(&self, stage: &str) -> Option<InFlightWindow> {
        self.0.lock().get(stage).cloned()
    }

    /// Stores the window of a stage for the next run; `None` if the stage no longer adapts.
    pub(crate) fn keep(&self, stage: &Arc<str>, window: Option<&InFlightWindow>) {
        // A trial measures one run only.
        let between_runs = |it: &InFlightWindow| InFlightWindow {
            trial: None,
            calm: 0,
            most_in_use: 0,
            ..it.clone()
        };
        match window {
            Some(window) => drop(self.0.lock().insert(Arc::clone(stage), between_runs(window))),
            None => drop(self.0.lock().remove(stage)),
        }
    }
}

#[derive(Clone, Debug)]
struct WindowTrial {
    since: Instant,
    /// The total time without an item downstream when the trial began.
    starved: Duration,
    completed: u64,
    failed: u64,
    /// The number of items that completed while the window was full.
    full: u64,
}

impl InFlightWindow {
    /// A window of `size` items initially, and never fewer.
    pub(crate) fn new(size: usize) -> Self {
        InFlightWindow {
            least: size,
            size,
            trial: None,
            before: None,
            pause: 0,
            next_pause: FIRST_PAUSE,
            calm: 0,
            most_in_use: 0,
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Counts an item that completed or `failed` while `in_flight` items were in flight. `starved`
    /// returns for how long downstream has had no item in total. Returns whether the size has
    /// changed.
    pub(crate) fn completed(
        &mut self,
        now: Instant,
        in_flight: usize,
        failed: bool,
        starved: impl Fn() -> Duration,
    ) -> bool {
        let trial = self.trial.get_or_insert_with(|| WindowTrial {
            since: now,
            starved: starved(),
            completed: 0,
            failed: 0,
            full: 0,
        });
        trial.completed += 1;
        trial.failed += u64::from(failed);
        trial.full += u64::from(in_flight >= self.size);
        self.most_in_use = self.most_in_use.max(in_flight);
        let took = now.saturating_duration_since(trial.since);
        if took < MIN_TRIAL_TIME || trial.completed < WINDOWS_PER_TRIAL * self.size as u64 {
            return false;
        }
        let was = self.size;
        if let Some(trial) = self.trial.take() {
            let waited = starved().saturating_sub(trial.starved).div_duration_f64(took);
            self.judge(&trial, trial.completed as f64 / took.as_secs_f64(), waited);
        }
        self.size != was
    }

    /// Ends a trial with `rate` items per second, in which downstream had no item for a share of
    /// `waited` of the time.
    fn judge(&mut self, trial: &WindowTrial, rate: f64, waited: f64) {
        let size = self.size;
        if trial.failed as f64 > FAILURES_TO_SHRINK * trial.completed as f64 {
            self.before = None;
            self.size = (size - size / 4).max(self.least);
            self.pause = self.next_pause;
            return;
        }
        if let Some((smaller, rate_before)) = self.before.take() {
            let possible = size as f64 / smaller as f64 - 1.0;
            // If downstream no longer waits, more throughput was not possible.
            let without_gain = rate < rate_before * (1.0 + MIN_GAIN * possible);
            if without_gain && waited > WAITING_TO_GROW {
                self.size = smaller;
                self.pause = self.next_pause;
                self.next_pause = (self.next_pause * 2).min(LONGEST_PAUSE);
                return;
            }
            self.next_pause = FIRST_PAUSE;
        }
        if waited < WAITING_TO_SHRINK {
            self.calm += 1;
        } else {
            (self.calm, self.most_in_use) = (0, 0);
        }
        if self.pause > 0 {
            self.pause -= 1;
        } else if waited > WAITING_TO_GROW && trial.full * 2 > trial.completed && size < MAX_WINDOW
        {
            self.before = Some((size, rate));
            self.size = (size + (size / 2).max(1)).min(MAX_WINDOW);
        }
        if self.calm >= CALM_TRIALS {
            self.size = (size - size / 8).max(self.most_in_use).max(self.least);
            (self.calm, self.most_in_use) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that responds after `latency`, at most `max_rate` times per second, and a consumer
    /// that takes `demand` items per second.
    struct SimulatedStore {
        window: InFlightWindow,
        now: Instant,
        latency: f64,
        max_rate: f64,
        demand: f64,
        failures: f64,
        completed: u64,
        starved: Duration,
    }

    impl SimulatedStore {
        fn new(latency: f64, max_rate: f64, demand: f64) -> Self {
            let (window, now) = (InFlightWindow::new(16), Instant::now());
            SimulatedStore {
                window,
                now,
                latency,
                max_rate,
                demand,
                failures: 0.0,
                completed: 0,
                starved: Duration::ZERO,
            }
        }

        fn rate(&self) -> f64 {
            (self.window.size() as f64 / self.latency).min(self.max_rate).min(self.demand)
        }

        /// The sizes of the window while `items` items complete.
        fn run(&mut self, items: u64) -> Vec<usize> {
            let mut sizes = vec![self.window.size()];
            for _ in 0..items {
                let rate = self.rate();
                let time = Duration::from_secs_f64(1.0 / rate);
                self.now += time;
                self.completed += 1;
                let share = (self.completed as f64 * self.failures).fract();
                let in_flight = match rate < self.demand {
                    true => self.window.size(),
                    false => (rate * self.latency).ceil() as usize,
                };
                self.starved += time.mul_f64(1.0 - rate / self.demand);
                let (failed, starved) = (share + self.failures >= 1.0, self.starved);
                if self.window.completed(self.now, in_flight, failed, || starved) {
                    sizes.push(self.window.size());
                }
            }
            sizes
        }
    }

    // promise: DATA4
    #[test]
    fn the_window_grows_until_it_hides_latency() {
        // 2,000 requests per second at 30 ms need 60 requests in flight.
        let mut store = SimulatedStore::new(0.030, 1e9, 2_000.0);
        let sizes = store.run(20_000);
        assert_eq!(sizes, [16, 24, 36, 54, 81, 71, 63, 60]);
    }

    // promise: DATA4
    #[test]
    fn growth_without_gain_is_undone() {
        // The store serves 1,000 requests per second, for which 30 requests in flight suffice.
        let mut store = SimulatedStore::new(0.030, 1_000.0, 5_000.0);
        let sizes = store.run(50_000);
        assert!(sizes.iter().all(|size| *size <= 54), "{sizes:?}");
        assert_eq!(store.window.size(), 36, "{sizes:?}");
        // After each attempt, the pause is longer.
        assert!(sizes.len() < 40, "{}", sizes.len());
    }

    // promise: DATA4
    #[test]
    fn the_window_stays_if_downstream_does_not_wait() {
        assert_eq!(SimulatedStore::new(0.001, 1e9, 500.0).run(10_000), [16]);
    }

    // promise: DATA4
    #[test]
    fn the_window_shrinks_slowly_and_never_below_the_first_size() {
        let mut store = SimulatedStore::new(0.030, 1e9, 2_000.0);
        store.run(20_000);
        store.demand = 100.0;
        let sizes = store.run(200_000);
        assert!(sizes.is_sorted_by(|a, b| a > b), "{sizes:?}");
        assert_eq!(store.window.size(), 16);
    }

    // promise: DATA4
    #[test]
    fn failures_shrink_the_window() {
        let mut store = SimulatedStore::new(0.030, 1e9, 1e6);
        store.run(5_000);
        let before = store.window.size();
        assert!(before > 100);
        store.failures = 0.5;
        store.run(20_000);
        assert!(store.window.size() < before / 2, "{}", store.window.size());
    }

    // promise: DATA4
    #[test]
    fn the_window_has_a_maximum() {
        let mut store = SimulatedStore::new(1.0, 1e9, 1e9);
        store.run(100_000);
        assert_eq!(store.window.size(), MAX_WINDOW);
    }
}
