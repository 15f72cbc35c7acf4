"""From arrays to files: reference frames, encoders, muxers, images."""

import doctest
import importlib
import os
import wave
from fractions import Fraction

import media_files as media
import numpy
import pytest
import spdl_rs
from spdl_rs import InvalidArgumentError, Loader, UnsupportedError, fields
from spdl_rs.io import (
    AudioPackets,
    Demuxer,
    Muxer,
    VideoPackets,
    apply_bsf,
    audio_encode_config,
    convert_frames,
    create_reference_audio_frame,
    create_reference_video_frame,
    decode_packets,
    demux_audio,
    demux_video,
    load_audio,
    load_image,
    load_video,
    load_wav,
    save_image,
    video_encode_config,
)
from spdl_rs.io.utils import get_ffmpeg_versions

pytestmark = pytest.mark.skipif(
    not get_ffmpeg_versions(), reason="spdl_rs was built without FFmpeg"
)

H264 = media.H264
GOLDEN = media.golden("h264.mp4", "hash")

# Shapes of three frames of 16 rows and 24 columns.
ARRAYS = {
    "rgb24": ((3, 16, 24, 3), "uint8"),
    "bgr24": ((3, 16, 24, 3), "uint8"),
    "gray": ((3, 16, 24), "uint8"),
    "gray16le": ((3, 16, 24), "uint16"),
    "yuv444p": ((3, 3, 16, 24), "uint8"),
}


def video_config(**settings):
    return video_encode_config(**{"height": 16, "width": 24, "pix_fmt": "yuv444p", **settings})


def yuv(count=3, first=0):
    """Frames that the encoder of `video_config` accepts."""
    return create_reference_video_frame(media.noise((count, 3, 16, 24)), "yuv444p", (25, 1), first)


@pytest.mark.parametrize("pix_fmt", ARRAYS)
def test_v12_reference_frames_have_the_pixels_of_the_array(pix_fmt):
    shape, dtype = ARRAYS[pix_fmt]
    pixels = media.noise(shape, dtype)
    frames = create_reference_video_frame(pixels, pix_fmt, (30_000, 1001), 5)
    assert (len(frames), frames.width, frames.height, frames.pix_fmt) == (3, 24, 16, pix_fmt)
    assert frames.get_pts() == [5, 6, 7] and Fraction(*frames.time_base) == Fraction(1001, 30_000)
    found = numpy.asarray(convert_frames(frames))
    numpy.testing.assert_array_equal(found.reshape(shape), pixels)


def test_v12_arrays_need_not_be_contiguous():
    pixels = media.noise((3, 16, 48, 3))[:, ::-1, ::2]
    found = convert_frames(create_reference_video_frame(pixels, "rgb24", (1, 1), 0))
    numpy.testing.assert_array_equal(found, pixels)
    samples = media.ramp(100, channels=2).T[:, ::3]
    frames = create_reference_audio_frame(samples, "s16p", 8000, 0)
    numpy.testing.assert_array_equal(convert_frames(frames), samples)


def test_v12_big_endian_arrays_keep_their_values():
    pixels = media.noise((1, 4, 6), "uint16")
    found = convert_frames(create_reference_video_frame(pixels.astype(">u2"), "gray16le", (1, 1), 0))
    numpy.testing.assert_array_equal(numpy.asarray(found)[:, 0], pixels)


def test_v12_the_bytes_of_big_endian_formats_are_those_of_the_array():
    pixels = media.noise((1, 4, 6), "uint16").astype(">u2")
    frames = create_reference_video_frame(pixels, "gray16be", (1, 1), 0)
    assert numpy.asarray(convert_frames(frames)).tobytes() == pixels.tobytes()


@pytest.mark.parametrize(
    ("shape", "dtype", "pix_fmt"),
    [
        ((16, 24, 3), "uint8", "rgb24"),
        ((3, 16, 24, 4), "uint8", "rgb24"),
        ((3, 16, 24), "uint8", "rgb24"),
        ((3, 16, 24, 3), "float32", "rgb24"),
        ((3, 16, 24, 3), "uint16", "rgb24"),
        ((3, 16, 24, 3), "int8", "rgb24"),
        ((3, 16, 24, 3), "uint8", "yuv444p"),
        ((3, 2, 16, 24), "uint8", "yuv444p"),
        ((3, 16, 24), "uint8", "gray16le"),
        ((0, 16, 24, 3), "uint8", "rgb24"),
        ((3, 0, 24, 3), "uint8", "rgb24"),
        ((), "uint8", "gray"),
        ((3, 16, 24, 3), "uint8", "rgb48le"),
        ((3, 16, 24, 3), "uint8", "no_such_format"),
    ],
)
def test_v12_arrays_that_do_not_fit_the_format_are_errors(shape, dtype, pix_fmt):
    with pytest.raises(RuntimeError):
        create_reference_video_frame(numpy.zeros(shape, dtype), pix_fmt, (25, 1), 0)


@pytest.mark.parametrize("rate", [(0, 1), (25, 0), (-25, 1)])
def test_v12_the_frame_rate_must_be_positive(rate):
    with pytest.raises(RuntimeError, match="frame rate must be positive"):
        create_reference_video_frame(numpy.zeros((1, 4, 4, 3), "uint8"), "rgb24", rate, 0)


