//! The limit of open files.

// promise of this file: R25

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use spdl_io::testing::FaultServer;
use spdl_io::{
    ErrorKind, Fetcher, HttpFetcher, Key, LocalFetcher, Resilient, ResilientOptions, SourceOptions,
    block_on,
};
use std::sync::Arc;

use crate::contents;
use crate::own_process::{OwnProcess, is_test_process};

/// Lengths of the files. Some exceed the limit of inline reads.
fn len(number: usize) -> usize {
    if number.is_multiple_of(200) { 300_000 } else { number * 37 % 2_000 }
}

fn path(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("{number:05}"))
}

fn files(folder: &Path, count: usize) {
    for number in 0..count {
        fs::write(path(folder, number), contents(number, len(number))).unwrap();
    }
}

/// Reads all files concurrently, wholly or their second half.
fn read_all(fetcher: &LocalFetcher, folder: &Path, count: usize) {
    let reads = stream::iter(0..count).map(|number| async move {
        let key = Key::from_path(path(folder, number));
        let (bytes, half) = (contents(number, len(number)), len(number) / 2);
        let is_part = number % 3 == 0;
        let range = is_part.then_some(half as u64..bytes.len() as u64);
        let read = fetcher.read(&key, range).await;
        let read = read.unwrap_or_else(|error| panic!("{}", error.report()));
        assert!(read == if is_part { bytes.slice(half..) } else { bytes }, "{number}");
    });
    block_on(reads.buffer_unordered(256).for_each(|()| async {}));
}

/// Opens files up to the limit, then closes `free` of them.
fn leave_free(free: usize) -> Vec<File> {
    let mut held: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    held.truncate(held.len() - free);
    held
}

fn fetchers() -> [LocalFetcher; 3] {
    [
        LocalFetcher::new(),
        LocalFetcher::new().without_inline_reads(),
        LocalFetcher::with_threads(40).without_inline_reads(),
    ]
}

#[test]
fn ten_thousand_files_are_read_with_64_descriptors() {
    let name = "open_files::ten_thousand_files_are_read_with_64_descriptors";
    OwnProcess::with_limit("-n 64").run(name, || {
        let folder = tempfile::tempdir().unwrap();
        files(folder.path(), 10_000);
        for fetcher in fetchers() {
            read_all(&fetcher, folder.path(), 10_000);
        }
    });
}

#[test]
fn files_are_read_with_few_free_descriptors() {
    let name = "open_files::files_are_read_with_few_free_descriptors";
    OwnProcess::with_limit("-n 64").run(name, || {
        let folder = tempfile::tempdir().unwrap();
        files(folder.path(), 300);
        for free in 1..=20 {
            let held = leave_free(free);
            for fetcher in fetchers() {
                read_all(&fetcher, folder.path(), 300);
            }
            drop(held);
        }
    });
}

#[test]
fn without_free_descriptors_reads_fail_until_one_is_closed() {
    let name = "open_files::without_free_descriptors_reads_fail_until_one_is_closed";
    OwnProcess::with_limit("-n 64").run(name, || {
        let folder = tempfile::tempdir().unwrap();
        files(folder.path(), 2);
        for fetcher in fetchers() {
            let held = leave_free(0);
            let start = Instant::now();
            let key = Key::from_path(path(folder.path(), 1));
            let error = block_on(fetcher.read(&key, None)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report());
            assert!(error.message().contains("too many open files"), "{error}");
            assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
            drop(held);
            read_all(&fetcher, folder.path(), 2);
        }
    });
}

#[test]
fn reads_wait_for_a_free_descriptor() {
    let name = "open_files::reads_wait_for_a_free_descriptor";
    OwnProcess::with_limit("-n 64").run(name, || {
        let folder = tempfile::tempdir().unwrap();
        files(folder.path(), 30);
        for fetcher in fetchers() {
            let held = leave_free(0);
            let soon = thread::spawn(move || {
                thread::sleep(Duration::from_millis(300));
                drop(held);
            });
            read_all(&fetcher, folder.path(), 30);
            soon.join().unwrap();
        }
    });
}

