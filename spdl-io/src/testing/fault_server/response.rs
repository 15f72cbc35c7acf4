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

    fn head(&self, announced: usize) -> String {
        let mut head = format!("HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        for (name, value) in &self.headers {
            // Writing into a string cannot fail.
            let _ = write!(head, "{name}: {value}\r\n");
        }
        let _ = write!(head, "Content-Length: {announced}\r\n\r\n");
        head
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
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
    let announced = match fault {
        Some(Fault::LongLength) => response.body.len() + 10,
        _ => response.body.len(),
    };
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
            stream.write_all(response.head(announced).as_bytes())?;
            write(stream, &body[..body.len() / 2])?;
            if fault == Some(Fault::StalledBody) {
                hold(stream, closed)?;
            }
        }
        Some(Fault::Trickle) => {
            stream.write_all(response.head(announced).as_bytes())?;
            for byte in body {
                if closed.load(Ordering::Acquire) {
                    break;
                }
                write(stream, &[*byte])?;
                std::thread::sleep(TRICKLE);
            }
            return Ok(ConnectionFate::KeepAlive);
        }
        _ => {
            write_together(stream, response.head(announced).as_bytes(), body)?;
            *bytes += body.len() as u64;
            match fault {
                Some(Fault::RepeatedBytes) => {
                    stream.write_all(&body[body.len() - body.len().min(100)..])?;
                }
                Some(Fault::LongLength) => {}
                _ => return Ok(ConnectionFate::KeepAlive),
            }
        }
    }
    Ok(ConnectionFate::Close)
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
