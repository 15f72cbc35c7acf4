//! Parsing of requests. The bytes of a request stay in the socket until `consume`: closing a socket
//! with unread data resets the connection, as [`Fault::Reset`](super::Fault::Reset) requires.

use std::io::{self, Read};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::stores::percent_decoded;

/// Interval at which waiting threads check whether the server is stopped.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(50);
const MAX_HEAD_BYTES: usize = 64 << 10;

/// The head of a request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) target: String,
    /// Names in lower case.
    pub(super) headers: Vec<(String, String)>,
    /// Length of the head in bytes.
    pub(super) len: usize,
}

impl Request {
    /// Waits for a request without consuming its bytes. Returns `None` if the client closes the
    /// connection, the server stops, or the head of the request is invalid or exceeds 64 KiB.
    pub(super) fn wait(stream: &TcpStream, closed: &AtomicBool) -> io::Result<Option<Self>> {
        stream.set_read_timeout(Some(POLL_INTERVAL))?;
        let mut head = vec![0; MAX_HEAD_BYTES];
        loop {
            if closed.load(Ordering::Acquire) {
                return Ok(None);
            }
            let count = match stream.peek(&mut head) {
                Ok(0) => return Ok(None),
                Ok(count) => count,
                Err(error) if is_timeout(&error) => continue,
                Err(error) => return Err(error),
            };
            if let Some(end) = head[..count].windows(4).position(|it| it == b"\r\n\r\n") {
                return Ok(parse(&head[..end], end + 4));
            }
            if count == MAX_HEAD_BYTES {
                return Ok(None);
            }
            // More bytes of the head are expected.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn consume(&self, stream: &mut TcpStream) -> io::Result<()> {
        stream.read_exact(&mut vec![0; self.len])
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the decoded path without its leading slash.
    pub(super) fn key(&self) -> String {
        let path = self.target.split_once('?').map_or(self.target.as_str(), |(path, _)| path);
        decode(path.strip_prefix('/').unwrap_or(path))
    }

    /// Returns a decoded parameter of the query.
    pub(super) fn query(&self, name: &str) -> Option<String> {
        let (_, query) = self.target.split_once('?')?;
        let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.into_iter().find(|(known, _)| *known == name).map(|(_, value)| {
            // Form encoding: `+` is a space.
            decode(&value.replace('+', " "))
        })
    }
}

fn parse(head: &[u8], len: usize) -> Option<Request> {
    let head = String::from_utf8_lossy(head);
    let mut lines = head.split("\r\n");
    let mut words = lines.next()?.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers =
        headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
    Some(Request { method, target, headers, len })
}

fn decode(text: &str) -> String {
    String::from_utf8_lossy(&percent_decoded(text)).into_owned()
}

pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
