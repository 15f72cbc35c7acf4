//! Videos of tests and measurements: packets, and hashes of the frames.

use spdl_core::Result;
use spdl_cuda::NvDec;
use spdl_cuda::video::{AccessUnits, IvfFile, VideoCodec, VideoFrame, VideoStream};

/// The 64-bit FNV-1a hash.
pub(crate) fn hash(bytes: &[u8]) -> String {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

/// The frames that FFmpeg decodes from a video: a line of `frames.tsv`.
pub(crate) struct Expected<'a> {
    pub(crate) name: &'a str,
    pub(crate) size: (u32, u32),
    /// Hashes of all frames in display order.
    pub(crate) hashes: Vec<&'a str>,
}

/// Parses a `frames.tsv`. Lines without all columns are skipped.
pub(crate) fn expected(table: &str) -> Vec<Expected<'_>> {
    let line = |line| {
        let mut columns = str::split(line, '\t');
        let name = columns.next()?;
        let size = (columns.next()?.parse().ok()?, columns.next()?.parse().ok()?);
        let hashes = columns.nth(1)?.split(' ').collect();
        Some(Expected { name, size, hashes })
    };
    table.lines().filter_map(line).collect()
}

/// The codec of a stream with start codes, by its file name.
pub(crate) fn codec_of(name: &str) -> VideoCodec {
    if name.ends_with(".hevc") { VideoCodec::Hevc } else { VideoCodec::H264 }
}

/// Packets with their timestamps.
pub(crate) type Packets<'a> = Vec<(&'a [u8], i64)>;

/// The codec and the packets of a video.
pub(crate) fn packets<'a>(name: &str, file: &'a [u8]) -> Result<(VideoCodec, Packets<'a>)> {
    if name.ends_with(".ivf") {
        let packets = IvfFile::new(file)?;
        let codec = packets.codec();
        let packets = packets.map(|packet| packet.map(|packet| (packet.data, packet.timestamp)));
        return Ok((codec, packets.collect::<Result<_>>()?));
    }
    let codec = codec_of(name);
    let packets = AccessUnits::new(file, codec)?.zip(0..);
    let packets = packets.map(|(packet, number)| Ok((packet?, number)));
    Ok((codec, packets.collect::<Result<_>>()?))
}

/// The frames that are decoded so far.
pub(crate) fn available_frames(
    video: &mut VideoStream,
) -> impl Iterator<Item = Result<VideoFrame>> {
    std::iter::from_fn(|| video.next_frame())
}

/// All frames of a video.
pub(crate) fn decode(decoders: &NvDec, name: &str, file: &[u8]) -> Result<Vec<VideoFrame>> {
    let (codec, packets) = packets(name, file)?;
    let mut video = decoders.open(codec)?;
    let mut frames = Vec::new();
    for (packet, timestamp) in packets {
        video.push(packet, Some(timestamp))?;
        frames.extend(available_frames(&mut video));
    }
    video.finish()?;
    frames.extend(available_frames(&mut video));
    frames.into_iter().collect()
}
