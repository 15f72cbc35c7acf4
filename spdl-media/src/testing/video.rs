use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use spdl_core::{Error, ErrorKind, Result};

use crate::image::Picture;
use crate::video::{
    VideoCodec, VideoDecoder, VideoDecoderOptions, VideoIndex, VideoLimits, VideoReader,
    VideoRegistry,
};

/// The number of copies with changed bytes, per file.
const COPIES: usize = 50;
/// The most results of a decoder after one packet.
const MAX_RESULTS: usize = 1024;

/// Checks a video codec with valid files of its formats: MP4, MOV, Matroska or WebM, and with the feature `ffmpeg`
/// others. Use small files: each is decoded hundreds of times.
///
/// - Name: the codec decodes the streams of the given files, but not those of a codec without a name.
/// - Frames: every frame of a file is returned once, with the number of its packet, in order of presentation.
/// - Key frames: from each key frame on, the frames are those of the whole.
/// - Disposable packets: without those that the container marks, the other frames are the same.
/// - Threads: the frames do not depend on the number of threads.
/// - Reset: a decoder can be used again after [`VideoDecoder::reset`], also within a stream and after damage. If it
///   [is reusable](VideoDecoder::is_reusable), frames with unnoticed damage are those of a new decoder as well.
/// - Limits: the decoder applies them.
/// - Corruption: packets with changed bytes, truncated and empty packets return frames or one of the documented errors.
///
/// # Panics
/// If the codec violates the contract; the message names the violation.
pub fn video_contract(codec: &dyn VideoCodec, files: &[&[u8]]) {
    let name = codec.name();
    assert!(!name.is_empty(), "the codec has no name");
    assert!(!codec.decodes(""), "{name}: decodes a codec without a name");
    for (number, file) in files.iter().enumerate() {
        let name = format!("{name}, file {number}");
        let stream = VideoPackets::new(file, &name);
        let format = &stream.index.stream().codec;
        assert!(codec.decodes(format), "{name}: does not decode {format}");
        let mut decoder = stream.decoder(codec, 1, &VideoLimits::default());
        let whole = frames(decoder.as_mut(), &stream.packets(), &name);
        check_frames(&stream.index, &whole, &name);
        check_parts(codec, &stream, &whole, &name);
        check_video_limits(codec, &stream, &name);
        check_damage(codec, &stream, &whole, &name);
    }
}

/// The packets of a file.
struct VideoPackets {
    index: VideoIndex,
    bytes: Vec<Vec<u8>>,
    first: usize,
}

/// A packet, with its number and whether it is a key frame.
type NumberedPacket<'a> = (u32, &'a [u8], bool);

impl VideoPackets {
    fn new(file: &[u8], name: &str) -> Self {
        let mut reader = VideoReader::new(&VideoRegistry::with_defaults(), &VideoLimits::default());
        let index = reader.index(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        let source = index.packet_bytes().unwrap_or(file);
        let range = |offset: u64, bytes: u32| offset as usize..offset as usize + bytes as usize;
        let packets = index.packets().iter();
        let bytes = packets.map(|packet| source[range(packet.offset, packet.bytes)].to_vec());
        let bytes = bytes.collect();
        let first = index.packets().iter().position(|packet| packet.is_key).unwrap_or(0);
        VideoPackets { index, bytes, first }
    }

    fn decoder(
        &self,
        codec: &dyn VideoCodec,
        threads: u32,
        limits: &VideoLimits,
    ) -> Box<dyn VideoDecoder> {
        let reorder_depth = self.index.reorder_depth();
        let options = VideoDecoderOptions { threads, reorder_depth, limits: limits.clone() };
        let decoder = codec.decoder(self.index.stream(), &options);
        decoder.unwrap_or_else(|error| panic!("{}: no decoder: {error}", codec.name()))
    }

    /// The packets from the first key frame on, without empty ones.
    fn packets(&self) -> Vec<NumberedPacket<'_>> {
        self.range(self.first..self.bytes.len(), &self.bytes)
    }

