//! Reads of what the system has in its memory already, on the thread that asks for it.
//!
//! Handing a read to another thread and being woken by it takes longer than copying a small file out
//! of the page cache. Linux tells a read that would have to wait from one that would not: a path is
//! looked up, and bytes are copied, only where both are in memory (`RESOLVE_CACHED` of openat2(2),
//! `RWF_NOWAIT` of preadv2(2)). That holds on file systems of disks; those of networks, and those that
//! a process serves, may wait all the same. What would wait, and whatever is unusual, is left to the
//! threads.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::read_buffers::ReadBuffers;
use crate::fetch::Key;
use crate::fetch::coalesce::Joined;

/// More bytes are left to the threads, so that nobody else waits long for the thread that asks.
pub(crate) const MOST: u64 = 256 << 10;
/// What took longer had to wait after all.
const TOO_LONG: Duration = Duration::from_millis(1);
/// So many files stay open of which parts were read, as shards are read again and again.
#[cfg(target_os = "linux")]
const MOST_OPEN: usize = 16;
/// After many misses one read in so many is tried.
const LONGEST_REST: u32 = 1024;

/// Reads that do not wait, as long as they succeed: after misses, fewer and fewer are tried.
#[derive(Debug, Default)]
pub(crate) struct ReadAtOnce {
    /// Misses since the last success.
    misses: AtomicU32,
    /// So many reads are not tried.
    rest: AtomicU32,
    files: system::Files,
}

/// What tells a file from what it was before.
pub(crate) struct FileStamp {
    /// In bytes.
    pub(crate) size: u64,
    /// In nanoseconds since 1970.
    pub(crate) changed: i128,
}

/// What became of a read.
enum Attempt<T> {
    Read(T),
    /// There is no use in trying, which says nothing of the next one.
    TooLong,
    /// It would wait, or is unusual.
    Missed,
}

impl ReadAtOnce {
    /// A whole file of at most `max_bytes`; `None` where the threads must look.
    pub(crate) fn whole(&self, key: &Key, max_bytes: u64, buffers: &ReadBuffers) -> Option<Bytes> {
        self.attempt(|| self.files.whole(key, max_bytes.min(MOST), buffers))
    }

    /// Parts of one file; `None` where the threads must look.
    pub(crate) fn parts(
        &self,
        key: &Key,
        joined: &[Joined],
        buffers: &ReadBuffers,
    ) -> Option<Vec<Bytes>> {
        let lengths = joined.iter().map(|joined| joined.range.end - joined.range.start);
        let bytes = lengths.fold(0, u64::saturating_add);
        if bytes > MOST {
            return None;
        }
        self.attempt(|| {
            let ranges = joined.iter().map(|joined| joined.range.clone());
            self.files.ranges(key, ranges, buffers)
        })
    }

    /// How long a file is, and when it was changed; `None` where the threads must look.
    pub(crate) fn stat(&self, key: &Key) -> Option<FileStamp> {
        self.attempt(|| self.files.stat(key))
    }

    /// Closes the files that are kept open; those that are being read from, after that.
    pub(crate) fn close_all(&self) {
        self.files.close_all();
    }

