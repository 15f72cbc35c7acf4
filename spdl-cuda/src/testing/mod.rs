//! A driver without a device, for tests.

mod accesses;
mod calls;
mod fake_driver;
mod kernels;
mod memory;
mod streams;
mod world;

use std::sync::Arc;

use spdl_core::Result;

pub use self::accesses::{Violation, ViolationKind};
pub use self::fake_driver::{FakeDriver, KernelRead, LiveResources};
pub use self::kernels::RunningKernel;
pub use self::world::Schedule;
use crate::runtime::CudaDevice;

impl CudaDevice {
    /// Opens a device of a driver that is none, for tests.
    ///
    /// # Errors
    /// What the driver was told to fail with.
    pub fn on(driver: FakeDriver, ordinal: u32) -> Result<CudaDevice> {
        CudaDevice::with_driver(Arc::new(driver), ordinal)
    }
}
