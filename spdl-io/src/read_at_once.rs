//! Reads of what the system has in its memory already, on the thread that asks for it.
//!
//! Handing a read to another thread and being woken by it takes longer than copying a small file out
//! of the page cache. Linux tells a read that would have to wait from one that would not: a path is
//! looked up, and bytes are copied, only where both are in memory (`RESOLVE_CACHED` of openat2(2),
//! `RWF_NOWAIT` of preadv2(2)). What is not, and whatever is unusual, is left to the threads.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::Key;
use crate::read_buffers::ReadBuffers;
use crate::resilient::joining::Joined;

/// More bytes are left to the threads, so that nobody else waits long for the thread that asks.
pub(crate) const MOST: u64 = 1 << 20;
/// What took longer had to wait after all, as file systems in user space do: the asking thread sleeps
/// meanwhile, and many such reads would come one after the other.
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
    open: system::OpenFiles,
}

impl ReadAtOnce {
    /// A whole file of at most `max_bytes`; `None` where the threads must look.
    pub(crate) fn whole(&self, key: &Key, max_bytes: u64, buffers: &ReadBuffers) -> Option<Bytes> {
        self.attempt(|| system::whole(key, max_bytes.min(MOST), buffers))
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
            self.open.ranges(key, ranges, buffers)
        })
    }

    fn attempt<T>(&self, read: impl FnOnce() -> Option<T>) -> Option<T> {
        // Threads that meet here may try one read more or less, which does not matter.
        let rest = self.rest.load(Ordering::Relaxed);
        if rest > 0 {
            self.rest.store(rest - 1, Ordering::Relaxed);
            return None;
        }
        let started = Instant::now();
        let read = read();
        if read.is_some() && started.elapsed() <= TOO_LONG {
            self.misses.store(0, Ordering::Relaxed);
        } else {
            let misses = self.misses.load(Ordering::Relaxed);
            self.misses.store(misses.saturating_add(1), Ordering::Relaxed);
            let rest = 1_u32.checked_shl(misses).unwrap_or(LONGEST_REST);
            self.rest.store(rest.min(LONGEST_REST), Ordering::Relaxed);
        }
        read
    }
}

#[cfg(target_os = "linux")]
mod system {
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

    use super::MOST_OPEN;
    use crate::Key;
    use crate::read_buffers::ReadBuffers;

    pub(super) fn whole(key: &Key, most: u64, buffers: &ReadBuffers) -> Option<Bytes> {
        let path = key.to_path();
        let size = regular(&path)?.size;
        if size > most {
            return None;
        }
        // One byte more, to see that it has not grown.
        let bytes = read(&open(&path)?, 0, size + 1, buffers)?;
        (bytes.len() as u64 == size).then_some(bytes)
    }

    /// Files of which parts were read, the last one first.
    #[derive(Debug, Default)]
    pub(super) struct OpenFiles(Mutex<Vec<OpenFile>>);

    #[derive(Clone, Debug)]
    struct OpenFile {
        key: Key,
        identity: Identity,
        file: Arc<OwnedFd>,
    }

    /// Another file of that name, and one that was changed, has another one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Identity {
        device: (u32, u32),
        inode: u64,
        size: u64,
        changed: (i64, u32),
    }

    impl OpenFiles {
        pub(super) fn ranges(
            &self,
            key: &Key,
            mut ranges: impl Iterator<Item = Range<u64>>,
            buffers: &ReadBuffers,
        ) -> Option<Vec<Bytes>> {
            let (file, size) = self.get(key)?;
            ranges.try_fold(Vec::new(), |mut parts, Range { start, end }| {
                let wanted = end.checked_sub(start).filter(|_| end <= size)?;
                let bytes = read(&file, start, wanted, buffers)?;
                let is_all = bytes.len() as u64 == wanted;
                parts.push(bytes);
                is_all.then_some(parts)
            })
        }

        #[cfg(test)]
        pub(super) fn count(&self) -> usize {
            self.0.lock().unwrap().len()
        }

        /// The file, and its size.
        fn get(&self, key: &Key) -> Option<(Arc<OwnedFd>, u64)> {
            let path = key.to_path();
            let found = regular(&path);
            let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let known = files.iter().position(|open| open.key == *key);
            match (known, found) {
                (Some(place), Some(identity)) if files[place].identity == identity => {
                    files[..=place].rotate_right(1);
                    return Some((Arc::clone(&files[0].file), identity.size));
                }
                // What is kept open holds its place on the disk, though it was removed.
                (Some(place), _) => drop(files.remove(place)),
                (None, _) => {}
            }
            drop(files);
            let identity = found?;
            let file = Arc::new(open(&path)?);
            // It may have become another one since.
            if regular(&path)? == identity {
                let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                files.insert(0, OpenFile { key: key.clone(), identity, file: Arc::clone(&file) });
                files.truncate(MOST_OPEN);
            }
            Some((file, identity.size))
        }
    }

    /// Looked at before it is opened, as that alone may do something to what is no file.
    fn regular(path: &Path) -> Option<Identity> {
        let wanted = StatxFlags::TYPE | StatxFlags::SIZE | StatxFlags::INO | StatxFlags::MTIME;
        let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, wanted).ok()?;
        let is_file = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
        is_file.then_some(Identity {
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            size: found.stx_size,
            changed: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
        })
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
}

/// Elsewhere the threads read everything.
#[cfg(not(target_os = "linux"))]
mod system {
    use std::ops::Range;

    use bytes::Bytes;

