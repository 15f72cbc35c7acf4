//! Matroska and WebM files.

mod cues;
#[cfg(test)]
mod tests;

use spdl_core::{Error, ErrorKind, Result};

use self::cues::MatroskaCues;
use super::codec::VideoContainer;
use super::cues::VideoCues;
use super::index::{VideoColor, VideoFrame, VideoIndex, VideoPacket, VideoStream};
use super::limits::VideoLimits;
use super::mp4::codec_of_entry;
use crate::image::{ChromaPosition, ChromaSiting, Orientation, Size};
use crate::source::MediaSource;

/// Element identifiers, with their length marker.
mod id {
    pub(super) const EBML: u32 = 0x1A45_DFA3;
    pub(super) const SEGMENT: u32 = 0x1853_8067;
    pub(super) const SEEK_HEAD: u32 = 0x114D_9B74;
    pub(super) const SEEK: u32 = 0x4DBB;
    pub(super) const SEEK_ID: u32 = 0x53AB;
    pub(super) const SEEK_POSITION: u32 = 0x53AC;
    pub(super) const INFO: u32 = 0x1549_A966;
    pub(super) const TIMESTAMP_SCALE: u32 = 0x2A_D7B1;
    pub(super) const TRACKS: u32 = 0x1654_AE6B;
    pub(super) const TRACK_ENTRY: u32 = 0xAE;
    pub(super) const TRACK_NUMBER: u32 = 0xD7;
    pub(super) const TRACK_TYPE: u32 = 0x83;
    pub(super) const FLAG_ENABLED: u32 = 0xB9;
    pub(super) const DEFAULT_DURATION: u32 = 0x23_E383;
    pub(super) const CODEC_ID: u32 = 0x86;
    pub(super) const CODEC_PRIVATE: u32 = 0x63A2;
    pub(super) const VIDEO: u32 = 0xE0;
    pub(super) const PIXEL_WIDTH: u32 = 0xB0;
    pub(super) const PIXEL_HEIGHT: u32 = 0xBA;
    pub(super) const COLOUR: u32 = 0x55B0;
    pub(super) const MATRIX_COEFFICIENTS: u32 = 0x55B1;
    pub(super) const CHROMA_SITING_HORIZONTAL: u32 = 0x55B7;
    pub(super) const CHROMA_SITING_VERTICAL: u32 = 0x55B8;
    pub(super) const RANGE: u32 = 0x55B9;
    pub(super) const TRANSFER_CHARACTERISTICS: u32 = 0x55BA;
    pub(super) const PRIMARIES: u32 = 0x55BB;
    pub(super) const PROJECTION: u32 = 0x7670;
    pub(super) const POSE_ROLL: u32 = 0x7675;
    pub(super) const CONTENT_ENCODINGS: u32 = 0x6D80;
    pub(super) const CONTENT_ENCODING: u32 = 0x6240;
    pub(super) const ENCODING_SCOPE: u32 = 0x5032;
    pub(super) const ENCODING_TYPE: u32 = 0x5033;
    pub(super) const COMPRESSION: u32 = 0x5034;
    pub(super) const COMPRESSION_ALGORITHM: u32 = 0x4254;
    pub(super) const COMPRESSION_SETTINGS: u32 = 0x4255;
    pub(super) const CLUSTER: u32 = 0x1F43_B675;
    pub(super) const TIMESTAMP: u32 = 0xE7;
    pub(super) const SIMPLE_BLOCK: u32 = 0xA3;
    pub(super) const BLOCK_GROUP: u32 = 0xA0;
    pub(super) const BLOCK: u32 = 0xA1;
    pub(super) const BLOCK_DURATION: u32 = 0x9B;
    pub(super) const REFERENCE_BLOCK: u32 = 0xFB;
    pub(super) const CUES: u32 = 0x1C53_BB6B;
    pub(super) const CUE_POINT: u32 = 0xBB;
    pub(super) const CUE_TIME: u32 = 0xB3;
    pub(super) const CUE_TRACK_POSITIONS: u32 = 0xB7;
    pub(super) const CUE_TRACK: u32 = 0xF7;
    pub(super) const CUE_CLUSTER_POSITION: u32 = 0xF1;
}

