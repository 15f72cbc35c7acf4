//! Walking folders: sorted, through links but never in circles, without asking for more than names;
//! many folders at once, since a cold disk or a network file system makes each of them wait.

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

/// So many links may lie on the way to a folder. Links to folders full of links double the number of
/// ways with every level.
const MOST_NESTED_LINKS: usize = 8;
/// So often, in all, links may lead to folders that links have led to before.
const MOST_REVISITS: usize = 100_000;
/// So many folders are listed at once. They wait for a disk or a server, and take little of a CPU.
const MOST_THREADS: usize = 16;
/// So many folders must wait for each thread before another one is started: few folders are listed
/// sooner than threads are.
const FOLDERS_PER_THREAD: usize = 4;

/// Lists folders, and what lies below them.
pub(crate) struct Walker<'a> {
    root: &'a Path,
    /// By its name: whether a file belongs to the result.
    wanted: Box<dyn Fn(&OsStr) -> bool + Sync + 'a>,
    skip_hidden: bool,
    hashing: RandomState,
    seen: Mutex<Seen>,
}

/// What was seen on the way beside the result.
#[derive(Default)]
pub(crate) struct Seen {
    /// How many files were not wanted.
    pub(crate) unwanted: u64,
    /// What was left out though it may have been meant: loops of links, broken links to folders,
    /// and what bears a file's name but is none. In no order.
    pub(crate) warnings: Vec<Error>,
    /// The hashes of the real paths of all folders that were reached through links: a few bytes
    /// for each, and two that share one only count as a revisit.
    reached: HashSet<u64>,
    revisits: usize,
}

/// A folder to be listed, and the way to it.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    /// The same without links.
    real: PathBuf,
    /// The real paths of the folders that the links on the way lie in.
    left: Arc<[PathBuf]>,
}

/// What lies in one folder, each list sorted by bytes.
pub(crate) struct Listing {
    pub(crate) folders: Vec<Place>,
    pub(crate) files: Names,
}

/// A folder and its files, sorted by bytes.
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    pub(crate) files: Names,
}

/// Names of files, as the bytes of a [`Key`]: one allocation for all.
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

enum Found {
    Folder(Place),
    File,
    Nothing,
}

impl<'a> Walker<'a> {
    /// A walker below `root`.
    pub(crate) fn new(root: &'a Path, wanted: impl Fn(&OsStr) -> bool + Sync + 'a) -> Self {
        Walker {
            root,
            wanted: Box::new(wanted),
            skip_hidden: false,
            hashing: RandomState::new(),
            seen: Mutex::default(),
        }
    }

    /// Leaves out files and folders whose name starts with a dot.
    pub(crate) fn skip_hidden(mut self) -> Self {
        self.skip_hidden = true;
        self
    }

    /// Where the walk starts.
    pub(crate) fn root(&self) -> Result<Place> {
        let real = fs::canonicalize(self.root)
            .map_err(|error| os_error("cannot list this folder", &self.root.into(), error))?;
        Ok(Place { path: self.root.to_path_buf(), real, left: Arc::default() })
    }

    /// What was seen so far beside the results.
    pub(crate) fn into_seen(self) -> Seen {
        self.seen.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// For each of `starts`: itself and all folders below it that hold wanted files, sorted by the
    /// bytes of their paths.
    pub(crate) fn walk(&self, starts: Vec<Place>) -> Result<Vec<Vec<Folder>>> {
        let mut found: Vec<Vec<Folder>> = starts.iter().map(|_| Vec::new()).collect();
        // The first one on top.
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
            // By all bytes, separators included; `Path` itself compares component by component.
            folders
                .sort_unstable_by(|a, b| bytes(a.path.as_os_str()).cmp(bytes(b.path.as_os_str())));
        }
        Ok(found)
    }

