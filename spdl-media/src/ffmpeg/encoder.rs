//! From frames to packets.

use std::ffi::{c_int, c_uint};
use std::ptr;

use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use super::codec::{MediaKind, Rational, StreamCodec, positive};
use super::errors::error_of;
use super::frames::Frames;
use super::memory::{CodecContext, Dictionary, Frame, Packet, Parameters, c_string, text};
use super::names;
use super::packets::Packets;

/// How to encode audio.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AudioEncoding {
    /// The number of channels.
    pub channels: u32,
    /// Samples per second and channel.
    pub sample_rate: u32,
    /// The name of the sample format of the frames, such as `fltp`; by default, the first one that the encoder supports.
    pub sample_format: Option<String>,
    /// Bits per second; by default, those of the encoder.
    pub bit_rate: Option<i64>,
    /// The effort of compression, in the encoder's units.
    pub compression_level: Option<i32>,
    /// A constant quality, in the encoder's units.
    pub quality: Option<i32>,
}

impl AudioEncoding {
    /// Audio with the encoder's defaults.
    pub fn new(channels: u32, sample_rate: u32) -> Self {
        AudioEncoding {
            channels,
            sample_rate,
            sample_format: None,
            bit_rate: None,
            compression_level: None,
            quality: None,
        }
    }
}

/// How to encode video or an image.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VideoEncoding {
    /// Pixels per row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Frames per second.
    pub frame_rate: Rational,
    /// The name of the pixel format of the frames, such as `yuv420p`; by default, the first one that the encoder supports.
    pub pixel_format: Option<String>,
    /// Bits per second; by default, those of the encoder.
    pub bit_rate: Option<i64>,
    /// The effort of compression, in the encoder's units.
    pub compression_level: Option<i32>,
    /// A constant quality, in the encoder's units.
    pub quality: Option<i32>,
    /// Frames from one key frame to the next.
    pub gop_size: Option<i32>,
    /// The most consecutive frames that depend on later ones.
    pub max_b_frames: Option<i32>,
    /// FFmpeg's name of the matrix of the colours, such as `bt709`.
    pub color_space: Option<String>,
    /// FFmpeg's name of the primary colours.
    pub color_primaries: Option<String>,
    /// FFmpeg's name of the transfer function.
    pub color_transfer: Option<String>,
}

impl VideoEncoding {
    /// Video with the encoder's defaults.
    pub fn new(width: u32, height: u32, frame_rate: Rational) -> Self {
        VideoEncoding {
            width,
            height,
            frame_rate,
            pixel_format: None,
            bit_rate: None,
            compression_level: None,
            quality: None,
            gop_size: None,
            max_b_frames: None,
            color_space: None,
            color_primaries: None,
            color_transfer: None,
        }
    }
}

/// The choice of the encoder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EncodeOptions {
    /// FFmpeg's name of the encoder; by default, the one of the format of the file.
    pub encoder: Option<String>,
    /// Options of the encoder: names and values.
    pub options: Vec<(String, String)>,
}

/// Encodes the frames of one stream.
///
/// Made by [`Muxer::add_audio`](super::Muxer::add_audio) and [`Muxer::add_video`](super::Muxer::add_video).
#[derive(Debug)]
pub struct StreamEncoder {
    context: CodecContext,
    codec: StreamCodec,
    /// The number of the format of the frames.
    format: c_int,
}

/// What [`StreamEncoder`] needs from the file.
#[derive(Clone, Copy)]
pub(super) struct Target {
    /// The encoder of the format of the file, if it has one.
    pub(super) codec: c_uint,
    /// Whether the header of the file has the headers of the streams.
    pub(super) has_global_header: bool,
}

impl StreamEncoder {
    pub(super) fn of_audio(
        encoding: &AudioEncoding,
        options: &EncodeOptions,
        target: Target,
    ) -> Result<Self> {
        let (encoder, mut context) = new_context(MediaKind::Audio, options, target)?;
        let supported = formats(encoder, MediaKind::Audio);
        let format = choose(&supported, encoding.sample_format.as_deref(), MediaKind::Audio)?;
        let (Ok(channels), Ok(rate)) =
            (c_int::try_from(encoding.channels), c_int::try_from(encoding.sample_rate))
        else {
            return Err(invalid("channels or sample rate are too large"));
        };
        if channels == 0 || rate == 0 {
            return Err(invalid("audio has at least one channel, and a sample rate above 0"));
        }
        let fields = context.fields_mut();
        // SAFETY: an enumeration of C has the size of an integer, and the library knows this number.
        unsafe { (&raw mut fields.sample_fmt).cast::<c_int>().write(format) };
        fields.sample_rate = rate;
        fields.time_base = ffi::AVRational { num: 1, den: rate };
        // SAFETY: the layout of a new context is blank, and belongs to it.
        unsafe { ffi::av_channel_layout_default(&mut fields.ch_layout, channels) };
        let AudioEncoding { bit_rate, compression_level, quality, .. } = encoding;
        set_rates(fields, *bit_rate, *compression_level, *quality);
        let what =
            format!("{channels} channels in {} at {rate} Hz", names::of_sample_format(format));
        StreamEncoder::open(MediaKind::Audio, encoder, context, options, Rational::new(0, 0), &what)
    }

