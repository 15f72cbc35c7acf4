"""From packets to frames and arrays: decoders, filters, conversion, whole files."""

import logging
import struct
import subprocess
import sys
import threading
from fractions import Fraction

import media_files as media
import numpy
import pytest
from conftest import picture, write_png
from spdl_rs import DataError, InvalidArgumentError, Loader, UnsupportedError, fields
from spdl_rs.io import (
    AudioFrames,
    Decoder,
    Demuxer,
    FilterGraph,
    ImageFrames,
    Stretch,
    VideoFrames,
    VideoPackets,
    convert_array,
    convert_frames,
    create_reference_audio_frame,
    create_reference_video_frame,
    decode_config,
    decode_packets,
    demux_audio,
    demux_image,
    demux_video,
    get_abuffer_desc,
    get_audio_filter_desc,
    get_buffer_desc,
    get_filter_desc,
    get_video_filter_desc,
    load_audio,
    load_image,
    load_image_batch,
    load_video,
    load_wav,
    sample_decode_video,
)
from spdl_rs.io.utils import (
    get_ffmpeg_filters,
    get_ffmpeg_log_level,
    get_ffmpeg_versions,
    set_ffmpeg_log_level,
)

pytestmark = pytest.mark.skipif(
    not get_ffmpeg_versions(), reason="spdl_rs was built without FFmpeg"
)

H264 = media.H264
GOLDEN = media.golden("h264.mp4", "hash")
# 8-bit planes that have a shape.
VIDEOS = [
    "av1.mp4",
    "grey.mkv",
    "h264.ts",
    "h264_422.mp4",
    "h264_edited.mov",
    "hevc_open_gop.mp4",
    "mpeg2.mp4",
    "mpeg4.avi",
    "vp8.webm",
    "vp8_hidden.webm",
    "vp9.webm",
]


def planes(path=H264, **settings):
    return decode_packets(demux_video(path, **settings), None)


def made(pixels, pix_fmt="rgb24", pts=0, rate=(25, 1)):
    return create_reference_video_frame(pixels, pix_fmt, rate, pts)


def source(width, height, pix_fmt="rgb24", label=""):
    return f"buffer{label}=video_size={width}x{height}:pix_fmt={pix_fmt}:time_base=1/25:pixel_aspect=1/1"


@pytest.fixture
def images(tmp_path):
    """Five images of 60 rows and 80 columns: their paths and pixels."""
    pixels = [picture(number) for number in range(5)]
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    for path, each in zip(paths, pixels):
        write_png(str(path), each)
    return paths, numpy.stack(pixels)


@pytest.mark.parametrize("name", VIDEOS)
def test_v01_frames_are_those_of_ffmpeg(name):
    assert media.hashes(planes(media.VIDEO / name)) == media.golden(name, "hash")


@pytest.mark.parametrize("count", [0, 1, 3, 20, 99])
def test_v01_decoding_stops_after_a_number_of_frames(count):
    frames = decode_packets(demux_video(H264), None, num_frames=count)
    assert len(frames) == min(count, 20)
    if count:
        assert media.hashes(frames) == GOLDEN[:count]


def test_v01_the_default_formats_are_rgb24_and_fltp():
    video = decode_packets(demux_video(H264))
    assert isinstance(video, VideoFrames) and video.pix_fmt == "rgb24"
    audio = decode_packets(demux_audio(media.wav_bytes(media.ramp(100), 8000)))
    assert isinstance(audio, AudioFrames) and audio.sample_fmt == "fltp"
    image = decode_packets(demux_image(media.IMAGES / "grey.png"))
    assert isinstance(image, ImageFrames) and image.pix_fmt == "rgb24"


def test_v01_frames_outside_the_window_are_dropped_after_the_filters():
    packets = demux_video(H264, timestamp=(0.3, 0.8))
    frames = decode_packets(packets, "fps=20,format=rgb24")
    assert frames.get_timestamps() == [0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75]


def damaged_png(folder, which):
    """Packets of five images, some of them without a PNG signature, and the pixels."""
    frames = media.noise((5, 12, 10, 3))
    state = demux_video(media.write_video(folder / "a.mkv", frames, "rgb24", "png")).__getstate__()
    starts = [at for at in range(len(state)) if state.startswith(b"\x89PNG\r\n", at)]
    damaged = bytearray(state)
    for number in which:
        damaged[starts[number] : starts[number] + 8] = bytes(8)
    return VideoPackets.deserialize(bytes(damaged)), frames


def test_v01_packets_that_cannot_be_decoded_are_logged(tmp_path, caplog):
    packets, frames = damaged_png(tmp_path, [1, 2])
    with caplog.at_level(logging.WARNING, "spdl_rs.io"):
        found = convert_frames(decode_packets(packets))
    numpy.testing.assert_array_equal(found, frames[[0, 3, 4]])
    (record,) = caplog.records
    assert record.levelname == "WARNING" and record.getMessage().startswith("2 packets of")
    assert "cannot decode a packet" in record.getMessage()


def test_v02_packets_that_cannot_be_decoded_are_logged_once(tmp_path, caplog):
    packets, frames = damaged_png(tmp_path, [1, 2])
    decoder = Decoder(packets.codec)
    found = [*decoder.streaming_decode_packets(packets), *decoder.flush()]
    numpy.testing.assert_array_equal(numpy.concatenate([convert_frames(each) for each in found]), frames[[0, 3, 4]])
    assert len(caplog.records) == 1


def test_v01_a_stream_without_valid_packets_is_a_data_error(tmp_path):
    packets, _ = damaged_png(tmp_path, range(5))
    with pytest.raises(DataError, match="cannot decode a packet") as raised:
        decode_packets(packets)
    assert isinstance(raised.value, RuntimeError)


def test_v01_a_stream_of_an_unknown_format_is_a_data_error(tmp_path):
    path = media.write_video(tmp_path / "a.mkv", media.noise((2, 12, 10, 3)), "rgb24", "png")
    with pytest.raises(DataError) as raised:
        load_video(path.read_bytes().replace(b"\x89PNG\r\n\x1a\n", bytes(8)))
    assert isinstance(raised.value, RuntimeError)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"decoder": "no_such_decoder"}, 'without a decoder "no_such_decoder"'),
        ({"decoder": "flac"}, "cannot decode h264"),
        ({"decoder_options": {"no_such_option": "1"}}, "Unexpected options: no_such_option=1"),
    ],
)
def test_v03_wrong_settings_of_decoders_are_errors(config, message):
    with pytest.raises(RuntimeError, match=message):
        decode_packets(demux_video(H264), None, decode_config(**config))
    with Demuxer(H264) as demuxer, pytest.raises(RuntimeError, match=message):
        Decoder(demuxer.video_codec, decode_config=decode_config(**config))


@pytest.mark.parametrize("options", [{"threads": "3"}, {"threads": "0"}, {"threads": "2", "thread_type": "slice"}])
def test_v03_the_number_of_threads_does_not_change_the_frames(options):
    config = decode_config("h264", options)
    assert media.hashes(decode_packets(demux_video(H264), None, config)) == GOLDEN


