//! Errors of the libraries.

use std::ffi::{CStr, c_int};

use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind};

/// The error for a code that a function of the libraries returned; `what` failed.
pub(crate) fn error_of(code: c_int, what: &str) -> Error {
    let kind = match code {
        ffi::AVERROR_INVALIDDATA | ffi::AVERROR_EOF => ErrorKind::Corrupt,
        ffi::AVERROR_DECODER_NOT_FOUND
        | ffi::AVERROR_DEMUXER_NOT_FOUND
        | ffi::AVERROR_PATCHWELCOME => ErrorKind::Unsupported,
        code if code == ffi::AVERROR(libc_enomem()) => ErrorKind::LimitExceeded,
        _ => ErrorKind::Corrupt,
    };
    Error::new(kind, format!("{what}: {}", description(code)))
}

/// The error for a failed allocation.
pub(crate) fn out_of_memory(what: &str) -> Error {
    Error::new(ErrorKind::LimitExceeded, format!("cannot allocate {what}"))
}

/// `ENOMEM`, which has this number on all systems that FFmpeg supports.
const fn libc_enomem() -> c_int {
    12
}

fn description(code: c_int) -> String {
    let mut text = [0; ffi::AV_ERROR_MAX_STRING_SIZE];
    // SAFETY: the pointer and the length describe `text`, which the function terminates with 0.
    let code_is_known = unsafe { ffi::av_strerror(code, text.as_mut_ptr(), text.len()) };
    // SAFETY: `text` is terminated with 0, also if the code is unknown.
    let message = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
    match code_is_known {
        0 => message.into_owned(),
        _ => format!("error {code}"),
    }
}
