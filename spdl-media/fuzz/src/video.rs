//! Tables of video files.

use std::cell::Cell;
use std::ops::Range;

use spdl_core::Result;
use spdl_media::MediaSource;
use spdl_media::video::{MatroskaContainer, Mp4Container, VideoContainer, VideoIndex, VideoLimits};

use super::check_kind;
use super::choices::Choices;
use super::matroska_file::matroska_file;
use super::mp4_file::mp4_file;

/// Small limits, for speed.
pub(crate) fn limits() -> VideoLimits {
    VideoLimits::default()
        .max_pixels(1 << 16)
        .max_packets(1 << 16)
        .max_packet_bytes(1 << 20)
        .max_index_bytes(1 << 20)
}

/// The index of an MP4 file.
pub fn index_mp4(file: &[u8]) {
    index(&Mp4Container, file);
}

/// The index of a Matroska file.
pub fn index_matroska(file: &[u8]) {
    index(&MatroskaContainer, file);
}

/// The index of an MP4 file with valid boxes, and tables from the bytes.
pub fn index_mp4_tables(bytes: &[u8]) {
    index(&Mp4Container, &mp4_file(&mut Choices::new(bytes)));
}

/// The index of a Matroska file with valid elements, and clusters from the bytes.
pub fn index_matroska_clusters(bytes: &[u8]) {
    index(&MatroskaContainer, &matroska_file(&mut Choices::new(bytes)));
}

/// The shares of inputs for which the files of valid boxes and of valid elements have an index.
pub fn shares_with_index(inputs: &[Vec<u8>]) -> [f64; 2] {
    let limits = limits();
    let count = |has_index: &dyn Fn(&mut Choices<'_>) -> bool| {
        let found = inputs.iter().filter(|bytes| has_index(&mut Choices::new(bytes)));
        found.count() as f64 / inputs.len() as f64
    };
    [
        count(&|choices| Mp4Container.index(&&mp4_file(choices)[..], &limits).is_ok()),
        count(&|choices| MatroskaContainer.index(&&matroska_file(choices)[..], &limits).is_ok()),
    ]
}

/// A file in memory that checks ranges and counts the bytes that it returns.
struct CheckedSource<'a> {
    file: &'a [u8],
    read: Cell<u64>,
}

impl MediaSource for CheckedSource<'_> {
    fn size(&self) -> u64 {
        self.file.len() as u64
    }

    fn read<'a>(&'a self, range: Range<u64>, memory: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        assert!(range.start <= range.end, "{range:?}");
        let bytes = self.file.read(range, memory)?;
        self.read.set(self.read.get() + bytes.len() as u64);
        Ok(bytes)
    }

    fn will_read(&self, ranges: &[Range<u64>]) -> bool {
        assert!(ranges.iter().all(|range| range.start < range.end && range.end <= self.size()));
        true
    }
}

fn index(container: &dyn VideoContainer, file: &[u8]) {
    index_by_cues(container, file);
    let source = CheckedSource { file, read: Cell::new(0) };
    let outcome = container.index(&source, &limits());
    check_kind(outcome.as_ref().err());
    // A scan reads the header of each box or element, up to twice its size, and the content of some. There are
    // two scans: for tracks and blocks in Matroska, for the positions of fragments and for fragments in MP4.
    let most = 6 * file.len() as u64 + 1024;
    assert!(source.read.get() <= most, "{} bytes are read of {}", source.read.get(), file.len());
    let Ok(found) = outcome else { return };
    check_index(&found);
    let again = container.index(&source, &limits());
    assert_eq!(again.expect("a file with an index has it again"), found);
}

/// The parts of an index by the key frames that the file lists.
fn index_by_cues(container: &dyn VideoContainer, file: &[u8]) {
    let limits = limits();
    let source = CheckedSource { file, read: Cell::new(0) };
    let cues = container.cues(&source, &limits);
    check_kind(cues.as_ref().err());
    let Ok(Some(cues)) = cues else { return };
    assert!(cues.keys().is_sorted_by_key(|key| (key.timestamp, key.position)));
    let times = [i64::MIN, cues.keys()[0].timestamp, cues.keys()[cues.keys().len() / 2].timestamp];
    for first in times {
        for last in [first.saturating_sub(1), first, first.saturating_add(100), i64::MAX] {
            let part = cues.index_between(first, last);
            check_kind(part.as_ref().err());
            part.iter().for_each(check_index);
        }
    }
}

/// An index refers to its packets, in order, without overflow.
pub(crate) fn check_index(index: &VideoIndex) {
    let packets = index.packets();
    assert!(!packets.is_empty() && packets.len() <= 1 << 16);
    assert!(packets.iter().any(|packet| packet.is_key));
    assert!(packets.iter().all(|it| it.offset.checked_add(it.bytes.into()).is_some()));
    if let Some(bytes) = index.packet_bytes() {
        let size = bytes.len() as u64;
        assert!(packets.iter().all(|it| it.offset + u64::from(it.bytes) <= size));
    }
    let frames = index.frames();
    assert!(!frames.is_empty());
    assert!(frames.iter().all(|frame| (frame.packet as usize) < packets.len()));
    assert!(frames.is_sorted_by_key(|frame| frame.timestamp));
    assert!(index.reorder_depth() <= 16);
    let (start, end) = (index.start_seconds(), index.end_seconds());
    assert!(start.is_finite() && end.is_finite() && start <= end);
    assert!(index.frames_per_second().is_finite());
    for seconds in [f64::NEG_INFINITY, start, end, f64::INFINITY] {
        assert!(index.frame_at(seconds) < frames.len());
    }
}
