//! One read: attempts, one after the other, each from where the last one broke off.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use futures_util::{FutureExt, StreamExt};
use spdl_core::{BoxFuture, Error, ErrorKind, Result};

use super::Shared;
use super::persistence::{Persistence, may_pass};
use crate::fetch::{
    Body, Fetcher, FirstByte, JoinedPieces, Key, ReadRequest, Unreached, check_limit,
    check_version, range_len,
};

/// What brings so much since the last failure, gets on.
const PROGRESS: u64 = 1 << 20;

/// A body under way.
struct Opened {
    body: Body,
    /// A piece that is there already.
    first: Option<Option<Result<Bytes>>>,
    /// For how long, and with how many bytes, it has been waited for since it last kept its pace.
    waited: Duration,
    meanwhile: u64,
}

/// What becomes of an attempt that failed.
enum Failure {
    /// Nothing is to be done.
    Final(Error),
    /// Go on at the same place.
    Again(Error),
    /// What has come so far is not to be trusted.
    Anew(Error),
}

pub(super) struct Reading {
    shared: Arc<Shared>,
    inner: Arc<dyn Fetcher>,
    key: Key,
    request: ReadRequest,
    /// The byte that comes next.
    next: u64,
    /// Known once the first attempt has begun: the byte behind the last; `None` where the fetcher
    /// below does not know either.
    end: Option<u64>,
    size: Option<u64>,
    version: Option<Arc<str>>,
    opened: Option<Opened>,
    /// Whether an attempt has begun.
    has_opened: bool,
    persistence: Persistence,
    /// What has come since the last failure.
    progress: u64,
    /// Whether pieces have been handed on, which cannot be taken back.
    handed_on: bool,
    largest: u64,
    done: bool,
}

impl Reading {
    /// Refuses objects of more than `largest` bytes, where a whole one is asked for.
    pub(super) fn new(
        shared: Arc<Shared>,
        inner: Arc<dyn Fetcher>,
        key: Key,
        request: ReadRequest,
        largest: u64,
    ) -> Result<Self> {
        if let Some(end) = request.end {
            range_len(&key, &(request.start..end))?;
        }
        shared.counts.reads.add(1);
        let persistence = Persistence::new(Arc::clone(&shared));
        Ok(Reading {
            shared,
            inner,
            key,
            next: request.start,
            end: request.end,
            size: None,
            version: request.version.clone(),
            request,
            opened: None,
            has_opened: false,
            persistence,
            progress: 0,
            handed_on: false,
            largest,
            done: false,
        })
    }

    /// The length of the whole object and its version, as far as they are known.
    pub(super) fn told(&self) -> (Option<u64>, Option<Arc<str>>) {
        (self.size, self.version.clone())
    }

    /// All that was asked for.
    pub(super) async fn all(mut self) -> Result<Bytes> {
        let mut joined = JoinedPieces::default();
        loop {
            match self.attempt().await {
                Ok(Some(piece)) => {
                    joined.expect(self.end.map_or(0, |end| end - self.request.start));
                    joined.push(piece);
                    let all = joined.len() as u64;
                    check_limit(&self.key, all, self.largest)
                        .map_err(|error| self.refuse(error))?;
                }
                Ok(None) => return Ok(joined.finish()),
                Err(failure) => {
                    let before = self.next;
                    self.recover(failure).await?;
                    if self.next < before {
                        joined = JoinedPieces::default();
                    }
                }
            }
        }
    }

    /// The next piece; what was handed on stays.
    pub(super) async fn piece(mut self) -> Result<Option<(Bytes, Self)>> {
        if !self.persistence.is_failing() {
            // The time until somebody asks for a piece is not the store's.
            self.persistence.got_on();
        }
        loop {
            match self.attempt().await {
                Ok(Some(piece)) => {
                    self.handed_on = true;
                    return Ok(Some((piece, self)));
                }
                Ok(None) => return Ok(None),
                Err(failure) => self.recover(failure).await?,
            }
        }
    }

