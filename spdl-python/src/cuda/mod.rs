//! CUDA devices, device memory, and decoding on devices. `spdl_rs.cuda` wraps device memory in arrays.
//!
//! | file | content |
//! |---|---|
//! | `driver_handle.rs` | shared driver objects, dropped without the GIL |
//! | `device.rs` | devices, and the status of CUDA |
//! | `allocator.rs` | device memory from Python functions |
//! | `memory.rs`, `array.rs` | device memory: waits, downloads, DLPack; the base of `DeviceArray` |
//! | `staging.rs` | pinned buffers that NumPy writes before an upload |
//! | `pixels.rs` | pixel formats and colour matrices by their names in SPDL |
//! | `decoders.rs` | the decoders and kernels of a device |
//! | `jpegs.rs`, `nv12.rs`, `video.rs` | conversion of JPEGs, NV12 frames and videos to arrays |

mod allocator;
mod array;
mod decoders;
mod device;
mod driver_handle;
mod jpegs;
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
