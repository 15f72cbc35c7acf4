//! [`HttpFetcher`]: reads objects of web servers over HTTP and HTTPS.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use reqwest::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap,
    HeaderName, HeaderValue, IF_MATCH, LAST_MODIFIED, LOCATION, RANGE, TRANSFER_ENCODING,
};
use reqwest::{Method, Response, StatusCode, Url};
use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::{
    Body, Capability, Fetcher, Key, ObjectMeta, ReadMemory, ReadRequest, check_limit,
    check_version, past_the_end, range_len,
};
use crate::stores::hugging_face::{HubDataset, files_of_page, next_page};
use crate::stores::network::{
    self, Checksum, Connections, MAX_OFFSET, Reactor, ResponseError, Substitute,
    buffer_first_chunk, check_empty, exact, is_this_machine, transport_error,
};
use crate::stores::{Address, Secret, SourceOptions};

const MAX_REDIRECTS: usize = 10;
/// The maximum number of pages of a listing, which have up to 1,000 entries.
const MAX_PAGES: usize = 10_000;
/// The maximum size of a page of a listing, in bytes.
const MAX_PAGE_BYTES: u64 = 64 << 20;

/// Reads objects of a web server. Keys are paths below its URL, without percent encoding.
///
/// A key may also be a URL on the same server, such as `https://host/a%20b.jpg?width=200`. The
/// fetcher requests such a URL without its fragment, and with the query of that URL instead of the
/// query of the fetcher. A user name or password in such a URL fails with `InvalidArgument`.
///
/// To read whole objects, the server must support GET, and must send `Content-Length` or chunked
/// encoding. For ranges, the server must support range requests. Sizes and versions are read with
/// HEAD. If the server rejects HEAD with 403, 405 or 501, or responds without `Content-Length` or
/// with the headers of other content, the fetcher requests the first byte with GET instead. Listing is not supported.
///
/// The version of an object is its `ETag`, or else its `Last-Modified` header. A required version
/// is compared when the response headers arrive. If it is a strong ETag, it is also sent as
/// `If-Match`.
///
/// Whole objects are compared with the checksum in the headers of the response, if there is one
/// ([`SourceOptions::verify`]). The bytes of [`open`](Fetcher::open) are compared by
/// [`Body::bytes`], and by [`Resilient`](crate::Resilient).
///
/// Up to 10 redirects are followed. Redirects from HTTPS to HTTP need
/// [`SourceOptions::allow_plain_http`]. User name, password and configured headers are not sent to
/// other servers. Environment variables (`HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY`) configure
/// proxies. Requests to `localhost`, `127.0.0.1` and `[::1]` bypass proxies.
///
/// Each request is sent once. For retries, wrap the fetcher in
/// [`Resilient`](crate::Resilient), as [`StoreRegistry`](crate::StoreRegistry) does.
///
/// ```no_run
/// use spdl_io::{Fetcher, HttpFetcher, SourceOptions};
/// let fetcher = HttpFetcher::new("https://example.org/data", &SourceOptions::default())?;
/// let head = spdl_core::block_on(fetcher.read(&"a b/x.tar".into(), Some(0..512)))?;
/// # Ok::<(), spdl_io::Error>(())
/// ```
#[derive(Clone)]
pub struct HttpFetcher(Arc<Server>);

struct Server {
    reactor: Reactor,
    client: reqwest::Client,
    connections: Connections,
    /// URL without user name, password and query.
    base: Url,
    /// The query of each request whose key is a path. The query may hold a signature.
    query: Option<Secret>,
    /// The URL that lists the files of a data set of the Hugging Face Hub.
    tree: Option<Url>,
    headers: HeaderMap,
    allow_plain_http: bool,
    verify: bool,
}

impl HttpFetcher {
    /// Creates a fetcher for objects below `url`. The empty key is `url` itself.
    ///
    /// `url` may hold a user name, a password, and a query that is sent with every request.
    ///
    /// # Errors
    /// `InvalidArgument` if `url` is not an HTTP URL, or if a header or a CA certificate of the
    /// options is invalid. `Io` if TLS cannot be set up, for example because the system has no
    /// trusted root certificates.
    pub fn new(url: &str, options: &SourceOptions) -> Result<Self> {
        let address = Address::parse(url)?;
        let client = network::client(options, is_this_machine(address.authority()))?;
        HttpFetcher::open(&address, options, Reactor::default(), client)
    }

