//! From packets to a file.

use std::ffi::c_int;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use super::codec::{MediaKind, Rational, StreamCodec};
use super::encoder::{AudioEncoding, EncodeOptions, StreamEncoder, Target, VideoEncoding};
use super::errors::{error_of, out_of_memory};
use super::memory::{Dictionary, c_string, text};
use super::names;
use super::output::Output;
use super::packets::Packets;

/// Writes packets of audio, video or an image to a file.
///
/// Add all streams, then [`start`](Muxer::start), [`write`](Muxer::write) and [`finish`](Muxer::finish). Without
/// `finish`, the file may be unreadable.
pub struct Muxer {
    format: NonNull<ffi::AVFormatContext>,
    /// The file, from the start on.
    output: Option<Output>,
    path: PathBuf,
    name: String,
    streams: Vec<MediaKind>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Streams,
    Packets,
    Finished,
    Failed,
}

// SAFETY: the libraries bind a context to no thread, and the output is `Send`.
unsafe impl Send for Muxer {}

impl Muxer {
    /// Describes a file. `format` is FFmpeg's name of its format; by default, the extension of the path decides.
    /// [`start`](Muxer::start) creates the file, and replaces an existing one.
    ///
    /// # Errors
    /// `Unsupported` if FFmpeg has no such format, or it is no file.
    pub fn new(path: &Path, format: Option<&str>) -> Result<Self> {
        super::start();
        let name = path.display().to_string();
        let format = guess(&name, format)?;
        // SAFETY: the function has no conditions; the format is a constant of the library.
        let context = unsafe { ffi::avformat_alloc_context() };
        let context = NonNull::new(context).ok_or_else(|| out_of_memory("a media file"))?;
        // SAFETY: the context is new, and nothing else refers to it.
        let fields = unsafe { &mut *context.as_ptr() };
        fields.oformat = format;
        fields.flags |= ffi::AVFMT_FLAG_CUSTOM_IO as c_int;
        fields.io_open = Some(super::input::refuse_to_open);
        let (path, streams) = (path.to_owned(), Vec::new());
        Ok(Muxer { format: context, output: None, path, name, streams, state: State::Streams })
    }

    /// Adds a stream of audio; its encoder.
    ///
    /// # Errors
    /// `Unsupported` if FFmpeg lacks the encoder, or the format has no audio; `InvalidArgument` if the encoder does not
    /// support the settings, or the file is already started.
    pub fn add_audio(
        &mut self,
        encoding: &AudioEncoding,
        options: &EncodeOptions,
    ) -> Result<StreamEncoder> {
        let encoder = StreamEncoder::of_audio(encoding, options, self.target(MediaKind::Audio)?)?;
        self.add(encoder.codec(), false)?;
        Ok(encoder)
    }

    /// Adds a stream of video, or an image; its encoder.
    ///
    /// # Errors
    /// As [`add_audio`](Muxer::add_audio).
    pub fn add_video(
        &mut self,
        encoding: &VideoEncoding,
        options: &EncodeOptions,
    ) -> Result<StreamEncoder> {
        let encoder = StreamEncoder::of_video(encoding, options, self.target(MediaKind::Video)?)?;
        self.add(encoder.codec(), false)?;
        Ok(encoder)
    }

    /// Adds a stream whose packets are already encoded.
    ///
    /// # Errors
    /// `InvalidArgument` if the file is already started.
    pub fn add_encoded(&mut self, codec: &StreamCodec) -> Result<()> {
        self.add(codec, true)
    }

    fn add(&mut self, codec: &StreamCodec, is_from_other_format: bool) -> Result<()> {
        self.expect(State::Streams, "add streams before the file is started")?;
        // SAFETY: the context is valid; no codec is needed.
        let stream = unsafe { ffi::avformat_new_stream(self.format.as_ptr(), ptr::null()) };
        // SAFETY: the result is null or a new stream of the context, and nothing else refers to it.
        let stream = unsafe { stream.as_mut() }.ok_or_else(|| out_of_memory("a stream"))?;
        self.streams.push(codec.kind());
        let source = codec.parameters().as_ptr();
        // SAFETY: a stream has parameters.
        let code = unsafe { ffi::avcodec_parameters_copy(stream.codecpar, source) };
        if code < 0 {
            return Err(error_of(code, "cannot add a stream"));
        }
        // SAFETY: as above, and nothing else refers to them.
        let parameters = unsafe { &mut *stream.codecpar };
        if is_from_other_format && !self.knows_tag(parameters) {
            parameters.codec_tag = 0;
        }
        stream.time_base = codec.time_base().to_ffi();
        let rate = codec.frame_rate();
        if rate.numerator > 0 && rate.denominator > 0 {
            stream.avg_frame_rate = rate.to_ffi();
        }
        Ok(())
    }