    pub(super) fn of_video(
        encoding: &VideoEncoding,
        options: &EncodeOptions,
        target: Target,
    ) -> Result<Self> {
        let (encoder, mut context) = new_context(MediaKind::Video, options, target)?;
        let supported = formats(encoder, MediaKind::Video);
        let format = choose(&supported, encoding.pixel_format.as_deref(), MediaKind::Video)?;
        let (Ok(width), Ok(height)) =
            (c_int::try_from(encoding.width), c_int::try_from(encoding.height))
        else {
            return Err(invalid("width or height are too large"));
        };
        let rate = encoding.frame_rate;
        if width == 0 || height == 0 || rate.numerator <= 0 || rate.denominator <= 0 {
            return Err(invalid("width, height and frame rate of a video must be positive"));
        }
        let fields = context.fields_mut();
        // SAFETY: an enumeration of C has the size of an integer, and the library knows this number.
        unsafe { (&raw mut fields.pix_fmt).cast::<c_int>().write(format) };
        (fields.width, fields.height) = (width, height);
        fields.framerate = rate.to_ffi();
        fields.time_base = ffi::AVRational { num: rate.denominator, den: rate.numerator };
        fields.sample_aspect_ratio = ffi::AVRational { num: 1, den: 1 };
        let VideoEncoding { bit_rate, compression_level, quality, .. } = encoding;
        set_rates(fields, *bit_rate, *compression_level, *quality);
        fields.gop_size = encoding.gop_size.unwrap_or(fields.gop_size);
        fields.max_b_frames = encoding.max_b_frames.unwrap_or(fields.max_b_frames);
        set_colors(fields, encoding)?;
        let what = format!("{width} × {height} pixels in {}", names::of_pixel_format(format));
        StreamEncoder::open(MediaKind::Video, encoder, context, options, rate, &what)
    }

    fn open(
        kind: MediaKind,
        encoder: *const ffi::AVCodec,
        context: CodecContext,
        options: &EncodeOptions,
        frame_rate: Rational,
        what: &str,
    ) -> Result<Self> {
        let given = options.options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let mut dictionary = Dictionary::new(given)?;
        // SAFETY: the context was made for this encoder, and is not open yet.
        let code =
            unsafe { ffi::avcodec_open2(context.as_ptr(), encoder, dictionary.as_mut_ptr()) };
        let name = name_of(encoder);
        if code < 0 {
            let reason = error_of(code, &format!("the encoder {name} refuses {what}")).to_string();
            return Err(invalid(&format!("{reason}{}", rates(encoder))));
        }
        dictionary.check_used("the encoder")?;
        let parameters = Parameters::new()?;
        // SAFETY: the context is open, and the parameters are new.
        let code =
            unsafe { ffi::avcodec_parameters_from_context(parameters.as_ptr(), context.as_ptr()) };
        if code < 0 {
            return Err(error_of(code, "cannot describe the stream"));
        }
        let unit = context.fields().time_base.into();
        let format = parameters.fields().format;
        let codec = StreamCodec::new(kind, parameters, unit, frame_rate);
        Ok(StreamEncoder { context, codec, format })
    }

    /// How the packets are encoded.
    pub fn codec(&self) -> &StreamCodec {
        &self.codec
    }

    /// The samples per channel that each piece of audio must have, except the last one; 0 if any number is allowed.
    pub fn frame_size(&self) -> u32 {
        positive(self.context.fields().frame_size)
    }

    /// Encodes frames; the packets that are ready.
    ///
    /// # Errors
    /// `InvalidArgument` if the frames do not fit the encoder.
    pub fn encode(&mut self, frames: &Frames) -> Result<Packets> {
        let mut packets = self.none();
        for frame in frames.as_slice() {
            let frame = self.prepare(frame, frames)?;
            self.send(Some(&frame), &mut packets)?;
        }
        Ok(packets)
    }

    /// The remaining packets, after the last frame.
    ///
    /// # Errors
    /// Those of the encoder.
    pub fn finish(&mut self) -> Result<Packets> {
        let mut packets = self.none();
        self.send(None, &mut packets)?;
        Ok(packets)
    }

