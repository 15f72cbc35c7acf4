//! Walking folders: sorted, through links but never in circles, without asking for more than names.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use spdl_core::{Error, ErrorKind, Result};

use crate::Key;

/// So many links may lie on the way to a folder. Links to folders full of links double the number of
/// ways with every level.
const MOST_NESTED_LINKS: usize = 8;
/// So often, in all, links may lead to folders that links have led to before.
const MOST_REVISITS: usize = 100_000;

/// Lists folders, and what lies below them.
pub(crate) struct Walker<'a> {
    root: &'a Path,
    /// By its name: whether a file belongs to the result.
    wanted: Box<dyn Fn(&OsStr) -> bool + 'a>,
    skip_hidden: bool,
    /// How many files were not wanted.
    pub(crate) unwanted: u64,
    /// What was left out though it may have been meant: loops of links, broken links to folders,
    /// and what bears a file's name but is none.
    pub(crate) warnings: Vec<Error>,
    /// The hashes of the real paths of all folders that were reached through links: a few bytes
    /// for each, and two that share one only count as a revisit.
    reached: HashSet<u64>,
    hashing: RandomState,
    revisits: usize,
}

/// A folder to be listed, and the way to it.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    /// The same without links.
    real: PathBuf,
    /// The real paths of the folders that the links on the way lie in.
    left: Rc<[PathBuf]>,
}

/// What lies in one folder, each list sorted by bytes.
pub(crate) struct Listing {
    pub(crate) folders: Vec<Place>,
    pub(crate) files: Vec<OsString>,
}

/// A folder and its files, sorted by bytes.
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    pub(crate) files: Vec<OsString>,
}

enum Found {
    Folder(Place),
    File,
    Nothing,
}

impl<'a> Walker<'a> {
    /// A walker below `root`.
    pub(crate) fn new(root: &'a Path, wanted: impl Fn(&OsStr) -> bool + 'a) -> Self {
        Walker {
            root,
            wanted: Box::new(wanted),
            skip_hidden: false,
            unwanted: 0,
            warnings: Vec::new(),
            reached: HashSet::new(),
            hashing: RandomState::new(),
            revisits: 0,
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
        Ok(Place { path: self.root.to_path_buf(), real, left: Rc::default() })
    }

    /// `start` and all folders below it that hold wanted files, sorted by the bytes of their paths.
    pub(crate) fn walk(&mut self, start: Place) -> Result<Vec<Folder>> {
        let mut found = Vec::new();
        let mut pending = vec![start];
        while let Some(place) = pending.pop() {
            let Listing { folders, files } = self.list(&place)?;
            pending.extend(folders);
            if !files.is_empty() {
                found.push(Folder { path: place.path, files });
            }
        }
        // By all bytes, separators included; `Path` itself compares component by component.
        found.sort_unstable_by(|a, b| bytes(a.path.as_os_str()).cmp(bytes(b.path.as_os_str())));
        Ok(found)
    }

    /// What lies directly in `place`.
    pub(crate) fn list(&mut self, place: &Place) -> Result<Listing> {
        self.count_revisits(place)?;
        let failed = |error| os_error("cannot list this folder", &(&*place.path).into(), error);
        let mut listing = Listing { folders: Vec::new(), files: Vec::new() };
        for entry in fs::read_dir(&place.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if self.skip_hidden && bytes(&name).starts_with(b".") {
                continue;
            }
            match self.classify(place, &entry, &name)? {
                Found::Folder(folder) => listing.folders.push(folder),
                Found::File if (self.wanted)(&name) => listing.files.push(name),
                Found::File => self.unwanted += 1,
                Found::Nothing => {}
            }
        }
        listing.folders.sort_unstable_by(|a, b| a.path.file_name().cmp(&b.path.file_name()));
        listing.files.sort_unstable();
        Ok(listing)
    }

    /// Only links cost a look at what they lead to; for all else the listing has the type.
    fn classify(&mut self, parent: &Place, entry: &DirEntry, name: &OsStr) -> Result<Found> {
        let failed = |error| os_error("cannot look at this", &entry.path().into(), error);
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_file() {
            return Ok(Found::File);
        }
        if kind.is_dir() {
            let (real, left) = (parent.real.join(name), Rc::clone(&parent.left));
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
                let left: Rc<[PathBuf]> =
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
                self.warnings.push(os_error("this link leads nowhere", &path.into(), error));
                Ok(Found::Nothing)
            }
        }
    }

    /// Folders without links on the way are as many as the disk holds, and need no limit.
    fn count_revisits(&mut self, place: &Place) -> Result<()> {
        if place.left.is_empty() || self.reached.insert(self.hashing.hash_one(&place.real)) {
            return Ok(());
        }
        self.revisits += 1;
        if self.revisits <= MOST_REVISITS {
            return Ok(());
        }
        let message = format!(
            "links led to folders that they had led to before more than {MOST_REVISITS} times, at \
             last here"
        );
        Err(limit_exceeded(&place.path, message))
    }

    fn warn(&mut self, path: &Path, message: &str) {
        let key = Key::from_path(path).display_name();
        self.warnings.push(Error::new(ErrorKind::InvalidArgument, message).with_key(key));
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

/// A failure of the operating system, its words kept as the cause.
pub(crate) fn os_error(message: &str, key: &Key, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotADirectory => ErrorKind::NotFound,
        other => Error::from(io::Error::from(other)).kind(),
    };
    Error::new(kind, message).with_key(key.display_name()).with_source(error)
}
