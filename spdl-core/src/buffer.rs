//! Host memory for batches: aligned buffers that are counted, reused, and cut into rows which
//! several threads fill at once.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf, BytesMut};

use crate::sync::Mutex;
use crate::{Error, ErrorKind, Result};

/// Every buffer starts at a multiple of this many bytes (a cache line; enough for AVX-512).
pub const ALIGNMENT: usize = 64;

/// How many free buffers a pool keeps.
const MOST_FREE: usize = 64;

/// Buffers of the same size, over and over: a pipeline in its steady state allocates nothing.
///
/// A pool hands out buffers and takes them back when they are dropped. It keeps at most 64 free
/// ones; the oldest go first.
#[derive(Clone, Default)]
pub struct BufferPool(Arc<Shared>);

#[derive(Default)]
struct Shared {
    free: Mutex<Vec<BytesMut>>,
    live_bytes: AtomicUsize,
    peak_bytes: AtomicUsize,
    allocations: AtomicUsize,
}

/// What a pool has lent.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStatistics {
    /// Bytes in buffers that are in use now.
    pub live_bytes: usize,
    /// The most that were in use at once.
    pub peak_bytes: usize,
    /// How many buffers were ever allocated.
    pub allocations: usize,
}

impl BufferPool {
    /// An empty pool.
    pub fn new() -> Self {
        BufferPool::default()
    }

    /// A buffer of `len` bytes, from the pool where it has one of that size. New memory is zeroed;
    /// a reused buffer holds what its last user left.
    ///
    /// # Errors
    /// `LimitExceeded` where the system has no memory of that size to give.
    pub fn take(&self, len: usize) -> Result<HostBuffer> {
        let reused = {
            let mut free = self.0.free.lock();
            let found = free.iter().rposition(|bytes| bytes.len() == len);
            found.map(|at| free.remove(at))
        };
        let is_new = reused.is_none();
        let bytes = match reused {
            Some(bytes) => bytes,
            None => aligned(len)?,
        };
        if is_new {
            self.0.allocations.fetch_add(1, Ordering::Relaxed);
        }
        let live = self.0.live_bytes.fetch_add(len, Ordering::Relaxed) + len;
        self.0.peak_bytes.fetch_max(live, Ordering::Relaxed);
        Ok(HostBuffer { bytes, lease: Some(Lease { pool: Arc::clone(&self.0), len }) })
    }

    /// What is lent now, and was at most.
    pub fn statistics(&self) -> PoolStatistics {
        PoolStatistics {
            live_bytes: self.0.live_bytes.load(Ordering::Relaxed),
            peak_bytes: self.0.peak_bytes.load(Ordering::Relaxed),
            allocations: self.0.allocations.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.statistics().fmt(f)
    }
}

/// New zeroed memory that starts at a multiple of [`ALIGNMENT`].
pub(crate) fn aligned(len: usize) -> Result<BytesMut> {
    let none_left = || {
        let message = format!("the system has no {len} bytes of memory for a batch");
        Error::new(ErrorKind::LimitExceeded, message)
    };
    let with_slack = len.checked_add(ALIGNMENT - 1).ok_or_else(none_left)?;
    // Zeroed memory can only be asked for by a call that aborts where there is none; so ask first,
    // which touches nothing.
    Vec::<u8>::new().try_reserve_exact(with_slack).map_err(|_| none_left())?;
    let mut bytes = BytesMut::zeroed(with_slack);
    let skip = bytes.as_ptr().align_offset(ALIGNMENT);
    bytes.advance(skip);
    bytes.truncate(len);
    Ok(bytes)
}

/// The right to use `len` bytes of a pool; dropping it ends the count.
struct Lease {
    pool: Arc<Shared>,
    len: usize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.live_bytes.fetch_sub(self.len, Ordering::Relaxed);
    }
}

/// Host memory that returns to its pool when dropped. Aligned to [`ALIGNMENT`] bytes.
pub struct HostBuffer {
    bytes: BytesMut,
    /// `None` only once the rows have taken it.
    lease: Option<Lease>,
}

