//! What the decoders around other crates share: pixels of any kind to RGB, errors to ours.

use std::fmt::Display;
use std::io;

use spdl_core::{Error, ErrorKind};

use crate::pixels::CHANNELS;
use crate::{PixelsMut, Rect, Size};

/// How the samples of a pixel become red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pixel {
    /// Grey, and whatever follows it: repeated.
    Grey(usize),
    /// Red, green, blue, and whatever follows: the rest is dropped.
    Rgb(usize),
}

impl Pixel {
    pub(super) fn bytes(self) -> usize {
        match self {
            Pixel::Grey(bytes) | Pixel::Rgb(bytes) => bytes,
        }
    }

    /// Writes one row; `source` holds as many pixels as `target`.
    pub(super) fn copy_row(self, source: &[u8], target: &mut [u8]) {
        let (target, _) = target.as_chunks_mut::<CHANNELS>();
        match self {
            Pixel::Rgb(CHANNELS) => target.as_flattened_mut().copy_from_slice(source),
            Pixel::Rgb(bytes) => {
                for (pixel, place) in source.chunks_exact(bytes).zip(target) {
                    place.copy_from_slice(&pixel[..CHANNELS]);
                }
            }
            Pixel::Grey(bytes) => {
                for (pixel, place) in source.chunks_exact(bytes).zip(target) {
                    *place = [pixel[0]; CHANNELS];
                }
            }
        }
    }

    /// Writes a region of an image whose rows lie without gaps in `source`.
    pub(super) fn copy_region(
        self,
        source: &[u8],
        size: Size,
        region: Rect,
        mut out: PixelsMut<'_>,
    ) {
        let (stride, bytes) = (size.width as usize * self.bytes(), self.bytes());
        for row in 0..region.height {
            let start = (region.top + row) as usize * stride + region.left as usize * bytes;
            self.copy_row(&source[start..][..region.width as usize * bytes], out.row_mut(row));
        }
    }
}

/// An error of a decoder that reads from memory: there, the only reason for not getting bytes is
/// that there are none.
pub(super) fn read_error(format: &str, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Error::new(ErrorKind::Truncated, format!("the {format} data end early"))
        }
        io::ErrorKind::Unsupported => unsupported(format, error),
        _ => corrupt(format, error),
    }
}

// The causes of these crates repeat themselves in a chain; their first words are enough.

pub(super) fn corrupt(format: &str, error: impl Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("damaged {format} data: {error}"))
}

pub(super) fn unsupported(format: &str, error: impl Display) -> Error {
    Error::new(ErrorKind::Unsupported, format!("unsupported {format} data: {error}"))
}

pub(super) fn limit_exceeded(format: &str) -> Error {
    Error::new(
        ErrorKind::LimitExceeded,
        format!("decoding the {format} data takes more memory than the limit allows"),
    )
}
