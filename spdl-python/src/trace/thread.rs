//! Numbers and names of threads in traces.

use std::cell::RefCell;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use pyo3::prelude::*;

thread_local! {
    /// The Python name of this thread.
    static NAME: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Stores the Python name of this thread, on the first call.
pub(crate) fn name_python_thread(py: Python<'_>) {
    let is_known = NAME.try_with(|name| name.try_borrow().is_ok_and(|name| name.is_some()));
    if is_known != Ok(false) {
        return;
    }
    let found = || -> PyResult<String> {
        let thread = py.import("threading")?.call_method0("current_thread")?;
        thread.getattr("name")?.extract()
    };
    // Without a name, the trace shows the number of the thread.
    if let Ok(found) = found() {
        let _ = NAME.try_with(|name| name.replace(Some(found)));
    }
}

/// The name of this thread: from Python, from Rust, or derived from its number.
pub(super) fn name(id: u64) -> String {
    let python = NAME.try_with(|name| name.borrow().clone()).ok().flatten();
    python
        .or_else(|| thread::current().name().map(str::to_owned))
        .unwrap_or_else(|| format!("thread {id}"))
}

/// The operating system's number of this thread, or a process-wide counter; never 0.
pub(super) fn id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let of_system = fs::read_link("/proc/thread-self")
        .ok()
        .and_then(|path| path.file_name()?.to_str()?.parse().ok())
        .filter(|&id| id != 0);
    of_system.unwrap_or_else(|| LAST.fetch_add(1, Ordering::Relaxed) + 1)
}
