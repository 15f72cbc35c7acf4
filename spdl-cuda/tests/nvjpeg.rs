//! JPEGs with an nvJPEG stub: assignment of backends and output memory, failed images, failed calls.

#![cfg(all(feature = "images", feature = "testing", unix))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use bytes::Bytes;
use common::nvjpeg_stub::{compiled, jpeg, stub};
use spdl_core::ErrorKind;
use spdl_cuda::jpeg::{DecodedJpeg, JpegBackend};
use spdl_cuda::testing::{FakeDriver, Schedule};
use spdl_cuda::{CudaDevice, NvJpeg, Search};

fn device() -> (FakeDriver, CudaDevice) {
    let driver = FakeDriver::new(1, Schedule::Seeded(3));
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    (driver, device)
}

fn backend_of(image: &DecodedJpeg) -> Option<JpegBackend> {
    match image {
        DecodedJpeg::Decoded { backend, .. } => Some(*backend),
        _ => None,
    }
}

#[test]
fn each_image_has_a_suitable_backend_and_separate_memory() {
    let stub = stub();
    let (driver, device) = device();
    let mut decoder = NvJpeg::new_with(&device, &stub.search()).unwrap();
    assert_eq!((decoder.version(), decoder.engines()), ([13, 1, 2], (2, 4)));
    let mut truncated = jpeg(0xC0, 10, 11);
    truncated.truncate(truncated.len() - 2);
    let mut refused = jpeg(0xC0, 10, 13);
    refused.push(b'N');
    let mut cmyk = jpeg(0xC0, 10, 14);
    cmyk[5] = 20;
    cmyk[11] = 4;
    cmyk.splice(21..21, [4, 0x11, 1]);
    let images = [
        jpeg(0xC0, 500, 375),
        jpeg(0xC2, 10, 12),
        truncated.clone(),
        refused.clone(),
        cmyk,
        b"GIF89a".to_vec(),
    ];
    let encoded: Vec<Bytes> = images.iter().cloned().map(Bytes::from).collect();
    let batch = decoder.decode(&encoded).unwrap();
    let backends: Vec<_> = batch.images.iter().map(backend_of).collect();
    let (hardware, hybrid) = (Some(JpegBackend::Hardware), Some(JpegBackend::Hybrid));
    assert_eq!(backends, [hardware, hybrid, hybrid, hybrid, None, None]);
    assert!(
        matches!(&batch.images[4], DecodedJpeg::Unsupported(header) if header.size.width == 14)
    );
    let DecodedJpeg::Failed(error) = &batch.images[5] else { panic!("{:?}", batch.images[5]) };
    assert_eq!(error.kind(), ErrorKind::Corrupt);

    let address = spdl_core::memory::DeviceMemory::address(&batch.memory);
    let mut expected = Vec::new();
    for (image, encoded) in batch.images.iter().zip(&encoded) {
        if let DecodedJpeg::Decoded { offset, header, backend, .. } = image {
            let name = if *backend == JpegBackend::Hardware { "engine" } else { "image" };
            let pitch = header.size.width as usize * 3;
            expected.push((name.to_owned(), address + offset, pitch, encoded.len()));
        }
    }
    assert_eq!(stub.decoded(), expected);
    let ends: Vec<(usize, usize)> = expected.iter().map(|it| (it.1, it.1 + it.2)).collect();
    assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ends:?}");
    assert_eq!(expected[1].1 - expected[0].1, (500 * 375 * 3_usize).next_multiple_of(256));

    drop((batch, decoder, device));
    assert_eq!(stub.number(b"stub_live"), 0);
    assert_eq!(driver.violations(), []);
    assert!(driver.live_resources().is_empty(), "{:?}", driver.live_resources());
}

// promise: G5
#[test]
fn the_host_parses_the_scans_only_for_the_hybrid_backend() {
    let stub = stub();
    let (_, device) = device();
    let mut decoder = NvJpeg::new_with(&device, &stub.search()).unwrap();
    let before = stub.number(b"stub_parsed");
    for (marker, parsed) in [(0xC0, 0), (0xC2, 8)] {
        let encoded: Vec<Bytes> = (0..8).map(|_| jpeg(marker, 20, 30).into()).collect();
        decoder.decode(&encoded).unwrap();
        assert_eq!(stub.number(b"stub_parsed") - before, parsed);
    }
}

// promise: G5
#[test]
fn all_images_that_the_engines_decode_are_decoded_by_the_engines() {
    let stub = stub();
    let (_, device) = device();
    let mut decoder = NvJpeg::new_with(&device, &stub.search()).unwrap();
    for round in 0..100 {
        let encoded: Vec<Bytes> = (0..8).map(|number| jpeg(0xC0, 20 + number, 30).into()).collect();
        let batch = decoder.decode(&encoded).unwrap();
        for image in &batch.images {
            assert_eq!(backend_of(image), Some(JpegBackend::Hardware), "round {round}");
        }
    }
}

