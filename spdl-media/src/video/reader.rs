//! Decodes chosen frames of a video: only the packets that they need.

use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result, SampleRng};

use super::clip::{ChosenFrames, VideoClip};
use super::codec::{VIDEO_SNIFF_BYTES, VideoContainer, VideoDecoder, VideoDecoderOptions};
use super::cues::index_of_clip;
use super::decoder_pool::{DecoderThreads, LentDecoder};
use super::disposable::Disposable;
use super::index::{VideoIndex, VideoPacket};
use super::limits::VideoLimits;
use super::registry::VideoRegistry;
#[cfg(feature = "records")]
use super::stored_index::StoredVideoIndex;
use super::timer::DecodeTimer;
use crate::image::{OnTruncated, Picture, panicked};
use crate::packets::has_one_frame;
use crate::source::{MediaSource, outside};

/// How many key frames before the nearest one are tried if a frame cannot be decoded.
const EARLIER_STARTS: usize = 2;
/// Frames of more pixels release the memory of the reader after the clip.
const LARGE_FRAME: u64 = 1 << 23;
/// Frames may have this many times the pixels that the container states.
const FRAME_EXCESS: u64 = 4;
/// The bytes of a file that are read at a time, unless a packet is larger.
const READ_BYTES: u64 = 4 << 20;
/// Packets that are further apart are read separately: in a store, these bytes take as long as a request.
const READ_GAP: u64 = 256 << 10;

/// Clips with fewer pixels, of all packets, are decoded by one thread: starting more takes longer.
const LONE_CLIP_PIXELS: u64 = 1 << 24;

/// Decodes chosen frames of videos.
///
/// Create one per worker: it keeps memory. The readers of a [registry](VideoRegistry) share decoders.
///
/// For each chosen frame, decoding starts at the nearest key frame before it. Frames that were not
/// chosen and that no other frame refers to are not decoded; the chosen frames are the same as in a
/// full decode.
///
/// Files, bytes in memory and objects in stores are a [`MediaSource`]: `spdl_io::fetch::BlockReader` (feature
/// `records`) reads parts of an object.
///
/// ```no_run
/// use spdl_media::image::Picture;
/// use spdl_media::video::{VideoLimits, VideoReader, VideoRegistry};
/// let mut reader = VideoReader::new(&VideoRegistry::with_defaults(), &VideoLimits::default());
/// let file = std::fs::File::open("clip.mp4")?;
/// let index = reader.index(&file)?;
/// // The first, the middle and the last frame.
/// let last = index.frames().len() - 1;
/// reader.decode(&file, &index, &[0, last / 2, last], &mut |place, picture: &Picture| {
///     println!("frame {place}: {} pixels", picture.image());
///     Ok(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct VideoReader {
    registry: VideoRegistry,
    limits: VideoLimits,
    threads: Option<u32>,
    on_truncated: OnTruncated,
    timer: DecodeTimer,
    memory: Vec<u8>,
    picture: Picture,
}

/// The outcome of the decode of a clip.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClipDecoded {
    /// The places of the requested frames that are missing because of damage. Only with
    /// [`OnTruncated::Partial`].
    pub missing: Vec<usize>,
    /// The number of packets that were decoded.
    pub packets: usize,
}

/// Packets that are decoded without a gap, from a key frame to the last one that holds a frame of the
/// clip.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    packets: Range<usize>,
    /// The requested packets, sorted.
    wanted: Vec<usize>,
}

impl VideoReader {
    /// A reader of the formats of `registry`.
    pub fn new(registry: &VideoRegistry, limits: &VideoLimits) -> Self {
        VideoReader {
            registry: registry.clone(),
            limits: limits.clone(),
            threads: None,
            on_truncated: OnTruncated::Error,
            timer: DecodeTimer::new(limits.decode_time()),
            memory: Vec::new(),
            picture: Picture::new(),
        }
    }

