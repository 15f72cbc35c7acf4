//! What a run that goes on must share with the one that began: what is told where it does not.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use spdl_core::pipeline::path;
use spdl_core::{DatasetSource, Error, ErrorKind, PipelineBuilder, Result, StageOptions, State};

fn numbers() -> PipelineBuilder<i64> {
    PipelineBuilder::new(DatasetSource::new((0..12).collect::<Vec<i64>>())).deterministic()
}

/// A state behind the first item.
fn begun<T: Send + 'static>(builder: PipelineBuilder<T>) -> State {
    let mut pipeline = builder.build().unwrap();
    pipeline.next().unwrap().unwrap();
    pipeline.state().unwrap()
}

fn refusal<T: Send + 'static>(builder: PipelineBuilder<T>) -> Error {
    let error = builder.build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    error
}

fn told<T: Send + 'static>(builder: PipelineBuilder<T>, state: State, words: &str) {
    let error = refusal(builder.resume(state));
    assert!(error.message().contains(words), "{error}");
}

#[test]
fn names_that_go_on_from_others_hide_nothing() {
    let build = |size| numbers().batch("batch", size, false).map("batch size", Ok);
    told(build(5), begun(build(4)), "stage batch: size was 4, is 5");

    let scaled = |factor: i64| {
        let options = StageOptions::new("a b").parameter("factor", factor);
        numbers().map("a", Ok).map(options, move |n| Ok(n * factor))
    };
    let state = begun(scaled(1));
    told(scaled(2), state.clone().allow_change("stage a"), "stage a b: factor was 1, is 2");
    assert!(scaled(2).resume(state.allow_change("stage a b")).build().is_ok());
}

#[test]
fn a_parameter_with_a_name_of_the_engine_is_refused() {
    let batched = numbers().batch(StageOptions::new("batch").parameter("size", "large"), 3, false);
    assert!(refusal(batched).message().contains("\"stage batch: size\""));
    // On whose threads a stage runs is no part of it, and its parameters always are.
    let with_cpus = |cpus: i32| numbers().map(StageOptions::new("map").parameter("cpus", cpus), Ok);
    told(with_cpus(2), begun(with_cpus(1)), "stage map: cpus was 1, is 2");
    let sized = |size: i32| {
        let options = StageOptions::new("source").parameter("version", size);
        let source = DatasetSource::new((0..12).collect::<Vec<i64>>());
        PipelineBuilder::from_source(options, source).deterministic()
    };
    told(sized(2), begun(sized(1)), "stage source: version was 1, is 2");
}

#[test]
fn a_stage_that_moves_to_another_path_is_told() {
    let odd = |n: &i64| Ok((n % 2) as usize);
    let negative = |n: i64| -> Result<i64> { Ok(-n) };
    let inside = || {
        let paths = [
            path(|p: PipelineBuilder<i64>| p.map("a", Ok)),
            path(move |p: PipelineBuilder<i64>| p.map("b", Ok).map("c", negative)),
        ];
        numbers().route("route", odd, paths)
    };
    let outside = || {
        let paths = [
            path(|p: PipelineBuilder<i64>| p.map("a", Ok).map("b", Ok)),
            path(|p: PipelineBuilder<i64>| p),
        ];
        numbers().route("route", odd, paths).map("c", negative)
    };
    let state = begun(inside());
    assert!(inside().resume(state.clone()).build().is_ok());
    told(outside(), state.clone(), "stage b was cpu, first of branch 1 of route, is cpu behind a");
    told(outside(), state, "stage c was cpu behind b, is cpu behind route");
}

#[test]
fn a_stage_in_front_changes_none_but_its_neighbour() {
    let build = || numbers().map("first", Ok).map("second", Ok);
    let longer = || numbers().map("new", Ok).map("first", Ok).map("second", Ok);
    let error = refusal(longer().resume(begun(build())));
    let message = error.message();
    assert!(message.contains("stage new was absent"), "{error}");
    assert!(message.contains("stage first was cpu behind source"), "{error}");
    assert!(!message.contains("stage second"), "{error}");
}
