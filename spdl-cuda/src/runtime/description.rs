//! What the driver reports about a device.

use crate::driver::{DeviceAttribute, DeviceId, Driver, DriverResult};

/// What a device is.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceDescription {
    /// What its maker calls it.
    pub name: String,
    /// Its compute capability, as in 9.0.
    pub compute_capability: (i32, i32),
    /// Its memory, in bytes.
    pub memory_bytes: usize,
    /// How many copies it makes at the same time.
    pub copy_engines: i32,
    /// How many multiprocessors it has.
    pub multiprocessors: i32,
}

/// What a device is.
pub(crate) fn describe(driver: &dyn Driver, device: DeviceId) -> DriverResult<DeviceDescription> {
    let attribute = |attribute| driver.device_attribute(device, attribute);
    Ok(DeviceDescription {
        name: driver.device_name(device)?,
        compute_capability: (
            attribute(DeviceAttribute::ComputeMajor)?,
            attribute(DeviceAttribute::ComputeMinor)?,
        ),
        memory_bytes: driver.device_memory(device)?,
        copy_engines: attribute(DeviceAttribute::CopyEngines)?,
        multiprocessors: attribute(DeviceAttribute::Multiprocessors)?,
    })
}
