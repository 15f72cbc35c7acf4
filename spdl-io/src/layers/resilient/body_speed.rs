//! [`BodySpeed`]: how fast the bytes of one body arrive.

use std::time::Duration;

/// Waiting time between two checks of the speed of a body.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Part of the transfer time of a body that is not measured: the fetcher may buffer the first bytes.
const UNMEASURED: Duration = Duration::from_millis(10);

/// The bytes of a body and the time that was spent waiting for them.
#[derive(Debug, Default)]
pub(super) struct BodySpeed {
    total: Transfer,
    since_check: Transfer,
}

#[derive(Debug, Default)]
struct Transfer {
    bytes: u64,
    waited: Duration,
}

impl Transfer {
    fn add(&mut self, bytes: u64, waited: Duration) {
        self.bytes += bytes;
        self.waited += waited;
    }
}

impl BodySpeed {
    /// Records bytes, and the time that was spent waiting for them.
    pub(super) fn add(&mut self, bytes: u64, waited: Duration) {
        self.total.add(bytes, waited);
        self.since_check.add(bytes, waited);
    }

    /// Waiting time until the next check.
    pub(super) fn until_check(&self) -> Duration {
        CHECK_INTERVAL.saturating_sub(self.since_check.waited)
    }

    /// Returns the bytes per second since the last check, if a check is due.
    pub(super) fn check(&mut self) -> Option<u64> {
        if self.since_check.waited < CHECK_INTERVAL {
            return None;
        }
        let Transfer { bytes, waited } = std::mem::take(&mut self.since_check);
        Some(per_second(bytes, waited))
    }

    /// The bytes per second of the whole body, which is a lower bound for short bodies. `None`
    /// without any bytes.
    pub(super) fn of_body(&self) -> Option<u64> {
        let Transfer { bytes, waited } = self.total;
        (bytes > 0).then(|| per_second(bytes, waited + UNMEASURED))
    }
}

fn per_second(bytes: u64, time: Duration) -> u64 {
    (bytes as f64 / time.as_secs_f64()) as u64
}
