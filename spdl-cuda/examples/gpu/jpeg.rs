//! g3: JPEGs decoded on the device.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use bytes::Bytes;
use spdl_core::ErrorKind;
use spdl_cuda::jpeg::{DecodedJpeg, DecodedJpegs, JpegBackend};
use spdl_cuda::runtime::Download;
use spdl_cuda::{CudaDevice, NvJpeg};
use spdl_media::{CodecRegistry, Decoder, Limits};

use crate::copies::{counted, median, message};
use crate::images::{cpu_seconds, jpegs};
use crate::lines::Measurement;
use crate::raw::Driver;
use crate::{Outcome, join_errors, samples};

/// The sizes of batches that one decoder decodes, one after the other.
const BATCHES: [usize; 5] = [1, 8, 32, 128, 1024];

/// The numbers of decoders that run concurrently, and the size of their batches.
const DECODERS: [usize; 3] = [1, 2, 4];
const CONCURRENT_BATCH: usize = 256;

/// The share of the time for batches one after the other, and the share after which only the time
/// for samples is left.
const RATES_SHARE: f64 = 0.3;
const DECODING_SHARE: f64 = 0.5;

/// The maximum mean difference, in levels, between two decoders of one format. Their inverse DCTs
/// and chroma upsampling differ; single pixels at colour edges can differ much more.
const MAX_MEAN_DIFFERENCE: f64 = 2.0;

pub(crate) fn measure(measurement: &Measurement) -> Outcome {
    let driver = Driver::open()?;
    let device = CudaDevice::open(0).map_err(message)?;
    let mut decoder = match NvJpeg::new(&device) {
        Ok(decoder) => decoder,
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            measurement.unsupported("JPEGs decoded on the device", &error.report());
            return Ok(());
        }
        Err(error) => return Err(message(error)),
    };
    let (engines, cores) = decoder.engines();
    let [major, minor, patch] = decoder.version();
    measurement.note(&format!(
        "nvJPEG {major}.{minor}.{patch}; JPEG engines: {engines}, cores per engine: {cores}"
    ));
    let images = match jpegs() {
        Ok(images) => images,
        Err(reason) => {
            measurement.unsupported("JPEGs decoded on the device", &reason);
            return Ok(());
        }
    };
    let correct = join_errors([
        corruption(measurement, &driver, &mut decoder, &images),
        difference(measurement, &mut decoder, &images[..images.len().min(64)]),
    ]);
    let alone = rates(measurement, &driver, &mut decoder, &images);
    drop(decoder);
    let concurrent = concurrent_rates(measurement, &device, &images);
    let rates = [alone.as_ref().ok(), concurrent.as_ref().ok()];
    let best = rates.into_iter().flatten().copied().max_by(f64::total_cmp);
    let samples = samples::measure(measurement, &driver, &images, best, [DECODING_SHARE, 1.0]);
    join_errors([correct, alone.map(drop), concurrent.map(drop), samples])
}

/// Measures batches of growing sizes. Returns the best rate.
fn rates(
    measurement: &Measurement,
    driver: &Driver,
    decoder: &mut NvJpeg,
    images: &[Bytes],
) -> Result<f64, String> {
    let mut best = 0.0;
    for (at, count) in BATCHES.into_iter().enumerate() {
        let count = if measurement.size.is_tiny() { count.min(4) } else { count };
        let until = RATES_SHARE * (at + 1) as f64 / BATCHES.len() as f64;
        best = rate(measurement, driver, decoder, images, count, until)?.max(best);
        if measurement.size.is_tiny() {
            break;
        }
    }
    Ok(best)
}

