//! Batches of photographs on a device, compared with those of the host.

// promise of this file: G5

use std::time::Instant;

use bytes::Bytes;
use spdl_core::stage::DeviceBatch;
use spdl_core::{Batch, BatchLayout, DatasetSource, Labeled, OnError, PipelineBuilder, Result};
use spdl_cuda::jpeg::JpegBackend;
use spdl_cuda::{CudaDevice, CudaMemory, DeviceImages};
use spdl_media::encode::{ImageEncoder, JpegEncoder, PngEncoder};
use spdl_media::{CodecRegistry, Decoder, FillImage, ImageTransform, Limits, Mode, image_fields};

use super::device;

macro_rules! photos {
    ($($name:literal),*) => {
        [$(include_bytes!(concat!("../../../assets/photos/", $name)).as_slice(),)*]
    };
}

/// Compiled into the program, because it runs without the repository.
const PHOTOS: [&[u8]; 5] =
    photos!["astronaut.jpg", "chelsea.jpg", "coffee.jpg", "rocket.jpg", "umang.jpg"];

const SEED: u64 = 7;
const STAGE: &str = "decode";
const BATCH: usize = 3;
const SIDE: u32 = 96;

/// The maximum mean difference, in levels, between two JPEG decoders. Their inverse DCTs and chroma
/// upsampling differ; single pixels at edges of colours differ much more.
const MAX_MEAN_DIFFERENCE: f64 = 2.0;

/// The photographs, copies of one as a progressive JPEG and as a PNG, and one with a truncated header.
fn files() -> Vec<Labeled<Bytes>> {
    let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
    let chelsea = decoder.decode_stored(PHOTOS[1]).unwrap();
    let progressive = JpegEncoder::new().progressive(true).encode_image(&chelsea).unwrap();
    let mut files: Vec<Bytes> = PHOTOS.into_iter().map(Bytes::from_static).collect();
    files.insert(2, progressive.into());
    files.insert(4, PHOTOS[0][..30].to_vec().into());
    files.insert(5, PngEncoder::new().encode_image(&chelsea).unwrap().into());
    files.into_iter().zip(0..).map(|(value, label)| Labeled { value, label }).collect()
}

fn source() -> PipelineBuilder<Labeled<Bytes>> {
    let files = DatasetSource::new(files());
    PipelineBuilder::new(files).seed(SEED).deterministic().on_error(OnError::SKIP)
}

fn by_host(transform: &ImageTransform) -> Vec<Batch> {
    let transform = transform.clone();
    let layout = BatchLayout::new(BATCH, image_fields(&transform));
    let pipeline = source().fill(STAGE, layout, move || {
        FillImage::new(&CodecRegistry::with_defaults(), &transform, &Limits::default())
    });
    pipeline.build().unwrap().collect::<Result<_>>().unwrap()
}

fn by_device(images: &DeviceImages) -> Vec<DeviceBatch> {
    let pipeline = images.attach(source(), STAGE).unwrap();
    pipeline.build().unwrap().collect::<Result<_>>().unwrap()
}

fn host_bytes(batch: &DeviceBatch, name: &str) -> Vec<u8> {
    let memory = CudaMemory::of(batch.array(name).unwrap()).unwrap();
    memory.download(None).unwrap().wait().unwrap().to_vec()
}

fn images(device: &CudaDevice, transform: &ImageTransform) -> DeviceImages {
    DeviceImages::new(device, transform.clone(), BATCH)
}

// promise: G8
#[test]
fn g5_g8_photos_decoded_on_the_device_match_the_host_and_a_truncated_one_is_dropped() {
    let Some(device) = device() else { return };
    for mode in [Mode::Eval, Mode::Train] {
        let transform = ImageTransform::new(SIDE).mode(mode).exact(true);
        let expected = by_host(&transform);
        assert_eq!(expected.iter().map(Batch::len).sum::<usize>(), 7);
        for only in
            [Some(JpegBackend::Host), Some(JpegBackend::Hybrid), Some(JpegBackend::Hardware), None]
        {
            let start = Instant::now();
            let images = images(&device, &transform);
            let images = match only {
                Some(only) => images.only(only),
                None => images,
            };
            let batches = by_device(&images);
            assert_eq!(batches.len(), expected.len(), "{mode}, {only:?}");
            let (mut largest, mut mean) = (0, 0.0_f64);
            for (batch, expected) in batches.iter().zip(&expected) {
                assert_eq!(batch.ids(), expected.ids(), "{mode}, {only:?}");
                let labels = expected.array("labels").unwrap().as_bytes();
                assert_eq!(host_bytes(batch, "labels")[..labels.len()], *labels);
                let (found, expected) =
                    (host_bytes(batch, "images"), expected.array("images").unwrap().as_bytes());
                assert_eq!(found.len(), expected.len());
                let sample = (3 * SIDE * SIDE) as usize;
                for (found, expected) in found.chunks(sample).zip(expected.chunks(sample)) {
                    let differences = found.iter().zip(expected).map(|(a, b)| a.abs_diff(*b));
                    let sum: u64 = differences.clone().map(u64::from).sum();
                    mean = mean.max(sum as f64 / sample as f64);
                    largest = largest.max(differences.max().unwrap_or(0));
                }
            }
            let statistics = images.statistics();
            println!(
                "{mode}, {only:?}: difference at most {largest}, mean {mean:.2}, {:?}: {statistics:?}",
                start.elapsed()
            );
            if only == Some(JpegBackend::Host) {
                // The decoder is the same, so only the rounding of the kernels differs.
                assert!(largest <= 1, "{mode}: {largest}");
            }
            assert!(mean <= MAX_MEAN_DIFFERENCE, "{mode}, {only:?}: {mean}");
            let by_device = statistics.hardware + statistics.hybrid;
            assert_eq!((by_device + statistics.host, statistics.failed), (7, 1));
            match (only, &statistics.missing) {
                (Some(JpegBackend::Host), _) => assert_eq!(by_device, 0),
                (_, Some(missing)) => println!("SKIPPED: no nvJPEG: {missing}"),
                // The hardware backend does not decode progressive JPEGs.
                (Some(JpegBackend::Hardware), None) => assert!(by_device <= 5, "{by_device}"),
                (_, None) => assert_eq!(by_device, 6),
            }
        }
    }
}
