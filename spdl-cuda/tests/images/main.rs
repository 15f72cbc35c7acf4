//! Batches of encoded images on the fake driver, with an nvJPEG stub.

#![cfg(all(feature = "images", feature = "testing", unix))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod memory;

use bytes::Bytes;
use common::nvjpeg_stub::{jpeg, stub};
use common::simple_kernel::{self, decoded_byte, device as fake};
use spdl_core::memory::DeviceMemory;
use spdl_core::stage::DeviceBatch;
use spdl_core::{DatasetSource, Error, ErrorKind, Labeled, OnError, PipelineBuilder, Result};
use spdl_cuda::images::{FallbackReason, ImageStatistics};
use spdl_cuda::jpeg::JpegBackend;
use spdl_cuda::testing::{FakeDriver, KernelRead, LiveResources, Schedule};
use spdl_cuda::{ConsumerStream, CudaDevice, CudaMemory, DeviceImages, NvJpeg, Search};
use spdl_media::image::{DecodeRequest, Decoded, ImageCodec, ImageDecoder, ImageInfo, PixelsMut};
use spdl_media::{CodecRegistry, Crop, ImageTransform, Limits, Orientation, ResizeFilter, Size};

const SIDE: u32 = 4;
const SAMPLE: usize = (SIDE * SIDE * 3) as usize;
/// Every byte of the pixels that the host decodes.
const HOST: u8 = 222;

/// Decodes files that start with "GIF", and JPEGs that do not end with "BAD!".
#[derive(Debug)]
struct Host;

impl ImageCodec for Host {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn sniff(&self, _: &[u8]) -> bool {
        true
    }

    fn decoder(&self, _: &Limits) -> Result<Box<dyn ImageDecoder>> {
        Ok(Box::new(Host))
    }
}

impl ImageDecoder for Host {
    fn inspect(&mut self, encoded: &[u8]) -> Result<ImageInfo> {
        if encoded.ends_with(b"BAD!") || encoded.is_empty() {
            return Err(Error::new(ErrorKind::Corrupt, "this image is bad"));
        }
        if encoded.starts_with(b"GIF") {
            return Ok(ImageInfo::new(Size::new(3, 2), Orientation::Transposed));
        }
        let header = spdl_cuda::jpeg::parse_header(encoded)?;
        Ok(ImageInfo::new(header.size, header.orientation))
    }

    fn decode_into(
        &mut self,
        _: &[u8],
        _: &DecodeRequest,
        mut out: PixelsMut<'_>,
    ) -> Result<Decoded> {
        for row in 0..out.size().height {
            out.row_mut(row).fill(HOST);
        }
        Ok(Decoded::new(out.size()))
    }
}

fn cmyk() -> Vec<u8> {
    let mut cmyk = jpeg(0xC0, 10, 14);
    cmyk[5] = 20;
    cmyk[11] = 4;
    cmyk.splice(21..21, [4, 0x11, 1]);
    cmyk
}

fn ending(mut encoded: Vec<u8>, end: &[u8]) -> Vec<u8> {
    encoded.extend(end);
    encoded
}

/// Image `number`, and the value of its sample; `None` if no decoder can decode it.
fn image(number: usize) -> (Vec<u8>, Option<u8>) {
    let (height, width) = (5 + number as u16 % 9, 7 + number as u16 % 5);
    let decoded = decoded_byte(3 * u64::from(width) * u64::from(height));
    match number % 20 {
        // Progressive: not decoded by the hardware backend.
        3 | 11 => (jpeg(0xC2, height, width), Some(decoded)),
        // Refused by the hardware backend.
        7 => (ending(jpeg(0xC0, height, width), b"N"), Some(decoded)),
        5 => (b"GIF89a".to_vec(), Some(HOST)),
        9 => (cmyk(), Some(HOST)),
        13 => (ending(jpeg(0xC0, height, width), b"BAD!"), None),
        17 => (b"\xFF\xD8 damaged".to_vec(), None),
        _ => (jpeg(0xC0, height, width), Some(decoded)),
    }
}

/// The whole image, without a crop.
fn transform() -> ImageTransform {
    ImageTransform::new(SIDE).crop(Crop::Stretch)
}

fn images(device: &CudaDevice, search: Search) -> DeviceImages {
    let mut codecs = CodecRegistry::new();
    codecs.register(Host);
    DeviceImages::new(device, transform(), 8).host_decoder(codecs, Limits::default()).search(search)
}

