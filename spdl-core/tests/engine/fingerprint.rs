//! Fingerprints: which settings a resumed run must share with the first run, and the messages
//! otherwise.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use spdl_core::pipeline::path;
use spdl_core::{DatasetSource, Error, ErrorKind, PipelineBuilder, Result, StageOptions, State};

fn numbers() -> PipelineBuilder<i64> {
    PipelineBuilder::new(DatasetSource::new((0..12).collect::<Vec<i64>>())).deterministic()
}

/// The state after the first item.
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

fn assert_refused<T: Send + 'static>(builder: PipelineBuilder<T>, state: State, words: &str) {
    let error = refusal(builder.resume(state));
    assert!(error.message().contains(words), "{error}");
}

#[test]
fn stage_names_with_a_common_prefix_are_distinguished() {
    let build = |size| numbers().batch("batch", size, false).map("batch size", Ok);
    assert_refused(build(5), begun(build(4)), "stage batch: size was 4, is 5");

    let scaled = |factor: i64| {
        let options = StageOptions::new("a b").parameter("factor", factor);
        numbers().map("a", Ok).map(options, move |n| Ok(n * factor))
    };
    let state = begun(scaled(1));
    assert_refused(
        scaled(2),
        state.clone().allow_change("stage a"),
        "stage a b: factor was 1, is 2",
    );
    assert!(scaled(2).resume(state.allow_change("stage a b")).build().is_ok());
}

#[test]
fn a_parameter_with_a_reserved_name_is_refused() {
    let batched = numbers().batch(StageOptions::new("batch").parameter("size", "large"), 3, false);
    assert!(refusal(batched).message().contains("\"stage batch: size\""));
    // The threads of a stage are not part of its fingerprint, but its parameters are.
    let with_cpus = |cpus: i32| numbers().map(StageOptions::new("map").parameter("cpus", cpus), Ok);
    assert_refused(with_cpus(2), begun(with_cpus(1)), "stage map: cpus was 1, is 2");
    let sized = |size: i32| {
        let options = StageOptions::new("source").parameter("version", size);
        let source = DatasetSource::new((0..12).collect::<Vec<i64>>());
        PipelineBuilder::from_source(options, source).deterministic()
    };
    assert_refused(sized(2), begun(sized(1)), "stage source: version was 1, is 2");
}

#[test]
fn a_stage_that_moves_to_another_path_is_reported() {
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
    assert_refused(
        outside(),
        state.clone(),
        "stage b was cpu, first of branch 1 of route, is cpu behind a",
    );
    assert_refused(outside(), state, "stage c was cpu behind b, is cpu behind route");
}

#[test]
fn an_inserted_stage_changes_only_the_next_one() {
    let build = || numbers().map("first", Ok).map("second", Ok);
    let longer = || numbers().map("new", Ok).map("first", Ok).map("second", Ok);
    let error = refusal(longer().resume(begun(build())));
    let message = error.message();
    assert!(message.contains("stage new was absent"), "{error}");
    assert!(message.contains("stage first was cpu behind source"), "{error}");
    assert!(!message.contains("stage second"), "{error}");
}

#[test]
fn states_and_random_numbers_know_a_stage_by_its_identity() {
    let run = |name: &str, state: Option<State>| {
        let named = |stage: &str| {
            StageOptions::new(&format!("{name}:{stage}")).identity(stage).concurrency(1)
        };
        let builder = numbers()
            .flat_map(named("pieces"), |n| [Ok(n), Ok(n)])
            .stage(named("draw"), || Ok(Draw))
            .batch(named("batch"), 3, false)
            .unbatch(named("split"));
        let builder = match state {
            Some(state) => builder.resume(state),
            None => builder,
        };
        builder.build().unwrap()
    };
    let whole: Vec<u64> = run("one", None).map(Result::unwrap).collect();
    for count in [0, 1, 5, 10, 24] {
        let mut first = run("two", None);
        let start: Vec<u64> = first.by_ref().take(count).map(Result::unwrap).collect();
        let rest = run("three", Some(first.state().unwrap())).map(Result::unwrap);
        assert_eq!(start.into_iter().chain(rest).collect::<Vec<_>>(), whole, "{count}");
    }
}

struct Draw;

impl spdl_core::Stage<i64> for Draw {
    type Out = u64;

    fn process(&mut self, _: i64, cx: &mut spdl_core::StageContext<'_, u64>) -> Result<()> {
        let number = cx.rng().next_u64();
        cx.emit(number)
    }
}

#[test]
fn a_list_in_part_resumes_if_each_stage_keeps_the_order_in_some_way() {
    use spdl_core::Order;
    let resume = |order: Order, concurrency: usize| {
        let build = || {
            let source = DatasetSource::new((0..12).collect::<Vec<i64>>());
            let wait = StageOptions::new("wait").order(order).concurrency(concurrency);
            PipelineBuilder::new(source)
                .map_async(wait, |n| async move { Ok(n) })
                .batch("batch", 4, false)
                .unbatch(StageOptions::new("split").concurrency(1))
        };
        let state = begun(build());
        build().resume(state).build().map(|pipeline| pipeline.count())
    };
    assert_eq!(resume(Order::Input, 3).unwrap(), 11);
    assert_eq!(resume(Order::Completion, 1).unwrap(), 11);
    assert!(resume(Order::Completion, 3).unwrap_err().message().contains("in part"));
}
