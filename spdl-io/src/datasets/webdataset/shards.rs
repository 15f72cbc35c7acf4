//! The index of each archive: saved next to it, cached in a folder, or built.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join;
use spdl_core::{Error, ErrorKind, Result, block_on};
use twox_hash::XxHash3_128;

use super::WebDatasetOptions;
use super::grouping::{ArchiveShard, checksum_file};
use crate::archive::{ArchiveStamp, TarIndex, TarOptions, TarSlice, decompress};
use crate::datasets::sharded::read_files;
use crate::fetch::{Fetcher, Key, ObjectMeta};
use crate::files::{IoThreads, read_regular_file};
use crate::layers::Unpack;
use crate::shards::{Sums, sums};

/// File name suffixes of compressed archives.
const COMPRESSED: [&str; 9] =
    [".gz", ".tgz", ".zst", ".tzst", ".zstd", ".bz2", ".tbz2", ".xz", ".txz"];
/// File name suffixes of archives that [`UNPACK`] decompresses.
const UNPACKED: [&str; 5] = [".gz", ".tgz", ".zst", ".tzst", ".zstd"];
/// Decompresses shards that are kept in memory as a whole.
pub(in crate::datasets) const UNPACK: Unpack = Unpack {
    is_packed: |key| has_suffix(key, &UNPACKED),
    unpack: |bytes, max_bytes| decompress(&bytes, max_bytes),
};
/// The name of the files in messages.
const SHARDS: &str = "tar shards";
/// Time after which an idle thread ends.
const LINGER: Duration = Duration::from_secs(1);
/// The maximum size of the headers that are read to validate an index, in bytes.
const MAX_HEADER_BYTES: u64 = 1 << 20;
/// An index is smaller than its archive plus this many bytes.
const MAX_INDEX_OVERHEAD: u64 = 64 << 10;

/// The key in lower case, without the query of an address.
fn name_of(key: &Key) -> Vec<u8> {
    let name = key.as_bytes();
    let name = match key.as_str() {
        Some(text) if text.contains("://") => name.split(|&byte| byte == b'?').next(),
        _ => Some(name),
    };
    name.unwrap_or_default().to_ascii_lowercase()
}

/// Whether an archive has the name of a zip archive.
pub(super) fn is_zip(key: &Key) -> bool {
    name_of(key).ends_with(b".zip")
}

fn has_suffix(key: &Key, suffixes: &[&str]) -> bool {
    let name = name_of(key);
    suffixes.iter().any(|end| name.ends_with(end.as_bytes()))
}

/// Refuses compressed archives, whose members cannot be read separately, and zip archives without the feature
/// `zip`.
fn check_name(key: &Key, options: &WebDatasetOptions) -> Result<()> {
    if is_zip(key) && !cfg!(feature = "zip") {
        let message = "cannot read zip archives: this build lacks the feature `zip`";
        return Err(Error::new(ErrorKind::Unsupported, message).with_key(key.display_name()));
    }
    let is_unpacked = has_suffix(key, &UNPACKED);
    if !has_suffix(key, &COMPRESSED) || options.accepts_compressed && is_unpacked {
        return Ok(());
    }
    let message = match is_unpacked {
        true => {
            "compressed shards do not support random access: read them sequentially \
             (`OpenOptions::sequential`, `sequential=True`, `--sequential`), which decompresses each shard in memory in each \
             epoch; or decompress the shard once (`gunzip`, `unzstd`)"
        }
        false => {
            "compressed shards do not support random access: decompress the shard, or extract it and pack its folder \
             again (`spdl pack`)"
        }
    };
    Err(Error::new(ErrorKind::Unsupported, message).with_key(key.display_name()))
}

/// Whether the shard itself is damaged, so that the samples before the damage are still useful.
fn is_damage(error: &Error) -> bool {
    use ErrorKind::{Corrupt, LimitExceeded, Truncated, Unsupported};
    matches!(error.kind(), Corrupt | LimitExceeded | Truncated | Unsupported)
}

/// Opens local archives, on up to [`concurrency`](WebDatasetOptions::concurrency) threads.
pub(super) fn open(keys: Vec<Key>, options: &WebDatasetOptions) -> Result<Vec<ArchiveShard>> {
    keys.iter().try_for_each(|key| check_name(key, options))?;
    let threads = IoThreads::new("spdl-index", options.concurrency, LINGER);
    let (tar, verify) = (options.tar, options.verify);
    let read = |key| threads.run(move || open_one(&key, tar, verify));
    // The threads bound the concurrency, so a slow archive does not delay later ones.
    let concurrency = keys.len();
    block_on(read_files(keys, SHARDS, concurrency, read))
}

fn open_one(key: &Key, options: TarOptions, verify: bool) -> Result<ArchiveShard> {
    let (index, damage) = match TarIndex::open_with(key.to_path(), options) {
        Ok(index) => (index, None),
        Err(error) if is_damage(&error) => TarIndex::build_until_damage(key.to_path(), options)?,
        Err(error) => return Err(error),
    };
    let sums = verify.then(|| Sums::text(key.to_path())).transpose()?.flatten();
    ArchiveShard::new(key.clone(), &index, damage, sums.as_deref())
}

