"""Video decoding on a device."""

import doctest
import importlib
import pathlib
import time
import warnings

import numpy
import pytest
import spdl_rs
from cuda_decoders import HEVC, VP9, colours, headers, ivf, resized, shown
from spdl_rs import CorruptError, CudaError, CudaFallbackWarning, CudaUnavailable, UnsupportedError
from spdl_rs.cuda import DeviceArray, _devices
from spdl_rs.io import (
    NvDecDecoder,
    VideoPackets,
    _device_video,
    cuda_config,
    decode_packets_nvdec,
    demux_video,
    load_video,
    nv12_to_bgr,
    nv12_to_rgb,
    nvdec_decoder,
    streaming_load_video_nvdec,
    transfer_tensor,
)

HEIGHT, WIDTH = 48, 64
BT709 = {"kr": 0.2126, "kb": 0.0722}


def video(count, *options, **more):
    """Packets of a video with `count` frames."""
    return [headers(WIDTH, HEIGHT, *options, **more), *(shown(at % 8) for at in range(count))]


def random_nv12(*shape, dtype="u1"):
    return numpy.random.default_rng(3).integers(0, numpy.iinfo(dtype).max + 1, shape, dtype)


def restart(nvcuvid):
    """Releases the device, so that the next frame is in the first surface."""
    spdl_rs.cuda.release()
    nvcuvid.reset()


def assert_same(found, expected):
    assert found.shape == expected.shape
    numpy.testing.assert_array_equal(found.to_host(), expected)


def test_g07_a_video_is_decoded_to_rgb_frames(nvcuvid):
    frames = decode_packets_nvdec(video(5), codec="h264")
    assert isinstance(frames, DeviceArray) and frames.dtype == "uint8"
    expected = [colours(nvcuvid.nv12(at, HEIGHT, WIDTH)) for at in range(5)]
    assert_same(frames, numpy.stack(expected))
    restart(nvcuvid)
    assert_same(
        decode_packets_nvdec(video(2), codec="h264", pix_fmt="bgr", device_config=cuda_config(0)),
        numpy.stack(expected[:2])[:, ::-1],
    )


@pytest.mark.parametrize(
    "matrix, shares", [(1, BT709), (6, {}), (9, {"kr": 0.2627, "kb": 0.0593}), (2, {})]
)
@pytest.mark.parametrize("full_range", [False, True])
def test_g07_matrix_and_range_are_read_from_the_video(nvcuvid, matrix, shares, full_range):
    packets = video(1, matrix=matrix, full_range=full_range)
    expected = colours(nvcuvid.nv12(0, HEIGHT, WIDTH), full_range=full_range, **shares)
    assert_same(decode_packets_nvdec(packets, codec="h264"), expected[None])


def test_g07_10_bit_video_is_scaled_to_8_bits(nvcuvid):
    nvcuvid.noise.view("u2")[...] &= 0xFFC0
    packets = video(1, codec=HEVC, bits=10)
    samples = nvcuvid.nv12(0, HEIGHT, WIDTH, sample="<u2") >> 6
    assert_same(decode_packets_nvdec(packets, codec="hevc"), colours(samples, bits=10)[None])


def test_g05_frames_are_cropped_before_resizing(nvcuvid):
    crops = {"crop_left": 4, "crop_top": 3, "crop_right": 7, "crop_bottom": 10}
    whole = colours(nvcuvid.nv12(0, HEIGHT, WIDTH))
    frames = decode_packets_nvdec(video(1), codec="h264", **crops)
    assert frames.shape == (1, 3, 35, 53)
    # Chroma upsampling at the crop edge uses only visible samples; inside, nothing changes.
    inside = frames.to_host()[0, :, 2:-2, 2:-2]
    numpy.testing.assert_array_equal(inside, whole[:, 3:-10, 4:-7][:, 2:-2, 2:-2])
    restart(nvcuvid)
    nvcuvid.noise[:] = numpy.linspace(30, 220, nvcuvid.PITCH).astype("u1")
    nvcuvid.noise[:, HEIGHT:] = 128
    whole = colours(nvcuvid.nv12(0, HEIGHT, WIDTH)).transpose(1, 2, 0)
    expected = resized(whole[3:-10, 4:-7], 20, 24).transpose(2, 0, 1)
    scaled = decode_packets_nvdec(video(1), codec="h264", scale_width=24, scale_height=20, **crops)
    assert scaled.shape == (1, 3, 20, 24)
    assert abs(scaled.to_host()[0] - expected).max() <= 1