def test_v03_options_of_decoders_have_an_effect():
    config = decode_config(decoder_options={"skip_frame": "nokey"})
    frames = decode_packets(demux_video(H264), None, config)
    assert media.hashes(frames) == [GOLDEN[key] for key in (0, 8, 16)]


@pytest.mark.parametrize("name", ["h264.mp4", "hevc_open_gop.mp4", "vp8_hidden.webm"])
@pytest.mark.parametrize("portion", [1, 7, 1000])
def test_v02_a_decoder_of_portions_yields_the_frames_of_the_whole_video(name, portion):
    path, found = media.VIDEO / name, []
    with Demuxer(path) as demuxer:
        decoder = Decoder(demuxer.video_codec, filter_desc=None)
        for packets in demuxer.streaming_demux(num_packets=portion):
            found += decoder.streaming_decode_packets(packets)
        found += decoder.flush()
    assert [each for frames in found for each in media.hashes(frames)] == media.golden(name, "hash")


@pytest.mark.parametrize("size", [1, 3, 7, 20, 50])
def test_v02_portions_of_frames_have_the_buffer_size(size):
    with Demuxer(H264) as demuxer:
        decoder = Decoder(demuxer.video_codec, filter_desc=None)
        decoder.set_buffer_size(size)
        found = []
        for packets in demuxer.streaming_demux(num_packets=6):
            found += decoder.streaming_decode_packets(packets)
        found += decoder.flush()
    counts = [len(frames) for frames in found]
    assert sum(counts) == 20 and counts[:-1] == [size] * (len(counts) - 1) and counts[-1] <= size
    assert [each for frames in found for each in media.hashes(frames)] == GOLDEN


def test_v02_no_frames_are_lost_if_the_buffer_size_changes():
    with Demuxer(H264) as demuxer:
        decoder, packets = Decoder(demuxer.video_codec, filter_desc=None), demuxer.demux_video()
    decoder.set_buffer_size(7)
    found = list(decoder.streaming_decode_packets(packets))
    decoder.set_buffer_size(0)
    found += decoder.flush()
    assert [each for frames in found for each in media.hashes(frames)] == GOLDEN


def test_v02_a_filter_keeps_its_state_from_portion_to_portion():
    expected = numpy.asarray(load_video(H264, filter_desc="framestep=3,format=rgb24"))
    with Demuxer(H264) as demuxer:
        decoder = Decoder(demuxer.video_codec, filter_desc="framestep=3,format=rgb24")
        found = []
        for packets in demuxer.streaming_demux(num_packets=4):
            found += decoder.streaming_decode_packets(packets)
        found += decoder.flush()
    assert len(expected) == 7
    numpy.testing.assert_array_equal(numpy.concatenate([convert_frames(each) for each in found]), expected)


def test_v02_audio_is_decoded_by_portions():
    path = media.AUDIO / "stereo.ogg"
    with Demuxer(path) as demuxer:
        decoder, found = Decoder(demuxer.audio_codec), []
        for packets in demuxer.streaming_demux(duration=0.01):
            found += decoder.streaming_decode_packets(packets)
        found += decoder.flush()
    numpy.testing.assert_array_equal(
        numpy.concatenate([convert_frames(each) for each in found], axis=1), load_audio(path)
    )


def test_v02_packets_are_consumed_before_the_first_frame_is_requested():
    with Demuxer(H264) as demuxer:
        decoder, packets = Decoder(demuxer.video_codec), demuxer.demux_video()
    frames = decoder.streaming_decode_packets(packets)
    with pytest.raises(TypeError, match="consumed by streaming_decode_packets"):
        decoder.streaming_decode_packets(packets)
    assert sum(map(len, frames)) + sum(map(len, decoder.flush())) == 20


def test_v02_wrong_codecs_and_packets_are_errors():
    with Demuxer(H264) as demuxer:
        with pytest.raises(TypeError, match="codec must be a codec of audio or video, not ImageCodec"):
            Decoder(demuxer.image_codec)
        decoder = Decoder(demuxer.video_codec)
    audio = demux_audio(media.wav_bytes(media.ramp(100), 8000))
    with pytest.raises(RuntimeError, match="cannot decode audio packets with a decoder of video"):
        list(decoder.streaming_decode_packets(audio))


@pytest.mark.parametrize("size", [-1, 2**70])
def test_v02_wrong_buffer_sizes_are_value_errors(size):
    with Demuxer(H264) as demuxer, pytest.raises(ValueError, match="buffer_size"):
        Decoder(demuxer.video_codec).set_buffer_size(size)


def test_v01_threads_decode_concurrently():
    names = [name for name in VIDEOS if name != "vp8_hidden.webm"]
    found = {}

    def work(number):
        for name in names[number % 3 :] + names[: number % 3]:
            found[number, name] = media.hashes(planes(media.VIDEO / name))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 * len(names)
    assert all(hashes == media.golden(name, "hash") for (_, name), hashes in found.items())


def test_v02_threads_share_a_decoder_and_a_graph_without_crashing():
    with Demuxer(H264) as demuxer:
        decoder, packets = Decoder(demuxer.video_codec, filter_desc=None), demuxer.demux_video()
    graph = FilterGraph(f"{source(8, 8)},hflip,buffersink")
    counts = []

    def work():
        for frames in decoder.streaming_decode_packets(packets.clone()):
            counts.append(len(frames))
        for number in range(20):
            graph.add_frames(made(media.noise((1, 8, 8, 3)), pts=number))
            graph.get_frames()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counts) == 4


@pytest.mark.parametrize(
    "indices", [[0], [19], [7], [3, 4, 5], [0, 8, 16], [7, 8, 9], [1, 6, 11, 19], list(range(20))]
)
def test_i07_sampled_frames_are_those_of_the_whole_video(indices):
    packets = demux_video(H264)
    frames = sample_decode_video(packets, indices, filter_desc=None)
    assert [type(frame) for frame in frames] == [ImageFrames] * len(indices)
    assert [frame.pts for frame in frames] == [index / 10 for index in indices]
    found = numpy.asarray(convert_frames(frames))
    whole = numpy.asarray(convert_frames(planes()))
    numpy.testing.assert_array_equal(found, whole[indices])
    # The packets can be used again.
    assert len(packets) == 20


def test_i07_frames_without_presentation_times_are_unsupported():
    packets = demux_video(media.VIDEO / "mpeg4.avi")
    with pytest.raises(UnsupportedError, match="no times of presentation"):
        sample_decode_video(packets, [3])


