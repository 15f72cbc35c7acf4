//! [`TarRanges`]: a tar archive in a store, read by range requests.

use std::sync::Arc;

use bytes::Bytes;
use futures_core::Stream;
use futures_util::stream;
use spdl_core::Result;

use super::{HeaderWalk, Step, TarEntry, TarOptions, WindowSizes};
use crate::fetch::{Fetcher, Key};

/// The members of a tar archive in a store, read by range requests.
///
/// If the next header is at most 1 MiB after the last read, one request reads 8 MiB, which is
/// faster than one request per header. Otherwise it reads 16 KiB. [`data`](TarRanges::data) sends a
/// request unless the last read contains the data.
///
/// ```
/// # use std::sync::Arc;
/// use spdl_io::archive::TarRanges;
/// # use spdl_io::{Fetcher, LocalFetcher, Key};
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("shard.tar");
/// # std::fs::write(&path, [0; 1024]).unwrap();
/// # let (fetcher, key, size) = (Arc::new(LocalFetcher::new()), Key::from(path), 1024);
/// # spdl_core::block_on(async {
/// let mut archive = TarRanges::new(fetcher, key, size);
/// while let Some(entry) = archive.next_entry().await? {
///     println!("{}: {:?}", entry.key, entry.data_range());
/// }
/// # Ok::<(), spdl_core::Error>(())
/// # })?;
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Debug)]
pub struct TarRanges {
    fetcher: Arc<dyn Fetcher>,
    key: Key,
    len: u64,
    options: TarOptions,
    walk: HeaderWalk,
}

impl TarRanges {
    /// The archive `key` of `len` bytes, with default limits.
    pub fn new(fetcher: Arc<dyn Fetcher>, key: Key, len: u64) -> Self {
        TarRanges::with_options(fetcher, key, len, TarOptions::default())
    }

    /// The archive `key` of `len` bytes.
    pub fn with_options(
        fetcher: Arc<dyn Fetcher>,
        key: Key,
        len: u64,
        options: TarOptions,
    ) -> Self {
        let walk = HeaderWalk::new(len, options, WindowSizes::REMOTE);
        TarRanges { fetcher, key, len, options, walk }
    }

    /// The next entry; `None` at the end.
    ///
    /// # Errors
    /// - The errors of [`TarParser`](super::TarParser), after which the archive ends.
    /// - `Truncated` if the archive ends inside the data of the last entry.
    /// - The errors of the fetcher. After such an error, the caller may call the method again.
    pub async fn next_entry(&mut self) -> Result<Option<TarEntry>> {
        self.step().await.map_err(|error| error.with_key(self.key.display_name()))
    }

    /// The data of a file.
    ///
    /// # Errors
    /// The errors of [`TarSlice::data`](super::TarSlice::data) and of the fetcher.
    pub async fn data(&self, entry: &TarEntry) -> Result<Bytes> {
        entry.check_readable()?;
        self.options.check_file(entry)?;
        let range = entry.data_range();
        if range.end > self.len {
            return Err(entry.truncated(self.len));
        }
        match self.walk.get(&range) {
            Some(bytes) => Ok(Bytes::copy_from_slice(bytes)),
            None => self.fetcher.read(&self.key, Some(range)).await,
        }
    }

    /// The entries as a stream. The stream ends after an error of the archive. After an error of
    /// the fetcher, the next poll repeats the read.
    pub fn into_stream(self) -> impl Stream<Item = Result<TarEntry>> + Send {
        stream::unfold(self, |mut archive| async {
            let entry = archive.next_entry().await.transpose()?;
            Some((entry, archive))
        })
    }

    /// Whether the last error concerns the archive and not the fetcher.
    pub(crate) fn is_damaged(&self) -> bool {
        self.walk.is_damaged()
    }

    async fn step(&mut self) -> Result<Option<TarEntry>> {
        loop {
            match self.walk.step()? {
                Step::Entry(entry) => return Ok(Some(entry)),
                Step::End => return Ok(None),
                Step::Read(range) => {
                    let bytes = self.fetcher.read(&self.key, Some(range.clone())).await?;
                    self.walk.put(&range, |window| {
                        window.extend_from_slice(&bytes);
                        Ok(())
                    })?;
                }
            }
        }
    }
}
