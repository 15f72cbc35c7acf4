//! CUDA devices for SPDL: uploads of batches, decoding with nvJPEG and NVDEC, and image kernels.
//!
//! Building this crate, or running it on a machine without a device, does not require CUDA: the
//! driver and NVIDIA's libraries are opened at run time.
//!
//! ```
//! use spdl_cuda::{CudaDevice, Search, status};
//!
//! println!("{}", status(&Search::default()));
//! match CudaDevice::open(0) {
//!     Ok(device) => println!("{:?}", device.description()?),
//!     Err(error) => println!("batches stay on the host: {}", error.report()),
//! }
//! # Ok::<(), spdl_core::Error>(())
//! ```
//!
//! | task | item |
//! |---|---|
//! | find out which parts of CUDA are available | [`status`] |
//! | use a device if there is one, otherwise the host | [`choose_device`] |
//! | upload the batches of a pipeline | [`CudaDevice`], with `PipelineBuilder::upload` |
//! | read a batch on the stream of a training step | [`CudaMemory::wait_on`] |
//! | take device memory from a training framework | [`CudaDevice::set_allocator`] |
//! | make batches of image files on the device | `DeviceImages`, feature `images` |
//! | decode JPEGs on the device | `NvJpeg`, feature `images` |
//! | crop, resize and normalise images on the device | `kernels::ImageKernels`, feature `images` |
//! | decode videos on the device | [`NvDec`] |
//! | test without a device | `testing::FakeDriver`, feature `testing` |
//!
//! The example `device_images` is a complete program. Terms are defined in the
//! [glossary](https://github.com/spdl-rs/spdl/blob/main/docs/glossary.md).
//!
//! # Order of accesses
//!
//! A batch is uploaded while the previous training step runs. Streams wait for events on the
//! device. An upload blocks the host only to allocate or free memory, or after an error.
//!
//! ```text
//!  pinned buffer ──copy stream──► slab ──event──► stream of the consumer ──event──► slab is reused
//!       ▲                │
//!       └─────event──────┘
//! ```
//!
//! | guarantee | mechanism |
//! |---|---|
//! | a pinned buffer is reused only after its copy | [`CudaDevice`] holds the buffer until the event after the copy completes |
//! | a consumer reads only uploaded bytes | [`CudaMemory::wait_on`] |
//! | a slab is overwritten only after its consumers have read it | dropping [`CudaMemory`] records an event on each of their streams, and the next write waits for those events |
//!
//! The fake driver of `testing` detects violations of these guarantees.
//!
//! # Modules
//!
//! Each module imports only modules above it in this list:
//!
//! | module | content |
//! |---|---|
//! | [`libraries`] | search for NVIDIA's libraries |
//! | [`driver`] | the CUDA driver API and its errors |
//! | [`runtime`] | devices, memory, streams, events |
//! | [`pixels`] | formats of decoded images in device memory |
//! | `kernels` | image kernels (feature `images`) |
//! | `jpeg` | nvJPEG (feature `images`) |
//! | [`video`] | NVDEC |
//! | `images` | pipeline stages for images (feature `images`) |
//! | `python` | DLPack, streams and allocators as numbers (feature `python`) |
//! | `testing` | the fake driver (feature `testing`) |
#![deny(unsafe_op_in_unsafe_fn)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg_attr(
    not(feature = "images"),
    allow(dead_code, unused_imports, reason = "`jpeg`, `kernels` and `images` use the rest")
)]
pub mod driver;
#[cfg(feature = "images")]
pub mod images;
#[cfg(feature = "images")]
pub mod jpeg;
#[cfg(feature = "images")]
pub mod kernels;
pub mod libraries;
#[cfg_attr(
    not(feature = "images"),
    allow(dead_code, unused_imports, reason = "`jpeg`, `kernels` and `images` use the rest")
)]
pub mod pixels;
#[cfg(feature = "python")]
pub mod python;
#[cfg_attr(
    not(feature = "images"),
    allow(dead_code, unused_imports, reason = "`jpeg`, `kernels` and `images` use the rest")
)]
pub mod runtime;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod video;

#[cfg(feature = "images")]
pub use crate::images::DeviceImages;
#[cfg(feature = "images")]
pub use crate::jpeg::NvJpeg;
pub use crate::libraries::Search;
pub use crate::runtime::{
    ChosenDevice, ConsumerEvent, ConsumerStream, CudaDevice, CudaMemory, Fallback, Status,
    choose_device, device_count, fallbacks, status,
};
pub use crate::video::NvDec;