@pytest.mark.parametrize("name", [name for name in VIDEOS if name != "mpeg4.avi"])
def test_i07_each_frame_of_each_codec_can_be_sampled(name):
    packets, expected = demux_video(media.VIDEO / name), media.golden(name, "hash")
    # At most 20 frames, for speed.
    places = range(0, len(expected), 1 + len(expected) // 20)
    found = [sample_decode_video(packets, [place], filter_desc=None)[0] for place in places]
    one = [media.hashlib.sha256(numpy.asarray(convert_frames(frame)).tobytes()).hexdigest() for frame in found]
    assert one == [expected[place] for place in places]


def test_i07_frames_are_counted_from_the_start_of_the_window():
    packets = demux_video(H264, timestamp=(0.5, 1.7))
    found = convert_frames(sample_decode_video(packets, [0, 4, 11]))
    numpy.testing.assert_array_equal(found, numpy.asarray(load_video(H264))[[5, 9, 16]])


@pytest.mark.parametrize("indices", [[], [3, 2], [1, 1], [0, 5, 5]])
def test_i07_empty_and_unsorted_indices_are_value_errors(indices):
    with pytest.raises(ValueError, match="indices must"):
        sample_decode_video(demux_video(H264), indices)


@pytest.mark.parametrize("indices", [[20], [-1], [0, 99]])
def test_i07_indices_after_the_last_frame_are_index_errors(indices):
    with pytest.raises(IndexError, match="indices must be from 0 to 19, the last of 20 frames"):
        sample_decode_video(demux_video(H264), indices)


def test_v08_frames_have_the_properties_of_the_video():
    frames = planes()
    assert (len(frames), frames.num_frames, frames.width, frames.height) == (20, 20, 64, 48)
    assert (frames.pix_fmt, frames.num_planes) == ("yuv420p", 3)
    assert frames.get_pts() == [int(pts) for pts in media.golden("h264.mp4", "frame")]
    assert Fraction(*frames.time_base) == Fraction(1, 10_240)
    assert frames.get_timestamps() == [number / 10 for number in range(20)]
    assert repr(frames) == "VideoFrames(20 x 48 x 64, 'yuv420p')"
    audio = decode_packets(demux_audio(media.wav_bytes(media.ramp(500, 2), 8000)), None)
    assert (len(audio), audio.num_frames, audio.num_channels, audio.sample_rate) == (500, 500, 2, 8000)
    assert repr(audio) == "AudioFrames(500 samples, 2 channels, 's16')"


@pytest.mark.parametrize("key", [slice(None, None, 3), slice(5, 9), slice(-3, None), [0, 5, -1], [7, 7, 2], range(3), numpy.array([1, 4])])
def test_v08_slices_and_lists_of_frames_are_videos(key):
    frames, whole = planes(), numpy.asarray(convert_frames(planes()))
    part = frames[key]
    assert isinstance(part, VideoFrames)
    numpy.testing.assert_array_equal(convert_frames(part), whole[key])
    assert len(frames) == 20


def test_v08_one_frame_is_an_image():
    frames, whole = planes(), numpy.asarray(convert_frames(planes()))
    for key in (0, 13, -1, numpy.int64(4)):
        frame = frames[key]
        assert isinstance(frame, ImageFrames) and frame.pts == range(20)[key] / 10
        numpy.testing.assert_array_equal(convert_frames(frame), whole[key])
    assert [frame.pts for frame in frames] == frames.get_timestamps()


@pytest.mark.parametrize("key", [20, -21, [0, 20]])
def test_v08_a_frame_after_the_last_is_an_index_error(key):
    with pytest.raises(IndexError, match="in 20 frames"):
        planes()[key]


@pytest.mark.parametrize("key", ["0", 1.5, None, [0.5]])
def test_v08_other_keys_are_type_errors(key):
    with pytest.raises(TypeError):
        planes()[key]


def test_v08_frames_can_be_used_once():
    frames = planes()
    kept = frames.clone()
    convert_frames(frames)
    message = r"these VideoFrames were consumed by convert_frames; call clone\(\) before convert_frames"
    for again in [convert_frames, len, VideoFrames.clone, lambda frames: frames[0], lambda frames: frames.width]:
        with pytest.raises(TypeError, match=message):
            again(frames)
    assert repr(frames) == "VideoFrames(consumed by convert_frames)"
    assert media.hashes(kept) == GOLDEN


@pytest.mark.parametrize("number", range(1, 9))
def test_v08_metadata_of_images_are_those_of_the_file(number):
    frames = decode_packets(demux_image(media.IMAGES / f"orientation-{number}.jpg"), None)
    assert frames.metadata["Orientation"] == str(number)
    assert decode_packets(demux_image(media.IMAGES / "rgb.png"), None).metadata == {}


def test_v08_metadata_have_the_same_form_with_all_versions_of_ffmpeg():
    def group(start, *entries):
        """A group of EXIF at an offset: numbers of tags, types, counts and content."""
        table, content = struct.pack(">H", len(entries)), b""
        free = start + 6 + 12 * len(entries)
        for tag, kind, count, value in entries:
            stored = value.ljust(4, b"\0") if len(value) <= 4 else struct.pack(">I", free + len(content))
            content += value if len(value) > 4 else b""
            table += struct.pack(">HHI", tag, kind, count) + stored
        return table + bytes(4) + content

    fraction = struct.pack(">2I", 1, 125)
    place = struct.pack(">6I", 51, 1, 30, 1, 15, 2)
    nested = group(200, (0x829A, 5, 1, fraction), (0x9000, 7, 4, b"0230"), (0x8827, 3, 1, b"\1\x90"))
    position = group(300, (0, 1, 4, b"\2\3\0\0"), (1, 2, 2, b"N\0"), (2, 5, 3, place))
    first = group(
        8,
        (0x010F, 2, 9, b"Maker, 5\0"),
        (0x0112, 3, 1, b"\0\6"),
        (0x0132, 2, 20, b"2026:01:02 10:00:00\0"),
        (0x8769, 4, 1, struct.pack(">I", 200)),
        (0x8825, 4, 1, struct.pack(">I", 300)),
    )
    block = b"MM\0*\0\0\0\x08" + first
    block = (block.ljust(200, b"\0") + nested).ljust(300, b"\0") + position
    block = b"Exif\0\0" + block
    jpeg = (media.IMAGES / "420.jpg").read_bytes()
    jpeg = jpeg[:2] + b"\xff\xe1" + struct.pack(">H", 2 + len(block)) + block + jpeg[2:]
    frames = decode_packets(demux_image(jpeg), None)
    assert frames.metadata == {
        "Make": "Maker, 5",
        "Orientation": "6",
        "DateTime": "2026:01:02 10:00:00",
        "ExposureTime": "1:125",
        "ExifVersion": "48, 50, 51, 48",
        "ISOSpeedRatings": "400",
        "GPSVersionID": "2, 3, 0, 0",
        "GPSLatitudeRef": "N",
        "GPSLatitude": "51:1, 30:1, 15:2",
    }


def test_v08_clones_are_not_changed_by_filters():
    pixels = media.noise((2, 8, 10, 3))
    frames = made(pixels)
    graph = FilterGraph(f"{source(10, 8)},negate,buffersink")
    graph.add_frames(frames.clone())
    graph.flush()
    numpy.testing.assert_array_equal(convert_frames(graph.get_frames()), 255 - pixels)
    numpy.testing.assert_array_equal(convert_frames(frames), pixels)


@pytest.mark.parametrize(
    ("pix_fmt", "shape", "dtype"),
    [
        ("rgb24", (3, 48, 64, 3), "uint8"),
        ("bgr24", (3, 48, 64, 3), "uint8"),
        ("rgba", (3, 48, 64, 4), "uint8"),
        ("bgra", (3, 48, 64, 4), "uint8"),
        ("argb", (3, 48, 64, 4), "uint8"),
        ("gray", (3, 48, 64, 1), "uint8"),
        ("gray16le", (3, 1, 48, 64), "uint16"),
        ("yuv444p", (3, 3, 48, 64), "uint8"),
        ("yuvj444p", (3, 3, 48, 64), "uint8"),
        ("gbrp", (3, 3, 48, 64), "uint8"),
        ("yuv420p", (3, 1, 72, 64), "uint8"),
        ("nv12", (3, 1, 72, 64), "uint8"),
        ("yuv422p", (3, 1, 96, 64), "uint8"),
    ],
)
def test_v09_arrays_have_the_shape_of_their_format(pix_fmt, shape, dtype):
    frames = decode_packets(demux_video(H264), get_video_filter_desc(pix_fmt=pix_fmt), num_frames=3)
    image, several = frames[1], [frames[:2], frames[1:]]
    found = numpy.asarray(convert_frames(frames))
    assert (found.shape, found.dtype) == (shape, dtype)
    numpy.testing.assert_array_equal(convert_frames(image), found[1])
    numpy.testing.assert_array_equal(convert_frames(several), [found[:2], found[1:]])


def test_v09_the_planes_of_a_format_are_in_order():
    whole = numpy.asarray(convert_frames(planes()))[:, 0]
    luma, chroma = whole[:, :48], whole[:, 48:].reshape(20, 2, 24, 32)
    nv12 = numpy.asarray(load_video(H264, filter_desc="format=nv12"))[:, 0]
    numpy.testing.assert_array_equal(nv12[:, :48], luma)
    numpy.testing.assert_array_equal(nv12[:, 48:].reshape(20, 24, 32, 2), chroma.transpose(0, 2, 3, 1))
    rgb = numpy.asarray(load_video(H264))
    numpy.testing.assert_array_equal(load_video(H264, filter_desc="format=bgr24"), rgb[..., ::-1])
    gbr = numpy.asarray(load_video(H264, filter_desc="format=rgb24,format=gbrp"))
    numpy.testing.assert_array_equal(gbr, rgb.transpose(0, 3, 1, 2)[:, [1, 2, 0]])


def test_v09_16_bits_keep_their_value():
    values = media.noise((2, 6, 5), "uint16")
    found = numpy.asarray(convert_frames(made(values, "gray16le")))
    numpy.testing.assert_array_equal(found[:, 0], values)


@pytest.mark.parametrize("pix_fmt", ["yuv420p10le", "pal8", "rgb48le", "yuv410p"])
def test_v09_a_format_without_a_shape_is_an_error(pix_fmt):
    frames = decode_packets(demux_video(H264), f"format={pix_fmt}")
    with pytest.raises(UnsupportedError, match=f"Unsupported pixel format: {pix_fmt}") as raised:
        convert_frames(frames)
    assert isinstance(raised.value, RuntimeError)
    # Frames that were not converted can be used.
    assert len(frames) == 20


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "nv12", "yuv422p"])
def test_v09_odd_sizes_of_subsampled_formats_are_errors(pix_fmt):
    frames = decode_packets(demux_video(H264), f"scale=31:21,format={pix_fmt}")
    with pytest.raises(UnsupportedError, match="31 × 21 pixels: a side is odd"):
        convert_frames(frames)


