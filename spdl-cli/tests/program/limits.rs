//! The program under limits on address space and file size: it succeeds, or fails with one line.

// promise of this file: R25

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::any_data::packing::{bytes_feature, tfrecord};
use crate::common::{Folder, Run, bench, finish, png, spdl};

/// Number of address space limits that are tried. The default is 8; a soak tries more, and also more limits
/// of the file size.
const LIMITS: &str = "SPDL_ADDRESS_LIMITS";
/// A run that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Address space that the program needs from its start until it can check the limit, in KiB. The
/// program may abort below this limit: see `docs/stores.md`.
const START: u64 = 4 << 10;

/// Runs the program under a limit in the syntax of `ulimit`. Returns `None` after a signal.
fn run(limit: &str, arguments: &[&str]) -> Option<Run> {
    let script = format!("ulimit -c 0; ulimit {limit} && exec \"$@\"");
    let program = spdl();
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).arg(program.get_program()).args(arguments);
    command.env_remove("RUST_BACKTRACE");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = wait(child, limit, arguments);
    output.status.code().map(|_| finish(output))
}

fn wait(mut child: Child, limit: &str, arguments: &[&str]) -> std::process::Output {
    let end = Instant::now() + TIMEOUT;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("{arguments:?} hangs under {limit}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// The lowest limit in KiB under which the program can be loaded and started.
fn lowest() -> u64 {
    let starts =
        |limit: u64| run(&format!("-v {limit}"), &["--version"]).is_some_and(|run| run.code == 0);
    let (mut too_low, mut enough) = (1 << 10, 4 << 20);
    assert!(starts(enough), "the program does not start");
    while enough - too_low > 1024 {
        let middle = u64::midpoint(too_low, enough);
        *(if starts(middle) { &mut enough } else { &mut too_low }) = middle;
    }
    enough
}

/// Commands that read, and write a cache, checkpoints and shards below `folder`.
fn commands(data: &Path, folder: &Path) -> [Vec<String>; 3] {
    let data = data.to_str().unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let bench = ["bench", data, "--json", "--size", "24", "--batch", "16", "--threads", "3"];
    let bench = bench.map(str::to_owned).to_vec();
    let (cache, state) = (path("cache"), path("state"));
    let writes = ["--cache", &cache, "--save-state", &state, "--overwrite-state"];
    let cached = bench.iter().cloned().chain(writes.map(str::to_owned)).collect();
    let pack = ["pack", data, &path("shards"), "--threads", "3"];
    [bench, cached, pack.map(str::to_owned).to_vec()]
}

/// Checks the result of a run, and returns whether it succeeded.
fn check(run: Option<Run>, shown: &str) -> bool {
    let run = run.unwrap_or_else(|| panic!("a signal ended the program: {shown}"));
    assert!(matches!(run.code, 0 | 1), "{shown}: code {}: {}", run.code, run.stderr);
    if run.code == 1 {
        let errors: Vec<_> = run.stderr.lines().filter(|line| line.starts_with("spdl: ")).collect();
        assert!(
            !errors.is_empty() && errors.len() == run.stderr.lines().count(),
            "{shown}: {}",
            run.stderr
        );
    }
    run.code == 0
}

// promise: R4
#[test]
fn a_limit_on_the_address_space_causes_no_abort() {
    let count = std::env::var(LIMITS).map_or(8, |count| count.parse::<u64>().unwrap());
    let data = Folder::with_images(48, 3);
    let first = lowest() + START;
    let mut succeeded = 0;
    for number in 0..count {
        // Up to 160 MiB more. Most limits are low: without a check, threads cannot be started a few MiB
        // above the first limit.
        let limit = first + number.pow(3) * (160 << 10) / count.pow(3);
        let folder = Folder::new();
        for arguments in commands(data.path(), folder.path()) {
            let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
            let run = run(&format!("-v {limit}"), &arguments);
            let shown = format!("ulimit -v {limit}: {arguments:?}");
            if let Some(run) = run.as_ref().filter(|run| run.code == 1) {
                let names_limit =
                    run.stderr.contains("ulimit -v") || run.stderr.contains("allocate");
                assert!(names_limit, "{shown}: {}", run.stderr);
            }
            succeeded += u64::from(check(run, &shown));
        }
    }
    println!("{succeeded} of {} runs succeeded, the others failed with one line", 3 * count);
    assert!(succeeded > 0 && succeeded < 3 * count, "{succeeded}");
}

#[test]
fn a_limit_on_the_size_of_files_causes_an_error() {
    let data = Folder::with_images(48, 3);
    let mut failed = Vec::new();
    // In blocks of 512 bytes or, in some shells, 1024 bytes.
    let blocks: &[u32] = match std::env::var_os(LIMITS) {
        None => &[0, 2, 20, 100_000],
        Some(_) => &[0, 1, 2, 3, 5, 10, 20, 100, 100_000],
    };
    for &blocks in blocks {
        let folder = Folder::new();
        let commands = commands(data.path(), folder.path());
        for (number, arguments) in commands.iter().enumerate() {
            let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
            let limit = format!("-f {blocks}");
            let run = run(&limit, &arguments);
            if let Some(run) = run.as_ref().filter(|run| run.code == 1) {
                failed.push((blocks, number));
                let names_file = run.stderr.contains(folder.path().to_str().unwrap());
                assert!(names_file && run.stderr.contains("File too large"), "{}", run.stderr);
            }
            let is_enough = check(run, &format!("ulimit {limit}: {arguments:?}"));
            // A run that writes no file needs no limit.
            assert!(is_enough || number > 0 && blocks < 100_000, "{limit}: {arguments:?}");
        }
    }
    println!("failed: {failed:?}");
    // Checkpoints cannot be saved, and shards cannot be written.
    assert!(failed.contains(&(0, 1)) && failed.contains(&(0, 2)), "{failed:?}");
    assert!(failed.contains(&(20, 2)), "{failed:?}");
}

/// Whether the program, started without variables of glibc's allocator, soon has this one.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn sets(variable: &str, limit: &str) -> bool {
    let data = Folder::with_images(4, 2);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit} exec \"$@\""), "sh", env!("CARGO_BIN_EXE_spdl")]);
    command.arg("bench").arg(data.path()).args(["--size", "24", "--epochs", "1000000"]);
    for name in ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX"] {
        command.env_remove(name);
    }
    command.env_remove("GLIBC_TUNABLES").stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let environment = format!("/proc/{}/environ", child.id());
    let end = Instant::now() + Duration::from_secs(20);
    let mut is_set = false;
    while !is_set && Instant::now() < end && child.try_wait().unwrap().is_none() {
        let found = std::fs::read(&environment).unwrap_or_default();
        is_set = found.split(|&byte| byte == 0).any(|entry| entry == variable.as_bytes());
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    child.wait().unwrap();
    is_set
}

