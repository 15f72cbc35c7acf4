//! Simulated pipelines with known limits.

use spdl_core::observe::Medium;

use super::simulator::{PipelineSpec, StageSpec, StoreSpec, Times};

/// A simulated pipeline, and what limits it.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// The kind of the limit, and its stage.
    pub(crate) limit: (&'static str, Option<&'static str>),
    pub(crate) spec: PipelineSpec,
    /// Number of items that the consumer takes.
    pub(crate) items: u64,
    /// Whether the in-flight window of the async stage grew to its present size, as by default.
    pub(crate) tuned: bool,
}

const MS: f64 = 1e-3;
const US: f64 = 1e-6;
const KB: f64 = 1024.0;
const MB: f64 = 1024.0 * KB;

/// Source, fetch, decode and batches of 16, on as many threads as CPUs.
pub(crate) fn images(fetch: StageSpec, decode: Times, threads: usize, step: Times) -> PipelineSpec {
    PipelineSpec {
        threads,
        cpus: threads,
        others: 0.0,
        gil: false,
        memory: 0.0,
        stages: vec![
            StageSpec::source(2.0 * US),
            fetch,
            StageSpec::cpu("decode", threads, decode),
            StageSpec::batch(16),
        ],
        step,
    }
}

/// A fast store.
fn fast() -> StageSpec {
    StageSpec::fetch(32, Times::Exponential(2.0 * MS))
}

const FAST_STEP: Times = Times::Constant(0.5 * MS);

fn store(stage: StageSpec, store: StoreSpec) -> StageSpec {
    StageSpec { store, ..stage }
}