@pytest.mark.parametrize(
    ("samples", "sample_fmt", "rate"),
    [
        (numpy.zeros((2, 9), "int16"), "fltp", 8000),
        (numpy.zeros((2, 9), "float64"), "fltp", 8000),
        (numpy.zeros((2, 0), "float32"), "fltp", 8000),
        (numpy.zeros((2, 9), "float32"), "fltp", 0),
        (numpy.zeros((2, 9), "float32"), "no_such_format", 8000),
    ],
)
def test_v12_samples_that_do_not_fit_the_format_are_errors(samples, sample_fmt, rate):
    with pytest.raises(RuntimeError):
        create_reference_audio_frame(samples, sample_fmt, rate, 0)


@pytest.mark.parametrize("shape", [(9,), (1, 2, 9), ()])
def test_v12_audio_has_two_dimensions(shape):
    with pytest.raises(RuntimeError, match="shape"):
        create_reference_audio_frame(numpy.zeros(shape, "float32"), "flt", 8000, 0)


@pytest.mark.parametrize(
    ("extension", "encoder", "pix_fmt"),
    [
        ("mkv", "ffv1", "yuv444p"),
        ("mkv", "ffv1", "gray"),
        ("mkv", "ffv1", "gray16le"),
        ("avi", "ffv1", "yuv444p"),
        ("nut", "rawvideo", "rgb24"),
        ("nut", "rawvideo", "gray"),
        ("avi", "rawvideo", "bgr24"),
        ("mkv", "huffyuv", "rgb24"),
        ("mkv", "png", "rgb24"),
        ("mov", "png", "gray"),
    ],
)
@pytest.mark.parametrize("portion", [1, 2, 3])
def test_v14_v15_video_without_losses_is_read_as_it_was_written(tmp_path, extension, encoder, pix_fmt, portion):
    shape, dtype = ARRAYS[pix_fmt]
    pixels = media.noise(shape, dtype)
    path = media.write_video(
        tmp_path / f"a.{extension}", pixels, pix_fmt, encoder, rate=(30, 1), size=(16, 24), portion=portion
    )
    desc = f"format={pix_fmt}"
    found = numpy.asarray(load_video(path, filter_desc=desc)).reshape(shape)
    numpy.testing.assert_array_equal(found, pixels)
    with Demuxer(path) as demuxer:
        assert (demuxer.video_codec.name, demuxer.video_codec.width) == (encoder, 24)
        assert abs(Fraction(*demuxer.video_codec.frame_rate) - 30) < Fraction(1, 10)
        times = demuxer.demux_video().get_timestamps()
    numpy.testing.assert_allclose(times, numpy.arange(3) / 30, atol=1e-3)


def test_v15_b_frames_change_the_order_of_packets(tmp_path):
    frames = [
        create_reference_video_frame(numpy.full((1, 1, 24, 16), 40 + 9 * number, "uint8"), "yuv420p", (10, 1), number)
        for number in range(12)
    ]
    for count in (0, 2):
        muxer = Muxer(tmp_path / f"{count}.mp4")
        config = video_encode_config(height=16, width=16, frame_rate=(10, 1), pix_fmt="yuv420p", max_b_frames=count, gop_size=12)
        encoder = muxer.add_encode_stream(config, encoder="mpeg4")
        with muxer.open():
            for frame in frames:
                media.write_some(muxer, encoder.encode(frame.clone()))
            media.write_some(muxer, encoder.flush())
        packets = demux_video(tmp_path / f"{count}.mp4")
        raw = packets.get_timestamps(raw=True)
        assert (raw != sorted(raw)) == (count > 0)
        found = numpy.asarray(load_video(tmp_path / f"{count}.mp4", filter_desc=None))
        means = found[:, 0, :16].mean(axis=(1, 2))
        numpy.testing.assert_allclose(means, 40 + 9 * numpy.arange(12), atol=6)


def size_of_mpeg4(path, **settings):
    generator = numpy.random.default_rng(3)
    pixels = numpy.cumsum(generator.integers(-9, 10, (10, 1, 96, 64)), axis=3).astype("uint8")
    muxer = Muxer(path)
    config = video_encode_config(height=64, width=64, pix_fmt="yuv420p", **settings)
    encoder = muxer.add_encode_stream(config, encoder="mpeg4")
    with muxer.open():
        media.write_some(muxer, encoder.encode(create_reference_video_frame(pixels, "yuv420p", (25, 1), 0)))
        media.write_some(muxer, encoder.flush())
    return os.path.getsize(path)


def test_v13_the_quality_changes_the_size_of_video(tmp_path):
    sizes = {scale: size_of_mpeg4(tmp_path / "a.mp4", qscale=scale) for scale in (2, 31)}
    assert sizes[2] > 1.5 * sizes[31]


def test_v13_the_bit_rate_changes_the_size_of_video(tmp_path):
    sizes = {rate: size_of_mpeg4(tmp_path / "a.mp4", bit_rate=rate) for rate in (50_000, 3_000_000)}
    assert sizes[3_000_000] > 1.2 * sizes[50_000]


