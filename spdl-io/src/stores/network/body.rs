//! Response bodies: length checks, and buffering of the first chunk.

use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};
use spdl_core::{Error, ErrorKind, Result};
use tokio::time::{Instant, timeout_at};

use crate::fetch::{Body, JoinedPieces, Key, ReadRequest};

/// Bounds of the first chunk: the waiting task is woken once for up to 1 MiB that arrives within 10
/// ms. Later data are returned as they arrive, so that the stall detection sees the progress of a
/// slow body.
const FIRST_CHUNK_BYTES: u64 = 1 << 20;
const FIRST_CHUNK_TIME: Duration = Duration::from_millis(10);

/// Joins the pieces of a body that arrive first into one chunk.
///
/// `len` is the expected length in bytes.
pub(crate) async fn buffer_first_chunk(
    body: Body,
    len: Option<u64>,
    request: &ReadRequest,
) -> Body {
    buffer_first_chunk_within(FIRST_CHUNK_TIME, body, len, request).await
}

async fn buffer_first_chunk_within(
    max_wait: Duration,
    mut body: Body,
    len: Option<u64>,
    request: &ReadRequest,
) -> Body {
    let until = Instant::now() + max_wait;
    let mut joined = JoinedPieces::default();
    joined.allocate(len.unwrap_or(0).min(FIRST_CHUNK_BYTES));
    let (mut fault, mut has_ended) = (None, false);
    while !has_ended && (joined.len() as u64) < FIRST_CHUNK_BYTES {
        match timeout_at(until, body.pieces.next()).await {
            Ok(Some(Ok(piece))) => {
                if let Some(times) = &request.times {
                    times.mark_first_byte(std::time::Instant::now());
                }
                if let Err(error) = joined.push(piece) {
                    fault = Some(Err(error));
                    has_ended = true;
                }
            }
            Ok(Some(Err(error))) => {
                fault = Some(Err(error));
                has_ended = true;
            }
            Ok(None) => has_ended = true,
            Err(_) => break,
        }
    }
    let first = match joined.finish() {
        Ok(bytes) => (!bytes.is_empty()).then_some(Ok(bytes)),
        Err(error) => Some(Err(error)),
    };
    let first = stream::iter(first.into_iter().chain(fault));
    body.pieces = if has_ended { first.boxed() } else { first.chain(body.pieces).boxed() };
    body
}

/// Checks that a body has exactly `len` bytes, from byte `start` of the object.
///
/// `guard` is dropped once the body has been read or dropped.
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
                let message = format!("response body truncated: expected data up to byte {end}");
                fault(ErrorKind::Truncated, message, at)
            }
            None => Ok(None),
            Some(Err(error)) => Err(error.with_key(key.display_name())),
            Some(Ok(piece)) => {
                let after = at.saturating_add(piece.len() as u64);
                if after > end {
                    let message = "response body is longer than requested".to_owned();
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
    use crate::stores::network::Reactor;
    use spdl_core::block_on;

    fn read(pieces: &[&'static str], len: u64) -> Result<Bytes> {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Bytes::from(*piece))).collect();
        let pieces = exact(stream::iter(pieces), &"k".into(), 10, len, ());
        block_on(Body::new(pieces).bytes())
    }

    /// Buffers a body: `at_once` is available at the first poll, `late` arrives afterwards.
    fn gather(at_once: Vec<Result<Bytes>>, late: Vec<Result<Bytes>>) -> Vec<Result<Bytes>> {
        let (reactor, key) = (Reactor::default(), "k".into());
        let (send, pieces) = futures_channel::mpsc::unbounded();
        let send_all = |pieces: Vec<Result<Bytes>>| {
            pieces.into_iter().for_each(|piece| send.unbounded_send(piece).unwrap());
        };
        send_all(at_once);
        let has_ended = late.is_empty();
        if has_ended {
            send.close_channel();
        }
        let buffer_first_chunk = block_on(reactor.run(&key, async {
            let request = ReadRequest::whole();
            Ok(buffer_first_chunk_within(
                Duration::ZERO,
                Body::new(pieces.boxed()),
                Some(4),
                &request,
            )
            .await)
        }));
        if !has_ended {
            send_all(late);
            send.close_channel();
        }
        block_on(buffer_first_chunk.unwrap().pieces.collect())
    }

    #[test]
    fn available_pieces_are_joined_and_late_ones_are_not() {
        let piece = |text: &'static str| Ok(Bytes::from(text));
        let cut = || Err(Error::new(ErrorKind::Truncated, "cut"));
        let shown = |pieces: Vec<Result<Bytes>>| -> Vec<String> {
            let shown = |piece: Result<Bytes>| match piece {
                Ok(piece) => String::from_utf8_lossy(&piece).into_owned(),
                Err(error) => format!("{:?}", error.kind()),
            };
            pieces.into_iter().map(shown).collect()
        };
        assert_eq!(shown(gather(vec![piece("ab"), piece("c"), piece("d")], vec![])), ["abcd"]);
        assert_eq!(shown(gather(vec![], vec![])), [""; 0]);
        let late = gather(vec![piece("ab"), piece("c")], vec![piece("d"), piece("e")]);
        assert_eq!(shown(late), ["abc", "d", "e"]);
        assert_eq!(shown(gather(vec![], vec![piece("d")])), ["d"]);
        let cut = gather(vec![piece("ab"), piece("c"), cut(), piece("never")], vec![]);
        assert_eq!(shown(cut), ["abc", "Truncated"]);
    }

    #[test]
    fn the_first_chunk_is_bounded_if_the_length_is_unknown() {
        let piece = Bytes::from(vec![7; 300_000]);
        let pieces = (0..5).map(|_| Ok(piece.clone())).collect();
        let lengths = |pieces: Vec<Result<Bytes>>| -> Vec<usize> {
            pieces.into_iter().map(|piece| piece.unwrap().len()).collect()
        };
        assert_eq!(lengths(gather(pieces, vec![])), [1_200_000, 300_000]);
    }

    #[test]
    fn bodies_of_another_length_are_errors() {
        assert_eq!(read(&["ab", "c"], 3).unwrap(), "abc");
        assert_eq!(read(&[], 0).unwrap(), "");
        let error = read(&["ab"], 3).unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::Truncated, Some(12)));
        let error = read(&["ab", "cd"], 3).unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupt, Some(13)));
        assert_eq!(error.key(), Some("k"));
    }
}
