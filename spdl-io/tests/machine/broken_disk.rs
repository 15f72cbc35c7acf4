//! Disk errors: each read, and each change of a file, fails in turn.

// promise of this file: R25

use std::fs;
use std::path::Path;

use spdl_io::{ErrorKind, Fetcher, Key, LocalFetcher, block_on};

use crate::contents;
use crate::own_process::OwnProcess;
use crate::shards::{
    check_cache, check_shards, files, open_cache, read_through, whole_shards, write_shards,
};

/// Upper bound of the number of calls.
const MAX_CALLS: usize = 900;

fn read(fetcher: &LocalFetcher, path: &Path) -> spdl_io::Result<bytes::Bytes> {
    block_on(fetcher.read(&Key::from_path(path), None))
}

#[test]
fn a_failed_read_affects_only_its_file() {
    let name = "broken_disk::a_failed_read_affects_only_its_file";
    let Some(process) = OwnProcess::with_faulty_libc() else { return };
    process.run(name, || {
        let folder = tempfile::tempdir().unwrap();
        for number in 1..=20 {
            let place = folder.path().join(format!("read-{number}"));
            fs::create_dir(&place).unwrap();
            let paths: Vec<_> = (0..25).map(|file| place.join(file.to_string())).collect();
            for (file, path) in paths.iter().enumerate() {
                fs::write(path, contents(file, 5_000)).unwrap();
            }
            let fetcher = LocalFetcher::new().without_inline_reads();
            let mut failed = 0;
            for (file, path) in paths.iter().enumerate() {
                match read(&fetcher, path) {
                    Ok(bytes) => assert!(bytes == contents(file, 5_000)),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Io, "{}", error.report());
                        assert_eq!(error.key(), path.to_str(), "{}", error.report());
                        assert!(error.report().contains("Input/output error"), "{error}");
                        failed += 1;
                    }
                }
            }
            assert_eq!(failed, 1, "read {number}");
        }
    });
}

#[test]
fn unreadable_bytes_are_an_error() {
    // A regular file of size 0. The system cannot read its first bytes.
    for fetcher in [LocalFetcher::new(), LocalFetcher::new().without_inline_reads()] {
        let error = read(&fetcher, Path::new("/proc/self/mem")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{}", error.report());
    }
}

#[test]
fn caches_recover_from_io_errors() {
    let name = "broken_disk::caches_recover_from_io_errors";
    let Some(process) = OwnProcess::with_faulty_libc() else { return };
    process.run(name, || {
        let folder = tempfile::tempdir().unwrap();
        let (mut failed_count, mut unwritten) = (0, 0);
        // The first 258 changes create folders. Later ones write entries.
        for number in (1..=3).chain(258..278) {
            let place = folder.path().join(format!("write-{number}/cache"));
            fs::create_dir(place.parent().unwrap()).unwrap();
            match open_cache(&place) {
                Ok(cache) => {
                    read_through(&cache);
                    unwritten += cache.statistics().unwritten;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Io, "{}", error.report());
                    failed_count += 1;
                }
            }
            check_cache(&place);
        }
        println!("{failed_count} failed to open, {unwritten} entries were not written");
        assert!(failed_count >= 3 && unwritten >= 10, "{failed_count} {unwritten}");
        for number in 1..=20 {
            let place = folder.path().join(format!("read-{number}/cache"));
            fs::create_dir(place.parent().unwrap()).unwrap();
            let cache = open_cache(&place).unwrap_or_else(|error| panic!("{}", error.report()));
            read_through(&cache);
            drop(cache);
            check_cache(&place);
        }
    });
}

#[test]
fn shard_writers_resume_after_any_io_error() {
    let name = "broken_disk::shard_writers_resume_after_any_io_error";
    let Some(process) = OwnProcess::with_faulty_libc() else { return };
    process.run(name, || {
        let whole = whole_shards();
        let folder = tempfile::tempdir().unwrap();
        let mut failed_count = 0;
        for number in 1..MAX_CALLS {
            let place = folder.path().join(format!("write-{number}/shards"));
            fs::create_dir(place.parent().unwrap()).unwrap();
            let written = write_shards(&place);
            check_shards(&place, &whole);
            if let Err(error) = written {
                assert_eq!(error.kind(), ErrorKind::Io, "{}", error.report());
                failed_count += 1;
                write_shards(&place).unwrap_or_else(|error| panic!("{}", error.report()));
            } else if number > 200 {
                // All calls have failed once.
                break;
            }
            assert!(files(&place) == whole, "call {number}");
        }
        println!("{failed_count} calls failed");
        assert!((20..MAX_CALLS - 1).contains(&failed_count), "{failed_count}");
    });
}
