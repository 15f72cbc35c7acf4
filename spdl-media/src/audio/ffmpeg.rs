//! Audio in other containers, and of other codecs, by FFmpeg.

use std::collections::BTreeSet;

use spdl_core::{Error, ErrorKind, Result};

use super::codec::{AudioCodec, AudioDecoded, AudioDecoder, AudioInfo, AudioRequest, truncated};
use super::collector::Collector;
use super::limits::AudioLimits;
use super::waveform::Waveform;
use crate::ffmpeg::{
    DecodeOptions, DemuxOptions, Demuxer, Frames, MediaKind, Packets, Portion, StreamCodec,
    StreamDecoder, Time, TimeWindow,
};

/// Packets that are read at a time.
const PACKETS: usize = 64;
/// Decoding starts this number of seconds before a window, because codecs overlap frames.
const PREROLL: f64 = 0.1;
/// A window that starts earlier is decoded from the start of the file.
const NEAR_START: f64 = 2.0;
/// The containers with exact durations and seeking, by FFmpeg's name.
const EXACT: [&str; 6] = ["mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "aiff", "caf", "au", "w64"];
/// The samples by which a file may be shorter than the duration in its header.
const TOLERANCE: u64 = 4096;

/// The formats that FFmpeg decodes, and that have no codec of this crate: audio in MP4, MOV, Matroska, WebM, AVI, MPEG
/// streams, AIFF, CAF and others; also what the codecs of this crate refuse, such as ADPCM in WAV and Speex in Ogg.
#[derive(Clone, Copy, Debug)]
pub(super) struct FfmpegAudioCodec;

impl AudioCodec for FfmpegAudioCodec {
    fn name(&self) -> &'static str {
        "ffmpeg"
    }

    fn sniff(&self, head: &[u8]) -> bool {
        let at = |offset: usize, signature: &[u8]| {
            head.get(offset..).is_some_and(|rest| rest.starts_with(signature))
        };
        let boxes: [&[u8]; 6] = [b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"];
        let starts: [&[u8]; 18] = [
            b"\x1A\x45\xDF\xA3",
            b"caff",
            b"\x30\x26\xB2\x75\x8E\x66\xCF\x11",
            b"\x00\x00\x01\xBA",
            b"FLV",
            b"#!AMR",
            b".snd",
            b"\x0B\x77",
            b"MAC ",
            b"wvpk",
            b"TTA1",
            b"MPCK",
            b"MP+",
            b"\x7F\xFE\x80\x01",
            b".RMF",
            b"OggS",
            b"Creative Voice File",
            // Wave64. RIFX is missing: FFmpeg reads its samples in the wrong byte order.
            b"riff\x2E\x91\xCF\x11",
        ];
        boxes.iter().any(|name| at(4, name))
            || starts.iter().any(|signature| at(0, signature))
            || (at(0, b"FORM") && (at(8, b"AIFF") || at(8, b"AIFC")))
            || (at(0, b"RIFF") && (at(8, b"AVI ") || at(8, b"WAVE")))
            // ADTS: a sync word of 12 bits, and layer 0.
            || head.first_chunk().is_some_and(|&[a, b]| a == 0xFF && b & 0xF6 == 0xF0)
            // A packet of an MPEG transport stream, without an error, that is not scrambled.
            || (at(0, b"G") && head.get(1..4).is_some_and(|it| it[0] & 0x80 == 0 && it[2] & 0xD0 == 0x10))
    }

    fn decoder(&self, limits: &AudioLimits) -> Result<Box<dyn AudioDecoder>> {
        Ok(Box::new(FfmpegAudioDecoder { limits: limits.clone() }))
    }
}

struct FfmpegAudioDecoder {
    limits: AudioLimits,
}

/// An open file.
struct Opened<'a> {
    demuxer: Demuxer<'a>,
    stream: BTreeSet<usize>,
    codec: StreamCodec,
    rate: u32,
    channels: u16,
    /// The number of frames, as the header or the packets have it.
    frames: Option<u64>,
}

/// Whether durations and seeking are exact.
fn is_exact(demuxer: &Demuxer<'_>) -> bool {
    EXACT.contains(&&*demuxer.format())
}

