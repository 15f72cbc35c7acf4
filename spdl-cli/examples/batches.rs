//! Loads a folder of images as training batches, like the example in `README.md`.
//!
//! `cargo run --release -p spdl-cli --example batches -- path/to/images`
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

use std::sync::Arc;

use spdl_core::{BatchLayout, DatasetSource, PipelineBuilder, Result};
use spdl_io::{Fetch, ImageFolder, LocalFetcher};
use spdl_media::{CodecRegistry, FillImage, ImageTransform, Limits, Mode, image_fields};

fn load(folder: &str) -> Result<()> {
    let transform = ImageTransform::new(224).mode(Mode::Train);
    let layout = BatchLayout::new(32, image_fields(&transform));
    let codecs = CodecRegistry::with_defaults();
    let source = DatasetSource::new(ImageFolder::open(folder)?).shuffled(7);
    let mut batches = PipelineBuilder::new(source)
        .async_stage("fetch", Fetch::new(Arc::new(LocalFetcher::new())))
        .fill("decode", layout, move || FillImage::new(&codecs, &transform, &Limits::default()))
        .build()?;
    for batch in &mut batches {
        println!("{:?}", batch?); // images: uint8 [32, 224, 224, 3], labels: int64 [32]
    }
    println!("{}", batches.monitor().statistics().limit());
    Ok(())
}

fn main() -> Result<()> {
    load(&std::env::args().nth(1).unwrap_or_else(|| "assets".to_owned()))
}
