//! The CUDA driver API, as far as this crate calls it.
//!
//! | file | content |
//! |---|---|
//! | `interface.rs` | the trait `Driver`, one method per call, and the handles that it returns |
//! | `loaded.rs` | `libcuda`, opened at run time |
//! | `error.rs` | [`DriverError`]: `CUresult` codes, their error kinds and remedies |
//! | `signatures.rs` | test only: argument sizes, compared with those that `cudarc` declares |
//!
//! The fake driver for tests is in `testing/`. Imports `libraries`.

mod error;
mod interface;
mod loaded;
#[cfg(all(test, feature = "cudarc"))]
mod signatures;

pub(crate) use self::error::CAPTURE_UNSUPPORTED;
pub use self::error::DriverError;
#[cfg(any(test, feature = "testing"))]
pub(crate) use self::error::{CAPTURE_IMPLICIT, INVALID_CONTEXT, INVALID_VALUE, OUT_OF_MEMORY};
pub(crate) use self::interface::{
    ContextHandle, DeviceAddress, DeviceAttribute, DeviceId, Driver, DriverResult, EventHandle,
    FunctionHandle, LaunchDimensions, Memcpy2D, MemoryAccess, MemoryHandle, ModuleHandle,
    RegistrationHandle, StreamHandle,
};
pub use self::loaded::DriverLoadError;
pub(crate) use self::loaded::{LoadedDriver, Version};
