//! How many items a stage that waits should have under way at once: found by trying.

use std::time::{Duration, Instant};

/// As many as a stage may get by itself.
const MOST: usize = 512;
/// A trial lasts as long as this many times its window, in items, and no less than
/// [`LEAST_TIME`]: shorter ones measure chance.
const WINDOWS_PER_TRIAL: u64 = 2;
const LEAST_TIME: Duration = Duration::from_millis(20);
/// Of what a larger window could gain at best, so much must be seen, or it is taken back. Where the
/// stage waits for latency, nearly all of it is.
const LEAST_GAIN: f64 = 0.25;
/// So many trials nothing is changed after growth in vain; twice as many each time.
const FIRST_REST: u32 = 4;
const LONGEST_REST: u32 = 64;
/// More are wanted where nothing was ready for this share of the time or longer.
const MUCH_WAITING: f64 = 0.05;
/// And where it was for less than this share for so many trials, there may be too many.
const LITTLE_WAITING: f64 = 0.01;
const CALM_TRIALS: u32 = 32;
/// Where more than this share fails, less is asked for.
const MANY_FAILURES: f64 = 0.1;

/// The number of items under way of one stage, by measured gain.
///
/// It grows by half where in a trial mostly all places were taken, and yet nothing was ready behind the
/// stage for a good part of the time. Growth that does not bring more items a second is taken back, and
/// not tried again for a while. Failures take a quarter away; a long time in which nobody had to wait,
/// an eighth, but never what was in use.
#[derive(Debug)]
pub(crate) struct InFlightWindow {
    least: usize,
    size: usize,
    trial: Option<WindowTrial>,
    /// The size before it grew, and the items a second at that size.
    before: Option<(usize, f64)>,
    rest: u32,
    next_rest: u32,
    calm: u32,
    /// The most that were under way since it is calm.
    most_in_use: usize,
}

#[derive(Debug)]
struct WindowTrial {
    since: Instant,
    /// For how long nothing had been ready when it began.
    unready: Duration,
    landed: u64,
    failed: u64,
    /// When so many landed, all places were taken.
    full: u64,
}

