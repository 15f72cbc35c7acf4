//! A disk that fails: each read, and each change of a file, in turn.

// promise of this file: R25

use std::fs;
use std::path::Path;

use spdl_io::{ErrorKind, Fetcher, Key, LocalFetcher, block_on};

use crate::contents;
use crate::own_process::OwnProcess;
use crate::shards::{
    check_cache, check_shards, files, open_cache, read_through, whole_shards, write_shards,
};

/// Far more calls than there are.
const MOST: usize = 900;

fn read(fetcher: &LocalFetcher, path: &Path) -> spdl_io::Result<bytes::Bytes> {
    block_on(fetcher.read(&Key::from_path(path), None))
}

#[test]
fn a_read_that_fails_is_an_error_that_names_the_file_and_no_other_read_fails() {
    let name =
        "broken_disk::a_read_that_fails_is_an_error_that_names_the_file_and_no_other_read_fails";
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
fn bytes_that_the_system_cannot_read_are_an_error() {
    // A regular file of no length, of which the system reads nothing at its start.
    for fetcher in [LocalFetcher::new(), LocalFetcher::new().without_inline_reads()] {
        let error = read(&fetcher, Path::new("/proc/self/mem")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{}", error.report());
    }
}

#[test]
fn a_cache_whose_files_fail_now_and_then_gives_no_wrong_byte_and_is_well_again() {
    let name =
        "broken_disk::a_cache_whose_files_fail_now_and_then_gives_no_wrong_byte_and_is_well_again";
    let Some(process) = OwnProcess::with_faulty_libc() else { return };
    process.run(name, || {
        let folder = tempfile::tempdir().unwrap();
        let (mut refused, mut unwritten) = (0, 0);
        // The first 258 changes make folders; those that follow are of entries.
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
                    refused += 1;
                }
            }
            check_cache(&place);
        }
        println!("{refused} times it was refused, {unwritten} entries were not kept");
        assert!(refused >= 3 && unwritten >= 10, "{refused} {unwritten}");
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
fn shards_are_gone_on_with_after_the_failure_of_any_call_that_writes_them() {
    let name =
        "broken_disk::shards_are_gone_on_with_after_the_failure_of_any_call_that_writes_them";
    let Some(process) = OwnProcess::with_faulty_libc() else { return };
    process.run(name, || {
        let whole = whole_shards();
        let folder = tempfile::tempdir().unwrap();
        let mut refused = 0;
        for number in 1..MOST {
            let place = folder.path().join(format!("write-{number}/shards"));
            fs::create_dir(place.parent().unwrap()).unwrap();
            let written = write_shards(&place);
            check_shards(&place, &whole);
            if let Err(error) = written {
                assert_eq!(error.kind(), ErrorKind::Io, "{}", error.report());
                refused += 1;
                write_shards(&place).unwrap_or_else(|error| panic!("{}", error.report()));
            } else if number > 200 {
                // So many calls there are not.
                break;
            }
            assert!(files(&place) == whole, "call {number}");
        }
        println!("{refused} calls failed");
        assert!((20..MOST - 1).contains(&refused), "{refused}");
    });
}
