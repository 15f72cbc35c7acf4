//! The native part of `ImageLoader` and `Loader`: loads batches of samples from a data set.
//!
//! ```text
//! dataset (which samples) ──► epoch (a pipeline over them) ──► batches ──► NumPy or device arrays
//!                               │
//!                               ├─ settings: images or fields, functions, batch size, order, rank
//!                               └─ state: checkpoint state as JSON
//! ```
//!
//! May import: `interop`, `trace`, `operators`, `cuda`, `statistics`.

mod batches;
mod dataset;
mod device;
mod epoch;
mod fields;
mod functions;
mod items;
mod iterables;
mod settings;
mod state;
mod tables;

pub(crate) use batches::arrays;
pub(crate) use dataset::Samples;
pub(crate) use epoch::{BatchIterator, Epoch, check_memory};
pub(crate) use fields::SampleFields;
pub(crate) use settings::Settings;
pub(crate) use tables::ArrowTable;
