//! Pipelines: the builder that describes them and the handle that runs them.
//!
//! | file | what |
//! |---|---|
//! | `builder/` | [`PipelineBuilder`]: stages, paths and settings, built as nodes and queues |
//! | `handle` | [`Pipeline`], [`Epoch`], [`Monitor`]: iterator, stream and statistics of a run |
//! | `options` | [`StageOptions`], [`Order`] |
//! | `control` | [`Control`]: changes concurrency while a pipeline runs |
//! | `tuning` | [`Tune`], [`StaticSettings`], [`LearnedSettings`]: the tuner of a running pipeline, and settings of earlier runs |
//! | `definition` | [`Definition`]: a pipeline as data, printed or compared |
//! | `profile` | [`Profile`]: throughput of each stage at several concurrencies |
//! | `saved_steps` | `SavedSteps`: steps of a training run with a state saved after each |
//!
//! Imports: every other module.

pub(crate) mod builder;
pub(crate) mod control;
pub(crate) mod definition;
pub(crate) mod handle;
pub(crate) mod options;
pub(crate) mod profile;
#[cfg(feature = "serde")]
pub(crate) mod saved_steps;
#[cfg(all(test, spdl_shuttle))]
mod shuttle_graphs;
pub(crate) mod tuning;

pub use crate::scheduler::failure::OnError;
pub use builder::{Path, PipelineBuilder, path};
pub use control::Control;
pub use definition::{
    Construct, Definition, PipelineSettings, Setting, StageDefinition, short_type_name,
};
pub use handle::{Epoch, Event, Monitor, Pipeline, PipelineStream};
pub use options::{Order, StageOptions};
pub use profile::{Profile, ProfileOptions, Rate, StageProfile};
#[cfg(feature = "serde")]
pub use saved_steps::SavedSteps;
pub use tuning::{LearnedSettings, StaticSettings, StaticStage, Tune};
