//! Videos with a stub of nvcuvid, whose parser executes the commands in packets.
#![cfg(all(feature = "testing", unix))]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod decoders;
mod failures;
mod frames;
mod gather;
mod streams;
mod stub;
#[path = "../common/stub_library.rs"]
#[allow(dead_code, reason = "other tests use the other items")]
mod stub_library;
#[path = "../common/video_commands.rs"]
mod video_commands;
#[path = "../common/videos.rs"]
#[allow(dead_code, reason = "tests on a device use the other items")]
mod videos;