fn files(numbers: impl Iterator<Item = usize>) -> PipelineBuilder<Labeled<Bytes>> {
    let files =
        numbers.map(|number| Labeled { value: image(number).0.into(), label: number as i64 });
    PipelineBuilder::new(DatasetSource::new(files.collect::<Vec<_>>())).deterministic()
}

/// Reads the images and labels of a batch in kernels of the consumer.
fn read_batch(
    driver: &FakeDriver,
    batch: &DeviceBatch,
    stream: &ConsumerStream,
) -> Result<[KernelRead; 2]> {
    let read = |name| -> Result<KernelRead> {
        let array = batch.array(name).unwrap();
        let memory = CudaMemory::of(array).unwrap();
        memory.wait_on(stream)?;
        let bytes = array.shape().iter().product::<usize>() * array.dtype().size();
        Ok(driver.read_by_kernel(stream, memory.address(), bytes))
    };
    Ok([read("images")?, read("labels")?])
}

/// The labels and image bytes of all samples of a run.
fn run(driver: &FakeDriver, pipeline: PipelineBuilder<DeviceBatch>) -> Result<Vec<(i64, Vec<u8>)>> {
    let stream = driver.consumer_stream();
    let mut seen = Vec::new();
    let mut failure = Ok(());
    for batch in pipeline.build()? {
        match batch {
            Ok(batch) => {
                assert_eq!(batch.array("images").unwrap().shape()[1..], [4, 4, 3]);
                let indices = batch.ids().iter().map(|id| id.index).collect::<Vec<_>>();
                match read_batch(driver, &batch, &stream) {
                    Ok(reads) => seen.push((reads, indices)),
                    Err(error) => failure = Err(error),
                }
            }
            Err(error) => failure = Err(error),
        }
    }
    driver.run_all();
    failure?;
    let mut samples = Vec::new();
    for ([pixels, labels], indices) in seen {
        let (pixels, labels) = (pixels.bytes().unwrap(), labels.bytes().unwrap());
        for (at, index) in indices.iter().enumerate() {
            let label = i64::from_ne_bytes(labels[8 * at..8 * at + 8].try_into().unwrap());
            assert_eq!(label, *index as i64, "ids and labels are in the same order");
            samples.push((label, pixels[at * SAMPLE..(at + 1) * SAMPLE].to_vec()));
        }
    }
    Ok(samples)
}

// promise: G5
#[test]
fn g5_every_valid_image_arrives_and_a_corrupt_one_affects_only_itself() {
    let stub = stub();
    for seed in 0..60 {
        let (driver, device) = fake(Schedule::Seeded(seed));
        let images = images(&device, stub.search());
        let pipeline = images.attach(files(0..100).on_error(OnError::SKIP), "decode").unwrap();
        let samples = run(&driver, pipeline).unwrap();
        let expected: Vec<(i64, Vec<u8>)> = (0..100)
            .filter_map(|number| Some((number as i64, vec![image(number).1?; SAMPLE])))
            .collect();
        assert_eq!(samples.len(), 90);
        assert!(samples == expected, "seed {seed}");
        let ImageStatistics { hardware, hybrid, host, fallbacks, failed, missing, .. } =
            images.statistics();
        assert_eq!((hardware + hybrid, host, failed, missing), (80, 10, 10, None));
        assert!(hardware > 0 && hybrid >= 15, "hardware {hardware}, hybrid {hybrid}");
        let expected = [
            (FallbackReason::OtherFormat, 5),
            (FallbackReason::DamagedHeader, 5),
            (FallbackReason::Color, 5),
            (FallbackReason::Refused, 5),
        ];
        assert_eq!(fallbacks, expected);
        drop((images, device));
        assert_eq!(stub.number(b"stub_live"), 0);
        assert_eq!(driver.violations(), [], "seed {seed}");
        assert_eq!(driver.live_resources(), LiveResources::default(), "seed {seed}");
    }
}