/// Measures several decoders, each on a thread. Returns the best rate.
fn concurrent_rates(
    measurement: &Measurement,
    device: &CudaDevice,
    images: &[Bytes],
) -> Result<f64, String> {
    let tiny = measurement.size.is_tiny();
    let mut best = 0.0;
    for (at, decoders) in DECODERS.into_iter().enumerate() {
        let share = (DECODING_SHARE - RATES_SHARE) / DECODERS.len() as f64;
        let until = RATES_SHARE + share * (at + 1) as f64;
        let count = if tiny { 4 } else { CONCURRENT_BATCH };
        let batch: Vec<Bytes> = images.iter().cycle().take(count).cloned().collect();
        let batch = &batch;
        let ready = &Barrier::new(decoders + 1);
        let (decoded, seconds, cores) = thread::scope(|scope| {
            let work = || -> Result<usize, String> {
                let mut decoder = NvJpeg::new(device).map_err(message);
                // The first batches allocate the buffers that the later batches reuse.
                let warm = decoder
                    .as_mut()
                    .map_err(|error| error.clone())
                    .and_then(|decoder| (0..2).try_for_each(|_| decode_and_wait(decoder, batch)));
                ready.wait();
                warm?;
                let mut decoder = decoder?;
                let mut batches = 0;
                while batches < 3 || !measurement.is_enough(until) {
                    decode_and_wait(&mut decoder, batch)?;
                    batches += 1;
                }
                Ok(batches * count)
            };
            let threads: Vec<_> = (0..decoders).map(|_| scope.spawn(work)).collect();
            ready.wait();
            let (start, cpu) = (Instant::now(), cpu_seconds());
            let mut decoded = 0;
            for thread in threads {
                decoded += thread.join().map_err(|_| "a decoder panicked".to_owned())??;
            }
            let seconds = start.elapsed().as_secs_f64();
            let cores = cpu.zip(cpu_seconds()).map(|(before, after)| (after - before) / seconds);
            Ok::<_, String>((decoded, seconds, cores))
        })?;
        let rate = decoded as f64 / seconds;
        let case = format!("decode only, batches of {count}, {}", counted(decoders, "decoder"));
        measurement.figure(&case, "rate", rate, "images/s");
        if let Some(cores) = cores {
            measurement.figure(&case, "busy CPU cores", cores, "");
        }
        best = rate.max(best);
    }
    Ok(best)
}

/// Decodes a batch and waits for its pixels, but not for other work of the device.
fn decode_and_wait(decoder: &mut NvJpeg, encoded: &[Bytes]) -> Outcome {
    let decoded = decoder.decode(encoded).map_err(message)?;
    decoded.memory.download_part(0, 1, None, None).and_then(Download::wait).map_err(message)?;
    Ok(())
}

