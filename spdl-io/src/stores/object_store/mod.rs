//! [`ObjectStoreFetcher`]: S3, Google Cloud Storage, Azure, and other stores of `object_store`.
//!
//! | file | what |
//! |---|---|
//! | this file | the fetcher, and the mapping of errors |
//! | `cloud` | builds stores from addresses, options and environment |
//! | `connector` | HTTP client that keeps the details of error responses |

mod cloud;
mod connector;

use std::fmt;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore};
use spdl_core::{Error, ErrorKind, Result};

pub(crate) use self::cloud::open;
use self::connector::{NoIdentity, ResponseHeaders};
use crate::fetch::{
    Body, Capability, Fetcher, Key, ObjectMeta, ReadMemory, ReadRequest, Unreached, check_limit,
    check_version, past_the_end, range_len,
};
use crate::stores::Secret;
use crate::stores::network::{
    Checksum, Connections, MAX_OFFSET, Reactor, ResponseError, Substitute, buffer_first_chunk,
    causes, chain, check_empty, exact, is_unresolved, panicked, unreached,
};

/// Reads objects of a bucket or container. Keys are object names.
///
/// [`StoreRegistry`](crate::StoreRegistry) opens buckets by address.
/// [`new`](ObjectStoreFetcher::new) accepts any store of the crate `object_store`. Disable the
/// retries of that store if a [`Resilient`](crate::Resilient) layer is above it.
///
/// The version of an object is its `ETag`. Object names that are not UTF-8, that contain control
/// characters or empty, `.` or `..` segments, or that begin or end with `/`, are not supported.
/// Listings omit objects whose name is the listed folder itself.
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
    /// See [`SourceOptions::verify`](crate::SourceOptions::verify).
    verify: bool,
    /// Values that no message may contain.
    secrets: Arc<[Secret]>,
}

impl ObjectStoreFetcher {
    /// Creates a fetcher for `store`. Error messages call it `name`.
    ///
    /// The I/O of the store runs on a network thread, so that any executor can poll the fetcher.
    pub fn new(store: Arc<dyn ObjectStore>, name: &str) -> Self {
        let options = crate::stores::SourceOptions::default();
        ObjectStoreFetcher {
            store,
            name: name.into(),
            reactor: Reactor::default(),
            connections: Connections::new(options.connections),
            verify: options.verify,
            secrets: Arc::default(),
        }
    }

    async fn read_limited(
        &self,
        key: &Key,
        request: ReadRequest,
        memory: &dyn ReadMemory,
    ) -> Result<Bytes> {
        let end = request.end.map(|end| end.saturating_sub(request.start));
        let body = self.open_limited(key, request, memory.max_bytes()).await?;
        let len = end.or(body.size);
        body.bytes_within(key, len, memory).await
    }

    /// Returns an error before reading the body if its length exceeds `max_bytes`.
    async fn open_limited(&self, key: &Key, request: ReadRequest, max_bytes: u64) -> Result<Body> {
        let (fetcher, owned_key) = (self.clone(), key.clone());
        let call = async move { fetcher.get(&owned_key, &request, max_bytes).await };
        self.reactor.run(key, call).await
    }

