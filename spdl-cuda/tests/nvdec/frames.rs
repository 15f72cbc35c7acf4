//! Frames: order, content, and asynchronous delivery.

use std::ffi::c_ulonglong;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use spdl_core::Device;
use spdl_core::memory::DeviceMemory;
use spdl_cuda::libraries::Library;
use spdl_cuda::pixels::{ColorMatrix, ColorRange, ColorStandard, PixelFormat};
use spdl_cuda::testing::{FakeDriver, KernelRead, Schedule};
use spdl_cuda::video::{FramePlane, VideoCodec, VideoFrame};
use spdl_cuda::{ConsumerStream, CudaDevice, NvDec};

use super::stub::{
    H264, HEVC, Headers, PITCH, SURFACE_BYTES, available_frames, decode, push_all, short_video,
    show, stub,
};
use super::stub_library::library;

/// The driver that writes surfaces, and the number of surfaces written.
static WRITER: Mutex<Option<FakeDriver>> = Mutex::new(None);
static WRITTEN: AtomicUsize = AtomicUsize::new(0);

/// Fills a surface with the number of the frame, on the given stream.
extern "C" fn write_surface(address: c_ulonglong, bytes: usize, stream: usize) {
    let writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    let number = WRITTEN.fetch_add(1, Ordering::SeqCst);
    if let Some(driver) = &*writer {
        // SAFETY: the stream belongs to the decoder, which is alive.
        let stream = unsafe { ConsumerStream::from_raw(stream) };
        driver.write_by_kernel(&stream, address as usize, bytes, number as u8);
    }
}

fn write_with(driver: &FakeDriver) {
    WRITTEN.store(0, Ordering::SeqCst);
    *WRITER.lock().unwrap_or_else(PoisonError::into_inner) = Some(driver.clone());
}

fn read(driver: &FakeDriver, stream: &ConsumerStream, frame: &VideoFrame) -> KernelRead {
    frame.memory.wait_on(stream).unwrap();
    driver.read_by_kernel(stream, frame.memory.address(), frame.memory.len())
}

// promise: DEV4
#[test]
fn frames_arrive_in_display_order_and_the_last_ones_at_the_end() {
    let stub = stub();
    let (driver, device, decoders) = stub.device(Schedule::Prompt);
    let mut video = decoders.open(VideoCodec::H264).unwrap();
    assert!(video.format().is_none());
    // Decoded in the order 0, 3, 1, 2; displayed in the order of the numbers, the last at the end.
    let packets = [
        [Headers::of(H264, 64, 48).packet(), decode(0)].concat(),
        decode(3),
        [decode(1), show(0), show(1)].concat(),
        [decode(2), show(2), vec![b'Q', 3]].concat(),
    ];
    let mut frames = push_all(&mut video, &packets);
    assert_eq!(frames.len(), 3);
    assert_eq!(video.format().unwrap().size, (64, 48));
    video.finish().unwrap();
    frames.extend(available_frames(&mut video));
    let frame_ids = frames.iter().map(|frame| frame.as_ref().unwrap());
    let frame_ids: Vec<_> = frame_ids.map(|frame| (frame.number, frame.timestamp)).collect();
    assert_eq!(frame_ids, [(0, 0), (1, 2), (2, 3), (3, 1)]);
    // Another video may follow. Its first packet is a discontinuity, as was the very first.
    assert_eq!(stub.logged("discontinuity").len(), 1);
    video.push(&[decode(0), show(0), vec![b'Z']].concat(), None).unwrap();
    assert_eq!(available_frames(&mut video).len(), 1);
    assert_eq!(stub.logged("discontinuity").len(), 2);
    assert_eq!(decoders.statistics().frames, 5);
    drop((frames, video, decoders, device));
    stub.assert_clean("in the end");
    assert_eq!(driver.violations(), []);
}

#[test]
fn one_surface_at_a_time_is_mapped_copied_and_unmapped() {
    let stub = stub();
    let (driver, _device, decoders) = stub.device(Schedule::Held);
    let mut video = decoders.open(VideoCodec::H264).unwrap();
    let frames = push_all(&mut video, &short_video(Headers::of(H264, 64, 48), 3));
    let lines: Vec<String> = stub.log().into_iter().filter(|line| line.contains("map")).collect();
    assert_eq!(lines, ["map 0", "unmap", "map 1", "unmap", "map 2", "unmap"]);
    // One copy per plane.
    assert_eq!(driver.calls_of("cuMemcpy2DAsync_v2"), 2 * frames.len());
}

