//! One read: a sequence of attempts. Each attempt resumes the previous one if possible.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::{FutureExt, StreamExt, stream};
use spdl_core::{BoxFuture, Error, ErrorKind, Result};

use super::ResilientState;
use super::body_speed::BodySpeed;
use super::hedged_request::{HedgedRequest, MAX_HEDGES};
use super::retry::{RetryState, is_retryable};
use crate::fetch::{
    Body, ContentCheck, Fetcher, JoinedPieces, Key, ReadMemory, ReadRequest, ResponseMemory,
    check_limit, check_size, check_version, range_len,
};

/// Number of bytes after a failure that count as progress and reset the retry limits.
const PROGRESS_BYTES: u64 = 1 << 20;

/// Number of consecutive responses with another size after which the object counts as changed.
const MAX_OTHER_SIZES: u32 = 3;

/// An open response.
pub(super) struct OpenResponse {
    body: Body,
    /// The first chunk, already received.
    first: Option<Option<Result<Bytes>>>,
    /// Waiting time and bytes since the last check for a stall.
    waited: Duration,
    bytes_since_check: u64,
    speed: BodySpeed,
    /// A hedged request for the rest of this body, because the body is slow.
    hedge: Option<BodyHedge>,
}

struct BodyHedge {
    /// The first byte that was requested.
    start: u64,
    response: BoxFuture<'static, Result<OpenResponse>>,
}

impl OpenResponse {
    /// Sends a request and waits for the first chunk of its body.
    pub(super) fn request(
        inner: Arc<dyn Fetcher>,
        key: Key,
        request: ReadRequest,
    ) -> BoxFuture<'static, Result<OpenResponse>> {
        Box::pin(async move {
            let mut body = inner.open(&key, &request).await?;
            // The caller handles an error of the first chunk after it has checked the response.
            let first = Some(body.pieces.next().await);
            Ok(OpenResponse {
                body,
                first,
                waited: Duration::ZERO,
                bytes_since_check: 0,
                speed: BodySpeed::default(),
                hedge: None,
            })
        })
    }

    /// Waits for the next chunk, for the response to a hedged request, or for `timer`.
    async fn next_event(&mut self, mut timer: BoxFuture<'static, ()>) -> BodyEvent {
        poll_fn(|cx| {
            if let Poll::Ready(piece) = self.body.pieces.poll_next_unpin(cx) {
                return Poll::Ready(BodyEvent::Piece(piece));
            }
            if let Some(hedge) = &mut self.hedge
                && let Poll::Ready(response) = hedge.response.poll_unpin(cx)
            {
                return Poll::Ready(BodyEvent::Hedge(response));
            }
            timer.poll_unpin(cx).map(|()| BodyEvent::Timer)
        })
        .await
    }

    /// Counts bytes for the detection of stalls.
    fn received(&mut self, bytes: u64, min_bytes: u64) {
        self.bytes_since_check += bytes;
        if self.bytes_since_check >= min_bytes {
            self.waited = Duration::ZERO;
            self.bytes_since_check = 0;
        }
    }
}

/// What happens while a read waits for the next chunk.
enum BodyEvent {
    Piece(Option<Result<Bytes>>),
    Hedge(Result<OpenResponse>),
    Timer,
}

/// How a failed attempt is handled.
enum AttemptFailure {
    /// Fail the read.
    Final(Error),
    /// Retry, and resume at the current offset.
    Resume(Error),
    /// Retry from the start. The bytes received may be wrong.
    Restart(Error),
}

pub(super) struct Reading {
    state: Arc<ResilientState>,
    inner: Arc<dyn Fetcher>,
    key: Key,
    request: ReadRequest,
    /// Offset of the next byte.
    next: u64,
    /// Offset after the last byte: the end of the request, or else the size in the response. `None`
    /// if neither is known.
    end: Option<u64>,
    size: Option<u64>,
    /// The number of consecutive responses with another size than the request.
    other_sizes: u32,
    version: Option<Arc<str>>,
    opened: Option<OpenResponse>,
    /// Checks all bytes from the start of the request.
    check: Option<Box<dyn ContentCheck>>,
    /// Hedged requests for slow bodies.
    body_hedges: u32,
    /// Whether any attempt has opened a response.
    has_opened: bool,
    retry: RetryState,
    /// Bytes received since the last failure.
    progress: u64,
    /// Whether chunks were returned to the caller, which prevents a restart.
    has_returned_chunks: bool,
    max_bytes: u64,
    done: bool,
}

