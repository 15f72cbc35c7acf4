//! Failure policies from Python, and a summary of dropped items.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use spdl_core::{OnError, Statistics};

/// A share of failures without a number of items is not checked before this item.
const ITEMS_BEFORE_SHARE: u64 = 100;

/// Parses a failure budget: an int (negative means unlimited), a share as a float, or a tuple of a share,
/// the number of tried items from which the share applies, and whether it always applies at the end.
pub(crate) fn failure_policy(budget: &Bound<'_, PyAny>) -> PyResult<OnError> {
    if let Ok(most) = budget.extract::<i64>() {
        return Ok(OnError::Skip { at_most: u64::try_from(most).ok() });
    }
    if let Ok((at_most, after, at_end)) = budget.extract() {
        return Ok(OnError::SkipShare { at_most, after, at_end });
    }
    match budget.extract::<f64>() {
        Ok(at_most) => Ok(OnError::SkipShare { at_most, after: ITEMS_BEFORE_SHARE, at_end: false }),
        Err(_) => Err(PyTypeError::new_err(
            "the failure budget must be an int, a float, or a tuple of a float, an int and a bool",
        )),
    }
}

/// Counts the dropped samples by stage and reason, and names the first one. `None` if none was dropped.
///
/// `sample` is the noun for a sample. `name` returns the address of a key.
pub(crate) fn dropped_samples(
    statistics: &Statistics,
    sample: &str,
    name: impl Fn(&str) -> String,
) -> Option<String> {
    let first = statistics.dropped.first()?;
    let total = statistics.dropped_total;
    let were = if total == 1 { " was" } else { "s were" };
    let counts = statistics.dropped_counts.iter();
    let counts: Vec<String> =
        counts.map(|it| format!("{}: {} {}", it.stage, it.count, it.kind)).collect();
    let key = first
        .key
        .as_deref()
        .map_or_else(|| format!("the {sample} without a name"), |key| format!("{:?}", name(key)));
    Some(format!(
        "{total} {sample}{were} dropped ({}); the first: {key}: {}; stats()[\"dropped\"] lists them",
        counts.join(", "),
        first.reason,
    ))
}
