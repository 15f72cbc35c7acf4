//! The verdict: what holds the pipeline back, in one sentence.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::memory::budget::MemoryStatistics;
use crate::observe::interval::Interval;
use crate::observe::statistics::{
    ConsumerStatistics, QueueStatistics, StageStatistics, Statistics,
};

/// From this share of its capacity on, something counts as saturated.
const SATURATED: f64 = 0.85;
/// From this share of its budget on, memory may be what limits,
const MEMORY_SPENT: f64 = 0.95;
/// where stages waited for it for more than this share of the time.
const MEMORY_WAITED: f64 = 0.5;
/// Before so much of the time has passed since the start-up, a queue says nothing about the consumer.
const SETTLED: f64 = 0.1;

/// What limits a pipeline's rate. Displayed, it is a sentence for people.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub enum Limit {
    /// Too little has happened to say.
    Unknown,
    /// Nothing was delivered, since everything failed that came to this stage.
    AllFailed {
        /// The stage: the first of its kind.
        stage: Arc<str>,
        /// How many items it had, all of which failed.
        items: u64,
    },
    /// A batch was nearly always ready: the pipeline is fast enough.
    Consumer {
        /// The share of the time in which something was ready, in 0..=1.
        readiness: f64,
    },
    /// The worker threads, or as many of them as there are CPUs, are busy nearly all the time.
    Cpu {
        /// The share of that time, in 0..=1.
        busy: f64,
        /// The number of worker threads.
        threads: usize,
        /// How many CPUs the process may use.
        cpus: usize,
        /// The stage that uses most of it.
        stage: Arc<str>,
        /// That stage's part of the pool's busy time, in 0..=1.
        part: f64,
    },
    /// The memory budget is spent, and stages wait for it.
    Memory {
        /// The budget in bytes.
        budget: usize,
        /// The largest part of it that was in use at once, in 0..=1.
        used: f64,
        /// The share of the time in which a stage waited for memory, in 0..=1.
        waited: f64,
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
        MeasuredPipeline {
            elapsed: self.elapsed,
            threads: self.threads,
            cpus: self.cpus,
            stages: &self.stages,
            queues: &self.queues,
            consumer: &self.consumer,
            memory: self.memory,
        }
        .limit()
    }
}

impl Interval {
    /// What limited the pipeline's rate in this interval.
    pub fn limit(&self) -> Limit {
        MeasuredPipeline {
            elapsed: self.length,
            threads: self.threads,
            cpus: self.cpus,
            stages: &self.stages,
            queues: &self.queues,
            consumer: &self.consumer,
            memory: self.memory,
        }
        .limit()
    }
}

/// What a verdict is based on.
struct MeasuredPipeline<'a> {
    elapsed: Duration,
    threads: usize,
    cpus: usize,
    stages: &'a [StageStatistics],
    queues: &'a [QueueStatistics],
    consumer: &'a ConsumerStatistics,
    memory: MemoryStatistics,
}

