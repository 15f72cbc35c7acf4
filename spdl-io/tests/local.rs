//! Tests of `LocalFetcher`: the contract of a fetcher, and local files.

#![cfg(feature = "local")]
#![expect(clippy::unwrap_used, reason = "test helpers report failures by panics")]

use std::fs;
use std::path::Path;

use futures_util::StreamExt;
use spdl_core::{ErrorKind, block_on};
use spdl_io::{Fetcher, Key, LocalFetcher, ReadRequest};

fn read_error(path: &Path) -> spdl_core::Error {
    block_on(LocalFetcher::new().read(&path.into(), None)).unwrap_err()
}

#[cfg(feature = "testing")]
// promise: DATA1
#[test]
fn local_files_satisfy_the_contract() {
    use spdl_io::testing::{contract_objects, fetcher_contract};
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in contract_objects() {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    for threads in [1, 3, LocalFetcher::DEFAULT_THREADS] {
        let fetcher = LocalFetcher::with_threads(threads);
        fetcher_contract(&fetcher, &folder.path().into());
        fetcher_contract(&fetcher.without_inline_reads(), &folder.path().into());
    }
}

/// One fetcher that reads inline from the page cache, and one that does not.
fn fetchers() -> [LocalFetcher; 2] {
    [LocalFetcher::new(), LocalFetcher::new().without_inline_reads()]
}

#[test]
fn folders_and_paths_through_a_file_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let error = read_error(folder.path());
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(error.key(), folder.path().to_str());
    assert!(error.message().contains("folder"), "{error}");

    fs::write(folder.path().join("file"), "x").unwrap();
    let error = read_error(&folder.path().join("file/below"));
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn a_nul_byte_in_a_path_is_an_error() {
    assert_eq!(read_error(Path::new("a\0b")).kind(), ErrorKind::InvalidArgument);
}

#[cfg(unix)]
#[test]
fn pipes_are_rejected_without_blocking() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.jpg");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    if !made.is_ok_and(|status| status.success()) {
        println!("SKIPPED: mkfifo is not available");
        return;
    }
    assert_eq!(read_error(&pipe).kind(), ErrorKind::InvalidArgument);
}

#[cfg(unix)]
#[test]
fn files_of_unknown_size_are_read_and_limited() {
    // The kernel reports a size of 0 bytes for such files.
    let path = Path::new("/proc/self/status");
    if !path.exists() {
        println!("SKIPPED: /proc is not available");
        return;
    }
    let fetcher = LocalFetcher::new();
    assert!(block_on(fetcher.read(&path.into(), None)).unwrap().starts_with(b"Name:"));
    let error = block_on(fetcher.read_whole(&path.into(), &10)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

#[test]
fn files_larger_than_memory_exceed_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse");
    let sparse = fs::File::create(&path).unwrap();
    if let Err(error) = sparse.set_len(1 << 43) {
        println!("SKIPPED: the file system does not support sparse files of 8 TiB: {error}");
        return;
    }
    let fetcher = LocalFetcher::new();
    let error = block_on(fetcher.read_whole(&path.as_path().into(), &(1 << 30))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    // The size limit is checked before any allocation.
    assert!(error.message().contains("at most 1073741824 are allowed"), "{error}");
    // A range of the file is readable.
    let range = block_on(fetcher.read(&path.as_path().into(), Some((1 << 42)..(1 << 42) + 10)));
    assert_eq!(range.unwrap(), [0; 10][..]);
}

#[cfg(unix)]
#[test]
fn names_that_are_not_utf8_are_read_and_listed() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(std::ffi::OsStr::from_bytes(b"\xff\xfe.jpg"));
    if let Err(error) = fs::write(&path, "content") {
        println!("SKIPPED: this file system supports only UTF-8 names: {error}");
        return;
    }
    let fetcher = LocalFetcher::new();
    assert_eq!(block_on(fetcher.read(&path.as_path().into(), None)).unwrap(), "content");
    let listed = listing(&fetcher, folder.path());
    assert_eq!(listed, [Key::from_path(&path)]);
    assert!(listed[0].to_string().ends_with(r"/\xff\xfe.jpg"), "{}", listed[0]);
}

#[cfg(unix)]
#[test]
fn listings_follow_links_except_loops_and_broken_ones() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(elsewhere.path().join("far"), "12").unwrap();
    fs::create_dir(path("in")).unwrap();
    fs::write(path("in/.near"), "1").unwrap();
    symlink(elsewhere.path(), path("out")).unwrap();
    symlink(folder.path(), path("in/circle")).unwrap();
    symlink(path("nowhere"), path("broken")).unwrap();
    let listed = listing(&LocalFetcher::new(), folder.path());
    assert_eq!(listed, [Key::from(path("in/.near")), path("out/far").into()]);
}

