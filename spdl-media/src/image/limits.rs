//! Limits on image size, memory, frames and compression ratio.

use std::fmt;
use std::num::NonZero;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use spdl_core::memory::usable_memory;
use spdl_core::{Error, ErrorKind, Result};

use super::geometry::Size;
use super::pixels::CHANNELS;

/// Limits on the images that a decoder accepts.
///
/// A decoder checks the image size in the header, and memory before each large allocation.
/// Limits decide which images fail. They never change pixels or the order of samples, so they are
/// not part of the pipeline fingerprint. A resumed run may raise them.
///
/// ```
/// use spdl_media::Limits;
/// let limits = Limits::default().max_pixels(50_000_000);
/// assert!(limits.check_size(spdl_media::Size::new(65_500, 65_500)).is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    max_pixels: u64,
    max_bytes: u64,
    /// The part of `max_bytes` that existing buffers use.
    used_bytes: u64,
    max_frames: u64,
    max_ratio: u64,
    max_depth: u32,
    strict: bool,
    concurrent: Arc<ConcurrentDecodes>,
}

/// Images of up to this many decoded bytes are accepted at any compression ratio, because an image
/// of a single colour is small in every format.
const RATIO_FREE_BYTES: u64 = 1 << 20;

/// To run more decodes than there are CPUs is not faster. Such decodes start only while all decodes need
/// at most this for each CPU. All threads together keep at most as much scratch memory.
const BYTES_PER_CPU: u64 = 64 << 20;

/// The memory that this process may use, as found by the first call.
fn usable() -> u64 {
    static USABLE: OnceLock<u64> = OnceLock::new();
    *USABLE.get_or_init(usable_memory)
}

impl Default for Limits {
    /// The defaults: 178,956,970 pixels (the limit of Pillow's decompression bomb check), 1 GiB of
    /// working memory (half of the usable memory if this is less), an eighth of the usable memory for
    /// concurrent decodes, 100,000 frames, 100,000 decoded bytes per encoded byte, 4 levels of nested
    /// files, strict.
    fn default() -> Self {
        Limits {
            max_pixels: 178_956_970,
            max_bytes: (usable() / 2).min(1 << 30),
            used_bytes: 0,
            max_frames: 100_000,
            max_ratio: 100_000,
            max_depth: 4,
            strict: true,
            concurrent: Arc::new(ConcurrentDecodes::new(usable() / 8)),
        }
    }
}

impl Limits {
    /// The maximum number of pixels of one image. Default: 178,956,970.
    #[must_use]
    pub fn max_pixels(mut self, max_pixels: u64) -> Self {
        self.max_pixels = max_pixels;
        self
    }

    /// The maximum number of bytes that decoding one image may use: the requested pixels or planes,
    /// and all scratch memory. The RGB pixels of the whole image must fit into this limit too, even
    /// if only a region is requested. Default: 1 GiB, or half of the
    /// [usable memory](usable_memory) if this is less.
    #[must_use]
    pub fn max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// The memory in bytes that concurrent decodes of [`FillImage`](crate::FillImage) may use, if
    /// they have clones of these limits. Further decodes wait. A decode starts in any case if no
    /// other decode runs. Default: an eighth of the [usable memory](usable_memory).
    ///
    /// While as many decodes run as there are CPUs, another one starts only if all of them together
    /// need at most 64 MiB for each CPU. The scratch memory that all threads keep between images has
    /// the lower of both limits.
    ///
    /// Each decode counts with an estimate from the header of its file:
    /// [`ImageInfo::working_bytes`](crate::image::ImageInfo::working_bytes).
    #[must_use]
    pub fn concurrent_bytes(mut self, bytes: u64) -> Self {
        self.concurrent = Arc::new(ConcurrentDecodes::new(bytes));
        self
    }

    /// Waits until concurrent decodes leave room for `bytes`, and takes them until the result is
    /// dropped.
    pub(crate) fn start_decode(&self, bytes: u64) -> DecodeMemory {
        self.concurrent.start(bytes)
    }

    /// The maximum number of frames of an animation (APNG, GIF, WebP). Only the first frame is
    /// decoded, but an animation with more frames is an error. For GIF, only the decode checks this
    /// limit, not [`Decoder::inspect`](crate::Decoder::inspect). Default: 100,000.
    #[must_use]
    pub fn max_frames(mut self, max_frames: u64) -> Self {
        self.max_frames = max_frames;
        self
    }