SAMPLE_TYPES = {"u8": "uint8", "s16": "int16", "s32": "int32", "s64": "int64", "flt": "float32", "dbl": "float64"}


@pytest.mark.parametrize("sample_fmt", [name + planar for name in SAMPLE_TYPES for planar in ("", "p")])
def test_v09_samples_of_all_formats_keep_their_value(sample_fmt):
    dtype = numpy.dtype(SAMPLE_TYPES[sample_fmt.removesuffix("p")])
    values = numpy.random.default_rng(5).integers(0, 255, 200 * dtype.itemsize).astype("uint8").view(dtype)
    if dtype.kind == "f":
        values = numpy.random.default_rng(5).standard_normal(200).astype(dtype)
    samples = values.reshape((2, 100) if sample_fmt.endswith("p") else (100, 2))
    frames = create_reference_audio_frame(samples, sample_fmt, 8000, 0)
    assert (len(frames), frames.num_channels, frames.sample_fmt) == (100, 2, sample_fmt)
    found = numpy.asarray(convert_frames(frames))
    assert found.dtype == dtype
    numpy.testing.assert_array_equal(found, samples)


def test_v09_pieces_of_audio_are_joined():
    samples = media.ramp(20_000, channels=2)
    for filter_desc, expected in [("anull", samples), ("aformat=s16p", samples.T)]:
        frames = decode_packets(demux_audio(media.wav_bytes(samples, 8000)), filter_desc)
        numpy.testing.assert_array_equal(convert_frames(frames), expected)


def test_v09_a_list_of_frames_has_one_more_dimension(images):
    paths, pixels = images
    frames = [decode_packets(demux_image(path)) for path in paths]
    numpy.testing.assert_array_equal(convert_frames(frames), pixels)
    assert all(repr(each) == "ImageFrames(consumed by convert_frames)" for each in frames)
    assert numpy.asarray(convert_frames([planes()])).shape == (1, 20, 1, 72, 64)


@pytest.mark.parametrize(
    "make",
    [
        lambda: [planes(), decode_packets(demux_video(H264))],
        lambda: [planes(), planes()[:3]],
        lambda: [planes(), planes()[0]],
        lambda: [planes(), create_reference_audio_frame(numpy.zeros((1, 9), "float32"), "fltp", 8000, 0)],
        lambda: [made(numpy.zeros((1, 4, 6, 3), "uint8")), made(numpy.zeros((1, 6, 4, 3), "uint8"))],
        lambda: [made(numpy.zeros((1, 4, 6, 3), "uint8")), made(numpy.zeros((1, 4, 6, 3), "uint8"), "bgr24")],
    ],
)
def test_v09_frames_that_differ_cannot_be_one_array(make):
    frames = make()
    with pytest.raises(InvalidArgumentError, match="differ in shape or format") as raised:
        convert_frames(frames)
    assert isinstance(raised.value, RuntimeError)
    # The frames can be used.
    convert_frames(frames[0])


def test_v09_no_frames_are_an_error():
    with pytest.raises(RuntimeError, match="no frames to convert"):
        convert_frames([])