impl Reading {
    /// Creates a read. Whole objects above `max_bytes` bytes fail with `LimitExceeded`.
    pub(super) fn new(
        state: Arc<ResilientState>,
        inner: Arc<dyn Fetcher>,
        key: Key,
        request: ReadRequest,
        max_bytes: u64,
    ) -> Result<Self> {
        if let Some(end) = request.end {
            range_len(&key, &(request.start..end))?;
        }
        state.counts.reads.add(1);
        let retry = RetryState::new(Arc::clone(&state));
        Ok(Reading {
            state,
            inner,
            key,
            next: request.start,
            end: request.end,
            size: None,
            other_sizes: 0,
            version: request.version.clone(),
            request,
            opened: None,
            check: None,
            body_hedges: 0,
            has_opened: false,
            retry,
            progress: 0,
            has_returned_chunks: false,
            max_bytes,
            done: false,
        })
    }

    /// Returns the size and the version of the object, if known.
    pub(super) fn metadata(&self) -> (Option<u64>, Option<Arc<str>>) {
        (self.size, self.version.clone())
    }

    /// Reads all requested bytes. Also returns the version of the object, if known.
    pub(super) async fn all(
        mut self,
        memory: &dyn ReadMemory,
    ) -> Result<(Bytes, Option<Arc<str>>)> {
        self.begin().await?;
        let mut joined = self.joined(memory).await?;
        loop {
            match self.attempt().await {
                Ok(Some(piece)) => {
                    let before = self.state.clock.now();
                    let memory = self.response_memory(memory);
                    let pushed = joined.push_within(&self.key, piece, &memory).await;
                    let waited = self.state.clock.now().saturating_duration_since(before);
                    self.retry.exclude(waited);
                    pushed.map_err(|error| self.fail(error))?;
                }
                Ok(None) => {
                    let bytes = joined.finish().map_err(|error| self.fail(error))?;
                    return Ok((bytes, self.version));
                }
                Err(failure) => {
                    let before = self.next;
                    self.recover(failure).await?;
                    if self.next < before {
                        joined = self.joined(memory).await?;
                    }
                }
            }
        }
    }

    /// Reserves memory for all requested bytes, if their number is known.
    async fn joined(&mut self, memory: &dyn ReadMemory) -> Result<JoinedPieces> {
        let mut joined = JoinedPieces::default();
        let len = self.end.map(|end| end - self.request.start);
        let before = self.state.clock.now();
        let reserved = joined.expect(&self.key, len, &self.response_memory(memory)).await;
        self.retry.exclude(self.state.clock.now().saturating_duration_since(before));
        reserved.map_err(|error| self.fail(error))?;
        Ok(joined)
    }

