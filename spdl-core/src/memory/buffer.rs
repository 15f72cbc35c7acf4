//! Host memory for batches: aligned, pooled buffers, which several threads can fill row by row.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::{Buf, BytesMut};

use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;

/// Minimum alignment of every buffer in bytes: a cache line, and enough for AVX-512.
pub const ALIGNMENT: usize = 64;

/// A pool keeps at most this many free buffers.
const MAX_FREE: usize = 64;

/// The free and used bytes of a pool may exceed the peak of its used bytes by 1 / `SLACK` of the
/// peak. Without this slack, a few additional small buffers would evict a large one.
const SLACK: usize = 16;

/// A pool of reusable host buffers.
///
/// A pipeline that needs buffers of constant size allocates none in its steady state. A dropped
/// buffer returns to its pool, except if a row lent to a worker is missing. The pool keeps at most
/// 64 free buffers, and at most as many free bytes as were in use at its peak. Free and used bytes
/// together do not exceed 17/16 of the peak. If a limit is exceeded, the pool frees the oldest free
/// buffers first.
#[derive(Clone, Default)]
pub struct BufferPool(Arc<PoolShared>);

#[derive(Default)]
struct PoolShared {
    state: Mutex<PoolState>,
    pin: Option<Arc<dyn PinMemory>>,
}

#[derive(Default)]
struct PoolState {
    /// Oldest first.
    free: Vec<PinnedBytes>,
    free_bytes: usize,
    live_bytes: usize,
    peak_bytes: usize,
    allocations: usize,
}

/// Pins (page-locks) host memory, so that a device can copy from it directly and asynchronously.
/// `spdl-cuda` implements this trait.
///
/// A [pinned pool](BufferPool::pinned) calls [`pin`](PinMemory::pin) once per allocation, not once
/// per batch.
pub trait PinMemory: fmt::Debug + Send + Sync + 'static {
    /// Pins memory until the returned value is dropped, which happens before the memory is freed.
    ///
    /// `memory` is aligned to [`PAGE`] bytes, its size is a multiple of [`PAGE`], and it contains
    /// no other data.
    ///
    /// # Errors
    /// Any error of the driver, for example because too much memory is pinned.
    fn pin(&self, memory: &mut [u8]) -> Result<Pin>;
}

/// Keeps memory pinned. Dropping it unpins the memory.
pub type Pin = Box<dyn Any + Send + Sync>;

/// Alignment of pinned buffers in bytes. The memory allocated for a pinned buffer is rounded up to
/// a multiple of `PAGE`; the length of the buffer is not.
pub const PAGE: usize = 4096;

/// Memory of a buffer. Fields are dropped in order, so the memory is unpinned before it is freed.
struct PinnedBytes {
    pin: Option<Pin>,
    bytes: BytesMut,
}

/// Usage of a buffer pool.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PoolStatistics {
    /// Bytes in buffers that are in use.
    pub live_bytes: usize,
    /// Maximum of `live_bytes` so far.
    pub peak_bytes: usize,
    /// Bytes in free buffers.
    pub free_bytes: usize,
    /// Number of buffers allocated so far.
    pub allocations: usize,
}

impl BufferPool {
    /// Creates an empty pool.
    pub fn new() -> Self {
        BufferPool::default()
    }

    /// Creates an empty pool whose buffers are pinned and aligned to [`PAGE`] bytes. Buffers of 0
    /// bytes are not pinned.
    pub fn pinned(pin: Arc<dyn PinMemory>) -> Self {
        BufferPool(Arc::new(PoolShared { pin: Some(pin), ..PoolShared::default() }))
    }

