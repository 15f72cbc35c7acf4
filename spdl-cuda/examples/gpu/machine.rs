//! The description of the machine.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use spdl_cuda::{CudaDevice, Search, status};

/// The first line of the results: device, libraries, CPU and commit.
pub(crate) fn describe(device: &CudaDevice, folder: &Path) -> Value {
    let description = device.description().ok();
    let description = description.as_ref();
    let (major, minor) = description.map_or((0, 0), |of| of.compute_capability);
    let parts = status(&Search::default()).parts.into_iter();
    let parts: serde_json::Map<String, Value> = parts
        .map(|part| {
            let word = if part.available { "" } else { "missing: " };
            (part.part.to_string().to_lowercase(), format!("{word}{}", part.detail).into())
        })
        .collect();
    let commit = fs::read_to_string(folder.join("commit")).unwrap_or_default();
    json!({
        "kind": "run",
        "date": date(SystemTime::now()),
        "commit": commit.trim(),
        "device": description.map(|of| of.name.clone()),
        "compute_capability": format!("{major}.{minor}"),
        "device_bytes": description.map(|of| of.memory_bytes),
        "copy_engines": description.map(|of| of.copy_engines),
        "parts": parts,
        "cpu": cpu(),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
    })
}

/// The model name in `/proc/cpuinfo`.
fn cpu() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The time in UTC, for example 2026-11-22T21:05:00Z.
fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (mut year, mut day) = (1970, days);
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let days_of = |year| if is_leap(year) { 366 } else { 365 };
    while day >= days_of(year) {
        day -= days_of(year);
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= months[month] {
        day -= months[month];
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", month + 1, day + 1)
}

/// An attribute of a PCI device from sysfs, for example `numa_node` or `current_link_speed`.
pub(crate) fn pci_attribute(address: &str, attribute: &str) -> Option<String> {
    let path = Path::new("/sys/bus/pci/devices").join(address).join(attribute);
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_handle_leap_years() {
        let at = |seconds| date(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_795_381_500), "2026-11-22T21:05:00Z");
        assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59Z");
    }
}
