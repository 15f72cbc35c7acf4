//! Memory that files are read into, used again: for new memory the system fills every page with
//! zeros first, which takes longer than copying a file out of its cache.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;

/// Shorter ones are left to the allocator, which keeps them by itself.
const SHORTEST: usize = 4 << 10;
/// Longer ones are given back to the system.
const LONGEST: usize = 1 << 20;
/// So many bytes are kept, at most, while nobody uses them.
const MOST_IDLE: usize = 8 << 20;

/// Buffers that come back when the last of the bytes read into them are dropped.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffers {
    idle: Arc<Mutex<Idle>>,
}

#[derive(Debug, Default)]
struct Idle {
    /// By their length.
    buffers: BTreeMap<usize, Vec<Vec<u8>>>,
    bytes: usize,
}

/// A buffer in use: its first bytes.
pub(crate) struct ReadBuffer {
    memory: Vec<u8>,
    len: usize,
    /// Where it goes back to; nowhere if the fetcher is gone.
    home: Weak<Mutex<Idle>>,
}

impl ReadBuffers {
    /// A buffer of `len` bytes, left over from its last use; `None` for long ones, which are not kept.
    pub(crate) fn take(&self, len: usize) -> Option<ReadBuffer> {
        if len > LONGEST {
            return None;
        }
        let home = Arc::downgrade(&self.idle);
        if len < SHORTEST {
            return Some(ReadBuffer { memory: vec![0; len], len, home });
        }
        let size = rounded(len);
        // At least half of a buffer is of use.
        let mut idle = lock(&self.idle);
        let found = idle.buffers.range_mut(size..=2 * size).find_map(|(_, buffers)| buffers.pop());
        idle.bytes -= found.as_ref().map_or(0, Vec::len);
        drop(idle);
        let memory = found.unwrap_or_else(|| vec![0; size]);
        Some(ReadBuffer { memory, len, home })
    }
}

/// The length of the buffer for so many bytes: a quarter more at most, so that lengths meet again.
fn rounded(len: usize) -> usize {
    let step = (len.next_power_of_two() / 8).max(1);
    len.div_ceil(step) * step
}

fn lock(idle: &Mutex<Idle>) -> MutexGuard<'_, Idle> {
    // Nothing that may panic happens in the middle of a change.
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReadBuffer {
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }

    /// The first `len` of its bytes.
    pub(crate) fn into_bytes(mut self, len: usize) -> Bytes {
        self.len = self.len.min(len);
        if self.memory.len() < SHORTEST {
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
        if !(SHORTEST..=LONGEST).contains(&size) {
            return;
        }
        let Some(home) = self.home.upgrade() else { return };
        let mut idle = lock(&home);
        if idle.bytes + size <= MOST_IDLE {
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
        let kept = idle.buffers.values().flatten().map(Vec::len).sum();
        assert_eq!(idle.bytes, kept, "the count is not that of the buffers");
        kept
    }

    #[test]
    fn a_buffer_comes_back_when_the_last_part_of_its_bytes_is_dropped() {
        let buffers = ReadBuffers::default();
        let mut buffer = buffers.take(100_000).unwrap();
        buffer.bytes_mut().fill(7);
        let bytes = buffer.into_bytes(90_000);
        assert_eq!((bytes.len(), bytes[89_999]), (90_000, 7));
        let part = bytes.slice(5..10);
        drop(bytes);
        assert_eq!(idle(&buffers), 0, "a part is still in use");
        drop(part);
        let kept = idle(&buffers);
        assert!((100_000..=125_000).contains(&kept), "{kept}");
        // The next one of about this length is the same.
        let again = buffers.take(99_000).unwrap();
        assert_eq!((idle(&buffers), again.memory.len(), again.as_ref().len()), (0, kept, 99_000));
    }

    #[test]
    fn idle_buffers_are_few_and_end_with_their_owner() {
        let buffers = ReadBuffers::default();
        let used: Vec<_> = (0..100).map(|_| buffers.take(500_000).unwrap()).collect();
        drop(used);
        assert!(idle(&buffers) <= MOST_IDLE, "{}", idle(&buffers));
        assert!(idle(&buffers) > MOST_IDLE / 2, "{}", idle(&buffers));
        let kept = buffers.take(500_000).unwrap().into_bytes(3);
        drop(buffers);
        assert_eq!(kept.len(), 3);
    }

    #[test]
    fn short_and_long_ones_are_not_kept() {
        let buffers = ReadBuffers::default();
        assert!(buffers.take(LONGEST + 1).is_none());
        for len in [0, 1, SHORTEST - 1] {
            let bytes = buffers.take(len).unwrap().into_bytes(len);
            assert_eq!(bytes.len(), len);
        }
        assert_eq!(idle(&buffers), 0);
        // A long one is not cut out of a short one's memory, nor a short one out of a long one's.
        drop(buffers.take(LONGEST).unwrap());
        let short = buffers.take(SHORTEST).unwrap();
        assert!(short.memory.len() <= 2 * SHORTEST, "{}", short.memory.len());
    }
}