    use crate::Key;
    use crate::read_buffers::ReadBuffers;

    pub(super) fn whole(_: &Key, _: u64, _: &ReadBuffers) -> Option<Bytes> {
        None
    }

    #[derive(Debug, Default)]
    pub(super) struct OpenFiles;

    impl OpenFiles {
        pub(super) fn ranges(
            &self,
            _: &Key,
            _: impl Iterator<Item = Range<u64>>,
            _: &ReadBuffers,
        ) -> Option<Vec<Bytes>> {
            None
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;
    use crate::resilient::joining::join;

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
        let told = system::whole(&key, MOST, &ReadBuffers::default()).is_some();
        if !told {
            println!("SKIPPED: this file system does not tell what is in memory");
        }
        told
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]
        #[test]
        fn what_is_in_memory_comes_as_it_is(
            len in prop_oneof![0..10_usize, 4000..5000_usize, 60_000..300_000_usize],
            ranges in prop::collection::vec((0..300_000_u64, 0..9000_u64), 0..6),
        ) {
            prop_assume!(is_told());
            let bytes = contents(len);
            let (_folder, key) = file(&bytes);
            let (reads, buffers) = (ReadAtOnce::default(), ReadBuffers::default());
            let whole = reads.whole(&key, MOST, &buffers);
            prop_assert_eq!(whole.as_deref(), Some(&bytes[..]));
            let ranges: Vec<_> = ranges
                .into_iter()
                .map(|(start, len)| start..start + len)
                .filter(|range| range.end <= bytes.len() as u64)
                .collect();
            let joined = join(&ranges, 100, MOST);
            let parts = reads.parts(&key, &joined, &buffers).unwrap();
            for (part, joined) in parts.iter().zip(&joined) {
                let Range { start, end } = joined.range;
                prop_assert_eq!(&part[..], &bytes[start as usize..end as usize]);
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
        let whole = |key: &Key, most| system::whole(key, most, &buffers);
        assert!(whole(&key, 100).is_some());
        assert!(whole(&key, 99).is_none(), "longer than allowed");
        assert!(whole(&Key::from_path(folder.path()), 100).is_none(), "a folder");
        assert!(whole(&Key::from_path(&folder.path().join("none")), 100).is_none());
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        assert!(whole(&Key::from_path(&pipe), 100).is_none(), "a pipe");
        assert!(whole(&Key::from("/dev/zero"), 100).is_none(), "a device");

        let open = system::OpenFiles::default();
        let ranges = |ranges: &[Range<u64>]| open.ranges(&key, ranges.iter().cloned(), &buffers);
        assert!(ranges(&[0..100, 5..7]).is_some());
        assert!(ranges(&[0..10, 95..101]).is_none(), "past the end");
        assert!(ranges(&[100..100]).is_some() && ranges(&[101..101]).is_none());
        assert!(ranges(&[u64::MAX - 1..u64::MAX]).is_none());
        let reads = ReadAtOnce::default();
        let long = join(&[0..MOST, MOST + 1..2 * MOST], 0, u64::MAX);
        assert!(reads.parts(&key, &long, &buffers).is_none());
        assert_eq!(reads.rest.load(Ordering::Relaxed), 0, "what is too long is no miss");
    }

    #[test]
    fn a_file_that_stays_open_is_not_taken_for_another_one() {
        if !is_told() {
            return;
        }
        let (folder, key) = file(b"first");
        let (path, other) = (key.to_path().into_owned(), folder.path().join("other"));
        let (open, buffers) = (system::OpenFiles::default(), ReadBuffers::default());
        let part = || open.ranges(&key, [1..3].into_iter(), &buffers).map(|parts| parts[0].clone());
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
        let (open, buffers) = (system::OpenFiles::default(), ReadBuffers::default());
        for round in 0..2 {
            for number in 0..3 * MOST_OPEN {
                let path = folder.path().join(number.to_string());
                fs::write(&path, [number as u8; 10]).unwrap();
                let parts = open.ranges(&Key::from_path(&path), [2..4].into_iter(), &buffers);
                assert_eq!(parts.unwrap()[0], [number as u8; 2][..], "round {round}");
                assert!(open.count() <= MOST_OPEN);
            }
        }
        assert_eq!(open.count(), MOST_OPEN);
    }

    #[test]
    fn after_misses_few_reads_are_tried_and_after_a_success_all() {
        let reads = ReadAtOnce::default();
        let tried = |count: usize, found: Option<()>| {
            let mut tried = 0;
            for _ in 0..count {
                let _ = reads.attempt(|| {
                    tried += 1;
                    found
                });
            }
            tried
        };
        assert_eq!(tried(100, Some(())), 100);
        assert_eq!(tried(3, None), 2, "the first, and after a rest of one the third");
        let many = tried(100_000, None);
        assert!((90..=120).contains(&many), "{many}");
        assert!(
            tried(LONGEST_REST as usize + 1, Some(())) > 0,
            "one is tried within the longest rest"
        );
        assert_eq!(tried(50, Some(())), 50);
    }

    #[test]
    fn what_comes_late_is_delivered_and_counts_as_a_miss() {
        let reads = ReadAtOnce::default();
        let late = reads.attempt(|| {
            std::thread::sleep(TOO_LONG + Duration::from_millis(1));
            Some(7)
        });
        assert_eq!(late, Some(7));
        assert_eq!(reads.attempt(|| Some(8)), None, "the next one rests");
        assert_eq!(reads.attempt(|| Some(9)), Some(9));
    }
}
