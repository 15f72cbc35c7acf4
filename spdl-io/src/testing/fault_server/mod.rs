//! [`FaultServer`]: a local HTTP/1.1 server with injected faults. Supports ranges, versions and S3
//! listings.
//!
//! | file | what |
//! |---|---|
//! | this file | the server, its objects and listings |
//! | `fault` | [`Fault`], [`FaultPlan`] |
//! | `request`, `response` | parsing of requests, transmission of responses |

mod fault;
mod request;
mod response;

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use crc32c::crc32c;
use twox_hash::XxHash3_128;

pub use self::fault::{Fault, FaultPlan, FaultyRequest};
use self::request::Request;
use self::response::{ConnectionFate, TestResponse, send};

/// Maximum number of recorded requests.
const MAX_RECORDED_REQUESTS: usize = 100_000;

/// A web server on loopback for tests. It serves objects from memory, with the faults of a
/// [`FaultPlan`].
///
/// The server supports GET and HEAD with `Range`, `If-Match`, `ETag` and persistent connections.
/// Like S3, it responds to `GET /bucket/?list-type=2` with a page of a listing. Signatures are not
/// checked. Replacing an object changes its ETag. Dropping the server stops it.
///
/// ```
/// use spdl_io::testing::{Fault, FaultPlan, FaultServer};
/// let server = FaultServer::start([("data/a.txt", "some bytes")]);
/// server.set_faults(FaultPlan::random(7, 0.1, &[Fault::InternalError, Fault::ClosedInBody]));
/// # #[cfg(feature = "http")] {
/// let stores = spdl_io::StoreRegistry::new();
/// let location = stores.open(&format!("{}/data/a.txt", server.url()))?;
/// let read = location.fetcher.read(&location.key, None);
/// assert_eq!(spdl_core::block_on(read)?, "some bytes");
/// # }
/// # Ok::<(), spdl_io::Error>(())
/// ```
pub struct FaultServer {
    address: SocketAddr,
    shared: Arc<FaultServerInner>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct FaultServerInner {
    closed: AtomicBool,
    state: Mutex<FaultServerState>,
}

struct FaultServerState {
    objects: BTreeMap<String, StoredObject>,
    inserted: u64,
    plan: FaultPlan,
    /// When the link has sent the bodies of all responses so far.
    link_free: Option<Instant>,
    attempts: HashMap<(String, String, String), u32>,
    served: BTreeMap<String, Served>,
    seen: Vec<SeenRequest>,
    page: usize,
    ignores_ranges: bool,
}

#[derive(Clone)]
struct StoredObject {
    bytes: Bytes,
    etag: String,
    /// A header of responses with the whole object.
    header: Option<(&'static str, String)>,
}

/// Counters of a [`FaultServer`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Requests received.
    pub requests: u64,
    /// Bytes of response bodies sent.
    pub bytes: u64,
    /// Requests with an injected fault.
    pub faults: u64,
}

/// A received request.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenRequest {
    /// `GET` or `HEAD`.
    pub method: String,
    /// Path and query as received.
    pub target: String,
    /// Headers: names in lower case, and values.
    pub headers: Vec<(String, String)>,
}

impl Default for FaultServerState {
    fn default() -> Self {
        FaultServerState {
            objects: BTreeMap::new(),
            inserted: 0,
            plan: FaultPlan::none(),
            link_free: None,
            attempts: HashMap::new(),
            served: BTreeMap::new(),
            seen: Vec::new(),
            page: 1000,
            ignores_ranges: false,
        }
    }
}

impl FaultServer {
    /// Starts a server with these objects on a free port of loopback.
    ///
    /// Names are paths without a leading `/`. For S3, names begin with the bucket.
    ///
    /// # Panics
    /// If no port or thread is available.
    pub fn start<K: Into<String>, B: Into<Bytes>>(
        objects: impl IntoIterator<Item = (K, B)>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port of loopback");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::<FaultServerInner>::default();
        let acceptor = {
            let shared = Arc::clone(&shared);
            let thread = thread::Builder::new().name("fault-server".into());
            thread.spawn(move || accept(&listener, &shared)).expect("a thread")
        };
        let server = FaultServer { address, shared, acceptor: Some(acceptor) };
        for (name, bytes) in objects {
            server.insert(name, bytes);
        }
        server
    }

    /// Starts a server with a copy of the files below a folder. Names are relative paths.
    ///
    /// # Panics
    /// As [`start`](FaultServer::start), and if the folder cannot be read.
    pub fn of_folder(path: impl AsRef<Path>) -> Self {
        let server = FaultServer::start(Vec::<(String, Bytes)>::new());
        server.insert_folder(path, "");
        server
    }

