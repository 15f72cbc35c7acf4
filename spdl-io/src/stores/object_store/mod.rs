//! Object stores: S3, Google Cloud Storage, Azure, and whatever else the crate `object_store` knows.

mod cloud;
mod connector;
mod endpoint;

use std::fmt;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore};
use spdl_core::{Error, ErrorKind, Result};

pub(crate) use self::cloud::open;
use self::connector::NoIdentity;
use crate::fetch::{
    Body, Capability, Fetcher, Key, ObjectMeta, ReadRequest, Unreached, check_limit, check_version,
    past_the_end, range_len,
};
use crate::stores::Secret;
use crate::stores::network::{
    Connections, FARTHEST, Reactor, Refusal, causes, chain, collect, exact, gathered,
    is_unresolved, panicked, unreached,
};

const RANGES_AT_ONCE: usize = 8;

/// Reads objects of a bucket or container; keys are their names.
///
/// [`StoreRegistry`](crate::StoreRegistry) opens them by address. With
/// [`new`](ObjectStoreFetcher::new), any store of the crate `object_store` will do; switch its own
/// retries off, so that nothing is tried again twice over.
///
/// An object's version is its ETag. Names with an empty part (`a//b`), with parts `.` and `..`, and
/// those that begin or end with `/`, cannot be read. A listing leaves out the markers of folders,
/// objects whose name is the folder's own.
///
/// ```
/// use std::sync::Arc;
/// use spdl_io::{Fetcher, ObjectStoreFetcher};
/// let store = object_store::memory::InMemory::new();
/// let fetcher = ObjectStoreFetcher::new(Arc::new(store), "memory");
/// let error = spdl_core::block_on(fetcher.read(&"missing".into(), None)).unwrap_err();
/// assert_eq!(error.kind(), spdl_io::ErrorKind::NotFound);
/// ```
#[derive(Clone)]
pub struct ObjectStoreFetcher {
    store: Arc<dyn ObjectStore>,
    name: Arc<str>,
    reactor: Reactor,
    connections: Connections,
    /// What no message may hold.
    secrets: Arc<[Secret]>,
}

impl ObjectStoreFetcher {
    /// A fetcher over `store`, which messages call `name`. Its calls are made on a thread that waits
    /// for the network, so that any executor may poll them.
    pub fn new(store: Arc<dyn ObjectStore>, name: &str) -> Self {
        let options = crate::stores::SourceOptions::default();
        ObjectStoreFetcher {
            store,
            name: name.into(),
            reactor: Reactor::default(),
            connections: Connections::new(options.connections),
            secrets: Arc::default(),
        }
    }

    async fn read_limited(&self, key: &Key, request: ReadRequest, max_bytes: u64) -> Result<Bytes> {
        let end = request.end.map(|end| end.saturating_sub(request.start));
        let body = self.open_limited(key, request, max_bytes).await?;
        let len = end.or(body.size).unwrap_or(0);
        collect(body, key, len, max_bytes).await
    }

    /// Refuses a body of more bytes before it is read.
    async fn open_limited(&self, key: &Key, request: ReadRequest, max_bytes: u64) -> Result<Body> {
        let (fetcher, asked) = (self.clone(), key.clone());
        let call = async move { fetcher.get(&asked, &request, max_bytes).await };
        self.reactor.run(key, call).await
    }

