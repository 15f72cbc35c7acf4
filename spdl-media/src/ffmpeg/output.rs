//! A file that the libraries write.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::ptr::NonNull;

use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use super::errors::out_of_memory;

/// The bytes that the libraries write at a time.
const BUFFER_BYTES: usize = 64 << 10;

/// A file for the libraries.
#[derive(Debug)]
pub(super) struct Output {
    io: NonNull<ffi::AVIOContext>,
    writer: NonNull<Writer>,
}

/// What the callbacks of an [`Output`] use.
struct Writer {
    file: File,
    /// The first error, which the libraries do not keep.
    failure: Option<Error>,
}

impl Writer {
    fn failed(&mut self, error: &std::io::Error) -> c_int {
        let message = format!("cannot write the media file: {error}");
        self.failure.get_or_insert_with(|| Error::new(ErrorKind::Io, message));
        ffi::AVERROR(ffi::EIO)
    }
}

/// Writes `size` bytes.
///
/// # Safety
/// `opaque` must point to a [`Writer`] that nothing else uses, `bytes` to `size` bytes.
unsafe extern "C" fn write(opaque: *mut c_void, bytes: *const u8, size: c_int) -> c_int {
    // SAFETY: the caller is an `Output`, whose writer lives.
    let writer = unsafe { &mut *opaque.cast::<Writer>() };
    let Ok(count) = usize::try_from(size) else { return ffi::AVERROR(ffi::EINVAL) };
    // SAFETY: the libraries pass `size` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(bytes, count) };
    match writer.file.write_all(bytes) {
        Ok(()) => size,
        Err(error) => writer.failed(&error),
    }
}

/// Changes the position.
///
/// # Safety
/// `opaque` must point to a [`Writer`] that nothing else uses.
unsafe extern "C" fn seek(opaque: *mut c_void, offset: i64, whence: c_int) -> i64 {
    // SAFETY: the caller is an `Output`, whose writer lives.
    let writer = unsafe { &mut *opaque.cast::<Writer>() };
    let target = match whence & !ffi::AVSEEK_FORCE {
        ffi::AVSEEK_SIZE => {
            return match writer.file.metadata() {
                Ok(metadata) => i64::try_from(metadata.len()).unwrap_or(i64::MAX),
                Err(error) => writer.failed(&error).into(),
            };
        }
        ffi::SEEK_SET => match u64::try_from(offset) {
            Ok(position) => SeekFrom::Start(position),
            Err(_) => return ffi::AVERROR(ffi::EINVAL).into(),
        },
        ffi::SEEK_CUR => SeekFrom::Current(offset),
        ffi::SEEK_END => SeekFrom::End(offset),
        _ => return ffi::AVERROR(ffi::EINVAL).into(),
    };
    match writer.file.seek(target) {
        Ok(position) => i64::try_from(position).unwrap_or(i64::MAX),
        Err(error) => writer.failed(&error).into(),
    }
}

unsafe extern "C" {
    /// As in libavformat. Before version 7 of FFmpeg, the bytes that are written are not declared constant.
    fn avio_alloc_context(
        buffer: *mut u8,
        size: c_int,
        is_written: c_int,
        opaque: *mut c_void,
        read: Option<unsafe extern "C" fn(*mut c_void, *mut u8, c_int) -> c_int>,
        write: Option<unsafe extern "C" fn(*mut c_void, *const u8, c_int) -> c_int>,
        seek: Option<unsafe extern "C" fn(*mut c_void, i64, c_int) -> i64>,
    ) -> *mut ffi::AVIOContext;
}

impl Output {
    pub(super) fn new(file: File) -> Result<Self> {
        // SAFETY: the function has no conditions; the result is null or has this size.
        let mut buffer = unsafe { ffi::av_malloc(BUFFER_BYTES as _) }.cast::<u8>();
        let writer = NonNull::from(Box::leak(Box::new(Writer { file, failure: None })));
        let io = match buffer.is_null() {
            true => std::ptr::null_mut(),
            // SAFETY: the callbacks expect a `Writer`, which lives as long as the context.
            false => unsafe {
                avio_alloc_context(
                    buffer,
                    BUFFER_BYTES as c_int,
                    1,
                    writer.as_ptr().cast(),
                    None,
                    Some(write),
                    Some(seek),
                )
            },
        };
        if let Some(io) = NonNull::new(io) {
            return Ok(Output { io, writer });
        }
        // SAFETY: the buffer is null or new.
        unsafe { ffi::av_freep((&raw mut buffer).cast()) };
        // SAFETY: the writer was leaked just now, and nothing else has it.
        drop(unsafe { Box::from_raw(writer.as_ptr()) });
        Err(out_of_memory("the writer of a media file"))
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::AVIOContext {
        self.io.as_ptr()
    }

    /// Writes what is buffered; the first error of the file.
    pub(super) fn flush(&mut self) -> Result<()> {
        // SAFETY: the context is valid.
        unsafe { ffi::avio_flush(self.io.as_ptr()) };
        // SAFETY: no function of the library runs now, so nothing else uses the writer.
        match unsafe { self.writer.as_mut() }.failure.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let mut io = self.io.as_ptr();
        // SAFETY: the context is valid, and no function of the library uses it now.
        let buffer = unsafe { &raw mut (*io).buffer };
        // SAFETY: the library may have replaced the buffer; the current one is freed once.
        unsafe { ffi::av_freep(buffer.cast()) };
        // SAFETY: the context is freed once.
        unsafe { ffi::avio_context_free(&mut io) };
        // SAFETY: the writer was a box, and nothing has a pointer to it any more.
        drop(unsafe { Box::from_raw(self.writer.as_ptr()) });
    }
}

// SAFETY: the libraries bind a context to no thread, and `File` is `Send`.
unsafe impl Send for Output {}
