//! The same on a device, where there is one.

use std::fs;

use spdl_core::{ErrorKind, Result};
use spdl_cuda::{AccessUnits, CudaDevice, IvfFile, NvDec, VideoFrame, VideoStream};

use super::streams::{codec_of, folder};
use super::stub::taken;

/// FNV-1a with 64 bits.
fn hash(bytes: &[u8]) -> String {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

fn decode(decoders: &NvDec, name: &str, file: &[u8]) -> Result<Vec<VideoFrame>> {
    let mut frames = Vec::new();
    let mut push = |video: &mut VideoStream, packet: &[u8], timestamp| {
        video.push(packet, Some(timestamp))?;
        frames.extend(taken(video));
        Ok::<(), spdl_core::Error>(())
    };
    let mut video;
    if name.ends_with(".ivf") {
        let packets = IvfFile::new(file)?;
        video = decoders.open(packets.codec())?;
        for packet in packets {
            let packet = packet?;
            push(&mut video, packet.data, packet.timestamp)?;
        }
    } else {
        video = decoders.open(codec_of(name))?;
        for (number, packet) in AccessUnits::new(file, codec_of(name))?.enumerate() {
            push(&mut video, packet?, number as i64)?;
        }
    }
    video.finish()?;
    frames.extend(taken(&mut video));
    frames.into_iter().collect()
}

#[test]
fn frames_of_a_device_are_those_of_ffmpeg_bit_by_bit() {
    let device = match CudaDevice::open(0) {
        Ok(device) => device,
        Err(error) if std::env::var_os("SPDL_REQUIRE_GPU").is_none() => {
            println!("SKIPPED: no GPU");
            return println!("{}", error.report());
        }
        Err(error) => panic!("a GPU is required: {}", error.report()),
    };
    let decoders = match NvDec::new(&device) {
        Ok(decoders) => decoders,
        Err(error) => return println!("SKIPPED: no NVDEC: {}", error.report()),
    };
    let table = fs::read_to_string(folder().join("frames.tsv")).unwrap();
    for line in table.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        let [name, width, height, _, hashes] = columns[..] else { panic!("{line}") };
        let file = fs::read(folder().join(name)).unwrap();
        let frames = match decode(&decoders, name, &file) {
            Ok(frames) => frames,
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                println!("SKIPPED: {name}: {error}");
                continue;
            }
            Err(error) => panic!("{name}: {}", error.report()),
        };
        let size = (width.parse().unwrap(), height.parse().unwrap());
        assert!(frames.iter().all(|frame| (frame.width, frame.height) == size), "{name}");
        let found: Vec<String> = frames
            .iter()
            .map(|frame| hash(&frame.memory.download(None).unwrap().wait().unwrap()))
            .collect();
        assert_eq!(found, hashes.split(' ').collect::<Vec<_>>(), "{name}");
        if name.ends_with(".ivf") {
            let timestamps = frames.iter().map(|frame| frame.timestamp);
            assert!(timestamps.eq(0..10), "{name}");
        }
    }
    println!("{:?}", decoders.statistics());
    assert!(decoders.statistics().frames >= 20, "every device decodes H.264");
}
