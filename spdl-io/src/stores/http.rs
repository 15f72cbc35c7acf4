//! Objects of web servers, over HTTP and HTTPS.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
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
    Body, Capability, Fetcher, Key, ObjectMeta, ReadRequest, check_limit, check_version,
    past_the_end, range_len,
};
use crate::stores::network::{
    self, Connections, FARTHEST, Reactor, Refusal, broken, collect, exact, gathered,
    is_this_machine,
};
use crate::stores::{Address, SourceOptions};

const MOST_REDIRECTS: usize = 10;
const RANGES_AT_ONCE: usize = 8;

/// Reads objects of a web server; keys are paths below its address, not percent-encoded.
///
/// A key may also be a whole address on this server, `https://host/a%20b.jpg?width=200`: it is sent as it
/// stands, and with its own query instead of the fetcher's.
///
/// Any server will do that answers GET; ranges, sizes and versions need one that knows ranges and
/// HEAD, as all common ones do. There is no listing: the web has none.
///
/// An object's version is its ETag, or else the time of its last change. Only a strong ETag binds a
/// read (`If-Match`); all else is compared when the answer comes.
///
/// Redirects are followed, up to 10, and from HTTPS to HTTP only by leave. Name and password of the
/// address, and headers of the options, go to no other server. Proxies are taken from the
/// environment (`HTTPS_PROXY`, `NO_PROXY`), but this machine is reached without.
///
/// It asks once; [`Resilient`](crate::Resilient) asks again, and a
/// [`StoreRegistry`](crate::StoreRegistry) puts it above.
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
    /// Without name, password and query.
    base: Url,
    /// May be a signature.
    query: Option<crate::stores::Secret>,
    headers: HeaderMap,
    allow_plain_http: bool,
}

impl HttpFetcher {
    /// A fetcher for what lies below `url`, which may hold a name and a password, and a query that
    /// goes with every request. The empty key is the address itself.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no address of the web, and for headers that cannot be sent;
    /// `Io` where TLS cannot be set up, as on a machine that trusts nobody.
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
        let mut base = base.ok_or_else(|| invalid("this is no address of a web server"))?;
        base.set_path(&encode(address.key())?);
        let mut headers = HeaderMap::new();
        if let Some((name, password)) = address.user() {
            let login = base64(format!("{name}:{}", password.reveal()).as_bytes());
            headers.insert(AUTHORIZATION, secret_header(&format!("Basic {login}"))?);
        }
        for (name, value) in &options.headers {
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| invalid("the name of a header holds what none may"))?;
            headers.insert(name, secret_header(value.reveal())?);
        }
        Ok(HttpFetcher(Arc::new(Server {
            reactor,
            client,
            connections: Connections::new(options.connections),
            base,
            query: address.query().cloned(),
            headers,
            allow_plain_http: options.allow_plain_http,
        })))
    }

    async fn read_limited(&self, key: &Key, request: ReadRequest, max_bytes: u64) -> Result<Bytes> {
        let end = request.end.map(|end| end.saturating_sub(request.start));
        let body = self.open_limited(key, request, max_bytes).await?;
        let len = end.or(body.size).unwrap_or(0);
        collect(body, key, len, max_bytes).await
    }

    /// Refuses a body of more bytes, where its length is told, before it is read.
    async fn open_limited(&self, key: &Key, request: ReadRequest, max_bytes: u64) -> Result<Body> {
        let (server, asked) = (Arc::clone(&self.0), key.clone());
        let call = async move { server.open(&asked, &request, max_bytes).await };
        self.0.reactor.run(key, call).await
    }
}

#[async_trait]
impl Fetcher for HttpFetcher {
    fn capability(&self) -> Capability {
        Capability::default().with_ranges().with_versions().with_streams()
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        let request = range.map_or_else(ReadRequest::whole, ReadRequest::range);
        self.read_limited(key, request, u64::MAX).await
    }

    async fn read_at_most(&self, key: &Key, max_bytes: u64) -> Result<Bytes> {
        self.read_limited(key, ReadRequest::whole(), max_bytes).await
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        let (server, asked) = (Arc::clone(&self.0), key.clone());
        self.0.reactor.run(key, async move { server.stat(&asked).await }).await
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

    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        let message = "a web server does not list what it holds; name the files, many at once as in \
            shard-{0000..0007}.tar";
        Err(Error::new(ErrorKind::Unsupported, message).with_key(prefix.display_name()))
    }
}

impl fmt::Debug for HttpFetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpFetcher({})", self.0.base)
    }
}

