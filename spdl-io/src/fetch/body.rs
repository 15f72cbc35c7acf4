//! [`ReadRequest`] and [`Body`]: the request and the response of a streamed read.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, stream};
use spdl_core::{Error, ErrorKind, Result};

use super::buffer::ObjectBuffer;
use super::fetcher::check_limit;
use super::key::Key;

/// A byte range and a version of an object, for [`Fetcher::open`](crate::Fetcher::open).
///
/// ```
/// use spdl_io::ReadRequest;
/// let rest = ReadRequest::starting_at(1 << 20).of_version("\"33a64df5\"");
/// assert_eq!((rest.start, rest.end), (1 << 20, None));
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadRequest {
    /// Offset of the first byte. Default: 0.
    pub start: u64,
    /// Offset after the last byte, exclusive. Default: the end of the object.
    pub end: Option<u64>,
    /// Required version of the object. Default: any.
    pub version: Option<Arc<str>>,
    /// Size of the object, if it is known. [`Resilient`](crate::Resilient) compares it with the size
    /// in the response.
    pub(crate) size: Option<u64>,
    /// Whether the object may end before [`end`](ReadRequest::end). The body then ends with the object.
    /// Fetchers that ignore this field return `Truncated`.
    pub(crate) clamps_end: bool,
    /// Stores when the request was sent and answered.
    pub(crate) times: Option<Arc<RequestTimes>>,
}

/// When a request was sent, and when its first byte arrived. The fetcher may return later, because it
/// buffers further bytes first.
#[derive(Debug, Default)]
pub(crate) struct RequestTimes {
    has_waited: AtomicBool,
    sent: OnceLock<Instant>,
    first_byte: OnceLock<Instant>,
}

impl RequestTimes {
    /// Records that the request waits for one of a limited number of connections.
    #[cfg(feature = "http")]
    pub(crate) fn mark_waiting(&self) {
        self.has_waited.store(true, Ordering::Relaxed);
    }

    /// Records the end of this wait.
    #[cfg(feature = "http")]
    pub(crate) fn mark_sent(&self, at: Instant) {
        self.sent.get_or_init(|| at);
    }

    #[cfg(any(feature = "http", test))]
    pub(crate) fn mark_first_byte(&self, at: Instant) {
        self.first_byte.get_or_init(|| at);
    }

    pub(crate) fn first_byte(&self) -> Option<Instant> {
        self.first_byte.get().copied()
    }

    /// Returns when the request was sent: `began` if it did not wait. `None` if it still waits.
    pub(crate) fn sent_since(&self, began: Instant) -> Option<Instant> {
        let sent = self.sent.get().copied();
        sent.or_else(|| (!self.has_waited.load(Ordering::Relaxed)).then_some(began))
    }
}

/// All values are equal, so that a comparison of requests ignores their timing.
impl PartialEq for RequestTimes {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for RequestTimes {}

impl ReadRequest {
    /// Requests the whole object.
    pub fn whole() -> Self {
        ReadRequest::default()
    }

    /// Requests exactly the bytes of `range`.
    pub fn range(range: Range<u64>) -> Self {
        ReadRequest { start: range.start, end: Some(range.end), ..ReadRequest::default() }
    }

    /// Requests the first `bytes` bytes, or the whole object if it has fewer.
    pub(crate) fn first(bytes: u64) -> Self {
        ReadRequest { clamps_end: true, ..ReadRequest::range(0..bytes) }
    }

    /// Requests all bytes from offset `start` to the end. If `start` is the size of the object, the
    /// body is empty.
    pub fn starting_at(start: u64) -> Self {
        ReadRequest { start, ..ReadRequest::default() }
    }

    /// Requires a version, as reported by [`ObjectMeta::version`](crate::ObjectMeta::version) or
    /// [`Body::version`].
    #[must_use]
    pub fn of_version(mut self, version: impl Into<Arc<str>>) -> Self {
        self.version = Some(version.into());
        self
    }
}

/// A response: the chunks of an object as a stream, with its size and version.
#[non_exhaustive]
pub struct Body {
    /// Size of the whole object in bytes, even if only a part was requested. `None` if unknown.
    pub size: Option<u64>,
    /// Version of the object. `None` if unknown.
    pub version: Option<Arc<str>>,
    /// Chunks in order. Dropping the stream cancels the read.
    pub pieces: BoxStream<'static, Result<Bytes>>,
    /// Checks all bytes of the body. Only for a whole object.
    pub(crate) check: Option<Box<dyn ContentCheck>>,
    /// The connection of the response, if their number is limited.
    pub(crate) connection: Option<Arc<dyn HeldConnection>>,
}

/// One of a limited number of connections, which a response holds to its end.
#[async_trait]
pub(crate) trait HeldConnection: Send + Sync {
    /// Lets another request use the connection's place.
    fn release(&self);

