//! Memory of the device, used over and over: in its steady state a pipeline allocates nothing.
//!
//! A slab that a consumer lets go of is free at once, though the consumer's kernels may still read
//! it: it carries the events behind them, and the next copy into it is put behind those. Nobody
//! waits on the host for that. So there are never more slabs than were held at once.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::context::Context;
use super::event::Event;
use crate::driver::{DeviceAddress, MemoryHandle, StreamHandle};
use spdl_core::{ErrorKind, Result};

/// Sizes are rounded up to multiples of this, or of a power of two that is an eighth of them at most:
/// batches of nearly the same size share slabs.
const GRANULE: usize = 512;

/// After how many pieces it is seen whether all were small.
const LATELY: u32 = 64;

/// By how much of its peak a pool may hold more than that, where sizes change: one part in this.
const SLACK: usize = 16;

/// A piece of the device's memory.
pub(crate) struct Slab {
    pub(crate) memory: MemoryHandle,
    /// Where it goes back to, where that is not the driver.
    allocator: Option<Arc<dyn DeviceAllocator>>,
    /// Behind what wrote to it last, and the stream that did.
    written: Option<(Arc<Event>, usize)>,
    /// Behind all else that uses it.
    pub(crate) uses: Vec<Arc<Event>>,
    /// Whether one of `uses` is behind what wrote to it, too.
    pub(crate) is_behind_writer: bool,
}

/// The slabs of a device.
pub(crate) struct Slabs {
    context: Arc<Context>,
    books: Mutex<Books>,
    /// Held by who makes room: what he has taken out of the books to free it, others wait for.
    making_room: Mutex<()>,
}

#[derive(Default)]
struct Books {
    /// Those longest free first.
    free: VecDeque<Slab>,
    /// Those of which nobody knows who uses them.
    unsure: Vec<Slab>,
    free_bytes: usize,
    live_bytes: usize,
    peak_bytes: usize,
    allocations: usize,
    allocator: Option<Arc<dyn DeviceAllocator>>,
}

/// Where the memory of a device comes from, in place of the driver: the allocator of a training
/// framework, which then knows of it.
///
/// It is asked where the device's own slabs do not do, which is seldom: not for every batch. While it
/// frees, it must not wait for a thread that sends batches to the device.
///
/// # Safety
/// What [`allocate`](DeviceAllocator::allocate) returns is memory of the device, at least as long as
/// was asked for and aligned to 256 bytes, and nobody else uses it until it is freed.
pub unsafe trait DeviceAllocator: fmt::Debug + Send + Sync + 'static {
    /// So many bytes, by their address.
    ///
    /// # Errors
    /// `LimitExceeded` where there are none left. Slabs that are not in use are freed then, and it is
    /// asked once more.
    fn allocate(&self, bytes: usize) -> Result<u64>;

    /// Takes them back. All work with them is done.
    fn free(&self, address: u64, bytes: usize);
}

/// What slabs there are.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlabStatistics {
    /// Bytes in batches that somebody holds.
    pub live_bytes: usize,
    /// The most that were held at once.
    pub peak_bytes: usize,
    /// Bytes that wait to be used again.
    pub free_bytes: usize,
    /// Bytes that are not used again, since it could not be told who still uses them. Where the device
    /// is full and all its work is done, they are freed.
    pub unsure_bytes: usize,
    /// How often memory was allocated.
    pub allocations: usize,
}

