//! Takes batches for a limited time, in rounds, so that the noise of their rate is known.

use std::time::{Duration, Instant};

use spdl_core::{Batch, Error, ErrorKind, Pipeline, Result, Statistics};

use super::delivery::{POLL_INTERVAL, is_start, simulate_step};
use super::machine;

/// Batches that are taken before the first round: threads start, and connections are opened.
const WARM_UP: u64 = 3;

/// The length of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Time of all rounds together. The warm-up before them takes at most the same time.
    pub(crate) time: Duration,
    /// Number of batches of all rounds together, if the measurement ends before `time`.
    pub(crate) batches: Option<u64>,
    /// Number of rounds, at least 1.
    pub(crate) rounds: u32,
}

/// A measurement.
#[derive(Debug)]
pub(crate) struct Rounds {
    /// Samples per second of each round.
    pub(crate) rates: Vec<f64>,
    pub(crate) batches: u64,
    pub(crate) samples: u64,
    pub(crate) took: Duration,
    /// The time in which the consumer waited for a batch.
    pub(crate) waited: Duration,
    /// CPU time of the process.
    pub(crate) cpu: Duration,
    /// Statistics of the pipeline, including the warm-up.
    pub(crate) statistics: Statistics,
}

impl Rounds {
    /// Batches per second of all rounds.
    pub(crate) fn batches_per_s(&self) -> f64 {
        self.batches as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// Samples per second of all rounds.
    pub(crate) fn samples_per_s(&self) -> f64 {
        self.samples as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// Mean number of samples of a batch.
    pub(crate) fn samples_per_batch(&self) -> f64 {
        self.samples as f64 / self.batches.max(1) as f64
    }

    /// The quartiles of the rates of the rounds: first, median, third.
    pub(crate) fn quartiles(&self) -> [f64; 3] {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        [0.25, 0.5, 0.75].map(|share| {
            let at = share * rates.len().saturating_sub(1) as f64;
            let (below, above) = (at.floor() as usize, at.ceil() as usize);
            match (rates.get(below), rates.get(above)) {
                (Some(low), Some(high)) => low + (high - low) * at.fract(),
                _ => 0.0,
            }
        })
    }

    /// Half of the distance of the first and the third quartile, relative to the median.
    pub(crate) fn spread(&self) -> f64 {
        let [first, median, third] = self.quartiles();
        if median > 0.0 { (third - first) / 2.0 / median } else { 0.0 }
    }
}

/// Takes batches, and simulates a training step of length `step` after each.
///
/// # Errors
/// Errors of the pipeline. `Timeout` if a round has no batch because the time is over.
pub(crate) fn take(
    mut pipeline: Pipeline<Batch>,
    extent: Extent,
    step: Option<Duration>,
) -> Result<Rounds> {
    let monitor = pipeline.monitor();
    // Returns the samples of a batch; `None` at the end of the data, or if the time is over.
    let mut next = |until: Instant| -> Result<Option<u64>> {
        let check = || if Instant::now() < until { Ok(()) } else { Err(()) };
        let Ok(Some(batch)) = pipeline.next_checked(POLL_INTERVAL, check) else { return Ok(None) };
        let batch = batch?;
        let samples = (0..batch.ids().len()).filter(|&row| is_start(&batch, row)).count();
        drop(batch);
        if let Some(step) = step {
            simulate_step(step, || false);
        }
        Ok(Some(samples as u64))
    };
    let warm = Instant::now() + extent.time;
    for _ in 0..WARM_UP {
        if next(warm)?.is_none() {
            break;
        }
    }
    let before = monitor.statistics().consumer.waited;
    let (began, cpu) = (Instant::now(), machine::cpu_time());
    let (mut rates, mut batches, mut samples) = (Vec::new(), 0, 0);
    let most = extent.batches.unwrap_or(u64::MAX);
    'rounds: for round in 1..=extent.rounds {
        let start = Instant::now();
        let until = began + extent.time * round / extent.rounds;
        let last = (most.saturating_mul(round.into()) / u64::from(extent.rounds)).max(batches + 1);
        let mut of_round = 0;
        while of_round == 0 || (Instant::now() < until && batches < last) {
            // A batch that arrives late belongs to the round that requested it.
            let Some(more) = next(until.max(began + extent.time))? else { break 'rounds };
            of_round += more;
            samples += more;
            batches += 1;
        }
        rates.push(of_round as f64 / start.elapsed().as_secs_f64().max(1e-9));
        if batches >= most {
            break;
        }
    }
    let took = began.elapsed();
    if rates.is_empty() {
        let message =
            format!("no batch arrived in {:.1} s; measure for a longer time", took.as_secs_f64());
        return Err(Error::new(ErrorKind::Timeout, message));
    }
    let statistics = monitor.statistics();
    Ok(Rounds {
        rates,
        batches,
        samples,
        took,
        waited: statistics.consumer.waited.saturating_sub(before),
        cpu: machine::cpu_time().saturating_sub(cpu),
        statistics,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_half_of_the_quartile_distance() {
        let rounds = Rounds {
            rates: vec![110.0, 90.0, 100.0, 80.0, 120.0],
            batches: 10,
            samples: 50,
            took: Duration::from_secs(5),
            waited: Duration::ZERO,
            cpu: Duration::ZERO,
            statistics: Statistics::default(),
        };
        assert_eq!(rounds.quartiles(), [90.0, 100.0, 110.0]);
        assert!((rounds.spread() - 0.1).abs() < 1e-12);
        assert_eq!((rounds.batches_per_s(), rounds.samples_per_batch()), (2.0, 5.0));
    }
}
