//! Recursive folder listings: sorted, parallel, following symbolic links except in loops.
//!
//! Only names and types are read. Several folders are listed concurrently, which hides the latency
//! of cold disks and network file systems.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, DirEntry};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};

use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::Key;
use crate::files::os_error;

/// Maximum number of nested links to folders. Each level of links to folders full of links doubles
/// the number of paths.
const MAX_NESTED_LINKS: usize = 8;
/// Maximum total number of repeated visits of folders through links.
const MAX_REVISITS: usize = 100_000;
/// Maximum number of threads. They wait for I/O and need little CPU time.
const MAX_THREADS: usize = 16;
/// Number of pending folders per thread above which another thread starts. Listing few folders
/// takes less time than starting threads.
const FOLDERS_PER_THREAD: usize = 4;

/// Lists folders recursively.
pub(crate) struct Walker<'a> {
    root: &'a Path,
    /// Selects files by name.
    is_selected: Box<dyn Fn(&OsStr) -> bool + Sync + 'a>,
    skip_hidden: bool,
    hashing: RandomState,
    observations: Mutex<Observations>,
}

/// Counts and warnings of a walk, in addition to its results.
#[derive(Default)]
pub(crate) struct Observations {
    /// Number of files that were not selected.
    pub(crate) unselected: u64,
    /// Entries that were omitted although they may be intended, in arbitrary order: link loops,
    /// broken links to folders, and selected names of special files.
    pub(crate) warnings: Vec<Error>,
    /// Hashes of the canonical paths of folders reached through links. A hash collision only counts
    /// one revisit too many.
    reached: HashSet<u64>,
    revisits: usize,
}

/// A folder to list, and the links that lead to it.
#[derive(Clone)]
pub(crate) struct FolderPath {
    pub(crate) path: PathBuf,
    /// The canonical path.
    real: PathBuf,
    /// Canonical paths of the folders that contain the links on the path.
    link_folders: Arc<[PathBuf]>,
}

/// The entries of one folder. Each list is sorted by the bytes of the names.
pub(crate) struct Listing {
    pub(crate) folders: Vec<FolderPath>,
    pub(crate) files: Names,
}

/// A folder and its selected files, which are sorted by the bytes of their names.
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    pub(crate) files: Names,
}

/// File names as bytes of a [`Key`], in one allocation.
#[derive(Default)]
pub(crate) struct Names {
    joined: Vec<u8>,
    spans: Vec<Range<usize>>,
}

impl Names {
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.spans.iter().map(|span| &self.joined[span.clone()])
    }

    fn push(&mut self, name: &OsStr) {
        let start = self.joined.len();
        self.joined.extend_from_slice(Key::from_path(name).as_bytes());
        self.spans.push(start..self.joined.len());
    }

    fn sort(&mut self) {
        let Names { joined, spans } = self;
        spans.sort_unstable_by(|a, b| joined[a.clone()].cmp(&joined[b.clone()]));
    }
}

enum EntryType {
    Folder(FolderPath),
    File,
    Omitted,
}

impl<'a> Walker<'a> {
    /// Creates a walker of `root` that selects files by name.
    pub(crate) fn new(root: &'a Path, is_selected: impl Fn(&OsStr) -> bool + Sync + 'a) -> Self {
        Walker {
            root,
            is_selected: Box::new(is_selected),
            skip_hidden: false,
            hashing: RandomState::new(),
            observations: Mutex::default(),
        }
    }

    /// Omits files and folders whose name begins with a dot.
    pub(crate) fn skip_hidden(mut self) -> Self {
        self.skip_hidden = true;
        self
    }

    /// Returns the folder at which the walk starts.
    pub(crate) fn root(&self) -> Result<FolderPath> {
        let real = fs::canonicalize(self.root)
            .map_err(|error| os_error("cannot list folder", &self.root.into(), error))?;
        Ok(FolderPath { path: self.root.to_path_buf(), real, link_folders: Arc::default() })
    }

