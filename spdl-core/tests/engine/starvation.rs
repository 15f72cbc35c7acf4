//! Reports of a consumer that waits for data for much of the time.

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use spdl_core::observe::{Limit, Starvation};
use spdl_core::{Pipeline, PipelineBuilder};

/// A pipeline with a stage that takes 5 ms for each item, and its reports of starvation.
fn watched(items: u32) -> (Pipeline<u32>, Receiver<Starvation>) {
    let (sender, reports) = mpsc::channel();
    let slow = |n| {
        thread::sleep(Duration::from_millis(5));
        Ok(n)
    };
    let pipeline = PipelineBuilder::from_iter(0..items)
        .map("slow", slow)
        .threads(1)
        .on_starvation(Duration::from_millis(100), move |it| drop(sender.send(it.clone())))
        .build()
        .expect("the pipeline is valid");
    (pipeline, reports)
}

#[test]
fn a_starving_consumer_is_reported_with_the_diagnosis_in_each_interval() {
    let (pipeline, reports) = watched(150);
    assert_eq!(pipeline.count(), 150);
    let reports: Vec<Starvation> = reports.iter().collect();
    // The items take at least 750 ms.
    assert!((2..=10).contains(&reports.len()), "{reports:?}");
    for report in &reports {
        assert!(report.waited > 0.5 && report.waited <= 1.0, "{report:?}");
        // On a busy machine, the thread also waits for a CPU, while its queue is empty or full.
        let limit = &report.diagnosis.limit;
        assert!(matches!(limit, Limit::Threads { .. } | Limit::Queue { .. }), "{report:?}");
        assert!(report.to_string().contains("slow"), "{report}");
    }
    assert!(reports.iter().skip(1).all(|report| report.length >= Duration::from_millis(100)));
}

#[test]
fn a_slow_consumer_is_not_reported() {
    let (pipeline, reports) = watched(20);
    for item in pipeline {
        assert!(item.is_ok());
        thread::sleep(Duration::from_millis(25));
    }
    assert!(reports.iter().next().is_none());
}

#[test]
fn a_pause_of_the_consumer_is_not_reported() {
    let (mut pipeline, reports) = watched(60);
    for _ in 0..5 {
        assert!(pipeline.next().is_some());
        thread::sleep(Duration::from_millis(400));
    }
    drop(pipeline);
    assert!(reports.iter().next().is_none());
}