/// The bytes that are read from the file at a time.
const WINDOW: u64 = 64 << 10;
/// The maximum length of the header of an element: identifier and size.
const ELEMENT_HEADER: usize = 12;
/// The maximum length of the header of a block: track number, time and flags.
const BLOCK_HEADER: usize = 11;
/// The maximum number of elements of a file, per packet that the limits allow, and the minimum.
const MIN_ELEMENTS: u64 = 1 << 20;
/// `BITMAPINFOHEADER`, before the set-up data of the codec.
const BITMAP_INFO_HEADER: usize = 40;

/// Matroska and WebM files.
///
/// The index has the first enabled video track. The clusters are scanned: headers of elements and
/// blocks are read, in steps of 64 KiB, and large blocks are skipped.
///
/// A file that ends inside an element of known size, after its first complete block, has an index of its
/// complete blocks, which is [truncated](VideoIndex::is_truncated). The segment and the clusters of a live
/// recording may have unknown sizes: it may end after any block. Blocks with lacing are unsupported.
#[derive(Clone, Copy, Debug, Default)]
pub struct MatroskaContainer;

impl VideoContainer for MatroskaContainer {
    fn name(&self) -> &'static str {
        "matroska"
    }

    fn sniff(&self, head: &[u8]) -> bool {
        let has = |name: &[u8]| head.windows(name.len()).take(1024).any(|window| window == name);
        head.starts_with(&id::EBML.to_be_bytes()) && (has(b"matroska") || has(b"webm"))
    }

    fn index(&self, file: &dyn MediaSource, limits: &VideoLimits) -> Result<VideoIndex> {
        let mut scan = MatroskaScan::new(file, limits);
        scan.find_tracks()?;
        match scan.run(0, None) {
            Ok(()) => scan.finish(),
            Err(error) if error.kind() == ErrorKind::Truncated && !scan.blocks.is_empty() => {
                scan.finish().map(VideoIndex::truncated)
            }
            Err(error) => Err(error),
        }
    }

    fn cues<'a>(
        &self,
        file: &'a dyn MediaSource,
        limits: &'a VideoLimits,
    ) -> Result<Option<Box<dyn VideoCues + 'a>>> {
        let cues = MatroskaCues::read(file, limits)?;
        Ok(cues.map(|cues| Box::new(cues) as Box<dyn VideoCues>))
    }
}

/// The header of an element.
#[derive(Clone, Copy, Debug)]
struct EbmlElement {
    id: u32,
    /// The position of the content in the file.
    content: u64,
    /// The size of the content; `None` if it is unknown.
    size: Option<u64>,
}

/// A block of the video track.
#[derive(Clone, Copy, Debug)]
struct MatroskaBlock {
    offset: u64,
    bytes: u32,
    timestamp: i64,
    duration: Option<u64>,
    is_key: bool,
    is_disposable: bool,
    /// Whether the frame is presented.
    is_shown: bool,
}

/// The video track.
#[derive(Clone, Debug)]
struct MatroskaTrack {
    number: u64,
    /// Nanoseconds.
    frame_duration: u64,
    /// The bytes that precede every packet, if they are stripped from the blocks.
    stripped: Vec<u8>,
    stream: VideoStream,
}

/// Reads a file in windows.
struct FileWindows<'a> {
    file: &'a dyn MediaSource,
    /// The size of the file.
    size: u64,
    memory: Vec<u8>,
    start: u64,
}

