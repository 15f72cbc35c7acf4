//! The bytes of a file for the libraries.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use super::errors::{error_of, out_of_memory};
use super::memory::{Dictionary, Packet, c_string, text};
use crate::source::MediaSource;

/// Containers of audio and video that refer to no other files. Playlists, scripts and image sequences
/// are missing.
pub(crate) const MEDIA_FORMATS: &str = "mov,matroska,avi,mpegts,mpeg,mpegvideo,flv,live_flv,asf,ogg,h264,hevc,m4v,h263,\
ivf,av1,obu,mjpeg,dv,mxf,nut,rm,gif,swf,wtv,y4m,yuv4mpegpipe,vc1,dirac,gxf,nsv,3g2,xwma,\
wav,w64,flac,mp3,aac,aiff,caf,ac3,eac3,amr,ape,tta,wv,mpc,mpc8,au,voc,dts,adts,latm,loas,tak,shn";

/// Formats of files with one image.
pub(super) const IMAGE_FORMATS: &str = "bmp_pipe,dds_pipe,dpx_pipe,exr_pipe,gem_pipe,gif_pipe,j2k_pipe,\
jpeg_pipe,jpegls_pipe,jpegxl_pipe,pam_pipe,pbm_pipe,pcx_pipe,pfm_pipe,pgm_pipe,pgmyuv_pipe,pgx_pipe,png_pipe,\
ppm_pipe,psd_pipe,qdraw_pipe,qoi_pipe,sgi_pipe,sunrast_pipe,tiff_pipe,webp_pipe,xbm_pipe,xpm_pipe,xwd_pipe,\
apng,hdr_pipe,phm_pipe,vbn_pipe";

/// The most pixels of a frame that is decoded to find the format of its stream.
const MAX_PROBED_PIXELS: &str = "268435456";

/// The most streams of a file, unless the caller sets another limit.
const MAX_STREAMS: u32 = 1000;

/// How to open a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DemuxOptions {
    /// FFmpeg's name of the format, such as `s16le` for audio without a header; by default, the format
    /// is recognised by the content.
    pub format: Option<String>,
    /// Options of the format: names and values.
    pub options: Vec<(String, String)>,
    /// The bytes that are read at a time, by default 65,536.
    pub buffer_bytes: usize,
    /// The most streams of a file, by default 1,000.
    pub max_streams: u32,
}

impl Default for DemuxOptions {
    fn default() -> Self {
        DemuxOptions {
            format: None,
            options: Vec::new(),
            buffer_bytes: 64 << 10,
            max_streams: MAX_STREAMS,
        }
    }
}

/// A file that the libraries have opened.
pub(crate) struct Input<'a> {
    format: NonNull<ffi::AVFormatContext>,
    io: NonNull<ffi::AVIOContext>,
    /// What the callbacks of `io` use. `io` has a pointer to it.
    reader: NonNull<SourceReader<'a>>,
    has_damaged_end: bool,
}

/// Reads a source from a position.
struct SourceReader<'a> {
    source: Box<dyn MediaSource + 'a>,
    size: u64,
    position: u64,
    memory: Vec<u8>,
    /// The first error of the source, which the libraries do not keep.
    failure: Option<Error>,
}

/// Reads up to `size` bytes into `out`.
///
/// # Safety
/// `opaque` must point to a [`SourceReader`] that nothing else uses, `out` to `size` bytes that may be
/// written.
unsafe extern "C" fn read_source(opaque: *mut c_void, out: *mut u8, size: c_int) -> c_int {
    // SAFETY: the caller is `io`, whose opaque pointer is that of a living `SourceReader`.
    let reader = unsafe { &mut *opaque.cast::<SourceReader<'_>>() };
    let SourceReader { source, size: file_size, position, memory, failure } = reader;
    let available = file_size.saturating_sub(*position);
    let bytes = u64::try_from(size).unwrap_or(0).min(available);
    if bytes == 0 {
        return ffi::AVERROR_EOF;
    }
    // A panic must not cross functions of C.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let read = source.read(*position..*position + bytes, memory)?;
        let copied = read.len().min(bytes as usize);
        // SAFETY: `out` has room for `size` bytes, and at most as many are copied.
        unsafe { ptr::copy_nonoverlapping(read.as_ptr(), out, copied) };
        Ok(copied)
    }));
    match outcome {
        Ok(Ok(copied)) if copied > 0 => {
            *position += copied as u64;
            return copied as c_int;
        }
        Ok(Ok(_)) => failure.get_or_insert_with(|| {
            Error::new(ErrorKind::Io, "the source of a media file returned no bytes")
        }),
        Ok(Err(error)) => failure.get_or_insert(error),
        Err(_) => failure.get_or_insert_with(|| {
            Error::new(ErrorKind::Panicked, "the source of a media file panicked")
        }),
    };
    ffi::AVERROR(ffi::EIO)
}