def test_g05_sizes_and_crops_are_validated(nvcuvid):
    for wrong in ({"crop_left": -1}, {"crop_bottom": -3}, {"scale_width": 8}, {"scale_height": 0}):
        with pytest.raises(ValueError, match="crop_|scale_"):
            nvdec_decoder(None, "h264", pix_fmt="rgb", **wrong)
    with pytest.raises(ValueError, match="NV12 frames cannot be resized"):
        nvdec_decoder(None, "h264", scale_width=8, scale_height=8)
    with pytest.raises(ValueError, match='unknown codec "h261": .*h264'):
        nvdec_decoder(None, "h261")
    with pytest.raises(TypeError, match="codec must be"):
        nvdec_decoder(None, 4)
    with pytest.raises(ValueError, match="pix_fmt must be"):
        nvdec_decoder(None, "h264", pix_fmt="yuv444")
    with pytest.raises(ValueError, match="of a frame of 64x48 pixels: no pixels remain"):
        decode_packets_nvdec(video(1), codec="h264", crop_left=32, crop_right=32)


def test_g06_nv12_frames_are_one_array(nvcuvid):
    decoder = nvdec_decoder(cuda_config(0), "h264")
    decoder.init_buffer(10)
    frames = decoder.decode_packets(video(4))
    expected = [nvcuvid.nv12(at, HEIGHT, WIDTH) for at in range(4)]
    assert frames.dtype == "uint8"
    assert_same(frames, numpy.stack(expected))
    assert decoder.flush() is None
    assert_same(nv12_to_rgb(frames, coeff=6), numpy.stack([colours(it) for it in expected]))


def test_g06_nv12_crops_must_be_even(nvcuvid):
    decoder = nvdec_decoder(None, "h264", crop_left=2, crop_top=4, crop_right=6, crop_bottom=8)
    whole = nvcuvid.nv12(0, HEIGHT, WIDTH)
    luma, chroma = whole[4 : HEIGHT - 8, 2:-6], whole[HEIGHT + 2 : -4, 2:-6]
    assert_same(decoder.decode_packets(video(1)), numpy.concatenate([luma, chroma])[None])
    decoder = nvdec_decoder(None, "h264", crop_left=1, crop_right=1)
    with pytest.raises(ValueError, match="even numbers"):
        decoder.decode_packets(video(1))
    decoder = nvdec_decoder(None, "h264", crop_right=1)
    with pytest.raises(UnsupportedError, match="even width and height"):
        decoder.decode_packets(video(1))


def test_g06_10_bit_nv12_frames_are_uint16(nvcuvid):
    frames = nvdec_decoder(None, "hevc").decode_packets(video(1, codec=HEVC, bits=10))
    assert frames.dtype == "uint16"
    assert_same(frames, nvcuvid.nv12(0, HEIGHT, WIDTH, sample="<u2")[None])


def test_g06_streaming_yields_arrays_of_the_buffer_size(nvcuvid):
    requested = []

    def packets():
        # The parser displays the last picture at the end of the video.
        for number, packet in enumerate([*video(10), b"D\2\2Q\2"]):
            requested.append(number)
            yield packet, 100 + number

    decoder = nvdec_decoder(None, "h264", pix_fmt="rgb")
    decoder.init_buffer(4)
    expected = [colours(nvcuvid.nv12(at, HEIGHT, WIDTH)) for at in range(2)]
    arrays = decoder.streaming_decode_packets(packets())
    first = next(arrays)
    # Packets are consumed as frames are requested.
    assert requested[-1] == 4
    arrays = [first, *arrays]
    assert [array.shape[0] for array in arrays] == [4, 4, 3]
    for number, frame in enumerate(numpy.concatenate([it.to_host() for it in arrays])):
        numpy.testing.assert_array_equal(frame, expected[number % 2])


