//! The location of a tar archive, local or in a store, and access to files in the same folder.

use std::fs::{self, File};
use std::future::poll_fn;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use spdl_core::{BoxStream, Error, ErrorKind, Result, block_on};
use spdl_io::archive::{ArchiveStamp, TarIndex, TarOptions};
use spdl_io::datasets::stored_files;
use spdl_io::shards::{MANIFEST, Manifest, Sums};
use spdl_io::{Fetcher, Key, LocalFetcher, ReadRequest, StoreRegistry};
use twox_hash::XxHash3_128;

use crate::ui::failure::Failure;

/// The location of an archive.
#[derive(Clone, Debug)]
pub(crate) enum Location {
    /// A local file.
    Local(PathBuf),
    /// An object in a store.
    Remote(RemoteLocation),
}

/// The location of an object in a store.
#[derive(Clone, Debug)]
pub(crate) struct RemoteLocation {
    pub(super) fetcher: Arc<dyn Fetcher>,
    pub(super) key: Key,
    /// The URL without secrets.
    pub(super) address: String,
    /// Whether the URL is signed; a signed URL gives access to no other object.
    pub(super) is_signed: bool,
    /// Keeps the connections to the store open.
    pub(super) _stores: Arc<StoreRegistry>,
}

impl Location {
    /// Opens the archive; also returns its size in bytes, if known.
    ///
    /// # Errors
    /// Errors of the operating system or the store.
    pub(crate) fn open(&self) -> Result<(Box<dyn Read + Send>, Option<u64>)> {
        match self {
            // The fetcher limits the time of a read without progress.
            Location::Local(path) if path.is_file() => {
                open_body(&LocalFetcher::with_threads(1), &Key::from_path(path))
            }
            Location::Local(path) => Ok((Box::new(File::open(path).map_err(Error::from)?), None)),
            Location::Remote(RemoteLocation { fetcher, key, .. }) => open_body(&**fetcher, key),
        }
    }

    /// Reads the checksums of the members; also returns the checksum of the checksum file.
    ///
    /// # Errors
    /// `NotFound` if there is no checksum file; errors of [`Sums::read`] and of the store.
    pub(crate) fn sums(&self) -> Result<(Sums, u128)> {
        match self {
            Location::Local(path) => Sums::read(path),
            Location::Remote(place) => {
                let key = Key::from_bytes(&[place.key.as_bytes(), b".sums"].concat());
                let text = place.read_sibling(&key, Sums::MAX_BYTES)?;
                Ok((Sums::parse(&text)?, XxHash3_128::oneshot(&text)))
            }
        }
    }

    /// Reads the manifest in the folder of the archive.
    ///
    /// # Errors
    /// `NotFound` if there is no manifest; errors of [`Manifest::read`] and of the store.
    pub(crate) fn manifest(&self) -> Result<Manifest> {
        match self {
            Location::Local(_) => Manifest::read(self.folder().to_path()),
            Location::Remote(place) => {
                let key =
                    Key::from_bytes(&[self.folder().as_bytes(), MANIFEST.as_bytes()].concat());
                Manifest::parse(&place.read_sibling(&key, Manifest::MAX_BYTES)?)
            }
        }
    }

    /// All archives in the folder of this archive; empty if they cannot be listed, for example
    /// because the URL is signed.
    ///
    /// # Errors
    /// If the folder is local and cannot be listed, or if a store returns a transient error.
    pub(crate) fn archives_in_folder(&self) -> std::result::Result<Vec<Location>, Failure> {
        match self {
            Location::Local(_) => {
                let found = archives_in(&self.folder().to_path())?;
                Ok(found.into_iter().map(Location::Local).collect())
            }
            Location::Remote(place) if place.is_signed || !place.fetcher.capability().list => {
                Ok(Vec::new())
            }
            Location::Remote(place) => {
                let pattern = format!("{}*.tar", self.folder());
                match block_on(stored_files(&*place.fetcher, &pattern)) {
                    Ok(found) => Ok(found
                        .into_iter()
                        .map(|key| Location::Remote(place.sibling(key)))
                        .collect()),
                    Err(error) if error.kind().is_transient() => {
                        Err(Failure::of("cannot list", &error, Path::new(&place.address)))
                    }
                    // The folder has no archives, or the user has no permission to list it.
                    Err(_) => Ok(Vec::new()),
                }
            }
        }
    }

