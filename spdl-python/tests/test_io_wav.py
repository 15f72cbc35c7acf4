"""Samples of WAV files, compared with the written samples."""

import io
import os
import pathlib
import struct
import wave

import numpy
import pytest
import spdl_rs
from spdl_rs.io import WAVHeader, load_wav, parse_wav

CORPORA = pathlib.Path(
    os.environ.get("SPDL_CORPORA", pathlib.Path(__file__).parents[2] / "../shared/corpora")
)
PCM, FLOAT, A_LAW, MU_LAW, ADPCM, EXTENSIBLE = 1, 3, 6, 7, 17, 0xFFFE


def chunk(name, content):
    return name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)


def riff(*chunks):
    return b"RIFF" + struct.pack("<I", 4 + len(b"".join(chunks))) + b"WAVE" + b"".join(chunks)


def format_of(tag, bits, channels=2, rate=10, subformat=None):
    block = channels * bits // 8
    content = struct.pack("<HHIIHH", tag, channels, rate, rate * block, block, bits)
    if subformat is not None:
        guid = struct.pack("<H", subformat) + bytes.fromhex("000000001000800000aa00389b71")
        content += struct.pack("<HHI", 22, bits, 0) + guid
    return chunk(b"fmt ", content)


def wav(samples, tag=PCM, **options):
    bits = samples.dtype.itemsize * 8
    fmt = format_of(tag, bits, samples.shape[1], **options)
    return riff(fmt, chunk(b"data", samples.tobytes()))


def samples_of(dtype, channels=2, frames=20):
    random = numpy.random.default_rng(5)
    return numpy.frombuffer(
        random.bytes(frames * channels * numpy.dtype(dtype).itemsize), dtype
    ).reshape(frames, channels)


def same(found, expected):
    return (
        found.dtype == expected.dtype
        and found.shape == expected.shape
        and (found.tobytes() == expected.tobytes())
    )


@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize(
    ("dtype", "tag"), [("u1", PCM), ("<i2", PCM), ("<i4", PCM), ("<f4", FLOAT), ("<f8", FLOAT)]
)
def test_r04_samples_equal_the_written_samples(dtype, tag, channels):
    samples = samples_of(dtype, channels)
    for file in [wav(samples, tag), wav(samples, EXTENSIBLE, subformat=tag)]:
        for data in [file, bytearray(file), memoryview(file), numpy.frombuffer(file, "u1")]:
            assert same(load_wav(data), samples)


def test_r04_extensible_float_files_are_float():
    samples = numpy.linspace(-1, 1, 8, dtype="<f4").reshape(4, 2)
    assert same(load_wav(wav(samples, EXTENSIBLE, subformat=FLOAT)), samples)
    assert load_wav(wav(samples, EXTENSIBLE, subformat=PCM)).dtype == numpy.int32


def test_r04_24_bit_samples_are_left_aligned_in_32_bits():
    values = numpy.array([0, 1, -1, 2**23 - 1, -(2**23), 0x123456], "<i4")
    packed = values.view("u1").reshape(-1, 4)[:, :3].tobytes()
    file = riff(format_of(PCM, 24, channels=2), chunk(b"data", packed))
    for data in [file, bytearray(file)]:
        found = load_wav(data)
        assert same(found, (values << 8).reshape(3, 2))
        assert found.flags.writeable and found.flags.aligned
    assert same(load_wav(file, 0.1, 0.1), (values << 8)[2:4].reshape(1, 2))


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_r04_files_of_pythons_wave_are_read(width):
    frames = numpy.random.default_rng(7).bytes(50 * 2 * width)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((2, width, 44100, 0, "NONE", None))
        out.writeframes(frames)
    found = load_wav(file.getvalue())
    assert found.shape == (50, 2)
    if width == 3:
        assert not found.view("u1").reshape(-1, 4)[:, 0].any()
        found = numpy.ascontiguousarray(found.view("u1").reshape(-1, 4)[:, 1:])
    assert found.tobytes() == frames


def test_r04_samples_are_a_view_that_keeps_the_file():
    file = wav(samples_of("<i2", frames=500))
    found = load_wav(file)
    assert numpy.shares_memory(found, numpy.frombuffer(file, "u1")) and not found.flags.writeable
    mutable = bytearray(file)
    found = load_wav(mutable)
    found[0, 0] = 77
    assert load_wav(mutable)[0, 0] == 77
    with pytest.raises(BufferError):
        mutable.clear()
    found = load_wav(bytes(bytearray(file)))
    other = [bytes(len(file)) for _ in range(10)]
    assert same(found, samples_of("<i2", frames=500))
    del other


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ((None, None), slice(0, 20)),
        ((0, 2), slice(0, 20)),
        ((0.5,), slice(5, 20)),
        ((0.5, 0.3), slice(5, 8)),
        ((0.5, 9.0), slice(5, 20)),
        ((0.5, 0), slice(5, 5)),
        ((None, 0.25), slice(0, 2)),
        ((0.26, 0.19), slice(2, 3)),
        ((1.9, 0.1), slice(19, 20)),
    ],
)
def test_r04_a_time_range_is_rounded_down_to_frames(time, expected):
    samples = samples_of("<i2")
    assert same(load_wav(wav(samples), *time), samples[expected])


def test_r04_frame_times_are_exact():
    samples = samples_of("<i2", frames=200)
    file = wav(samples, rate=100)
    # In floating point these products are less than 29 and 57.
    assert 0.29 * 100 < 29 and 0.57 * 100 < 57
    assert same(load_wav(file, 0.29, 0.57), samples[29 : 29 + 57])


