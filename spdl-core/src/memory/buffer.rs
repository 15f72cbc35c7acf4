//! Host memory for batches: aligned buffers that are counted, reused, and cut into rows which
//! several threads fill at once.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::{Buf, BytesMut};

use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;

/// Every buffer starts at a multiple of this many bytes (a cache line; enough for AVX-512).
pub const ALIGNMENT: usize = 64;

/// How many free buffers a pool keeps.
const MOST_FREE: usize = 64;

/// By how much of its peak a pool may hold more than that, where sizes change: one part in this.
/// Without it, a few small buffers more than at the peak would cost a large one.
const SLACK: usize = 16;

/// Buffers of the same size, over and over: a pipeline in its steady state allocates nothing.
///
/// A pool hands out buffers and takes them back when they are dropped. It keeps at most 64 free
/// ones, and never more free bytes than were in use at its peak; with those in use, no more than
/// that peak and a sixteenth of it. The oldest go first.
#[derive(Clone, Default)]
pub struct BufferPool(Arc<PoolShared>);

#[derive(Default)]
struct PoolShared {
    books: Mutex<PoolState>,
    pin: Option<Arc<dyn PinMemory>>,
}

#[derive(Default)]
struct PoolState {
    /// The oldest first.
    free: Vec<PinnedBytes>,
    free_bytes: usize,
    live_bytes: usize,
    peak_bytes: usize,
    allocations: usize,
}

/// Tells a device's driver of memory from which it will copy, so that it can do so directly and
/// beside everything else. `spdl-cuda` implements it.
///
/// A [pool that pins](BufferPool::pinned) calls it once for each buffer that it allocates, not for
/// each batch.
pub trait PinMemory: fmt::Debug + Send + Sync + 'static {
    /// Locks this memory where it is, until what is returned is dropped, which is before the memory is
    /// freed. It starts at a multiple of [`PAGE`] bytes, is a multiple of that long, and holds
    /// nothing else.
    ///
    /// # Errors
    /// Where the driver refuses, as where too much memory is locked already.
    fn pin(&self, memory: &mut [u8]) -> Result<Pin>;
}

/// Holds memory where it is; dropping it lets the memory go.
pub type Pin = Box<dyn Any + Send + Sync>;

/// What pinned buffers are aligned to, in bytes, and what their size is rounded up to.
pub const PAGE: usize = 4096;

/// The memory of a buffer. Let go before it is freed: fields are dropped in their order.
struct PinnedBytes {
    pin: Option<Pin>,
    bytes: BytesMut,
}

/// What a pool has lent.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PoolStatistics {
    /// Bytes in buffers that are in use now.
    pub live_bytes: usize,
    /// The most that were in use at once.
    pub peak_bytes: usize,
    /// Bytes in buffers that wait to be used again.
    pub free_bytes: usize,
    /// How many buffers were ever allocated.
    pub allocations: usize,
}

impl BufferPool {
    /// An empty pool.
    pub fn new() -> Self {
        BufferPool::default()
    }

    /// An empty pool whose buffers are pinned, and aligned to [`PAGE`] bytes.
    pub fn pinned(pin: Arc<dyn PinMemory>) -> Self {
        BufferPool(Arc::new(PoolShared { pin: Some(pin), ..PoolShared::default() }))
    }

    /// A buffer of `len` bytes, from the pool where it has one of that size. New memory is zeroed;
    /// a reused buffer holds what its last user left.
    ///
    /// # Errors
    /// `LimitExceeded` where the system has no memory of that size to give; what
    /// [`PinMemory::pin`] fails with.
    pub fn take(&self, len: usize) -> Result<HostBuffer> {
        let reused = self.0.books.lock().reuse(len);
        let PinnedBytes { pin, bytes } = match reused {
            Some(memory) => memory,
            None => {
                let memory = self.0.allocate(len)?;
                let surplus = self.0.books.lock().allocated(len);
                drop(surplus);
                memory
            }
        };
        let lease = PoolLoan { pool: Some(Arc::clone(&self.0)), len, pin };
        Ok(HostBuffer { bytes, lease: Some(lease) })
    }

    /// What is lent now, and was at most.
    pub fn statistics(&self) -> PoolStatistics {
        let books = self.0.books.lock();
        PoolStatistics {
            live_bytes: books.live_bytes,
            peak_bytes: books.peak_bytes,
            free_bytes: books.free_bytes,
            allocations: books.allocations,
        }
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.statistics().fmt(f)
    }
}

