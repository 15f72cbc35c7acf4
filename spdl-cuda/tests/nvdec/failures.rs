//! Failures of frames, videos, calls and callbacks.

use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result};
use spdl_cuda::driver::DriverError;
use spdl_cuda::libraries::Library;
use spdl_cuda::runtime::DeviceAllocator;
use spdl_cuda::testing::{FakeDriver, Schedule};
use spdl_cuda::video::VideoCodec;
use spdl_cuda::{CudaDevice, NvDec, Search};

use super::stub::{
    H264, Headers, Stub, available_frames, decode, push_all, short_video, show, stub,
};
use super::stub_library::library;

// promise: DEV4
#[test]
fn a_corrupt_frame_is_an_error_and_the_others_arrive() {
    let stub = stub();
    let (driver, device, decoders) = stub.device(Schedule::Prompt);
    let mut video = decoders.open(VideoCodec::H264).unwrap();
    let with_status = |status: u8| vec![b'D', 1, status, b'P', 1];
    let mut packets = vec![Headers::of(H264, 64, 48).packet()];
    // Success, error, concealed error, status unavailable, in progress; never decoded, success.
    packets.extend([2, 8, 9, 255, 1].map(with_status));
    packets.extend([show(5), with_status(2)]);
    let frames = push_all(&mut video, &packets);
    let valid: Vec<bool> = frames.iter().map(Result::is_ok).collect();
    assert_eq!(valid, [true, false, false, true, true, false, true]);
    let error = frames[2].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let words = "frame 2, timestamp 3: corrupt frame: the decoder concealed errors in it";
    assert_eq!(error.to_string(), words);
    let statistics = decoders.statistics();
    assert_eq!((statistics.frames, statistics.damaged_frames), (4, 3));
    assert_eq!(frames[6].as_ref().unwrap().number, 6);
    drop((frames, video, decoders, device));
    stub.assert_clean("in the end");
    assert_eq!(driver.violations(), []);
}

// promise: DEV4
#[test]
fn a_refused_picture_fails_only_its_frame() {
    let stub = stub();
    let (_driver, _device, decoders) = stub.device(Schedule::Prompt);
    let mut video = decoders.open(VideoCodec::H264).unwrap();
    push_all(&mut video, &[Headers::of(H264, 64, 48).packet()]);
    // The call after `cuvidParseVideoData`. A valid second field does not repair the first.
    stub.fail(2, 200);
    let packets = [[decode(0), vec![b'E', 0], show(0)].concat(), [decode(0), show(0)].concat()];
    let frames = push_all(&mut video, &packets);
    assert_eq!(stub.last_call(), "cuvidDecodePicture");
    let error = frames[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.report().contains("cuvidDecodePicture failed"), "{}", error.report());
    assert!(frames[1].is_ok());
}

/// Decodes three short videos. Returns the number of frames.
fn whole_video(decoders: &NvDec) -> Result<usize> {
    let mut count = 0;
    for width in [64, 60, 128] {
        let mut video = decoders.open(VideoCodec::H264)?;
        for packet in short_video(Headers::of(H264, width, 48), 3) {
            video.push(&packet, Some(7))?;
            for frame in available_frames(&mut video) {
                frame?;
                count += 1;
            }
        }
        video.finish()?;
    }
    Ok(count)
}

fn cause(error: &Error) -> DriverError {
    *std::error::Error::source(error).unwrap().downcast_ref::<DriverError>().unwrap()
}

