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
/// processor, because more would not decode faster: another reader waits until one is returned.
pub(super) struct DecoderPool {
    state: Mutex<PoolState>,
    returned: Condvar,
    most: usize,
}

#[derive(Default)]
struct PoolState {
    /// The number of decoders that are lent and counted.
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

    /// Lends a decoder that was made for such a stream and such options, or else one that `make` makes.
    ///
    /// Waits while too many decoders are lent, unless the thread has borrowed one already: it might
    /// wait for itself.
    ///
    /// # Errors
    /// Those of `make`.
    pub(super) fn lend(
        self: &Arc<Self>,
        stream: &VideoStream,
        options: VideoDecoderOptions,
        make: impl FnOnce(&VideoDecoderOptions) -> Result<Box<dyn VideoDecoder>>,
    ) -> Result<LentDecoder> {
        let is_counted = BORROWED.get() == 0;
        let mut state = self.lock();
        while is_counted && state.lent >= self.most {
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.lent += usize::from(is_counted);
        let place =
            state.idle.iter().rposition(|idle| idle.stream == *stream && idle.options == options);
        let found = place.and_then(|place| state.idle.remove(place));
        let is_full = state.lent + state.idle.len() > self.most;
        let surplus = if found.is_none() && is_full { state.idle.pop_front() } else { None };
        drop(state);
        drop(surplus);
        BORROWED.set(BORROWED.get() + 1);
        let permit = Permit { pool: Arc::clone(self), is_counted };
        let open = match found {
            Some(open) => open,
            None => OpenDecoder { decoder: make(&options)?, stream: stream.clone(), options },
        };
        Ok(LentDecoder { open, permit })
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

    /// Keeps the decoder for another video, if it is reusable.
    pub(super) fn give_back(self) {
        let LentDecoder { mut open, permit } = self;
        if permit.is_counted && open.decoder.is_reusable() {
            open.decoder.reset();
            // Dropping the permit makes room for it.
            permit.pool.lock().idle.push_back(open);
        }
    }
}

/// One of the decoders that may be lent at a time.
struct Permit {
    pool: Arc<DecoderPool>,
    is_counted: bool,
}

impl Drop for Permit {
    fn drop(&mut self) {
        BORROWED.set(BORROWED.get().saturating_sub(1));
        if self.is_counted {
            self.pool.lock().lent -= 1;
            self.pool.returned.notify_one();
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

    fn lend(pool: &Arc<DecoderPool>, threads: u32, count: &Arc<AtomicUsize>) -> LentDecoder {
        let options = VideoDecoderOptions { threads, ..VideoDecoderOptions::default() };
        let make = |_: &VideoDecoderOptions| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(Counted(Arc::clone(count))) as Box<dyn VideoDecoder>)
        };
        pool.lend(&VideoStream::new("h264", Size::new(64, 48)), options, make).unwrap()
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
        assert!(pool.lend(&stream, VideoDecoderOptions::default(), make).is_err());
        assert_eq!(pool.lock().lent, 0);
    }
}
