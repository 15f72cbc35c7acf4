//! Which parts of video and audio files samples need.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use spdl_core::source::StageRng;
use spdl_core::{Error, ErrorKind, Result};
use spdl_io::records::{PartSelection, PartialFile, SelectParts};
use spdl_io::shards::IndexParts;

use super::audio::AudioWindow;
use crate::audio::{AudioLimits, AudioReader, AudioRegistry, AudioTransform, Resampler};
use crate::source::MediaSource;
use crate::video::{
    MatroskaContainer, Mp4Container, StoredVideoIndex, VideoClip, VideoLimits, VideoRegistry,
    bytes_of_clip, container_of, index_of, ranges_of, stored_index_of,
};

/// The bytes at the start of a video that are read first. They have the tables of short videos.
const FIRST_VIDEO_BYTES: u64 = 128 << 10;
/// The bytes at the start of an audio file that are read first.
const FIRST_AUDIO_BYTES: u64 = 16 << 10;
/// Extensions of files whose packets are found only in the whole file.
const WHOLE_VIDEO: [&str; 7] = ["avi", "flv", "mpeg", "mpg", "mts", "ts", "wmv"];
/// Extensions of files that list their key frames, which is enough for clips with times.
const CUED_VIDEO: [&str; 2] = ["mkv", "webm"];
/// Extensions of audio files that are decoded from the whole file, also of videos.
const WHOLE_AUDIO: [&str; 16] = [
    "aac", "aif", "aiff", "avi", "m4a", "mka", "mkv", "mov", "mp3", "mp4", "oga", "ogg", "opus",
    "ts", "webm", "wma",
];

/// Selects the packets of a clip, from the nearest key frame on.
#[derive(Debug)]
pub(super) struct VideoParts {
    registry: VideoRegistry,
    limits: VideoLimits,
    clip: VideoClip,
}

/// Selects the window of an audio file.
#[derive(Debug)]
pub(super) struct AudioParts {
    registry: AudioRegistry,
    limits: AudioLimits,
    transform: AudioTransform,
    /// The filters of the latest sample rates.
    resamplers: Mutex<Vec<(u32, Resampler)>>,
}

impl VideoParts {
    pub(super) fn new(registry: &VideoRegistry, limits: &VideoLimits, clip: &VideoClip) -> Self {
        VideoParts { registry: registry.clone(), limits: limits.clone(), clip: clip.clone() }
    }
}

impl AudioParts {
    pub(super) fn new(
        registry: &AudioRegistry,
        limits: &AudioLimits,
        transform: &AudioTransform,
    ) -> Self {
        let (registry, limits) = (registry.clone(), limits.clone());
        AudioParts { registry, limits, transform: transform.clone(), resamplers: Mutex::default() }
    }
}

impl SelectParts for VideoParts {
    fn first_bytes(&self) -> u64 {
        FIRST_VIDEO_BYTES
    }

    fn may_select(&self, extension: &str) -> bool {
        !WHOLE_VIDEO.contains(&extension)
            && (self.clip.is_by_seconds() || !CUED_VIDEO.contains(&extension))
    }

    fn uses_part_index(&self) -> bool {
        true
    }

    fn check(&self, file: &PartialFile) -> Result<()> {
        let Some(bytes) = file.part_index() else { return Ok(()) };
        StoredVideoIndex::parse(bytes)?
            .check(|packet| file.get(packet.offset..packet.offset + u64::from(packet.bytes)))
    }

    fn select(&self, file: &PartialFile, rng: &StageRng) -> Result<PartSelection> {
        RecordedReads::select(file, |file| {
            let mut rng = self.clip.is_random().then(|| rng.rng_of_part("clip"));
            if let Some(index) = stored_index_of(file, &self.limits)? {
                let chosen = self.clip.choose(&index, rng.as_mut())?;
                return ranges_of(&index, &chosen.frames, file.size()).map(PartSelection::Sample);
            }
            let container = container_of(&self.registry, file, &mut Vec::new())?;
            if !container.has_tables() {
                // Files whose cues are damaged are read whole.
                let (clip, limits) = (&self.clip, &self.limits);
                let bytes = bytes_of_clip(&*container, file, limits, clip, rng.as_mut());
                let parts = bytes.ok().flatten().map(|bytes| PartSelection::Sample(vec![bytes]));
                return Ok(parts.unwrap_or(PartSelection::Whole));
            }
            let index = index_of(&*container, file, &self.limits)?;
            let chosen = self.clip.choose(&index, rng.as_mut())?;
            ranges_of(&index, &chosen.frames, file.size()).map(PartSelection::Sample)
        })
    }
}