impl FileWindows<'_> {
    /// The bytes from `at` on: `bytes` of them, fewer at the end of the file.
    fn peek(&mut self, at: u64, bytes: usize) -> Result<&[u8]> {
        let size = self.size;
        let end = at.saturating_add(bytes as u64).min(size);
        if at >= end {
            return Ok(&[]);
        }
        let loaded = self.start..self.start + self.memory.len() as u64;
        if at < loaded.start || end > loaded.end {
            let window = at..at.saturating_add(WINDOW.max(bytes as u64)).min(size);
            let mut memory = std::mem::take(&mut self.memory);
            let read = self.file.read(window, &mut memory)?;
            // Sources in memory leave the buffer alone.
            self.memory = read.to_vec();
            self.start = at;
        }
        let from = (at - self.start) as usize;
        Ok(&self.memory[from..from + (end - at) as usize])
    }
}

/// The scan of a file.
struct MatroskaScan<'a> {
    windows: FileWindows<'a>,
    limits: &'a VideoLimits,
    elements: u64,
    /// Nanoseconds.
    timestamp_scale: u64,
    track: Option<MatroskaTrack>,
    blocks: Vec<MatroskaBlock>,
    /// If it is set, the scan ends when all blocks with time stamps up to this one are known.
    last: Option<i64>,
    /// The first key frame after `last`.
    key_after: Option<i64>,
    is_complete: bool,
}

impl<'a> MatroskaScan<'a> {
    fn new(file: &'a dyn MediaSource, limits: &'a VideoLimits) -> Self {
        let windows = FileWindows { file, size: file.size(), memory: Vec::new(), start: 0 };
        MatroskaScan {
            windows,
            limits,
            elements: 0,
            timestamp_scale: 1_000_000,
            track: None,
            blocks: Vec::new(),
            last: None,
            key_after: None,
            is_complete: false,
        }
    }

    /// The header of the element at `at`.
    fn element(&mut self, at: u64) -> Result<EbmlElement> {
        self.elements += 1;
        // Every packet is an element, and most files have few others.
        let most = (self.elements / 16).saturating_sub(MIN_ELEMENTS);
        self.limits.check_packets(most)?;
        let size = self.windows.size;
        let header = self.windows.peek(at, ELEMENT_HEADER)?;
        let is_complete = header.len() == ELEMENT_HEADER;
        let parsed = element_header(header);
        let Some((id, size_of_content, length)) = parsed else {
            return Err(match is_complete {
                true => corrupt("invalid header of an element", at),
                false => truncated(size),
            });
        };
        Ok(EbmlElement { id, content: at + length as u64, size: size_of_content })
    }

    /// The content of an element.
    fn content(&mut self, element: &EbmlElement) -> Result<Vec<u8>> {
        let size = element.size;
        let size = size.ok_or_else(|| corrupt("element of unknown size", element.content))?;
        self.limits.check_index_bytes(size)?;
        let file_bytes = self.windows.size;
        if element.content.saturating_add(size) > file_bytes {
            return Err(truncated(file_bytes));
        }
        Ok(self.windows.peek(element.content, size as usize)?.to_vec())
    }

    /// Finds the tracks. They may follow the clusters.
    fn find_tracks(&mut self) -> Result<()> {
        let file_bytes = self.windows.size;
        let (mut at, mut segment_end) = (0, 0);
        while at < file_bytes {
            let element = self.element(at)?;
            let content = element.content;
            at = match (element.id, element.size) {
                (id::SEGMENT, size) => {
                    segment_end = content.saturating_add(size.unwrap_or(0));
                    content
                }
                (id::TRACKS, _) => return self.tracks(&element),
                (_, Some(size)) => content.saturating_add(size),
                (_, None) => return Err(corrupt("tracks not found before the clusters", at)),
            };
        }
        match at.max(segment_end) > file_bytes {
            true => Err(truncated(file_bytes)),
            false => Err(corrupt("no tracks found", 0)),
        }
    }

