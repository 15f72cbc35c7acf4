//! [`Retry`] and [`Retried`]: repeated attempts after transient failures.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};
use crate::source::random::SampleRng;
use crate::stage::{AsyncContext, AsyncStage, Medium, Stage, StageContext};
use crate::sync::Counter;

/// Separates the random numbers of the delays from the random numbers of the stage.
const PURPOSE: &str = "/retry";

/// Retry settings: the number of attempts, and the delays between them.
///
/// [`Retried`] applies these settings to a stage. An item is retried only after a transient failure
/// ([`ErrorKind::is_transient`]), such as an overloaded server or a timeout. All other failures are
/// final.
///
/// After failed attempt number *n*, counted from 1, the delay is
/// *d* = min(`first_delay` × `factor`^(*n* − 1), `most_delay`), multiplied by a random number in
/// (1 − `jitter`, 1]. Jitter spreads the requests of clients that failed at the same time. The
/// random numbers depend on the pipeline's seed, the sample and the stage, so delays are
/// reproducible.
///
/// # Retries of reads
/// The fetcher `Resilient` of the crate `spdl-io` retries reads from a store itself. It also
/// resumes interrupted bodies, hedges slow requests and follows `Retry-After`. Use `Resilient` for
/// reads, and `Retried` for other stages, such as calls of a service. If both retry the same
/// operation, their numbers of attempts multiply.
///
/// ```
/// use std::time::Duration;
/// use spdl_core::Retry;
/// let retry = Retry::default().attempts(10).most_delay(Duration::from_secs(60));
/// retry.validate()?;
/// assert_eq!(retry.to_string(), "10 attempts, waits of 50ms × 2 up to 60s, jitter 0.5");
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Retry {
    attempts: u32,
    #[cfg_attr(feature = "serde", serde(rename = "first_delay_s", with = "crate::seconds"))]
    first_delay: Duration,
    factor: f64,
    #[cfg_attr(feature = "serde", serde(rename = "most_delay_s", with = "crate::seconds"))]
    most_delay: Duration,
    jitter: f64,
}

impl Default for Retry {
    /// 3 attempts: a delay of 25 to 50 ms after the first, and of 50 to 100 ms after the second.
    fn default() -> Self {
        Retry {
            attempts: 3,
            first_delay: Duration::from_millis(50),
            factor: 2.0,
            most_delay: Duration::from_secs(5),
            jitter: 0.5,
        }
    }
}

impl Retry {
    /// Maximum number of attempts per item, including the first; at least 1. Default: 3.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// The delay after the first failure, before jitter. Default: 50 ms.
    #[must_use]
    pub fn first_delay(mut self, delay: Duration) -> Self {
        self.first_delay = delay;
        self
    }

    /// The ratio of each delay to the previous delay; finite, at least 1. Default: 2.
    #[must_use]
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// The longest delay, at least `first_delay`. Default: 5 s.
    #[must_use]
    pub fn most_delay(mut self, delay: Duration) -> Self {
        self.most_delay = delay;
        self
    }

    /// The share of a delay that is random, in 0..=1. Default: 0.5.
    #[must_use]
    pub fn jitter(mut self, share: f64) -> Self {
        self.jitter = share;
        self
    }

    /// Checks the settings. [`Retried::new`] calls `validate`.
    ///
    /// # Errors
    /// `InvalidArgument` if `attempts` is 0, `factor` is not finite or below 1, `first_delay` exceeds
    /// `most_delay`, or `jitter` is outside 0..=1.
    pub fn validate(&self) -> Result<()> {
        let message = if self.attempts == 0 {
            "attempts is 0; it must be at least 1".to_owned()
        } else if !(self.factor.is_finite() && self.factor >= 1.0) {
            format!("factor is {}; it must be finite and at least 1", self.factor)
        } else if self.first_delay > self.most_delay {
            let (first, most) = (self.first_delay, self.most_delay);
            format!("first_delay is {first:?}; it must not exceed most_delay, {most:?}")
        } else if !(0.0..=1.0).contains(&self.jitter) {
            format!("jitter is {}; it must be in 0..=1", self.jitter)
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidArgument, format!("retry: {message}")))
    }

    /// The delay after failure number `failures`, counted from 1.
    fn delay(&self, failures: u32, rng: &mut SampleRng) -> Duration {
        let most = self.most_delay.as_secs_f64();
        let exponent = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
        // `min` replaces an infinite power, so that a first delay of 0 stays 0.
        let power = self.factor.powi(exponent).min(f64::MAX);
        let full = (self.first_delay.as_secs_f64() * power).min(most);
        let delay = full * (1.0 - self.jitter * rng.unit());
        Duration::try_from_secs_f64(delay).map_or(self.most_delay, |it| it.min(self.most_delay))
    }
}