def test_g06_excess_frames_are_returned_by_the_next_call(nvcuvid):
    decoder = nvdec_decoder(None, "h264")
    assert decoder.decode_packets([headers(WIDTH, HEIGHT)]) is None
    decoder.init_buffer(2)
    counts = [decoder.decode_packets([shown(at) for at in range(5)]).shape[0]]
    counts += [decoder.decode_packets([]).shape[0], decoder.flush().shape[0], decoder.flush()]
    assert counts == [2, 2, 1, None]
    # A new buffer discards pending frames.
    decoder.decode_packets([headers(WIDTH, HEIGHT), *[shown(at) for at in range(5)]])
    decoder.init_buffer(2)
    assert decoder.flush() is None
    with pytest.raises(ValueError, match="num_frames"):
        decoder.init_buffer(0)


# A picture that the parser displays at the end of the video.
LATE = b"D\2\2Q\2"


def test_g06_an_unfinished_stream_does_not_affect_the_next_video(nvcuvid):
    decoder = nvdec_decoder(None, "h264")
    decoder.init_buffer(2)
    begun = [headers(WIDTH, HEIGHT), LATE, shown(0) + shown(1) + shown(3), shown(4)]
    for frames in decoder.streaming_decode_packets(begun):
        assert frames.shape[0] == 2
        break
    assert decoder.flush() is None
    next_video = decoder.streaming_decode_packets(video(3))
    assert [frames.shape[0] for frames in next_video] == [2, 1]

    def failing():
        yield from (headers(WIDTH, HEIGHT), LATE, shown(0))
        raise KeyError("from the generator")

    with pytest.raises(KeyError, match="from the generator"):
        list(decoder.streaming_decode_packets(failing()))
    assert decoder.flush() is None
    # The frames around a corrupt one remain available.
    with pytest.raises(CorruptError):
        list(decoder.streaming_decode_packets([begun[0], LATE, shown(0), shown(1, status=8)]))
    assert [decoder.flush().shape[0], decoder.flush()] == [2, None]


def test_g06_init_buffer_discards_the_current_video(nvcuvid):
    decoder = nvdec_decoder(None, "h264")
    assert decoder.decode_packets([headers(WIDTH, HEIGHT), LATE]) is None
    decoder.init_buffer(2)
    assert decoder.flush() is None


def test_g06_flush_returns_delayed_frames(nvcuvid):
    decoder = nvdec_decoder(None, "h264", pix_fmt="bgr")
    late = bytes([ord("D"), 1, 2, ord("Q"), 1])
    assert decoder.decode_packets([headers(WIDTH, HEIGHT), late]) is None
    assert decoder.flush().shape == (1, 3, HEIGHT, WIDTH)


def test_g06_a_corrupt_frame_is_an_error_and_others_remain(nvcuvid):
    decoder = nvdec_decoder(None, "h264", pix_fmt="rgb")
    packets = [headers(WIDTH, HEIGHT), shown(0), shown(1, status=8), shown(2)]
    with pytest.raises(CorruptError, match="corrupt frame") as raised:
        decoder.decode_packets(packets)
    assert raised.value.key.startswith("frame 1,")
    assert decoder.flush().shape[0] == 2
    with pytest.raises(CorruptError) as raised:
        decoder.decode_packets([(packet, 100 + at) for at, packet in enumerate(packets)])
    assert raised.value.key.endswith("timestamp 102")
    with pytest.raises(CorruptError):
        decode_packets_nvdec(packets, codec="h264")


