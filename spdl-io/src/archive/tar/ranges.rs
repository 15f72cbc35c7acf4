//! A tar archive in a store, of which only the headers are read.

use std::sync::Arc;

use bytes::Bytes;
use futures_core::Stream;
use futures_util::stream;
use spdl_core::Result;

use super::{HeaderWalk, Step, TarEntry, TarOptions, WindowSizes};
use crate::fetch::{Fetcher, Key};

/// The members of a tar archive that a [`Fetcher`] reads by ranges: each header, and the data of
/// those members that are asked for. Where members are smaller than 1 MiB, 8 MiB are read at a time,
/// as that is faster than one request for each.
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
    /// The members of the archive that is stored under `key` and holds `len` bytes, within default
    /// limits.
    pub fn new(fetcher: Arc<dyn Fetcher>, key: Key, len: u64) -> Self {
        TarRanges::with_options(fetcher, key, len, TarOptions::default())
    }

    /// The members of the archive that is stored under `key` and holds `len` bytes.
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
    /// As those of [`TarParser`](super::TarParser); `Truncated` where the data of the last entry are
    /// cut; what the fetcher answers, after which the call may be repeated. After damage there is nothing
    /// more.
    pub async fn next_entry(&mut self) -> Result<Option<TarEntry>> {
        self.step().await.map_err(|error| error.with_key(self.key.display_name()))
    }

    /// The data of a file.
    ///
    /// # Errors
    /// As those of [`TarSlice::data`](super::TarSlice::data), and what the fetcher answers.
    pub async fn data(&self, entry: &TarEntry) -> Result<Bytes> {
        entry.check_readable()?;
        self.options.check_file(entry)?;
        let range = entry.data_range();
        if range.end > self.len {
            return Err(entry.data_cut(self.len));
        }
        match self.walk.get(&range) {
            Some(bytes) => Ok(Bytes::copy_from_slice(bytes)),
            None => self.fetcher.read(&self.key, Some(range)).await,
        }
    }

    /// The entries as a stream: those before a damage, then the error, and nothing more.
    pub fn into_stream(self) -> impl Stream<Item = Result<TarEntry>> + Send {
        stream::unfold(self, |mut archive| async {
            let entry = archive.next_entry().await.transpose()?;
            Some((entry, archive))
        })
    }

    /// Whether the last error was the archive's own, and not its fetcher's.
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
