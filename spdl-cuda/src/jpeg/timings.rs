//! Measures the duration of the work of each backend with CUDA events, without blocking.

use std::collections::VecDeque;
use std::sync::Arc;

use super::load_balance::{JpegBackend, LoadBalancer};
use crate::driver::{DriverResult, MemoryAccess, NOT_SUPPORTED};
use crate::runtime::{ComputeStream, Context, Event};

/// Work of a stream between two events with timestamps.
#[derive(Debug)]
struct Timing {
    begin: Event,
    end: Event,
    backend: JpegBackend,
    /// Bytes of decoded pixels.
    bytes: u64,
}

/// Measurements in flight.
#[derive(Debug, Default)]
pub(super) struct Timings(VecDeque<Timing>);

impl Timings {
    /// Records the start of a measurement. `None` if the driver fails: decoding continues without a
    /// measurement.
    pub(super) fn begin(&self, context: &Arc<Context>, stream: &ComputeStream) -> Option<Event> {
        let begin = Event::with_timing(context).ok()?;
        stream.record(&begin).ok()?;
        Some(begin)
    }

    /// Records the end of a measurement, after the work that writes `written`.
    pub(super) fn end(
        &mut self,
        begin: Option<Event>,
        stream: &ComputeStream,
        backend: JpegBackend,
        written: &[MemoryAccess],
    ) {
        let bytes = written.iter().map(|touched| touched.bytes).sum();
        let Some(begin) = begin.filter(|_| bytes > 0) else { return };
        let end = Event::with_timing(begin.context()).and_then(|end| {
            stream.record(&end)?;
            Ok(end)
        });
        if let Ok(end) = end {
            self.0.push_back(Timing { begin, end, backend, bytes });
        }
    }

    /// Passes completed measurements to the load balancer.
    pub(super) fn update(&mut self, balancer: &mut LoadBalancer) -> DriverResult<()> {
        while let Some(timing) = self.0.front() {
            if !timing.end.is_complete()? {
                break;
            }
            match timing.end.seconds_since(&timing.begin) {
                Ok(seconds) => balancer.record(timing.backend, timing.bytes, seconds),
                // The driver cannot measure time, so this measurement is dropped.
                Err(error) if error.code == NOT_SUPPORTED => {}
                Err(error) => return Err(error),
            }
            self.0.pop_front();
        }
        Ok(())
    }
}
