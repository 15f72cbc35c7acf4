//! [`DecoderPool`]: the decoders of all readers of a registry, of a bounded number.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::{fmt, thread};

use spdl_core::Result;

use super::codec::{VideoDecoder, VideoDecoderOptions};
use super::index::VideoStream;
use crate::image::Size;

/// Decoders that readers share.
///
/// A decoder of H.264 at 1920 × 1080 holds some 30 MB of frames. There are at most two decoders per
/// processor, because more would not decode faster: another reader waits until one is returned. A decoder with
/// several threads holds one more frame for each thread, and counts as that many decoders. The frames of all decoders
/// together have a limit too; one decoder may exceed it. Readers are served in the order of their requests, so that
/// those with small frames do not overtake one with large frames forever.
pub(super) struct DecoderPool {
    state: Mutex<PoolState>,
    returned: Condvar,
    most: usize,
    most_bytes: u64,
}

/// The default limit of the frames of all decoders: 21 decoders at 1920 × 1080.
const DECODER_BYTES: u64 = 768 << 20;
/// The frames that a decoder is assumed to hold: references, and frames that wait for reordering.
const FRAMES_OF_DECODER: u64 = 12;

/// The bytes of the frames that a decoder with `threads` threads is assumed to hold, for 4:2:0 with 8 bits.
pub(crate) fn bytes_of_decoder(size: Size, threads: u32) -> u64 {
    let frames = FRAMES_OF_DECODER - 1 + u64::from(threads.max(1));
    (size.pixels().saturating_mul(3) / 2).saturating_mul(frames)
}

/// The number of threads of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecoderThreads {
    Fixed(u32),
    /// One per processor if no other decoder is lent. Else one, or more if the memory is too small for one decoder
    /// per processor.
    OfLoneDecoder,
}

#[derive(Default)]
struct PoolState {
    /// The number of decoders that are lent and counted, those with several threads several times.
    lent: usize,
    /// The bytes of their frames.
    bytes: u64,
    /// The number of requests that had to queue, and of those that were served: the turn of the next one.
    requests: u64,
    served: u64,
    /// Oldest first.
    idle: VecDeque<OpenDecoder>,
}

/// A decoder, and for what it was made.
struct OpenDecoder {
    stream: VideoStream,
    options: VideoDecoderOptions,
    decoder: Box<dyn VideoDecoder>,
}

/// FFmpeg recommends at most this number of threads.
const MAX_THREADS: usize = 16;

thread_local! {
    /// The number of decoders that this thread has borrowed.
    static BORROWED: Cell<usize> = const { Cell::new(0) };
}

impl Default for DecoderPool {
    fn default() -> Self {
        DecoderPool::with_bytes(DECODER_BYTES)
    }
}

