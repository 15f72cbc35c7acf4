//! The tier in a folder, which several processes may share.
//!
//! ```text
//! FOLDER/spdl-cache     says that the folder is a cache, and of which version
//!        users          locked by all who use the folder
//!        lock           locked by whoever changes what is in it
//!        usage          how much that is; see `Usage`
//!        new/           files that are being written
//!        00/ … ff/      the entries, by the first byte of their hashes
//! ```
//!
//! Locks are those of the operating system: they end with their process. Nothing is synced to the
//! disk: what a loss of power tears is seen by its checksum.

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
use super::entry::{EntryId, Found};
use crate::fetch::Key;
use crate::files::os_error;

const MARKER: &str = "spdl-cache";
/// How many of those this process has written.
static MARKERS: AtomicU64 = AtomicU64::new(0);
const VERSION: &str = "1";
const NEW: &str = "new";

/// How many entries are looked at to find the one that was used least recently.
const CANDIDATES: usize = 64;

pub(super) struct Disk {
    folder: PathBuf,
    max_bytes: u64,
    policy: CachePolicy,
    /// Held locked as long as the folder is used.
    _users: File,
    changes: Mutex<Changes>,
    /// The bytes in use, as far as this process knows.
    known_bytes: AtomicU64,
    /// The upper half of the ceiling, as far as this process knows.
    known_ceiling: AtomicU64,
    /// Names for files that are being written: of this user of the folder, and counted.
    writer: String,
    written: AtomicU64,
}

/// What is needed to change the folder. Its mutex keeps the threads of this process apart, the lock
/// of the file the processes.
struct Changes {
    lock: File,
    /// Entries that may have to go, with their lengths, by their last use (the same time where it does
    /// not matter) and their hashes.
    candidates: BTreeMap<(SystemTime, u128), u64>,
    /// The first byte of the hashes from which candidates come next.
    prefix: u8,
}

/// What was found under a name.
#[derive(Debug, PartialEq)]
pub(super) enum Kept {
    Whole(Bytes),
    Damaged,
    Nothing,
}

/// How much is in the folder: 40 bytes, with a checksum.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Usage {
    /// The lengths of all files.
    bytes: u64,
    /// How many they may be.
    max_bytes: u64,
    /// Entries with this hash or a larger one have no place.
    ceiling: u128,
}

impl Usage {
    fn checksum(bytes: &[u8; 40]) -> u64 {
        XxHash3_128::oneshot(&bytes[..32]) as u64
    }

    fn to_bytes(self) -> [u8; 40] {
        let mut out = [0; 40];
        out[..8].copy_from_slice(&self.bytes.to_le_bytes());
        out[8..16].copy_from_slice(&self.max_bytes.to_le_bytes());
        out[16..32].copy_from_slice(&self.ceiling.to_le_bytes());
        let checksum = Usage::checksum(&out);
        out[32..].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    fn from_bytes(bytes: &[u8; 40]) -> Option<Self> {
        let number = |at: usize| bytes[at..].first_chunk().map(|&chunk| u64::from_le_bytes(chunk));
        let ceiling = u128::from_le_bytes(*bytes[16..].first_chunk()?);
        let whole = number(32)? == Usage::checksum(bytes);
        let usage = Usage { bytes: number(0)?, max_bytes: number(8)?, ceiling };
        whole.then_some(usage)
    }
}

impl Disk {
    pub(super) fn open(folder: PathBuf, max_bytes: u64, policy: CachePolicy) -> Result<Self> {
        let failed = |what: &'static str| {
            let key = Key::from_path(&folder);
            move |error| os_error(what, &key, error)
        };
        claim(&folder)?;
        let users = open_file(&folder.join("users")).map_err(failed("cannot use this cache"))?;
        let lock = open_file(&folder.join("lock")).map_err(failed("cannot use this cache"))?;
        let alone = users.try_lock().is_ok();
        let changes = Changes { lock, candidates: BTreeMap::new(), prefix: u8::MAX };
        let disk = Disk {
            max_bytes,
            policy,
            _users: users,
            changes: Mutex::new(changes),
            known_bytes: AtomicU64::new(0),
            known_ceiling: AtomicU64::new(u64::MAX),
            // Process numbers are the same in many containers.
            writer: format!("{}-{:016x}", std::process::id(), RandomState::new().hash_one(0)),
            written: AtomicU64::new(0),
            folder: folder.clone(),
        };
        {
            let mut changes = disk.lock().map_err(failed("cannot lock this cache"))?;
            disk.take_over(&mut changes, alone)
                .map_err(failed("cannot look through this cache"))?;
        }
        // Others may come now.
        let shared = disk._users.unlock().and_then(|()| disk._users.lock_shared());
        shared.map_err(failed("cannot lock this cache"))?;
        Ok(disk)
    }