    fn attempt<T>(&self, read: impl FnOnce() -> Attempt<T>) -> Option<T> {
        // Threads that meet here may try one read more or less, which does not matter.
        let rest = self.rest.load(Ordering::Relaxed);
        if rest > 0 {
            self.rest.store(rest - 1, Ordering::Relaxed);
            return None;
        }
        let started = Instant::now();
        let read = read();
        match &read {
            Attempt::Read(_) if started.elapsed() <= TOO_LONG => {
                self.misses.store(0, Ordering::Relaxed);
            }
            Attempt::TooLong => {}
            Attempt::Read(_) | Attempt::Missed => {
                let misses = self.misses.load(Ordering::Relaxed);
                self.misses.store(misses.saturating_add(1), Ordering::Relaxed);
                let rest = 1_u32.checked_shl(misses).unwrap_or(LONGEST_REST);
                self.rest.store(rest.min(LONGEST_REST), Ordering::Relaxed);
            }
        }
        if let Attempt::Read(value) = read { Some(value) } else { None }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::collections::HashMap;
    use std::io::IoSliceMut;
    use std::ops::Range;
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use std::sync::{Arc, Mutex, PoisonError};

    use bytes::Bytes;
    use rustix::fs::{
        AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx,
    };
    use rustix::io::{ReadWriteFlags, preadv2};

    use super::{Attempt, FileStamp, MOST_OPEN};
    use crate::fetch::Key;
    use crate::stores::local::read_buffers::ReadBuffers;

    /// File systems that wait for nothing but their disk, and say so.
    const OF_DISKS: [&str; 9] =
        ["bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs"];

    type Device = (u32, u32);

    #[derive(Debug, Default)]
    pub(super) struct Files {
        /// Those of which parts were read, the last one first.
        open: Mutex<Vec<OpenFile>>,
        /// Whether the file system of a device is one of disks.
        devices: Mutex<HashMap<Device, bool>>,
    }

    #[derive(Clone, Debug)]
    struct OpenFile {
        key: Key,
        identity: Identity,
        file: Arc<OwnedFd>,
    }

    /// Another file of that name, and one that was changed, has another one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Identity {
        device: Device,
        inode: u64,
        size: u64,
        changed: (i64, u32),
    }

    impl Files {
        pub(super) fn stat(&self, key: &Key) -> Attempt<FileStamp> {
            let found = self.regular(&key.to_path());
            found.map_or(Attempt::Missed, |Identity { size, changed: (seconds, rest), .. }| {
                let changed = i128::from(seconds) * 1_000_000_000 + i128::from(rest);
                Attempt::Read(FileStamp { size, changed })
            })
        }

        pub(super) fn whole(&self, key: &Key, most: u64, buffers: &ReadBuffers) -> Attempt<Bytes> {
            let path = key.to_path();
            let Some(Identity { size, .. }) = self.regular(&path) else { return Attempt::Missed };
            if size >= most {
                return Attempt::TooLong;
            }
            // One byte more, to see that it has not grown.
            let bytes = open(&path).and_then(|file| read(&file, 0, size + 1, buffers));
            match bytes.filter(|bytes| bytes.len() as u64 == size) {
                Some(bytes) => Attempt::Read(bytes),
                None => Attempt::Missed,
            }
        }

        pub(super) fn ranges(
            &self,
            key: &Key,
            mut ranges: impl Iterator<Item = Range<u64>>,
            buffers: &ReadBuffers,
        ) -> Attempt<Vec<Bytes>> {
            let Some((file, size)) = self.file(key) else { return Attempt::Missed };
            let parts = ranges.try_fold(Vec::new(), |mut parts, Range { start, end }| {
                let wanted = end.checked_sub(start).filter(|_| end <= size)?;
                let bytes = read(&file, start, wanted, buffers)?;
                let is_all = bytes.len() as u64 == wanted;
                parts.push(bytes);
                is_all.then_some(parts)
            });
            parts.map_or(Attempt::Missed, Attempt::Read)
        }

        /// The file, and its size.
        fn file(&self, key: &Key) -> Option<(Arc<OwnedFd>, u64)> {
            let path = key.to_path();
            let found = self.regular(&path);
            if let Some(file) = self.known(key, found) {
                return Some((file, found?.size));
            }
            let identity = found?;
            let file = Arc::new(open(&path)?);
            // It may have become another one since.
            if self.regular(&path)? == identity {
                let entry = OpenFile { key: key.clone(), identity, file: Arc::clone(&file) };
                let mut open = lock(&self.open);
                let known = open.iter().position(|open| open.key == *key);
                let replaced = known.map(|place| open.remove(place));
                open.insert(0, entry);
                let most = open.len().min(MOST_OPEN);
                let oldest = open.split_off(most);
                drop(open);
                // Closing one may wait, and nobody for that.
                drop((replaced, oldest));
            }
            Some((file, identity.size))
        }

        /// The file that is open already, where it is still this one.
        fn known(&self, key: &Key, found: Option<Identity>) -> Option<Arc<OwnedFd>> {
            let mut open = lock(&self.open);
            let place = open.iter().position(|open| open.key == *key)?;
            if found == Some(open[place].identity) {
                open[..=place].rotate_right(1);
                return Some(Arc::clone(&open[0].file));
            }
            // What is kept open holds its place on the disk, though it was removed.
            let old = open.remove(place);
            drop(open);
            drop(old);
            None
        }

