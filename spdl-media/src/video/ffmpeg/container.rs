//! The index of any container, from its packets.

use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use crate::ffmpeg::DemuxOptions;
use crate::ffmpeg::input::{Input, MEDIA_FORMATS};
use crate::ffmpeg::memory::Packet;
use crate::ffmpeg::names;
use crate::image::Size;
use crate::packets::NOT_CODED_BYTES;
use crate::source::MediaSource;
use crate::video::timer::DecodeTimer;
use crate::video::{
    VideoCodec, VideoColor, VideoContainer, VideoDecoder, VideoDecoderOptions, VideoFrame,
    VideoIndex, VideoLimits, VideoPacket, VideoStream,
};

/// The containers that FFmpeg reads, such as AVI, MPEG transport streams and Flash video.
///
/// The packets of the whole file are read into memory, up to the limit of an index. If they lack time stamps of presentation, as
/// in AVI, the video is decoded once to find the order of its frames. Orientation is not read.
///
/// An index is [truncated](VideoIndex::is_truncated) if a RIFF list of AVI is larger than the file, the file ends
/// inside a packet of a transport stream, or FFmpeg reports that the last packet is incomplete. Other files end
/// early without notice.
#[derive(Clone, Copy, Debug, Default)]
pub struct FfmpegContainer;

impl VideoContainer for FfmpegContainer {
    fn name(&self) -> &'static str {
        "ffmpeg"
    }

    /// Any file: register this container for those that no other one recognises.
    fn sniff(&self, _head: &[u8]) -> bool {
        true
    }

    fn index(&self, file: &dyn MediaSource, limits: &VideoLimits) -> Result<VideoIndex> {
        let options = DemuxOptions { max_streams: limits.streams(), ..DemuxOptions::default() };
        let mut input = Input::open(Box::new(file), MEDIA_FORMATS, &options)?;
        let (stream, number) = stream(&input)?;
        limits.check_size(stream.size)?;
        let mut found = PacketList::default();
        let mut packet = Packet::new()?;
        let mut is_incomplete = false;
        while input.read(&mut packet)? {
            is_incomplete = packet.fields().flags & ffi::AV_PKT_FLAG_CORRUPT != 0;
            if packet.fields().stream_index == number && !packet.bytes().is_empty() {
                found.add(&packet, limits)?;
            }
        }
        let is_truncated =
            is_incomplete || input.has_damaged_end() || ends_early(file, &input.container())?;
        let index = found.index(stream, limits)?;
        Ok(if is_truncated { index.truncated() } else { index })
    }
}

/// Whether a file of a container ends before its headers say. FFmpeg treats such an end as that of the file.
fn ends_early(file: &dyn MediaSource, container: &str) -> Result<bool> {
    match container {
        "avi" => ends_inside_riff(file),
        "mpegts" => ends_inside_packet(file),
        _ => Ok(false),
    }
}

/// Whether one of the RIFF lists of an AVI file is larger than the rest of the file. Sizes of files that were not closed
/// are 0 or 2³² - 1.
fn ends_inside_riff(file: &dyn MediaSource) -> Result<bool> {
    let (size, mut at, mut memory) = (file.size(), 0_u64, Vec::new());
    for _ in 0..MAX_RIFF_LISTS {
        if at.saturating_add(8) > size {
            return Ok(at > size);
        }
        let header = file.read(at..at + 8, &mut memory)?;
        let Some(&[b'R', b'I', b'F', b'F', a, b, c, d]) = header.first_chunk() else { break };
        let content = u32::from_le_bytes([a, b, c, d]);
        if matches!(content, 0 | u32::MAX) {
            break;
        }
        at += 8 + u64::from(content);
        if at > size {
            return Ok(true);
        }
        at += u64::from(content & 1);
    }
    Ok(false)
}