    fn range<'a>(&self, range: Range<usize>, bytes: &'a [Vec<u8>]) -> Vec<NumberedPacket<'a>> {
        let is_key = |number: usize| self.index.packets()[number].is_key;
        let packets = range.map(|number| (number as u32, &bytes[number][..], is_key(number)));
        packets.filter(|(_, bytes, _)| !bytes.is_empty()).collect()
    }

    fn timestamp(&self, number: u32) -> i64 {
        self.index.packets()[number as usize].timestamp
    }
}

/// A frame: the number of its packet, whether the decoder found damage in it, and the hash of its planes.
type HashedFrame = (u32, bool, u64);

/// What a decoder returns for packets, in order.
fn results(
    decoder: &mut dyn VideoDecoder,
    packets: &[NumberedPacket<'_>],
    name: &str,
) -> Vec<Result<HashedFrame, ErrorKind>> {
    let mut results = Vec::new();
    for &(number, bytes, is_key) in packets {
        if let Err(error) = decoder.send(bytes, number, is_key) {
            results.push(Err(documented(&error, name)));
        }
        receive_all(decoder, &mut results, name);
    }
    if let Err(error) = decoder.finish() {
        results.push(Err(documented(&error, name)));
    }
    receive_all(decoder, &mut results, name);
    results
}

fn receive_all(
    decoder: &mut dyn VideoDecoder,
    results: &mut Vec<Result<HashedFrame, ErrorKind>>,
    name: &str,
) {
    let mut picture = Picture::new();
    for _ in 0..MAX_RESULTS {
        let result = decoder.receive().and_then(|frame| {
            let Some(frame) = frame else { return Ok(None) };
            decoder.copy_to(&mut picture)?;
            Ok(Some((frame.number, frame.is_damaged, hash(&picture))))
        });
        match result {
            Ok(Some(frame)) => results.push(Ok(frame)),
            Ok(None) => return,
            Err(error) => results.push(Err(documented(&error, name))),
        }
    }
    panic!("{name}: more than {MAX_RESULTS} results after one packet");
}

fn hash(picture: &Picture) -> u64 {
    let mut hasher = DefaultHasher::new();
    for plane in picture.planes() {
        let area = plane.shape().area;
        (area.width, area.height).hash(&mut hasher);
        (0..area.height).for_each(|row| plane.row(row).hash(&mut hasher));
    }
    hasher.finish()
}

/// The kind of an error of a decoder.
fn documented(error: &Error, name: &str) -> ErrorKind {
    let kinds = [
        ErrorKind::Corrupt,
        ErrorKind::Truncated,
        ErrorKind::Unsupported,
        ErrorKind::LimitExceeded,
    ];
    assert!(kinds.contains(&error.kind()), "{name}: {error}");
    error.kind()
}

/// The frames of intact packets.
fn frames(
    decoder: &mut dyn VideoDecoder,
    packets: &[NumberedPacket<'_>],
    name: &str,
) -> Vec<HashedFrame> {
    let results = results(decoder, packets, name).into_iter();
    results.map(|it| it.unwrap_or_else(|kind| panic!("{name}: {kind:?}"))).collect()
}

fn check_frames(index: &VideoIndex, whole: &[HashedFrame], name: &str) {
    for frame in index.frames() {
        let found = whole.iter().filter(|(number, ..)| *number == frame.packet);
        assert_eq!(found.count(), 1, "{name}: the frame of packet {}", frame.packet);
    }
    let timestamp = |number: u32| index.packets().get(number as usize).map(|it| it.timestamp);
    assert!(whole.iter().all(|(number, ..)| timestamp(*number).is_some()), "{name}: a number");
    let is_ordered = whole.is_sorted_by_key(|(number, ..)| timestamp(*number));
    assert!(is_ordered, "{name}: frames are not in order of presentation");
    let is_intact = whole.iter().all(|(_, is_damaged, _)| !is_damaged);
    assert!(is_intact, "{name}: a frame of an intact file is damaged");
}

/// Checks that frames do not depend on the other packets, or on the number of threads.
fn check_parts(codec: &dyn VideoCodec, stream: &VideoPackets, whole: &[HashedFrame], name: &str) {
    let limits = VideoLimits::default();
    let all = stream.packets();
    let threaded = frames(stream.decoder(codec, 2, &limits).as_mut(), &all, name);
    assert_eq!(threaded, whole, "{name}: frames of two threads differ");

    let mut decoder = stream.decoder(codec, 1, &limits);
    for (at, &(key, _, is_key)) in all.iter().enumerate() {
        if !is_key {
            continue;
        }
        // Leading frames refer to frames before the key frame.
        let begin = stream.timestamp(key);
        let follows = |(number, ..): &&HashedFrame| stream.timestamp(*number) >= begin;
        let found = results(decoder.as_mut(), &all[at..], name);
        let found: Vec<_> = found.iter().flatten().filter(follows).collect();
        let expected: Vec<_> = whole.iter().filter(follows).collect();
        assert_eq!(found, expected, "{name}: frames from the key frame {key} on differ");
        decoder.reset();
        // A reset within the stream, while the decoder has buffered frames.
        for &(number, bytes, is_key) in all.iter().take(at + 2) {
            let sent = decoder.send(bytes, number, is_key);
            sent.unwrap_or_else(|error| panic!("{name}: {error}"));
            receive_all(decoder.as_mut(), &mut Vec::new(), name);
        }
        decoder.reset();
    }

    let is_kept = |number: u32| !stream.index.packets()[number as usize].is_disposable;
    let kept: Vec<_> = all.iter().copied().filter(|(number, ..)| is_kept(*number)).collect();
    let found = frames(decoder.as_mut(), &kept, name);
    let expected = whole.iter().filter(|(number, ..)| is_kept(*number));
    assert!(found.iter().eq(expected), "{name}: frames without disposable packets differ");
}

fn check_video_limits(codec: &dyn VideoCodec, stream: &VideoPackets, name: &str) {
    let limits = VideoLimits::default().max_pixels(stream.index.stream().size.pixels() - 1);
    let found = results(stream.decoder(codec, 1, &limits).as_mut(), &stream.packets(), name);
    assert!(found.iter().all(Result::is_err), "{name}: a frame above the limit");
    let is_limit = found.contains(&Err(ErrorKind::LimitExceeded));
    assert!(is_limit, "{name}: no error for a frame above the limit");
}

fn check_damage(codec: &dyn VideoCodec, stream: &VideoPackets, whole: &[HashedFrame], name: &str) {
    let limits = VideoLimits::default();
    let all = stream.first..stream.bytes.len();
    let mut used = stream.decoder(codec, 1, &limits);
    let mut state = 1_u64;
    let mut random = |end: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % end
    };
    for copy in 0..COPIES {
        let name = format!("{name}, copy {copy} with changed bytes");
        let mut damaged = stream.bytes.clone();
        for _ in 0..=copy % 4 {
            let packet = random(all.len()) + all.start;
            let packet = &mut damaged[packet];
            let at = random(packet.len().max(1));
            if copy % 8 == 7 {
                packet.truncate(at);
            } else if let Some(byte) = packet.get_mut(at) {
                *byte = random(256) as u8;
            }
        }
        let packets = stream.range(all.clone(), &damaged);
        let attempt = |decoder: &mut dyn VideoDecoder| {
            let found = catch_unwind(AssertUnwindSafe(|| results(decoder, &packets, &name)));
            found.unwrap_or_else(|_| panic!("{name}: panics"))
        };
        let fresh = attempt(stream.decoder(codec, 1, &limits).as_mut());
        let found = attempt(used.as_mut());
        // Frames after damage that was reported are not used.
        let is_reported = |it: &Result<HashedFrame, ErrorKind>| !matches!(it, Ok((_, false, _)));
        if used.is_reusable() && !fresh.iter().any(is_reported) {
            assert_eq!(found, fresh, "{name}: frames depend on what was decoded before");
        }
        used.reset();
        assert_eq!(frames(used.as_mut(), &stream.packets(), &name), whole, "{name}: after damage");
        used.reset();
    }
    let sent = used.send(&[], 0, true);
    assert!(
        sent.is_err_and(|error| documented(&error, name) == ErrorKind::Corrupt),
        "{name}: empty"
    );
}