    /// The folder of the archive; in a store, the key prefix with a final slash.
    pub(crate) fn folder(&self) -> Key {
        match self {
            Location::Local(path) => match path.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => Key::from_path(folder),
                _ => Key::from_bytes(b"."),
            },
            Location::Remote(RemoteLocation { key, .. }) => {
                let slash = key.as_bytes().iter().rposition(|&byte| byte == b'/');
                Key::from_bytes(&key.as_bytes()[..slash.map_or(0, |slash| slash + 1)])
            }
        }
    }

    /// The file name.
    pub(crate) fn file_name(&self) -> String {
        match self {
            Location::Local(path) => path.file_name().unwrap_or_default().to_string_lossy().into(),
            Location::Remote(RemoteLocation { key, .. }) => {
                let name = key.as_bytes().rsplit(|&byte| byte == b'/').next();
                Key::from_bytes(name.unwrap_or_default()).to_string()
            }
        }
    }

    /// The path or URL, without secrets.
    pub(crate) fn shown(&self) -> PathBuf {
        match self {
            Location::Local(path) => path.clone(),
            Location::Remote(place) => place.address.clone().into(),
        }
    }
}

impl RemoteLocation {
    /// Another object in the same store.
    pub(super) fn sibling(&self, key: Key) -> Self {
        let start = self.address.strip_suffix(&self.key.to_string()).unwrap_or_default();
        RemoteLocation { address: format!("{start}{key}"), key, ..self.clone() }
    }

    /// Builds the index of the members by reading the headers.
    ///
    /// # Errors
    /// Errors of [`TarIndex::fetch`].
    pub(super) fn index(&self, options: TarOptions) -> Result<TarIndex> {
        let (fetcher, key) = (Arc::clone(&self.fetcher), self.key.clone());
        block_on(async move {
            let stamp = ArchiveStamp::new(fetcher.stat(&key).await?.size);
            TarIndex::fetch(fetcher, key, stamp, options).await
        })
    }

    fn read_sibling(&self, key: &Key, most: u64) -> Result<Bytes> {
        if self.is_signed {
            let message = "a signed URL gives access to no other object";
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        match block_on(self.fetcher.read_whole(key, &most)) {
            // If the user has no permission to list objects, S3 returns status 403 for objects that
            // do not exist.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                Err(Error::new(ErrorKind::NotFound, "permission denied").with_source(error))
            }
            read => read,
        }
    }
}

fn open_body(fetcher: &dyn Fetcher, key: &Key) -> Result<(Box<dyn Read + Send>, Option<u64>)> {
    let body = block_on(fetcher.open(key, &ReadRequest::whole()))?;
    let pieces = BodyReader { pieces: body.pieces, piece: Bytes::new() };
    Ok((Box::new(pieces), body.size))
}

/// Reads the body of a response as a byte stream.
struct BodyReader {
    pieces: BoxStream<'static, Result<Bytes>>,
    piece: Bytes,
}

impl Read for BodyReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match block_on(poll_fn(|cx| self.pieces.as_mut().poll_next(cx))) {
                Some(piece) => self.piece = piece.map_err(io::Error::other)?,
                None => return Ok(0),
            }
        }
        let len = buffer.len().min(self.piece.len());
        buffer[..len].copy_from_slice(&self.piece.split_to(len));
        Ok(len)
    }
}

/// The tar archives directly in a folder, sorted by name.
pub(super) fn archives_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error| Failure::new("cannot list", folder.display(), error);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_tar = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("tar"));
        if is_tar && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
