//! [`PartFetcher`]: reads objects in large parts, which many reads share.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use spdl_core::{Error, ErrorKind, Result};

use super::{CachedBytes, PartCache, Pinned, PinnedVersions};
use crate::fetch::{
    Body, Capability, Fetcher, Key, ObjectMeta, ReadMemory, ReadRequest, check_limit,
    check_version, past_the_end, range_len, read_whole_or_range,
};

/// The number of a cached object that was read as a whole.
const WHOLE: u64 = u64::MAX;

/// Reads of one call that run concurrently.
const CONCURRENT_READS: usize = 4;

/// Reads objects in parts of 8 MiB, each by one request, and shares them between reads.
///
/// For shards of small samples, requests cost more than bytes. If samples are read in the order of a
/// [`ShardWindow`](spdl_core::source::sampler::ShardWindow), most reads find their part in memory. In other orders, this
/// fetcher reads much more than is needed.
///
/// - **Memory.** Parts in memory and in flight have at most `max_bytes` in total; one part may exceed the limit. The least
///   recently used part is dropped first. Results are copies. Parts do not count in the memory budget of a pipeline.
/// - **Servers without range requests.** If a server sends the whole object in response to the first range request,
///   objects are read and kept as a whole.
/// - **Versions.** The first read of an object determines its version.
///
/// ```
/// use std::sync::Arc;
/// use spdl_io::layers::PartFetcher;
/// use spdl_io::{Fetcher, MemoryFetcher};
/// let store: MemoryFetcher = [("shard.tar", vec![7; 20 << 20])].into_iter().collect();
/// let fetcher = PartFetcher::new(Arc::new(store), 256 << 20);
/// // Reads bytes 0 to 8 MiB, and 8 to 16 MiB.
/// let bytes = spdl_core::block_on(fetcher.read(&"shard.tar".into(), Some(8_000_000..9_000_000)))?;
/// assert_eq!(bytes.len(), 1_000_000);
/// # Ok::<(), spdl_io::Error>(())
/// ```
///
/// # Errors
/// Those of the wrapped fetcher. `Changed` if parts of an object have different versions. `LimitExceeded` if an object must
/// be kept as a whole, and has more than `max_bytes` bytes.
#[derive(Clone)]
pub struct PartFetcher {
    shared: Arc<SharedParts>,
    /// Whether ranges are read as requested, if the server supports them.
    is_exact: bool,
}

struct SharedParts {
    inner: Arc<dyn Fetcher>,
    max_bytes: u64,
    parts: PartCache<(Key, u64), ObjectPart>,
    /// Whether the server has sent a whole object in response to a range request.
    lacks_ranges: AtomicBool,
    unpack: Option<Unpack>,
    /// The sizes of unpacked objects.
    unpacked: Mutex<HashMap<Key, ObjectMeta>>,
}

/// How compressed objects are decompressed, which are then read like others.
#[derive(Clone, Copy)]
pub(crate) struct Unpack {
    pub(crate) is_packed: fn(&Key) -> bool,
    /// Decompresses an object to at most this number of bytes.
    pub(crate) unpack: fn(Bytes, u64) -> Result<Bytes>,
}

struct ObjectPart {
    bytes: Bytes,
    version: Option<Arc<str>>,
}

impl CachedBytes for ObjectPart {
    fn cached_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

impl PartFetcher {
    /// The size of a part, in bytes: 8 MiB. The last part of an object is shorter.
    pub const PART_BYTES: u64 = 8 << 20;

    /// Wraps `inner`, with at most `max_bytes` bytes of memory for parts.
    pub fn new(inner: Arc<dyn Fetcher>, max_bytes: u64) -> Self {
        let pinned = Pinned::new(inner, PinnedVersions::default());
        PartFetcher::of_pinned(Arc::new(pinned), max_bytes, None)
    }

    /// Wraps a fetcher that reads each object in one version.
    pub(crate) fn of_pinned(
        inner: Arc<dyn Fetcher>,
        max_bytes: u64,
        unpack: Option<Unpack>,
    ) -> Self {
        let lacks_ranges = AtomicBool::new(!inner.capability().ranges);
        let shared = SharedParts {
            inner,
            max_bytes,
            parts: PartCache::new(max_bytes),
            lacks_ranges,
            unpack,
            unpacked: Mutex::default(),
        };
        PartFetcher { shared: Arc::new(shared), is_exact: false }
    }

    /// A fetcher with the same memory that reads ranges as requested, except for objects that must be kept as a whole.
    pub(crate) fn exact(&self) -> Self {
        PartFetcher { is_exact: true, ..self.clone() }
    }

    /// Whether an object is kept as a whole, because the server does not support ranges or the object is compressed.
    pub(crate) fn keeps_whole(&self, key: &Key) -> bool {
        self.shared.lacks_ranges.load(Ordering::Relaxed) || self.is_packed(key)
    }

