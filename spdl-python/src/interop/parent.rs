//! The end of this process after its parent was killed.

use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

/// Kills this process `grace` seconds after the process `parent` has ended. Needs no GIL, so that it also ends
/// functions that hold the GIL.
///
/// Has no effect if the system cannot watch processes.
///
/// # Errors
/// `OSError` if no thread can be started.
#[pyfunction]
pub(crate) fn end_after(parent: i32, grace: f64) -> PyResult<()> {
    let grace = Duration::try_from_secs_f64(grace).unwrap_or_default();
    if let Some(wait) = wait_for(parent) {
        let kill_after = move || {
            if wait() {
                thread::sleep(grace);
                kill_this_process();
            }
        };
        thread::Builder::new().name("spdl-parent".into()).spawn(kill_after)?;
    }
    Ok(())
}

/// Waits for the end of a process. Returns `false` if the wait fails.
type Wait = Box<dyn FnOnce() -> bool + Send>;

#[cfg(target_os = "linux")]
fn wait_for(process: i32) -> Option<Wait> {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    let handle = match pidfd_open(Pid::from_raw(process)?, PidfdFlags::empty()) {
        Ok(handle) => handle,
        // The process has ended before.
        Err(Errno::SRCH) => return Some(Box::new(|| true)),
        Err(_) => return None,
    };
    Some(Box::new(move || {
        let mut handles = [PollFd::new(&handle, PollFlags::IN)];
        loop {
            match poll(&mut handles, None) {
                Err(Errno::INTR) => {}
                ended => return ended.is_ok(),
            }
        }
    }))
}

#[cfg(target_os = "linux")]
fn kill_this_process() {
    use rustix::process::{Signal, getpid, kill_process};

    // A process may always send signals to itself.
    let _ = kill_process(getpid(), Signal::KILL);
}

#[cfg(not(target_os = "linux"))]
fn wait_for(_: i32) -> Option<Wait> {
    None
}

#[cfg(not(target_os = "linux"))]
fn kill_this_process() {}
