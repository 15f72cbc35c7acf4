//! Checks of augmentation parameters.

use spdl_core::{Error, ErrorKind, Result};

/// Returns an `InvalidArgument` error with the message unless `is_valid`.
pub(super) fn check(is_valid: bool, message: impl FnOnce() -> String) -> Result<()> {
    if is_valid { Ok(()) } else { Err(Error::new(ErrorKind::InvalidArgument, message())) }
}

/// Checks a factor that must be finite and not negative.
pub(super) fn check_factor(name: &str, factor: f64) -> Result<()> {
    check(factor.is_finite() && factor >= 0.0, || {
        format!("invalid {name} factor {factor}: expected a finite number of at least 0")
    })
}

/// Checks a probability.
pub(super) fn check_probability(probability: f64) -> Result<()> {
    check((0.0..=1.0).contains(&probability), || {
        format!("invalid probability {probability}: expected 0 to 1")
    })
}

/// Checks that `range` is in order and within `least` to `most`.
pub(super) fn check_range(name: &str, range: (f64, f64), least: f64, most: f64) -> Result<()> {
    let is_valid = least <= range.0 && range.0 <= range.1 && range.1 <= most;
    check(is_valid && range.0.is_finite() && range.1.is_finite(), || {
        let bounds = match (least, most) {
            (f64::MIN_POSITIVE, f64::INFINITY) => "above 0".to_owned(),
            _ => format!("from {least} to {most}"),
        };
        format!(
            "invalid range {range:?} of {name}: expected finite bounds {bounds}, lower bound first"
        )
    })
}
