//! Reads from the page cache without blocking, on the calling thread.
//!
//! Passing a read to another thread takes longer than copying a small file from the page cache. On
//! Linux, `RESOLVE_CACHED` of openat2(2) and `RWF_NOWAIT` of preadv2(2) fail instead of waiting for
//! a disk. Network and FUSE file systems may wait despite these flags. On such file systems, and
//! for files that are not regular files, I/O threads perform the reads.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::read_buffers::ReadBuffers;
use crate::fetch::coalesce::CoalescedRange;
use crate::fetch::{Key, ReadMemory};

/// Limit in bytes of a read on the calling thread, which bounds the time of the copy.
pub(crate) const MAX_BYTES: u64 = 256 << 10;
/// A read that takes longer than this time counts as a miss: the thread had to wait for the disk.
const SLOW_READ: Duration = Duration::from_millis(1);
/// Number of files that stay open after a partial read, as shards are read repeatedly.
#[cfg(target_os = "linux")]
const MAX_OPEN_FILES: usize = 16;
/// Maximum number of reads that go directly to I/O threads after a miss.
const MAX_SKIPPED_READS: u32 = 1024;

/// Non-blocking reads with exponential backoff: each consecutive miss doubles the number of reads
/// that go directly to I/O threads.
#[derive(Debug, Default)]
pub(crate) struct PageCacheReader {
    /// Number of consecutive misses of the page cache.
    misses: AtomicU32,
    /// Number of upcoming reads that go directly to I/O threads.
    rest: AtomicU32,
    files: system::Files,
}

/// Size and modification time of a file.
pub(crate) struct FileStamp {
    /// In bytes.
    pub(crate) size: u64,
    /// In nanoseconds since 1970.
    pub(crate) changed: i128,
}

/// The outcome of a non-blocking read.
enum ReadOutcome<T> {
    Read(T),
    /// The file of this size in bytes is not below the limit. The outcome does not count as a miss.
    TooLarge(u64),
    /// The read would block, or the file is not supported.
    Missed,
}

impl PageCacheReader {
    /// Reads a whole file that is smaller than `max_bytes` and than [`MAX_BYTES`]. Returns `None`
    /// if an I/O thread must read it.
    ///
    /// If the file exceeds the memory that is reserved, reserves memory for it first.
    pub(crate) async fn whole(
        &self,
        key: &Key,
        memory: &dyn ReadMemory,
        buffers: &ReadBuffers,
    ) -> Option<Bytes> {
        let most = memory.max_bytes().min(MAX_BYTES);
        let mut too_large = None;
        let limit = most.min(memory.reserved_bytes().saturating_add(1));
        let read = self.attempt(|| {
            let read = self.files.whole(key, limit, buffers);
            if let ReadOutcome::TooLarge(size) = read {
                too_large = Some(size);
            }
            read
        });
        let size = too_large.filter(|size| *size < most);
        let Some(size) = size else { return read };
        memory.reserve(size).await;
        self.attempt(|| self.files.whole(key, most.min(size + 1), buffers))
    }

    /// Reads ranges of one version of a file. Returns `None` if an I/O thread must read them.
    pub(crate) fn parts(
        &self,
        key: &Key,
        joined: &[CoalescedRange],
        buffers: &ReadBuffers,
    ) -> Option<(Vec<Bytes>, FileStamp)> {
        let lengths = joined.iter().map(|joined| joined.range.end - joined.range.start);
        let bytes = lengths.fold(0, u64::saturating_add);
        if bytes > MAX_BYTES {
            return None;
        }
        self.attempt(|| {
            let ranges = joined.iter().map(|joined| joined.range.clone());
            self.files.ranges(key, ranges, buffers)
        })
    }

    /// Returns size and modification time of a file, or `None` if an I/O thread must look them up.
    pub(crate) fn stat(&self, key: &Key) -> Option<FileStamp> {
        self.attempt(|| self.files.stat(key))
    }

    /// Closes the cached files. Files with reads in flight close after those reads.
    pub(crate) fn close_all(&self) {
        self.files.close_all();
    }