    fn response_memory<'a>(&self, memory: &'a dyn ReadMemory) -> ResponseMemory<'a> {
        let connection = self.opened.as_ref().and_then(|opened| opened.body.connection.clone());
        ResponseMemory { memory, connection }
    }

    /// Reads the next chunk. Chunks that were returned before are not repeated.
    pub(super) async fn piece(mut self) -> Result<Option<(Bytes, Self)>> {
        if !self.retry.is_failing() {
            // The retry time excludes the time between calls.
            self.retry.made_progress();
        }
        loop {
            match self.attempt().await {
                Ok(Some(piece)) => {
                    self.has_returned_chunks = true;
                    return Ok(Some((piece, self)));
                }
                Ok(None) => return Ok(None),
                Err(failure) => self.recover(failure).await?,
            }
        }
    }

    /// Retries until an attempt has opened a response.
    pub(super) async fn begin(&mut self) -> Result<()> {
        while self.opened.is_none() {
            if let Err(failure) = self.open().await {
                self.recover(failure).await?;
            }
        }
        Ok(())
    }

    /// Reads the next chunk of the current attempt, or starts an attempt.
    async fn attempt(&mut self) -> Result<Option<Bytes>, AttemptFailure> {
        if self.done {
            return Ok(None);
        }
        if self.opened.is_none() {
            self.open().await?;
        }
        loop {
            let Some(mut opened) = self.opened.take() else { return Ok(None) };
            let Some(piece) = self.next_piece(&mut opened).await? else {
                return match self.end {
                    Some(end) if self.next < end => {
                        Err(AttemptFailure::Resume(self.truncated(end)))
                    }
                    _ => self.finish(&opened),
                };
            };
            let piece = piece.map_err(|error| self.classify_body_error(error))?;
            let after = self.next.saturating_add(piece.len() as u64);
            if let Some(end) = self.end {
                let is_too_long = after > end
                    || after == end && pending_bytes(&mut opened.body).is_some_and(|more| more > 0);
                if is_too_long {
                    return Err(AttemptFailure::Restart(self.too_long(end)));
                }
            }
            self.count(piece.len() as u64);
            self.next = after;
            if let Some(check) = &mut self.check {
                check.update(&piece);
            }
            if self.end != Some(after) {
                self.opened = Some(opened);
            } else {
                self.finish(&opened)?;
            }
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
            if self.done {
                return Ok(None);
            }
        }
    }

    /// Ends the read after its last byte.
    fn finish(&mut self, opened: &OpenResponse) -> Result<Option<Bytes>, AttemptFailure> {
        if let Some(check) = self.check.take() {
            check.finish().map_err(AttemptFailure::Restart)?;
        }
        self.done = true;
        let mut limits = self.state.limits();
        limits.succeeded();
        if let Some(speed) = opened.speed.of_body() {
            limits.body_speed(speed);
        }
        drop(limits);
        let now = self.state.clock.now();
        self.state.breakers.succeeded(&self.key, self.retry.failed_attempts(), now);
        Ok(None)
    }

    fn count(&mut self, bytes: u64) {
        self.state.counts.bytes.add(bytes);
        self.progress += bytes;
        if !self.retry.is_failing() || self.progress >= PROGRESS_BYTES {
            self.retry.made_progress();
        }
    }

    /// Waits for the next chunk within the stall timeout. If the body is slow, requests its rest again,
    /// and continues with the response.
    async fn next_piece(
        &mut self,
        opened: &mut OpenResponse,
    ) -> std::result::Result<Option<Result<Bytes>>, AttemptFailure> {
        loop {
            if let Some(first) = opened.first.take() {
                if let Some(Ok(piece)) = &first {
                    opened.speed.add(piece.len() as u64, Duration::ZERO);
                }
                return Ok(first);
            }
            let options = &self.state.options;
            let until_stalled = options.stall_timeout.saturating_sub(opened.waited);
            let until_stalled = until_stalled.min(self.retry.time_left());
            let until_check = opened.speed.until_check();
            let before = self.state.clock.now();
            let timer = self.state.clock.sleep(until_stalled.min(until_check));
            let event = opened.next_event(timer).await;
            let waited = self.state.clock.now().saturating_duration_since(before);
            opened.waited += waited;
            match event {
                BodyEvent::Piece(piece) => {
                    let bytes = piece.iter().flatten().map(|piece| piece.len() as u64).sum();
                    opened.speed.add(bytes, waited);
                    opened.received(bytes, options.min_bytes);
                    self.hedge_slow_body(opened);
                    return Ok(piece);
                }
                BodyEvent::Hedge(response) => {
                    opened.speed.add(0, waited);
                    let hedge = opened.hedge.take();
                    let start = hedge.map_or(self.next, |hedge| hedge.start);
                    if let Some(faster) = response.ok().and_then(|it| self.rest_of(it, start)) {
                        self.state.counts.hedges_won.add(1);
                        *opened = faster;
                    }
                }
                BodyEvent::Timer if until_stalled <= until_check => {
                    return Err(AttemptFailure::Resume(self.stalled(opened.bytes_since_check)));
                }
                BodyEvent::Timer => {
                    // The clock of the timer may differ slightly.
                    opened.speed.add(0, waited.max(until_check));
                    self.hedge_slow_body(opened);
                }
            }
        }
    }

    /// If the body is much slower than others, sends a request for its rest.
    fn hedge_slow_body(&mut self, opened: &mut OpenResponse) {
        let Some(speed) = opened.speed.check() else { return };
        let capability = self.inner.capability();
        let can_resume = capability.ranges && capability.versions && self.version.is_some();
        let rest = self.end.map(|end| end.saturating_sub(self.next));
        let mut limits = self.state.limits();
        if !limits.is_slow_body(speed, rest) {
            // The body is fast again.
            opened.hedge = None;
            return;
        }
        if opened.hedge.is_some() || !can_resume || self.body_hedges == MAX_HEDGES {
            return;
        }
        if !limits.take_hedge() {
            return;
        }
        drop(limits);
        self.body_hedges += 1;
        self.state.counts.hedges.add(1);
        self.state.counts.requests.add(1);
        let start = self.next;
        let inner = Arc::clone(&self.inner);
        let response = OpenResponse::request(inner, self.key.clone(), self.rest(start));
        opened.hedge = Some(BodyHedge { start, response });
    }

    /// Requests the version of this read from byte `start`.
    fn rest(&self, start: u64) -> ReadRequest {
        ReadRequest {
            start,
            // Uses only the end in the request: the size that the store reported may be wrong.
            end: self.request.end,
            version: self.version.clone().filter(|_| self.inner.capability().versions),
            size: self.request.size,
            clamps_end: self.request.clamps_end,
            times: None,
        }
    }

    /// Removes the bytes before the next byte of this read from the response to a hedged request that
    /// began at `start`. Returns `None` if the response is no data of the same object.
    fn rest_of(&self, mut response: OpenResponse, start: u64) -> Option<OpenResponse> {
        let OpenResponse { body, first, .. } = &mut response;
        let is_same = check_version(&self.key, self.version.as_ref(), body.version.as_ref())
            .is_ok()
            && self.size.is_none_or(|size| body.size.is_none_or(|found| found == size));
        let Some(Some(Ok(piece))) = first else { return None };
        if !is_same || piece.is_empty() {
            return None;
        }
        let mut known = self.next - start;
        let mut skip_known = move |piece: &mut Bytes| {
            let skipped = piece.len().min(usize::try_from(known).unwrap_or(usize::MAX));
            piece.advance(skipped);
            known -= skipped as u64;
        };
        skip_known(piece);
        let pieces = std::mem::replace(&mut body.pieces, stream::empty().boxed());
        body.pieces = pieces
            .map(move |piece| {
                piece.map(|mut piece| {
                    skip_known(&mut piece);
                    piece
                })
            })
            .boxed();
        Some(response)
    }

    /// Starts an attempt at the missing bytes.
    async fn open(&mut self) -> Result<(), AttemptFailure> {
        let resumed = self.next > self.request.start;
        let request = self.rest(self.next);
        let mut opened = self.send_hedged(request).await.map_err(|error| {
            // The position is beyond the end now, so one of the two sizes was wrong.
            if resumed && error.kind() == ErrorKind::Truncated {
                AttemptFailure::Restart(error)
            } else if is_retryable(&error) {
                AttemptFailure::Resume(error)
            } else {
                AttemptFailure::Final(error)
            }
        })?;
        self.state.reachability.mark_responded();
        let body = &opened.body;
        if self.has_opened || self.request.version.is_some() {
            let known = self.version.as_ref().filter(|_| self.inner.capability().versions);
            if let Err(error) = check_version(&self.key, known, body.version.as_ref()) {
                return Err(AttemptFailure::Final(error));
            }
        }
        if let Err(error) = check_size(&self.key, self.request.size, body.size) {
            self.other_sizes += 1;
            // A few responses may be wrong.
            return Err(match self.other_sizes < MAX_OTHER_SIZES {
                true => AttemptFailure::Restart(error),
                false => AttemptFailure::Final(error),
            });
        }
        if body.size.is_some() {
            self.other_sizes = 0;
        }
        if let (Some(known), Some(metadata)) = (self.size, body.size)
            && known != metadata
        {
            let message = format!(
                "the store reported a size of {known} bytes, then {metadata} bytes for the same \
                 object"
            );
            return Err(AttemptFailure::Restart(Error::new(ErrorKind::Corrupt, message)));
        }
        // A chunked response has no size.
        if self.request.end.is_none()
            && let Some(size) = body.size.or(self.request.size)
        {
            if self.request.start == 0 {
                check_limit(&self.key, size, self.max_bytes).map_err(AttemptFailure::Final)?;
            }
            self.end = Some(size);
        }
        if self.request.clamps_end
            && let Some(size) = body.size
        {
            self.end = self.request.end.map(|end| end.min(size));
        }
        self.size = self.size.or(body.size);
        self.version = self.version.take().or_else(|| body.version.clone());
        if resumed {
            self.state.counts.resumed.add(1);
        } else {
            self.check = opened.body.check.take();
        }
        self.has_opened = true;
        self.opened = Some(opened);
        Ok(())
    }

    /// Sends a request, and up to two hedged requests if it is late. Uses the first response.
    async fn send_hedged(&mut self, request: ReadRequest) -> Result<OpenResponse> {
        let timeout = self.state.options.stall_timeout.min(self.retry.time_left());
        let (inner, key) = (Arc::clone(&self.inner), self.key.clone());
        let mut sent = HedgedRequest::send(&self.state, inner, key, request, timeout);
        let response = poll_fn(|cx| sent.poll(cx)).await;
        // The wait for one of a limited number of connections is no retry time.
        self.retry.exclude(sent.waited_to_send());
        response
    }

    /// Prepares the next attempt, and waits before it.
    ///
    /// # Errors
    /// The final error, if there is no further attempt.
    async fn recover(&mut self, failure: AttemptFailure) -> Result<()> {
        self.opened = None;
        self.progress = 0;
        let (error, restarts) = match failure {
            AttemptFailure::Final(error) => return Err(self.fail(error)),
            AttemptFailure::Resume(error) => (error, false),
            AttemptFailure::Restart(error) => (error, true),
        };
        let capability = self.inner.capability();
        // Without versions, parts of two different objects could be joined.
        let resumes = capability.ranges && capability.versions && self.version.is_some();
        if restarts || self.next > self.request.start && !resumes {
            if self.has_returned_chunks {
                return Err(self.fail(error));
            }
            self.state.counts.wasted_bytes.add(self.next - self.request.start);
            self.next = self.request.start;
            self.end = self.request.end;
            self.size = None;
        }
        self.retry.wait_before_retry(&self.key, error).await
    }

    fn fail(&mut self, error: Error) -> Error {
        self.done = true;
        if error.kind() == ErrorKind::Changed {
            self.state.counts.changed.add(1);
        }
        let fresh = RetryState::new(Arc::clone(&self.state));
        std::mem::replace(&mut self.retry, fresh).final_error(&self.key, error)
    }

    /// Classifies an error within a body. I/O errors and truncated bodies mean that the connection
    /// was lost.
    fn classify_body_error(&self, error: Error) -> AttemptFailure {
        let truncated = matches!(error.kind(), ErrorKind::Truncated | ErrorKind::Io);
        if !error.is_fatal() && (truncated || is_retryable(&error)) {
            AttemptFailure::Resume(error)
        } else {
            AttemptFailure::Final(error)
        }
    }

    fn truncated(&self, end: u64) -> Error {
        let message = format!("response body truncated: expected data up to byte {end}");
        Error::new(ErrorKind::Truncated, message).with_offset(self.next)
    }

    fn too_long(&self, end: u64) -> Error {
        let message = "response body is longer than announced";
        Error::new(ErrorKind::Corrupt, message).with_offset(end)
    }

    fn stalled(&self, bytes_since_check: u64) -> Error {
        self.state.counts.stalls.add(1);
        let message = format!(
            "response body stalled: received {bytes_since_check} bytes within {:.1} s",
            self.state.options.stall_timeout.as_secs_f64()
        );
        Error::new(ErrorKind::Timeout, message).with_offset(self.next)
    }
}

/// Returns the number of bytes that are available without waiting. Returns `None` at the end of the
/// body, after an error, or if no bytes have arrived.
fn pending_bytes(body: &mut Body) -> Option<usize> {
    match body.pieces.next().now_or_never() {
        Some(Some(Ok(more))) => Some(more.len()),
        _ => None,
    }
}
