//! A pool of device memory: after the first batches, a pipeline allocates no device memory.
//!
//! A slab (block of device memory) returns to the pool when its last owner drops it, even if
//! kernels of a consumer still read it. The slab then holds events recorded after those kernels,
//! and the next write waits for the events on the device. The host waits for these events only if
//! device memory is exhausted.
//!
//! If all slabs have one size and no call fails, the number of slabs in the pool, used and free,
//! never exceeds the peak number in use. If sizes change, the pool frees idle slabs, so that it holds
//! no more than the peak number of bytes in use and two slabs of the largest size.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spdl_core::{ErrorKind, Result};

use super::context::Context;
use super::event::Event;
use crate::driver::{DeviceAddress, MemoryHandle, StreamHandle};

/// Slab sizes are multiples of this number of bytes, or of a larger power of two that is at most an
/// eighth of the size. So batches of nearly the same size can use the same slabs.
const GRANULE: usize = 512;

/// Number of requests after which [`SizeEstimator`] may choose a smaller size.
const ESTIMATION_WINDOW: u32 = 64;

/// If sizes change, the pool may hold this number of slabs of the largest size in addition to the
/// peak number of bytes in use. With none, batches of three alternating sizes reused no slab.
const SPARE_SLABS: usize = 2;

/// A request is served by a free slab of up to this number of times the requested size.
const MAX_OVERSIZE: usize = 2;

/// A block of device memory.
pub(crate) struct Slab {
    pub(crate) memory: MemoryHandle,
    /// The allocator that owns the memory; `None` for the driver.
    allocator: Option<Arc<dyn DeviceAllocator>>,
    /// An event that completes after the last write, and the stream that wrote to the slab.
    written: Option<(Arc<Event>, usize)>,
    /// Events that complete after all other uses.
    pub(crate) uses: Vec<Arc<Event>>,
    /// Whether one of `uses` is also ordered after the last write.
    pub(crate) is_behind_writer: bool,
}

/// The slabs of a device.
pub(crate) struct SlabPool {
    context: Arc<Context>,
    state: Mutex<PoolState>,
    /// A lock that is held while unused slabs are freed: concurrent requests wait for the freed
    /// memory.
    freeing: Mutex<()>,
}

#[derive(Default)]
struct PoolState {
    /// The free slabs, in the order in which they were recycled.
    free: VecDeque<Slab>,
    /// Slabs that a stream may still use, and for which no event exists that completes when the use
    /// ends.
    withheld: Vec<Slab>,
    free_bytes: usize,
    live_bytes: usize,
    peak_bytes: usize,
    /// The size of the largest slab so far.
    largest: usize,
    allocations: usize,
    allocator: Option<Arc<dyn DeviceAllocator>>,
}

/// A source of device memory that replaces the driver, such as the allocator of a training
/// framework.
///
/// The pool calls the allocator only if it has no free slab that fits, not for every
/// batch. [`free`](DeviceAllocator::free) must not wait for a thread that uploads batches.
///
/// # Safety
/// The memory that [`allocate`](DeviceAllocator::allocate) returns is device memory of at least the
/// requested size, aligned to 256 bytes, and not used by any other code until it is freed.
pub unsafe trait DeviceAllocator: fmt::Debug + Send + Sync + 'static {
    /// Allocates `bytes` bytes and returns their address.
    ///
    /// # Errors
    /// `LimitExceeded` if the memory is exhausted. The pool then frees its unused slabs and calls
    /// `allocate` once more.
    fn allocate(&self, bytes: usize) -> Result<u64>;

    /// Frees memory. The caller guarantees that all work that uses the memory has completed.
    fn free(&self, address: u64, bytes: usize);
}

/// Statistics of the device memory pool.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlabStatistics {
    /// Bytes of slabs in use.
    pub live_bytes: usize,
    /// The highest value of `live_bytes` so far.
    pub peak_bytes: usize,
    /// Bytes that are free for reuse.
    pub free_bytes: usize,
    /// Bytes of slabs that are not reused, because streams may use them for an unknown time. If
    /// device memory is exhausted, the pool waits for all work of the device and then frees these
    /// slabs.
    pub withheld_bytes: usize,
    /// Number of allocations.
    pub allocations: usize,
}

