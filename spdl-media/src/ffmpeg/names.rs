//! Names of formats and codecs of the libraries.
//!
//! The functions have numbers instead of enumerations: a newer library may have values that the
//! enumerations of the bindings lack.

use std::ffi::{c_char, c_int, c_uint};

use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use super::memory::{c_string, text};

/// The number of an enumeration, a field of a value of the libraries.
macro_rules! number_of {
    ($field:expr) => {
        // SAFETY: an enumeration of C has the size of an integer.
        unsafe { (&raw const $field).cast::<std::ffi::c_int>().read() }
    };
}
pub(super) use number_of;

unsafe extern "C" {
    fn av_get_pix_fmt_name(format: c_int) -> *const c_char;
    fn av_get_pix_fmt(name: *const c_char) -> c_int;
    fn av_get_sample_fmt_name(format: c_int) -> *const c_char;
    fn av_get_sample_fmt(name: *const c_char) -> c_int;
    fn avcodec_get_name(id: c_uint) -> *const c_char;
}

/// The name of a pixel format, as `yuv420p`; empty if there is none.
pub(super) fn of_pixel_format(format: c_int) -> String {
    // SAFETY: any number is allowed; the result is null or a string of the library.
    let name = unsafe { av_get_pix_fmt_name(format) };
    // SAFETY: the name is null or a constant of the library.
    unsafe { text(name) }
}

/// The number of a pixel format.
pub(super) fn pixel_format(name: &str) -> Result<c_int> {
    let string = c_string(name)?;
    // SAFETY: the string is terminated with 0.
    let format = unsafe { av_get_pix_fmt(string.as_ptr()) };
    if format < 0 { Err(unknown("pixel format", name)) } else { Ok(format) }
}

/// The name of a sample format, as `fltp`; empty if there is none.
pub(super) fn of_sample_format(format: c_int) -> String {
    // SAFETY: as above.
    let name = unsafe { av_get_sample_fmt_name(format) };
    // SAFETY: the name is null or a constant of the library.
    unsafe { text(name) }
}

/// The number of a sample format.
pub(super) fn sample_format(name: &str) -> Result<c_int> {
    let string = c_string(name)?;
    // SAFETY: the string is terminated with 0.
    let format = unsafe { av_get_sample_fmt(string.as_ptr()) };
    if format < 0 { Err(unknown("sample format", name)) } else { Ok(format) }
}

/// The number of a codec's identifier.
pub(super) fn codec_number(parameters: &ffi::AVCodecParameters) -> c_uint {
    // SAFETY: an enumeration of C has the size of an unsigned integer.
    unsafe { (&raw const parameters.codec_id).cast::<c_uint>().read() }
}

/// The name of the codec of a stream.
pub(crate) fn of_codec(parameters: &ffi::AVCodecParameters) -> String {
    // SAFETY: any number is allowed; the result is a string of the library.
    let name = unsafe { avcodec_get_name(codec_number(parameters)) };
    // SAFETY: the name is null or a constant of the library.
    unsafe { text(name) }
}

/// Primaries, transfer characteristics and matrix coefficients of a stream: numbers of ITU-T H.273, of which 2 is
/// unspecified.
pub(crate) fn of_colors(parameters: &ffi::AVCodecParameters) -> [u64; 3] {
    let numbers = [
        number_of!(parameters.color_primaries),
        number_of!(parameters.color_trc),
        number_of!(parameters.color_space),
    ];
    numbers.map(|number| u64::try_from(number).unwrap_or(2))
}

/// As [`of_colors`], of a frame.
pub(super) fn of_frame_colors(frame: &ffi::AVFrame) -> [u64; 3] {
    let numbers = [
        number_of!(frame.color_primaries),
        number_of!(frame.color_trc),
        number_of!(frame.colorspace),
    ];
    numbers.map(|number| u64::try_from(number).unwrap_or(2))
}

/// Whether the samples of a frame use all values; `None` if that is unspecified.
pub(super) fn of_frame_range(frame: &ffi::AVFrame) -> Option<bool> {
    match number_of!(frame.color_range) {
        range if range == ffi::AVColorRange::AVCOL_RANGE_JPEG as c_int => Some(true),
        range if range == ffi::AVColorRange::AVCOL_RANGE_MPEG as c_int => Some(false),
        _ => None,
    }
}

fn unknown(what: &str, name: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("FFmpeg has no {what} {name:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_formats_return_to_their_numbers() {
        for name in ["yuv420p", "rgb24", "nv12", "gray16le"] {
            assert_eq!(of_pixel_format(pixel_format(name).unwrap()), name);
        }
        for name in ["u8", "s16", "fltp", "dblp"] {
            assert_eq!(of_sample_format(sample_format(name).unwrap()), name);
        }
        assert_eq!(of_pixel_format(-1), "");
        let error = pixel_format("no format").unwrap_err().to_string();
        assert_eq!(error, "FFmpeg has no pixel format \"no format\"");
    }
}
