//! What the fuzz targets of `spdl-cuda` do with the bytes that they are given.
//!
//! A finding is a panic, an error of a kind that blames the caller, packets that are not all of the
//! stream, or a run beyond the time and memory that the fuzzer allows.

#![forbid(unsafe_code)]

use spdl_core::{Error, ErrorKind};
use spdl_cuda::video::{AccessUnits, IvfFile, VideoCodec};

/// Damage is told by one of four kinds.
fn check(error: &Error) {
    let kinds = [
        ErrorKind::Corrupt,
        ErrorKind::Truncated,
        ErrorKind::Unsupported,
        ErrorKind::LimitExceeded,
    ];
    assert!(kinds.contains(&error.kind()), "{}", error.report());
}

/// A stream of H.264 or HEVC with start codes: its packets are all of it, in order.
pub fn annexb(stream: &[u8]) {
    for codec in [VideoCodec::H264, VideoCodec::Hevc] {
        let packets = match AccessUnits::new(stream, codec) {
            Ok(packets) => packets,
            Err(error) => return check(&error),
        };
        let mut at = 0;
        for packet in packets.clone() {
            let packet = packet.expect("it is far below the limit");
            assert!(!packet.is_empty() && stream[at..].starts_with(packet));
            at += packet.len();
        }
        assert_eq!(at, stream.len());
        let mut limited = packets.packet_bytes(16);
        match limited.find_map(Result::err) {
            Some(error) => {
                check(&error);
                assert!(error.offset().is_some() && limited.next().is_none());
            }
            None => assert!(limited.next().is_none()),
        }
    }
}

/// An IVF file: its packets lie where their lengths say.
pub fn ivf(file: &[u8]) {
    let packets = match IvfFile::new(file) {
        Ok(packets) => packets,
        Err(error) => return check(&error),
    };
    let header = usize::from(u16::from_le_bytes([file[6], file[7]]));
    let (mut at, mut failed) = (header, false);
    for packet in packets {
        assert!(!failed, "something comes behind an error");
        match packet {
            Ok(packet) => {
                assert_eq!(&file[at + 12..at + 12 + packet.data.len()], packet.data);
                at += 12 + packet.data.len();
            }
            Err(error) => {
                check(&error);
                assert_eq!(error.offset(), Some(at as u64));
                failed = true;
            }
        }
    }
    assert!(failed || at >= file.len());
}
