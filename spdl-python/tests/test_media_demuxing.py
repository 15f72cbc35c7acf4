"""From files to packets: windows, streams, bit stream filters, pickling, damaged input."""

import copy
import itertools
import os
import pickle
import random
import signal
import statistics
import struct
import subprocess
import sys
import time
from decimal import Decimal
from fractions import Fraction

import media_files as media
import numpy
import pytest
import servers
from spdl_rs import CorruptError, DataError, InvalidArgumentError, LimitExceededError, UnsupportedError
from spdl_rs.io import (
    BSF,
    AudioPackets,
    Decoder,
    Demuxer,
    ImagePackets,
    Muxer,
    VideoPackets,
    apply_bsf,
    convert_frames,
    decode_packets,
    demux_audio,
    demux_config,
    demux_image,
    demux_video,
    probe,
    load_audio,
    load_image,
    load_video,
)
from spdl_rs.io.utils import get_ffmpeg_versions

pytestmark = pytest.mark.skipif(
    not get_ffmpeg_versions(), reason="spdl_rs was built without FFmpeg"
)

H264 = media.H264
# The times of frames in display order, and of packets in their order.
TIMES = [number / 10 for number in range(media.FRAMES)]
PACKETS = [int(pts) / 10_240 for pts in media.golden("h264.mp4", "packet")]

# The files with one packet for each frame that is shown, all with time stamps.
WINDOW_FILES = [
    "av1.mp4",
    "grey.mkv",
    "h264.mkv",
    "h264.mp4",
    "h264.ts",
    "h264_delayed.mov",
    "h264_edited.mov",
    "h264_fragmented.mp4",
    "h264_live.mkv",
    "h264_negative_offsets.mov",
    "h264_variable_rate.mp4",
    "hevc_open_gop.mp4",
    "mpeg2.mp4",
    "mpeg4.mp4",
    "vp8.webm",
    "vp8_hidden.webm",
    "vp9.webm",
]


def decoded(packets):
    """The hashes of the planes of all frames."""
    return media.hashes(decode_packets(packets, None))


def times_of(path):
    """The times of the frames of a file, as exact fractions, by ffprobe."""
    unit = Fraction(*Demuxer(path).video_codec.time_base)
    return [int(stamp) * unit for stamp in media.golden(path.name, "frame")]


@pytest.fixture
def two_streams(tmp_path):
    """A file with 12 frames of video, and 19,200 samples of audio at 16,000 Hz."""
    frames = media.noise((12, 16, 16))
    video = Demuxer(media.write_video(tmp_path / "a.nut", frames, "gray", "ffv1"))
    audio = Demuxer(media.write_audio(tmp_path / "b.nut", media.ramp(19_200), "s16", 16_000, "pcm_s16le"))
    muxer = Muxer(tmp_path / "both.nut")
    muxer.add_remux_stream(video.video_codec)
    muxer.add_remux_stream(audio.audio_codec)
    with muxer.open():
        muxer.write(0, video.demux_video())
        muxer.write(1, audio.demux_audio())
    return tmp_path / "both.nut"


