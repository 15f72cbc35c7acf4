//! Resource usage of this process, and a description of the machine.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use spdl_core::memory::usable_memory;

/// The CPU time of all threads of this process, including threads that have ended.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// The peak resident memory of this process in bytes: `VmHWM` on Linux, `None` on other systems.
pub(crate) fn peak_rss() -> Option<u64> {
    kilobytes_after(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// The value of the line `NAME   123 kB`, in bytes.
fn kilobytes_after(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// A description of the machine for reports.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    /// Number of CPUs available to this process.
    pub(crate) cpus: usize,
    /// Memory that this process may use, in bytes.
    pub(crate) memory: u64,
    pub(crate) system: String,
    /// The load average over the last minute.
    pub(crate) load: Option<String>,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let after = |text: &str, name: &str, separator: char| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            let value = line.split_once(separator)?.1.trim().trim_matches('"');
            Some(value.to_owned())
        };
        let processor = after(&read("/proc/cpuinfo"), "model name", ':');
        let name = after(&read("/etc/os-release"), "PRETTY_NAME", '=');
        let kernel = read("/proc/sys/kernel/osrelease");
        let name = name.unwrap_or_else(|| std::env::consts::OS.to_owned());
        let load = read("/proc/loadavg");
        Machine {
            processor: processor.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory: usable_memory(),
            system: match kernel.trim() {
                "" => name,
                kernel => format!("{name}, kernel {kernel}"),
            },
            load: load.split_whitespace().next().map(str::to_owned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kilobytes_in_kernel_tables_become_bytes() {
        let table = "VmPeak:\t    9 kB\nVmHWM:\t    5324 kB\n";
        assert_eq!(kilobytes_after(table, "VmHWM:"), Some(5324 * 1024));
        assert_eq!(kilobytes_after(table, "VmRSS:"), None);
        assert_eq!(kilobytes_after("VmHWM: much", "VmHWM:"), None);
    }

    #[test]
    fn cpu_time_increases_with_work() {
        let before = cpu_time();
        let mut sum = 0u64;
        while cpu_time() - before < Duration::from_millis(2) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(sum > 0);
    }
}