def test_v13_the_group_size_sets_the_key_frames(tmp_path):
    pixels = numpy.repeat(media.noise((1, 1, 24, 16)), 12, axis=0)
    sizes = []
    for gop_size in (1, 12):
        muxer = Muxer(tmp_path / f"{gop_size}.mp4")
        config = video_encode_config(height=16, width=16, pix_fmt="yuv420p", gop_size=gop_size, qscale=2)
        encoder = muxer.add_encode_stream(config, encoder="mpeg4")
        with muxer.open():
            media.write_some(muxer, encoder.encode(create_reference_video_frame(pixels, "yuv420p", (25, 1), 0)))
            media.write_some(muxer, encoder.flush())
        sizes.append(os.path.getsize(tmp_path / f"{gop_size}.mp4"))
    # Equal frames need few bytes unless they are key frames.
    assert sizes[0] > 2 * sizes[1]


def test_v13_the_compression_level_changes_the_size_of_png(tmp_path):
    pixels = numpy.tile(numpy.arange(64, dtype="uint8"), (64, 3, 1)).transpose(0, 2, 1).copy()
    for level in (0, 9):
        save_image(tmp_path / f"{level}.png", pixels, compression_level=level)
        numpy.testing.assert_array_equal(load_image(tmp_path / f"{level}.png"), pixels)
    assert os.path.getsize(tmp_path / "0.png") > 2 * os.path.getsize(tmp_path / "9.png")


def test_v13_colours_are_names_of_ffmpeg(tmp_path):
    config = video_config(colorspace="bt709", color_primaries="bt709", color_trc="bt709")
    assert Muxer(tmp_path / "a.mkv").add_encode_stream(config, encoder="ffv1") is not None
    for name in ("colorspace", "color_primaries", "color_trc"):
        with pytest.raises(RuntimeError, match='no colours "no_such_colour"'):
            Muxer(tmp_path / "a.mkv").add_encode_stream(video_config(**{name: "no_such_colour"}), encoder="ffv1")


@pytest.mark.parametrize(
    ("extension", "encoder", "sample_fmt", "dtype"),
    [
        ("wav", None, "s16", "int16"),
        ("wav", "pcm_u8", "u8", "uint8"),
        ("wav", "pcm_s32le", "s32", "int32"),
        ("wav", "pcm_f32le", "flt", "float32"),
        ("wav", "pcm_f64le", "dbl", "float64"),
        ("mkv", "pcm_s16be", "s16", "int16"),
        ("nut", "pcm_s16le", "s16", "int16"),
        ("flac", None, "s16", "int16"),
        ("aiff", None, "s16", "int16"),
    ],
)
@pytest.mark.parametrize("channels", [1, 2, 6])
def test_v14_v15_audio_without_losses_is_read_as_it_was_written(tmp_path, extension, encoder, sample_fmt, dtype, channels):
    generator = numpy.random.default_rng(4)
    samples = generator.integers(0, 256, (5500, channels)).astype(dtype)
    if dtype.startswith("float"):
        samples = generator.uniform(-1, 1, (5500, channels)).astype(dtype)
    path = media.write_audio(tmp_path / f"a.{extension}", samples, sample_fmt, 22_050, encoder)
    with Demuxer(path) as demuxer:
        assert (demuxer.audio_codec.sample_rate, demuxer.audio_codec.num_channels) == (22_050, channels)
    numpy.testing.assert_array_equal(load_audio(path, filter_desc=f"aformat={sample_fmt}"), samples)
    if extension == "wav":
        numpy.testing.assert_array_equal(load_wav(path.read_bytes()), samples)


def test_v14_a_wav_file_is_read_by_the_standard_library(tmp_path):
    samples = media.ramp(3000, channels=2)
    path = media.write_audio(tmp_path / "a.wav", samples, "s16", 44_100)
    with wave.open(str(path)) as file:
        assert file.getparams()[:4] == (2, 2, 44_100, 3000)
        assert file.readframes(3000) == samples.tobytes()


@pytest.mark.parametrize("extension", ["flac", "mkv"])
def test_v14_flac_is_read_by_the_decoder_of_this_package(tmp_path, extension):
    samples = media.ramp(9000)
    path = media.write_audio(tmp_path / f"a.{extension}", samples, "s16", 16_000, "flac")
    if extension == "flac":
        (batch,) = Loader([path], batch_size=1, audio=fields.Audio())
        numpy.testing.assert_array_equal(batch["audio"][0] * 32_768, samples.T)
    numpy.testing.assert_array_equal(numpy.asarray(load_audio(path)) * 32_768, samples.T)


def test_v15_audio_with_losses_is_near_what_was_written(tmp_path):
    samples = media.sweep(20_480, 16_000)
    path = media.write_audio(tmp_path / "a.m4a", samples, "fltp", 16_000, "aac", bit_rate=128_000)
    found = numpy.asarray(load_audio(path))[:, :20_480]
    assert abs(found - samples)[:, 2048:18_000].max() < 0.05