    async fn get(&self, key: &Key, request: &ReadRequest, max_bytes: u64) -> Result<Body> {
        let ReadRequest { start, end, ref version, .. } = *request;
        let range = match end {
            Some(end) if range_len(key, &(start..end))? == 0 || start >= FARTHEST => {
                return self.nothing(key, request).await;
            }
            Some(end) => Some(GetRange::Bounded(start..end.min(FARTHEST))),
            None if start > 0 => Some(GetRange::Offset(start)),
            None => None,
        };
        let has_range = range.is_some();
        let path = path_of(key)?;
        let if_match = version.as_ref().map(|version| version.to_string());
        let options = GetOptions { if_match, range, ..GetOptions::default() };
        let permit = self.connections.take().await?;
        let result = match self.store.get_opts(&path, options).await {
            Ok(result) => result,
            Err(error) => {
                drop(permit);
                let error = self.judge(error);
                return if has_range && error.kind() == ErrorKind::Truncated {
                    self.nothing(key, request).await
                } else {
                    Err(error)
                };
            }
        };
        let found = result.meta.e_tag.as_deref().map(Arc::from);
        check_version(key, version.as_ref(), found.as_ref())?;
        let size = result.meta.size;
        let end = end.unwrap_or(size);
        if end > size {
            return Err(past_the_end(key, start..end, size));
        }
        if result.range != (start..end) || end < start {
            let message = format!("bytes {start}..{end} were asked for, and others came");
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let pieces = self.pieces(result);
        let pieces = exact(pieces, key, start, end - start, permit);
        let mut body = Body::new(self.reactor.within(|| pieces)?.boxed()).with_size(size);
        body.version = found;
        check_limit(key, end - start, max_bytes)?;
        Ok(gathered(body, Some(end - start), request).await)
    }

    fn pieces(&self, result: GetResult) -> BoxStream<'static, Result<Bytes>> {
        let fetcher = self.clone();
        result.into_stream().map_err(move |error| fetcher.judge(error)).boxed()
    }

    /// No bytes at all, where the place they are asked for at is none behind the end.
    async fn nothing(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        let told = self.head(key).await?;
        check_version(key, request.version.as_ref(), told.version.as_ref())?;
        let ReadRequest { start, end, .. } = *request;
        let end = end.unwrap_or(told.size.max(start));
        if end > told.size {
            return Err(past_the_end(key, start..end, told.size));
        }
        if start < end {
            let message = "the store refuses a range that lies in the object";
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let mut body = Body::from_bytes(Bytes::new()).with_size(told.size);
        body.version = told.version;
        Ok(body)
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        let path = path_of(key)?;
        let _permit = self.connections.take().await?;
        let options = GetOptions { head: true, ..GetOptions::default() };
        let told = self.store.get_opts(&path, options).await;
        let told = told.map_err(|error| self.judge(error))?.meta;
        Ok(meta(key.clone(), &told))
    }

    /// What an error of the store means. Of its words none are taken that may hold an address; and
    /// never its causes, which may hold headers.
    fn judge(&self, error: object_store::Error) -> Error {
        use object_store::Error as Store;
        for cause in chain(&error) {
            if let Some(refusal) = cause.downcast_ref::<Refusal>() {
                return refusal.to_error();
            }
            if let Some(NoIdentity) = cause.downcast_ref() {
                let advice = NoIdentity::advice(&self.name);
                // The store itself was not asked.
                let refused = Error::new(ErrorKind::PermissionDenied, advice);
                return refused.with_source(Unreached::Otherwise);
            }
        }
        if let Some(error) = chain(&error).find_map(|cause| cause.downcast_ref::<HttpError>()) {
            let (kind, what) = match error.kind() {
                _ if is_unresolved(error) => {
                    (ErrorKind::Unavailable, "no address is known for the name of the store")
                }
                HttpErrorKind::Timeout => (ErrorKind::Timeout, "no answer in time"),
                HttpErrorKind::Connect => (ErrorKind::Unavailable, "cannot connect to the store"),
                _ => (ErrorKind::Unavailable, "the connection broke"),
            };
            let why = std::error::Error::source(error).map(causes).unwrap_or_default();
            let broken = Error::new(kind, self.scrub(format!("{what}: {why}")));
            return match unreached(error) {
                Some(unreached) => broken.with_source(unreached),
                None => broken,
            };
        }
        let kind = match &error {
            Store::NotFound { .. } => ErrorKind::NotFound,
            Store::Precondition { .. } | Store::NotModified { .. } => ErrorKind::Changed,
            Store::PermissionDenied { .. } | Store::Unauthenticated { .. } => {
                ErrorKind::PermissionDenied
            }
            Store::NotSupported { .. } | Store::NotImplemented { .. } => ErrorKind::Unsupported,
            Store::InvalidPath { .. } | Store::UnknownConfigurationKey { .. } => {
                ErrorKind::InvalidArgument
            }
            // An answer that makes no sense.
            _ => ErrorKind::Corrupt,
        };
        Error::new(kind, self.scrub(causes(&error)))
    }

    /// Takes out what is secret, should it be in a message of another crate.
    fn scrub(&self, text: String) -> String {
        scrub(text, &self.secrets)
    }
}

fn scrub(text: String, secrets: &[Secret]) -> String {
    let secrets = secrets.iter().map(Secret::reveal).filter(|secret| secret.len() > 3);
    secrets.fold(text, |text, secret| text.replace(secret, "***"))
}

#[async_trait]
impl Fetcher for ObjectStoreFetcher {
    fn capability(&self) -> Capability {
        Capability::default().with_ranges().with_list().with_versions().with_streams()
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        let request = range.map_or_else(ReadRequest::whole, ReadRequest::range);
        self.read_limited(key, request, u64::MAX).await
    }