// promise: G5
#[test]
fn a_corrupt_image_does_not_affect_the_others() {
    let stub = stub();
    let (_, device) = device();
    let mut decoder = NvJpeg::new_with(&device, &stub.search()).unwrap();
    for round in 0..3 {
        let encoded: Vec<Bytes> = (0..20)
            .map(|number| {
                let mut encoded = jpeg(0xC0, 20 + number, 30);
                if number % 7 == 3 {
                    encoded.extend(b"BAD!");
                }
                encoded.into()
            })
            .collect();
        let batch = decoder.decode(&encoded).unwrap();
        for (number, image) in batch.images.iter().enumerate() {
            match image {
                DecodedJpeg::Failed(error) => {
                    assert_eq!(
                        (number % 7, error.kind()),
                        (3, ErrorKind::Corrupt),
                        "round {round}"
                    );
                    assert!(
                        error.report().contains("NVJPEG_STATUS_BAD_JPEG"),
                        "{}",
                        error.report()
                    );
                }
                image => {
                    assert!(number % 7 != 3 && backend_of(image).is_some(), "{number}: {image:?}")
                }
            }
        }
        // A valid batch after a failed one uses the hardware backend again.
        let valid: Vec<Bytes> = (0..9).map(|_| jpeg(0xC0, 20, 30).into()).collect();
        let batch = decoder.decode(&valid).unwrap();
        let by_hardware = |image: &&DecodedJpeg| backend_of(image) == Some(JpegBackend::Hardware);
        assert!(batch.images.iter().filter(by_hardware).count() > 0, "round {round}");
    }
}

// promise: G1
#[test]
fn hardware_states_are_not_reused_before_their_batch_is_complete() {
    let stub = stub();
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let mut decoder =
        NvJpeg::new_with(&device, &stub.search()).unwrap().only(JpegBackend::Hardware);
    let mut waits = Vec::new();
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(decoder.decode(&[jpeg(0xC0, 5, 6).into()]).unwrap());
        assert_eq!(backend_of(&held.last().unwrap().images[0]), Some(JpegBackend::Hardware));
        waits.push(driver.calls_of("cuEventSynchronize"));
    }
    // At most eight batches are in flight.
    assert_eq!(waits, [0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    assert_eq!(driver.violations(), []);
}

// promise: G11
#[test]
fn g11_memory_is_withheld_after_a_failed_wait_of_nvjpeg() {
    let stub = stub();
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    let stream = driver.consumer_stream();
    let mut decoder = NvJpeg::new_with(&device, &stub.search()).unwrap();
    let encoded = [Bytes::from(jpeg(0xC0, 5, 6)), jpeg(0xC2, 5, 6).into()];
    let batch = decoder.decode(&encoded).unwrap();
    batch.memory.wait_on(&stream).unwrap();
    drop(batch);
    let before = device.statistics().slabs;
    // As if the consumer's stream had been captured when the batch was dropped.
    driver.fail_next("cuStreamWaitEvent", 907);
    let error = decoder.decode(&encoded).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("during the capture of a CUDA graph"), "{error}");
    let slabs = device.statistics().slabs;
    let bytes = (slabs.live_bytes, slabs.free_bytes, slabs.withheld_bytes);
    assert_eq!(bytes, (0, 0, before.free_bytes));
    decoder.decode(&encoded).unwrap();
    drop((decoder, device));
    assert_eq!(driver.violations(), []);
    assert!(driver.live_resources().is_empty());
}

#[test]
fn a_nearly_full_device_allocates_exactly_the_required_memory() {
    let stub = stub();
    let (driver, device) = device();
    let encoded = [Bytes::from(jpeg(0xC0, 100, 100))];
    // If memory is available, an eighth more is allocated, because the next batch may be larger.
    driver.set_memory(32 << 10);
    let mut decoder = NvJpeg::new_with(&device, &stub.search()).unwrap();
    let batch = decoder.decode(&encoded).unwrap();
    assert!(backend_of(&batch.images[0]).is_some());
    let error = decoder.decode(&encoded).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    drop(batch);
    decoder.decode(&encoded).unwrap();
}