impl FfmpegAudioDecoder {
    fn demuxer<'a>(&self, encoded: &'a [u8]) -> Result<Demuxer<'a>> {
        let max_streams = self.limits.streams();
        let options = DemuxOptions { max_streams, ..DemuxOptions::default() };
        Demuxer::open(Box::new(encoded), "", &options).map_err(without_key)
    }

    fn open<'a>(&self, encoded: &'a [u8]) -> Result<Opened<'a>> {
        let demuxer = self.demuxer(encoded)?;
        let codec = demuxer.codec(MediaKind::Audio).map_err(without_key)?;
        let stream = demuxer.stream_index(MediaKind::Audio)?;
        let (rate, channels) = (codec.sample_rate(), codec.channels());
        let channels = u16::try_from(channels).unwrap_or(u16::MAX);
        self.limits.check_format(rate, channels)?;
        let frames = match is_exact(&demuxer) {
            true => demuxer.seconds(MediaKind::Audio)?,
            // Headers of streams have no duration, or an estimate.
            false => {
                let packets = self.demuxer(encoded)?.demux(MediaKind::Audio, None)?;
                let (span, sum) = (packets.seconds(), packets.total_seconds());
                // In FFmpeg 9, the time stamps of joined files jump by 2^32.
                Some(if sum > 0.0 && span > 2.0 * sum { sum } else { span })
            }
        };
        let frames = frames.map(|seconds| (seconds * f64::from(rate)).round() as u64);
        Ok(Opened { demuxer, stream: BTreeSet::from([stream]), codec, rate, channels, frames })
    }
}

/// The caller adds the key of the file to errors.
fn without_key(error: Error) -> Error {
    Error::new(error.kind(), error.message().to_owned())
}

impl AudioDecoder for FfmpegAudioDecoder {
    fn inspect(&mut self, encoded: &[u8]) -> Result<AudioInfo> {
        let opened = self.open(encoded)?;
        let info = AudioInfo::new(opened.rate, opened.channels, opened.codec.name());
        Ok(match opened.frames {
            Some(frames) => info.with_frames(frames),
            None => info,
        })
    }

    fn decode(
        &mut self,
        encoded: &[u8],
        request: &AudioRequest,
        out: &mut Waveform,
    ) -> Result<AudioDecoded> {
        let mut opened = self.open(encoded)?;
        let end = opened.frames.map_or(0, |frames| request.end().min(frames));
        let expected = end.saturating_sub(request.start());
        out.start(opened.rate, opened.channels, expected)?;
        let wanted = request.start()..request.end().max(request.start());
        if !wanted.is_empty() {
            let mut bytes = Vec::new();
            let mut collector = Collector::new(out, wanted, 0);
            let start = request.start();
            let seek = |first: i64, bytes: &mut Vec<u8>, collector: &mut Collector<'_>| {
                self.open(encoded)?.read_from(start, first, bytes, collector)
            };
            opened.read(start, &mut bytes, &mut collector, seek)?;
        }
        let missing = expected.saturating_sub(out.frames() as u64);
        let is_truncated = missing > TOLERANCE;
        if is_truncated && !request.accepts_truncated() {
            return Err(truncated(&opened.codec.name(), encoded));
        }
        if is_truncated { Ok(AudioDecoded::truncated()) } else { Ok(AudioDecoded::complete()) }
    }
}