// promise: G11
#[test]
fn g11_any_nvcuvid_call_may_fail_without_leaks() {
    let stub = stub();
    let run = |stub: &Stub, device: &CudaDevice| {
        NvDec::new_with(device, &stub.search()).and_then(|decoders| whole_video(&decoders))
    };
    stub.fail(0, 0);
    let (_driver, device, decoders) = stub.device(Schedule::Prompt);
    drop(decoders);
    stub.fail(0, 0);
    assert_eq!(run(&stub, &device).unwrap(), 9);
    let calls = stub.calls();
    assert!(calls > 50, "{calls}");
    let mut reported = 0;
    for code in [1, 2, 46, 801, 999, 4242] {
        for call in 1..=calls {
            let (driver, device, decoders) = stub.device(Schedule::Held);
            drop(decoders);
            stub.fail(call, code);
            match run(&stub, &device) {
                // A frame without a status is returned.
                Ok(count) => {
                    assert_eq!((count, &*stub.last_call()), (9, "cuvidGetDecodeStatus"));
                }
                Err(error) => {
                    reported += 1;
                    let cause = cause(&error);
                    assert_eq!((cause.call, cause.code), (&*stub.last_call(), code));
                }
            }
            let case = format!("call {call} ({}), code {code}", stub.last_call());
            stub.fail(0, 0);
            // The device and other videos still work.
            assert_eq!(run(&stub, &device).unwrap(), 9, "after {case}");
            drop(device);
            stub.assert_clean(&case);
            assert_eq!(driver.violations(), [], "{case}");
            assert_eq!(
                (driver.live_resources().allocations, driver.live_resources().streams),
                (1, 0),
                "{case}"
            );
        }
    }
    assert!(reported > calls * 5, "{reported} reported for {calls} calls and six codes");
}

// promise: G11
#[test]
fn g11_any_driver_call_may_fail_during_decoding_without_leaks_or_races() {
    let stub = stub();
    let run = |driver: &FakeDriver| {
        let device = CudaDevice::on(driver.clone(), 0)?;
        whole_video(&NvDec::new_with(&device, &stub.search())?)
    };
    let device = || {
        let (driver, device, decoders) = stub.device(Schedule::Held);
        drop((decoders, device));
        driver
    };
    let driver = device();
    let before = driver.calls();
    assert_eq!(run(&driver).unwrap(), 9);
    let calls = driver.calls() - before;
    let mut reported = 0;
    for code in [2, 999] {
        for call in 0..calls {
            let driver = device();
            driver.fail_calls(call, 1, code);
            reported += usize::from(run(&driver).is_err());
            stub.assert_clean(&format!("call {call}, code {code}"));
            assert_eq!(driver.violations(), [], "call {call}, code {code}");
            let live_resources = driver.live_resources();
            assert_eq!(
                (live_resources.allocations, live_resources.streams, live_resources.events),
                (1, 0, 0),
                "{call}"
            );
            assert_eq!(
                (live_resources.contexts, live_resources.current_contexts),
                (0, 0),
                "call {call}"
            );
        }
    }
    // Failures of calls that pop the context or destroy objects are not errors.
    assert!(reported > calls / 2, "{reported} reported for {calls} calls and two codes");
}

// promise: G11
#[test]
fn g11_a_lost_device_fails_every_video_and_memory_in_use_is_not_freed() {
    let stub = stub();
    for from in (0..400).step_by(7) {
        let driver = FakeDriver::new(1, Schedule::Held);
        stub.surfaces(driver.allocate_elsewhere(1 << 20).unwrap());
        driver.fail_calls(from, usize::MAX, 700);
        let lost = CudaDevice::on(driver.clone(), 0)
            .and_then(|device| NvDec::new_with(&device, &stub.search()))
            .and_then(|decoders| whole_video(&decoders));
        if let Err(error) = lost {
            assert!(error.is_fatal(), "{error}");
        }
        assert_eq!(driver.violations(), [], "from call {from} on");
    }
}

// promise: G11
#[test]
fn g11_memory_is_withheld_after_a_failed_wait_of_a_frame() {
    let stub = stub();
    let (driver, device, decoders) = stub.device(Schedule::Held);
    let stream = driver.consumer_stream();
    let video = |decoders: &NvDec| -> Result<()> {
        let mut video = decoders.open(VideoCodec::H264)?;
        for packet in short_video(Headers::of(H264, 64, 48), 1) {
            video.push(&packet, None)?;
        }
        for frame in available_frames(&mut video) {
            frame?.memory.wait_on(&stream)?;
        }
        Ok(())
    };
    video(&decoders).unwrap();
    let before = device.statistics().slabs;
    // As if the consumer's stream had been captured when the frame was dropped.
    driver.fail_next("cuStreamWaitEvent", 907);
    let error = video(&decoders).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("during the capture of a CUDA graph"), "{error}");
    let slabs = device.statistics().slabs;
    let bytes = (slabs.live_bytes, slabs.free_bytes, slabs.withheld_bytes);
    assert_eq!(bytes, (0, 0, before.free_bytes));
    video(&decoders).unwrap();
    drop((decoders, device));
    stub.assert_clean("in the end");
    assert_eq!(driver.violations(), []);
    assert_eq!(driver.live_resources().allocations, 1, "only the surfaces");
}

