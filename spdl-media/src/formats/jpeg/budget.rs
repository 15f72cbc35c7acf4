//! Limits on scans and coefficients, and checks of restart markers.

use spdl_core::{Error, ErrorKind, Result};

use super::errors::{corrupt, truncated};
use super::header::{Frame, RST0, Scan, max_block_visits};

/// The remaining number of block visits and coefficients of a file.
///
/// Each scan visits all blocks of its components, even if the scan has few bytes. Arithmetic-coded
/// data yield coefficients even after the last byte, so both numbers are limited.
pub(super) struct WorkBudget {
    visits: u64,
    coefficients: u64,
}

impl WorkBudget {
    pub(super) fn new(frame: &Frame, encoded: &[u8]) -> Self {
        let blocks: usize = frame.components.iter().map(|component| component.blocks()).sum();
        let visits = max_block_visits(blocks as u64, encoded.len() as u64);
        // In usual files, at most three scans code each of the 63 AC coefficients.
        let coefficients = visits + 192 * blocks as u64;
        WorkBudget { visits, coefficients }
    }

    /// Counts a scan before it is decoded.
    pub(super) fn scan(&mut self, frame: &Frame, scan: &Scan, at: usize) -> Result<()> {
        let blocks = match scan.components[..] {
            [part] => {
                let component = &frame.components[part.component];
                component.blocks_wide * component.blocks_high
            }
            _ => scan.components.iter().map(|part| frame.components[part.component].blocks()).sum(),
        };
        self.visits = self.visits.checked_sub(blocks as u64).ok_or_else(|| {
            Error::new(
                ErrorKind::LimitExceeded,
                "too many scans for the size of the JPEG image and file",
            )
            .with_offset(at as u64)
        })?;
        Ok(())
    }

    /// Counts decoded AC coefficients of arithmetic-coded data.
    pub(super) fn coefficients(&mut self, count: u64, at: usize) -> Result<()> {
        self.coefficients = self.coefficients.checked_sub(count).ok_or_else(|| {
            Error::new(
                ErrorKind::LimitExceeded,
                "too many coefficients for the size of the JPEG image and file",
            )
            .with_offset(at as u64)
        })?;
        Ok(())
    }
}

/// The decoder found another marker, or no marker, instead of the expected restart marker.
pub(super) struct RestartError {
    expected: u8,
    found: Option<u8>,
}

impl RestartError {
    /// Checks that `found` is restart marker number `restarts` (modulo 8).
    pub(super) fn check(restarts: u8, found: Option<u8>) -> Result<(), Self> {
        let expected = RST0 + restarts;
        if found == Some(expected) { Ok(()) } else { Err(RestartError { expected, found }) }
    }

    pub(super) fn into_error(self, at: usize, missing: usize) -> Error {
        match self {
            RestartError { found: None, .. } => {
                truncated(format!("truncated JPEG: {missing} MCU rows are missing"), at)
            }
            RestartError { expected, found: Some(found) } => corrupt(
                format!(
                    "corrupt JPEG: marker {found:#04x} instead of restart marker {expected:#04x}"
                ),
                at,
            ),
        }
    }
}
