//! A training that resumes after any interruption.
//!
//! Run the program, end it with Ctrl-C, and run it again.
//!
//! ```sh
//! cargo run --release -p spdl-core --features serde --example resume
//! ```

use spdl_core::{DatasetSource, PipelineBuilder, Result, Shard, StateFile, StateSaver};

fn main() -> Result<()> {
    let (rank, world) = (0, 1);
    let samples = DatasetSource::new((0..1000).collect::<Vec<u32>>()).shuffled(7);
    let mut training = PipelineBuilder::new(samples)
        .shard(Shard::new(rank, world)?)
        .batch("batch", 32, false)
        .deterministic()
        .epochs(0..3);
    let file = StateFile::new(format!("rank{rank}.state"));
    if file.exists() {
        training = training.resume(file.load()?);
    }
    let mut batches = training.build()?;
    let mut saver = StateSaver::new(file);
    while let Some(batch) = batches.next() {
        let _train_on = batch?;
        saver.after_step(|| batches.state())?; // takes microseconds; a thread writes the file
    }
    saver.finish()?;
    Ok(())
}