    fn tracks(&mut self, element: &EbmlElement) -> Result<()> {
        let tracks = self.content(element)?;
        let entries = elements(&tracks).filter(|&(id, _)| id == id::TRACK_ENTRY);
        self.limits.check_streams(entries.count() as u64)?;
        self.track = Some(video_track(&tracks, element.content)?);
        Ok(())
    }

    fn info(&mut self, element: &EbmlElement) -> Result<()> {
        let scale = find_number(&self.content(element)?, id::TIMESTAMP_SCALE);
        self.timestamp_scale = scale.unwrap_or(self.timestamp_scale);
        Ok(())
    }

    /// Scans for blocks of the track, from an element at the top level on.
    fn run(&mut self, mut at: u64, mut segment_end: Option<u64>) -> Result<()> {
        let file_bytes = self.windows.size;
        let mut cluster_time = 0;
        let mut stated_end = segment_end.unwrap_or(0);
        while at < file_bytes.min(segment_end.unwrap_or(u64::MAX)) {
            let element = self.element(at)?;
            let end = element.size.map(|size| element.content.saturating_add(size));
            // Segments and clusters are entered: their elements follow.
            match element.id {
                id::SEGMENT => {
                    segment_end = end;
                    stated_end = stated_end.max(end.unwrap_or(0));
                    at = element.content;
                    continue;
                }
                id::CLUSTER => {
                    cluster_time = 0;
                    stated_end = stated_end.max(end.unwrap_or(0));
                    at = element.content;
                    continue;
                }
                id::INFO => self.info(&element)?,
                id::TIMESTAMP => {
                    let time = number(&self.content(&element)?);
                    cluster_time = i64::try_from(time)
                        .map_err(|_| corrupt("invalid time stamp of a cluster", at))?;
                }
                id::SIMPLE_BLOCK => {
                    let block = self.block(&element, cluster_time)?;
                    self.push(block)?;
                }
                id::BLOCK_GROUP => self.block_group(&element, cluster_time)?,
                _ => {}
            }
            if self.is_complete {
                return Ok(());
            }
            at = end.ok_or_else(|| corrupt("element of unknown size", at))?;
        }
        match stated_end.max(at) > file_bytes {
            true => Err(truncated(file_bytes)),
            false => Ok(()),
        }
    }

    /// Reads a `BlockGroup`.
    fn block_group(&mut self, group: &EbmlElement, cluster_time: i64) -> Result<()> {
        let size = group.size.ok_or_else(|| corrupt("element of unknown size", group.content))?;
        let end = group.content.saturating_add(size);
        let (mut block, mut duration, mut is_key) = (None, None, true);
        let mut at = group.content;
        while at < end {
            let element = self.element(at)?;
            let size = element.size.ok_or_else(|| corrupt("element of unknown size", at))?;
            let next = element.content.saturating_add(size);
            // The scan continues at the end of the group, so it would read the rest of the element again.
            if next > end {
                return Err(corrupt("element ends after its block group", at));
            }
            match element.id {
                id::BLOCK => block = self.block(&element, cluster_time)?,
                id::BLOCK_DURATION => duration = Some(number(&self.content(&element)?)),
                id::REFERENCE_BLOCK => is_key = false,
                _ => {}
            }
            at = next;
        }
        // The flags of a block in a group are reserved.
        let block =
            block.map(|block| MatroskaBlock { duration, is_key, is_disposable: false, ..block });
        self.push(block)
    }

