//! Keeps idle decoders for reuse, because creating a decoder takes longer than decoding many
//! frames.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::format::{ChromaFormat, VideoCodec, VideoFormat};

/// The configuration of a decoder. One decoder can decode several videos of the same configuration
/// one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DecoderConfig {
    pub(crate) codec: VideoCodec,
    pub(crate) chroma: ChromaFormat,
    pub(crate) bits: u32,
    /// Maximum width and height.
    pub(crate) max_size: (u32, u32),
    /// Number of decode surfaces.
    pub(crate) surfaces: u32,
}

/// Decode surfaces in addition to the minimum of the stream, so that pictures can be decoded while
/// earlier pictures wait for output.
const EXTRA_SURFACES: u32 = 4;
/// Maximum number of decode surfaces, unless the stream needs more: not all devices support more.
const MAX_SURFACES: u32 = 32;

impl DecoderConfig {
    /// The configuration for a video, within the limits of the device on size and number of
    /// macroblocks (16x16 pixels).
    pub(crate) fn of(
        format: &VideoFormat,
        device_max: (u32, u32),
        macroblocks: u32,
    ) -> DecoderConfig {
        let (width, height) = format.coded_size;
        let rounded =
            (rounded_side(width).min(device_max.0), rounded_side(height).min(device_max.1));
        let blocks = u64::from(rounded.0) * u64::from(rounded.1) / 256;
        let fits = rounded.0 >= width && rounded.1 >= height && blocks <= u64::from(macroblocks);
        let min = format.min_surfaces;
        let surfaces = (min + EXTRA_SURFACES).next_multiple_of(4).min(MAX_SURFACES).max(min);
        DecoderConfig {
            codec: format.codec,
            chroma: format.chroma,
            bits: format.bits,
            max_size: if fits { rounded } else { (width, height) },
            surfaces,
        }
    }
}

/// Rounds a side up to a multiple of 16, or of a larger power of two that is at most an eighth of
/// the side.
fn rounded_side(side: u32) -> u32 {
    let step = (side / 16).checked_next_power_of_two().map_or(16, |step| step.max(16));
    side.checked_next_multiple_of(step).unwrap_or(side)
}

/// Idle decoders, least recently used first.
pub(crate) struct DecoderCache<D> {
    idle: Mutex<VecDeque<(DecoderConfig, D)>>,
    capacity: usize,
}

impl<D> DecoderCache<D> {
    pub(crate) fn new(capacity: usize) -> Self {
        DecoderCache { idle: Mutex::default(), capacity }
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<(DecoderConfig, D)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns the most recently used decoder of this configuration.
    pub(crate) fn take(&self, config: &DecoderConfig) -> Option<D> {
        let mut idle = self.idle();
        let at = idle.iter().rposition(|(other, _)| other == config)?;
        idle.remove(at).map(|(_, decoder)| decoder)
    }

    /// Adds a decoder. If the capacity is exceeded, evicts the least recently used decoder.
    pub(crate) fn put(&self, config: DecoderConfig, decoder: D) {
        let mut idle = self.idle();
        idle.push_back((config, decoder));
        let surplus = idle.len().saturating_sub(self.capacity);
        let evicted: Vec<_> = idle.drain(..surplus).collect();
        // Destroying a decoder is slow, so the lock is released first.
        drop(idle);
        drop(evicted);
    }

    /// The number of idle decoders.
    pub(crate) fn len(&self) -> usize {
        self.idle().len()
    }
}

impl<D> fmt::Debug for DecoderCache<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DecoderCache({} of {})", self.len(), self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::video::VideoColor;

    fn format(width: u32, height: u32, min_surfaces: u32) -> VideoFormat {
        VideoFormat {
            codec: VideoCodec::H264,
            chroma: ChromaFormat::Yuv420,
            bits: 8,
            size: (width, height),
            origin: (0, 0),
            coded_size: (width, height),
            frame_rate: None,
            color: VideoColor { primaries: 2, transfer: 2, matrix: 2, full_range: false },
            min_surfaces,
        }
    }

    fn config(width: u32, height: u32) -> DecoderConfig {
        DecoderConfig::of(&format(width, height, 5), (4096, 4096), 65_536)
    }

    #[test]
    fn videos_of_similar_size_share_a_configuration() {
        assert_eq!(config(1920, 1088).max_size, (1920, 1152));
        assert_eq!(config(1900, 1080), config(1920, 1088));
        assert_ne!(config(1280, 720), config(1920, 1088));
        for side in [1, 15, 16, 17, 100, 255, 256, 257, 1080, 1921, 4095] {
            let rounded = rounded_side(side);
            assert!(rounded >= side && rounded - side <= (side / 8).max(15), "{side}: {rounded}");
        }
        assert_eq!(rounded_side(u32::MAX), u32::MAX);
    }

    #[test]
    fn a_configuration_is_within_the_device_limits() {
        let of = |max, blocks| DecoderConfig::of(&format(4000, 4000, 5), max, blocks).max_size;
        assert_eq!(of((4096, 4096), 65_536), (4096, 4096));
        assert_eq!(of((4032, 4010), 65_536), (4032, 4010));
        assert_eq!(of((4096, 4096), 65_000), (4000, 4000));
    }

    #[test]
    fn there_are_more_surfaces_than_the_minimum() {
        let surfaces = |min| DecoderConfig::of(&format(64, 64, min), (4096, 4096), 65_536).surfaces;
        assert_eq!([1, 4, 5, 16, 30, 40].map(surfaces), [8, 8, 12, 20, 32, 40]);
    }

    #[test]
    fn the_cache_is_bounded_and_takes_the_most_recently_used_first() {
        let cache = DecoderCache::new(3);
        for number in 0..5 {
            cache.put(config(64, 64), number);
        }
        cache.put(config(320, 240), 5);
        assert_eq!(cache.len(), 3);
        assert_eq!(cache.take(&config(320, 240)), Some(5));
        assert_eq!(cache.take(&config(320, 240)), None);
        assert_eq!([(); 3].map(|()| cache.take(&config(64, 64))), [Some(4), Some(3), None]);
    }
}
