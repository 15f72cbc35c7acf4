//! Decoders: creation, reuse, reconfiguration, unsupported videos.

use spdl_core::ErrorKind;
use spdl_cuda::testing::Schedule;
use spdl_cuda::video::{ChromaFormat, VideoCodec, VideoLimits};

use super::stub::{
    H264, HEVC, Headers, VP9, available_frames, decode, push_all, short_video, show, stub,
};

#[test]
fn a_video_of_similar_size_reuses_an_idle_decoder() {
    let stub = stub();
    let (_driver, device, decoders) = stub.device(Schedule::Prompt);
    for (width, height) in [(1000, 560), (1024, 550), (1024, 550), (500, 560), (1000, 560)] {
        let mut video = decoders.open(VideoCodec::H264).unwrap();
        push_all(&mut video, &[Headers::of(H264, width, height).packet(), decode(0)]);
    }
    let lines = stub.log();
    let is_setup = |line: &&String| line.starts_with("create") || line.starts_with("configure");
    let lines: Vec<&str> = lines.iter().filter(is_setup).map(|line| &line[..]).collect();
    let created = |size, largest| {
        format!("create {size} of {largest}, 8 surfaces, codec 4, chroma 1, bits 8, format 0")
    };
    let expected = [
        created("1000x560", "1024x576"),
        "configure 1024x550".to_owned(),
        created("500x560", "512x576"),
        "configure 1000x560".to_owned(),
    ];
    assert_eq!(lines, expected);
    let statistics = decoders.statistics();
    assert_eq!((statistics.decoders_created, statistics.decoders_reused), (2, 3));
    assert_eq!((statistics.decoders_reconfigured, statistics.decoders_idle), (2, 2));
    drop((decoders, device));
    stub.assert_clean("in the end");
}

#[test]
fn idle_decoders_are_bounded() {
    let stub = stub();
    let (_driver, _device, decoders) = stub.device(Schedule::Prompt);
    for number in 1..=12 {
        let mut video = decoders.open(VideoCodec::H264).unwrap();
        push_all(&mut video, &[Headers::of(H264, 100 * number, 64).packet()]);
        drop(video);
        assert!(decoders.statistics().decoders_idle <= 8);
    }
    assert_eq!((stub.logged("create").len(), stub.logged("destroy").len()), (12, 4));
}

