//! CUDA devices as the place where batches go.
//!
//! Nothing of CUDA is needed to build this crate, or to run a program that holds it: the driver is
//! looked for when a device is asked for. [`status`] tells what is there, and what to do about the
//! rest; [`choose_device`] takes the host where there is no device.
//!
//! ```
//! use spdl_cuda::{CudaDevice, Search, status};
//!
//! let status = status(&Search::default());
//! println!("{status}");
//! match CudaDevice::open(0) {
//!     Ok(device) => println!("{:?}", device.description()?),
//!     Err(error) => println!("batches stay on the host: {}", error.report()),
//! }
//! # Ok::<(), spdl_core::Error>(())
//! ```
//!
//! A batch goes to the device while the step before it still runs, and nobody waits for it:
//!
//! ```text
//!  pinned buffer ──copy stream──► slab ──event──► consumer's stream ──event──► slab is free
//!       ▲                │
//!       └──event, asked──┘        an event is waited for by streams, never by the host
//! ```
//!
//! | order | kept by |
//! |---|---|
//! | a buffer is written again only when its copy is done | [`CudaDevice`] holds it until the event behind the copy has been reached, and asks for that at the next upload |
//! | a consumer reads only what has arrived | [`CudaMemory::wait_on`] |
//! | a slab is overwritten only when its consumers have read it | dropping [`CudaMemory`] records an event on each of their streams; the next copy into the slab is put behind those |
//!
//! [`DeviceImages`] makes such batches of image files: JPEGs are decoded on the device, by [`NvJpeg`], and
//! [`kernels`] make samples of them there. The example `device_images` is a whole program.
//!
//! `testing` holds a driver without a device, which finds whatever breaks one of these.
#![deny(unsafe_op_in_unsafe_fn)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod driver;
pub mod images;
pub mod jpeg;
pub mod kernels;
pub mod libraries;
pub mod pixels;
#[cfg(feature = "python")]
pub mod python;
pub mod runtime;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod video;

pub use crate::images::DeviceImages;
pub use crate::jpeg::NvJpeg;
pub use crate::libraries::Search;
pub use crate::runtime::{
    ChosenDevice, ConsumerEvent, ConsumerStream, CudaDevice, CudaMemory, Fallback, Status,
    choose_device, device_count, fallbacks, status,
};
pub use crate::video::NvDec;