impl Opened<'_> {
    fn decoder(&self) -> Result<StreamDecoder> {
        StreamDecoder::new(&self.codec, Some("aformat=sample_fmts=fltp"), &DecodeOptions::default())
    }

    /// Decodes until the collector has all that it wants, from `start` on. `seek` does so from shortly before `start`
    /// on, if it can.
    fn read(
        &mut self,
        start: u64,
        bytes: &mut Vec<u8>,
        collector: &mut Collector<'_>,
        mut seek: impl FnMut(i64, &mut Vec<u8>, &mut Collector<'_>) -> Result<bool>,
    ) -> Result<()> {
        let mut decoder = self.decoder()?;
        // The first frame that is decoded is the first one of the file.
        let mut first = None;
        loop {
            let packets = self.demuxer.read_some(&self.stream, Portion::Packets(PACKETS))?;
            let packets = packets.into_values().next();
            let frames = self.frames(&mut decoder, packets.as_ref())?;
            check(&decoder)?;
            if first.is_none() && !frames.is_empty() {
                first = frames.timestamps().first().copied();
                let near = (NEAR_START * f64::from(self.rate)) as u64;
                let is_exact = is_exact(&self.demuxer);
                if let Some(first) = first.filter(|_| start > near && is_exact)
                    && seek(first, bytes, collector)?
                {
                    return Ok(());
                }
            }
            self.push(&frames, bytes, collector)?;
            if packets.is_none() || collector.is_done() {
                return Ok(());
            }
        }
    }

    /// Decodes from shortly before `start` on; `false`, and nothing is collected, if the position of the samples is not
    /// certain. `first` is the time stamp of the first frame of the file.
    fn read_from(
        &mut self,
        start: u64,
        first: i64,
        bytes: &mut Vec<u8>,
        collector: &mut Collector<'_>,
    ) -> Result<bool> {
        let unit = self.codec.time_base().to_f64();
        let rate = f64::from(self.rate);
        let from = (first as f64).mul_add(unit, start as f64 / rate) - PREROLL;
        let micros = |seconds: f64| Time::new((seconds * 1e6) as i64, 1_000_000);
        // The end is found by the collector; packets are read in portions of some seconds.
        let mut decoder = self.decoder()?;
        let window = TimeWindow::new(micros(from)?, micros(from + 1.0)?)?;
        let mut packets = Some(self.demuxer.demux(MediaKind::Audio, Some(window))?);
        let mut is_placed = false;
        loop {
            let frames = self.frames(&mut decoder, packets.as_ref())?;
            check(&decoder)?;
            if !is_placed && !frames.is_empty() {
                let Some(position) = self.position(&frames, first) else { return Ok(false) };
                // Without frames before the window, the seek was not exact.
                if position > start as i64 {
                    return Ok(false);
                }
                collector.skip(position);
                is_placed = true;
            }
            self.push(&frames, bytes, collector)?;
            if packets.is_none() || collector.is_done() {
                return Ok(true);
            }
            let more = self.demuxer.read_some(&self.stream, Portion::Packets(PACKETS))?;
            packets = more.into_values().next();
        }
    }

    /// The number of the first sample of `frames` in the file, if it is certain.
    fn position(&self, frames: &Frames, first: i64) -> Option<i64> {
        let stamp = frames.timestamps().first().copied()?;
        let samples_per_unit = self.codec.time_base().to_f64() * f64::from(self.rate);
        let position = (stamp - first) as f64 * samples_per_unit;
        if samples_per_unit <= 1.0 {
            return Some(position.round() as i64);
        }
        // Time stamps are rounded, as to milliseconds in Matroska. Frames of these codecs have one size.
        let size = frames.pick([0]).ok()?.samples() as f64;
        let is_constant =
            ["aac", "mp3", "mp2", "ac3", "eac3", "opus", "flac"].contains(&&*self.codec.name());
        let snapped = (position / size).round() * size;
        let is_near = (snapped - position).abs() <= samples_per_unit + 1.0;
        (is_constant && is_near).then_some(snapped as i64)
    }

    /// The frames of packets, or the last frames.
    fn frames(&self, decoder: &mut StreamDecoder, packets: Option<&Packets>) -> Result<Frames> {
        let frames = match packets {
            Some(packets) => decoder.decode(packets),
            None => decoder.finish(),
        };
        // Frames that differ among themselves cannot be joined.
        frames.map_err(|error| match error.kind() {
            ErrorKind::InvalidArgument => self.changed(),
            _ => error,
        })
    }

    /// Passes the samples of frames to the collector.
    fn push(
        &self,
        frames: &Frames,
        bytes: &mut Vec<u8>,
        collector: &mut Collector<'_>,
    ) -> Result<()> {
        if frames.is_empty() {
            return Ok(());
        }
        // Frames that differ among themselves have no shape.
        let (shape, dtype) = frames.shape().map_err(|error| match error.kind() {
            ErrorKind::InvalidArgument => self.changed(),
            _ => error,
        })?;
        let (channels, samples) = (shape[0], shape[1]);
        if channels != usize::from(self.channels) || frames.sample_rate() != self.rate {
            return Err(self.changed());
        }
        bytes.clear();
        bytes.resize(channels * samples * dtype.size(), 0);
        frames.copy_to(bytes)?;
        let (all, _) = bytes.as_chunks::<4>();
        let planes = all.chunks_exact(samples.max(1));
        collector.push(planes, samples, |plane, part, out| {
            for (out, &sample) in out.iter_mut().zip(&plane[part]) {
                *out = f32::from_ne_bytes(sample);
            }
        })
    }

    /// The error for a file whose frames have another format than its header.
    fn changed(&self) -> Error {
        let (name, rate, channels) = (self.codec.name(), self.rate, self.channels);
        let message = format!(
            "unsupported {name}: the format changes from {channels} channels at {rate} Hz to another one"
        );
        Error::new(ErrorKind::Unsupported, message)
    }
}

/// Packets that cannot be decoded are errors: no samples are invented.
fn check(decoder: &StreamDecoder) -> Result<()> {
    match &decoder.failures().first {
        Some(error) => Err(error.clone()),
        None => Ok(()),
    }
}