    /// Returns the observations of all walks.
    pub(crate) fn into_observations(self) -> Observations {
        self.observations.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// For each of `starts`, returns all folders at or below it that contain selected files, sorted
    /// by the bytes of their paths.
    pub(crate) fn walk(&self, starts: Vec<FolderPath>) -> Result<Vec<Vec<Folder>>> {
        let mut found: Vec<Vec<Folder>> = starts.iter().map(|_| Vec::new()).collect();
        // Reversed, so that the first folder is on top of the stack.
        let pending = starts.into_iter().enumerate().rev().collect();
        let walk = Walk {
            walker: self,
            progress: Mutex::new(Progress { pending, threads: 1, ..Progress::default() }),
            changed: Condvar::new(),
        };
        thread::scope(|scope| walk.work(scope));
        let progress = walk.progress.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = progress.failed {
            return Err(error);
        }
        for (start, folder) in progress.found {
            found[start].push(folder);
        }
        for folders in &mut found {
            // Compares the bytes of the paths, including separators. `Path` compares by component.
            folders
                .sort_unstable_by(|a, b| bytes(a.path.as_os_str()).cmp(bytes(b.path.as_os_str())));
        }
        Ok(found)
    }

    /// Lists the entries of a folder.
    pub(crate) fn list(&self, folder_path: &FolderPath) -> Result<Listing> {
        self.count_revisits(folder_path)?;
        let failed = |error| os_error("cannot list folder", &(&*folder_path.path).into(), error);
        let mut listing = Listing { folders: Vec::new(), files: Names::default() };
        let mut unselected = 0;
        for entry in fs::read_dir(&folder_path.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if self.skip_hidden && bytes(&name).starts_with(b".") {
                continue;
            }
            match self.classify(folder_path, &entry, &name)? {
                EntryType::Folder(folder) => listing.folders.push(folder),
                EntryType::File if (self.is_selected)(&name) => listing.files.push(&name),
                EntryType::File => unselected += 1,
                EntryType::Omitted => {}
            }
        }
        self.observations().unselected += unselected;
        listing.folders.sort_unstable_by(|a, b| a.path.file_name().cmp(&b.path.file_name()));
        listing.files.sort();
        Ok(listing)
    }

    fn observations(&self) -> MutexGuard<'_, Observations> {
        self.observations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Determines the type of an entry. Only symbolic links need an additional system call.
    fn classify(&self, parent: &FolderPath, entry: &DirEntry, name: &OsStr) -> Result<EntryType> {
        let failed = |error| {
            os_error("cannot read the type of a directory entry", &entry.path().into(), error)
        };
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_file() {
            return Ok(EntryType::File);
        }
        if kind.is_dir() {
            let (real, link_folders) = (parent.real.join(name), Arc::clone(&parent.link_folders));
            return Ok(EntryType::Folder(FolderPath { path: entry.path(), real, link_folders }));
        }
        if !kind.is_symlink() {
            if (self.is_selected)(name) {
                self.warn(&entry.path(), "not a regular file");
            }
            return Ok(EntryType::Omitted);
        }
        let path = entry.path();
        match fs::metadata(&path) {
            Ok(target) if target.is_file() => Ok(EntryType::File),
            Ok(target) if target.is_dir() => {
                let real = fs::canonicalize(&path).map_err(failed)?;
                let link_folders: Arc<[PathBuf]> =
                    parent.link_folders.iter().chain([&parent.real]).cloned().collect();
                // A link loop: the target contains one of the folders on the path.
                if link_folders.iter().any(|folder| folder.starts_with(&real)) {
                    self.warn(&path, "symbolic link loop: the target contains this link");
                    return Ok(EntryType::Omitted);
                }
                if link_folders.len() > MAX_NESTED_LINKS {
                    let message = format!(
                        "more than {MAX_NESTED_LINKS} nested symbolic links to folders on this path"
                    );
                    return Err(limit_exceeded(&path, message));
                }
                Ok(EntryType::Folder(FolderPath { path, real, link_folders }))
            }
            Ok(_) => {
                if (self.is_selected)(name) {
                    self.warn(&path, "not a regular file");
                }
                Ok(EntryType::Omitted)
            }
            // A broken link with a selected name is listed as a file. Reading the file fails, and
            // the failure policy applies.
            Err(_) if (self.is_selected)(name) => Ok(EntryType::File),
            Err(error) => {
                let warning = os_error("broken symbolic link", &path.into(), error);
                self.observations().warnings.push(warning);
                Ok(EntryType::Omitted)
            }
        }
    }

    /// Limits the visits of folders through links. The number of folders without links on their
    /// path is finite.
    fn count_revisits(&self, folder_path: &FolderPath) -> Result<()> {
        if folder_path.link_folders.is_empty() {
            return Ok(());
        }
        let mut observations = self.observations();
        if observations.reached.insert(self.hashing.hash_one(&folder_path.real)) {
            return Ok(());
        }
        observations.revisits += 1;
        if observations.revisits <= MAX_REVISITS {
            return Ok(());
        }
        let message = format!(
            "more than {MAX_REVISITS} symbolic links lead to folders that were already visited"
        );
        Err(limit_exceeded(&folder_path.path, message))
    }

    fn warn(&self, path: &Path, message: &str) {
        let key = Key::from_path(path).display_name();
        let warning = Error::new(ErrorKind::InvalidArgument, message).with_key(key);
        self.observations().warnings.push(warning);
    }
}

/// A walk by several threads.
struct Walk<'w> {
    walker: &'w Walker<'w>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    /// Folders to list, each with the index of its start.
    pending: Vec<(usize, FolderPath)>,
    /// Number of folders being listed.
    in_flight: usize,
    threads: usize,
    found: Vec<(usize, Folder)>,
    failed: Option<Error>,
}

impl Walk<'_> {
    /// The loop of each thread until all folders are listed.
    fn work<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let mut progress = self.lock();
        loop {
            if progress.failed.is_some() {
                return;
            }
            let Some((start, folder_path)) = progress.pending.pop() else {
                if progress.in_flight == 0 {
                    return;
                }
                progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            progress.in_flight += 1;
            let needs_thread = progress.pending.len() > FOLDERS_PER_THREAD * progress.threads
                && progress.threads < MAX_THREADS;
            if needs_thread {
                progress.threads += 1;
            }
            drop(progress);
            if needs_thread {
                let helper = thread::Builder::new().name("spdl-list".into());
                // If no thread can be started, the existing ones do the work.
                let _ = helper.spawn_scoped(scope, || self.work(scope));
            }
            let listed = self.walker.list(&folder_path);
            progress = self.lock();
            progress.in_flight -= 1;
            match listed {
                Ok(Listing { folders, files }) => {
                    progress.pending.extend(folders.into_iter().map(|folder| (start, folder)));
                    if !files.is_empty() {
                        progress.found.push((start, Folder { path: folder_path.path, files }));
                    }
                }
                Err(error) => progress.failed = Some(error),
            }
            // Waiting threads have new folders to list, or the walk is complete.
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn limit_exceeded(path: &Path, message: String) -> Error {
    let key = Key::from_path(path).display_name();
    Error::new(ErrorKind::LimitExceeded, message).with_key(key)
}

/// Returns the bytes by which names are sorted.
pub(crate) fn bytes(name: &OsStr) -> &[u8] {
    name.as_encoded_bytes()
}
