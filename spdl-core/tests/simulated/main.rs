//! The model and the diagnosis, tested with simulated pipelines whose limits are known.

mod pipelines;
mod simulator;
mod tuning;

use std::time::Duration;

use pipelines::Case;
use simulator::{PipelineSpec, Simulation, StageSpec, StoreSpec, Times};
use spdl_core::observe::{Limit, PipelineModel, Resource, SettingChange, StageKind};

/// Runs a pipeline: first a fifth of the items with half of the in-flight window if the window is
/// tuned, or as a start-up otherwise; then all items, which are measured.
fn run(case: &Case, changes: &[SettingChange]) -> Simulation {
    let mut simulation = Simulation::new(case.spec.clone());
    changes.iter().for_each(|change| simulation.apply(change));
    let fetch = case.spec.stages.iter().find(|stage| stage.kind == StageKind::Async);
    let window = fetch.map_or(0, |stage| stage.concurrency);
    let resize = |items| SettingChange::Concurrency { stage: "fetch".into(), items };
    let is_changed =
        changes.iter().any(|change| matches!(change, SettingChange::Concurrency { .. }));
    let grows = case.tuned && !is_changed;
    if grows {
        simulation.apply(&resize(window / 2));
    }
    simulation.run_items(case.items / 5);
    if grows {
        simulation.apply(&resize(window));
    }
    simulation.run_items(case.items / 20);
    simulation.reset();
    simulation.run_items(case.items);
    simulation
}

/// The kind of a limit, as in JSON, and its stage.
fn kind(limit: &Limit) -> (&'static str, Option<String>) {
    let of = |stage: &str| Some(stage.to_owned());
    match limit {
        Limit::Consumer { .. } => ("consumer", None),
        Limit::Cpu { stage, .. } => ("cpu", of(stage)),
        Limit::OtherPrograms { stage, .. } => ("other-programs", of(stage)),
        Limit::Threads { stage, .. } => ("threads", of(stage)),
        Limit::Gil { stage, .. } => ("gil", of(stage)),
        Limit::Source { stage, .. } => ("source", of(stage)),
        Limit::Memory { .. } => ("memory", None),
        Limit::Latency { stage, .. } => ("latency", of(stage)),
        Limit::Bandwidth { stage, .. } => ("bandwidth", of(stage)),
        Limit::Requests { stage, .. } => ("requests", of(stage)),
        Limit::Concurrency { stage, .. } => ("concurrency", of(stage)),
        Limit::Queue { stage, .. } => ("queue", of(stage)),
        Limit::Order { stage, .. } => ("order", of(stage)),
        _ => ("unknown", None),
    }
}

#[test]
fn limits_of_simulated_pipelines_are_named_and_gains_are_predicted() {
    let cases = pipelines::all();
    assert_eq!(cases.len(), 20);
    let (mut named, mut predicted) = (0, 0);
    for case in &cases {
        let mut simulation = run(case, &[]);
        let before = simulation.throughput();
        let diagnosis = simulation.statistics().diagnose();
        let (name, stage) = kind(&diagnosis.limit);
        let is_named = (name, stage.as_deref()) == case.limit;
        named += usize::from(is_named);
        println!("{}: {diagnosis}", case.name);
        if !is_named {
            println!("  WRONG LIMIT: expected {:?}", case.limit);
        }
        let Some(best) = diagnosis.helps.first() else {
            println!("  NO CHANGE HELPS");
            continue;
        };
        let after = run(case, std::slice::from_ref(&best.change)).throughput();
        let (expected, gained) = (best.prediction.gain, after / before - 1.0);
        let is_predicted = (expected / gained - 1.0).abs() <= 0.15;
        predicted += usize::from(is_predicted);
        println!(
            "  {:?}: predicted {:+.1} %, measured {:+.1} %{}",
            best.change,
            expected * 100.0,
            gained * 100.0,
            if is_predicted { "" } else { "  WRONG PREDICTION" },
        );
    }
    assert_eq!(named, 20, "limits named right");
    assert!(predicted >= 18, "{predicted} of 20 gains predicted");
}

/// Source, one stage, and a consumer that takes no time, with two threads on two CPUs.
fn of_stage(stage: StageSpec) -> PipelineSpec {
    PipelineSpec {
        threads: 2,
        cpus: 2,
        others: 0.0,
        gil: false,
        memory: 0.0,
        stages: vec![StageSpec::source(0.0), stage],
        step: Times::Constant(1e-9),
    }
}

/// The throughput of a pipeline with one stage.
fn rate(spec: &PipelineSpec) -> f64 {
    let mut simulation = Simulation::new(spec.clone());
    simulation.run_items(500);
    simulation.reset();
    simulation.run_items(4000);
    simulation.throughput()
}