    /// The maximum ratio of decoded RGB bytes to encoded bytes. Images of up to 1 MiB of pixels
    /// pass at any ratio.
    ///
    /// Default: 100,000. Valid files of one colour reach a similar ratio: 25,000 for an empty 1-bit
    /// mask as PNG, 97,000 for an empty page as TIFF.
    #[must_use]
    pub fn max_ratio(mut self, max_ratio: u64) -> Self {
        self.max_ratio = max_ratio;
        self
    }

    /// The maximum depth of nested files: a PNG inside an icon has depth 2. Default: 4.
    #[must_use]
    pub fn max_depth(mut self, max_depth: u32) -> Self {
        self.max_depth = max_depth;
        self
    }

    /// Whether corruption that other decoders only warn about is an error. Default: yes. If no:
    ///
    /// - PNG: wrong checksums are ignored.
    /// - JPEG: a progressive file may lack the DC scan of a component; its DC coefficients are then
    ///   0.
    /// - `TurboJpegCodec` and `ZuneJpegCodec` ignore the warnings of their libraries, which invent
    ///   missing pixels.
    ///
    /// This setting has no effect on other corruption, or on truncated files.
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Whether corruption that other decoders only warn about is an error.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// The remaining bytes of `max_bytes`, after the buffers counted by [`after`](Self::after).
    pub fn bytes(&self) -> u64 {
        self.max_bytes.saturating_sub(self.used_bytes)
    }

    /// The limits that remain after the allocation of a buffer of `bytes`. A decoder calls
    /// this method after each allocation; [`check_bytes`](Self::check_bytes) then compares the next
    /// buffer with the remaining bytes.
    ///
    /// ```
    /// use spdl_media::{Limits, Size};
    /// let (limits, size) = (Limits::default().max_bytes(100), Size::new(4, 4));
    /// let beside_the_result = limits.after(48, size)?;
    /// assert!(beside_the_result.check_bytes(52, size).is_ok());
    /// assert!(beside_the_result.check_bytes(53, size).is_err());
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `LimitExceeded` if the buffer itself exceeds the remaining bytes.
    pub fn after(&self, bytes: u64, size: Size) -> Result<Limits> {
        self.check_bytes(bytes, size)?;
        Ok(Limits { used_bytes: self.used_bytes.saturating_add(bytes), ..self.clone() })
    }

