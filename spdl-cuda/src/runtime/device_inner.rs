//! What a device, its memory and its decoders share.

use std::sync::Arc;

use spdl_core::memory::BufferPool;

use super::context::Context;
use super::slabs::Slabs;
use super::stream::CopyStream;

/// What all memory of the device holds on to. Dropped in this order: first everybody waits for the
/// copies under way, then memory is freed, then the context is left.
pub(crate) struct DeviceInner {
    pub(crate) uploads: CopyStream,
    pub(crate) downloads: CopyStream,
    pub(crate) slabs: Slabs,
    pub(crate) buffers: BufferPool,
    pub(crate) near_cpus: Arc<[usize]>,
    pub(crate) context: Arc<Context>,
}
