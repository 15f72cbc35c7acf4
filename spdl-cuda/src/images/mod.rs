//! Stages from encoded images to batches of samples on a device.
//!
//! | file | content |
//! |---|---|
//! | `device_images.rs` | [`DeviceImages`]: options, and the stages of a pipeline |
//! | `prepare.rs` | first stage, on CPU threads: headers, crops, decoding on the host |
//! | `decode.rs` | second stage: groups of JPEGs through nvJPEG |
//! | `batch.rs` | third stage: one kernel launch per batch |
//! | `orientation.rs` | [`Placed`]: crop of the upright image, as a plan for the stored one |
//! | `statistics.rs` | [`ImageStatistics`]: images per decoder, reasons for fallbacks |
//!
//! Imports `jpeg`, `kernels`, `pixels`, `runtime` and `libraries`.

mod batch;
mod decode;
mod device_images;
mod orientation;
mod prepare;
mod statistics;

pub use self::device_images::{DeviceImages, HostDecoder, HostImage};
pub use self::orientation::Placed;
pub use self::statistics::{FallbackReason, ImageStatistics};
