//! The tuner, tested with simulated pipelines.

use std::time::Duration;

use spdl_core::observe::{SettingChange, StageKind, Tuner, TuningDecision};

use super::pipelines::{self, Case};
use super::simulator::{PipelineSpec, Simulation, StageSpec, Times};

/// Runs a pipeline for about `seconds` and tunes it. Returns delivered items per second.
fn tune(simulation: &mut Simulation, tuner: &mut Tuner, seconds: f64) -> f64 {
    tune_for(simulation, tuner, seconds).0
}

/// [`tune`], which also returns the exact time.
fn tune_for(simulation: &mut Simulation, tuner: &mut Tuner, seconds: f64) -> (f64, Duration) {
    let (mut delivered, mut elapsed) = (0, Duration::ZERO);
    while elapsed.as_secs_f64() < seconds {
        simulation.run_for(tuner.length());
        let interval = simulation.next_interval();
        delivered += interval.consumer.items;
        elapsed += interval.length;
        if let Some(change) = tuner.next(&interval) {
            simulation.apply(&change);
        }
    }
    (delivered as f64 / elapsed.as_secs_f64(), elapsed)
}

/// The throughput of a pipeline with changes that are made at the start.
fn fixed(spec: &PipelineSpec, changes: &[SettingChange]) -> f64 {
    let mut simulation = Simulation::new(spec.clone());
    changes.iter().for_each(|change| simulation.apply(change));
    simulation.run_for(Duration::from_secs(4));
    simulation.reset();
    simulation.run_for(Duration::from_secs(24));
    simulation.throughput()
}

/// The highest throughput in a grid of settings that the tuner may change.
fn best_of_grid(spec: &PipelineSpec) -> (f64, Vec<SettingChange>) {
    let mut best = (0.0, Vec::new());
    for threads in [1, 4, 8].map(|factor| spec.threads * factor) {
        for window in [1, 4] {
            for queue in [1, 16] {
                let mut changes = vec![SettingChange::Threads { threads }];
                for stage in &spec.stages {
                    let name = || stage.name.into();
                    if stage.kind == StageKind::Async {
                        let items = stage.concurrency * window;
                        changes.push(SettingChange::Concurrency { stage: name(), items });
                    }
                    let items = stage.queue * queue;
                    if stage.kind != StageKind::Source && queue > 1 {
                        changes.push(SettingChange::Queue { stage: name(), items });
                    }
                }
                let rate = fixed(spec, &changes);
                if rate > best.0 {
                    best = (rate, changes);
                }
            }
        }
    }
    best
}

#[test]
fn tuned_pipelines_are_nearly_as_fast_as_the_best_of_a_grid() {
    let mut failed = Vec::new();
    for Case { name, spec, .. } in pipelines::all() {
        let (best, settings) = best_of_grid(&spec);
        let mut default = Simulation::new(spec.clone());
        let default = [10, 20].map(|seconds| {
            default.reset();
            default.run_for(Duration::from_secs(seconds));
            default.throughput()
        });
        let mut simulation = Simulation::new(spec.clone());
        let mut tuner = Tuner::new();
        let early = tune(&mut simulation, &mut tuner, 10.0);
        let late = tune(&mut simulation, &mut tuner, 20.0);
        println!("{name}: default {default:.1?}, best {best:.1}, tuned {early:.1}, then {late:.1}");
        tuner.decisions().for_each(|it| println!("  {it}"));
        if late < 0.95 * best {
            println!("  TOO SLOW: {settings:?}");
            failed.push(name);
        }
        if early < 0.98 * default[0] || late < 0.98 * default[1] {
            println!("  WORSE THAN THE DEFAULT");
            failed.push(name);
        }
        let (mut simulation, mut default) = (Simulation::new(spec.clone()), Simulation::new(spec));
        let mut tuner = Tuner::new().only_waiting();
        for seconds in [10.0, 20.0] {
            let (tuned, elapsed) = tune_for(&mut simulation, &mut tuner, seconds);
            default.reset();
            default.run_for(elapsed);
            println!("  only threads that wait: {tuned:.1}");
            if tuned < 0.98 * default.throughput() {
                println!("  WORSE THAN THE DEFAULT: {:.1}", default.throughput());
                failed.push(name);
            }
        }
        tuner.decisions().for_each(|it| println!("  {it}"));
    }
    assert_eq!(failed, Vec::<&str>::new());
}

/// 16 requests in flight of 5 ms, two threads that decode 800 items/s, batches of 16.
fn stored() -> PipelineSpec {
    let fetch = StageSpec::fetch(16, Times::Exponential(0.005));
    pipelines::images(fetch, Times::Uniform(0.0025), 2, Times::Constant(0.0005))
}