// promise: G5
#[test]
fn batches_are_full_after_failures_and_the_failure_policy_counts_each() {
    let stub = stub();
    let (driver, device) = fake(Schedule::Prompt);
    let sizes = |policy, drop_last| {
        let images = images(&device, stub.search()).drop_last(drop_last).group(5);
        let pipeline = images.attach(files(0..100).on_error(policy), "decode").unwrap();
        let mut pipeline = pipeline.build().unwrap();
        let sizes: Result<Vec<_>> = pipeline.by_ref().map(|batch| Ok(batch?.len())).collect();
        (sizes, pipeline.statistics())
    };
    let (found, statistics) = sizes(OnError::SKIP, false);
    assert_eq!(found.unwrap(), [[8; 11].as_slice(), &[2]].concat());
    assert_eq!(statistics.dropped.len(), 10, "{statistics}");
    let (found, statistics) = sizes(OnError::SKIP, true);
    assert_eq!((found.unwrap(), statistics.left_out), (vec![8; 11], 2));
    let (found, _) = sizes(OnError::Skip { at_most: Some(9) }, false);
    assert!(found.is_err());
    let (found, _) = sizes(OnError::Skip { at_most: Some(10) }, false);
    assert_eq!(found.unwrap().len(), 12);
    assert_eq!(driver.violations(), []);
}

// promise: R10
#[test]
fn errors_of_images_have_a_kind_and_a_reason() {
    let stub = stub();
    let (_, device) = fake(Schedule::Prompt);
    for (number, kind) in [(13, ErrorKind::Corrupt), (17, ErrorKind::Truncated)] {
        let pipeline = images(&device, stub.search()).attach(files(number..number + 1), "decode");
        let error = pipeline.unwrap().build().unwrap().next().unwrap().unwrap_err();
        assert_eq!(error.kind(), kind, "{}", error.report());
    }
    // Without a decoder on the host, the error is that of nvJPEG.
    let alone = DeviceImages::new(&device, transform(), 8).without_host_decoder();
    let alone = alone.search(stub.search());
    for (number, expected) in [(13, "NVJPEG_STATUS_BAD_JPEG"), (5, "not a JPEG"), (9, "(color)")] {
        let pipeline = alone.attach(files(number..number + 1), "decode").unwrap();
        let error = pipeline.build().unwrap().next().unwrap().unwrap_err();
        assert!(error.report().contains(expected), "{}", error.report());
    }
}

// promise: DEV1
#[test]
fn samples_do_not_depend_on_the_backend() {
    let stub = stub();
    let decoded = |only: Option<JpegBackend>, rates: i32| {
        stub.engines(rates, 0);
        let (driver, device) = fake(Schedule::Seeded(9));
        let numbers = (0..100).filter(|number| ![5, 9, 13, 17].contains(&(number % 20)));
        let images = images(&device, stub.search());
        let images = match only {
            Some(only) => images.only(only),
            None => images,
        };
        let pipeline = images.attach(files_of(numbers), "decode").unwrap();
        (run(&driver, pipeline).unwrap(), images.statistics())
    };
    let (shared, statistics) = decoded(None, 2);
    assert!(statistics.hardware > 0 && statistics.hybrid > 0);
    let (hybrid, statistics) = decoded(Some(JpegBackend::Hybrid), 2);
    assert_eq!((statistics.hardware, statistics.hybrid), (0, 80));
    let (without_engines, _) = decoded(None, 0);
    assert!(shared == hybrid && shared == without_engines);
    let (hardware, statistics) = decoded(Some(JpegBackend::Hardware), 2);
    // The host decodes the images that the hardware backend does not.
    assert_eq!((statistics.hardware, statistics.hybrid, statistics.host), (65, 0, 15));
    let by_hardware = hardware.iter().zip(&shared).filter(|(sample, _)| sample.1 != [HOST; SAMPLE]);
    assert_eq!(by_hardware.clone().count(), 65);
    assert!(by_hardware.clone().all(|(sample, expected)| sample == expected));
    let (host, statistics) = decoded(Some(JpegBackend::Host), 2);
    assert_eq!((statistics.host, host.len()), (80, 80));
    assert!(host.iter().all(|(_, bytes)| *bytes == [HOST; SAMPLE]));
}

/// Files whose labels count from 0.
fn files_of(numbers: impl Iterator<Item = usize>) -> PipelineBuilder<Labeled<Bytes>> {
    let files = numbers.enumerate();
    let files =
        files.map(|(at, number)| Labeled { value: image(number).0.into(), label: at as i64 });
    PipelineBuilder::new(DatasetSource::new(files.collect::<Vec<_>>())).deterministic()
}

