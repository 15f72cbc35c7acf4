//! A tour of the engine: merge, retries, routes, batches, failure policy, statistics.
//!
//! `cargo run --release -p spdl-core --example tour`
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use spdl_core::pipeline::path;
use spdl_core::stage::{Retried, WeightedMerge};
use spdl_core::{
    AsyncContext, AsyncStage, Error, ErrorKind, OnError, PipelineBuilder, Result, Retry,
    StageOptions, async_trait,
};

/// A store that fails the first request for every tenth key.
#[derive(Default)]
struct Store {
    requested: Mutex<HashSet<u64>>,
}

#[async_trait]
impl AsyncStage<u64> for Store {
    type Out = Vec<u8>;

    async fn process(&self, key: u64, cx: &AsyncContext) -> Result<Vec<u8>> {
        cx.runtime().sleep(Duration::from_millis(5)).await;
        if key % 10 == 3 && self.requested.lock().is_ok_and(|mut keys| keys.insert(key)) {
            return Err(Error::new(ErrorKind::Unavailable, "the store is busy"));
        }
        Ok(key.to_le_bytes().to_vec())
    }
}

/// Decodes a number; every 25th is corrupt.
fn decode(bytes: Vec<u8>) -> Result<u64> {
    let bytes: [u8; 8] = bytes
        .try_into()
        .map_err(|_| Error::new(ErrorKind::Truncated, "a sample must have 8 bytes"))?;
    let number = u64::from_le_bytes(bytes);
    if number.is_multiple_of(25) {
        return Err(Error::new(ErrorKind::Corrupt, format!("sample {number} is corrupt")));
    }
    Ok(number)
}

fn main() -> Result<()> {
    // Two data sets; items of the first are drawn three times as often.
    let photos = PipelineBuilder::from_iter(0..300u64);
    let drawings = PipelineBuilder::from_iter(1000..1100u64);
    let retry = Retry::default().first_delay(Duration::from_millis(1));
    let pipeline = PipelineBuilder::merge([photos, drawings], WeightedMerge::new([3.0, 1.0])?)
        .async_stage(
            StageOptions::new("fetch").concurrency(64),
            Retried::new(Store::default(), retry)?,
        )
        .measured()
        .map("decode", decode)
        // Drawings and photographs take different paths, and the join restores their order.
        .route(
            "kind",
            |number| Ok(usize::from(*number >= 1000)),
            [
                path(|photos| photos.map("crop", |number: u64| Ok(number * 2))),
                path(|drawings| drawings.map("invert", |number: u64| Ok(!number))),
            ],
        )
        .batch("batch", 32, false)
        .on_error(OnError::Skip { at_most: Some(50) })
        .memory(64 << 20)
        .seed(7)
        .deterministic();
    println!("{}\n", pipeline.definition());

    let mut pipeline = pipeline.build()?;
    let mut samples = 0;
    for batch in pipeline.by_ref() {
        samples += batch?.len();
    }
    let statistics = pipeline.statistics();
    println!("{samples} samples; {} dropped, for example:", statistics.dropped_total);
    for dropped in statistics.dropped.iter().take(3) {
        println!("  {} in stage {:?}: {}", dropped.id, dropped.stage, dropped.reason);
    }
    println!("{}", statistics.limit());
    Ok(())
}
