//! From packets to frames.

use std::ptr;

use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use super::awaited::AwaitedFrames;
use super::codec::{MediaKind, Rational, StreamCodec, name_channels};
use super::errors::error_of;
use super::filter::FilterChain;
use super::frames::Frames;
use super::memory::{CodecContext, Dictionary, Frame, Packet, c_string};
use super::names;
use super::packets::{Packets, TimeWindow, WantedFrame};

/// How to decode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DecodeOptions {
    /// FFmpeg's name of the decoder; by default, that of the codec.
    pub decoder: Option<String>,
    /// Options of the decoder: names and values. By default, a decoder uses one thread; `threads` changes
    /// that.
    pub options: Vec<(String, String)>,
}

/// Packets that a decoder could not decode, or for which it returned no frame.
#[derive(Debug, Default)]
pub struct DecodeFailures {
    /// Their number.
    pub count: u64,
    /// The first error.
    pub first: Option<Error>,
}

impl DecodeFailures {
    fn add(&mut self, error: Error) {
        self.count += 1;
        self.first.get_or_insert(error);
    }
}

/// Decodes the packets of one stream, and filters the frames.
#[derive(Debug)]
pub struct StreamDecoder {
    context: CodecContext,
    filters: Option<FilterChain>,
    kind: MediaKind,
    time_base: Rational,
    frame: Frame,
    window: Option<TimeWindow>,
    failures: DecodeFailures,
    /// `None` if the caller has chosen to skip frames.
    awaited: Option<AwaitedFrames>,
}

impl StreamDecoder {
    /// Starts a decoder. `filters` are filters with one input and one output, such as `hflip,format=rgb24`: what a
    /// [`FilterGraph`](super::FilterGraph) has between `buffer` and `buffersink`. Without them, frames are those of the
    /// decoder.
    ///
    /// # Errors
    /// `Unsupported` if FFmpeg has no decoder; `InvalidArgument` for wrong options. Wrong filters are an error of
    /// the first frame.
    pub fn new(
        codec: &StreamCodec,
        filters: Option<&str>,
        options: &DecodeOptions,
    ) -> Result<Self> {
        super::start();
        let decoder = find(codec, options)?;
        // SAFETY: the decoder is a constant of the library; the function returns a new context or null.
        let pointer = unsafe { ffi::avcodec_alloc_context3(decoder) };
        // SAFETY: the value is new, or null.
        let mut context = unsafe { CodecContext::from_raw(pointer, "a decoder") }?;
        let parameters = codec.parameters().as_ptr();
        // SAFETY: both are valid.
        let code = unsafe { ffi::avcodec_parameters_to_context(context.as_ptr(), parameters) };
        let what = || format!("cannot decode {}", codec.name());
        if code < 0 {
            return Err(error_of(code, &what()));
        }
        let fields = context.fields_mut();
        fields.pkt_timebase = codec.time_base().to_ffi();
        fields.thread_count = 1;
        fields.has_b_frames = fields.has_b_frames.clamp(0, 16);
        fields.max_pixels = MAX_PIXELS;
        let given = options.options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let mut dictionary = Dictionary::new(given)?;
        // SAFETY: the context was made for this decoder, and is not open yet.
        let code =
            unsafe { ffi::avcodec_open2(context.as_ptr(), decoder, dictionary.as_mut_ptr()) };
        if code < 0 {
            let error = error_of(code, &what());
            // With options, these are at fault.
            let is_argument = !options.options.is_empty() || options.decoder.is_some();
            return Err(if is_argument { invalid(&error.report()) } else { error });
        }
        dictionary.check_used("the decoder")?;
        let skips = options.options.iter().any(|(name, _)| name == "skip_frame");
        Ok(StreamDecoder {
            context,
            filters: filters.map(|filters| FilterChain::new(filters, codec.time_base())),
            kind: codec.kind(),
            time_base: codec.time_base(),
            frame: Frame::new()?,
            window: None,
            failures: DecodeFailures::default(),
            awaited: (!skips).then(|| AwaitedFrames::new(codec.name())),
        })
    }

    /// Decodes packets; the frames that are ready.
    ///
    /// # Errors
    /// `InvalidArgument` for packets of another kind; the errors of filters. Packets that cannot be decoded are
    /// counted: see [`failures`](StreamDecoder::failures).
    pub fn decode(&mut self, packets: &Packets) -> Result<Frames> {
        self.decode_up_to(packets, usize::MAX)
    }

    /// Decodes packets until there are `most` frames.
    fn decode_up_to(&mut self, packets: &Packets, most: usize) -> Result<Frames> {
        if packets.kind() != self.kind {
            let (given, own) = (packets.kind().name(), self.kind.name());
            return Err(invalid(&format!("cannot decode {given} packets with a decoder of {own}")));
        }
        let mut frames = self.none();
        for packet in packets.as_slice() {
            if frames.len() >= most {
                break;
            }
            frames.append(self.send(Some(packet), most - frames.len())?)?;
        }
        Ok(frames)
    }