@pytest.mark.parametrize("name", WINDOW_FILES)
def test_k02_a_window_keeps_the_frames_from_start_to_before_end(name):
    path = media.VIDEO / name
    times, expected = times_of(path), media.golden(name, "hash")
    places = range(0, len(times), max(1, len(times) // 8))
    wrong = []
    for start, end in itertools.combinations(places, 2):
        frames = decode_packets(demux_video(path, timestamp=(times[start], times[end])), None)
        if not len(frames) or media.hashes(frames) != expected[start:end]:
            wrong.append((start, end))
    assert wrong == []


@pytest.mark.parametrize("name", WINDOW_FILES)
def test_k07_a_slice_of_packets_has_the_frames_of_a_window(name):
    path = media.VIDEO / name
    times, expected = times_of(path), media.golden(name, "hash")
    whole = demux_video(path)
    places = range(0, len(times), max(1, len(times) // 8))
    for start, end in itertools.combinations(places, 2):
        packets = whole.slice((times[start], times[end]))
        assert packets.timestamp == (float(times[start]), float(times[end]))
        assert media.hashes(decode_packets(packets, None)) == expected[start:end], (start, end)
    assert len(whole.slice((1e6, 2e6))) == 0
    # Fewer packets than all, from a key frame on.
    if name == "h264.mp4":
        assert len(whole.slice((1.2, 1.4)).get_timestamps(raw=True)) < 10


def test_k07_a_slice_of_a_slice_has_the_frames_in_both_windows():
    hashes, times = media.golden(media.H264.name, "hash"), times_of(media.H264)
    first = (times[3], times[12])
    for packets in (demux_video(media.H264, timestamp=first), demux_video(media.H264).slice(first)):
        for start, end in [(0, 9), (5, 9), (5, 18), (0, 18), (3, 12)]:
            part = packets.slice((times[start], times[end]))
            inside = max(times[start], times[3]), min(times[end], times[12])
            assert part.timestamp == tuple(map(float, inside))
            expected = hashes[max(start, 3) : min(end, 12)]
            assert len(part) == len(expected)
            assert media.hashes(decode_packets(part, None)) == expected
        for disjoint in [(0, times[3]), (times[14], times[16])]:
            part = packets.slice(disjoint)
            assert len(part) == 0 and part.timestamp[0] == part.timestamp[1]
    data = media.wav_bytes(media.ramp(8000), 8000)
    part = demux_audio(data, timestamp=(0.25, 0.5)).slice((0.375, 0.75))
    numpy.testing.assert_array_equal(convert_frames(decode_packets(part)), load_audio(data, (0.375, 0.5)))


def test_k07_a_slice_of_audio_has_the_samples_of_a_window():
    samples = media.ramp(8000)
    data = media.wav_bytes(samples, 8000)
    packets = demux_audio(data)
    found = convert_frames(decode_packets(packets.slice((0.25, Fraction(1, 2)))))
    numpy.testing.assert_array_equal(found, load_audio(data, (0.25, 0.5)))
    with pytest.raises(UnsupportedError, match="no times of presentation"):
        demux_video(media.VIDEO / "mpeg4.avi").slice((0.5, 1.2))
    with pytest.raises(InvalidArgumentError, match="must not end before its start"):
        packets.slice((1, 0))


@pytest.mark.parametrize("name", [name for name in WINDOW_FILES if name != "vp8_hidden.webm"])
def test_k07_the_number_of_packets_in_a_window_is_that_of_its_frames(name):
    path = media.VIDEO / name
    times = times_of(path)
    assert demux_video(path).get_timestamps() == [float(time) for time in times]
    middle = len(times) // 2
    packets = demux_video(path, timestamp=(times[0], times[middle]))
    assert (len(packets), packets.get_timestamps()) == (middle, [float(time) for time in times[:middle]])


def test_k07_packets_of_hidden_frames_are_not_counted():
    # Reference frames of VP8 that are not shown.
    packets = demux_video(media.VIDEO / "vp8_hidden.webm")
    assert packets.get_timestamps() == [float(time) for time in times_of(media.VIDEO / "vp8_hidden.webm")]


def test_k02_a_window_of_a_file_without_presentation_times_is_unsupported():
    with pytest.raises(UnsupportedError, match="no times of presentation"):
        demux_video(media.VIDEO / "mpeg4.avi", timestamp=(0.5, 1.2))


@pytest.mark.parametrize(
    ("window", "frames"),
    [
        ((0.3, 0.7), range(3, 7)),
        (("0.3", "0.7"), range(3, 7)),
        ((Fraction(3, 10), Fraction(7, 10)), range(3, 7)),
        ((Decimal("0.3"), Decimal("0.7")), range(3, 7)),
        ((numpy.float64(0.3), 0.7), range(3, 7)),
        (("3/10", 0.7), range(3, 7)),
        # A nanosecond before and after a frame.
        (("0.299999999", "0.699999999"), range(3, 7)),
        (("0.300000001", "0.700000001"), range(4, 8)),
        ((0, 2), range(20)),
        ((-3, 0.2), range(2)),
        ((1.75, 100), range(18, 20)),
        ((0.85, 0.95), range(9, 10)),
    ],
)
def test_k02_windows_accept_all_types_of_times(window, frames):
    packets = demux_video(H264, timestamp=window)
    assert packets.timestamp == tuple(float(Fraction(time)) for time in window)
    assert packets.get_timestamps() == [TIMES[frame] for frame in frames]
    assert decoded(packets) == media.golden("h264.mp4", "hash")[frames.start : frames.stop]


@pytest.mark.parametrize("window", [(0.3, 0.3), (0.31, 0.39), (5, 6), (-2, 0), (-2, -1)])
def test_k02_a_window_without_frames_is_empty(window):
    packets = demux_video(H264, timestamp=window)
    assert (len(packets), packets.get_timestamps()) == (0, [])
    frames = decode_packets(packets)
    assert len(frames) == 0
    with pytest.raises(RuntimeError, match="no frames"):
        convert_frames(frames)


@pytest.mark.parametrize("window", [(1, 0), ("0.5", "0.4"), (0, -1)])
def test_k02_a_window_that_ends_before_its_start_is_an_error(window):
    with pytest.raises(InvalidArgumentError, match="must not end before its start") as raised:
        demux_video(H264, timestamp=window)
    assert isinstance(raised.value, RuntimeError)


@pytest.mark.parametrize("time", ["soon", float("nan"), None])
def test_k02_a_window_without_numbers_is_an_error(time):
    with pytest.raises((ValueError, TypeError)):
        demux_video(H264, timestamp=(0, time))


def test_k02_a_window_may_end_at_infinity():
    assert len(demux_video(H264, timestamp=(1.5, float("inf")))) == 5
    samples = media.ramp(800)
    found = load_audio(media.wav_bytes(samples, 8000), (0.05, float("inf")), filter_desc="aformat=s16")
    numpy.testing.assert_array_equal(found, samples[400:])


def test_k02_a_window_contains_only_the_packets_that_decoding_needs():
    packets = demux_video(H264, timestamp=(1.2, 1.4))
    raw = packets.get_timestamps(raw=True)
    # From the key frame before the window on; packets after the window are not read.
    assert raw[0] == 0.8 and len(raw) <= 10
    assert set(raw) <= set(PACKETS[8:])


def test_k02_one_demuxer_demuxes_several_windows_in_any_order():
    expected = media.golden("h264.mp4", "hash")
    with Demuxer(H264) as demuxer:
        for start, end in [(12, 15), (0, 3), (18, 20), (5, 9)]:
            assert decoded(demuxer.demux_video((start / 10, end / 10))) == expected[start:end]


@pytest.mark.parametrize(
    ("start", "end"), [(0, 1), (0, 4800), (1, 4799), (480, 960), (2400, 4800), (4799, 4800), (2, 2000)]
)
@pytest.mark.parametrize("rate", [8000, 44_100, 48_000])
def test_k02_a_window_of_audio_keeps_the_samples_from_start_to_before_end(start, end, rate):
    samples = media.ramp(4800, channels=2)
    window = (Fraction(start, rate), Fraction(end, rate))
    frames = decode_packets(demux_audio(media.wav_bytes(samples, rate), timestamp=window))
    assert len(frames) == frames.num_frames == end - start
    found = numpy.asarray(convert_frames(frames)) * 32_768
    numpy.testing.assert_array_equal(found, samples[start:end].T)


@pytest.mark.parametrize("extension", ["wav", "flac", "nut", "mkv"])
def test_k02_a_window_of_lossless_audio_equals_that_part_of_the_file(tmp_path, extension):
    samples, encoder = media.ramp(30_000), {"nut": "pcm_s16le", "mkv": "flac"}.get(extension)
    path = media.write_audio(tmp_path / f"a.{extension}", samples, "s16", 16_000, encoder)
    for start, end in [(0, 7), (9_001, 20_002), (29_000, 31_000)]:
        window = (Fraction(start, 16_000), Fraction(end, 16_000))
        found = numpy.asarray(load_audio(path, window)) * 32_768
        numpy.testing.assert_array_equal(found, samples[start:end].T)


def test_k02_a_window_of_a_file_that_cannot_seek_equals_that_part_of_the_file():
    # One packet of FLAC, without a table of positions.
    whole = numpy.asarray(load_audio(media.AUDIO / "mono-16.flac"))
    found = load_audio(media.AUDIO / "mono-16.flac", (Fraction(1000, 16_000), Fraction(2000, 16_000)))
    numpy.testing.assert_array_equal(found, whole[:, 1000:2000])


@pytest.mark.parametrize("extension", ["m4a", "aac", "mkv"])
def test_k02_a_window_of_aac_includes_the_packet_before_it(tmp_path, extension):
    path = media.write_audio(tmp_path / f"a.{extension}", media.sweep(40_960, 16_000), "fltp", 16_000, "aac")
    whole = numpy.asarray(load_audio(path))
    found = load_audio(path, (Fraction(20_013, 16_000), Fraction(30_001, 16_000)))
    numpy.testing.assert_allclose(found, whole[:, 20_013:30_001], atol=1e-3)


def test_k03_portions_together_are_the_packets_of_the_whole_file():
    whole = demux_video(H264)
    with Demuxer(H264) as demuxer:
        portions = list(demuxer.streaming_demux(num_packets=3))
    assert [len(portion) for portion in portions] == [3] * 6 + [2]
    times = [time for portion in portions for time in portion.get_timestamps(raw=True)]
    assert times == whole.get_timestamps(raw=True) == PACKETS
    assert all(isinstance(portion, VideoPackets) and portion.codec is None for portion in portions)


def test_k03_portions_have_the_requested_duration():
    with Demuxer(H264) as demuxer:
        portions = list(demuxer.streaming_demux(0, duration=0.5))
    times = [portion.get_timestamps(raw=True) for portion in portions]
    assert sum(times, []) == PACKETS
    # The packet that ends a portion is its last one; B-frames follow later frames.
    assert 3 <= len(portions) <= 5
    assert all(max(later) - max(earlier) >= 0.3 for earlier, later in itertools.pairwise(times))


def test_k03_a_set_of_streams_yields_dictionaries(two_streams):
    video, audio = 0, 0
    with Demuxer(two_streams) as demuxer:
        assert (demuxer.video_stream_index, demuxer.audio_stream_index) == (0, 1)
        for portion in demuxer.streaming_demux({0, 1}, num_packets=4):
            assert set(portion) <= {0, 1} and max(map(len, portion.values())) <= 4
            video += len(portion[0]) if 0 in portion else 0
            audio += len(portion[1]) if 1 in portion else 0
            assert isinstance(portion.get(0), VideoPackets | None)
            assert isinstance(portion.get(1), AudioPackets | None)
    assert video == len(demux_video(two_streams)) == 12
    assert audio == len(demux_audio(two_streams))


def test_k03_the_content_of_each_stream_is_that_of_the_whole_file(two_streams):
    found = {0: [], 1: []}
    with Demuxer(two_streams) as demuxer:
        decoders = {0: Decoder(demuxer.video_codec), 1: Decoder(demuxer.audio_codec, filter_desc=None)}
        for portion in demuxer.streaming_demux([0, 1], duration=0.25):
            for index, packets in portion.items():
                found[index] += decoders[index].streaming_decode_packets(packets)
    for index, decoder in decoders.items():
        found[index] += decoder.flush()
    pixels = numpy.concatenate([convert_frames(frames) for frames in found[0]])
    numpy.testing.assert_array_equal(pixels[..., 0], media.noise((12, 16, 16)))
    samples = numpy.concatenate([convert_frames(frames) for frames in found[1]])
    numpy.testing.assert_array_equal(samples, media.ramp(19_200))


def test_k03_one_stream_of_two_is_read_alone(two_streams):
    with Demuxer(two_streams) as demuxer:
        packets = list(demuxer.streaming_demux(demuxer.audio_stream_index, num_packets=5))
    assert {type(each) for each in packets} == {AudioPackets}
    assert sum(map(len, packets)) == len(demux_audio(two_streams))


def test_k03_the_file_is_read_once():
    with Demuxer(H264) as demuxer:
        first = next(demuxer.streaming_demux(num_packets=5))
        rest = list(demuxer.streaming_demux(num_packets=100))
        assert len(first) == 5 and [len(each) for each in rest] == [15]
        assert list(demuxer.streaming_demux(num_packets=1)) == []


@pytest.mark.parametrize("indices", [2, 99, -1, {0, 7}, {-1}, [3]])
def test_k03_a_stream_that_does_not_exist_is_an_error(two_streams, indices):
    with Demuxer(two_streams) as demuxer, pytest.raises(RuntimeError, match="[Ss]tream"):
        list(demuxer.streaming_demux(indices, num_packets=1))


@pytest.mark.parametrize(
    "portion", [{}, {"duration": 1, "num_packets": 1}, {"duration": 0}, {"num_packets": 0}, {"duration": -2}]
)
def test_k03_exactly_one_size_of_portions_is_required(portion):
    with Demuxer(H264) as demuxer, pytest.raises(ValueError, match="exactly one of duration and num_packets"):
        demuxer.streaming_demux(**portion)


def test_k03_portions_are_decoded_by_a_decoder_only():
    with Demuxer(H264) as demuxer:
        packets = next(demuxer.streaming_demux(num_packets=8))
    with pytest.raises(RuntimeError, match="use Decoder with that of the Demuxer"):
        decode_packets(packets)
    with pytest.raises(RuntimeError, match="no codec"):
        packets.width  # noqa: B018
    with pytest.raises(ValueError, match="use BSF with that of the Demuxer"):
        apply_bsf(packets, "null")


def test_k04_codecs_have_the_properties_of_the_streams(two_streams):
    with Demuxer(two_streams) as demuxer:
        assert demuxer.has_audio()
        audio, video = demuxer.audio_codec, demuxer.video_codec
    assert (audio.name, audio.sample_rate, audio.num_channels) == ("pcm_s16le", 16_000, 1)
    assert (audio.sample_fmt, audio.channel_layout) == ("s16", "mono")
    assert (video.name, video.width, video.height, video.pix_fmt) == ("ffv1", 16, 16, "gray")
    assert Fraction(*video.frame_rate) == 10
    with Demuxer(H264) as demuxer:
        assert not demuxer.has_audio()
        codec, image = demuxer.video_codec, demuxer.image_codec
    assert (codec.name, codec.width, codec.height, codec.pix_fmt) == ("h264", 64, 48, "yuv420p")
    assert codec.time_base == (1, 10_240) and codec.sample_aspect_ratio == (1, 1)
    assert (image.name, image.width) == ("h264", 64)
    assert "h264" in repr(codec) and "16000 Hz" in repr(audio)


@pytest.mark.parametrize("kind", ["audio", "video", "image"])
def test_k02_a_missing_stream_is_an_error(kind):
    src = H264 if kind == "audio" else media.wav_bytes(media.ramp(100), 8000)
    with Demuxer(src, name="the file") as demuxer:
        message = f"No {kind} stream was found in the file"
        for use in [getattr(demuxer, f"demux_{kind}"), lambda: getattr(demuxer, f"{kind}_codec")]:
            with pytest.raises(UnsupportedError, match=message) as raised:
                use()
            assert isinstance(raised.value, RuntimeError)


def test_k01_a_closed_demuxer_is_an_error():
    with Demuxer(H264) as demuxer:
        demuxer.demux_video()
    with pytest.raises(RuntimeError, match="closed"):
        demuxer.demux_video()


@pytest.mark.parametrize(
    "convert",
    [
        str,
        os.fspath,
        lambda path: path,
        lambda path: path.read_bytes(),
        lambda path: bytearray(path.read_bytes()),
        lambda path: memoryview(path.read_bytes()),
        lambda path: numpy.frombuffer(path.read_bytes(), "uint8"),
        lambda path: memoryview(b"ab" + path.read_bytes())[2:],
    ],
)
@pytest.mark.parametrize("name", ["h264.mp4", "h264.mkv", "h264.ts"])
def test_k01_files_are_paths_or_bytes(convert, name):
    assert decoded(demux_video(convert(media.VIDEO / name))) == media.golden(name, "hash")


def test_k01_paths_need_not_be_utf8(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.mp4")
    with open(path, "wb") as file:
        file.write(H264.read_bytes())
    assert len(demux_video(path)) == media.FRAMES


@pytest.mark.parametrize("src", [None, 3, 1.5, ["a.mp4"], {"path": "a.mp4"}])
def test_k01_other_sources_are_type_errors(src):
    with pytest.raises(TypeError, match="src must be a path, an address, or the content of a file"):
        Demuxer(src)


def test_k01_arrays_with_gaps_are_errors():
    with pytest.raises((TypeError, ValueError), match="[Cc]ontiguous"):
        Demuxer(numpy.frombuffer(H264.read_bytes(), "uint8")[::2])


def test_k01_a_missing_path_is_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.mp4") as raised:
        Demuxer(tmp_path / "absent.mp4")
    assert isinstance(raised.value, RuntimeError)
    assert "Failed to open the input" in str(raised.value)


def test_k01_a_folder_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="directory") as raised:
        Demuxer(tmp_path)
    assert isinstance(raised.value, RuntimeError)


def test_k01_addresses_are_read_by_range_requests(tmp_path):
    # The content is between two parts that no packet needs.
    gap = bytes(4 << 20)
    data = media.H264.read_bytes()
    (tmp_path / "a.mp4").write_bytes(data)
    (tmp_path / "long.mp4").write_bytes(data + struct.pack(">I4s", 8 + len(gap), b"free") + gap)
    expected = decoded(demux_video(tmp_path / "a.mp4"))
    with servers.serving(tmp_path) as server:
        for name in ("a.mp4", "long.mp4"):
            server.requested.clear()
            packets = demux_video(f"{server.address}/{name}?signature=canary")
            assert "canary" not in repr(packets)
            assert decoded(packets) == expected
            ranges = [wanted for _, _, wanted in server.requested]
            assert all(ranges) and len(ranges) <= 3, ranges
        assert probe(f"{server.address}/long.mp4").video.name == "h264"
        assert numpy.asarray(load_video(f"{server.address}/a.mp4")).shape[0] == media.FRAMES
        with pytest.raises(FileNotFoundError, match="Failed to open the input") as raised:
            Demuxer(f"{server.address}/none.mp4")
        assert isinstance(raised.value, RuntimeError)
    assert decoded(demux_video((tmp_path / "a.mp4").as_uri())) == expected
    with pytest.raises(InvalidArgumentError, match="unknown address scheme"):
        Demuxer("concat://a|b")


# promise: R6
@pytest.mark.parametrize("read", ["demux", "stream"])
def test_k01_ctrl_c_interrupts_reads_from_a_store_within_100_ms(tmp_path, read):
    # Opening reads the first MiB only.
    (tmp_path / "a.wav").write_bytes(media.wav_bytes(media.ramp(2 << 20), 48_000))

    def handler(*_):
        raise KeyboardInterrupt

    def work(demuxer):
        if read == "demux":
            demuxer.demux_audio()
        else:
            next(demuxer.streaming_demux(0, duration=30))

    waited = []
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(3):
            with servers.serving(tmp_path) as server:
                demuxer = Demuxer(f"{server.address}/a.wav")
                server.stuck.add("a.wav")
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                start = time.monotonic()
                with pytest.raises(KeyboardInterrupt), demuxer:
                    work(demuxer)
                waited.append(time.monotonic() - start)
                with pytest.raises(InvalidArgumentError, match="the demuxer is closed"):
                    work(demuxer)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert statistics.median(waited) < 0.3, waited


def test_k01_the_number_of_streams_is_limited():
    config = demux_config(format_options={"max_streams": "0"})
    with pytest.raises(LimitExceededError, match="more streams than `max_streams`"):
        demux_video(media.H264, demux_config=config)


def test_k01_formats_that_open_other_files_are_refused(tmp_path):
    (tmp_path / "a.wav").write_bytes(media.wav_bytes(media.ramp(100), 8000))
    scripts = {
        "concat": f"ffconcat version 1.0\nfile '{tmp_path}/a.wav'\n",
        "hls": f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{tmp_path}/a.wav\n#EXT-X-ENDLIST\n",
    }
    for format, script in scripts.items():
        for config in [None, demux_config(format)]:
            with pytest.raises(RuntimeError):
                demux_audio(script.encode(), demux_config=config)


# promise: R20
def test_k01_formats_outside_the_list_are_not_recognised():
    # SoX native audio, which refers to no other file, shows that the list is applied.
    sound = struct.pack("<4sIQdII", b".SoX", 28, 100, 8000.0, 1, 0) + bytes(400)
    try:
        demuxed = demux_audio(sound, demux_config=demux_config("sox"))
    except UnsupportedError:
        pytest.skip("this build of FFmpeg has no format sox")
    assert demuxed.sample_rate == 8000
    for open_it in (Demuxer, demux_audio, load_audio):
        with pytest.raises(RuntimeError, match="cannot open the media file"):
            open_it(sound)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"not a media file" * 100, random.Random(3).randbytes(20_000), b"RIFF", b"\x89PNG\r\n\x1a\n"],
    ids=["empty", "zero", "text", "noise", "riff", "png"],
)
def test_k01_bytes_of_no_format_are_data_errors(data):
    with pytest.raises(DataError) as raised:
        load_image(data, name="the bytes")
    assert isinstance(raised.value, RuntimeError) and "the bytes" in str(raised.value)


def test_k01_a_file_without_its_index_is_a_data_error():
    # `moov` is at the end.
    with pytest.raises(DataError):
        demux_video(H264.read_bytes()[:2000])


@pytest.mark.parametrize("name", ["h264.mkv", "h264.ts", "h264_faststart.mp4", "mpeg4.avi", "vp9.webm"])
def test_k02_a_truncated_file_has_the_frames_of_its_beginning_or_is_a_data_error(name):
    data, expected = (media.VIDEO / name).read_bytes(), media.golden(name, "hash")
    counts = []
    for size in range(0, len(data), len(data) // 12):
        try:
            found = decoded(demux_video(data[:size]))
        except DataError:
            found = []
        # FFmpeg repeats parts of pictures for the last frame.
        assert len(found) <= len(expected)
        assert len(found) <= 1 or found[0] == expected[0]
        counts.append(len(found))
    assert counts[0] == 0 and counts[-1] > 10


def test_k02_damaged_files_are_errors_or_frames():
    generator = random.Random(7)
    for path in [H264, media.VIDEO / "vp9.webm", media.AUDIO / "stereo.mp3", media.IMAGES / "rgb.png"]:
        data = path.read_bytes()
        for _ in range(60):
            damaged = bytearray(data)
            for _ in range(generator.randint(1, 12)):
                damaged[generator.randrange(len(data))] = generator.randrange(256)
            try:
                with Demuxer(bytes(damaged)) as demuxer:
                    packets = demuxer.demux_audio() if path.suffix == ".mp3" else demuxer.demux_video()
                convert_frames(decode_packets(packets))
            except RuntimeError:
                pass


def test_k06_audio_without_a_header_needs_its_format():
    samples = media.ramp(500, channels=2)
    config = demux_config("s16le", {"sample_rate": "11025", "ch_layout": "stereo"})
    frames = decode_packets(demux_audio(samples.tobytes(), demux_config=config), None)
    assert frames.sample_rate == 11_025
    numpy.testing.assert_array_equal(convert_frames(frames), samples)


def test_k06_video_without_a_header_needs_its_size():
    pixels = media.noise((3, 8, 6, 3))
    config = demux_config("rawvideo", {"pixel_format": "rgb24", "video_size": "6x8"})
    frames = decode_packets(demux_video(pixels.tobytes(), demux_config=config))
    numpy.testing.assert_array_equal(convert_frames(frames), pixels)


@pytest.mark.parametrize("buffer_size", [1, 600, 1 << 20])
def test_k06_the_buffer_size_does_not_change_the_packets(buffer_size):
    config = demux_config(buffer_size=buffer_size)
    assert decoded(demux_video(H264, demux_config=config)) == media.golden("h264.mp4", "hash")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"format": "no_such_format"}, 'FFmpeg has no format "no_such_format"'),
        ({"format_options": {"no_such_option": "1"}}, "Unexpected options: no_such_option=1"),
        ({"format": "wav"}, "h264.mp4"),
    ],
)
def test_k06_wrong_formats_and_options_are_errors(config, message):
    with pytest.raises(RuntimeError, match=message):
        Demuxer(H264, demux_config=demux_config(**config))