/// The attempts to process one item.
struct Attempts {
    retry: Retry,
    failures: u32,
    rng: Option<SampleRng>,
}

impl Attempts {
    fn new(retry: Retry) -> Self {
        Attempts { retry, failures: 0, rng: None }
    }

    /// Whether another attempt follows if the next attempt fails.
    fn may_fail(&self) -> bool {
        self.failures + 1 < self.retry.attempts
    }

    /// Returns the delay before the next attempt, or the error if it is not transient. Called only
    /// if another attempt may follow.
    fn failed(&mut self, error: Error, rng: impl FnOnce() -> SampleRng) -> Result<Duration> {
        if !error.kind().is_transient() {
            return Err(self.finally(error));
        }
        self.failures += 1;
        Ok(self.retry.delay(self.failures, self.rng.get_or_insert_with(rng)))
    }

    /// Adds the number of attempts to the last error, if there were several.
    fn finally(&self, error: Error) -> Error {
        match self.failures {
            0 => error,
            before => error.with_more(&format!(" (after {} attempts)", before + 1)),
        }
    }
}

impl fmt::Display for Retry {
    /// Omits the delays if there is only one attempt.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Retry { attempts, first_delay, factor, most_delay, jitter } = self;
        if *attempts == 1 {
            return f.write_str("1 attempt");
        }
        write!(f, "{attempts} attempts, waits of {first_delay:?} × {factor} up to {most_delay:?}")?;
        if *jitter > 0.0 {
            write!(f, ", jitter {jitter}")?;
        }
        Ok(())
    }
}

/// A [`Stage`] or an [`AsyncStage`] that retries each item according to a [`Retry`].
///
/// If all attempts fail, the item fails with the last error. If there were several attempts, the
/// message ends with their number. For reads from a store, use the fetcher `Resilient` of the crate
/// `spdl-io` instead: see [`Retry`].
///
/// * An [`AsyncStage`] waits on the pipeline's [`Runtime`](crate::Runtime). The item stays in flight.
/// * A [`Stage`] waits in its worker, which runs downstream stages meanwhile. Outputs of an attempt
///   are buffered until the attempt succeeds, so no output is emitted twice. Outputs of a failed
///   attempt are dropped. An attempt that fails should not change the stage's state.
///   [`finish`](Stage::finish) is not retried.
///
/// ```
/// use spdl_core::stage::Retried;
/// use spdl_core::{AsyncContext, AsyncStage, DatasetSource, Error, ErrorKind, PipelineBuilder};
/// use spdl_core::{Result, Retry, async_trait};
/// use std::sync::atomic::{AtomicU32, Ordering};
///
/// /// A server that is overloaded for the first call.
/// struct Server(AtomicU32);
/// #[async_trait]
/// impl AsyncStage<u32> for Server {
///     type Out = u32;
///     async fn process(&self, key: u32, _: &AsyncContext) -> Result<u32> {
///         match self.0.fetch_add(1, Ordering::Relaxed) {
///             0 => Err(Error::new(ErrorKind::Unavailable, "503 Service Unavailable")),
///             _ => Ok(key),
///         }
///     }
/// }
///
/// let stage = Retried::new(Server(AtomicU32::new(0)), Retry::default())?;
/// let retries = stage.retries();
/// let pipeline = PipelineBuilder::new(DatasetSource::new(vec![7]))
///     .async_stage("fetch", stage)
///     .build()?;
/// assert_eq!(pipeline.collect::<Result<Vec<_>>>()?, [7]);
/// assert_eq!(retries.get(), 1);
/// # Ok::<(), Error>(())
/// ```
///
/// Several workers use several instances of a [`Stage`]. All instances may share one counter:
///
/// ```
/// use spdl_core::observe::Counter;
/// use spdl_core::stage::{Retried, stage_fn};
/// use spdl_core::{DatasetSource, PipelineBuilder, Retry};
/// let retries = Counter::default();
/// let counter = retries.clone();
/// let pipeline = PipelineBuilder::new(DatasetSource::new(vec![1, 2]))
///     .stage("ask", move || {
///         let retried = Retried::new(stage_fn(|n: i32| Ok(n + 1)), Retry::default())?;
///         Ok(retried.count_retries(&counter))
///     })
///     .deterministic()
///     .build()?;
/// assert_eq!(pipeline.collect::<spdl_core::Result<Vec<_>>>()?, [2, 3]);
/// assert_eq!(retries.get(), 0);
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct Retried<S, Out = ()> {
    stage: S,
    retry: Retry,
    retries: Counter,
    /// Outputs of the current attempt of a [`Stage`].
    buffered: Vec<Out>,
}

