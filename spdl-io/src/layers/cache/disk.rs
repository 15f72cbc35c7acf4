//! The disk tier of a cache: a folder that several processes may share.
//!
//! ```text
//! FOLDER/spdl-cache     marks the folder as a cache, and holds the version of the format
//!        users          locked by all processes that use the folder
//!        lock           locked by the process that changes the entries
//!        usage          sizes and limits; see `Usage`
//!        new/           files that are being written
//!        00/ … ff/      the entries, by the first byte of their hashes
//! ```
//!
//! Locks are those of the operating system, which releases them when a process ends. Files are not
//! synced to the disk. Checksums detect files that a power failure truncated.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};
use twox_hash::XxHash3_128;

use super::CachePolicy;
use super::entry::{EntryId, StoredEntry};
use crate::fetch::{Key, ObjectBuffer};
use crate::files::os_error;

const MARKER: &str = "spdl-cache";
/// Number of marker files that this process has written, for unique names.
static MARKERS: AtomicU64 = AtomicU64::new(0);
const VERSION: &str = "1";
const NEW: &str = "new";

/// Number of entries at which the search for eviction candidates stops.
const CANDIDATES: usize = 64;

pub(super) struct Disk {
    folder: PathBuf,
    max_bytes: u64,
    policy: CachePolicy,
    /// Locked while the folder is in use.
    _users: File,
    changes: Mutex<Changes>,
    /// Size of all entries in bytes, as last seen by this process.
    known_bytes: AtomicU64,
    /// Upper half of the hash limit, as last seen by this process.
    known_hash_limit: AtomicU64,
    /// Unique name of this user of the folder, and a counter, for the names of new files.
    writer: String,
    written: AtomicU64,
}

/// State for changes of the folder. The mutex excludes other threads, the file lock other
/// processes.
struct Changes {
    lock: File,
    /// Eviction candidates with their lengths, by last use and hash. The time is constant for the
    /// policy `StableSubset`.
    candidates: BTreeMap<(SystemTime, u128), u64>,
    /// The first hash byte of the folder from which the next candidates are listed.
    prefix: u8,
}

/// The result of a lookup.
#[derive(Debug, PartialEq)]
pub(super) enum DiskLookup {
    Hit(Bytes),
    /// The file was not read, because it has this many bytes, more than allowed.
    Large(u64),
    Corrupt,
    Miss,
}

/// The file `usage`: 40 bytes with a checksum.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Usage {
    /// Size of all entries in bytes.
    bytes: u64,
    /// Limit in bytes.
    max_bytes: u64,
    /// Entries whose hash is at or above this limit are not stored.
    hash_limit: u128,
}

impl Usage {
    fn checksum(bytes: &[u8; 40]) -> u64 {
        XxHash3_128::oneshot(&bytes[..32]) as u64
    }

    fn to_bytes(self) -> [u8; 40] {
        let mut out = [0; 40];
        out[..8].copy_from_slice(&self.bytes.to_le_bytes());
        out[8..16].copy_from_slice(&self.max_bytes.to_le_bytes());
        out[16..32].copy_from_slice(&self.hash_limit.to_le_bytes());
        let checksum = Usage::checksum(&out);
        out[32..].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    fn from_bytes(bytes: &[u8; 40]) -> Option<Self> {
        let number = |at: usize| bytes[at..].first_chunk().map(|&chunk| u64::from_le_bytes(chunk));
        let hash_limit = u128::from_le_bytes(*bytes[16..].first_chunk()?);
        let whole = number(32)? == Usage::checksum(bytes);
        let usage = Usage { bytes: number(0)?, max_bytes: number(8)?, hash_limit };
        whole.then_some(usage)
    }
}

impl Disk {
    pub(super) fn open(folder: PathBuf, max_bytes: u64, policy: CachePolicy) -> Result<Self> {
        let failed = |what: &'static str| {
            let key = Key::from_path(&folder);
            move |error| os_error(what, &key, error)
        };
        create_or_check(&folder)?;
        let users = open_file(&folder.join("users"))
            .map_err(failed("cannot open the lock files of the cache"))?;
        let lock = open_file(&folder.join("lock"))
            .map_err(failed("cannot open the lock files of the cache"))?;
        let alone = users.try_lock().is_ok();
        let changes = Changes { lock, candidates: BTreeMap::new(), prefix: u8::MAX };
        let disk = Disk {
            max_bytes,
            policy,
            _users: users,
            changes: Mutex::new(changes),
            known_bytes: AtomicU64::new(0),
            known_hash_limit: AtomicU64::new(u64::MAX),
            // Process ids repeat in containers.
            writer: format!("{}-{:016x}", std::process::id(), RandomState::new().hash_one(0)),
            written: AtomicU64::new(0),
            folder: folder.clone(),
        };
        {
            let mut changes = disk.lock().map_err(failed("cannot lock the cache"))?;
            disk.initialize(&mut changes, alone).map_err(failed("cannot scan the cache"))?;
        }
        // Other processes may use the folder from now on.
        let shared = disk._users.unlock().and_then(|()| disk._users.lock_shared());
        shared.map_err(failed("cannot lock the cache"))?;
        Ok(disk)
    }

