//! `nvjpegStatus_t` codes: their names and error kinds, and which of them are faults of the image.

use std::fmt;

use spdl_core::{Error, ErrorKind};

/// `NVJPEG_STATUS_BAD_JPEG`.
pub(crate) const BAD_JPEG: i32 = 3;

/// A failed call of nvJPEG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvJpegError {
    /// The name of the function.
    pub call: &'static str,
    /// The returned `nvjpegStatus_t`.
    pub status: i32,
}

impl NvJpegError {
    /// The name of the status; `NVJPEG_STATUS` if the status is unknown.
    pub fn name(&self) -> &'static str {
        match self.status {
            1 => "NVJPEG_STATUS_NOT_INITIALIZED",
            2 => "NVJPEG_STATUS_INVALID_PARAMETER",
            3 => "NVJPEG_STATUS_BAD_JPEG",
            4 => "NVJPEG_STATUS_JPEG_NOT_SUPPORTED",
            5 => "NVJPEG_STATUS_ALLOCATOR_FAILURE",
            6 => "NVJPEG_STATUS_EXECUTION_FAILED",
            7 => "NVJPEG_STATUS_ARCH_MISMATCH",
            8 => "NVJPEG_STATUS_INTERNAL_ERROR",
            9 => "NVJPEG_STATUS_IMPLEMENTATION_NOT_SUPPORTED",
            10 => "NVJPEG_STATUS_INCOMPLETE_BITSTREAM",
            _ => "NVJPEG_STATUS",
        }
    }

    /// Whether the image is the cause, not the device or the program.
    pub fn is_fault_of_image(&self) -> bool {
        matches!(self.status, 3 | 4 | 10)
    }

    /// Converts to the error of `spdl-core`. `doing` completes the message "cannot …".
    pub(crate) fn into_error(self, doing: &str) -> Error {
        let kind = match self.status {
            3 => ErrorKind::Corrupt,
            10 => ErrorKind::Truncated,
            4 | 7 | 9 => ErrorKind::Unsupported,
            5 => ErrorKind::LimitExceeded,
            6 => ErrorKind::Io,
            _ => ErrorKind::Internal,
        };
        Error::new(kind, format!("cannot {doing}")).with_source(self)
    }
}

impl fmt::Display for NvJpegError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed with {} ({})", self.call, self.name(), self.status)
    }
}

impl std::error::Error for NvJpegError {}

pub(crate) type NvJpegResult<T> = Result<T, NvJpegError>;