    /// Stores copies of the files below a folder. Names are `prefix` plus the relative path. For
    /// S3, use a prefix such as `bucket/`.
    ///
    /// # Panics
    /// If the folder cannot be read.
    pub fn insert_folder(&self, path: impl AsRef<Path>, prefix: &str) {
        for entry in std::fs::read_dir(path).expect("a folder that can be read") {
            let entry = entry.expect("a folder that can be read");
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                self.insert_folder(entry.path(), &format!("{name}/"));
            } else {
                self.insert(name, std::fs::read(entry.path()).expect("a file that can be read"));
            }
        }
    }

    /// Returns the URL of the server: `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stores an object, and replaces an existing object with the same name.
    pub fn insert(&self, name: impl Into<String>, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        let mut state = self.shared.state();
        state.inserted += 1;
        let etag = format!("\"{:x}-{}\"", XxHash3_128::oneshot(&bytes), state.inserted);
        state.objects.insert(name.into(), StoredObject { bytes, etag, header: None });
    }

    /// Stores an object with this ETag, as servers do whose ETags do not depend on the content.
    pub fn insert_with_etag(
        &self,
        name: impl Into<String>,
        bytes: impl Into<Bytes>,
        etag: impl Into<String>,
    ) {
        let object = StoredObject { bytes: bytes.into(), etag: etag.into(), header: None };
        self.shared.state().objects.insert(name.into(), object);
    }

    /// Sets a header of responses with a whole object, for all objects stored now. `value` returns
    /// the value of the header for the bytes of an object, such as their checksum.
    pub fn set_header(&self, name: &'static str, value: impl Fn(&[u8]) -> String) {
        for object in self.shared.state().objects.values_mut() {
            object.header = Some((name, value(&object.bytes)));
        }
    }

    /// Sets the fault plan for further requests, and resets the attempt counts.
    pub fn set_faults(&self, plan: FaultPlan) {
        let mut state = self.shared.state();
        state.plan = plan;
        state.attempts.clear();
    }

    /// Sets the number of objects per page of a listing, at least 1. Default: 1000.
    pub fn set_page(&self, objects: usize) {
        self.shared.state().page = objects.max(1);
    }

    /// Ignores ranges from now on, like servers that do not support them: each response is the whole object.
    pub fn ignore_ranges(&self) {
        self.shared.state().ignores_ranges = true;
    }

    /// Returns the counters of all requests.
    pub fn served(&self) -> Served {
        let state = self.shared.state();
        state.served.values().fold(Served::default(), |sum, of_key| Served {
            requests: sum.requests + of_key.requests,
            bytes: sum.bytes + of_key.bytes,
            faults: sum.faults + of_key.faults,
        })
    }

    /// Returns the counters of one object.
    pub fn served_of(&self, name: &str) -> Served {
        self.shared.state().served.get(name).copied().unwrap_or_default()
    }

    /// Returns the first 100,000 requests in order.
    pub fn seen(&self) -> Vec<SeenRequest> {
        self.shared.state().seen.clone()
    }
}

impl Drop for FaultServer {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        // Wakes the accepting thread. Fails only if that thread has ended.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl fmt::Debug for FaultServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultServer({})", self.url())
    }
}

fn accept(listener: &TcpListener, shared: &Arc<FaultServerInner>) {
    for stream in listener.incoming() {
        if shared.closed.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let shared = Arc::clone(shared);
        let thread = thread::Builder::new().name("fault-connection".into());
        // If no thread can be started, the connection is closed, which the client sees as a fault.
        let _ = thread.spawn(move || {
            // A closed client connection is not an error.
            let _ = shared.serve(stream);
        });
    }
}

impl FaultServerInner {
    fn state(&self) -> MutexGuard<'_, FaultServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        while let Some(request) = Request::wait(&stream, &self.closed)? {
            let key = request.key();
            let (answer, fault, latency) = self.state().answer(&request, &key);
            thread::sleep(latency);
            // Closing a connection with unread data resets it.
            if !matches!(fault, Some(Fault::Reset | Fault::ResetInBody)) {
                request.consume(&mut stream)?;
            }
            let is_head = request.method == "HEAD";
            let mut bytes = 0;
            let after = send(&mut stream, &answer, is_head, fault, &self.closed, &mut bytes);
            self.state().served.entry(key).or_default().bytes += bytes;
            if after? == ConnectionFate::Close {
                break;
            }
        }
        Ok(())
    }
}