/// Decodes batches of `count` images until a share of the time has passed. Returns images per
/// second.
fn rate(
    measurement: &Measurement,
    driver: &Driver,
    decoder: &mut NvJpeg,
    images: &[Bytes],
    count: usize,
    until: f64,
) -> Result<f64, String> {
    let batch = |number: usize| -> Vec<Bytes> {
        (0..count).map(|at| images[(number * count + at) % images.len()].clone()).collect()
    };
    // The first batches allocate the buffers that the later batches reuse.
    for number in 0..2 {
        decode(driver, decoder, &batch(number))?;
    }
    let mut times = Vec::new();
    let mut paths = [0_usize; 3];
    let cpu = cpu_seconds();
    let start = Instant::now();
    while times.len() < 3 || !measurement.is_enough(until) && times.len() < 2000 {
        let encoded = batch(times.len());
        let before = Instant::now();
        let decoded = decode(driver, decoder, &encoded)?;
        times.push(before.elapsed().as_secs_f64());
        for image in &decoded.images {
            match image {
                DecodedJpeg::Decoded { backend: JpegBackend::Hardware, .. } => paths[0] += 1,
                DecodedJpeg::Decoded { .. } => paths[1] += 1,
                _ => paths[2] += 1,
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let case = format!("decode only, batches of {count}");
    let rate = (times.len() * count) as f64 / seconds;
    measurement.figure(&case, "rate", rate, "images/s");
    if let (Some(before), Some(after)) = (cpu, cpu_seconds()) {
        measurement.figure(&case, "busy CPU cores", (after - before) / seconds, "");
    }
    times.sort_by(f64::total_cmp);
    let p99 = times[(times.len() * 99 / 100).min(times.len() - 1)];
    measurement.figure(&case, "batch time, p50", median(times.clone()) * 1e3, "ms");
    measurement.figure(&case, "batch time, p99", p99 * 1e3, "ms");
    let all = paths.iter().sum::<usize>().max(1) as f64;
    for (path, count) in ["hardware backend", "hybrid backend", "not decoded"].iter().zip(paths) {
        measurement.figure(&case, path, 100.0 * count as f64 / all, "%");
    }
    Ok(rate)
}

/// Decodes images and waits for the pixels.
fn decode(
    driver: &Driver,
    decoder: &mut NvJpeg,
    encoded: &[Bytes],
) -> Result<DecodedJpegs, String> {
    let decoded = decoder.decode(encoded).map_err(message)?;
    driver.synchronize()?;
    Ok(decoded)
}

/// Truncates or overwrites an image. Returns whether the header is affected, so that decoding must
/// fail. Corruption after the header may go undetected.
fn corrupted(image: &Bytes, number: usize) -> (Bytes, bool) {
    let mut bytes = image.to_vec();
    let must_fail = match number % 4 {
        0 => {
            bytes.truncate(20);
            true
        }
        1 => {
            bytes[2..].fill(0xff);
            true
        }
        2 => {
            bytes.truncate(image.len() / 2);
            false
        }
        _ => {
            // The second half nearly always belongs to a scan. The EOI marker stays.
            let (from, to) = (image.len() / 2, image.len().saturating_sub(2));
            for byte in bytes[from..to].iter_mut().step_by(37) {
                *byte ^= 0x55;
            }
            false
        }
    };
    (bytes.into(), must_fail)
}

/// The mean difference between two decoded images; `None` if one has failed. Infinite if images of
/// the same backend differ at all.
fn mean_difference([one, other]: [&DecodedJpeg; 2], [pixels, others]: [&[u8]; 2]) -> Option<f64> {
    let (
        DecodedJpeg::Decoded { offset, header, backend },
        DecodedJpeg::Decoded { offset: at, backend: other_backend, .. },
    ) = (one, other)
    else {
        return None;
    };
    let len = header.size.pixels() as usize * 3;
    let (pixels, others) = (&pixels[*offset..][..len], &others[*at..][..len]);
    let sum: u64 =
        pixels.iter().zip(others).map(|(one, other)| u64::from(one.abs_diff(*other))).sum();
    let mean = sum as f64 / len as f64;
    Some(if backend == other_backend && sum > 0 { f64::INFINITY } else { mean })
}

/// G5: one image in ten is truncated or overwritten, and does not affect the other images.
fn corruption(
    measurement: &Measurement,
    driver: &Driver,
    decoder: &mut NvJpeg,
    images: &[Bytes],
) -> Outcome {
    let valid: Vec<Bytes> = images.iter().take(100).cloned().collect();
    let mut batch = valid.clone();
    let (mut must_fail, mut may_fail) = (Vec::new(), Vec::new());
    for (number, at) in (0..batch.len()).step_by(10).enumerate() {
        let (bytes, has_bad_header) = corrupted(&valid[at], number);
        batch[at] = bytes;
        if has_bad_header { must_fail.push(at) } else { may_fail.push(at) }
    }
    let expected = decode(driver, decoder, &valid)?;
    let decoded = decode(driver, decoder, &batch)?;
    let pixels = |decoded: &DecodedJpegs| {
        decoded.memory.download(None).and_then(|download| download.wait()).map_err(message)
    };
    let (found, reference) = (pixels(&decoded)?, pixels(&expected)?);
    let failed = |at: usize| matches!(decoded.images[at], DecodedJpeg::Failed(_));
    let is_affected = |at: &usize| {
        let images = [&decoded.images[*at], &expected.images[*at]];
        if let [DecodedJpeg::Unsupported(_), DecodedJpeg::Unsupported(_)] = images {
            return false;
        }
        mean_difference(images, [&found, &reference]).is_none_or(|mean| mean > MAX_MEAN_DIFFERENCE)
    };
    let others = (0..batch.len()).filter(|at| !must_fail.contains(at) && !may_fail.contains(at));
    let affected = others.filter(is_affected).count();
    let reported = must_fail.iter().filter(|at| failed(**at)).count();
    measurement.promise(
        "G5: a corrupt JPEG affects only itself",
        affected == 0 && reported == must_fail.len(),
        &format!("{affected} valid images affected, {reported} corrupt headers reported"),
        &format!("0 and {}", must_fail.len()),
    );
    Ok(())
}

/// Compares the pixels of the device with those of the CPU decoder.
fn difference(measurement: &Measurement, decoder: &mut NvJpeg, images: &[Bytes]) -> Outcome {
    let decoded = decoder.decode(images).map_err(message)?;
    let download = decoded.memory.download(None).map_err(message)?;
    let pixels = download.wait().map_err(message)?;
    let mut on_host = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
    let (mut largest, mut sum, mut count) = (0_u8, 0_u64, 0_u64);
    for (image, encoded) in decoded.images.iter().zip(images) {
        let DecodedJpeg::Decoded { offset, .. } = image else { continue };
        let Ok(expected) = on_host.decode_stored(encoded).map(|image| image.pixels) else {
            continue;
        };
        let found = &pixels[*offset..][..expected.len()];
        for (found, expected) in found.iter().zip(&expected) {
            let difference = found.abs_diff(*expected);
            largest = largest.max(difference);
            sum += u64::from(difference);
            count += 1;
        }
    }
    if count == 0 {
        let reason = "no image was decoded by both";
        measurement.unsupported("difference from the CPU decoder", reason);
        return Ok(());
    }
    let case = "pixels compared with the CPU decoder";
    let mean = sum as f64 / count as f64;
    measurement.figure(case, "largest difference", f64::from(largest), "levels");
    measurement.figure(case, "mean difference", mean, "levels");
    measurement.promise(
        "pixels decoded on the device match the CPU decoder",
        mean <= MAX_MEAN_DIFFERENCE,
        &format!("{mean:.3} levels on average"),
        &format!("at most {MAX_MEAN_DIFFERENCE:.0}"),
    );
    Ok(())
}
