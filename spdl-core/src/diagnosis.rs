//! The verdict: what holds the pipeline back, in one sentence.

use std::fmt;
use std::sync::Arc;

use crate::statistics::Statistics;

/// From this share of its capacity on, something counts as saturated.
const SATURATED: f64 = 0.85;

/// What limits a pipeline's rate. Displayed, it is a sentence for people.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub enum Limit {
    /// Too little has happened to say.
    Unknown,
    /// A batch was nearly always ready: the pipeline is fast enough.
    Consumer {
        /// The share of the time in which something was ready, in 0..=1.
        readiness: f64,
    },
    /// All worker threads compute nearly all the time.
    Cpu {
        /// The share of the pool's time that was used, in 0..=1.
        busy: f64,
        /// The number of worker threads.
        threads: usize,
        /// The stage that uses most of it.
        stage: Arc<str>,
        /// That stage's part of the pool's busy time, in 0..=1.
        part: f64,
    },
    /// A stage is at its own concurrency limit while CPUs are free.
    Concurrency {
        /// The stage.
        stage: Arc<str>,
        /// Its limit.
        concurrency: usize,
        /// The share of the limit that was in use, in 0..=1.
        busy: f64,
        /// Whether it waits rather than computes.
        waits: bool,
    },
    /// Nothing is saturated.
    Balance {
        /// The stage whose concurrency is in use most.
        stage: Arc<str>,
        /// The share of its concurrency that was in use, in 0..=1.
        busy: f64,
    },
}

impl Statistics {
    /// What limits the pipeline's rate.
    pub fn limit(&self) -> Limit {
        let readiness = self.data_readiness();
        if self.consumer.items == 0 || self.elapsed.is_zero() {
            return Limit::Unknown;
        }
        if readiness > SATURATED {
            return Limit::Consumer { readiness };
        }
        let on_pool = || self.stages.iter().filter(|stage| stage.kind.uses_cpu_pool());
        let pool_busy: f64 = on_pool().map(|stage| stage.busy.as_secs_f64()).sum();
        let pool_share = pool_busy / (self.elapsed.as_secs_f64() * self.threads.max(1) as f64);
        let heaviest = on_pool().max_by_key(|stage| stage.busy);
        if let (true, Some(stage)) = (pool_share > SATURATED, heaviest) {
            return Limit::Cpu {
                busy: pool_share.min(1.0),
                threads: self.threads,
                stage: Arc::clone(&stage.name),
                part: stage.busy.as_secs_f64() / pool_busy,
            };
        }
        let share = |at: usize| self.stages[at].busy_share(self.elapsed);
        let fullest = (0..self.stages.len()).max_by(|&a, &b| share(a).total_cmp(&share(b)));
        match fullest {
            Some(at) if share(at) > SATURATED => Limit::Concurrency {
                stage: Arc::clone(&self.stages[at].name),
                concurrency: self.stages[at].concurrency,
                busy: share(at),
                waits: !self.stages[at].kind.uses_cpu_pool(),
            },
            Some(at) => {
                Limit::Balance { stage: Arc::clone(&self.stages[at].name), busy: share(at) }
            }
            None => Limit::Unknown,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| (share * 100.0).round();
        match self {
            Limit::Unknown => write!(f, "Too little has run to say what limits."),
            Limit::Consumer { readiness } => write!(
                f,
                "The consumer limits: a batch was ready {} % of the time.",
                percent(*readiness)
            ),
            Limit::Cpu { busy, threads, stage, part } => write!(
                f,
                "The CPU limits: the {threads} worker thread{} {} busy {} % of the time, {} of it \
                 in stage {stage:?}; only more cores or less work per sample would help.",
                if *threads == 1 { "" } else { "s" },
                if *threads == 1 { "is" } else { "are" },
                percent(*busy),
                if percent(*part) == 100.0 {
                    "all".into()
                } else {
                    format!("{} %", percent(*part))
                }
            ),
            Limit::Concurrency { stage, concurrency, busy, waits: true } => write!(
                f,
                "Stage {stage:?} limits: its {concurrency} slots in flight are taken {} % of the \
                 time while CPUs are free; raise its concurrency.",
                percent(*busy)
            ),
            Limit::Concurrency { stage, concurrency, busy, waits: false } => write!(
                f,
                "Stage {stage:?} limits: at concurrency {concurrency} it is busy {} % of the time \
                 while CPUs are free; raise its concurrency.",
                percent(*busy)
            ),
            Limit::Balance { stage, busy } => write!(
                f,
                "Nothing is saturated; the busiest stage, {stage:?}, uses {} % of its \
                 concurrency. Starting up, waiting for each other, or other programs on this \
                 machine take the rest.",
                percent(*busy)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Quantiles;
    use crate::statistics::{ConsumerStatistics, QueueStatistics, StageKind, StageStatistics};
    use std::time::Duration;

    fn statistics(stages: &[(&str, StageKind, usize, f64)], empty_seconds: f64) -> Statistics {
        let stage =
            |&(name, kind, concurrency, busy): &(&str, StageKind, usize, f64)| StageStatistics {
                name: name.into(),
                kind,
                concurrency,
                items: 100,
                failures: 0,
                busy: Duration::from_secs_f64(busy),
                service: Quantiles::default(),
            };
        Statistics {
            elapsed: Duration::from_secs(10),
            threads: 2,
            stages: stages.iter().map(stage).collect(),
            queues: vec![QueueStatistics {
                get_wait: Duration::from_secs_f64(empty_seconds),
                ..Default::default()
            }],
            consumer: ConsumerStatistics { items: 10, ..Default::default() },
            ..Default::default()
        }
    }

    #[test]
    fn each_limit_is_named() {
        let busy_cpu = [("fetch", StageKind::Async, 8, 20.0), ("decode", StageKind::Fill, 2, 19.5)];
        assert_eq!(
            statistics(&busy_cpu, 9.0).limit(),
            Limit::Cpu { busy: 0.975, threads: 2, stage: "decode".into(), part: 1.0 }
        );
        assert!(matches!(statistics(&busy_cpu, 0.5).limit(), Limit::Consumer { .. }));
        let slow_store =
            [("fetch", StageKind::Async, 8, 78.0), ("decode", StageKind::Fill, 2, 4.0)];
        let limit = statistics(&slow_store, 9.0).limit();
        assert!(
            matches!(&limit, Limit::Concurrency { stage, waits: true, .. } if &**stage == "fetch")
        );
        assert!(limit.to_string().contains("raise its concurrency"));
        let idle = [("fetch", StageKind::Async, 8, 1.0), ("decode", StageKind::Fill, 2, 4.0)];
        assert!(matches!(statistics(&idle, 9.0).limit(), Limit::Balance { .. }));
    }
}