@pytest.mark.parametrize("value", [None, 3, [1, 2], "frames"])
def test_v09_values_that_are_no_frames_are_type_errors(value):
    with pytest.raises(TypeError):
        convert_frames(value)


@pytest.mark.parametrize("make", [bytearray, lambda size: numpy.zeros(size, "uint8"), lambda size: memoryview(bytearray(size))])
def test_v09_frames_are_written_to_storage(make):
    storage = make(20 * 72 * 64 + 5)
    found = convert_frames(planes(), storage)
    assert found.shape == (20, 1, 72, 64) and numpy.shares_memory(found, numpy.asarray(memoryview(storage)))
    numpy.testing.assert_array_equal(found, convert_frames(planes()))
    assert bytes(memoryview(storage)[-5:]) == bytes(5)


def test_v09_audio_is_written_to_storage():
    samples = media.ramp(100, channels=2)
    storage = numpy.zeros(1000, "uint8")
    found = convert_frames(decode_packets(demux_audio(media.wav_bytes(samples, 8000))), storage)
    assert found.dtype == "float32" and numpy.shares_memory(found, storage)
    numpy.testing.assert_array_equal(found * 32_768, samples.T)


def test_v09_storage_that_is_too_small_is_a_value_error():
    frames = planes()
    with pytest.raises(ValueError, match="storage has 100 bytes, and the array needs 92160"):
        convert_frames(frames, bytearray(100))
    # The frames can be used.
    assert media.hashes(frames) == GOLDEN


@pytest.mark.parametrize("storage", [bytes(100_000), numpy.zeros((400, 400), "uint8")[:, :300]], ids=["constant", "gaps"])
def test_v09_storage_that_cannot_be_filled_is_an_error(storage):
    with pytest.raises((ValueError, TypeError, BufferError)):
        convert_frames(planes(), storage)


@pytest.mark.parametrize(
    "vals", [[3, 5, -1], range(4), numpy.arange(6, dtype="uint64").reshape(2, 3), numpy.array([1.5], "float32")]
)
def test_v10_arrays_are_copied(vals):
    found = numpy.asarray(convert_array(vals))
    numpy.testing.assert_array_equal(found, vals)
    assert found.dtype == numpy.asarray(vals).dtype and not numpy.shares_memory(found, numpy.asarray(vals))


def test_v10_arrays_are_written_to_storage():
    storage = bytearray(64)
    found = convert_array(numpy.array([7, 8], "int64"), storage)
    assert numpy.frombuffer(storage, "int64")[:3].tolist() == [7, 8, 0] and found.tolist() == [7, 8]
    with pytest.raises(ValueError, match="storage has 8 bytes, and the array needs 16"):
        convert_array(numpy.array([7, 8], "int64"), bytearray(8))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "format=pix_fmts=rgb24"),
        ({"pix_fmt": None}, None),
        ({"pix_fmt": None, "filter_desc": "hflip"}, "hflip"),
        ({"frame_rate": (30, 1)}, "fps=30/1,format=pix_fmts=rgb24"),
        ({"frame_rate": (30, 1), "filter_desc": "hflip"}, "fps=30/1,hflip,format=pix_fmts=rgb24"),
        ({"crop_width": 5, "crop_height": 4, "pix_fmt": "gray"}, "crop=w=5:h=4,format=pix_fmts=gray"),
        (
            {"scale_width": 8, "scale_height": 6},
            "scale=w=8:h=6:flags=bicubic:force_original_aspect_ratio=decrease,pad=w=8:h=6:x=-1:y=-1:color=black,"
            "format=pix_fmts=rgb24",
        ),
        (
            {"scale_width": 8, "scale_height": 6, "scale_mode": "crop", "scale_algo": "area"},
            "scale=w=8:h=6:flags=area:force_original_aspect_ratio=increase,crop=w=8:h=6,format=pix_fmts=rgb24",
        ),
        ({"scale_width": 8, "scale_height": 6, "scale_mode": None}, "scale=w=8:h=6:flags=bicubic,format=pix_fmts=rgb24"),
        ({"num_frames": 9}, "tpad=stop=-1:stop_mode=clone,trim=end_frame=9,format=pix_fmts=rgb24"),
        (
            {"num_frames": 9, "pad_mode": "red"},
            "tpad=stop=-1:stop_mode=add:color=red,trim=end_frame=9,format=pix_fmts=rgb24",
        ),
    ],
)
def test_v04_descriptions_of_video_filters_are_those_of_spdl(settings, expected):
    assert get_video_filter_desc(**settings) == expected


def test_v04_another_scale_mode_is_a_value_error():
    with pytest.raises(ValueError, match="scale_mode must be"):
        get_video_filter_desc(scale_width=3, scale_height=3, scale_mode="stretch")


def test_v04_filters_of_video_do_what_their_arguments_describe():
    def load(**settings):
        return numpy.asarray(load_video(H264, filter_desc=get_video_filter_desc(**settings)))

    whole = load()
    numpy.testing.assert_array_equal(load(frame_rate=(5, 1)).shape, (10, 48, 64, 3))
    numpy.testing.assert_array_equal(load(timestamp=(0.3, 0.6)), whole[3:6])
    numpy.testing.assert_array_equal(load(timestamp=(1.5, float("inf"))), whole[15:])
    numpy.testing.assert_array_equal(load(num_frames=5), whole[:5])
    longer = load(num_frames=23)
    numpy.testing.assert_array_equal(longer, whole[[*range(20), 19, 19, 19]])
    assert (load(num_frames=22, pad_mode="white")[20:] > 250).all()
    crop = load(crop_width=32, crop_height=16)
    assert crop.shape == (20, 16, 32, 3)
    assert load(scale_width=32).shape == (20, 24, 32, 3)
    assert load(scale_width=32, scale_height=32, scale_mode=None).shape == (20, 32, 32, 3)
    bars = load(scale_width=64, scale_height=64)
    assert bars.shape == (20, 64, 64, 3) and not bars[:, :8].any() and not bars[:, 56:].any()
    numpy.testing.assert_array_equal(bars[:, 8:56], whole)
    filled = load(scale_width=48, scale_height=48, scale_mode="crop")
    numpy.testing.assert_array_equal(filled, whole[:, :, 8:56])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "aformat=sample_fmts=fltp"),
        ({"sample_fmt": None}, None),
        (
            {"num_channels": 1, "sample_rate": 8000, "timestamp": (0.5, 2), "num_frames": 7, "filter_desc": "volume=2"},
            "aformat=channel_layouts=1c,aresample=8000,atrim=start=0.5:end=2,apad,atrim=end_sample=7,volume=2,"
            "aformat=sample_fmts=fltp",
        ),
    ],
)
def test_v05_descriptions_of_audio_filters_are_those_of_spdl(settings, expected):
    assert get_audio_filter_desc(**settings) == expected