impl<S, Out> Retried<S, Out> {
    /// Wraps `stage`, so that its items are retried according to `retry`.
    ///
    /// # Errors
    /// `InvalidArgument` if `retry` is invalid: see [`Retry::validate`].
    pub fn new(stage: S, retry: Retry) -> Result<Self> {
        retry.validate()?;
        Ok(Retried { stage, retry, retries: Counter::default(), buffered: Vec::new() })
    }

    /// Counts retries in `counter`, which several instances may share.
    #[must_use]
    pub fn count_retries(mut self, counter: &Counter) -> Self {
        self.retries = counter.clone();
        self
    }

    /// The counter of retries, which are all attempts except the first attempt for each item.
    pub fn retries(&self) -> Counter {
        self.retries.clone()
    }

    fn attempt<In>(&mut self, item: In, cx: &mut StageContext<'_, Out>) -> Result<()>
    where
        S: Stage<In, Out = Out>,
    {
        // Outputs of an attempt that failed or panicked are dropped.
        self.buffered.clear();
        cx.with_buffered_outputs(&mut self.buffered, |cx| self.stage.process(item, cx))
    }

    fn emit_buffered(&mut self, cx: &mut StageContext<'_, Out>) -> Result<()> {
        self.buffered.drain(..).try_for_each(|output| cx.emit(output))
    }
}

impl<S: fmt::Debug, Out> fmt::Debug for Retried<S, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retried")
            .field("stage", &self.stage)
            .field("retry", &self.retry)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl<In, S> AsyncStage<In> for Retried<S>
where
    In: Clone + Send + 'static,
    S: AsyncStage<In>,
{
    type Out = S::Out;

    async fn process(&self, item: In, cx: &AsyncContext) -> Result<S::Out> {
        let mut attempts = Attempts::new(self.retry);
        while attempts.may_fail() {
            let error = match self.stage.process(item.clone(), cx).await {
                Ok(output) => return Ok(output),
                Err(error) => error,
            };
            let delay = attempts.failed(error, || cx.rng_for(PURPOSE))?;
            self.retries.add(1);
            cx.retries.add(1);
            cx.runtime().sleep(delay).await;
        }
        let result = self.stage.process(item, cx).await;
        result.map_err(|error| attempts.finally(error))
    }

    fn output_bytes(&self, item: &In) -> Option<usize> {
        self.stage.output_bytes(item)
    }

    fn retry(&self) -> Option<Retry> {
        Some(self.retry)
    }

    fn medium(&self) -> Medium {
        self.stage.medium()
    }
}

impl<In: Clone, S: Stage<In>> Stage<In> for Retried<S, S::Out> {
    type Out = S::Out;

    fn process(&mut self, item: In, cx: &mut StageContext<'_, S::Out>) -> Result<()> {
        let mut attempts = Attempts::new(self.retry);
        while attempts.may_fail() {
            let Err(error) = self.attempt(item.clone(), cx) else { return self.emit_buffered(cx) };
            let delay = attempts.failed(error, || cx.rng_for(PURPOSE))?;
            self.retries.add(1);
            cx.outlet.count_retry();
            cx.wait(delay)?;
        }
        self.attempt(item, cx).map_err(|error| attempts.finally(error))?;
        self.emit_buffered(cx)
    }

    fn finish(&mut self, cx: &mut StageContext<'_, S::Out>) -> Result<()> {
        self.stage.finish(cx)
    }

    fn output_bytes(&self, item: &In) -> Option<usize> {
        self.stage.output_bytes(item)
    }

    fn take_left_out(&mut self) -> u64 {
        self.stage.take_left_out()
    }

