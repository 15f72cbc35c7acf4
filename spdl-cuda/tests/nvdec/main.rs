//! Videos by a stand-in for nvcuvid, which needs no device: its parser calls as packets tell it to.
#![cfg(all(feature = "testing", unix))]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod decoders;
mod failures;
mod frames;
mod gather;
mod streams;
mod stub;
#[path = "../common/stub_library.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod stub_library;
#[path = "../common/video_commands.rs"]
mod video_commands;
#[path = "../common/videos.rs"]
#[allow(dead_code, reason = "tests on a device use the rest")]
mod videos;