impl PoolShared {
    fn allocate(&self, len: usize) -> Result<PinnedBytes> {
        let Some(pin) = self.pin.as_ref().filter(|_| len > 0) else {
            return Ok(PinnedBytes { pin: None, bytes: aligned(len)? });
        };
        let pages = len.checked_next_multiple_of(PAGE).ok_or_else(|| none_left(len))?;
        let mut bytes = aligned_to(PAGE, pages)?;
        let pin = pin.pin(&mut bytes)?;
        bytes.truncate(len);
        Ok(PinnedBytes { pin: Some(pin), bytes })
    }
}

impl PoolState {
    fn reuse(&mut self, len: usize) -> Option<PinnedBytes> {
        let at = self.free.iter().rposition(|memory| memory.bytes.len() == len)?;
        self.free_bytes -= len;
        self.lend(len);
        Some(self.free.remove(at))
    }

    /// Counts a new buffer; returns free ones that there is no more room for.
    fn allocated(&mut self, len: usize) -> Vec<PinnedBytes> {
        self.allocations += 1;
        self.lend(len);
        self.surplus()
    }

    fn lend(&mut self, len: usize) {
        self.live_bytes += len;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }

    /// Takes back what was lent, with its memory unless that was lost.
    fn give_back(&mut self, len: usize, memory: Option<PinnedBytes>) -> Vec<PinnedBytes> {
        self.live_bytes -= len;
        if let Some(memory) = memory {
            self.free_bytes += memory.bytes.len();
            self.free.push(memory);
        }
        self.surplus()
    }

    /// The oldest free buffers, as many as there are too many. To be dropped outside the lock.
    fn surplus(&mut self) -> Vec<PinnedBytes> {
        let most_held = self.peak_bytes.saturating_add(self.peak_bytes / SLACK);
        let most_free = self.peak_bytes.min(most_held.saturating_sub(self.live_bytes));
        let mut count = 0;
        while self.free_bytes > most_free || self.free.len() - count > MOST_FREE {
            self.free_bytes -= self.free[count].bytes.len();
            count += 1;
        }
        self.free.drain(..count).collect()
    }
}

/// New zeroed memory that starts at a multiple of [`ALIGNMENT`].
pub(crate) fn aligned(len: usize) -> Result<BytesMut> {
    aligned_to(ALIGNMENT, len)
}

fn none_left(len: usize) -> Error {
    let message = format!("the system has no {len} bytes of memory for a batch");
    Error::new(ErrorKind::LimitExceeded, message)
}

fn aligned_to(alignment: usize, len: usize) -> Result<BytesMut> {
    let with_slack = len.checked_add(alignment - 1).ok_or_else(|| none_left(len))?;
    // Zeroed memory can only be asked for by a call that aborts where there is none; so ask first,
    // which touches nothing.
    Vec::<u8>::new().try_reserve_exact(with_slack).map_err(|_| none_left(len))?;
    let mut bytes = BytesMut::zeroed(with_slack);
    let skip = bytes.as_ptr().align_offset(alignment);
    bytes.advance(skip);
    bytes.truncate(len);
    Ok(bytes)
}

/// The right to use `len` bytes of a pool; dropping it ends the count.
struct PoolLoan {
    /// `None` only once it has ended.
    pool: Option<Arc<PoolShared>>,
    len: usize,
    pin: Option<Pin>,
}

impl PoolLoan {
    /// Ends the count, and gives the memory back where it is still whole. Else lets go of it.
    fn end(&mut self, bytes: BytesMut) {
        if let Some(pool) = self.pool.take() {
            let memory = PinnedBytes { pin: self.pin.take(), bytes };
            let whole = (memory.bytes.len() == self.len).then_some(memory);
            let surplus = pool.books.lock().give_back(self.len, whole);
            drop(surplus);
        }
    }
}

impl Drop for PoolLoan {
    fn drop(&mut self) {
        self.end(BytesMut::new());
    }
}

/// Host memory that returns to its pool when dropped. Aligned to [`ALIGNMENT`] bytes.
pub struct HostBuffer {
    bytes: BytesMut,
    /// `None` only once the rows have taken it.
    lease: Option<PoolLoan>,
}

