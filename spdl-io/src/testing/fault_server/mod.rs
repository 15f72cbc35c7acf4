//! A web server on this machine that fails as it is told: HTTP/1.1 with ranges, versions and S3's
//! listings, on plain threads.

mod answer;
mod fault;
mod request;

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use twox_hash::XxHash3_128;

use self::answer::{After, Answer, send};
pub use self::fault::{Fault, FaultPlan, FaultyRequest};
use self::request::Request;

/// So many requests are remembered.
const MOST_SEEN: usize = 100_000;

/// A web server on loopback for tests: objects in memory, and answers that go wrong by a
/// [`FaultPlan`].
///
/// It answers GET and HEAD, with `Range`, `If-Match`, `ETag` and connections that stay; and
/// `GET /bucket/?list-type=2`, as S3 does, page by page. It looks at no signature. A new object under
/// an old name has another ETag. Dropped, it answers nobody any more.
///
/// ```
/// use spdl_io::testing::{Fault, FaultPlan, FaultServer};
/// let server = FaultServer::start([("data/a.txt", "some bytes")]);
/// server.set_faults(FaultPlan::random(7, 0.1, &[Fault::InternalError, Fault::ClosedInBody]));
/// # #[cfg(feature = "http")] {
/// let stores = spdl_io::StoreRegistry::new();
/// let place = stores.open(&format!("{}/data/a.txt", server.url()))?;
/// assert_eq!(spdl_core::block_on(place.fetcher.read(&place.key, None))?, "some bytes");
/// # }
/// # Ok::<(), spdl_io::Error>(())
/// ```
pub struct FaultServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    closed: AtomicBool,
    state: Mutex<State>,
}

struct State {
    objects: BTreeMap<String, Object>,
    inserted: u64,
    plan: FaultPlan,
    attempts: HashMap<(String, String, String), u32>,
    served: BTreeMap<String, Served>,
    seen: Vec<SeenRequest>,
    page: usize,
}

#[derive(Clone)]
struct Object {
    bytes: Bytes,
    etag: String,
}

/// What a [`FaultServer`] has done.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Requests that came.
    pub requests: u64,
    /// Bytes of bodies that were sent.
    pub bytes: u64,
    /// Requests that went wrong on purpose.
    pub faults: u64,
}

/// A request as it came.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenRequest {
    /// `GET` or `HEAD`.
    pub method: String,
    /// Path and query, as they were sent.
    pub target: String,
    /// Names in lower case, and values.
    pub headers: Vec<(String, String)>,
}

impl Default for State {
    fn default() -> Self {
        State {
            objects: BTreeMap::new(),
            inserted: 0,
            plan: FaultPlan::none(),
            attempts: HashMap::new(),
            served: BTreeMap::new(),
            seen: Vec::new(),
            page: 1000,
        }
    }
}

impl FaultServer {
    /// A server of these objects on a free port of loopback. Names are paths without a first `/`; for
    /// S3 they begin with the bucket.
    ///
    /// # Panics
    /// Where the system gives no port or no thread.
    pub fn start<K: Into<String>, B: Into<Bytes>>(
        objects: impl IntoIterator<Item = (K, B)>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port of loopback");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::<Shared>::default();
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

    /// A server of the files below a folder, as they are now; names are paths relative to it.
    ///
    /// # Panics
    /// As [`start`](FaultServer::start), and where the folder cannot be read.
    pub fn of_folder(path: impl AsRef<Path>) -> Self {
        let server = FaultServer::start(Vec::<(String, Bytes)>::new());
        server.insert_folder(path, "");
        server
    }

    /// Stores the files below a folder, as they are now, under their paths relative to it behind
    /// `prefix`, which is `bucket/` for S3, say.
    ///
    /// # Panics
    /// Where the folder cannot be read.
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

    /// Where it is: `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stores an object, in place of one of that name.
    pub fn insert(&self, name: impl Into<String>, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        let mut state = self.shared.state();
        state.inserted += 1;
        let etag = format!("\"{:x}-{}\"", XxHash3_128::oneshot(&bytes), state.inserted);
        state.objects.insert(name.into(), Object { bytes, etag });
    }

    /// From now on requests go wrong like this; attempts are counted anew.
    pub fn set_faults(&self, plan: FaultPlan) {
        let mut state = self.shared.state();
        state.plan = plan;
        state.attempts.clear();
    }

    /// How many objects a page of a listing holds. Default: 1000.
    pub fn set_page(&self, objects: usize) {
        self.shared.state().page = objects.max(1);
    }

    /// What it has done.
    pub fn served(&self) -> Served {
        let state = self.shared.state();
        state.served.values().fold(Served::default(), |sum, of_key| Served {
            requests: sum.requests + of_key.requests,
            bytes: sum.bytes + of_key.bytes,
            faults: sum.faults + of_key.faults,
        })
    }

    /// What it has done for one object.
    pub fn served_of(&self, name: &str) -> Served {
        self.shared.state().served.get(name).copied().unwrap_or_default()
    }

    /// The requests that came, in order; the first 100,000.
    pub fn seen(&self) -> Vec<SeenRequest> {
        self.shared.state().seen.clone()
    }
}

impl Drop for FaultServer {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        // Wakes the acceptor; where it fails, there is none.
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

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.closed.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let shared = Arc::clone(shared);
        let thread = thread::Builder::new().name("fault-connection".into());
        // Without a thread the connection ends, which is a fault like any other.
        let _ = thread.spawn(move || {
            // A client that is gone is nobody's error.
            let _ = shared.serve(stream);
        });
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        while let Some(request) = Request::wait(&stream, &self.closed)? {
            let key = request.key();
            let (answer, fault, latency) = self.state().answer(&request, &key);
            thread::sleep(latency);
            // What is left unread makes a close a reset.
            if !matches!(fault, Some(Fault::Reset | Fault::ResetInBody)) {
                request.consume(&mut stream)?;
            }
            let is_head = request.method == "HEAD";
            let mut bytes = 0;
            let after = send(&mut stream, &answer, is_head, fault, &self.closed, &mut bytes);
            self.state().served.entry(key).or_default().bytes += bytes;
            if after? == After::Close {
                break;
            }
        }
        Ok(())
    }
}

