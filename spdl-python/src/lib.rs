//! The native half of the Python package `spdl_rs`; private to it, and as thin as it can be.
//!
//! ```text
//! python/spdl_rs   what users see: classes, types, documentation, checks of arguments
//!       │
//!   this crate     Images ──► Epoch(Settings) ──► Array: the memory of a NumPy array
//!       │          BatchIterator: gives the batches of an epoch, each counted as it is given
//!       │          batches: those of an epoch, on the host or on a device
//!       │          cuda: devices, and memory on them, by the driver or by functions of Python's
//!       │          position: how far an epoch has come, as JSON
//!       │          pipeline: stages of Python code, on threads of Python's
//!       │          RankOrder ──► Indices: what a distributed sampler draws
//!       │          operators: one file read, one image decoded; many, in pipeline/native/
//!       │          io: headers of archives, arrays and WAV, of which Python makes views
//!       │          trace: what ran when, as lines of JSON
//!       │          wait: the GIL is free, Ctrl-C is heard; error: exceptions by kind; home: forks
//!       ▼
//! spdl-core, spdl-io, spdl-media, spdl-cuda
//! ```
#![forbid(unsafe_code)]

mod cuda;
mod images;
mod interop;
mod io;
mod operators;
mod pipeline;
mod sampler;
mod statistics;
mod trace;

/// The module `spdl_rs._spdl_rs`.
#[pyo3::pymodule(gil_used = false)]
mod _spdl_rs {
    #[pymodule_export]
    use crate::cuda::{
        CudaDevice, DeviceDecoders, DeviceMemory, PlacedArray, Staging, VideoDecoder,
    };
    #[pymodule_export]
    use crate::images::{BatchIterator, Epoch, Images, Settings};
    #[pymodule_export]
    use crate::interop::array::Array;
    #[pymodule_export]
    use crate::interop::wait::uninterrupted;
    #[pymodule_export]
    use crate::io::{NpyHeader, TarFiles, WavHeader, ZipDirectory};
    #[pymodule_export]
    use crate::operators::{Draws, ImageAugmenter, ImageDecoder, Reader};
    #[pymodule_export]
    use crate::pipeline::{
        Feed, Graph, Inbox, ItemIterator, Job, PipelineRun, Stage, TaskQueue, Workers,
    };
    #[pymodule_export]
    use crate::sampler::{Indices, RankOrder};
    #[pymodule_export]
    use crate::statistics::{Intervals, Monitor};
    #[pymodule_export]
    use crate::trace::Trace;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
