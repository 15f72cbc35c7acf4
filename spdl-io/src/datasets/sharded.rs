//! Code that all data sets of sharded files share: the steps of opening, and access by position.
//!
//! | step | code |
//! |---|---|
//! | find the files of a pattern or folder | `patterns` |
//! | read an index or header of each file, concurrently and in order | [`read_files`] |
//! | find the records of a file without an index | [`walk_records`] |
//! | number the samples of all shards | [`Shards`] |
//! | report missing files: how many, and the first | `opening::missing` |
//! | the public openers | [`impl_openers`] |
//! | `Dataset` | [`Sharded`], [`impl_dataset`] |

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use spdl_core::{Error, ErrorKind, Result};

use super::common::ContentHash;
use crate::fetch::{Fetcher, Key};
use crate::records::StoredRecord;

/// Calls `read` for each file, with up to `concurrency` calls in flight. The results are in the order of
/// `files`; the first error cancels the calls in flight.
///
/// `noun` describes the files in messages.
///
/// # Errors
/// The errors of `read`; `InvalidArgument` for an empty list.
pub(super) async fn read_files<T, F: Future<Output = Result<T>>>(
    files: Vec<Key>,
    noun: &str,
    concurrency: usize,
    read: impl Fn(Key) -> F,
) -> Result<Vec<T>> {
    if files.is_empty() {
        let message = format!("the list of {noun} is empty");
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    stream::iter(files).map(read).buffered(concurrency).try_collect().await
}

/// The size of a read for small records, in bytes.
const WINDOW: u64 = 256 << 10;
/// The size of a read for large records, which covers the next header only, in bytes.
const SMALL_WINDOW: u64 = 4 << 10;

/// The end of each record in an object of `size` bytes, by one pass over the headers of `N` bytes.
///
/// `parse` returns the size of header and data together, and whether the record ends with them.
///
/// # Errors
/// The errors of `parse` and of the fetcher; `Truncated` if the object ends inside a record.
pub(super) async fn walk_records<const N: usize>(
    fetcher: &Arc<dyn Fetcher>,
    key: &Key,
    size: u64,
    mut parse: impl FnMut(&[u8; N]) -> Result<(u64, bool)>,
) -> Result<Vec<u64>> {
    let mut ends = Vec::new();
    let (mut at, mut last) = (0, 0);
    let (mut window, mut start) = (Bytes::new(), 0);
    while at < size {
        let located = |error: Error| error.with_key(key.display_name()).with_offset(at);
        let truncated = |bytes: u64| {
            let message = format!("the file ends after {} of {bytes} bytes of a record", size - at);
            located(Error::new(ErrorKind::Truncated, message))
        };
        if size - at < N as u64 {
            return Err(truncated(N as u64));
        }
        let skip = at.checked_sub(start).and_then(|skip| usize::try_from(skip).ok());
        let Some(header) = skip.and_then(|skip| window.get(skip..)?.first_chunk::<N>()) else {
            let len = if last > WINDOW { SMALL_WINDOW } else { WINDOW };
            window = fetcher.read(key, Some(at..size.min(at + len))).await?;
            start = at;
            continue;
        };
        let (bytes, is_end) = parse(header).map_err(located)?;
        if bytes > size - at {
            return Err(truncated(bytes));
        }
        at += bytes;
        last = bytes;
        if is_end {
            ends.push(at);
        }
    }
    ends.shrink_to_fit();
    Ok(ends)
}

/// A file, or a row group of a file.
pub(super) trait Shard {
    /// The number of samples.
    fn rows(&self) -> u64;
}

/// The shards of a data set, and the positions of their samples.
pub(super) struct Shards<S> {
    shards: Vec<S>,
    /// The position of the first sample of each shard, followed by the total.
    offsets: Vec<u64>,
}

impl<S: Shard> Shards<S> {
    /// # Errors
    /// `LimitExceeded` for more than 2^63 samples.
    pub(super) fn new(shards: Vec<S>) -> Result<Self> {
        let mut offsets = vec![0];
        let mut end = 0_u64;
        for shard in &shards {
            end = end.checked_add(shard.rows()).filter(|end| *end <= 1 << 63).ok_or_else(|| {
                Error::new(ErrorKind::LimitExceeded, "the shards hold more than 2^63 samples")
            })?;
            offsets.push(end);
        }
        Ok(Shards { shards, offsets })
    }

    /// The number of shards.
    pub(super) fn len(&self) -> usize {
        self.shards.len()
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, S> {
        self.shards.iter()
    }

    /// The number of samples of all shards.
    pub(super) fn total(&self) -> u64 {
        self.offsets.last().copied().unwrap_or_default()
    }

    /// The number of samples of each shard.
    pub(super) fn lens(&self) -> Vec<u64> {
        self.offsets.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    /// The shard of a sample, and its row in the shard.
    ///
    /// # Errors
    /// `InvalidArgument` if `index` is out of range.
    pub(super) fn locate(&self, index: u64) -> Result<(&S, u64)> {
        if index >= self.total() {
            let message =
                format!("index {index} is out of range: the data set has {} samples", self.total());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        // The last shard that starts at or before `index`; preceding empty shards have the same
        // start.
        let shard = self.offsets.partition_point(|first| *first <= index) - 1;
        Ok((&self.shards[shard], index - self.offsets[shard]))
    }
}

/// Methods that [`impl_dataset`] requires of a data set with the field `shards`, of type [`Shards`].
pub(super) trait Sharded {
    type Shard: Shard;

    /// The sample in this row of a shard.
    ///
    /// # Errors
    /// The error of a bad sample.
    fn sample(&self, shard: &Self::Shard, row: u64) -> Result<StoredRecord>;

    /// A hash of the content, independent of the location of the files.
    fn content(&self) -> ContentHash;
}

/// Implements `Dataset` and `shard_lens` by [`Sharded`]. `$shards` describes the lengths, and `$hash` the
/// content hash.
macro_rules! impl_dataset {
    ($dataset:ident, $shards:literal, $hash:literal) => {
        impl $dataset {
            #[doc = concat!("The number of ", $shards, ", for")]
            /// [`ShardWindow`](spdl_core::source::sampler::ShardWindow).
            pub fn shard_lens(&self) -> Vec<u64> {
                self.shards.lens()
            }
        }

        impl Dataset for $dataset {
            type Item = StoredRecord;

            fn len(&self) -> u64 {
                self.shards.total()
            }

            fn item(&self, index: u64) -> Result<StoredRecord> {
                let (shard, row) = self.shards.locate(index)?;
                $crate::datasets::sharded::Sharded::sample(self, shard, row)
            }

            #[doc = concat!("A hash of ", $hash, ".")]
            fn content_hash(&self) -> Option<u64> {
                Some($crate::datasets::sharded::Sharded::content(self).finish())
            }

            fn key(&self, item: &StoredRecord) -> Option<Arc<str>> {
                Some(item.key.display_name())
            }
        }
    };
}

/// Implements `open`, `open_with`, `open_files`, `fetch` and `fetch_files` for a data set.
///
/// The data set provides `async fn fetch_keys(&Arc<dyn Fetcher>, Vec<Key>, &$options)`, and its options
/// provide `patterns()`. `$folder` describes the files of a folder. The attributes document `fetch_files`.
///
/// With the attribute `$local`, local files are read by `LocalFetcher`. Otherwise, the data set provides
/// `open_keys(Vec<Key>, &$options)`.
macro_rules! impl_openers {
    (
        $dataset:ident, $options:ident, $folder:literal $(, #[$local:meta])?;
        $(#[$fetch_files:meta])*
    ) => {
        impl $dataset {
            /// Opens the local files that `pattern` matches, with default options.
            ///
            /// - Braces are expanded by [`expand_braces`](crate::datasets::expand_braces).
            /// - In the last part of the path, `*` matches any bytes, and `?` matches one byte.
            ///   Index files are not matched, and hidden files only by a pattern that begins with a
            ///   dot. The files that an expanded pattern matches are sorted by the bytes of their
            ///   names.
            #[doc = concat!("- A folder stands for its ", $folder, ".")]
            ///
            /// The call blocks. Asynchronous code calls [`fetch`](Self::fetch).
            ///
            /// # Errors
            /// - The errors of [`fetch_files`](Self::fetch_files) and of
            ///   [`expand_braces`](crate::datasets::expand_braces).
            /// - `NotFound` if an expanded pattern or a folder matches no file.
            /// - `Unsupported` for a `pipe:` command.
            $(#[$local])?
            pub fn open(pattern: &str) -> Result<Self> {
                Self::open_with(pattern, &$options::default())
            }

            /// Opens the local files that `pattern` matches.
            ///
            /// # Errors
            /// The errors of [`open`](Self::open).
            $(#[$local])?
            pub fn open_with(pattern: &str, options: &$options) -> Result<Self> {
                let keys = $crate::datasets::patterns::local_keys(pattern, &options.patterns())?;
                Self::open_keys(keys, options)
            }

            /// Opens local files, in this order.
            ///
            /// # Errors
            /// The errors of [`open`](Self::open); `InvalidArgument` for an empty list.
            $(#[$local])?
            pub fn open_files<P: AsRef<Path>>(
                paths: impl IntoIterator<Item = P>,
                options: &$options,
            ) -> Result<Self> {
                Self::open_keys(paths.into_iter().map(Key::from_path).collect(), options)
            }

            /// Opens the files of a store that `pattern` matches: see [`open`](Self::open).
            ///
            /// A folder must end with a slash. Folders, `*` and `?` require a store that supports listing.
            ///
            /// # Errors
            /// The errors of [`fetch_files`](Self::fetch_files); `NotFound` if no file matches.
            pub async fn fetch(
                fetcher: &Arc<dyn Fetcher>,
                pattern: &str,
                options: &$options,
            ) -> Result<Self> {
                let patterns = options.patterns();
                let keys =
                    $crate::datasets::patterns::stored_keys(&**fetcher, pattern, &patterns).await?;
                Self::fetch_keys(fetcher, keys, options).await
            }

            $(#[$fetch_files])*
            pub async fn fetch_files(
                fetcher: &Arc<dyn Fetcher>,
                files: impl IntoIterator<Item = impl Into<Key>>,
                options: &$options,
            ) -> Result<Self> {
                let files = files.into_iter().map(Into::into).collect();
                Self::fetch_keys(fetcher, files, options).await
            }

            $(
                #[$local]
                fn open_keys(keys: Vec<Key>, options: &$options) -> Result<Self> {
                    let fetcher = $crate::datasets::common::local_fetcher();
                    spdl_core::block_on(Self::fetch_keys(&fetcher, keys, options))
                }
            )?
        }
    };
}

pub(super) use {impl_dataset, impl_openers};

#[cfg(test)]
mod tests {
    use spdl_core::block_on;

    use super::*;

    impl Shard for u64 {
        fn rows(&self) -> u64 {
            *self
        }
    }

    #[test]
    fn indexes_are_located_across_empty_shards() {
        let shards = Shards::new(vec![2, 0, 3]).unwrap();
        assert_eq!((shards.len(), shards.total(), shards.lens()), (3, 5, vec![2, 0, 3]));
        let places: Vec<_> = (0..5).map(|index| shards.locate(index).unwrap()).collect();
        assert_eq!(places, [(&2, 0), (&2, 1), (&3, 0), (&3, 1), (&3, 2)]);
        assert_eq!(shards.locate(5).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert!(Shards::new(vec![1 << 63, 1]).is_err());
    }

    #[test]
    fn files_are_read_in_order_and_an_empty_list_is_refused() {
        let read = |key: Key| async move { Ok(key.as_bytes().len()) };
        let files = vec!["a".into(), "bcd".into(), "ef".into()];
        assert_eq!(block_on(read_files(files, "files", 2, read)).unwrap(), [1, 3, 2]);
        let error = block_on(read_files(Vec::new(), "files", 2, read)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}