impl SelectParts for AudioParts {
    fn first_bytes(&self) -> u64 {
        FIRST_AUDIO_BYTES
    }

    fn may_select(&self, extension: &str) -> bool {
        !WHOLE_AUDIO.contains(&extension)
    }

    fn select(&self, file: &PartialFile, rng: &StageRng) -> Result<PartSelection> {
        RecordedReads::select(file, |file| {
            let mut reader = AudioReader::new(&self.registry, &self.limits);
            if !reader.has_parts(file)? {
                return Ok(PartSelection::Whole);
            }
            let info = reader.inspect_source(file)?;
            // No code under the lock panics.
            let mut resamplers = self.resamplers.lock().unwrap_or_else(PoisonError::into_inner);
            let mut rng = self.transform.draws().then(|| rng.rng());
            let window = AudioWindow::new(&self.transform, &info, &mut resamplers, rng.as_mut())?;
            let request = window.request;
            drop(resamplers);
            let parts = reader.parts(file, &request)?;
            Ok(parts.map_or(PartSelection::Whole, PartSelection::Sample))
        })
    }
}

/// Stores the index of the packets of MP4, MOV, Matroska and WebM files with their shards: see
/// [`ShardWriter::with_part_indexes`](spdl_io::shards::ShardWriter::with_part_indexes). Video fields of a
/// [`SampleSpec`](super::SampleSpec) that reads files [in parts](super::SampleSpec::in_parts) use it.
#[derive(Clone, Debug, Default)]
pub struct IndexVideoParts {
    limits: VideoLimits,
}

impl IndexVideoParts {
    /// Indexes with the default limits.
    pub fn new() -> Self {
        IndexVideoParts::default()
    }
}

impl IndexParts for IndexVideoParts {
    fn index(&self, _field: &str, content: &[u8]) -> Option<Vec<u8>> {
        let mut registry = VideoRegistry::new();
        registry.register_container(MatroskaContainer).register_container(Mp4Container);
        let container = container_of(&registry, &content, &mut Vec::new()).ok()?;
        let index = index_of(&*container, &content, &self.limits).ok()?;
        Some(StoredVideoIndex::new(index, content)?.to_bytes())
    }
}

/// A file that records which reads need bytes that are not in memory, and refuses them.
struct RecordedReads<'a> {
    file: &'a PartialFile,
    missing: RefCell<Vec<Range<u64>>>,
}

impl RecordedReads<'_> {
    /// Calls `select`. Its result is ignored if bytes were missing, which are then the selection.
    fn select(
        file: &PartialFile,
        select: impl FnOnce(&RecordedReads<'_>) -> Result<PartSelection>,
    ) -> Result<PartSelection> {
        let recorded = RecordedReads { file, missing: RefCell::default() };
        let selection = select(&recorded);
        let missing = recorded.missing.into_inner();
        if missing.is_empty() { selection } else { Ok(PartSelection::Index(missing)) }
    }
}

impl MediaSource for RecordedReads<'_> {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read<'a>(&'a self, range: Range<u64>, memory: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        if range.start <= range.end && range.end <= self.file.size() {
            let missing = self.file.missing(range.clone());
            if !missing.is_empty() {
                self.missing.borrow_mut().extend(missing);
                return Err(Error::new(ErrorKind::Truncated, "these bytes are not in memory yet"));
            }
        }
        MediaSource::read(self.file, range, memory)
    }

    fn part_index(&self) -> Option<&[u8]> {
        self.file.part_index()
    }

    fn will_read(&self, ranges: &[Range<u64>]) -> bool {
        let missing = ranges.iter().flat_map(|range| self.file.missing(range.clone()));
        self.missing.borrow_mut().extend(missing);
        true
    }
}