    /// Waits until the first attempt has begun that does not fail at once.
    pub(super) async fn begin(&mut self) -> Result<()> {
        while self.opened.is_none() {
            if let Err(failure) = self.open().await {
                self.recover(failure).await?;
            }
        }
        Ok(())
    }

    /// Gets the next piece of the attempt under way, or begins one.
    async fn attempt(&mut self) -> Result<Option<Bytes>, Failure> {
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
                    Some(end) if self.next < end => Err(Failure::Again(self.broken(end))),
                    _ => Ok(self.finish()),
                };
            };
            let piece = piece.map_err(|error| self.judge_body(error))?;
            let after = self.next.saturating_add(piece.len() as u64);
            if let Some(end) = self.end {
                let excess = after > end
                    || after == end && pending_bytes(&mut opened.body).is_some_and(|more| more > 0);
                if excess {
                    return Err(Failure::Anew(self.too_long(end)));
                }
            }
            self.count(piece.len() as u64);
            self.next = after;
            if self.end != Some(after) {
                self.opened = Some(opened);
            } else {
                self.finish();
            }
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
            if self.done {
                return Ok(None);
            }
        }
    }

    fn finish(&mut self) -> Option<Bytes> {
        self.done = true;
        self.shared.load().succeeded();
        None
    }

    fn count(&mut self, bytes: u64) {
        self.shared.counts.bytes.add(bytes);
        self.progress += bytes;
        if !self.persistence.is_failing() || self.progress >= PROGRESS {
            self.persistence.got_on();
        }
    }

    /// Waits for the next piece, no longer than a stalled one may take.
    async fn next_piece(
        &mut self,
        opened: &mut Opened,
    ) -> std::result::Result<Option<Result<Bytes>>, Failure> {
        if let Some(first) = opened.first.take() {
            return Ok(first);
        }
        let options = &self.shared.options;
        let patience = options.stall_timeout.saturating_sub(opened.waited);
        let before = self.shared.clock.now();
        let sleep = self.shared.clock.sleep(patience.min(self.persistence.time_left()));
        let piece = match select(opened.body.pieces.next(), sleep).await {
            Either::Left((piece, _)) => piece,
            Either::Right(_) => return Err(Failure::Again(self.stalled(opened.meanwhile))),
        };
        opened.waited += self.shared.clock.now().saturating_duration_since(before);
        if let Some(Ok(piece)) = &piece {
            opened.meanwhile += piece.len() as u64;
            if opened.meanwhile >= options.least_bytes {
                opened.waited = Duration::ZERO;
                opened.meanwhile = 0;
            }
        }
        Ok(piece)
    }

    /// Begins an attempt at what is still missing.
    async fn open(&mut self) -> Result<(), Failure> {
        let resumed = self.next > self.request.start;
        let request = ReadRequest {
            start: self.next,
            // The end is asked for only where it was named: what a store said of the size may be
            // the very thing that is wrong.
            end: self.request.end,
            version: self.version.clone().filter(|_| self.inner.capability().versions),
            first_byte: None,
        };
        let opened = self.race(request).await.map_err(|error| {
            // What is past the end for one answer was the middle of the object for another.
            if resumed && error.kind() == ErrorKind::Truncated {
                Failure::Anew(error)
            } else if may_pass(&error) {
                Failure::Again(error)
            } else {
                Failure::Final(error)
            }
        })?;
        self.shared.contact.answered();
        let body = &opened.body;
        if self.has_opened || self.request.version.is_some() {
            let known = self.version.as_ref().filter(|_| self.inner.capability().versions);
            if let Err(error) = check_version(&self.key, known, body.version.as_ref()) {
                return Err(Failure::Final(error));
            }
        }
        if let (Some(known), Some(told)) = (self.size, body.size)
            && known != told
        {
            let message = format!("the store said {known} bytes, and then {told}");
            return Err(Failure::Anew(Error::new(ErrorKind::Corrupt, message)));
        }
        if self.request.end.is_none()
            && let Some(size) = body.size
        {
            if self.request.start == 0 {
                check_limit(&self.key, size, self.largest).map_err(Failure::Final)?;
            }
            self.end = Some(size);
        }
        self.size = self.size.or(body.size);
        self.version = self.version.take().or_else(|| body.version.clone());
        if resumed {
            self.shared.counts.resumed.add(1);
        }
        self.has_opened = true;
        self.opened = Some(opened);
        Ok(())
    }

    /// Sends a request, and another one where it is late, and once more where that one is, too; the
    /// first to bring a byte is taken.
    async fn race(&mut self, request: ReadRequest) -> Result<Opened> {
        let (shared, inner, key) =
            (Arc::clone(&self.shared), Arc::clone(&self.inner), self.key.clone());
        let Shared { options, clock, counts, .. } = &*shared;
        let send = |is_hedge| {
            counts.requests.add(1);
            let first_byte = Arc::<FirstByte>::default();
            let told = Some(Arc::clone(&first_byte));
            let request = ReadRequest { first_byte: told, ..request.clone() };
            let answer = send(Arc::clone(&inner), key.clone(), request);
            Sent { answer, first_byte, is_hedge }
        };
        let began = clock.now();
        let patience = options.stall_timeout.min(self.persistence.time_left());
        let mut hedge_delay = shared.load().begin();
        let mut stall = clock.sleep(patience);
        // Where nothing is known yet, the first answers to others tell.
        let mut late_in = (options.hedge_share > 0.0)
            .then(|| hedge_delay.unwrap_or(FIRST_LOOK))
            .filter(|delay| *delay < patience)
            .map(|delay| clock.sleep(delay));
        let mut is_late = false;
        let mut sent = vec![send(false)];
        let mut hedges = 0;
        let mut failed = None;
        let opened = poll_fn(|cx| {
            loop {
                let mut place = 0;
                while let Some(Sent { answer, first_byte, is_hedge }) = sent.get_mut(place) {
                    match answer.poll_unpin(cx) {
                        Poll::Pending => place += 1,
                        Poll::Ready(Ok(opened)) => {
                            counts.hedges_won.add(u64::from(*is_hedge));
                            return Poll::Ready(Ok((opened, first_byte.time())));
                        }
                        Poll::Ready(Err(error)) => {
                            failed.get_or_insert(error);
                            drop(sent.remove(place));
                        }
                    }
                }
                if sent.is_empty() || stall.poll_unpin(cx).is_ready() {
                    return Poll::Ready(Err(failed.take().unwrap_or_else(|| no_answer(patience))));
                }
                let Some(timer) = &mut late_in else { return Poll::Pending };
                if timer.poll_unpin(cx).is_pending() {
                    return Poll::Pending;
                }
                late_in = None;
                if sent.iter().any(|sent| sent.first_byte.time().is_some()) {
                    // The answer has begun, and only its bytes are still gathered.
                    return Poll::Pending;
                }
                let mut load = shared.load();
                let Some(delay) = hedge_delay else {
                    hedge_delay = load.hedge_delay();
                    let waited = clock.now().saturating_duration_since(began);
                    let rest = hedge_delay.map_or(FIRST_LOOK, |it| it.saturating_sub(waited));
                    late_in = (waited + rest < patience).then(|| clock.sleep(rest));
                    continue;
                };
                if !is_late {
                    is_late = true;
                    load.late();
                }
                if load.take_hedge() {
                    counts.hedges.add(1);
                    hedges += 1;
                    sent.push(send(true));
                    // That one may be lost, too.
                    late_in = (hedges < MOST_HEDGES).then(|| clock.sleep(delay));
                } else {
                    // There may be a token for it later.
                    late_in = Some(clock.sleep(delay.max(LEAST_WAIT)));
                }
            }
        })
        .await;
        match opened {
            Ok((opened, first_byte)) => {
                let came = first_byte.unwrap_or_else(|| clock.now());
                shared.load().first_byte(came.saturating_duration_since(began), is_late);
                Ok(opened)
            }
            Err(error) => {
                counts.stalls.add(u64::from(error.kind() == ErrorKind::Timeout));
                Err(error)
            }
        }
    }

    /// Makes ready for another attempt.
    ///
    /// # Errors
    /// The last word, where there is none.
    async fn recover(&mut self, failure: Failure) -> Result<()> {
        self.opened = None;
        self.progress = 0;
        let (error, anew) = match failure {
            Failure::Final(error) => return Err(self.refuse(error)),
            Failure::Again(error) => (error, false),
            Failure::Anew(error) => (error, true),
        };
        let capability = self.inner.capability();
        // Without versions two objects might be joined into one that never was.
        let resumes = capability.ranges && capability.versions && self.version.is_some();
        if anew || self.next > self.request.start && !resumes {
            if self.handed_on {
                return Err(self.refuse(error));
            }
            self.shared.counts.wasted_bytes.add(self.next - self.request.start);
            self.next = self.request.start;
            self.end = self.request.end;
            self.size = None;
        }
        self.persistence.try_again(&self.key, error).await
    }

    fn refuse(&mut self, error: Error) -> Error {
        self.done = true;
        if error.kind() == ErrorKind::Changed {
            self.shared.counts.changed.add(1);
        }
        let fresh = Persistence::new(Arc::clone(&self.shared));
        std::mem::replace(&mut self.persistence, fresh).end(&self.key, error)
    }

    /// What an error in the middle of a body means: a broken connection, whatever its kind.
    fn judge_body(&self, error: Error) -> Failure {
        let broken = matches!(error.kind(), ErrorKind::Truncated | ErrorKind::Io);
        if !error.is_fatal() && (broken || may_pass(&error)) {
            Failure::Again(error)
        } else {
            Failure::Final(error)
        }
    }

    fn broken(&self, end: u64) -> Error {
        let message = format!("the body ended before byte {end}");
        Error::new(ErrorKind::Truncated, message).with_offset(self.next)
    }

    fn too_long(&self, end: u64) -> Error {
        let message = "the body goes on behind its end";
        Error::new(ErrorKind::Corrupt, message).with_offset(end)
    }

    fn stalled(&self, meanwhile: u64) -> Error {
        self.shared.counts.stalls.add(1);
        let message = format!(
            "the body stalled: {meanwhile} bytes in {:.1} s",
            self.shared.options.stall_timeout.as_secs_f64()
        );
        Error::new(ErrorKind::Timeout, message).with_offset(self.next)
    }
}