pub(crate) fn all() -> Vec<Case> {
    let new = |name, limit, spec| Case { name, limit, spec, items: 400, tuned: false };
    let mut cases = vec![
        // 16 in flight of 80 ms each: 200/s, while two threads decode 800/s.
        new(
            "slow store",
            ("latency", Some("fetch")),
            images(
                StageSpec::fetch(16, Times::Exponential(80.0 * MS)),
                Times::Uniform(2.5 * MS),
                2,
                FAST_STEP,
            ),
        ),
        new("bursty store", ("latency", Some("fetch")), {
            let fetch = StageSpec { queue: 256, ..StageSpec::fetch(16, Times::Uniform(10.0 * MS)) };
            let paused = StoreSpec { pauses: Some((0.1, 0.1)), ..StoreSpec::UNLIMITED };
            images(store(fetch, paused), Times::Uniform(1.0 * MS), 2, FAST_STEP)
        }),
        new("slow decode", ("cpu", Some("decode")), {
            images(fast(), Times::Exponential(6.0 * MS), 4, FAST_STEP)
        }),
        new("straggling decode", ("cpu", Some("decode")), {
            let straggling = Times::Straggling { usual: 2.0 * MS, slow: 100.0 * MS, share: 0.02 };
            images(fast(), straggling, 4, FAST_STEP)
        }),
        new("few threads", ("threads", Some("decode")), {
            let spec = images(fast(), Times::Uniform(6.0 * MS), 2, FAST_STEP);
            PipelineSpec { cpus: 8, ..spec }
        }),
        new("functions that wait", ("threads", Some("read")), {
            let read = StageSpec {
                wait: Times::Exponential(9.0 * MS),
                ..StageSpec::cpu("read", 4, Times::Constant(0.5 * MS))
            };
            PipelineSpec {
                cpus: 2,
                stages: vec![StageSpec::source(2.0 * US), read, StageSpec::batch(16)],
                ..images(fast(), FAST_STEP, 4, FAST_STEP)
            }
        }),
        new("other programs", ("other-programs", Some("decode")), {
            let spec = images(fast(), Times::Uniform(4.0 * MS), 4, FAST_STEP);
            PipelineSpec { others: 2.5, ..spec }
        }),
        new("GIL-bound function", ("gil", Some("tokenize")), {
            let tokenize = StageSpec {
                holds_gil: true,
                ..StageSpec::cpu("tokenize", 4, Times::Uniform(3.0 * MS))
            };
            let spec = images(fast(), FAST_STEP, 4, FAST_STEP);
            let stages = vec![StageSpec::source(2.0 * US), fast(), tokenize, StageSpec::batch(16)];
            PipelineSpec { gil: true, stages, ..spec }
        }),
        new("concurrency of one", ("concurrency", Some("parse")), {
            let parse = StageSpec::cpu("parse", 1, Times::Exponential(4.0 * MS));
            let spec = images(fast(), Times::Uniform(2.0 * MS), 4, FAST_STEP);
            let mut stages = spec.stages.clone();
            stages.insert(2, parse);
            PipelineSpec { stages, ..spec }
        }),
        new("slow source", ("source", Some("source")), {
            let spec = images(fast(), Times::Uniform(2.0 * MS), 4, FAST_STEP);
            let mut stages = spec.stages.clone();
            stages[0] = StageSpec::source(3.0 * MS);
            PipelineSpec { stages, ..spec }
        }),
        // Both stages would reach about the same rate, but the queue between them is short.
        new("tiny queue", ("queue", Some("decode")), {
            let decode = StageSpec {
                queue: 1,
                dedicated: true,
                ..StageSpec::cpu("decode", 1, Times::Exponential(5.0 * MS))
            };
            let augment = StageSpec {
                dedicated: true,
                ..StageSpec::cpu("augment", 1, Times::Exponential(5.0 * MS))
            };
            let spec = images(fast(), FAST_STEP, 4, FAST_STEP);
            let source = StageSpec::source(2.0 * US);
            let stages = vec![source, fast(), decode, augment, StageSpec::batch(16)];
            PipelineSpec { stages, ..spec }
        }),
        new("memory-bound", ("memory", None), {
            let fetch = StageSpec::fetch(64, Times::Exponential(50.0 * MS));
            let fetch = StageSpec { bytes: 4.0 * MB, ..fetch };
            let spec = images(fetch, Times::Uniform(1.0 * MS), 4, FAST_STEP);
            PipelineSpec { memory: 128.0 * MB, ..spec }
        }),
        new("ordered straggler", ("order", Some("decode")), {
            let straggling = Times::Straggling { usual: 2.0 * MS, slow: 300.0 * MS, share: 0.01 };
            let mut spec = images(fast(), straggling, 4, FAST_STEP);
            (spec.stages[2].ordered, spec.stages[2].queue) = (true, 16);
            spec
        }),
        new("ordered slow requests", ("order", Some("fetch")), {
            let slow = Times::Straggling { usual: 10.0 * MS, slow: 500.0 * MS, share: 0.01 };
            let fetch = StageSpec { ordered: true, ..StageSpec::fetch(16, slow) };
            images(fetch, Times::Uniform(1.0 * MS), 4, FAST_STEP)
        }),
        new("consumer-bound", ("consumer", None), {
            images(fast(), Times::Uniform(2.0 * MS), 4, Times::Constant(20.0 * MS))
        }),
        new("mixed: store and CPU", ("latency", Some("fetch")), {
            let fetch = StageSpec::fetch(16, Times::Exponential(30.0 * MS));
            images(fetch, Times::Uniform(5.0 * MS), 4, FAST_STEP)
        }),
        new("mixed: CPU and consumer", ("cpu", Some("decode")), {
            images(fast(), Times::Exponential(5.0 * MS), 4, Times::Constant(14.0 * MS))
        }),
    ];
    let tuned = |name, limit, spec| Case { tuned: true, ..new(name, limit, spec) };
    cases.extend([
        tuned("network bandwidth", ("bandwidth", Some("fetch")), {
            let fetch = StageSpec { bytes: MB, ..StageSpec::fetch(32, Times::Uniform(5.0 * MS)) };
            let link = StoreSpec { bandwidth: 120.0 * MB, ..StoreSpec::UNLIMITED };
            images(store(fetch, link), Times::Uniform(4.0 * MS), 4, FAST_STEP)
        }),
        tuned("IOPS of a disk", ("requests", Some("fetch")), {
            let fetch =
                StageSpec { bytes: 64.0 * KB, ..StageSpec::fetch(32, Times::Uniform(8.0 * MS)) };
            let disk = StoreSpec {
                medium: Medium::Disk,
                requests_per_second: 400.0,
                ..StoreSpec::UNLIMITED
            };
            images(store(fetch, disk), Times::Uniform(2.0 * MS), 4, FAST_STEP)
        }),
        tuned("cache-bound", ("requests", Some("fetch")), {
            let fetch = StageSpec {
                cache: Some((0.4, 0.2 * MS)),
                bytes: 100.0 * KB,
                ..StageSpec::fetch(48, Times::Uniform(20.0 * MS))
            };
            let slow = StoreSpec { requests_per_second: 250.0, ..StoreSpec::UNLIMITED };
            images(store(fetch, slow), Times::Uniform(3.0 * MS), 4, FAST_STEP)
        }),
    ]);
    cases
}
