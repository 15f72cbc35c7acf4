//! Marks errors of requests that never reached a store.

use std::fmt;

use spdl_core::Error;

/// The source of an error that was raised before the store responded. The error itself carries the
/// message; this type only classifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(any(feature = "http", test)),
    expect(dead_code, reason = "only network stores construct the first two variants")
)]
pub(crate) enum Unreached {
    /// The connection was refused.
    Refused,
    /// The host name does not exist. A failure of the resolver itself is [`Unreached::Otherwise`].
    NoAddress,
    /// The store has not responded for another reason, such as a timeout, a TLS failure or missing
    /// credentials.
    Otherwise,
}

impl Unreached {
    /// Returns why the request did not reach the store; `None` if the store responded.
    pub(crate) fn of(error: &Error) -> Option<Unreached> {
        std::error::Error::source(error)?.downcast_ref().copied()
    }
}

impl fmt::Display for Unreached {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl std::error::Error for Unreached {}
