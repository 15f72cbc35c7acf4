//! What this process may use of its machine: memory and CPUs, with the limits of its container.

use std::num::NonZero;

/// What is assumed where the system does not say how much memory there is (other than Linux).
const ASSUMED_MEMORY: u64 = 4 << 30;

/// The share of the usable memory that a pipeline may take by default is one over this.
const DEFAULT_SHARE: u64 = 4;

/// Limits from here on mean "none": the first version of control groups has no word for it, and
/// prints the largest number of pages it can count.
const NO_LIMIT: u64 = 1 << 62;

/// How many CPUs this process may use, at least 1.
///
/// The standard library knows it well: it looks at the calling thread's affinity and, on Linux, at
/// the CPU quotas of both versions of control groups, up the hierarchy, rounded down. Ask from a
/// thread that is not pinned.
pub(crate) fn usable_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// How many bytes of memory this process may use: the machine's, or less where a control group
/// (either version, anywhere up the hierarchy) or a limit on the address space says so.
///
/// On systems other than Linux, and where `/proc` is not readable: 4 GiB.
pub fn usable_memory() -> u64 {
    memory_limit(&|path| std::fs::read_to_string(path).ok())
}

/// The memory budget of a pipeline that was not given any: a quarter of what is usable.
pub(crate) fn default_budget() -> usize {
    usize::try_from(usable_memory() / DEFAULT_SHARE).unwrap_or(usize::MAX).max(1)
}

/// [`usable_memory`] as the files that `read` finds have it.
fn memory_limit(read: &dyn Fn(&str) -> Option<String>) -> u64 {
    let machine = read("/proc/meminfo").and_then(|text| total_memory(&text));
    let address_space = read("/proc/self/limits").and_then(|text| address_space(&text));
    let mut least = machine.unwrap_or(ASSUMED_MEMORY).min(address_space.unwrap_or(u64::MAX));
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

/// The machine's memory, of `/proc/meminfo`.
fn total_memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// The soft limit on the address space, of `/proc/self/limits`.
fn address_space(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    // "unlimited" is no number.
    line.split_whitespace().next()?.parse().ok()
}

/// The content of `memory.max` or `memory.limit_in_bytes`; `None` where that is no limit.
fn group_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|&bytes| bytes < NO_LIMIT)
}

/// A tree of control groups that can limit memory, and this process's place in it.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    /// Where the tree can be seen.
    mount_point: String,
    /// The process's group below that: empty, or with a slash before each name.
    group: String,
    /// The file that holds a group's limit.
    file: &'static str,
}

impl Hierarchy {
    /// The folders of the process's group and of all those around it.
    fn folders(&self) -> impl Iterator<Item = String> + '_ {
        let ends = self.group.match_indices('/').map(|(at, _)| at).chain([self.group.len()]);
        ends.map(|end| format!("{}{}", self.mount_point, &self.group[..end]))
    }
}

/// Finds the process's memory groups: `groups` is `/proc/self/cgroup`, `mounts` is
/// `/proc/self/mountinfo`. Both versions may be in use at once.
fn memory_hierarchies(groups: &str, mounts: &str) -> Vec<Hierarchy> {
    let mut found = Vec::new();
    for line in groups.lines() {
        // `7:cpu,memory:/some/group`; the second version is `0::/some/group`.
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
            // In a container the tree is often mounted from the container's group on, while the
            // process's path is still counted from the top.
            let root = mount.root.trim_end_matches('/');
            let below = path.strip_prefix(root).filter(|rest| rest.starts_with('/'));
            let group = below.unwrap_or_default().trim_end_matches('/');
            // A process outside its namespace's root has a path that leads out of the mount.
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

/// Reads a line of `/proc/self/mountinfo`, where it is a mount of control groups of the wanted
/// version with a say in memory.
fn mount(line: &str, unified: bool) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut after = after.split(' ');
    let (kind, _device, options) = (after.next()?, after.next()?, after.next()?);
    let fits = match kind {
        "cgroup2" => unified,
        "cgroup" => !unified && options.split(',').any(|option| option == "memory"),
        _ => false,
    };
    let mut fields = before.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    fits.then(|| Mount { root: unescaped(root), point: unescaped(point) })
}

/// Spaces, tabs, newlines and backslashes are written as `\` and three octal digits.
fn unescaped(text: &str) -> String {
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
    fn without_any_file_a_constant_is_assumed() {
        check(&[], ASSUMED_MEMORY);
        check(&[("/proc/meminfo", "MemTotal: lots\n")], ASSUMED_MEMORY);
        check(&[("/proc/meminfo", "MemTotal: 99999999999999999999 kB\n")], ASSUMED_MEMORY);
    }

    #[test]
    fn without_limits_all_of_the_machine_is_usable() {
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
    fn a_soft_limit_on_the_address_space_counts() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max cpu time              1                    2                    seconds\n\
                      Max address space         1073741824           unlimited            bytes\n";
        check(&[("/proc/meminfo", MEMINFO), ("/proc/self/limits", limits)], 1 << 30);
    }

    #[test]
    fn the_smallest_limit_up_the_hierarchy_counts() {
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
    fn the_first_versions_huge_number_is_no_limit() {
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
    fn both_versions_count_where_they_are_mixed() {
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
    fn a_tree_mounted_from_the_containers_group_on_is_understood() {
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
    fn unusual_mount_points_are_understood_and_broken_lines_left_out() {
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