def test_v13_the_bit_rate_changes_the_size_of_aac(tmp_path):
    samples = media.sweep(40_960, 16_000)
    sizes = []
    for bit_rate in (16_000, 96_000):
        media.write_audio(tmp_path / "a.m4a", samples, "fltp", 16_000, "aac", bit_rate=bit_rate)
        sizes.append(os.path.getsize(tmp_path / "a.m4a"))
    assert sizes[1] > 1.3 * sizes[0]


def test_v15_encoders_have_a_frame_size(tmp_path):
    config = audio_encode_config(num_channels=1, sample_rate=16_000)
    encoder = Muxer(tmp_path / "a.m4a").add_encode_stream(config, encoder="aac")
    assert encoder.frame_size == 1024
    pcm = audio_encode_config(num_channels=1, sample_rate=16_000, sample_fmt="s16")
    assert Muxer(tmp_path / "a.wav").add_encode_stream(pcm).frame_size == 0


def test_v15_audio_longer_than_the_frame_size_is_an_error(tmp_path):
    config = audio_encode_config(num_channels=1, sample_rate=16_000)
    encoder = Muxer(tmp_path / "a.m4a").add_encode_stream(config, encoder="aac")
    frames = create_reference_audio_frame(media.sweep(2000, 16_000), "fltp", 16_000, 0)
    with pytest.raises(RuntimeError, match="it has 2000 samples, and the encoder expects 1024"):
        encoder.encode(frames)


@pytest.mark.parametrize(
    "make",
    [
        lambda: create_reference_video_frame(media.noise((1, 3, 16, 26)), "yuv444p", (25, 1), 0),
        lambda: create_reference_video_frame(media.noise((1, 16, 24)), "gray", (25, 1), 0),
        lambda: create_reference_audio_frame(media.ramp(16), "s16", 8000, 0),
    ],
)
def test_v15_frames_that_do_not_fit_the_encoder_are_errors(tmp_path, make):
    encoder = Muxer(tmp_path / "a.mkv").add_encode_stream(video_config(), encoder="ffv1")
    with pytest.raises(InvalidArgumentError, match="the encoder expects 24 × 16 pixels in yuv444p") as raised:
        encoder.encode(make())
    assert isinstance(raised.value, RuntimeError)


@pytest.mark.parametrize(
    ("samples", "sample_fmt", "rate"),
    [(media.ramp(9), "s16", 8000), (media.ramp(9, 2), "s16", 44_100), (media.sweep(9, 8000), "fltp", 44_100)],
)
def test_v15_samples_that_do_not_fit_the_encoder_are_errors(tmp_path, samples, sample_fmt, rate):
    config = audio_encode_config(num_channels=1, sample_rate=44_100, sample_fmt="s16")
    encoder = Muxer(tmp_path / "a.wav").add_encode_stream(config)
    with pytest.raises(RuntimeError, match="the encoder expects 1 channels in s16 at 44100 Hz"):
        encoder.encode(create_reference_audio_frame(samples, sample_fmt, rate, 0))


def test_v15_frames_are_consumed_by_an_encoder(tmp_path):
    muxer = Muxer(tmp_path / "a.mkv")
    encoder, frames = muxer.add_encode_stream(video_config(), encoder="ffv1"), yuv()
    packets = encoder.encode(frames)
    assert isinstance(packets, VideoPackets) and packets.codec.name == "ffv1"
    with pytest.raises(TypeError, match=r"consumed by encode; call clone\(\) before encode"):
        encoder.encode(frames)
    assert encoder.flush() is None


def test_v15_frames_after_the_end_of_a_stream_are_an_error(tmp_path):
    muxer = Muxer(tmp_path / "a.mkv")
    encoder = muxer.add_encode_stream(video_config(), encoder="ffv1")
    assert len(encoder.encode(yuv())) == 3
    encoder.flush()
    with pytest.raises(RuntimeError):
        encoder.encode(yuv(first=3))


@pytest.mark.parametrize(
    ("name", "encoder", "config", "message"),
    [
        ("a.mkv", "mpeg4", {"pix_fmt": "rgb24"}, r"does not support the format rgb24; it supports yuv420p"),
        ("a.png", None, {"pix_fmt": "yuv420p"}, r"does not support the format yuv420p; it supports rgb24, rgba, "),
        ("a.mkv", "ffv1", {"pix_fmt": "no_such_format"}, 'no pixel format "no_such_format"'),
        ("a.mkv", "no_such_encoder", {}, 'no video encoder "no_such_encoder"'),
        ("a.mkv", "flac", {}, 'no video encoder "flac"'),
        ("a.wav", None, {}, "has no encoder of video; name one"),
    ],
)
def test_v13_formats_that_an_encoder_lacks_are_errors(tmp_path, name, encoder, config, message):
    with pytest.raises(RuntimeError, match=message):
        Muxer(tmp_path / name).add_encode_stream(video_config(**config), encoder=encoder)


