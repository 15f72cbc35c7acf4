//! Pipelines of Python code on the engine of `spdl-core`.
//!
//! ```text
//! Feed ──► Stage (op, op, …) ──► PipelineRun ──► whoever asks for the next item
//!  │         │                       │
//!  │         └─ Inbox: coroutines ──► the event loop, a thread of Python's
//!  ├─ TaskQueue: items that are handed in
//!  └─ iterables, on a thread of Python's; and what comes out of a queue of Python's, into which
//!     another PipelineRun puts what it gives
//! ```
//!
//! A stage may be `native`: operators of `spdl_rs.io`, which need Python in front and behind alone.
//!
//! Every thread that runs Python code is one of `threading`, so that thread-locals, names and
//! debuggers work as in any Python program: the [`Workers`] lend theirs to the engine. The engine's
//! own threads never hold the GIL, but for the failure of a coroutine, or of a native stage, and for
//! allocators of device memory that are Python's. The GIL is held only inside Python code; no lock is
//! held while it is waited for (but for one that only those who send batches wait for, without the GIL,
//! where a device is full), and none is waited for while it is held.
//!
//! No code here relies on the GIL to be alone: what several threads change is behind a lock or an atomic
//! (`gil_used = false`).
//!
//! A `Py` that is dropped without the GIL is kept by `pyo3` until the next thread holds it.

mod aggregate;
mod call;
mod failure;
mod feed;
mod graph;
mod inbox;
mod iterator;
mod native;
mod raised;
mod route;
mod run;
mod stage;
mod tasks;
mod workers;

use pyo3::prelude::*;

pub(crate) use feed::Feed;
pub(crate) use graph::Graph;
pub(crate) use inbox::{Inbox, Job};
pub(crate) use iterator::ItemIterator;
pub(crate) use run::PipelineRun;
pub(crate) use stage::Stage;
pub(crate) use tasks::TaskQueue;
pub(crate) use workers::Workers;

/// What goes through a pipeline. Dropping it needs no GIL.
pub(crate) type Item = Py<PyAny>;
