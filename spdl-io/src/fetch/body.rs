//! What is asked of an object, and the bytes that come.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};
use spdl_core::Result;

/// Which part of an object to read, and which version of it, for
/// [`Fetcher::open`](crate::Fetcher::open).
///
/// ```
/// use spdl_io::ReadRequest;
/// let rest = ReadRequest::starting_at(1 << 20).of_version("\"33a64df5\"");
/// assert_eq!((rest.start, rest.end), (1 << 20, None));
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadRequest {
    /// The first byte, counted from the start of the object. Default: 0.
    pub start: u64,
    /// The byte behind the last one. Default: the object's end.
    pub end: Option<u64>,
    /// The version that the object must have. Default: any.
    pub version: Option<Arc<str>>,
    /// Who is told when the first byte has come.
    pub(crate) first_byte: Option<Arc<FirstByte>>,
}

/// When the first byte of an answer came: a fetcher may have gathered more before it hands that on.
#[derive(Debug, Default)]
pub(crate) struct FirstByte(OnceLock<Instant>);

impl FirstByte {
    #[cfg(any(feature = "http", test))]
    pub(crate) fn has_come(&self, at: Instant) {
        self.0.get_or_init(|| at);
    }

    pub(crate) fn time(&self) -> Option<Instant> {
        self.0.get().copied()
    }
}

/// Requests are equal whoever is told.
impl PartialEq for FirstByte {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for FirstByte {}

impl ReadRequest {
    /// All of an object.
    pub fn whole() -> Self {
        ReadRequest::default()
    }

    /// What lies in `range`, all of it.
    pub fn range(range: Range<u64>) -> Self {
        ReadRequest { start: range.start, end: Some(range.end), ..ReadRequest::default() }
    }

    /// All from byte `start` on: nothing, where that is the end.
    pub fn starting_at(start: u64) -> Self {
        ReadRequest { start, ..ReadRequest::default() }
    }

    /// Of this version only, as [`ObjectMeta::version`](crate::ObjectMeta::version) or
    /// [`Body::version`] told it.
    #[must_use]
    pub fn of_version(mut self, version: impl Into<Arc<str>>) -> Self {
        self.version = Some(version.into());
        self
    }
}

/// An object under way: its pieces as they come, and what was told ahead of them.
#[non_exhaustive]
pub struct Body {
    /// The length of the whole object in bytes, whatever part of it was asked for; where known.
    pub size: Option<u64>,
    /// Which version of the object it is, where known.
    pub version: Option<Arc<str>>,
    /// The pieces, in order. Dropping them ends the read.
    pub pieces: BoxStream<'static, Result<Bytes>>,
}

impl Body {
    /// A body of these pieces.
    pub fn new(pieces: BoxStream<'static, Result<Bytes>>) -> Self {
        Body { size: None, version: None, pieces }
    }

    /// A body that is there already.
    pub fn from_bytes(bytes: Bytes) -> Self {
        Body::new(stream::iter((!bytes.is_empty()).then_some(Ok(bytes))).boxed())
    }

    /// Says how long the whole object is.
    #[must_use]
    pub fn with_size(mut self, size: u64) -> Self {
        self.size = Some(size);
        self
    }

    /// Says which version it is.
    #[must_use]
    pub fn with_version(mut self, version: impl Into<Arc<str>>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// Waits for all pieces and joins them; one alone is not copied.
    ///
    /// # Errors
    /// That of the first piece that fails.
    pub async fn bytes(mut self) -> Result<Bytes> {
        let mut joined = JoinedPieces::default();
        while let Some(piece) = self.pieces.next().await {
            joined.push(piece?);
        }
        Ok(joined.finish())
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

/// Joins pieces into one, without a copy where there is only one.
#[derive(Default)]
pub(crate) struct JoinedPieces {
    first: Bytes,
    all: BytesMut,
    expected: usize,
}

/// Memory is taken ahead for what is expected, but for no more than this: whoever announces it may
/// be wrong.
const MOST_EXPECTED: usize = 64 << 20;

impl JoinedPieces {
    /// Says how many bytes there will be in all.
    pub(crate) fn expect(&mut self, bytes: u64) {
        self.expected = usize::try_from(bytes).map_or(MOST_EXPECTED, |it| it.min(MOST_EXPECTED));
    }

    pub(crate) fn push(&mut self, piece: Bytes) {
        if self.all.is_empty() && self.first.is_empty() {
            self.first = piece;
        } else {
            if self.all.is_empty() {
                self.all.reserve(self.expected);
                self.all.extend_from_slice(&std::mem::take(&mut self.first));
            }
            self.all.extend_from_slice(&piece);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.first.len() + self.all.len()
    }

    pub(crate) fn finish(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.freeze() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spdl_core::{Error, ErrorKind, block_on};

    fn body(pieces: &[&'static [u8]]) -> Body {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Bytes::from_static(piece))).collect();
        Body::new(stream::iter(pieces).boxed())
    }

    #[test]
    fn pieces_are_joined_in_order_and_one_alone_is_not_copied() {
        assert_eq!(block_on(body(&[b"ab", b"", b"c"]).bytes()).unwrap(), "abc");
        assert_eq!(block_on(body(&[b"", b"ab", b"cd", b"e"]).bytes()).unwrap(), "abcde");
        assert_eq!(block_on(body(&[]).bytes()).unwrap(), "");
        let one = Bytes::from(vec![7; 100]);
        let same = block_on(Body::from_bytes(one.clone()).bytes()).unwrap();
        assert_eq!(same.as_ptr(), one.as_ptr());
    }

    #[test]
    fn a_piece_that_fails_is_the_bodys_error() {
        let error = Error::new(ErrorKind::Unavailable, "reset");
        let pieces = stream::iter([Ok(Bytes::from_static(b"a")), Err(error)]).boxed();
        let error = block_on(Body::new(pieces).bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
}
