//! Stores the weights of a model and the state of its loader in one checkpoint.
//!
//! Run the program, interrupt it, and run it again. The final weights are the same as without the
//! interruption.
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

/// The saved progress of a training: everything that the next run needs.
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
        println!("resuming after step {}", checkpoint.loader.steps());
        training = training.resume(checkpoint.loader);
    }
    let mut batches = training.build()?;
    while let Some(batch) = batches.next() {
        for sample in batch? {
            weights = 0.999 * weights + f64::from(sample);
        }
        std::thread::sleep(Duration::from_millis(10)); // stands for a training step
        let loader = batches.state()?;
        if loader.steps() % EVERY == 0 {
            let text =
                serde_json::to_string(&Checkpoint { weights, loader }).map_err(unreadable)?;
            // `rename` is atomic: if the process is killed, the old checkpoint remains.
            fs::write("checkpoint.json.new", text)?;
            fs::rename("checkpoint.json.new", FILE)?;
        }
    }
    println!("weights: {weights}");
    Ok(())
}

fn unreadable(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::Corrupt, "cannot parse or serialize the checkpoint").with_source(error)
}