    /// Sets the number of threads of a decoder. By default, it is one if other readers of the registry decode at the
    /// same time, which is the fastest. A lone reader has one per processor, unless the clip is small, or the codec does
    /// not [notice damage](super::VideoCodec::notices_damage_in_threads) in threads. The frames are the same.
    #[must_use]
    pub fn threads(mut self, threads: u32) -> Self {
        self.threads = Some(threads.max(1));
        self
    }

    /// What to do with damaged frames, and with files that end early: fail, or return the other frames.
    /// Default: [`OnTruncated::Error`].
    #[must_use]
    pub fn on_truncated(mut self, on_truncated: OnTruncated) -> Self {
        self.on_truncated = on_truncated;
        self
    }

    /// Reads where the packets of a video are, without decoding.
    ///
    /// # Errors
    /// `Unsupported` for an unknown format, and the errors of
    /// [`VideoContainer::index`](super::VideoContainer::index); `Truncated` if the index is
    /// [truncated](VideoIndex::is_truncated), except with [`OnTruncated::Partial`].
    pub fn index(&mut self, file: &dyn MediaSource) -> Result<VideoIndex> {
        #[cfg(feature = "records")]
        if let Some(index) = stored_index_of(file, &self.limits)? {
            return Ok(index);
        }
        let container = container_of(&self.registry, file, &mut self.memory)?;
        let index = index_of(&*container, file, &self.limits)?;
        if index.is_truncated() && self.on_truncated == OnTruncated::Error {
            let message = format!(
                "truncated video: the file ends before its container does, after {} frames; accept partial \
                 samples to use these",
                index.frames().len()
            );
            return Err(Error::new(ErrorKind::Truncated, message).with_offset(file.size()));
        }
        Ok(index)
    }

    /// The frames of a clip, and the index of the part of the video that has them; `None` if the container needs
    /// the whole index.
    pub(crate) fn index_of_clip(
        &mut self,
        file: &dyn MediaSource,
        clip: &VideoClip,
        rng: &dyn Fn() -> Option<SampleRng>,
    ) -> Result<Option<(VideoIndex, ChosenFrames)>> {
        #[cfg(feature = "records")]
        if file.part_index().is_some() {
            return Ok(None);
        }
        let container = container_of(&self.registry, file, &mut self.memory)?;
        index_of_clip(&*container, file, &self.limits, clip, rng)
    }

