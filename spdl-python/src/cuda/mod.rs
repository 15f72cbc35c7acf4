//! CUDA devices, and memory on them. `spdl_rs.cuda` makes arrays of it.

mod allocator;
mod array;
mod device;
mod lent;
mod memory;
mod staging;

pub(crate) use allocator::AllocatorRaised;
pub(crate) use array::PlacedArray;
pub(crate) use device::CudaDevice;
pub(crate) use memory::DeviceMemory;
pub(crate) use staging::Staging;
