//! What goes wrong, and when: a pure function of the request and how often it came.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use twox_hash::XxHash3_128;

/// One way for an answer to go wrong.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The connection ends before the answer.
    Closed,
    /// The connection is reset before the answer.
    Reset,
    /// No answer ever comes.
    NoAnswer,
    /// What comes is no HTTP.
    Garbage,
    /// The answer has a header that cannot be.
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
    /// The connection ends in the middle of the body.
    ClosedInBody,
    /// The connection is reset in the middle of the body.
    ResetInBody,
    /// The body stops in its middle, and the connection stays.
    StalledBody,
    /// The body comes byte by byte, one every 20 ms.
    Trickle,
    /// The answer announces more bytes than come.
    LongLength,
    /// Of a range, fewer bytes come than are there, as the answer says. Other requests are answered
    /// well.
    ShortRange,
    /// Of a range, others come, as the answer says. Other requests are answered well.
    OtherRange,
    /// Instead of a range, the whole object comes. Other requests are answered well.
    IgnoredRange,
    /// Behind the end of the body, its last bytes come again.
    RepeatedBytes,
    /// The bytes are right, but the answer names another version.
    OtherVersion,
    /// The answer says that its body is compressed, which it is not.
    WrongEncoding,
    /// The client is sent elsewhere, where all is well.
    Redirect,
}

impl Fault {
    /// All there are.
    pub const ALL: [Fault; 22] = [
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
    ];
}

/// What is known of a request when it is decided how it goes wrong.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultyRequest {
    /// `GET` or `HEAD`.
    pub method: String,
    /// The path without its first `/`, decoded: the name of an object, or of the bucket that is
    /// listed.
    pub key: String,
    /// The value of the header `Range`; empty without.
    pub range: String,
    /// How often just this was asked for, this time included; since the plan was set.
    pub attempt: u32,
}

type Script = dyn Fn(&FaultyRequest) -> Option<Fault> + Send + Sync;

/// Which requests go wrong, and how: the same requests always do in the same way.
#[derive(Clone)]
pub struct FaultPlan {
    script: Arc<Script>,
    pub(super) latency: Duration,
    pub(super) retry_after: Duration,
}

impl FaultPlan {
    /// Nothing goes wrong.
    pub fn none() -> Self {
        FaultPlan::script(|_| None)
    }

    /// Of all requests so large a share goes wrong, in 0..=1, each in one of these ways; which, is
    /// drawn from the seed, the key, the range and the attempt.
    pub fn random(seed: u64, share: f64, faults: &[Fault]) -> Self {
        let faults = faults.to_vec();
        FaultPlan::script(move |request| {
            let FaultyRequest { method, key, range, attempt } = request;
            let text = format!("{method}\n{key}\n{range}\n{attempt}");
            let hash = XxHash3_128::oneshot_with_seed(seed, text.as_bytes());
            let unit = (hash as u64 >> 11) as f64 / (1_u64 << 53) as f64;
            let place = (hash >> 64) as usize % faults.len().max(1);
            if unit < share { faults.get(place).copied() } else { None }
        })
    }

    /// Each request goes wrong as the function says.
    pub fn script(
        script: impl Fn(&FaultyRequest) -> Option<Fault> + Send + Sync + 'static,
    ) -> Self {
        FaultPlan {
            script: Arc::new(script),
            latency: Duration::ZERO,
            retry_after: Duration::from_secs(1),
        }
    }

    /// Every answer comes so much later. Default: 0.
    #[must_use]
    pub fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// What [`Fault::Unavailable`] and [`Fault::TooManyRequests`] ask to wait, in whole seconds.
    /// Default: 1 s.
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
        f.debug_struct("FaultPlan").field("latency", &self.latency).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_the_same_each_time_and_as_many_as_was_asked_for() {
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
