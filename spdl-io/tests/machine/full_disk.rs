//! A full disk of twenty sizes: a small tmpfs, mounted for one process.

// promise of this file: R25

use std::path::Path;
use std::process::Command;

use spdl_io::ErrorKind;

use crate::own_process::OwnProcess;
use crate::shards::{
    check_cache, check_shards, files, open_cache, read_through, whole_shards, write_shards,
};

/// A tmpfs on a folder with limited size and number of files.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    /// Mounts the file system. Prints a reason and returns `None` if mounting is not permitted.
    fn mount(folder: &'a Path, kib: usize, files: usize) -> Option<Self> {
        let options = format!("size={kib}k,nr_inodes={files}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder);
        match mount.output() {
            Ok(output) if output.status.success() => Some(SmallDisk(folder)),
            output => {
                println!("SKIPPED: cannot mount a file system: {output:?}");
                None
            }
        }
    }

    fn enlarge(&self) {
        let mut mount = Command::new("mount");
        mount.args(["-o", "remount,size=64m,nr_inodes=10000"]).arg(self.0);
        assert!(mount.status().unwrap().success());
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.0).status();
        assert!(std::thread::panicking() || unmounted.unwrap().success());
    }
}

/// Sizes in KiB and numbers of files.
fn sizes() -> impl Iterator<Item = (usize, usize)> {
    let by_bytes = (0..14).map(|n| (4 + n * 24, 10_000));
    // A cache has 256 folders, so file limits around that number are tested.
    by_bytes.chain([10, 100, 255, 262, 266, 280].map(|files| (65_536, files)))
}

#[test]
fn caches_on_a_full_disk_store_less_or_report_the_error() {
    let name = "full_disk::caches_on_a_full_disk_store_less_or_report_the_error";
    OwnProcess::with_mounts().run(name, || {
        let folder = tempfile::tempdir().unwrap();
        let (mut failed_count, mut unwritten) = (0, 0);
        for (kib, most_files) in sizes() {
            let Some(disk) = SmallDisk::mount(folder.path(), kib, most_files) else { return };
            let place = folder.path().join("cache");
            match open_cache(&place) {
                Ok(cache) => {
                    read_through(&cache);
                    let statistics = cache.statistics();
                    assert_eq!(statistics.damaged, 0, "{kib} KiB, {most_files} files");
                    unwritten += u32::from(statistics.unwritten > 0);
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Io, "{}", error.report());
                    assert!(error.report().contains("No space left"), "{}", error.report());
                    failed_count += 1;
                }
            }
            disk.enlarge();
            check_cache(&place);
        }
        println!("{failed_count} failed to open, {unwritten} had failed writes");
        assert!(failed_count > 0 && unwritten > 5, "{failed_count} {unwritten}");
    });
}

#[test]
fn shard_writers_resume_after_a_full_disk() {
    let name = "full_disk::shard_writers_resume_after_a_full_disk";
    OwnProcess::with_mounts().run(name, || {
        let whole = whole_shards();
        let folder = tempfile::tempdir().unwrap();
        let mut failed_count = 0;
        let sizes = (0..14).map(|n| (4 + n * 8, 10_000)).chain((1..7).map(|n| (65_536, 2 + n * 2)));
        for (kib, most_files) in sizes {
            let Some(disk) = SmallDisk::mount(folder.path(), kib, most_files) else { return };
            let place = folder.path().join("shards");
            if let Err(error) = write_shards(&place) {
                assert_eq!(error.kind(), ErrorKind::Io, "{}", error.report());
                assert!(error.report().contains("No space left"), "{}", error.report());
                failed_count += 1;
            }
            check_shards(&place, &whole);
            disk.enlarge();
            write_shards(&place).unwrap_or_else(|error| panic!("{kib}: {}", error.report()));
            assert!(files(&place) == whole, "{kib} KiB, {most_files} files");
        }
        println!("{failed_count} writes failed");
        assert!(failed_count >= 15, "{failed_count}");
    });
}
