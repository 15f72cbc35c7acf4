//! Batches of image files on a CUDA device. nvJPEG decodes JPEGs, the host decodes other formats,
//! and one kernel launch per batch crops, resizes, flips and normalises.
//!
//! ```sh
//! cargo run --release -p spdl-cuda --features images --example device_images -- photos/*
//! ```
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

use std::env;
use std::fs;

use bytes::Bytes;
use spdl_core::{DType, DatasetSource, Labeled, OnError, PipelineBuilder, Result};
use spdl_cuda::{ConsumerStream, CudaDevice, CudaMemory, DeviceImages};
use spdl_media::{ImageTransform, Layout, Mode};

const SIDE: u32 = 224;

fn main() -> Result<()> {
    let device = match CudaDevice::open(0) {
        Ok(device) => device,
        Err(error) => {
            println!("no device: {}", error.report());
            return Ok(());
        }
    };
    let files = env::args().skip(1).enumerate();
    let files = files.map(|(at, path)| Labeled { value: path, label: at as i64 });
    let files = DatasetSource::new(files.collect::<Vec<Labeled<String>>>());
    let read = |file: Labeled<String>| -> Result<Labeled<Bytes>> {
        let bytes = fs::read(&file.value)?;
        Ok(file.map(|_| bytes.into()))
    };
    let pipeline =
        PipelineBuilder::new(files).on_error(OnError::SKIP).deterministic().map("read", read);

    let transform =
        ImageTransform::new(SIDE).mode(Mode::Train).layout(Layout::Nchw).dtype(DType::F16);
    let images = DeviceImages::new(&device, transform, 32);
    let mut pipeline = images.attach(pipeline, "decode")?.build()?;

    // The stream of the training step.
    let stream = ConsumerStream::legacy_default();
    for batch in &mut pipeline {
        let batch = batch?;
        for (name, array) in batch.arrays() {
            if let Some(memory) = CudaMemory::of(array) {
                memory.wait_on(&stream)?;
            }
            println!("{name}: {} {:?}", array.dtype(), array.shape());
        }
        // Kernels on `stream` can read the arrays from here on. The host has not waited.
    }
    println!("{:#?}", images.statistics());
    for dropped in &pipeline.statistics().dropped {
        println!("{}: {}", dropped.id, dropped.reason);
    }
    Ok(())
}