impl FaultServerState {
    fn answer(&mut self, request: &Request, key: &str) -> (TestResponse, Option<Fault>, Duration) {
        let range = request.header("range").unwrap_or_default().to_owned();
        let attempt_key = (request.method.clone(), key.to_owned(), range.clone());
        let attempt = self.attempts.entry(attempt_key).or_default();
        *attempt += 1;
        let faulty = FaultyRequest {
            method: request.method.clone(),
            key: key.to_owned(),
            range,
            attempt: *attempt,
        };
        if self.seen.len() < MAX_RECORDED_REQUESTS {
            self.seen.push(SeenRequest {
                method: request.method.clone(),
                target: request.target.clone(),
                headers: request.headers.clone(),
            });
        }
        let is_elsewhere = request.query("elsewhere").is_some();
        let fault = self.plan.decide(&faulty).filter(|_| !is_elsewhere);
        let served = self.served.entry(key.to_owned()).or_default();
        served.requests += 1;
        served.faults += u64::from(fault.is_some());
        let answer = self.faulty(request, key, fault);
        let bytes = if request.method == "HEAD" { 0 } else { answer.body.len() };
        let queued = self.transmission(bytes);
        (answer, fault, self.plan.latency + queued)
    }

    /// The time until a limited link has sent a body after those of earlier responses.
    fn transmission(&mut self, bytes: usize) -> Duration {
        let Some(bandwidth) = self.plan.bandwidth else { return Duration::ZERO };
        let now = Instant::now();
        let begin = self.link_free.map_or(now, |free| free.max(now));
        let end = begin + Duration::from_secs_f64(bytes as f64 / bandwidth);
        self.link_free = Some(end);
        end - now
    }

    /// Returns the response with faults of its status, headers and content.
    fn faulty(&self, request: &Request, key: &str, fault: Option<Fault>) -> TestResponse {
        let wait = self.plan.retry_after.as_secs().to_string();
        let correct_response =
            self.correct_response(request, key, fault != Some(Fault::IgnoredRange));
        let elsewhere = |origin: &str| {
            let separator = if request.target.contains('?') { '&' } else { '?' };
            format!("{origin}{}{separator}elsewhere", request.target)
        };
        match (fault, correct_response.part) {
            (Some(Fault::InternalError), _) => TestResponse::error(500, "InternalError"),
            (Some(Fault::BadGateway), _) => TestResponse::new(502, ""),
            (Some(Fault::Unavailable), _) => {
                TestResponse::error(503, "SlowDown").with("Retry-After", wait)
            }
            (Some(Fault::TooManyRequests), _) => {
                TestResponse::new(429, "").with("Retry-After", wait)
            }
            (Some(Fault::RequestTimeout), _) => TestResponse::new(408, ""),
            (Some(Fault::OtherVersion), _) => correct_response.with("ETag", "\"other\""),
            (Some(Fault::WrongEncoding), _) => correct_response.with("Content-Encoding", "gzip"),
            (Some(Fault::GatewayTimeout), _) => TestResponse::new(504, ""),
            (Some(Fault::UnavailableWithoutDelay), _) => TestResponse::new(503, ""),
            (Some(Fault::UnavailableUntil), _) => {
                // Clients count from the server's time.
                let at = |second: u64| {
                    format!("Sun, 06 Nov 1994 08:{:02}:{:02} GMT", second / 60, second % 60)
                };
                TestResponse::new(503, "")
                    .with("Date", at(0))
                    .with("Retry-After", at(self.plan.retry_after.as_secs().min(3599)))
            }
            (Some(Fault::UnavailableForAges), _) => {
                TestResponse::new(503, "").with("Retry-After", u64::MAX.to_string())
            }
            (Some(Fault::NotFound), _) => TestResponse::error(404, "NoSuchKey"),
            (Some(Fault::Forbidden), _) => TestResponse::error(403, "AccessDenied"),
            (Some(Fault::Redirect), _) => TestResponse::redirect(elsewhere("")),
            (Some(Fault::RedirectLoop), _) => TestResponse::redirect(request.target.clone()),
            (Some(Fault::RedirectToOtherHost), _) => {
                let host = request.header("host").unwrap_or_default();
                let port = host.rsplit_once(':').map_or("80", |(_, port)| port);
                TestResponse::redirect(elsewhere(&format!("http://localhost:{port}")))
            }
            (Some(Fault::RedirectToClosedPort), _) => {
                TestResponse::redirect(elsewhere("http://127.0.0.1:1"))
            }
            (Some(Fault::WebPage), _) => {
                TestResponse::new(200, "<!DOCTYPE html><title>Please log in</title>")
                    .with("Content-Type", "text/html")
            }
            (Some(Fault::NoVersion), _) => {
                correct_response.without("ETag").without("Last-Modified")
            }
            (Some(Fault::OtherContent), _) => {
                let mut other = correct_response.with("ETag", "\"other content\"");
                other.body = other.body.iter().map(|byte| !byte).collect();
                other
            }
            (Some(Fault::FlippedBit), part) => {
                let checksum = BASE64_STANDARD.encode(crc32c(&correct_response.body).to_be_bytes());
                let mut flipped = correct_response.body.to_vec();
                let middle = flipped.len() / 2;
                if let Some(byte) = flipped.get_mut(middle) {
                    *byte ^= 4;
                }
                let response = TestResponse { body: flipped.into(), ..correct_response };
                match part {
                    Some(_) => response,
                    None => response.with("x-amz-checksum-crc32c", checksum),
                }
            }
            (Some(Fault::EmptyBody), _) => {
                TestResponse { status: 200, body: Bytes::new(), ..correct_response }
            }
            (Some(Fault::NoContent), _) => TestResponse::new(204, ""),
            (Some(Fault::OtherSize), Some((start, size))) => {
                correct_response.of_part(start, size + 1)
            }
            (Some(Fault::ShortRange), Some((start, size))) => {
                let mut short = correct_response;
                short.body.truncate(short.body.len().div_ceil(2));
                short.of_part(start, size)
            }
            (Some(Fault::OtherRange), Some((start, size))) => {
                let other = if start > 0 { start - 1 } else { start + 1 };
                let mut shifted = correct_response;
                let mut bytes = shifted.body.to_vec();
                // One of these bytes is not of the other range.
                bytes.rotate_left(1);
                shifted.body = bytes.into();
                shifted.of_part(other, size + 1)
            }
            _ => correct_response,
        }
    }