@pytest.mark.parametrize(
    ("name", "encoder", "config", "message"),
    [
        ("a.mp2", None, {}, "does not support the format fltp; it supports s16"),
        ("a.flac", None, {"sample_fmt": "u8"}, "does not support the format u8; it supports s16, s32"),
        ("a.mp2", None, {"sample_fmt": "s16", "sample_rate": 12_345}, "mp2.*12345"),
        ("a.mp2", None, {"sample_fmt": "s16", "num_channels": 9}, "mp2.*9 channels"),
        ("a.wav", None, {"sample_fmt": "no_such_format"}, 'no sample format "no_such_format"'),
        ("a.wav", "ffv1", {}, 'no audio encoder "ffv1"'),
        ("a.png", None, {}, "has no encoder of audio; name one"),
    ],
)
def test_v13_audio_that_an_encoder_lacks_is_an_error(tmp_path, name, encoder, config, message):
    config = {"num_channels": 2, "sample_rate": 44_100, **config}
    with pytest.raises(RuntimeError, match=message):
        Muxer(tmp_path / name).add_encode_stream(audio_encode_config(**config), encoder=encoder)


def test_v13_the_error_lists_the_rates_of_the_encoder(tmp_path):
    config = audio_encode_config(num_channels=2, sample_rate=12_345, sample_fmt="s16")
    with pytest.raises(RuntimeError, match="44100, 48000, 32000"):
        Muxer(tmp_path / "a.mp2").add_encode_stream(config, encoder="mp2")


def test_v13_without_a_format_the_first_of_the_encoder_is_used(tmp_path):
    muxer = Muxer(tmp_path / "a.png")
    encoder = muxer.add_encode_stream(video_encode_config(height=4, width=6, pix_fmt=None))
    pixels = media.noise((1, 4, 6, 3))
    with muxer.open():
        media.write_some(muxer, encoder.encode(create_reference_video_frame(pixels, "rgb24", (25, 1), 0)))
    numpy.testing.assert_array_equal(load_image(tmp_path / "a.png"), pixels[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: video_encode_config(height=0, width=4),
        lambda: video_encode_config(height=4, width=-4),
        lambda: video_encode_config(height=4, width=2**40),
        lambda: audio_encode_config(num_channels=0, sample_rate=8000),
        lambda: audio_encode_config(num_channels=1, sample_rate=-1),
    ],
)
def test_v13_sizes_out_of_range_are_value_errors(make):
    with pytest.raises(ValueError, match="must be"):
        make()


def test_v13_settings_are_keywords_of_the_right_type(tmp_path):
    with pytest.raises(TypeError):
        video_encode_config(4, 4)
    with pytest.raises(TypeError):
        video_encode_config(height="4", width=4)
    with pytest.raises(TypeError, match="config must come from audio_encode_config or video_encode_config, not dict"):
        Muxer(tmp_path / "a.wav").add_encode_stream({})


def test_v14_options_of_encoders_and_formats_are_checked(tmp_path):
    wrong = {"no_such_option": "1"}
    with pytest.raises(RuntimeError, match="Unexpected options: no_such_option=1"):
        Muxer(tmp_path / "a.mkv").add_encode_stream(video_config(), encoder="ffv1", encoder_config=wrong)
    muxer = Muxer(tmp_path / "a.mkv")
    muxer.add_encode_stream(video_config(), encoder="ffv1", encoder_config={"slicecrc": "1"})
    with pytest.raises(RuntimeError, match="Unexpected options: no_such_option=1"):
        muxer.open(wrong)


def test_v14_options_of_formats_have_an_effect(tmp_path):
    fragments = {}
    for flags in ("0", "frag_keyframe+empty_moov"):
        muxer = Muxer(tmp_path / "a.mp4")
        muxer.add_remux_stream(Demuxer(H264).video_codec)
        with muxer.open({"movflags": flags}):
            muxer.write(0, demux_video(H264))
        data = (tmp_path / "a.mp4").read_bytes()
        fragments[flags] = data.count(b"moof") > 0
        assert media.hashes(decode_packets(demux_video(data), None)) == GOLDEN
    assert fragments == {"0": False, "frag_keyframe+empty_moov": True}


def test_v14_an_option_that_reads_the_file_again_is_unsupported(tmp_path):
    muxer = Muxer(tmp_path / "a.mp4")
    muxer.add_remux_stream(Demuxer(H264).video_codec)
    with pytest.raises(UnsupportedError, match="faststart"):
        muxer.open({"movflags": "faststart"})
    assert not (tmp_path / "a.mp4").exists()


@pytest.mark.parametrize("name", ["a.mkv", "a.mp4", "a.mov", "a.nut"])
def test_v14_packets_are_remuxed_without_decoding(tmp_path, name):
    with Demuxer(H264) as demuxer:
        muxer = Muxer(tmp_path / name)
        muxer.add_remux_stream(demuxer.video_codec)
        with muxer.open():
            for packets in demuxer.streaming_demux(num_packets=6):
                muxer.write(0, packets)
    packets = demux_video(tmp_path / name)
    # Some formats move the first time stamp of decoding to 0.
    times = numpy.array(packets.get_timestamps())
    numpy.testing.assert_allclose(times - times[0], numpy.arange(20) / 10, atol=2e-3)
    assert media.hashes(decode_packets(packets, None)) == GOLDEN


