//! Data-loading pipelines for training: scheduling, batching, ordering, resuming and statistics.
//!
//! ```text
//! Source ──► fetch ──► decode ──► transform ──► batch ──► consumer
//!  keys      bytes     samples     samples      slots     training step
//! ```
//!
//! A pipeline consists of a [`Source`] and a chain of stages, with a bounded queue after each. A
//! [`Pipeline`] is an iterator and can be converted to a stream. All stages run concurrently:
//!
//! * A [`Stage`] computes, by default on a pool of worker threads that all such stages share.
//! * A [`Fill`] computes and writes its result into a slot of a [`Batch`].
//! * An [`AsyncStage`] waits for a network or a disk, with many items in flight on a [`Runtime`].
//!
//! This crate reads no data sets from files, decodes no media and needs no async runtime of another
//! crate. `spdl-io`, `spdl-media` and `spdl-cuda` implement its traits, and other crates can
//! implement them too. See the [glossary] for all terms.
//!
//! ```
//! use spdl_core::{
//!     BatchLayout, DType, DatasetSource, Field, Fill, FillContext, PipelineBuilder, Result, SlotMut,
//! };
//!
//! /// Writes each number, and a random number that depends on the sample.
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
//! # Tasks
//!
//! | task | API |
//! |---|---|
//! | read from a source | [`PipelineBuilder::new`] with a [`Source`] or a [`DatasetSource`]; [`from_iter`](PipelineBuilder::from_iter), [`from_stream`](PipelineBuilder::from_stream), [`from_pipeline`](PipelineBuilder::from_pipeline) |
//! | read from several sources | [`merge`](PipelineBuilder::merge) with a [`MergePolicy`](stage::MergePolicy): [`Arrival`](stage::Arrival), [`RoundRobin`](stage::RoundRobin), [`WeightedMerge`](stage::WeightedMerge); [`zip`](PipelineBuilder::zip), [`zip_all`](PipelineBuilder::zip_all) |
//! | choose the order of a data set, mix data sets | [`DatasetSource::sampler`] with a sampler of [`source::sampler`] |
//! | read the samples of one rank | [`shard`](PipelineBuilder::shard) with a [`Shard`] |
//! | apply a function | [`map`](PipelineBuilder::map), [`filter`](PipelineBuilder::filter), [`flat_map`](PipelineBuilder::flat_map), [`map_async`](PipelineBuilder::map_async) |
//! | add a stage with state per worker | [`stage`](PipelineBuilder::stage), [`async_stage`](PipelineBuilder::async_stage) |
//! | send items to different stages | [`route`](PipelineBuilder::route), [`route_lists`](PipelineBuilder::route_lists) |
//! | batch items as lists | [`batch`](PipelineBuilder::batch), [`unbatch`](PipelineBuilder::unbatch), [`aggregate`](PipelineBuilder::aggregate) with an [`Aggregator`](stage::Aggregator) |
//! | batch samples as arrays | [`fill`](PipelineBuilder::fill) |
//! | reduce padding | [`bucket`](PipelineBuilder::bucket), [`pack`](PipelineBuilder::pack), [`concat_and_split`](PipelineBuilder::concat_and_split) |
//! | upload batches to a device | [`upload`](PipelineBuilder::upload) with a [`Device`], [`buffers`](PipelineBuilder::buffers) |
//! | limit memory | [`measured`](PipelineBuilder::measured), [`memory`](PipelineBuilder::memory) |
//! | set threads and concurrency | [`threads`](PipelineBuilder::threads), [`StageOptions`], [`Control`](pipeline::Control); automatically: [`tune`](PipelineBuilder::tune) |
//! | handle failed items | [`OnError`], [`Retry`], [`on_drop`](PipelineBuilder::on_drop) |
//! | run epoch by epoch | [`epochs`](PipelineBuilder::epochs), [`Pipeline::next_epoch`] |
//! | reproduce a run | [`deterministic`](PipelineBuilder::deterministic), or [`record_order`](PipelineBuilder::record_order) and [`replay`](PipelineBuilder::replay) |
//! | resume a run | [`Pipeline::state`], [`resume`](PipelineBuilder::resume), `StateFile` (feature `serde`), [`State::combine`] for another world size |
//! | observe a run | [`Pipeline::statistics`], [`Statistics::diagnose`], [`PipelineModel`](observe::PipelineModel), [`every`](PipelineBuilder::every), [`hook`](PipelineBuilder::hook), [`profile`](PipelineBuilder::profile), [`definition`](PipelineBuilder::definition) |
//!
//! The crate root re-exports the types that most programs use. All other types are in the modules
//! [`source`], [`stage`], [`memory`], [`resume`], [`observe`], [`runtime`], [`pipeline`].
//!
//! An endless pipeline whose batches never mix two epochs:
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
//!     let epoch = pipeline.next_epoch().expect("the pipeline is endless");
//!     let sizes: Vec<usize> = epoch.map(|batch| batch.map(|b| b.len())).collect::<Result<_, _>>()?;
//!     assert_eq!(sizes, [2, 2, 1]);
//! }
//! println!("{}", pipeline.definition());
//! # Ok::<(), spdl_core::Error>(())
//! ```
//!
//! [glossary]: https://github.com/spdl-rs/spdl/blob/main/docs/glossary.md
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

#[cfg(doctest)]
#[doc = include_str!("../../docs/profiling.md")]
struct ProfilingGuide;
#[cfg(doctest)]
#[doc = include_str!("../../docs/guides/which-number.md")]
struct WhichNumberGuide;

#[cfg(doctest)]
#[doc = include_str!("../../docs/guides/sizing-a-cluster.md")]
struct SizingGuide;

// Types of other crates that are part of this crate's API.
pub use async_trait::async_trait;
pub use futures_core::future::BoxFuture;
pub use futures_core::stream::BoxStream;
