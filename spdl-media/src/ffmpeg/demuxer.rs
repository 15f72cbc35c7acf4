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
/// The file is read by position: only what its packets need, and its header. FFmpeg receives bytes; it
/// opens no files, addresses or playlists.
pub struct Demuxer {
    input: Input<'static>,
    name: String,
    /// The end of the last portion, in seconds.
    portion_end: Option<f64>,
}

// SAFETY: the libraries bind an open file to no thread, and `open` accepts only sources that are `Send`.
unsafe impl Send for Demuxer {}

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

impl Demuxer {
    /// Opens a file. `name` is its name in error messages.
    ///
    /// # Errors
    /// `Corrupt` if no format is recognised or the header is damaged; `Unsupported` for formats that open
    /// other files; `InvalidArgument` for options that the format lacks; the errors of the source.
    pub fn open(
        source: Box<dyn MediaSource + Send>,
        name: &str,
        options: &DemuxOptions,
    ) -> Result<Self> {
        let formats = format!("{MEDIA_FORMATS},{IMAGE_FORMATS}");
        let input = Input::open(source, &formats, options).map_err(|error| named(error, name))?;
        Ok(Demuxer { input, name: name.to_owned(), portion_end: None })
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

    fn best(&self, kind: MediaKind) -> Result<&ffi::AVStream> {
        self.input.best_stream(kind.stream_type()).ok_or_else(|| {
            let message = format!("No {} stream was found in {}", kind.name(), self.name);
            Error::new(ErrorKind::Unsupported, message)
        })
    }

    /// The packets of the best stream of a kind: all of them, or those that decoding the frames in `window`
    /// needs. Of an image, the first packet.
    ///
    /// # Errors
    /// `Unsupported` if there is no such stream; `Corrupt` if it has no packets; the errors of the source.
    pub fn demux(&mut self, kind: MediaKind, window: Option<TimeWindow>) -> Result<Packets> {
        let codec = self.codec(kind)?;
        let index = self.best(kind)?.index;
        let mut packets = Packets::new(kind, codec.time_base()).with_codec(codec);
        packets.set_window(window);
        let mut next = self.start(index, window, packets.time_base())?;
        while let Some(packet) = next {
            if window.is_some_and(|window| is_after(&packet, window, packets.time_base())) {
                break;
            }
            packets.push(packet);
            if kind == MediaKind::Image {
                break;
            }
            next = self.next(index)?;
        }
        if packets.is_empty() && window.is_none() {
            let message = format!("the {} stream of {} has no packets", kind.name(), self.name);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        Ok(packets)
    }

    /// The first packet that is needed for frames from the start of `window`.
    fn start(
        &mut self,
        index: i32,
        window: Option<TimeWindow>,
        unit: Rational,
    ) -> Result<Option<Packet>> {
        let Some(window) = window.filter(|window| window.start().to_f64() > 0.0) else {
            return self.next(index);
        };
        let wanted = window.start().in_units(unit);
        let mut target = wanted;
        loop {
            self.input.seek(index, target).map_err(|error| named(error, &self.name))?;
            let first = self.next(index)?;
            let Some(fields) = first.as_ref().map(Packet::fields) else { return Ok(first) };
            // Files are searched by the time of decoding. In an open group of pictures, frames before the
            // key frame may be wanted, which need the key frame before it.
            let earlier = fields.dts.checked_sub(1).filter(|&time| time < target && time >= 0);
            match earlier {
                Some(earlier) if fields.pts != ffi::AV_NOPTS_VALUE && fields.pts > wanted => {
                    target = earlier;
                }
                _ => return Ok(first),
            }
        }
    }

    /// The next packet of a stream.
    fn next(&mut self, index: i32) -> Result<Option<Packet>> {
        loop {
            let mut packet = Packet::new()?;
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

impl std::fmt::Debug for Demuxer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Demuxer").field("name", &self.name).finish_non_exhaustive()
    }
}
