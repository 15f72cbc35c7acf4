//! Faults, and the plan that assigns them to requests.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use twox_hash::XxHash3_128;

/// A fault of a response.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Closes the connection before the response.
    Closed,
    /// Resets the connection before the response.
    Reset,
    /// Never responds.
    NoAnswer,
    /// Sends bytes that are not HTTP.
    Garbage,
    /// Sends an invalid `Content-Length` header.
    GarbageHeader,
    /// Status 500.
    InternalError,
    /// Status 502.
    BadGateway,
    /// Status 503, with `Retry-After`.
    Unavailable,
    /// Status 429, with `Retry-After`.
    TooManyRequests,
    /// Status 408.
    RequestTimeout,
    /// Closes the connection half way through the body.
    ClosedInBody,
    /// Resets the connection half way through the body.
    ResetInBody,
    /// Stops half way through the body, and keeps the connection open.
    StalledBody,
    /// Sends the body byte by byte, one every 20 ms.
    Trickle,
    /// Sends a `Content-Length` that is 10 bytes longer than the body, and then closes the
    /// connection.
    LongLength,
    /// Answers a range request with a shorter range, and a matching `Content-Range`. Other requests
    /// succeed.
    ShortRange,
    /// Answers a range request with another range, and a matching `Content-Range`. Other requests
    /// succeed.
    OtherRange,
    /// Answers a range request with the whole object. Other requests succeed.
    IgnoredRange,
    /// Sends the last bytes of the body, up to 100, a second time after its end.
    RepeatedBytes,
    /// Sends the right bytes with another `ETag`.
    OtherVersion,
    /// Declares a compressed body (`Content-Encoding`) that is not compressed.
    WrongEncoding,
    /// Redirects to a URL that responds correctly.
    Redirect,
    /// Status 504.
    GatewayTimeout,
    /// Status 503, without `Retry-After`.
    UnavailableWithoutDelay,
    /// Status 503, with a date in `Retry-After`.
    UnavailableUntil,
    /// Status 503, with the largest 64-bit number of seconds in `Retry-After`.
    UnavailableForAges,
    /// Status 404.
    NotFound,
    /// Status 403.
    Forbidden,
    /// Redirects to the same URL.
    RedirectLoop,
    /// Redirects to a URL of another host name, which responds correctly.
    RedirectToOtherHost,
    /// Redirects to a port that refuses connections.
    RedirectToClosedPort,
    /// Closes the connection between head and body.
    ClosedAfterHead,
    /// Sends a `Content-Length` that is up to 10 bytes shorter than the body.
    ShortLength,
    /// Sends a body without `Content-Length` that ends when the connection is closed.
    NoLength,
    /// Sends two different `Content-Length` headers.
    TwoLengths,
    /// Sends a `Content-Range` with another size of the object. Responses without `Content-Range`
    /// are correct.
    OtherSize,
    /// Status 200 with a web page.
    WebPage,
    /// Sends neither `ETag` nor `Last-Modified`.
    NoVersion,
    /// Sends other bytes with another `ETag`: the object was replaced.
    OtherContent,
    /// Sends the response, head included, byte by byte, one every 20 ms.
    SlowHead,
    /// Sends 2,000 headers that have no meaning.
    HeaderFlood,
    /// Sends a status line without a number.
    GarbageStatus,
    /// Responds correctly by HTTP/1.0, and closes the connection.
    OldProtocol,
    /// Sends some interim responses (100 and 103) before the correct one.
    InterimResponses,
    /// Sends interim responses only, one every 5 ms.
    EndlessInterim,
    /// Status 200 with an empty body.
    EmptyBody,
    /// Status 204.
    NoContent,
    /// Responds correctly in chunks.
    Chunked,
    /// Responds in chunks, and closes the connection before the last one.
    TruncatedChunks,
    /// Responds in chunks, the second one with an invalid size.
    GarbageChunk,
    /// Inverts one bit of the body. A whole object is sent with its checksum
    /// (`x-amz-checksum-crc32c`).
    FlippedBit,
}

