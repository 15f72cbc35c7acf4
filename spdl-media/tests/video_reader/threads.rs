//! The number of threads of a decoder follows the number of clips.

use std::sync::{Arc, Mutex};
use std::thread;

use spdl_core::{Error, ErrorKind, Result};
use spdl_media::Size;
use spdl_media::image::{Picture, Rect};
use spdl_media::video::{
    DecodedFrame, VideoCodec, VideoDecoder, VideoDecoderOptions, VideoLimits, VideoReader,
    VideoRegistry, VideoStream,
};

use super::{PACKETS, index};

/// A packet with this byte is damaged.
const DAMAGED: u8 = 0xFF;

/// A codec that records the number of threads of its decoders.
#[derive(Clone, Debug)]
struct RecordingCodec {
    notices_damage: bool,
    threads: Arc<Mutex<Vec<u32>>>,
}

/// Returns a frame for each packet.
struct RecordingDecoder(Option<u32>);

impl VideoCodec for RecordingCodec {
    fn name(&self) -> &'static str {
        "recording"
    }

    fn decodes(&self, codec: &str) -> bool {
        codec == "recording"
    }

    fn notices_damage_in_threads(&self, _: &str) -> bool {
        self.notices_damage
    }

    fn decoder(
        &self,
        _: &VideoStream,
        options: &VideoDecoderOptions,
    ) -> Result<Box<dyn VideoDecoder>> {
        self.threads.lock().unwrap().push(options.threads);
        Ok(Box::new(RecordingDecoder(None)))
    }
}

impl VideoDecoder for RecordingDecoder {
    fn send(&mut self, packet: &[u8], number: u32, _is_key: bool) -> Result<()> {
        if packet == [DAMAGED] {
            return Err(Error::new(ErrorKind::Corrupt, "the packet is damaged"));
        }
        self.0 = Some(number);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<DecodedFrame>> {
        Ok(self.0.take().map(|number| DecodedFrame { number, is_damaged: false }))
    }

    fn copy_to(&mut self, picture: &mut Picture) -> Result<()> {
        let size = Size::new(4, 4);
        picture.start_rgb(size, Rect::full(size))
    }

    fn reset(&mut self) {
        self.0 = None;
    }

    fn is_reusable(&self) -> bool {
        false
    }
}

const LARGE: Size = Size { width: 2048, height: 1024 };

fn codec(notices_damage: bool) -> (RecordingCodec, VideoRegistry) {
    let codec = RecordingCodec { notices_damage, threads: Arc::default() };
    let mut registry = VideoRegistry::new();
    registry.register_codec(codec.clone());
    (codec, registry)
}

fn processors() -> u32 {
    thread::available_parallelism().unwrap().get().min(16) as u32
}

#[test]
fn a_lone_clip_is_decoded_by_all_processors() {
    let file: &[u8] = &[7; PACKETS];
    let decode = |notices_damage: bool, size: Size, threads: Option<u32>| {
        let (codec, registry) = codec(notices_damage);
        let mut reader = VideoReader::new(&registry, &VideoLimits::default());
        if let Some(threads) = threads {
            reader = reader.threads(threads);
        }
        let other = codec.clone();
        let each = &mut |_: usize, _: &Picture| {
            thread::scope(|scope| {
                // A clip at the same time.
                scope.spawn(|| {
                    let mut second = VideoReader::new(&registry, &VideoLimits::default());
                    second
                        .decode(&file, &index("recording", size), &[1], &mut |_, _| Ok(()))
                        .unwrap();
                });
            });
            Ok(())
        };
        reader.decode(&file, &index("recording", size), &[PACKETS - 1], each).unwrap();
        let threads = other.threads.lock().unwrap();
        threads.clone()
    };
    assert_eq!(decode(true, LARGE, None), [processors(), 1]);
    assert_eq!(decode(true, Size::new(64, 48), None), [1, 1], "a small clip");
    assert_eq!(decode(false, LARGE, None), [1, 1], "damage would not be noticed");
    assert_eq!(decode(false, LARGE, Some(2)), [2, 1]);
}

#[test]
fn damaged_clips_are_decoded_again_by_one_thread() {
    let mut file = [7; PACKETS];
    file[5] = DAMAGED;
    for (frame, is_damaged) in [(4, false), (6, true)] {
        let (codec, registry) = codec(true);
        let mut reader = VideoReader::new(&registry, &VideoLimits::default()).threads(3);
        let decoded =
            reader.decode(&&file[..], &index("recording", LARGE), &[frame], &mut |_, _| Ok(()));
        let threads: &[u32] = if is_damaged { &[3, 1] } else { &[3] };
        assert_eq!(*codec.threads.lock().unwrap(), threads, "frame {frame}");
        assert_eq!(
            decoded.err().map(|error| error.kind()),
            is_damaged.then_some(ErrorKind::Corrupt)
        );
    }
}
