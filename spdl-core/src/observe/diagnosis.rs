//! [`Limit`]: the bottleneck of a pipeline, and what to change.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::memory::budget::MemoryStatistics;
use crate::observe::interval::Interval;
use crate::observe::statistics::{
    ConsumerStatistics, QueueStatistics, StageKind, StageStatistics, Statistics,
};

/// A resource is saturated above this share of its capacity.
const SATURATED: f64 = 0.85;
/// Memory is the bottleneck only if more than this share of the budget was in use at the peak.
const MEMORY_SPENT: f64 = 0.95;
/// Memory is the bottleneck only if a stage also waited for memory for more than this share of the
/// time.
const MEMORY_WAITED: f64 = 0.5;
/// The consumer is the bottleneck only if at least this share of the time was after start-up.
const SETTLED: f64 = 0.1;

/// The bottleneck of a pipeline. `Display` writes it as a sentence with advice.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub enum Limit {
    /// No item was delivered in the measured time, so the bottleneck is unknown.
    Unknown,
    /// No item was delivered, because all items failed in one stage.
    AllFailed {
        /// The first stage in which all items failed.
        stage: Arc<str>,
        /// Number of items that failed in the stage.
        items: u64,
    },
    /// The consumer: after start-up, a batch was ready more than 85 % of the time, and start-up
    /// took at most 90 % of the measured time.
    Consumer {
        /// The share of the time after start-up in which a batch was ready, in 0..=1.
        readiness: f64,
    },
    /// The CPU: worker threads, counted up to one per CPU, are busy more than 85 % of the time.
    Cpu {
        /// The share of the time in which the threads are busy, in 0..=1.
        busy: f64,
        /// Number of worker threads.
        threads: usize,
        /// Number of CPUs that the process may use.
        cpus: usize,
        /// The stage with the most busy time.
        stage: Arc<str>,
        /// The share of this stage in the pool's busy time, in 0..=1.
        part: f64,
    },
    /// The source: producing items takes more than 85 % of the time.
    Source {
        /// The source.
        stage: Arc<str>,
        /// The share of the time in which the source produces items, in 0..=1.
        busy: f64,
    },
    /// The memory budget: at the peak since the start of the pipeline, more than 95 % of the budget
    /// was in use, and stages wait for memory for more than half of the measured time.
    Memory {
        /// The budget in bytes.
        budget: usize,
        /// The maximum share of the budget in use since the start of the pipeline, in 0..=1.
        used: f64,
        /// The share of the time in which a stage waited for memory, in 0..=1.
        waited: f64,
    },
    /// The concurrency of a stage: more than 85 % of the concurrency is in use, although CPUs are
    /// free.
    Concurrency {
        /// The stage.
        stage: Arc<str>,
        /// The concurrency of the stage.
        concurrency: usize,
        /// The share of the concurrency in use, in 0..=1.
        busy: f64,
        /// True for an async stage, which mostly waits. False for a CPU stage, which computes.
        waits: bool,
    },
    /// No resource is saturated.
    Balance {
        /// The stage with the largest share of its concurrency in use.
        stage: Arc<str>,
        /// The share of the concurrency in use, in 0..=1.
        busy: f64,
    },
}

