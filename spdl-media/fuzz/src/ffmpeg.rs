//! The boundary to FFmpeg: files, packets and frames of any content.

use std::time::Duration;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};
use spdl_media::ffmpeg::{
    BitStreamFilter, DecodeOptions, DemuxOptions, Demuxer, Frames, MediaKind, Packets, Time,
    TimeWindow, decode_frames, decode_packets,
};
use spdl_media::image::Picture;
use spdl_media::video::{VideoReader, VideoRegistry};
use spdl_media::{MediaSource, OnTruncated};

use super::video::{check_index, limits};
use super::{check_kind, hash};

/// How many frames are decoded.
const FRAMES: usize = 8;

/// Some frames of a video file of any container.
pub fn decode_video(file: &[u8]) {
    let limits = limits().max_decode_time(Duration::from_secs(5));
    for on_truncated in [OnTruncated::Error, OnTruncated::Partial] {
        let registry = VideoRegistry::with_defaults();
        let mut reader = VideoReader::new(&registry, &limits).on_truncated(on_truncated);
        let index = reader.index(&file);
        check_kind(index.as_ref().err());
        let Ok(index) = index else { return };
        check_index(&index);
        let count = index.frames().len() as u64;
        let frames: Vec<_> = (0..FRAMES as u32)
            .map(|at| (hash(file).rotate_left(8 * at) % count) as usize)
            .collect();
        let mut delivered = [false; FRAMES];
        let outcome = reader.decode(&file, &index, &frames, &mut |place, picture: &Picture| {
            assert!(picture.image().pixels() <= 1 << 16);
            delivered[place] = true;
            Ok(())
        });
        check_kind(outcome.as_ref().err());
        if let Ok(decoded) = outcome {
            assert!(decoded.missing.is_empty() || on_truncated == OnTruncated::Partial);
            let is_there = |place: usize| delivered[place] || decoded.missing.contains(&place);
            assert!((0..FRAMES).all(is_there), "{delivered:?} {decoded:?}");
        }
    }
}

/// Packets and frames of a media file: of each kind of stream, all and in a window.
pub fn read_media(file: &[u8]) {
    let source = || -> Box<dyn MediaSource + Send> { Box::new(Bytes::copy_from_slice(file)) };
    let mut options = DemuxOptions::default();
    let small = [("probesize", "65536"), ("analyzeduration", "1000000"), ("fpsprobesize", "4")];
    options.options = small.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let demuxer = Demuxer::open(source(), "file", &options);
    check_kind(demuxer.as_ref().err());
    let Ok(mut demuxer) = demuxer else { return };
    let tenth = |number: u64| Time::new(number as i64, 10).expect("a valid time");
    let start = hash(file) % 20;
    let window = TimeWindow::new(tenth(start), tenth(start + 3)).expect("a valid window");
    for kind in [MediaKind::Video, MediaKind::Audio, MediaKind::Image] {
        for window in [None, Some(window)] {
            let packets = demuxer.demux(kind, window);
            check_kind(packets.as_ref().err());
            if let Ok(packets) = packets {
                use_packets(&packets);
            }
        }
    }
}

/// Packets from bytes.
pub fn read_packets(bytes: &[u8]) {
    let packets = Packets::from_bytes(&Bytes::copy_from_slice(bytes));
    check_kind(packets.as_ref().err());
    if let Ok(packets) = packets {
        use_packets(&packets);
    }
}

/// Packets to bytes and back; filtered and decoded.
fn use_packets(packets: &Packets) {
    let bytes = packets.to_bytes();
    let again = Packets::from_bytes(&Bytes::from(bytes.clone())).map(|again| again.to_bytes());
    match again {
        Ok(again) => assert!(again == bytes, "packets change on their way to bytes and back"),
        Err(error) => check_kind(Some(&error)),
    }
    let Some(codec) = packets.codec() else { return };
    if codec.name() == "h264" {
        let filtered = BitStreamFilter::new(codec, "h264_mp4toannexb");
        check(filtered.and_then(|mut filter| filter.filter(packets).map(drop)));
    }
    let mut options = DecodeOptions::default();
    options.options.push(("max_pixels".to_owned(), (1 << 16).to_string()));
    let filters = match packets.kind() {
        MediaKind::Audio => "aresample=16000",
        _ => "scale=32:32,format=rgb24",
    };
    for filters in [None, Some(filters)] {
        match decode_packets(packets, filters, &options, Some(FRAMES)) {
            Ok((frames, _)) => use_frames(&frames),
            Err(error) => check(Err(error)),
        }
    }
    if packets.kind() == MediaKind::Video {
        check(decode_frames(packets, &[0], None, &options).map(|frames| use_frames(&frames)));
    }
}

/// Frames as an array.
fn use_frames(frames: &Frames) {
    let shape = frames.shape();
    check(shape.as_ref().map(|_| ()).map_err(Error::clone));
    if let Ok((shape, dtype)) = shape {
        let mut array = vec![0; shape.iter().product::<usize>() * dtype.size()];
        check(frames.copy_to(&mut array));
    }
    assert!(frames.times().iter().all(|time| !time.is_infinite()));
}

/// Checks the kind of an error. The arguments are valid, but not for every file: a window may have no frames, and the
/// options of a decoder that cannot be opened count as arguments.
fn check(outcome: Result<()>) {
    if let Err(error) = outcome
        && error.kind() != ErrorKind::InvalidArgument
    {
        check_kind(Some(&error));
    }
}
