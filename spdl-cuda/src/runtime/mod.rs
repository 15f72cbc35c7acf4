//! Devices, their memory, streams and events: transfer of batches from the host to a device.
//!
//! | file | content |
//! |---|---|
//! | `status.rs` | [`status`]: which parts of CUDA are available, with remedies |
//! | `choose.rs` | [`choose_device`]: the device that a string such as `auto` names |
//! | `device.rs` | [`CudaDevice`]: upload of batches |
//! | `device_inner.rs` | state that a device, its memory and its decoders share |
//! | `description.rs` | [`DeviceDescription`]: name, compute capability, memory |
//! | `memory.rs` | [`CudaMemory`]: device memory of a batch, its consumers, downloads |
//! | `slabs.rs` | pool of device memory; [`DeviceAllocator`] |
//! | `pinned.rs` | pool of pinned (page-locked) host memory |
//! | `affinity.rs` | CPUs of the NUMA node of a device |
//! | `stream.rs` | streams of this crate, for copies and for kernels |
//! | `consumer.rs` | [`ConsumerStream`], [`ConsumerEvent`]: streams and events of other libraries |
//! | `event.rs` | recycled events |
//! | `context.rs` | the primary context of a device |
//!
//! Imports `driver` and `libraries`.

mod affinity;
mod choose;
mod consumer;
mod context;
mod description;
mod device;
mod device_inner;
mod event;
mod memory;
mod pinned;
mod slabs;
mod status;
mod stream;

pub use self::choose::{ChosenDevice, Fallback, choose_device, fallbacks};
pub use self::consumer::{ConsumerEvent, ConsumerStream};
pub(crate) use self::context::Context;
pub use self::description::DeviceDescription;
pub(crate) use self::description::describe;
pub use self::device::{CudaDevice, DeviceStatistics};
pub(crate) use self::device_inner::DeviceInner;
pub(crate) use self::event::Event;
pub(crate) use self::memory::CopyFence;
pub use self::memory::{CudaMemory, Download};
pub use self::slabs::{DeviceAllocator, SlabStatistics};
pub(crate) use self::slabs::{SizeEstimator, Slab, slab_size};
pub use self::status::{Part, PartStatus, Status, device_count, status};
pub(crate) use self::stream::{ComputeStream, CopyStream};
