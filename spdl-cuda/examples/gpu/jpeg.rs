//! g3: JPEGs decoded on the device.

use std::time::Instant;

use bytes::Bytes;
use spdl_core::ErrorKind;
use spdl_cuda::jpeg::{DecodedJpeg, DecodedJpegs, JpegBackend};
use spdl_cuda::{CudaDevice, NvJpeg};
use spdl_media::{CodecRegistry, Decoder, Limits};

use crate::copies::{median, said};
use crate::images::{cpu_seconds, jpegs};
use crate::lines::Measuring;
use crate::raw::Driver;
use crate::{Outcome, samples, together};

const BATCHES: [usize; 6] = [1, 8, 32, 128, 512, 1024];

/// So much of the time is for decoding alone; the rest is for samples.
const RATES_SHARE: f64 = 0.6;

/// Decoders of one format differ by so much on average, as their transforms and their ways to scale chroma
/// do. At the edges of colours it is much more.
const MOST_MEAN_DIFFERENCE: f64 = 2.0;

pub(crate) fn measure(measuring: &Measuring) -> Outcome {
    let driver = Driver::open()?;
    let device = CudaDevice::open(0).map_err(said)?;
    let mut decoder = match NvJpeg::new(&device) {
        Ok(decoder) => decoder,
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            measuring.unsupported("JPEGs on the device", &error.report());
            return Ok(());
        }
        Err(error) => return Err(said(error)),
    };
    let (engines, cores) = decoder.engines();
    let [major, minor, patch] = decoder.version();
    measuring.note(&format!(
        "nvJPEG {major}.{minor}.{patch}; engines: {engines}, images at once in each: {cores}"
    ));
    let images = match jpegs() {
        Ok(images) => images,
        Err(reason) => {
            measuring.unsupported("JPEGs on the device", &reason);
            return Ok(());
        }
    };
    let sound = together([
        damage(measuring, &driver, &mut decoder, &images),
        difference(measuring, &mut decoder, &images[..images.len().min(64)]),
    ]);
    let alone = rates(measuring, &driver, &mut decoder, &images);
    drop(decoder);
    let best = alone.as_ref().ok().copied();
    let samples = samples::measure(measuring, &driver, &images, best, [RATES_SHARE, 1.0]);
    together([sound, alone.map(drop), samples])
}

/// Batches of growing sizes; the best rate.
fn rates(
    measuring: &Measuring,
    driver: &Driver,
    decoder: &mut NvJpeg,
    images: &[Bytes],
) -> Result<f64, String> {
    let mut best = 0.0;
    for (at, count) in BATCHES.into_iter().enumerate() {
        let count = if measuring.size.is_tiny() { count.min(4) } else { count };
        let until = RATES_SHARE * (at + 1) as f64 / BATCHES.len() as f64;
        best = rate(measuring, driver, decoder, images, count, until)?.max(best);
        if measuring.size.is_tiny() {
            break;
        }
    }
    Ok(best)
}