impl State {
    fn answer(&mut self, request: &Request, key: &str) -> (Answer, Option<Fault>, Duration) {
        let range = request.header("range").unwrap_or_default().to_owned();
        let place = (request.method.clone(), key.to_owned(), range.clone());
        let attempt = self.attempts.entry(place).or_default();
        *attempt += 1;
        let faulty = FaultyRequest {
            method: request.method.clone(),
            key: key.to_owned(),
            range,
            attempt: *attempt,
        };
        if self.seen.len() < MOST_SEEN {
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
        (answer, fault, self.plan.latency)
    }

    /// The answer that a fault calls for, as far as it is one of its contents.
    fn faulty(&self, request: &Request, key: &str, fault: Option<Fault>) -> Answer {
        let wait = self.plan.retry_after.as_secs().to_string();
        let right = self.right(request, key, fault != Some(Fault::IgnoredRange));
        match (fault, right.part) {
            (Some(Fault::InternalError), _) => Answer::refusal(500, "InternalError"),
            (Some(Fault::BadGateway), _) => Answer::new(502, ""),
            (Some(Fault::Unavailable), _) => {
                Answer::refusal(503, "SlowDown").with("Retry-After", wait)
            }
            (Some(Fault::TooManyRequests), _) => Answer::new(429, "").with("Retry-After", wait),
            (Some(Fault::RequestTimeout), _) => Answer::new(408, ""),
            (Some(Fault::OtherVersion), _) => right.with("ETag", "\"other\""),
            (Some(Fault::WrongEncoding), _) => right.with("Content-Encoding", "gzip"),
            (Some(Fault::Redirect), _) => {
                let separator = if request.target.contains('?') { '&' } else { '?' };
                let target = format!("{}{separator}elsewhere", request.target);
                Answer::new(307, "").with("Location", target)
            }
            (Some(Fault::ShortRange), Some((start, size))) => {
                let mut short = right;
                short.body.truncate(short.body.len().div_ceil(2));
                short.of_part(start, size)
            }
            (Some(Fault::OtherRange), Some((start, size))) => {
                let other = if start > 0 { start - 1 } else { start + 1 };
                right.of_part(other, size + 1)
            }
            _ => right,
        }
    }

    fn right(&self, request: &Request, key: &str, reads_ranges: bool) -> Answer {
        if !matches!(request.method.as_str(), "GET" | "HEAD") {
            return Answer::new(405, "");
        }
        if request.query("list-type").as_deref() == Some("2") {
            return self.listing(request, key.split('/').next().unwrap_or_default());
        }
        let Some(object) = self.objects.get(key) else {
            return Answer::refusal(404, "NoSuchKey");
        };
        let size = object.bytes.len() as u64;
        if request.header("if-match").is_some_and(|wanted| wanted != object.etag && wanted != "*") {
            return Answer::refusal(412, "PreconditionFailed");
        }
        let answer = |bytes: Bytes| {
            Answer::new(200, bytes)
                .with("ETag", object.etag.clone())
                .with("Accept-Ranges", "bytes")
                .with("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT")
        };
        let range = request.header("range").filter(|_| reads_ranges).and_then(|it| span(it, size));
        match range {
            None => answer(object.bytes.clone()),
            Some((start, end)) if start < end => {
                answer(object.bytes.slice(start as usize..end as usize)).of_part(start, size)
            }
            Some(_) => Answer::refusal(416, "InvalidRange")
                .with("Content-Range", format!("bytes */{size}")),
        }
    }

    /// A page of `ListObjectsV2`.
    fn listing(&self, request: &Request, bucket: &str) -> Answer {
        let wanted = |name| request.query(name).unwrap_or_default();
        let prefix = wanted("prefix");
        let behind = wanted("continuation-token").max(wanted("start-after"));
        let folder = format!("{bucket}/");
        let mut found = self.objects.iter().filter_map(|(name, object)| {
            let key = name.strip_prefix(&folder)?;
            (key.starts_with(&prefix) && key > behind.as_str()).then_some((key, object))
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
        Answer::new(200, xml).with("Content-Type", "application/xml")
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// The bytes that `Range` asks for in an object of `size` bytes: none, where it lies behind the end.
/// What is no range is left unheeded, as RFC 9110, 14.2, wants it.
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