impl DecoderPool {
    /// Two decoders per processor, whose frames have at most this number of bytes.
    pub(super) fn with_bytes(most_bytes: u64) -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        DecoderPool::new(2 * processors, most_bytes)
    }

    pub(super) fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    fn new(most: usize, most_bytes: u64) -> Self {
        DecoderPool { state: Mutex::default(), returned: Condvar::new(), most, most_bytes }
    }

    /// Lends a decoder that was made for such a stream and such options, with this number of threads, or else one that
    /// `make` makes.
    ///
    /// Waits while too many decoders are lent, or other threads wait, unless the thread has borrowed one already: it
    /// might wait for itself.
    ///
    /// # Errors
    /// Those of `make`.
    pub(super) fn lend(
        self: &Arc<Self>,
        stream: &VideoStream,
        mut options: VideoDecoderOptions,
        threads: DecoderThreads,
        make: impl FnOnce(&VideoDecoderOptions) -> Result<Box<dyn VideoDecoder>>,
    ) -> Result<LentDecoder> {
        let is_counted = BORROWED.get() == 0;
        let mut state = self.lock();
        let turn = state.requests;
        state.requests += u64::from(is_counted);
        let (cost, bytes) = loop {
            options.threads = match threads {
                DecoderThreads::Fixed(threads) => threads,
                DecoderThreads::OfLoneDecoder if is_counted && state.lent == 0 => {
                    (self.most / 2).clamp(1, MAX_THREADS) as u32
                }
                DecoderThreads::OfLoneDecoder => self.threads_of_many(stream.size),
            };
            let (cost, bytes) = match is_counted {
                true => (self.cost(&options), bytes_of_decoder(stream.size, options.threads)),
                false => (0, 0),
            };
            let has_memory =
                state.lent == 0 || state.bytes.saturating_add(bytes) <= self.most_bytes;
            let has_room = state.lent + cost <= self.most && has_memory;
            if !is_counted || (turn == state.served && has_room) {
                break (cost, bytes);
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        state.served += u64::from(is_counted);
        if state.served < state.requests {
            // There may be room for the next reader as well.
            self.returned.notify_all();
        }
        state.lent += cost;
        state.bytes = state.bytes.saturating_add(bytes);
        let place =
            state.idle.iter().rposition(|idle| idle.stream == *stream && idle.options == options);
        let found = place.and_then(|place| state.idle.remove(place));
        let mut surplus = Vec::new();
        while found.is_none() && self.is_over(&state) {
            let Some(oldest) = state.idle.pop_front() else { break };
            surplus.push(oldest);
        }
        drop(state);
        drop(surplus);
        BORROWED.set(BORROWED.get() + 1);
        let permit = Permit { pool: Arc::clone(self), cost, bytes };
        let open = match found {
            Some(open) => open,
            None => OpenDecoder { decoder: make(&options)?, stream: stream.clone(), options },
        };
        Ok(LentDecoder { open, permit })
    }

    /// The threads of a decoder if as many decoders as possible are lent: the smallest number that uses all processors,
    /// or else as many as possible.
    fn threads_of_many(&self, size: Size) -> u32 {
        let processors = (self.most as u64 / 2).max(1);
        let used = |threads: u32| {
            let decoders = (self.most_bytes / bytes_of_decoder(size, threads).max(1)).max(1);
            (decoders * u64::from(threads)).min(processors)
        };
        (1..=MAX_THREADS as u32)
            .max_by_key(|&threads| (used(threads), Reverse(threads)))
            .unwrap_or(1)
    }

    /// Whether all decoders together, with the idle ones, exceed a limit.
    fn is_over(&self, state: &PoolState) -> bool {
        let idle = || state.idle.iter();
        let count: usize = idle().map(|idle| self.cost(&idle.options)).sum();
        let bytes = idle().map(|idle| bytes_of_decoder(idle.stream.size, idle.options.threads));
        let bytes = bytes.fold(state.bytes, u64::saturating_add);
        state.lent + count > self.most || bytes > self.most_bytes
    }

    /// The number of decoders that a decoder counts as.
    fn cost(&self, options: &VideoDecoderOptions) -> usize {
        (options.threads as usize).clamp(1, self.most)
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // No update of the state can panic halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for DecoderPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("DecoderPool")
            .field("lent", &state.lent)
            .field("idle", &state.idle.len())
            .field("most", &self.most)
            .finish()
    }
}

/// A decoder of a pool. It is freed when dropped, unless it was [returned](Self::give_back).
pub(super) struct LentDecoder {
    // Fields are dropped in order: its memory is free before another reader makes one.
    open: OpenDecoder,
    permit: Permit,
}

impl LentDecoder {
    pub(super) fn decoder(&mut self) -> &mut dyn VideoDecoder {
        &mut *self.open.decoder
    }

    pub(super) fn threads(&self) -> u32 {
        self.open.options.threads
    }

    /// Keeps the decoder for another video, if it is reusable.
    pub(super) fn give_back(self) {
        let LentDecoder { mut open, permit } = self;
        if permit.cost > 0 && open.decoder.is_reusable() {
            open.decoder.reset();
            // Dropping the permit makes room for it.
            permit.pool.lock().idle.push_back(open);
        }
    }
}

/// Some of the decoders that may be lent at a time; none for the second decoder of a thread.
struct Permit {
    pool: Arc<DecoderPool>,
    cost: usize,
    bytes: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        BORROWED.set(BORROWED.get().saturating_sub(1));
        if self.cost > 0 {
            let mut state = self.pool.lock();
            state.lent -= self.cost;
            state.bytes = state.bytes.saturating_sub(self.bytes);
            drop(state);
            // Several readers with one thread each may continue.
            self.pool.returned.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use spdl_core::{Error, ErrorKind};

    use super::*;
    use crate::image::{Picture, Size};
    use crate::video::codec::DecodedFrame;

    /// Decodes nothing; counts how many there are.
    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl VideoDecoder for Counted {
        fn send(&mut self, _: &[u8], _: u32, _: bool) -> Result<()> {
            Ok(())
        }

        fn finish(&mut self) -> Result<()> {
            Ok(())
        }

        fn receive(&mut self) -> Result<Option<DecodedFrame>> {
            Ok(None)
        }

        fn copy_to(&mut self, _: &mut Picture) -> Result<()> {
            Err(Error::new(ErrorKind::Unsupported, "no frame"))
        }

        fn reset(&mut self) {}

        fn is_reusable(&self) -> bool {
            true
        }
    }

    /// A decoder for streams of this height.
    fn lend(pool: &Arc<DecoderPool>, height: u32, count: &Arc<AtomicUsize>) -> LentDecoder {
        lend_with(pool, height, DecoderThreads::Fixed(1), count)
    }

    fn lend_with(
        pool: &Arc<DecoderPool>,
        height: u32,
        threads: DecoderThreads,
        count: &Arc<AtomicUsize>,
    ) -> LentDecoder {
        let make = |_: &VideoDecoderOptions| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(Counted(Arc::clone(count))) as Box<dyn VideoDecoder>)
        };
        let stream = VideoStream::new("h264", Size::new(64, height));
        pool.lend(&stream, VideoDecoderOptions::default(), threads, make).unwrap()
    }

    #[test]
    fn a_lone_decoder_has_a_thread_per_processor() {
        // Four processors.
        let (pool, count) =
            (Arc::new(DecoderPool::new(8, u64::MAX)), Arc::new(AtomicUsize::new(0)));
        let lone = lend_with(&pool, 48, DecoderThreads::OfLoneDecoder, &count);
        assert_eq!((lone.threads(), pool.lock().lent), (4, 4));
        thread::scope(|scope| {
            let others: Vec<_> = (0..4)
                .map(|_| {
                    let lend = || lend_with(&pool, 48, DecoderThreads::OfLoneDecoder, &count);
                    scope.spawn(lend).join().unwrap()
                })
                .collect();
            assert!(others.iter().all(|other| other.threads() == 1));
            assert_eq!(pool.lock().lent, 8);
            // The next one waits until the four threads are free.
            let waiting = scope.spawn(|| lend_with(&pool, 48, DecoderThreads::Fixed(2), &count));
            thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished());
            lone.give_back();
            assert_eq!(waiting.join().unwrap().threads(), 2);
        });
        // Idle decoders with several threads give way to others.
        assert_eq!(pool.lock().lent, 0);
        lend_with(&pool, 48, DecoderThreads::OfLoneDecoder, &count).give_back();
        lend_with(&pool, 50, DecoderThreads::Fixed(5), &count).give_back();
        assert_eq!(pool.lock().idle.len(), 1);
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn decoders_of_large_frames_share_their_memory() {
        let one = bytes_of_decoder(Size::new(64, 48), 1);
        let pool = Arc::new(DecoderPool::new(8, 2 * one));
        let count = Arc::new(AtomicUsize::new(0));
        thread::scope(|scope| {
            let lend = |height| {
                scope.spawn({
                    let (pool, count) = (Arc::clone(&pool), Arc::clone(&count));
                    move || lend(&pool, height, &count)
                })
            };
            let (first, second) = (lend(48).join().unwrap(), lend(48).join().unwrap());
            let third = lend(48);
            thread::sleep(Duration::from_millis(20));
            assert!(!third.is_finished());
            first.give_back();
            // The first one is used again.
            let third = third.join().unwrap();
            assert_eq!(count.load(Ordering::SeqCst), 2);
            second.give_back();
            third.give_back();
            // A decoder that needs more than all others together is alone.
            let large = lend(200).join().unwrap();
            assert_eq!(count.load(Ordering::SeqCst), 1);
            let small = lend(2);
            thread::sleep(Duration::from_millis(20));
            assert!(!small.is_finished());
            drop(large);
            drop(small.join().unwrap());
        });
        let state = pool.lock();
        assert_eq!((state.lent, state.bytes), (0, 0));
    }

    #[test]
    fn few_decoders_of_large_frames_use_all_processors_if_possible() {
        // 64 processors.
        let pool = DecoderPool::new(128, DECODER_BYTES);
        let used = |width, height| {
            let size = Size::new(width, height);
            let threads = pool.threads_of_many(size);
            u64::from(threads) * (DECODER_BYTES / bytes_of_decoder(size, threads)).max(1)
        };
        assert!(used(640, 360) >= 64 && used(1920, 1080) >= 64 && used(2560, 1440) >= 64);
        // The memory is too small for more threads.
        assert_eq!((used(3840, 2160), used(65_000, 65_000)), (32, 16));
        assert_eq!(pool.threads_of_many(Size::new(640, 360)), 1);
        // Two processors.
        assert_eq!(DecoderPool::new(4, DECODER_BYTES).threads_of_many(Size::new(1920, 1080)), 1);
    }

    #[test]
    fn idle_decoders_are_reused_and_give_way_to_others() {
        let (pool, count) =
            (Arc::new(DecoderPool::new(2, u64::MAX)), Arc::new(AtomicUsize::new(0)));
        let existing = || count.load(Ordering::SeqCst);
        lend(&pool, 1, &count).give_back();
        lend(&pool, 1, &count).give_back();
        assert_eq!(existing(), 1, "the decoder is reused");
        lend(&pool, 2, &count).give_back();
        assert_eq!(existing(), 2);
        lend(&pool, 3, &count).give_back();
        assert_eq!(existing(), 2, "the oldest one is freed");
        drop(lend(&pool, 3, &count));
        assert_eq!(existing(), 1, "a dropped decoder is freed");
    }

    #[test]
    fn readers_wait_while_too_many_decoders_are_lent() {
        let (pool, count) =
            (Arc::new(DecoderPool::new(2, u64::MAX)), Arc::new(AtomicUsize::new(0)));
        let most = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let lent = lend(&pool, 1, &count);
                        most.fetch_max(count.load(Ordering::SeqCst), Ordering::SeqCst);
                        thread::sleep(Duration::from_micros(200));
                        lent.give_back();
                    }
                });
            }
        });
        assert_eq!(most.load(Ordering::SeqCst), 2);
        assert_eq!(pool.lock().lent, 0);
    }

    #[test]
    fn waiting_readers_are_served_in_order() {
        let (pool, count) =
            (Arc::new(DecoderPool::new(2, u64::MAX)), Arc::new(AtomicUsize::new(0)));
        thread::scope(|scope| {
            // Returns when the request is in the queue.
            let lend = |threads: u32| {
                let before = pool.lock().requests;
                let (of_thread, count) = (Arc::clone(&pool), Arc::clone(&count));
                let threads = DecoderThreads::Fixed(threads);
                let lent = scope.spawn(move || lend_with(&of_thread, 48, threads, &count));
                while pool.lock().requests == before {
                    thread::yield_now();
                }
                lent
            };
            let first = lend(1).join().unwrap();
            let large = lend(2);
            // There is room for this one, but the large one is first.
            let small = lend(1);
            thread::sleep(Duration::from_millis(20));
            assert!(!large.is_finished() && !small.is_finished());
            first.give_back();
            let large = large.join().unwrap();
            assert!(!small.is_finished());
            // There is room for two.
            let other = lend(1);
            large.give_back();
            let others = [small, other].map(|other| other.join().unwrap());
            assert_eq!(pool.lock().lent, 2);
            others.into_iter().for_each(LentDecoder::give_back);
        });
    }

    #[test]
    fn a_thread_that_has_a_decoder_does_not_wait_for_itself() {
        let (pool, count) =
            (Arc::new(DecoderPool::new(1, u64::MAX)), Arc::new(AtomicUsize::new(0)));
        let first = lend(&pool, 1, &count);
        lend(&pool, 1, &count).give_back();
        first.give_back();
        assert_eq!(count.load(Ordering::SeqCst), 1, "the second one is not kept");
    }

    #[test]
    fn a_decoder_that_cannot_be_made_is_not_counted() {
        let pool = Arc::new(DecoderPool::new(1, u64::MAX));
        let make = |_: &VideoDecoderOptions| Err(Error::new(ErrorKind::Unsupported, "none"));
        let stream = VideoStream::new("h264", Size::new(64, 48));
        let (options, threads) = (VideoDecoderOptions::default(), DecoderThreads::Fixed(1));
        assert!(pool.lend(&stream, options, threads, make).is_err());
        assert_eq!(pool.lock().lent, 0);
    }
}
