//! The native module of the Python package `spdl_rs`: private and thin.
//!
//! ```text
//! python/spdl_rs   public classes, types, documentation, argument checks
//!       │
//!   this crate     loader: the pipeline of the loaders, its batches and checkpoint state
//!       │          pipeline: stages that call Python functions, on Python threads
//!       │          media: packets and frames of audio and video, by FFmpeg
//!       │          operators: reading a file, decoding and augmenting an image
//!       │          io: headers of tar, zip, npy and WAV files in memory
//!       │          cuda: CUDA devices, device memory, decoding on a device
//!       │          sampler: indices of distributed samplers
//!       │          statistics, trace: counters, and timelines in the trace event format
//!       │          command_line: the program `spdl`
//!       │          interop: GIL, signals, forks, exceptions, arrays
//!       ▼
//! spdl-core, spdl-io, spdl-media, spdl-cuda, spdl-cli
//! ```
#![forbid(unsafe_code)]

mod command_line;
mod cuda;
mod interop;
mod io;
mod loader;
mod media;
mod operators;
mod pipeline;
mod sampler;
mod statistics;
mod trace;

/// The module `spdl_rs._spdl_rs`.
#[pyo3::pymodule(gil_used = false)]
mod _spdl_rs {
    #[pymodule_export]
    use crate::command_line::{allocator_settings, run_command_line};
    #[pymodule_export]
    use crate::cuda::{
        CudaDevice, DeviceDecoders, DeviceMemory, PlacedArray, Staging, VideoDecoder,
    };
    #[pymodule_export]
    use crate::interop::array::Array;
    #[pymodule_export]
    use crate::interop::parent::end_after;
    #[pymodule_export]
    use crate::interop::wait::{gil_wait, uninterrupted};
    #[pymodule_export]
    use crate::interop::warnings::{set_stall_time, set_starvation_time};
    #[pymodule_export]
    use crate::io::{NpyHeader, TarFiles, WavHeader, ZipDirectory};
    #[pymodule_export]
    use crate::loader::{ArrowTable, BatchIterator, Epoch, SampleFields, Samples, Settings};
    #[cfg(feature = "ffmpeg")]
    #[pymodule_export]
    use crate::media::{
        MediaBitStreamFilter, MediaCodec, MediaDecoder, MediaDemuxer, MediaEncoder,
        MediaFilterGraph, MediaFrames, MediaMuxer, MediaPackets, decode_media_frames,
        decode_media_packets,
    };
    #[pymodule_export]
    use crate::media::{ffmpeg_filters, ffmpeg_log_level, ffmpeg_versions, set_ffmpeg_log_level};
    #[pymodule_export]
    use crate::operators::{Draws, FieldDecoder, ImageAugmenter, ImageDecoder, Reader};
    #[pymodule_export]
    use crate::pipeline::{
        Feed, Graph, Inbox, ItemIterator, Job, PipelineRun, Stage, TaskQueue, Workers,
    };
    #[pymodule_export]
    use crate::sampler::{Indices, RankOrder};
    #[pymodule_export]
    use crate::statistics::{Intervals, Monitor, add_cpu_time};
    #[pymodule_export]
    use crate::trace::Trace;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the conventional Python name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
