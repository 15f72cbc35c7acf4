//! Streams split into packets, compared with FFmpeg's, and of corrupt streams.

use std::fs;
use std::path::{Path, PathBuf};

use spdl_core::ErrorKind;
use spdl_cuda::video::{AccessUnits, IvfFile, VideoCodec};

use super::videos::codec_of;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/video")
}

/// The files, each with the lengths of its packets by FFmpeg.
fn golden() -> Vec<(String, Vec<u8>, Vec<usize>)> {
    let table = fs::read_to_string(folder().join("packets.tsv")).unwrap();
    let lines = table.lines().map(|line| {
        let (name, lengths) = line.split_once('\t').unwrap();
        let lengths = lengths.split(' ').map(|length| length.parse().unwrap()).collect();
        (name.to_owned(), fs::read(folder().join(name)).unwrap(), lengths)
    });
    lines.collect()
}

fn lengths(stream: &[u8], codec: VideoCodec) -> Vec<usize> {
    AccessUnits::new(stream, codec).unwrap().map(|packet| packet.unwrap().len()).collect()
}

// promise: DEV4
#[test]
fn streams_are_split_as_by_ffmpeg() {
    let files = golden();
    assert_eq!(files.len(), 8);
    for (name, file, expected) in files {
        if !name.ends_with(".ivf") {
            let mut lengths = lengths(&file, codec_of(&name));
            if name.ends_with(".hevc") {
                // FFmpeg counts the zero byte before a start code to the packet before it.
                lengths[0] += 1;
                *lengths.last_mut().unwrap() -= 1;
            }
            assert_eq!(lengths, expected, "{name}");
            continue;
        }
        let packets = IvfFile::new(&file).unwrap();
        let size = if name.starts_with("odd") { (161, 145) } else { (160, 144) };
        assert_eq!((packets.size(), packets.ticks()), (size, (25, 1)), "{name}");
        let packets: Vec<_> = packets.map(Result::unwrap).collect();
        let lengths: Vec<usize> = packets.iter().map(|packet| packet.data.len()).collect();
        assert_eq!(lengths, expected, "{name}");
        let timestamps: Vec<i64> = packets.iter().map(|packet| packet.timestamp).collect();
        assert_eq!(timestamps, (0..10).collect::<Vec<_>>(), "{name}");
    }
}

// promise: DEV4
#[test]
fn conformance_streams_have_the_right_number_of_pictures() {
    let corpora = std::env::var_os("SPDL_CORPORA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpora"),
        PathBuf::from,
    );
    let folder = corpora.join("openh264-res/files/res");
    if !folder.is_dir() {
        println!("SKIPPED: corpora not present ({})", folder.display());
        return;
    }
    // Counted by ffprobe.
    let streams = [
        ("BA1_Sony_D.jsv", 17),
        ("Cisco_Men_whisper_640x320_CAVLC_Bframe_9.264", 9),
        ("SarVui.264", 17),
        ("jm_1080p_allslice.264", 1),
    ];
    for (name, pictures) in streams {
        let stream = fs::read(folder.join(name)).unwrap();
        let lengths = lengths(&stream, VideoCodec::H264);
        assert_eq!(
            (lengths.len(), lengths.iter().sum::<usize>()),
            (pictures, stream.len()),
            "{name}"
        );
    }
}

#[test]
fn packets_of_corrupt_streams_cover_the_stream_in_order() {
    for (name, file, _) in golden() {
        let mut random = 1_u64;
        for round in 0..400 {
            let mut changed = file.clone();
            for _ in 0..1 + round % 9 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (random >> 33) as usize % changed.len();
                changed[at] = [0, 1, 255, (random >> 56) as u8][(random >> 20) as usize % 4];
            }
            changed.truncate(changed.len() - round % 50);
            if name.ends_with(".ivf") {
                let packets = IvfFile::new(&changed).map(|packets| packets.collect::<Vec<_>>());
                let failed = packets.iter().flatten().filter(|packet| packet.is_err()).count();
                assert!(failed <= 1, "{name}: packets after an error");
                continue;
            }
            match AccessUnits::new(&changed, codec_of(&name)) {
                Ok(packets) => {
                    let packets: Vec<&[u8]> = packets.map(Result::unwrap).collect();
                    assert!(packets.iter().all(|packet| !packet.is_empty()), "{name}");
                    assert!(packets.concat() == changed, "{name}, round {round}");
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
            }
        }
    }
}
