//! Videos of every codec, decoded on a device.

use spdl_core::ErrorKind;
use spdl_cuda::NvDec;

use super::device;
use crate::common::videos::{decode, expected, hash};

macro_rules! files {
    ($($name:literal),*) => {
        [$(($name, include_bytes!(concat!("../data/video/", $name)).as_slice()),)*]
    };
}

/// Compiled into the program, because it runs without the repository.
const FILES: [(&str, &[u8]); 8] = files![
    "av1.ivf",
    "b_frames_and_slices.h264",
    "cropped.hevc",
    "full_chroma.hevc",
    "no_delimiters.h264",
    "odd_sides.vp9.ivf",
    "ten_bits.hevc",
    "vp8.ivf"
];

// promise: DEV4
#[test]
fn frames_equal_those_of_ffmpeg_bit_for_bit() {
    let Some(device) = device() else { return };
    let decoders = match NvDec::new(&device) {
        Ok(decoders) => decoders,
        Err(error) => return println!("SKIPPED: no NVDEC: {}", error.report()),
    };
    let table = expected(include_str!("../data/video/frames.tsv"));
    assert_eq!(table.len(), FILES.len());
    let mut failures = Vec::new();
    for video in table {
        let name = video.name;
        let (_, file) = FILES.iter().find(|(of, _)| *of == name).unwrap();
        let frames = match decode(&decoders, name, file) {
            Ok(frames) => frames,
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                println!("SKIPPED: {name}: {error}");
                continue;
            }
            Err(error) => {
                failures.push(format!("{name}: {}", error.report()));
                continue;
            }
        };
        let found: Vec<String> = frames
            .iter()
            .map(|frame| hash(&frame.memory.download(None).unwrap().wait().unwrap()))
            .collect();
        let are_of_size = frames.iter().all(|frame| (frame.width, frame.height) == video.size);
        if found != video.hashes || !are_of_size {
            failures.push(format!("{name}: {found:?}"));
        }
        let timestamps = frames.iter().map(|frame| frame.timestamp);
        if name.ends_with(".ivf") && !timestamps.eq(0..10) {
            failures.push(format!("{name}: timestamps"));
        }
    }
    println!("{:?}", decoders.statistics());
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(decoders.statistics().frames >= 20, "every device decodes H.264");
}