    /// Waits for a place.
    async fn take_again(&self);
}

/// Memory for a response. While it waits, other requests use the place of its connection: the memory
/// may be free only after one of them.
pub(crate) struct ResponseMemory<'a> {
    pub(crate) memory: &'a dyn ReadMemory,
    pub(crate) connection: Option<Arc<dyn HeldConnection>>,
}

#[async_trait]
impl ReadMemory for ResponseMemory<'_> {
    fn max_bytes(&self) -> u64 {
        self.memory.max_bytes()
    }

    fn reserved_bytes(&self) -> u64 {
        self.memory.reserved_bytes()
    }

    async fn reserve(&self, bytes: u64) {
        let mut reserved = self.memory.reserve(bytes);
        if (&mut reserved).now_or_never().is_some() {
            return;
        }
        if let Some(connection) = &self.connection {
            connection.release();
            reserved.await;
            connection.take_again().await;
        } else {
            reserved.await;
        }
    }
}

/// Compares the bytes of an object with a checksum that the store reports.
pub(crate) trait ContentCheck: Send {
    /// Adds the next bytes.
    fn update(&mut self, bytes: &[u8]);

    /// Compares the checksums after the last byte.
    ///
    /// # Errors
    /// `Corrupt` if they differ.
    fn finish(self: Box<Self>) -> Result<()>;
}

impl Body {
    /// Creates a body from a stream of chunks.
    pub fn new(pieces: BoxStream<'static, Result<Bytes>>) -> Self {
        Body { size: None, version: None, pieces, check: None, connection: None }
    }

    /// Creates a body from bytes in memory.
    pub fn from_bytes(bytes: Bytes) -> Self {
        Body::new(stream::iter((!bytes.is_empty()).then_some(Ok(bytes))).boxed())
    }

    /// Sets the size of the whole object in bytes.
    #[must_use]
    pub fn with_size(mut self, size: u64) -> Self {
        self.size = Some(size);
        self
    }

    /// Sets the version of the object.
    #[must_use]
    pub fn with_version(mut self, version: impl Into<Arc<str>>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// Reads all chunks and joins them. A single chunk is not copied.
    ///
    /// # Errors
    /// The error of the first chunk that fails. `Corrupt` if the bytes differ from a checksum that the
    /// store reports.
    pub async fn bytes(mut self) -> Result<Bytes> {
        let mut joined = JoinedPieces::default();
        while let Some(piece) = self.next_checked().await {
            joined.push(piece?)?;
        }
        joined.finish()
    }
}

impl Body {
    /// Reads all chunks and joins them, within the limits of `memory`. `len` is the expected number
    /// of bytes.
    ///
    /// # Errors
    /// `LimitExceeded` if there are more bytes than allowed; before reading, if `len` is larger.
    /// Otherwise the error of the first chunk that fails.
    pub(crate) async fn bytes_within(
        mut self,
        key: &Key,
        len: Option<u64>,
        memory: &dyn ReadMemory,
    ) -> Result<Bytes> {
        let memory = &ResponseMemory { memory, connection: self.connection.take() };
        let mut joined = JoinedPieces::default();
        joined.expect(key, len, memory).await?;
        let named = |error: Error| error.with_key(key.display_name());
        while let Some(piece) = self.next_checked().await {
            joined.push_within(key, piece.map_err(named)?, memory).await?;
        }
        joined.finish().map_err(named)
    }

