//! CUDA devices, and memory on them. `spdl_rs.cuda` makes arrays of it.

mod allocator;
mod array;
mod decoders;
mod device;
mod jpegs;
mod lent;
mod memory;
mod nv12;
mod pixels;
mod staging;
mod video;

pub(crate) use array::PlacedArray;
pub(crate) use decoders::DeviceDecoders;
pub(crate) use device::CudaDevice;
pub(crate) use memory::DeviceMemory;
pub(crate) use staging::Staging;
pub(crate) use video::VideoDecoder;