    /// Requests one byte, to find out whether the server supports ranges. Later reads report errors.
    pub(crate) async fn probe(&self, key: &Key) {
        if !self.keeps_whole(key)
            && let Err(error) = self.shared.inner.read(key, Some(0..1)).await
            && error.kind() == ErrorKind::Unsupported
        {
            self.shared.lacks_ranges.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_packed(&self, key: &Key) -> bool {
        self.shared.unpack.is_some_and(|unpack| (unpack.is_packed)(key))
    }

    /// The bytes of a range, which is inside the object, and their version.
    async fn read_range(
        &self,
        key: &Key,
        range: Range<u64>,
        request: &PartRequest<'_>,
    ) -> Result<(Bytes, Option<Arc<str>>)> {
        let mut found = None;
        let mut bytes = buffer(key, range.end - range.start)?;
        let numbers = match range.is_empty() {
            true => 0..0,
            false => range.start / Self::PART_BYTES..range.end.div_ceil(Self::PART_BYTES),
        };
        let parts: Vec<_> = numbers.map(|number| self.part(key, number, request)).collect();
        let mut parts = stream::iter(parts).buffered(CONCURRENT_READS);
        while let Some((start, part)) = parts.try_next().await? {
            check_version(key, request.version.or(found.as_ref()), part.version.as_ref())?;
            found.clone_from(&part.version);
            let end = (range.end - start).min(part.bytes.len() as u64) as usize;
            bytes.extend_from_slice(&part.bytes[range.start.saturating_sub(start) as usize..end]);
        }
        Ok((bytes.into(), found))
    }

    /// The part with this number, and its offset.
    async fn part(
        &self,
        key: &Key,
        number: u64,
        request: &PartRequest<'_>,
    ) -> Result<(u64, Arc<ObjectPart>)> {
        let start = number * Self::PART_BYTES;
        let range = start..request.size.min(start + Self::PART_BYTES);
        let len = range.end - range.start;
        let (inner, object) = (Arc::clone(&self.shared.inner), key.clone());
        let (version, size) = (request.version.cloned(), request.required_size);
        let read = || async move {
            let ranges = [range];
            let (mut parts, version) =
                inner.read_version(&object, &ranges, version.as_ref(), size).await?;
            match parts.pop().filter(|bytes| bytes.len() as u64 == len) {
                Some(bytes) => Ok(ObjectPart { bytes, version }),
                None => {
                    let message = format!("{inner:?} returned another range than the requested");
                    Err(Error::new(ErrorKind::Internal, message).with_key(object.display_name()))
                }
            }
        };
        Ok((start, self.shared.parts.get_sized((key.clone(), number), len, read).await?))
    }

    /// The whole object, decompressed.
    async fn whole(&self, key: &Key) -> Result<Arc<ObjectPart>> {
        let shared = &self.shared;
        let meta = shared.inner.stat(key).await?;
        let unpack = shared.unpack.filter(|unpack| (unpack.is_packed)(key));
        let max_bytes = shared.max_bytes;
        if meta.size > max_bytes {
            let reason = match unpack {
                Some(_) => "a compressed object must be in memory as a whole",
                None => {
                    "the server does not support range requests, so the object must be in memory as a whole"
                }
            };
            let message = format!(
                "{reason}: its {} bytes exceed the limit of {max_bytes} bytes for sequential reads; raise the limit, or \
                 copy the shards to this machine",
                meta.size
            );
            return Err(Error::new(ErrorKind::LimitExceeded, message).with_key(key.display_name()));
        }
        let expected = self.unpacked(key, &meta).map_or(meta.size, |unpacked| unpacked.size);
        let (inner, object, threads) =
            (Arc::clone(&shared.inner), key.clone(), shared.parts.threads());
        let read = || async move {
            let bytes = inner.read_whole(&object, &max_bytes).await?;
            let bytes = match unpack {
                None => bytes,
                Some(Unpack { unpack, .. }) => {
                    let unpacked = threads.run(move || unpack(bytes, max_bytes)).await;
                    unpacked.map_err(|error| error.with_key(object.display_name()))?
                }
            };
            Ok(ObjectPart { bytes, version: meta.version })
        };
        shared.parts.get_sized((key.clone(), WHOLE), expected, read).await
    }

    /// The size and version of a compressed object, if it was decompressed before in this version.
    fn unpacked(&self, key: &Key, meta: &ObjectMeta) -> Option<ObjectMeta> {
        let known = self.shared.unpacked.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).filter(|known| known.version == meta.version).cloned()
    }

    async fn whole_ranges(
        &self,
        key: &Key,
        ranges: &[Range<u64>],
        version: Option<&Arc<str>>,
    ) -> Result<(Vec<Bytes>, Option<Arc<str>>)> {
        let part = self.whole(key).await?;
        check_version(key, version, part.version.as_ref())?;
        let len = part.bytes.len() as u64;
        let copy = |range: &Range<u64>| {
            if range.end > len {
                return Err(past_the_end(key, range.clone(), len));
            }
            let mut bytes = buffer(key, range.end - range.start)?;
            bytes.extend_from_slice(&part.bytes[range.start as usize..range.end as usize]);
            Ok(bytes.into())
        };
        Ok((ranges.iter().map(copy).collect::<Result<_>>()?, part.version.clone()))
    }
}

/// What all parts of a read have in common.
struct PartRequest<'a> {
    size: u64,
    version: Option<&'a Arc<str>>,
    required_size: Option<u64>,
}

/// # Errors
/// `LimitExceeded` if the memory cannot be allocated.
fn buffer(key: &Key, len: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let reserved = usize::try_from(len).map(|len| bytes.try_reserve_exact(len));
    if matches!(reserved, Ok(Ok(()))) {
        return Ok(bytes);
    }
    let message = format!("cannot allocate {len} bytes");
    Err(Error::new(ErrorKind::LimitExceeded, message).with_key(key.display_name()))
}

#[async_trait]
impl Fetcher for PartFetcher {
    fn capability(&self) -> Capability {
        self.shared.inner.capability().with_ranges()
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        read_whole_or_range(self, key, range).await
    }