# promise: G6
def test_g06_unsupported_videos_are_errors(nvcuvid):
    with pytest.raises(UnsupportedError, match="AV1|does not decode"):
        decode_packets_nvdec([headers(WIDTH, HEIGHT, codec=11)], codec="av1")
    with pytest.raises(UnsupportedError):
        decode_packets_nvdec(video(1, bits=10), codec="h264")
    assert spdl_rs.cuda.video_statistics()["unsupported_videos"] == 2
    # 4:4:4 cannot be output as NV12, but as RGB.
    packets = video(1, codec=HEVC, chroma=3)
    with pytest.raises(UnsupportedError, match="expected NV12"):
        nvdec_decoder(None, "hevc").decode_packets(packets)
    assert decode_packets_nvdec(packets, codec="hevc").shape == (1, 3, HEIGHT, WIDTH)


def test_g07_odd_sizes_are_kept(nvcuvid):
    packets = [headers(WIDTH, HEIGHT, area=(0, 0, 31, 17)), shown(0)]
    assert decode_packets_nvdec(packets, codec="h264").shape == (1, 3, 17, 31)


def test_g07_a_video_of_several_sizes_requires_a_scale(nvcuvid):
    packets = [*video(2), headers(WIDTH, 32), shown(0)]
    with pytest.raises(ValueError, match=r"size 64x32 of frame 2 .*scale_width"):
        decode_packets_nvdec(packets, codec="h264")
    scaled = decode_packets_nvdec(packets, codec="h264", scale_width=16, scale_height=8)
    assert scaled.shape == (3, 3, 8, 16)


def test_g07_the_codec_of_an_ivf_file_is_detected(nvcuvid):
    file = ivf(video(3, codec=VP9))
    expected = numpy.stack([colours(nvcuvid.nv12(at, HEIGHT, WIDTH)) for at in range(3)])
    assert_same(decode_packets_nvdec(file), expected)
    assert decode_packets_nvdec(bytearray(file), codec="vp9").shape[0] == 3
    with pytest.raises(ValueError, match="unexpected codec VP9 .*: the decoder is for VP8"):
        decode_packets_nvdec(file, codec="vp8")
    with pytest.raises(spdl_rs.TruncatedError):
        decode_packets_nvdec(file[:-3])
    with pytest.raises(ValueError, match="codec is required"):
        decode_packets_nvdec(video(1))
    with pytest.raises(CorruptError, match="start code"):
        decode_packets_nvdec(b"no video", codec="h264")


def test_g07_an_annex_b_stream_is_split_into_packets(nvcuvid):
    # The stub does not parse NAL units, so check the packet ranges.
    stream = b"\0\0\0\1\x67\1" + b"\0\0\1\x65\x80" + b"\0\0\0\1\x41\x80"
    decoder = nvdec_decoder(None, "h264")
    assert decoder._decoder.cut(stream) == [(0, 11, None), (11, 17, None)]


def test_g07_input_without_frames_or_packets_is_an_error(nvcuvid):
    with pytest.raises(ValueError, match="no frame"):
        decode_packets_nvdec([headers(WIDTH, HEIGHT)], codec="h264")
    with pytest.raises(ValueError, match="empty"):
        decode_packets_nvdec([b""], codec="h264")
    for wrong in ([5], 5, None, [(b"", "late")]):
        with pytest.raises(TypeError):
            decode_packets_nvdec(wrong, codec="h264")


def test_g05_decoders_are_reused_unless_use_cache_is_false(nvcuvid):
    for _ in range(3):
        decode_packets_nvdec(video(1), codec="h264")
    assert len(nvcuvid.logged("create")) == 1
    reported = spdl_rs.cuda.video_statistics()
    assert (reported["frames"], reported["decoders_made"], reported["decoders_reused"]) == (3, 1, 2)
    for _ in range(2):
        nvdec_decoder(None, "h264", use_cache=False).decode_packets(video(1))
    assert len(nvcuvid.logged("create")) == 3 and len(nvcuvid.logged("destroy")) == 2