// promise: G11
#[test]
fn g11_several_driver_calls_may_fail_during_decoding_without_races() {
    let stub = stub();
    let device = || {
        let (driver, device, decoders) = stub.device(Schedule::Held);
        drop((decoders, device));
        driver
    };
    for count in [2, 6] {
        for call in 0.. {
            let driver = device();
            let before = driver.calls();
            driver.fail_calls(call, count, 999);
            let run = || -> Result<()> {
                let device = CudaDevice::on(driver.clone(), 0)?;
                let decoders = NvDec::new_with(&device, &stub.search())?;
                let decoded = whole_video(&decoders);
                // Live, free and withheld slabs account for all memory except the surfaces.
                let slabs = device.statistics().slabs;
                let bytes = slabs.live_bytes + slabs.free_bytes + slabs.withheld_bytes;
                let live_resources = driver.live_resources();
                let surfaces = live_resources.allocated_bytes - bytes;
                assert_eq!(surfaces, 8 << 16, "{count} calls from {call} on: {slabs:?}");
                decoded.map(drop)
            };
            let _ = run();
            driver.run_all();
            assert_eq!(driver.violations(), [], "{count} calls from {call} on");
            if driver.calls() - before < call {
                break;
            }
        }
    }
}

#[test]
fn invalid_callbacks_of_the_parser_are_errors() {
    let stub = stub();
    let headers = |change: fn(&mut Headers)| {
        let mut headers = Headers::of(H264, 64, 48);
        change(&mut headers);
        headers.packet()
    };
    let begun = headers(|_| ());
    let internal = [
        // Null pointers; pictures before a sequence header; invalid picture indices.
        vec![b'F'],
        vec![b'G'],
        decode(0),
        show(0),
        [begun.clone(), vec![b'G']].concat(),
        [begun.clone(), decode(8)].concat(),
        [begun.clone(), decode(255)].concat(),
        [begun.clone(), show(127)].concat(),
        [begun.clone(), show(128)].concat(),
    ];
    let corrupt = [
        headers(|it| it.codec = 77),
        headers(|it| it.chroma = -1),
        headers(|it| it.bits = 7),
        headers(|it| it.bits = 255),
        headers(|it| it.coded = (0, 0)),
        headers(|it| it.area = [0, 0, 0, 0]),
        headers(|it| it.area = [-1, 0, 64, 48]),
        headers(|it| it.area = [i32::MAX, 0, i32::MIN, 48]),
    ];
    let huge = [
        headers(|it| (it.coded, it.area) = ((u32::MAX, u32::MAX), [0, 0, i32::MAX, i32::MAX])),
        headers(|it| (it.coded, it.area) = ((1 << 20, 1 << 20), [0, 0, 64, 48])),
    ];
    let (driver, device, decoders) = stub.device(Schedule::Prompt);
    let cases = internal.iter().map(|packet| (packet, ErrorKind::Internal));
    let cases = cases.chain(corrupt.iter().map(|packet| (packet, ErrorKind::Corrupt)));
    for (packet, kind) in cases.chain(huge.iter().map(|packet| (packet, ErrorKind::LimitExceeded)))
    {
        let mut video = decoders.open(VideoCodec::H264).unwrap();
        let error = video.push(packet, None).unwrap_err();
        assert_eq!(error.kind(), kind, "{packet:?}: {error}");
        // The callback returned a failure to the parser.
        assert_eq!(stub.log().last().unwrap(), "-> 0");
    }
    // Extreme numbers of surfaces are accepted.
    for surfaces in [0, 255] {
        let mut video = decoders.open(VideoCodec::H264).unwrap();
        let headers = Headers { surfaces, ..Headers::of(H264, 64, 48) };
        assert!(push_all(&mut video, &short_video(headers, 1)).remove(0).is_ok());
        assert_eq!(video.push(&[], None).unwrap_err().kind(), ErrorKind::InvalidArgument);
        video.push(&[decode(0), show(0)].concat(), None).unwrap();
    }
    drop((decoders, device));
    stub.assert_clean("in the end");
    assert_eq!(driver.violations(), []);
}