    pub(crate) fn open(
        address: &Address,
        options: &SourceOptions,
        reactor: Reactor,
        client: reqwest::Client,
    ) -> Result<Self> {
        let invalid = |fault: &str| Error::new(ErrorKind::InvalidArgument, fault);
        let base = Url::parse(&address.store()).ok();
        let base = base.filter(|it| matches!(it.scheme(), "http" | "https") && it.has_host());
        let mut base = base.ok_or_else(|| {
            invalid("not the URL of a web server; expected http://host/path or https://host/path")
        })?;
        base.set_path(&encode(address.key())?);
        let mut login = None;
        if let Some((name, password)) = address.user() {
            let encoded = BASE64_STANDARD.encode(format!("{name}:{}", password.reveal()));
            login = Some(format!("Basic {encoded}").into());
        }
        let query = address.query().cloned();
        Ok(HttpFetcher(Arc::new(Server {
            query,
            ..Server::new(base, login, options, reactor, client)?
        })))
    }

    /// Creates a fetcher for the files of a data set of the Hugging Face Hub.
    pub(super) fn open_hub(
        hub: HubDataset,
        options: &SourceOptions,
        reactor: Reactor,
        client: reqwest::Client,
    ) -> Result<Self> {
        let server = Server::new(hub.files, hub.authorization, options, reactor, client)?;
        Ok(HttpFetcher(Arc::new(Server { tree: Some(hub.tree), ..server })))
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

    /// Returns an error before reading the body if its known length exceeds `max_bytes`.
    async fn open_limited(&self, key: &Key, request: ReadRequest, max_bytes: u64) -> Result<Body> {
        let (server, owned_key) = (Arc::clone(&self.0), key.clone());
        let call = async move { server.open(&owned_key, &request, max_bytes).await };
        self.0.reactor.run(key, call).await
    }
}

#[async_trait]
impl Fetcher for HttpFetcher {
    fn capability(&self) -> Capability {
        let capability = Capability::default().with_ranges().with_versions().with_streams();
        if self.0.tree.is_some() { capability.with_list() } else { capability }
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        let request = range.map_or_else(ReadRequest::whole, ReadRequest::range);
        self.read_limited(key, request, &u64::MAX).await
    }

    async fn read_whole(&self, key: &Key, memory: &dyn ReadMemory) -> Result<Bytes> {
        self.read_limited(key, ReadRequest::whole(), memory).await
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        let (server, owned_key) = (Arc::clone(&self.0), key.clone());
        self.0.reactor.run(key, async move { server.stat(&owned_key).await }).await
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        self.open_limited(key, request.clone(), u64::MAX).await
    }

    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        if let Some(tree) = self.0.tree.clone() {
            let (server, folder) = (Arc::clone(&self.0), prefix.clone());
            let listing = async move { server.list_tree(&tree, &folder).await };
            let objects = self.0.reactor.run(prefix, listing).await?;
            return Ok(stream::iter(objects.into_iter().map(Ok)).boxed());
        }
        let message = "web servers cannot be listed; name each file, or use a brace pattern such \
                    as shard-{0000..0007}.tar";
        Err(Error::new(ErrorKind::Unsupported, message).with_key(prefix.display_name()))
    }
}

impl fmt::Debug for HttpFetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpFetcher({})", self.0.base)
    }
}

