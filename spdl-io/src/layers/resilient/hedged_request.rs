//! One request, which is hedged if its response is late.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use spdl_core::{BoxFuture, Error, ErrorKind, Result};

use super::ResilientState;
use super::reading::OpenResponse;
use crate::fetch::{Fetcher, Key, ReadRequest, RequestTimes, Unreached};

/// Maximum number of hedged requests for one response, and for slow bodies of one read.
pub(super) const MAX_HEDGES: u32 = 2;

/// Interval of checks for known latencies.
const LATENCY_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Minimum interval of checks for a hedge token.
const MIN_TOKEN_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// A request, and up to two hedged requests if it is late. The first response is used.
pub(super) struct HedgedRequest<'a> {
    state: &'a ResilientState,
    inner: Arc<dyn Fetcher>,
    key: Key,
    request: ReadRequest,
    began: Instant,
    /// The longest wait for a response, without the wait for a connection.
    timeout: Duration,
    in_flight: Vec<InFlightRequest>,
    times_of_first: Arc<RequestTimes>,
    /// The error of the first request that failed.
    failed: Option<Error>,
    stall_timer: BoxFuture<'static, ()>,
    hedge_timer: Option<BoxFuture<'static, ()>>,
    /// How late a response is before a hedged request is sent; `None` if too few latencies are known.
    hedge_delay: Option<Duration>,
    hedges: u32,
    is_late: bool,
}

struct InFlightRequest {
    response: BoxFuture<'static, Result<OpenResponse>>,
    times: Arc<RequestTimes>,
    is_hedge: bool,
}

impl<'a> HedgedRequest<'a> {
    /// Sends the request.
    pub(super) fn send(
        state: &'a ResilientState,
        inner: Arc<dyn Fetcher>,
        key: Key,
        request: ReadRequest,
        timeout: Duration,
    ) -> Self {
        let hedge_delay = state.limits().begin();
        // If too few latencies are known yet, checks again later.
        let hedge_timer = (state.options.hedge_share > 0.0)
            .then(|| hedge_delay.unwrap_or(LATENCY_CHECK_INTERVAL))
            .filter(|delay| *delay < timeout)
            .map(|delay| state.clock.sleep(delay));
        let mut sent = HedgedRequest {
            state,
            inner,
            key,
            request,
            began: state.clock.now(),
            timeout,
            in_flight: Vec::new(),
            times_of_first: Arc::default(),
            failed: None,
            stall_timer: state.clock.sleep(timeout),
            hedge_timer,
            hedge_delay,
            hedges: 0,
            is_late: false,
        };
        sent.send_one(Arc::clone(&sent.times_of_first), false);
        sent
    }

    fn send_one(&mut self, times: Arc<RequestTimes>, is_hedge: bool) {
        self.state.counts.requests.add(1);
        let request = ReadRequest { times: Some(Arc::clone(&times)), ..self.request.clone() };
        let response = OpenResponse::request(Arc::clone(&self.inner), self.key.clone(), request);
        self.in_flight.push(InFlightRequest { response, times, is_hedge });
    }

    /// Returns how long the first request has waited for one of a limited number of connections.
    pub(super) fn waited_to_send(&self) -> Duration {
        let sent = self.times_of_first.sent_since(self.began);
        sent.unwrap_or_else(|| self.state.clock.now()).saturating_duration_since(self.began)
    }

    /// Polls the requests and the timers. Returns the first response, or an error if all requests
    /// failed or none has a response in time.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<OpenResponse>> {
        loop {
            if let Some(response) = self.poll_responses(cx) {
                return Poll::Ready(Ok(response));
            }
            if self.in_flight.is_empty() {
                return Poll::Ready(Err(self.error()));
            }
            let waited = self.waited();
            if self.stall_timer.poll_unpin(cx).is_ready() {
                let rest = self.timeout.saturating_sub(waited.unwrap_or_default());
                if rest.is_zero() {
                    return Poll::Ready(Err(self.error()));
                }
                self.stall_timer = self.state.clock.sleep(rest);
                continue;
            }
            let Some(timer) = &mut self.hedge_timer else { return Poll::Pending };
            ready!(timer.poll_unpin(cx));
            self.hedge_timer = self.hedge(waited).map(|delay| self.state.clock.sleep(delay));
        }
    }

    fn poll_responses(&mut self, cx: &mut Context<'_>) -> Option<OpenResponse> {
        let mut index = 0;
        while let Some(InFlightRequest { response, times, is_hedge }) =
            self.in_flight.get_mut(index)
        {
            match response.poll_unpin(cx) {
                Poll::Pending => index += 1,
                Poll::Ready(Ok(response)) => {
                    let ResilientState { counts, clock, .. } = self.state;
                    counts.hedges_won.add(u64::from(*is_hedge));
                    let arrived = times.first_byte().unwrap_or_else(|| clock.now());
                    let sent = times.sent_since(self.began).unwrap_or(self.began);
                    let latency = arrived.saturating_duration_since(sent);
                    self.state.limits().first_byte(latency, self.is_late);
                    return Some(response);
                }
                Poll::Ready(Err(error)) => {
                    self.failed.get_or_insert(error);
                    drop(self.in_flight.remove(index));
                }
            }
        }
        None
    }

    /// Returns the time since a request was sent; `None` if all wait for a connection.
    fn waited(&self) -> Option<Duration> {
        let sent = self.in_flight.iter().filter_map(|it| it.times.sent_since(self.began)).min()?;
        Some(self.state.clock.now().saturating_duration_since(sent))
    }

    /// Sends a hedged request, if the response is late and there is a token. Returns when to check
    /// again.
    fn hedge(&mut self, waited: Option<Duration>) -> Option<Duration> {
        if self.in_flight.iter().any(|sent| sent.times.first_byte().is_some()) {
            // The response has begun. The fetcher is buffering its first chunk.
            return None;
        }
        let usual = self.hedge_delay.unwrap_or(LATENCY_CHECK_INTERVAL);
        let waited = waited.unwrap_or_default();
        if self.hedges == 0 && waited < usual {
            return Some(usual - waited);
        }
        let mut limits = self.state.limits();
        let Some(delay) = self.hedge_delay else {
            self.hedge_delay = limits.hedge_delay();
            let rest = self.hedge_delay.map_or(usual, |delay| delay.saturating_sub(waited));
            return (waited + rest < self.timeout).then_some(rest);
        };
        if !self.is_late {
            self.is_late = true;
            limits.late();
        }
        if !limits.take_hedge() {
            // Waits for a hedge token.
            return Some(delay.max(MIN_TOKEN_CHECK_INTERVAL));
        }
        drop(limits);
        self.state.counts.hedges.add(1);
        self.hedges += 1;
        self.send_one(Arc::default(), true);
        // The hedged request may receive no response either.
        (self.hedges < MAX_HEDGES).then_some(delay)
    }

    fn error(&mut self) -> Error {
        let error = self.failed.take().unwrap_or_else(|| {
            let message = format!("no response within {:.1} s", self.timeout.as_secs_f64());
            Error::new(ErrorKind::Timeout, message).with_source(Unreached::Otherwise)
        });
        self.state.counts.stalls.add(u64::from(error.kind() == ErrorKind::Timeout));
        error
    }
}
