//! Attributes of a device.

use crate::driver::{DeviceAttribute, DeviceId, Driver, DriverResult};

/// Attributes of a device.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceDescription {
    /// The product name.
    pub name: String,
    /// The compute capability, for example `(9, 0)`.
    pub compute_capability: (i32, i32),
    /// Total device memory in bytes.
    pub memory_bytes: usize,
    /// Number of copy engines: the maximum number of copies that run concurrently.
    pub copy_engines: i32,
    /// Number of multiprocessors.
    pub multiprocessors: i32,
}

/// Reads the attributes of a device.
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
