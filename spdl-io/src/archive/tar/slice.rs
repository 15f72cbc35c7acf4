//! [`TarSlice`]: a tar archive in memory.

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use super::{TarEntry, TarEvent, TarFile, TarOptions, TarParser};

/// The members of a tar archive in memory, without copies.
///
/// An iterator over the entries, which ends after the first error. An entry whose data are truncated is still
/// returned. Reading its data and requesting the next entry then fail with `Truncated`.
///
/// ```
/// use spdl_io::archive::TarSlice;
/// # let archive = bytes::Bytes::from(vec![0; 1024]);
/// let archive = TarSlice::new(archive);
/// for file in archive.files() {
///     let file = file?;
///     println!("{}: {} bytes", file.entry.key, file.data.len());
/// }
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Debug)]
pub struct TarSlice {
    archive: Bytes,
    parser: TarParser,
    options: TarOptions,
    /// The error if the archive ends inside the data of the last entry.
    truncation: Option<Error>,
}

impl TarSlice {
    /// The members of an archive, with default limits.
    pub fn new(archive: impl Into<Bytes>) -> Self {
        TarSlice::with_options(archive, TarOptions::default())
    }

    /// The members of an archive.
    pub fn with_options(archive: impl Into<Bytes>, options: TarOptions) -> Self {
        let parser = TarParser::new(options);
        TarSlice { archive: archive.into(), parser, options, truncation: None }
    }

    /// The data of a file, as a view of the archive.
    ///
    /// # Errors
    /// - `Truncated` if the archive ends inside the data.
    /// - `Unsupported` for sparse files, links and members of unknown type.
    /// - `InvalidArgument` for other members that are not files.
    /// - `LimitExceeded` for a file above [`TarOptions::max_file_bytes`].
    pub fn data(&self, entry: &TarEntry) -> Result<Bytes> {
        entry.check_readable()?;
        self.options.check_file(entry)?;
        let range = entry.data_range();
        let len = self.archive.len();
        match (usize::try_from(range.start), usize::try_from(range.end)) {
            (Ok(start), Ok(end)) if start <= end && end <= len => {
                Ok(self.archive.slice(start..end))
            }
            _ => Err(entry.truncated(len as u64)),
        }
    }

    /// The files with their data, and an error for each file that cannot be read.
    ///
    /// Directories, symbolic links, devices and pipes are skipped, and members of other types, such
    /// as volume labels, if they have no data. A hard link, a sparse file, or a member of another
    /// type with data yields the error `Unsupported`. The iterator ends after an error of the
    /// archive.
    pub fn files(mut self) -> impl Iterator<Item = Result<TarFile>> + Send {
        std::iter::from_fn(move || {
            loop {
                match self.next()? {
                    Ok(entry) if entry.is_not_a_file() => {}
                    Ok(entry) => {
                        let data = self.data(&entry);
                        if data.as_ref().is_err_and(|error| error.kind() == ErrorKind::Truncated) {
                            // The truncation is reported here, so the next call does not report it again.
                            self.truncation = None;
                            self.archive.clear();
                            self.parser = TarParser::ended();
                        }
                        return Some(data.map(|data| TarFile { entry, data }));
                    }
                    Err(error) => return Some(Err(error)),
                }
            }
        })
    }

    fn step(&mut self) -> Result<Option<TarEntry>> {
        if let Some(error) = self.truncation.take() {
            self.parser = TarParser::ended();
            return Err(error);
        }
        let len = self.archive.len();
        loop {
            let wanted = self.parser.wants();
            let (start, end) = (usize::try_from(wanted.start), usize::try_from(wanted.end));
            let (Ok(start), Ok(end)) = (start, end) else { return self.end(len) };
            match self.archive.get(start..end) {
                None => return self.end(start),
                Some(bytes) => match self.parser.supply(bytes)? {
                    TarEvent::More => {}
                    TarEvent::End => return Ok(None),
                    TarEvent::Entry(entry) => {
                        if entry.data_range().end > len as u64 {
                            self.truncation = Some(entry.truncated(len as u64));
                        }
                        return Ok(Some(entry));
                    }
                },
            }
        }
    }

    /// Ends an archive that ends inside the requested range.
    fn end(&mut self, start: usize) -> Result<Option<TarEntry>> {
        let rest = self.archive.get(start..).unwrap_or_default();
        let len = self.archive.len() as u64;
        self.parser.finish(rest).map(|()| None).map_err(|error| at_end(error, len))
    }
}

/// Sets the offset of a truncation error to the end of the archive, even if the archive ends inside padding.
pub(super) fn at_end(error: Error, archive_len: u64) -> Error {
    match error.kind() {
        ErrorKind::Truncated => error.with_offset(archive_len),
        _ => error,
    }
}

impl Iterator for TarSlice {
    type Item = Result<TarEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

impl std::iter::FusedIterator for TarSlice {}