/// An allocator that panics, inside a callback of the parser.
#[derive(Debug)]
struct PanickingAllocator;

// SAFETY: the allocator never returns memory.
unsafe impl DeviceAllocator for PanickingAllocator {
    fn allocate(&self, _: usize) -> Result<u64> {
        panic!("deliberate panic of the allocator")
    }

    fn free(&self, _: u64, _: usize) {}
}

#[test]
fn a_panic_in_a_callback_is_an_error_and_does_not_unwind_through_nvcuvid() {
    let stub = stub();
    let (driver, device, decoders) = stub.device(Schedule::Prompt);
    device.set_allocator(Arc::new(PanickingAllocator));
    let mut video = decoders.open(VideoCodec::H264).unwrap();
    let mut other = decoders.open(VideoCodec::H264).unwrap();
    let error = video.push(&short_video(Headers::of(H264, 64, 48), 1).concat(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Panicked);
    assert!(error.message().contains("deliberate panic"), "{error}");
    assert!(video.next_frame().is_none());
    // The next video does not reuse its decoder.
    other.push(&Headers::of(H264, 64, 48).packet(), None).unwrap();
    drop(video);
    assert_eq!(decoders.statistics().decoders_idle, 0);
    assert_eq!(stub.logged("destroy").len(), 1);
    drop((other, decoders, device));
    stub.assert_clean("in the end");
    assert_eq!(driver.violations(), []);
}

#[test]
fn callbacks_after_a_failure_do_nothing() {
    let stub = stub();
    let (_driver, _device, decoders) = stub.device(Schedule::Prompt);
    let mut video = decoders.open(VideoCodec::H264).unwrap();
    push_all(&mut video, &[Headers::of(H264, 64, 48).packet()]);
    // A null sequence header, and pictures after it.
    let packet = [vec![b'H', b'F'], decode(0), show(0)].concat();
    let error = video.push(&packet, None).unwrap_err();
    assert!(error.message().contains("null pointer"), "{error}");
    assert_eq!(stub.logged("decode"), [""; 0]);
    assert!(available_frames(&mut video).is_empty());
}

// promise: DEV4
#[test]
fn a_failed_video_does_not_affect_the_others() {
    let stub = stub();
    let (_driver, _device, decoders) = stub.device(Schedule::Prompt);
    let mut videos = [(); 3].map(|()| decoders.open(VideoCodec::H264).unwrap());
    let mut counts = [0; 3];
    for (number, packet) in short_video(Headers::of(H264, 64, 48), 8).iter().enumerate() {
        for (at, video) in videos.iter_mut().enumerate() {
            let packet = if (at, number) == (1, 4) { &vec![b'G'] } else { packet };
            let pushed = video.push(packet, None);
            assert_eq!(pushed.is_err(), at == 1 && number >= 4);
            counts[at] += available_frames(video).iter().filter(|frame| frame.is_ok()).count();
        }
    }
    assert_eq!(counts, [8, 3, 8]);
}

// promise: G10
#[test]
fn a_missing_or_too_old_nvcuvid_is_an_error_with_a_remedy() {
    let stub = stub();
    let (_driver, device, _decoders) = stub.device(Schedule::Prompt);
    let nowhere = Search::default().at(Library::Nvcuvid, "/nowhere/libnvcuvid.so.1");
    let old = library("nvcuvid.c", "old-nvcuvid", &["-DTOO_OLD"]);
    let old = Search::default().at(Library::Nvcuvid, old);
    for (search, reason) in [(nowhere, "/nowhere/"), (old, "missing function cuvidParseVideoData")]
    {
        let error = NvDec::new_with(&device, &search).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("NVIDIA_DRIVER_CAPABILITIES"), "{error}");
        assert!(error.report().contains(reason), "{}", error.report());
    }
}
