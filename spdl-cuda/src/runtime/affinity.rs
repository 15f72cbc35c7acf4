//! The CPUs of the NUMA node of a device.
//!
//! Linux lists these CPUs in the sysfs folder of the PCI device. The operating system allocates
//! memory on the NUMA node of the thread that touches the memory first. Therefore, a thread on
//! these CPUs pins the host memory.

use crate::driver::{DeviceAttribute, DeviceId, Driver, DriverResult};
use std::fmt;
use std::fs;
use std::path::Path;

/// The folder in which Linux describes PCI devices.
const DEVICES: &str = "/sys/bus/pci/devices";

/// Maximum length of a range of CPUs. A list that already has this many CPUs must not continue.
const MOST_CPUS: usize = 1 << 16;

/// A PCI address, displayed as Linux writes it: `0000:3b:00.0`.
struct PciAddress {
    domain: i32,
    bus: i32,
    device: i32,
}

impl PciAddress {
    fn of(driver: &dyn Driver, device: DeviceId) -> DriverResult<PciAddress> {
        let number = |attribute| driver.device_attribute(device, attribute);
        Ok(PciAddress {
            domain: number(DeviceAttribute::PciDomain)?,
            bus: number(DeviceAttribute::PciBus)?,
            device: number(DeviceAttribute::PciDevice)?,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.device)
    }
}

/// The CPUs of the NUMA node of a device, sorted; empty if unknown.
pub(crate) fn cpus_near(driver: &dyn Driver, device: DeviceId) -> Vec<usize> {
    // If the device fails here, later calls report the error.
    let address = PciAddress::of(driver, device);
    address.ok().and_then(|address| cpus_of(Path::new(DEVICES), &address)).unwrap_or_default()
}

fn cpus_of(devices: &Path, address: &PciAddress) -> Option<Vec<usize>> {
    let path = devices.join(address.to_string()).join("local_cpulist");
    parse_list(&fs::read_to_string(path).ok()?)
}

/// Parses a CPU list such as `0-3,8,10-11`.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if last < first || last - first >= MOST_CPUS || cpus.len() >= MOST_CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// Runs `work` on a new thread that is bound to those CPUs of `cpus` that the calling thread may
/// use.
///
/// If the calling thread may use none of these CPUs, or no other CPUs, `work` runs on the calling
/// thread. The same applies on systems other than Linux. If binding fails, `work` runs on the
/// unbound new thread.
pub(crate) fn on_cpus<T: Send>(cpus: &[usize], work: impl FnOnce() -> T + Send) -> T {
    platform::on_cpus(cpus, work)
}

#[cfg(target_os = "linux")]
mod platform {
    use std::panic::resume_unwind;
    use std::thread;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    pub(super) fn on_cpus<T: Send>(cpus: &[usize], work: impl FnOnce() -> T + Send) -> T {
        let Some(wanted) = usable_subset(cpus) else { return work() };
        let near = move || {
            // If the system refuses to bind the thread, the only effect is that the memory is on
            // another node.
            let _ = sched_setaffinity(None, &wanted);
            work()
        };
        thread::scope(|scope| match scope.spawn(near).join() {
            Ok(done) => done,
            Err(panic) => resume_unwind(panic),
        })
    }

    /// The CPUs of `cpus` that this thread may use; `None` if the thread may use none of these
    /// CPUs, or no other CPUs.
    fn usable_subset(cpus: &[usize]) -> Option<CpuSet> {
        let usable = sched_getaffinity(None).ok()?;
        let mut wanted = CpuSet::new();
        for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU && usable.is_set(cpu)) {
            wanted.set(cpu);
        }
        (wanted.count() > 0 && wanted.count() < usable.count()).then_some(wanted)
    }

    #[cfg(test)]
    pub(super) fn usable() -> Vec<usize> {
        let usable = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|&cpu| usable.is_set(cpu)).collect()
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    pub(super) fn on_cpus<T: Send>(_: &[usize], work: impl FnOnce() -> T + Send) -> T {
        work()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_parsed_as_linux_writes_them() {
        assert_eq!(parse_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_list("5,4,4-5"), Some(vec![4, 5]));
        assert_eq!(parse_list("\n"), Some(vec![]));
        for wrong in ["a", "1-", "-1", "3-1", "0-9999999999", "0-99999999999999999999", "1;2"] {
            assert_eq!(parse_list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn cpus_are_found_by_the_pci_address() {
        let devices = tempfile::tempdir().unwrap();
        let address = PciAddress { domain: 1, bus: 0x3b, device: 0x1f };
        assert_eq!(cpus_of(devices.path(), &address), None);
        let folder = devices.path().join("0001:3b:1f.0");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("local_cpulist"), "16-31\n").unwrap();
        assert_eq!(cpus_of(devices.path(), &address), Some((16..32).collect()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn work_runs_on_the_cpus_and_the_caller_keeps_its_affinity() {
        let before = platform::usable();
        let here = std::thread::current().id();
        let done =
            |cpus: &[usize]| on_cpus(cpus, || (platform::usable(), std::thread::current().id()));
        if before.len() > 1 {
            let (cpus, thread) = done(&[before[1], usize::MAX]);
            assert_eq!(cpus, [before[1]]);
            assert_ne!(thread, here);
        }
        // If there is no choice of CPUs, no thread is started.
        for all_or_none in [&before[..], &[], &[usize::MAX]] {
            assert_eq!(done(all_or_none), (before.clone(), here));
        }
        assert_eq!(platform::usable(), before);
    }
}
