//! Tests of files with changed bytes. The result is an error of an allowed kind, or other values.

use std::panic::catch_unwind;
use std::sync::Arc;

use spdl_core::{Dataset, Error, ErrorKind, Result};
use spdl_io::records::FieldRequest;
use spdl_io::{MemoryFetcher, StoredRecord};

use super::{folder, golden, read, store};

/// The number of mutants of each file.
const MUTANTS: u64 = 600;

/// A seeded random number generator (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % below.max(1) as u64) as usize
    }
}

/// A copy of `file` with changed bytes or length.
fn mutant(file: &[u8], seed: u64) -> Vec<u8> {
    let mut numbers = Numbers(seed);
    let mut file = file.to_vec();
    for _ in 0..=numbers.next(3) {
        let at = numbers.next(file.len());
        match numbers.next(7) {
            0 => file.truncate(at),
            1 => file[at] ^= 1 << numbers.next(8),
            2 => file[at] = 0xFF,
            3 => file[at] = 0,
            4 => {
                let len = numbers.next(8).min(file.len() - at);
                file[at..at + len].fill(0xFF);
            }
            5 => {
                let from = numbers.next(file.len());
                let part = file[from..(from + 16).min(file.len())].to_vec();
                file.splice(at..at, part);
            }
            _ => file[at] = numbers.next(256) as u8,
        }
        if file.is_empty() {
            break;
        }
    }
    file
}

/// Checks the kind and key of an error of the mutant `name`.
fn check(error: &Error, name: &str) {
    let kinds = [
        ErrorKind::Corrupt,
        ErrorKind::Truncated,
        ErrorKind::Unsupported,
        ErrorKind::LimitExceeded,
        // A damaged index may name missing files.
        ErrorKind::NotFound,
    ];
    assert!(kinds.contains(&error.kind()), "{name}: {} ({:?})", error.report(), error.kind());
    assert!(error.key().is_some(), "{name}: {}", error.report());
}

/// Reads the first samples of each mutant of the file `key`.
fn check_mutants<D: Dataset<Item = StoredRecord>>(
    fetcher: &Arc<MemoryFetcher>,
    key: &str,
    open: impl Fn(&Arc<MemoryFetcher>) -> Result<D> + std::panic::RefUnwindSafe,
) {
    let file = golden(key);
    let (mut good, mut bad) = (0, 0);
    for seed in 0..MUTANTS {
        let fetcher = Arc::clone(fetcher);
        fetcher.insert(key, mutant(&file, seed));
        let name = format!("{key}, mutant {seed}");
        let run = std::panic::AssertUnwindSafe(|| {
            let samples = open(&fetcher)?;
            for index in 0..samples.len().min(12) {
                // After an error, other samples can be read.
                let result = read(&fetcher, &samples.item(index)?, &FieldRequest::all(1 << 20));
                result.inspect_err(|error| check(error, &name)).ok();
            }
            Ok::<_, Error>(())
        });
        match catch_unwind(run).unwrap_or_else(|_| panic!("{name}: a panic")) {
            Ok(()) => good += 1,
            Err(error) => {
                check(&error, &name);
                bad += 1;
            }
        }
    }
    fetcher.insert(key, file);
    assert!(good > 0 && bad > 0, "{key}: {good} mutants opened, {bad} refused");
}

#[test]
fn damaged_tfrecord_files_are_errors() {
    for key in ["tfrecord/a.tfrecord", "tfrecord/unpacked.tfrecord", "tfrecord/sequence.tfrecord"] {
        let fetcher = store(&[key]);
        check_mutants(&fetcher, key, |fetcher| super::tfrecord::open(fetcher, &[key]));
    }
}

#[test]
fn damaged_examples_are_errors() {
    // Without checksums, so that damage reaches the parser.
    let golden = golden("tfrecord/unpacked.tfrecord");
    let large = super::golden("tfrecord/a.tfrecord");
    let len = u64::from_le_bytes(*large.first_chunk().unwrap()) as usize;
    for record in [&golden[12..golden.len() - 4], &large[12..12 + len]] {
        for seed in 0..10 * MUTANTS {
            let record = mutant(record, seed).into();
            let request = FieldRequest::all(1 << 20);
            if let Err(error) = spdl_io::datasets::parse_example(&record, &request) {
                assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Truncated));
                assert!(error.offset().unwrap() <= record.len() as u64);
            }
        }
    }
}

