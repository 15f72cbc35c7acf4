//! The core of SPDL (work in progress).
#![forbid(unsafe_code)]

mod array;
mod batch;
mod buffer;
mod error;
mod random;
mod sample;
mod sync;

pub use array::{Array, DType, Element};
pub use batch::{Batch, BatchLayout, Field, Fill, FillContext, SlotMut};
pub use buffer::{ALIGNMENT, BufferPool, HostBuffer, PoolStatistics};
pub use error::{Error, ErrorKind, Result};
pub use random::SampleRng;
pub use sample::{Labeled, SampleId};