    /// Reads the next chunk. At the end, checks all bytes.
    async fn next_checked(&mut self) -> Option<Result<Bytes>> {
        let piece = self.pieces.next().await;
        match &piece {
            Some(Ok(piece)) => {
                if let Some(check) = &mut self.check {
                    check.update(piece);
                }
            }
            Some(Err(_)) => {}
            None => return Some(Err(self.check.take()?.finish().err()?)),
        }
        piece
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("size", &self.size)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// The memory that the read of a whole object may use.
///
/// A number is a limit in bytes without reservations.
#[async_trait]
pub trait ReadMemory: Send + Sync {
    /// The largest allowed object, in bytes.
    fn max_bytes(&self) -> u64;

    /// The number of bytes that are reserved already.
    fn reserved_bytes(&self) -> u64;

    /// Waits until `bytes` in total are reserved for the object.
    async fn reserve(&self, bytes: u64);
}

#[async_trait]
impl ReadMemory for u64 {
    fn max_bytes(&self) -> u64 {
        *self
    }

    fn reserved_bytes(&self) -> u64 {
        u64::MAX
    }

    async fn reserve(&self, _: u64) {}
}

/// Joins chunks. A single chunk is not copied.
#[derive(Debug, Default)]
pub(crate) struct JoinedPieces {
    pieces: Vec<Bytes>,
    /// Memory for all chunks, if the number of bytes is known. The chunks before `pieces` are in
    /// it.
    all: Option<ObjectBuffer>,
    len: usize,
    expected: usize,
}

/// Maximum number of bytes to allocate in advance, because the size that a store reports may be
/// wrong.
const MAX_ALLOCATED: usize = 64 << 20;

impl JoinedPieces {
    /// Sets the expected total number of bytes, which are checked and reserved. Memory for them is
    /// allocated in advance.
    ///
    /// # Errors
    /// `LimitExceeded` if the number is too large.
    pub(crate) async fn expect(
        &mut self,
        key: &Key,
        len: Option<u64>,
        memory: &dyn ReadMemory,
    ) -> Result<()> {
        let Some(len) = len else { return Ok(()) };
        check_limit(key, len, memory.max_bytes())?;
        memory.reserve(len).await;
        self.allocate(len);
        Ok(())
    }

    /// Sets the expected total number of bytes, for which memory is allocated in advance.
    pub(crate) fn allocate(&mut self, bytes: u64) {
        self.expected = usize::try_from(bytes).map_or(MAX_ALLOCATED, |it| it.min(MAX_ALLOCATED));
    }

    /// Adds a chunk. If more bytes arrive than expected, they are checked and reserved.
    ///
    /// # Errors
    /// `LimitExceeded` if there are too many bytes, or the memory for them cannot be allocated.
    pub(crate) async fn push_within(
        &mut self,
        key: &Key,
        piece: Bytes,
        memory: &dyn ReadMemory,
    ) -> Result<()> {
        let len = (self.len + piece.len()) as u64;
        check_limit(key, len, memory.max_bytes())?;
        if len > self.expected as u64 {
            // The chunks are copied at the end.
            memory.reserve(len.saturating_mul(2)).await;
        }
        self.push(piece).map_err(|error| error.with_key(key.display_name()))
    }

    /// Adds a chunk.
    ///
    /// # Errors
    /// `LimitExceeded` if the memory cannot be allocated.
    pub(crate) fn push(&mut self, piece: Bytes) -> Result<()> {
        let before = self.len;
        self.len += piece.len();
        if !piece.is_empty() {
            self.pieces.push(piece);
        }
        if self.len > self.expected || (self.all.is_none() && self.pieces.len() == 1) {
            return Ok(());
        }
        if self.all.is_none() {
            self.all = Some(allocate(self.expected)?);
        }
        let from = if self.pieces.len() == 1 { before } else { 0 };
        self.copy(from);
        Ok(())
    }

    /// Moves the chunks into `all`, from byte `at` on.
    fn copy(&mut self, mut at: usize) {
        let Some(all) = &mut self.all else { return };
        for piece in self.pieces.drain(..) {
            all.bytes_mut()[at..at + piece.len()].copy_from_slice(&piece);
            at += piece.len();
        }
    }

    #[cfg(feature = "http")]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns all bytes.
    ///
    /// # Errors
    /// `LimitExceeded` if the memory cannot be allocated.
    pub(crate) fn finish(mut self) -> Result<Bytes> {
        if self.pieces.is_empty() {
            let len = self.len;
            return Ok(self.all.map_or_else(Bytes::new, |all| all.into_bytes(len)));
        }
        if self.all.is_none() && self.pieces.len() == 1 {
            return Ok(self.pieces.pop().unwrap_or_default());
        }
        // More bytes than expected.
        let later: usize = self.pieces.iter().map(Bytes::len).sum();
        let first = self.all.take().map(|all| all.into_bytes(self.len - later));
        self.pieces.splice(..0, first);
        self.all = Some(allocate(self.len)?);
        self.copy(0);
        let len = self.len;
        Ok(self.all.map_or_else(Bytes::new, |all| all.into_bytes(len)))
    }
}

fn allocate(len: usize) -> Result<ObjectBuffer> {
    ObjectBuffer::zeroed(len).map_err(|source| {
        let message = format!("cannot allocate {len} bytes");
        Error::new(ErrorKind::LimitExceeded, message).with_source(source)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use spdl_core::block_on;

    fn body(pieces: &[&'static [u8]]) -> Body {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Bytes::from_static(piece))).collect();
        Body::new(stream::iter(pieces).boxed())
    }

    #[test]
    fn chunks_are_joined_and_a_single_one_is_not_copied() {
        assert_eq!(block_on(body(&[b"ab", b"", b"c"]).bytes()).unwrap(), "abc");
        assert_eq!(block_on(body(&[b"", b"ab", b"cd", b"e"]).bytes()).unwrap(), "abcde");
        assert_eq!(block_on(body(&[]).bytes()).unwrap(), "");
        let one = Bytes::from(vec![7; 100]);
        let same = block_on(Body::from_bytes(one.clone()).bytes()).unwrap();
        assert_eq!(same.as_ptr(), one.as_ptr());
    }

    #[test]
    fn bytes_returns_the_error_of_a_failed_chunk() {
        let error = Error::new(ErrorKind::Unavailable, "reset");
        let pieces = stream::iter([Ok(Bytes::from_static(b"a")), Err(error)]).boxed();
        let error = block_on(Body::new(pieces).bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
}