impl Server {
    /// `authorization` is the value of that header, unless the options set the header.
    fn new(
        base: Url,
        authorization: Option<Secret>,
        options: &SourceOptions,
        reactor: Reactor,
        client: reqwest::Client,
    ) -> Result<Self> {
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization {
            headers.insert(AUTHORIZATION, secret_header(value.reveal())?);
        }
        for (name, value) in &options.headers {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
                Error::new(ErrorKind::InvalidArgument, "invalid character in header name")
            })?;
            headers.insert(name, secret_header(value.reveal())?);
        }
        Ok(Server {
            reactor,
            client,
            connections: Connections::new(options.connections),
            base,
            query: None,
            tree: None,
            headers,
            allow_plain_http: options.allow_plain_http,
            verify: options.verify,
        })
    }

    async fn open(&self, key: &Key, request: &ReadRequest, max_bytes: u64) -> Result<Body> {
        let ReadRequest { start, end, ref version, .. } = *request;
        let mut headers = HeaderMap::new();
        let is_range = start > 0 || end.is_some();
        match end {
            Some(end) if range_len(key, &(start..end))? == 0 || start >= MAX_OFFSET => {
                return self.empty_body(key, request).await;
            }
            Some(end) => {
                let last = end.min(MAX_OFFSET) - 1;
                headers.insert(RANGE, header(&format!("bytes={start}-{last}"))?);
            }
            None if is_range => {
                headers.insert(RANGE, header(&format!("bytes={start}-"))?);
            }
            None => {}
        }
        if let Some(version) = version.as_ref().filter(|version| version.starts_with('"')) {
            headers.insert(IF_MATCH, header(version)?);
        }
        let connection = self.connections.take(request.times.as_deref()).await?;
        let mut response = self.send(Method::GET, key, headers).await?;
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE && is_range {
            drop((response, connection));
            return self.empty_body(key, request).await;
        }
        self.accept(&response)?;
        let substitute = Substitute::possible(response.headers(), key, true);
        let is_part = response.status() == StatusCode::PARTIAL_CONTENT;
        let found = version_of(response.headers());
        let is_version = version.is_none() || *version == found;
        if !is_version || is_range && !is_part {
            // Names the cause of the errors below.
            check_content(substitute, &mut response).await?;
        }
        let substitute = substitute.filter(|_| start == 0);
        check_version(key, version.as_ref(), found.as_ref())?;
        let reported = content_length(&response)?;
        if reported.is_none() && !is_chunked(&response) && !is_range {
            let message = "the response has neither Content-Length nor chunked encoding, so a \
                           truncated body cannot be detected";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if reported == Some(0) && !is_range && request.size.is_none() {
            check_empty(self.stat(key).await)?;
        }
        let (len, size) = if is_range {
            let (part, size) = part_of(&response)?;
            let mut end = end.unwrap_or(size);
            if part.start == start && part.end == size && end > size {
                if !request.clamps_end {
                    return Err(past_the_end(key, start..end, size));
                }
                end = size;
            }
            if part != (start..end) || reported.is_some_and(|reported| reported != end - start) {
                let message = format!(
                    "requested bytes {start}..{end}, but the server sent bytes {}..{}",
                    part.start, part.end
                );
                return Err(Error::new(ErrorKind::Corrupt, message));
            }
            (Some(end - start), Some(size))
        } else {
            (reported, reported)
        };
        let is_complete = match is_range {
            // The start of an object may be all of it.
            true => request.clamps_end && start == 0 && len == size,
            false => response.status() == StatusCode::OK,
        } && self.verify;
        let has_tls = response.url().scheme() == "https";
        let checksum =
            is_complete.then(|| Checksum::announced(response.headers(), has_tls)).flatten();
        let pieces = stream::try_unfold(response, |mut response| async move {
            let piece = response.chunk().await.map_err(transport_error)?;
            Ok(piece.map(|piece| (piece, response)))
        });
        let pieces = match len {
            Some(len) => exact(pieces, key, start, len, Arc::clone(&connection)),
            // Chunked encoding marks the end of the body.
            None => {
                let name = key.display_name();
                let named = move |error: Error| error.with_key(Arc::clone(&name));
                let held = Arc::clone(&connection);
                pieces.map_err(named).inspect(move |_| _ = &held).boxed()
            }
        };
        let mut body = Body::new(self.reactor.in_tokio_context(|| pieces)?.boxed());
        (body.size, body.version) = (size, found);
        body.check = checksum.map(|checksum| Box::new(checksum) as _);
        body.connection = Some(connection);
        if let Some(substitute) = substitute {
            // Before the size of another content counts as the size of the object.
            body.pieces = substitute.check(body.pieces).await?;
        }
        check_limit(key, len.unwrap_or(0), max_bytes)?;
        Ok(buffer_first_chunk(body, len, request).await)
    }

    /// Returns an empty body after checking that its position is not beyond the end of the object.
    async fn empty_body(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        let reported = self.stat(key).await?;
        check_version(key, request.version.as_ref(), reported.version.as_ref())?;
        let ReadRequest { start, end, .. } = *request;
        let mut end = end.unwrap_or(reported.size.max(start));
        if request.clamps_end {
            end = end.min(reported.size.max(start));
        }
        if end > reported.size {
            return Err(past_the_end(key, start..end, reported.size));
        }
        if start < end {
            let message = "server returned 416 Range Not Satisfiable for a range within the object";
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let mut body = Body::from_bytes(Bytes::new()).with_size(reported.size);
        body.version = reported.version;
        Ok(body)
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        let response = self.send(Method::HEAD, key, HeaderMap::new()).await?;
        // A presigned URL may be valid only for GET.
        let is_refused = matches!(response.status().as_u16(), 403 | 405 | 501);
        // Servers that send chunks do not know the length before.
        let is_open = response.status().is_success() && content_length(&response)?.is_none();
        // The length is perhaps of other content.
        let is_other = Substitute::announced(response.headers(), key, true).is_some();
        let (response, size) = if is_refused || is_open || is_other {
            let mut headers = HeaderMap::new();
            headers.insert(RANGE, HeaderValue::from_static("bytes=0-0"));
            let mut response = self.send(Method::GET, key, headers).await?;
            if response.status().is_success() {
                let substitute = Substitute::possible(response.headers(), key, true);
                check_content(substitute, &mut response).await?;
            }
            let size = match response.status() {
                StatusCode::RANGE_NOT_SATISFIABLE => response_error(&response).size,
                StatusCode::PARTIAL_CONTENT => part_of(&response).ok().map(|(_, size)| size),
                _ => content_length(&response)?,
            };
            (response, size)
        } else {
            let size = content_length(&response)?;
            (response, size)
        };
        if response.status() != StatusCode::RANGE_NOT_SATISFIABLE || size.is_none() {
            self.accept(&response)?;
        }
        let size = size.ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                "the size of the object is unknown: no valid Content-Length or Content-Range \
                 header",
            )
        })?;
        let mut reported = ObjectMeta::new(key.clone(), size);
        reported.version = version_of(response.headers());
        Ok(reported)
    }

    /// Returns an error unless the response has a status of success.
    fn accept(&self, response: &Response) -> Result<()> {
        if response.status().is_success() {
            return Ok(());
        }
        let error = response_error(response).to_error();
        if self.tree.is_none() || error.kind() != ErrorKind::PermissionDenied {
            return Err(error);
        }
        let message = format!(
            "{}; if the data set exists and is private or gated, set HF_TOKEN to a token of a user who may read it",
            error.message()
        );
        Err(Error::new(error.kind(), message))
    }

    /// Lists a folder of a data set of the Hugging Face Hub.
    async fn list_tree(&self, tree: &Url, folder: &Key) -> Result<Vec<ObjectMeta>> {
        let path = encode(folder)?;
        let path = path.trim_end_matches('/');
        let mut url = tree.clone();
        if !path.is_empty() {
            url.set_path(&format!("{}/{path}", tree.path()));
        }
        url.set_query(Some("recursive=true"));
        let mut objects = Vec::new();
        for _ in 0..MAX_PAGES {
            let mut response = self.send_to(Method::GET, url.clone(), HeaderMap::new()).await?;
            self.accept(&response)?;
            let next = next_page(response.headers());
            let mut page = Vec::new();
            while let Some(piece) = response.chunk().await.map_err(transport_error)? {
                page.extend_from_slice(&piece);
                check_limit(folder, page.len() as u64, MAX_PAGE_BYTES)?;
            }
            objects.extend(files_of_page(&page)?);
            let Some(next) = next else {
                objects.sort_by(|a, b| a.key.cmp(&b.key));
                return Ok(objects);
            };
            let next = url.join(&next).ok().filter(|next| next.origin() == tree.origin());
            url = next.ok_or_else(|| {
                Error::new(ErrorKind::Corrupt, "the next page of the listing is on another server")
            })?;
        }
        let message = format!("the folder contains more than {} files", objects.len());
        Err(Error::new(ErrorKind::LimitExceeded, message))
    }

    /// Sends one request and follows redirects.
    async fn send(&self, method: Method, key: &Key, headers: HeaderMap) -> Result<Response> {
        self.send_to(method, self.url(key)?, headers).await
    }

    async fn send_to(&self, method: Method, mut url: Url, headers: HeaderMap) -> Result<Response> {
        let origin = url.origin();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = reqwest::Request::new(method.clone(), url.clone());
            *request.headers_mut() = headers.clone();
            // Prevents the server from compressing the body.
            request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            if url.origin() == origin {
                request.headers_mut().extend(self.headers.clone());
            }
            let response = self.client.execute(request).await.map_err(transport_error)?;
            let location = response.headers().get(LOCATION);
            let (true, Some(location)) = (is_redirect(response.status()), location) else {
                return Ok(response);
            };
            let next = location.to_str().ok().and_then(|location| url.join(location).ok());
            let mut next = next
                .filter(|next| matches!(next.scheme(), "http" | "https"))
                .ok_or_else(|| Error::new(ErrorKind::Corrupt, "redirect to an invalid URL"))?;
            if url.scheme() == "https" && next.scheme() == "http" && !self.allow_plain_http {
                let message = "redirect from HTTPS to HTTP is not allowed by default; to allow it, \
                               set allow_plain_http";
                return Err(Error::new(ErrorKind::PermissionDenied, message));
            }
            let no_user = next.set_username("").and_then(|()| next.set_password(None));
            no_user.map_err(|()| Error::new(ErrorKind::Corrupt, "redirect to an invalid URL"))?;
            url = next;
        }
        let message = format!("the server sent more than {MAX_REDIRECTS} redirects");
        Err(Error::new(ErrorKind::Corrupt, message))
    }

    fn url(&self, key: &Key) -> Result<Url> {
        if let Some(url) = self.whole_address(key)? {
            return Ok(url);
        }
        let mut url = self.base.clone();
        if !key.as_bytes().is_empty() {
            let base = url.path().trim_end_matches('/').to_owned();
            url.set_path(&format!("{base}/{}", encode(key)?));
        }
        url.set_query(self.query.as_ref().map(Secret::reveal));
        Ok(url)
    }

    /// Parses a key that is a URL on this server. Returns `None` for a path.
    fn whole_address(&self, key: &Key) -> Result<Option<Url>> {
        let address = key.as_str().filter(|text| text.contains("://"));
        let url = address.and_then(|text| Url::parse(text).ok());
        let Some(mut url) = url.filter(|url| url.origin() == self.base.origin()) else {
            return Ok(None);
        };
        if !url.username().is_empty() || url.password().is_some() {
            let message = "user name and password in the URL of a single object are not supported";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        url.set_fragment(None);
        Ok(Some(url))
    }
}