def test_v14_a_transport_stream_needs_start_codes(tmp_path):
    packets = apply_bsf(demux_video(H264), "h264_mp4toannexb")
    muxer = Muxer(tmp_path / "a.ts")
    muxer.add_remux_stream(packets.codec)
    with muxer.open():
        muxer.write(0, packets)
    assert media.hashes(decode_packets(demux_video(tmp_path / "a.ts"), None)) == GOLDEN


@pytest.mark.parametrize("pix_fmt", ["rgb24", "gray"])
def test_v14_raw_video_is_remuxed_with_its_format(tmp_path, pix_fmt):
    pixels = media.noise(ARRAYS[pix_fmt][0])
    source = media.write_video(tmp_path / "a.nut", pixels, pix_fmt, "rawvideo", size=(16, 24))
    muxer = Muxer(tmp_path / "b.nut")
    muxer.add_remux_stream(Demuxer(source).video_codec)
    with muxer.open():
        muxer.write(0, demux_video(source))
    with Demuxer(tmp_path / "b.nut") as demuxer:
        assert demuxer.video_codec.pix_fmt == pix_fmt
    found = numpy.asarray(load_video(tmp_path / "b.nut", filter_desc=None)).reshape(pixels.shape)
    numpy.testing.assert_array_equal(found, pixels)


def test_v14_packets_can_be_written_to_several_files(tmp_path):
    packets = demux_video(H264)
    for name in ("a.mkv", "b.mp4"):
        muxer = Muxer(tmp_path / name)
        muxer.add_remux_stream(packets.codec)
        with muxer.open():
            muxer.write(0, packets)
        assert media.hashes(decode_packets(demux_video(tmp_path / name), None)) == GOLDEN
    assert len(packets) == 20


def test_v14_streams_of_audio_and_video_are_in_one_file(tmp_path):
    pixels, samples = media.noise((20, 3, 16, 24)), media.ramp(16_000)
    muxer = Muxer(tmp_path / "a.mkv")
    video = muxer.add_encode_stream(video_config(frame_rate=(10, 1)), encoder="ffv1")
    config = audio_encode_config(num_channels=1, sample_rate=8000, sample_fmt="s16")
    audio = muxer.add_encode_stream(config, encoder="pcm_s16le")
    with muxer.open():
        for number in range(20):
            part = samples[number * 800 : (number + 1) * 800]
            media.write_some(muxer, audio.encode(create_reference_audio_frame(part, "s16", 8000, number * 800)), 1)
            frames = create_reference_video_frame(pixels[number : number + 1], "yuv444p", (10, 1), number)
            media.write_some(muxer, video.encode(frames))
        media.write_some(muxer, video.flush())
        media.write_some(muxer, audio.flush(), 1)
    numpy.testing.assert_array_equal(load_video(tmp_path / "a.mkv", filter_desc=None), pixels)
    numpy.testing.assert_array_equal(load_audio(tmp_path / "a.mkv", filter_desc=None), samples)
    # A window of both, as a part of training data.
    numpy.testing.assert_array_equal(load_video(tmp_path / "a.mkv", (0.5, 1), filter_desc=None), pixels[5:10])
    part = numpy.asarray(load_audio(tmp_path / "a.mkv", (0.5, 1))) * 32_768
    numpy.testing.assert_array_equal(part, samples[4000:8000].T)


def test_v14_the_format_can_be_named(tmp_path):
    samples = media.ramp(100)
    muxer = Muxer(tmp_path / "sound", format="wav")
    config = audio_encode_config(num_channels=1, sample_rate=8000, sample_fmt="s16")
    encoder = muxer.add_encode_stream(config)
    with muxer.open():
        media.write_some(muxer, encoder.encode(create_reference_audio_frame(samples, "s16", 8000, 0)))
    numpy.testing.assert_array_equal(load_wav((tmp_path / "sound").read_bytes()), samples)


def test_v14_an_existing_file_is_replaced(tmp_path):
    (tmp_path / "a.wav").write_bytes(bytes(100_000))
    media.write_audio(tmp_path / "a.wav", media.ramp(10), "s16", 8000)
    assert os.path.getsize(tmp_path / "a.wav") < 1000


@pytest.mark.parametrize("name", [b"/\xff\xfe.wav", "/ü 音.wav".encode()])
def test_v14_paths_need_not_be_utf8(tmp_path, name):
    path = os.fsdecode(os.fsencode(tmp_path) + name)
    media.write_audio(path, media.ramp(10), "s16", 8000)
    with open(path, "rb") as file:
        numpy.testing.assert_array_equal(load_wav(file.read()), media.ramp(10))