#[track_caller]
fn is_about(value: f64, expected: f64) {
    assert!((value / expected - 1.0).abs() < 0.05, "{value} for {expected}");
}

#[test]
fn the_simulator_has_known_rates() {
    // Little's law: 20 requests in flight of 50 ms.
    let fetch = StageSpec::fetch(20, Times::Exponential(0.05));
    is_about(rate(&of_stage(fetch.clone())), 400.0);
    // A link of 30 MB/s, and objects of 100 KB.
    let link = StoreSpec { bandwidth: 30e6, ..StoreSpec::UNLIMITED };
    let linked = StageSpec { store: link, bytes: 1e5, ..fetch.clone() };
    is_about(rate(&of_stage(linked)), 300.0);
    let disk = StoreSpec { requests_per_second: 250.0, ..StoreSpec::UNLIMITED };
    is_about(rate(&of_stage(StageSpec { store: disk, ..fetch.clone() })), 250.0);
    let paused = StoreSpec { pauses: Some((1.0, 0.25)), ..StoreSpec::UNLIMITED };
    let steady = StageSpec { wait: Times::Constant(0.05), ..fetch.clone() };
    is_about(rate(&of_stage(StageSpec { store: paused, ..steady })), 320.0);
    // Memory for ten items.
    let large = StageSpec { bytes: 1e6, ..fetch };
    is_about(rate(&PipelineSpec { memory: 10e6, ..of_stage(large) }), 200.0);
    // Two threads that compute, that share one CPU, or that share the GIL.
    let compute = StageSpec::cpu("compute", 2, Times::Exponential(0.01));
    let computing = of_stage(compute.clone());
    is_about(rate(&computing), 200.0);
    is_about(rate(&PipelineSpec { others: 1.0, ..computing }), 100.0);
    let python = of_stage(StageSpec { holds_gil: true, ..compute });
    is_about(rate(&PipelineSpec { gil: true, ..python.clone() }), 100.0);
    is_about(rate(&python), 200.0);
    // A consumer that takes 20 ms.
    let quick = StageSpec::cpu("quick", 2, Times::Constant(0.001));
    is_about(rate(&PipelineSpec { step: Times::Constant(0.02), ..of_stage(quick) }), 50.0);
}

#[test]
fn the_simulator_is_deterministic() {
    let case = &pipelines::all()[0];
    assert_eq!(run(case, &[]).throughput(), run(case, &[]).throughput());
}

#[test]
fn the_configuration_can_change_while_a_simulation_runs() {
    let mut simulation = Simulation::new(of_stage(StageSpec::fetch(10, Times::Exponential(0.05))));
    simulation.run_for(Duration::from_secs(5));
    let mut rate_after = |change: SettingChange| {
        simulation.apply(&change);
        simulation.run_for(Duration::from_secs(2));
        simulation.reset();
        simulation.run_for(Duration::from_secs(20));
        simulation.throughput()
    };
    let fetch = || "fetch".into();
    is_about(rate_after(SettingChange::Concurrency { stage: fetch(), items: 40 }), 800.0);
    is_about(rate_after(SettingChange::Cost { stage: fetch(), factor: 0.5 }), 1600.0);
    is_about(rate_after(SettingChange::Concurrency { stage: fetch(), items: 5 }), 200.0);
    is_about(rate_after(SettingChange::StepTime { time: Duration::from_millis(10) }), 100.0);
}

#[test]
fn the_model_predicts_the_wait_of_the_consumer() {
    // 200 items/s for a consumer that could take 1000/s.
    let fetch = StageSpec::fetch(10, Times::Exponential(0.05));
    let spec = PipelineSpec { step: Times::Constant(0.001), ..of_stage(fetch) };
    let mut simulation = Simulation::new(spec);
    simulation.run_items(500);
    simulation.reset();
    simulation.run_items(4000);
    let model = PipelineModel::from_statistics(&simulation.statistics()).unwrap();
    is_about(model.throughput(), 200.0);
    assert!((0.9..1.1).contains(&model.fit()), "{}", model.fit());
    let now = model.predict(&[]);
    is_about(now.consumer_wait.as_secs_f64(), 0.004);
    assert_eq!(now.limited_by, Resource::Concurrency("fetch".into()));
    // A step that takes longer than loading hides the loading.
    let slower = model.predict(&[SettingChange::StepTime { time: Duration::from_millis(20) }]);
    is_about(slower.throughput, 50.0);
    assert!(slower.consumer_wait < Duration::from_millis(1), "{slower:?}");
    assert_eq!(slower.limited_by, Resource::Consumer);
    // Both changes together: as fast as the consumer.
    let wider = SettingChange::Concurrency { stage: "fetch".into(), items: 200 };
    let quicker = SettingChange::StepTime { time: Duration::from_micros(500) };
    is_about(model.predict(&[wider, quicker]).throughput, 2000.0);
}
