//! A training that saves its state on SIGTERM, which cluster schedulers send before they end a job.
//!
//! Run the program, send it SIGTERM or press Ctrl-C, and run it again.
//!
//! ```sh
//! cargo run --release -p spdl-core --features serde --example terminate
//! ```
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use spdl_core::{DatasetSource, PipelineBuilder, Result, StateFile, StateSaver};

fn main() -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // A second signal ends the program immediately.
        flag::register_conditional_default(signal, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    let samples = DatasetSource::new((0..10_000).collect::<Vec<u32>>()).shuffled(7);
    let mut training =
        PipelineBuilder::new(samples).batch("batch", 32, false).deterministic().epochs(0..3);
    let file = StateFile::new("terminate.state");
    if file.exists() {
        training = training.resume(file.load()?);
    }
    let mut batches = training.build()?;
    // Saves every hundred steps, and at the end.
    let mut saver = StateSaver::new(file).every(100);
    for batch in saver.steps(&mut batches, &stop) {
        let _train_on = batch?;
        std::thread::sleep(Duration::from_millis(20));
    }
    let state = saver.finish()?.load()?;
    println!("saved after step {}, in epoch {}", state.steps(), state.epoch());
    Ok(())
}