    /// Reads the header of a block; `None` if it belongs to another track.
    fn block(&mut self, element: &EbmlElement, cluster_time: i64) -> Result<Option<MatroskaBlock>> {
        let at = element.content;
        let size = element.size.ok_or_else(|| corrupt("block of unknown size", at))?;
        let Some(track) = &self.track else { return Ok(None) };
        let number = track.number;
        let file_bytes = self.windows.size;
        if at.saturating_add(size) > file_bytes {
            return Err(truncated(file_bytes));
        }
        let header = self.windows.peek(at, BLOCK_HEADER.min(size as usize))?;
        let fields = variable_number(header).and_then(|(number, length)| {
            Some((number, length, *header.get(length..)?.first_chunk()?))
        });
        let Some((block_track, length, [high, low, flags])) = fields else {
            return Err(corrupt("block too short for its header", at));
        };
        if block_track != Some(number) {
            return Ok(None);
        }
        if flags & 0x06 != 0 {
            let message = "Matroska video with lacing is unsupported";
            return Err(Error::new(ErrorKind::Unsupported, message).with_offset(at));
        }
        let is_vp8 = track.stream.codec == "vp8";
        let first_byte = header.get(length + 3).copied().unwrap_or(0x10);
        let first_byte = track.stripped.first().copied().unwrap_or(first_byte);
        let header = length as u64 + 3;
        let bytes = size - header;
        self.limits.check_packet_bytes(bytes)?;
        let timestamp = cluster_time.saturating_add(i16::from_be_bytes([high, low]).into());
        let bytes = u32::try_from(bytes).map_err(|_| corrupt("block too large", at))?;
        Ok(Some(MatroskaBlock {
            offset: at + header,
            bytes,
            timestamp,
            duration: None,
            is_key: flags & 0x80 != 0,
            is_disposable: flags & 0x01 != 0,
            // VP8 stores frames that are only referred to in blocks of the same kind.
            is_shown: flags & 0x08 == 0 && !(is_vp8 && first_byte & 0x10 == 0),
        }))
    }

    fn push(&mut self, block: Option<MatroskaBlock>) -> Result<()> {
        let Some(block) = block else { return Ok(()) };
        self.limits.check_packets(self.blocks.len() as u64 + 1)?;
        self.blocks.try_reserve(1).map_err(|_| {
            let message = format!("cannot allocate the index of {} packets", self.blocks.len());
            Error::new(ErrorKind::LimitExceeded, message)
        })?;
        self.blocks.push(block);
        // Leading frames of a key frame, which are presented before it, directly follow it.
        match (self.last, self.key_after) {
            (Some(last), None) if block.is_key && block.timestamp > last => {
                self.key_after = Some(block.timestamp);
            }
            (_, Some(key)) => self.is_complete = block.is_key || block.timestamp > key,
            _ => {}
        }
        Ok(())
    }

    /// The index of the blocks.
    fn finish(self) -> Result<VideoIndex> {
        let MatroskaScan { windows, limits, timestamp_scale, track, blocks, .. } = self;
        let Some(MatroskaTrack { frame_duration, stripped, mut stream, .. }) = track else {
            return Err(Error::new(ErrorKind::Corrupt, "corrupt Matroska: no video track found"));
        };
        stream.time_base = time_base(timestamp_scale)?;
        let mut packets: Vec<_> = blocks
            .iter()
            .map(|block| VideoPacket {
                offset: block.offset,
                bytes: block.bytes,
                timestamp: block.timestamp,
                is_key: block.is_key,
                is_disposable: block.is_disposable,
            })
            .collect();
        let end = end_of(&blocks, frame_duration / timestamp_scale.max(1));
        let mut frames: Vec<_> = (0_u32..)
            .zip(&blocks)
            .filter(|(_, block)| block.is_shown)
            .map(|(packet, block)| VideoFrame { packet, timestamp: block.timestamp })
            .collect();
        frames.sort_by_key(|frame| frame.timestamp);
        if stripped.is_empty() {
            return VideoIndex::with_frames(stream, packets, frames, end);
        }
        let total: u64 = packets.iter().map(|packet| u64::from(packet.bytes)).sum();
        let total = total.saturating_add(stripped.len() as u64 * packets.len() as u64);
        limits.check_index_bytes(total)?;
        let mut copy = Vec::new();
        let allocated = copy.try_reserve_exact(total as usize);
        allocated.map_err(|_| {
            let message = format!("cannot allocate {total} bytes for the packets of a video");
            Error::new(ErrorKind::LimitExceeded, message)
        })?;
        let mut memory = Vec::new();
        for packet in &mut packets {
            let range = packet.offset..packet.offset + u64::from(packet.bytes);
            packet.offset = copy.len() as u64;
            copy.extend_from_slice(&stripped);
            copy.extend_from_slice(windows.file.read(range, &mut memory)?);
            let bytes = u32::try_from(copy.len() as u64 - packet.offset);
            packet.bytes = bytes.map_err(|_| corrupt("block too large", packet.offset))?;
        }
        Ok(VideoIndex::with_frames(stream, packets, frames, end)?.with_packet_bytes(copy))
    }
}