/// Whether the last packet of an MPEG transport stream, whose packets all have one size, is incomplete.
fn ends_inside_packet(file: &dyn MediaSource) -> Result<bool> {
    const SYNC: u8 = 0x47;
    let (size, mut memory) = (file.size(), Vec::new());
    let mut has_sync = |at: u64| {
        let read = file.read(at..at + 1, &mut memory);
        read.map(|byte| byte == [SYNC])
    };
    // The size of a packet, and the position of its first byte: time stamps of 4 bytes may precede packets.
    for (packet, start) in [(188, 0), (192, 4), (204, 0)] {
        let last = size - size % packet + start;
        let starts = [start, start + packet, last].into_iter().take_while(|&at| at < size);
        let starts = starts.map(&mut has_sync).collect::<Result<Vec<_>>>()?;
        if starts == [true; 3] {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The format of the best video stream, and its number.
fn stream(input: &Input<'_>) -> Result<(VideoStream, i32)> {
    let found = input.best_stream(ffi::AVMediaType::AVMEDIA_TYPE_VIDEO);
    let found = found.ok_or_else(|| {
        let message = format!("corrupt video: the {} file has no video stream", input.container());
        Error::new(ErrorKind::Corrupt, message)
    })?;
    // SAFETY: a stream has parameters as long as it lives.
    let parameters = unsafe { &*found.codecpar };
    let side = |pixels: i32| u32::try_from(pixels).unwrap_or(0);
    let size = Size::new(side(parameters.width), side(parameters.height));
    let mut stream = VideoStream::new(names::of_codec(parameters), size);
    let setup = usize::try_from(parameters.extradata_size).unwrap_or(0);
    if !parameters.extradata.is_null() && setup > 0 {
        // SAFETY: the parameters have this many bytes of set-up data.
        stream.setup = unsafe { std::slice::from_raw_parts(parameters.extradata, setup) }.to_vec();
    }
    stream.color = VideoColor::of_numbers(names::of_colors(parameters));
    stream.time_base = (side(found.time_base.num).max(1), side(found.time_base.den).max(1));
    Ok((stream, found.index))
}

/// The packets of a stream.
#[derive(Default)]
struct PacketList {
    packets: Vec<VideoPacket>,
    bytes: Vec<u8>,
    /// The time stamps of decoding.
    decoding: Vec<i64>,
    lack_timestamps: bool,
    end: i64,
}

impl PacketList {
    fn add(&mut self, packet: &Packet, limits: &VideoLimits) -> Result<()> {
        let bytes = packet.bytes();
        let packet = packet.fields();
        limits.check_packets(self.packets.len() as u64 + 1)?;
        let size = bytes.len();
        limits.check_packet_bytes(size as u64)?;
        limits.check_index_bytes(self.bytes.len() as u64 + size as u64)?;
        let full =
            |_| Error::new(ErrorKind::LimitExceeded, "cannot allocate the packets of a video");
        self.bytes.try_reserve(size).map_err(full)?;
        let offset = self.bytes.len() as u64;
        self.bytes.extend_from_slice(bytes);
        let none = ffi::AV_NOPTS_VALUE;
        self.lack_timestamps |= packet.pts == none;
        let last = self.decoding.last().copied();
        let decoding = match packet.dts {
            time if time != none => time,
            _ => last.map_or(0, |last| last.saturating_add(1)),
        };
        let timestamp = if packet.pts == none { decoding } else { packet.pts };
        self.end = self.end.max(timestamp.saturating_add(packet.duration.max(0)));
        self.decoding.push(decoding);
        self.packets.push(VideoPacket {
            offset,
            bytes: size as u32,
            timestamp,
            is_key: packet.flags & ffi::AV_PKT_FLAG_KEY != 0,
            is_disposable: packet.flags & ffi::AV_PKT_FLAG_DISPOSABLE != 0,
        });
        Ok(())
    }

    fn index(mut self, stream: VideoStream, limits: &VideoLimits) -> Result<VideoIndex> {
        if !self.lack_timestamps {
            return Ok(
                VideoIndex::new(stream, self.packets, self.end)?.with_packet_bytes(self.bytes)
            );
        }
        let order = self.presentation_order(&stream, limits)?;
        self.decoding.sort_unstable();
        let mut frames = Vec::with_capacity(order.len());
        for ((packet, has_frame), &timestamp) in order.into_iter().zip(&self.decoding) {
            self.packets[packet as usize].timestamp = timestamp;
            if has_frame {
                frames.push(VideoFrame { packet, timestamp });
            }
        }
        let index = VideoIndex::with_frames(stream, self.packets, frames, self.end)?;
        Ok(index.with_packet_bytes(self.bytes))
    }

    /// Decodes all packets; their numbers in the order in which the decoder returns the frames, and whether they have
    /// one. A packet whose frame is damaged has a frame, which cannot be decoded; a small packet without a frame states
    /// that the frame before is shown again.
    fn presentation_order(
        &self,
        stream: &VideoStream,
        limits: &VideoLimits,
    ) -> Result<Vec<(u32, bool)>> {
        let options =
            VideoDecoderOptions { reorder_depth: 2, limits: limits.clone(), ..Default::default() };
        let mut decoder = super::FfmpegCodec.decoder(stream, &options)?;
        let mut order = Vec::new();
        let mut timer = DecodeTimer::new(limits.decode_time());
        for (number, packet) in (0_u32..).zip(&self.packets) {
            let bytes = &self.bytes[packet.offset as usize..][..packet.bytes as usize];
            let found = order.len();
            timer.measure(|| {
                damage(decoder.send(bytes, number, packet.is_key))?;
                receive_numbers(&mut *decoder, &mut order)
            })?;
            if order.len() > found {
                timer.restart();
            } else if timer.is_over() {
                return Err(timer.error("the next frame", stream, packet.timestamp));
            }
        }
        damage(decoder.finish())?;
        receive_numbers(&mut *decoder, &mut order)?;
        let has_frame = self.packets.iter().map(|packet| packet.bytes as usize > NOT_CODED_BYTES);
        Ok(with_packets_without_frames(&order, &has_frame.collect::<Vec<_>>()))
    }
}

/// Adds the packets for which the decoder returned no frame to the numbers of those for which it did, each before the
/// first one that follows it in the file: they have time stamps too. Returns whether packets have a frame: those for
/// which the decoder returned one, and those with `has_frame`.
fn with_packets_without_frames(order: &[u32], has_frame: &[bool]) -> Vec<(u32, bool)> {
    let mut is_decoded = vec![false; has_frame.len()];
    let mut decoded = Vec::with_capacity(order.len());
    for &number in order {
        // Without a number, the frame belongs to no packet.
        let Some(is_decoded) = is_decoded.get_mut(number as usize) else { continue };
        if !std::mem::replace(is_decoded, true) {
            decoded.push(number);
        }
    }
    let mut others = (0_u32..).zip(has_frame).filter(|&(number, _)| !is_decoded[number as usize]);
    let mut next = others.next();
    let mut all = Vec::with_capacity(has_frame.len());
    for number in decoded {
        while let Some((other, &has_frame)) = next.filter(|&(other, _)| other < number) {
            all.push((other, has_frame));
            next = others.next();
        }
        all.push((number, true));
    }
    let rest = next.into_iter().chain(others);
    all.extend(rest.map(|(other, &has_frame)| (other, has_frame)));
    all
}

/// The most RIFF lists of an AVI file that are checked: each has about 1 GiB.
const MAX_RIFF_LISTS: usize = 1 << 16;
/// The most damaged frames that are reported after one packet.
const MAX_FAILURES: usize = 64;

/// The numbers of all frames that are complete.
fn receive_numbers(decoder: &mut dyn VideoDecoder, order: &mut Vec<u32>) -> Result<()> {
    let mut failures = 0;
    while failures < MAX_FAILURES {
        match decoder.receive() {
            Ok(Some(frame)) => order.push(frame.number),
            Ok(None) => return Ok(()),
            Err(error) => {
                damage(Err(error))?;
                failures += 1;
            }
        }
    }
    Ok(())
}

/// Ignores damage; returns other errors.
fn damage(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Truncated) => Ok(()),
        outcome => outcome,
    }
}
