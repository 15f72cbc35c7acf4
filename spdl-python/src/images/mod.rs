//! The native part of `ImageLoader`: loads batches of images from a data set.
//!
//! ```text
//! dataset (which images) ──► epoch (a pipeline over them) ──► batches ──► NumPy or device arrays
//!                              │
//!                              ├─ settings: transform, batch size, order, rank
//!                              └─ state: checkpoint state as JSON
//! ```
//!
//! May import: `interop`, `trace`, `operators`, `cuda`, `statistics`.

mod batches;
mod dataset;
mod device;
mod epoch;
mod settings;
mod state;

pub(crate) use batches::arrays;
pub(crate) use dataset::Images;
pub(crate) use epoch::{BatchIterator, Epoch, check_memory};
pub(crate) use settings::Settings;