/// A request under way.
struct Sent {
    answer: BoxFuture<'static, Result<Opened>>,
    first_byte: Arc<FirstByte>,
    is_hedge: bool,
}

/// So many more requests for one read, at most, while none has been answered.
const MOST_HEDGES: u32 = 2;

/// One request, up to the first piece of its body.
fn send(
    inner: Arc<dyn Fetcher>,
    key: Key,
    request: ReadRequest,
) -> BoxFuture<'static, Result<Opened>> {
    Box::pin(async move {
        let mut body = inner.open(&key, &request).await?;
        // An error of the body is judged with what is known of the body.
        let first = Some(body.pieces.next().await);
        Ok(Opened { body, first, waited: Duration::ZERO, meanwhile: 0 })
    })
}

fn no_answer(patience: Duration) -> Error {
    let message = format!("no answer in {:.1} s", patience.as_secs_f64());
    Error::new(ErrorKind::Timeout, message).with_source(Unreached::Otherwise)
}

/// Between two looks at how long answers take, where that is not known yet.
const FIRST_LOOK: Duration = Duration::from_millis(100);

/// Between two looks for a token.
const LEAST_WAIT: Duration = Duration::from_millis(1);

/// How many further bytes are there already, without a wait; `None` at the end and where it is not
/// known yet.
fn pending_bytes(body: &mut Body) -> Option<usize> {
    match body.pieces.next().now_or_never() {
        Some(Some(Ok(more))) => Some(more.len()),
        _ => None,
    }
}