#[test]
fn an_image_is_not_decoded_if_nvjpeg_reports_another_size() {
    let stub = stub();
    let (_, device) = device();
    for engines in [2, 0] {
        stub.engines(engines, 0);
        let mut decoder = NvJpeg::new_with(&device, &stub.search()).unwrap();
        let mut wide = jpeg(0xC0, 20, 30);
        wide.extend(b"WIDE");
        let valid = Bytes::from(jpeg(0xC0, 20, 30));
        let batch = decoder.decode(&[valid.clone(), wide.into(), valid]).unwrap();
        let DecodedJpeg::Failed(error) = &batch.images[1] else { panic!("{:?}", batch.images[1]) };
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let report = error.report();
        assert!(report.contains("nvjpegJpegStreamGetFrameDimensions"), "{report}");
        let is_decoded = |at: usize| backend_of(&batch.images[at]).is_some();
        assert!(is_decoded(0) && is_decoded(2), "{:?}", batch.images);
    }
    assert!(stub.decoded().iter().all(|(.., length)| *length == jpeg(0xC0, 20, 30).len()));
}

#[test]
fn nvjpeg_objects_in_use_are_leaked_if_the_device_cannot_be_waited_for() {
    let stub = stub();
    let (driver, device) = device();
    let before = stub.number(b"stub_live");
    let mut decoder = NvJpeg::new_with(&device, &stub.search()).unwrap();
    drop(decoder.decode(&[jpeg(0xC0, 5, 6).into(), jpeg(0xC2, 5, 6).into()]).unwrap());
    let live = stub.number(b"stub_live");
    assert!(live > before);
    driver.fail_calls(0, usize::MAX, 999);
    drop(decoder);
    assert_eq!(stub.number(b"stub_live"), live);
    driver.fail_calls(0, 0, 999);
    drop(device);
    stub.forget();
}

#[test]
fn a_device_without_jpeg_engines_uses_the_hybrid_backend() {
    let stub = stub();
    for (count, status) in [(0, 0), (2, 7), (2, 9)] {
        stub.engines(count, status);
        let (_, device) = device();
        let mut decoder = NvJpeg::new_with(&device, &stub.search()).unwrap();
        assert_eq!(decoder.engines(), (0, 0));
        let batch = decoder.decode(&[jpeg(0xC0, 5, 6).into()]).unwrap();
        assert_eq!(backend_of(&batch.images[0]), Some(JpegBackend::Hybrid));
        assert!(decoder.decode(&[]).unwrap().images.is_empty());
    }
}

// promise: G11
#[test]
fn each_nvjpeg_call_may_fail_without_leaks() {
    let stub = stub();
    let images: Vec<Bytes> = (0..30)
        .map(|number| jpeg(if number % 3 == 0 { 0xC2 } else { 0xC0 }, 9, 9 + number).into())
        .collect();
    let run = |device: &CudaDevice| -> spdl_core::Result<usize> {
        let mut decoder = NvJpeg::new_with(device, &stub.search())?;
        let batch = decoder.decode(&images)?;
        let again = decoder.decode(&images)?;
        let decoded = batch.images.iter().chain(&again.images);
        Ok(decoded.filter(|image| backend_of(image).is_some()).count())
    };
    let (_, whole) = device();
    stub.fail(0, 0);
    assert_eq!(run(&whole).unwrap(), 60);
    let calls = stub.number(b"stub_calls");
    assert!(calls > 200, "{calls}");
    let (mut errors, mut failed_images) = (0, 0);
    for status in [3, 5, 6, 8] {
        for call in 1..=calls {
            let (driver, device) = device();
            stub.fail(call, status);
            match run(&device) {
                Ok(60) => {}
                Ok(59) => failed_images += 1,
                Ok(count) => panic!("call {call}: {count} images"),
                Err(_) => errors += 1,
            }
            stub.fail(0, 0);
            // The device and new decoders still work.
            assert_eq!(run(&device).unwrap(), 60, "after call {call} with {status}");
            drop(device);
            assert_eq!(stub.number(b"stub_live"), 0, "call {call} with {status}");
            assert!(
                driver.live_resources().is_empty(),
                "call {call}: {:?}",
                driver.live_resources()
            );
            assert_eq!(driver.violations(), []);
        }
    }
    assert!(errors > 400 && failed_images > 50, "{errors} errors, {failed_images} failed images");
}

// promise: G10
#[test]
fn a_missing_or_too_old_nvjpeg_is_an_error_with_a_remedy() {
    let (_, device) = device();
    let nowhere =
        Search::default().at(spdl_cuda::libraries::Library::NvJpeg, "/nowhere/libnvjpeg.so.13");
    let old = Search::default()
        .at(spdl_cuda::libraries::Library::NvJpeg, compiled("old", &["-DTOO_OLD"]));
    for (search, reason) in [(nowhere, "/nowhere/"), (old, "nvjpegGetHardwareDecoderInfo")] {
        let error = NvJpeg::new_with(&device, &search).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("pip install nvidia-nvjpeg"), "{error}");
        assert!(error.report().contains(reason), "{}", error.report());
    }
}