impl HostBuffer {
    /// Cuts the buffer into `count` rows of `row_len` bytes, which can be owned, and written, by
    /// different threads.
    pub(crate) fn into_rows(mut self, count: usize, row_len: usize) -> RowBuffer {
        let mut rest = std::mem::take(&mut self.bytes);
        let rows = (0..count).map(|_| Some(rest.split_to(row_len))).collect();
        RowBuffer { rows, rest, lease: self.lease.take() }
    }
}

impl Deref for HostBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            let mut free = lease.pool.free.lock();
            free.push(std::mem::take(&mut self.bytes));
            let surplus = (free.len() > MOST_FREE).then(|| free.remove(0));
            drop(free);
            drop(surplus);
        }
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({} bytes)", self.bytes.len())
    }
}

/// A buffer cut into rows. A row is absent while a worker writes it.
pub(crate) struct RowBuffer {
    rows: Vec<Option<BytesMut>>,
    rest: BytesMut,
    lease: Option<Lease>,
}

impl RowBuffer {
    pub(crate) fn lend(&mut self, row: usize) -> Option<BytesMut> {
        self.rows[row].take()
    }

    pub(crate) fn give_back(&mut self, row: usize, bytes: BytesMut) {
        self.rows[row] = Some(bytes);
    }

    pub(crate) fn row_mut(&mut self, row: usize) -> Option<&mut BytesMut> {
        self.rows[row].as_mut()
    }

    /// Joins the rows again, without copying. `None` where one of them is still away.
    pub(crate) fn into_buffer(mut self) -> Option<HostBuffer> {
        let mut whole = BytesMut::new();
        for row in self.rows.drain(..) {
            // Neighbours of one allocation: `unsplit` only moves the end of the first.
            whole.unsplit(row?);
        }
        whole.unsplit(self.rest);
        Some(HostBuffer { bytes: whole, lease: self.lease.take() })
    }
}

impl fmt::Debug for RowBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RowBuffer({} rows)", self.rows.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_written_apart_and_joined_without_a_copy() {
        let pool = BufferPool::new();
        let buffer = pool.take(4 * 100).unwrap();
        let address = buffer.as_ptr();
        assert_eq!(address.align_offset(ALIGNMENT), 0);
        let mut rows = buffer.into_rows(4, 100);
        let mut writers = Vec::new();
        for row in 0..4 {
            let mut bytes = rows.lend(row).unwrap();
            assert!(rows.lend(row).is_none());
            writers.push(std::thread::spawn(move || {
                bytes.fill(row as u8);
                bytes
            }));
        }
        for (row, writer) in writers.into_iter().enumerate() {
            rows.give_back(row, writer.join().unwrap());
        }
        let buffer = rows.into_buffer().unwrap();
        assert_eq!(buffer.as_ptr(), address);
        assert!(buffer.chunks(100).enumerate().all(|(n, row)| row.iter().all(|&b| b == n as u8)));
    }

    #[test]
    fn a_dropped_buffer_is_used_again() {
        let pool = BufferPool::new();
        let first = pool.take(1000).unwrap();
        let address = first.as_ptr();
        assert_eq!(pool.statistics().live_bytes, 1000);
        drop(first.into_rows(10, 100).into_buffer().unwrap());
        assert_eq!(pool.statistics().live_bytes, 0);
        let second = pool.take(1000).unwrap();
        assert_eq!(second.as_ptr(), address);
        let _other_size = pool.take(500).unwrap();
        let statistics = pool.statistics();
        assert_eq!(statistics.allocations, 2);
        assert_eq!(statistics.peak_bytes, 1500);
    }

    #[test]
    fn a_buffer_that_lost_a_row_is_not_reused_but_no_longer_counted() {
        let pool = BufferPool::new();
        let mut rows = pool.take(100).unwrap().into_rows(2, 50);
        let lost = rows.lend(0);
        assert!(rows.into_buffer().is_none());
        drop(lost);
        assert_eq!(pool.statistics().live_bytes, 0);
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error() {
        let pool = BufferPool::new();
        for len in [usize::MAX, isize::MAX as usize, 1 << 60] {
            assert_eq!(pool.take(len).unwrap_err().kind(), ErrorKind::LimitExceeded);
        }
        assert_eq!(pool.statistics(), PoolStatistics::default());
    }
}