    /// Decodes frames of a video. `frames` are their numbers in order of presentation; `each` is called
    /// with each place of `frames` and its frame, in any order. If damage to its references is noticed
    /// after the call, the frame is missing nevertheless, or `each` is called with it again.
    ///
    /// # Errors
    /// `InvalidArgument` if the video has no such frame; `Corrupt` or `Truncated` if a frame is
    /// damaged or missing; `Unsupported` if there is no decoder; `LimitExceeded`, also if the decoder
    /// [takes too long](VideoLimits::max_decode_time); the errors of the source and of `each`.
    pub fn decode(
        &mut self,
        file: &dyn MediaSource,
        index: &VideoIndex,
        frames: &[usize],
        each: &mut dyn FnMut(usize, &Picture) -> Result<()>,
    ) -> Result<ClipDecoded> {
        let mut threads = self.threads_for(index, &places(index, frames)?)?;
        loop {
            let mut places = places(index, frames)?;
            let mut lent = self.decoder_of(index, threads)?;
            self.timer.restart();
            let mut is_damaged = false;
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                self.decode_with(lent.decoder(), file, index, &mut places, each, &mut is_damaged)
            }));
            let outcome = outcome.map_err(|panic| {
                panicked(&format!("{} decoder", index.stream().codec), panic.as_ref())
            })?;
            if is_damaged && lent.threads() > 1 {
                // With several threads, the packet of an error is unknown.
                threads = DecoderThreads::Fixed(1);
                continue;
            }
            if self.picture.image().pixels() > LARGE_FRAME {
                // The decoder and its frames are large as well.
                (self.picture, self.memory) = (Picture::new(), Vec::new());
            } else {
                lent.give_back();
            }
            return outcome;
        }
    }

    /// The number of threads for a clip.
    fn threads_for(&self, index: &VideoIndex, places: &Places) -> Result<DecoderThreads> {
        if let Some(threads) = self.threads {
            return Ok(DecoderThreads::Fixed(threads));
        }
        let stream = index.stream();
        let packets = runs(index, &places.packets).iter().map(|run| run.packets.len() as u64).sum();
        let is_large = stream.size.pixels().saturating_mul(packets) >= LONE_CLIP_PIXELS;
        let codec = self.registry.codec(&stream.codec)?;
        Ok(match is_large && codec.notices_damage_in_threads(&stream.codec) {
            true => DecoderThreads::OfLoneDecoder,
            false => DecoderThreads::Fixed(1),
        })
    }

    /// A decoder for the stream of a video.
    fn decoder_of(&self, index: &VideoIndex, threads: DecoderThreads) -> Result<LentDecoder> {
        let (stream, reorder_depth) = (index.stream(), index.reorder_depth());
        let stated = stream.size.pixels();
        let most = if stated > 0 { stated.saturating_mul(FRAME_EXCESS) } else { u64::MAX };
        let limits = self.limits.clone().max_pixels(self.limits.pixels().min(most));
        let options = VideoDecoderOptions { reorder_depth, limits, ..Default::default() };
        let codec = self.registry.codec(&stream.codec)?;
        let make = |options: &VideoDecoderOptions| codec.decoder(stream, options);
        self.registry.decoders().lend(stream, options, threads, make)
    }

    fn decode_with(
        &mut self,
        decoder: &mut dyn VideoDecoder,
        file: &dyn MediaSource,
        index: &VideoIndex,
        places: &mut Places,
        each: &mut dyn FnMut(usize, &Picture) -> Result<()>,
        is_damaged: &mut bool,
    ) -> Result<ClipDecoded> {
        let mut decoded = ClipDecoded::default();
        for run in runs(index, &places.packets) {
            let mut failure =
                self.decode_run(decoder, file, index, &run, places, each, &mut decoded)?;
            *is_damaged |= failure.is_some();
            // Some streams mark frames as key frames at which decoding cannot start. Truncated files
            // are not decoded again.
            let mut start = run.packets.start;
            for _ in 0..EARLIER_STARTS {
                let wanted = run.wanted.iter().copied();
                let wanted: Vec<_> = wanted.filter(|packet| places.is_missing(*packet)).collect();
                let is_truncated =
                    failure.as_ref().is_some_and(|error| error.kind() == ErrorKind::Truncated);
                let Some(earlier) = index.key_before(start) else { break };
                if wanted.is_empty() || is_truncated {
                    break;
                }
                start = earlier;
                let longer = Run { packets: start..run.packets.end, wanted };
                failure =
                    self.decode_run(decoder, file, index, &longer, places, each, &mut decoded)?;
            }
            let missing = run.wanted.iter().find(|packet| places.is_missing(**packet));
            if let Some(&packet) = missing
                && self.on_truncated == OnTruncated::Error
            {
                return Err(cannot_decode(index, packet, failure));
            }
        }
        decoded.missing = places.missing();
        Ok(decoded)
    }

    /// Decodes the packets of a run; returns the first failure that concerns a frame of it.
    #[expect(clippy::too_many_arguments, reason = "the state of one call of `decode`")]
    fn decode_run(
        &mut self,
        decoder: &mut dyn VideoDecoder,
        file: &dyn MediaSource,
        index: &VideoIndex,
        run: &Run,
        places: &mut Places,
        each: &mut dyn FnMut(usize, &Picture) -> Result<()>,
        decoded: &mut ClipDecoded,
    ) -> Result<Option<Error>> {
        decoder.reset();
        let packets = index.packets();
        let disposable = Disposable::new(index.stream());
        let copied = index.packet_bytes();
        let file: &dyn MediaSource = match &copied {
            Some(bytes) => bytes,
            None => file,
        };
        let mut state = RunState {
            index,
            run,
            places,
            each,
            arrived: vec![false; run.wanted.len()],
            last_sent: run.packets.start,
            without_frame: BTreeSet::new(),
            failure: None,
            damaged: Vec::new(),
            timer: &mut self.timer,
        };
        let size = file.size();
        let mut memory = std::mem::take(&mut self.memory);
        let mut at = run.packets.start;
        'packets: while at < run.packets.end {
            let part = part(packets, at..run.packets.end);
            let bytes = packets[part.clone()].iter().map(|packet| u64::from(packet.bytes));
            for bytes in bytes {
                self.limits.check_packet_bytes(bytes)?;
            }
            // A truncated file: the packets before its end are decoded.
            let part = inside(packets, part, size);
            if part.is_empty() {
                let VideoPacket { offset, bytes, .. } = packets[part.start];
                state.damaged.push(part.start);
                let range = offset..offset + u64::from(bytes);
                state.failure.get_or_insert(outside(&range, size));
                break 'packets;
            }
            let (first, last) = (&packets[part.start], &packets[part.end - 1]);
            let start = first.offset;
            let read = file.read(start..last.offset + u64::from(last.bytes), &mut memory)?;
            for number in part.clone() {
                let packet = &packets[number];
                let bytes = &read[(packet.offset - start) as usize..][..packet.bytes as usize];
                let wanted = run.wanted.binary_search(&number).is_ok();
                let has_one_frame = has_one_frame(&index.stream().codec, bytes.len());
                let is_disposable = (!wanted || has_one_frame)
                    && (packet.is_disposable || disposable.is_disposable(bytes));
                if !wanted && is_disposable {
                    continue;
                }
                if bytes.is_empty() {
                    // The previous picture is shown again; the packet has no frame.
                    continue;
                }
                decoded.packets += 1;
                state.last_sent = number;
                let sent = || decoder.send(bytes, number as u32, packet.is_key);
                match state.timer.measure(sent) {
                    // At the start of a stream, disposable frames without references have no frame.
                    Ok(()) if has_one_frame && !is_disposable => {
                        state.without_frame.insert(number);
                    }
                    Ok(()) => {}
                    Err(error) => state.fail(number, error)?,
                }
                state.receive(decoder, &mut self.picture)?;
                if state.arrived.iter().all(|arrived| *arrived) {
                    break 'packets;
                }
            }
            at = part.end;
        }
        self.memory = memory;
        // Damage of a reference frame is reported with that frame, which may be the last one to arrive.
        match state.timer.measure(|| decoder.finish()) {
            Ok(()) => state.receive(decoder, &mut self.picture)?,
            Err(error) => state.fail(state.last_sent, error)?,
        }
        state.fail_without_frame()?;
        state.revoke();
        Ok(state.failure)
    }
}

