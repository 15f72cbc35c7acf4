//! From a file to packets.

use std::collections::{BTreeMap, BTreeSet};

use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use super::codec::{MediaKind, Rational, StreamCodec};
use super::input::{DemuxOptions, IMAGE_FORMATS, Input, MEDIA_FORMATS};
use super::memory::Packet;
use super::packets::{Packets, TimeWindow, seconds, timestamp};
use crate::source::MediaSource;

/// Reads the packets of a file.
///
/// The file is read by position: its header, and the parts with the packets. FFmpeg receives bytes; it
/// opens no files, addresses or playlists. Objects in stores are read by range requests with `BlockReader` of
/// `spdl_io::fetch` (feature `records`).
pub struct Demuxer<'a> {
    input: Input<'a>,
    name: String,
    /// Whether no packet was read yet.
    is_at_start: bool,
    /// The end of the last portion, in seconds.
    portion_end: Option<f64>,
}

// SAFETY: the libraries bind an open file to no thread, and `open` accepts only sources that are `Send`.
unsafe impl Send for Demuxer<'_> {}

/// When [`Demuxer::read_some`] returns.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Portion {
    /// When one stream has this number of packets.
    Packets(usize),
    /// When a packet of any stream is this number of seconds after the start of the portion. Portions
    /// follow each other at this distance.
    Seconds(f64),
}

impl<'a> Demuxer<'a> {
    /// Opens a file. `name` is its name in error messages.
    ///
    /// # Errors
    /// `Corrupt` if no format is recognised or the header is damaged; `Unsupported` for formats that open
    /// other files; `InvalidArgument` for options that the format lacks; the errors of the source.
    pub fn open(
        source: Box<dyn MediaSource + Send + 'a>,
        name: &str,
        options: &DemuxOptions,
    ) -> Result<Self> {
        let formats = format!("{MEDIA_FORMATS},{IMAGE_FORMATS}");
        let input = Input::open(source, &formats, options).map_err(|error| named(error, name))?;
        Ok(Demuxer { input, name: name.to_owned(), is_at_start: true, portion_end: None })
    }

    /// FFmpeg's name of the format.
    pub fn format(&self) -> String {
        self.input.container()
    }

    /// Whether the file has audio.
    pub fn has_audio(&self) -> bool {
        self.input.best_stream(ffi::AVMediaType::AVMEDIA_TYPE_AUDIO).is_some()
    }

    /// The number of the best stream of a kind.
    ///
    /// # Errors
    /// `Unsupported` if there is none.
    pub fn stream_index(&self, kind: MediaKind) -> Result<usize> {
        Ok(usize::try_from(self.best(kind)?.index).unwrap_or(0))
    }

    /// The codec of the best stream of a kind.
    ///
    /// # Errors
    /// `Unsupported` if there is none.
    pub fn codec(&self, kind: MediaKind) -> Result<StreamCodec> {
        StreamCodec::of_stream(kind, self.best(kind)?)
    }

    /// The duration of the best stream of a kind in seconds, as the header of the file has it.
    ///
    /// # Errors
    /// `Unsupported` if there is no such stream.
    pub fn seconds(&self, kind: MediaKind) -> Result<Option<f64>> {
        let stream = self.best(kind)?;
        let unit: Rational = stream.time_base.into();
        let own = (stream.duration > 0).then(|| seconds(stream.duration, unit));
        Ok(own.or_else(|| self.input.seconds()))
    }

    fn best(&self, kind: MediaKind) -> Result<&ffi::AVStream> {
        self.input.best_stream(kind.stream_type()).ok_or_else(|| {
            let message = format!("No {} stream was found in {}", kind.name(), self.name);
            Error::new(ErrorKind::Unsupported, message)
        })
    }

