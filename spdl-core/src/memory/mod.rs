//! Memory: buffers, arrays, devices, and the memory budget of a pipeline.
//!
//! | file | what |
//! |---|---|
//! | `array` | [`Array`], [`DType`], [`Element`]: a typed, shaped view of a buffer |
//! | `buffer` | [`HostBuffer`], [`BufferPool`]: aligned host memory, optionally pinned |
//! | `budget` | memory budget of a pipeline in bytes; reservations that wait for free memory |
//! | `device` | [`Device`]: uploads host buffers to device memory |
//! | `in_flight` | reservations that grow while an async stage processes their items |
//! | `footprint` | [`Footprint`]: how many bytes a value holds |
//! | `machine` | memory and CPUs that this process may use |
//!
//! Imports: `error`, `sync`, `seconds`.

pub(crate) mod array;
pub(crate) mod budget;
pub(crate) mod buffer;
pub(crate) mod device;
pub(crate) mod footprint;
pub(crate) mod in_flight;
pub(crate) mod machine;

pub use array::{Array, DType, Element};
pub use budget::MemoryStatistics;
pub use buffer::{ALIGNMENT, BufferPool, HostBuffer, PAGE, Pin, PinMemory, PoolStatistics};
pub use device::{Device, DeviceMemory, Fence, HostDevice, Space, Upload};
pub use footprint::Footprint;
pub use machine::{free_address_space, usable_memory};