    fn none(&self) -> Packets {
        Packets::new(self.codec.kind(), self.codec.time_base()).with_codec(self.codec.clone())
    }

    /// A reference to a frame, with the time stamp in units of the encoder.
    fn prepare(&self, frame: &Frame, frames: &Frames) -> Result<Frame> {
        self.check(frame, frames)?;
        let mut shared = frame.share()?;
        let (unit, own) = (frames.time_base(), self.codec.time_base());
        let fields = shared.fields_mut();
        if fields.pts != ffi::AV_NOPTS_VALUE && unit.numerator > 0 && unit.denominator > 0 {
            // SAFETY: the fractions are positive.
            fields.pts = unsafe { ffi::av_rescale_q(fields.pts, unit.to_ffi(), own.to_ffi()) };
        }
        // The encoder chooses the types of frames.
        fields.pict_type = ffi::AVPictureType::AV_PICTURE_TYPE_NONE;
        fields.quality = self.context.fields().global_quality;
        Ok(shared)
    }

    fn check(&self, frame: &Frame, frames: &Frames) -> Result<()> {
        let fields = frame.fields();
        let own = self.context.fields();
        let is_audio = self.codec.kind() == MediaKind::Audio;
        let matches = if is_audio {
            frames.kind() == MediaKind::Audio
                && fields.sample_rate == own.sample_rate
                && fields.ch_layout.nb_channels == own.ch_layout.nb_channels
        } else {
            frames.kind() != MediaKind::Audio
                && (fields.width, fields.height) == (own.width, own.height)
        };
        if matches && fields.format == self.format {
            return Ok(());
        }
        let wanted = if is_audio {
            let format = self.codec.sample_format();
            format!("{} channels in {format} at {} Hz", own.ch_layout.nb_channels, own.sample_rate)
        } else {
            format!("{} × {} pixels in {}", own.width, own.height, self.codec.pixel_format())
        };
        Err(invalid(&format!(
            "the encoder expects {wanted}; it was given {} frames in {}",
            frames.kind().name(),
            frames.format()
        )))
    }

    fn send(&mut self, frame: Option<&Frame>, packets: &mut Packets) -> Result<()> {
        let pointer = frame.map_or(ptr::null(), |frame| frame.as_ptr().cast_const());
        // SAFETY: the context is open; the frame is valid, or null to end the stream.
        let code = unsafe { ffi::avcodec_send_frame(self.context.as_ptr(), pointer) };
        if code == ffi::AVERROR_EOF && frame.is_some() {
            return Err(invalid("the encoder is finished"));
        }
        if code < 0 && code != ffi::AVERROR_EOF {
            let size = self.frame_size();
            let reason = error_of(code, "cannot encode a frame").to_string();
            let hint = match frame.map(|frame| positive(frame.fields().nb_samples)) {
                Some(samples) if size > 0 && samples != size => {
                    format!(": it has {samples} samples, and the encoder expects {size}")
                }
                _ => String::new(),
            };
            return Err(invalid(&format!("{reason}{hint}")));
        }
        loop {
            let packet = Packet::new()?;
            // SAFETY: context and packet are valid.
            let code =
                unsafe { ffi::avcodec_receive_packet(self.context.as_ptr(), packet.as_ptr()) };
            if code == ffi::AVERROR(ffi::EAGAIN) || code == ffi::AVERROR_EOF {
                return Ok(());
            }
            if code < 0 {
                return Err(error_of(code, "cannot encode a frame"));
            }
            packets.push(packet);
        }
    }
}

