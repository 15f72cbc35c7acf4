//! Reports of stages that make no progress.

use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use futures_util::StreamExt;
use spdl_core::observe::{StageKind, Stall, StallCause};
use spdl_core::runtime::CpuExecutor;
use spdl_core::{Pipeline, PipelineBuilder, Result, block_on};

/// Time without progress.
const SHORT: Duration = Duration::from_millis(100);

/// Without a report, a test continues after this time and fails.
const LONG: Duration = Duration::from_secs(20);

/// A function that blocks at item 3 until the gate is dropped.
fn gated(gate: Receiver<()>) -> impl Fn(u32) -> Result<u32> + Send + Sync + Clone {
    let gate = Arc::new(Mutex::new(gate));
    move |n| {
        if n == 3 {
            let _ = gate.lock().expect("not poisoned").recv_timeout(LONG);
        }
        Ok(n)
    }
}

/// Builds a pipeline whose first stall opens the gate, and returns all stalls.
fn watched(
    builder: PipelineBuilder<u32>,
    open: mpsc::Sender<()>,
) -> (Pipeline<u32>, Receiver<Stall>) {
    let (sender, stalls) = mpsc::channel();
    let open = Mutex::new(Some(open));
    let listener = move |stall: &Stall| {
        drop(open.lock().expect("not poisoned").take());
        let _ = sender.send(stall.clone());
    };
    (builder.on_stall(SHORT, listener).build().expect("the pipeline is valid"), stalls)
}

fn first_stall(builder: PipelineBuilder<u32>, open: mpsc::Sender<()>) -> Stall {
    let (mut pipeline, stalls) = watched(builder, open);
    let items: Result<Vec<u32>> = pipeline.by_ref().collect();
    assert!(items.is_ok_and(|items| items.len() == 6));
    drop(pipeline);
    stalls.iter().next().expect("a stall was reported")
}

#[test]
// promise: R18
fn a_stage_whose_function_blocks_is_named() {
    let (open, gate) = mpsc::channel();
    let builder = PipelineBuilder::from_iter(0..6)
        .map("before", Ok)
        .map("blocks", gated(gate))
        .map("after", Ok)
        .threads(3);
    let stall = first_stall(builder, open);
    assert_eq!((&*stall.stage, stall.kind), ("blocks", StageKind::Cpu));
    assert_eq!(stall.cause, StallCause::Function);
    assert!(stall.lasted >= SHORT && stall.items <= 5, "{stall}");
}

#[test]
// promise: R18
fn an_async_function_that_blocks_its_thread_is_named() {
    let (open, gate) = mpsc::channel();
    let blocks = gated(gate);
    let builder = PipelineBuilder::from_iter(0..6).map_async("blocks", move |n| {
        let blocks = blocks.clone();
        async move { blocks(n) }
    });
    let stall = first_stall(builder, open);
    assert_eq!((&*stall.stage, stall.cause), ("blocks", StallCause::Function));
}

#[test]
// promise: R18
fn a_source_that_blocks_is_named() {
    let (open, gate) = mpsc::channel();
    let blocks = gated(gate);
    let items = (0..6).map(move |n| blocks(n).unwrap());
    let stall = first_stall(PipelineBuilder::from_iter(items).map("after", Ok), open);
    assert_eq!((stall.kind, stall.cause), (StageKind::Source, StallCause::Source));
    assert_eq!(stall.items, 3);
}

#[test]
// promise: R18
fn a_stall_is_reported_while_a_stream_is_awaited() {
    let (open, gate) = mpsc::channel();
    let builder = PipelineBuilder::from_iter(0..6).map("blocks", gated(gate));
    let (pipeline, stalls) = watched(builder, open);
    assert_eq!(block_on(pipeline.into_stream().count()), 6);
    assert_eq!(&*stalls.iter().next().expect("a stall was reported").stage, "blocks");
}

/// Runs the first worker of each request only after the gate is open.
#[derive(Debug)]
struct LateExecutor(Arc<Mutex<Receiver<()>>>);

impl CpuExecutor for LateExecutor {
    fn execute(&self, work: Box<dyn FnOnce() + Send>) {
        let gate = Arc::clone(&self.0);
        thread::spawn(move || {
            let _ = gate.lock().expect("not poisoned").recv_timeout(LONG);
            work();
        });
    }

    fn parallelism(&self) -> usize {
        1
    }
}

#[test]
// promise: R18
fn a_stage_without_a_worker_is_named() {
    let (open, gate) = mpsc::channel();
    let executor = LateExecutor(Arc::new(Mutex::new(gate)));
    let builder = PipelineBuilder::from_iter(0..6).map("waits", Ok).executor(Arc::new(executor));
    let stall = first_stall(builder, open);
    assert_eq!((&*stall.stage, stall.cause, stall.items), ("waits", StallCause::Worker, 0));
}

#[test]
// promise: R18
fn a_slow_consumer_is_not_a_stall() {
    const AFTER: Duration = Duration::from_secs(1);
    let (sender, stalls) = mpsc::channel();
    let mut pipeline = PipelineBuilder::from_iter(0..1000_u32)
        .map("quick", Ok)
        .batch("batch", 2, false)
        .on_stall(AFTER, move |stall| drop(sender.send(stall.clone())))
        .build()
        .unwrap();
    for _ in 0..2 {
        assert!(pipeline.next().is_some_and(|item| item.is_ok()));
        thread::sleep(3 * AFTER);
    }
    assert_eq!(pipeline.by_ref().count(), 498);
    drop(pipeline);
    assert_eq!(stalls.iter().next(), None);
}
