//! g3, its other half: JPEGs to samples of 224 x 224 for a training step, all of it on the device.

use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use spdl_core::{DType, Dataset, DatasetSource, Labeled, PipelineBuilder};
use spdl_cuda::{ConsumerStream, CudaDevice, CudaMemory, DeviceImages};
use spdl_media::ImageTransform;

use crate::Outcome;
use crate::copies::said;
use crate::images::cpu_seconds;
use crate::lines::Measuring;
use crate::raw::Driver;
use spdl_media::Layout;

pub(crate) const WORK: &str = "decode, resize to 224 and normalise";

const BATCHES: [usize; 4] = [32, 128, 512, 1024];
const SIDE: u32 = 224;

/// G5: the rate of samples, beside that of decoding alone.
const LEAST_SHARE: f64 = 0.95;
/// G5: CPU cores in use.
const MOST_CORES: f64 = 2.0;

/// The same images again and again.
#[derive(Debug)]
struct Endless(Vec<Bytes>);

impl Dataset for Endless {
    type Item = Labeled<Bytes>;

    fn len(&self) -> u64 {
        if self.0.is_empty() { 0 } else { 1 << 32 }
    }

    fn item(&self, index: u64) -> spdl_core::Result<Labeled<Bytes>> {
        let at = (index % self.0.len() as u64) as usize;
        Ok(Labeled { value: self.0[at].clone(), label: at as i64 })
    }
}

/// Batches of growing sizes, from this share of the time on until that one. `decode_rate` is the best one
/// of decoding alone.
pub(crate) fn measure(
    measuring: &Measuring,
    driver: &Rc<Driver>,
    images: &[Bytes],
    decode_rate: Option<f64>,
    time: [f64; 2],
) -> Outcome {
    let mut best: Option<(f64, f64)> = None;
    for (at, size) in BATCHES.into_iter().enumerate() {
        let size = if measuring.size.is_tiny() { 4 } else { size };
        let until = time[0] + (time[1] - time[0]) * (at + 1) as f64 / BATCHES.len() as f64;
        let (rate, cores) = rate(measuring, driver, images, size, until)?;
        if best.is_none_or(|(before, _)| rate > before) {
            best = Some((rate, cores));
        }
        if measuring.size.is_tiny() {
            return Ok(());
        }
    }
    let Some((rate, cores)) = best else { return Ok(()) };
    if let Some(alone) = decode_rate {
        let share = rate / alone;
        measuring.promise(
            "G5: decode, resize and normalise beside decode alone, the best rates",
            share >= LEAST_SHARE,
            &format!("{:.1} %", 100.0 * share),
            &format!("{:.0} %", 100.0 * LEAST_SHARE),
        );
    }
    measuring.promise(
        "G5: CPU cores in use at the best rate",
        cores <= MOST_CORES,
        &format!("{cores:.2}"),
        &format!("at most {MOST_CORES:.0}"),
    );
    Ok(())
}

/// Images a second, and CPU cores in use.
fn rate(
    measuring: &Measuring,
    driver: &Driver,
    images: &[Bytes],
    size: usize,
    until: f64,
) -> Result<(f64, f64), String> {
    let device = CudaDevice::open(0).map_err(said)?;
    let scaled = |values: [f32; 3]| values.map(|value| value / 255.0);
    let transform = ImageTransform::new(SIDE)
        .layout(Layout::Nchw)
        .dtype(DType::F16)
        .normalization(scaled([123.675, 116.28, 103.53]), scaled([58.395, 57.12, 57.375]));
    let stages = DeviceImages::new(&device, transform, size);
    let files = PipelineBuilder::new(DatasetSource::new(Endless(images.to_vec())));
    let pipeline = stages.attach(files, "decode").map_err(said)?;
    let mut pipeline = pipeline.build().map_err(said)?;

    let stream = ConsumerStream::legacy_default();
    // The first batches prepare what all others use again.
    let (warm, least) = if measuring.size.is_tiny() { (1, 2) } else { (4, 3) };
    let mut batches = 0;
    let (mut start, mut cpu) = (Instant::now(), cpu_seconds());
    while batches < warm + least || !measuring.is_enough(until) {
        let batch = pipeline.next().ok_or("the pipeline has ended")?.map_err(said)?;
        let array = batch.array("images").ok_or("a batch has no images")?;
        CudaMemory::of(array).ok_or("a batch is elsewhere")?.wait_on(&stream).map_err(said)?;
        drop(batch);
        batches += 1;
        if batches == warm {
            driver.synchronize()?;
            (start, cpu) = (Instant::now(), cpu_seconds());
        }
    }
    driver.synchronize()?;
    let seconds = start.elapsed().as_secs_f64();
    let after = cpu_seconds();
    drop(pipeline);

    let case = format!("{WORK}, batches of {size}");
    let rate = ((batches - warm) * size) as f64 / seconds;
    measuring.figure(&case, "rate", rate, "images/s");
    let cores = cpu.zip(after).map_or(f64::NAN, |(before, after)| (after - before) / seconds);
    if cores.is_finite() {
        measuring.figure(&case, "CPU cores in use", cores, "");
    }
    let statistics = stages.statistics();
    let all = (statistics.hardware + statistics.hybrid + statistics.host).max(1) as f64;
    for (path, count) in [
        ("engines", statistics.hardware),
        ("CPU and multiprocessors", statistics.hybrid),
        ("host", statistics.host),
    ] {
        measuring.figure(&case, path, 100.0 * count as f64 / all, "%");
    }
    if statistics.failed > 0 {
        return Err(format!("{} images failed", statistics.failed));
    }
    Ok((rate, cores))
}
