//! The session: what was recorded and is not written yet.

use std::cell::RefCell;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread as threads;
use std::time::{Duration, Instant};

use super::line::{Line, start};
use super::thread;

static SESSION: Mutex<Option<Session>> = Mutex::new(None);
/// Something is to be written, or it is the end.
static WRITE: Condvar = Condvar::new();

/// How long a new session waits for those who are about to look whether there is an old one.
const PATIENCE: Duration = Duration::from_secs(1);
/// What is written at once, as a share of what may wait.
const WRITTEN_AT: usize = 4;

struct Session {
    number: u64,
    process: u32,
    pending: String,
    /// How many bytes may wait.
    capacity: usize,
    /// Events that found no room.
    dropped: u64,
    stopped: bool,
}

/// What a thread writes its events in, before it asks for the session.
#[derive(Default)]
struct Scratch {
    line: Line,
    /// The last session that knows this thread.
    known_to: u64,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Begins a session, and gives its number.
///
/// # Errors
/// Says why there can be none: there is one.
pub(super) fn begin(process_name: &str, capacity: usize) -> Result<u64, &'static str> {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    let mut session = lock_soon().ok_or("this process was forked while a trace was recorded")?;
    let process = process::id();
    // That of the process of which this one is a fork is not ours.
    if session.as_ref().is_some_and(|session| session.process == process) {
        return Err("a trace is being recorded already; there can be one at a time");
    }
    // No time of this session is earlier.
    start();
    let mut line = Line::default();
    line.clear();
    line.name_process(process_name);
    // The array begins, and there is nothing in front of its first element.
    line.text.replace_range(..1, "[");
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let pending = line.text;
    *session = Some(Session { number, process, pending, capacity, dropped: 0, stopped: false });
    Ok(number)
}

/// Records what `events` writes. Where there is no room for it, it is counted instead.
pub(super) fn write(events: impl FnOnce(&mut Line)) {
    // There is none any more where the thread is about to end.
    let _ = SCRATCH.try_with(|scratch| {
        // Nothing that is called meanwhile records anything.
        let Ok(mut scratch) = scratch.try_borrow_mut() else { return };
        let Scratch { line, known_to } = &mut *scratch;
        line.clear();
        events(line);
        let mut session = lock();
        let Some(session) = session.as_mut().filter(|session| !session.stopped) else { return };
        if *known_to != session.number {
            line.name_thread(&thread::name(line.thread));
        }
        if session.pending.len() + line.text.len() > session.capacity {
            session.dropped += 1;
            return;
        }
        *known_to = session.number;
        session.pending.push_str(&line.text);
        if session.pending.len() >= session.capacity / WRITTEN_AT {
            WRITE.notify_one();
        }
    });
}

/// Waits until it is worth while to write, but not longer than `at_most`, and takes that. `None`
/// once the session has been stopped, and all has been taken.
pub(super) fn take(number: u64, at_most: Duration) -> Option<String> {
    let mut guard = lock();
    let until = Instant::now() + at_most;
    loop {
        let session = guard.as_mut().filter(|session| session.number == number)?;
        let left = until.saturating_duration_since(Instant::now());
        let is_much = session.pending.len() >= session.capacity / WRITTEN_AT;
        if session.stopped || is_much || left.is_zero() {
            let pending = std::mem::take(&mut session.pending);
            return if session.stopped && pending.is_empty() { None } else { Some(pending) };
        }
        guard = WRITE.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Records nothing more. Says whether this is the session.
pub(super) fn stop(number: u64) -> bool {
    let mut session = lock();
    let session = session.as_mut().filter(|session| session.number == number);
    let is_ours = session.is_some();
    if let Some(session) = session {
        session.stopped = true;
    }
    WRITE.notify_all();
    is_ours
}

/// Ends the session. Says how many events found no room.
pub(super) fn end(number: u64) -> u64 {
    let mut session = lock();
    session.take_if(|session| session.number == number).map_or(0, |session| session.dropped)
}

fn lock() -> MutexGuard<'static, Option<Session>> {
    SESSION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where it was locked when this process was forked, it stays so.
fn lock_soon() -> Option<MutexGuard<'static, Option<Session>>> {
    let until = Instant::now() + PATIENCE;
    loop {
        match SESSION.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() > until => return None,
            Err(TryLockError::WouldBlock) => threads::sleep(Duration::from_millis(1)),
        }
    }
}
