//! Helpers for tests of whole pipelines.
#![allow(dead_code, unreachable_pub, reason = "each test file uses some of these tools")]

use std::sync::mpsc;
use std::time::Duration;

use spdl_core::{
    BatchLayout, DType, DatasetSource, Error, ErrorKind, Field, Fill, FillContext, Pipeline,
    PipelineBuilder, Result, SlotMut,
};

/// Runs a test in a separate thread with a timeout.
pub fn within_seconds<R: Send + 'static>(
    seconds: u64,
    test: impl FnOnce() -> R + Send + 'static,
) -> R {
    let (send, receive) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let result = test();
        let _ = send.send(());
        result
    });
    if receive.recv_timeout(Duration::from_secs(seconds)) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("the test did not end within {seconds} s");
    }
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

pub fn numbers(count: i64) -> DatasetSource<Vec<i64>> {
    DatasetSource::new((0..count).collect())
}

/// Sleeps for up to 255 µs, depending on the number, so that items overtake each other.
pub fn sleep_by_number(n: i64) {
    std::thread::sleep(Duration::from_micros((n as u64).wrapping_mul(0x9e37_79b9) >> 7 & 0xff));
}

pub fn bad_number(n: i64) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{n} is bad"))
}

/// Writes the number; fails or panics for the given numbers.
pub struct WriteNumber {
    pub fails: fn(i64) -> bool,
    pub panics: fn(i64) -> bool,
}

impl Fill<i64> for WriteNumber {
    fn fill(&mut self, n: i64, mut slot: SlotMut<'_>, cx: &mut FillContext<'_>) -> Result<()> {
        sleep_by_number(n);
        slot.set(0, n)?;
        if (self.fails)(n) {
            return Err(bad_number(n));
        }
        assert!(!(self.panics)(n), "panic for {n}");
        slot.set(1, cx.rng().unit() as f32)
    }
}

pub fn layout(batch_size: usize) -> BatchLayout {
    BatchLayout::new(
        batch_size,
        [Field::new("number", DType::I64, &[]), Field::new("noise", DType::F32, &[])],
    )
}

/// Names of the threads of this process that belong to pipelines.
pub fn spdl_threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).filter(|name| name.starts_with("spdl-")).collect()
}

/// All items of a pipeline, none of which may fail.
pub fn delivered<T: Send + 'static>(builder: PipelineBuilder<T>) -> Vec<T> {
    let pipeline = builder.build().expect("the settings are valid");
    pipeline.map(|item| item.expect("no item fails")).collect()
}

/// All items of a pipeline, sorted.
pub fn delivered_sorted<T: Send + Ord + 'static>(builder: PipelineBuilder<T>) -> Vec<T> {
    let mut items = delivered(builder);
    items.sort_unstable();
    items
}

/// The items before the error of a pipeline, and the error, which must be returned once.
pub fn before_error<T: Send + 'static>(mut pipeline: Pipeline<T>) -> (Vec<T>, Error) {
    let mut items = Vec::new();
    loop {
        match pipeline.next() {
            Some(Ok(item)) => items.push(item),
            Some(Err(error)) => {
                assert!(pipeline.next().is_none(), "the error is returned once");
                assert!(pipeline.next().is_none(), "the pipeline remains ended");
                return (items, error);
            }
            None => panic!("no error after {} items", items.len()),
        }
    }
}

/// Waits until a condition is true, for at most 20 s.
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "timeout: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}