impl Server {
    async fn open(&self, key: &Key, request: &ReadRequest, max_bytes: u64) -> Result<Body> {
        let ReadRequest { start, end, ref version, .. } = *request;
        let mut headers = HeaderMap::new();
        let is_range = start > 0 || end.is_some();
        match end {
            Some(end) if range_len(key, &(start..end))? == 0 || start >= FARTHEST => {
                return self.nothing(key, request).await;
            }
            Some(end) => {
                let last = end.min(FARTHEST) - 1;
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
        let permit = self.connections.take().await?;
        let response = self.send(Method::GET, key, headers).await?;
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE && is_range {
            drop((response, permit));
            return self.nothing(key, request).await;
        }
        accept(&response)?;
        let found = version_of(response.headers());
        check_version(key, version.as_ref(), found.as_ref())?;
        let told = content_length(&response)?;
        if told.is_none() && !is_chunked(&response) && !is_range {
            let message = "the server tells no length, and ends its answer by closing the connection: \
                           one that is cut would look whole";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let (len, size) = if is_range {
            let (part, size) = part_of(&response)?;
            let end = end.unwrap_or(size);
            if part.start == start && part.end == size && end > size {
                return Err(past_the_end(key, start..end, size));
            }
            if part != (start..end) || told.is_some_and(|told| told != end - start) {
                let message = format!("bytes {start}..{end} were asked for, and others came");
                return Err(Error::new(ErrorKind::Corrupt, message));
            }
            (Some(end - start), Some(size))
        } else {
            (told, told)
        };
        let pieces = stream::try_unfold(response, |mut response| async move {
            let piece = response.chunk().await.map_err(broken)?;
            Ok(piece.map(|piece| (piece, response)))
        });
        let pieces = match len {
            Some(len) => exact(pieces, key, start, len, permit),
            // Its end is marked in another way.
            None => {
                let name = key.display_name();
                let named = move |error: Error| error.with_key(Arc::clone(&name));
                pieces.map_err(named).inspect(move |_| _ = &permit).boxed()
            }
        };
        let mut body = Body::new(self.reactor.within(|| pieces)?.boxed());
        (body.size, body.version) = (size, found);
        check_limit(key, len.unwrap_or(0), max_bytes)?;
        Ok(gathered(body, len, request).await)
    }

    /// No bytes at all, where the place they are asked for at is none behind the end.
    async fn nothing(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        let told = self.stat(key).await?;
        check_version(key, request.version.as_ref(), told.version.as_ref())?;
        let ReadRequest { start, end, .. } = *request;
        let end = end.unwrap_or(told.size.max(start));
        if end > told.size {
            return Err(past_the_end(key, start..end, told.size));
        }
        if start < end {
            let message = "the server refuses a range that lies in the object";
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let mut body = Body::from_bytes(Bytes::new()).with_size(told.size);
        body.version = told.version;
        Ok(body)
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        let _permit = self.connections.take().await?;
        let response = self.send(Method::HEAD, key, HeaderMap::new()).await?;
        // A signed address may be signed for GET alone.
        let is_refused = matches!(response.status().as_u16(), 403 | 405 | 501);
        let (response, size) = if is_refused {
            let mut headers = HeaderMap::new();
            headers.insert(RANGE, HeaderValue::from_static("bytes=0-0"));
            let response = self.send(Method::GET, key, headers).await?;
            let size = match response.status() {
                StatusCode::RANGE_NOT_SATISFIABLE => refusal(&response).size,
                StatusCode::PARTIAL_CONTENT => part_of(&response).ok().map(|(_, size)| size),
                _ => content_length(&response)?,
            };
            (response, size)
        } else {
            let size = content_length(&response)?;
            (response, size)
        };
        if response.status() != StatusCode::RANGE_NOT_SATISFIABLE || size.is_none() {
            accept(&response)?;
        }
        let size = size.ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "the server does not tell the object's length")
        })?;
        let mut told = ObjectMeta::new(key.clone(), size);
        told.version = version_of(response.headers());
        Ok(told)
    }

    /// Sends one request, and follows where it is sent.
    async fn send(&self, method: Method, key: &Key, headers: HeaderMap) -> Result<Response> {
        let mut url = self.url(key)?;
        let origin = url.origin();
        for _ in 0..=MOST_REDIRECTS {
            let mut request = reqwest::Request::new(method.clone(), url.clone());
            *request.headers_mut() = headers.clone();
            // What is stored is what is wanted, not what the server makes of it.
            request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            if url.origin() == origin {
                request.headers_mut().extend(self.headers.clone());
            }
            let response = self.client.execute(request).await.map_err(broken)?;
            let location = response.headers().get(LOCATION);
            let (true, Some(location)) = (is_redirect(response.status()), location) else {
                return Ok(response);
            };
            let next = location.to_str().ok().and_then(|location| url.join(location).ok());
            let mut next = next
                .filter(|next| matches!(next.scheme(), "http" | "https"))
                .ok_or_else(|| Error::new(ErrorKind::Corrupt, "a redirect leads nowhere"))?;
            if url.scheme() == "https" && next.scheme() == "http" && !self.allow_plain_http {
                let message = "the server sends us from HTTPS to HTTP, which is not allowed";
                return Err(Error::new(ErrorKind::PermissionDenied, message));
            }
            let no_user = next.set_username("").and_then(|()| next.set_password(None));
            no_user.map_err(|()| Error::new(ErrorKind::Corrupt, "a redirect leads nowhere"))?;
            url = next;
        }
        let message = format!("more than {MOST_REDIRECTS} redirects");
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
        url.set_query(self.query.as_ref().map(crate::stores::Secret::reveal));
        Ok(url)
    }

    /// What a key names that is an address on this server; `None` for a path.
    fn whole_address(&self, key: &Key) -> Result<Option<Url>> {
        let address = key.as_str().filter(|text| text.contains("://"));
        let url = address.and_then(|text| Url::parse(text).ok());
        let Some(mut url) = url.filter(|url| url.origin() == self.base.origin()) else {
            return Ok(None);
        };
        if !url.username().is_empty() || url.password().is_some() {
            let message = "a name and a password in the address of one object are not sent";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        url.set_fragment(None);
        Ok(Some(url))
    }
}

/// Whether the end of its body is marked.
fn is_chunked(response: &Response) -> bool {
    let codings = response.headers().get_all(TRANSFER_ENCODING).into_iter();
    codings.filter_map(|it| it.to_str().ok()).any(|it| it.to_ascii_lowercase().ends_with("chunked"))
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn refusal(response: &Response) -> Refusal {
    Refusal::new(response.status(), response.headers())
}

fn accept(response: &Response) -> Result<()> {
    if response.status().is_success() { Ok(()) } else { Err(refusal(response).to_error()) }
}

/// Not by the body's own length, which is none where only headers are asked for.
fn content_length(response: &Response) -> Result<Option<u64>> {
    let Some(value) = response.headers().get(CONTENT_LENGTH) else { return Ok(None) };
    let len = value.to_str().ok().and_then(|value| value.trim().parse().ok());
    let garbled = || Error::new(ErrorKind::Corrupt, "the object's length is no number");
    len.ok_or_else(garbled).map(Some)
}

/// Which bytes came, and how long the whole object is: `bytes 0-99/1234`.
fn part_of(response: &Response) -> Result<(Range<u64>, u64)> {
    if response.status() != StatusCode::PARTIAL_CONTENT {
        let knows_ranges = response.headers().get(ACCEPT_RANGES).is_some_and(|it| it == "bytes");
        return Err(if knows_ranges {
            Error::new(ErrorKind::Corrupt, "a range was asked for, and all of the object came")
        } else {
            let message = "this server sends whole files only, and shards need parts of files (byte \
                ranges): use a server that knows ranges, as most do, or copy the shards to this machine";
            Error::new(ErrorKind::Unsupported, message)
        });
    }
    let value = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    value
        .and_then(content_range)
        .ok_or_else(|| Error::new(ErrorKind::Corrupt, "the server does not say which bytes come"))
}

/// The range and the length of a header `Content-Range`; `None` for a range that is none, or reaches
/// past the length (RFC 9110, 14.4).
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
    HeaderValue::from_str(value).map_err(|_| {
        Error::new(ErrorKind::InvalidArgument, "the value of a header holds what none may")
    })
}

fn secret_header(value: &str) -> Result<HeaderValue> {
    let mut value = header(value)?;
    value.set_sensitive(true);
    Ok(value)
}

/// A key as a path of a URL (RFC 3986, 3.3): all but what means itself is `%` and two digits.
fn encode(key: &Key) -> Result<String> {
    if key.as_bytes().split(|&byte| byte == b'/').any(|part| part == b"." || part == b"..") {
        let message = "`.` and `..` cannot be part of a path on a web server";
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

/// RFC 4648, 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let byte = |place: usize| u32::from(chunk.get(place).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_paths_that_name_just_them() {
        let shown = |key: &[u8]| encode(&Key::from_bytes(key)).unwrap();
        assert_eq!(shown(b"a b/c+d?e#f%20.tar"), "a%20b/c%2Bd%3Fe%23f%2520.tar");
        assert_eq!(shown("größe".as_bytes()), "gr%C3%B6%C3%9Fe");
        assert_eq!(shown(b"\xff"), "%FF");
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
    fn a_range_that_is_none_is_no_answer() {
        assert_eq!(content_range("bytes 2-4/9"), Some((2..5, 9)));
        assert_eq!(content_range("bytes 8-8/9"), Some((8..9, 9)));
        let last = u64::MAX;
        for value in ["bytes 8-9/9", "bytes 5-4/9", "bytes 10-4/5", "bytes 0-1/*", "bytes */9", ""]
        {
            assert_eq!(content_range(value), None, "{value}");
        }
        assert_eq!(content_range(&format!("bytes 0-{last}/{last}")), None);
    }

    #[test]
    fn names_and_passwords_are_encoded_as_servers_want_them() {
        // The examples of RFC 4648, 10.
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(b"foobar"), "Zm9vYmFy");
    }
}