/// What a run has found so far.
struct RunState<'a> {
    index: &'a VideoIndex,
    run: &'a Run,
    places: &'a mut Places,
    each: &'a mut dyn FnMut(usize, &Picture) -> Result<()>,
    /// Whether the frame of each requested packet has arrived.
    arrived: Vec<bool>,
    last_sent: usize,
    /// Packets that have one frame, which has not arrived.
    without_frame: BTreeSet<usize>,
    failure: Option<Error>,
    /// Packets whose damage spreads to the frames after them, up to the next key frame.
    damaged: Vec<usize>,
    timer: &'a mut DecodeTimer,
}

impl RunState<'_> {
    /// Remembers the damage of a packet; returns failures that are not damage.
    fn fail(&mut self, number: usize, error: Error) -> Result<()> {
        if !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Truncated) {
            return Err(error);
        }
        self.damaged.push(number);
        self.failure.get_or_insert(error);
        Ok(())
    }

    /// Whether a frame, or one that it may refer to, is damaged.
    fn is_damaged(&self, number: usize) -> bool {
        // Most runs have no damage.
        !self.damaged.is_empty() && {
            let references = self.index.start_of(number)..=number;
            self.damaged.iter().any(|damaged| references.contains(damaged))
        }
    }

    /// Takes all frames that are complete.
    fn receive(&mut self, decoder: &mut dyn VideoDecoder, picture: &mut Picture) -> Result<()> {
        // Damaged frames may be reported one after another; a decoder that never ends is stopped.
        for _ in 0..self.run.packets.len() + 1024 {
            let received = self.timer.measure(|| decoder.receive());
            let frame = match received {
                Ok(Some(frame)) => frame,
                Ok(None) => return self.check_time(),
                Err(error) => {
                    self.fail(self.last_sent, error)?;
                    self.check_time()?;
                    continue;
                }
            };
            let number = frame.number as usize;
            self.without_frame.remove(&number);
            if frame.is_damaged {
                let message = "damage was concealed";
                self.fail(number, Error::new(ErrorKind::Corrupt, message))?;
            }
            let Ok(at) = self.run.wanted.binary_search(&number) else {
                self.check_time()?;
                continue;
            };
            if std::mem::replace(&mut self.arrived[at], true) || self.is_damaged(number) {
                continue;
            }
            decoder.copy_to(picture)?;
            self.places.deliver(number, picture, self.each)?;
            self.timer.restart();
        }
        Ok(())
    }

    /// Checks the time since the last requested frame, unless all of the run have arrived.
    fn check_time(&self) -> Result<()> {
        if self.timer.is_over()
            && let Some(next) = self.arrived.iter().position(|arrived| !arrived)
        {
            let timestamp = |packet: usize| self.index.packets()[packet].timestamp;
            let stream = self.index.stream();
            let wanted = stream.seconds(timestamp(self.run.wanted[next]));
            let what = format!("the frame at {wanted:.3} s");
            return Err(self.timer.error(&what, stream, timestamp(self.last_sent)));
        }
        Ok(())
    }

    /// Counts packets as damaged for which the decoder returned neither a frame nor an error. Otherwise the frames that
    /// refer to theirs would be made from another one.
    fn fail_without_frame(&mut self) -> Result<()> {
        for number in std::mem::take(&mut self.without_frame) {
            let message = "the decoder returned no frame";
            self.fail(number, Error::new(ErrorKind::Corrupt, message))?;
        }
        Ok(())
    }

    /// Marks delivered frames as missing if damage to their references was reported after them.
    fn revoke(&mut self) {
        for &packet in &self.run.wanted {
            if self.is_damaged(packet) {
                self.places.revoke(packet);
            }
        }
    }
}