// promise: R4
#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn the_program_starts_itself_again_with_settings_of_the_allocator() {
    assert!(sets("MALLOC_MMAP_THRESHOLD_=4194304", ""));
    assert!(sets("MALLOC_TRIM_THRESHOLD_=4194304", ""));
    assert!(sets("MALLOC_ARENA_MAX=1", "ulimit -v 4000000;"));
}

/// The peak resident memory, and the memory budget.
fn memory(run: &Run) -> Option<(u64, u64)> {
    let json = run.json();
    Some((json["peak_rss_bytes"].as_u64()?, json["memory"]["budget_bytes"].as_u64()?))
}

/// An MDS data set of `count` samples with equal bytes, one shard for each.
fn write_mds(folder: &Folder, image: &[u8], count: u64) {
    let first = 12_u32;
    let end = first + 12 + image.len() as u32;
    let head = [1_u32, first, end].map(u32::to_le_bytes).concat();
    let size = (image.len() as u32).to_le_bytes();
    let shard = [&head[..], &size, &1_i64.to_le_bytes(), image].concat();
    let mut shards = Vec::new();
    for number in 0..count {
        let name = format!("shard.{number:05}.mds");
        folder.add(&name, &shard);
        shards.push(serde_json::json!({
            "version": 2, "format": "mds", "samples": 1, "compression": null, "zip_data": null,
            "hashes": [], "size_limit": null,
            "raw_data": {"basename": name, "bytes": end, "hashes": {}},
            "column_names": ["cls", "png"], "column_encodings": ["int", "png"],
            "column_sizes": [8, null],
        }));
    }
    let index = serde_json::json!({"version": 2, "shards": shards});
    folder.add("index.json", index.to_string().as_bytes());
}

