//! Streams and events of consumers, such as training frameworks.

use std::any::Any;
use std::sync::Arc;

use crate::driver::{
    CAPTURE_UNSUPPORTED, Driver, DriverError, DriverResult, EventHandle, StreamHandle,
};
use spdl_core::{Error, ErrorKind, Result};

/// A stream on which a consumer, such as a training framework, uses what lies on the device.
#[derive(Debug)]
pub struct ConsumerStream {
    handle: StreamHandle,
    /// Who keeps it alive, where that is known.
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

/// The same stream, whoever keeps it alive.
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

    /// The default stream, on which a framework works that was told nothing else (`0x1`).
    pub fn legacy_default() -> Self {
        ConsumerStream::borrowed(1)
    }

    /// The default stream of the thread that uses it (`0x2`).
    pub fn per_thread_default() -> Self {
        ConsumerStream::borrowed(2)
    }

    /// A stream by its `CUstream`, which the runtime calls `cudaStream_t`.
    ///
    /// # Safety
    /// It is a stream of the device whose memory it is used with. It exists until all memory is
    /// dropped that it was used with.
    pub unsafe fn from_raw(stream: usize) -> Self {
        ConsumerStream::borrowed(stream)
    }

    /// A stream as the Python array API standard writes it for CUDA, in `__dlpack__(stream=…)`: none
    /// or 1 is the legacy default stream, 2 the per-thread one, a larger number a stream. −1 is for
    /// consumers that order everything themselves, and gives `None`.
    ///
    /// # Errors
    /// `InvalidArgument` for 0, which could mean either default stream, and for numbers below −1.
    ///
    /// # Safety
    /// As of [`from_raw`](ConsumerStream::from_raw), for numbers above 2.
    pub unsafe fn from_array_api(stream: Option<i64>) -> Result<Option<Self>> {
        match stream {
            None | Some(1) => Ok(Some(ConsumerStream::legacy_default())),
            Some(2) => Ok(Some(ConsumerStream::per_thread_default())),
            Some(-1) => Ok(None),
            Some(number @ 3..) => Ok(Some(ConsumerStream::borrowed(number as usize))),
            Some(number) => {
                let message = format!(
                    "{number} is no CUDA stream: 1 is the legacy default stream, 2 the per-thread one, -1 none"
                );
                Err(Error::new(ErrorKind::InvalidArgument, message))
            }
        }
    }

    pub(crate) fn handle(&self) -> &StreamHandle {
        &self.handle
    }

    /// Whether it is another stream in each thread.
    pub(crate) fn is_per_thread(&self) -> bool {
        *self == ConsumerStream::per_thread_default()
    }

    /// Fails where the stream is captured into a graph: what it were told now would become part of that, or
    /// break it off.
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

/// A stream of `cudarc`'s, which is kept alive.
#[cfg(feature = "cudarc")]
impl From<&Arc<cudarc::driver::CudaStream>> for ConsumerStream {
    fn from(stream: &Arc<cudarc::driver::CudaStream>) -> Self {
        let handle = StreamHandle(stream.cu_stream().addr());
        ConsumerStream { handle, owner: Some(Arc::clone(stream) as _) }
    }
}

impl Clone for ConsumerStream {
    fn clone(&self) -> Self {
        // It is not ours: nobody destroys it here.
        let handle = StreamHandle(self.handle.0);
        ConsumerStream { handle, owner: self.owner.clone() }
    }
}

/// An event of a consumer's: a place in one of its streams.
#[derive(Debug)]
pub struct ConsumerEvent(EventHandle);

impl ConsumerEvent {
    /// An event by its `CUevent`, which the runtime calls `cudaEvent_t`.
    ///
    /// # Safety
    /// It is an event of a device, and exists as long as this.
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
    fn streams_of_the_array_api_are_told_apart_and_0_is_refused() {
        // SAFETY: none of them is used.
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