/// The error for a frame that is missing.
fn cannot_decode(index: &VideoIndex, packet: usize, failure: Option<Error>) -> Error {
    let entry = &index.packets()[packet];
    let seconds = index.stream().seconds(entry.timestamp);
    let error = failure.unwrap_or_else(|| {
        let codec = &index.stream().codec;
        Error::new(ErrorKind::Corrupt, format!("the {codec} decoder returned no frame"))
    });
    let message = format!(
        "the frame at {seconds:.3} s cannot be decoded: {}; accept partial samples to use the others",
        error.message()
    );
    let of_packet = index.packet_bytes().is_none().then_some(entry.offset);
    let offset = error.offset().or(of_packet);
    let error = Error::new(error.kind(), message);
    match offset {
        Some(offset) => error.with_offset(offset),
        None => error,
    }
}

/// The places of a clip to which the frame of a packet belongs.
struct Places {
    /// The packets of the clip, sorted, without repetition.
    packets: Vec<usize>,
    /// Packet and place, sorted.
    pairs: Vec<(usize, usize)>,
    /// Whether the frame of each packet was delivered.
    delivered: Vec<bool>,
}

/// The places of the frames of a clip.
fn places(index: &VideoIndex, frames: &[usize]) -> Result<Places> {
    let mut pairs = Vec::with_capacity(frames.len());
    for (place, &frame) in frames.iter().enumerate() {
        let Some(found) = index.frames().get(frame) else {
            let message =
                format!("no frame {frame}: the video has {} frames", index.frames().len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        pairs.push((found.packet as usize, place));
    }
    pairs.sort_unstable();
    let mut packets: Vec<_> = pairs.iter().map(|(packet, _)| *packet).collect();
    packets.dedup();
    let delivered = vec![false; packets.len()];
    Ok(Places { packets, pairs, delivered })
}

impl Places {
    fn is_missing(&self, packet: usize) -> bool {
        self.packets.binary_search(&packet).is_ok_and(|at| !self.delivered[at])
    }

    fn deliver(
        &mut self,
        packet: usize,
        picture: &Picture,
        each: &mut dyn FnMut(usize, &Picture) -> Result<()>,
    ) -> Result<()> {
        if let Ok(at) = self.packets.binary_search(&packet) {
            self.delivered[at] = true;
        }
        let first = self.pairs.partition_point(|(other, _)| *other < packet);
        let of_packet = self.pairs[first..].iter().take_while(|(other, _)| *other == packet);
        of_packet.into_iter().try_for_each(|(_, place)| each(*place, picture))
    }

    fn revoke(&mut self, packet: usize) {
        if let Ok(at) = self.packets.binary_search(&packet) {
            self.delivered[at] = false;
        }
    }

    /// The places whose frames were not delivered, sorted.
    fn missing(&self) -> Vec<usize> {
        let missing = self.pairs.iter().filter(|(packet, _)| self.is_missing(*packet));
        let mut places: Vec<_> = missing.map(|(_, place)| *place).collect();
        places.sort_unstable();
        places
    }
}

/// Divides sorted packets of a clip into runs.
fn runs(index: &VideoIndex, wanted: &[usize]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for &packet in wanted {
        let start = index.start_of(packet);
        match runs.last_mut() {
            // Decoding continues if there is no key frame to skip to.
            Some(run) if start <= run.packets.end => {
                run.packets = run.packets.start.min(start)..packet + 1;
                run.wanted.push(packet);
            }
            _ => runs.push(Run { packets: start..packet + 1, wanted: vec![packet] }),
        }
    }
    runs
}

/// The container of a file.
pub(crate) fn container_of(
    registry: &VideoRegistry,
    file: &dyn MediaSource,
    memory: &mut Vec<u8>,
) -> Result<Arc<dyn VideoContainer>> {
    let head = file.read(0..file.size().min(VIDEO_SNIFF_BYTES as u64), memory)?;
    registry.container(head).cloned()
}

/// The index of a file.
pub(crate) fn index_of(
    container: &dyn VideoContainer,
    file: &dyn MediaSource,
    limits: &VideoLimits,
) -> Result<VideoIndex> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let index = container.index(file, limits)?;
        check_index(&index, limits)?;
        Ok(index)
    }));
    outcome.unwrap_or_else(|panic| {
        Err(panicked(&format!("{} reader", container.name()), panic.as_ref()))
    })
}