/// Writes images below `class`, with zeros after the image, which decoders ignore.
fn add_padded(folder: &Folder, images: &[Vec<u8>], count: usize, bytes: u64) {
    for (number, image) in images.iter().cycle().take(count).enumerate() {
        let name = format!("class/{number:02}.png");
        folder.add(&name, image);
        let file = std::fs::OpenOptions::new().write(true).open(folder.join(&name)).unwrap();
        file.set_len(bytes).unwrap();
    }
}

/// Photographs of 10 MB each.
fn photographs(count: usize) -> Folder {
    let assets = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/photos");
    let images = ["life.jpg", "picosdeeuropa.jpg", "aitzgorri.jpg", "wine.jpg"]
        .map(|name| std::fs::read(Path::new(assets).join(name)).unwrap());
    let folder = Folder::new();
    add_padded(&folder, &images, count, 10_000_000);
    folder
}

/// The peak resident memory of a run over small images, if the system reports it.
#[expect(clippy::print_stdout, reason = "the reason of a skipped test")]
fn base() -> Option<u64> {
    let base = memory(&bench(Folder::with_images(48, 3).path(), &["--json", "--threads", "2"]));
    if base.is_none() {
        println!("SKIPPED: the system does not report the peak resident memory");
    }
    Some(base?.0)
}

// promise: R4
#[test]
fn resident_memory_stays_within_the_budget_for_photographs_and_64_threads() {
    let Some(base) = base() else { return };
    let folder = photographs(48);
    let run = bench(folder.path(), &["--json", "--threads", "64"]);
    let (peak, budget) = memory(&run).unwrap();
    println!("{} MB above the base, budget {} MB", (peak - base) / 1_000_000, budget / 1_000_000);
    assert!(budget < 96_000_000, "the budget limits nothing: {budget}");
    // The decodes of 64 baseline JPEGs are part of the 64 MB.
    assert!(peak <= base + budget + 64_000_000, "{peak} of {base} + {budget}");
}

// promise: R4
#[test]
fn at_most_one_file_that_is_larger_than_the_budget_is_held() {
    let Some(base) = base() else { return };
    for (count, bytes) in [(6, 100_000_000), (3, 400_000_000)] {
        let folder = Folder::new();
        add_padded(&folder, &[png(1), png(2)], count, bytes);
        let arguments = ["--json", "--threads", "4", "--max-file-size", "500MB"];
        let (peak, budget) = memory(&bench(folder.path(), &arguments)).unwrap();
        println!(
            "files of {} MB: {} MB above the base, budget {} MB",
            bytes / 1_000_000,
            (peak - base) / 1_000_000,
            budget / 1_000_000
        );
        assert!(budget < bytes, "the files fit the budget: {budget}");
        assert!(peak <= base + bytes + 64_000_000, "{peak} of {base} + {bytes}");
    }
}

/// A control group with a memory limit. It is removed on drop.
struct ControlGroup(PathBuf);

impl ControlGroup {
    fn with_memory(bytes: u64) -> Option<Self> {
        let hierarchies =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        hierarchies.into_iter().find_map(|(parent, limit)| {
            let path = Path::new(parent).join(format!("spdl-test-{}", std::process::id()));
            std::fs::create_dir(&path).ok()?;
            let group = ControlGroup(path);
            std::fs::write(group.0.join(limit), bytes.to_string()).ok()?;
            Some(group)
        })
    }

