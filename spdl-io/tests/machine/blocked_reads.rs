//! Reads that never end fail with the name of their file, after the default time limits.

// promise of this file: R16

use std::fs;
use std::path::Path;
use std::thread;

use spdl_core::resume::StateFile;
use spdl_io::archive::{ArchiveStamp, TarIndex, TarOptions};
use spdl_io::datasets::{FileList, WebDataset};
use spdl_io::shards::{Manifest, Sums};
use spdl_io::{Error, ErrorKind, Fetcher, Key, LocalFetcher, block_on};

use crate::contents;
use crate::own_process::OwnProcess;

/// A process in which reads below a folder `blocked` never end, and 60 s take 0.6 s.
fn process() -> Option<OwnProcess> {
    Some(OwnProcess::with_faulty_libc()?.variable("SPDL_CLOCK_FACTOR", "100"))
}

fn assert_stalled(path: &Path, error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Timeout, "{}", error.report());
    assert_eq!(error.key(), path.to_str(), "{}", error.report());
    assert!(error.report().to_string().contains("no progress"), "{}", error.report());
}

#[test]
fn a_read_without_progress_fails_with_its_key() {
    let name = "blocked_reads::a_read_without_progress_fails_with_its_key";
    let Some(process) = process() else { return };
    process.run(name, || {
        let folder = tempfile::tempdir().unwrap();
        let blocked = folder.path().join("blocked");
        fs::create_dir(&blocked).unwrap();
        let (path, other) = (blocked.join("1.jpg"), folder.path().join("2.jpg"));
        // Larger files are read by I/O threads. The page cache has this one.
        fs::write(&path, contents(1, 300_000)).unwrap();
        fs::write(&other, contents(2, 300_000)).unwrap();
        let fetcher = LocalFetcher::with_threads(1);
        let error = block_on(fetcher.read(&Key::from_path(&path), None)).unwrap_err();
        assert_stalled(&path, &error);
        // Another thread replaces the blocked one.
        let read = block_on(fetcher.read(&Key::from_path(&other), None)).unwrap();
        assert!(read == contents(2, 300_000));
    });
}

#[test]
fn reads_of_other_files_without_progress_fail_with_their_name() {
    let name = "blocked_reads::reads_of_other_files_without_progress_fail_with_their_name";
    let Some(process) = process() else { return };
    process.run(name, || {
        let folder = tempfile::tempdir().unwrap();
        let blocked = folder.path().join("blocked");
        fs::create_dir(&blocked).unwrap();
        let path = |name: &str| folder.path().join(name);
        let shard = path("a.tar");
        fs::write(&shard, [0; 1024]).unwrap();
        // An index that is older than its archive is not read.
        let file = fs::File::options().write(true).open(&shard).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        for name in ["a.tar.sums", "a.tar.idx", "manifest.json", "list.txt", "run.state"] {
            fs::write(blocked.join(name), contents(3, 5_000)).unwrap();
            std::os::unix::fs::symlink(blocked.join(name), path(name)).unwrap();
        }
        let stamp = ArchiveStamp::of_file(&shard).unwrap();
        type Read<'a> = Box<dyn FnOnce() -> Error + Send + 'a>;
        let reads: [(&str, Read<'_>); 6] = [
            ("a.tar.sums", Box::new(|| Sums::read(&shard).err().unwrap())),
            (
                "a.tar.idx",
                Box::new(|| TarIndex::load(&shard, &stamp, TarOptions::default()).err().unwrap()),
            ),
            ("manifest.json", Box::new(|| Manifest::read(folder.path()).err().unwrap())),
            ("list.txt", Box::new(|| FileList::open(path("list.txt")).err().unwrap())),
            // The index is optional, and the checksums are not.
            ("a.tar.sums", Box::new(|| WebDataset::open(shard.to_str().unwrap()).err().unwrap())),
            ("run.state", Box::new(|| StateFile::new(path("run.state")).load().err().unwrap())),
        ];
        thread::scope(|scope| {
            for (name, read) in reads {
                let path = path(name);
                scope.spawn(move || assert_stalled(&path, &read()));
            }
        });
    });
}
