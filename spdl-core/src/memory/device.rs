//! Where batches go: the device behind the last stage, and its twin on the host.

use std::any::Any;
use std::fmt::Debug;

use crate::error::Result;
use crate::memory::buffer::{BufferPool, HostBuffer};

/// A memory space.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// The memory of this process.
    Host,
    /// The memory of a CUDA device.
    Cuda {
        /// The device's number.
        ordinal: u32,
    },
}

/// Says when asynchronous work on a device is done.
pub trait Fence: Debug + Send + Sync + 'static {
    /// Whether the work is done, without waiting.
    ///
    /// # Errors
    /// The failure of that work.
    fn is_done(&self) -> Result<bool>;

    /// Waits until it is.
    ///
    /// # Errors
    /// The failure of that work.
    fn wait(&self) -> Result<()>;
}

/// Memory that a device holds for a batch. As it is [`Any`], who knows the device gets its own type.
pub trait DeviceMemory: Any + Debug + Send + Sync + 'static {
    /// Where it lies.
    fn space(&self) -> Space;
    /// How long it is, in bytes.
    fn len(&self) -> usize;
    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Its address in its own space, for hand-over to a framework.
    fn address(&self) -> usize;
}

/// A copy to a device that is under way.
#[derive(Debug)]
pub struct Upload {
    /// Where the bytes will be. Its contents are unspecified until `ready` is done.
    pub memory: Box<dyn DeviceMemory>,
    /// Done once they are there.
    pub ready: Box<dyn Fence>,
}

/// Where batches go. Called once per batch, not per sample.
///
/// [`HostDevice`] is the twin that needs no accelerator; `spdl-cuda` holds the one that does.
pub trait Device: Debug + Send + Sync + 'static {
    /// The space that uploads end in.
    fn space(&self) -> Space;

    /// Memory for a batch to be assembled in: pinned where the device copies faster from such.
    ///
    /// # Errors
    /// Where there is none to be had.
    fn host_buffer(&self, bytes: usize) -> Result<HostBuffer>;

    /// Starts the copy and returns at once. The device owns `host` until the fence is done.
    ///
    /// # Errors
    /// Where the copy cannot be started.
    fn upload(&self, host: HostBuffer) -> Result<Upload>;
}

/// The host as its own device: an upload is done at once and copies nothing.
///
/// ```
/// use spdl_core::Device;
/// use spdl_core::memory::{HostDevice, Space};
/// let device = HostDevice::default();
/// let mut host = device.host_buffer(4)?;
/// host.copy_from_slice(&[1, 2, 3, 4]);
/// let upload = device.upload(host)?;
/// upload.ready.wait()?;
/// assert_eq!(upload.memory.space(), Space::Host);
/// assert_eq!(upload.memory.len(), 4);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct HostDevice(BufferPool);

impl HostDevice {
    /// Takes its buffers from `pool`.
    pub fn new(pool: BufferPool) -> Self {
        HostDevice(pool)
    }
}

impl Device for HostDevice {
    fn space(&self) -> Space {
        Space::Host
    }

    fn host_buffer(&self, bytes: usize) -> Result<HostBuffer> {
        self.0.take(bytes)
    }

    fn upload(&self, host: HostBuffer) -> Result<Upload> {
        Ok(Upload { memory: Box::new(host), ready: Box::new(Done) })
    }
}

impl DeviceMemory for HostBuffer {
    fn space(&self) -> Space {
        Space::Host
    }

    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn address(&self) -> usize {
        self.as_ptr().addr()
    }
}

/// The fence of work that was done when it was made.
#[derive(Debug)]
struct Done;

impl Fence for Done {
    fn is_done(&self) -> Result<bool> {
        Ok(true)
    }

    fn wait(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_upload_copies_nothing_and_gives_its_buffer_back() {
        let pool = BufferPool::new();
        let device = HostDevice::new(pool.clone());
        let host = device.host_buffer(100).unwrap();
        let address = host.as_ptr().addr();
        let upload = device.upload(host).unwrap();
        assert!(upload.ready.is_done().unwrap());
        assert_eq!(upload.memory.address(), address);
        assert_eq!(pool.statistics().live_bytes, 100);
        drop(upload);
        assert_eq!(pool.statistics().live_bytes, 0);
        assert_eq!(device.host_buffer(100).unwrap().as_ptr().addr(), address);
    }
}