    /// Whether the tag of a codec is one of the format for this codec, or the format has none for it.
    fn knows_tag(&self, parameters: &ffi::AVCodecParameters) -> bool {
        // SAFETY: the context is valid, and nothing changes it now.
        let format = unsafe { self.format.as_ref() }.oformat;
        // SAFETY: the format of the context is a constant of the library.
        let tables = unsafe { &*format }.codec_tag;
        if tables.is_null() {
            return true;
        }
        let codec = names::codec_number(parameters);
        // SAFETY: the tables are a constant of the library; any tag is allowed.
        let of_tag = unsafe { av_codec_get_id(tables.cast(), parameters.codec_tag) };
        // SAFETY: as above.
        of_tag == codec || unsafe { av_codec_get_tag(tables.cast(), codec) } == 0
    }

    /// The encoder of the format for a kind of stream.
    fn target(&self, kind: MediaKind) -> Result<Target> {
        self.expect(State::Streams, "add streams before the file is started")?;
        let name = c_string(&self.name)?;
        // SAFETY: the context is valid.
        let format = unsafe { (*self.format.as_ptr()).oformat };
        let none = ptr::null();
        // SAFETY: format and name are valid; the others are optional.
        let codec =
            unsafe { av_guess_codec(format.cast(), none, name.as_ptr(), none, kind.stream_type()) };
        // SAFETY: the format of the context is a constant of the library.
        let flags = unsafe { (*format).flags };
        let has_global_header = flags & ffi::AVFMT_GLOBALHEADER as c_int != 0;
        Ok(Target { codec, has_global_header })
    }

    /// Creates the file, and writes the header. `options` are those of the format.
    ///
    /// # Errors
    /// `InvalidArgument` if there are no streams, the format does not support them, or lacks an option; `Unsupported` for
    /// `movflags` that read the file again; the errors of the file system.
    pub fn start(&mut self, options: &[(String, String)]) -> Result<()> {
        self.expect(State::Streams, "the file is already started")?;
        if self.streams.is_empty() {
            return Err(invalid("add a stream before the file is started"));
        }
        if options.iter().any(|(name, value)| name == "movflags" && value.contains("faststart")) {
            let message = "movflags=faststart reads the file again, which is not supported";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let given = options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let mut dictionary = Dictionary::new(given)?;
        let file = File::create(&self.path).map_err(|error| {
            let message = format!("cannot create the file: {error}");
            Error::new(Error::from(error).kind(), message).with_key(&*self.name)
        })?;
        let output = self.output.insert(Output::new(file)?);
        // SAFETY: the context is valid, and nothing else refers to it.
        unsafe { self.format.as_mut() }.pb = output.as_ptr();
        self.state = State::Failed;
        // SAFETY: the context has its output and its streams.
        let code =
            unsafe { ffi::avformat_write_header(self.format.as_ptr(), dictionary.as_mut_ptr()) };
        if code < 0 {
            output.flush()?;
            let reason = error_of(code, "cannot write the header of the media file").report();
            return Err(invalid(&reason).with_key(self.name.as_str()));
        }
        dictionary.check_used("the format")?;
        self.state = State::Packets;
        Ok(())
    }

    /// Writes packets of the stream with a number, in the order in which the streams were added.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such stream, the packets are of another kind, or the file is not started;
    /// the errors of the file system.
    pub fn write(&mut self, stream: usize, packets: &Packets) -> Result<()> {
        self.expect(
            State::Packets,
            "start the file before packets are written, and do not finish it",
        )?;
        let Some(&kind) = self.streams.get(stream) else {
            let count = self.streams.len();
            return Err(invalid(&format!(
                "Stream index is out of range: {stream} of {count} streams"
            )));
        };
        let is_audio = |kind: MediaKind| kind == MediaKind::Audio;
        if is_audio(kind) != is_audio(packets.kind()) {
            let (given, own) = (packets.kind().name(), kind.name());
            return Err(invalid(&format!("{given} packets were written to a stream of {own}")));
        }
        let unit = self.unit(stream);
        for packet in packets.as_slice() {
            let mut packet = packet.share()?;
            let source = packets.time_base();
            if is_valid(source) {
                // SAFETY: the packet is valid, and the fractions are positive.
                unsafe { ffi::av_packet_rescale_ts(packet.as_ptr(), source.to_ffi(), unit) };
            }
            let fields = packet.fields_mut();
            fields.stream_index = stream as c_int;
            fields.pos = -1;
            // SAFETY: context and packet are valid; the function takes the content of the packet.
            let code =
                unsafe { ffi::av_interleaved_write_frame(self.format.as_ptr(), packet.as_ptr()) };
            self.check(code, "cannot write a packet")?;
        }
        Ok(())
    }

    /// Writes the buffered packets, which wait for those of other streams.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn flush(&mut self) -> Result<()> {
        if self.state != State::Packets {
            return Ok(());
        }
        // SAFETY: the context is valid; a null packet writes the buffered ones.
        let code =
            unsafe { ffi::av_interleaved_write_frame(self.format.as_ptr(), ptr::null_mut()) };
        self.check(code, "cannot write packets")?;
        self.flush_output()
    }

