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
//! # What a pipeline can be made of
//!
//! | you want | you write |
//! |---|---|
//! | a source | [`PipelineBuilder::new`] with a [`Source`] or a [`DatasetSource`]; [`from_iter`](PipelineBuilder::from_iter), [`from_stream`](PipelineBuilder::from_stream), [`from_pipeline`](PipelineBuilder::from_pipeline) |
//! | several sources | [`merge`](PipelineBuilder::merge) with [`Arrival`](stage::Arrival), [`RoundRobin`](stage::RoundRobin), [`WeightedMerge`](stage::WeightedMerge) or a [`MergePolicy`](stage::MergePolicy) of yours; [`zip`](PipelineBuilder::zip) |
//! | a function | [`map`](PipelineBuilder::map), [`filter`](PipelineBuilder::filter), [`flat_map`](PipelineBuilder::flat_map), [`map_async`](PipelineBuilder::map_async) |
//! | a stage with scratch memory | [`stage`](PipelineBuilder::stage), [`async_stage`](PipelineBuilder::async_stage) |
//! | another order of a data set's items, mixtures, shards | [`DatasetSource::sampler`] with one of [`source::sampler`] |
//! | lists | [`batch`](PipelineBuilder::batch), [`unbatch`](PipelineBuilder::unbatch), [`aggregate`](PipelineBuilder::aggregate) with an [`Aggregator`](stage::Aggregator) of yours |
//! | little padding | [`bucket`](PipelineBuilder::bucket), [`pack`](PipelineBuilder::pack), [`concat_and_split`](PipelineBuilder::concat_and_split) |
//! | arrays | [`fill`](PipelineBuilder::fill) |
//! | batches on a device | [`upload`](PipelineBuilder::upload) with a [`Device`], [`buffers`](PipelineBuilder::buffers) |
//! | different ways for different items | [`route`](PipelineBuilder::route), [`route_lists`](PipelineBuilder::route_lists) |
//! | a bound in bytes | [`measured`](PipelineBuilder::measured), [`memory`](PipelineBuilder::memory) |
//! | threads | [`StageOptions`], [`Control`](pipeline::Control) |
//! | what happens to bad items | [`OnError`], [`Retry`], [`on_drop`](PipelineBuilder::on_drop) |
//! | one epoch at a time | [`epochs`](PipelineBuilder::epochs), [`Pipeline::next_epoch`] |
//! | the same run again | [`deterministic`](PipelineBuilder::deterministic), or [`record_order`](PipelineBuilder::record_order) and [`replay`](PipelineBuilder::replay) |
//! | one rank's part of the data | [`shard`](PipelineBuilder::shard) with a [`Shard`] |
//! | to go on where a run was broken off | [`Pipeline::state`], [`resume`](PipelineBuilder::resume), `StateFile` (feature `serde`), and [`State::combine`] for another number of ranks |
//! | to see inside | [`definition`](PipelineBuilder::definition), [`Statistics`], [`every`](PipelineBuilder::every), [`hook`](PipelineBuilder::hook), [`profile`](PipelineBuilder::profile) |
//!
//! A pipeline with no end, in which epochs never mix:
//!
//! ```
//! use spdl_core::{DatasetSource, PipelineBuilder, StageOptions};
//!
//! let files = DatasetSource::new(vec!["a", "b", "c", "d", "e"]).shuffled(7);
//! let mut pipeline = PipelineBuilder::new(files)
//!     .map_async(StageOptions::new("fetch").concurrency(64), |name: &str| async move {
//!         Ok(name.as_bytes().to_vec())
//!     })
//!     .measured()
//!     .filter("not empty", |bytes: &Vec<u8>| Ok(!bytes.is_empty()))
//!     .batch("batch", 2, false)
//!     .epochs(0..)
//!     .build()?;
//! for _ in 0..3 {
//!     let epoch = pipeline.next_epoch().expect("there is always another one");
//!     let sizes: Vec<usize> = epoch.map(|batch| batch.map(|b| b.len())).collect::<Result<_, _>>()?;
//!     assert_eq!(sizes, [2, 2, 1]);
//! }
//! println!("{}", pipeline.definition());
//! # Ok::<(), spdl_core::Error>(())
//! ```
//!
//! The core reads no files, knows no media formats, and has no async runtime: `spdl-io`,
//! `spdl-media` and `spdl-cuda` plug those in, and so can you.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod error;
mod item;
pub mod memory;
pub mod observe;
pub mod pipeline;
pub mod resume;
pub mod runtime;
mod scheduler;
#[cfg(feature = "serde")]
mod seconds;
pub mod source;
pub mod stage;
mod sync;

pub use error::{Error, ErrorKind, Result};
pub use memory::{Array, DType, Device, Footprint};
pub use observe::{Hook, Statistics};
pub use pipeline::{OnError, Order, Pipeline, PipelineBuilder, StageOptions};
pub use resume::State;
#[cfg(feature = "serde")]
pub use resume::{StateFile, StateSaver};
pub use runtime::{Runtime, block_on};
pub use source::{Dataset, DatasetSource, Labeled, SampleId, SampleRng, Shard, Source};
pub use stage::{
    AsyncContext, AsyncStage, Batch, BatchLayout, Field, Fill, FillContext, Retry, SlotMut, Stage,
    StageContext,
};

// Foreign types of this crate's interface.
pub use async_trait::async_trait;
pub use futures_core::future::BoxFuture;
pub use futures_core::stream::BoxStream;