#[test]
fn damaged_mds_shards_and_indexes_are_errors() {
    let fetcher = folder("mds/plain");
    check_mutants(&fetcher, "mds/plain/index.json", |fetcher| {
        super::mds::open(fetcher, "mds/plain")
    });
    for (name, shard) in [
        ("mds/plain", "shard.00000.mds"),
        #[cfg(feature = "zstd")]
        ("mds/zstd", "shard.00000.mds.zstd"),
        #[cfg(feature = "gzip")]
        ("mds/gz", "shard.00000.mds.gz"),
    ] {
        let fetcher = folder(name);
        let key = format!("{name}/{shard}");
        let file = golden(&key);
        for seed in 0..MUTANTS {
            fetcher.insert(key.as_str(), mutant(&file, seed));
            let samples = super::mds::open(&fetcher, name).unwrap();
            for index in 0..samples.len() {
                let item = samples.item(index).unwrap();
                if let Err(error) = read(&fetcher, &item, &FieldRequest::all(1 << 20)) {
                    check(&error, &format!("{key}, mutant {seed}"));
                    assert!(index < 3, "the other shard is undamaged");
                }
            }
        }
    }
}

/// Reads all samples of the file `key` with each byte inverted, and with each length that is a multiple of
/// `step`.
fn check_every_byte<D: Dataset<Item = StoredRecord>>(
    fetcher: &Arc<MemoryFetcher>,
    key: &str,
    step: usize,
    open: impl Fn(&Arc<MemoryFetcher>) -> Result<D>,
) {
    let file = golden(key);
    let inverted = (0..file.len()).map(|at| {
        let mut file = file.clone();
        file[at] = !file[at];
        (format!("{key}, byte {at}"), file)
    });
    let truncated = (0..file.len()).step_by(step);
    let truncated = truncated.map(|len| (format!("{key}, {len} bytes"), file[..len].to_vec()));
    for (name, mutant) in inverted.chain(truncated) {
        fetcher.insert(key, mutant);
        let opened = open(fetcher).inspect_err(|error| check(error, &name));
        for index in 0..opened.as_ref().map_or(0, Dataset::len) {
            let item = opened.as_ref().unwrap().item(index);
            let result = item.and_then(|item| read(fetcher, &item, &FieldRequest::all(1 << 20)));
            result.inspect_err(|error| check(error, &name)).ok();
        }
    }
    fetcher.insert(key, file);
}

#[test]
fn damaged_litdata_chunks_and_indexes_are_errors() {
    let fetcher = folder("litdata/plain");
    check_mutants(&fetcher, "litdata/plain/index.json", |fetcher| {
        super::litdata::open(fetcher, "litdata/plain")
    });
    for (name, chunk) in [
        ("litdata/plain", "chunk-0-0.bin"),
        #[cfg(feature = "zstd")]
        ("litdata/zstd", "chunk-0-0.zstd.bin"),
        #[cfg(feature = "zstd")]
        ("litdata/batch", "chunk-0-0.bin"),
        #[cfg(feature = "zstd")]
        ("litdata/sample", "chunk-0-0.bin"),
    ] {
        let fetcher = folder(name);
        let key = format!("{name}/{chunk}");
        check_every_byte(&fetcher, &key, 1, |fetcher| super::litdata::open(fetcher, name));
    }
}

#[test]
fn damaged_recordio_files_are_errors() {
    for key in ["recordio/a.rec", "recordio/labels.rec"] {
        let fetcher = store(&[key]);
        let open = |fetcher: &Arc<MemoryFetcher>| super::recordio::open(fetcher, &[key]);
        check_mutants(&fetcher, key, open);
        check_every_byte(&fetcher, key, 1, open);
    }
    let fetcher = store(&["recordio/a.rec", "recordio/a.idx"]);
    let open = |fetcher: &Arc<MemoryFetcher>| super::recordio::open(fetcher, &["recordio/a.rec"]);
    check_every_byte(&fetcher, "recordio/a.idx", 1, open);
}

#[test]
fn damaged_lmdb_files_are_errors() {
    for key in ["lmdb/files/data.mdb", "lmdb/pairs/data.mdb", "lmdb/plain.lmdb"] {
        let fetcher = store(&[key]);
        let open = |fetcher: &Arc<MemoryFetcher>| super::lmdb::open(fetcher, &[key]);
        check_mutants(&fetcher, key, open);
        // The file of one leaf page.
        if key == "lmdb/plain.lmdb" {
            check_every_byte(&fetcher, key, 61, open);
        }
    }
}

#[cfg(feature = "parquet")]
#[test]
fn damaged_parquet_files_are_errors() {
    for name in ["images", "none", "snappy", "zstd", "gzip", "lz4", "brotli", "v2", "delta"] {
        let key = format!("parquet/{name}.parquet");
        let fetcher = store(&[&key]);
        check_mutants(&fetcher, &key, |fetcher| super::parquet::open(fetcher, &[&key]));
    }
}
