//! Videos by a stand-in for nvcuvid, which needs no device: its parser calls as packets tell it to.
#![cfg(all(feature = "testing", unix))]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod decoders;
mod device;
mod failures;
mod frames;
mod gather;
mod streams;
mod stub;
