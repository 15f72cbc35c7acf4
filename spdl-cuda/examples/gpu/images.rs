//! Images beside this program, and what measurements need to know of the process.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;

/// The JPEGs that were packed with this program, in the order of their names.
pub(crate) fn jpegs() -> Result<Vec<Bytes>, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let folder = program.parent().unwrap_or(Path::new(".")).join("images");
    let mut paths = Vec::new();
    collect(&folder, &mut paths)?;
    paths.sort();
    if paths.is_empty() {
        return Err(format!("{} holds no images", folder.display()));
    }
    let read = |path: &PathBuf| fs::read(path).map(Bytes::from).map_err(|error| error.to_string());
    paths.iter().map(read).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> Result<(), String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path.is_dir() {
            collect(&path, paths)?;
        } else if path.extension().is_some_and(|ending| ending == "jpg" || ending == "jpeg") {
            paths.push(path);
        }
    }
    Ok(())
}

/// The CPU time of this process so far, all its threads, in seconds.
pub(crate) fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name, which may hold anything: times in hundredths are fields 14 and 15 of all.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(ticks as f64 / 100.0)
}

/// The memory of this process that is in use, in bytes.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