# promise: G10
def test_g06_without_a_driver_decoding_fails_fast(no_driver):
    times = []
    for _ in range(20):
        start = time.perf_counter()
        with pytest.raises(CudaUnavailable, match="install an NVIDIA driver"):
            decode_packets_nvdec(video(1), codec="h264")
        times.append(time.perf_counter() - start)
    assert sorted(times)[len(times) // 2] < 0.005


# promise: G10
def test_g06_without_nvcuvid_the_error_contains_the_remedy(decoding, monkeypatch):
    monkeypatch.setenv("SPDL_NVCUVID", "no-such-folder/libnvcuvid.so")
    with pytest.raises(CudaUnavailable, match="NVIDIA_DRIVER_CAPABILITIES"):
        nvdec_decoder(None, "h264")


# promise: G11
@pytest.mark.parametrize("fails", ["driver", "nvcuvid"])
def test_g06_any_call_may_fail_without_leaks(nvcuvid, decoding, fails):
    def decode():
        frames = decode_packets_nvdec(video(3), codec="h264", scale_width=16, scale_height=8)
        decoder = nvdec_decoder(None, "h264")
        nv12 = decoder.decode_packets(video(2))
        return frames.to_host().shape, nv12.to_host().shape

    stub, first = (decoding, 0) if fails == "driver" else (nvcuvid, 1)
    stub.fail(first - 1)
    expected = decode()
    spdl_rs.cuda.release()
    calls, reported = stub.calls(), 0
    assert calls > 20
    for call in range(first, calls + first, 4 if fails == "driver" else 1):
        nvcuvid.reset()
        stub.fail(call, 2 if call % 2 else 999)
        try:
            assert decode() == expected
        except (CudaError, spdl_rs.SpdlError):
            reported += 1
        stub.fail(first - 1)
        spdl_rs.cuda.release()
        assert decoding.ledger() == {} and nvcuvid.live() == 0, call
    assert reported > 15


def test_g06_memory_is_reused(nvcuvid):
    def decode():
        decode_packets_nvdec(video(6), codec="h264").to_host()

    for _ in range(4):
        decode()
    before = spdl_rs.cuda.memory_statistics()
    for _ in range(30):
        decode()
    after = spdl_rs.cuda.memory_statistics()
    assert after["allocations"] == before["allocations"] and after["live_bytes"] == 0


# promise: G7
@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize(
    "coeff, shares",
    [
        (1, BT709),
        (4, {"kr": 0.30, "kb": 0.11}),
        (5, {}),
        (6, {}),
        (7, {"kr": 0.212, "kb": 0.087}),
        (9, {"kr": 0.2627, "kb": 0.0593}),
    ],
)
def test_g08_colours_are_rounded_to_nearest(decoding, coeff, shares, full_range):
    frames = random_nv12(3, 36, 40)
    expected = numpy.stack([colours(it, full_range=full_range, **shares) for it in frames])
    options = {"coeff": coeff, "full_range": full_range}
    placed = transfer_tensor(frames)
    assert_same(nv12_to_rgb(placed, **options), expected)
    assert_same(nv12_to_bgr(placed, sync=True, **options), expected[:, ::-1])
    assert_same(nv12_to_rgb(transfer_tensor(frames[1]), **options), expected[1])


# promise: G7
def test_g08_red_has_1_7927_of_cr_and_not_1_8337(decoding):
    nv12 = numpy.full((24, 16), 128, "u1")
    nv12[16:, 1::2] = 160
    red = nv12_to_rgb(transfer_tensor(nv12), coeff=1).to_host()[0]
    grey = 255 * (128 - 16) / 219
    assert set(red.ravel()) == {round(grey + 1.7927 * 32)} != {round(grey + 1.8337 * 32)}


def test_g08_16_bit_samples_are_converted(decoding):
    frame = random_nv12(36, 40, dtype="u2")
    expected = colours(frame, bits=16, **BT709)
    found = nv12_to_rgb(transfer_tensor(frame)).to_host()
    # `float32` cannot represent all combinations of three 16-bit components.
    assert abs(found.astype(int) - expected).max() <= 1


def test_g08_sync_waits_for_the_result(decoding, monkeypatch):
    waited = []
    monkeypatch.setattr(DeviceArray, "wait", lambda array: waited.append(array.shape))
    placed = transfer_tensor(random_nv12(36, 40))
    nv12_to_rgb(placed)
    assert waited == []
    nv12_to_bgr(placed, sync=True)
    assert waited == [(3, 24, 40)]


def test_g08_invalid_arrays_and_matrices_are_errors(decoding):
    good = transfer_tensor(random_nv12(36, 40))
    shapes = [(35, 40), (36, 41), (3, 2, 36, 40), (36,), (0, 40)]
    for wrong in [numpy.zeros(shape, "u1") for shape in shapes] + [numpy.zeros((36, 40), "f4")]:
        with pytest.raises(ValueError, match="buf must be"):
            nv12_to_rgb(transfer_tensor(wrong))
    with pytest.raises(TypeError, match="DeviceArray"):
        nv12_to_rgb(random_nv12(36, 40))
    for coeff in (0, 3, 8, 10, 11, 99):
        with pytest.raises(ValueError, match="coeff must be one of"):
            nv12_to_rgb(good, coeff=coeff)


def test_g08_conversion_is_ordered_with_the_stream(decoding):
    frames = transfer_tensor({"odd": numpy.zeros(3, "u1"), "nv12": random_nv12(36, 40)})["nv12"]
    # The array starts in the middle of its memory.
    expected = colours(frames.to_host(), **BT709)
    found = nv12_to_rgb(frames, device_config=cuda_config(0, stream=4096))
    assert decoding.waiting() == 4096
    del frames
    assert_same(found, expected)


def test_g08_frames_are_convertible_after_a_release(decoding):
    frames = transfer_tensor(random_nv12(36, 40))
    expected = colours(frames.to_host(), **BT709)
    spdl_rs.cuda.release()
    assert_same(nv12_to_rgb(frames), expected)
    assert_same(nv12_to_rgb(frames, device_config=cuda_config(0, stream=4096)), expected)
    with pytest.raises(ValueError, match="for CUDA device 1, but the array is on device 0"):
        nv12_to_rgb(frames, device_config=cuda_config(1))
    with pytest.raises(TypeError, match="cuda_config"):
        nv12_to_rgb(frames, device_config=0)


@pytest.mark.parametrize("module", ["io._device_images", "io._device_video"])
def test_documentation_examples_pass(module):
    result = doctest.testmod(importlib.import_module(f"spdl_rs.{module}"))
    assert result.attempted > 0 and result.failed == 0


class RecordingDecoder:
    """Stands for a native decoder, and records the packets."""

    def __init__(self):
        self.pushed = []
        self.windows = []

    def push(self, data, timestamp, window=None):
        self.pushed.append((bytes(data), timestamp))
        self.windows.append(window)
        return 0

    def forget(self):
        pass

    def finish(self):
        self.windows.append(None)
        return 0

    def take(self, count, output):
        return None


VIDEO = pathlib.Path(__file__).parents[2] / "spdl-media/tests/video"


@pytest.mark.parametrize("name", ["h264.mp4", "h264.mkv", "hevc_open_gop.mp4", "mpeg4.mp4"])
def test_i06_packets_of_containers_reach_nvdec_with_start_codes(monkeypatch, name):
    packets = demux_video(VIDEO / name)
    count, times = len(packets), packets.get_timestamps(raw=True)
    unit = packets.codec.time_base
    one, several = RecordingDecoder(), RecordingDecoder()
    list(NvDecDecoder(one, ("rgb", (0, 0, 0, 0), None), 2)._pushed(packets))
    made = {}

    def nvdec_decoder(config, codec, **options):
        made.update(codec=codec.name, **options)
        return NvDecDecoder(several, ("rgb", (0, 0, 0, 0), None), 2)

    monkeypatch.setattr(_device_video, "nvdec_decoder", nvdec_decoder)
    stream = streaming_load_video_nvdec(VIDEO / name, None, num_frames=3, post_processing_params={"pix_fmt": "rgb"})
    assert list(stream) == []
    codec = name.split("_")[0].split(".")[0]
    assert made == {"codec": codec, "pix_fmt": "rgb", "use_cache": True}
    assert one.pushed == several.pushed and len(one.pushed) == count
    start = b"\0\0\1" if codec == "mpeg4" else b"\0\0\0\1"
    assert all(data.startswith(start) for data, _ in one.pushed)
    # MP4 has the video object layer of MPEG-4 in its header only.
    assert codec != "mpeg4" or b"\0\0\1\x20" in one.pushed[0][0]
    assert [pts * unit[0] / unit[1] for _, pts in one.pushed] == pytest.approx(times)
    with pytest.raises(TypeError, match="consumed"):
        packets.clone()


def test_i06_the_decoder_receives_the_window_of_the_packets():
    times = demux_video(VIDEO / "h264.mp4").get_timestamps()
    packets = demux_video(VIDEO / "h264.mp4", timestamp=(times[7], times[12]))
    numerator, denominator = packets.codec.time_base
    recorded = RecordingDecoder()
    list(NvDecDecoder(recorded, ("rgb", (0, 0, 0, 0), None), 2)._pushed(packets))
    first, end = recorded.windows[-2]
    inside = sorted(pts * numerator / denominator for _, pts in recorded.pushed if first <= pts < end)
    assert inside == pytest.approx(times[7:12])
    assert len(recorded.pushed) > len(inside)
    # The video before ends first, and this video ends after the last packet.
    assert recorded.windows == [None, *[(first, end)] * len(recorded.pushed), None]


class StubPackets:
    """Stands for native packets in a window."""

    codec = None

    def __init__(self, packets, window):
        self.payloads, self.window_stamps = (lambda: packets), (lambda: window)


def test_i06_frames_outside_the_window_are_dropped(nvcuvid):
    def packets(window):
        first, *others = ((shown(at % 8), 10 * at) for at in range(12))
        last = [(b"D\2\2Q\2", 120)]
        return VideoPackets(StubPackets([(headers(WIDTH, HEIGHT) + first[0], 0), *others, *last], window))

    frames = decode_packets_nvdec(packets((25, 61)), codec="h264")
    expected = [colours(nvcuvid.nv12(at, HEIGHT, WIDTH)) for at in (3, 4, 5, 6)]
    assert_same(frames, numpy.stack(expected))
    with pytest.raises(ValueError, match="contain no frame"):
        decode_packets_nvdec(packets((25, 30)), codec="h264")
    # Windows may overlap; frames before and after them are kept.
    decoder = nvdec_decoder(None, "h264")
    before, after = [headers(WIDTH, HEIGHT), (LATE, 30)], [headers(WIDTH, HEIGHT), shown(0)]
    counts = []
    for video in (before, packets((30, 60)), packets((50, 121)), after):
        frames = decoder.decode_packets(video)
        counts.append(0 if frames is None else frames.shape[0])
    assert counts == [0, 1 + 3, 8, 1] and decoder.flush() is None
    decoder.init_buffer(3)
    assert [it.shape[0] for it in decoder.streaming_decode_packets(packets((30, 100)))] == [3, 3, 1]
    # The window also applies to frames that are flushed after an exception.
    decoder.init_buffer(1)
    damaged = [(headers(WIDTH, HEIGHT), 0), (LATE, 0), (shown(0), 10), (shown(1, status=8), 20), (shown(2), 30)]
    with pytest.raises(CorruptError):
        list(decoder.streaming_decode_packets(VideoPackets(StubPackets(damaged, (15, 31)))))
    assert decoder.flush() is None


def counted(work):
    """The result of `work`, and the number of fallbacks."""
    before = spdl_rs.cuda.fallbacks()
    result = work()
    return result, spdl_rs.cuda.fallbacks() - before


SIZES = {"pix_fmt": "bgr", "crop_left": 4, "crop_bottom": 2, "scale_width": 30, "scale_height": 23}


# promise: G10
def test_i06_the_cpu_decodes_without_a_device_if_fallback_is_set(no_driver, monkeypatch):
    monkeypatch.setattr(_devices, "_host_decodes", 0)

    def load():
        sizes = {"pix_fmt": "rgb"}
        source = (VIDEO / "h264.mp4").read_bytes()
        return list(
            streaming_load_video_nvdec(source, None, num_frames=8, post_processing_params=sizes, fallback=True)
        )

    with pytest.warns(CudaFallbackWarning, match="the CPU decodes video: .*install an NVIDIA driver"):
        arrays, count = counted(load)
    assert count == 1 and [array.shape for array in arrays] == [(8, 3, 48, 64), (8, 3, 48, 64), (4, 3, 48, 64)]
    assert all(array.dtype == "u1" and array.flags.c_contiguous for array in arrays)
    filters = "scale=flags=bilinear+accurate_rnd+full_chroma_int,format=pix_fmts=rgb24"
    expected = numpy.asarray(load_video(VIDEO / "h264.mp4", filter_desc=filters)).transpose(0, 3, 1, 2)
    numpy.testing.assert_array_equal(numpy.concatenate(arrays), expected)
    # One warning for a process.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert counted(load)[1] == 1
        packets = demux_video(VIDEO / "h264.mp4")
        frames, count = counted(lambda: decode_packets_nvdec(packets, fallback=True, **SIZES))
        assert (frames.shape, count) == ((20, 3, 23, 30), 1)
        crops = {name: value for name, value in SIZES.items() if not name.startswith("scale")}
        cropped = decode_packets_nvdec(demux_video(VIDEO / "h264.mp4"), fallback=True, **crops)
    assert cropped.shape == (20, 3, 46, 60)
    inside = numpy.s_[:, :, 4:-4, 4:-4]
    numpy.testing.assert_array_equal(cropped[inside], expected[:, ::-1, :-2, 4:][inside])
    windowed = demux_video(VIDEO / "h264.mp4", timestamp=(0.75, 1.25))
    part = decode_packets_nvdec(windowed, fallback=True, **crops)
    times = numpy.array(demux_video(VIDEO / "h264.mp4").get_timestamps())
    numpy.testing.assert_array_equal(part, cropped[(times >= 0.75) & (times < 1.25)])
    with pytest.raises(CudaUnavailable):
        decode_packets_nvdec(demux_video(VIDEO / "h264.mp4"))


def test_i06_the_cpu_decodes_what_nvdec_does_not_if_fallback_is_set(nvcuvid):
    sizes = {"pix_fmt": "rgb"}

    def load(**fallback):
        return list(
            streaming_load_video_nvdec(
                VIDEO / "grey.mkv", None, num_frames=2, post_processing_params=sizes, **fallback
            )
        )

    with pytest.raises(UnsupportedError, match="NVDEC does not decode ffv1 video"):
        load()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CudaFallbackWarning)
        arrays, count = counted(lambda: load(fallback=True))
    assert count == 1 and [array.shape for array in arrays] == [(2, 3, 48, 64), (1, 3, 48, 64)]
    with pytest.raises(ValueError, match='fallback=True requires pix_fmt="rgb" or "bgr"'):
        streaming_load_video_nvdec(VIDEO / "h264.mp4", None, num_frames=8, fallback=True)
    with pytest.raises(ValueError, match="fallback=True requires the packets of demux_video"):
        decode_packets_nvdec(b"", codec="h264", fallback=True)
