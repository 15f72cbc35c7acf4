//! A decoder that takes too long for a frame is stopped between packets.

use std::thread::sleep;
use std::time::Duration;

use spdl_core::{ErrorKind, Result};
use spdl_media::image::{Picture, Rect};
use spdl_media::video::{
    DecodedFrame, VideoCodec, VideoDecoder, VideoDecoderOptions, VideoLimits, VideoReader,
    VideoRegistry, VideoStream,
};
use spdl_media::{MediaSource, OnTruncated, Size};

use super::{PACKETS, index};

const SIZE: Size = Size { width: 4, height: 4 };
/// The time that the decoder takes for a packet.
const CALL: Duration = Duration::from_millis(10);

/// A codec whose decoders sleep, and return every `every`-th frame; none if it is 0.
#[derive(Debug)]
struct SlowCodec {
    every: u32,
}

struct SlowDecoder {
    every: u32,
    waiting: Option<u32>,
}

impl VideoCodec for SlowCodec {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn decodes(&self, codec: &str) -> bool {
        codec == "slow"
    }

    fn decoder(&self, _: &VideoStream, _: &VideoDecoderOptions) -> Result<Box<dyn VideoDecoder>> {
        Ok(Box::new(SlowDecoder { every: self.every, waiting: None }))
    }
}

impl VideoDecoder for SlowDecoder {
    fn send(&mut self, _packet: &[u8], number: u32, _is_key: bool) -> Result<()> {
        sleep(CALL);
        self.waiting = (self.every > 0 && number.is_multiple_of(self.every)).then_some(number);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<DecodedFrame>> {
        Ok(self.waiting.take().map(|number| DecodedFrame { number, is_damaged: false }))
    }

    fn copy_to(&mut self, picture: &mut Picture) -> Result<()> {
        picture.start_rgb(SIZE, Rect::full(SIZE))
    }

    fn reset(&mut self) {
        self.waiting = None;
    }

    fn is_reusable(&self) -> bool {
        true
    }
}

fn reader(every: u32, most: Duration) -> VideoReader {
    let mut registry = VideoRegistry::new();
    registry.register_codec(SlowCodec { every });
    VideoReader::new(&registry, &VideoLimits::default().max_decode_time(most))
}

/// The number of frames that arrive, and the outcome.
fn decode(reader: &mut VideoReader, file: &dyn MediaSource, frames: &[usize]) -> (u32, Result<()>) {
    let mut delivered = 0;
    let outcome = reader.decode(file, &index("slow", SIZE), frames, &mut |_, _: &Picture| {
        delivered += 1;
        Ok(())
    });
    (delivered, outcome.map(drop))
}

#[test]
fn a_decoder_that_returns_no_frame_in_time_is_stopped() {
    let file: &[u8] = &[7; PACKETS];
    for on_truncated in [OnTruncated::Error, OnTruncated::Partial] {
        let mut reader = reader(0, 3 * CALL).on_truncated(on_truncated);
        let (delivered, outcome) = decode(&mut reader, &file, &[PACKETS - 1]);
        let error = outcome.unwrap_err();
        assert_eq!((delivered, error.kind()), (0, ErrorKind::LimitExceeded), "{error}");
        let message = error.message();
        assert!(message.starts_with("cannot decode the frame at 1.900 s: the slow decoder took"));
        // At most three packets fit into the time; the fourth one ends it.
        let reached = (0..4).any(|at| message.contains(&format!("the packet at 0.{at}00 s")));
        assert!(reached && message.ends_with("more than the limit of 0.03 s"), "{message}");
    }
}

#[test]
fn the_time_starts_again_with_each_requested_frame() {
    let file: &[u8] = &[7; PACKETS];
    let all: Vec<_> = (0..PACKETS).collect();
    // The clip takes longer than the limit, but no frame does, also on a busy machine.
    let limit = (PACKETS as u32 - 4) * CALL;
    let (delivered, outcome) = decode(&mut reader(1, limit), &file, &all);
    outcome.unwrap();
    assert_eq!(delivered, PACKETS as u32);
    // Frames that were not requested do not count.
    let (delivered, outcome) = decode(&mut reader(1, limit), &file, &[0, PACKETS - 1]);
    assert_eq!((delivered, outcome.unwrap_err().kind()), (1, ErrorKind::LimitExceeded));
}

#[test]
fn the_work_of_the_caller_does_not_count() {
    let file: &[u8] = &[7; PACKETS];
    let mut reader = reader(1, 30 * CALL);
    let each = &mut |_: usize, _: &Picture| {
        sleep(20 * CALL);
        Ok(())
    };
    reader.decode(&file, &index("slow", SIZE), &[0, 3, 6], each).unwrap();
}
