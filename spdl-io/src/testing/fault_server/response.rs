//! Responses, and the faults of their transmission.

use std::fmt::Write as _;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::fault::Fault;
use super::request::{POLL_INTERVAL, is_timeout};

/// Delay between two bytes of a slow body.
const TRICKLE: Duration = Duration::from_millis(20);
/// Two interim responses.
const INTERIM: &[u8] =
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n";

/// A status, headers, and a body.
pub(super) struct TestResponse {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Bytes,
    /// For a range: its start, and the size of the whole object.
    pub(super) part: Option<(u64, u64)>,
}

impl TestResponse {
    pub(super) fn new(status: u16, body: impl Into<Bytes>) -> Self {
        TestResponse { status, headers: Vec::new(), body: body.into(), part: None }
    }

    /// Creates an error response with an S3 error code.
    pub(super) fn error(status: u16, code: &str) -> Self {
        let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
        TestResponse::new(status, body).with("Content-Type", "application/xml")
    }

    pub(super) fn redirect(location: String) -> Self {
        TestResponse::new(307, "").with("Location", location)
    }

    pub(super) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self.headers.push((name, value.into()));
        self
    }

    /// Makes this a partial response: the bytes from `start` of an object of `size` bytes.
    pub(super) fn of_part(mut self, start: u64, size: u64) -> Self {
        let len = self.body.len() as u64;
        self.status = 206;
        self.part = Some((start, size));
        self.with("Content-Range", format!("bytes {start}-{}/{size}", start + len.max(1) - 1))
    }

    fn head(&self, fault: Option<Fault>) -> String {
        let version = if fault == Some(Fault::OldProtocol) { "1.0" } else { "1.1" };
        let mut head = match fault {
            Some(Fault::GarbageStatus) => "HTTP/1.1 fine\r\n".to_owned(),
            _ => format!("HTTP/{version} {} {}\r\n", self.status, reason(self.status)),
        };
        let mut add = |name: &str, value: &str| {
            // Writing into a string cannot fail.
            let _ = write!(head, "{name}: {value}\r\n");
        };
        for (name, value) in &self.headers {
            add(name, value);
        }
        if fault == Some(Fault::HeaderFlood) {
            (0..2000).for_each(|number| add(&format!("X-{number}"), "no meaning"));
        }
        let len = self.body.len();
        let announced = match fault {
            Some(Fault::LongLength) => len + 10,
            Some(Fault::ShortLength) => len.saturating_sub(10),
            _ => len,
        };
        match fault {
            Some(Fault::Chunked | Fault::TruncatedChunks | Fault::GarbageChunk) => {
                add("Transfer-Encoding", "chunked");
            }
            Some(Fault::NoLength) => add("Connection", "close"),
            // A response without a body has no length (RFC 9110, 8.6).
            _ if self.status == 204 => {}
            _ => add("Content-Length", &announced.to_string()),
        }
        if fault == Some(Fault::TwoLengths) {
            add("Content-Length", &(len + 1).to_string());
        }
        head.push_str("\r\n");
        head
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        206 => "Partial Content",
        307 => "Temporary Redirect",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        412 => "Precondition Failed",
        416 => "Range Not Satisfiable",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        _ => "Response",
    }
}

/// Whether the connection stays open after a response.
#[derive(Debug, PartialEq)]
pub(super) enum ConnectionFate {
    KeepAlive,
    Close,
}

