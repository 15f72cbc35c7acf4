//! g3, second part: JPEGs to training samples of 224 x 224, on the device.

use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use spdl_core::{DType, Dataset, DatasetSource, Labeled, PipelineBuilder};
use spdl_cuda::{ConsumerStream, CudaDevice, CudaMemory, DeviceImages};
use spdl_media::ImageTransform;

use crate::Outcome;
use crate::copies::{counted, message};
use crate::images::cpu_seconds;
use crate::lines::Measurement;
use crate::raw::Driver;
use spdl_media::Layout;

pub(crate) const WORKLOAD: &str = "decode, resize to 224 and normalise";

/// The sizes of batches, and the numbers of decoders.
const CASES: [(usize, usize); 6] = [(32, 2), (256, 1), (256, 2), (256, 3), (256, 4), (1024, 2)];
const SIDE: u32 = 224;

/// G5: the minimum rate of samples, relative to decoding alone.
const MIN_SHARE: f64 = 0.95;
/// G5: the maximum number of busy CPU cores.
const MAX_CORES: f64 = 2.0;

/// The same images repeatedly.
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

/// Measures batches of growing sizes. `decode_rate` is the best rate of decoding alone. `time` has
/// the start and end of this part, as shares of the time of the measurement.
pub(crate) fn measure(
    measurement: &Measurement,
    driver: &Rc<Driver>,
    images: &[Bytes],
    decode_rate: Option<f64>,
    time: [f64; 2],
) -> Outcome {
    let mut best: Option<(f64, f64)> = None;
    for (at, (size, decoders)) in CASES.into_iter().enumerate() {
        let size = if measurement.size.is_tiny() { 4 } else { size };
        let until = time[0] + (time[1] - time[0]) * (at + 1) as f64 / CASES.len() as f64;
        let (rate, cores) = rate(measurement, driver, images, [size, decoders], until)?;
        if best.is_none_or(|(before, _)| rate > before) {
            best = Some((rate, cores));
        }
        if measurement.size.is_tiny() {
            return Ok(());
        }
    }
    let Some((rate, cores)) = best else { return Ok(()) };
    if let Some(alone) = decode_rate {
        let share = rate / alone;
        measurement.promise(
            "G5: decode, resize and normalise, best rate relative to decode only",
            share >= MIN_SHARE,
            &format!("{:.1} %", 100.0 * share),
            &format!("{:.0} %", 100.0 * MIN_SHARE),
        );
    }
    measurement.promise(
        "G5: busy CPU cores at the best rate",
        cores <= MAX_CORES,
        &format!("{cores:.2}"),
        &format!("at most {MAX_CORES:.0}"),
    );
    Ok(())
}

/// Images per second, and the number of busy CPU cores.
fn rate(
    measurement: &Measurement,
    driver: &Driver,
    images: &[Bytes],
    [size, decoders]: [usize; 2],
    until: f64,
) -> Result<(f64, f64), String> {
    let device = CudaDevice::open(0).map_err(message)?;
    let scaled = |values: [f32; 3]| values.map(|value| value / 255.0);
    let transform = ImageTransform::new(SIDE)
        .layout(Layout::Nchw)
        .dtype(DType::F16)
        .normalization(scaled([123.675, 116.28, 103.53]), scaled([58.395, 57.12, 57.375]));
    let stages = DeviceImages::new(&device, transform, size).decoders(decoders);
    let files = PipelineBuilder::new(DatasetSource::new(Endless(images.to_vec())));
    let pipeline = stages.attach(files, "decode").map_err(message)?;
    let mut pipeline = pipeline.build().map_err(message)?;

    let stream = ConsumerStream::legacy_default();
    // The first batches allocate the buffers that the later batches reuse.
    let (warm, least) = if measurement.size.is_tiny() { (1, 2) } else { (4, 3) };
    let mut batches = 0;
    let (mut start, mut cpu) = (Instant::now(), cpu_seconds());
    while batches < warm + least || !measurement.is_enough(until) {
        let batch = pipeline.next().ok_or("unexpected end of the pipeline")?.map_err(message)?;
        let array = batch.array("images").ok_or("a batch has no array \"images\"")?;
        let memory = CudaMemory::of(array).ok_or("a batch is not in CUDA memory")?;
        memory.wait_on(&stream).map_err(message)?;
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

    let case = format!("{WORKLOAD}, batches of {size}, {}", counted(decoders, "decoder"));
    let rate = ((batches - warm) * size) as f64 / seconds;
    measurement.figure(&case, "rate", rate, "images/s");
    let cores = cpu.zip(after).map_or(f64::NAN, |(before, after)| (after - before) / seconds);
    if cores.is_finite() {
        measurement.figure(&case, "busy CPU cores", cores, "");
    }
    let statistics = stages.statistics();
    let all = (statistics.hardware + statistics.hybrid + statistics.host).max(1) as f64;
    for (path, count) in [
        ("hardware backend", statistics.hardware),
        ("hybrid backend", statistics.hybrid),
        ("host", statistics.host),
    ] {
        measurement.figure(&case, path, 100.0 * count as f64 / all, "%");
    }
    if statistics.failed > 0 {
        return Err(format!("{} images failed", statistics.failed));
    }
    Ok((rate, cores))
}