// promise: G1
#[test]
fn g1_no_schedule_overwrites_a_surface_or_a_frame_too_early() {
    let stub = stub();
    stub.on_map(write_surface);
    for seed in 0..300 {
        let (driver, device, decoders) = stub.device(Schedule::Seeded(seed));
        write_with(&driver);
        let streams = [driver.consumer_stream(), driver.consumer_stream()];
        let mut seen = Vec::new();
        // Two videos interleaved, then a third one that reuses a decoder.
        for round in 0..2 {
            let mut videos = [(); 2].map(|()| decoders.open(VideoCodec::H264).unwrap());
            let mut held: Vec<VideoFrame> = Vec::new();
            for packet in short_video(Headers::of(H264, 64, 48), 6) {
                for video in &mut videos[round..] {
                    let number = WRITTEN.load(Ordering::SeqCst);
                    video.push(&packet, None).unwrap();
                    for frame in available_frames(video) {
                        let frame = frame.unwrap();
                        let stream = &streams[number % 2];
                        seen.push((number as u8, read(&driver, stream, &frame)));
                        held.push(frame);
                    }
                }
                held.drain(..held.len().saturating_sub(2));
            }
        }
        WRITER.lock().unwrap().take();
        drop((decoders, device));
        driver.run_all();
        assert_eq!(driver.violations(), [], "seed {seed}");
        assert_eq!(seen.len(), 18);
        for (number, seen) in seen {
            assert!(seen.bytes().unwrap().iter().all(|byte| *byte == number), "seed {seed}");
        }
    }
    stub.assert_clean("in the end");
}

/// Frees the surfaces.
extern "C" fn free_surfaces() {
    let mut writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = writer.take() {
        driver.free_elsewhere(1 << 60);
    }
}

// promise: G1
#[test]
fn g1_a_decoder_is_not_destroyed_while_its_surfaces_are_read() {
    let stub = stub();
    stub.on_destroy(free_surfaces);
    let (driver, _device, decoders) = stub.device(Schedule::Held);
    write_with(&driver);
    let mut video = decoders.open(VideoCodec::H264).unwrap();
    let frames = push_all(&mut video, &short_video(Headers::of(H264, 64, 48), 2));
    drop((video, decoders));
    assert_eq!((stub.logged("destroy").len(), frames.len()), (1, 2));
    assert_eq!(driver.violations(), []);
}

// promise: G9
#[test]
fn g1_frames_and_batches_reuse_the_memory_of_each_other() {
    let stub = stub();
    let (driver, device, decoders) = stub.device(Schedule::Held);
    let mut video = decoders.open(VideoCodec::H264).unwrap();
    video.push(&Headers::of(H264, 64, 48).packet(), None).unwrap();
    for _ in 0..3 {
        drop(device.upload(device.host_buffer(64 * 48 * 3 / 2).unwrap()).unwrap());
        video.push(&[decode(0), show(0)].concat(), None).unwrap();
        assert_eq!(available_frames(&mut video).len(), 1);
    }
    assert_eq!(device.statistics().slabs.allocations, 1);
    assert_eq!(driver.violations(), []);
}

// promise: G2
#[test]
fn g2_decoding_does_not_wait_or_allocate_in_the_steady_state() {
    let stub = stub();
    let (driver, _device, decoders) = stub.device(Schedule::Held);
    let stream = driver.consumer_stream();
    let mut video = decoders.open(VideoCodec::H264).unwrap();
    let mut counts = Vec::new();
    for (number, packet) in short_video(Headers::of(H264, 64, 48), 200).iter().enumerate() {
        video.push(packet, None).unwrap();
        for frame in available_frames(&mut video) {
            read(&driver, &stream, &frame.unwrap());
        }
        if number % 5 == 0 {
            driver.run_all();
        }
        counts.push((driver.synchronisations(), driver.allocations()));
    }
    assert_eq!(counts[50], counts[200], "(waits, allocations)");
    assert_eq!(driver.calls_of("cuStreamSynchronize"), 0);
}