    fn holds_back(&self) -> bool {
        self.stage.holds_back()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_core::future::BoxFuture;
    use proptest::prelude::*;

    use super::*;
    use crate::runtime::{Runtime, block_on};
    use crate::source::sample::SampleId;
    use crate::stage::adapters::FlatMap;
    use crate::stage::{TestOutlet, stage_fn};
    use crate::sync::Mutex;

    fn unavailable() -> Error {
        Error::new(ErrorKind::Unavailable, "busy")
    }

    fn without_jitter() -> Retry {
        Retry::default().jitter(0.0)
    }

    fn id(index: u64) -> SampleId {
        SampleId { epoch: 0, index }
    }

    /// A runtime that records sleeps and returns immediately.
    #[derive(Debug, Default)]
    struct FakeClock(Mutex<Vec<Duration>>);

    impl Runtime for FakeClock {
        fn spawn(&self, task: BoxFuture<'static, ()>) {
            block_on(task);
        }

        fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
            self.0.lock().push(duration);
            Box::pin(std::future::ready(()))
        }
    }

    /// Returns the errors of a list one by one, then the item.
    struct Flaky(Mutex<Vec<Error>>);

    impl Flaky {
        fn new(errors: impl IntoIterator<Item = Error>) -> Self {
            let mut errors: Vec<_> = errors.into_iter().collect();
            errors.reverse();
            Flaky(Mutex::new(errors))
        }
    }

    #[async_trait]
    impl AsyncStage<String> for Flaky {
        type Out = String;

        async fn process(&self, item: String, _: &AsyncContext) -> Result<String> {
            let error = self.0.lock().pop();
            error.map_or(Ok(item), Err)
        }
    }

    struct Trial {
        result: Result<String>,
        sleeps: Vec<Duration>,
        retries: u64,
    }

    fn try_async(retry: Retry, index: u64, errors: impl IntoIterator<Item = Error>) -> Trial {
        let clock = Arc::new(FakeClock::default());
        let cx = AsyncContext::new(7, id(index), "fetch", clock.clone());
        let stage = Retried::new(Flaky::new(errors), retry).unwrap();
        let result = block_on(stage.process("item".to_owned(), &cx));
        let sleeps = clock.0.lock().clone();
        Trial { result, sleeps, retries: stage.retries().get() }
    }

    #[test]
    fn transient_failures_are_retried_with_growing_delays() {
        let trial = try_async(without_jitter().attempts(5), 0, [unavailable(), unavailable()]);
        assert_eq!(trial.result.unwrap(), "item");
        assert_eq!(trial.sleeps, [50, 100].map(Duration::from_millis));
        assert_eq!(trial.retries, 2);
    }

    #[test]
    fn the_last_error_has_the_number_of_attempts() {
        let timeout = Error::new(ErrorKind::Timeout, "too slow").with_key("a.jpg");
        let trial = try_async(without_jitter(), 0, [unavailable(), unavailable(), timeout]);
        let error = trial.result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert_eq!(error.to_string(), "a.jpg: too slow (after 3 attempts)");
        assert_eq!((trial.sleeps.len(), trial.retries), (2, 2));
    }

    #[test]
    fn permanent_failures_are_not_retried() {
        let missing = || Error::new(ErrorKind::NotFound, "gone");
        let trial = try_async(without_jitter(), 0, [missing()]);
        assert_eq!(trial.result.unwrap_err().to_string(), "gone");
        assert_eq!((trial.sleeps.len(), trial.retries), (0, 0));
        let trial = try_async(without_jitter(), 0, [unavailable(), missing()]);
        assert_eq!(trial.result.unwrap_err().to_string(), "gone (after 2 attempts)");
        assert_eq!((trial.sleeps.len(), trial.retries), (1, 1));
    }

    #[test]
    fn one_attempt_means_no_retry() {
        let trial = try_async(without_jitter().attempts(1), 0, [unavailable()]);
        assert_eq!(trial.result.unwrap_err().to_string(), "busy");
        assert_eq!((trial.sleeps.len(), trial.retries), (0, 0));
    }

    #[test]
    fn delays_depend_on_the_sample_only() {
        let retry = Retry::default().attempts(4).jitter(1.0);
        let waits = |index| try_async(retry, index, std::iter::repeat_n(unavailable(), 3)).sleeps;
        assert_eq!(waits(1), waits(1));
        assert_ne!(waits(1), waits(2));
        // Independent of the stage's random numbers.
        let share = SampleRng::new(7, id(1), "fetch/retry").unit();
        let expected = Duration::from_secs_f64(0.05 * (1.0 - share));
        assert_eq!(waits(1)[0], expected);
    }

    #[test]
    fn a_first_delay_of_0_disables_delays() {
        let retry = without_jitter().first_delay(Duration::ZERO).factor(f64::MAX);
        assert_eq!(retry.delay(9, &mut SampleRng::new(0, id(0), "x")), Duration::ZERO);
    }

    /// Emits its input twice, with the next error of the list in between.
    struct Twice(Flaky);