    /// What lies directly in `place`.
    pub(crate) fn list(&self, place: &Place) -> Result<Listing> {
        self.count_revisits(place)?;
        let failed = |error| os_error("cannot list this folder", &(&*place.path).into(), error);
        let mut listing = Listing { folders: Vec::new(), files: Names::default() };
        let mut unwanted = 0;
        for entry in fs::read_dir(&place.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if self.skip_hidden && bytes(&name).starts_with(b".") {
                continue;
            }
            match self.classify(place, &entry, &name)? {
                Found::Folder(folder) => listing.folders.push(folder),
                Found::File if (self.wanted)(&name) => listing.files.push(&name),
                Found::File => unwanted += 1,
                Found::Nothing => {}
            }
        }
        self.seen().unwanted += unwanted;
        listing.folders.sort_unstable_by(|a, b| a.path.file_name().cmp(&b.path.file_name()));
        listing.files.sort();
        Ok(listing)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only links cost a look at what they lead to; for all else the listing has the type.
    fn classify(&self, parent: &Place, entry: &DirEntry, name: &OsStr) -> Result<Found> {
        let failed = |error| os_error("cannot look at this", &entry.path().into(), error);
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_file() {
            return Ok(Found::File);
        }
        if kind.is_dir() {
            let (real, left) = (parent.real.join(name), Arc::clone(&parent.left));
            return Ok(Found::Folder(Place { path: entry.path(), real, left }));
        }
        if !kind.is_symlink() {
            if (self.wanted)(name) {
                self.warn(&entry.path(), "not a regular file");
            }
            return Ok(Found::Nothing);
        }
        let path = entry.path();
        match fs::metadata(&path) {
            Ok(target) if target.is_file() => Ok(Found::File),
            Ok(target) if target.is_dir() => {
                let real = fs::canonicalize(&path).map_err(failed)?;
                let left: Arc<[PathBuf]> =
                    parent.left.iter().chain([&parent.real]).cloned().collect();
                // It would come back: its target holds one of the folders on the way to it.
                if left.iter().any(|folder| folder.starts_with(&real)) {
                    self.warn(&path, "this link leads to a folder that it lies in");
                    return Ok(Found::Nothing);
                }
                if left.len() > MOST_NESTED_LINKS {
                    let message = format!(
                        "more than {MOST_NESTED_LINKS} links to folders lie on the way to this one"
                    );
                    return Err(limit_exceeded(&path, message));
                }
                Ok(Found::Folder(Place { path, real, left }))
            }
            Ok(_) => {
                if (self.wanted)(name) {
                    self.warn(&path, "not a regular file");
                }
                Ok(Found::Nothing)
            }
            // A file that cannot be reached is for the reader to report, by the pipeline's policy.
            Err(_) if (self.wanted)(name) => Ok(Found::File),
            Err(error) => {
                let warning = os_error("this link leads nowhere", &path.into(), error);
                self.seen().warnings.push(warning);
                Ok(Found::Nothing)
            }
        }
    }

    /// Folders without links on the way are as many as the disk holds, and need no limit.
    fn count_revisits(&self, place: &Place) -> Result<()> {
        if place.left.is_empty() {
            return Ok(());
        }
        let mut seen = self.seen();
        if seen.reached.insert(self.hashing.hash_one(&place.real)) {
            return Ok(());
        }
        seen.revisits += 1;
        if seen.revisits <= MOST_REVISITS {
            return Ok(());
        }
        let message = format!(
            "links led to folders that they had led to before more than {MOST_REVISITS} times, at \
             last here"
        );
        Err(limit_exceeded(&place.path, message))
    }

    fn warn(&self, path: &Path, message: &str) {
        let key = Key::from_path(path).display_name();
        let warning = Error::new(ErrorKind::InvalidArgument, message).with_key(key);
        self.seen().warnings.push(warning);
    }
}

/// One walk, of as many threads as there is work for.
struct Walk<'w> {
    walker: &'w Walker<'w>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    /// Folders to list, with the number of the start that they lie below.
    pending: Vec<(usize, Place)>,
    /// How many are being listed.
    under_way: usize,
    threads: usize,
    found: Vec<(usize, Folder)>,
    failed: Option<Error>,
}

impl Walk<'_> {
    /// What each thread does, from the first to the last folder.
    fn work<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let mut progress = self.lock();
        loop {
            if progress.failed.is_some() {
                return;
            }
            let Some((start, place)) = progress.pending.pop() else {
                if progress.under_way == 0 {
                    return;
                }
                progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            progress.under_way += 1;
            let wants_help = progress.pending.len() > FOLDERS_PER_THREAD * progress.threads
                && progress.threads < MOST_THREADS;
            if wants_help {
                progress.threads += 1;
            }
            drop(progress);
            if wants_help {
                let helper = thread::Builder::new().name("spdl-list".into());
                // Without another thread it takes longer, and that is all.
                let _ = helper.spawn_scoped(scope, || self.work(scope));
            }
            let listed = self.walker.list(&place);
            progress = self.lock();
            progress.under_way -= 1;
            match listed {
                Ok(Listing { folders, files }) => {
                    progress.pending.extend(folders.into_iter().map(|folder| (start, folder)));
                    if !files.is_empty() {
                        progress.found.push((start, Folder { path: place.path, files }));
                    }
                }
                Err(error) => progress.failed = Some(error),
            }
            // Whoever waits has more to do, or nothing more.
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

/// The bytes that names are sorted by.
pub(crate) fn bytes(name: &OsStr) -> &[u8] {
    name.as_encoded_bytes()
}