    /// The packets of the best stream of a kind: all of them, or those that decoding the frames in `window`
    /// needs. Of an image, the first packet. Packets that were read before are read again.
    ///
    /// # Errors
    /// `Unsupported` if there is no such stream, or a window is wanted of a video without time stamps of presentation;
    /// `Corrupt` if it has no packets; the errors of the source.
    pub fn demux(&mut self, kind: MediaKind, window: Option<TimeWindow>) -> Result<Packets> {
        let codec = self.codec(kind)?;
        let stream = self.best(kind)?;
        let (index, start) = (stream.index, stream.start_time);
        self.input.select(&BTreeSet::from([usize::try_from(index).unwrap_or(0)]));
        self.portion_end = None;
        let unit = codec.time_base();
        let reorders = codec.parameters().fields().video_delay > 0;
        let mut packets = Packets::new(kind, unit).with_codec(codec);
        packets.set_window(window);
        let mut next = self.first(index, start, kind, window, unit)?;
        let mut after = 0;
        while let Some(packet) = next {
            if let Some(window) = window {
                if kind == MediaKind::Video
                    && reorders
                    && packet.fields().pts == ffi::AV_NOPTS_VALUE
                {
                    let message =
                        "the file stores no times of presentation, so no window can be found";
                    return Err(Error::new(ErrorKind::Unsupported, message).with_key(&*self.name));
                }
                after = if is_after(&packet, window, unit) { after + 1 } else { 0 };
                // Without times of decoding, frames before this one may follow.
                let has_order =
                    kind != MediaKind::Video || packet.fields().dts != ffi::AV_NOPTS_VALUE;
                if after > if has_order { 0 } else { MAX_REORDERED } {
                    break;
                }
            }
            packets.push(packet);
            if kind == MediaKind::Image {
                break;
            }
            next = self.next(index)?;
        }
        self.input.select(&BTreeSet::new());
        if packets.is_empty() && window.is_none() {
            let message = format!("the {} stream of {} has no packets", kind.name(), self.name);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        Ok(packets)
    }

    /// The first packet that is needed for frames from the start of `window`.
    fn first(
        &mut self,
        index: i32,
        start: i64,
        kind: MediaKind,
        window: Option<TimeWindow>,
        unit: Rational,
    ) -> Result<Option<Packet>> {
        let start = if start == ffi::AV_NOPTS_VALUE { 0 } else { start };
        let second = (1.0 / unit.to_f64().max(f64::MIN_POSITIVE)).ceil() as i64;
        let wanted = window.map(|window| window.start().in_units(unit));
        // Frames of compressed audio overlap.
        let overlaps = kind == MediaKind::Audio && !is_lossless(&self.codec(kind)?.name());
        let preroll = if overlaps { second.saturating_mul(3) / 10 } else { 0 };
        let target = wanted.map(|wanted| wanted.saturating_sub(preroll)).filter(|&it| it > start);
        let (Some(wanted), Some(mut target)) = (wanted, target) else {
            self.rewind(index, start)?;
            return self.next(index);
        };
        let mut step = second;
        loop {
            self.is_at_start = false;
            // Not all files can be searched.
            if self.input.seek(index, target).is_err() {
                self.rewind(index, start)?;
                return self.next(index);
            }
            let first = self.next(index)?;
            let is_start = kind != MediaKind::Video
                || first.as_ref().is_some_and(|packet| starts_before(packet, wanted));
            if is_start && first.is_some() {
                return Ok(first);
            }
            if target <= start {
                self.rewind(index, start)?;
                return self.next(index);
            }
            // Files are searched by the time of decoding, and some have no list of key frames. In an open group of
            // pictures, frames before the key frame may be wanted, which need the key frame before it.
            let earlier = first.map(|packet| packet.fields().dts).unwrap_or(target).min(target);
            target = earlier.saturating_sub(step).max(start);
            step = step.saturating_mul(2);
        }
    }

    /// Returns to the start of the file.
    fn rewind(&mut self, index: i32, start: i64) -> Result<()> {
        if self.is_at_start {
            return Ok(());
        }
        let outcome = self.input.seek(index, start.min(0));
        outcome.or_else(|_| self.input.restart()).map_err(|error| named(error, &self.name))
    }

    /// The next packet of a stream.
    fn next(&mut self, index: i32) -> Result<Option<Packet>> {
        loop {
            let mut packet = Packet::new()?;
            self.is_at_start = false;
            if !self.input.read(&mut packet).map_err(|error| named(error, &self.name))? {
                return Ok(None);
            }
            if packet.fields().stream_index == index && !packet.bytes().is_empty() {
                return Ok(Some(packet));
            }
        }
    }

    /// The next packets of some streams, by the number of the stream; nothing at the end of the file. They
    /// have no codec: it is that of [`codec`](Demuxer::codec).
    ///
    /// # Errors
    /// `InvalidArgument` if a stream does not exist or has neither audio nor video; the errors of the source.
    pub fn read_some(
        &mut self,
        streams: &BTreeSet<usize>,
        portion: Portion,
    ) -> Result<BTreeMap<usize, Packets>> {
        let is_positive = match portion {
            Portion::Packets(wanted) => wanted > 0,
            Portion::Seconds(wanted) => wanted.is_finite() && wanted > 0.0,
        };
        if streams.is_empty() || !is_positive {
            let message = "name at least one stream, and a positive number of packets or seconds";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.input.select(streams);
        self.is_at_start = false;
        let mut found = BTreeMap::new();
        let mut kinds = BTreeMap::new();
        for &number in streams {
            kinds.insert(number, self.kind_of(number)?);
        }
        let mut end = self.portion_end.map(|end| end + wanted_seconds(portion));
        loop {
            let mut packet = Packet::new()?;
            if !self.input.read(&mut packet).map_err(|error| named(error, &self.name))? {
                return Ok(found);
            }
            let number = usize::try_from(packet.fields().stream_index).unwrap_or(usize::MAX);
            let Some(&(kind, unit)) = kinds.get(&number) else { continue };
            if packet.bytes().is_empty() {
                continue;
            }
            let packets = found.entry(number).or_insert_with(|| Packets::new(kind, unit));
            let time = seconds(timestamp(&packet), unit);
            packets.push(packet);
            let is_complete = match portion {
                Portion::Packets(wanted) => packets.len() >= wanted,
                Portion::Seconds(wanted) => time >= *end.get_or_insert(time + wanted),
            };
            if is_complete {
                // After a gap, the next portion starts at this packet.
                self.portion_end = end.map(|end| end.max(time - wanted_seconds(portion)));
                return Ok(found);
            }
        }
    }

    fn kind_of(&self, number: usize) -> Result<(MediaKind, Rational)> {
        let kind_of = |stream: &ffi::AVStream| {
            // SAFETY: a stream has parameters as long as it lives.
            match unsafe { &*stream.codecpar }.codec_type {
                ffi::AVMediaType::AVMEDIA_TYPE_AUDIO => Some(MediaKind::Audio),
                ffi::AVMediaType::AVMEDIA_TYPE_VIDEO => Some(MediaKind::Video),
                _ => None,
            }
        };
        let stream = self.input.stream(number);
        let kind = stream.and_then(|stream| Some((kind_of(stream)?, stream.time_base.into())));
        kind.ok_or_else(|| {
            let message = match stream {
                None => {
                    format!("Stream index must be in range: {} has no stream {number}", self.name)
                }
                Some(_) => {
                    format!("stream {number} of {} has neither audio nor video", self.name)
                }
            };
            Error::new(ErrorKind::InvalidArgument, message)
        })
    }
}

fn wanted_seconds(portion: Portion) -> f64 {
    match portion {
        Portion::Packets(_) => 0.0,
        Portion::Seconds(wanted) => wanted,
    }
}

/// Whether the samples of a packet depend on no other packet.
fn is_lossless(codec: &str) -> bool {
    codec.starts_with("pcm_") || ["flac", "alac", "wavpack", "tta"].contains(&codec)
}

/// The most frames that are stored before a frame that is shown earlier, in all codecs.
const MAX_REORDERED: u32 = 16;

/// Whether decoding can start at the packet for frames from `wanted` on.
fn starts_before(packet: &Packet, wanted: i64) -> bool {
    let fields = packet.fields();
    let is_early = fields.pts == ffi::AV_NOPTS_VALUE || fields.pts <= wanted;
    fields.flags & ffi::AV_PKT_FLAG_KEY != 0 && is_early
}

/// Whether the packet, and all later ones, have only frames after the window.
fn is_after(packet: &Packet, window: TimeWindow, unit: Rational) -> bool {
    let fields = packet.fields();
    // No frame is shown before it is decoded.
    let earliest = if fields.dts == ffi::AV_NOPTS_VALUE { fields.pts } else { fields.dts };
    earliest != ffi::AV_NOPTS_VALUE && window.is_over(earliest, unit)
}

fn named(error: Error, name: &str) -> Error {
    if error.key().is_some() { error } else { error.with_key(name) }
}

impl std::fmt::Debug for Demuxer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Demuxer").field("name", &self.name).finish_non_exhaustive()
    }
}
