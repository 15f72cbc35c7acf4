//! Decoders that wait to be used again: to make one takes longer than to decode many frames.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::format::{ChromaFormat, VideoCodec, VideoFormat};

/// What a decoder was made for. Videos of one kind may use the same, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DecoderConfig {
    pub(crate) codec: VideoCodec,
    pub(crate) chroma: ChromaFormat,
    pub(crate) bits: u32,
    /// The largest width and height.
    pub(crate) largest: (u32, u32),
    /// How many pictures it holds.
    pub(crate) surfaces: u32,
}

/// Pictures that a decoder holds beside those that the stream needs: that many are decoded while earlier
/// ones wait for their turn to be shown.
const AHEAD: u32 = 4;
/// More are not reliable on all devices.
const MOST_SURFACES: u32 = 32;

impl DecoderConfig {
    /// The kind for a video, where the device decodes pictures up to this width and height, and this many
    /// macroblocks (of 256 pixels).
    pub(crate) fn of(format: &VideoFormat, largest: (u32, u32), macroblocks: u32) -> DecoderConfig {
        let (width, height) = format.coded_size;
        let rounded = (class_of(width).min(largest.0), class_of(height).min(largest.1));
        let blocks = u64::from(rounded.0) * u64::from(rounded.1) / 256;
        let fits = rounded.0 >= width && rounded.1 >= height && blocks <= u64::from(macroblocks);
        let least = format.least_surfaces;
        let surfaces = (least + AHEAD).next_multiple_of(4).min(MOST_SURFACES).max(least);
        DecoderConfig {
            codec: format.codec,
            chroma: format.chroma,
            bits: format.bits,
            largest: if fits { rounded } else { (width, height) },
            surfaces,
        }
    }
}

/// Sides are rounded up by an eighth at most, to multiples of 16 at least.
fn class_of(side: u32) -> u32 {
    let step = (side / 16).checked_next_power_of_two().map_or(16, |step| step.max(16));
    side.checked_next_multiple_of(step).unwrap_or(side)
}

/// What waits, those that have waited longest first.
pub(crate) struct DecoderCache<D> {
    idle: Mutex<VecDeque<(DecoderConfig, D)>>,
    most: usize,
}

impl<D> DecoderCache<D> {
    /// At most so many wait.
    pub(crate) fn new(most: usize) -> Self {
        DecoderCache { idle: Mutex::default(), most }
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<(DecoderConfig, D)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of this kind, of those that were used last.
    pub(crate) fn take(&self, kind: &DecoderConfig) -> Option<D> {
        let mut idle = self.idle();
        let at = idle.iter().rposition(|(other, _)| other == kind)?;
        idle.remove(at).map(|(_, decoder)| decoder)
    }

    /// Keeps one. Those that have waited longest go, where there are too many.
    pub(crate) fn give_back(&self, kind: DecoderConfig, decoder: D) {
        let mut idle = self.idle();
        idle.push_back((kind, decoder));
        let surplus = idle.len().saturating_sub(self.most);
        let gone: Vec<_> = idle.drain(..surplus).collect();
        // To destroy one takes its time.
        drop(idle);
        drop(gone);
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.idle().len()
    }
}

impl<D> fmt::Debug for DecoderCache<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DecoderCache({} of {})", self.len(), self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::video::VideoColor;

    fn format(width: u32, height: u32, least_surfaces: u32) -> VideoFormat {
        VideoFormat {
            codec: VideoCodec::H264,
            chroma: ChromaFormat::Yuv420,
            bits: 8,
            size: (width, height),
            origin: (0, 0),
            coded_size: (width, height),
            frame_rate: None,
            color: VideoColor { primaries: 2, transfer: 2, matrix: 2, full_range: false },
            least_surfaces,
        }
    }

    fn kind(width: u32, height: u32) -> DecoderConfig {
        DecoderConfig::of(&format(width, height, 5), (4096, 4096), 65_536)
    }

    #[test]
    fn videos_of_nearly_the_same_size_share_a_kind_that_is_at_most_an_eighth_larger() {
        assert_eq!(kind(1920, 1088).largest, (1920, 1152));
        assert_eq!(kind(1900, 1080), kind(1920, 1088));
        assert_ne!(kind(1280, 720), kind(1920, 1088));
        for side in [1, 15, 16, 17, 100, 255, 256, 257, 1080, 1921, 4095] {
            let class = class_of(side);
            assert!(class >= side && class - side <= (side / 8).max(15), "{side}: {class}");
        }
        assert_eq!(class_of(u32::MAX), u32::MAX);
    }

    #[test]
    fn a_kind_is_never_larger_than_the_device_decodes() {
        let of =
            |largest, blocks| DecoderConfig::of(&format(4000, 4000, 5), largest, blocks).largest;
        assert_eq!(of((4096, 4096), 65_536), (4096, 4096));
        assert_eq!(of((4032, 4010), 65_536), (4032, 4010));
        assert_eq!(of((4096, 4096), 65_000), (4000, 4000));
    }

    #[test]
    fn there_are_more_surfaces_than_a_stream_needs_and_never_fewer() {
        let surfaces =
            |least| DecoderConfig::of(&format(64, 64, least), (4096, 4096), 65_536).surfaces;
        assert_eq!([1, 4, 5, 16, 30, 40].map(surfaces), [8, 8, 12, 20, 32, 40]);
    }

    #[test]
    fn what_waits_is_bounded_and_the_one_used_last_is_used_first() {
        let cache = DecoderCache::new(3);
        for number in 0..5 {
            cache.give_back(kind(64, 64), number);
        }
        cache.give_back(kind(320, 240), 5);
        assert_eq!(cache.len(), 3);
        assert_eq!(cache.take(&kind(320, 240)), Some(5));
        assert_eq!(cache.take(&kind(320, 240)), None);
        assert_eq!([(); 3].map(|()| cache.take(&kind(64, 64))), [Some(4), Some(3), None]);
    }
}