impl Slabs {
    pub(crate) fn new(context: &Arc<Context>) -> Slabs {
        Slabs {
            context: Arc::clone(context),
            books: Mutex::default(),
            making_room: Mutex::default(),
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes memory from `allocator` from now on.
    pub(crate) fn set_allocator(&self, allocator: Arc<dyn DeviceAllocator>) {
        self.books().allocator = Some(allocator);
    }

    /// A slab of at least `bytes`. Who writes to it first waits for what is
    /// [under way](Slab::under_way) in it.
    pub(crate) fn take(&self, bytes: usize) -> Result<Slab> {
        let size = size_for(bytes);
        if let Some(slab) = self.books().reuse(size) {
            return Ok(slab);
        }
        let slab = self.allocate(size)?;
        self.books().allocated(size);
        self.free_surplus();
        Ok(slab)
    }

    fn allocate(&self, size: usize) -> Result<Slab> {
        let first = self.allocate_once(size);
        let is_full = first.as_ref().is_err_and(|error| error.kind() == ErrorKind::LimitExceeded);
        if !is_full {
            return first;
        }
        self.make_room();
        // Also where there was nothing to free here: somebody else may have made room meanwhile.
        self.allocate_once(size)
    }

    /// Frees all slabs that nobody holds: those of other sizes are of no use now.
    fn make_room(&self) {
        let _one_at_a_time = self.making_room.lock().unwrap_or_else(PoisonError::into_inner);
        // They are taken first: what is given back while the device settles may be in use behind that.
        let (free, unsure) = self.books().take_unheld();
        if free.is_empty() && unsure.is_empty() {
            return;
        }
        if self.context.settle() {
            // All work is done, so that nobody uses them, also those of which nobody knew.
            free.into_iter().chain(unsure).for_each(|slab| self.free(slab));
        } else {
            self.books().put_back(free, unsure);
        }
    }

    fn allocate_once(&self, size: usize) -> Result<Slab> {
        let allocator = self.books().allocator.clone();
        let memory = match &allocator {
            Some(allocator) => {
                let address = DeviceAddress(allocator.allocate(size)?);
                MemoryHandle { address, bytes: size }
            }
            None => {
                let doing = format!("take {size} bytes of the device's memory");
                self.context.run(&doing, |driver| driver.allocate(size))?
            }
        };
        Ok(Slab { memory, allocator, written: None, uses: Vec::new(), is_behind_writer: false })
    }

    /// Takes a slab back. Its `uses` are behind all that uses it.
    pub(crate) fn give_back(&self, slab: Slab) {
        self.books().give_back(slab);
        self.free_surplus();
    }

    /// Takes back a slab that work was to be done with, after a failure. It is used again only where all
    /// is known that may use it, and that can be waited for; what cannot be waited for now, such as the
    /// event of a stream that is captured, could not be for the next batch either.
    pub(crate) fn give_back_after_failure(&self, slab: Slab, is_known: bool) {
        if is_known {
            self.give_back(slab);
        } else {
            self.give_up(slab);
        }
    }

    /// Takes back a slab of which nobody knows who uses it: it is not used again.
    pub(crate) fn give_up(&self, slab: Slab) {
        let mut books = self.books();
        books.live_bytes -= slab.memory.bytes;
        books.unsure.push(slab);
    }

    pub(crate) fn statistics(&self) -> SlabStatistics {
        let books = self.books();
        SlabStatistics {
            live_bytes: books.live_bytes,
            peak_bytes: books.peak_bytes,
            free_bytes: books.free_bytes,
            unsure_bytes: books.unsure.iter().map(|slab| slab.memory.bytes).sum(),
            allocations: books.allocations,
        }
    }

    /// Frees slabs of sizes that are no longer in use, as far as all work with them is done.
    fn free_surplus(&self) {
        loop {
            let mut books = self.books();
            let surplus = books.surplus();
            drop(books);
            match surplus {
                Some(slab) => self.free(slab),
                None => return,
            }
        }
    }

    /// Frees a slab with which all work is done.
    fn free(&self, slab: Slab) {
        match slab.allocator {
            Some(allocator) => allocator.free(slab.memory.address.0, slab.memory.bytes),
            // SAFETY: all work with it is done.
            None => self.context.release(|driver| unsafe { driver.free(slab.memory) }),
        }
    }
}

impl Books {
    fn reuse(&mut self, size: usize) -> Option<Slab> {
        let at = self.free.iter().position(|slab| slab.memory.bytes == size)?;
        let slab = self.free.remove(at)?;
        self.free_bytes -= size;
        self.lend(size);
        Some(slab)
    }

    fn allocated(&mut self, size: usize) {
        self.allocations += 1;
        self.lend(size);
    }

    fn lend(&mut self, size: usize) {
        self.live_bytes += size;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }

    fn give_back(&mut self, slab: Slab) {
        self.live_bytes -= slab.memory.bytes;
        self.free_bytes += slab.memory.bytes;
        self.free.push_back(slab);
    }

    /// Those that are free, and those of which nobody knows who uses them.
    fn take_unheld(&mut self) -> (VecDeque<Slab>, Vec<Slab>) {
        self.free_bytes = 0;
        (std::mem::take(&mut self.free), std::mem::take(&mut self.unsure))
    }

    fn put_back(&mut self, mut free: VecDeque<Slab>, unsure: Vec<Slab>) {
        self.free_bytes += free.iter().map(|slab| slab.memory.bytes).sum::<usize>();
        // They were free before those that have come meanwhile.
        free.append(&mut self.free);
        self.free = free;
        self.unsure.extend(unsure);
    }

    /// A slab that there is no more room for, with which all work is done.
    fn surplus(&mut self) -> Option<Slab> {
        let most_held = self.peak_bytes.saturating_add(self.peak_bytes / SLACK);
        let most_free = self.peak_bytes.min(most_held.saturating_sub(self.live_bytes));
        if self.free_bytes <= most_free {
            return None;
        }
        let at = self.free.iter().position(Slab::is_idle)?;
        let slab = self.free.remove(at)?;
        self.free_bytes -= slab.memory.bytes;
        Some(slab)
    }
}

impl Slab {
    /// What `stream` waits for before it writes to it.
    pub(crate) fn under_way(&self, stream: &StreamHandle) -> impl Iterator<Item = &Arc<Event>> {
        // Where a use is behind what wrote to it, that is enough; and a stream is behind itself.
        let written =
            self.written.iter().filter(|(_, by)| !self.is_behind_writer && *by != stream.0);
        self.uses.iter().chain(written.map(|(event, _)| event))
    }

    /// Notes that `stream` writes to it until `written` is reached, and has waited for all before.
    pub(crate) fn written_by(&mut self, stream: &StreamHandle, written: &Arc<Event>) {
        self.uses.clear();
        self.is_behind_writer = false;
        self.written = Some((Arc::clone(written), stream.0));
    }

    /// Whether all work with it is done.
    fn is_idle(&self) -> bool {
        let mut events = self.written.iter().map(|(event, _)| event).chain(&self.uses);
        events.all(|event| event.is_reached().unwrap_or(false))
    }
}

/// How large slabs for pieces of changing sizes are, so that the same few are used for all of them.
#[derive(Debug, Default)]
pub(crate) struct Room {
    bytes: usize,
    /// The largest piece of late, and among how many.
    largest: usize,
    pieces: u32,
}

impl Room {
    /// How many bytes to take for a piece of so many.
    pub(crate) fn for_piece(&mut self, bytes: usize) -> usize {
        if bytes > self.bytes {
            // The next one may be a little larger.
            self.bytes = bytes.saturating_add(bytes / 8);
        }
        let room = self.bytes;
        self.largest = self.largest.max(bytes);
        self.pieces += 1;
        if self.pieces == LATELY {
            // One much larger than the others is not provided for for ever.
            if self.largest < self.bytes / 2 {
                self.bytes = self.largest.saturating_add(self.largest / 8);
            }
            (self.largest, self.pieces) = (0, 0);
        }
        room
    }
}

/// The size of the slabs for so many bytes: one of few.
pub(crate) fn size_for(bytes: usize) -> usize {
    let granule =
        (bytes / 16).checked_next_power_of_two().map_or(GRANULE, |part| part.max(GRANULE));
    bytes.max(1).checked_next_multiple_of(granule).unwrap_or(bytes)
}

impl Drop for Slabs {
    fn drop(&mut self) {
        let books = std::mem::take(&mut *self.books());
        if books.free.is_empty() && books.unsure.is_empty() || !self.context.settle() {
            // Where it cannot be told that the device has stopped using them, they stay.
            return;
        }
        for slab in books.free.into_iter().chain(books.unsure) {
            self.free(slab);
        }
    }
}

impl fmt::Debug for Slabs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.statistics().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_by_an_eighth_at_most_or_half_a_kibibyte() {
        assert_eq!([0, 1, 512, 513].map(size_for), [512, 512, 512, 1024]);
        for bytes in [8192, 10_000, 123_456, 38_535_168, 1 << 30, (1 << 30) + 1] {
            let size = size_for(bytes);
            assert!(size >= bytes && size - bytes <= (bytes / 8).max(GRANULE), "{bytes}: {size}");
        }
        assert_eq!(size_for(usize::MAX), usize::MAX);
    }

    #[test]
    fn pieces_of_changing_sizes_get_the_same_room_until_all_are_small() {
        let mut room = Room::default();
        let first = room.for_piece(1000);
        assert_eq!(first, 1125);
        assert!((0..10).all(|number| room.for_piece(900 + 20 * number) == first));
        let large = room.for_piece(8000);
        assert_eq!(large, 9000);
        // So long as it may come again, and then no longer.
        for _ in 0..2 * LATELY {
            assert!([large, first].contains(&room.for_piece(1000)));
        }
        assert_eq!(room.for_piece(1000), first);
        assert!(room.for_piece(usize::MAX) == usize::MAX);
    }
}