    fn correct_response(&self, request: &Request, key: &str, reads_ranges: bool) -> TestResponse {
        if !matches!(request.method.as_str(), "GET" | "HEAD") {
            return TestResponse::new(405, "");
        }
        if request.query("list-type").as_deref() == Some("2") {
            return self.listing(request, key.split('/').next().unwrap_or_default());
        }
        let Some(object) = self.objects.get(key) else {
            return TestResponse::error(404, "NoSuchKey");
        };
        let size = object.bytes.len() as u64;
        if request.header("if-match").is_some_and(|wanted| wanted != object.etag && wanted != "*") {
            return TestResponse::error(412, "PreconditionFailed");
        }
        let answer = |bytes: Bytes| {
            let answer = TestResponse::new(200, bytes)
                .with("ETag", object.etag.clone())
                .with("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT");
            if self.ignores_ranges { answer } else { answer.with("Accept-Ranges", "bytes") }
        };
        let reads_ranges = reads_ranges && !self.ignores_ranges;
        let range = request.header("range").filter(|_| reads_ranges).and_then(|it| span(it, size));
        match range {
            None => {
                let whole = answer(object.bytes.clone());
                match &object.header {
                    Some((name, value)) => whole.with(name, value.clone()),
                    None => whole,
                }
            }
            Some((start, end)) if start < end => {
                answer(object.bytes.slice(start as usize..end as usize)).of_part(start, size)
            }
            Some(_) => TestResponse::error(416, "InvalidRange")
                .with("Content-Range", format!("bytes */{size}")),
        }
    }

    /// Returns a page of `ListObjectsV2`.
    fn listing(&self, request: &Request, bucket: &str) -> TestResponse {
        let wanted = |name| request.query(name).unwrap_or_default();
        let prefix = wanted("prefix");
        let after = wanted("continuation-token").max(wanted("start-after"));
        let folder = format!("{bucket}/");
        let mut found = self.objects.iter().filter_map(|(name, object)| {
            let key = name.strip_prefix(&folder)?;
            (key.starts_with(&prefix) && key > after.as_str()).then_some((key, object))
        });
        let page: Vec<_> = found.by_ref().take(self.page).collect();
        let is_truncated = found.next().is_some();
        let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult>");
        // Writing into a string cannot fail.
        let _ = write!(xml, "<Name>{bucket}</Name><IsTruncated>{is_truncated}</IsTruncated>");
        for (key, object) in &page {
            let _ = write!(
                xml,
                "<Contents><Key>{}</Key><LastModified>1994-11-06T08:49:37.000Z</LastModified>\
                 <ETag>{}</ETag><Size>{}</Size></Contents>",
                escaped(key),
                escaped(&object.etag),
                object.bytes.len()
            );
        }
        if let Some((last, _)) = page.last().filter(|_| is_truncated) {
            let _ = write!(xml, "<NextContinuationToken>{}</NextContinuationToken>", escaped(last));
        }
        xml.push_str("</ListBucketResult>");
        TestResponse::new(200, xml).with("Content-Type", "application/xml")
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// Parses the header `Range` for an object of `size` bytes. Returns an empty range beyond the end.
/// An invalid header is ignored (`None`), as RFC 9110, 14.2, requires.
fn span(value: &str, size: u64) -> Option<(u64, u64)> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    if first.is_empty() {
        let len: u64 = last.parse().ok()?;
        return Some((size.saturating_sub(len), size));
    }
    let first: u64 = first.parse().ok()?;
    let end = match last {
        "" => size,
        last => last.parse::<u64>().ok().filter(|last| *last >= first)?.saturating_add(1).min(size),
    };
    Some(if first < size { (first, end) } else { (size, size) })
}