impl MeasuredPipeline<'_> {
    fn limit(&self) -> Limit {
        if self.consumer.items == 0 || self.elapsed.is_zero() {
            return self.all_failed().unwrap_or(Limit::Unknown);
        }
        let readiness = self.queues.last().map_or(0.0, |queue| queue.readiness(self.elapsed));
        if readiness > SATURATED && self.is_settled() {
            return Limit::Consumer { readiness };
        }
        let on_pool = || self.stages.iter().filter(|stage| stage.kind.uses_cpu_pool());
        let pool_busy: f64 = on_pool().map(|stage| stage.busy.as_secs_f64()).sum();
        // A thread that waits for a CPU in the middle of its work counts as busy, too.
        let at_once = self.threads.min(self.cpus).max(1);
        let pool_share = pool_busy / (self.elapsed.as_secs_f64() * at_once as f64);
        let heaviest = on_pool().max_by_key(|stage| stage.busy);
        if let (true, Some(stage)) = (pool_share > SATURATED, heaviest) {
            return Limit::Cpu {
                busy: pool_share.min(1.0),
                threads: self.threads,
                cpus: self.cpus,
                stage: Arc::clone(&stage.name),
                part: stage.busy.as_secs_f64() / pool_busy,
            };
        }
        // A stage may hold its slots while it waits for memory, so this comes before those.
        if let Some(limit) = self.memory_limit() {
            return limit;
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

    /// That nothing came of any item, if so.
    fn all_failed(&self) -> Option<Limit> {
        let fails = |stage: &&StageStatistics| {
            stage.failures > 0 && stage.failures == stage.items && stage.items_out == 0
        };
        let stage = self.stages.iter().find(fails).filter(|_| self.consumer.items == 0)?;
        Some(Limit::AllFailed { stage: Arc::clone(&stage.name), items: stage.items })
    }

    /// Whether the start-up is long enough ago for the last queue to be typical.
    fn is_settled(&self) -> bool {
        let first_wait = self.queues.last().map_or(Duration::ZERO, |queue| queue.first_wait);
        self.elapsed.saturating_sub(first_wait) >= self.elapsed.mul_f64(SETTLED)
    }

    fn memory_limit(&self) -> Option<Limit> {
        let MemoryStatistics { limit_bytes: budget, peak_bytes, waited, .. } = self.memory;
        if budget == 0 {
            return None;
        }
        let used = peak_bytes as f64 / budget as f64;
        let waited = (waited.as_secs_f64() / self.elapsed.as_secs_f64()).min(1.0);
        (used > MEMORY_SPENT && waited > MEMORY_WAITED).then_some(Limit::Memory {
            budget,
            used: used.min(1.0),
            waited,
        })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| (share * 100.0).round();
        let part_of_it = |part: f64| match percent(part) {
            100.0 => "all".to_owned(),
            percent => format!("{percent} %"),
        };
        match self {
            Limit::Unknown => write!(f, "Too little has run to say what limits."),
            Limit::AllFailed { stage, items } => write!(
                f,
                "Nothing was delivered: {items} of {items} item{} failed in stage {stage:?}.",
                if *items == 1 { "" } else { "s" },
            ),
            Limit::Consumer { readiness } => write!(
                f,
                "The consumer limits: a batch was ready {} % of the time.",
                percent(*readiness)
            ),
            Limit::Cpu { threads, cpus, stage, part, .. } if threads > cpus => write!(
                f,
                "The CPU limits: {threads} worker threads share {cpus} CPU{} and wait for {} most \
                 of the time, {} of it in stage {stage:?}; only more cores or less work per sample \
                 would help, and fewer threads would save memory.",
                if *cpus == 1 { "" } else { "s" },
                if *cpus == 1 { "it" } else { "them" },
                part_of_it(*part),
            ),
            Limit::Cpu { busy, threads, stage, part, .. } => write!(
                f,
                "The CPU limits: the {threads} worker thread{} {} busy {} % of the time, {} of it \
                 in stage {stage:?}; only more cores or less work per sample would help.",
                if *threads == 1 { "" } else { "s" },
                if *threads == 1 { "is" } else { "are" },
                percent(*busy),
                part_of_it(*part),
            ),
            Limit::Memory { budget, used, waited } => write!(
                f,
                "The memory budget limits: {} % of its {budget} bytes were in use, and stages \
                 waited for memory {} % of the time; raise the budget, or make the queues shorter.",
                percent(*used),
                percent(*waited)
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
    use crate::observe::histogram::Quantiles;
    use crate::observe::statistics::StageKind;

    fn statistics(stages: &[(&str, StageKind, usize, f64)], empty_seconds: f64) -> Statistics {
        let stage =
            |&(name, kind, concurrency, busy): &(&str, StageKind, usize, f64)| StageStatistics {
                name: name.into(),
                kind,
                concurrency,
                items: 100,
                failures: 0,
                items_out: 100,
                fill_rate: None,
                busy: Duration::from_secs_f64(busy),
                service: Quantiles::default(),
            };
        Statistics {
            elapsed: Duration::from_secs(10),
            threads: 2,
            cpus: 2,
            stages: stages.iter().map(stage).collect(),
            queues: vec![QueueStatistics {
                items: 10,
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
            Limit::Cpu { busy: 0.975, threads: 2, cpus: 2, stage: "decode".into(), part: 1.0 }
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

    #[test]
    fn more_threads_than_cpus_do_not_hide_that_the_cpu_limits() {
        // 16 threads on 2 CPUs: in work, or waiting for a CPU in the middle of it, half of the time.
        let mut crowded = statistics(&[("decode", StageKind::Fill, 16, 85.0)], 9.0);
        crowded.threads = 16;
        let limit = crowded.limit();
        assert!(matches!(limit, Limit::Cpu { busy: 1.0, threads: 16, cpus: 2, .. }), "{limit}");
        assert!(limit.to_string().contains("16 worker threads share 2 CPUs"), "{limit}");
        crowded.cpus = 16;
        assert!(matches!(crowded.limit(), Limit::Balance { .. }), "{}", crowded.limit());
    }

    #[test]
    fn a_spent_memory_budget_limits_where_stages_wait_for_it() {
        let stages = [("fetch", StageKind::Async, 8, 78.0), ("decode", StageKind::Fill, 2, 4.0)];
        let of = |peak_bytes, waited| {
            let mut statistics = statistics(&stages, 9.0);
            let waited = Duration::from_secs(waited);
            statistics.memory =
                MemoryStatistics { limit_bytes: 1000, peak_bytes, waited, ..Default::default() };
            statistics.limit()
        };
        let limit = of(980, 6);
        assert_eq!(limit, Limit::Memory { budget: 1000, used: 0.98, waited: 0.6 });
        let text = limit.to_string();
        assert!(text.contains("98 % of its 1000 bytes") && text.contains("60 %"), "{text}");
        assert!(matches!(of(940, 6), Limit::Concurrency { .. }), "there was memory left");
        assert!(matches!(of(1000, 4), Limit::Concurrency { .. }), "few waited for it");
    }

    #[test]
    fn memory_that_a_slow_consumer_or_the_cpu_holds_does_not_limit() {
        let memory = MemoryStatistics {
            limit_bytes: 1000,
            peak_bytes: 1000,
            waited: Duration::from_secs(10),
            ..Default::default()
        };
        let mut slow_consumer = statistics(&[("decode", StageKind::Fill, 2, 4.0)], 0.1);
        slow_consumer.memory = memory;
        assert!(matches!(slow_consumer.limit(), Limit::Consumer { .. }));
        let mut busy = statistics(&[("decode", StageKind::Fill, 2, 19.5)], 9.0);
        busy.memory = memory;
        assert!(matches!(busy.limit(), Limit::Cpu { .. }));
    }

    #[test]
    fn a_run_that_has_just_started_blames_no_consumer() {
        let decode = [("decode", StageKind::Fill, 2, 19.5)];
        let mut statistics = statistics(&decode, 9.95);
        statistics.queues[0].first_wait = Duration::from_millis(9_950);
        assert_eq!(statistics.data_readiness(), 1.0);
        assert!(matches!(statistics.limit(), Limit::Cpu { .. }), "{}", statistics.limit());
        // With as much time again, the consumer is what limits.
        statistics.elapsed = Duration::from_secs(20);
        assert!(matches!(statistics.limit(), Limit::Consumer { readiness } if readiness == 1.0));
        statistics.consumer.items = 0;
        assert_eq!(statistics.limit(), Limit::Unknown);
    }

    #[test]
    fn where_everything_failed_that_is_the_verdict() {
        let stages = [("fetch", StageKind::Async, 8, 3.0), ("decode", StageKind::Fill, 2, 0.2)];
        let mut failed = statistics(&stages, 9.0);
        failed.consumer.items = 0;
        (failed.stages[1].failures, failed.stages[1].items_out) = (99, 0);
        // One item may be on its way to the consumer.
        assert_eq!(failed.limit(), Limit::Unknown);
        failed.stages[1].failures = 100;
        assert_eq!(failed.limit(), Limit::AllFailed { stage: "decode".into(), items: 100 });
        let text = failed.limit().to_string();
        assert_eq!(text, "Nothing was delivered: 100 of 100 items failed in stage \"decode\".");
        failed.consumer.items = 1;
        assert!(!matches!(failed.limit(), Limit::AllFailed { .. }));
    }

    #[test]
    fn an_interval_has_a_verdict_of_its_own() {
        let whole = statistics(&[("decode", StageKind::Fill, 2, 19.5)], 9.0);
        let interval = Interval {
            length: whole.elapsed,
            threads: whole.threads,
            cpus: whole.cpus,
            stages: whole.stages.clone(),
            queues: whole.queues.clone(),
            consumer: whole.consumer,
            ..Default::default()
        };
        assert_eq!(interval.limit(), whole.limit());
        assert!(matches!(interval.limit(), Limit::Cpu { .. }));
    }
}