    /// Determines the size of all entries if no other process knows it, and evicts down to the
    /// limit.
    fn initialize(&self, changes: &mut Locked<'_>, alone: bool) -> io::Result<()> {
        for prefix in 0..=u8::MAX {
            fs::create_dir_all(self.prefix_folder(prefix))?;
        }
        fs::create_dir_all(self.folder.join(NEW))?;
        let known = self.read_usage();
        let mut usage = known.unwrap_or(Usage { bytes: 0, max_bytes: 0, hash_limit: u128::MAX });
        if alone || known.is_none() {
            usage.bytes = 0;
            for prefix in 0..=u8::MAX {
                for (_, entry) in self.list(prefix)? {
                    usage.bytes += entry.len();
                }
            }
        }
        if alone {
            // The processes that wrote these files have ended.
            for entry in fs::read_dir(self.folder.join(NEW))? {
                fs::remove_file(entry?.path())?;
            }
        }
        // Resets the hash limit if the limit has grown or files were removed.
        if self.max_bytes > usage.max_bytes || usage.bytes < self.max_bytes / 10 * 9 {
            usage.hash_limit = u128::MAX;
        }
        usage.max_bytes = self.max_bytes;
        while usage.bytes > self.max_bytes && self.evict(changes, &mut usage)? {}
        self.write_usage(&usage)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn bytes(&self) -> u64 {
        self.known_bytes.load(Ordering::Relaxed)
    }

    /// Returns whether the hash of an entry is below the limit, so that a lookup or write may
    /// succeed.
    pub(super) fn may_admit(&self, id: &EntryId) -> bool {
        // Compares only half of the hash. Rare false positives are harmless.
        ((id.hash >> 64) as u64) < self.known_hash_limit.load(Ordering::Relaxed)
    }

    /// Reads an entry of at most `allowed` bytes. Removes a file that is corrupt or has another
    /// version.
    pub(super) fn get(&self, id: &EntryId, allowed: u64) -> DiskLookup {
        let path = self.path(id.hash);
        let Ok((file, len)) = open_entry(&path) else { return DiskLookup::Miss };
        if len > allowed.saturating_add(id.file_len(0)) {
            return DiskLookup::Large(len);
        }
        let bytes = if len <= self.max_bytes { read(&file, len) } else { None };
        let found = bytes.map_or(StoredEntry::Corrupt, |bytes| id.contents(bytes));
        if let StoredEntry::Contents(contents) = found {
            if self.policy == CachePolicy::Recent {
                // If times cannot be set, entries are evicted by the time of writing.
                let _ = file.set_modified(SystemTime::now());
            }
            return DiskLookup::Hit(contents);
        }
        if let Ok(_changes) = self.lock()
            && let Some(mut usage) = self.read_usage()
            // Keeps a file of another length that was renamed to this path meanwhile.
            && open_entry(&path).is_ok_and(|(_, now)| now == len)
            && fs::remove_file(&path).is_ok()
        {
            usage.bytes = usage.bytes.saturating_sub(len);
            // An error leaves a wrong size, which the next opening corrects.
            let _ = self.write_usage(&usage);
        }
        if found == StoredEntry::Other { DiskLookup::Miss } else { DiskLookup::Corrupt }
    }

    /// Writes an entry if the policy admits it. Returns whether it was written.
    pub(super) fn put(&self, id: &EntryId, contents: &[u8]) -> io::Result<bool> {
        let len = id.file_len(contents.len());
        if len > self.max_bytes || open_entry(&self.path(id.hash)).is_ok() {
            return Ok(false);
        }
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let new = self.folder.join(NEW).join(format!("{}-{number}", self.writer));
        let put =
            write(&new, &id.head(contents), contents).and_then(|()| self.admit(&new, id.hash, len));
        if !matches!(put, Ok(true)) {
            let _ = fs::remove_file(&new);
        }
        put
    }

    /// Evicts entries until a new file fits, and renames it. Returns whether the entry was
    /// admitted.
    fn admit(&self, new: &Path, hash: u128, len: u64) -> io::Result<bool> {
        let path = self.path(hash);
        let mut changes = self.lock()?;
        let mut usage = self.read_usage().ok_or_else(|| io::Error::other("usage is unknown"))?;
        self.remember_usage(&usage);
        if hash >= usage.hash_limit || open_entry(&path).is_ok() {
            return Ok(false);
        }
        while usage.bytes + len > self.max_bytes {
            let larger = match self.policy {
                CachePolicy::StableSubset => {
                    self.next_victim(&mut changes)?.is_some_and(|h| h > hash)
                }
                CachePolicy::Recent => true,
            };
            if !larger || !self.evict(&mut changes, &mut usage)? {
                if self.policy == CachePolicy::StableSubset {
                    usage.hash_limit = usage.hash_limit.min(hash);
                }
                self.write_usage(&usage)?;
                return Ok(false);
            }
        }
        // The size is updated first, so that a crash leaves it too large rather than too small.
        usage.bytes += len;
        self.write_usage(&usage)?;
        fs::rename(new, &path)?;
        if self.policy == CachePolicy::StableSubset && (hash >> 120) as u8 == changes.prefix {
            changes.candidates.insert((SystemTime::UNIX_EPOCH, hash), len);
        }
        Ok(true)
    }

    /// Evicts one entry by the policy. Returns whether there was one.
    fn evict(&self, changes: &mut Locked<'_>, usage: &mut Usage) -> io::Result<bool> {
        let Some(hash) = self.next_victim(changes)? else { return Ok(false) };
        let key = match self.policy {
            CachePolicy::StableSubset => changes.candidates.pop_last(),
            CachePolicy::Recent => changes.candidates.pop_first(),
        };
        let Some((_, len)) = key else { return Ok(false) };
        match fs::remove_file(self.path(hash)) {
            Ok(()) => usage.bytes = usage.bytes.saturating_sub(len),
            // Another process has removed the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if self.policy == CachePolicy::StableSubset {
            usage.hash_limit = usage.hash_limit.min(hash);
        }
        Ok(true)
    }

    /// Returns the hash of the entry to evict next.
    fn next_victim(&self, changes: &mut Locked<'_>) -> io::Result<Option<u128>> {
        if self.policy == CachePolicy::Recent {
            if changes.candidates.len() <= CANDIDATES / 2 {
                self.collect_oldest(changes)?;
            }
            return Ok(changes.candidates.first_key_value().map(|(&(_, hash), _)| hash));
        }
        loop {
            if let Some((&(_, hash), _)) = changes.candidates.last_key_value() {
                return Ok(Some(hash));
            }
            // Other processes may have added entries to this folder.
            let found = self.list(changes.prefix)?;
            if found.is_empty() {
                let Some(next) = changes.prefix.checked_sub(1) else {
                    changes.prefix = u8::MAX;
                    return Ok(None);
                };
                changes.prefix = next;
                continue;
            }
            let found =
                found.into_iter().map(|(hash, data)| ((SystemTime::UNIX_EPOCH, hash), data.len()));
            changes.candidates.extend(found);
        }
    }

    /// Lists further folders and collects their oldest entries as eviction candidates.
    fn collect_oldest(&self, changes: &mut Locked<'_>) -> io::Result<()> {
        changes.candidates.clear();
        for _ in 0..=u8::MAX {
            // An odd step visits all 256 folders.
            changes.prefix = changes.prefix.wrapping_add(97);
            for (hash, data) in self.list(changes.prefix)? {
                changes.candidates.insert((data.modified()?, hash), data.len());
            }
            if changes.candidates.len() >= CANDIDATES {
                break;
            }
        }
        Ok(())
    }

    /// Lists the entries whose hash begins with this byte.
    fn list(&self, prefix: u8) -> io::Result<Vec<(u128, fs::Metadata)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.prefix_folder(prefix))? {
            let entry = entry?;
            let name = entry.file_name();
            let hash = name.to_str().filter(|name| name.len() == 32);
            let Some(hash) = hash.and_then(|name| u128::from_str_radix(name, 16).ok()) else {
                continue;
            };
            match entry.metadata() {
                Ok(data) if data.is_file() && (hash >> 120) as u8 == prefix => {
                    found.push((hash, data));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    fn prefix_folder(&self, prefix: u8) -> PathBuf {
        self.folder.join(format!("{prefix:02x}"))
    }

    fn path(&self, hash: u128) -> PathBuf {
        self.prefix_folder((hash >> 120) as u8).join(format!("{hash:032x}"))
    }

    fn lock(&self) -> io::Result<Locked<'_>> {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.lock.lock()?;
        Ok(Locked(changes))
    }

    /// Reads `usage`. Returns `None` if it is corrupt. The next opening then rebuilds it.
    fn read_usage(&self) -> Option<Usage> {
        let bytes = fs::read(self.folder.join("usage")).ok()?;
        Usage::from_bytes(bytes.as_slice().try_into().ok()?)
    }

    fn write_usage(&self, usage: &Usage) -> io::Result<()> {
        self.remember_usage(usage);
        // One small write in place: if the process is killed, either all or none of the bytes are
        // written.
        let mut file = open_file(&self.folder.join("usage"))?;
        file.write_all(&usage.to_bytes())
    }

    fn remember_usage(&self, usage: &Usage) {
        self.known_bytes.store(usage.bytes, Ordering::Relaxed);
        self.known_hash_limit.store((usage.hash_limit >> 64) as u64, Ordering::Relaxed);
    }
}

/// Holds the locks for changes of the folder.
struct Locked<'a>(MutexGuard<'a, Changes>);

impl std::ops::Deref for Locked<'_> {
    type Target = Changes;
    fn deref(&self) -> &Changes {
        &self.0
    }
}