#[test]
fn cached_files_are_closed_for_other_reads() {
    let name = "open_files::cached_files_are_closed_for_other_reads";
    OwnProcess::with_limit("-n 64").run(name, || {
        let folder = tempfile::tempdir().unwrap();
        files(folder.path(), 40);
        let fetcher = LocalFetcher::new();
        for number in 1..17 {
            let key = Key::from_path(path(folder.path(), number));
            block_on(fetcher.read(&key, Some(0..1))).unwrap();
        }
        let held = leave_free(0);
        let start = Instant::now();
        let error = block_on(async {
            // The long file is read by an I/O thread.
            fetcher.read(&Key::from_path(path(folder.path(), 0)), None).await.err()
        });
        assert!(error.is_none(), "{}", error.unwrap().report());
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        drop(held);
    });
}

/// Returns whether a fetcher keeps a file open after a partial read.
fn keeps_open(fetcher: &LocalFetcher, path: &Path) -> bool {
    // After a miss, the next inline reads are skipped.
    for _ in 0..20 {
        block_on(fetcher.read(&Key::from_path(path), Some(0..1))).unwrap();
    }
    let open = fs::read_dir("/proc/self/fd").unwrap();
    open.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|open| open == path))
}

#[test]
fn failed_file_system_lookups_are_repeated() {
    let name = "open_files::failed_file_system_lookups_are_repeated";
    OwnProcess::with_limit("-n 64").run(name, || {
        let folder = tempfile::tempdir().unwrap();
        files(folder.path(), 3);
        if !keeps_open(&LocalFetcher::new(), &path(folder.path(), 1)) {
            return println!("SKIPPED: this file system does not support non-blocking reads");
        }
        let fetcher = LocalFetcher::new();
        let held = leave_free(1);
        block_on(fetcher.read(&Key::from_path(path(folder.path(), 1)), None)).unwrap();
        drop(held);
        assert!(keeps_open(&fetcher, &path(folder.path(), 2)));
    });
}

#[test]
fn folders_are_listed_with_64_descriptors() {
    let name = "open_files::folders_are_listed_with_64_descriptors";
    OwnProcess::with_limit("-n 64").run(name, || {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..600 {
            let below = folder.path().join(format!("{}/{}", number / 20, number));
            fs::create_dir_all(&below).unwrap();
            fs::write(below.join("a"), b"a").unwrap();
        }
        let fetcher = LocalFetcher::new();
        let entries = block_on(async {
            let entries = fetcher.list(&Key::from_path(folder.path())).await.unwrap();
            entries.collect::<Vec<_>>().await
        });
        assert_eq!(entries.into_iter().map(Result::unwrap).count(), 600);
    });
}

const SERVER: &str = "SPDL_TEST_SERVER";

#[test]
fn connections_are_retried_without_free_descriptors() {
    let name = "open_files::connections_are_retried_without_free_descriptors";
    // The server runs in the parent process, with separate descriptors.
    let objects = (0..50).map(|n| (n.to_string(), contents(n, 10_000)));
    let server = (!is_test_process()).then(|| FaultServer::start(objects));
    let url = server.as_ref().map(FaultServer::url).unwrap_or_default();
    OwnProcess::with_limit("-n 64").variable(SERVER, url).run(name, || {
        let url = std::env::var(SERVER).unwrap();
        for free in 0..20 {
            // Creating the fetcher reads the root certificates.
            let http = HttpFetcher::new(&url, &SourceOptions::default()).unwrap();
            let patience = ResilientOptions::default()
                .attempts(100)
                .budget(Duration::from_secs(5))
                .first_delay(Duration::from_millis(5))
                .most_delay(Duration::from_millis(50))
                .retry_tokens(10_000.0);
            let fetcher = Resilient::new(Arc::new(http.clone()), patience).unwrap();
            let held = leave_free(free);
            if free == 0 {
                let error = block_on(http.read(&"0".into(), None)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report());
                assert!(error.report().contains("Too many open files"), "{}", error.report());
            }
            let soon = thread::spawn(move || {
                thread::sleep(Duration::from_millis(300));
                drop(held);
            });
            let reads = stream::iter(0..50).map(|n| {
                let fetcher = &fetcher;
                async move {
                    let read = fetcher.read(&Key::from(n.to_string()), None).await;
                    let read = read.unwrap_or_else(|error| panic!("{free}: {}", error.report()));
                    assert!(read == contents(n, 10_000), "{free}: {n}");
                }
            });
            block_on(reads.buffer_unordered(30).for_each(|()| async {}));
            soon.join().unwrap();
        }
    });
}
