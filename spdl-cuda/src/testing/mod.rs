//! A driver without a device, for tests.
//!
//! | file | content |
//! |---|---|
//! | `fake_driver.rs` | [`FakeDriver`]: control by tests, statistics and reports |
//! | `calls.rs` | the driver API of the fake driver |
//! | `state.rs` | its state; [`Schedule`] |
//! | `streams.rs` | streams: queues of operations, and their execution |
//! | `memory.rs` | device memory and registered host memory |
//! | `kernels.rs` | [`RunningKernel`]: kernels and library work |
//! | `race_detector.rs` | [`Violation`]: vector clocks, and conflicting accesses that are not
//! ordered |
//!
//! Imports `runtime` and `driver`.

mod calls;
mod fake_driver;
mod kernels;
mod memory;
mod race_detector;
mod state;
mod streams;

use std::sync::Arc;

use spdl_core::Result;

pub use self::fake_driver::{FakeDriver, KernelRead, LiveResources};
pub use self::kernels::RunningKernel;
pub use self::race_detector::{Violation, ViolationKind};
pub use self::state::Schedule;
use crate::runtime::CudaDevice;

impl CudaDevice {
    /// Opens a device of the fake driver.
    ///
    /// # Errors
    /// Injected faults.
    pub fn on(driver: FakeDriver, ordinal: u32) -> Result<CudaDevice> {
        CudaDevice::with_driver(Arc::new(driver), ordinal)
    }
}