@pytest.mark.parametrize(
    "time",
    [(2.0,), (99, 1), (-0.1,), (0, -1), (float("nan"),), (0, float("inf")), (float("-inf"),)],
)
def test_r04_a_time_out_of_range_is_a_value_error(time):
    with pytest.raises(spdl_rs.InvalidArgumentError) as caught:
        load_wav(wav(samples_of("<i2")), *time)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(TypeError):
        load_wav(wav(samples_of("<i2")), "0.5")


def test_r04_a_file_without_samples_is_empty():
    for dtype in ["u1", "<i2"]:
        assert same(load_wav(wav(samples_of(dtype, frames=0))), samples_of(dtype, frames=0))
    empty = riff(format_of(PCM, 24), chunk(b"data", b""))
    assert same(load_wav(empty), numpy.zeros((0, 2), "i4"))


def test_r04_chunks_of_odd_size_are_skipped():
    samples = samples_of("u1", channels=1, frames=7)
    chunks = [chunk(b"LIST", b"odd"), format_of(PCM, 8, 1), chunk(b"note", b"x")]
    file = riff(*chunks, chunk(b"data", samples.tobytes()), chunk(b"LIST", b"behind"))
    assert same(load_wav(file), samples)


@pytest.mark.parametrize(
    ("tag", "bits", "name"), [(A_LAW, 8, "A-law"), (MU_LAW, 8, "µ-law"), (ADPCM, 8, "ADPCM")]
)
def test_r04_companded_and_compressed_samples_are_unsupported(tag, bits, name):
    for fmt in [format_of(tag, bits), format_of(EXTENSIBLE, bits, subformat=tag)]:
        file = riff(fmt, chunk(b"data", bytes(8)))
        with pytest.raises(spdl_rs.UnsupportedError, match=name) as caught:
            load_wav(file)
        assert isinstance(caught.value, ValueError)
        assert parse_wav(file).num_frames == 4


def test_r04_rf64_and_bw64_are_supported():
    samples = samples_of("<i2")
    sizes = chunk(b"ds64", struct.pack("<QQQI", 0, samples.nbytes, 20, 0))
    for name in [b"RF64", b"BW64"]:
        file = name + b"\xff\xff\xff\xffWAVE" + sizes + format_of(PCM, 16)
        file += b"data\xff\xff\xff\xff" + samples.tobytes() + chunk(b"LIST", b"behind")
        assert same(load_wav(file), samples)


def test_r04_data_of_unknown_size_extends_to_the_end():
    samples = samples_of("<i2")
    file = b"RIFF\xff\xff\xff\xffWAVE" + format_of(PCM, 16)
    assert same(load_wav(file + b"data\xff\xff\xff\xff" + samples.tobytes() + b"abc"), samples)


def test_r04_corrupt_and_truncated_files_are_errors():
    file = wav(samples_of("<i2"))
    for len_ in range(len(file)):
        for data in [file[:len_], bytearray(file[:len_])]:
            with pytest.raises(spdl_rs.TruncatedError) as caught:
                load_wav(data)
            assert isinstance(caught.value, ValueError) and caught.value.offset == len_
    part = riff(format_of(PCM, 16), chunk(b"data", bytes(7)))
    data_first = riff(chunk(b"data", bytes(8)), format_of(PCM, 16))
    for data in [b"OggS" * 5, part, data_first]:
        with pytest.raises(spdl_rs.CorruptError):
            load_wav(data)
    with pytest.raises(spdl_rs.UnsupportedError, match="RIFX"):
        load_wav(b"RIFX" + file[4:])
    random = numpy.random.default_rng(11)
    for _ in range(500):
        damaged = bytearray(file)
        for at in random.integers(0, 46, 3):
            damaged[at] = random.integers(256)
        try:
            assert load_wav(damaged, 0.1, 0.2).nbytes <= len(file)
        except ValueError:
            pass


def test_r05_header_fields_equal_the_file():
    names = "audio_format bits_per_sample block_align byte_rate data_size num_channels sample_rate"

    def of(file):
        header = parse_wav(file)
        assert type(header) is WAVHeader
        return [getattr(header, name) for name in names.split()]

    assert of(wav(samples_of("<i2"), rate=8000)) == [1, 16, 4, 32000, 80, 2, 8000]
    assert of(wav(samples_of("<f8", 1), FLOAT)) == [3, 64, 8, 80, 160, 1, 10]
    extensible = wav(samples_of("<i4"), EXTENSIBLE, subformat=PCM)
    assert of(extensible) == [65534, 32, 8, 80, 160, 2, 10]
    assert parse_wav(extensible) == parse_wav(bytearray(extensible))
    assert parse_wav(extensible) != parse_wav(wav(samples_of("<i4")))
    assert "sample_rate=10" in repr(parse_wav(extensible))
    with pytest.raises(spdl_rs.TruncatedError):
        parse_wav(extensible[:-1])


def test_r04_corpus_files_are_read_as_by_wave():
    paths = [*CORPORA.glob("torchcodec/**/*.wav"), *CORPORA.glob("cpython/**/audiodata/*.wav")]
    if not paths:
        pytest.skip("corpora not present")
    compared = 0
    for path in paths:
        data = path.read_bytes()
        try:
            with wave.open(io.BytesIO(data)) as file:
                frames, width = file.readframes(file.getnframes()), file.getsampwidth()
        except wave.Error:
            continue
        found = load_wav(data)
        assert found.shape[1] == parse_wav(data).num_channels
        if width == 3:
            found = numpy.ascontiguousarray(found.view("u1").reshape(-1, 4)[:, 1:])
        assert found.tobytes() == frames, path
        compared += 1
    # Python before 3.12 cannot read the extensible format.
    assert compared >= 3
