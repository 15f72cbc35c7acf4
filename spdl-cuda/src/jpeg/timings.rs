//! How long each path takes, by the device's own clock; nobody waits to hear it.

use std::collections::VecDeque;
use std::sync::Arc;

use super::load_balance::{JpegBackend, LoadBalancer};
use crate::driver::{DriverResult, MemoryAccess, NOT_SUPPORTED};
use crate::runtime::{ComputeStream, Context, Event};

/// Work between two timers of a stream.
#[derive(Debug)]
struct Timing {
    begin: Event,
    end: Event,
    path: JpegBackend,
    /// Of pixels.
    bytes: u64,
}

/// What is measured now.
#[derive(Debug, Default)]
pub(super) struct Timings(VecDeque<Timing>);

impl Timings {
    /// Sets a timer behind what is in a stream. `None` where there are none: then nothing is measured,
    /// and everything else goes on.
    pub(super) fn begin(&self, context: &Arc<Context>, stream: &ComputeStream) -> Option<Event> {
        let begin = Event::with_timing(context).ok()?;
        stream.record(&begin).ok()?;
        Some(begin)
    }

    /// Sets one behind the work that has written this.
    pub(super) fn end(
        &mut self,
        begin: Option<Event>,
        stream: &ComputeStream,
        path: JpegBackend,
        written: &[MemoryAccess],
    ) {
        let bytes = written.iter().map(|touched| touched.bytes).sum();
        let Some(begin) = begin.filter(|_| bytes > 0) else { return };
        let end = Event::with_timing(begin.context()).and_then(|end| {
            stream.record(&end)?;
            Ok(end)
        });
        if let Ok(end) = end {
            self.0.push_back(Timing { begin, end, path, bytes });
        }
    }

    /// Tells of what is done.
    pub(super) fn learn(&mut self, shares: &mut LoadBalancer) -> DriverResult<()> {
        while let Some(timing) = self.0.front() {
            if !timing.end.is_complete()? {
                break;
            }
            match timing.end.seconds_since(&timing.begin) {
                Ok(seconds) => shares.learn(timing.path, timing.bytes, seconds),
                // A driver that measures no time.
                Err(error) if error.code == NOT_SUPPORTED => {}
                Err(error) => return Err(error),
            }
            self.0.pop_front();
        }
        Ok(())
    }
}
