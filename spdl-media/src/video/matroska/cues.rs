//! The cues of Matroska: a list of key frames and of the clusters that have them.

use spdl_core::Result;

use super::super::cues::{VideoCues, VideoKeyFrame, bytes_between, key_at};
use super::super::index::{VideoIndex, VideoStream};
use super::super::limits::VideoLimits;
use super::{
    MatroskaScan, MatroskaTrack, corrupt, elements, find_number, id, time_base, truncated,
};
use crate::source::MediaSource;

/// The cues of the video track.
pub(super) struct MatroskaCues<'a> {
    file: &'a dyn MediaSource,
    limits: &'a VideoLimits,
    timestamp_scale: u64,
    track: MatroskaTrack,
    keys: Vec<VideoKeyFrame>,
    segment_end: Option<u64>,
}

/// The elements before the first cluster.
#[derive(Default)]
struct SegmentHead {
    /// The content of the segment.
    start: u64,
    end: Option<u64>,
    first_cluster: Option<u64>,
    cues: Option<Vec<u8>>,
    cues_position: Option<u64>,
}

impl<'a> MatroskaCues<'a> {
    /// Reads the elements before the first cluster, and the cues. `None` if the file has no cues for the
    /// video track, or they are not in order.
    pub(super) fn read(file: &'a dyn MediaSource, limits: &'a VideoLimits) -> Result<Option<Self>> {
        let mut scan = MatroskaScan::new(file, limits);
        let mut head = scan.head()?;
        if let (None, Some(position)) = (&head.cues, head.cues_position) {
            let element = scan.element(position)?;
            if element.id != id::CUES {
                return Ok(None);
            }
            head.cues = Some(scan.content(&element)?);
        }
        let MatroskaScan { timestamp_scale, track, .. } = scan;
        let (Some(mut track), Some(cues), Some(first_cluster)) =
            (track, head.cues, head.first_cluster)
        else {
            return Ok(None);
        };
        track.stream.time_base = time_base(timestamp_scale)?;
        let keys = keys(&cues, track.number, head.start);
        let is_ordered = keys.is_sorted_by(|one, next| one.timestamp < next.timestamp)
            && keys.is_sorted_by_key(|key| key.position);
        // Frames before the first cue would be unknown.
        if !is_ordered || keys.first().is_none_or(|key| key.position != first_cluster) {
            return Ok(None);
        }
        let segment_end = head.end;
        // The policy for truncated files applies to the whole index.
        if segment_end.is_some_and(|end| end > file.size()) {
            return Err(truncated(file.size()));
        }
        Ok(Some(MatroskaCues { file, limits, timestamp_scale, track, keys, segment_end }))
    }
}

impl VideoCues for MatroskaCues<'_> {
    fn stream(&self) -> &VideoStream {
        &self.track.stream
    }

    fn keys(&self) -> &[VideoKeyFrame] {
        &self.keys
    }

    fn index_between(&self, first: i64, last: i64) -> Result<VideoIndex> {
        let key = key_at(&self.keys, first);
        let VideoKeyFrame { timestamp, position } = self.keys[key];
        let ahead = bytes_between(&self.keys, first, last, self.file.size());
        // Damaged cues may name positions in any order, or outside of the file.
        if last >= first && ahead.start < ahead.end && ahead.end <= self.file.size() {
            self.file.will_read(&[ahead]);
        }
        let mut scan = MatroskaScan::new(self.file, self.limits);
        scan.timestamp_scale = self.timestamp_scale;
        scan.track = Some(self.track.clone());
        scan.last = Some(last);
        if scan.element(position)?.id != id::CLUSTER {
            return Err(corrupt("a cue names a position without a cluster", position));
        }
        scan.run(position, self.segment_end)?;
        let before = scan.blocks.iter().take_while(|block| !block.is_key).count();
        scan.blocks.drain(..before);
        if scan.blocks.first().is_none_or(|block| block.timestamp > timestamp) {
            return Err(corrupt("a cue names a cluster without its key frame", position));
        }
        scan.finish()
    }
}

impl MatroskaScan<'_> {
    /// Reads the elements before the first cluster.
    fn head(&mut self) -> Result<SegmentHead> {
        let mut head = SegmentHead::default();
        let mut at = 0;
        while at < self.windows.size {
            let element = self.element(at)?;
            match element.id {
                id::SEGMENT => {
                    head.start = element.content;
                    head.end = element.size.map(|size| element.content.saturating_add(size));
                    at = element.content;
                    continue;
                }
                id::SEEK_HEAD => {
                    let content = self.content(&element)?;
                    head.cues_position = seek_position(&content, id::CUES)
                        .map(|position| head.start.saturating_add(position));
                }
                id::INFO => self.info(&element)?,
                id::TRACKS => self.tracks(&element)?,
                id::CUES => head.cues = Some(self.content(&element)?),
                id::CLUSTER => {
                    head.first_cluster = Some(at);
                    break;
                }
                _ => {}
            }
            let size = element.size.ok_or_else(|| corrupt("element of unknown size", at))?;
            at = element.content.saturating_add(size);
        }
        Ok(head)
    }
}

/// The position of an element at the top level, relative to the segment.
fn seek_position(seek_head: &[u8], wanted: u32) -> Option<u64> {
    let mut seeks = elements(seek_head).filter(|&(id, _)| id == id::SEEK);
    let is_wanted = |seek: &&[u8]| find_number(seek, id::SEEK_ID) == Some(wanted.into());
    let seek = seeks.by_ref().map(|(_, seek)| seek).find(is_wanted)?;
    find_number(seek, id::SEEK_POSITION)
}

/// The cues of a track.
fn keys(cues: &[u8], track: u64, segment: u64) -> Vec<VideoKeyFrame> {
    let points = elements(cues).filter(|&(id, _)| id == id::CUE_POINT);
    points
        .filter_map(|(_, point)| {
            let timestamp = i64::try_from(find_number(point, id::CUE_TIME)?).ok()?;
            let mut tracks = elements(point).filter(|&(id, _)| id == id::CUE_TRACK_POSITIONS);
            let is_of_track =
                |positions: &&[u8]| find_number(positions, id::CUE_TRACK) == Some(track);
            let positions = tracks.by_ref().map(|(_, positions)| positions).find(is_of_track)?;
            let position = find_number(positions, id::CUE_CLUSTER_POSITION)?;
            Some(VideoKeyFrame { timestamp, position: segment.saturating_add(position) })
        })
        .collect()
}