// promise: G10
#[test]
fn g10_without_nvjpeg_the_host_decodes_all_images_and_the_reason_is_reported() {
    let (driver, device) = fake(Schedule::Seeded(1));
    let nowhere =
        Search::default().at(spdl_cuda::libraries::Library::NvJpeg, "/nowhere/libnvjpeg.so.13");
    let images = images(&device, nowhere);
    let pipeline = images.attach(files(0..13), "decode").unwrap();
    let samples = run(&driver, pipeline).unwrap();
    assert!(samples.len() == 13 && samples.iter().all(|(_, bytes)| *bytes == [HOST; SAMPLE]));
    let statistics = images.statistics();
    assert_eq!((statistics.host, statistics.hardware + statistics.hybrid), (13, 0));
    assert_eq!(statistics.fallbacks, [(FallbackReason::NoDecoder, 13)]);
    assert!(statistics.missing.unwrap().contains("/nowhere/"));
}

#[test]
fn invalid_settings_are_refused_before_anything_runs() {
    let (_, device) = fake(Schedule::Prompt);
    let filter = transform().filter(ResizeFilter::Lanczos3);
    let wrong = [
        (DeviceImages::new(&device, transform(), 0), ErrorKind::InvalidArgument),
        (DeviceImages::new(&device, transform(), 1).group(0), ErrorKind::InvalidArgument),
        (DeviceImages::new(&device, ImageTransform::new(0), 1), ErrorKind::InvalidArgument),
        (DeviceImages::new(&device, filter, 1), ErrorKind::Unsupported),
    ];
    for (images, kind) in wrong {
        let error = images.attach(files(0..1), "decode").map(drop).unwrap_err();
        assert_eq!(error.kind(), kind);
    }
}

// promise: G5
#[test]
fn a_padded_sample_fails_alone() {
    let stub = stub();
    let (_, device) = fake(Schedule::Prompt);
    let letterbox = ImageTransform::new(SIDE).crop(Crop::Letterbox { fill: [0; 3] });
    let images = DeviceImages::new(&device, letterbox, 8).search(stub.search());
    let pipeline = images.attach(files(0..1), "decode").unwrap();
    let error = pipeline.build().unwrap().next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{}", error.report());
}

/// Decodes batches of JPEGs of these widths in sequence, and reads them in kernels of a consumer.
fn decode_and_read(
    driver: &FakeDriver,
    decoder: &mut NvJpeg,
    widths: impl IntoIterator<Item = u16>,
) -> Result<Vec<KernelRead>> {
    let stream = driver.consumer_stream();
    let mut seen = Vec::new();
    for width in widths {
        let encoded: Vec<Bytes> = (0..6)
            .map(|number| jpeg(if number < 3 { 0xC2 } else { 0xC0 }, 8, width))
            .map(Bytes::from)
            .collect();
        let batch = decoder.decode(&encoded)?;
        batch.memory.wait_on(&stream)?;
        seen.push(driver.read_by_kernel(&stream, batch.memory.address(), batch.memory.len()));
    }
    Ok(seen)
}

// promise: G1
#[test]
fn g1_each_omitted_record_or_wait_of_nvjpeg_is_detected() {
    let stub = stub();
    let decode = |driver: &FakeDriver, device: &CudaDevice, rounds| {
        let mut decoder = NvJpeg::new_with(device, &stub.search()).unwrap();
        decode_and_read(driver, &mut decoder, vec![9; rounds]).map(|_| driver.order_calls())
    };
    let (driver, device) = fake(Schedule::Held);
    let count = decode(&driver, &device, 2).unwrap();
    assert_eq!(driver.violations(), []);
    let mut undetected = Vec::new();
    for left_out in 0..count {
        let (driver, device) = fake(Schedule::Held);
        driver.skip_order_call(left_out);
        let result = decode(&driver, &device, 8);
        if result.is_ok() && driver.violations().is_empty() {
            undetected.push(left_out);
        }
    }
    // Four events of each batch are internal to the decoder, for the states of the engines and of three
    // images. The fake driver does not see accesses to states; `nvjpeg.rs` tests the waits for them.
    let internal_events = |first: usize| first..first + 4;
    // Then follow the hardware event, the wait for it, the event of the batch, the wait and the release of
    // the consumer. Before those of the second batch are the waits of both streams for the memory.
    let (internal, others, waits) = (internal_events(0).len(), 5, 2);
    assert_eq!(count, internal + others + waits + internal + others);
    let expected: Vec<usize> =
        internal_events(0).chain(internal_events(internal + others + waits)).collect();
    assert_eq!(undetected, expected);
}

