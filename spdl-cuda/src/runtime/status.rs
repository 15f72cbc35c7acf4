//! Availability of the parts of CUDA, with remedies.

use super::description::describe;
use crate::driver::{Driver, LoadedDriver, Version};
use crate::libraries::{Library, Search};
use std::fmt;

/// A component of CUDA.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The driver, `libcuda`.
    Driver,
    /// At least one device.
    Device,
    /// The JPEG decoder, `libnvjpeg`.
    NvJpeg,
    /// The runtime compiler, `libnvrtc`. Optional: kernels are compiled ahead of time, and the
    /// driver compiles their PTX for newer devices.
    Nvrtc,
    /// The video decoder, `libnvcuvid`.
    Nvcuvid,
}

/// Availability of one component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartStatus {
    /// The component.
    pub part: Part,
    /// Whether the component can be used.
    pub available: bool,
    /// The version and location of the component, or the reason why it is missing.
    pub detail: String,
    /// What the user can do; empty if no remedy is known.
    pub remedy: String,
}

/// Availability of all components. `Display` formats a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Driver, device, nvJPEG, NVRTC and nvcuvid, in this order.
    pub parts: Vec<PartStatus>,
}

impl Status {
    /// Whether batches can be uploaded: a driver and a device are available. The other components
    /// are optional.
    pub fn available(&self) -> bool {
        self.is_available(Part::Driver) && self.is_available(Part::Device)
    }

    /// Whether a component is available.
    pub fn is_available(&self, part: Part) -> bool {
        self.parts.iter().any(|status| status.part == part && status.available)
    }
}

/// Reports which components of CUDA are available.
///
/// This function opens the libraries and queries the driver, but creates no context on a device.
pub fn status(search: &Search) -> Status {
    let mut parts = Vec::new();
    match LoadedDriver::load(search) {
        Ok(driver) => {
            let version = driver.version().unwrap_or_default();
            let detail = format!("CUDA {}, {}", Version(version), driver.location());
            parts.push(PartStatus::available(Part::Driver, detail));
            parts.push(devices(&driver));
        }
        Err(error) => {
            parts.push(PartStatus::missing(Part::Driver, error.to_string(), error.remedy()));
            let remedy = "make the driver available first";
            parts.push(PartStatus::missing(Part::Device, "no driver", remedy));
        }
    }
    let libraries = [
        (Part::NvJpeg, Library::NvJpeg),
        (Part::Nvrtc, Library::Nvrtc),
        (Part::Nvcuvid, Library::Nvcuvid),
    ];
    parts.extend(libraries.map(|(part, library)| {
        let unused =
            if part == Part::Nvrtc { "optional, because kernels are precompiled; " } else { "" };
        match search.open(library) {
            Ok((_, found)) => PartStatus::available(part, format!("{unused}{found}")),
            Err(error) => {
                let reason = format!("{unused}{}", error.reason);
                PartStatus::missing(part, reason, library.remedy())
            }
        }
    }));
    Status { parts }
}

/// Returns the number of devices; 0 if the driver is missing or fails.
pub fn device_count(search: &Search) -> u32 {
    LoadedDriver::load(search).map_or(0, |driver| driver.device_count().unwrap_or(0))
}

fn devices(driver: &dyn Driver) -> PartStatus {
    let described = driver.device_count().and_then(|count| {
        let devices = (0..count).map(|ordinal| {
            let description = describe(driver, driver.device(ordinal)?)?;
            let (major, minor) = description.compute_capability;
            let gibibytes = description.memory_bytes as f64 / f64::from(1 << 30);
            Ok(format!("{ordinal}: {} ({major}.{minor}, {gibibytes:.0} GiB)", description.name))
        });
        devices.collect::<Result<Vec<_>, _>>()
    });
    match described {
        Ok(devices) if devices.is_empty() => {
            let remedy = "check CUDA_VISIBLE_DEVICES";
            PartStatus::missing(Part::Device, "the driver lists no device", remedy)
        }
        Ok(devices) => PartStatus::available(Part::Device, devices.join("; ")),
        Err(error) => PartStatus::missing(Part::Device, error.to_string(), error.remedy()),
    }
}

impl PartStatus {
    fn available(part: Part, detail: String) -> Self {
        PartStatus { part, available: true, detail, remedy: String::new() }
    }

    fn missing(part: Part, reason: impl Into<String>, remedy: &str) -> Self {
        PartStatus { part, available: false, detail: reason.into(), remedy: remedy.to_owned() }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Part::Driver => "driver",
            Part::Device => "device",
            Part::NvJpeg => "nvjpeg",
            Part::Nvrtc => "nvrtc",
            Part::Nvcuvid => "nvcuvid",
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, status) in self.parts.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            let state = if status.available { "ok" } else { "missing" };
            write!(f, "{:<8} {state:<8} {}", status.part, status.detail)?;
            if !status.remedy.is_empty() {
                write!(f, "\n{:<17} {}", "", status.remedy)?;
            }
        }
        Ok(())
    }
}
