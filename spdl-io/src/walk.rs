//! Walking folders: sorted, through links but never in circles, without asking for more than names.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

use spdl_core::{Error, ErrorKind, Result};

use crate::Key;

/// Lists folders, and what lies below them.
pub(crate) struct Walker<'a> {
    root: &'a Path,
    /// By its name: whether a file belongs to the result.
    wanted: fn(&OsStr) -> bool,
    skip_hidden: bool,
    /// How many files were not wanted.
    pub(crate) unwanted: u64,
    /// What was left out though it may have been meant: loops of links, broken links to folders,
    /// and what bears a file's name but is none.
    pub(crate) warnings: Vec<Error>,
}

/// The names in one folder, each list sorted by bytes.
pub(crate) struct Listing {
    pub(crate) folders: Vec<OsString>,
    pub(crate) files: Vec<OsString>,
}

/// A folder and its files, sorted by bytes.
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    pub(crate) files: Vec<OsString>,
}

enum Found {
    Folder,
    File,
    Nothing,
}

impl<'a> Walker<'a> {
    /// A walker below `root`.
    pub(crate) fn new(root: &'a Path, wanted: fn(&OsStr) -> bool) -> Self {
        Walker { root, wanted, skip_hidden: false, unwanted: 0, warnings: Vec::new() }
    }

    /// Leaves out files and folders whose name starts with a dot.
    pub(crate) fn skip_hidden(mut self) -> Self {
        self.skip_hidden = true;
        self
    }

    /// `start` and all folders below it that hold wanted files, sorted by the bytes of their paths.
    pub(crate) fn walk(&mut self, start: &Path) -> Result<Vec<Folder>> {
        let mut found = Vec::new();
        let mut pending = vec![start.to_path_buf()];
        while let Some(path) = pending.pop() {
            let Listing { folders, files } = self.list(&path)?;
            pending.extend(folders.iter().map(|name| path.join(name)));
            if !files.is_empty() {
                found.push(Folder { path, files });
            }
        }
        // By all bytes, separators included; `Path` itself compares component by component.
        found.sort_unstable_by(|a, b| bytes(a.path.as_os_str()).cmp(bytes(b.path.as_os_str())));
        Ok(found)
    }

    /// What lies directly in `path`.
    pub(crate) fn list(&mut self, path: &Path) -> Result<Listing> {
        let failed = |error| os_error("cannot list this folder", &path.into(), error);
        let mut listing = Listing { folders: Vec::new(), files: Vec::new() };
        for entry in fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if self.skip_hidden && bytes(&name).starts_with(b".") {
                continue;
            }
            match self.classify(path, &entry, &name)? {
                Found::Folder => listing.folders.push(name),
                Found::File if (self.wanted)(&name) => listing.files.push(name),
                Found::File => self.unwanted += 1,
                Found::Nothing => {}
            }
        }
        listing.folders.sort_unstable();
        listing.files.sort_unstable();
        Ok(listing)
    }

    /// Only links cost a look at what they lead to; for all else the listing has the type.
    fn classify(&mut self, parent: &Path, entry: &DirEntry, name: &OsStr) -> Result<Found> {
        let failed = |error| os_error("cannot look at this", &entry.path().into(), error);
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_file() {
            return Ok(Found::File);
        }
        if kind.is_dir() {
            return Ok(Found::Folder);
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
                if self.is_loop(parent, &path).map_err(failed)? {
                    self.warn(&path, "this link leads to a folder that it lies in");
                    return Ok(Found::Nothing);
                }
                Ok(Found::Folder)
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

    /// Whether following the link would come back: its target holds one of the folders on the way
    /// to it. Each of them is resolved for itself, since links may lie between them.
    fn is_loop(&self, parent: &Path, link: &Path) -> io::Result<bool> {
        let target = fs::canonicalize(link)?;
        for folder in parent.ancestors().take_while(|folder| folder.starts_with(self.root)) {
            if fs::canonicalize(folder)?.starts_with(&target) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn warn(&mut self, path: &Path, message: &str) {
        let key = Key::from_path(path).display_name();
        self.warnings.push(Error::new(ErrorKind::InvalidArgument, message).with_key(key));
    }
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
