//! The trace session and its buffer of events to write.

use std::cell::RefCell;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread as threads;
use std::time::{Duration, Instant};

use super::event::{EventBuffer, start};
use super::thread;

static SESSION: Mutex<Option<Session>> = Mutex::new(None);
/// Signals that the buffer should be written, or that the session was stopped.
static WRITE: Condvar = Condvar::new();

/// How long a new session waits for the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// The buffer is written once it is filled to 1/`FLUSH_FRACTION` of its capacity.
const FLUSH_FRACTION: usize = 4;

struct Session {
    number: u64,
    process: u32,
    pending: String,
    /// The size limit of `pending`, in bytes.
    capacity: usize,
    /// Events dropped because `pending` was full.
    dropped: u64,
    stopped: bool,
}

/// The buffer in which a thread encodes events before it locks the session.
#[derive(Default)]
struct ThreadBuffer {
    buffer: EventBuffer,
    /// The last session in which this thread has recorded its name.
    named_in: u64,
}

thread_local! {
    static THREAD_BUFFER: RefCell<ThreadBuffer> = RefCell::default();
}

/// Starts a session and returns its number.
///
/// # Errors
/// The reason, if a session is active, or was being changed when this process was forked.
pub(super) fn begin(process_name: &str, capacity: usize) -> Result<u64, &'static str> {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    let mut session = lock_with_timeout()
        .ok_or("cannot start a trace: this process was forked while recording a trace")?;
    let process = process::id();
    // A session of the parent process does not count.
    if session.as_ref().is_some_and(|session| session.process == process) {
        return Err("cannot start a trace: another trace is active; stop it first");
    }
    // Fix the zero of all timestamps before the first event.
    start();
    let mut buffer = EventBuffer::default();
    buffer.clear();
    buffer.name_process(process_name);
    // Replace the comma before the first element by the start of the array.
    buffer.text.replace_range(..1, "[");
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let pending = buffer.text;
    *session = Some(Session { number, process, pending, capacity, dropped: 0, stopped: false });
    Ok(number)
}

/// Records the events that `events` writes, or counts them as dropped if the buffer is full.
pub(super) fn write(events: impl FnOnce(&mut EventBuffer)) {
    // The thread-local buffer does not exist while the thread exits.
    let _ = THREAD_BUFFER.try_with(|thread_buffer| {
        // The buffer is borrowed already if `events` records an event itself.
        let Ok(mut thread_buffer) = thread_buffer.try_borrow_mut() else { return };
        let ThreadBuffer { buffer, named_in } = &mut *thread_buffer;
        buffer.clear();
        events(buffer);
        let mut session = lock();
        let Some(session) = session.as_mut().filter(|session| !session.stopped) else { return };
        if *named_in != session.number {
            buffer.name_thread(&thread::name(buffer.thread));
        }
        if session.pending.len() + buffer.text.len() > session.capacity {
            session.dropped += 1;
            return;
        }
        *named_in = session.number;
        session.pending.push_str(&buffer.text);
        if session.pending.len() >= session.capacity / FLUSH_FRACTION {
            WRITE.notify_one();
        }
    });
}

/// Waits, at most `at_most`, until enough events are buffered, and takes them.
///
/// Returns `None` after the session was stopped and all events were taken.
pub(super) fn take(number: u64, at_most: Duration) -> Option<String> {
    let mut guard = lock();
    let until = Instant::now() + at_most;
    loop {
        let session = guard.as_mut().filter(|session| session.number == number)?;
        let left = until.saturating_duration_since(Instant::now());
        let is_enough = session.pending.len() >= session.capacity / FLUSH_FRACTION;
        if session.stopped || is_enough || left.is_zero() {
            let pending = std::mem::take(&mut session.pending);
            return if session.stopped && pending.is_empty() { None } else { Some(pending) };
        }
        guard = WRITE.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Stops recording. Returns whether `number` is the active session.
pub(super) fn stop(number: u64) -> bool {
    let mut session = lock();
    let session = session.as_mut().filter(|session| session.number == number);
    let is_active = session.is_some();
    if let Some(session) = session {
        session.stopped = true;
    }
    WRITE.notify_all();
    is_active
}

/// Ends the session. Returns how many events were dropped.
pub(super) fn end(number: u64) -> u64 {
    let mut session = lock();
    session.take_if(|session| session.number == number).map_or(0, |session| session.dropped)
}

fn lock() -> MutexGuard<'static, Option<Session>> {
    SESSION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the session, or returns `None` after a timeout: if the process was forked while another
/// thread held the lock, the lock stays held forever.
fn lock_with_timeout() -> Option<MutexGuard<'static, Option<Session>>> {
    let until = Instant::now() + LOCK_TIMEOUT;
    loop {
        match SESSION.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() > until => return None,
            Err(TryLockError::WouldBlock) => threads::sleep(Duration::from_millis(1)),
        }
    }
}
