//! Memory and CPUs that this process may use, within the limits of its container.

use std::num::NonZero;

/// Assumed memory of the machine if `/proc/meminfo` cannot be read, as on systems other than Linux.
const ASSUMED_MEMORY: u64 = 4 << 30;

/// By default, a pipeline may use 1 / this number of the usable memory.
const DEFAULT_SHARE: u64 = 4;

/// A limit of at least this value means "no limit": cgroup v1 reports the largest page count that
/// it can represent.
const NO_LIMIT: u64 = 1 << 62;

/// Returns how many CPUs this process may use, at least 1.
///
/// The standard library reads the affinity of the calling thread and, on Linux, the CPU quotas of
/// cgroup v1 and v2 over the whole hierarchy, rounded down. Call this from a thread that is not
/// pinned to a subset of the CPUs.
pub(crate) fn usable_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Returns how many bytes of memory this process may use.
///
/// The result is the lowest of three values: the machine's memory, the limits of control groups
/// (cgroup v1 or v2, anywhere in the hierarchy), and the [free address space](free_address_space). If
/// `/proc/meminfo` cannot be read, as on systems other than Linux, 4 GiB stand for the machine's
/// memory.
pub fn usable_memory() -> u64 {
    memory_limit(&|path| std::fs::read_to_string(path).ok())
}

/// Returns how many bytes of the soft limit on the address space (`ulimit -v`) are free. `None`
/// without a limit.
pub fn free_address_space() -> Option<u64> {
    free_addresses(&|path| std::fs::read_to_string(path).ok())
}

/// Computes [`free_address_space`] from the files that `read` returns.
fn free_addresses(read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let limit = read("/proc/self/limits").and_then(|text| address_space(&text))?;
    let status = read("/proc/self/status").unwrap_or_default();
    Some(limit.saturating_sub(kilobytes(&status, "VmSize:").unwrap_or(0)))
}

/// Returns the default memory budget of a pipeline: a quarter of the usable memory.
pub(crate) fn default_budget() -> usize {
    usize::try_from(usable_memory() / DEFAULT_SHARE).unwrap_or(usize::MAX).max(1)
}

/// Computes [`usable_memory`] from the files that `read` returns.
fn memory_limit(read: &dyn Fn(&str) -> Option<String>) -> u64 {
    let machine = read("/proc/meminfo").and_then(|text| kilobytes(&text, "MemTotal:"));
    let free_addresses = free_addresses(read);
    let mut least = machine.unwrap_or(ASSUMED_MEMORY).min(free_addresses.unwrap_or(u64::MAX));
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let mounts = read("/proc/self/mountinfo").unwrap_or_default();
    for hierarchy in memory_hierarchies(&groups, &mounts) {
        for folder in hierarchy.folders() {
            let limit = read(&format!("{folder}/{}", hierarchy.file));
            least = least.min(limit.and_then(|text| group_limit(&text)).unwrap_or(u64::MAX));
        }
    }
    least
}

/// Parses the line `NAME   123 kB`, into bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// Parses the soft limit of the address space from `/proc/self/limits`.
fn address_space(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    // `unlimited` fails to parse.
    line.split_whitespace().next()?.parse().ok()
}

/// Parses `memory.max` or `memory.limit_in_bytes`; `None` if there is no limit.
fn group_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|&bytes| bytes < NO_LIMIT)
}

/// A cgroup hierarchy with a memory controller, and the group of this process.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    /// Mount point of the hierarchy.
    mount_point: String,
    /// Path of the group below the mount point: empty, or with a leading slash.
    group: String,
    /// Name of the file with a group's limit.
    file: &'static str,
}

impl Hierarchy {
    /// Returns the folders of the process's group and of all its ancestors.
    fn folders(&self) -> impl Iterator<Item = String> + '_ {
        let ends = self.group.match_indices('/').map(|(at, _)| at).chain([self.group.len()]);
        ends.map(|end| format!("{}{}", self.mount_point, &self.group[..end]))
    }
}