@pytest.mark.parametrize(
    "config", [{"format": 3}, {"format_options": ["a"]}, {"format_options": {"a": 1}}, {"buffer_size": "large"}]
)
def test_k06_settings_of_another_type_are_type_errors(config):
    with pytest.raises(TypeError):
        demux_config(**config)


def test_k02_one_demuxer_demuxes_several_streams_of_a_file(two_streams):
    with Demuxer(two_streams) as demuxer:
        video, audio, again = demuxer.demux_video(), demuxer.demux_audio(), demuxer.demux_video()
    assert len(video) == len(again) == 12 and len(audio) == len(demux_audio(two_streams))


def test_k05_the_functions_return_the_packets_of_a_demuxer(two_streams):
    video, audio, image = (
        getattr(Demuxer(two_streams), f"demux_{kind}")() for kind in ["video", "audio", "image"]
    )
    assert pickle.dumps(demux_video(two_streams)) == pickle.dumps(video)
    assert pickle.dumps(demux_audio(two_streams)) == pickle.dumps(audio)
    assert pickle.dumps(demux_image(two_streams)) == pickle.dumps(image)
    assert isinstance(image, ImagePackets)
    first = numpy.asarray(convert_frames(decode_packets(image)))[..., 0]
    numpy.testing.assert_array_equal(first, media.noise((12, 16, 16))[0])