    async fn read_at_most(&self, key: &Key, max_bytes: u64) -> Result<Bytes> {
        self.read_limited(key, ReadRequest::whole(), max_bytes).await
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        let (fetcher, asked) = (self.clone(), key.clone());
        self.reactor.run(key, async move { fetcher.head(&asked).await }).await
    }

    /// Reads 8 ranges at once.
    async fn read_ranges(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let reads: Vec<_> =
            ranges.iter().map(|range| self.read(key, Some(range.clone()))).collect();
        stream::iter(reads).buffered(RANGES_AT_ONCE).try_collect().await
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        self.open_limited(key, request.clone(), u64::MAX).await
    }

    /// Page by page, as they are asked for.
    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        let folder = prefix.as_str().map(|prefix| prefix.trim_end_matches('/'));
        let path = path_of(&folder.map_or_else(|| prefix.clone(), Key::from));
        let path = match folder {
            Some("") => Path::default(),
            _ => path.map_err(|error| error.with_key(prefix.display_name()))?,
        };
        let fetcher = self.clone();
        let make = || fetcher.store.list(Some(&path));
        let lines = guarded(self.reactor.within(make)?);
        let (fetcher, prefix) = (self.clone(), prefix.clone());
        let lines = lines.map(move |line| match line {
            Ok(Ok(told)) => Ok(meta(Key::from(told.location.as_ref()), &told)),
            Ok(Err(error)) => Err(fetcher.judge(error).with_key(prefix.display_name())),
            Err(panicked) => Err(panicked.with_key(prefix.display_name())),
        });
        Ok(in_order(lines).boxed())
    }
}

/// What a stream of the crate `object_store` gives; where it panics, an error is the last.
fn guarded<S: futures_core::Stream + Unpin + Send + 'static>(
    stream: S,
) -> BoxStream<'static, Result<S::Item>>
where
    S::Item: Send,
{
    let caught = AssertUnwindSafe(stream).catch_unwind();
    caught.map_err(|panic| panicked(&*panic)).boxed()
}

/// Listings go on behind the last line that was told, so their order is what all relies on.
fn in_order(
    lines: impl futures_core::Stream<Item = Result<ObjectMeta>> + Send + 'static,
) -> impl futures_core::Stream<Item = Result<ObjectMeta>> + Send + 'static {
    let mut last: Option<Key> = None;
    lines.map(move |line| {
        let line = line?;
        if last.as_ref().is_some_and(|last| *last >= line.key) {
            let message = "the store does not list its objects in the order of their names";
            let error = Error::new(ErrorKind::Unsupported, message);
            return Err(error.with_key(line.key.display_name()));
        }
        last = Some(line.key.clone());
        Ok(line)
    })
}

fn meta(key: Key, told: &object_store::ObjectMeta) -> ObjectMeta {
    let mut meta = ObjectMeta::new(key, told.size);
    meta.version = told.e_tag.as_deref().map(Into::into);
    meta
}

fn path_of(key: &Key) -> Result<Path> {
    let path = key.as_str().and_then(|text| {
        // It drops a slash at either end, and would so name another object.
        Path::parse(text).ok().filter(|path| !text.is_empty() && path.as_ref() == text)
    });
    path.ok_or_else(|| {
        let message = "this name cannot be read from an object store: one that can is UTF-8 \
            without control characters, and its parts between `/` are neither empty nor `.` or `..`";
        Error::new(ErrorKind::InvalidArgument, message).with_key(key.display_name())
    })
}

impl fmt::Debug for ObjectStoreFetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectStoreFetcher({})", self.name)
    }
}