/// Finds the memory groups of the process. `groups` is `/proc/self/cgroup`, `mounts` is
/// `/proc/self/mountinfo`. Both cgroup versions may be in use concurrently.
fn memory_hierarchies(groups: &str, mounts: &str) -> Vec<Hierarchy> {
    let mut found = Vec::new();
    for line in groups.lines() {
        // v1: `7:cpu,memory:/some/group`; v2: `0::/some/group`.
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let unified = controllers.is_empty();
        if !unified && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let file = if unified { "memory.max" } else { "memory.limit_in_bytes" };
        for mount in mounts.lines().filter_map(|line| mount(line, unified)) {
            // In a container, the mount often starts at the container's group, while the path of
            // the process starts at the root.
            let root = mount.root.trim_end_matches('/');
            let below = path.strip_prefix(root).filter(|rest| rest.starts_with('/'));
            let group = below.unwrap_or_default().trim_end_matches('/');
            // A process outside of its namespace's root has a path that leaves the mount.
            let group = if group.split('/').any(|name| name == "..") { "" } else { group };
            let mount_point = mount.point.trim_end_matches('/').to_owned();
            found.push(Hierarchy { mount_point, group: group.to_owned(), file });
        }
    }
    found
}

struct Mount {
    root: String,
    point: String,
}

/// Parses a line of `/proc/self/mountinfo`. Returns `None` unless the line mounts a cgroup
/// hierarchy of the requested version with a memory controller.
fn mount(line: &str, unified: bool) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut after = after.split(' ');
    let (kind, _device, options) = (after.next()?, after.next()?, after.next()?);
    let matches = match kind {
        "cgroup2" => unified,
        "cgroup" => !unified && options.split(',').any(|option| option == "memory"),
        _ => false,
    };
    let mut fields = before.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    matches.then(|| Mount { root: unescape(root), point: unescape(point) })
}

