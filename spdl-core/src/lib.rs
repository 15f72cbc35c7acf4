//! The core of SPDL: pipelines that turn names of data into training batches, in threads.
//!
//! ```text
//! Source ──► fetch ──► decode ──► transform ──► batch ──► consumer
//!  keys      bytes     samples     samples      slots     train step
//! ```
//!
//! A pipeline is a [`Source`], a chain of stages, bounded queues between them, and a [`Pipeline`]
//! that is an iterator, or a stream. All stages run at once, each with its own concurrency:
//!
//! * a [`Stage`] computes, on a pool of worker threads shared by all such stages,
//! * a [`Fill`] computes and writes its result straight into its place in a [`Batch`],
//! * an [`AsyncStage`] waits (for a network, a disk), with many items in flight on a [`Runtime`].
//!
//! ```
//! use spdl_core::{
//!     BatchLayout, DType, DatasetSource, Field, Fill, FillContext, PipelineBuilder, Result, SlotMut,
//! };
//!
//! /// Writes each number, and a random one beside it.
//! struct Augment;
//! impl Fill<i64> for Augment {
//!     fn fill(&mut self, item: i64, mut slot: SlotMut<'_>, cx: &mut FillContext<'_>) -> Result<()> {
//!         slot.set(0, item)?;
//!         slot.set(1, cx.rng().unit() as f32)
//!     }
//! }
//!
//! let numbers = DatasetSource::new((0..100).collect::<Vec<i64>>()).shuffled(7);
//! let layout = BatchLayout::new(32, [
//!     Field::new("number", DType::I64, &[]),
//!     Field::new("noise", DType::F32, &[]),
//! ]);
//! let pipeline = PipelineBuilder::new(numbers)
//!     .fill("augment", layout, || Ok(Augment))
//!     .seed(7)
//!     .deterministic()
//!     .build()?;
//! let mut sizes = Vec::new();
//! for batch in pipeline {
//!     sizes.push(batch?.len());
//! }
//! assert_eq!(sizes, [32, 32, 32, 4]);
//! # Ok::<(), spdl_core::Error>(())
//! ```
//!
//! The core reads no files, knows no media formats, and has no async runtime: `spdl-io`,
//! `spdl-media` and `spdl-cuda` plug those in, and so can you.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod array;
mod batch;
mod buffer;
mod builder;
mod device;
mod diagnosis;
mod error;
mod failure;
mod histogram;
mod pipeline;
mod random;
mod runtime;
mod sample;
mod scheduler;
mod shuffle;
mod source;
mod stage;
mod statistics;
mod sync;

pub use array::{Array, DType, Element};
pub use batch::{Batch, BatchLayout, Field, Fill, FillContext, SlotMut};
pub use buffer::{ALIGNMENT, BufferPool, HostBuffer, PoolStatistics};
pub use builder::{Order, PipelineBuilder, StageOptions};
pub use device::{Device, DeviceMemory, Fence, HostDevice, Space, Upload};
pub use diagnosis::Limit;
pub use error::{Error, ErrorKind, Result};
pub use failure::{Dropped, OnError};
pub use histogram::Quantiles;
pub use pipeline::{Monitor, Pipeline, PipelineStream};
pub use random::SampleRng;
#[cfg(feature = "tokio")]
pub use runtime::TokioRuntime;
pub use runtime::{Runtime, ThreadRuntime, block_on};
pub use sample::{Labeled, SampleId};
pub use shuffle::Permutation;
pub use source::{Cursor, Dataset, DatasetSource, Source};
pub use stage::{AsyncContext, AsyncStage, Stage, StageContext, StageFn, stage_fn};
pub use statistics::{
    ConsumerStatistics, MAX_DROPPED_LISTED, QueueStatistics, StageKind, StageStatistics, Statistics,
};

// The only foreign types in this crate's interface.
pub use async_trait::async_trait;
pub use futures_core::Stream;
pub use futures_core::future::BoxFuture;
pub use futures_core::stream::BoxStream;