    /// Checks the size of an image.
    ///
    /// # Errors
    /// `Corrupt` if width or height is 0; `LimitExceeded` if the image is too large.
    pub fn check_size(&self, size: Size) -> Result<()> {
        if size.pixels() == 0 {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("invalid image size {size} in the header: width and height must not be 0"),
            ));
        }
        self.check_pixels(size.pixels(), size)?;
        // The memory of the RGB pixels counts even if only a region is requested.
        let bytes = size.pixels().saturating_mul(CHANNELS as u64);
        if bytes > self.max_bytes { Err(self.too_much_memory(size, bytes)) } else { Ok(()) }
    }

    /// Checks the total number of pixels to decode for an image that is composed of several.
    ///
    /// # Errors
    /// `LimitExceeded` if there are too many pixels.
    pub fn check_pixels(&self, pixels: u64, size: Size) -> Result<()> {
        if pixels > self.max_pixels {
            return Err(Self::exceeded(size, &format!("{} pixels", self.max_pixels)));
        }
        Ok(())
    }

    /// Checks the number of frames of an animation.
    ///
    /// # Errors
    /// `LimitExceeded` if there are too many frames.
    pub fn check_frames(&self, frames: u64) -> Result<()> {
        if frames > self.max_frames {
            let message = format!("the animation has more than {} frames", self.max_frames);
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        Ok(())
    }

    /// Checks the compression ratio of an image.
    ///
    /// # Errors
    /// `LimitExceeded` if the file is too small for this number of pixels.
    pub fn check_ratio(&self, encoded_bytes: usize, size: Size) -> Result<()> {
        let decoded = size.pixels().saturating_mul(CHANNELS as u64);
        let allowed = (encoded_bytes as u64).saturating_mul(self.max_ratio);
        if decoded > allowed.max(RATIO_FREE_BYTES) {
            let limit = format!(
                "{} decoded bytes per encoded byte ({decoded} bytes from {encoded_bytes})",
                self.max_ratio
            );
            return Err(Self::exceeded(size, &limit));
        }
        Ok(())
    }

    /// Checks the depth of nested files: 1 is the file itself.
    ///
    /// # Errors
    /// `LimitExceeded` if the nesting is too deep.
    pub fn check_depth(&self, depth: u32) -> Result<()> {
        if depth > self.max_depth {
            let message = format!("files are nested more than {} levels deep", self.max_depth);
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        Ok(())
    }

    /// Checks the working memory for an image of this size, added to the buffers counted by
    /// [`after`](Self::after).
    ///
    /// # Errors
    /// `LimitExceeded` if the sum exceeds `max_bytes`.
    pub fn check_bytes(&self, bytes: u64, size: Size) -> Result<()> {
        let sum = self.used_bytes.saturating_add(bytes);
        if sum > self.max_bytes { Err(self.too_much_memory(size, sum)) } else { Ok(()) }
    }

    fn too_much_memory(&self, size: Size, needed: u64) -> Error {
        let limit = format!("{} bytes of memory ({needed} bytes needed)", self.max_bytes);
        Self::exceeded(size, &limit)
    }

    fn exceeded(size: Size, limit: &str) -> Error {
        let message = format!("an image of {size} pixels exceeds the limit of {limit}");
        Error::new(ErrorKind::LimitExceeded, message)
    }
}

/// The memory of concurrent decodes. Requests are granted in the order of their arrival.
struct ConcurrentDecodes {
    /// The maximum sum in bytes.
    max: u64,
    cpus: u64,
    state: Mutex<DecodesState>,
    changed: Condvar,
}

#[derive(Default)]
struct DecodesState {
    used: u64,
    /// Number of requests so far.
    arrived: u64,
    /// Number of granted requests so far.
    granted: u64,
    /// Number of ended decodes so far.
    ended: u64,
    /// The largest number of decodes that ran or waited at the same time.
    most: u64,
}

/// The memory of a running decode.
#[must_use]
pub(crate) struct DecodeMemory {
    bytes: u64,
    /// The most scratch memory that the decoder may keep, so that all threads keep at most the shared bytes.
    max_scratch: u64,
    of: Arc<ConcurrentDecodes>,
}

impl ConcurrentDecodes {
    fn new(max: u64) -> Self {
        let cpus = thread::available_parallelism().map_or(1, NonZero::get) as u64;
        ConcurrentDecodes { max, cpus, state: Mutex::default(), changed: Condvar::new() }
    }

    /// The memory that more decodes than CPUs may use, and scratch memory between decodes.
    fn shared_bytes(&self) -> u64 {
        self.max.min(self.cpus.saturating_mul(BYTES_PER_CPU))
    }

    fn has_room(&self, state: &DecodesState, bytes: u64) -> bool {
        let sum = state.used.saturating_add(bytes);
        match state.granted - state.ended {
            0 => true,
            running if running < self.cpus => sum <= self.max,
            _ => sum <= self.shared_bytes(),
        }
    }

    fn state(&self) -> MutexGuard<'_, DecodesState> {
        // No code under the lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>, bytes: u64) -> DecodeMemory {
        let mut state = self.state();
        let number = state.arrived;
        state.arrived += 1;
        state.most = state.most.max(state.arrived - state.ended);
        while state.granted != number || !self.has_room(&state, bytes) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.granted += 1;
        state.used = state.used.saturating_add(bytes);
        if state.arrived > state.granted {
            self.changed.notify_all();
        }
        let max_scratch = self.shared_bytes() / state.most;
        DecodeMemory { bytes, max_scratch, of: Arc::clone(self) }
    }
}

impl DecodeMemory {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the decoder should release `held` bytes of scratch memory after the decode.
    pub(crate) fn is_too_much_scratch(&self, held: u64) -> bool {
        held > self.max_scratch
    }
}

impl Drop for DecodeMemory {
    fn drop(&mut self) {
        let mut state = self.of.state();
        state.used = state.used.saturating_sub(self.bytes);
        state.ended += 1;
        if state.arrived > state.granted {
            self.of.changed.notify_all();
        }
    }
}

impl PartialEq for ConcurrentDecodes {
    fn eq(&self, other: &Self) -> bool {
        self.max == other.max
    }
}

impl Eq for ConcurrentDecodes {}