/// Batches of `count` until a share of the time is over; images a second.
fn rate(
    measuring: &Measuring,
    driver: &Driver,
    decoder: &mut NvJpeg,
    images: &[Bytes],
    count: usize,
    until: f64,
) -> Result<f64, String> {
    let batch = |number: usize| -> Vec<Bytes> {
        (0..count).map(|at| images[(number * count + at) % images.len()].clone()).collect()
    };
    // The first batches prepare what all others use again.
    for number in 0..2 {
        decode(driver, decoder, &batch(number))?;
    }
    let mut times = Vec::new();
    let mut paths = [0_usize; 3];
    let cpu = cpu_seconds();
    let start = Instant::now();
    while times.len() < 3 || !measuring.is_enough(until) && times.len() < 2000 {
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
    measuring.figure(&case, "rate", rate, "images/s");
    if let (Some(before), Some(after)) = (cpu, cpu_seconds()) {
        measuring.figure(&case, "CPU cores in use", (after - before) / seconds, "");
    }
    times.sort_by(f64::total_cmp);
    let p99 = times[(times.len() * 99 / 100).min(times.len() - 1)];
    measuring.figure(&case, "a batch, p50", median(times.clone()) * 1e3, "ms");
    measuring.figure(&case, "a batch, p99", p99 * 1e3, "ms");
    let all = paths.iter().sum::<usize>().max(1) as f64;
    for (path, count) in
        ["engines", "CPU and multiprocessors", "left to the host"].iter().zip(paths)
    {
        measuring.figure(&case, path, 100.0 * count as f64 / all, "%");
    }
    Ok(rate)
}

/// Waits until the pixels are there, which a training loop does not.
fn decode(
    driver: &Driver,
    decoder: &mut NvJpeg,
    encoded: &[Bytes],
) -> Result<DecodedJpegs, String> {
    let decoded = decoder.decode(encoded).map_err(said)?;
    driver.synchronize()?;
    Ok(decoded)
}

/// What is done to an image: to its header, which fails it, or behind that, which nobody may notice.
fn damaged(image: &Bytes, number: usize) -> (Bytes, bool) {
    let mut bytes = image.to_vec();
    let has_failed = match number % 4 {
        0 => {
            bytes.truncate(20);
            true
        }
        1 => {
            // Its header says what cannot be.
            bytes[2..].fill(0xff);
            true
        }
        2 => {
            bytes.truncate(image.len() / 2);
            false
        }
        _ => {
            // The second half is nearly always of the scan; its end stays.
            let (from, to) = (image.len() / 2, image.len().saturating_sub(2));
            for byte in bytes[from..to].iter_mut().step_by(37) {
                *byte ^= 0x55;
            }
            false
        }
    };
    (bytes.into(), has_failed)
}

/// How far two decodes of an image are from each other on average; none where one has failed. Only what
/// was decoded the same way is the same to the last bit.
fn apart([one, other]: [&DecodedJpeg; 2], [pixels, others]: [&[u8]; 2]) -> Option<f64> {
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

/// G5: one in ten is cut off or overwritten, in its header or behind it, and spoils no other.
fn damage(
    measuring: &Measuring,
    driver: &Driver,
    decoder: &mut NvJpeg,
    images: &[Bytes],
) -> Outcome {
    let sound: Vec<Bytes> = images.iter().take(100).cloned().collect();
    let mut batch = sound.clone();
    let (mut must_fail, mut may_fail) = (Vec::new(), Vec::new());
    for (number, at) in (0..batch.len()).step_by(10).enumerate() {
        let (bytes, has_failed) = damaged(&sound[at], number);
        batch[at] = bytes;
        if has_failed { must_fail.push(at) } else { may_fail.push(at) }
    }
    let expected = decode(driver, decoder, &sound)?;
    let decoded = decode(driver, decoder, &batch)?;
    let pixels = |decoded: &DecodedJpegs| {
        decoded.memory.download(None).and_then(|download| download.wait()).map_err(said)
    };
    let (found, without) = (pixels(&decoded)?, pixels(&expected)?);
    let failed = |at: usize| matches!(decoded.images[at], DecodedJpeg::Failed(_));
    let is_spoilt = |at: &usize| {
        let images = [&decoded.images[*at], &expected.images[*at]];
        if let [DecodedJpeg::Unsupported(_), DecodedJpeg::Unsupported(_)] = images {
            return false;
        }
        apart(images, [&found, &without]).is_none_or(|mean| mean > MOST_MEAN_DIFFERENCE)
    };
    let others = (0..batch.len()).filter(|at| !must_fail.contains(at) && !may_fail.contains(at));
    let spoilt = others.filter(is_spoilt).count();
    let told = must_fail.iter().filter(|at| failed(**at)).count();
    measuring.promise(
        "G5: damaged JPEGs spoil themselves alone",
        spoilt == 0 && told == must_fail.len(),
        &format!("{spoilt} sound images spoilt, {told} damaged headers told"),
        &format!("none, and all {}", must_fail.len()),
    );
    Ok(())
}

/// How far the device's pixels are from those of the decoder on the CPU.
fn difference(measuring: &Measuring, decoder: &mut NvJpeg, images: &[Bytes]) -> Outcome {
    let decoded = decoder.decode(images).map_err(said)?;
    let download = decoded.memory.download(None).map_err(said)?;
    let pixels = download.wait().map_err(said)?;
    let mut on_host = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
    let (mut most, mut sum, mut count) = (0_u8, 0_u64, 0_u64);
    for (image, encoded) in decoded.images.iter().zip(images) {
        let DecodedJpeg::Decoded { offset, .. } = image else { continue };
        let Ok(expected) = on_host.decode_stored(encoded).map(|image| image.pixels) else {
            continue;
        };
        let found = &pixels[*offset..][..expected.len()];
        for (found, expected) in found.iter().zip(&expected) {
            let apart = found.abs_diff(*expected);
            most = most.max(apart);
            sum += u64::from(apart);
            count += 1;
        }
    }
    if count == 0 {
        measuring.unsupported("difference to the CPU's decoder", "no image was decoded by both");
        return Ok(());
    }
    let case = "pixels beside those of the CPU's decoder";
    let mean = sum as f64 / count as f64;
    measuring.figure(case, "largest difference", f64::from(most), "levels");
    measuring.figure(case, "mean difference", mean, "levels");
    measuring.promise(
        "the device's pixels are the CPU's, as far as decoders agree",
        mean <= MOST_MEAN_DIFFERENCE,
        &format!("{mean:.3} levels on average"),
        &format!("at most {MOST_MEAN_DIFFERENCE:.0}"),
    );
    Ok(())
}