def test_k07_packets_have_the_properties_of_their_stream():
    packets = demux_video(H264, timestamp=(0.2, 0.9))
    assert (len(packets), packets.width, packets.height, packets.pix_fmt) == (7, 64, 48, "yuv420p")
    assert packets.frame_rate == (10, 1) and packets.timestamp == (0.2, 0.9)
    assert packets.codec.name == "h264"
    text = repr(packets)
    assert all(part in text for part in ["VideoPackets", "h264", "64 x 48", "0.2 to 0.9 s", str(H264)])
    audio = demux_audio(media.AUDIO / "stereo.mp3")
    assert (audio.sample_rate, audio.num_channels, audio.timestamp) == (44_100, 2, None)
    assert "44100 Hz" in repr(audio)
    assert "bytes" in repr(demux_image((media.IMAGES / "rgb.png").read_bytes())).lower()


def test_k07_the_order_of_raw_times_is_that_of_the_packets():
    packets = demux_video(H264, timestamp=(0.4, 0.7))
    assert packets.get_timestamps() == [0.4, 0.5, 0.6]
    raw = packets.get_timestamps(raw=True)
    assert raw == PACKETS[: len(raw)] and len(raw) > 3


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (decode_packets, "decode_packets"),
        (lambda packets: apply_bsf(packets, "null"), "BSF.filter"),
        (lambda packets: BSF(packets.codec, "null").filter(packets), "BSF.filter"),
        (lambda packets: list(Decoder(packets.codec).streaming_decode_packets(packets)), "streaming_decode_packets"),
    ],
)
def test_k07_packets_can_be_used_once(use, name):
    packets = demux_video(H264)
    kept = packets.clone()
    use(packets)
    message = f"these VideoPackets were consumed by {name}; call clone\\(\\) before"
    for again in [use, len, pickle.dumps, VideoPackets.clone, VideoPackets.get_timestamps]:
        with pytest.raises(TypeError, match=message):
            again(packets)
    assert repr(packets) == f"VideoPackets(consumed by {name})"
    assert decoded(kept) == media.golden("h264.mp4", "hash")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it)), VideoPackets.clone])