    /// Finds out what is there, where nobody else knows it, and makes it fit.
    fn take_over(&self, changes: &mut Locked<'_>, alone: bool) -> io::Result<()> {
        for prefix in 0..=u8::MAX {
            fs::create_dir_all(self.prefix_folder(prefix))?;
        }
        fs::create_dir_all(self.folder.join(NEW))?;
        let known = self.read_usage();
        let mut usage = known.unwrap_or(Usage { bytes: 0, max_bytes: 0, ceiling: u128::MAX });
        if alone || known.is_none() {
            usage.bytes = 0;
            for prefix in 0..=u8::MAX {
                for (_, entry) in self.list(prefix)? {
                    usage.bytes += entry.len();
                }
            }
        }
        if alone {
            // Whoever was writing these is no more.
            for entry in fs::read_dir(self.folder.join(NEW))? {
                fs::remove_file(entry?.path())?;
            }
        }
        // With much room again, by a larger limit or since files were removed, all are welcome.
        if self.max_bytes > usage.max_bytes || usage.bytes < self.max_bytes / 10 * 9 {
            usage.ceiling = u128::MAX;
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

    /// Whether an entry has a place here, and looking for it or writing it may be worth while.
    pub(super) fn has_place(&self, id: &EntryId) -> bool {
        // Half of the hash tells nearly always.
        ((id.hash >> 64) as u64) < self.known_ceiling.load(Ordering::Relaxed)
    }

    /// Reads an entry; removes one that is damaged, or of another version.
    pub(super) fn get(&self, id: &EntryId) -> Kept {
        let path = self.path(id.hash);
        let Ok((file, len)) = open_entry(&path) else { return Kept::Nothing };
        let bytes = if len <= self.max_bytes { read(&file, len) } else { None };
        let found = bytes.map_or(Found::Damaged, |bytes| id.contents(bytes));
        if let Found::Contents(contents) = found {
            if self.policy == CachePolicy::Recent {
                // Where times cannot be set, all are as old as when they were written.
                let _ = file.set_modified(SystemTime::now());
            }
            return Kept::Whole(contents);
        }
        if let Ok(_changes) = self.lock()
            && let Some(mut usage) = self.read_usage()
            // Not another one that has come in its place.
            && open_entry(&path).is_ok_and(|(_, now)| now == len)
            && fs::remove_file(&path).is_ok()
        {
            usage.bytes = usage.bytes.saturating_sub(len);
            // What cannot be counted now is counted when the folder is opened.
            let _ = self.write_usage(&usage);
        }
        if found == Found::Other { Kept::Nothing } else { Kept::Damaged }
    }

    /// Writes an entry, where there is a place for it. Says whether it did.
    pub(super) fn put(&self, id: &EntryId, contents: &[u8]) -> io::Result<bool> {
        let len = id.file_len(contents.len());
        if len > self.max_bytes || open_entry(&self.path(id.hash)).is_ok() {
            return Ok(false);
        }
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let new = self.folder.join(NEW).join(format!("{}-{number}", self.writer));
        let put = write(&new, &id.head(contents), contents)
            .and_then(|()| self.move_in(&new, id.hash, len));
        if !matches!(put, Ok(true)) {
            let _ = fs::remove_file(&new);
        }
        put
    }

    /// Makes room for a file, and gives it its name. Says whether it did.
    fn move_in(&self, new: &Path, hash: u128, len: u64) -> io::Result<bool> {
        let path = self.path(hash);
        let mut changes = self.lock()?;
        let mut usage = self.read_usage().ok_or_else(|| io::Error::other("usage is unknown"))?;
        self.learn(&usage);
        if hash >= usage.ceiling || open_entry(&path).is_ok() {
            return Ok(false);
        }
        while usage.bytes + len > self.max_bytes {
            let larger = match self.policy {
                CachePolicy::StableSubset => self.largest(&mut changes)?.is_some_and(|h| h > hash),
                CachePolicy::Recent => true,
            };
            if !larger || !self.evict(&mut changes, &mut usage)? {
                if self.policy == CachePolicy::StableSubset {
                    usage.ceiling = usage.ceiling.min(hash);
                }
                self.write_usage(&usage)?;
                return Ok(false);
            }
        }
        // Counted first: whoever is killed now leaves too little room rather than too much.
        usage.bytes += len;
        self.write_usage(&usage)?;
        fs::rename(new, &path)?;
        if self.policy == CachePolicy::StableSubset && (hash >> 120) as u8 == changes.prefix {
            changes.candidates.insert((SystemTime::UNIX_EPOCH, hash), len);
        }
        Ok(true)
    }

    /// Removes the entry that has the least right to its place. Says whether there was one.
    fn evict(&self, changes: &mut Locked<'_>, usage: &mut Usage) -> io::Result<bool> {
        let Some(hash) = self.largest(changes)? else { return Ok(false) };
        let key = match self.policy {
            CachePolicy::StableSubset => changes.candidates.pop_last(),
            CachePolicy::Recent => changes.candidates.pop_first(),
        };
        let Some((_, len)) = key else { return Ok(false) };
        match fs::remove_file(self.path(hash)) {
            Ok(()) => usage.bytes = usage.bytes.saturating_sub(len),
            // Another process was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if self.policy == CachePolicy::StableSubset {
            usage.ceiling = usage.ceiling.min(hash);
        }
        Ok(true)
    }

    /// The entry that goes next.
    fn largest(&self, changes: &mut Locked<'_>) -> io::Result<Option<u128>> {
        if self.policy == CachePolicy::Recent {
            if changes.candidates.len() <= CANDIDATES / 2 {
                self.gather_oldest(changes)?;
            }
            return Ok(changes.candidates.first_key_value().map(|(&(_, hash), _)| hash));
        }
        loop {
            if let Some((&(_, hash), _)) = changes.candidates.last_key_value() {
                return Ok(Some(hash));
            }
            // Others may have added to those that were looked through.
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

    /// Looks through some of the folders, each time others, for what was not used for long.
    fn gather_oldest(&self, changes: &mut Locked<'_>) -> io::Result<()> {
        changes.candidates.clear();
        for _ in 0..=u8::MAX {
            // An odd step goes through all of them.
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

    /// The entries whose hashes begin with this byte.
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

    /// `None` where it is damaged: it is counted anew when the folder is opened next.
    fn read_usage(&self) -> Option<Usage> {
        let bytes = fs::read(self.folder.join("usage")).ok()?;
        Usage::from_bytes(bytes.as_slice().try_into().ok()?)
    }

    fn write_usage(&self, usage: &Usage) -> io::Result<()> {
        self.learn(usage);
        // One write of few bytes in place: a process that is killed has done all or nothing.
        let mut file = open_file(&self.folder.join("usage"))?;
        file.write_all(&usage.to_bytes())
    }

    fn learn(&self, usage: &Usage) {
        self.known_bytes.store(usage.bytes, Ordering::Relaxed);
        self.known_ceiling.store((usage.ceiling >> 64) as u64, Ordering::Relaxed);
    }
}

/// The right to change the folder.
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
        // It ends with the process at the latest.
        let _ = self.0.lock.unlock();
    }
}

/// Makes the folder a cache, or checks that it is one. Several processes may do so at once.
fn claim(folder: &Path) -> Result<()> {
    let key = Key::from_path(folder);
    let failed = |error| os_error("cannot make this folder a cache", &key, error);
    fs::create_dir_all(folder).map_err(failed)?;
    let marker = folder.join(MARKER);
    let has_marker = || match fs::read_to_string(&marker) {
        Ok(version) if version.trim() == VERSION => Ok(true),
        // What a process left that was killed while it wrote.
        Ok(version) if version.is_empty() => Ok(false),
        Ok(version) => {
            let version: String = version.trim().chars().take(20).collect();
            let message = format!(
                "this cache has format {version:?}, and this program knows {VERSION:?}: use another \
                 folder, or remove this one"
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
        // Whoever puts something else here has put the marker here before.
        if !is_marker && !has_marker()? {
            let message = "this folder holds other files than those of a cache; give an empty one, \
                           or one that does not exist";
            let error = Error::new(ErrorKind::InvalidArgument, message);
            return Err(error.with_key(key.display_name()));
        }
    }
    let number = MARKERS.fetch_add(1, Ordering::Relaxed);
    let new = folder.join(format!("{MARKER}.{}-{number}", std::process::id()));
    fs::write(&new, format!("{VERSION}\n")).and_then(|()| fs::rename(&new, &marker)).map_err(failed)
}

/// Opens a file of ours, and makes it where it is missing.
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

fn read(mut file: &File, len: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(len).ok()?).ok()?;
    file.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn write(path: &Path, head: &[u8], contents: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(head)?;
    file.write_all(contents)
}
