//! Who has decoded how many images.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::jpeg::{BackendSet, JpegBackend, JpegColor, JpegHeader};
use spdl_core::ErrorKind;

/// Why the device does not decode an image.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FallbackReason {
    /// It is no JPEG.
    OtherFormat,
    /// It is a JPEG whose header is damaged.
    DamagedHeader,
    /// It is coded in a way that the device does not know, or has more than 8 bits.
    Coding,
    /// It is neither grey nor YCbCr: CMYK, say.
    Color,
    /// nvJPEG refuses it.
    Refused,
    /// The device has no memory left for it.
    TooLarge,
    /// There is no nvJPEG, or it is not to be used.
    NoDecoder,
}

impl FallbackReason {
    /// All of them, in their order.
    pub const ALL: [FallbackReason; 7] = [
        FallbackReason::OtherFormat,
        FallbackReason::DamagedHeader,
        FallbackReason::Coding,
        FallbackReason::Color,
        FallbackReason::Refused,
        FallbackReason::TooLarge,
        FallbackReason::NoDecoder,
    ];

    /// A short name, which stays.
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

    /// Why the device is not even asked; `None` where it is.
    pub(super) fn of(
        encoded: &[u8],
        header: &spdl_core::Result<JpegHeader>,
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
                let ways = BackendSet::of(header);
                if ways.hardware || ways.hybrid {
                    return None;
                }
                let plain = matches!(header.color, JpegColor::Grey | JpegColor::YCbCr);
                Some(if plain { FallbackReason::Coding } else { FallbackReason::Color })
            }
        }
    }
}

/// Who has decoded how many images.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageStatistics {
    /// By the device's engines.
    pub hardware: u64,
    /// By the CPU and the device's multiprocessors.
    pub hybrid: u64,
    /// By the host alone, and put on the device.
    pub host: u64,
    /// Why the device did not decode images, and how many, whether the host could or not. Those with
    /// none are left out.
    pub fallbacks: Vec<(FallbackReason, u64)>,
    /// Images that nobody could decode, and those that the host has decoded but for whose pixels the device
    /// has no memory.
    pub failed: u64,
    /// Why there is no nvJPEG.
    pub missing: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Books {
    hardware: AtomicU64,
    hybrid: AtomicU64,
    host: AtomicU64,
    failed: AtomicU64,
    fallbacks: [AtomicU64; FallbackReason::ALL.len()],
    missing: Mutex<Option<String>>,
}

impl Books {
    pub(super) fn decoded(&self, path: JpegBackend) {
        let count = match path {
            JpegBackend::Hardware => &self.hardware,
            JpegBackend::Hybrid => &self.hybrid,
            JpegBackend::Host => &self.host,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn fell_back(&self, reason: FallbackReason) {
        self.fallbacks[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn set_missing(&self, why: String) {
        *self.missing.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
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