    /// Runs the program in the group. Returns `None` if a signal ends the program.
    fn run(&self, data: &Path, arguments: &[&str]) -> Option<Run> {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(&self.0);
        let program = spdl();
        command.arg(program.get_program()).arg("bench").arg(data).args(arguments);
        let output = command.output().unwrap();
        output.status.code().map(|_| finish(output))
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

// promise: R4
#[test]
fn runs_within_a_control_group_of_600_mb_are_not_killed() {
    const LIMIT: u64 = 600_000_000;
    let Some(group) = ControlGroup::with_memory(LIMIT) else {
        return println!("SKIPPED: this user cannot create control groups");
    };
    let (photos, large) = (photographs(48), Folder::new());
    add_padded(&large, &[png(1), png(2)], 6, 100_000_000);
    let large_files = ["--json", "--threads", "2", "--max-file-size", "128MB"];
    for (data, arguments) in
        [(&photos, &["--json", "--threads", "64"][..]), (&large, &large_files[..])]
    {
        let run = group.run(data.path(), arguments).expect("the system killed the program");
        assert_eq!(run.code, 0, "{}", run.stderr);
        let (peak, budget) = memory(&run).unwrap();
        println!("{} MB of 600 MB, budget {} MB", peak / 1_000_000, budget / 1_000_000);
        assert!(budget <= LIMIT / 4, "the budget ignores the limit of the group: {budget}");
    }
}

// promise: R4
#[test]
fn resident_memory_stays_within_the_budget_for_large_files() {
    const FILES: u64 = 12;
    const FILE_BYTES: u64 = 16_000_000;
    let (small, large) = (Folder::new(), Folder::new());
    let images: Vec<_> = (0..FILES).map(|number| png(number as u32)).collect();
    add_padded(&large, &images, FILES as usize, FILE_BYTES);
    let Some(base) = base() else { return };
    let other = Folder::new();
    let (cache, shards) = (other.join("cache"), other.join("shards"));
    let packed = spdl().arg("pack").arg(large.path()).arg(&shards).output().unwrap();
    assert!(packed.status.success(), "{packed:?}");
    let (cache, files) = (cache.to_str().unwrap(), large.path());
    let image = std::fs::read(large.join("class/00.png")).unwrap();
    let (records, mds) = (Folder::new(), Folder::new());
    let record = tfrecord(&[
        ("image/encoded", bytes_feature(&image)),
        ("image/class/label", vec![26, 2, 8, 1]),
    ]);
    records.add("a.tfrecord", &record.repeat(FILES as usize));
    write_mds(&mds, &image, FILES);
    let with_cache = ["--threads", "2", "--cache", cache];
    let mut rows: Vec<(&str, &Path, &[&str])> = vec![
        ("files", files, &["--threads", "2"]),
        ("64 threads", files, &["--threads", "64"]),
        ("tar shards", &shards, &["--threads", "2"]),
        ("cold cache", files, &with_cache),
        ("warm cache", files, &with_cache),
        ("TFRecord", records.path(), &["--threads", "2"]),
        ("MDS", mds.path(), &["--threads", "2"]),
    ];
    #[cfg(feature = "http")]
    let (_server, served, list) = {
        use spdl_io::testing::{Fault, FaultPlan, FaultServer};
        let server = FaultServer::start(Vec::<(String, Vec<u8>)>::new());
        server.insert_folder(&shards, "shards/");
        let (body, mut list) = (bytes::Bytes::from(image), "path,label\n".to_owned());
        for number in 0..FILES {
            server.insert(format!("{number}.png"), body.clone());
            list += &format!("{}/{number}.png,1\n", server.url());
        }
        small.add("list.csv", list.as_bytes());
        server.set_faults(FaultPlan::script(|request| {
            let is_image = request.method == "GET" && request.key.ends_with(".png");
            is_image.then_some(Fault::Chunked)
        }));
        let first = std::fs::read_dir(&shards).unwrap().map(|entry| entry.unwrap().file_name());
        let first =
            first.filter_map(|name| name.into_string().ok()).find(|it| it.ends_with("0.tar"));
        let served = format!("{}/shards/{}", server.url(), first.unwrap());
        (server, std::path::PathBuf::from(served), small.join("list.csv"))
    };
    #[cfg(feature = "http")]
    rows.extend([
        ("web server", served.as_path(), &["--threads", "2"][..]),
        ("chunked responses", &list, &["--threads", "2"]),
    ]);
    for (row, data, arguments) in rows {
        let run = bench(data, &[&["--json"], arguments].concat());
        let (peak, budget) = memory(&run).unwrap();
        println!(
            "{row}: {} MB above the base, budget {} MB",
            (peak - base) / 1_000_000,
            budget / 1_000_000
        );
        assert!(budget < FILES * FILE_BYTES / 4, "{row}: the budget limits nothing: {budget}");
        assert!(peak <= base + budget + 64_000_000, "{row}: {peak} of {base} + {budget}");
    }
}