@pytest.mark.parametrize(
    ("name", "format", "kind", "message"),
    [
        ("a.no_such_extension", None, UnsupportedError, "no format for the extension"),
        ("a", None, UnsupportedError, "no format for the extension"),
        ("a.mp4", "no_such_format", UnsupportedError, 'no format "no_such_format"'),
    ],
)
def test_v14_formats_that_do_not_exist_are_errors(tmp_path, name, format, kind, message):
    with pytest.raises(kind, match=message) as raised:
        Muxer(tmp_path / name, format=format)
    assert isinstance(raised.value, RuntimeError)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [("absent/a.mp4", FileNotFoundError, "absent/a.mp4"), (".", OSError, "cannot create the file")],
)
def test_v14_files_that_cannot_be_created_are_errors(tmp_path, name, kind, message):
    muxer = Muxer(tmp_path / name, format="matroska")
    muxer.add_encode_stream(video_config(), encoder="ffv1")
    with pytest.raises(kind, match=message) as raised:
        muxer.open()
    assert isinstance(raised.value, RuntimeError)


@pytest.mark.parametrize("index", [1, 7, -1])
def test_v14_a_stream_index_out_of_range_is_an_error(tmp_path, index):
    muxer = Muxer(tmp_path / "a.mkv")
    encoder = muxer.add_encode_stream(video_config(), encoder="ffv1")
    packets = encoder.encode(yuv())
    with muxer.open(), pytest.raises(RuntimeError, match="Stream index is out of range"):
        muxer.write(index, packets)


def test_v14_packets_of_another_kind_are_an_error(tmp_path):
    muxer = Muxer(tmp_path / "a.mkv")
    muxer.add_encode_stream(video_config(), encoder="ffv1")
    with muxer.open(), pytest.raises(RuntimeError, match="audio packets were written to a stream of video"):
        muxer.write(0, demux_audio(media.AUDIO / "stereo.mp3"))


def test_v14_the_steps_of_a_muxer_have_an_order(tmp_path):
    muxer = Muxer(tmp_path / "a.mkv")
    with pytest.raises(RuntimeError, match="add a stream"):
        muxer.open()
    encoder = muxer.add_encode_stream(video_config(), encoder="ffv1")
    packets = encoder.encode(yuv())
    with pytest.raises(RuntimeError, match="start the file before packets are written"):
        muxer.write(0, packets)
    with muxer.open():
        with pytest.raises(RuntimeError, match="already started"):
            muxer.open()
        with pytest.raises(RuntimeError, match="add streams before the file is started"):
            muxer.add_encode_stream(video_config(), encoder="ffv1")
        with pytest.raises(RuntimeError, match="add streams before the file is started"):
            muxer.add_remux_stream(Demuxer(H264).video_codec)
        muxer.write(0, packets)
    muxer.close()
    with pytest.raises(RuntimeError, match="start the file"):
        muxer.write(0, packets)
    assert numpy.asarray(load_video(tmp_path / "a.mkv", filter_desc=None)).shape == (3, 3, 16, 24)


def test_v14_a_format_without_that_media_is_an_error(tmp_path):
    muxer = Muxer(tmp_path / "a.wav")
    muxer.add_remux_stream(Demuxer(H264).video_codec)
    with pytest.raises(RuntimeError, match="a.wav"):
        muxer.open()


def test_v14_a_file_is_complete_after_an_exception(tmp_path):
    muxer = Muxer(tmp_path / "a.mkv")
    encoder = muxer.add_encode_stream(video_config(), encoder="ffv1")
    with pytest.raises(KeyError, match="stop"), muxer.open():
        muxer.write(0, encoder.encode(yuv()))
        raise KeyError("stop")
    assert len(demux_video(tmp_path / "a.mkv")) == 3


@pytest.mark.parametrize(
    ("pix_fmt", "shape", "dtype", "mode"),
    [
        ("rgb24", (13, 17, 3), "uint8", "RGB"),
        ("gray", (13, 17), "uint8", "L"),
        ("gray16be", (13, 17), ">u2", "I;16"),
    ],
)
def test_i08_png_images_are_read_by_pillow(tmp_path, pix_fmt, shape, dtype, mode):
    pillow = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    pixels = media.noise(shape, "uint16" if dtype == ">u2" else dtype)
    # The bytes of `gray16be` are big-endian, whatever type the array has.
    save_image(tmp_path / "a.png", pixels.astype(dtype).view(pixels.dtype), pix_fmt)
    image = pillow.open(tmp_path / "a.png")
    assert image.mode.startswith(mode)
    numpy.testing.assert_array_equal(numpy.asarray(image), pixels)


@pytest.mark.parametrize(("extension", "pix_fmt"), [("bmp", "bgr24"), ("tiff", "rgb24"), ("ppm", "rgb24"), ("png", "rgb24")])
def test_i08_images_of_other_formats_are_read_by_pillow(tmp_path, extension, pix_fmt):
    pillow = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    pixels = media.noise((13, 17, 3))
    save_image(tmp_path / f"a.{extension}", pixels, pix_fmt)
    found = numpy.asarray(pillow.open(tmp_path / f"a.{extension}").convert("RGB"))
    numpy.testing.assert_array_equal(found, pixels[..., ::-1] if pix_fmt == "bgr24" else pixels)


