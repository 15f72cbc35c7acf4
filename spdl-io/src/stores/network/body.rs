//! Bodies: read as a whole, and just as long as they should be.

use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};
use spdl_core::{Error, ErrorKind, Result};
use tokio::time::{Instant, timeout_at};

use crate::fetch::{Body, JoinedPieces, Key, ReadRequest, check_limit};

/// So many bytes of a body may wait for the rest of it, for so long: few wake whoever waits for them,
/// and a slow one is still seen to get on.
const GATHERED: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_millis(10);

/// A body of which the first pieces, those that come at once, are one. `len` is how many bytes are
/// expected.
pub(crate) async fn gathered(body: Body, len: Option<u64>, request: &ReadRequest) -> Body {
    gathered_within(PATIENCE, body, len, request).await
}

async fn gathered_within(
    patience: Duration,
    mut body: Body,
    len: Option<u64>,
    request: &ReadRequest,
) -> Body {
    let until = Instant::now() + patience;
    let mut joined = JoinedPieces::default();
    joined.expect(len.unwrap_or(0).min(GATHERED));
    let (mut fault, mut has_ended) = (None, false);
    while !has_ended && (joined.len() as u64) < GATHERED {
        match timeout_at(until, body.pieces.next()).await {
            Ok(Some(Ok(piece))) => {
                if let Some(first_byte) = &request.first_byte {
                    first_byte.has_come(std::time::Instant::now());
                }
                joined.push(piece);
            }
            Ok(Some(Err(error))) => {
                fault = Some(Err(error));
                has_ended = true;
            }
            Ok(None) => has_ended = true,
            Err(_) => break,
        }
    }
    let first = joined.finish();
    let first = (!first.is_empty()).then_some(Ok(first));
    let first = stream::iter(first.into_iter().chain(fault));
    body.pieces = if has_ended { first.boxed() } else { first.chain(body.pieces).boxed() };
    body
}

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
    use crate::stores::network::Reactor;
    use spdl_core::block_on;

    fn read(pieces: &[&'static str], len: u64) -> Result<Bytes> {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Bytes::from(*piece))).collect();
        let pieces = exact(stream::iter(pieces), &"k".into(), 10, len, ());
        block_on(Body::new(pieces).bytes())
    }

    /// The pieces of a body of which those in `at_once` are there, and those in `late` come when it has
    /// been looked at.
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
        let gathered = block_on(reactor.run(&key, async {
            let request = ReadRequest::whole();
            Ok(gathered_within(Duration::ZERO, Body::new(pieces.boxed()), Some(4), &request).await)
        }));
        if !has_ended {
            send_all(late);
            send.close_channel();
        }
        block_on(gathered.unwrap().pieces.collect())
    }

    #[test]
    fn pieces_that_come_at_once_are_one_and_late_ones_come_by_themselves() {
        let piece = |text: &'static str| Ok(Bytes::from(text));
        let cut = || Err(Error::new(ErrorKind::Truncated, "cut"));
        let told = |pieces: Vec<Result<Bytes>>| -> Vec<String> {
            let told = |piece: Result<Bytes>| match piece {
                Ok(piece) => String::from_utf8_lossy(&piece).into_owned(),
                Err(error) => format!("{:?}", error.kind()),
            };
            pieces.into_iter().map(told).collect()
        };
        assert_eq!(told(gather(vec![piece("ab"), piece("c"), piece("d")], vec![])), ["abcd"]);
        assert_eq!(told(gather(vec![], vec![])), [""; 0]);
        let late = gather(vec![piece("ab"), piece("c")], vec![piece("d"), piece("e")]);
        assert_eq!(told(late), ["abc", "d", "e"]);
        assert_eq!(told(gather(vec![], vec![piece("d")])), ["d"]);
        let cut = gather(vec![piece("ab"), piece("c"), cut(), piece("never")], vec![]);
        assert_eq!(told(cut), ["abc", "Truncated"]);
    }

    #[test]
    fn what_is_gathered_is_bounded_though_no_length_is_told() {
        let piece = Bytes::from(vec![7; 300_000]);
        let pieces = (0..5).map(|_| Ok(piece.clone())).collect();
        let lengths = |pieces: Vec<Result<Bytes>>| -> Vec<usize> {
            pieces.into_iter().map(|piece| piece.unwrap().len()).collect()
        };
        assert_eq!(lengths(gather(pieces, vec![])), [1_200_000, 300_000]);
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