fn new_context(
    kind: MediaKind,
    options: &EncodeOptions,
    target: Target,
) -> Result<(*const ffi::AVCodec, CodecContext)> {
    super::start();
    let found = match &options.encoder {
        Some(name) => {
            let name = c_string(name)?;
            // SAFETY: the name is terminated with 0; the result is null or a constant of the library.
            unsafe { ffi::avcodec_find_encoder_by_name(name.as_ptr()) }
        }
        // SAFETY: any number is allowed; the result is null or a constant of the library.
        None => unsafe { avcodec_find_encoder(target.codec) },
    };
    // SAFETY: as above.
    let is_of_kind = unsafe { found.as_ref() }.is_some_and(|it| it.type_ == kind.stream_type());
    if !is_of_kind {
        let message = match &options.encoder {
            Some(name) => format!("FFmpeg has no {} encoder {name:?}", kind.name()),
            None => format!("the format of the file has no encoder of {}; name one", kind.name()),
        };
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    // SAFETY: the encoder is a constant of the library; the function returns a new context or null.
    let pointer = unsafe { ffi::avcodec_alloc_context3(found) };
    // SAFETY: the value is new, or null.
    let mut context = unsafe { CodecContext::from_raw(pointer, "an encoder") }?;
    let fields = context.fields_mut();
    fields.thread_count = 1;
    // Encoders that FFmpeg calls experimental are allowed.
    fields.strict_std_compliance = ffi::FF_COMPLIANCE_EXPERIMENTAL;
    if target.has_global_header {
        fields.flags |= ffi::AV_CODEC_FLAG_GLOBAL_HEADER as c_int;
    }
    Ok((found, context))
}

unsafe extern "C" {
    /// As in libavcodec, with the identifier as a number, as in `names`.
    fn avcodec_find_encoder(id: c_uint) -> *const ffi::AVCodec;
}

fn name_of(codec: *const ffi::AVCodec) -> String {
    // SAFETY: the codec is a constant of the library.
    let name = unsafe { &*codec }.name;
    // SAFETY: the name of a codec is a string.
    unsafe { text(name) }
}

/// The numbers of the formats that an encoder supports; none if it supports all.
fn formats(encoder: *const ffi::AVCodec, kind: MediaKind) -> Vec<c_int> {
    // SAFETY: the encoder is a constant of the library, which is only read.
    let codec = unsafe { ffmpeg_next::Codec::wrap(encoder.cast_mut()) };
    if kind == MediaKind::Audio {
        let formats = codec.audio().ok().and_then(|audio| audio.formats());
        let number = |format| ffi::AVSampleFormat::from(format) as c_int;
        return formats.into_iter().flatten().map(number).collect();
    }
    let formats = codec.video().ok().and_then(|video| video.formats());
    formats.into_iter().flatten().map(|format| ffi::AVPixelFormat::from(format) as c_int).collect()
}

/// The sample rates that an encoder supports, for an error message.
fn rates(encoder: *const ffi::AVCodec) -> String {
    // SAFETY: the encoder is a constant of the library, which is only read.
    let codec = unsafe { ffmpeg_next::Codec::wrap(encoder) };
    let rates = codec.audio().ok().and_then(|audio| audio.rates());
    let rates: Vec<_> = rates.into_iter().flatten().map(|rate| rate.to_string()).collect();
    if rates.is_empty() { String::new() } else { format!("; it supports {} Hz", rates.join(", ")) }
}

/// The number of the wanted format, or of the first that is supported.
fn choose(supported: &[c_int], wanted: Option<&str>, kind: MediaKind) -> Result<c_int> {
    let is_audio = kind == MediaKind::Audio;
    let Some(name) = wanted else {
        let format = supported.first().copied();
        return format.ok_or_else(|| invalid("the encoder supports all formats: name one"));
    };
    let number = if is_audio { names::sample_format(name)? } else { names::pixel_format(name)? };
    if supported.is_empty() || supported.contains(&number) {
        return Ok(number);
    }
    let name_of = if is_audio { names::of_sample_format } else { names::of_pixel_format };
    let list: Vec<_> = supported.iter().map(|&format| name_of(format)).collect();
    Err(invalid(&format!(
        "the encoder does not support the format {name}; it supports {}",
        list.join(", ")
    )))
}

fn set_rates(
    fields: &mut ffi::AVCodecContext,
    bit_rate: Option<i64>,
    compression_level: Option<i32>,
    quality: Option<i32>,
) {
    fields.bit_rate = bit_rate.unwrap_or(fields.bit_rate);
    fields.compression_level = compression_level.unwrap_or(fields.compression_level);
    if let Some(quality) = quality {
        fields.flags |= ffi::AV_CODEC_FLAG_QSCALE as c_int;
        fields.global_quality = quality.saturating_mul(ffi::FF_QP2LAMBDA as c_int);
    }
}

fn set_colors(fields: &mut ffi::AVCodecContext, encoding: &VideoEncoding) -> Result<()> {
    type Find = unsafe extern "C" fn(*const std::ffi::c_char) -> c_int;
    let colors: [(&Option<String>, Find, *mut c_int); 3] = [
        (&encoding.color_space, ffi::av_color_space_from_name, (&raw mut fields.colorspace).cast()),
        (
            &encoding.color_primaries,
            ffi::av_color_primaries_from_name,
            (&raw mut fields.color_primaries).cast(),
        ),
        (
            &encoding.color_transfer,
            ffi::av_color_transfer_from_name,
            (&raw mut fields.color_trc).cast(),
        ),
    ];
    for (name, find, place) in colors {
        let Some(name) = name else { continue };
        let string = c_string(name)?;
        // SAFETY: the name is terminated with 0.
        let number = unsafe { find(string.as_ptr()) };
        if number < 0 {
            return Err(invalid(&format!("FFmpeg has no colours {name:?}")));
        }
        // SAFETY: an enumeration of C has the size of an integer, and the library knows this number.
        unsafe { place.write(number) };
    }
    Ok(())
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}