@pytest.mark.parametrize("window", [None, (0.4, 1.3)])
def test_k07_copies_of_packets_decode_to_the_same_frames(copied, window):
    packets = demux_video(H264, timestamp=window)
    found = copied(packets)
    assert found.timestamp == window and len(found) == len(packets)
    assert found.get_timestamps(raw=True) == packets.get_timestamps(raw=True)
    assert (found.frame_rate, found.codec.time_base) == ((10, 1), (1, 10_240))
    assert decoded(found) == decoded(packets)


@pytest.mark.parametrize(
    "path",
    [
        *sorted((media.VIDEO / name for name in ["av1.mp4", "hevc_open_gop.mp4", "mpeg2.mp4", "vp9.webm", "h264.ts"])),
        *sorted(media.AUDIO.glob("*.*3")),
        media.AUDIO / "stereo.ogg",
        media.AUDIO / "mono.opus",
        media.AUDIO / "stereo-24.flac",
        media.AUDIO / "stereo-24.wav",
        media.AUDIO / "stereo.aac",
        media.IMAGES / "palette.png",
        media.IMAGES / "lzw.tiff",
    ],
    ids=lambda path: path.name,
)
def test_k07_pickled_packets_of_any_codec_decode_to_the_same_content(path):
    kind = {media.VIDEO: "video", media.AUDIO: "audio", media.IMAGES: "image"}[path.parent]
    packets = {"video": demux_video, "audio": demux_audio, "image": demux_image}[kind](path)
    again = pickle.loads(pickle.dumps(packets))
    assert type(again) is type(packets)
    numpy.testing.assert_array_equal(
        convert_frames(decode_packets(again)), convert_frames(decode_packets(packets))
    )


