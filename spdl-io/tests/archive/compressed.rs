//! Streams of compressed tar archives.

// promise of this file: DATA6

use std::io::Write;

use spdl_core::{Error, ErrorKind, Result};
use spdl_io::archive::{Decompress, DecompressLimits, TarFile, TarStream};

use crate::corpus::{self, Random};
use crate::tar_files::ShortReads;
use crate::tar_members::Archive;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstandard(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

type Compress = fn(&[u8]) -> Vec<u8>;
const FORMATS: [Compress; 2] = [gzip, zstandard];

fn files(compressed: &[u8], limits: DecompressLimits) -> (Vec<TarFile>, Option<Error>) {
    let stream = match Decompress::detect(ShortReads(compressed, 100), limits) {
        Ok(stream) => stream,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut files = Vec::new();
    let mut stream = TarStream::new(stream).files();
    while let Some(file) = stream.next() {
        match file {
            Ok(file) => files.push(file),
            Err(error) => {
                assert!(stream.next().is_none(), "the stream continues after {error}");
                return (files, Some(error));
            }
        }
    }
    (files, None)
}

fn sample() -> Vec<u8> {
    let mut random = Random(9);
    let noise: Vec<u8> = (0..5000).map(|_| random.next() as u8).collect();
    Archive::default().file("a", b"first").file("noise", &noise).file("b", b"last").end().0
}

#[test]
fn compressed_archives_equal_uncompressed_ones() {
    let plain = files(&sample(), DecompressLimits::default());
    assert!(plain.1.is_none());
    assert_eq!(plain.0.len(), 3);
    for compress in FORMATS {
        let (whole, error) = files(&compress(&sample()), DecompressLimits::default());
        assert_eq!((whole, error.is_none()), (plain.0.clone(), true));
        // Several gzip members, or Zstandard frames.
        let pieces: Vec<u8> = sample().chunks(1000).flat_map(compress).collect();
        let (joined, error) = files(&pieces, DecompressLimits::default());
        assert_eq!((joined, error.is_none()), (plain.0.clone(), true));
    }
}

#[test]
fn truncated_and_damaged_streams_are_errors() {
    let truth = files(&sample(), DecompressLimits::default()).0;
    for compress in FORMATS {
        let compressed = compress(&sample());
        for len in 4..compressed.len() {
            let (_, error) = files(&compressed[..len], DecompressLimits::default());
            let error = error.unwrap_or_else(|| panic!("{len} of {}", compressed.len()));
            assert_eq!(error.kind(), ErrorKind::Truncated, "{len}: {}", error.report());
            assert!(error.offset().is_some());
        }
        // Damage the checksum at the end.
        let mut damaged = compressed.clone();
        let at = damaged.len() - if compress(b"")[0] == 0x1F { 5 } else { 1 };
        damaged[at] ^= 1;
        let (read, error) = files(&damaged, DecompressLimits::default());
        assert!(read == truth[..read.len()]);
        assert_eq!(error.unwrap().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn damaged_streams_are_errors_and_never_wrong_data() {
    let truth = files(&sample(), DecompressLimits::default()).0;
    let mut random = Random(4);
    for compress in FORMATS {
        let compressed = compress(&sample());
        for number in 0..500 {
            let (read, error) =
                files(&corpus::mutant(&compressed, &mut random), DecompressLimits::default());
            let Some(error) = error else {
                // For example, a changed time in the gzip header.
                assert_eq!(read, truth, "mutant {number}");
                continue;
            };
            let kinds = [ErrorKind::Corrupt, ErrorKind::Truncated, ErrorKind::LimitExceeded];
            assert!(kinds.contains(&error.kind()), "{}", error.report());
        }
    }
}

#[test]
fn decompression_bombs_are_stopped_by_ratio_and_size() {
    // 200 MiB of zero bytes in one member.
    let mut archive = Archive::default().header(b'0', "zero", 200 << 20).0;
    archive.resize(archive.len() + (200 << 20) + 1024, 0);
    for compress in FORMATS {
        let bomb = compress(&archive);
        let refused = |limits: DecompressLimits| -> Result<()> {
            let mut stream = TarStream::new(Decompress::detect(&bomb[..], limits)?);
            while stream.next_entry()?.is_some() {}
            Ok(())
        };
        let allowed = DecompressLimits::default().max_ratio(100_000);
        assert!(refused(allowed).is_ok());
        let error = refused(DecompressLimits::default().max_ratio(100)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{}", error.report());
        let error = refused(allowed.max_bytes(100 << 20)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{}", error.report());
    }
}