/// Changes the position.
///
/// # Safety
/// `opaque` must point to a [`SourceReader`] that nothing else uses.
unsafe extern "C" fn seek_source(opaque: *mut c_void, offset: i64, whence: c_int) -> i64 {
    // SAFETY: the caller is `io`, whose opaque pointer is that of a living `SourceReader`.
    let reader = unsafe { &mut *opaque.cast::<SourceReader<'_>>() };
    let size = reader.size;
    let from = match whence & !ffi::AVSEEK_FORCE {
        ffi::AVSEEK_SIZE => return i64::try_from(size).unwrap_or(i64::MAX),
        ffi::SEEK_SET => 0,
        ffi::SEEK_CUR => reader.position,
        ffi::SEEK_END => size,
        _ => return ffi::AVERROR(ffi::EINVAL).into(),
    };
    match from.checked_add_signed(offset) {
        Some(position) => {
            reader.position = position;
            i64::try_from(position).unwrap_or(i64::MAX)
        }
        None => ffi::AVERROR(ffi::EINVAL).into(),
    }
}

/// Refuses to open other files.
pub(super) unsafe extern "C" fn refuse_to_open(
    _context: *mut ffi::AVFormatContext,
    _opened: *mut *mut ffi::AVIOContext,
    _address: *const std::ffi::c_char,
    _flags: c_int,
    _options: *mut *mut ffi::AVDictionary,
) -> c_int {
    ffi::AVERROR(ffi::EPERM)
}

/// The format of this name, if it reads from a file.
fn find_format(name: &str) -> Result<*const ffi::AVInputFormat> {
    let string = c_string(name)?;
    // SAFETY: the string is terminated with 0; the result is null or a constant of the library.
    let found = unsafe { ffi::av_find_input_format(string.as_ptr()) };
    // SAFETY: as above.
    let reads_files = unsafe { found.as_ref() }
        .is_some_and(|format| format.flags & ffi::AVFMT_NOFILE as c_int == 0);
    if reads_files {
        return Ok(found);
    }
    let message = format!("FFmpeg has no format {name:?} of files");
    Err(Error::new(ErrorKind::Unsupported, message))
}

impl<'a> Input<'a> {
    /// Opens `source`, and reads its header and the parameters of its streams. `formats` lists those that
    /// may be recognised.
    pub(crate) fn open(
        source: Box<dyn MediaSource + 'a>,
        formats: &str,
        options: &DemuxOptions,
    ) -> Result<Self> {
        super::start();
        let (forced, formats) = match &options.format {
            Some(name) => (find_format(name)?, name.as_str()),
            None => (ptr::null(), formats),
        };
        let given = options.options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let fixed = [("format_whitelist", formats), ("protocol_whitelist", "none")];
        let max_streams = options.max_streams.to_string();
        let limits = [("max_streams", max_streams.as_str())];
        let mut dictionary = Dictionary::new(limits.into_iter().chain(given).chain(fixed))?;
        let buffer_bytes = options.buffer_bytes.clamp(512, 64 << 20);
        let size = source.size();
        let reader = SourceReader { source, size, position: 0, memory: Vec::new(), failure: None };
        let reader = NonNull::from(Box::leak(Box::new(reader)));
        // SAFETY: the function has no conditions; the result is null or has this size.
        let mut buffer = unsafe { ffi::av_malloc(buffer_bytes as _) }.cast::<u8>();
        let io = match buffer.is_null() {
            true => ptr::null_mut(),
            // SAFETY: the callbacks expect a `SourceReader`, which lives as long as the context.
            false => unsafe {
                ffi::avio_alloc_context(
                    buffer,
                    buffer_bytes as c_int,
                    0,
                    reader.as_ptr().cast(),
                    Some(read_source),
                    None,
                    Some(seek_source),
                )
            },
        };
        // SAFETY: the function has no conditions.
        let format = unsafe { ffi::avformat_alloc_context() };
        let (Some(io), Some(format)) = (NonNull::new(io), NonNull::new(format)) else {
            // SAFETY: the context is null or new.
            unsafe { ffi::avformat_free_context(format) };
            let mut io = io;
            // SAFETY: as above.
            unsafe { ffi::avio_context_free(&mut io) };
            // SAFETY: the buffer is null or new.
            unsafe { ffi::av_freep((&raw mut buffer).cast()) };
            // SAFETY: the reader was a box, and nothing uses it any more.
            drop(unsafe { Box::from_raw(reader.as_ptr()) });
            return Err(out_of_memory("the reader of a media file"));
        };
        let mut input = Input { format, io, reader, has_damaged_end: false };
        {
            // SAFETY: the context is new, and nothing else refers to it.
            let fields = unsafe { &mut *format.as_ptr() };
            fields.pb = io.as_ptr();
            fields.flags |= ffi::AVFMT_FLAG_CUSTOM_IO;
            fields.io_open = Some(refuse_to_open);
        }
        let mut opened = format.as_ptr();
        // SAFETY: the context is new and has its input. If the function fails, it frees the context.
        let code = unsafe {
            ffi::avformat_open_input(&mut opened, c"".as_ptr(), forced, dictionary.as_mut_ptr())
        };
        if code < 0 {
            let mut what = "cannot open the media file".to_owned();
            if code == ffi::AVERROR(ffi::ENOMEM) {
                what += ": out of memory, or more streams than `max_streams`";
            }
            let error = input.failed(code, &what);
            input.drop_io();
            std::mem::forget(input);
            return Err(error);
        }
        dictionary.check_used("the format")?;
        let code = input.find_stream_info()?;
        if code < 0 {
            return Err(input.failed(code, "cannot read the streams of the media file"));
        }
        Ok(input)
    }

    /// Finds the parameters of the streams, for which some frames may be decoded.
    fn find_stream_info(&mut self) -> Result<c_int> {
        // SAFETY: the context is open, and `&mut self` excludes changes.
        let count = unsafe { self.format.as_ref() }.nb_streams as usize;
        let limits = || Dictionary::new([("max_pixels", MAX_PROBED_PIXELS)]);
        let mut limits = (0..count).map(|_| limits()).collect::<Result<Vec<_>>>()?;
        let mut pointers: Vec<_> = limits.iter_mut().map(Dictionary::take).collect();
        // SAFETY: the context is open, and there are options for each stream.
        let code =
            unsafe { ffi::avformat_find_stream_info(self.format.as_ptr(), pointers.as_mut_ptr()) };
        for pointer in &mut pointers {
            // SAFETY: the dictionary is null or valid, and freed once.
            unsafe { ffi::av_dict_free(pointer) };
        }
        Ok(code)
    }

    /// Moves to the start of a file that has no index.
    pub(super) fn restart(&mut self) -> Result<()> {
        let flags = (ffi::AVSEEK_FLAG_BYTE | ffi::AVSEEK_FLAG_BACKWARD) as c_int;
        // SAFETY: the context is open.
        let code = unsafe { ffi::av_seek_frame(self.format.as_ptr(), -1, 0, flags) };
        if code < 0 { Err(self.failed(code, "cannot read the media file again")) } else { Ok(()) }
    }

    /// The error of the source, or that of the libraries.
    fn failed(&mut self, code: c_int, what: &str) -> Error {
        // SAFETY: no function of the library runs now, so nothing else uses the reader.
        let failure = unsafe { self.reader.as_mut() }.failure.take();
        failure.unwrap_or_else(|| error_of(code, what))
    }

    /// The best stream of a kind.
    pub(crate) fn best_stream(&self, kind: ffi::AVMediaType) -> Option<&ffi::AVStream> {
        // SAFETY: the context is open; no decoder is requested.
        let number = unsafe {
            ffi::av_find_best_stream(self.format.as_ptr(), kind, -1, -1, ptr::null_mut(), 0)
        };
        self.stream(usize::try_from(number).ok()?)
    }

    /// The stream of this number.
    pub(super) fn stream(&self, number: usize) -> Option<&ffi::AVStream> {
        // SAFETY: the context is open, and `&self` excludes changes.
        let fields = unsafe { self.format.as_ref() };
        if fields.streams.is_null() {
            return None;
        }
        // SAFETY: the context has `nb_streams` pointers.
        let streams =
            unsafe { std::slice::from_raw_parts(fields.streams, fields.nb_streams as usize) };
        let stream = *streams.get(number)?;
        // SAFETY: a stream lives as long as its context.
        unsafe { stream.as_ref() }
    }

    /// Sets which streams are read: all if `streams` is empty.
    pub(super) fn select(&mut self, streams: &BTreeSet<usize>) {
        // SAFETY: the context is open, and `&mut self` excludes other uses.
        let fields = unsafe { self.format.as_ref() };
        if fields.streams.is_null() {
            return;
        }
        // SAFETY: the context has `nb_streams` pointers.
        let all = unsafe { std::slice::from_raw_parts(fields.streams, fields.nb_streams as usize) };
        for (number, stream) in all.iter().enumerate() {
            let is_read = streams.is_empty() || streams.contains(&number);
            let discard = if is_read {
                ffi::AVDiscard::AVDISCARD_DEFAULT
            } else {
                ffi::AVDiscard::AVDISCARD_ALL
            };
            // SAFETY: a stream lives as long as its context.
            unsafe { &mut **stream }.discard = discard;
        }
    }

    /// Moves to the last key frame of a stream whose time stamp is not later than `timestamp`.
    pub(super) fn seek(&mut self, stream: i32, timestamp: i64) -> Result<()> {
        let backward = ffi::AVSEEK_FLAG_BACKWARD as c_int;
        // SAFETY: the context is open, and has this stream.
        let code = unsafe { ffi::av_seek_frame(self.format.as_ptr(), stream, timestamp, backward) };
        if code < 0 { Err(self.failed(code, "cannot seek in the media file")) } else { Ok(()) }
    }

    /// Reads the next packet of any stream; `false` at the end of the file.
    pub(crate) fn read(&mut self, packet: &mut Packet) -> Result<bool> {
        packet.clear();
        // SAFETY: context and packet are valid.
        let code = unsafe { ffi::av_read_frame(self.format.as_ptr(), packet.as_ptr()) };
        // SAFETY: no function of the library runs now, so nothing else uses the reader.
        if let Some(failure) = unsafe { self.reader.as_mut() }.failure.take() {
            return Err(failure);
        }
        if code == ffi::AVERROR(ffi::ENOMEM) {
            return Err(out_of_memory("a packet"));
        }
        // A damaged end of the file is treated as its end.
        self.has_damaged_end |= code < 0 && code != ffi::AVERROR_EOF;
        Ok(code >= 0)
    }

    /// Whether [`read`](Self::read) ended at damage instead of the end of the file.
    pub(crate) fn has_damaged_end(&self) -> bool {
        self.has_damaged_end
    }

    /// The duration of the file in seconds, as its header has it.
    pub(super) fn seconds(&self) -> Option<f64> {
        // SAFETY: the context is open, and `&self` excludes changes.
        let duration = unsafe { self.format.as_ref() }.duration;
        (duration > 0).then(|| duration as f64 / f64::from(ffi::AV_TIME_BASE))
    }

    /// The name of the container.
    pub(crate) fn container(&self) -> String {
        // SAFETY: the context is open, and `&self` excludes changes.
        let format = unsafe { self.format.as_ref() }.iformat;
        // SAFETY: the format of an open context is a constant of the library.
        let name = unsafe { format.as_ref() }.map_or(c"media".as_ptr(), |format| format.name);
        // SAFETY: the name of a format is a string of the library.
        unsafe { text(name) }
    }

    /// Frees the input and its reader.
    fn drop_io(&mut self) {
        let mut io = self.io.as_ptr();
        // SAFETY: the context is valid, and no function of the library uses it now.
        let buffer = unsafe { &raw mut (*io).buffer };
        // SAFETY: the library may have replaced the buffer; the current one is freed once.
        unsafe { ffi::av_freep(buffer.cast()) };
        // SAFETY: the context is freed once, after all that uses it.
        unsafe { ffi::avio_context_free(&mut io) };
        // SAFETY: the reader was a box, and nothing has a pointer to it any more.
        drop(unsafe { Box::from_raw(self.reader.as_ptr()) });
    }
}

impl Drop for Input<'_> {
    fn drop(&mut self) {
        let mut format = self.format.as_ptr();
        // SAFETY: the context is open, and closed once. It does not free its custom input.
        unsafe { ffi::avformat_close_input(&mut format) };
        self.drop_io();
    }
}