    /// Writes the end of the file. The call has no effect if the file is not started, or already finished.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn finish(&mut self) -> Result<()> {
        if self.state != State::Packets {
            return Ok(());
        }
        self.state = State::Finished;
        // SAFETY: the header is written.
        let code = unsafe { ffi::av_write_trailer(self.format.as_ptr()) };
        self.check(code, "cannot write the end of the media file")?;
        self.flush_output()
    }

    fn flush_output(&mut self) -> Result<()> {
        self.output.as_mut().map_or(Ok(()), Output::flush)
    }

    /// The unit of the time stamps of a stream.
    fn unit(&self, stream: usize) -> ffi::AVRational {
        // SAFETY: the context is valid, and nothing changes it now.
        let fields = unsafe { self.format.as_ref() };
        // SAFETY: the context has as many streams as `self.streams`.
        let streams = unsafe { std::slice::from_raw_parts(fields.streams, self.streams.len()) };
        // SAFETY: a stream lives as long as its context.
        unsafe { &*streams[stream] }.time_base
    }

    fn check(&mut self, code: c_int, what: &str) -> Result<()> {
        if code >= 0 {
            return Ok(());
        }
        self.flush_output()?;
        Err(error_of(code, what).with_key(self.name.as_str()))
    }

    fn expect(&self, state: State, otherwise: &str) -> Result<()> {
        if self.state == state { Ok(()) } else { Err(invalid(otherwise)) }
    }
}

impl Drop for Muxer {
    fn drop(&mut self) {
        // SAFETY: the context is valid, and freed once. It does not free its output.
        unsafe { ffi::avformat_free_context(self.format.as_ptr()) };
    }
}

impl std::fmt::Debug for Muxer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Muxer { name, streams, state, .. } = self;
        f.debug_struct("Muxer")
            .field("name", name)
            .field("streams", streams)
            .field("state", state)
            .finish_non_exhaustive()
    }
}

unsafe extern "C" {
    // As in libavformat, with identifiers as numbers, as in `names`.
    fn av_codec_get_id(tables: *const std::ffi::c_void, tag: u32) -> std::ffi::c_uint;
    fn av_codec_get_tag(tables: *const std::ffi::c_void, id: std::ffi::c_uint) -> u32;
    fn av_guess_codec(
        format: *const ffi::AVOutputFormat,
        short_name: *const std::ffi::c_char,
        file: *const std::ffi::c_char,
        mime: *const std::ffi::c_char,
        kind: ffi::AVMediaType,
    ) -> std::ffi::c_uint;
}

/// The format of a file.
fn guess(path: &str, format: Option<&str>) -> Result<*const ffi::AVOutputFormat> {
    let (name, path) = (format.map(c_string).transpose()?, c_string(path)?);
    let name = name.as_ref().map_or(ptr::null(), |name| name.as_ptr());
    let guess = |name, path| {
        // SAFETY: the strings are terminated with 0, or null; the result is null or a constant of the library.
        unsafe { ffi::av_guess_format(name, path, ptr::null()) }
    };
    let mut found = guess(name, if name.is_null() { path.as_ptr() } else { ptr::null() });
    // The format for series of images opens a file for each image; another one writes to an open file.
    // SAFETY: the result is null or a constant of the library.
    let short_name = unsafe { found.as_ref() }.map_or(ptr::null(), |format| format.name);
    // SAFETY: the name of a format is a string.
    let is_series = unsafe { text(short_name) } == "image2";
    if is_series {
        found = guess(c"image2pipe".as_ptr(), ptr::null());
    }
    // SAFETY: as above.
    let writes_files = unsafe { found.as_ref() }
        .is_some_and(|format| format.flags & ffi::AVFMT_NOFILE as c_int == 0);
    if writes_files {
        return Ok(found);
    }
    let message = match format {
        Some(format) => format!("FFmpeg has no format {format:?} for files"),
        None => format!("FFmpeg has no format for the extension of {:?}; name one", path),
    };
    Err(Error::new(ErrorKind::Unsupported, message))
}

fn is_valid(unit: Rational) -> bool {
    unit.numerator > 0 && unit.denominator > 0
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}