/// Checks the numbers of an index.
pub(super) fn check_index(index: &VideoIndex, limits: &VideoLimits) -> Result<()> {
    limits.check_packets(index.packets().len() as u64)?;
    if index.stream().size.pixels() > 0 {
        limits.check_size(index.stream().size)?;
    }
    Ok(())
}

/// The index that is stored apart from a file; `None` if there is none, or it is damaged.
///
/// # Errors
/// `LimitExceeded`.
#[cfg(feature = "records")]
pub(crate) fn stored_index_of(
    file: &dyn MediaSource,
    limits: &VideoLimits,
) -> Result<Option<VideoIndex>> {
    let stored = file.part_index().and_then(|bytes| StoredVideoIndex::parse(bytes).ok());
    let Some(StoredVideoIndex { index, .. }) = stored else { return Ok(None) };
    check_index(&index, limits)?;
    Ok(Some(index))
}

/// The ranges of a file of `size` bytes that [`VideoReader::decode`] reads for these frames, if all
/// packets are intact.
///
/// # Errors
/// `InvalidArgument` if the video has no such frame.
#[cfg(feature = "records")]
pub(crate) fn ranges_of(
    index: &VideoIndex,
    frames: &[usize],
    size: u64,
) -> Result<Vec<Range<u64>>> {
    let packets = index.packets();
    let mut ranges = Vec::new();
    for run in runs(index, &places(index, frames)?.packets) {
        let mut at = run.packets.start;
        while at < run.packets.end {
            let part = inside(packets, part(packets, at..run.packets.end), size);
            let Some(last) = part.clone().last() else { break };
            at = part.end;
            let end = packets[last].offset + u64::from(packets[last].bytes);
            ranges.push(packets[part.start].offset..end);
        }
    }
    Ok(ranges)
}

