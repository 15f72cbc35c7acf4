//! A folder of images as training batches, from Rust.
//!
//! `cargo run --release -p spdl-cli --example batches -- path/to/images`
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

use std::sync::Arc;

use spdl_core::{BatchLayout, DatasetSource, OnError, PipelineBuilder, Result, StageOptions};
use spdl_io::{Fetch, ImageFolder, LocalFetcher};
use spdl_media::{CodecRegistry, FillImage, ImageTransform, Limits, Mode, image_fields};

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).unwrap_or_else(|| "assets".into());
    let images = ImageFolder::open(folder)?;
    let transform = ImageTransform::new(224).mode(Mode::Train);
    let layout = BatchLayout::new(32, image_fields(&transform));
    let codecs = CodecRegistry::with_defaults();
    // What it was made with is told where a run goes on with something else.
    let decode = StageOptions::new("decode").parameters(transform.parameters());

    let pipeline = PipelineBuilder::new(DatasetSource::new(images).shuffled(7))
        .async_stage("fetch", Fetch::new(Arc::new(LocalFetcher::new())))
        .fill(decode, layout, move || FillImage::new(&codecs, &transform, &Limits::default()))
        .seed(7)
        .deterministic()
        .on_error(OnError::SKIP)
        .epochs(0..2)
        .build()?;
    let monitor = pipeline.monitor();

    for batch in pipeline {
        let batch = batch?;
        println!("epoch {}: {batch:?}", batch.epoch());
    }
    println!("{}", monitor.statistics().limit());
    Ok(())
}
