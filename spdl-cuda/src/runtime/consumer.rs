//! Streams and events that other libraries own, such as a training framework.

use std::any::Any;
use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result};

use crate::driver::{
    CAPTURE_UNSUPPORTED, Driver, DriverError, DriverResult, EventHandle, StreamHandle,
};

/// A stream on which a consumer, such as a training framework, uses device memory.
#[derive(Debug)]
pub struct ConsumerStream {
    handle: StreamHandle,
    /// An object that keeps the stream alive, if the owner of the stream is known.
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

/// Compares the streams, not their owners.
impl PartialEq for ConsumerStream {
    fn eq(&self, other: &Self) -> bool {
        self.handle == other.handle
    }
}

impl Eq for ConsumerStream {}

impl ConsumerStream {
    fn borrowed(stream: usize) -> Self {
        ConsumerStream { handle: StreamHandle(stream), owner: None }
    }

    /// The legacy default stream, `CU_STREAM_LEGACY` (`0x1`).
    pub fn legacy_default() -> Self {
        ConsumerStream::borrowed(1)
    }

    /// The per-thread default stream, `CU_STREAM_PER_THREAD` (`0x2`).
    pub fn per_thread_default() -> Self {
        ConsumerStream::borrowed(2)
    }

    /// The stream of a raw `CUstream` (`cudaStream_t` in the runtime API).
    ///
    /// # Safety
    /// `stream` belongs to the device of the memory that it accesses. The stream exists until all
    /// of this memory is dropped.
    pub unsafe fn from_raw(stream: usize) -> Self {
        ConsumerStream::borrowed(stream)
    }

    /// The stream of an argument of `__dlpack__(stream=…)`, as the Python array API standard
    /// defines it for CUDA.
    ///
    /// `None` and 1 are the legacy default stream, 2 is the per-thread default stream, larger
    /// numbers are raw streams. −1 means that the consumer synchronises the accesses itself; the
    /// result is `None`.
    ///
    /// # Errors
    /// `InvalidArgument` for 0, which could mean either default stream, and for numbers below −1.
    ///
    /// # Safety
    /// For numbers above 2, the conditions of [`from_raw`](ConsumerStream::from_raw).
    pub unsafe fn from_array_api(stream: Option<i64>) -> Result<Option<Self>> {
        match stream {
            None | Some(1) => Ok(Some(ConsumerStream::legacy_default())),
            Some(2) => Ok(Some(ConsumerStream::per_thread_default())),
            Some(-1) => Ok(None),
            Some(number @ 3..) => Ok(Some(ConsumerStream::borrowed(number as usize))),
            Some(number) => {
                let message = format!(
                    "invalid CUDA stream {number}: expected 1 (legacy default stream), 2 (per-thread \
                     default stream), -1 (no synchronisation), or a stream handle"
                );
                Err(Error::new(ErrorKind::InvalidArgument, message))
            }
        }
    }

    pub(crate) fn handle(&self) -> &StreamHandle {
        &self.handle
    }

    /// Whether the handle denotes a different stream on each thread.
    pub(crate) fn is_per_thread(&self) -> bool {
        *self == ConsumerStream::per_thread_default()
    }

    /// Fails if the stream is being captured into a graph: a wait or record would become part of
    /// the graph, or invalidate the capture.
    pub(crate) fn check_not_captured(&self, driver: &dyn Driver) -> DriverResult<()> {
        if driver.is_capturing(&self.handle)? {
            return Err(DriverError { call: "cuStreamIsCapturing", code: CAPTURE_UNSUPPORTED });
        }
        Ok(())
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn of(handle: usize) -> Self {
        ConsumerStream::borrowed(handle)
    }
}

/// Stores the owner, which keeps the stream alive.
#[cfg(feature = "cudarc")]
impl From<&Arc<cudarc::driver::CudaStream>> for ConsumerStream {
    fn from(stream: &Arc<cudarc::driver::CudaStream>) -> Self {
        let handle = StreamHandle(stream.cu_stream().addr());
        ConsumerStream { handle, owner: Some(Arc::clone(stream) as _) }
    }
}

impl Clone for ConsumerStream {
    fn clone(&self) -> Self {
        // The handle is borrowed: this crate never destroys it.
        let handle = StreamHandle(self.handle.0);
        ConsumerStream { handle, owner: self.owner.clone() }
    }
}

/// An event that a consumer recorded on one of its streams.
#[derive(Debug)]
pub struct ConsumerEvent(EventHandle);

impl ConsumerEvent {
    /// The event of a raw `CUevent` (`cudaEvent_t` in the runtime API).
    ///
    /// # Safety
    /// `event` is an event of a device, and exists as long as this value.
    pub unsafe fn from_raw(event: usize) -> Self {
        ConsumerEvent(EventHandle(event))
    }

    pub(crate) fn handle(&self) -> &EventHandle {
        &self.0
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn of(handle: usize) -> Self {
        ConsumerEvent(EventHandle(handle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_api_streams_are_distinguished_and_0_is_refused() {
        // SAFETY: no operation uses the streams.
        let stream = |number| unsafe { ConsumerStream::from_array_api(number) };
        assert_eq!(stream(None).unwrap(), Some(ConsumerStream::legacy_default()));
        assert_eq!(stream(Some(1)).unwrap(), Some(ConsumerStream::legacy_default()));
        assert_eq!(stream(Some(2)).unwrap(), Some(ConsumerStream::per_thread_default()));
        assert_eq!(stream(Some(-1)).unwrap(), None);
        assert_eq!(stream(Some(4096)).unwrap(), Some(ConsumerStream::of(4096)));
        for number in [0, -2] {
            assert_eq!(stream(Some(number)).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }
}
