//! Limits of the process: address space, file size, and memory that the allocator keeps.

use std::env;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::SIGXFSZ;
use spdl_core::memory::free_address_space;

use crate::ui::failure::Failure;
use crate::ui::format;

/// Address space for the program without worker threads, in bytes.
const PROGRAM_BYTES: u64 = 8 << 20;
/// Address space for a worker thread: its stack and bookkeeping, in bytes.
const THREAD_BYTES: u64 = 5 << 19;
/// The program and its threads may use 1 / this number of the address space. The remainder is for
/// batches, encoded images and decoded images.
const SHARE: u64 = 4;

/// Settings of glibc's allocator: freed blocks of at least 4 MiB return to the operating system.
/// By default, glibc keeps freed blocks of up to 64 MiB in each thread.
const ALLOCATOR: [(&str, &str); 2] =
    [("MALLOC_MMAP_THRESHOLD_", "4194304"), ("MALLOC_TRIM_THRESHOLD_", "4194304")];
/// Under a limit on the address space: all threads share one arena. glibc reserves
/// 64 MiB of address space for each further arena.
const ARENAS: (&str, &str) = ("MALLOC_ARENA_MAX", "1");

/// Prepares the process: a write beyond the limit on the size of a file fails instead of ending the
/// process.
pub(crate) fn prepare() {
    // Without a handler, the signal ends the process.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// The environment variables with which the allocator returns large blocks to the operating system, if
/// it reads them and they are not set. It reads them at the start of a process only.
pub fn allocator_settings() -> Vec<(&'static str, &'static str)> {
    let is_set = |(name, _): &(&str, &str)| env::var_os(name).is_some();
    let has_glibc = cfg!(all(target_os = "linux", target_env = "gnu"));
    if !has_glibc || env::var_os("GLIBC_TUNABLES").is_some() || ALLOCATOR.iter().any(is_set) {
        return Vec::new();
    }
    let mut settings = ALLOCATOR.to_vec();
    if free_address_space().is_some() && !is_set(&ARENAS) {
        settings.push(ARENAS);
    }
    settings
}

/// Starts the program again in this process, with [`allocator_settings`]. Returns if they are set already, or
/// if the program cannot be started.
pub fn restart_with_allocator_settings() {
    let settings = allocator_settings();
    if settings.is_empty() {
        return;
    }
    let mut arguments = env::args_os();
    let (Ok(program), Some(name)) = (env::current_exe(), arguments.next()) else { return };
    if program.file_name() != Path::new(&name).file_name() {
        // The program was started by another one, such as the dynamic loader.
        return;
    }
    let mut again = Command::new(program);
    again.arg0(name).args(arguments).envs(settings);
    // Returns only if the program cannot be started again. The settings are then the defaults.
    let _ = again.exec();
}

/// Checks that the address space is enough for `threads` worker threads. Without this check, an
/// allocation of a few bytes might fail, which ends the process.
pub(crate) fn check_address_space(threads: usize) -> Result<(), Failure> {
    check(threads as u64, free_address_space())
}

fn check(threads: u64, free: Option<u64>) -> Result<(), Failure> {
    let needed = threads.saturating_mul(THREAD_BYTES).saturating_add(PROGRAM_BYTES);
    let needed = needed.saturating_mul(SHARE);
    match free {
        Some(free) if free < needed => Err(Failure::sentence(format!(
            "cannot start {}: the limit on the address space (ulimit -v) leaves {}, but {} are \
             needed; raise the limit, or use fewer --threads",
            format::counted(threads, "worker thread", "worker threads"),
            format::bytes(free),
            format::bytes(needed),
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_needed_address_space_grows_with_the_threads() {
        assert!(check(1000, None).is_ok());
        assert!(check(4, Some(72 << 20)).is_ok());
        assert!(check(4, Some((72 << 20) - 1)).is_err());
        assert!(check(64, Some(500 << 20)).is_err());
        assert!(check(64, Some(700 << 20)).is_ok());
    }
}
