//! The packed images, and the CPU time and memory of this process.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;

/// The JPEGs of the pack, sorted by name.
pub(crate) fn jpegs() -> Result<Vec<Bytes>, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let folder = program.parent().unwrap_or(Path::new(".")).join("images");
    let mut paths = Vec::new();
    collect(&folder, &mut paths)?;
    paths.sort();
    if paths.is_empty() {
        return Err(format!("no images in {:?}", folder.display().to_string()));
    }
    let read = |path: &PathBuf| fs::read(path).map(Bytes::from).map_err(|error| error.to_string());
    paths.iter().map(read).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<(), String> {
    let cannot_list =
        |error: std::io::Error| format!("cannot list {:?}: {error}", folder.display().to_string());
    for entry in fs::read_dir(folder).map_err(cannot_list)? {
        let path = entry.map_err(cannot_list)?.path();
        if path.is_dir() {
            collect(&path, paths)?;
        } else if path.extension().is_some_and(|ending| ending == "jpg" || ending == "jpeg") {
            paths.push(path);
        }
    }
    Ok(())
}

/// The CPU time of all threads of this process in seconds.
pub(crate) fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The fields `utime` and `stime`, 14 and 15, in clock ticks. The name before them is in
    // parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(ticks as f64 / 100.0)
}

/// The resident memory of this process in bytes.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