    fn attempt<T>(&self, read: impl FnOnce() -> ReadOutcome<T>) -> Option<T> {
        // A lost update between threads changes the number of attempts by one, which is harmless.
        let rest = self.rest.load(Ordering::Relaxed);
        if rest > 0 {
            self.rest.store(rest - 1, Ordering::Relaxed);
            return None;
        }
        let started = Instant::now();
        let read = read();
        match &read {
            ReadOutcome::Read(_) if started.elapsed() <= SLOW_READ => {
                self.misses.store(0, Ordering::Relaxed);
            }
            ReadOutcome::TooLarge(_) => {}
            ReadOutcome::Read(_) | ReadOutcome::Missed => {
                let misses = self.misses.load(Ordering::Relaxed);
                self.misses.store(misses.saturating_add(1), Ordering::Relaxed);
                let rest = 1_u32.checked_shl(misses).unwrap_or(MAX_SKIPPED_READS);
                self.rest.store(rest.min(MAX_SKIPPED_READS), Ordering::Relaxed);
            }
        }
        if let ReadOutcome::Read(value) = read { Some(value) } else { None }
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

    use super::{FileStamp, MAX_OPEN_FILES, ReadOutcome};
    use crate::fetch::Key;
    use crate::stores::local::read_buffers::ReadBuffers;

    /// File systems that support `RWF_NOWAIT` and wait only for a local disk.
    const LOCAL_FILE_SYSTEMS: [&str; 9] =
        ["bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs"];

    type Device = (u32, u32);

    #[derive(Debug, Default)]
    pub(super) struct Files {
        /// Files of which ranges were read, most recently used first.
        open: Mutex<Vec<CachedFile>>,
        /// For each device, whether its file system is in `LOCAL_FILE_SYSTEMS`.
        devices: Mutex<HashMap<Device, bool>>,
    }

    #[derive(Clone, Debug)]
    struct CachedFile {
        key: Key,
        identity: Identity,
        file: Arc<OwnedFd>,
    }

    /// Identifies a file and its content. Differs if a file was replaced or modified.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Identity {
        device: Device,
        inode: u64,
        size: u64,
        changed: (i64, u32),
    }

    impl Identity {
        fn stamp(self) -> FileStamp {
            let (seconds, rest) = self.changed;
            let changed = i128::from(seconds) * 1_000_000_000 + i128::from(rest);
            FileStamp { size: self.size, changed }
        }
    }

    impl Files {
        pub(super) fn stat(&self, key: &Key) -> ReadOutcome<FileStamp> {
            let found = self.regular_file(&key.to_path());
            found.map_or(ReadOutcome::Missed, |found| ReadOutcome::Read(found.stamp()))
        }

        pub(super) fn whole(
            &self,
            key: &Key,
            limit: u64,
            buffers: &ReadBuffers,
        ) -> ReadOutcome<Bytes> {
            let path = key.to_path();
            let Some(identity) = self.regular_file(&path) else { return ReadOutcome::Missed };
            let size = identity.size;
            if size >= limit {
                return ReadOutcome::TooLarge(size);
            }
            // One more byte detects growth.
            let bytes = open(&path).and_then(|file| {
                let bytes = read(&file, 0, size + 1, buffers)?;
                // A write during the read may have changed a part of the bytes.
                (identity_of(&file)? == identity).then_some(bytes)
            });
            match bytes.filter(|bytes| bytes.len() as u64 == size) {
                Some(bytes) => ReadOutcome::Read(bytes),
                None => ReadOutcome::Missed,
            }
        }

        pub(super) fn ranges(
            &self,
            key: &Key,
            mut ranges: impl Iterator<Item = Range<u64>>,
            buffers: &ReadBuffers,
        ) -> ReadOutcome<(Vec<Bytes>, FileStamp)> {
            let Some((file, identity)) = self.file(key) else { return ReadOutcome::Missed };
            let parts = ranges.try_fold(Vec::new(), |mut parts, Range { start, end }| {
                let wanted = end.checked_sub(start).filter(|_| end <= identity.size)?;
                let bytes = read(&file, start, wanted, buffers)?;
                let is_all = bytes.len() as u64 == wanted;
                parts.push(bytes);
                is_all.then_some(parts)
            });
            // A write during the read may have changed a part of the bytes.
            let parts = parts.filter(|_| identity_of(&file).is_some_and(|now| now == identity));
            parts.map_or(ReadOutcome::Missed, |parts| ReadOutcome::Read((parts, identity.stamp())))
        }

