//! Slow reads, and reads that never end.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all, select_all};
use spdl_io::{ErrorKind, Fetcher, Key, LocalFetcher, block_on};

use crate::contents;
use crate::own_process::OwnProcess;

#[test]
fn slow_reads_delay_neither_other_reads_nor_the_drop() {
    let name = "slow_disk::slow_reads_delay_neither_other_reads_nor_the_drop";
    let Some(process) = OwnProcess::with_faulty_libc() else { return };
    process.run(name, || {
        let folder = tempfile::tempdir().unwrap();
        let [slow, fast] = ["slow", "fast"].map(|name| folder.path().join(name));
        for place in [&slow, &fast] {
            fs::create_dir(place).unwrap();
            for file in 0..20 {
                fs::write(place.join(file.to_string()), contents(file, 1_000)).unwrap();
            }
        }
        let key =
            |place: &std::path::Path, file: usize| Key::from_path(place.join(file.to_string()));
        for count in [1, 2, 3, 5, 8, 20] {
            let fetcher = LocalFetcher::with_threads(count + 1).without_inline_reads();
            let start = Instant::now();
            let slow_keys: Vec<Key> = (0..count).map(|file| key(&slow, file)).collect();
            let slow_reads = join_all(slow_keys.iter().enumerate().map(|(file, key)| {
                let read = fetcher.read(key, None);
                async move { (read.await.unwrap() == contents(file, 1_000), start.elapsed()) }
            }));
            let fast_reads = async {
                for file in 0..20 {
                    let read = fetcher.read(&key(&fast, file), None).await.unwrap();
                    assert!(read == contents(file, 1_000));
                }
                start.elapsed()
            };
            let (slow_reads, fast) = block_on(join(slow_reads, fast_reads));
            let soonest = slow_reads.iter().map(|(_, time)| *time).min().unwrap();
            assert!(slow_reads.iter().all(|(is_right, _)| *is_right));
            assert!(soonest >= Duration::from_millis(700), "{soonest:?}");
            assert!(fast < soonest, "{count}: {fast:?} after {soonest:?}");
        }
        // A read in flight is detached.
        let fetcher = LocalFetcher::new().without_inline_reads();
        let keys = [key(&slow, 0), key(&fast, 0)];
        let reads = keys.each_ref().map(|key| fetcher.read(key, None));
        drop(block_on(select_all(reads)));
        let start = Instant::now();
        drop(fetcher);
        assert!(start.elapsed() < Duration::from_millis(650), "{:?}", start.elapsed());
    });
}

#[test]
fn pipes_are_rejected_without_blocking() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    if !made.is_ok_and(|it| it.success()) {
        return println!("SKIPPED: mkfifo is not available");
    }
    for fetcher in [LocalFetcher::new(), LocalFetcher::with_threads(1).without_inline_reads()] {
        let start = Instant::now();
        let error = block_on(fetcher.read(&Key::from_path(&pipe), None)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{}", error.report());
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
}