/// Returns whether the body uses chunked transfer encoding, which marks its end.
fn is_chunked(response: &Response) -> bool {
    let codings = response.headers().get_all(TRANSFER_ENCODING).into_iter();
    codings.filter_map(|it| it.to_str().ok()).any(|it| it.to_ascii_lowercase().ends_with("chunked"))
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn response_error(response: &Response) -> ResponseError {
    ResponseError::new(response.status(), response.headers())
}

/// Reads the first bytes of a response that announces other content than the object, and returns an
/// error if they are that content.
async fn check_content(substitute: Option<Substitute>, response: &mut Response) -> Result<()> {
    let Some(substitute) = substitute else { return Ok(()) };
    let first = response.chunk().await.map_err(transport_error)?.unwrap_or_default();
    substitute.check_first(&first)
}

/// Parses the `Content-Length` header. Responses to HEAD have this header without a body.
fn content_length(response: &Response) -> Result<Option<u64>> {
    let Some(value) = response.headers().get(CONTENT_LENGTH) else { return Ok(None) };
    let len = value.to_str().ok().and_then(|value| value.trim().parse().ok());
    let invalid = || Error::new(ErrorKind::Corrupt, "invalid Content-Length header");
    len.ok_or_else(invalid).map(Some)
}

/// Returns the range and object size of a partial response: `bytes 0-99/1234`.
fn part_of(response: &Response) -> Result<(Range<u64>, u64)> {
    if response.status() != StatusCode::PARTIAL_CONTENT {
        let knows_ranges = response.headers().get(ACCEPT_RANGES).is_some_and(|it| it == "bytes");
        return Err(if knows_ranges {
            Error::new(
                ErrorKind::Corrupt,
                "requested a range, but the server sent the whole object",
            )
        } else {
            let message = "this server does not support range requests, which reading this \
                            data set requires: use another server, copy the files to this machine, or, \
                            for tar shards, read them sequentially (`OpenOptions::sequential`, \
                            `sequential=True`, `--sequential`)";
            Error::new(ErrorKind::Unsupported, message)
        });
    }
    let value = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    value
        .and_then(content_range)
        .ok_or_else(|| Error::new(ErrorKind::Corrupt, "missing or invalid Content-Range header"))
}

/// Parses the header `Content-Range` into range and size. Returns `None` if the range is invalid
/// or exceeds the size (RFC 9110, 14.4).
fn content_range(value: &str) -> Option<(Range<u64>, u64)> {
    let (range, size) = value.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last): (u64, u64) = (start.parse().ok()?, last.parse().ok()?);
    let size = size.parse().ok()?;
    (start <= last && last < size).then(|| (start..last + 1, size))
}

