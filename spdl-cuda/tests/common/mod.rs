//! Shared by tests of transfers: batches with distinct bytes, random numbers, stubs of libraries.

#![allow(dead_code, unused_imports, reason = "each test uses a part of this module")]

#[cfg(test)]
#[cfg(unix)]
pub(crate) mod cuda_stub;
#[cfg(all(feature = "testing", unix))]
pub(crate) mod nvjpeg_stub;
#[cfg(feature = "testing")]
pub(crate) mod simple_kernel;
#[cfg(unix)]
pub(crate) mod stub_library;
pub(crate) mod videos;

use spdl_core::memory::{DeviceMemory, HostBuffer};
use spdl_core::{Device, Result};
#[cfg(feature = "testing")]
use spdl_cuda::testing::FakeDriver;
use spdl_cuda::{CudaDevice, CudaMemory};

/// Bytes of a batch.
pub(crate) const LEN: usize = 96;

/// A random number generator (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

/// The bytes of batch `number`.
pub(crate) fn bytes_of(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number * 31 + at * 7) as u8 ^ (number >> 3) as u8).collect()
}

/// Batch `number`, in a buffer of the pool of the device.
#[cfg(feature = "testing")]
pub(crate) fn assemble(
    driver: &FakeDriver,
    device: &CudaDevice,
    number: usize,
    len: usize,
) -> Result<HostBuffer> {
    let mut buffer = device.buffers().take(len)?;
    driver.host_writes(&buffer);
    buffer.copy_from_slice(&bytes_of(number, len));
    Ok(buffer)
}

/// Uploads batch `number`.
#[cfg(feature = "testing")]
pub(crate) fn send(
    driver: &FakeDriver,
    device: &CudaDevice,
    number: usize,
    len: usize,
) -> Result<Box<CudaMemory>> {
    let upload = device.upload(assemble(driver, device, number, len)?)?;
    Ok(into_cuda_memory(upload.memory))
}

/// Downcasts device memory to [`CudaMemory`].
pub(crate) fn into_cuda_memory(memory: Box<dyn DeviceMemory>) -> Box<CudaMemory> {
    (memory as Box<dyn std::any::Any>).downcast().expect("memory of a CUDA device")
}
