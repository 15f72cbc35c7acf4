//! Pipeline stages from encoded images to batches of samples on a device.
//!
//! ```text
//!               decode                    group            nvjpeg               batch
//! Labeled<Bytes> ──► PreparedImage ──────► Vec ──► DecodedImage ──────► DeviceBatch
//!        headers, crops, on CPU threads             pixels on the device   one kernel launch per batch
//!        other formats are decoded here
//! ```
//!
//! A failed image does not affect the other images, as in batches on the host. The failure policy
//! of the pipeline applies to the failed image, and the next image is stored in the free slot.
//!
//! | file | content |
//! |---|---|
//! | `device_images.rs` | [`DeviceImages`]: attaches the stages to a pipeline |
//! | `options.rs` | the settings that the stages share |
//! | `prepare.rs` | stage `decode`: headers, crops, fallback to the host |
//! | `decode.rs` | stage `nvjpeg`: groups of JPEGs through nvJPEG |
//! | `batch.rs` | stage `batch`: one kernel launch per batch |
//! | `host.rs` | decoding on the host with `spdl-media` |
//! | `statistics.rs` | [`ImageStatistics`]: images per decoder, reasons for fallbacks |
//!
//! Imports `jpeg`, `kernels`, `pixels`, `runtime` and `libraries`.

mod batch;
mod decode;
mod device_images;
mod host;
mod options;
mod prepare;
mod statistics;

pub use self::device_images::DeviceImages;
pub use self::statistics::{FallbackReason, ImageStatistics};