// promise: DEV4
#[test]
fn a_video_may_change_its_size_midstream() {
    let stub = stub();
    let (_driver, device, decoders) = stub.device(Schedule::Prompt);
    let mut video = decoders.open(VideoCodec::Hevc).unwrap();
    let headers = |width, height| Headers::of(HEVC, width, height).packet();
    let picture = [decode(1), show(1)].concat();
    let packets = [
        [headers(128, 64), picture.clone()].concat(),
        // A repeated sequence header changes nothing: decoded pictures can still be displayed.
        [decode(2), headers(128, 64), show(2)].concat(),
        [headers(124, 64), picture.clone()].concat(),
        [headers(64, 48), picture].concat(),
        // Pictures decoded before the change of size are lost.
        show(2),
    ];
    let frames = push_all(&mut video, &packets);
    let sizes: Vec<_> = frames[..4]
        .iter()
        .map(|frame| frame.as_ref().unwrap())
        .map(|it| (it.width, it.height))
        .collect();
    assert_eq!(sizes, [(128, 64), (128, 64), (124, 64), (64, 48)]);
    assert_eq!(frames[4].as_ref().unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!((stub.logged("create").len(), stub.logged("configure").len()), (2, 1));
    // The parser gets the number of surfaces for each sequence header.
    assert_eq!(stub.logged("-> 8").len(), 4);
    drop((frames, video, decoders, device));
    stub.assert_clean("in the end");
}

// promise: G6
#[test]
fn unsupported_videos_are_refused_with_a_reason_and_counted() {
    let stub = stub();
    let (_driver, device, decoders) = stub.device(Schedule::Prompt);
    let refused = [
        (VideoCodec::Av1, Headers::of(11, 64, 48), "no NVDEC engine supports"),
        (VideoCodec::H264, Headers { bits: 10, ..Headers::of(H264, 64, 48) }, "no NVDEC engine"),
        (VideoCodec::Hevc, Headers { chroma: 2, ..Headers::of(HEVC, 64, 48) }, "no NVDEC engine"),
        (
            VideoCodec::Vp9,
            Headers { bits: 10, ..Headers::of(VP9, 64, 48) },
            "4:2:0 output is not supported",
        ),
        (
            VideoCodec::Vp9,
            Headers::of(VP9, 32, 48),
            "supported sizes are 48x16 to 8192x8192 pixels",
        ),
        (VideoCodec::Vp9, Headers::of(VP9, 8194, 48), "8192x8192 pixels"),
        (VideoCodec::Vp9, Headers::of(VP9, 8000, 4000), "65536 macroblocks of 16x16 pixels"),
    ];
    let count = refused.len() as u64;
    for (codec, headers, reason) in refused {
        let mut video = decoders.open(codec).unwrap();
        let error = video.push(&headers.packet(), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.message().contains(reason), "{error}");
        assert!(error.message().contains("on the CPU with another program"), "{error}");
        // Later calls return the same error.
        let again = video.push(&decode(0), None).unwrap_err();
        assert_eq!(again.message(), error.message());
        assert_eq!(video.finish().unwrap_err().message(), error.message());
    }
    assert_eq!(decoders.statistics().unsupported_videos, count);
    assert_eq!(stub.logged("create"), [""; 0]);
    assert_eq!(stub.logged("caps 10 1 8").len(), 1, "capabilities are queried once");
    drop((decoders, device));
    stub.assert_clean("in the end");
}

// promise: G6
#[test]
fn capabilities_are_reported() {
    let stub = stub();
    let (_driver, _device, decoders) = stub.device(Schedule::Prompt);
    let hevc = decoders.capability(VideoCodec::Hevc, ChromaFormat::Yuv444, 12).unwrap();
    assert_eq!((hevc.supported, hevc.engines), (true, 7));
    assert_eq!((hevc.min_size, hevc.max_size), ((48, 16), (8192, 8192)));
    let av1 = decoders.capability(VideoCodec::Av1, ChromaFormat::Yuv420, 8).unwrap();
    assert!(!av1.supported);
    for bits in [0, 7, 17, u32::MAX] {
        let error = decoders.capability(VideoCodec::H264, ChromaFormat::Yuv420, bits).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn limits_are_checked_before_a_decoder_is_created() {
    let stub = stub();
    let (_driver, _device, decoders) = stub.device(Schedule::Prompt);
    let limits = VideoLimits::default().pixels(64 * 48).waiting_frames(3);
    let mut video = decoders.open_with(VideoCodec::H264, limits).unwrap();
    let error = video.push(&Headers::of(H264, 64, 49).packet(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(error.message().contains("64x49"), "{error}");
    assert_eq!(stub.logged("create"), [""; 0]);
    // The number of waiting frames is bounded. Frames before the error are still available.
    let mut video = decoders.open_with(VideoCodec::H264, limits).unwrap();
    let packet = short_video(Headers::of(H264, 64, 48), 5).concat();
    let error = video.push(&packet, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert_eq!(available_frames(&mut video).iter().filter(|frame| frame.is_ok()).count(), 3);
}

#[test]
fn video_streams_are_send_and_decoders_and_frames_are_sync() {
    fn is_send<T: Send>() {}
    fn is_sync<T: Send + Sync>() {}
    is_send::<spdl_cuda::video::VideoStream>();
    is_sync::<spdl_cuda::NvDec>();
    is_sync::<spdl_cuda::video::VideoFrame>();
}
