//! Streams that are captured into CUDA graphs: operations on them are errors and do not break the capture.
#![cfg(feature = "testing")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{LEN, bytes_of, send};
use spdl_core::memory::DeviceMemory;
use spdl_core::{Error, ErrorKind};
use spdl_cuda::testing::{FakeDriver, Schedule};
use spdl_cuda::{ConsumerStream, CudaDevice};

fn fake() -> (FakeDriver, CudaDevice) {
    let driver = FakeDriver::new(1, Schedule::Held);
    let device = CudaDevice::on(driver.clone(), 0).unwrap();
    (driver, device)
}

fn assert_capture_error(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(!error.is_fatal());
    assert!(error.message().contains("during the capture of a CUDA graph"), "{error}");
    assert!(error.report().contains("cuStreamIsCapturing"), "{}", error.report());
}

#[test]
fn a_captured_stream_is_not_used_until_its_capture_ends() {
    let (driver, device) = fake();
    for stream in [driver.consumer_stream(), ConsumerStream::per_thread_default()] {
        let batch = send(&driver, &device, 1, LEN).unwrap();
        driver.set_stream_captured(&stream, true);
        assert_capture_error(&batch.wait_on(&stream).unwrap_err());
        assert_capture_error(&batch.download(Some(&stream)).unwrap_err());
        // Neither holds memory.
        assert_eq!(device.statistics().slabs.withheld_bytes, 0);
        driver.set_stream_captured(&stream, false);
        batch.wait_on(&stream).unwrap();
        let seen = driver.read_by_kernel(&stream, batch.address(), LEN);
        let host = batch.download(Some(&stream)).unwrap().wait().unwrap();
        assert_eq!(*host, bytes_of(1, LEN)[..]);
        driver.run_all();
        assert_eq!(seen.bytes(), Some(bytes_of(1, LEN)));
    }
    assert_eq!(driver.violations(), []);
}

#[test]
fn memory_that_a_captured_graph_may_use_is_not_reused() {
    let (driver, device) = fake();
    for (number, stream) in
        [driver.consumer_stream(), ConsumerStream::per_thread_default()].iter().enumerate()
    {
        let batch = send(&driver, &device, 1, LEN).unwrap();
        let address = batch.address();
        batch.wait_on(stream).unwrap();
        driver.set_stream_captured(stream, true);
        drop(batch);
        let slabs = device.statistics().slabs;
        assert_eq!((slabs.live_bytes, slabs.withheld_bytes), (0, 512 * (number + 1)));
        // Other uploads use other memory.
        let next = send(&driver, &device, 2, LEN).unwrap();
        assert_ne!(next.address(), address);
        driver.set_stream_captured(stream, false);
        drop(next);
    }
    drop(device);
    assert_eq!(driver.violations(), []);
    assert!(driver.live_resources().is_empty());
}

#[test]
fn the_default_stream_is_not_used_while_a_per_thread_stream_is_captured() {
    let (driver, device) = fake();
    let batch = send(&driver, &device, 1, LEN).unwrap();
    std::thread::scope(|scope| {
        let user = scope.spawn(|| {
            let stream = ConsumerStream::per_thread_default();
            batch.wait_on(&stream).unwrap();
            driver.set_stream_captured(&stream, true);
        });
        user.join().unwrap();
    });
    let error = batch.wait_on(&ConsumerStream::legacy_default()).unwrap_err();
    assert_capture_error(&error);
    // This thread cannot name the per-thread stream of another, so the memory is withheld.
    drop(batch);
    assert_eq!(device.statistics().slabs.withheld_bytes, 512);
    assert_eq!(driver.violations(), []);
}

#[cfg(all(feature = "images", feature = "python"))]
#[test]
fn samples_cannot_be_ordered_after_a_captured_stream() {
    use spdl_core::Device;
    use spdl_cuda::kernels::{ImageKernels, ResizePlan};
    use spdl_cuda::pixels::{DevicePlane, SourceImage};
    use spdl_media::Size;
    use spdl_media::image::CropBox;
    use spdl_media::transform::TensorSpec;

    let (driver, device) = fake();
    driver.run_kernels_with(common::simple_kernel::run);
    let kernels = ImageKernels::new(&device).unwrap();
    let upload = device.upload(common::assemble(&driver, &device, 1, LEN).unwrap()).unwrap();
    let plane = DevicePlane { address: upload.memory.address() as u64, pitch: 12 };
    let image = SourceImage::rgb8(4, 4, plane).unwrap();
    let whole = CropBox { left: 0.0, top: 0.0, width: 4.0, height: 4.0 };
    let images = [(image, ResizePlan::new(whole, Size::new(4, 4)))];
    let format = TensorSpec::new(Size::new(4, 4));
    let make = |stream: &ConsumerStream| {
        let after = Some(stream);
        spdl_cuda::python::samples_of(&device, &kernels, &upload, &images, &format, after)
    };
    for stream in [driver.consumer_stream(), ConsumerStream::per_thread_default()] {
        driver.set_stream_captured(&stream, true);
        let records = driver.calls_of("cuEventRecord");
        assert_capture_error(&make(&stream).unwrap_err());
        assert_eq!(driver.calls_of("cuEventRecord"), records);
        assert_eq!(device.statistics().slabs.withheld_bytes, 0);
        driver.set_stream_captured(&stream, false);
        make(&stream).unwrap();
    }
    driver.run_all();
    assert_eq!(driver.violations(), []);
}