/// Decodes octal escapes of spaces, tabs, newlines and backslashes.
fn unescape(text: &str) -> String {
    let mut plain = text.to_owned();
    for (code, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        plain = plain.replace(code, character);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       16000000 kB\nMemFree:         1000 kB\n";
    const MACHINE: u64 = 16_000_000 * 1024;
    const V1_NONE: &str = "9223372036854771712\n";
    const V1_MOUNTS: &str = "\
        31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:10 master:1 - cgroup cgroup rw,memory\n";
    const V2_MOUNTS: &str = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n";

    fn check(files: &[(&str, &str)], expected: u64) {
        let read = |path: &str| {
            let found = files.iter().find(|(name, _)| *name == path);
            found.map(|(_, text)| (*text).to_owned())
        };
        assert_eq!(memory_limit(&read), expected);
    }

    #[test]
    fn without_files_a_constant_is_assumed() {
        check(&[], ASSUMED_MEMORY);
        check(&[("/proc/meminfo", "MemTotal: lots\n")], ASSUMED_MEMORY);
        check(&[("/proc/meminfo", "MemTotal: 99999999999999999999 kB\n")], ASSUMED_MEMORY);
    }

    #[test]
    fn without_limits_all_memory_of_the_machine_is_usable() {
        check(&[("/proc/meminfo", MEMINFO)], MACHINE);
        check(
            &[
                ("/proc/meminfo", MEMINFO),
                ("/proc/self/limits", "Max address space         unlimited  unlimited  bytes\n"),
                ("/proc/self/cgroup", "0::/\n"),
                ("/proc/self/mountinfo", V2_MOUNTS),
                ("/sys/fs/cgroup/memory.max", "max\n"),
            ],
            MACHINE,
        );
    }

    #[test]
    fn a_soft_limit_on_the_address_space_is_respected() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max cpu time              1                    2                    seconds\n\
                      Max address space         1073741824           unlimited            bytes\n";
        check(&[("/proc/meminfo", MEMINFO), ("/proc/self/limits", limits)], 1 << 30);
        // Addresses in use are not free.
        let status = ("/proc/self/status", "VmPeak:\t999999 kB\nVmSize:\t  524288 kB\n");
        check(&[("/proc/meminfo", MEMINFO), ("/proc/self/limits", limits), status], 512 << 20);
        let status = ("/proc/self/status", "VmSize:\t  2000000 kB\n");
        check(&[("/proc/self/limits", limits), status], 0);
    }

    #[test]
    fn the_smallest_limit_of_the_hierarchy_is_used() {
        let files = |own, middle, top| {
            [
                ("/proc/meminfo", MEMINFO),
                ("/proc/self/cgroup", "0::/user.slice/job 7\n"),
                ("/proc/self/mountinfo", V2_MOUNTS),
                ("/sys/fs/cgroup/user.slice/job 7/memory.max", own),
                ("/sys/fs/cgroup/user.slice/memory.max", middle),
                ("/sys/fs/cgroup/memory.max", top),
            ]
        };
        check(&files("1000000\n", "max\n", "max\n"), 1_000_000);
        check(&files("max\n", "2000000\n", "max\n"), 2_000_000);
        check(&files("max\n", "max\n", "3000000\n"), 3_000_000);
        check(&files("9000000\n", "5000000\n", "7000000\n"), 5_000_000);
        check(&files("max", "what?", ""), MACHINE);
    }

    #[test]
    fn the_largest_number_of_cgroup_v1_means_no_limit() {
        let files = |own, top| {
            [
                ("/proc/self/cgroup", "8:pids:/x\n4:memory:/x\n0::/\n"),
                ("/proc/self/mountinfo", V1_MOUNTS),
                ("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", own),
                ("/sys/fs/cgroup/memory/memory.limit_in_bytes", top),
                ("/sys/fs/cgroup/memory/x/memory.max", "1"),
            ]
        };
        check(&files(V1_NONE, V1_NONE), ASSUMED_MEMORY);
        check(&files("1000000\n", V1_NONE), 1_000_000);
        check(&files(V1_NONE, "2000000\n"), 2_000_000);
        assert_eq!(group_limit(V1_NONE), None);
    }

    #[test]
    fn limits_of_both_cgroup_versions_are_respected() {
        let mounts = format!(
            "{V1_MOUNTS}41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n"
        );
        let files = |first, second| {
            [
                ("/proc/self/cgroup", "4:memory:/a\n0::/b\n"),
                ("/proc/self/mountinfo", mounts.as_str()),
                ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", first),
                ("/sys/fs/cgroup/unified/b/memory.max", second),
            ]
        };
        check(&files("1000000", "2000000"), 1_000_000);
        check(&files("2000000", "1000000"), 1_000_000);
        check(&files(V1_NONE, "1000000"), 1_000_000);
    }

    #[test]
    fn a_hierarchy_mounted_at_the_containers_group_is_parsed() {
        let mounts = "35 31 0:32 /docker/0a1b /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let groups = |path: &str| format!("4:cpuacct,memory:{path}\n");
        let hierarchy = |group: &str| {
            vec![Hierarchy {
                mount_point: "/sys/fs/cgroup/memory".into(),
                group: group.into(),
                file: "memory.limit_in_bytes",
            }]
        };
        assert_eq!(memory_hierarchies(&groups("/docker/0a1b"), mounts), hierarchy(""));
        assert_eq!(
            memory_hierarchies(&groups("/docker/0a1b/in:ner"), mounts),
            hierarchy("/in:ner")
        );
        assert_eq!(memory_hierarchies(&groups("/docker/0a1bc"), mounts), hierarchy(""));
        assert_eq!(memory_hierarchies(&groups("/docker/0a1b/../x"), mounts), hierarchy(""));
    }

    #[test]
    fn escaped_mount_points_are_parsed_and_invalid_lines_are_skipped() {
        let mounts = "\nbroken - cgroup2\n41 31 0:38 / /a\\040b\\134 rw - cgroup2 none rw\n";
        let found = memory_hierarchies("broken\n0::/x/y\n", mounts);
        let folders: Vec<_> = found.iter().flat_map(Hierarchy::folders).collect();
        assert_eq!(folders, ["/a b\\", "/a b\\/x", "/a b\\/x/y"]);
    }

    #[test]
    fn this_machine_has_memory_and_cpus() {
        let memory = usable_memory();
        assert!((1 << 20..1 << 50).contains(&memory), "{memory}");
        assert_eq!(default_budget() as u64, memory / 4);
        assert!(usable_cpus() >= 1);
    }
}
