//! Tools for tests of whole pipelines.
#![allow(dead_code, unreachable_pub, reason = "each test file uses some of these tools")]

use std::sync::mpsc;
use std::time::Duration;

use spdl_core::{
    BatchLayout, DType, DatasetSource, Error, ErrorKind, Field, Fill, FillContext, Pipeline,
    PipelineBuilder, Result, SlotMut,
};

/// Runs a test on a thread of its own; a hang becomes a failure.
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
        panic!("not done after {seconds} s: a hang");
    }
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

pub fn numbers(count: i64) -> DatasetSource<Vec<i64>> {
    DatasetSource::new((0..count).collect())
}

/// Waits a time that depends on the number, so that items overtake each other.
pub fn dawdle(n: i64) {
    std::thread::sleep(Duration::from_micros((n as u64).wrapping_mul(0x9e37_79b9) >> 7 & 0xff));
}

pub fn bad_number(n: i64) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{n} is bad"))
}

/// Writes the number; fails, or panics, where told so.
pub struct WriteNumber {
    pub fails: fn(i64) -> bool,
    pub panics: fn(i64) -> bool,
}

impl Fill<i64> for WriteNumber {
    fn fill(&mut self, n: i64, mut slot: SlotMut<'_>, cx: &mut FillContext<'_>) -> Result<()> {
        dawdle(n);
        slot.set(0, n)?;
        if (self.fails)(n) {
            return Err(bad_number(n));
        }
        assert!(!(self.panics)(n), "{n} makes this panic");
        slot.set(1, cx.rng().unit() as f32)
    }
}

pub fn layout(batch_size: usize) -> BatchLayout {
    BatchLayout::new(
        batch_size,
        [Field::new("number", DType::I64, &[]), Field::new("noise", DType::F32, &[])],
    )
}

/// The names of this process's threads that belong to pipelines.
pub fn spdl_threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).filter(|name| name.starts_with("spdl-")).collect()
}

/// What a pipeline delivers; it must not fail.
pub fn delivered<T: Send + 'static>(builder: PipelineBuilder<T>) -> Vec<T> {
    let pipeline = builder.build().expect("the description makes sense");
    pipeline.map(|item| item.expect("nothing fails")).collect()
}

/// The same where no order is promised.
pub fn delivered_sorted<T: Send + Ord + 'static>(builder: PipelineBuilder<T>) -> Vec<T> {
    let mut items = delivered(builder);
    items.sort_unstable();
    items
}

/// What a pipeline delivers before its error, and the error, which must be said once, at the end.
pub fn before_error<T: Send + 'static>(mut pipeline: Pipeline<T>) -> (Vec<T>, Error) {
    let mut items = Vec::new();
    loop {
        match pipeline.next() {
            Some(Ok(item)) => items.push(item),
            Some(Err(error)) => {
                assert!(pipeline.next().is_none(), "an error is said once");
                assert!(pipeline.next().is_none(), "the end stays the end");
                return (items, error);
            }
            None => panic!("ended without the error, after {} items", items.len()),
        }
    }
}

/// Waits until something is so; a failure where it never is.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "never so: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}