#[cfg(unix)]
#[test]
fn an_unreadable_file_is_permission_denied() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret.jpg");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(&path).is_ok() {
        println!("SKIPPED: running as root");
        return;
    }
    let error = read_error(&path);
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert_eq!(error.key(), path.to_str());
}

fn listing(fetcher: &LocalFetcher, folder: &Path) -> Vec<Key> {
    use futures_util::TryStreamExt;
    let objects: spdl_core::Result<Vec<_>> =
        block_on(async { fetcher.list(&folder.into()).await?.try_collect().await });
    objects.unwrap().into_iter().map(|object| object.key).collect()
}

// promise: DATA2, R15
#[test]
fn changes_during_a_streamed_read_are_detected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large");
    fs::write(&path, vec![1; 3 << 20]).unwrap();
    let fetcher = LocalFetcher::new();
    let key = Key::from_path(&path);
    let mut body = block_on(fetcher.open(&key, &ReadRequest::whole())).unwrap();
    assert_eq!(block_on(body.pieces.next()).unwrap().unwrap().len(), 1 << 20);
    fs::OpenOptions::new().append(true).open(&path).unwrap().set_len(4 << 20).unwrap();
    let error = block_on(body.pieces.next()).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
    assert_eq!(error.key(), path.to_str());

    // A file that was replaced is read to its end.
    let mut body = block_on(fetcher.open(&key, &ReadRequest::whole())).unwrap();
    drop(block_on(body.pieces.next()).unwrap().unwrap());
    let other = folder.path().join("other");
    fs::write(&other, "other").unwrap();
    fs::rename(&other, &path).unwrap();
    // The body remains readable after the fetcher is dropped.
    drop(fetcher);
    let rest = block_on(body.bytes()).unwrap();
    assert_eq!(rest.len(), 3 << 20);
}

#[test]
fn another_version_is_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "one").unwrap();
    let fetcher = LocalFetcher::new();
    let key = Key::from_path(&path);
    let version = block_on(fetcher.stat(&key)).unwrap().version.unwrap();
    let request = ReadRequest::whole().of_version(version);
    assert!(block_on(fetcher.open(&key, &request)).is_ok());
    // The same size with another modification time.
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(1);
    fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
    let error = block_on(fetcher.open(&key, &request)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
}

#[test]
fn ranges_in_any_order_have_the_right_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("numbers");
    let content: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(&path, &content).unwrap();
    let key = Key::from_path(&path);
    // Near, far, nested, repeated and empty ranges.
    let ranges = [
        300_000..300_100,
        0..5_000,
        5_600..5_603,
        9_699..20_000,
        10_000..10_001,
        0..5_000,
        399_999..400_000,
        70_000..70_000,
    ];
    for fetcher in fetchers() {
        let parts = block_on(fetcher.read_ranges(&key, &ranges)).unwrap();
        assert_eq!(parts.len(), ranges.len());
        for (part, range) in parts.iter().zip(&ranges) {
            assert_eq!(part, &content[range.start as usize..range.end as usize], "{range:?}");
        }
        let error = block_on(fetcher.read_ranges(&key, &[0..1, 399_999..400_001])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Truncated);
    }
}

#[test]
fn buffers_in_use_are_not_overwritten() {
    for fetcher in fetchers() {
        check_buffers_in_use(fetcher);
    }
}

fn check_buffers_in_use(fetcher: LocalFetcher) {
    let folder = tempfile::tempdir().unwrap();
    let key = |number: u8| Key::from_path(folder.path().join(number.to_string()));
    // Similar lengths, so that buffers are reused.
    let content = |number: u8| vec![number; 50_000 + 10 * usize::from(number)];
    for number in 0..20 {
        fs::write(key(number).to_path(), content(number)).unwrap();
    }
    let mut kept = Vec::new();
    for round in 0..10 {
        for number in 0..20 {
            let read = block_on(fetcher.read(&key(number), None)).unwrap();
            assert_eq!(read, content(number));
            // A third of the buffers stay in use, wholly or in part.
            match (usize::from(number) + round) % 3 {
                0 => kept.push((number, read)),
                1 => kept.push((number, read.slice(7..9))),
                _ => {}
            }
        }
        for (number, bytes) in &kept {
            assert!(bytes.iter().all(|byte| byte == number), "{number} in round {round}");
        }
        kept.truncate(13);
    }
    // Buffers in use outlive the fetcher.
    drop(fetcher);
    assert!(kept.iter().all(|(number, bytes)| bytes.iter().all(|byte| byte == number)));
}