/// Opens archives of a store, concurrently.
pub(super) async fn fetch(
    fetcher: &Arc<dyn Fetcher>,
    keys: Vec<Key>,
    options: &WebDatasetOptions,
) -> Result<Vec<ArchiveShard>> {
    keys.iter().try_for_each(|key| check_name(key, options))?;
    #[cfg(feature = "zip")]
    let threads = &{
        let threads = std::thread::available_parallelism().map_or(2, |threads| threads.get());
        Arc::new(IoThreads::new("spdl-zip", threads, LINGER))
    };
    let read = |key: Key| async move {
        let object = fetcher.stat(&key).await?;
        #[cfg(feature = "zip")]
        if is_zip(&key) {
            let mut shard = super::zip::fetch(fetcher, &object, Arc::clone(threads)).await?;
            shard.version = Some(object.version_hash());
            return Ok(shard);
        }
        let (index, damage, sums) = fetch_index(fetcher, &object, options).await?;
        let mut shard = ArchiveShard::new(key, &index, damage, sums.as_deref())?;
        shard.version = Some(object.version_hash());
        Ok(shard)
    };
    read_files(keys, SHARDS, options.concurrency, read).await
}

async fn fetch_index(
    fetcher: &Arc<dyn Fetcher>,
    object: &ObjectMeta,
    options: &WebDatasetOptions,
) -> Result<(TarIndex, Option<Error>, Option<Bytes>)> {
    let key = &object.key;
    let stamp = ArchiveStamp::new(object.size);
    // Without a version, a change of the shard cannot be detected.
    let cached = options.index_folder.as_deref().zip(object.version.as_deref());
    let cached = cached.map(|(folder, version)| {
        (cached_path(folder, key), ArchiveStamp::new(object.size).entity_tag(version))
    });
    if let Some((path, stamp)) = &cached
        && let Some(index) = load(path, stamp, options)
    {
        return Ok((index, None, None));
    }
    let read = |file: Key, max_bytes| read_beside(fetcher, key, file, max_bytes);
    let sidecar = Key::from_bytes(&[key.as_bytes(), b".idx"].concat());
    let sidecar = read(sidecar, object.size.saturating_add(MAX_INDEX_OVERHEAD)).await;
    // For a missing file, some servers send a web page.
    let is_packed = match &sidecar {
        Ok(bytes) => bytes.as_ref().and_then(|bytes| TarIndex::claimed_stamp(bytes)).is_some(),
        Err(_) => true,
    };
    let sidecar = match sidecar {
        Err(error) if error.kind().is_transient() => return Err(error),
        // A damaged index is built again.
        sidecar => sidecar.unwrap_or_default(),
    };
    let sums = async {
        if !options.verify {
            return Ok(None);
        }
        let text = read(checksum_file(key), Sums::MAX_BYTES).await?;
        // Without an index, the text of a missing file is not an error either.
        Ok(text.filter(|text| is_packed || matches!(sums::lines(text).next(), Some(Ok(_)))))
    };
    let index = check_sidecar(fetcher, object, sidecar, options);
    let (index, sums) = try_join(index, sums).await?;
    if let Some(index) = index {
        return Ok((index, None, sums));
    }
    let stamp = cached.as_ref().map_or(stamp, |(_, stamp)| stamp.clone());
    let (index, damage) =
        TarIndex::fetch_until_damage(Arc::clone(fetcher), key.clone(), stamp, options.tar).await?;
    // A cached index has no checksums.
    if let (Some((path, _)), None, false, None) = (&cached, &damage, is_packed, &sums) {
        // Caching is optional.
        let _ = path.parent().map(fs::create_dir_all);
        let _ = index.save(path);
    }
    Ok((index, damage, sums))
}

/// Reads a file next to a shard, if there is one.
async fn read_beside(
    fetcher: &Arc<dyn Fetcher>,
    shard: &Key,
    file: Key,
    max_bytes: u64,
) -> Result<Option<Bytes>> {
    if shard.as_str().is_some_and(|text| text.contains("://") && text.contains('?')) {
        // The query may be a signature of the shard.
        return Ok(None);
    }
    match fetcher.read_whole(&file, &max_bytes).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind().is_transient() || error.kind() == ErrorKind::Corrupt => {
            Err(error)
        }
        // For a missing object, some stores return `PermissionDenied`.
        Err(_) => Ok(None),
    }
}

/// The path of a cached index.
fn cached_path(folder: &Path, key: &Key) -> PathBuf {
    folder.join(format!("{:032x}.idx", XxHash3_128::oneshot(key.as_bytes())))
}

fn load(path: &Path, stamp: &ArchiveStamp, options: &WebDatasetOptions) -> Option<TarIndex> {
    let metadata = fs::metadata(path).ok()?;
    if metadata.len() > stamp.size().saturating_add(MAX_INDEX_OVERHEAD) {
        return None;
    }
    TarIndex::from_bytes(&read_regular_file(path, metadata.len()).ok()?, stamp, options.tar).ok()
}

/// Parses the index file next to a shard. `None` if it does not match the size of the shard and the header of
/// its last member.
async fn check_sidecar(
    fetcher: &Arc<dyn Fetcher>,
    object: &ObjectMeta,
    bytes: Option<Bytes>,
    options: &WebDatasetOptions,
) -> Result<Option<TarIndex>> {
    let Some(bytes) = bytes else { return Ok(None) };
    let claimed = TarIndex::claimed_stamp(&bytes).filter(|stamp| stamp.size() == object.size);
    let index = claimed.and_then(|stamp| TarIndex::from_bytes(&bytes, &stamp, options.tar).ok());
    let Some(index) = index else { return Ok(None) };
    let Some(last) = index.len().checked_sub(1).and_then(|last| index.entry(last)) else {
        return Ok(None);
    };
    if last.data_offset - last.header_offset > MAX_HEADER_BYTES {
        return Ok(None);
    }
    let headers = fetcher.read(&object.key, Some(last.header_offset..last.data_offset)).await?;
    let found = TarSlice::with_options(headers, options.tar).next();
    let agrees = found.and_then(Result::ok).is_some_and(|found| {
        (found.key, found.size, found.kind) == (last.key, last.size, last.kind)
    });
    Ok(agrees.then_some(index))
}
