//! Arrays of several frames: content, and order of accesses.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use spdl_core::ErrorKind;
use spdl_core::memory::{DeviceMemory, Upload};
use spdl_cuda::testing::{FakeDriver, Schedule};
use spdl_cuda::video::{FrameCrop, VideoCodec, VideoFrame};
use spdl_cuda::{ConsumerStream, CudaMemory, NvDec};

use super::stub::{H264, HEVC, Headers, push_all, short_video, stub};

/// The driver that writes surfaces, and the number of surfaces written.
static WRITER: Mutex<Option<FakeDriver>> = Mutex::new(None);
static WRITTEN: AtomicUsize = AtomicUsize::new(0);

/// Fills a surface with the number of the frame.
extern "C" fn write_surface(address: u64, bytes: usize, stream: usize) {
    let number = WRITTEN.fetch_add(1, Ordering::SeqCst);
    if let Some(driver) = &*WRITER.lock().unwrap() {
        // SAFETY: the stream belongs to the decoder, which is alive.
        let stream = unsafe { ConsumerStream::from_raw(stream) };
        driver.write_by_kernel(&stream, address as usize, bytes, number as u8);
    }
}

fn frames(decoders: &NvDec, headers: Headers, count: u8) -> Vec<VideoFrame> {
    let codec = if headers.codec == HEVC { VideoCodec::Hevc } else { VideoCodec::H264 };
    let mut video = decoders.open(codec).unwrap();
    let frames = push_all(&mut video, &short_video(headers, count));
    frames.into_iter().map(Result::unwrap).collect()
}

fn memory(upload: Upload) -> Box<CudaMemory> {
    let memory: Box<dyn std::any::Any> = upload.memory;
    memory.downcast().unwrap()
}

// promise: G1
#[test]
fn g1_no_schedule_overwrites_frames_or_arrays_before_their_last_read() {
    let stub = stub();
    stub.on_map(write_surface);
    for seed in 0..200 {
        let (driver, device, decoders) = stub.device(Schedule::Seeded(seed));
        WRITTEN.store(0, Ordering::SeqCst);
        *WRITER.lock().unwrap() = Some(driver.clone());
        let stream = driver.consumer_stream();
        let mut seen = Vec::new();
        for round in 0..4 {
            let frames = frames(&decoders, Headers::of(H264, 64, 48), 3);
            let array = decoders.gather(&frames, FrameCrop::default()).unwrap();
            drop(frames);
            let array = memory(array);
            assert_eq!(array.len(), 3 * 64 * 72);
            array.wait_on(&stream).unwrap();
            seen.push((round, driver.read_by_kernel(&stream, array.address(), array.len())));
        }
        WRITER.lock().unwrap().take();
        drop((decoders, device));
        driver.run_all();
        assert_eq!(driver.violations(), [], "seed {seed}");
        for (round, seen) in seen {
            let expected: Vec<u8> = (0..3).flat_map(|frame| [3 * round + frame; 64 * 72]).collect();
            assert!(seen.bytes() == Some(expected), "seed {seed}");
        }
    }
    stub.assert_clean("in the end");
}

#[test]
fn invalid_crops_and_mixed_frames_are_refused() {
    let stub = stub();
    let (_driver, _device, decoders) = stub.device(Schedule::Prompt);
    let whole = FrameCrop::default();
    let kind = |frames: &[VideoFrame], crop| decoders.gather(frames, crop).unwrap_err().kind();
    let small = frames(&decoders, Headers::of(H264, 64, 48), 2);
    assert_eq!(kind(&[], whole), ErrorKind::InvalidArgument);
    for invalid in [
        FrameCrop { left: 1, right: 1, ..whole },
        FrameCrop { top: 3, bottom: 1, ..whole },
        FrameCrop { left: 40, right: 24, ..whole },
        FrameCrop { top: u32::MAX, bottom: 2, ..whole },
    ] {
        assert_eq!(kind(&small, invalid), ErrorKind::InvalidArgument, "{invalid:?}");
    }
    assert_eq!(kind(&small, FrameCrop { bottom: 1, ..whole }), ErrorKind::Unsupported);
    let full_chroma = Headers { chroma: 3, ..Headers::of(HEVC, 64, 48) };
    assert_eq!(kind(&frames(&decoders, full_chroma, 1), whole), ErrorKind::Unsupported);
    let mut mixed = small;
    mixed.extend(frames(&decoders, Headers::of(H264, 64, 32), 1));
    assert_eq!(kind(&mixed, whole), ErrorKind::InvalidArgument);
    // Frames of another `CudaDevice`.
    let (_other_driver, _other_device, other) = stub.device(Schedule::Prompt);
    let error = other.gather(&mixed[..1], whole).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

// promise: G11
#[test]
fn g11_any_driver_call_may_fail_during_a_copy_of_frames() {
    let stub = stub();
    let run = |driver: &FakeDriver, decoders: &NvDec, failing: Option<(usize, u32)>| {
        let frames = frames(decoders, Headers::of(H264, 64, 48), 2);
        let before = driver.calls();
        if let Some((call, code)) = failing {
            driver.fail_calls(call, 1, code);
        }
        let gathered = decoders.gather(&frames, FrameCrop::default()).map(drop);
        (gathered, driver.calls() - before)
    };
    let (driver, device, decoders) = stub.device(Schedule::Held);
    let (gathered, calls) = run(&driver, &decoders, None);
    gathered.unwrap();
    drop((device, decoders));
    let mut reported = 0;
    for call in 0..calls {
        for code in [2, 999] {
            let (driver, device, decoders) = stub.device(Schedule::Seeded(call as u64));
            let (gathered, _) = run(&driver, &decoders, Some((call, code)));
            reported += usize::from(gathered.is_err());
            drop((device, decoders));
            driver.free_elsewhere(1 << 60);
            driver.run_all();
            assert_eq!(driver.violations(), [], "call {call} with {code}");
        }
    }
    assert!(reported > calls, "{reported} of {}", 2 * calls);
}

// promise: G11
#[test]
fn g11_memory_is_withheld_after_a_failed_wait_of_an_array() {
    let stub = stub();
    let (driver, device, decoders) = stub.device(Schedule::Held);
    let stream = driver.consumer_stream();
    let frames = frames(&decoders, Headers::of(H264, 64, 48), 2);
    let gather = || decoders.gather(&frames, FrameCrop::default());
    memory(gather().unwrap()).wait_on(&stream).unwrap();
    let before = device.statistics().slabs;
    assert!(before.free_bytes > 0);
    // As if the consumer's stream had been captured when the array was dropped.
    driver.fail_next("cuStreamWaitEvent", 907);
    assert_eq!(gather().unwrap_err().kind(), ErrorKind::InvalidArgument);
    let slabs = device.statistics().slabs;
    let bytes = (slabs.live_bytes, slabs.free_bytes, slabs.withheld_bytes);
    assert_eq!(bytes, (before.live_bytes, 0, before.free_bytes));
    drop(memory(gather().unwrap()));
    drop((frames, decoders, device));
    driver.run_all();
    assert_eq!(driver.violations(), []);
}