/// When the last frame ends, in units of time stamps. Without a duration, the last frame is as long
/// as the one before it.
fn end_of(blocks: &[MatroskaBlock], frame_duration: u64) -> i64 {
    let Some(last) = blocks.iter().max_by_key(|block| block.timestamp) else { return 0 };
    let before = blocks.iter().map(|block| block.timestamp).filter(|&time| time < last.timestamp);
    let gap = before.max().map_or(0, |before| last.timestamp.saturating_sub(before));
    let known = last.duration.or(Some(frame_duration).filter(|&duration| duration > 0));
    let duration = known.map_or(gap, |known| i64::try_from(known).unwrap_or(i64::MAX));
    last.timestamp.saturating_add(duration)
}

/// The time base for time stamps of `scale` nanoseconds.
fn time_base(scale: u64) -> Result<(u32, u32)> {
    const SECOND: u32 = 1_000_000_000;
    let scale = u32::try_from(scale).ok().filter(|&scale| scale > 0).ok_or_else(|| {
        let message = format!("corrupt Matroska: invalid time stamp scale of {scale} ns");
        Error::new(ErrorKind::Corrupt, message)
    })?;
    let (mut divisor, mut rest) = (SECOND, scale);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    Ok((scale / divisor, SECOND / divisor))
}

fn corrupt(problem: &str, offset: u64) -> Error {
    Error::new(ErrorKind::Corrupt, format!("corrupt Matroska: {problem}")).with_offset(offset)
}

fn truncated(size: u64) -> Error {
    let message = "truncated Matroska: the file ends inside an element";
    Error::new(ErrorKind::Truncated, message).with_offset(size)
}

/// A number of variable length, and its length in bytes. The number is `None` if all its bits are
/// set: an unknown size.
fn variable_number(bytes: &[u8]) -> Option<(Option<u64>, usize)> {
    let &first = bytes.first()?;
    let length = first.leading_zeros() as usize + 1;
    let bytes = bytes.get(..length).filter(|_| length <= 8)?;
    let all = number(bytes);
    let mask = (1_u64 << (7 * length)) - 1;
    let value = all & mask;
    Some(((value != mask).then_some(value), length))
}

/// Identifier and content size of an element, and the length of this header.
fn element_header(bytes: &[u8]) -> Option<(u32, Option<u64>, usize)> {
    let length = bytes.first()?.leading_zeros() as usize + 1;
    let id = number(bytes.get(..length).filter(|_| length <= 4)?) as u32;
    let (size, size_length) = variable_number(bytes.get(length..)?)?;
    Some((id, size, length + size_length))
}

/// A big-endian number; 0 if it has no bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// The elements in the content of an element: identifiers and contents. Damage ends the list.
fn elements(content: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let mut rest = content;
    std::iter::from_fn(move || {
        let (id, size, length) = element_header(rest)?;
        let after = rest.get(length..)?;
        let size = usize::try_from(size?).ok()?;
        let (content, after) = after.split_at_checked(size)?;
        rest = after;
        Some((id, content))
    })
}

fn find(content: &[u8], id: u32) -> Option<&[u8]> {
    elements(content).find(|&(found, _)| found == id).map(|(_, content)| content)
}

fn find_number(content: &[u8], id: u32) -> Option<u64> {
    find(content, id).map(number)
}

