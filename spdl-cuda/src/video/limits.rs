//! Limits of a video.

use spdl_core::{Error, ErrorKind, Result};

use super::format::VideoFormat;

/// Limits of the resources of a video.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoLimits {
    /// Maximum number of pixels of a coded frame.
    max_pixels: u64,
    /// Maximum number of decoded frames that the caller has not taken yet.
    pub(super) max_waiting_frames: usize,
}

impl Default for VideoLimits {
    /// The defaults: frames of 2²⁶ pixels, about twice as many as 8K, and 64 frames that the caller
    /// has not taken yet.
    fn default() -> Self {
        VideoLimits { max_pixels: 1 << 26, max_waiting_frames: 64 }
    }
}

impl VideoLimits {
    /// Sets the maximum number of pixels of a coded frame.
    #[must_use]
    pub fn pixels(mut self, max: u64) -> Self {
        self.max_pixels = max;
        self
    }

    /// Sets the maximum number of decoded frames that the caller has not taken yet; each of them is
    /// in device memory. A packet of one picture rarely outputs more than a few frames.
    #[must_use]
    pub fn waiting_frames(mut self, max: usize) -> Self {
        self.max_waiting_frames = max;
        self
    }

    pub(crate) fn check(&self, video: &VideoFormat) -> Result<()> {
        let (width, height) = video.coded_size;
        let pixels = u64::from(width) * u64::from(height);
        if pixels <= self.max_pixels {
            return Ok(());
        }
        let message = format!(
            "frames of {width}x{height} pixels exceed the limit of {} pixels",
            self.max_pixels
        );
        Err(Error::new(ErrorKind::LimitExceeded, message))
    }
}