def test_i08_jpeg_images_keep_the_planes(tmp_path):
    pillow = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    rows, columns = numpy.mgrid[0:32, 0:48]
    pixels = numpy.stack([60 + 3 * rows, 100 + columns, 180 - columns]).astype("uint8")
    save_image(tmp_path / "a.jpg", pixels, "yuv444p", qscale=1)
    image = pillow.open(tmp_path / "a.jpg")
    image.draft("YCbCr", None)
    found = numpy.asarray(image.convert("YCbCr")).transpose(2, 0, 1).astype(int)
    assert image.size == (48, 32) and abs(found - pixels).max() <= 4


def test_i08_an_image_is_replaced_and_equals_what_load_image_returns(tmp_path):
    for seed in (1, 2):
        pixels = media.noise((9, 11, 3), seed=seed)
        save_image(tmp_path / "a.png", pixels)
        numpy.testing.assert_array_equal(load_image(tmp_path / "a.png"), pixels)


def test_i08_arrays_need_not_be_contiguous(tmp_path):
    pixels = media.noise((9, 22, 3))[::-1, ::2]
    save_image(str(tmp_path / "a.png"), pixels)
    numpy.testing.assert_array_equal(load_image(tmp_path / "a.png"), pixels)


@pytest.mark.parametrize(
    ("shape", "dtype", "pix_fmt"),
    [
        ((9, 11), "uint8", "rgb24"),
        ((3, 9, 11), "uint8", "rgb24"),
        ((1, 9, 11, 3), "uint8", "rgb24"),
        ((9, 11, 4), "uint8", "rgb24"),
        ((9, 11, 3), "uint16", "rgb24"),
        ((9, 11, 3), "float32", "rgb24"),
        ((9, 11, 3), "bool", "rgb24"),
        ((9, 11, 1), "uint8", "gray"),
        ((9, 11), "uint16", "gray"),
        ((9, 11), "uint8", "gray16"),
        ((9, 11, 3), "uint8", "yuv444p"),
        ((9, 11, 3), "uint8", "no_such_format"),
        ((9, 11, 3), "uint8", "yuv420p"),
    ],
)
def test_i08_arrays_that_do_not_fit_the_format_are_value_errors(tmp_path, shape, dtype, pix_fmt):
    with pytest.raises(ValueError, match="images have|pix_fmt must be one of"):
        save_image(tmp_path / "a.png", numpy.zeros(shape, dtype), pix_fmt)
    assert not (tmp_path / "a.png").exists()


def test_i08_an_encoder_without_the_format_is_an_error(tmp_path):
    pixels = media.noise((9, 11, 3))
    with pytest.raises(RuntimeError, match="does not support the format bgr24; it supports rgb24"):
        save_image(tmp_path / "a.png", pixels, "bgr24")
    with pytest.raises(RuntimeError, match="does not support the format rgb24; it supports yuv"):
        save_image(tmp_path / "a.jpg", pixels)
    with pytest.raises(FileNotFoundError):
        save_image(tmp_path / "absent" / "a.png", pixels)
    with pytest.raises(RuntimeError, match="no format for the extension"):
        save_image(tmp_path / "a.no_such_extension", pixels)


def test_i08_an_image_that_is_not_written_leaves_the_existing_file(tmp_path):
    save_image(tmp_path / "a.png", media.noise((9, 11, 3)))
    before = (tmp_path / "a.png").read_bytes()
    with pytest.raises(RuntimeError):
        save_image(tmp_path / "a.png", media.noise((9, 11, 3)), "bgr24")
    assert (tmp_path / "a.png").read_bytes() == before


def test_v15_a_full_disk_is_an_os_error():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    muxer = Muxer("/dev/full", format="nut")
    encoder = muxer.add_encode_stream(video_config(), encoder="rawvideo")
    with pytest.raises(OSError, match="No space left") as raised, muxer.open():
        for number in range(40):
            media.write_some(muxer, encoder.encode(yuv(4, first=4 * number)))
    assert isinstance(raised.value, RuntimeError)


def test_v14_packets_of_an_encoder_can_be_decoded_without_a_file(tmp_path):
    pixels = media.noise((3, 3, 16, 24))
    encoder = Muxer(tmp_path / "a.mkv").add_encode_stream(video_config(), encoder="ffv1")
    packets = encoder.encode(create_reference_video_frame(pixels, "yuv444p", (25, 1), 0))
    assert packets.get_timestamps() == [0, 0.04, 0.08]
    numpy.testing.assert_array_equal(convert_frames(decode_packets(packets, None)), pixels)
    config = audio_encode_config(num_channels=1, sample_rate=8000, sample_fmt="s16")
    encoder = Muxer(str(tmp_path / "a.wav")).add_encode_stream(config)
    packets = encoder.encode(create_reference_audio_frame(media.ramp(50), "s16", 8000, 0))
    assert isinstance(packets, AudioPackets) and packets.sample_rate == 8000
    numpy.testing.assert_array_equal(convert_frames(decode_packets(packets, None)), media.ramp(50))


MODULES = ["_decoding", "_demuxing", "_encoding", "_filter_descriptions", "_media_loading", "_media_values", "utils"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(f"spdl_rs.io.{name}"))
    assert result.failed == 0


def test_errors_of_media_can_be_caught_by_their_public_class():
    with pytest.raises(spdl_rs.MediaError):
        Muxer("a.no_such_extension")
