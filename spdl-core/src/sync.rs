//! Locks, atomics and waiting, behind one door: `--cfg spdl_loom` swaps in the model checker's.
//! (Plain `loom` would switch dependencies as well.)

#[cfg(spdl_loom)]
pub(crate) use loom::sync::atomic;
#[cfg(not(spdl_loom))]
pub(crate) use std::sync::atomic;

#[cfg(spdl_loom)]
use loom::sync as imp;
#[cfg(not(spdl_loom))]
use std::sync as imp;
use std::sync::PoisonError;

pub(crate) use imp::MutexGuard;

/// A mutex whose users leave its data whole even where they panic, so poisoning says nothing.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(imp::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(imp::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(imp::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Condvar(imp::Condvar::new())
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
