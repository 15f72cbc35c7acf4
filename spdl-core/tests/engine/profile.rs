//! Profiles: each stage is measured separately at several concurrencies.

use std::time::Duration;

use crate::common::{bad_number, numbers, within_seconds};
use spdl_core::pipeline::{Profile, ProfileOptions, path};
use spdl_core::{DatasetSource, ErrorKind, OnError, Order, PipelineBuilder, StageOptions};

fn options(items: usize, concurrency: &[usize]) -> ProfileOptions {
    let mut options = ProfileOptions::default();
    options.items = items;
    options.concurrency = concurrency.to_vec();
    options
}

/// Long compared with the time that a thread may wait for a CPU.
fn nap(n: i64) -> spdl_core::Result<i64> {
    std::thread::sleep(Duration::from_millis(8));
    Ok(n)
}

/// The number of items of a stage, and the number of its rates.
fn done(profile: &Profile, stage: &str) -> (u64, usize) {
    let Some(stage) = profile.stages.iter().find(|found| &*found.name == stage) else {
        panic!("no stage {stage}");
    };
    (stage.rates.iter().map(|rate| rate.items).sum(), stage.rates.len())
}

// promise: CORE1
// feature: T01
#[test]
fn each_stage_is_measured_separately_at_each_concurrency() {
    within_seconds(60, || {
        let mut reported = Vec::new();
        let profile = PipelineBuilder::new(DatasetSource::new((0..10_000).collect::<Vec<i64>>()))
            .epochs(0..)
            .map("nap", nap)
            .map_async("wait", |n: i64| async move { Ok(n) })
            .batch("batch", 8, false)
            .map("sum", |items: Vec<i64>| Ok(items.len()))
            .threads(1)
            .profile(&options(160, &[8, 1]), |stage| reported.push(stage.name.to_string()))
            .unwrap();
        assert_eq!(reported, ["nap", "wait", "batch", "sum"]);
        let (napped, rates) = done(&profile, "nap");
        assert!(rates == 2 && (150..=160).contains(&napped), "{profile}");
        // Items that finish between two concurrencies count for neither.
        let (waited, rates) = done(&profile, "wait");
        assert!(rates >= 1 && (80..=160).contains(&waited), "{profile}");
        assert_eq!(done(&profile, "batch"), (160, 1));
        assert_eq!(done(&profile, "sum").0, 20);
        let nap = &profile.stages[0].rates;
        assert_eq!((nap[0].concurrency, nap[1].concurrency), (8, 1));
        assert!(nap[0].items_per_second > 2.0 * nap[1].items_per_second, "{profile}");
        assert!(nap[1].busy > 0.7, "{profile}");
        let rates: usize = profile.stages.iter().map(|stage| stage.rates.len()).sum();
        assert_eq!(profile.to_string().lines().count(), 1 + rates);
    });
}

// promise: CORE1
// feature: T01
#[test]
fn failed_items_are_dropped_for_any_policy() {
    within_seconds(60, || {
        let profile = PipelineBuilder::new(numbers(60))
            .map(StageOptions::new("pick").on_error(OnError::Raise), |n| {
                if n % 3 == 0 { Err(bad_number(n)) } else { Ok(n) }
            })
            .map("keep", Ok)
            .profile(&options(60, &[2]), |_| {})
            .unwrap();
        assert_eq!((done(&profile, "pick").0, done(&profile, "keep").0), (60, 40), "{profile}");
    });
}

// promise: CORE1
// feature: T01
#[test]
fn paths_and_merges_do_not_block_a_profile() {
    within_seconds(60, || {
        let branch = |from: i64, name: &str| {
            PipelineBuilder::new(DatasetSource::new((from..from + 600).collect::<Vec<_>>()))
                .map(name, Ok)
        };
        let merged =
            PipelineBuilder::merge([branch(0, "a"), branch(1000, "b")], spdl_core::stage::Arrival);
        let profile = merged
            .route(
                StageOptions::new("way").order(Order::Input),
                |n| Ok((n % 2) as usize),
                [path(|even| even.map("even", Ok)), path(|odd| odd.map("odd", Ok))],
            )
            .map("last", Ok)
            .profile(&options(600, &[2]), |_| {})
            .unwrap();
        for (stage, items) in [("a", 600), ("b", 600), ("way", 1200), ("last", 1200)] {
            assert_eq!(done(&profile, stage).0, items, "{stage}\n{profile}");
        }
    });
}

// promise: CORE1
// feature: T01
#[test]
fn invalid_options_are_refused() {
    for options in [options(0, &[1]), options(10, &[]), options(10, &[2, 0])] {
        let profile = PipelineBuilder::new(numbers(10)).map("a", Ok).profile(&options, |_| {});
        assert_eq!(profile.unwrap_err().kind(), ErrorKind::InvalidArgument, "{options:?}");
    }
}
