//! Pipelines of Python code on the engine of `spdl-core`.
//!
//! ```text
//! Feed ──► Stage (op, op, …) ──► PipelineRun ──► ItemIterator
//!  │         │
//!  │         └─ Inbox: coroutines ──► the event loop, a Python thread
//!  ├─ TaskQueue: items that other threads put in
//!  └─ iterables, on a Python thread; or a Python queue with the output of another PipelineRun
//! ```
//!
//! A stage may be `native`: operators of `spdl_rs.io` hold the GIL only while items arrive from Python
//! and return to it, and to log failures.
//!
//! Invariants:
//!
//! * Every thread that runs Python code is a `threading.Thread`, so that thread-locals, names and
//!   debuggers work. The [`Workers`] lend such threads to the engine. The engine's own threads take
//!   the GIL only to report a failure, and for device memory allocators written in Python.
//! * The GIL is held only inside Python code. No thread waits for the GIL while it holds a lock, or waits
//!   for a lock while it holds the GIL. The exception: an upload to a full device waits for the GIL with a
//!   lock held, but only other uploads wait for that lock, without the GIL.
//! * Shared state is behind a lock or an atomic and does not rely on the GIL (`gil_used = false`).
//! * If a `Py` is dropped without the GIL, `pyo3` defers the drop until a thread holds the GIL.

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

/// An item of a pipeline. Dropping it needs no GIL.
pub(crate) type Item = Py<PyAny>;
