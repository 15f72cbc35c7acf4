//! Pool of read buffers.
//!
//! The operating system zeroes each page of new memory, which takes longer than copying a cached
//! file.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;

/// Minimum length of a pooled buffer in bytes. The allocator recycles shorter buffers.
const MIN_POOLED: usize = 4 << 10;
/// Maximum length of a pooled buffer in bytes.
const MAX_POOLED: usize = 1 << 20;
/// Maximum number of bytes in unused buffers.
const MAX_IDLE_BYTES: usize = 8 << 20;

/// Buffers that return to the pool when the last reference to their bytes is dropped.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffers {
    idle: Arc<Mutex<IdleBuffers>>,
}

#[derive(Debug, Default)]
struct IdleBuffers {
    /// Unused buffers by length.
    buffers: BTreeMap<usize, Vec<Vec<u8>>>,
    bytes: usize,
}

/// A buffer in use. Its first `len` bytes are valid.
pub(crate) struct ReadBuffer {
    memory: Vec<u8>,
    len: usize,
    /// The pool to which the buffer returns. Cannot be upgraded after the fetcher is dropped.
    pool: Weak<Mutex<IdleBuffers>>,
}

impl ReadBuffers {
    /// Takes a buffer of `len` bytes with arbitrary content. Returns `None` if `len` exceeds 1 MiB.
    pub(crate) fn take(&self, len: usize) -> Option<ReadBuffer> {
        if len > MAX_POOLED {
            return None;
        }
        let pool = Arc::downgrade(&self.idle);
        if len < MIN_POOLED {
            return Some(ReadBuffer { memory: vec![0; len], len, pool });
        }
        let size = rounded(len);
        // Buffers up to twice the size are accepted.
        let mut idle = lock(&self.idle);
        let found = idle.buffers.range_mut(size..=2 * size).find_map(|(_, buffers)| buffers.pop());
        idle.bytes -= found.as_ref().map_or(0, Vec::len);
        drop(idle);
        let memory = found.unwrap_or_else(|| vec![0; size]);
        Some(ReadBuffer { memory, len, pool })
    }
}

/// Rounds the length of a buffer up by at most a quarter, so that similar lengths share buffers.
fn rounded(len: usize) -> usize {
    let step = (len.next_power_of_two() / 8).max(1);
    len.div_ceil(step) * step
}

fn lock(idle: &Mutex<IdleBuffers>) -> MutexGuard<'_, IdleBuffers> {
    // Updates of the guarded data do not panic, so the data are consistent.
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReadBuffer {
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }

    /// Converts the first `len` bytes into [`Bytes`].
    pub(crate) fn into_bytes(mut self, len: usize) -> Bytes {
        self.len = self.len.min(len);
        if self.memory.len() < MIN_POOLED {
            let mut memory = std::mem::take(&mut self.memory);
            memory.truncate(self.len);
            return memory.into();
        }
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for ReadBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        let size = self.memory.len();
        if !(MIN_POOLED..=MAX_POOLED).contains(&size) {
            return;
        }
        let Some(pool) = self.pool.upgrade() else { return };
        let mut idle = lock(&pool);
        if idle.bytes + size <= MAX_IDLE_BYTES {
            idle.bytes += size;
            idle.buffers.entry(size).or_default().push(std::mem::take(&mut self.memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle(buffers: &ReadBuffers) -> usize {
        let idle = lock(&buffers.idle);
        let pooled = idle.buffers.values().flatten().map(Vec::len).sum();
        assert_eq!(idle.bytes, pooled, "the byte count differs from the buffers");
        pooled
    }

    #[test]
    fn buffers_return_when_the_last_slice_is_dropped() {
        let buffers = ReadBuffers::default();
        let mut buffer = buffers.take(100_000).unwrap();
        buffer.bytes_mut().fill(7);
        let bytes = buffer.into_bytes(90_000);
        assert_eq!((bytes.len(), bytes[89_999]), (90_000, 7));
        let part = bytes.slice(5..10);
        drop(bytes);
        assert_eq!(idle(&buffers), 0, "a slice is still in use");
        drop(part);
        let pooled = idle(&buffers);
        assert!((100_000..=125_000).contains(&pooled), "{pooled}");
        // A similar length takes the same buffer.
        let again = buffers.take(99_000).unwrap();
        assert_eq!((idle(&buffers), again.memory.len(), again.as_ref().len()), (0, pooled, 99_000));
    }

    #[test]
    fn idle_buffers_are_bounded_and_freed_with_the_pool() {
        let buffers = ReadBuffers::default();
        let used: Vec<_> = (0..100).map(|_| buffers.take(500_000).unwrap()).collect();
        drop(used);
        assert!(idle(&buffers) <= MAX_IDLE_BYTES, "{}", idle(&buffers));
        assert!(idle(&buffers) > MAX_IDLE_BYTES / 2, "{}", idle(&buffers));
        let kept = buffers.take(500_000).unwrap().into_bytes(3);
        drop(buffers);
        assert_eq!(kept.len(), 3);
    }

    #[test]
    fn short_and_long_buffers_are_not_pooled() {
        let buffers = ReadBuffers::default();
        assert!(buffers.take(MAX_POOLED + 1).is_none());
        for len in [0, 1, MIN_POOLED - 1] {
            let bytes = buffers.take(len).unwrap().into_bytes(len);
            assert_eq!(bytes.len(), len);
        }
        assert_eq!(idle(&buffers), 0);
        // A short request does not take a much longer buffer.
        drop(buffers.take(MAX_POOLED).unwrap());
        let short = buffers.take(MIN_POOLED).unwrap();
        assert!(short.memory.len() <= 2 * MIN_POOLED, "{}", short.memory.len());
    }
}