impl SlabPool {
    pub(crate) fn new(context: &Arc<Context>) -> SlabPool {
        SlabPool {
            context: Arc::clone(context),
            state: Mutex::default(),
            freeing: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses `allocator` for all further allocations.
    pub(crate) fn set_allocator(&self, allocator: Arc<dyn DeviceAllocator>) {
        self.state().allocator = Some(allocator);
    }

    /// Returns a slab of at least `bytes` bytes. Before a stream writes to the slab, it must wait
    /// for the events of [`pending_for`](Slab::pending_for).
    pub(crate) fn take(&self, bytes: usize) -> Result<Slab> {
        let size = slab_size(bytes);
        if let Some(slab) = self.state().reuse(size) {
            return Ok(slab);
        }
        let slab = self.allocate(size)?;
        self.state().record_allocation(size);
        self.free_surplus();
        Ok(slab)
    }

    fn allocate(&self, size: usize) -> Result<Slab> {
        let first = self.allocate_once(size);
        let is_full = first.as_ref().is_err_and(|error| error.kind() == ErrorKind::LimitExceeded);
        if !is_full {
            return first;
        }
        self.free_unused();
        // Retry even if this call freed nothing: another thread may have freed memory.
        self.allocate_once(size)
    }

    /// Frees all slabs that are not in use, because none of them fits the current request.
    fn free_unused(&self) {
        let _one_thread = self.freeing.lock().unwrap_or_else(PoisonError::into_inner);
        // The slabs are removed before the wait: slabs that are recycled during the wait may be in
        // use after it.
        let (free, withheld) = self.state().take_unused();
        if free.is_empty() && withheld.is_empty() {
            return;
        }
        if self.context.synchronize() {
            // All work has completed, so no stream uses even the slabs of unknown use.
            free.into_iter().chain(withheld).for_each(|slab| self.free(slab));
        } else {
            self.state().restore(free, withheld);
        }
    }

    fn allocate_once(&self, size: usize) -> Result<Slab> {
        let allocator = self.state().allocator.clone();
        let memory = match &allocator {
            Some(allocator) => {
                let address = DeviceAddress(allocator.allocate(size)?);
                MemoryHandle { address, bytes: size }
            }
            None => {
                let doing = format!("allocate {size} bytes of device memory");
                self.context.run(&doing, |driver| driver.allocate(size))?
            }
        };
        Ok(Slab { memory, allocator, written: None, uses: Vec::new(), is_behind_writer: false })
    }

    /// Makes a slab available for reuse. Its `uses` must be ordered after all work on it.
    pub(crate) fn recycle(&self, slab: Slab) {
        self.state().recycle(slab);
        self.free_surplus();
    }

    /// Recycles a slab after a failed call if all its uses are known and can be waited for;
    /// otherwise excludes the slab from reuse. If a wait fails now (for example, for the event of a stream under capture), the
    /// same wait would also fail for the next batch.
    pub(crate) fn recycle_after_failure(&self, slab: Slab, uses_are_known: bool) {
        if uses_are_known {
            self.recycle(slab);
        } else {
            self.withhold(slab);
        }
    }

    /// Excludes a slab from reuse, because a stream may use it for an unknown time.
    pub(crate) fn withhold(&self, slab: Slab) {
        let mut state = self.state();
        state.live_bytes -= slab.memory.bytes;
        state.withheld.push(slab);
    }

    pub(crate) fn statistics(&self) -> SlabStatistics {
        let state = self.state();
        SlabStatistics {
            live_bytes: state.live_bytes,
            peak_bytes: state.peak_bytes,
            free_bytes: state.free_bytes,
            withheld_bytes: state.withheld.iter().map(|slab| slab.memory.bytes).sum(),
            allocations: state.allocations,
        }
    }

    /// Frees idle slabs until the pool holds no more than its limit.
    fn free_surplus(&self) {
        loop {
            let mut state = self.state();
            let surplus = state.surplus();
            drop(state);
            match surplus {
                Some(slab) => self.free(slab),
                None => return,
            }
        }
    }

    /// Frees an idle slab.
    fn free(&self, slab: Slab) {
        match slab.allocator {
            Some(allocator) => allocator.free(slab.memory.address.0, slab.memory.bytes),
            // SAFETY: all work on the slab has completed.
            None => self.context.release(|driver| unsafe { driver.free(slab.memory) }),
        }
    }
}

impl PoolState {
    fn reuse(&mut self, size: usize) -> Option<Slab> {
        let sizes = self.free.iter().map(|slab| slab.memory.bytes).enumerate();
        let fitting = size..=size.saturating_mul(MAX_OVERSIZE);
        // Of several slabs of the best size, the one that was recycled first.
        let (at, bytes) =
            sizes.filter(|(_, bytes)| fitting.contains(bytes)).min_by_key(|(_, bytes)| *bytes)?;
        let slab = self.free.remove(at)?;
        self.free_bytes -= bytes;
        self.record_use(bytes);
        Some(slab)
    }

    fn record_allocation(&mut self, size: usize) {
        self.allocations += 1;
        self.record_use(size);
    }

    fn record_use(&mut self, size: usize) {
        self.live_bytes += size;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        self.largest = self.largest.max(size);
    }

    fn recycle(&mut self, slab: Slab) {
        self.live_bytes -= slab.memory.bytes;
        self.free_bytes += slab.memory.bytes;
        self.free.push_back(slab);
    }

    /// Removes and returns the free slabs and the slabs of unknown use.
    fn take_unused(&mut self) -> (VecDeque<Slab>, Vec<Slab>) {
        self.free_bytes = 0;
        (std::mem::take(&mut self.free), std::mem::take(&mut self.withheld))
    }

    fn restore(&mut self, mut free: VecDeque<Slab>, withheld: Vec<Slab>) {
        self.free_bytes += free.iter().map(|slab| slab.memory.bytes).sum::<usize>();
        // Slabs that were recycled in the meantime are newer.
        free.append(&mut self.free);
        self.free = free;
        self.withheld.extend(withheld);
    }

    /// Removes an idle slab, if the free slabs exceed the limit.
    fn surplus(&mut self) -> Option<Slab> {
        let spare = self.largest.saturating_mul(SPARE_SLABS);
        let max_held = self.peak_bytes.saturating_add(spare);
        if self.free_bytes <= max_held.saturating_sub(self.live_bytes) {
            return None;
        }
        let at = self.free.iter().position(Slab::is_idle)?;
        let slab = self.free.remove(at)?;
        self.free_bytes -= slab.memory.bytes;
        Some(slab)
    }
}

impl Slab {
    /// The events that `stream` must wait for before it writes.
    pub(crate) fn pending_for(&self, stream: &StreamHandle) -> impl Iterator<Item = &Arc<Event>> {
        // A use that is ordered after the last write makes a wait for the write unnecessary. Work
        // of one stream is always in order.
        let written =
            self.written.iter().filter(|(_, by)| !self.is_behind_writer && *by != stream.0);
        self.uses.iter().chain(written.map(|(event, _)| event))
    }

    /// Records that `stream` writes until `written` completes. The stream must have waited for all
    /// earlier uses.
    pub(crate) fn record_write(&mut self, stream: &StreamHandle, written: &Arc<Event>) {
        self.uses.clear();
        self.is_behind_writer = false;
        self.written = Some((Arc::clone(written), stream.0));
    }

    /// Whether all work on the slab has completed.
    fn is_idle(&self) -> bool {
        let mut events = self.written.iter().map(|(event, _)| event).chain(&self.uses);
        events.all(|event| event.is_complete().unwrap_or(false))
    }
}

/// Chooses slab sizes for requests of varying sizes, so that a few sizes serve all requests.
#[derive(Debug, Default)]
pub(crate) struct SizeEstimator {
    bytes: usize,
    /// The size of the largest request in the current window, and the number of requests in it.
    largest: usize,
    requests: u32,
}

impl SizeEstimator {
    /// The number of bytes to allocate for a request of `bytes`.
    pub(crate) fn size_for(&mut self, bytes: usize) -> usize {
        if bytes > self.bytes {
            // The slab has room for a next request that is a little larger.
            self.bytes = bytes.saturating_add(bytes / 8);
        }
        let size = self.bytes;
        self.largest = self.largest.max(bytes);
        self.requests += 1;
        if self.requests == ESTIMATION_WINDOW {
            // The size is reduced after a while, so that a single outlier does not determine it
            // forever.
            if self.largest < self.bytes / 2 {
                self.bytes = self.largest.saturating_add(self.largest / 8);
            }
            (self.largest, self.requests) = (0, 0);
        }
        size
    }
}

/// Rounds a size up, so that few slab sizes occur.
pub(crate) fn slab_size(bytes: usize) -> usize {
    let granule =
        (bytes / 16).checked_next_power_of_two().map_or(GRANULE, |part| part.max(GRANULE));
    bytes.max(1).checked_next_multiple_of(granule).unwrap_or(bytes)
}

impl Drop for SlabPool {
    fn drop(&mut self) {
        let state = std::mem::take(&mut *self.state());
        if state.free.is_empty() && state.withheld.is_empty() || !self.context.synchronize() {
            // If it is unknown whether the device still uses the slabs, they are leaked.
            return;
        }
        for slab in state.free.into_iter().chain(state.withheld) {
            self.free(slab);
        }
    }
}

impl fmt::Debug for SlabPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.statistics().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_by_at_most_an_eighth_or_512_bytes() {
        assert_eq!([0, 1, 512, 513].map(slab_size), [512, 512, 512, 1024]);
        for bytes in [8192, 10_000, 123_456, 38_535_168, 1 << 30, (1 << 30) + 1] {
            let size = slab_size(bytes);
            assert!(size >= bytes && size - bytes <= (bytes / 8).max(GRANULE), "{bytes}: {size}");
        }
        assert_eq!(slab_size(usize::MAX), usize::MAX);
    }

    #[test]
    fn estimated_size_is_stable_until_a_whole_window_is_small() {
        let mut estimator = SizeEstimator::default();
        let first = estimator.size_for(1000);
        assert_eq!(first, 1125);
        assert!((0..10).all(|number| estimator.size_for(900 + 20 * number) == first));
        let large = estimator.size_for(8000);
        assert_eq!(large, 9000);
        for _ in 0..2 * ESTIMATION_WINDOW {
            assert!([large, first].contains(&estimator.size_for(1000)));
        }
        assert_eq!(estimator.size_for(1000), first);
        assert!(estimator.size_for(usize::MAX) == usize::MAX);
    }
}
