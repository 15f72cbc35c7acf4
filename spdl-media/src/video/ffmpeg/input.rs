//! The bytes of a file for the libraries.

use std::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use super::errors::{error_of, out_of_memory};
use super::memory::Packet;
use crate::video::MediaSource;

/// The bytes that the libraries read at a time.
const BUFFER_BYTES: usize = 64 << 10;

/// The formats that the libraries may open: containers of audio and video that refer to no other
/// files. Playlists, scripts and image sequences are missing.
const FORMATS: &CStr =
    c"mov,matroska,avi,mpegts,mpeg,mpegvideo,flv,live_flv,asf,ogg,h264,hevc,m4v,h263,\
ivf,av1,obu,mjpeg,dv,mxf,nut,rm,gif,swf,wtv,y4m,yuv4mpegpipe,vc1,dirac,gxf,nsv,3g2,xwma,\
wav,w64,flac,mp3,aac,aiff,caf,ac3,eac3,amr,ape,tta,wv,mpc,mpc8,au,voc,dts,adts,latm,loas,tak,shn";

/// A file that the libraries have opened.
pub(super) struct Input<'a> {
    format: NonNull<ffi::AVFormatContext>,
    io: NonNull<ffi::AVIOContext>,
    /// What the callbacks of `io` use. `io` has a pointer to it.
    reader: NonNull<SourceReader<'a>>,
}

/// Reads a source from a position.
struct SourceReader<'a> {
    source: &'a dyn MediaSource,
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
    let SourceReader { source, position, memory, failure } = reader;
    let available = source.size().saturating_sub(*position);
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
    let size = reader.source.size();
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
unsafe extern "C" fn refuse_to_open(
    _context: *mut ffi::AVFormatContext,
    _opened: *mut *mut ffi::AVIOContext,
    _address: *const std::ffi::c_char,
    _flags: c_int,
    _options: *mut *mut ffi::AVDictionary,
) -> c_int {
    ffi::AVERROR(ffi::EPERM)
}

impl<'a> Input<'a> {
    /// Opens `source`, and reads its header and the parameters of its streams.
    pub(super) fn open(source: &'a dyn MediaSource) -> Result<Self> {
        super::start();
        let reader = SourceReader { source, position: 0, memory: Vec::new(), failure: None };
        let reader = NonNull::from(Box::leak(Box::new(reader)));
        // SAFETY: the function has no conditions; the result is null or has this size.
        let buffer = unsafe { ffi::av_malloc(BUFFER_BYTES) }.cast::<u8>();
        // SAFETY: the callbacks expect a `SourceReader`, which lives as long as the context. A null
        // buffer is allowed.
        let io = unsafe {
            ffi::avio_alloc_context(
                buffer,
                BUFFER_BYTES as c_int,
                0,
                reader.as_ptr().cast(),
                Some(read_source),
                None,
                Some(seek_source),
            )
        };
        // SAFETY: the function has no conditions.
        let format = unsafe { ffi::avformat_alloc_context() };
        let (Some(io), Some(format)) = (NonNull::new(io), NonNull::new(format)) else {
            // The rest of a failed allocation is leaked: less than 100 KB.
            return Err(out_of_memory("the reader of a media file"));
        };
        let mut input = Input { format, io, reader };
        {
            // SAFETY: the context is new, and nothing else refers to it.
            let fields = unsafe { &mut *format.as_ptr() };
            fields.pb = io.as_ptr();
            fields.flags |= ffi::AVFMT_FLAG_CUSTOM_IO;
            fields.io_open = Some(refuse_to_open);
        }
        let mut options = ptr::null_mut();
        let allowed = [(c"format_whitelist", FORMATS), (c"protocol_whitelist", c"none")];
        for (name, value) in allowed {
            // SAFETY: name and value are terminated with 0, and are copied.
            unsafe { ffi::av_dict_set(&mut options, name.as_ptr(), value.as_ptr(), 0) };
        }
        let mut opened = format.as_ptr();
        // SAFETY: the context is new and has its input. If the function fails, it frees the context.
        let code = unsafe {
            ffi::avformat_open_input(&mut opened, c"".as_ptr(), ptr::null(), &mut options)
        };
        // SAFETY: the dictionary belongs to this function.
        unsafe { ffi::av_dict_free(&mut options) };
        if code < 0 {
            let error = input.failed(code, "cannot open the media file");
            input.drop_io();
            std::mem::forget(input);
            return Err(error);
        }
        // SAFETY: the context is open; options are allowed to be null.
        let code =
            unsafe { ffi::avformat_find_stream_info(input.format.as_ptr(), ptr::null_mut()) };
        if code < 0 {
            return Err(input.failed(code, "cannot read the streams of the media file"));
        }
        Ok(input)
    }

    /// The error of the source, or that of the libraries.
    fn failed(&mut self, code: c_int, what: &str) -> Error {
        // SAFETY: no function of the library runs now, so nothing else uses the reader.
        let failure = unsafe { self.reader.as_mut() }.failure.take();
        failure.unwrap_or_else(|| error_of(code, what))
    }

    /// The best stream of a kind.
    pub(super) fn best_stream(&self, kind: ffi::AVMediaType) -> Option<&ffi::AVStream> {
        // SAFETY: the context is open; no decoder is requested.
        let number = unsafe {
            ffi::av_find_best_stream(self.format.as_ptr(), kind, -1, -1, ptr::null_mut(), 0)
        };
        let number = usize::try_from(number).ok()?;
        // SAFETY: the context is open, and `&self` excludes changes.
        let fields = unsafe { self.format.as_ref() };
        // SAFETY: the context has `nb_streams` pointers.
        let streams =
            unsafe { std::slice::from_raw_parts(fields.streams, fields.nb_streams as usize) };
        let stream = *streams.get(number)?;
        // SAFETY: a stream lives as long as its context.
        unsafe { stream.as_ref() }
    }

    /// Reads the next packet of any stream; `false` at the end of the file.
    pub(super) fn read(&mut self, packet: &mut Packet) -> Result<bool> {
        packet.clear();
        // SAFETY: context and packet are valid.
        let code = unsafe { ffi::av_read_frame(self.format.as_ptr(), packet.as_ptr()) };
        // SAFETY: no function of the library runs now, so nothing else uses the reader.
        if let Some(failure) = unsafe { self.reader.as_mut() }.failure.take() {
            return Err(failure);
        }
        // A damaged end of the file is treated as its end.
        Ok(code >= 0)
    }

    /// The name of the container.
    pub(super) fn container(&self) -> String {
        // SAFETY: the context is open, and `&self` excludes changes.
        let format = unsafe { self.format.as_ref() }.iformat;
        // SAFETY: the format of an open context is a constant of the library.
        let name = unsafe { format.as_ref() }.map_or(c"media".as_ptr(), |format| format.name);
        // SAFETY: the name of a format is a string of the library.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
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