impl InFlightWindow {
    /// A window that is `size` items at first, and never less.
    pub(crate) fn new(size: usize) -> Self {
        InFlightWindow {
            least: size,
            size,
            trial: None,
            before: None,
            rest: 0,
            next_rest: FIRST_REST,
            calm: 0,
            most_in_use: 0,
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Counts an item that has landed or `failed`, as so many were under way; `unready` tells for how
    /// long nothing was ready behind the stage, in all. Whether the size has changed.
    pub(crate) fn landed(
        &mut self,
        now: Instant,
        under_way: usize,
        failed: bool,
        unready: impl Fn() -> Duration,
    ) -> bool {
        let trial = self.trial.get_or_insert_with(|| WindowTrial {
            since: now,
            unready: unready(),
            landed: 0,
            failed: 0,
            full: 0,
        });
        trial.landed += 1;
        trial.failed += u64::from(failed);
        trial.full += u64::from(under_way >= self.size);
        self.most_in_use = self.most_in_use.max(under_way);
        let took = now.saturating_duration_since(trial.since);
        if took < LEAST_TIME || trial.landed < WINDOWS_PER_TRIAL * self.size as u64 {
            return false;
        }
        let was = self.size;
        if let Some(trial) = self.trial.take() {
            let waited = unready().saturating_sub(trial.unready).div_duration_f64(took);
            self.judge(&trial, trial.landed as f64 / took.as_secs_f64(), waited);
        }
        self.size != was
    }

    /// At the end of a trial with `rate` items a second, in which nothing was ready for a share of
    /// `waited` of the time.
    fn judge(&mut self, trial: &WindowTrial, rate: f64, waited: f64) {
        let size = self.size;
        if trial.failed as f64 > MANY_FAILURES * trial.landed as f64 {
            self.before = None;
            self.size = (size - size / 4).max(self.least);
            self.rest = self.next_rest;
            return;
        }
        if let Some((smaller, rate_before)) = self.before.take() {
            let possible = size as f64 / smaller as f64 - 1.0;
            // Where nobody waits any more, there was no more to gain.
            let in_vain = rate < rate_before * (1.0 + LEAST_GAIN * possible);
            if in_vain && waited > MUCH_WAITING {
                self.size = smaller;
                self.rest = self.next_rest;
                self.next_rest = (self.next_rest * 2).min(LONGEST_REST);
                return;
            }
            self.next_rest = FIRST_REST;
        }
        if waited < LITTLE_WAITING {
            self.calm += 1;
        } else {
            (self.calm, self.most_in_use) = (0, 0);
        }
        if self.rest > 0 {
            self.rest -= 1;
        } else if waited > MUCH_WAITING && trial.full * 2 > trial.landed && size < MOST {
            self.before = Some((size, rate));
            self.size = (size + (size / 2).max(1)).min(MOST);
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

    /// A store that answers after `latency`, but no more than `most_rate` a second, and a consumer that
    /// takes `wanted` a second.
    struct World {
        window: InFlightWindow,
        now: Instant,
        latency: f64,
        most_rate: f64,
        wanted: f64,
        failures: f64,
        landed: u64,
        unready: Duration,
    }

    impl World {
        fn new(latency: f64, most_rate: f64, wanted: f64) -> Self {
            let (window, now) = (InFlightWindow::new(16), Instant::now());
            World {
                window,
                now,
                latency,
                most_rate,
                wanted,
                failures: 0.0,
                landed: 0,
                unready: Duration::ZERO,
            }
        }

        fn rate(&self) -> f64 {
            (self.window.size() as f64 / self.latency).min(self.most_rate).min(self.wanted)
        }

        /// The sizes of the window while so many items land.
        fn run(&mut self, items: u64) -> Vec<usize> {
            let mut sizes = vec![self.window.size()];
            for _ in 0..items {
                let rate = self.rate();
                let time = Duration::from_secs_f64(1.0 / rate);
                self.now += time;
                self.landed += 1;
                let share = (self.landed as f64 * self.failures).fract();
                let under_way = match rate < self.wanted {
                    true => self.window.size(),
                    false => (rate * self.latency).ceil() as usize,
                };
                self.unready += time.mul_f64(1.0 - rate / self.wanted);
                let (failed, unready) = (share + self.failures >= 1.0, self.unready);
                if self.window.landed(self.now, under_way, failed, || unready) {
                    sizes.push(self.window.size());
                }
            }
            sizes
        }
    }

    // promise: DATA4
    #[test]
    fn latency_is_hidden_by_as_many_as_that_takes() {
        // 2,000 a second at 30 ms take 60.
        let mut world = World::new(0.030, 1e9, 2_000.0);
        let sizes = world.run(20_000);
        assert_eq!(sizes, [16, 24, 36, 54, 81, 71, 63, 60]);
    }

    // promise: DATA4
    #[test]
    fn what_gains_nothing_is_taken_back() {
        // The store gives 1,000 a second, which 30 keep busy.
        let mut world = World::new(0.030, 1_000.0, 5_000.0);
        let sizes = world.run(50_000);
        assert!(sizes.iter().all(|size| *size <= 54), "{sizes:?}");
        assert_eq!(world.window.size(), 36, "{sizes:?}");
        // Each time it rests longer.
        assert!(sizes.len() < 40, "{}", sizes.len());
    }

    // promise: DATA4
    #[test]
    fn it_stays_where_nobody_waits() {
        assert_eq!(World::new(0.001, 1e9, 500.0).run(10_000), [16]);
    }

    // promise: DATA4
    #[test]
    fn it_shrinks_when_less_is_wanted_for_long_but_never_below_the_first_size() {
        let mut world = World::new(0.030, 1e9, 2_000.0);
        world.run(20_000);
        world.wanted = 100.0;
        let sizes = world.run(200_000);
        assert!(sizes.is_sorted_by(|a, b| a > b), "{sizes:?}");
        assert_eq!(world.window.size(), 16);
    }

    // promise: DATA4
    #[test]
    fn failures_make_it_smaller() {
        let mut world = World::new(0.030, 1e9, 1e6);
        world.run(5_000);
        let before = world.window.size();
        assert!(before > 100);
        world.failures = 0.5;
        world.run(20_000);
        assert!(world.window.size() < before / 2, "{}", world.window.size());
    }

    // promise: DATA4
    #[test]
    fn it_has_an_end() {
        let mut world = World::new(1.0, 1e9, 1e9);
        world.run(100_000);
        assert_eq!(world.window.size(), MOST);
    }
}