def test_v05_filters_of_audio_do_what_their_arguments_describe():
    samples = media.ramp(8000, channels=2)
    data = media.wav_bytes(samples, 16_000)

    def load(**settings):
        return numpy.asarray(load_audio(data, filter_desc=get_audio_filter_desc(**settings)))

    numpy.testing.assert_array_equal(load() * 32_768, samples.T)
    numpy.testing.assert_array_equal(load(sample_fmt="s16"), samples)
    numpy.testing.assert_array_equal(load(sample_fmt="s16", timestamp=(0.125, 0.25)), samples[2000:4000])
    numpy.testing.assert_array_equal(load(sample_fmt="s16", num_frames=100), samples[:100])
    longer = load(sample_fmt="s16", num_frames=8200)
    numpy.testing.assert_array_equal(longer, numpy.concatenate([samples, numpy.zeros((200, 2))]))
    assert load(sample_rate=8000).shape == (2, 4000)
    mono = load(num_channels=1)
    assert mono.shape == (1, 8000)
    # FFmpeg mixes both channels with the same weight.
    assert (mono[0] / samples.mean(axis=1)).std() < 1e-7
    numpy.testing.assert_allclose(load(filter_desc="volume=0.5"), samples.T / 65_536, atol=1e-4)


def test_v05_a_pair_of_very_small_times_is_a_window():
    description = get_audio_filter_desc(timestamp=(0.00002, 0.00004))
    found = load_audio(media.wav_bytes(media.ramp(100), 100_000), filter_desc=description)
    numpy.testing.assert_array_equal(numpy.asarray(found)[0] * 32_768, media.ramp(100)[2:4, 0])


def test_v06_descriptions_of_packets_have_their_window():
    audio = demux_audio(media.wav_bytes(media.ramp(8000), 8000), timestamp=(0.25, 0.5))
    assert get_filter_desc(audio, sample_rate=4000) == "aresample=4000,atrim=start=0.25:end=0.5,aformat=sample_fmts=fltp"
    frames = decode_packets(audio.clone(), get_filter_desc(audio, sample_fmt="s16"))
    numpy.testing.assert_array_equal(convert_frames(frames), media.ramp(8000)[2000:4000])
    assert get_filter_desc(demux_video(H264, timestamp=(0.2, 0.5))) == "format=pix_fmts=rgb24"
    assert get_filter_desc(demux_image(media.IMAGES / "rgb.png"), pix_fmt="gray") == "format=pix_fmts=gray"
    with pytest.raises(TypeError, match="packets must be packets, not str"):
        get_filter_desc("packets")


def test_v06_descriptions_of_inputs_have_the_codec():
    with Demuxer(H264) as demuxer:
        codec = demuxer.video_codec
    common = "video_size=64x48:pix_fmt=yuv420p:time_base=1/10240:pixel_aspect=1/1"
    assert get_buffer_desc(codec) == f"buffer={common}"
    assert get_buffer_desc(codec, label="in").startswith("buffer@in=")
    assert "pix_fmt=nv12" in get_buffer_desc(codec, pix_fmt="nv12")
    audio = demux_audio(media.wav_bytes(media.ramp(50, channels=2), 8000)).codec
    expected = "=time_base=1/8000:sample_rate=8000:sample_fmt=s16:channel_layout=stereo"
    assert get_abuffer_desc(audio) == f"abuffer{expected}"
    assert get_abuffer_desc(audio, label="x", sample_fmt="flt") == f"abuffer@x{expected}".replace("s16", "flt")


def test_v07_frames_pass_a_graph():
    with Demuxer(H264) as demuxer:
        graph = FilterGraph(f"{get_buffer_desc(demuxer.video_codec)},hflip,vflip,buffersink")
    frames = planes()
    graph.add_frames(frames)
    graph.flush()
    found = graph.get_frames()
    assert found.get_timestamps() == [number / 10 for number in range(20)]
    whole = numpy.asarray(convert_frames(planes()))
    numpy.testing.assert_array_equal(numpy.asarray(convert_frames(found))[:, 0, :48], whole[:, 0, 47::-1, ::-1])
    assert graph.get_frames() is None
    with pytest.raises(TypeError, match="consumed by FilterGraph.add_frames"):
        graph.add_frames(frames)
    assert "hflip" in graph.dump() and repr(graph) == graph.dump()


def test_v07_a_graph_has_several_inputs():
    left, right = media.noise((3, 6, 4, 3), seed=1), media.noise((3, 6, 5, 3), seed=2)
    inputs = f"{source(4, 6, label='@left')}[a];{source(5, 6, label='@right')}[b]"
    graph = FilterGraph(f"{inputs};[a][b]hstack,buffersink")
    graph.add_frames(made(left), key="buffer@left")
    assert graph.get_frames() is None
    graph.add_frames(made(right), key="buffer@right")
    graph.flush()
    found = convert_frames(graph.get_frames())
    numpy.testing.assert_array_equal(found, numpy.concatenate([left, right], axis=2))


def test_v07_a_graph_has_several_outputs():
    pixels = media.noise((2, 6, 4, 3))
    graph = FilterGraph(f"{source(4, 6)},split[a][b];[a]hflip,buffersink@x;[b]negate,buffersink@y")
    graph.add_frames(made(pixels))
    graph.flush()
    with pytest.raises(RuntimeError, match="more than one output: name one of buffersink@x, buffersink@y"):
        graph.get_frames()
    with pytest.raises(RuntimeError, match='no output "buffersink@z"'):
        graph.get_frames(key="buffersink@z")
    numpy.testing.assert_array_equal(convert_frames(graph.get_frames(key="buffersink@y")), 255 - pixels)
    numpy.testing.assert_array_equal(convert_frames(graph.get_frames(key="buffersink@x")), pixels[:, :, ::-1])


def test_v07_a_graph_of_audio_mixes_its_inputs():
    inputs = [
        f"abuffer@{name}=time_base=1/8000:sample_rate=8000:sample_fmt=fltp:channel_layout=mono[{name}]" for name in "ab"
    ]
    graph = FilterGraph(f"{';'.join(inputs)};[a][b]amerge=inputs=2,abuffersink")
    tones = media.sweep(500, 8000), -media.sweep(500, 8000)
    for name, tone in zip("ab", tones):
        graph.add_frames(create_reference_audio_frame(tone, "fltp", 8000, 0), key=f"abuffer@{name}")
    graph.flush()
    found = graph.get_frames()
    assert isinstance(found, AudioFrames)
    numpy.testing.assert_array_equal(convert_frames(found), numpy.concatenate(tones).T)


def test_v07_an_input_must_be_named_if_there_are_several():
    graph = FilterGraph(f"{source(4, 4, label='@a')}[a];{source(4, 4, label='@b')}[b];[a][b]vstack,buffersink")
    pixels = numpy.zeros((1, 4, 4, 3), "uint8")
    with pytest.raises(RuntimeError, match="more than one input: name one of buffer@a, buffer@b"):
        graph.add_frames(made(pixels))
    with pytest.raises(RuntimeError, match='no input "buffer@c"; it has: buffer@a, buffer@b'):
        graph.add_frames(made(pixels), key="buffer@c")


