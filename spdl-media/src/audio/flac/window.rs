//! The part of a FLAC file that has a window of frames, for files of which only parts are read.

use std::ops::Range;

use spdl_core::Result;

use super::StreamInfo;
use super::frame::FrameHeader;
use crate::source::MediaSource;

/// A search ends this number of bytes before the window: fewer bytes take less time than another read.
const NEAR: u64 = 128 << 10;
/// The least number of bytes of a read.
const PROBE: u64 = 32 << 10;
/// The maximum number of reads of a search.
const MAX_PROBES: u32 = 32;

/// A part of a file, from the start of a frame on, that has a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FlacWindow {
    pub(super) bytes: Range<u64>,
    /// The first sample of the first frame.
    pub(super) first: u64,
}

/// The start of a frame of FLAC: the position in the file, and the first sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FramePoint {
    at: u64,
    first: u64,
}

impl FlacWindow {
    /// Finds the part that has the samples `wanted`, which are not empty.
    ///
    /// The seek table and the mean bit rate show where frames are; a few frames between are read. The end is an
    /// estimate: see [`extend`](Self::extend).
    pub(super) fn find(
        stream: &StreamInfo,
        file: &dyn MediaSource,
        wanted: &Range<u64>,
    ) -> Result<Self> {
        let size = file.size();
        let total = match stream.total {
            None => stream.total_by_last_frame(file)?,
            total => total,
        };
        let total = total.unwrap_or(u64::MAX);
        let mut low = FramePoint { at: stream.start as u64, first: 0 };
        let mut high = FramePoint { at: size, first: total };
        let mut after = high;
        for &(first, at) in &stream.seek_points {
            let point = FramePoint { at: at as u64, first };
            if point.at <= low.at || point.at >= size {
                continue;
            }
            if first <= wanted.start {
                low = point;
            } else if first < high.first {
                high = point;
            }
            if first >= wanted.end && first < after.first {
                after = point;
            }
        }
        let largest = stream.largest_frame() as u64;
        let mut memory = Vec::new();
        for _ in 0..MAX_PROBES {
            let expected = expected_position(low, high, wanted.start);
            if high.at.saturating_sub(low.at) <= NEAR || expected <= low.at + NEAR {
                break;
            }
            // A little earlier, because a frame before the window is needed.
            let probe = expected - NEAR / 2;
            let read =
                probe..(probe + PROBE.max(largest + FrameHeader::MAX_SIZE as u64)).min(high.at);
            let data = file.read(read, &mut memory)?;
            let mut at = 0;
            let found = loop {
                let Some((found, first)) = stream.next_frame(data, at..data.len()) else {
                    break None;
                };
                if low.first < first && first < high.first {
                    break Some(FramePoint { at: probe + found as u64, first });
                }
                // Data that look like a header.
                at = found + 1;
            };
            match found {
                Some(point) if point.first <= wanted.start => low = point,
                Some(point) => high = point,
                None => high.at = probe,
            }
        }
        let end = match wanted.end >= total {
            true => size,
            false => {
                let expected = expected_position(low, after, wanted.end);
                let spare = (expected - low.at) / 4 + 2 * largest;
                // A frame that starts after the window.
                expected.saturating_add(spare).min(after.at)
            }
        };
        Ok(FlacWindow { bytes: low.at..end.max(low.at), first: low.first })
    }

    /// Doubles the part, because the window ends later, in a file of `size` bytes.
    pub(super) fn extend(&mut self, size: u64) {
        let more = (self.bytes.end - self.bytes.start).max(NEAR);
        self.bytes.end = self.bytes.end.saturating_add(more).min(size);
    }
}

/// The position of a sample between two frames, if all samples take the same number of bytes; in the middle if the
/// last sample is unknown.
fn expected_position(low: FramePoint, high: FramePoint, sample: u64) -> u64 {
    let bytes = high.at.saturating_sub(low.at);
    if high.first == u64::MAX {
        return low.at + bytes / 2;
    }
    let samples = u128::from(high.first.saturating_sub(low.first).max(1));
    let before = u128::from(sample.saturating_sub(low.first));
    low.at + (u128::from(bytes) * before / samples).min(u128::from(bytes)) as u64
}