    async fn get(&self, key: &Key, request: &ReadRequest, max_bytes: u64) -> Result<Body> {
        let ReadRequest { start, end, ref version, .. } = *request;
        let range = match end {
            Some(end) if range_len(key, &(start..end))? == 0 || start >= MAX_OFFSET => {
                return self.empty_body(key, request).await;
            }
            Some(end) => Some(GetRange::Bounded(start..end.min(MAX_OFFSET))),
            None if start > 0 => Some(GetRange::Offset(start)),
            None => None,
        };
        let has_range = range.is_some();
        let path = path_of(key)?;
        // Weak ETags, and those without quotes, are invalid in this header.
        let strong = version.as_ref().filter(|version| version.starts_with('"'));
        let if_match = strong.map(|version| version.to_string());
        let options = GetOptions { if_match, range, ..GetOptions::default() };
        let connection = self.connections.take(request.times.as_deref()).await?;
        let result = match self.store.get_opts(&path, options).await {
            Ok(result) => result,
            Err(error) => {
                drop(connection);
                let error = self.map_error(error);
                return if has_range && error.kind() == ErrorKind::Truncated {
                    self.empty_body(key, request).await
                } else {
                    Err(error)
                };
            }
        };
        // The store has compared the version if the request named it.
        let compared = strong.cloned();
        let found = result.meta.e_tag.as_deref().map(Arc::from).or(compared);
        let found = as_required(found, version.as_ref());
        check_version(key, version.as_ref(), found.as_ref())?;
        let size = result.meta.size;
        if size == 0 && !has_range && request.size.is_none() {
            check_empty(self.head(key).await)?;
        }
        let mut end = end.unwrap_or(size);
        if request.clamps_end {
            end = end.min(size.max(start));
        }
        if end > size {
            return Err(past_the_end(key, start..end, size));
        }
        if result.range != (start..end) || end < start {
            let message = format!(
                "requested bytes {start}..{end}, but the store sent bytes {}..{}",
                result.range.start, result.range.end
            );
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let response: Option<ResponseHeaders> = result.extensions.get().cloned();
        // The start of an object may be all of it.
        let is_complete = !has_range || request.clamps_end && start == 0 && end == size;
        let checksum = response.as_ref().filter(|_| self.verify && is_complete);
        let checksum = checksum.and_then(|it| Checksum::announced(&it.headers, it.has_tls));
        let substitute = response.and_then(|it| Substitute::possible(&it.headers, key, false));
        let pieces = self.pieces(result);
        let pieces = exact(pieces, key, start, end - start, Arc::clone(&connection));
        let mut body = Body::new(self.reactor.in_tokio_context(|| pieces)?.boxed()).with_size(size);
        body.version = found;
        body.check = checksum.map(|checksum| Box::new(checksum) as _);
        body.connection = Some(connection);
        if let Some(substitute) = substitute.filter(|_| start == 0) {
            body.pieces = substitute.check(body.pieces).await?;
        }
        check_limit(key, end - start, max_bytes)?;
        Ok(buffer_first_chunk(body, Some(end - start), request).await)
    }

    fn pieces(&self, result: GetResult) -> BoxStream<'static, Result<Bytes>> {
        let fetcher = self.clone();
        result.into_stream().map_err(move |error| fetcher.map_error(error)).boxed()
    }

    /// Returns an empty body after checking that its position is not beyond the end of the object.
    async fn empty_body(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        let mut found_meta = self.head(key).await?;
        found_meta.version = as_required(found_meta.version, request.version.as_ref());
        check_version(key, request.version.as_ref(), found_meta.version.as_ref())?;
        let ReadRequest { start, end, .. } = *request;
        let mut end = end.unwrap_or(found_meta.size.max(start));
        if request.clamps_end {
            end = end.min(found_meta.size.max(start));
        }
        if end > found_meta.size {
            return Err(past_the_end(key, start..end, found_meta.size));
        }
        if start < end {
            let message = "the store rejects a range that is within the object";
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let mut body = Body::from_bytes(Bytes::new()).with_size(found_meta.size);
        body.version = found_meta.version;
        Ok(body)
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        let path = path_of(key)?;
        let options = GetOptions { head: true, ..GetOptions::default() };
        let found_meta = self.store.get_opts(&path, options).await;
        let found_meta = found_meta.map_err(|error| self.map_error(error))?.meta;
        Ok(meta(key.clone(), &found_meta))
    }

    /// Maps an error of the store.
    ///
    /// Texts that may contain a URL, and causes that may contain headers, are not copied.
    fn map_error(&self, error: object_store::Error) -> Error {
        use object_store::Error as Store;
        for cause in chain(&error) {
            if let Some(response_error) = cause.downcast_ref::<ResponseError>() {
                return response_error.to_error();
            }
            if let Some(NoIdentity) = cause.downcast_ref() {
                let advice = NoIdentity::advice(&self.name);
                // No request reached the store itself.
                let no_credentials = Error::new(ErrorKind::PermissionDenied, advice);
                return no_credentials.with_source(Unreached::Otherwise);
            }
        }
        if let Some(error) = chain(&error).find_map(|cause| cause.downcast_ref::<HttpError>()) {
            let (kind, what) = match error.kind() {
                _ if is_unresolved(error) => {
                    (ErrorKind::Unavailable, "cannot resolve the host name of the store")
                }
                HttpErrorKind::Timeout => (ErrorKind::Timeout, "request timed out"),
                HttpErrorKind::Connect => (ErrorKind::Unavailable, "cannot connect to the store"),
                _ => (ErrorKind::Unavailable, "connection lost"),
            };
            let why = std::error::Error::source(error).map(causes).unwrap_or_default();
            let transport_error = Error::new(kind, self.scrub(format!("{what}: {why}")));
            return match unreached(error) {
                Some(unreached) => transport_error.with_source(unreached),
                None => transport_error,
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
            // Invalid response.
            _ => ErrorKind::Corrupt,
        };
        Error::new(kind, self.scrub(causes(&error)))
    }

    /// Removes secrets of more than 3 bytes from the message of another crate.
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
        self.read_limited(key, request, &u64::MAX).await
    }

    async fn read_whole(&self, key: &Key, memory: &dyn ReadMemory) -> Result<Bytes> {
        self.read_limited(key, ReadRequest::whole(), memory).await
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        let (fetcher, owned_key) = (self.clone(), key.clone());
        self.reactor.run(key, async move { fetcher.head(&owned_key).await }).await
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        self.open_limited(key, request.clone(), u64::MAX).await
    }

    /// Requests pages of the listing as the stream is polled.
    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        let folder = prefix.as_str().map(|prefix| prefix.trim_end_matches('/'));
        let path = path_of(&folder.map_or_else(|| prefix.clone(), Key::from));
        let path = match folder {
            Some("") => Path::default(),
            _ => path.map_err(|error| error.with_key(prefix.display_name()))?,
        };
        let fetcher = self.clone();
        let make = || fetcher.store.list(Some(&path));
        let lines = catch_panics(self.reactor.in_tokio_context(make)?);
        let (fetcher, prefix) = (self.clone(), prefix.clone());
        let lines = lines.map(move |line| match line {
            Ok(Ok(found_meta)) => Ok(meta(Key::from(found_meta.location.as_ref()), &found_meta)),
            Ok(Err(error)) => Err(fetcher.map_error(error).with_key(prefix.display_name())),
            Err(panicked) => Err(panicked.with_key(prefix.display_name())),
        });
        Ok(check_order(lines).boxed())
    }
}

