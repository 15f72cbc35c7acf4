//! Threads in traces: their numbers and names.

use std::cell::RefCell;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use pyo3::prelude::*;

thread_local! {
    /// What Python calls this thread.
    static NAME: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Remembers what Python calls this thread, the first time.
pub(crate) fn name_python_thread(py: Python<'_>) {
    let is_known = NAME.try_with(|name| name.try_borrow().is_ok_and(|name| name.is_some()));
    if is_known != Ok(false) {
        return;
    }
    let found = || -> PyResult<String> {
        let thread = py.import("threading")?.call_method0("current_thread")?;
        thread.getattr("name")?.extract()
    };
    // A thread without a name is told by its number.
    if let Ok(found) = found() {
        let _ = NAME.try_with(|name| name.replace(Some(found)));
    }
}

/// What this thread is called, or else its number.
pub(super) fn name(id: u64) -> String {
    let python = NAME.try_with(|name| name.borrow().clone()).ok().flatten();
    python
        .or_else(|| thread::current().name().map(str::to_owned))
        .unwrap_or_else(|| format!("thread {id}"))
}

/// The number that the system has for this thread, or else one of our own; never 0.
pub(super) fn id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let of_system = fs::read_link("/proc/thread-self")
        .ok()
        .and_then(|path| path.file_name()?.to_str()?.parse().ok())
        .filter(|&id| id != 0);
    of_system.unwrap_or_else(|| LAST.fetch_add(1, Ordering::Relaxed) + 1)
}
