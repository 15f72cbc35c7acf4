//! A model and the state of its loader in one checkpoint, so that both are always of the same step:
//! run it, end it in any way, run it again; it ends with the same weights.
//!
//! ```sh
//! cargo run --release -p spdl-core --features serde --example checkpoint
//! ```
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use spdl_core::{DatasetSource, Error, ErrorKind, PipelineBuilder, Result, State};

const FILE: &str = "checkpoint.json";
const EVERY: u64 = 25;

/// What a training writes down: all that the next run needs.
#[derive(Serialize, Deserialize)]
struct Checkpoint {
    weights: f64,
    loader: State,
}

fn main() -> Result<()> {
    let samples = DatasetSource::new((0..3200).collect::<Vec<u32>>()).shuffled(7);
    let mut training =
        PipelineBuilder::new(samples).batch("batch", 32, false).deterministic().epochs(0..3);
    let mut weights = 0.0;
    if Path::new(FILE).exists() {
        let text = fs::read_to_string(FILE)?;
        let checkpoint: Checkpoint = serde_json::from_str(&text).map_err(unreadable)?;
        weights = checkpoint.weights;
        println!("goes on after step {}", checkpoint.loader.steps());
        training = training.resume(checkpoint.loader);
    }
    let mut batches = training.build()?;
    while let Some(batch) = batches.next() {
        for sample in batch? {
            weights = 0.999 * weights + f64::from(sample);
        }
        std::thread::sleep(Duration::from_millis(10)); // the rest of a training step
        let loader = batches.state()?;
        if loader.steps() % EVERY == 0 {
            let text =
                serde_json::to_string(&Checkpoint { weights, loader }).map_err(unreadable)?;
            // Under another name first: whoever is killed leaves the old one.
            fs::write("checkpoint.json.new", text)?;
            fs::rename("checkpoint.json.new", FILE)?;
        }
    }
    println!("weights: {weights}");
    Ok(())
}

fn unreadable(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::Corrupt, "the checkpoint cannot be read or written").with_source(error)
}