#[test]
fn a_tuned_pipeline_recovers_from_a_jump_of_the_latency() {
    let slower = SettingChange::Cost { stage: "fetch".into(), factor: 16.0 };
    let (best, _) = best_of_grid(&{
        let mut spec = stored();
        spec.stages[1].wait = Times::Exponential(0.08);
        spec
    });
    let (mut simulation, mut tuner) = (Simulation::new(stored()), Tuner::new());
    tune(&mut simulation, &mut tuner, 5.0);
    let before = tuner.decisions().len();
    simulation.apply(&slower);
    tune(&mut simulation, &mut tuner, 10.0);
    let after = tune(&mut simulation, &mut tuner, 10.0);
    tuner.decisions().for_each(|it| println!("{it}"));
    assert!(after >= 0.95 * best, "{after} of {best}");
    let window = |it: &&TuningDecision| matches!(it.change, SettingChange::Concurrency { .. });
    let raised = tuner.decisions().skip(before).find(window).unwrap();
    assert!(raised.kept == Some(true) && raised.to() > raised.from, "{raised}");
    assert_eq!(raised.setting(), ("concurrency", Some("fetch")));
    assert!(raised.to_string().contains("\"fetch\" concurrency 16 →"), "{raised}");
}

#[test]
fn a_window_shrinks_after_the_latency_has_fallen() {
    let mut spec = stored();
    spec.stages[1].wait = Times::Exponential(0.08);
    let (mut simulation, mut tuner) = (Simulation::new(spec.clone()), Tuner::new());
    tune(&mut simulation, &mut tuner, 20.0);
    let window = |simulation: &mut Simulation| simulation.statistics().stages[1].concurrency;
    let large = window(&mut simulation);
    assert!(large >= 64, "{large}");
    let faster = SettingChange::Cost { stage: "fetch".into(), factor: 5.0 / 80.0 };
    simulation.apply(&faster);
    tune(&mut simulation, &mut tuner, 20.0);
    let after = tune(&mut simulation, &mut tuner, 20.0);
    tuner.decisions().for_each(|it| println!("{it}"));
    // 800 items/s of 5 ms need 4 in flight.
    assert_eq!(window(&mut simulation), 16);
    let unchanged = fixed(&spec, &[faster, concurrency(large)]);
    assert!(after >= 0.98 * unchanged, "{after} of {unchanged}");
}

fn concurrency(items: usize) -> SettingChange {
    SettingChange::Concurrency { stage: "fetch".into(), items }
}

#[test]
fn nothing_grows_while_stages_wait_for_memory() {
    // Two of eight CPUs decode. The memory is too small for a full queue and a nearly full batch.
    let fetch = StageSpec { bytes: 1e6, ..StageSpec::fetch(16, Times::Exponential(0.02)) };
    let mut spec = pipelines::images(fetch, Times::Uniform(0.006), 2, Times::Constant(0.0005));
    (spec.cpus, spec.memory) = (8, 45e6);
    for mut tuner in [Tuner::new(), Tuner::new().only_waiting()] {
        tune(&mut Simulation::new(spec.clone()), &mut tuner, 20.0);
        let raised: Vec<_> = tuner.decisions().filter(|it| it.to() > it.from).collect();
        assert!(raised.is_empty(), "{raised:#?}");
    }
}

#[test]
fn a_tuned_pipeline_follows_its_consumer() {
    let mut spec = stored();
    spec.stages[1].wait = Times::Exponential(0.08);
    // 100 items/s, while 16 requests in flight reach 200.
    spec.step = Times::Constant(0.16);
    let (mut simulation, mut tuner) = (Simulation::new(spec), Tuner::new());
    tune(&mut simulation, &mut tuner, 10.0);
    assert_eq!(tuner.decisions().len(), 0, "nothing but the consumer limits");
    simulation.apply(&SettingChange::StepTime { time: Duration::from_millis(25) });
    tune(&mut simulation, &mut tuner, 10.0);
    // 640 items/s, or 40 batches.
    let after = tune(&mut simulation, &mut tuner, 10.0);
    tuner.decisions().for_each(|it| println!("{it}"));
    assert!(after >= 0.95 * 40.0, "{after}");
}

#[test]
fn a_stage_may_keep_its_concurrency() {
    let mut spec = stored();
    spec.stages[1].wait = Times::Exponential(0.08);
    let (mut simulation, mut tuner) =
        (Simulation::new(spec), Tuner::new().keep_concurrency("fetch"));
    tune(&mut simulation, &mut tuner, 10.0);
    let concurrency = |it: &TuningDecision| matches!(it.change, SettingChange::Concurrency { .. });
    assert!(!tuner.decisions().any(concurrency));
}

#[test]
fn threads_that_wait_for_the_gil_are_reduced() {
    let case = pipelines::all().into_iter().find(|case| case.name == "GIL-bound function").unwrap();
    let (mut simulation, mut tuner) = (Simulation::new(case.spec), Tuner::new());
    tune(&mut simulation, &mut tuner, 10.0);
    let threads = tuner.decisions().filter(|it| it.setting().0 == "threads");
    let threads = threads.map(|it| (it.setting(), it.from, it.to(), it.kept));
    let fewer = |from, to| (("threads", None), from, to, Some(true));
    assert_eq!(threads.collect::<Vec<_>>(), [fewer(4, 2), fewer(2, 1)]);
}