    impl Stage<String> for Twice {
        type Out = String;

        fn process(&mut self, item: String, cx: &mut StageContext<'_, String>) -> Result<()> {
            cx.emit(format!("first {item}"))?;
            if let Some(error) = self.0.0.lock().pop() {
                return Err(error);
            }
            cx.emit(format!("second {item}"))
        }

        fn finish(&mut self, cx: &mut StageContext<'_, String>) -> Result<()> {
            cx.emit("end".into())
        }
    }

    #[test]
    fn outputs_of_failed_attempts_are_not_emitted() {
        let errors = std::iter::repeat_n(unavailable(), 5);
        let retries = Counter::default();
        let twice = Twice(Flaky::new(errors));
        let mut stage = Retried::new(twice, without_jitter()).unwrap().count_retries(&retries);
        let mut outlet = TestOutlet::default();
        outlet.run(id(0), |cx| {
            let error = stage.process("a".into(), cx).unwrap_err();
            assert_eq!(error.to_string(), "busy (after 3 attempts)");
            assert_eq!(retries.get(), 2);
            // Two of the five errors remain for the second item.
            stage.process("b".into(), cx).unwrap();
            stage.finish(cx).unwrap();
        });
        assert_eq!(outlet.outputs, ["first b", "second b", "end"]);
        assert_eq!(outlet.waits, [50, 100, 50, 100].map(Duration::from_millis));
        assert_eq!(retries.get(), 4);
    }

    #[test]
    fn a_stopping_pipeline_ends_a_delay() {
        let attempts = Counter::default();
        let counter = attempts.clone();
        let fail = stage_fn(move |(): ()| {
            counter.add(1);
            Err::<(), _>(unavailable())
        });
        let mut stage = Retried::new(fail, without_jitter()).unwrap();
        let mut outlet = TestOutlet { stopped_on_wait: true, ..TestOutlet::default() };
        let result = outlet.run(id(0), |cx| stage.process((), cx));
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Stopped);
        assert_eq!(attempts.get(), 1);
    }

    #[test]
    fn a_stopping_pipeline_ends_a_stage_with_many_outputs() {
        let numbers = FlatMap::new(|counter: Counter| {
            (0..1000).map(move |n| {
                counter.add(1);
                Ok(n)
            })
        });
        let mut stage = Retried::new(numbers, without_jitter()).unwrap();
        let mut outlet = TestOutlet { stopped: true, ..TestOutlet::default() };
        let emitted = Counter::default();
        let result = outlet.run(id(0), |cx| stage.process(emitted.clone(), cx));
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Stopped);
        assert_eq!(emitted.get(), 1);
    }

    #[test]
    fn invalid_settings_are_errors() {
        let second = Duration::from_secs(1);
        for (retry, word) in [
            (Retry::default().attempts(0), "attempts is 0"),
            (Retry::default().factor(0.5), "factor is 0.5"),
            (Retry::default().factor(f64::NAN), "factor is NaN"),
            (Retry::default().factor(f64::INFINITY), "factor is inf"),
            (Retry::default().first_delay(second * 6), "first_delay is 6s"),
            (Retry::default().jitter(1.5), "jitter is 1.5"),
            (Retry::default().jitter(f64::NAN), "jitter is NaN"),
        ] {
            let error = Retried::<_, ()>::new((), retry).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains(word), "{error}");
        }
        Retry::default().attempts(1).jitter(1.0).factor(1.0).validate().unwrap();
    }

    proptest! {
        #[test]
        fn every_delay_is_within_its_bounds(
            failures in 1..=u32::MAX, first in 0..=10_000u64, most in 0..=u64::MAX,
            factor in 1.0..=f64::MAX, jitter in 0.0..=1.0, index: u64,
        ) {
            let first = Duration::from_millis(first);
            let most = Duration::from_millis(most).max(first);
            let retry = Retry::default()
                .first_delay(first).most_delay(most).factor(factor).jitter(jitter);
            retry.validate().unwrap();
            let delay = retry.delay(failures, &mut SampleRng::new(0, id(index), "x"));
            prop_assert!(delay <= most);
            // Tolerates rounding of the duration and of the float.
            let least = first.as_secs_f64() * (1.0 - jitter) * (1.0 - 1e-9) - 1e-9;
            prop_assert!(delay.as_secs_f64() >= least, "{delay:?} < {least}");
            if first.is_zero() {
                prop_assert_eq!(delay, Duration::ZERO);
            }
        }
    }
}