// promise: DEV4
#[test]
fn frames_of_every_format_have_the_right_pixel_format_and_planes() {
    let stub = stub();
    let (_driver, _device, decoders) = stub.device(Schedule::Prompt);
    let formats = [
        (1, 8, 0, PixelFormat::Nv12),
        (1, 10, 1, PixelFormat::P016),
        (1, 12, 1, PixelFormat::P016),
        (3, 8, 2, PixelFormat::Yuv444),
        (3, 10, 3, PixelFormat::Yuv444P16),
        (0, 8, 0, PixelFormat::Nv12),
    ];
    for (chroma, bits, output, format) in formats {
        let headers = Headers { chroma, bits, signal: 8, ..Headers::of(HEVC, 64, 50) };
        let headers = Headers { area: [2, 2, 61, 45], ..headers };
        let mut video = decoders.open(VideoCodec::Hevc).unwrap();
        let frame = push_all(&mut video, &short_video(headers, 1)).remove(0).unwrap();
        let created = stub.logged("create").pop().unwrap();
        assert!(
            created.ends_with(&format!("chroma {chroma}, bits {bits}, format {output}")),
            "{created}"
        );
        assert_eq!((frame.format, frame.bits), (format, u32::from(bits)));
        assert_eq!((frame.width, frame.height), (59, 43));
        assert_eq!((frame.color.matrix, frame.color.full_range), (6, true));
        let sample = if bits > 8 { 2 } else { 1 };
        let luma = FramePlane { offset: 0, pitch: 59 * sample, rows: 43 };
        assert_eq!(frame.planes[0], luma);
        let standard = ColorStandard::of_video(frame.color.matrix).unwrap();
        let matrix = |bits| ColorMatrix::new(standard, ColorRange::Full, bits).unwrap();
        // The kernels accept only images with a consistent bit depth.
        frame.image(matrix(u32::from(bits))).unwrap();
        frame.image(matrix(if bits > 8 { 8 } else { 16 })).unwrap_err();
    }
}

/// Sets each byte of a surface by its offset. Device memory of the driver stub is host memory.
extern "C" fn number_surface(address: c_ulonglong, bytes: usize, _: usize) {
    let surface = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: the surface has this length, and no other user during the call.
    let surface = unsafe { std::slice::from_raw_parts_mut(surface, bytes) };
    for (at, byte) in surface.iter_mut().enumerate() {
        *byte = byte_at(at);
    }
}

fn byte_at(at: usize) -> u8 {
    (at % 251) as u8 ^ (at >> 8) as u8
}

// promise: DEV4
#[test]
fn the_display_area_is_copied_exactly_through_c_calls() {
    let stub = stub();
    let cuda = library("cuda.c", "cuda-for-nvdec", &[]);
    let search = stub.search().at(Library::Driver, cuda);
    let device = CudaDevice::open_with(0, &search).unwrap();
    let decoders = NvDec::new_with(&device, &search).unwrap();
    let mut surfaces = vec![0_u8; 8 * SURFACE_BYTES];
    stub.surfaces(surfaces.as_mut_ptr().expose_provenance() as u64);
    stub.on_map(number_surface);
    for (bits, sample) in [(8, 1), (10, 2)] {
        // 49 coded rows take 50 in a surface. The display area has columns 4 to 35 and rows 2 to 47.
        let headers = Headers { bits, ..Headers::of(HEVC, 64, 49) };
        let headers = Headers { area: [4, 2, 35, 47], ..headers };
        let mut video = decoders.open(VideoCodec::Hevc).unwrap();
        let frame = push_all(&mut video, &short_video(headers, 1)).remove(0).unwrap();
        let bytes = frame.memory.download(None).unwrap().wait().unwrap();
        let pitch = PITCH as usize;
        let rows = |first: usize, rows: usize, columns: usize| {
            (first..first + rows).flat_map(move |row| {
                (0..columns * sample).map(move |byte| byte_at(row * pitch + 4 * sample + byte))
            })
        };
        let expected: Vec<u8> = rows(2, 45, 31).chain(rows(50 + 1, 23, 32)).collect();
        assert_eq!(*bytes, expected[..], "{bits} bits");
    }
    drop((decoders, device));
    stub.assert_clean("in the end");
}