impl fmt::Debug for ConcurrentDecodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(outcome: Result<()>) -> Option<ErrorKind> {
        outcome.err().map(|error| error.kind())
    }

    #[test]
    fn values_up_to_each_limit_are_allowed() {
        let limits =
            Limits::default().max_pixels(1_000_000).max_bytes(3_000_000).max_frames(7).max_depth(2);
        let refused = Some(ErrorKind::LimitExceeded);
        assert_eq!(kind(limits.check_size(Size::new(1000, 1000))), None);
        assert_eq!(kind(limits.check_size(Size::new(1000, 1001))), refused);
        assert_eq!(kind(limits.check_bytes(3_000_000, Size::new(1, 1))), None);
        assert_eq!(kind(limits.check_bytes(3_000_001, Size::new(1, 1))), refused);
        assert_eq!(kind(limits.check_frames(7)), None);
        assert_eq!(kind(limits.check_frames(8)), refused);
        assert_eq!(kind(limits.check_depth(2)), None);
        assert_eq!(kind(limits.check_depth(3)), refused);
        assert_eq!(kind(limits.check_size(Size::new(0, 9))), Some(ErrorKind::Corrupt));
    }

    #[test]
    fn the_ratio_holds_above_a_mebibyte() {
        let limits = Limits::default().max_ratio(100);
        // 1024 × 1024 × 3 bytes are 3 MiB.
        let size = Size::new(1024, 1024);
        assert_eq!(kind(limits.check_ratio(31_458, size)), None);
        assert_eq!(kind(limits.check_ratio(31_457, size)), Some(ErrorKind::LimitExceeded));
        assert_eq!(kind(limits.check_ratio(1, Size::new(591, 591))), None);
        assert_eq!(
            kind(limits.check_ratio(1, Size::new(592, 592))),
            Some(ErrorKind::LimitExceeded)
        );
        let huge = Size::new(u32::MAX, u32::MAX);
        assert_eq!(kind(limits.check_ratio(usize::MAX, huge)), None);
    }

    // promise: R4
    #[test]
    fn concurrent_decodes_share_their_memory_and_a_large_one_runs_alone() {
        use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
        let limits = Limits::default().concurrent_bytes(100);
        let (used, peak) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for number in 0..16_u64 {
                let (limits, used, peak) = (limits.clone(), &used, &peak);
                scope.spawn(move || {
                    for turn in 0..50 {
                        // Every 16th decode needs more than the limit.
                        let bytes = if (number + turn) % 16 == 0 { 150 } else { 30 };
                        let memory = limits.start_decode(bytes);
                        let now = used.fetch_add(bytes, SeqCst) + bytes;
                        assert!(now <= 100 || now == 150, "{now}");
                        peak.fetch_max(now, SeqCst);
                        std::thread::yield_now();
                        used.fetch_sub(bytes, SeqCst);
                        drop(memory);
                    }
                });
            }
        });
        assert_eq!(peak.into_inner(), 150);
        // A panic of a decoder releases its memory.
        let panicked = std::panic::catch_unwind(|| {
            let _memory = limits.start_decode(100);
            panic!("a decoder");
        });
        assert!(panicked.is_err());
        drop(limits.start_decode(100));
    }

    // promise: R4
    #[test]
    fn decoders_of_more_threads_keep_less_scratch_memory() {
        let limits = Limits::default().concurrent_bytes(100);
        let one = limits.start_decode(60);
        assert!(!one.is_too_much_scratch(100));
        assert!(one.is_too_much_scratch(101));
        let two = limits.clone().start_decode(40);
        drop((one, two));
        // Both threads will decode again.
        let one = limits.start_decode(60);
        assert!(!one.is_too_much_scratch(50));
        assert!(one.is_too_much_scratch(51));
    }

    // promise: R4
    #[test]
    fn more_decodes_than_cpus_share_a_part_of_the_memory() {
        let mebibytes = |number: u64| number << 20;
        let mut decodes = ConcurrentDecodes::new(mebibytes(1000));
        decodes.cpus = 2;
        let mut state = DecodesState { used: mebibytes(100), granted: 1, ..Default::default() };
        assert!(decodes.has_room(&state, mebibytes(900)));
        assert!(!decodes.has_room(&state, mebibytes(901)));
        state.granted = 2;
        assert!(decodes.has_room(&state, mebibytes(28)));
        assert!(!decodes.has_room(&state, mebibytes(29)));
        state.ended = 2;
        assert!(decodes.has_room(&state, mebibytes(2000)));
    }
}
