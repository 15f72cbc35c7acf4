//! What augmentations do to an image once their numbers are drawn.
//!
//! Every function changes an image in place and depends on its arguments alone. Names, parameters
//! and roundings are those of `torchvision.transforms.v2.functional` on `uint8` tensors, version
//! 0.29.1, on processors with AVX-512. Results are equal to the last bit in all that is tested, but
//! for what the functions say. On other processors torchvision itself differs by single levels; these
//! functions do not.

mod arithmetic;
mod blur;
mod color;
mod geometry;
mod sharpness;

pub(super) use blur::check_kernel;
pub use blur::gaussian_blur;
pub use color::{
    adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation, autocontrast, equalize,
    grayscale, invert, posterize, solarize,
};
pub use geometry::{Affine, Interpolation, affine, perspective, perspective_coefficients, rotate};
pub use sharpness::adjust_sharpness;

use spdl_core::{Error, ErrorKind, Result};

/// An error of kind `InvalidArgument` unless `sound`.
pub(super) fn check(sound: bool, message: impl FnOnce() -> String) -> Result<()> {
    if sound { Ok(()) } else { Err(Error::new(ErrorKind::InvalidArgument, message())) }
}

/// Checks a factor that may be any number from 0 on.
pub(super) fn check_factor(name: &str, factor: f64) -> Result<()> {
    check(factor.is_finite() && factor >= 0.0, || {
        format!("expected a {name} factor of 0 or more, found {factor}")
    })
}