    /// The remaining frames, after the last packet. Afterwards the decoder accepts packets again, as after a
    /// seek.
    ///
    /// # Errors
    /// Those of filters.
    pub fn finish(&mut self) -> Result<Frames> {
        self.finish_up_to(usize::MAX)
    }

    fn finish_up_to(&mut self, most: usize) -> Result<Frames> {
        let ended = self.send(None, most);
        let missing = self.awaited.as_mut().map(AwaitedFrames::take_all);
        missing.into_iter().flatten().for_each(|error| self.failures.add(error));
        // SAFETY: the context is open.
        unsafe { ffi::avcodec_flush_buffers(self.context.as_ptr()) };
        let mut frames = ended?;
        if let Some(filters) = &mut self.filters {
            let rest = filters.finish(most - frames.len().min(most))?;
            let rest = self.in_window(rest)?;
            frames.append(rest)?;
        }
        Ok(frames)
    }

    /// The packets that could not be decoded so far.
    pub fn failures(&self) -> &DecodeFailures {
        &self.failures
    }

    fn none(&self) -> Frames {
        Frames::new(self.kind, self.time_base)
    }

    /// Decodes a packet, or ends the stream; the frames that are ready.
    fn send(&mut self, packet: Option<&Packet>, most: usize) -> Result<Frames> {
        if let (Some(awaited), Some(packet)) = (&mut self.awaited, packet) {
            awaited.sent(packet);
        }
        let pointer = packet.map_or(ptr::null(), |packet| packet.as_ptr().cast_const());
        // SAFETY: the context is open; the packet is valid, or null to end the stream.
        let code = unsafe { ffi::avcodec_send_packet(self.context.as_ptr(), pointer) };
        if code < 0 && (code != ffi::AVERROR_EOF || packet.is_some()) {
            let at = packet.map(|packet| packet.fields().pos).and_then(|at| u64::try_from(at).ok());
            let error = error_of(code, "cannot decode a packet");
            self.fail(match at {
                Some(offset) => error.with_offset(offset),
                None => error,
            });
        }
        let mut decoded = self.none();
        let mut failures = 0;
        loop {
            // SAFETY: context and frame are valid.
            let code =
                unsafe { ffi::avcodec_receive_frame(self.context.as_ptr(), self.frame.as_ptr()) };
            if code == ffi::AVERROR(ffi::EAGAIN) || code == ffi::AVERROR_EOF {
                break;
            }
            if code < 0 {
                self.fail(error_of(code, "cannot decode a frame"));
                failures += 1;
                if failures >= MAX_FAILURES {
                    break;
                }
                continue;
            }
            let fields = self.frame.fields_mut();
            if let Some(awaited) = &mut self.awaited {
                awaited.arrived(fields.pts);
            }
            fields.pts = fields.best_effort_timestamp;
            // The decoder of Speex names no channels, which filters refuse.
            name_channels(&mut fields.ch_layout);
            decoded.push(self.frame.take()?);
        }
        let frames = match &mut self.filters {
            None => decoded,
            Some(filters) => filters.filter(&decoded, most)?,
        };
        self.in_window(frames)
    }

    fn fail(&mut self, error: Error) {
        self.awaited.iter_mut().for_each(AwaitedFrames::failed);
        self.failures.add(error);
    }

    /// The frames of a video that are in the window. A filter cuts audio.
    fn in_window(&self, frames: Frames) -> Result<Frames> {
        let Some(window) = self.window.filter(|_| self.kind == MediaKind::Video) else {
            return Ok(self.of_own_kind(frames));
        };
        let unit = frames.time_base();
        let stamps = frames.timestamps();
        let wanted = (0..stamps.len()).filter(|&at| window.contains(stamps[at], unit));
        Ok(self.of_own_kind(frames.pick(wanted)?))
    }

    /// The frames of a graph that starts with an image are images.
    fn of_own_kind(&self, mut frames: Frames) -> Frames {
        if self.kind == MediaKind::Image && frames.kind() == MediaKind::Video {
            frames.set_kind(MediaKind::Image);
        }
        frames
    }
}

/// A decoder that fails more often after one packet is not called again.
const MAX_FAILURES: u32 = 64;

/// The most pixels of a frame; the option `max_pixels` of the decoder changes it.
const MAX_PIXELS: i64 = 1 << 28;

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