@pytest.mark.parametrize(
    "description",
    ["", "nonsense", "hflip", "buffer,hflip,buffersink", f"{source(4, 4)},hflip", f"{source(4, 4)},no_such,buffersink",
     f"{source(4, 4)},crop=w=99:h=99,buffersink", f"{source(4, 4)},scale=w=(,buffersink",
     f"{source(4, 4)},aformat=s16,buffersink", f"{source(4, 4)},hflip,buffersink\0"],
)  # fmt: skip
def test_v07_wrong_descriptions_are_errors(description):
    with pytest.raises(InvalidArgumentError) as raised:
        FilterGraph(description)
    assert isinstance(raised.value, RuntimeError)


@pytest.mark.parametrize("filter_desc", ["no_such_filter", "crop=w=999:h=999", "[a][b]hstack", "aresample=8000", ""])
def test_v01_wrong_filters_are_errors(filter_desc):
    with pytest.raises(RuntimeError, match="filters"):
        decode_packets(demux_video(H264), filter_desc)


# Frames that do not fit the input of a graph. FFmpeg's filters do not check them.
MISFITS = {
    "smaller": 'video((1, 40, 60, 3), "rgb24")',
    "larger": 'video((1, 64, 64, 3), "rgb24")',
    "another format": 'video((1, 48, 64), "gray")',
    "audio": 'create_reference_audio_frame(numpy.zeros((2, 10), "float32"), "fltp", 8000, 0)',
}
PROGRAM = f"""
import numpy
from spdl_rs.io import FilterGraph, convert_frames, create_reference_audio_frame, create_reference_video_frame

def video(shape, pix_fmt):
    return create_reference_video_frame(numpy.full(shape, 7, "uint8"), pix_fmt, (25, 1), 0)

graph = FilterGraph("{source(64, 48)},hflip,vflip,buffersink")
try:
    graph.add_frames(FRAMES)
    graph.flush()
    found = graph.get_frames()
except RuntimeError:
    print("refused")
else:
    print("filtered", None if found is None else numpy.unique(numpy.asarray(convert_frames(found))))
"""


@pytest.mark.parametrize("frames", MISFITS.values(), ids=MISFITS)
def test_v07_frames_that_do_not_fit_a_graph_are_refused(frames):
    # In another process: without a check, filters read memory that is not theirs.
    command = [sys.executable, "-c", PROGRAM.replace("FRAMES", frames)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout.strip()) == (0, "refused")


CHANGING = """
import sys, numpy
from spdl_rs.io import convert_frames, decode_packets, demux_config, demux_video
packets = demux_video(sys.argv[1], demux_config=demux_config("mjpeg"))
try:
    frames = decode_packets(packets, sys.argv[2])
    print([numpy.asarray(convert_frames(frame))[:, :, 0].std().round() for frame in frames])
except RuntimeError:
    print("refused")
"""


def test_v01_a_video_that_changes_its_size_is_not_filtered_out_of_bounds(tmp_path):
    # Grey JPEG images of 96 x 96 and 16 x 16 pixels. The pixels of each are equal.
    data = b""
    for side in (96, 16):
        grey = numpy.full((1, 3, side, side), 128, "uint8")
        data += media.write_video(tmp_path / "a.mjpeg", grey, "yuvj444p", "mjpeg", size=(side, side)).read_bytes()
    (tmp_path / "both.mjpeg").write_bytes(data)
    command = [sys.executable, "-c", CHANGING, str(tmp_path / "both.mjpeg"), "hflip,vflip,format=gbrp,format=rgb24"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    deviations = ran.stdout.replace("np.float64", "").replace("(", "").replace(")", "").strip()
    assert deviations in ("refused", "[0.0, 0.0]", "[0.0]")


def brightness(pixels):
    return numpy.asarray(pixels) @ numpy.array([0.299, 0.587, 0.114])


def test_i02_a_video_is_loaded_as_rgb():
    found = numpy.asarray(load_video(H264))
    assert (found.shape, found.dtype) == ((20, 48, 64, 3), "uint8")
    video = fields.Video((48, 64), frames=20, every=1, crop=Stretch())
    (batch,) = Loader([H264], batch_size=1, video=video)
    # FFmpeg repeats chroma samples, and `Loader` interpolates them: only luma is nearly equal.
    difference = brightness(found) - brightness(batch["video"][0])
    assert abs(difference).mean() < 2


@pytest.mark.parametrize("window", [(0.3, 0.9), ("0.75", Fraction(5, 4)), (1.85, 7)])
def test_i02_a_part_of_a_video_equals_that_part_of_the_whole(window):
    times = numpy.arange(20) / 10
    inside = (times >= float(window[0])) & (times < float(window[1]))
    numpy.testing.assert_array_equal(load_video(H264, window), numpy.asarray(load_video(H264))[inside])


def test_i02_filters_replace_the_conversion():
    assert numpy.asarray(load_video(H264, filter_desc=None)).shape == (20, 1, 72, 64)
    assert numpy.asarray(load_video(H264, filter_desc="scale=8:6,format=gray")).shape == (20, 6, 8, 1)


@pytest.mark.parametrize("load", [load_audio, load_video, load_image, lambda src: load_image_batch([src], width=8, height=8)])
def test_i01_i02_i03_i04_a_missing_file_and_a_corrupt_file_are_errors(load, tmp_path):
    for src, part in [(tmp_path / "absent.png", "No such file"), (b"no media" * 99, "Failed to open")]:
        with pytest.raises(RuntimeError, match=part):
            load(src)
    for load in (load_audio, load_video, load_image):
        with pytest.raises(TypeError, match="no_such_argument"):
            load(H264, no_such_argument=1)


def test_i01_audio_equals_that_of_load_wav():
    samples = media.ramp(3000, channels=2)
    data = media.wav_bytes(samples, 44_100)
    found = numpy.asarray(load_audio(data))
    assert (found.shape, found.dtype) == ((2, 3000), "float32")
    numpy.testing.assert_array_equal(found * 32_768, load_wav(data).T)
    numpy.testing.assert_array_equal(load_audio(data, filter_desc=None), load_wav(data))
    part = load_audio(data, (Fraction(441, 44_100), Fraction(882, 44_100)), name="tone")
    numpy.testing.assert_array_equal(numpy.asarray(part) * 32_768, samples[441:882].T)


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("mono-16.flac", 0),
        ("stereo-24.flac", 0),
        ("stereo-24.wav", 0),
        ("mono-alaw.wav", 0),
        ("mono-mulaw.wav", 0),
        ("mono.mp3", 2e-4),
        ("stereo.mp3", 2e-4),
    ],
)
def test_i01_audio_equals_that_of_the_decoders_of_this_package(name, tolerance):
    (batch,) = Loader([media.AUDIO / name], batch_size=1, audio=fields.Audio())
    numpy.testing.assert_allclose(load_audio(media.AUDIO / name), batch["audio"][0], rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["stereo.mp3", "stereo.ogg", "stereo.aac"])
