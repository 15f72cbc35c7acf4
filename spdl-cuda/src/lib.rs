//! CUDA devices as the place where batches go.
//!
//! **This version has no CUDA backend.** The crate holds the types by which a program asks for a
//! device, and they say so: [`status`] reports it, and [`CudaDevice::open`] answers `Unsupported`.
//! Batches arrive in host memory, from where the training framework copies them to its device.
//!
//! ```
//! let status = spdl_cuda::status();
//! if !status.available {
//!     println!("no CUDA: {}", status.reason);
//! }
//! ```
#![forbid(unsafe_code)]

pub mod kernels;

use std::convert::Infallible;

use spdl_core::{Error, ErrorKind, Result};

const NO_BACKEND: &str = "this build of spdl-cuda has no CUDA backend";

/// Whether CUDA can be used here, and why not.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether [`CudaDevice::open`] can succeed.
    pub available: bool,
    /// Why not, in words for people; empty where CUDA is available.
    pub reason: String,
}

/// Whether CUDA can be used here. Looks for no driver in this version, since there is no backend
/// that could call it.
pub fn status() -> Status {
    Status { available: false, reason: NO_BACKEND.to_owned() }
}

/// A CUDA device. In this version there can be no value of this type.
#[derive(Debug)]
pub struct CudaDevice {
    never: Infallible,
}

impl CudaDevice {
    /// Opens device `ordinal`, counted from 0 as the CUDA driver counts.
    ///
    /// # Errors
    /// Always `Unsupported` in this version, with a message that says what to do instead.
    pub fn open(ordinal: u32) -> Result<CudaDevice> {
        let message = format!(
            "cannot open CUDA device {ordinal}: {NO_BACKEND}; take batches in host memory and let \
             the training framework copy them to the device"
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// The number by which it was opened.
    pub fn ordinal(&self) -> u32 {
        match self.never {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_refused_with_what_to_do_instead_and_the_status_agrees() {
        let error = CudaDevice::open(3).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().starts_with("cannot open CUDA device 3: "), "{error}");
        assert!(error.message().contains("host memory"), "{error}");
        let status = status();
        assert!(!status.available);
        assert!(error.message().contains(&status.reason), "{error}");
    }
}