/// The first enabled video track of `Tracks`.
fn video_track(tracks: &[u8], offset: u64) -> Result<MatroskaTrack> {
    const VIDEO_TRACK: u64 = 1;
    let entries = elements(tracks).filter(|&(id, _)| id == id::TRACK_ENTRY);
    let mut videos = entries
        .map(|(_, entry)| entry)
        .filter(|entry| find_number(entry, id::TRACK_TYPE) == Some(VIDEO_TRACK));
    let is_enabled = |entry: &&[u8]| find_number(entry, id::FLAG_ENABLED) != Some(0);
    let Some(first) = videos.next() else {
        return Err(corrupt("no video track found", offset));
    };
    let enabled = std::iter::once(first).chain(videos).find(is_enabled);
    let entry = enabled.unwrap_or(first);

    let missing = |what: &str| corrupt(&format!("{what} of the video track not found"), offset);
    let number = find_number(entry, id::TRACK_NUMBER).ok_or_else(|| missing("number"))?;
    let codec = find(entry, id::CODEC_ID).ok_or_else(|| missing("codec"))?;
    let private = find(entry, id::CODEC_PRIVATE).unwrap_or_default();
    let (codec, setup) = codec_and_setup(codec, private);
    let video = find(entry, id::VIDEO).unwrap_or_default();
    let side = |id| find_number(video, id).and_then(|side| u32::try_from(side).ok()).unwrap_or(0);
    let mut stream =
        VideoStream::new(codec, Size::new(side(id::PIXEL_WIDTH), side(id::PIXEL_HEIGHT)));
    stream.setup = setup.to_vec();
    let roll = find(video, id::PROJECTION).and_then(|projection| find(projection, id::POSE_ROLL));
    stream.orientation = roll.map_or(Orientation::Upright, roll_orientation);
    stream.color = find(video, id::COLOUR).map(color).unwrap_or_default();
    Ok(MatroskaTrack {
        number,
        frame_duration: find_number(entry, id::DEFAULT_DURATION).unwrap_or(0),
        stripped: stripped_header(entry, offset)?,
        stream,
    })
}

/// The colours of a `Colour` element.
fn color(colour: &[u8]) -> VideoColor {
    let number = |id| find_number(colour, id);
    let position = |number| match number {
        1 => Some(ChromaPosition::First),
        2 => Some(ChromaPosition::Middle),
        _ => None,
    };
    let across = number(id::CHROMA_SITING_HORIZONTAL).and_then(position);
    let down = number(id::CHROMA_SITING_VERTICAL).and_then(position);
    VideoColor {
        is_full_range: match number(id::RANGE) {
            Some(1) => Some(false),
            Some(2) => Some(true),
            _ => None,
        },
        siting: across.zip(down).map(|(across, down)| ChromaSiting { across, down }),
        ..VideoColor::of_numbers(
            [id::PRIMARIES, id::TRANSFER_CHARACTERISTICS, id::MATRIX_COEFFICIENTS]
                .map(|id| number(id).unwrap_or(2)),
        )
    }
}

/// The orientation of frames that are rolled counter-clockwise by an angle in degrees.
fn roll_orientation(roll: &[u8]) -> Orientation {
    let degrees = match (roll.first_chunk::<4>(), roll.first_chunk::<8>()) {
        (_, Some(double)) => f64::from_be_bytes(*double),
        (Some(single), None) => f64::from(f32::from_be_bytes(*single)),
        (None, None) => 0.0,
    };
    match degrees.rem_euclid(360.0) {
        90.0 => Orientation::Rotated270,
        180.0 => Orientation::Rotated180,
        270.0 => Orientation::Rotated90,
        _ => Orientation::Upright,
    }
}