def test_i01_audio_with_losses_is_near_the_expected_samples(name):
    expected = numpy.frombuffer((media.AUDIO / f"{name}.i16").read_bytes(), "<i2").reshape(2, -1) / 32_768
    found = numpy.asarray(load_audio(media.AUDIO / name))
    # The container may lack the number of samples that an encoder added.
    count = min(found.shape[1], expected.shape[1])
    assert count >= expected.shape[1] - 1024
    numpy.testing.assert_allclose(found[:, :count].clip(-1, 1), expected[:, :count], rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["layer2.mp2", "layer1.mp1", "joint.mp3", "low-rate.mp3"])
def test_i01_layers_of_mpeg_audio_are_loaded(name):
    found = numpy.asarray(load_audio(media.TESTS / "mp3" / name))
    assert found.dtype == "float32" and found.shape[1] > 300 and found.std() > 0.001


@pytest.mark.parametrize(
    "convert",
    [str, lambda path: path, lambda path: path.read_bytes(), lambda path: memoryview(path.read_bytes()),
     lambda path: bytearray(path.read_bytes()), lambda path: numpy.fromfile(path, "uint8")],
)  # fmt: skip
def test_i03_an_image_is_a_path_or_bytes(convert, images):
    paths, pixels = images
    found = numpy.asarray(load_image(convert(paths[2])))
    assert (found.shape, found.dtype) == ((60, 80, 3), "uint8")
    numpy.testing.assert_array_equal(found, pixels[2])


@pytest.mark.parametrize("name", ["rgb.png", "rgb.bmp", "rgb.tiff", "grey.png", "palette.png", "palette.bmp", "interlaced.png", "lossless.webp"])
def test_i03_images_without_losses_equal_those_of_pillow(name):
    pillow = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    expected = numpy.asarray(pillow.open(media.IMAGES / name).convert("RGB"))
    numpy.testing.assert_array_equal(load_image(media.IMAGES / name), expected)


@pytest.mark.parametrize("name", ["444.jpg", "420.jpg", "grey.jpg", "420-progressive.jpg"])
def test_i03_jpeg_images_are_near_those_of_pillow(name):
    pillow = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    expected = numpy.asarray(pillow.open(media.IMAGES / name).convert("RGB"))
    difference = brightness(load_image(media.IMAGES / name)) - brightness(expected)
    assert abs(difference).mean() < 2


def test_i03_the_format_of_an_image_can_be_kept():
    assert numpy.asarray(load_image(media.IMAGES / "grey.png", filter_desc=None)).shape[2] == 1
    desc = get_video_filter_desc(scale_width=10, scale_height=8, scale_mode=None, pix_fmt="gray")
    assert numpy.asarray(load_image(media.IMAGES / "rgb.png", filter_desc=desc)).shape == (8, 10, 1)


def test_i04_images_are_one_array(images):
    paths, pixels = images
    sources = [str(paths[0]), paths[1], paths[2].read_bytes(), numpy.fromfile(paths[3], "uint8"), memoryview(paths[4].read_bytes())]
    found = load_image_batch(sources, width=None, height=None)
    numpy.testing.assert_array_equal(found, pixels)
    bgr = load_image_batch(sources, width=None, height=None, pix_fmt="bgr24")
    numpy.testing.assert_array_equal(bgr, pixels[..., ::-1])
    flipped = load_image_batch(sources, width=9, height=9, filter_desc="hflip")
    numpy.testing.assert_array_equal(flipped, pixels[:, :, ::-1])


def test_i04_images_are_resized_with_bars(images):
    paths, pixels = images
    found = numpy.asarray(load_image_batch(paths, width=80, height=100))
    assert found.shape == (5, 100, 80, 3) and not found[:, :20].any() and not found[:, 80:].any()
    numpy.testing.assert_array_equal(found[:, 20:80], pixels)
    assert numpy.asarray(load_image_batch(paths, width=40, height=30)).shape == (5, 30, 40, 3)


def test_i04_images_are_written_to_storage(images):
    paths, pixels = images
    storage = numpy.zeros(pixels.nbytes + 3, "uint8")
    found = load_image_batch(paths, width=None, height=None, storage=storage)
    assert numpy.shares_memory(found, storage)
    numpy.testing.assert_array_equal(found, pixels)


def test_i04_an_image_that_cannot_be_decoded_is_an_error_or_left_out(images, tmp_path, caplog):
    paths, pixels = images
    sources = [paths[0], b"corrupt", paths[1], tmp_path / "absent.png", paths[2], None]
    with pytest.raises(RuntimeError, match="3 of 6 images were not decoded; the first: .*Failed to open"):
        load_image_batch(sources, width=None, height=None)
    assert [record.getMessage().split(" was")[0] for record in caplog.records] == ["image 1", "image 3", "image 5"]
    found = load_image_batch(sources, width=None, height=None, strict=False)
    numpy.testing.assert_array_equal(found, pixels[:3])


def test_i04_no_images_are_errors():
    with pytest.raises(ValueError, match="srcs must not be empty"):
        load_image_batch([], width=8, height=8)
    with pytest.raises(RuntimeError, match="2 of 2 images were not decoded"):
        load_image_batch([b"a", b"b"], width=8, height=8, strict=False)


def test_i04_images_of_different_sizes_are_an_error(images):
    sources = [images[0][0], media.IMAGES / "rgb.png"]
    with pytest.raises(RuntimeError, match="differ in shape or format"):
        load_image_batch(sources, width=None, height=None)
    assert numpy.asarray(load_image_batch(sources, width=7, height=5)).shape == (2, 5, 7, 3)


@pytest.fixture
def log_level():
    level = get_ffmpeg_log_level()
    yield level
    set_ffmpeg_log_level(level)


def test_v17_the_log_level_decides_what_ffmpeg_writes(log_level, capfd):
    assert log_level == -8
    with pytest.raises(RuntimeError):
        load_video(H264, filter_desc="no_such_filter")
    assert capfd.readouterr().err == ""
    set_ffmpeg_log_level(16)
    assert get_ffmpeg_log_level() == 16
    with pytest.raises(RuntimeError):
        load_video(H264, filter_desc="no_such_filter")
    assert "no_such_filter" in capfd.readouterr().err
    set_ffmpeg_log_level(-8)
    load_video(H264)
    assert capfd.readouterr().err == ""


def test_v17_filters_that_are_listed_exist():
    filters = get_ffmpeg_filters()
    assert filters == sorted(set(filters))
    assert {"scale", "format", "hflip", "aresample", "buffersink"} <= set(filters)
    assert "no_such_filter" not in filters


def test_v17_versions_are_triples_of_numbers():
    versions = get_ffmpeg_versions()
    assert {"libavcodec", "libavfilter", "libavformat", "libavutil"} <= set(versions)
    assert all(len(version) == 3 and version[0] > 0 for version in versions.values())
