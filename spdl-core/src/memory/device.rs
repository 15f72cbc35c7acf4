//! Devices to which batches are uploaded, and the host as a device.

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
        /// Number of the device.
        ordinal: u32,
    },
}

/// Completion of asynchronous work on a device.
pub trait Fence: Debug + Send + Sync + 'static {
    /// Returns whether the work is done, without waiting.
    ///
    /// # Errors
    /// The error of the work, if it failed.
    fn is_done(&self) -> Result<bool>;

    /// Waits until the work is done.
    ///
    /// # Errors
    /// The error of the work, if it failed.
    fn wait(&self) -> Result<()>;
}

/// Device memory of a batch.
///
/// Code for a specific device can downcast to the device's type with [`Any`].
pub trait DeviceMemory: Any + Debug + Send + Sync + 'static {
    /// Returns the memory space.
    fn space(&self) -> Space;
    /// Returns the size in bytes.
    fn len(&self) -> usize;
    /// Returns whether the size is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Returns the address within its memory space, for example for DLPack.
    fn address(&self) -> usize;
}

/// A copy to a device in progress.
#[derive(Debug)]
pub struct Upload {
    /// The destination. Its contents are unspecified until `ready` is done.
    pub memory: Box<dyn DeviceMemory>,
    /// Completion of the copy.
    pub ready: Box<dyn Fence>,
}

/// A device that receives batches. The upload stage calls `upload` once per array of a batch, not
/// per sample.
///
/// [`HostDevice`] needs no accelerator. `spdl-cuda` implements a CUDA device.
pub trait Device: Debug + Send + Sync + 'static {
    /// Returns the memory space of uploads.
    fn space(&self) -> Space;

    /// Returns a host buffer of `bytes` bytes for a batch, pinned if the device copies faster from
    /// pinned memory.
    ///
    /// # Errors
    /// Any error of the allocation.
    fn host_buffer(&self, bytes: usize) -> Result<HostBuffer>;

    /// Starts a copy and returns immediately. The device owns `host` until the fence is done.
    ///
    /// # Errors
    /// Any error that prevents the copy from starting.
    fn upload(&self, host: HostBuffer) -> Result<Upload>;
}

/// The host as a device: an upload is done immediately and copies nothing.
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
    /// Creates a device whose buffers come from `pool`.
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

/// Fence of work that is already done.
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
    fn a_host_upload_copies_nothing_and_returns_its_buffer() {
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