fn version_of(headers: &HeaderMap) -> Option<Arc<str>> {
    let value = headers.get(ETAG).or_else(|| headers.get(LAST_MODIFIED))?;
    value.to_str().ok().map(Into::into)
}

fn header(value: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(value)
        .map_err(|_| Error::new(ErrorKind::InvalidArgument, "invalid character in header value"))
}

fn secret_header(value: &str) -> Result<HeaderValue> {
    let mut value = header(value)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Percent-encodes a key as the path of a URL (RFC 3986, 3.3).
fn encode(key: &Key) -> Result<String> {
    if key.as_bytes().split(|&byte| byte == b'/').any(|part| part == b"." || part == b"..") {
        let message = "`.` and `..` are not valid path segments of a key on a web server";
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    let mut path = String::with_capacity(key.as_bytes().len());
    for &byte in key.as_bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/!$&'()*,;=:@".contains(&byte) {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_percent_encoded() {
        let encoded = |key: &[u8]| encode(&Key::from_bytes(key)).unwrap();
        assert_eq!(encoded(b"a b/c+d?e#f%20.tar"), "a%20b/c%2Bd%3Fe%23f%2520.tar");
        assert_eq!(encoded("größe".as_bytes()), "gr%C3%B6%C3%9Fe");
        assert_eq!(encoded(b"\xff"), "%FF");
        for key in ["..", "a/../b", "./a"] {
            assert_eq!(encode(&key.into()).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        let fetcher = HttpFetcher::new("http://h/base/?q=1", &SourceOptions::default()).unwrap();
        let url = |key: &str| fetcher.0.url(&key.into()).unwrap().to_string();
        assert_eq!(url("a/b"), "http://h/base/a/b?q=1");
        assert_eq!(url(""), "http://h/base/?q=1");
        assert_eq!(url("//x"), "http://h/base///x?q=1");
        assert_eq!(url("\\..\\"), "http://h/base/%5C..%5C?q=1");
    }

    #[test]
    fn invalid_content_ranges_are_rejected() {
        assert_eq!(content_range("bytes 2-4/9"), Some((2..5, 9)));
        assert_eq!(content_range("bytes 8-8/9"), Some((8..9, 9)));
        let last = u64::MAX;
        for value in ["bytes 8-9/9", "bytes 5-4/9", "bytes 10-4/5", "bytes 0-1/*", "bytes */9", ""]
        {
            assert_eq!(content_range(value), None, "{value}");
        }
        assert_eq!(content_range(&format!("bytes 0-{last}/{last}")), None);
    }
}