        /// Returns the open file and its identity when it was looked up.
        fn file(&self, key: &Key) -> Option<(Arc<OwnedFd>, Identity)> {
            let path = key.to_path();
            let found = self.regular_file(&path);
            if let Some(file) = self.known(key, found) {
                return Some((file, found?));
            }
            let identity = found?;
            let file = Arc::new(open(&path)?);
            // Caches the file only if it was not replaced before it was opened.
            if self.regular_file(&path)? == identity {
                let entry = CachedFile { key: key.clone(), identity, file: Arc::clone(&file) };
                let mut open = lock(&self.open);
                let known = open.iter().position(|open| open.key == *key);
                let replaced = known.map(|index| open.remove(index));
                open.insert(0, entry);
                let limit = open.len().min(MAX_OPEN_FILES);
                let oldest = open.split_off(limit);
                drop(open);
                // Closing may block, so the lock is released first.
                drop((replaced, oldest));
            }
            Some((file, identity))
        }

        /// Returns the cached file if it is still the same.
        fn known(&self, key: &Key, found: Option<Identity>) -> Option<Arc<OwnedFd>> {
            let mut open = lock(&self.open);
            let index = open.iter().position(|open| open.key == *key)?;
            if found == Some(open[index].identity) {
                open[..=index].rotate_right(1);
                return Some(Arc::clone(&open[0].file));
            }
            // The disk space of a removed file is freed only when the file is closed.
            let old = open.remove(index);
            drop(open);
            drop(old);
            None
        }

        pub(super) fn close_all(&self) {
            let closed = std::mem::take(&mut *lock(&self.open));
            drop(closed);
        }

        /// Looks up a regular file on a local disk without opening it.
        ///
        /// Opening a device or pipe may have side effects.
        fn regular_file(&self, path: &Path) -> Option<Identity> {
            let how = OFlags::PATH | OFlags::CLOEXEC;
            let path_handle = openat2(CWD, path, how, Mode::empty(), ResolveFlags::CACHED).ok()?;
            identity_of(&path_handle).filter(|found| self.is_local_disk(found.device))
        }

        fn is_local_disk(&self, device: Device) -> bool {
            let mut devices = lock(&self.devices);
            if let Some(&is_local_disk) = devices.get(&device) {
                return is_local_disk;
            }
            // A failure, for example because of too many open files, is not cached.
            let Ok(mounts) = std::fs::read_to_string("/proc/self/mountinfo") else { return false };
            let is_local_disk =
                file_system(&mounts, device).is_some_and(|name| LOCAL_FILE_SYSTEMS.contains(&name));
            devices.insert(device, is_local_disk);
            is_local_disk
        }

        #[cfg(test)]
        pub(super) fn count(&self) -> usize {
            lock(&self.open).len()
        }
    }

    /// Returns the identity of a regular file.
    fn identity_of(file: &OwnedFd) -> Option<Identity> {
        let wanted = StatxFlags::TYPE | StatxFlags::SIZE | StatxFlags::INO | StatxFlags::MTIME;
        let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(file, "", how, wanted).ok()?;
        let is_file = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
        is_file.then_some(Identity {
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            size: found.stx_size,
            changed: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
        })
    }

    /// Finds the file system type of a device in `/proc/self/mountinfo`: see proc_pid_mountinfo(5).
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
        // An offset of -1 would mean the current file position.
        let start = i64::try_from(start).ok()? as u64;
        let mut buffer = buffers.take(usize::try_from(len).ok()?)?;
        let into = &mut [IoSliceMut::new(buffer.bytes_mut())];
        let read = preadv2(file, into, start, ReadWriteFlags::NOWAIT).ok()?;
        Some(buffer.into_bytes(read))
    }

    fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
        // Updates of the guarded data do not panic, so the data are consistent.
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// On other systems, I/O threads perform all reads.
#[cfg(not(target_os = "linux"))]
mod system {
    use std::ops::Range;

    use bytes::Bytes;

    use super::{FileStamp, ReadOutcome};
    use crate::fetch::Key;
    use crate::stores::local::read_buffers::ReadBuffers;

    #[derive(Debug, Default)]
    pub(super) struct Files;

    impl Files {
        pub(super) fn stat(&self, _: &Key) -> ReadOutcome<FileStamp> {
            ReadOutcome::Missed
        }

        pub(super) fn whole(&self, _: &Key, _: u64, _: &ReadBuffers) -> ReadOutcome<Bytes> {
            ReadOutcome::Missed
        }

        pub(super) fn ranges(
            &self,
            _: &Key,
            _: impl Iterator<Item = Range<u64>>,
            _: &ReadBuffers,
        ) -> ReadOutcome<(Vec<Bytes>, FileStamp)> {
            ReadOutcome::Missed
        }