impl std::ops::DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Changes {
        &mut self.0
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // The lock ends with the process at the latest.
        let _ = self.0.lock.unlock();
    }
}

/// Creates the folder and its marker, or checks the marker. Safe for concurrent processes.
fn create_or_check(folder: &Path) -> Result<()> {
    let key = Key::from_path(folder);
    let failed = |error| os_error("cannot create the cache folder", &key, error);
    fs::create_dir_all(folder).map_err(failed)?;
    let marker = folder.join(MARKER);
    let has_marker = || match fs::read_to_string(&marker) {
        Ok(version) if version.trim() == VERSION => Ok(true),
        // An interrupted write left an empty marker.
        Ok(version) if version.is_empty() => Ok(false),
        Ok(version) => {
            let version: String = version.trim().chars().take(20).collect();
            let message = format!(
                "the cache has format version {version:?}, but this program supports {VERSION:?}; \
                 use another folder, or delete this one"
            );
            Err(Error::new(ErrorKind::Unsupported, message).with_key(key.display_name()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(error)),
    };
    if has_marker()? {
        return Ok(());
    }
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let is_marker = name.to_string_lossy().starts_with(MARKER);
        // Another process writes its marker before other files.
        if !is_marker && !has_marker()? {
            let message = "the folder contains files that do not belong to a cache; use an empty \
                           or new folder";
            let error = Error::new(ErrorKind::InvalidArgument, message);
            return Err(error.with_key(key.display_name()));
        }
    }
    let number = MARKERS.fetch_add(1, Ordering::Relaxed);
    let new = folder.join(format!("{MARKER}.{}-{number}", std::process::id()));
    fs::write(&new, format!("{VERSION}\n")).and_then(|()| fs::rename(&new, &marker)).map_err(failed)
}

/// Opens a file for reading and writing, and creates it if it does not exist.
fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

fn open_entry(path: &Path) -> io::Result<(File, u64)> {
    let data = fs::metadata(path)?;
    if !data.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = File::open(path)?;
    Ok((file, data.len()))
}

/// Reads up to `len` bytes. A file that was truncated meanwhile fails the check of its hash.
fn read(mut file: &File, len: u64) -> Option<Bytes> {
    let mut buffer = ObjectBuffer::zeroed(usize::try_from(len).ok()?).ok()?;
    let (mut at, unread) = (0, buffer.bytes_mut());
    while at < unread.len() {
        match file.read(&mut unread[at..]) {
            Ok(0) => break,
            Ok(read) => at += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    Some(buffer.into_bytes(at))
}

fn write(path: &Path, head: &[u8], contents: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(head)?;
    file.write_all(contents)
}
