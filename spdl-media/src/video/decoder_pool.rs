//! [`DecoderPool`]: the decoders of all readers of a registry, of a bounded number.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::{fmt, thread};

use spdl_core::Result;

use super::codec::{VideoDecoder, VideoDecoderOptions};
use super::index::VideoStream;

/// Decoders that readers share.
///
/// A decoder of H.264 at 1920 × 1080 holds some 30 MB of frames. There are at most two decoders per
/// processor, because more would not decode faster: another reader waits until one is returned. A decoder with
/// several threads holds one more frame for each thread, and counts as that many decoders.
pub(super) struct DecoderPool {
    state: Mutex<PoolState>,
    returned: Condvar,
    most: usize,
}

/// The number of threads of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecoderThreads {
    Fixed(u32),
    /// One per processor if no other decoder is lent, else one.
    OfLoneDecoder,
}

#[derive(Default)]
struct PoolState {
    /// The number of decoders that are lent and counted, those with several threads several times.
    lent: usize,
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
        let processors = thread::available_parallelism().map_or(1, usize::from);
        DecoderPool::new(2 * processors)
    }
}

impl DecoderPool {
    fn new(most: usize) -> Self {
        DecoderPool { state: Mutex::default(), returned: Condvar::new(), most }
    }

    /// Lends a decoder that was made for such a stream and such options, with this number of threads, or else one that
    /// `make` makes.
    ///
    /// Waits while too many decoders are lent, unless the thread has borrowed one already: it might
    /// wait for itself.
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
        let cost = loop {
            options.threads = match threads {
                DecoderThreads::Fixed(threads) => threads,
                DecoderThreads::OfLoneDecoder if is_counted && state.lent == 0 => {
                    (self.most / 2).clamp(1, MAX_THREADS) as u32
                }
                DecoderThreads::OfLoneDecoder => 1,
            };
            let cost = if is_counted { self.cost(&options) } else { 0 };
            if state.lent + cost <= self.most {
                break cost;
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        state.lent += cost;
        let place =
            state.idle.iter().rposition(|idle| idle.stream == *stream && idle.options == options);
        let found = place.and_then(|place| state.idle.remove(place));
        let mut surplus = Vec::new();
        let idle = |state: &PoolState| -> usize {
            state.idle.iter().map(|idle| self.cost(&idle.options)).sum()
        };
        while found.is_none() && state.lent + idle(&state) > self.most {
            let Some(oldest) = state.idle.pop_front() else { break };
            surplus.push(oldest);
        }
        drop(state);
        drop(surplus);
        BORROWED.set(BORROWED.get() + 1);
        let permit = Permit { pool: Arc::clone(self), cost };
        let open = match found {
            Some(open) => open,
            None => OpenDecoder { decoder: make(&options)?, stream: stream.clone(), options },
        };
        Ok(LentDecoder { open, permit })
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
}

impl Drop for Permit {
    fn drop(&mut self) {
        BORROWED.set(BORROWED.get().saturating_sub(1));
        if self.cost > 0 {
            self.pool.lock().lent -= self.cost;
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
        let (pool, count) = (Arc::new(DecoderPool::new(8)), Arc::new(AtomicUsize::new(0)));
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
    fn idle_decoders_are_reused_and_give_way_to_others() {
        let (pool, count) = (Arc::new(DecoderPool::new(2)), Arc::new(AtomicUsize::new(0)));
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
        let (pool, count) = (Arc::new(DecoderPool::new(2)), Arc::new(AtomicUsize::new(0)));
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
    fn a_thread_that_has_a_decoder_does_not_wait_for_itself() {
        let (pool, count) = (Arc::new(DecoderPool::new(1)), Arc::new(AtomicUsize::new(0)));
        let first = lend(&pool, 1, &count);
        lend(&pool, 1, &count).give_back();
        first.give_back();
        assert_eq!(count.load(Ordering::SeqCst), 1, "the second one is not kept");
    }

    #[test]
    fn a_decoder_that_cannot_be_made_is_not_counted() {
        let pool = Arc::new(DecoderPool::new(1));
        let make = |_: &VideoDecoderOptions| Err(Error::new(ErrorKind::Unsupported, "none"));
        let stream = VideoStream::new("h264", Size::new(64, 48));
        let (options, threads) = (VideoDecoderOptions::default(), DecoderThreads::Fixed(1));
        assert!(pool.lend(&stream, options, threads, make).is_err());
        assert_eq!(pool.lock().lent, 0);
    }
}