/// The bytes that are stripped from every block of a track.
fn stripped_header(entry: &[u8], offset: u64) -> Result<Vec<u8>> {
    const BLOCKS: u64 = 1;
    const HEADER_STRIPPING: u64 = 3;
    let Some(encodings) = find(entry, id::CONTENT_ENCODINGS) else { return Ok(Vec::new()) };
    let unsupported = |what: &str| {
        let message = format!("{what} Matroska video is unsupported");
        Err(Error::new(ErrorKind::Unsupported, message).with_offset(offset))
    };
    let mut stripped = Vec::new();
    for (_, encoding) in elements(encodings).filter(|&(id, _)| id == id::CONTENT_ENCODING) {
        if find_number(encoding, id::ENCODING_TYPE).unwrap_or(0) != 0 {
            return unsupported("encrypted");
        }
        let scope = find_number(encoding, id::ENCODING_SCOPE).unwrap_or(BLOCKS);
        let compression = find(encoding, id::COMPRESSION).unwrap_or_default();
        let algorithm = find_number(compression, id::COMPRESSION_ALGORITHM).unwrap_or(0);
        if algorithm != HEADER_STRIPPING || scope != BLOCKS {
            return unsupported("compressed");
        }
        let settings = find(compression, id::COMPRESSION_SETTINGS).unwrap_or_default();
        // Encodings are nested: the first one is applied last.
        stripped.extend_from_slice(settings);
    }
    Ok(stripped)
}

/// The codec that a codec identifier names, and its set-up data.
fn codec_and_setup<'a>(codec: &[u8], private: &'a [u8]) -> (String, &'a [u8]) {
    let codec = String::from_utf8_lossy(codec);
    let codec = codec.trim_end_matches('\0');
    let name = match codec {
        "V_MPEG4/ISO/AVC" => "h264",
        "V_MPEGH/ISO/HEVC" => "hevc",
        "V_MPEGI/ISO/VVC" => "vvc",
        "V_VP8" => "vp8",
        "V_VP9" => "vp9",
        "V_AV1" => "av1",
        "V_MPEG4/ISO/ASP" | "V_MPEG4/ISO/SP" | "V_MPEG4/ISO/AP" => "mpeg4",
        "V_MPEG4/MS/V3" => "msmpeg4v3",
        "V_MPEG2" => "mpeg2video",
        "V_MPEG1" => "mpeg1video",
        "V_MJPEG" => "mjpeg",
        "V_THEORA" => "theora",
        "V_PRORES" => "prores",
        "V_FFV1" => "ffv1",
        "V_UNCOMPRESSED" => "rawvideo",
        "V_MS/VFW/FOURCC" => {
            let setup = private.get(BITMAP_INFO_HEADER..).unwrap_or_default();
            let kind = private.get(16..20).unwrap_or_default();
            return (vfw_codec(kind), setup);
        }
        // A sample entry of MOV: size and four-character code.
        "V_QUICKTIME" => match private.get(4..8).and_then(<[u8]>::first_chunk) {
            Some(kind) => return (codec_of_entry(kind), private),
            None => "v_quicktime",
        },
        other => return (other.to_lowercase(), private),
    };
    (name.to_owned(), private)
}

/// The codec of a four-character code of `BITMAPINFOHEADER`.
fn vfw_codec(kind: &[u8]) -> String {
    let kind = String::from_utf8_lossy(kind).to_uppercase();
    let name = match kind.trim() {
        "H264" | "X264" | "AVC1" | "DAVC" => "h264",
        "HEVC" | "H265" | "HVC1" => "hevc",
        "XVID" | "DIVX" | "DX50" | "FMP4" | "MP4V" => "mpeg4",
        "DIV3" | "MP43" => "msmpeg4v3",
        "MJPG" => "mjpeg",
        "MPG2" => "mpeg2video",
        "MPG1" => "mpeg1video",
        "VP80" => "vp8",
        "VP90" => "vp9",
        "AV01" => "av1",
        "WVC1" => "vc1",
        "H263" => "h263",
        "FFV1" => "ffv1",
        other => return other.to_lowercase(),
    };
    name.to_owned()
}