/// The first packets of a part that are inside a file of `size` bytes.
fn inside(packets: &[VideoPacket], part: Range<usize>, size: u64) -> Range<usize> {
    let is_inside = |number: &usize| {
        let packet = &packets[*number];
        packet.offset + u64::from(packet.bytes) <= size
    };
    part.start..part.start + part.take_while(is_inside).count()
}

/// The first packets of a range that are read together: near to each other in the file.
fn part(packets: &[VideoPacket], range: Range<usize>) -> Range<usize> {
    let first = &packets[range.start];
    let is_apart = |number: &usize| {
        let (packet, previous) = (&packets[*number], &packets[*number - 1]);
        let end = previous.offset + u64::from(previous.bytes);
        packet.offset < end
            || packet.offset - end > READ_GAP
            || packet.offset + u64::from(packet.bytes) - first.offset > READ_BYTES
    };
    let end = (range.start + 1..range.end).find(is_apart);
    range.start..end.unwrap_or(range.end)
}

impl std::fmt::Debug for VideoReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VideoReader")
            .field("registry", &self.registry)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::index::VideoStream;
    use super::*;

    /// Packets of 10 bytes with these time stamps; those of `keys` are key frames.
    fn index(timestamps: &[i64], keys: &[usize]) -> VideoIndex {
        let stream = VideoStream::new("h264", crate::Size::new(4, 4));
        VideoIndex::new(stream, packets(timestamps, keys), 100).unwrap()
    }

    fn packets(timestamps: &[i64], keys: &[usize]) -> Vec<VideoPacket> {
        let packet = |(number, &timestamp): (usize, &i64)| VideoPacket {
            offset: 100 * number as u64,
            bytes: 10,
            timestamp,
            is_key: keys.contains(&number),
            is_disposable: false,
        };
        timestamps.iter().enumerate().map(packet).collect()
    }

    fn run(packets: Range<usize>, wanted: &[usize]) -> Run {
        Run { packets, wanted: wanted.to_vec() }
    }

    #[test]
    fn a_run_starts_at_the_nearest_key_frame() {
        let closed = index(&[0, 2, 1, 3, 5, 4, 6, 8, 7], &[0, 3, 6]);
        assert_eq!(runs(&closed, &[1, 8]), [run(0..2, &[1]), run(6..9, &[8])]);
        assert_eq!(runs(&closed, &[0, 8]), [run(0..1, &[0]), run(6..9, &[8])]);
        // The key frame, packet 3, follows packet 2: no packet is skipped.
        assert_eq!(runs(&closed, &[2, 3]), [run(0..4, &[2, 3])]);
    }

    #[test]
    fn leading_frames_of_an_open_group_start_one_key_frame_earlier() {
        // Packet 4 is presented before the key frame 3, which precedes it in the stream.
        let open = index(&[0, 2, 1, 5, 4, 3, 6], &[0, 3]);
        assert_eq!(runs(&open, &[4]), [run(0..5, &[4])]);
        assert_eq!(runs(&open, &[6]), [run(3..7, &[6])]);
        assert_eq!(runs(&open, &[3, 4]), [run(0..5, &[3, 4])]);
    }

    #[test]
    fn packets_that_are_near_in_the_file_are_read_together() {
        let mut all = packets(&[0, 1, 2, 3, 4], &[0]);
        assert_eq!(part(&all, 1..5), 1..5);
        all[3].offset = READ_BYTES * 2;
        assert_eq!(part(&all, 0..5), 0..3);
        assert_eq!(part(&all, 3..5), 3..4);
        all[2].offset = all[1].offset + 10 + READ_GAP;
        assert_eq!(part(&all, 0..3), 0..3);
        all[2].offset += 1;
        assert_eq!(part(&all, 0..3), 0..2);
    }
}
