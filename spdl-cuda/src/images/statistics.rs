//! Counts of decoded images by decoder, and of fallbacks to the host by reason.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use spdl_core::{ErrorKind, Result};
use spdl_media::formats::jpeg::JpegHeader;

use crate::jpeg::{BackendSet, JpegBackend, is_grey_or_ycbcr};

/// The reason why the device does not decode an image.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FallbackReason {
    /// The file is not a JPEG.
    OtherFormat,
    /// The header of the JPEG is corrupt or truncated, or the image exceeds 2²⁸ pixels.
    DamagedHeader,
    /// nvJPEG does not support the coding process or the bit depth of the JPEG.
    Coding,
    /// The colour space is neither grey nor YCbCr: CMYK, for example.
    Color,
    /// nvJPEG, or its backend that [`DeviceImages::only`](super::DeviceImages::only) selects,
    /// rejected the image.
    Refused,
    /// Device memory is too small for the image.
    TooLarge,
    /// nvJPEG is missing, or disabled.
    NoDecoder,
}

impl FallbackReason {
    /// All reasons.
    pub const ALL: [FallbackReason; 7] = [
        FallbackReason::OtherFormat,
        FallbackReason::DamagedHeader,
        FallbackReason::Coding,
        FallbackReason::Color,
        FallbackReason::Refused,
        FallbackReason::TooLarge,
        FallbackReason::NoDecoder,
    ];

    /// A short name, stable across versions.
    pub fn as_str(self) -> &'static str {
        match self {
            FallbackReason::OtherFormat => "other-format",
            FallbackReason::DamagedHeader => "damaged-header",
            FallbackReason::Coding => "coding",
            FallbackReason::Color => "color",
            FallbackReason::Refused => "refused",
            FallbackReason::TooLarge => "too-large",
            FallbackReason::NoDecoder => "no-decoder",
        }
    }

    /// The reason that follows from the header; `None` if nvJPEG can try to decode the image.
    pub(super) fn of(
        encoded: &[u8],
        header: &Result<JpegHeader>,
        has_nvjpeg: bool,
    ) -> Option<FallbackReason> {
        if !has_nvjpeg {
            return Some(FallbackReason::NoDecoder);
        }
        match header {
            Err(_) if !encoded.starts_with(&[0xFF, 0xD8]) => Some(FallbackReason::OtherFormat),
            Err(error) if error.kind() == ErrorKind::Unsupported => Some(FallbackReason::Coding),
            Err(_) => Some(FallbackReason::DamagedHeader),
            Ok(header) => {
                let backends = BackendSet::of(header, encoded);
                if backends.hardware || backends.hybrid {
                    return None;
                }
                Some(if is_grey_or_ycbcr(header) {
                    FallbackReason::Coding
                } else {
                    FallbackReason::Color
                })
            }
        }
    }
}

/// Counts of decoded images by decoder, of fallbacks by reason, and of failed images.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageStatistics {
    /// Images decoded by the hardware backend of nvJPEG.
    pub hardware: u64,
    /// Images decoded by the hybrid backend of nvJPEG.
    pub hybrid: u64,
    /// Images decoded by the host, and uploaded.
    pub host: u64,
    /// Number of images that the device did not decode, by reason, whether the host decoded them or
    /// not. Reasons without images are omitted.
    pub fallbacks: Vec<(FallbackReason, u64)>,
    /// Number of images that failed: neither the device nor the host decoded them, or the pixels
    /// that the host decoded could not be uploaded.
    pub failed: u64,
    /// The reason why nvJPEG is missing; `None` if nvJPEG was found, is disabled, or has not been
    /// searched for yet.
    pub missing: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct ImageCounters {
    hardware: AtomicU64,
    hybrid: AtomicU64,
    host: AtomicU64,
    failed: AtomicU64,
    fallbacks: [AtomicU64; FallbackReason::ALL.len()],
    missing: Mutex<Option<String>>,
}

impl ImageCounters {
    pub(super) fn count_decoded(&self, backend: JpegBackend) {
        let count = match backend {
            JpegBackend::Hardware => &self.hardware,
            JpegBackend::Hybrid => &self.hybrid,
            JpegBackend::Host => &self.host,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_fallback(&self, reason: FallbackReason) {
        self.fallbacks[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_failure(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn set_missing(&self, reason: String) {
        *self.missing.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    }

    pub(super) fn read(&self) -> ImageStatistics {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = self.fallbacks.iter().map(read);
        ImageStatistics {
            hardware: read(&self.hardware),
            hybrid: read(&self.hybrid),
            host: read(&self.host),
            fallbacks: FallbackReason::ALL.into_iter().zip(counts).filter(|it| it.1 > 0).collect(),
            failed: read(&self.failed),
            missing: self.missing.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}
