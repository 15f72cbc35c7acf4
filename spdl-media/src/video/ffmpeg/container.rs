//! The index of any container, from its packets.

use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use crate::ffmpeg::DemuxOptions;
use crate::ffmpeg::input::{Input, MEDIA_FORMATS};
use crate::ffmpeg::memory::Packet;
use crate::ffmpeg::names;
use crate::image::Size;
use crate::source::MediaSource;
use crate::video::timer::DecodeTimer;
use crate::video::{
    VideoCodec, VideoContainer, VideoDecoder, VideoDecoderOptions, VideoFrame, VideoIndex,
    VideoLimits, VideoPacket, VideoStream,
};

/// The containers that FFmpeg reads, such as AVI, MPEG transport streams and Flash video.
///
/// The packets of the whole file are read into memory, up to the limit of an index. If they lack time stamps of presentation, as
/// in AVI, the video is decoded once to find the order of its frames. Orientation is not read.
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
        let mut input = Input::open(Box::new(file), MEDIA_FORMATS, &DemuxOptions::default())?;
        let (stream, number) = stream(&input)?;
        limits.check_size(stream.size)?;
        let mut found = PacketList::default();
        let mut packet = Packet::new()?;
        while input.read(&mut packet)? {
            if packet.fields().stream_index == number && !packet.bytes().is_empty() {
                found.add(&packet, limits)?;
            }
        }
        found.index(stream, limits)
    }
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
        let frames: Vec<_> = order
            .into_iter()
            .zip(&self.decoding)
            .map(|(packet, &timestamp)| VideoFrame { packet, timestamp })
            .collect();
        for frame in &frames {
            self.packets[frame.packet as usize].timestamp = frame.timestamp;
        }
        let index = VideoIndex::with_frames(stream, self.packets, frames, self.end)?;
        Ok(index.with_packet_bytes(self.bytes))
    }

    /// Decodes all packets; their numbers in the order in which the decoder returns the frames.
    fn presentation_order(&self, stream: &VideoStream, limits: &VideoLimits) -> Result<Vec<u32>> {
        let options =
            VideoDecoderOptions { reorder_depth: 2, limits: limits.clone(), ..Default::default() };
        let mut decoder = super::FfmpegCodec.decoder(stream, &options)?;
        let mut order = Vec::new();
        let mut timer = DecodeTimer::new(limits.decode_time());
        for (number, packet) in (0_u32..).zip(&self.packets) {
            let bytes = &self.bytes[packet.offset as usize..][..packet.bytes as usize];
            let found = order.len();
            timer.measure(|| {
                // A packet that fails has no frame.
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
        order.retain(|&number| (number as usize) < self.packets.len());
        Ok(order)
    }
}

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