impl Fault {
    /// All faults.
    pub const ALL: [Fault; 51] = [
        Fault::Closed,
        Fault::Reset,
        Fault::NoAnswer,
        Fault::Garbage,
        Fault::GarbageHeader,
        Fault::InternalError,
        Fault::BadGateway,
        Fault::Unavailable,
        Fault::TooManyRequests,
        Fault::RequestTimeout,
        Fault::ClosedInBody,
        Fault::ResetInBody,
        Fault::StalledBody,
        Fault::Trickle,
        Fault::LongLength,
        Fault::ShortRange,
        Fault::OtherRange,
        Fault::IgnoredRange,
        Fault::RepeatedBytes,
        Fault::OtherVersion,
        Fault::WrongEncoding,
        Fault::Redirect,
        Fault::GatewayTimeout,
        Fault::UnavailableWithoutDelay,
        Fault::UnavailableUntil,
        Fault::UnavailableForAges,
        Fault::NotFound,
        Fault::Forbidden,
        Fault::RedirectLoop,
        Fault::RedirectToOtherHost,
        Fault::RedirectToClosedPort,
        Fault::ClosedAfterHead,
        Fault::ShortLength,
        Fault::NoLength,
        Fault::TwoLengths,
        Fault::OtherSize,
        Fault::WebPage,
        Fault::NoVersion,
        Fault::OtherContent,
        Fault::SlowHead,
        Fault::HeaderFlood,
        Fault::GarbageStatus,
        Fault::OldProtocol,
        Fault::InterimResponses,
        Fault::EndlessInterim,
        Fault::EmptyBody,
        Fault::NoContent,
        Fault::Chunked,
        Fault::TruncatedChunks,
        Fault::GarbageChunk,
        Fault::FlippedBit,
    ];
}

/// The properties of a request that determine its fault.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultyRequest {
    /// `GET` or `HEAD`.
    pub method: String,
    /// The decoded path without its leading `/`: the name of an object, or of a listed bucket.
    pub key: String,
    /// Value of the header `Range`. Empty if absent.
    pub range: String,
    /// Number of requests with the same method, key and range since the plan was set, including
    /// this one.
    pub attempt: u32,
}

type FaultScript = dyn Fn(&FaultyRequest) -> Option<Fault> + Send + Sync;

/// Assigns faults to requests. Equal sequences of requests have equal faults.
#[derive(Clone)]
pub struct FaultPlan {
    script: Arc<FaultScript>,
    pub(super) latency: Duration,
    /// In bytes per second.
    pub(super) bandwidth: Option<f64>,
    pub(super) retry_after: Duration,
}

impl FaultPlan {
    /// Creates a plan without faults.
    pub fn none() -> Self {
        FaultPlan::script(|_| None)
    }

    /// Creates a plan in which a fraction `share` of all requests, from 0 to 1, has one of
    /// `faults`.
    ///
    /// Faults are drawn from a hash of the seed, method, key, range and attempt.
    pub fn random(seed: u64, share: f64, faults: &[Fault]) -> Self {
        let faults = faults.to_vec();
        FaultPlan::script(move |request| {
            let FaultyRequest { method, key, range, attempt } = request;
            let text = format!("{method}\n{key}\n{range}\n{attempt}");
            let hash = XxHash3_128::oneshot_with_seed(seed, text.as_bytes());
            let unit = (hash as u64 >> 11) as f64 / (1_u64 << 53) as f64;
            let index = (hash >> 64) as usize % faults.len().max(1);
            if unit < share { faults.get(index).copied() } else { None }
        })
    }

    /// Creates a plan from a function of the request.
    pub fn script(
        script: impl Fn(&FaultyRequest) -> Option<Fault> + Send + Sync + 'static,
    ) -> Self {
        FaultPlan {
            script: Arc::new(script),
            latency: Duration::ZERO,
            bandwidth: None,
            retry_after: Duration::from_secs(1),
        }
    }

    /// Sets a delay before each response. Default: 0.
    #[must_use]
    pub fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Limits the bytes per second of all response bodies together. Default: unlimited.
    #[must_use]
    pub fn bandwidth(mut self, bytes_per_s: f64) -> Self {
        self.bandwidth = Some(bytes_per_s);
        self
    }

    /// Sets the `Retry-After` of [`Fault::Unavailable`], [`Fault::UnavailableUntil`] and
    /// [`Fault::TooManyRequests`], rounded down to whole seconds. Default: 1 s.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = delay;
        self
    }

    pub(super) fn decide(&self, request: &FaultyRequest) -> Option<Fault> {
        (self.script)(request)
    }
}

impl fmt::Debug for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultPlan")
            .field("latency", &self.latency)
            .field("bandwidth", &self.bandwidth)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_faults_are_reproducible_and_have_the_requested_share() {
        let decide = |seed, key: usize, attempt| {
            FaultPlan::random(seed, 0.1, &Fault::ALL).decide(&FaultyRequest {
                method: "GET".into(),
                key: key.to_string(),
                range: String::new(),
                attempt,
            })
        };
        let faults: Vec<_> = (0..10_000).map(|key| decide(1, key, 1)).collect();
        assert_eq!(faults, (0..10_000).map(|key| decide(1, key, 1)).collect::<Vec<_>>());
        assert_ne!(faults, (0..10_000).map(|key| decide(2, key, 1)).collect::<Vec<_>>());
        assert_ne!(faults, (0..10_000).map(|key| decide(1, key, 2)).collect::<Vec<_>>());
        let count = faults.iter().flatten().count();
        assert!((900..1100).contains(&count), "{count}");
        for fault in Fault::ALL {
            assert!(faults.contains(&Some(fault)), "{fault:?} never happens");
        }
    }
}