// promise: G2
#[test]
fn g2_nvjpeg_does_not_wait_or_allocate_in_the_steady_state() {
    let stub = stub();
    let (driver, device) = fake(Schedule::Held);
    let mut decoder = NvJpeg::new_with(&device, &stub.search()).unwrap();
    let mut counts = Vec::new();
    for round in 0..200 {
        let width = 8 + round * 7 % 9;
        decode_and_read(&driver, &mut decoder, [width, 24 - width]).unwrap();
        driver.run_all();
        counts.push((driver.synchronisations(), driver.allocations()));
    }
    assert_eq!(counts[20], counts[199], "(waits, allocations)");
    assert_eq!(driver.calls_of("cuEventSynchronize"), 0);
    assert_eq!(driver.violations(), []);
}

// promise: G11
#[test]
fn g11_any_nvjpeg_call_may_fail_without_leaks_or_races() {
    let stub = stub();
    let epoch = |schedule| {
        let (driver, device) = fake(schedule);
        let images = images(&device, stub.search());
        let numbers = (0..12).filter(|number| image(*number).1.is_some());
        let pipeline = images.attach(files_of(numbers), "decode").unwrap();
        let result = run(&driver, pipeline);
        drop((images, device));
        assert_eq!(stub.number(b"stub_live"), 0);
        assert_eq!(driver.violations(), []);
        assert!(driver.live_resources().is_empty(), "{:?}", driver.live_resources());
        result.map(|samples| samples.len())
    };
    stub.fail(0, 0);
    assert_eq!(epoch(Schedule::Held).unwrap(), 12);
    let calls = stub.number(b"stub_calls");
    assert!(calls > 80, "{calls}");
    let mut errors = 0;
    for status in [3, 6] {
        for call in 1..=calls {
            stub.fail(call, status);
            match epoch(Schedule::Seeded(call as u64)) {
                // The host decodes images that nvJPEG refuses.
                Ok(count) => assert_eq!(count, 12, "call {call} with {status}"),
                Err(_) => errors += 1,
            }
        }
    }
    assert!(errors > 20, "{errors} of {} failed", 2 * calls);
}

// promise: G11
#[test]
fn g11_any_driver_call_may_fail_during_image_batches() {
    let stub = stub();
    let epoch = |driver: &FakeDriver| {
        driver.run_kernels_with(simple_kernel::run);
        let device = CudaDevice::on(driver.clone(), 0)?;
        let images = images(&device, stub.search());
        let numbers = (0..16).filter(|number| image(*number).1.is_some());
        run(driver, images.attach(files_of(numbers), "decode")?)
    };
    let driver = FakeDriver::new(1, Schedule::Held);
    assert_eq!(epoch(&driver).unwrap().len(), 15);
    let mut errors = 0;
    for failing in 0..driver.calls() {
        for code in [2, 999] {
            let driver = FakeDriver::new(1, Schedule::Held);
            driver.fail_calls(failing, 1, code);
            errors += usize::from(epoch(&driver).is_err());
            assert_eq!(stub.number(b"stub_live"), 0, "call {failing} with {code}");
            assert_eq!(driver.violations(), [], "call {failing} with {code}");
            assert!(
                driver.live_resources().is_empty(),
                "call {failing}: {:?}",
                driver.live_resources()
            );
        }
        // After six failed calls, the library cannot determine whether started work is complete. Code 700
        // is a lost device.
        let chosen = if failing % 3 == 0 { &[(6, 999), (usize::MAX, 700)][..] } else { &[] };
        for &(count, code) in chosen {
            let driver = FakeDriver::new(1, Schedule::Held);
            driver.fail_calls(failing, count, code);
            if let Err(error) = epoch(&driver) {
                assert_eq!(error.is_fatal(), code == 700, "from call {failing} on: {error}");
            }
            driver.run_all();
            assert_eq!(driver.violations(), [], "{count} calls from {failing} on with {code}");
            // Objects that may still be in use are leaked.
            stub.forget();
        }
    }
    assert!(errors > driver.calls() / 4, "{errors} of {}", 2 * driver.calls());
}