/// Sends a response with a fault of the transmission. Adds the number of sent body bytes to
/// `bytes`.
pub(super) fn send(
    stream: &mut TcpStream,
    response: &TestResponse,
    is_head: bool,
    fault: Option<Fault>,
    closed: &AtomicBool,
    bytes: &mut u64,
) -> io::Result<ConnectionFate> {
    let body = if is_head { &[][..] } else { &response.body };
    let head = response.head(fault);
    let mut write = |stream: &mut TcpStream, part: &[u8]| {
        stream.write_all(part)?;
        *bytes += part.len() as u64;
        Ok::<(), io::Error>(())
    };
    match fault {
        Some(Fault::Closed | Fault::Reset) => return Ok(ConnectionFate::Close),
        Some(Fault::NoAnswer) => hold(stream, closed)?,
        Some(Fault::Garbage) => stream.write_all(b"\x15\x03\x01\x00\x02\x02\x28\r\n\r\n")?,
        Some(Fault::GarbageHeader) => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n")?;
        }
        Some(Fault::ClosedInBody | Fault::ResetInBody | Fault::StalledBody) => {
            stream.write_all(head.as_bytes())?;
            write(stream, &body[..body.len() / 2])?;
            if fault == Some(Fault::StalledBody) {
                hold(stream, closed)?;
            }
        }
        Some(Fault::ClosedAfterHead) => stream.write_all(head.as_bytes())?,
        Some(Fault::Trickle) => {
            stream.write_all(head.as_bytes())?;
            slowly(body, TRICKLE, closed, |byte| write(stream, byte))?;
            return Ok(ConnectionFate::KeepAlive);
        }
        Some(Fault::SlowHead) => {
            slowly(head.as_bytes(), TRICKLE, closed, |byte| stream.write_all(byte))?;
            write(stream, body)?;
            return Ok(ConnectionFate::KeepAlive);
        }
        Some(Fault::EndlessInterim) => {
            while !closed.load(Ordering::Acquire) {
                stream.write_all(INTERIM)?;
                std::thread::sleep(TRICKLE / 4);
            }
        }
        Some(Fault::Chunked | Fault::TruncatedChunks | Fault::GarbageChunk) => {
            stream.write_all(head.as_bytes())?;
            let (first, second) = body.split_at(body.len() / 2);
            if !first.is_empty() {
                stream.write_all(format!("{:x}\r\n", first.len()).as_bytes())?;
                write(stream, first)?;
                stream.write_all(b"\r\n")?;
            }
            if fault == Some(Fault::GarbageChunk) {
                stream.write_all(b"many\r\n")?;
                write(stream, second)?;
            }
            if fault != Some(Fault::Chunked) {
                return Ok(ConnectionFate::Close);
            }
            if !second.is_empty() {
                stream.write_all(format!("{:x}\r\n", second.len()).as_bytes())?;
                write(stream, second)?;
                stream.write_all(b"\r\n")?;
            }
            if !is_head {
                stream.write_all(b"0\r\n\r\n")?;
            }
            return Ok(ConnectionFate::KeepAlive);
        }
        _ => {
            if fault == Some(Fault::InterimResponses) {
                for _ in 0..3 {
                    stream.write_all(INTERIM)?;
                }
            }
            write_together(stream, head.as_bytes(), body)?;
            *bytes += body.len() as u64;
            match fault {
                Some(Fault::RepeatedBytes) => {
                    stream.write_all(&body[body.len() - body.len().min(100)..])?;
                }
                Some(
                    Fault::LongLength | Fault::NoLength | Fault::TwoLengths | Fault::OldProtocol,
                ) => {}
                _ => return Ok(ConnectionFate::KeepAlive),
            }
        }
    }
    Ok(ConnectionFate::Close)
}

/// Writes byte by byte, until the server stops.
fn slowly(
    bytes: &[u8],
    pause: Duration,
    closed: &AtomicBool,
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    for byte in bytes {
        if closed.load(Ordering::Acquire) {
            break;
        }
        write(&[*byte])?;
        std::thread::sleep(pause);
    }
    Ok(())
}

/// Writes head and body in one system call if possible, so that the client wakes once.
fn write_together(stream: &mut TcpStream, head: &[u8], body: &[u8]) -> io::Result<()> {
    let written = loop {
        match stream.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            written => break written?,
        }
    };
    stream.write_all(head.get(written..).unwrap_or_default())?;
    stream.write_all(&body[written.saturating_sub(head.len())..])
}

/// Waits until the client closes the connection or the server stops.
fn hold(stream: &mut TcpStream, closed: &AtomicBool) -> io::Result<()> {
    stream.set_read_timeout(Some(POLL_INTERVAL))?;
    while !closed.load(Ordering::Acquire) {
        match stream.read(&mut [0; 1024]) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
