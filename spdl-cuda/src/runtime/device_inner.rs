//! State that a device, its memory and its decoders share.

use std::sync::Arc;

use spdl_core::memory::BufferPool;

use super::context::Context;
use super::slabs::SlabPool;
use super::stream::CopyStream;

/// State that all resources of a device hold. Fields are dropped in declaration order: first,
/// streams wait for their copies; then memory is freed; then the context is released.
pub(crate) struct DeviceInner {
    pub(crate) uploads: CopyStream,
    pub(crate) downloads: CopyStream,
    pub(crate) slabs: SlabPool,
    pub(crate) buffers: BufferPool,
    pub(crate) near_cpus: Arc<[usize]>,
    pub(crate) context: Arc<Context>,
}
