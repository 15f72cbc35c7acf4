//! `VideoReader` with codecs of the tests.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue should panic")]

mod stalled;
mod threads;

use spdl_media::Size;
use spdl_media::video::{VideoIndex, VideoPacket, VideoStream};

const PACKETS: usize = 20;

/// A key frame, then others, of 100 ms, all of one byte.
fn index(codec: &str, size: Size) -> VideoIndex {
    let packet = |number: usize| VideoPacket {
        offset: number as u64,
        bytes: 1,
        timestamp: 100 * number as i64,
        is_key: number == 0,
        is_disposable: false,
    };
    let packets = (0..PACKETS).map(packet).collect();
    VideoIndex::new(VideoStream::new(codec, size), packets, 2000).unwrap()
}