/// Converts a panic of a stream of the crate `object_store` into a final error.
fn catch_panics<S: futures_core::Stream + Unpin + Send + 'static>(
    stream: S,
) -> BoxStream<'static, Result<S::Item>>
where
    S::Item: Send,
{
    let caught = AssertUnwindSafe(stream).catch_unwind();
    caught.map_err(|panic| panicked(&*panic)).boxed()
}

/// Checks the order of a listing, because the resilience layer resumes after the last listed key.
fn check_order(
    lines: impl futures_core::Stream<Item = Result<ObjectMeta>> + Send + 'static,
) -> impl futures_core::Stream<Item = Result<ObjectMeta>> + Send + 'static {
    let mut last: Option<Key> = None;
    lines.map(move |line| {
        let line = line?;
        if last.as_ref().is_some_and(|last| *last >= line.key) {
            let message = "the store does not list its objects in lexicographic order";
            let error = Error::new(ErrorKind::Unsupported, message);
            return Err(error.with_key(line.key.display_name()));
        }
        last = Some(line.key.clone());
        Ok(line)
    })
}

fn meta(key: Key, found_meta: &object_store::ObjectMeta) -> ObjectMeta {
    let mut meta = ObjectMeta::new(key, found_meta.size);
    meta.version = found_meta.e_tag.as_deref().map(Into::into);
    meta
}

/// Returns the required version if it differs from `found` only in quotes and in the mark of weak
/// ETags, and otherwise `found`. Azure lists ETags without quotes; servers that compress responses
/// weaken ETags.
fn as_required(found: Option<Arc<str>>, required: Option<&Arc<str>>) -> Option<Arc<str>> {
    let bare = |version: &Arc<str>| {
        version.strip_prefix("W/").unwrap_or(version).trim_matches('"').to_owned()
    };
    match required {
        Some(required) if found.as_ref().map(bare) == Some(bare(required)) => {
            Some(Arc::clone(required))
        }
        _ => found,
    }
}

fn path_of(key: &Key) -> Result<Path> {
    let path = key.as_str().and_then(|text| {
        // `Path::parse` drops a leading or trailing slash, and would name another object.
        Path::parse(text).ok().filter(|path| !text.is_empty() && path.as_ref() == text)
    });
    path.ok_or_else(|| {
        let message = "invalid object name: expected UTF-8 without control characters, with \
                    segments between `/` that are neither empty nor `.` nor `..`";
        Error::new(ErrorKind::InvalidArgument, message).with_key(key.display_name())
    })
}

impl fmt::Debug for ObjectStoreFetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectStoreFetcher({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_are_compared_without_quotes_and_marks_of_weak_ones() {
        let found = |found: &str, required: &str| {
            let required = Arc::from(required);
            as_required(Some(found.into()), Some(&required)).as_deref() == Some(&*required)
        };
        assert!(found("\"a\"", "\"a\"") && found("a", "\"a\"") && found("W/\"a\"", "\"a\""));
        assert!(!found("\"b\"", "\"a\"") && !found("W/\"b\"", "\"a\""));
        assert_eq!(as_required(Some("b".into()), None).as_deref(), Some("b"));
        assert_eq!(as_required(None, Some(&"a".into())), None);
    }
}