impl Statistics {
    /// The bottleneck of the pipeline since its start.
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
    /// The bottleneck of the pipeline in this interval.
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

/// The measurements that determine the limit.
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
        let own = on_pool().filter(|stage| stage.dedicated).map(|stage| stage.concurrency);
        // The shared workers count only if a stage uses them.
        let shared = if on_pool().any(|stage| !stage.dedicated) { self.threads } else { 0 };
        let threads = own.fold(shared, usize::saturating_add);
        // A preempted thread counts as busy, so at most one thread per CPU is counted.
        let parallel = threads.min(self.cpus).max(1);
        let pool_share = pool_busy / (self.elapsed.as_secs_f64() * parallel as f64);
        let heaviest = on_pool().max_by_key(|stage| stage.busy);
        if let (true, Some(stage)) = (pool_share > SATURATED, heaviest) {
            return Limit::Cpu {
                busy: pool_share.min(1.0),
                threads,
                cpus: self.cpus,
                stage: Arc::clone(&stage.name),
                part: stage.busy.as_secs_f64() / pool_busy,
            };
        }
        // A stage that waits for memory also uses its concurrency, so memory is checked first.
        if let Some(limit) = self.memory_limit() {
            return limit;
        }
        let share = |at: usize| self.stages[at].busy_share(self.elapsed);
        let fullest = (0..self.stages.len()).max_by(|&a, &b| share(a).total_cmp(&share(b)));
        match fullest {
            Some(at) if share(at) > SATURATED && self.stages[at].kind == StageKind::Source => {
                Limit::Source { stage: Arc::clone(&self.stages[at].name), busy: share(at) }
            }
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

    /// The first stage in which all items failed, if no item was delivered.
    fn all_failed(&self) -> Option<Limit> {
        let failed = |stage: &&StageStatistics| {
            stage.failures > 0 && stage.failures == stage.items && stage.items_out == 0
        };
        let stage = self.stages.iter().find(failed).filter(|_| self.consumer.items == 0)?;
        Some(Limit::AllFailed { stage: Arc::clone(&stage.name), items: stage.items })
    }

    /// Whether at least [`SETTLED`] of the time was after start-up.
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
        let share_text = |part: f64| match percent(part) {
            100.0 => "all".to_owned(),
            percent => format!("{percent} %"),
        };
        match self {
            Limit::Unknown => {
                write!(f, "The pipeline has not run long enough to find the bottleneck.")
            }
            Limit::AllFailed { stage, items } => write!(
                f,
                "Nothing was delivered: {items} of {items} item{} failed in stage {stage:?}.",
                if *items == 1 { "" } else { "s" },
            ),
            Limit::Consumer { readiness } => write!(
                f,
                "The consumer is the bottleneck: a batch was ready {} % of the time.",
                percent(*readiness)
            ),
            Limit::Cpu { threads, cpus, stage, part, .. } if threads > cpus => write!(
                f,
                "The CPU is the bottleneck: {threads} worker threads share {cpus} CPU{}, and {} of \
                 the work is in stage {stage:?}. Use more cores, or reduce the work per sample; \
                 fewer threads would save memory.",
                if *cpus == 1 { "" } else { "s" },
                share_text(*part),
            ),
            Limit::Cpu { busy, threads, cpus, stage, part } => write!(
                f,
                "The CPU is the bottleneck: the {threads} worker thread{} {} busy {} % of the \
                 time, and {} of the work is in stage {stage:?}. Use more {}, or reduce the work \
                 per sample.",
                if *threads == 1 { "" } else { "s" },
                if *threads == 1 { "is" } else { "are" },
                percent(*busy),
                share_text(*part),
                match threads < cpus {
                    true => format!("worker threads: the process may use {cpus} CPUs"),
                    false => "cores".to_owned(),
                },
            ),
            Limit::Source { stage, busy } => write!(
                f,
                "The source is the bottleneck: {stage:?} takes {} % of the time to produce its \
                 items, one after another. Move work from the source into a stage, or divide the \
                 items among several sources.",
                percent(*busy),
            ),
            Limit::Memory { budget, used, waited } => write!(
                f,
                "The memory budget is the bottleneck: {} % of its {budget} bytes were in use, and \
                 stages waited for memory {} % of the time. Raise the budget, or shorten the \
                 queues.",
                percent(*used),
                percent(*waited)
            ),
            Limit::Concurrency { stage, concurrency, busy, waits: true } => write!(
                f,
                "Stage {stage:?} is the bottleneck: {} % of its concurrency of {concurrency} is in \
                 use while CPUs are free; raise its concurrency.",
                percent(*busy)
            ),
            Limit::Concurrency { stage, concurrency, busy, waits: false } => write!(
                f,
                "Stage {stage:?} is the bottleneck: with a concurrency of {concurrency}, it is \
                 busy {} % of the time while CPUs are free; raise its concurrency.",
                percent(*busy)
            ),
            Limit::Balance { stage, busy } => write!(
                f,
                "Nothing is saturated; the busiest stage, {stage:?}, uses {} % of its \
                 concurrency. Start-up, waits between stages, or other programs take the \
                 remaining time.",
                percent(*busy)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::histogram::Quantiles;

    fn statistics(stages: &[(&str, StageKind, usize, f64)], empty_seconds: f64) -> Statistics {
        let stage =
            |&(name, kind, concurrency, busy): &(&str, StageKind, usize, f64)| StageStatistics {
                name: name.into(),
                kind,
                concurrency,
                dedicated: false,
                items: 100,
                failures: 0,
                retries: 0,
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
    fn saturated_resources_are_reported() {
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
    fn a_slow_source_is_the_bottleneck() {
        let stages = [("keys", StageKind::Source, 1, 9.0), ("decode", StageKind::Fill, 2, 4.0)];
        let limit = statistics(&stages, 9.0).limit();
        assert_eq!(limit, Limit::Source { stage: "keys".into(), busy: 0.9 });
        let text = limit.to_string();
        assert!(text.contains("\"keys\" takes 90 % of the time"), "{text}");
        // A source that is fast enough is not named.
        let stages = [("keys", StageKind::Source, 1, 2.0), ("fetch", StageKind::Async, 8, 78.0)];
        assert!(matches!(statistics(&stages, 9.0).limit(), Limit::Concurrency { .. }));
    }

    #[test]
    fn more_threads_are_advised_if_cpus_are_free() {
        let mut single = statistics(&[("decode", StageKind::Fill, 1, 9.9)], 9.0);
        single.threads = 1;
        let text = single.limit().to_string();
        assert!(text.contains("Use more worker threads: the process may use 2 CPUs"), "{text}");
        single.cpus = 1;
        assert!(single.limit().to_string().contains("Use more cores"), "{}", single.limit());
    }

    #[test]
    fn cpu_is_the_bottleneck_with_more_threads_than_cpus() {
        // 16 threads on 2 CPUs are busy or preempted half of the time.
        let mut crowded = statistics(&[("decode", StageKind::Fill, 16, 85.0)], 9.0);
        crowded.threads = 16;
        let limit = crowded.limit();
        assert!(matches!(limit, Limit::Cpu { busy: 1.0, threads: 16, cpus: 2, .. }), "{limit}");
        assert!(limit.to_string().contains("16 worker threads share 2 CPUs"), "{limit}");
        crowded.cpus = 16;
        assert!(matches!(crowded.limit(), Limit::Balance { .. }), "{}", crowded.limit());
    }

    #[test]
    fn threads_of_a_stage_count_as_worker_threads() {
        let mut own = statistics(&[("decode", StageKind::Cpu, 8, 60.0)], 9.0);
        own.threads = 1;
        own.stages[0].dedicated = true;
        let limit = own.limit();
        assert!(matches!(limit, Limit::Cpu { busy: 1.0, threads: 8, cpus: 2, .. }), "{limit}");
        assert!(limit.to_string().contains("8 worker threads share 2 CPUs"), "{limit}");
        // Two CPUs are half used by two threads.
        let mut idle = statistics(&[("decode", StageKind::Cpu, 2, 9.9)], 9.0);
        idle.stages[0].dedicated = true;
        idle.threads = 1;
        assert!(matches!(idle.limit(), Limit::Balance { .. }), "{}", idle.limit());
    }

    #[test]
    fn memory_is_the_bottleneck_if_stages_wait_for_it() {
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
        assert!(matches!(of(940, 6), Limit::Concurrency { .. }), "memory was available");
        assert!(matches!(of(1000, 4), Limit::Concurrency { .. }), "waits were short");
    }

    #[test]
    fn memory_is_not_the_limit_if_the_consumer_is_slow_or_the_cpu_is_busy() {
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
    fn consumer_is_no_bottleneck_just_after_the_start() {
        let decode = [("decode", StageKind::Fill, 2, 19.5)];
        let mut statistics = statistics(&decode, 9.95);
        statistics.queues[0].first_wait = Duration::from_millis(9_950);
        assert_eq!(statistics.data_readiness(), 1.0);
        assert!(matches!(statistics.limit(), Limit::Cpu { .. }), "{}", statistics.limit());
        // After twice the time, the consumer is the bottleneck.
        statistics.elapsed = Duration::from_secs(20);
        assert!(matches!(statistics.limit(), Limit::Consumer { readiness } if readiness == 1.0));
        statistics.consumer.items = 0;
        assert_eq!(statistics.limit(), Limit::Unknown);
    }

    #[test]
    fn a_stage_in_which_all_items_failed_is_reported() {
        let stages = [("fetch", StageKind::Async, 8, 3.0), ("decode", StageKind::Fill, 2, 0.2)];
        let mut failed = statistics(&stages, 9.0);
        failed.consumer.items = 0;
        (failed.stages[1].failures, failed.stages[1].items_out) = (99, 0);
        // One item may be in flight to the consumer.
        assert_eq!(failed.limit(), Limit::Unknown);
        failed.stages[1].failures = 100;
        assert_eq!(failed.limit(), Limit::AllFailed { stage: "decode".into(), items: 100 });
        let text = failed.limit().to_string();
        assert_eq!(text, "Nothing was delivered: 100 of 100 items failed in stage \"decode\".");
        failed.consumer.items = 1;
        assert!(!matches!(failed.limit(), Limit::AllFailed { .. }));
    }

    #[test]
    fn an_interval_has_a_limit() {
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