        pub(super) fn close_all(&self) {
            let closed = std::mem::take(&mut *lock(&self.open));
            drop(closed);
        }

        /// What a path leads to, where that is a file on a disk; looked at without opening it, as
        /// that alone may do something to what is no file.
        fn regular(&self, path: &Path) -> Option<Identity> {
            let how = OFlags::PATH | OFlags::CLOEXEC;
            let place = openat2(CWD, path, how, Mode::empty(), ResolveFlags::CACHED).ok()?;
            let wanted = StatxFlags::TYPE | StatxFlags::SIZE | StatxFlags::INO | StatxFlags::MTIME;
            let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            let found = statx(&place, "", how, wanted).ok()?;
            let device = (found.stx_dev_major, found.stx_dev_minor);
            let is_file = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
            (is_file && self.is_of_disks(device)).then_some(Identity {
                device,
                inode: found.stx_ino,
                size: found.stx_size,
                changed: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
            })
        }

        fn is_of_disks(&self, device: Device) -> bool {
            let mut devices = lock(&self.devices);
            if let Some(&is_of_disks) = devices.get(&device) {
                return is_of_disks;
            }
            // What cannot be looked at now, as too many files are open, is not remembered.
            let Ok(mounts) = std::fs::read_to_string("/proc/self/mountinfo") else { return false };
            let is_of_disks =
                file_system(&mounts, device).is_some_and(|name| OF_DISKS.contains(&name));
            devices.insert(device, is_of_disks);
            is_of_disks
        }

        #[cfg(test)]
        pub(super) fn count(&self) -> usize {
            lock(&self.open).len()
        }
    }

    /// The file system of a device, by the lines of `/proc/self/mountinfo`: see proc_pid_mountinfo(5).
    pub(super) fn file_system(mounts: &str, (major, minor): Device) -> Option<&str> {
        let device = format!("{major}:{minor}");
        let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&device))?;
        line.split_once(" - ")?.1.split(' ').next()
    }

    fn open(path: &Path) -> Option<OwnedFd> {
        let how = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        openat2(CWD, path, how, Mode::empty(), ResolveFlags::CACHED).ok()
    }

    fn read(file: &OwnedFd, start: u64, len: u64, buffers: &ReadBuffers) -> Option<Bytes> {
        // All ones would stand for the place where the last read ended.
        let start = i64::try_from(start).ok()? as u64;
        let mut buffer = buffers.take(usize::try_from(len).ok()?)?;
        let into = &mut [IoSliceMut::new(buffer.bytes_mut())];
        let read = preadv2(file, into, start, ReadWriteFlags::NOWAIT).ok()?;
        Some(buffer.into_bytes(read))
    }

    fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
        // Nothing that may panic happens in the middle of a change.
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Elsewhere the threads read everything.
#[cfg(not(target_os = "linux"))]
mod system {
    use std::ops::Range;

    use bytes::Bytes;

    use super::{Attempt, FileStamp};
    use crate::fetch::Key;
    use crate::stores::local::read_buffers::ReadBuffers;

    #[derive(Debug, Default)]
    pub(super) struct Files;

    impl Files {
        pub(super) fn stat(&self, _: &Key) -> Attempt<FileStamp> {
            Attempt::Missed
        }

        pub(super) fn whole(&self, _: &Key, _: u64, _: &ReadBuffers) -> Attempt<Bytes> {
            Attempt::Missed
        }

        pub(super) fn ranges(
            &self,
            _: &Key,
            _: impl Iterator<Item = Range<u64>>,
            _: &ReadBuffers,
        ) -> Attempt<Vec<Bytes>> {
            Attempt::Missed
        }

        pub(super) fn close_all(&self) {}
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::fs;
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;
    use crate::fetch::coalesce::join;

