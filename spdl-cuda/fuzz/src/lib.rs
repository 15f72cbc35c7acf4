//! The fuzz targets of `spdl-cuda`.
//!
//! A finding is a panic, an error that is not about the content of the file, a gap between packets, or a
//! run that exceeds the time or memory limit of the fuzzer.

#![forbid(unsafe_code)]

use spdl_core::{Error, ErrorKind};
use spdl_cuda::video::{AccessUnits, IvfFile, VideoCodec};

/// Asserts that the kind of an error is one of those for invalid files.
fn check_kind(error: &Error) {
    let kinds = [
        ErrorKind::Corrupt,
        ErrorKind::Truncated,
        ErrorKind::Unsupported,
        ErrorKind::LimitExceeded,
    ];
    assert!(kinds.contains(&error.kind()), "{}", error.report());
}

/// A stream of H.264 or HEVC with start codes. The packets, in order, must cover the whole stream.
pub fn annexb(stream: &[u8]) {
    for codec in [VideoCodec::H264, VideoCodec::Hevc] {
        let packets = match AccessUnits::new(stream, codec) {
            Ok(packets) => packets,
            Err(error) => return check_kind(&error),
        };
        let mut at = 0;
        for packet in packets.clone() {
            let packet = packet.expect("the stream is far below the limit");
            assert!(!packet.is_empty() && stream[at..].starts_with(packet));
            at += packet.len();
        }
        assert_eq!(at, stream.len());
        let mut limited = packets.packet_bytes(16);
        match limited.find_map(Result::err) {
            Some(error) => {
                check_kind(&error);
                assert!(error.offset().is_some() && limited.next().is_none());
            }
            None => assert!(limited.next().is_none()),
        }
    }
}

/// An IVF file. Packets must be at the positions that the lengths before them give.
pub fn ivf(file: &[u8]) {
    let packets = match IvfFile::new(file) {
        Ok(packets) => packets,
        Err(error) => return check_kind(&error),
    };
    let header = usize::from(u16::from_le_bytes([file[6], file[7]]));
    let (mut at, mut failed) = (header, false);
    for packet in packets {
        assert!(!failed, "packets after an error");
        match packet {
            Ok(packet) => {
                assert_eq!(&file[at + 12..at + 12 + packet.data.len()], packet.data);
                at += 12 + packet.data.len();
            }
            Err(error) => {
                check_kind(&error);
                assert_eq!(error.offset(), Some(at as u64));
                failed = true;
            }
        }
    }
    assert!(failed || at >= file.len());
}
