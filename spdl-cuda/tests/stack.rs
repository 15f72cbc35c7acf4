//! From files to batches through C stubs: a `libcuda` that runs the kernels on the host, and an nvJPEG that
//! writes known pixels. The samples must equal those of the host.

#![cfg(all(feature = "images", feature = "testing", unix))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
#[path = "common/jpegs_with_pixels.rs"]
mod jpegs_with_pixels;

use std::ffi::c_int;

use bytes::Bytes;
use common::cuda_stub::{Cuda, cuda};
use common::nvjpeg_stub::{self, Stub};
use jpegs_with_pixels::{jpeg, picture};
use spdl_core::stage::DeviceBatch;
use spdl_core::{Batch, BatchLayout, DType, DatasetSource, Labeled, PipelineBuilder, Result};
use spdl_cuda::jpeg::JpegBackend;
use spdl_cuda::libraries::Library;
use spdl_cuda::{CudaDevice, CudaMemory, DeviceImages, Search};
use spdl_media::encode::{ImageEncoder, PngEncoder};
use spdl_media::{
    CodecRegistry, FillImage, ImageTransform, Layout, Limits, Mode, Size, image_fields,
};

const SEED: u64 = 5;
const STAGE: &str = "decode";

/// The nvJPEG stub, in the mode in which it writes pixels.
fn nvjpeg() -> impl std::ops::Deref<Target = Stub> {
    let stub = nvjpeg_stub::stub();
    stub.call::<extern "C" fn(c_int)>(b"stub_write_pixels", |write| write(1));
    stub
}

/// JPEGs of all orientations, some of them progressive, and a PNG.
fn files() -> Vec<Labeled<Bytes>> {
    let mut files: Vec<Vec<u8>> =
        (0..16).map(|at| jpeg(at, 1 + at as u8 % 8, at % 5 == 0)).collect();
    files.insert(3, PngEncoder::new().encode_image(&picture(99)).unwrap());
    let labeled = |(at, file)| Labeled { value: Bytes::from(file), label: 100 + at as i64 };
    files.into_iter().enumerate().map(labeled).collect()
}

fn transform(mode: Mode) -> ImageTransform {
    ImageTransform::with_size(Size::new(40, 32)).mode(mode).exact(true)
}

fn by_host(transform: &ImageTransform, files: &[Labeled<Bytes>]) -> Vec<Batch> {
    let transform = transform.clone();
    let layout = BatchLayout::new(6, image_fields(&transform));
    let pipeline = PipelineBuilder::new(DatasetSource::new(files.to_vec()))
        .seed(SEED)
        .deterministic()
        .fill(STAGE, layout, move || {
            FillImage::new(&CodecRegistry::with_defaults(), &transform, &Limits::default())
        });
    pipeline.build().unwrap().collect::<Result<_>>().unwrap()
}

fn images(device: &CudaDevice, nvjpeg: &Stub, transform: ImageTransform) -> DeviceImages {
    DeviceImages::new(device, transform, 6).search(nvjpeg.search())
}

fn by_device(images: &DeviceImages, files: &[Labeled<Bytes>]) -> Result<Vec<DeviceBatch>> {
    let files = DatasetSource::new(files.to_vec());
    let files = PipelineBuilder::new(files).seed(SEED).deterministic();
    images.attach(files, STAGE)?.build()?.collect()
}

fn host_bytes(batch: &DeviceBatch, name: &str) -> Result<Vec<u8>> {
    let array = batch.array(name).unwrap();
    Ok(CudaMemory::of(array).unwrap().download(None)?.wait()?.to_vec())
}

fn open(cuda: &Cuda) -> Result<CudaDevice> {
    CudaDevice::open_with(0, &Search::default().at(Library::Driver, &cuda.path))
}