def test_k07_packets_are_deserialized_from_a_view():
    packets = demux_video(H264)
    state = packets.__getstate__()
    for data in [state, memoryview(state), bytearray(state), numpy.frombuffer(state, "uint8")]:
        assert decoded(VideoPackets.deserialize_view(data)) == media.golden("h264.mp4", "hash")
    assert VideoPackets.deserialize(state).__getstate__() == state
    with pytest.raises(TypeError, match="data contains VideoPackets, not AudioPackets"):
        AudioPackets.deserialize(state)


def test_k07_packets_keep_the_memory_of_a_view_alive():
    packets = VideoPackets.deserialize_view(memoryview(demux_video(H264).__getstate__()))
    # Reuses memory that was freed.
    junk = [bytes([number]) * 4096 for number in range(256)]
    assert decoded(packets) == media.golden("h264.mp4", "hash") and len(junk) == 256


def small_packets():
    """About 1 KB: an image, audio, and a window of video."""
    return [
        demux_image(media.IMAGES / "grey4.png"),
        demux_audio(media.wav_bytes(media.ramp(60, channels=2), 8000), timestamp=(0, 0.005)),
        demux_video(media.VIDEO / "h264_bt709.mp4", timestamp=(0, 1)),
    ]


def test_k07_truncated_packets_are_corrupt():
    for packets in small_packets():
        state = packets.__getstate__()
        for size in range(len(state)):
            with pytest.raises(CorruptError, match="corrupt packets") as raised:
                type(packets).deserialize_view(state[:size])
            assert isinstance(raised.value, RuntimeError)


