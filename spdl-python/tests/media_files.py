"""Files of audio and video with known content, for the tests of `spdl_rs.io`."""

import hashlib
import io
import pathlib
import wave

import numpy
from spdl_rs.io import (
    Muxer,
    audio_encode_config,
    convert_frames,
    create_reference_audio_frame,
    create_reference_video_frame,
    video_encode_config,
)

TESTS = pathlib.Path(__file__).parents[2] / "spdl-media" / "tests"
VIDEO = TESTS / "video"
AUDIO = TESTS / "audio"
IMAGES = TESTS / "data"

# 20 frames of 64 x 48 pixels at 10 frames per second, with B-frames and key frames 0, 8 and 16.
H264 = VIDEO / "h264.mp4"
FRAMES, HEIGHT, WIDTH = 20, 48, 64


def golden(name, kind):
    """The values of one kind that the program `ffmpeg` printed for a file of `VIDEO`."""
    lines = [line.split("\t") for line in (VIDEO / f"{name}.tsv").read_text().splitlines()]
    return [line[1] for line in lines if line[0] == kind]


def hashes(frames):
    """The SHA-256 of the planes of each frame; consumes the frames."""
    return [hashlib.sha256(frame.tobytes()).hexdigest() for frame in numpy.asarray(convert_frames(frames))]


def ramp(count, channels=1):
    """`int16 [count, channels]` samples without repetition within 60,000."""
    values = numpy.arange(count * channels) % 60_000 - 30_000
    return values.astype("<i2").reshape(count, channels)


def sweep(count, rate):
    """`float32 [1, count]` samples of a tone that rises."""
    time = numpy.arange(count) / rate
    tones = 0.3 * numpy.sin(2 * numpy.pi * (200 + 400 * time) * time)
    return tones.astype(numpy.float32)[None]


def wav_bytes(samples, rate):
    """A WAV file of `int16 [frames, channels]` by the standard library."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((samples.shape[1], 2, rate, 0, "NONE", None))
        out.writeframes(samples.tobytes())
    return file.getvalue()


def noise(shape, dtype="uint8", seed=1):
    """Random pixels over the whole range of a type."""
    limits = numpy.iinfo(dtype)
    return numpy.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)


def write_video(path, pixels, pix_fmt, encoder, *, rate=(10, 1), size=None, portion=1, **settings):
    """Encodes frames to a file, `portion` frames at a time."""
    height, width = size or pixels.shape[1:3]
    muxer = Muxer(path)
    config = video_encode_config(height=height, width=width, frame_rate=rate, pix_fmt=pix_fmt, **settings)
    stream = muxer.add_encode_stream(config, encoder=encoder)
    with muxer.open():
        for first in range(0, len(pixels), portion):
            part = pixels[first : first + portion]
            write_some(muxer, stream.encode(create_reference_video_frame(part, pix_fmt, rate, first)))
        write_some(muxer, stream.flush())
    return path


def write_audio(path, samples, sample_fmt, rate, encoder=None, **settings):
    """Encodes samples to a file: `[channels, samples]` for planar formats, otherwise `[samples, channels]`."""
    planar = sample_fmt.endswith("p")
    channels, count = samples.shape if planar else samples.shape[::-1]
    muxer = Muxer(path)
    config = audio_encode_config(num_channels=channels, sample_rate=rate, sample_fmt=sample_fmt, **settings)
    stream = muxer.add_encode_stream(config, encoder=encoder)
    step = stream.frame_size or 1000
    with muxer.open():
        for first in range(0, count, step):
            part = samples[:, first : first + step] if planar else samples[first : first + step]
            write_some(muxer, stream.encode(create_reference_audio_frame(part, sample_fmt, rate, first)))
        write_some(muxer, stream.flush())
    return path


def write_some(muxer, packets, stream=0):
    """Writes the packets that an encoder has returned, if there are any."""
    if packets is not None:
        muxer.write(stream, packets)