fn find(codec: &StreamCodec, options: &DecodeOptions) -> Result<*const ffi::AVCodec> {
    let found = match &options.decoder {
        Some(name) => {
            let name = c_string(name)?;
            // SAFETY: the name is terminated with 0; the result is null or a constant of the library.
            unsafe { ffi::avcodec_find_decoder_by_name(name.as_ptr()) }
        }
        None => {
            let number = names::codec_number(codec.parameters().fields());
            // SAFETY: any number is allowed; the result is null or a constant of the library.
            unsafe { avcodec_find_decoder(number) }
        }
    };
    if !found.is_null() {
        return Ok(found);
    }
    let message = match &options.decoder {
        Some(name) => format!("FFmpeg was built without a decoder {name:?}"),
        None => format!("FFmpeg was built without a decoder of {}", codec.name()),
    };
    Err(Error::new(ErrorKind::Unsupported, message))
}

unsafe extern "C" {
    /// As in libavcodec, with the identifier as a number, as in `names`.
    fn avcodec_find_decoder(id: std::ffi::c_uint) -> *const ffi::AVCodec;
}

/// Decodes packets with a new decoder: all frames, or the first `most`. Of a video with a window, the frames
/// in the window.
///
/// # Errors
/// `InvalidArgument` if the packets have no codec; the first failure if there are failures and no frames; as
/// [`StreamDecoder::new`] and [`StreamDecoder::decode`].
pub fn decode_packets(
    packets: &Packets,
    filters: Option<&str>,
    options: &DecodeOptions,
    most: Option<usize>,
) -> Result<(Frames, DecodeFailures)> {
    let most = most.unwrap_or(usize::MAX);
    let mut decoder = StreamDecoder::new(codec_of(packets)?, filters, options)?;
    decoder.window = packets.window();
    let mut frames = decoder.decode_up_to(packets, most)?;
    if frames.len() < most {
        frames.append(decoder.finish_up_to(most - frames.len())?)?;
    } else {
        let missing = decoder.awaited.as_mut().map(AwaitedFrames::take_overdue);
        missing.into_iter().flatten().for_each(|error| decoder.failures.add(error));
    }
    frames.truncate(most);
    match decoder.failures.first.take() {
        Some(error) if frames.is_empty() => Err(error),
        first => Ok((frames, DecodeFailures { count: decoder.failures.count, first })),
    }
}

fn codec_of(packets: &Packets) -> Result<&StreamCodec> {
    packets.codec().ok_or_else(|| {
        invalid("the packets have no codec: use a StreamDecoder of the demuxer's codec")
    })
}

/// Decodes some frames of a video: from the nearest key frame before each, up to the frame. Other frames are not kept.
///
/// `indices` are the numbers of the frames among those in the window of the packets, in the order of
/// presentation, ascending.
///
/// # Errors
/// `InvalidArgument` if there are fewer frames; `Corrupt` if a frame cannot be decoded; as
/// [`decode_packets`].
pub fn decode_frames(
    packets: &Packets,
    indices: &[usize],
    filters: Option<&str>,
    options: &DecodeOptions,
) -> Result<Frames> {
    let mut found = Frames::new(packets.kind(), packets.time_base());
    let codec = codec_of(packets)?;
    for group in packets.groups_of(indices)? {
        let mut decoder = StreamDecoder::new(codec, filters, options)?;
        let mut search = Search { wanted: &group.wanted, unit: packets.time_base(), passed: 0 };
        let before = found.len();
        for packet in group.packets.as_slice() {
            let frames = decoder.send(Some(packet), usize::MAX)?;
            search.keep(&frames, &mut found)?;
            if found.len() - before == group.wanted.len() {
                break;
            }
        }
        if found.len() - before < group.wanted.len() {
            search.keep(&decoder.finish()?, &mut found)?;
        }
        if found.len() - before < group.wanted.len() {
            return Err(decoder.failures.first.take().unwrap_or_else(|| {
                let times = group.wanted.iter().map(|wanted| wanted.timestamp);
                let times = packets.in_seconds(&times.collect::<Vec<_>>());
                let message =
                    format!("corrupt video: not all frames at {times:?} s could be decoded");
                Error::new(ErrorKind::Corrupt, message)
            }));
        }
    }
    Ok(found)
}

/// Finds the wanted frames of a group among the decoded ones.
struct Search<'a> {
    wanted: &'a [WantedFrame],
    unit: Rational,
    /// The frames that were decoded before.
    passed: usize,
}

impl Search<'_> {
    /// Keeps those of `frames` that are wanted.
    fn keep(&mut self, frames: &Frames, found: &mut Frames) -> Result<()> {
        for (at, stamp) in frames.timestamps().into_iter().enumerate() {
            // If filters have changed the time stamps, frames are found by their number.
            let is_wanted = match frames.time_base() == self.unit {
                true => self.wanted.iter().any(|wanted| wanted.timestamp == stamp),
                false => self.wanted.iter().any(|wanted| wanted.position == self.passed + at),
            };
            if is_wanted {
                found.append(frames.pick([at])?)?;
            }
        }
        self.passed += frames.len();
        Ok(())
    }
}
