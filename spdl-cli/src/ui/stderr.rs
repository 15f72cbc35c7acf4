//! Messages on standard error.

use std::io::Write;

use spdl_core::Error;
use spdl_io::StoreRegistry;

use super::format::{count, printable};

const WARNINGS_SHOWN: usize = 10;

/// One line on standard error. Where that is closed, there is nobody to tell.
pub(crate) fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// What is odd about the data set.
pub(crate) fn warn(warnings: &[Error]) {
    for warning in warnings.iter().take(WARNINGS_SHOWN) {
        note(&format!("spdl: warning: {}", printable(&warning.report())));
    }
    if let Some(more) = warnings.len().checked_sub(WARNINGS_SHOWN).filter(|&more| more > 0) {
        note(&format!("spdl: warning: and {} more", count(more as u64)));
    }
}

/// The same stores; where one cannot be reached that has never answered, that is told at once.
pub(crate) fn telling(stores: StoreRegistry) -> StoreRegistry {
    stores.when_not_reached(|address, error| {
        note(&printable(&format!(
            "spdl: warning: {address}: {}; it is tried again",
            error.message()
        )));
    })
}