    /// Returns a buffer of `len` bytes: a free buffer of that size if the pool has one, otherwise
    /// newly allocated memory. New memory is zeroed; a reused buffer has its old content.
    ///
    /// # Errors
    /// `LimitExceeded` if the system cannot allocate the memory; the errors of [`PinMemory::pin`].
    pub fn take(&self, len: usize) -> Result<HostBuffer> {
        let reused = self.0.state.lock().reuse(len);
        let PinnedBytes { pin, bytes } = match reused {
            Some(memory) => memory,
            None => {
                let memory = self.0.allocate(len)?;
                let surplus = self.0.state.lock().allocated(len);
                drop(surplus);
                memory
            }
        };
        let loan = PoolLoan { pool: Some(Arc::clone(&self.0)), len, pin };
        Ok(HostBuffer { bytes, loan: Some(loan) })
    }

    /// Returns the usage of the pool.
    pub fn statistics(&self) -> PoolStatistics {
        let state = self.0.state.lock();
        PoolStatistics {
            live_bytes: state.live_bytes,
            peak_bytes: state.peak_bytes,
            free_bytes: state.free_bytes,
            allocations: state.allocations,
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
        let pages = len.checked_next_multiple_of(PAGE).ok_or_else(|| out_of_memory(len))?;
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

    /// Counts a new buffer. Returns the free buffers that exceed the limits of the pool.
    fn allocated(&mut self, len: usize) -> Vec<PinnedBytes> {
        self.allocations += 1;
        self.lend(len);
        self.surplus()
    }

    fn lend(&mut self, len: usize) {
        self.live_bytes += len;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }

    /// Ends a loan. `memory` is `None` if the buffer is not reusable. Returns the free buffers that
    /// exceed the limits of the pool.
    fn end_loan(&mut self, len: usize, memory: Option<PinnedBytes>) -> Vec<PinnedBytes> {
        self.live_bytes -= len;
        if let Some(memory) = memory {
            self.free_bytes += memory.bytes.len();
            self.free.push(memory);
        }
        self.surplus()
    }

    /// Removes the oldest free buffers that exceed the limits. The caller drops them outside the
    /// lock.
    fn surplus(&mut self) -> Vec<PinnedBytes> {
        let max_held = self.peak_bytes.saturating_add(self.peak_bytes / SLACK);
        let max_free = self.peak_bytes.min(max_held.saturating_sub(self.live_bytes));
        let mut count = 0;
        while self.free_bytes > max_free || self.free.len() - count > MAX_FREE {
            self.free_bytes -= self.free[count].bytes.len();
            count += 1;
        }
        self.free.drain(..count).collect()
    }
}

/// Allocates zeroed memory aligned to [`ALIGNMENT`] bytes.
pub(crate) fn aligned(len: usize) -> Result<BytesMut> {
    aligned_to(ALIGNMENT, len)
}

fn out_of_memory(len: usize) -> Error {
    let message = format!("cannot allocate {len} bytes for a batch: out of memory");
    Error::new(ErrorKind::LimitExceeded, message)
}

fn aligned_to(alignment: usize, len: usize) -> Result<BytesMut> {
    let with_slack = len.checked_add(alignment - 1).ok_or_else(|| out_of_memory(len))?;
    // `BytesMut::zeroed` aborts if the allocation fails, so a large allocation of equal size is tested
    // first. The test allocation writes to no page.
    if with_slack > PAGE {
        Vec::<u8>::new().try_reserve_exact(with_slack).map_err(|_| out_of_memory(len))?;
    }
    let mut bytes = BytesMut::zeroed(with_slack);
    let skip = bytes.as_ptr().align_offset(alignment);
    bytes.advance(skip);
    bytes.truncate(len);
    Ok(bytes)
}

/// A loan of `len` bytes, which the pool counts as in use until the loan ends or is dropped.
struct PoolLoan {
    /// `None` only after the loan has ended.
    pool: Option<Arc<PoolShared>>,
    len: usize,
    pin: Option<Pin>,
}

impl PoolLoan {
    /// Ends the loan. Returns the memory to the pool if it is complete; otherwise frees it.
    fn end(&mut self, bytes: BytesMut) {
        if let Some(pool) = self.pool.take() {
            let memory = PinnedBytes { pin: self.pin.take(), bytes };
            let whole = (memory.bytes.len() == self.len).then_some(memory);
            let surplus = pool.state.lock().end_loan(self.len, whole);
            drop(surplus);
        }
    }
}

impl Drop for PoolLoan {
    fn drop(&mut self) {
        self.end(BytesMut::new());
    }
}

/// Host memory, aligned to [`ALIGNMENT`] bytes, that returns to its pool when dropped.
pub struct HostBuffer {
    bytes: BytesMut,
    /// `None` after `into_rows`, and for memory that belongs to no pool.
    loan: Option<PoolLoan>,
}

impl HostBuffer {
    /// Memory that belongs to no pool.
    pub(crate) fn unpooled(bytes: BytesMut) -> Self {
        HostBuffer { bytes, loan: None }
    }

    /// Splits the buffer into `count` rows of `row_len` bytes, which different threads can own and
    /// write.
    pub(crate) fn into_rows(mut self, count: usize, row_len: usize) -> RowBuffer {
        let mut rest = std::mem::take(&mut self.bytes);
        let rows = (0..count).map(|_| Some(rest.split_to(row_len))).collect();
        RowBuffer { loan: self.loan.take(), rows, rest }
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
        if let Some(loan) = &mut self.loan {
            loan.end(std::mem::take(&mut self.bytes));
        }
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({} bytes)", self.bytes.len())
    }
}

/// A buffer split into rows. A row is absent while a worker writes it.
pub(crate) struct RowBuffer {
    /// The first field is dropped first, so the memory is unpinned before it is freed.
    loan: Option<PoolLoan>,
    rows: Vec<Option<BytesMut>>,
    rest: BytesMut,
}

impl RowBuffer {
    pub(crate) fn lend(&mut self, row: usize) -> Option<BytesMut> {
        self.rows[row].take()
    }

    pub(crate) fn return_row(&mut self, row: usize, bytes: BytesMut) {
        self.rows[row] = Some(bytes);
    }

    pub(crate) fn row_mut(&mut self, row: usize) -> Option<&mut BytesMut> {
        self.rows[row].as_mut()
    }

    /// Joins the rows without copying. Returns `None` if one of the first `needed` rows is absent.
    /// If a later row is absent, the buffer ends before it and is not reused.
    pub(crate) fn into_buffer(mut self, needed: usize) -> Option<HostBuffer> {
        let mut whole = BytesMut::new();
        for (at, row) in self.rows.drain(..).enumerate() {
            match row {
                // The rows are adjacent in one allocation, so `unsplit` does not copy.
                Some(row) => whole.unsplit(row),
                None if at < needed => {
                    drop(self.loan.take());
                    return None;
                }
                None => return Some(HostBuffer { bytes: whole, loan: self.loan.take() }),
            }
        }
        whole.unsplit(self.rest);
        Some(HostBuffer { bytes: whole, loan: self.loan.take() })
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
    fn rows_are_written_by_threads_and_joined_without_a_copy() {
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
            rows.return_row(row, writer.join().unwrap());
        }
        let buffer = rows.into_buffer(4).unwrap();
        assert_eq!(buffer.as_ptr(), address);
        assert!(buffer.chunks(100).enumerate().all(|(n, row)| row.iter().all(|&b| b == n as u8)));
    }

    #[test]
    fn a_dropped_buffer_is_reused() {
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
    fn the_rows_before_an_absent_row_form_a_buffer() {
        let pool = BufferPool::new();
        let mut rows = pool.take(100).unwrap().into_rows(4, 25);
        rows.row_mut(1).unwrap().fill(7);
        let absent = rows.lend(2);
        let front = rows.into_buffer(2).unwrap();
        assert_eq!(front.len(), 50);
        assert!(front[25..].iter().all(|&byte| byte == 7));
        assert_eq!(pool.statistics().live_bytes, 100, "the loan covers all four rows");
        drop((front, absent));
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
    fn free_bytes_do_not_exceed_the_peak() {
        let pool = BufferPool::new();
        for len in 1000..1100 {
            drop(pool.take(len).unwrap());
            let PoolStatistics { free_bytes, peak_bytes, .. } = pool.statistics();
            assert_eq!((free_bytes, peak_bytes), (len, len), "one buffer at a time was in use");
        }
        let two = [pool.take(1099).unwrap(), pool.take(600).unwrap()];
        drop(two);
        assert_eq!(pool.statistics().free_bytes, 1699);
        // A new buffer of 800 bytes exceeds the limit with both free ones. The buffer of 600 bytes
        // was dropped last, so it is kept.
        let _other = pool.take(800).unwrap();
        assert_eq!(pool.statistics().free_bytes, 600);
    }

    #[test]
    fn the_slack_applies_only_to_buffers_in_use() {
        let pool = BufferPool::new();
        drop([pool.take(800).unwrap(), pool.take(800).unwrap()]);
        let small = pool.take(50).unwrap();
        assert_eq!(pool.statistics().free_bytes, 1600);
        drop(small);
        assert_eq!(pool.statistics().free_bytes, 850);
    }

    #[test]
    fn a_few_extra_small_buffers_do_not_evict_a_large_one() {
        let pool = BufferPool::new();
        let large = pool.take(100_000).unwrap();
        drop(large);
        let _small = [10; 5].map(|len| pool.take(len).unwrap());
        assert_eq!(pool.statistics().free_bytes, 100_000);
        drop(pool.take(100_000).unwrap());
        assert_eq!(pool.statistics().allocations, 6);
    }

    #[test]
    fn the_oldest_excess_buffers_are_freed_first() {
        let pool = BufferPool::new();
        let buffers: Vec<_> = (1..=70).map(|len| pool.take(len).unwrap()).collect();
        drop(buffers);
        let statistics = pool.statistics();
        assert_eq!(statistics.free_bytes, (7..=70).sum::<usize>(), "the last 64 buffers");
        drop(pool.take(7).unwrap());
        assert_eq!(pool.statistics().allocations, 70);
        drop(pool.take(6).unwrap());
        assert_eq!(pool.statistics().allocations, 71);
    }

    #[test]
    fn a_failed_allocation_is_an_error() {
        let pool = BufferPool::new();
        for len in [usize::MAX, isize::MAX as usize, 1 << 60] {
            assert_eq!(pool.take(len).unwrap_err().kind(), ErrorKind::LimitExceeded);
        }
        assert_eq!(pool.statistics(), PoolStatistics::default());
    }

    /// Pinned ranges, as address and length.
    #[derive(Clone, Debug, Default)]
    struct PinLedger(Arc<Mutex<Vec<(usize, usize)>>>);

    struct PinnedRange(PinLedger, (usize, usize));

    impl PinMemory for PinLedger {
        fn pin(&self, memory: &mut [u8]) -> Result<Pin> {
            let place = (memory.as_ptr().addr(), memory.len());
            if place.1 > 100 * PAGE {
                return Err(Error::new(ErrorKind::LimitExceeded, "too much memory is pinned"));
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
    fn whole_pages_are_pinned_once_per_allocation_until_freed() {
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
        assert_eq!(ledger.0.lock().len(), 1, "a free buffer stays pinned");
        assert!(pool.take(0).unwrap().is_empty());
        assert_eq!(pool.take(101 * PAGE).unwrap_err().kind(), ErrorKind::LimitExceeded);
        assert_eq!(pool.statistics().live_bytes, PAGE + 1);
        drop(again);
        drop(pool);
        assert!(ledger.0.lock().is_empty());
    }

    #[test]
    fn a_pinned_buffer_is_unpinned_before_a_lost_row_is_freed() {
        let ledger = PinLedger::default();
        let pool = BufferPool::pinned(Arc::new(ledger.clone()));
        let mut rows = pool.take(100).unwrap().into_rows(2, 50);
        let lost = rows.lend(1);
        let short = rows.into_buffer(1).unwrap();
        assert_eq!(ledger.0.lock().len(), 1, "the rows before the lost one are still used");
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
