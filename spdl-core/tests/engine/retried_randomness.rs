//! Random numbers of retried samples equal those of the first attempt.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{numbers, within_seconds};
use spdl_core::stage::Retried;
use spdl_core::{
    AsyncContext, AsyncStage, Error, ErrorKind, PipelineBuilder, Result, Retry, SampleRng, Stage,
    StageContext, async_trait,
};

/// Draws a random number for each item, and fails a few times before it returns the number.
#[derive(Clone, Default)]
struct Draw {
    failures: usize,
    /// The random numbers of each item, by attempt.
    drawn: Arc<Mutex<BTreeMap<i64, Vec<u64>>>>,
}

impl Draw {
    fn attempt(&self, n: i64, mut rng: SampleRng) -> Result<u64> {
        let mut all = self.drawn.lock().unwrap();
        let drawn = all.entry(n).or_default();
        drawn.push(rng.next_u64());
        if drawn.len() <= self.failures {
            return Err(Error::new(ErrorKind::Unavailable, "come again"));
        }
        Ok(drawn[drawn.len() - 1])
    }
}

impl Stage<i64> for Draw {
    type Out = u64;
    fn process(&mut self, n: i64, cx: &mut StageContext<'_, u64>) -> Result<()> {
        let drawn = self.attempt(n, cx.rng())?;
        cx.emit(drawn)
    }
}

#[async_trait]
impl AsyncStage<i64> for Draw {
    type Out = u64;
    async fn process(&self, n: i64, cx: &AsyncContext) -> Result<u64> {
        self.attempt(n, cx.rng())
    }
}

/// The outputs if each item fails `failures` times, in an async or a CPU stage.
fn delivered(waits: bool, failures: usize, threads: usize) -> Vec<u64> {
    let draw = Draw { failures, ..Draw::default() };
    let drawn = Arc::clone(&draw.drawn);
    let retry = Retry::default().attempts(4).first_delay(Duration::from_micros(100));
    let builder = PipelineBuilder::new(numbers(60));
    let builder = if waits {
        builder.async_stage("draw", Retried::new(draw, retry).unwrap())
    } else {
        builder.stage("draw", move || Retried::new(draw.clone(), retry))
    };
    let items = builder.seed(5).threads(threads).deterministic().build().unwrap();
    let items: Vec<u64> = items.map(Result::unwrap).collect();
    for (n, drawn) in drawn.lock().unwrap().iter() {
        assert_eq!(drawn.len(), failures + 1);
        assert!(drawn.iter().all(|one| one == &drawn[0]), "{n} drew {drawn:?}");
    }
    items
}

// promise: R14
#[test]
fn a_retry_draws_the_random_numbers_of_the_first_attempt() {
    within_seconds(60, || {
        for waits in [false, true] {
            let expected = delivered(waits, 0, 1);
            assert_eq!(expected.iter().collect::<BTreeSet<_>>().len(), 60, "all numbers differ");
            for (failures, threads) in [(1, 1), (3, 2)] {
                assert_eq!(delivered(waits, failures, threads), expected);
            }
        }
    });
}