def test_k07_changed_packets_are_errors_or_content():
    generator = random.Random(11)
    refused = 0
    for packets in small_packets():
        state = packets.__getstate__()
        # The header has most of the fields.
        for number in range(400):
            damaged = bytearray(state)
            limit = len(state) if number % 4 == 0 else min(len(state), 700)
            for _ in range(generator.randint(1, 3)):
                damaged[generator.randrange(limit)] ^= 1 << generator.randrange(8)
            try:
                found = type(packets).deserialize_view(bytes(damaged))
                repr(found), repr(found.codec)
                convert_frames(decode_packets(found))
            except (RuntimeError, TypeError, ValueError):
                refused += 1
    assert refused > 100


# Decodes packets after each change of one byte of their header.
EACH_BYTE = """
import logging, sys
from spdl_rs.io import convert_frames, decode_packets, demux_audio, demux_image, demux_video

logging.disable()
demux = {"video": demux_video, "audio": demux_audio, "image": demux_image}[sys.argv[1]]
window = {} if sys.argv[1] == "image" else {"timestamp": (0, 0.11)}
packets = demux(sys.argv[2], **window)
state = packets.__getstate__()
decoded = 0
for place in range(16 + int.from_bytes(state[8:16], "little")):
    for value in (1, 127, 255):
        changed = bytearray(state)
        changed[place] ^= value
        try:
            convert_frames(decode_packets(type(packets).deserialize(bytes(changed)), num_frames=2))
        except (RuntimeError, TypeError):
            continue
        decoded += 1
print(decoded)
"""


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("video", media.VIDEO / "mpeg2.mp4"),
        ("video", media.VIDEO / "h264.mp4"),
        ("video", media.VIDEO / "vp9.webm"),
        ("video", media.VIDEO / "grey.mkv"),
        ("audio", media.AUDIO / "mono.mp3"),
        ("audio", media.AUDIO / "stereo-24.wav"),
        ("audio", media.AUDIO / "stereo-24.flac"),
        ("image", media.IMAGES / "palette.png"),
        ("image", media.IMAGES / "rgb.jpg"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_k07_no_change_of_one_byte_of_a_header_crashes_a_decoder(kind, path):
    command = [sys.executable, "-c", EACH_BYTE, kind, str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-500:]
    assert int(ran.stdout) > 100


@pytest.mark.parametrize("data", [b"", b"SPDLPKT", b"SPDLPKT\x01" + b"\xff" * 8, b"SPDLPKT\x02" + bytes(200), bytes(500)])
def test_k07_other_bytes_are_corrupt(data):
    with pytest.raises(CorruptError, match="corrupt packets"):
        VideoPackets.deserialize(data)


def start_codes(packets):
    """How many units of H.264 start with a start code."""
    return packets.__getstate__().count(b"\0\0\0\1")


@pytest.mark.parametrize("window", [None, (0.9, 1.3)])
def test_k08_a_filter_writes_start_codes_and_keeps_the_frames(window):
    expected = decoded(demux_video(H264, timestamp=window))
    filtered = apply_bsf(demux_video(H264, timestamp=window), "h264_mp4toannexb")
    assert start_codes(filtered) >= len(filtered)
    assert filtered.timestamp == window
    assert decoded(filtered.clone()) == expected
    assert decoded(demux_video(H264, timestamp=window, bsf="h264_mp4toannexb")) == expected


def test_k08_a_filter_accepts_portions():
    with Demuxer(H264) as demuxer:
        codec = demuxer.video_codec
        bsf, decoder = BSF(codec, "h264_mp4toannexb"), Decoder(codec, filter_desc=None)
        frames = []
        for portion in demuxer.streaming_demux(num_packets=4):
            filtered = bsf.filter(portion)
            assert filtered.codec is None
            frames += decoder.streaming_decode_packets(filtered)
        assert bsf.flush() is None
        frames += decoder.flush()
    assert [each for part in frames for each in media.hashes(part)] == media.golden("h264.mp4", "hash")


def test_k08_packets_that_a_filter_keeps_are_returned_by_flush():
    # Groups 100 samples into packets.
    samples = media.ramp(250)
    packets = demux_audio(media.wav_bytes(samples, 8000))
    bsf = BSF(packets.codec, "pcm_rechunk=n=100:pad=0")
    parts = [bsf.filter(packets), bsf.flush()]
    assert [len(part) for part in parts] == [2, 1] and bsf.flush() is None
    found = [numpy.asarray(convert_frames(decode_packets(part, None))) for part in parts]
    numpy.testing.assert_array_equal(numpy.concatenate(found), samples)


@pytest.mark.parametrize(
    ("path", "bsf"),
    [(H264, "no_such_filter"), (H264, "setts=no_such_option=1"), (H264, ""), (media.VIDEO / "vp9.webm", "h264_mp4toannexb")],
)
def test_k08_wrong_filters_are_errors(path, bsf):
    for use in [lambda: demux_video(path, bsf=bsf), lambda: apply_bsf(demux_video(path), bsf)]:
        with pytest.raises(RuntimeError, match="cannot filter packets") as raised:
            use()
        assert isinstance(raised.value, InvalidArgumentError)


def test_k08_packets_of_another_kind_are_an_error():
    codec = demux_video(H264).codec
    with pytest.raises(RuntimeError, match="packets of video"):
        BSF(codec, "null").filter(demux_audio(media.AUDIO / "stereo.mp3"))


@pytest.mark.parametrize(("transfer", "number"), [("smpte2084", 16), ("arib-std-b67", 18)])
def test_probe_flags_hdr_video(tmp_path, transfer, number):
    pixels = media.noise((2, 3 * 48 // 2, 64))[:, None]
    settings = {"colorspace": "bt2020nc", "color_primaries": "bt2020", "color_trc": transfer}
    path = media.write_video(tmp_path / "hdr.mkv", pixels, "yuv420p", "mpeg4", size=(48, 64), **settings)
    found = probe(path).video
    assert (found.color_primaries, found.color_transfer, found.color_matrix) == (9, number, 9)
    assert found.is_hdr


def test_probe_reads_format_duration_and_codecs(tmp_path):
    found = probe(H264)
    assert (found.format, found.duration, found.audio) == ("mov,mp4,m4a,3gp,3g2,mj2", 2.0, None)
    assert (found.video.name, found.video.width, found.video.height) == ("h264", 64, 48)
    video = found.video
    assert (video.color_primaries, video.color_transfer, video.color_matrix, video.is_hdr) == (2, 2, 2, False)
    found = probe(media.wav_bytes(media.ramp(800), 8000))
    assert (found.format, found.duration, found.video) == ("wav", 0.1, None)
    assert (found.audio.sample_rate, found.audio.num_channels) == (8000, 1)
    with pytest.raises(FileNotFoundError):
        probe(tmp_path / "absent.mp4")
    with pytest.raises(DataError):
        probe(b"no media")


def test_v08_frames_have_their_colours_and_range():
    frames = decode_packets(demux_video(media.VIDEO / "h264_bt709_full.mp4"), None)
    assert (frames.color_matrix, frames.is_full_range) == (1, True)
    assert (frames[0].color_matrix, frames[0].is_full_range) == (1, True)
    frames = decode_packets(demux_video(H264), None)
    assert (frames.color_primaries, frames.color_transfer, frames.color_matrix) == (2, 2, 2)
    assert frames.is_full_range is None
    assert decode_packets(demux_video(H264)).color_matrix == 0
