//! Image operations with explicit parameters.
//!
//! Each function changes an image in place and depends on its arguments only. Names, parameters and
//! rounding are those of `torchvision.transforms.v2.functional` 0.29.1 on `uint8` tensors, on
//! processors with AVX-512. Results are bit-identical in all tests, except where a function
//! documents otherwise. On other processors, torchvision's results differ by single levels; the
//! results of these functions do not depend on the processor.

mod arithmetic;
mod blur;
mod color;
mod geometry;
mod sharpness;

pub(super) use blur::check_kernel;
pub use blur::gaussian_blur;
pub use color::{
    adjust_brightness, adjust_contrast, adjust_hue, adjust_saturation, autocontrast, equalize,
    grayscale, invert, posterize, solarize, solarize_add,
};
pub(crate) use geometry::Warp;
pub use geometry::{Affine, Interpolation, affine, perspective, perspective_coefficients, rotate};
pub use sharpness::adjust_sharpness;
