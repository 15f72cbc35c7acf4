//! A disk without room, of twenty sizes: a small file system in memory, mounted for one process.

// promise of this file: R25

use std::path::Path;
use std::process::Command;

use spdl_io::ErrorKind;

use crate::own_process::OwnProcess;
use crate::shards::{
    check_cache, check_shards, files, open_cache, read_through, whole_shards, write_shards,
};

/// A file system of so many KiB, with so many files, over a folder.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    /// `None`, with the reason said, where it cannot be mounted.
    fn mount(folder: &'a Path, kib: usize, files: usize) -> Option<Self> {
        let options = format!("size={kib}k,nr_inodes={files}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder);
        match mount.output() {
            Ok(output) if output.status.success() => Some(SmallDisk(folder)),
            output => {
                println!("SKIPPED: nothing can be mounted here: {output:?}");
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

/// KiB, and numbers of files.
fn sizes() -> impl Iterator<Item = (usize, usize)> {
    let by_bytes = (0..14).map(|n| (4 + n * 24, 10_000));
    // A cache has 256 folders.
    by_bytes.chain([10, 100, 255, 262, 266, 280].map(|files| (65_536, files)))
}

#[test]
fn a_cache_on_a_full_disk_keeps_less_or_says_why_it_cannot_be_opened() {
    let name = "full_disk::a_cache_on_a_full_disk_keeps_less_or_says_why_it_cannot_be_opened";
    OwnProcess::with_mounts().run(name, || {
        let folder = tempfile::tempdir().unwrap();
        let (mut refused, mut unwritten) = (0, 0);
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
                    refused += 1;
                }
            }
            disk.enlarge();
            check_cache(&place);
        }
        println!("{refused} times it was refused, {unwritten} times it kept less");
        assert!(refused > 0 && unwritten > 5, "{refused} {unwritten}");
    });
}

#[test]
fn shards_on_a_full_disk_are_an_error_and_are_gone_on_with_when_there_is_room() {
    let name =
        "full_disk::shards_on_a_full_disk_are_an_error_and_are_gone_on_with_when_there_is_room";
    OwnProcess::with_mounts().run(name, || {
        let whole = whole_shards();
        let folder = tempfile::tempdir().unwrap();
        let mut refused = 0;
        let sizes = (0..14).map(|n| (4 + n * 8, 10_000)).chain((1..7).map(|n| (65_536, 2 + n * 2)));
        for (kib, most_files) in sizes {
            let Some(disk) = SmallDisk::mount(folder.path(), kib, most_files) else { return };
            let place = folder.path().join("shards");
            if let Err(error) = write_shards(&place) {
                assert_eq!(error.kind(), ErrorKind::Io, "{}", error.report());
                assert!(error.report().contains("No space left"), "{}", error.report());
                refused += 1;
            }
            check_shards(&place, &whole);
            disk.enlarge();
            write_shards(&place).unwrap_or_else(|error| panic!("{kib}: {}", error.report()));
            assert!(files(&place) == whole, "{kib} KiB, {most_files} files");
        }
        println!("{refused} times it was refused");
        assert!(refused >= 15, "{refused}");
    });
}
