//! Messages on standard error.

use std::io::Write;

use spdl_core::Error;
use spdl_io::StoreRegistry;

use super::advice::with_advice;
use super::format::{count, printable};

const WARNINGS_SHOWN: usize = 10;

/// Writes one line to standard error. Failures to write, for example to a closed stream, are
/// ignored.
pub(crate) fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints the first [`WARNINGS_SHOWN`] warnings about a data set, and the number of further ones.
pub(crate) fn warn(warnings: &[Error]) {
    for warning in warnings.iter().take(WARNINGS_SHOWN) {
        let text = with_advice(warning.report(), warning);
        note(&format!("spdl: warning: {}", printable(&text)));
    }
    if let Some(more) = warnings.len().checked_sub(WARNINGS_SHOWN).filter(|&more| more > 0) {
        note(&format!("spdl: warning: further warnings not shown: {}", count(more as u64)));
    }
}

/// Prints a warning on the first failed request to a store that has never responded.
pub(crate) fn warn_if_unreachable(stores: StoreRegistry) -> StoreRegistry {
    stores.on_unreachable(|address, error| {
        note(&printable(&format!("spdl: warning: {address}: {}; retrying", error.message())));
    })
}