        pub(super) fn close_all(&self) {}
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::fs;
    use std::ops::Range;
    use std::sync::atomic::AtomicU64;

    use async_trait::async_trait;
    use proptest::prelude::*;
    use spdl_core::block_on;

    use super::*;
    use crate::fetch::coalesce::coalesce;

    fn contents(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 31 % 251) as u8).collect()
    }

    fn file(bytes: &[u8]) -> (tempfile::TempDir, Key) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, bytes).unwrap();
        (folder, Key::from_path(&path))
    }

    /// Returns whether the file system of the tests supports non-blocking reads.
    fn is_supported() -> bool {
        let (_folder, key) = file(b"some");
        let is_supported = whole(&key, MAX_BYTES).is_some();
        if !is_supported {
            println!("SKIPPED: this file system does not support non-blocking reads");
        }
        is_supported
    }

    fn whole(key: &Key, limit: u64) -> Option<Bytes> {
        read(system::Files::default().whole(key, limit, &ReadBuffers::default()))
    }

    fn read<T>(attempt: ReadOutcome<T>) -> Option<T> {
        if let ReadOutcome::Read(value) = attempt { Some(value) } else { None }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]
        // promise: DATA9
        #[test]
        fn reads_from_the_page_cache_equal_the_file(
            len in prop_oneof![0..10_usize, 4000..5000_usize, 60_000..250_000_usize],
            ranges in prop::collection::vec((0..250_000_u64, 0..9000_u64), 0..6),
        ) {
            let bytes = contents(len);
            let (_folder, key) = file(&bytes);
            let Some(found) = whole(&key, MAX_BYTES) else {
                                // The test for supported file systems reports the skip.
                return Ok(());
            };
            prop_assert_eq!(&found[..], &bytes[..]);
            let ranges: Vec<_> = ranges
                .into_iter()
                .map(|(start, len)| start..start + len)
                .filter(|range| range.end <= bytes.len() as u64)
                .collect();
            let joined = coalesce(&ranges, 100, MAX_BYTES);
            let (files, buffers) = (system::Files::default(), ReadBuffers::default());
            let ranges = joined.iter().map(|joined| joined.range.clone());
            let parts = read(files.ranges(&key, ranges, &buffers)).unwrap();
            for (part, joined) in parts.0.iter().zip(&joined) {
                let Range { start, end } = joined.range;
                prop_assert_eq!(&part[..], &bytes[start as usize..end as usize]);
            }
        }
    }

    #[test]
    fn only_local_file_systems_are_read_without_blocking() {
        let mounts = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      30 21 0:45 / /mnt/a rw,noatime shared:5 master:1 - nfs4 host:/a rw\n\
                      31 21 0:46 / /mnt/b\\040c rw shared:6 - fuse.sshfs host: rw\n";
        let found = [(8, 1), (0, 45), (0, 46), (0, 4)].map(|it| system::file_system(mounts, it));
        assert_eq!(found, [Some("ext4"), Some("nfs4"), Some("fuse.sshfs"), None]);
        // Not a file on a local disk, so the read may block.
        assert!(whole(&Key::from("/proc/self/mountinfo"), MAX_BYTES).is_none());
    }

    #[test]
    fn both_read_paths_report_the_same_version() {
        use std::time::{Duration, SystemTime};
        let (_folder, key) = file(b"some");
        if PageCacheReader::default().stat(&key).is_none() {
            println!("SKIPPED: this file system does not support non-blocking reads");
            return;
        }
        let (non_blocking, threads) = (
            crate::stores::LocalFetcher::new(),
            crate::stores::LocalFetcher::new().without_inline_reads(),
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
                let (one, other) = (stat(&non_blocking), stat(&threads));
                assert_eq!((one.size, &one.version), (4, &other.version));
                let nanoseconds = match changed.duration_since(SystemTime::UNIX_EPOCH) {
                    Ok(after) => format!("{}", after.as_nanos()),
                    Err(before) => format!("-{}", before.duration().as_nanos()),
                };
                assert_eq!(one.version.as_deref(), Some(&*format!("4@{nanoseconds}")));
            }
        }
    }

    // promise: DATA9
    #[test]
    fn folders_devices_and_large_reads_are_left_to_the_threads() {
        if !is_supported() {
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
        let reads = PageCacheReader::default();
        let long = coalesce(&[0..MAX_BYTES, MAX_BYTES + 1..2 * MAX_BYTES], 0, u64::MAX);
        assert!(reads.parts(&key, &long, &buffers).is_none());
        let too_large = block_on(reads.whole(&key, &100, &buffers));
        assert!(too_large.is_none(), "the file is too large");
        assert_eq!(reads.rest.load(Ordering::Relaxed), 0, "a file above the limit is no miss");
    }

    /// Memory of which some bytes are reserved.
    struct Reserved(AtomicU64);

    #[async_trait]
    impl ReadMemory for Reserved {
        fn max_bytes(&self) -> u64 {
            150
        }

        fn reserved_bytes(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }

        async fn reserve(&self, bytes: u64) {
            self.0.fetch_max(bytes, Ordering::Relaxed);
        }
    }

    // promise: DATA9
    #[test]
    fn a_file_above_the_reserved_memory_is_read_without_a_thread() {
        if !is_supported() {
            return;
        }
        let (_folder, key) = file(&contents(100));
        let (reads, buffers) = (PageCacheReader::default(), ReadBuffers::default());
        for (before, after) in [(0, 100), (99, 100), (100, 100), (120, 120)] {
            let memory = Reserved(before.into());
            let bytes = block_on(reads.whole(&key, &memory, &buffers));
            assert_eq!(bytes.as_deref(), Some(&contents(100)[..]));
            assert_eq!(memory.reserved_bytes(), after, "of {before} bytes");
        }
    }

    #[test]
    fn replaced_or_modified_files_are_reopened() {
        if !is_supported() {
            return;
        }
        let (folder, key) = file(b"first");
        let (path, other) = (key.to_path().into_owned(), folder.path().join("other"));
        let (open, buffers) = (system::Files::default(), ReadBuffers::default());
        let part = || {
            read(open.ranges(&key, std::iter::once(1..3), &buffers))
                .map(|(parts, _)| parts[0].clone())
        };
        assert_eq!(part().unwrap(), "ir");
        assert_eq!(part().unwrap(), "ir", "open already");
        fs::write(&other, "other").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(part().unwrap(), "th", "a new file replaced the old one");
        fs::write(&path, "longer than before").unwrap();
        assert_eq!(part().unwrap(), "on", "the file was modified");
        fs::remove_file(&path).unwrap();
        assert!(part().is_none(), "the file is gone");
    }

    #[test]
    fn the_number_of_open_files_is_bounded() {
        if !is_supported() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (open, buffers) = (system::Files::default(), ReadBuffers::default());
        for round in 0..2 {
            for number in 0..3 * MAX_OPEN_FILES {
                let path = folder.path().join(number.to_string());
                fs::write(&path, [number as u8; 10]).unwrap();
                let parts = open.ranges(&Key::from_path(&path), std::iter::once(2..4), &buffers);
                assert_eq!(read(parts).unwrap().0[0], [number as u8; 2][..], "round {round}");
                assert!(open.count() <= MAX_OPEN_FILES);
            }
        }
        assert_eq!(open.count(), MAX_OPEN_FILES);
    }

    #[test]
    fn misses_back_off_and_a_success_resets() {
        let reads = PageCacheReader::default();
        let tried = |count: usize, found: fn() -> ReadOutcome<()>| {
            let mut tried = 0;
            for _ in 0..count {
                let _ = reads.attempt(|| {
                    tried += 1;
                    found()
                });
            }
            tried
        };
        let (read, missed) = (|| ReadOutcome::Read(()), || ReadOutcome::Missed);
        assert_eq!(tried(100, || ReadOutcome::TooLarge(9)), 100);
        assert_eq!(tried(3, missed), 2, "only the second read is skipped");
        let many = tried(100_000, missed);
        assert!((90..=120).contains(&many), "{many}");
        assert!(
            tried(MAX_SKIPPED_READS as usize + 1, read) > 0,
            "a read is attempted after the longest backoff"
        );
        assert_eq!(tried(50, read), 50);
    }

    #[test]
    fn slow_reads_are_delivered_and_count_as_misses() {
        let reads = PageCacheReader::default();
        let late = reads.attempt(|| {
            std::thread::sleep(SLOW_READ + Duration::from_millis(1));
            ReadOutcome::Read(7)
        });
        assert_eq!(late, Some(7));
        assert_eq!(reads.attempt(|| ReadOutcome::Read(8)), None, "the next read is skipped");
        assert_eq!(reads.attempt(|| ReadOutcome::Read(9)), Some(9));
    }
}