    fn contents(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 31 % 251) as u8).collect()
    }

    fn file(bytes: &[u8]) -> (tempfile::TempDir, Key) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, bytes).unwrap();
        (folder, Key::from_path(&path))
    }

    /// Whether the system under the tests tells what is in memory.
    fn is_told() -> bool {
        let (_folder, key) = file(b"some");
        let told = whole(&key, MOST).is_some();
        if !told {
            println!("SKIPPED: this file system does not tell what is in memory");
        }
        told
    }

    fn whole(key: &Key, most: u64) -> Option<Bytes> {
        read(system::Files::default().whole(key, most, &ReadBuffers::default()))
    }

    fn read<T>(attempt: Attempt<T>) -> Option<T> {
        if let Attempt::Read(value) = attempt { Some(value) } else { None }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]
        #[test]
        fn what_is_in_memory_comes_as_it_is(
            len in prop_oneof![0..10_usize, 4000..5000_usize, 60_000..250_000_usize],
            ranges in prop::collection::vec((0..250_000_u64, 0..9000_u64), 0..6),
        ) {
            let bytes = contents(len);
            let (_folder, key) = file(&bytes);
            let Some(found) = whole(&key, MOST) else {
                // Where nothing is told, the next test says so.
                return Ok(());
            };
            prop_assert_eq!(&found[..], &bytes[..]);
            let ranges: Vec<_> = ranges
                .into_iter()
                .map(|(start, len)| start..start + len)
                .filter(|range| range.end <= bytes.len() as u64)
                .collect();
            let joined = join(&ranges, 100, MOST);
            let (files, buffers) = (system::Files::default(), ReadBuffers::default());
            let ranges = joined.iter().map(|joined| joined.range.clone());
            let parts = read(files.ranges(&key, ranges, &buffers)).unwrap();
            for (part, joined) in parts.iter().zip(&joined) {
                let Range { start, end } = joined.range;
                prop_assert_eq!(&part[..], &bytes[start as usize..end as usize]);
            }
        }
    }

    #[test]
    fn file_systems_of_networks_and_processes_are_left_to_the_threads() {
        let mounts = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      30 21 0:45 / /mnt/a rw,noatime shared:5 master:1 - nfs4 host:/a rw\n\
                      31 21 0:46 / /mnt/b\\040c rw shared:6 - fuse.sshfs host: rw\n";
        let found = [(8, 1), (0, 45), (0, 46), (0, 4)].map(|it| system::file_system(mounts, it));
        assert_eq!(found, [Some("ext4"), Some("nfs4"), Some("fuse.sshfs"), None]);
        // No disk, and so nobody knows how long it takes.
        assert!(whole(&Key::from("/proc/self/mountinfo"), MOST).is_none());
    }

    #[test]
    fn a_file_is_of_the_same_version_whoever_looks_at_it() {
        use std::time::{Duration, SystemTime};
        let (_folder, key) = file(b"some");
        if ReadAtOnce::default().stat(&key).is_none() {
            println!("SKIPPED: this file system does not tell what is in memory");
            return;
        }
        let (at_once, threads) = (
            crate::stores::LocalFetcher::new(),
            crate::stores::LocalFetcher::new().on_threads_alone(),
        );
        let ages = [Duration::ZERO, Duration::new(1, 5), Duration::from_secs(3)];
        for age in ages {
            for changed in [SystemTime::UNIX_EPOCH + age, SystemTime::UNIX_EPOCH - age] {
                fs::File::options()
                    .append(true)
                    .open(key.to_path())
                    .unwrap()
                    .set_modified(changed)
                    .unwrap();
                let stat = |fetcher: &crate::stores::LocalFetcher| {
                    spdl_core::block_on(crate::fetch::Fetcher::stat(fetcher, &key)).unwrap()
                };
                let (one, other) = (stat(&at_once), stat(&threads));
                assert_eq!((one.size, &one.version), (4, &other.version));
                let nanoseconds = match changed.duration_since(SystemTime::UNIX_EPOCH) {
                    Ok(after) => format!("{}", after.as_nanos()),
                    Err(before) => format!("-{}", before.duration().as_nanos()),
                };
                assert_eq!(one.version.as_deref(), Some(&*format!("4@{nanoseconds}")));
            }
        }
    }

    #[test]
    fn what_is_unusual_is_left_to_the_threads() {
        if !is_told() {
            return;
        }
        let (folder, key) = file(&contents(100));
        let buffers = ReadBuffers::default();
        assert!(whole(&key, 101).is_some());
        assert!(whole(&Key::from_path(folder.path()), 100).is_none(), "a folder");
        assert!(whole(&Key::from_path(folder.path().join("none")), 100).is_none());
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        assert!(whole(&Key::from_path(&pipe), 100).is_none(), "a pipe");
        assert!(whole(&Key::from("/dev/zero"), 100).is_none(), "a device");

        let files = system::Files::default();
        let range = |range: Range<u64>| {
            read(files.ranges(&key, std::iter::once(range), &buffers)).is_some()
        };
        assert!(range(0..100) && range(100..100));
        assert!(!range(95..101) && !range(101..101), "past the end");
        assert!(!range(u64::MAX - 1..u64::MAX));
        let reads = ReadAtOnce::default();
        let long = join(&[0..MOST, MOST + 1..2 * MOST], 0, u64::MAX);
        assert!(reads.parts(&key, &long, &buffers).is_none());
        assert!(reads.whole(&key, 100, &buffers).is_none(), "as long as is allowed, or longer");
        assert_eq!(reads.rest.load(Ordering::Relaxed), 0, "what is too long is no miss");
    }

    #[test]
    fn a_file_that_stays_open_is_not_taken_for_another_one() {
        if !is_told() {
            return;
        }
        let (folder, key) = file(b"first");
        let (path, other) = (key.to_path().into_owned(), folder.path().join("other"));
        let (open, buffers) = (system::Files::default(), ReadBuffers::default());
        let part = || {
            read(open.ranges(&key, std::iter::once(1..3), &buffers)).map(|parts| parts[0].clone())
        };
        assert_eq!(part().unwrap(), "ir");
        assert_eq!(part().unwrap(), "ir", "open already");
        fs::write(&other, "other").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(part().unwrap(), "th", "another file of that name");
        fs::write(&path, "longer than before").unwrap();
        assert_eq!(part().unwrap(), "on", "the same file, changed");
        fs::remove_file(&path).unwrap();
        assert!(part().is_none(), "the file is gone");
    }

    #[test]
    fn few_files_stay_open() {
        if !is_told() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (open, buffers) = (system::Files::default(), ReadBuffers::default());
        for round in 0..2 {
            for number in 0..3 * MOST_OPEN {
                let path = folder.path().join(number.to_string());
                fs::write(&path, [number as u8; 10]).unwrap();
                let parts = open.ranges(&Key::from_path(&path), std::iter::once(2..4), &buffers);
                assert_eq!(read(parts).unwrap()[0], [number as u8; 2][..], "round {round}");
                assert!(open.count() <= MOST_OPEN);
            }
        }
        assert_eq!(open.count(), MOST_OPEN);
    }

    #[test]
    fn after_misses_few_reads_are_tried_and_after_a_success_all() {
        let reads = ReadAtOnce::default();
        let tried = |count: usize, found: fn() -> Attempt<()>| {
            let mut tried = 0;
            for _ in 0..count {
                let _ = reads.attempt(|| {
                    tried += 1;
                    found()
                });
            }
            tried
        };
        let (read, missed) = (|| Attempt::Read(()), || Attempt::Missed);
        assert_eq!(tried(100, || Attempt::TooLong), 100);
        assert_eq!(tried(3, missed), 2, "the first, and after a rest of one the third");
        let many = tried(100_000, missed);
        assert!((90..=120).contains(&many), "{many}");
        assert!(tried(LONGEST_REST as usize + 1, read) > 0, "one is tried within the longest rest");
        assert_eq!(tried(50, read), 50);
    }

    #[test]
    fn what_comes_late_is_delivered_and_counts_as_a_miss() {
        let reads = ReadAtOnce::default();
        let late = reads.attempt(|| {
            std::thread::sleep(TOO_LONG + Duration::from_millis(1));
            Attempt::Read(7)
        });
        assert_eq!(late, Some(7));
        assert_eq!(reads.attempt(|| Attempt::Read(8)), None, "the next one rests");
        assert_eq!(reads.attempt(|| Attempt::Read(9)), Some(9));
    }
}
