//! Bodies: read as a whole, and just as long as they should be.

use bytes::Bytes;
use futures_core::Stream;
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};
use spdl_core::{Error, ErrorKind, Result};

use crate::body::JoinedPieces;
use crate::fetcher::check_limit;
use crate::{Body, Key};

/// All of a body, unless it holds more than `max_bytes`: refused before it is read, where its
/// length was told.
pub(crate) async fn collect(mut body: Body, key: &Key, len: u64, max_bytes: u64) -> Result<Bytes> {
    check_limit(key, len, max_bytes)?;
    let mut joined = JoinedPieces::default();
    joined.expect(len);
    while let Some(piece) = body.pieces.next().await {
        joined.push(piece?);
        check_limit(key, joined.len() as u64, max_bytes)?;
    }
    Ok(joined.finish())
}

/// The pieces of a body of `len` bytes from byte `start` on, and an error where it is shorter or
/// longer. `guard` is held until the body is read or dropped.
pub(crate) fn exact<G: Send + 'static>(
    pieces: impl Stream<Item = Result<Bytes>> + Send + 'static,
    key: &Key,
    start: u64,
    len: u64,
    guard: G,
) -> BoxStream<'static, Result<Bytes>> {
    let end = start.saturating_add(len);
    let state = (pieces.boxed(), key.clone(), start, guard);
    stream::try_unfold(state, move |(mut pieces, key, at, guard)| async move {
        let fault = |kind, message, at| {
            Err(Error::new(kind, message).with_key(key.display_name()).with_offset(at))
        };
        match pieces.next().await {
            None if at < end => {
                let message = format!("the body ended before byte {end}");
                fault(ErrorKind::Truncated, message, at)
            }
            None => Ok(None),
            Some(Err(error)) => Err(error.with_key(key.display_name())),
            Some(Ok(piece)) => {
                let after = at.saturating_add(piece.len() as u64);
                if after > end {
                    let message = "the body goes on behind its end".to_owned();
                    return fault(ErrorKind::Corrupt, message, end);
                }
                Ok(Some((piece, (pieces, key, after, guard))))
            }
        }
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use spdl_core::block_on;

    fn read(pieces: &[&'static str], len: u64) -> Result<Bytes> {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Bytes::from(*piece))).collect();
        let pieces = exact(stream::iter(pieces), &"k".into(), 10, len, ());
        block_on(Body::new(pieces).bytes())
    }

    #[test]
    fn a_body_that_is_too_short_or_too_long_is_an_error() {
        assert_eq!(read(&["ab", "c"], 3).unwrap(), "abc");
        assert_eq!(read(&[], 0).unwrap(), "");
        let error = read(&["ab"], 3).unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::Truncated, Some(12)));
        let error = read(&["ab", "cd"], 3).unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupt, Some(13)));
        assert_eq!(error.key(), Some("k"));
    }
}