impl HostBuffer {
    /// Cuts the buffer into `count` rows of `row_len` bytes, which can be owned, and written, by
    /// different threads.
    pub(crate) fn into_rows(mut self, count: usize, row_len: usize) -> RowBuffer {
        let mut rest = std::mem::take(&mut self.bytes);
        let rows = (0..count).map(|_| Some(rest.split_to(row_len))).collect();
        RowBuffer { lease: self.lease.take(), rows, rest }
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
        if let Some(lease) = &mut self.lease {
            lease.end(std::mem::take(&mut self.bytes));
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
    /// First, since memory is let go before it is freed.
    lease: Option<PoolLoan>,
    rows: Vec<Option<BytesMut>>,
    rest: BytesMut,
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

    /// Joins the rows again, without copying. `None` where one of the first `needed` is still away;
    /// where one behind them is, the buffer ends in front of that, and is not used again.
    pub(crate) fn into_buffer(mut self, needed: usize) -> Option<HostBuffer> {
        let mut whole = BytesMut::new();
        for (at, row) in self.rows.drain(..).enumerate() {
            match row {
                // Neighbours of one allocation: `unsplit` only moves the end of the first.
                Some(row) => whole.unsplit(row),
                None if at < needed => {
                    drop(self.lease.take());
                    return None;
                }
                None => return Some(HostBuffer { bytes: whole, lease: self.lease.take() }),
            }
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
        let buffer = rows.into_buffer(4).unwrap();
        assert_eq!(buffer.as_ptr(), address);
        assert!(buffer.chunks(100).enumerate().all(|(n, row)| row.iter().all(|&b| b == n as u8)));
    }

    #[test]
    fn a_dropped_buffer_is_used_again() {
        let pool = BufferPool::new();
        let first = pool.take(1000).unwrap();
        let address = first.as_ptr();
        assert_eq!(pool.statistics().live_bytes, 1000);
        drop(first.into_rows(10, 100).into_buffer(0).unwrap());
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
        assert!(rows.into_buffer(1).is_none());
        drop(lost);
        assert_eq!(pool.statistics().live_bytes, 0);
        assert_eq!(pool.statistics().free_bytes, 0);
    }

    #[test]
    fn the_rows_in_front_of_one_that_is_away_are_a_buffer_of_their_own() {
        let pool = BufferPool::new();
        let mut rows = pool.take(100).unwrap().into_rows(4, 25);
        rows.row_mut(1).unwrap().fill(7);
        let away = rows.lend(2);
        let front = rows.into_buffer(2).unwrap();
        assert_eq!(front.len(), 50);
        assert!(front[25..].iter().all(|&byte| byte == 7));
        assert_eq!(pool.statistics().live_bytes, 100, "its memory is that of all four");
        drop((front, away));
        assert_eq!(pool.statistics().live_bytes, 0);
        assert_eq!(pool.statistics().free_bytes, 0);
    }

    #[test]
    fn free_buffers_are_counted() {
        let pool = BufferPool::new();
        let buffers = [pool.take(100).unwrap(), pool.take(200).unwrap()];
        assert_eq!(pool.statistics().free_bytes, 0);
        drop(buffers);
        assert_eq!(pool.statistics().free_bytes, 300);
        let _again = pool.take(200).unwrap();
        let statistics = pool.statistics();
        assert_eq!((statistics.free_bytes, statistics.live_bytes), (100, 200));
        assert_eq!(statistics.allocations, 2);
    }

    #[test]
    fn a_pool_keeps_no_more_than_was_in_use_at_its_peak() {
        let pool = BufferPool::new();
        for len in 1000..1100 {
            drop(pool.take(len).unwrap());
            let PoolStatistics { free_bytes, peak_bytes, .. } = pool.statistics();
            assert_eq!((free_bytes, peak_bytes), (len, len), "one at a time was in use");
        }
        let two = [pool.take(1099).unwrap(), pool.take(600).unwrap()];
        drop(two);
        assert_eq!(pool.statistics().free_bytes, 1699);
        // No room for a new one of 800 beside both: the older one, of 600 bytes, was dropped last.
        let _other = pool.take(800).unwrap();
        assert_eq!(pool.statistics().free_bytes, 600);
    }

    #[test]
    fn the_slack_is_for_buffers_in_use_only() {
        let pool = BufferPool::new();
        drop([pool.take(800).unwrap(), pool.take(800).unwrap()]);
        let small = pool.take(50).unwrap();
        assert_eq!(pool.statistics().free_bytes, 1600);
        drop(small);
        assert_eq!(pool.statistics().free_bytes, 850);
    }

    #[test]
    fn a_few_small_buffers_more_do_not_cost_a_large_one() {
        let pool = BufferPool::new();
        let large = pool.take(100_000).unwrap();
        drop(large);
        let _small = [10; 5].map(|len| pool.take(len).unwrap());
        assert_eq!(pool.statistics().free_bytes, 100_000);
        drop(pool.take(100_000).unwrap());
        assert_eq!(pool.statistics().allocations, 6);
    }

    #[test]
    fn the_oldest_of_too_many_free_buffers_go_first() {
        let pool = BufferPool::new();
        let buffers: Vec<_> = (1..=70).map(|len| pool.take(len).unwrap()).collect();
        drop(buffers);
        let statistics = pool.statistics();
        assert_eq!(statistics.free_bytes, (7..=70).sum::<usize>(), "the last 64 of them");
        drop(pool.take(7).unwrap());
        assert_eq!(pool.statistics().allocations, 70);
        drop(pool.take(6).unwrap());
        assert_eq!(pool.statistics().allocations, 71);
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error() {
        let pool = BufferPool::new();
        for len in [usize::MAX, isize::MAX as usize, 1 << 60] {
            assert_eq!(pool.take(len).unwrap_err().kind(), ErrorKind::LimitExceeded);
        }
        assert_eq!(pool.statistics(), PoolStatistics::default());
    }

    /// What is pinned, as address and length.
    #[derive(Clone, Debug, Default)]
    struct PinLedger(Arc<Mutex<Vec<(usize, usize)>>>);

    struct PinnedRange(PinLedger, (usize, usize));

    impl PinMemory for PinLedger {
        fn pin(&self, memory: &mut [u8]) -> Result<Pin> {
            let place = (memory.as_ptr().addr(), memory.len());
            if place.1 > 100 * PAGE {
                return Err(Error::new(ErrorKind::LimitExceeded, "too much is locked"));
            }
            self.0.lock().push(place);
            Ok(Box::new(PinnedRange(self.clone(), place)))
        }
    }

    impl Drop for PinnedRange {
        fn drop(&mut self) {
            self.0.0.lock().retain(|place| *place != self.1);
        }
    }

    #[test]
    fn whole_pages_are_pinned_once_for_each_allocation_until_the_pool_frees_them() {
        let ledger = PinLedger::default();
        let pool = BufferPool::pinned(Arc::new(ledger.clone()));
        let buffer = pool.take(PAGE + 1).unwrap();
        let address = buffer.as_ptr().addr();
        assert_eq!(buffer.len(), PAGE + 1);
        assert_eq!(address % PAGE, 0);
        assert_eq!(*ledger.0.lock(), [(address, 2 * PAGE)]);
        drop(buffer);
        let again = pool.take(PAGE + 1).unwrap();
        assert_eq!(again.as_ptr().addr(), address);
        assert_eq!(ledger.0.lock().len(), 1, "a buffer that waits to be used again stays pinned");
        assert!(pool.take(0).unwrap().is_empty());
        assert_eq!(pool.take(101 * PAGE).unwrap_err().kind(), ErrorKind::LimitExceeded);
        assert_eq!(pool.statistics().live_bytes, PAGE + 1);
        drop(again);
        drop(pool);
        assert!(ledger.0.lock().is_empty());
    }

    #[test]
    fn a_pinned_buffer_that_lost_a_row_is_let_go_before_that_row_is_freed() {
        let ledger = PinLedger::default();
        let pool = BufferPool::pinned(Arc::new(ledger.clone()));
        let mut rows = pool.take(100).unwrap().into_rows(2, 50);
        let lost = rows.lend(1);
        let short = rows.into_buffer(1).unwrap();
        assert_eq!(ledger.0.lock().len(), 1, "what is in front of the lost row is still used");
        drop(short);
        assert!(ledger.0.lock().is_empty());
        drop(lost);
        let mut rows = pool.take(100).unwrap().into_rows(2, 50);
        let lost = rows.lend(0);
        assert!(rows.into_buffer(1).is_none());
        assert!(ledger.0.lock().is_empty());
        drop(lost);
        assert_eq!(pool.statistics().live_bytes, 0);
    }
}
