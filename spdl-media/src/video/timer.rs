//! [`DecodeTimer`]: how long a decoder has worked since its last requested frame.

use std::time::{Duration, Instant};

use spdl_core::{Error, ErrorKind};

use super::index::VideoStream;

/// Adds up the durations of the calls of a decoder, up to a limit.
#[derive(Debug)]
pub(super) struct DecodeTimer {
    spent: Duration,
    limit: Duration,
}

impl DecodeTimer {
    pub(super) fn new(limit: Duration) -> Self {
        DecodeTimer { spent: Duration::ZERO, limit }
    }

    /// Calls a decoder.
    pub(super) fn measure<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let value = call();
        self.spent = self.spent.saturating_add(start.elapsed());
        value
    }

    /// Starts again, after a requested frame.
    pub(super) fn restart(&mut self) {
        self.spent = Duration::ZERO;
    }

    /// Whether the calls since the start took longer than the limit.
    pub(super) fn is_over(&self) -> bool {
        self.spent > self.limit
    }

    /// The error for a decoder that took too long for `what`. `reached` is the time stamp of its last packet.
    pub(super) fn error(&self, what: &str, stream: &VideoStream, reached: i64) -> Error {
        let message = format!(
            "cannot decode {what}: the {} decoder took {:.1} s up to the packet at {:.3} s, more than \
             the limit of {} s",
            stream.codec,
            self.spent.as_secs_f64(),
            stream.seconds(reached),
            self.limit.as_secs_f64(),
        );
        Error::new(ErrorKind::LimitExceeded, message)
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    #[test]
    fn only_calls_since_the_start_count() {
        let mut timer = DecodeTimer::new(Duration::from_millis(10));
        let call = |timer: &mut DecodeTimer| timer.measure(|| sleep(Duration::from_millis(6)));
        call(&mut timer);
        sleep(Duration::from_millis(20));
        timer.restart();
        assert!(!timer.is_over());
        sleep(Duration::from_millis(20));
        assert!(!timer.is_over(), "pauses between calls do not count");
        call(&mut timer);
        call(&mut timer);
        assert!(timer.is_over());
    }
}