// promise: G8, DEV1
#[test]
fn g5_g8_samples_of_the_device_equal_those_of_the_host_within_one_level() {
    let (Some(cuda), nvjpeg) = (cuda(), nvjpeg()) else { return };
    let files = files();
    for mode in [Mode::Eval, Mode::Train] {
        let transform = transform(mode);
        let expected = by_host(&transform, &files);
        for only in
            [None, Some(JpegBackend::Hardware), Some(JpegBackend::Hybrid), Some(JpegBackend::Host)]
        {
            let device = open(cuda).unwrap();
            let images = images(&device, &nvjpeg, transform.clone());
            let images = match only {
                Some(only) => images.only(only),
                None => images,
            };
            let batches = by_device(&images, &files).unwrap();
            assert_eq!(batches.len(), expected.len());
            for (batch, expected) in batches.iter().zip(&expected) {
                assert_eq!(batch.ids(), expected.ids());
                let labels = expected.array("labels").unwrap().as_bytes();
                assert_eq!(host_bytes(batch, "labels").unwrap()[..labels.len()], *labels);
                let samples = host_bytes(batch, "images").unwrap();
                let expected = expected.array("images").unwrap().as_bytes();
                assert_eq!(samples.len(), expected.len());
                let largest = samples.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).max();
                assert!(largest <= Some(1), "{mode}, {only:?}: {largest:?}");
            }
            let statistics = images.statistics();
            let device_decoded = statistics.hardware + statistics.hybrid;
            match only {
                None | Some(JpegBackend::Hybrid) => assert_eq!(device_decoded, 16),
                // The hardware backend does not decode progressive JPEGs.
                Some(JpegBackend::Hardware) => {
                    assert_eq!((device_decoded, statistics.host), (12, 5))
                }
                _ => assert_eq!((device_decoded, statistics.host), (0, 17)),
            }
            drop((batches, images, device));
            assert_eq!(cuda.live_resources(), [0; 7]);
        }
    }
}

#[test]
fn g5_normalised_planes_match_the_bytes() {
    let (Some(cuda), nvjpeg) = (cuda(), nvjpeg()) else { return };
    let (device, files) = (open(cuda).unwrap(), files());
    let transform = transform(Mode::Train);
    let bytes = by_device(&images(&device, &nvjpeg, transform.clone()), &files).unwrap();
    let transform = transform.layout(Layout::Nchw).dtype(DType::F32);
    let transform = transform.normalization([0.0; 3], [1.0 / 255.0; 3]);
    let planes = by_device(&images(&device, &nvjpeg, transform), &files).unwrap();
    for (bytes, planes) in bytes.iter().zip(&planes) {
        assert_eq!(planes.array("images").unwrap().shape()[1..], [3, 32, 40]);
        let (bytes, planes) =
            (host_bytes(bytes, "images").unwrap(), host_bytes(planes, "images").unwrap());
        let (values, _) = planes.as_chunks::<4>();
        for (at, byte) in bytes.iter().enumerate() {
            let (sample, at) = (at / (3 * 1280), at % (3 * 1280));
            let value = f32::from_ne_bytes(values[sample * 3 * 1280 + at % 3 * 1280 + at / 3]);
            assert!((value - f32::from(*byte)).abs() <= 0.51, "{value} and {byte}");
        }
    }
}

// promise: G11
#[test]
fn g11_any_c_call_may_fail_without_leaks() {
    let (Some(cuda), nvjpeg) = (cuda(), nvjpeg()) else { return };
    let transform = transform(Mode::Eval);
    let files = &files()[..7];
    let epoch = || -> Result<usize> {
        let device = open(cuda)?;
        let images = images(&device, &nvjpeg, transform.clone());
        let batches = by_device(&images, files)?;
        batches.iter().try_for_each(|batch| host_bytes(batch, "images").map(drop))?;
        Ok(batches.iter().map(DeviceBatch::len).sum())
    };
    cuda.fail(-1, 0);
    assert_eq!(epoch().unwrap(), 7);
    let calls = cuda.calls();
    assert!(calls > 150, "{calls}");
    let mut reported = 0;
    for call in (0..calls).step_by(5) {
        cuda.fail(call, if call % 2 == 0 { 2 } else { 999 });
        match epoch() {
            Ok(samples) => assert_eq!(samples, 7, "call {call}"),
            Err(_) => reported += 1,
        }
        cuda.fail(-1, 0);
        assert_eq!(cuda.live_resources(), [0; 7], "call {call}");
        assert_eq!(nvjpeg.number(b"stub_live"), 0, "call {call}");
    }
    assert!(reported > 20, "{reported} of {calls}");
}