    async fn read_whole_version(
        &self,
        key: &Key,
        memory: &dyn ReadMemory,
        version: Option<&Arc<str>>,
        size: Option<u64>,
    ) -> Result<Bytes> {
        if !self.is_packed(key) {
            let inner = &self.shared.inner;
            return match (version, size) {
                (None, None) => inner.read_whole(key, memory).await,
                _ => inner.read_whole_version(key, memory, version, size).await,
            };
        }
        let part = self.whole(key).await?;
        check_version(key, version, part.version.as_ref())?;
        check_limit(key, part.bytes.len() as u64, memory.max_bytes())?;
        Ok(part.bytes.clone())
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        let meta = self.shared.inner.stat(key).await?;
        if !self.is_packed(key) {
            return Ok(meta);
        }
        if let Some(known) = self.unpacked(key, &meta) {
            return Ok(known);
        }
        let size = self.whole(key).await?.bytes.len() as u64;
        let meta = ObjectMeta { size, ..meta };
        let mut known = self.shared.unpacked.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(key.clone(), meta.clone());
        Ok(meta)
    }

    async fn read_ranges(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        Ok(self.read_version(key, ranges, None, None).await?.0)
    }

    async fn read_version(
        &self,
        key: &Key,
        ranges: &[Range<u64>],
        version: Option<&Arc<str>>,
        size: Option<u64>,
    ) -> Result<(Vec<Bytes>, Option<Arc<str>>)> {
        for range in ranges {
            range_len(key, range)?;
        }
        if self.keeps_whole(key) {
            return self.whole_ranges(key, ranges, version).await;
        }
        let read = match self.is_exact {
            true => self.shared.inner.read_version(key, ranges, version, size).await,
            false => self.read_parts(key, ranges, version, size).await,
        };
        match read {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.shared.lacks_ranges.store(true, Ordering::Relaxed);
                self.whole_ranges(key, ranges, version).await
            }
            read => read,
        }
    }

    fn discard(&self, key: &Key, range: &Range<u64>) {
        let first = range.start / Self::PART_BYTES;
        let end = range.end.div_ceil(Self::PART_BYTES);
        for number in (first..end).chain([WHOLE]) {
            self.shared.parts.discard(&(key.clone(), number));
        }
        self.shared.inner.discard(key, range);
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        if !self.keeps_whole(key) {
            return self.shared.inner.open(key, request).await;
        }
        let part = self.whole(key).await?;
        let size = part.bytes.len() as u64;
        let range = request.start..request.end.unwrap_or(size.max(request.start));
        range_len(key, &range)?;
        let (mut bytes, version) =
            self.whole_ranges(key, &[range], request.version.as_ref()).await?;
        let mut body = Body::from_bytes(bytes.pop().unwrap_or_default()).with_size(size);
        body.version = version;
        Ok(body)
    }

    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        self.shared.inner.list(prefix).await
    }
}

impl PartFetcher {
    async fn read_parts(
        &self,
        key: &Key,
        ranges: &[Range<u64>],
        version: Option<&Arc<str>>,
        required_size: Option<u64>,
    ) -> Result<(Vec<Bytes>, Option<Arc<str>>)> {
        let size = self.shared.inner.stat(key).await?.size;
        let request = &PartRequest { size, version, required_size };
        if let Some(range) = ranges.iter().find(|range| range.end > size) {
            return Err(past_the_end(key, range.clone(), size));
        }
        let reads: Vec<_> =
            ranges.iter().map(|range| self.read_range(key, range.clone(), request)).collect();
        let mut reads = stream::iter(reads).buffered(CONCURRENT_READS);
        let (mut all, mut found) = (Vec::with_capacity(ranges.len()), None);
        while let Some((bytes, of_range)) = reads.try_next().await? {
            if !bytes.is_empty() {
                check_version(key, found.as_ref(), of_range.as_ref())?;
            }
            found = found.or(of_range);
            all.push(bytes);
        }
        Ok((all, found))
    }
}

impl fmt::Debug for PartFetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PartFetcher").field(&self.shared.inner).finish()
    }
}
