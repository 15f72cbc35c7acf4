//! The settings that the stages share.

use std::sync::Arc;

use spdl_media::{CodecRegistry, ImageTransform, Limits};

use super::statistics::ImageCounters;
use crate::jpeg::JpegBackend;
use crate::libraries::Search;
use crate::runtime::CudaDevice;

/// The settings of [`DeviceImages`](super::DeviceImages).
#[derive(Clone)]
pub(super) struct ImageOptions {
    pub(super) device: CudaDevice,
    pub(super) transform: ImageTransform,
    pub(super) batch_size: usize,
    pub(super) drop_last: bool,
    pub(super) group: usize,
    pub(super) group_bytes: Option<u64>,
    /// The number of workers of the stage `nvjpeg`.
    pub(super) decoders: usize,
    pub(super) only: Option<JpegBackend>,
    pub(super) search: Search,
    /// The decoders on the host; `None` if decoding on the host is disabled.
    pub(super) host: Option<(CodecRegistry, Limits)>,
    pub(super) counters: Arc<ImageCounters>,
}
