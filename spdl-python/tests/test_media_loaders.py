"""`VideoLoader`, `AudioLoader` and `Decode`: their values are those of `Loader` with the same fields."""

import doctest
import inspect
import pathlib
import pickle
import shutil
import wave

import numpy
import pytest
from spdl_rs import (
    AudioBatch,
    AudioLoader,
    ImageLoader,
    Loader,
    TruncatedError,
    VideoBatch,
    VideoLoader,
    _media_loaders,
    fields,
)
from spdl_rs.io import BatchImages, Decode, Fetch
from spdl_rs.io.utils import get_ffmpeg_versions
from spdl_rs.pipeline import PipelineBuilder, PipelineFailure

VIDEO = pathlib.Path(__file__).parents[2] / "spdl-media/tests/video/h264.mp4"
RATE = 16_000

needs_ffmpeg = pytest.mark.skipif(
    not get_ffmpeg_versions(), reason="spdl_rs was built without FFmpeg"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`videos` with four copies of a video, `recordings` with two WAV files, each in a folder of its class."""
    folder = tmp_path_factory.mktemp("media")
    for number in range(2):
        (folder / "videos" / f"class{number}").mkdir(parents=True)
        for copy in range(2):
            shutil.copy(VIDEO, folder / "videos" / f"class{number}" / f"{copy}.mp4")
        (folder / "recordings" / f"class{number}").mkdir(parents=True)
        write_wav(folder / "recordings" / f"class{number}" / "1.wav", RATE // (number + 1), number + 1)
    return folder


def write_wav(path, frames, channels):
    samples = numpy.arange(frames * channels) % 30_000
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, 2, RATE, 0, "NONE", None))
        file.writeframes(samples.astype("<i2").tobytes())


@needs_ffmpeg
def test_clips_are_those_of_the_fields(folder):
    arguments = dict(batch_size=3, seed=5, threads=2)
    loader = VideoLoader(folder / "videos", size=32, frames=4, fps=5, train=True, **arguments)
    video = fields.Video(32, frames=4, fps=5, random=True, train=True)
    # Random numbers do not depend on names of fields.
    same = Loader(
        folder / "videos", frames=video, times=fields.VideoTimes(like="frames"), labels=fields.Label(), shuffle=True, **arguments
    )
    assert len(loader) == 2
    for batch, expected in zip(loader, same, strict=True):
        assert isinstance(batch, VideoBatch)
        frames, times, labels = batch
        numpy.testing.assert_array_equal(frames, expected["frames"])
        numpy.testing.assert_array_equal(times, expected["times"])
        numpy.testing.assert_array_equal(labels, expected["labels"])
        assert frames.shape[1:] == (4, 32, 32, 3) and times.dtype == "float64" and labels.dtype == "int64"
    assert loader.classes == ["class0", "class1"]


@needs_ffmpeg
def test_an_interrupted_epoch_of_clips_resumes(folder):
    def clips():
        return VideoLoader(folder / "videos", batch_size=1, size=16, frames=2, train=True, seed=3)

    whole = [batch.frames.tobytes() for batch in clips()]
    loader = clips()
    batches = iter(loader)
    assert next(batches).frames.tobytes() == whole[0]
    resumed = clips()
    resumed.load_state_dict(loader.state_dict())
    assert [batch.frames.tobytes() for batch in resumed] == whole[1:]
    with pytest.raises(ValueError, match="VideoLoader"):
        ImageLoader([VIDEO.with_name("1.png")], batch_size=1).load_state_dict(loader.state_dict())


def test_recordings_are_padded_to_the_longest(folder):
    (batch,) = AudioLoader(folder / "recordings", batch_size=2)
    assert isinstance(batch, AudioBatch)
    assert batch.samples.shape == (2, 1, RATE) and batch.samples.dtype == "float32"
    assert batch.lengths.tolist() == [RATE, RATE // 2]
    assert batch.labels.tolist() == [0, 1]
    assert not batch.samples[1, 0, RATE // 2 :].any() and batch.samples[1, 0, : RATE // 2].any()


def test_recordings_have_the_requested_duration(folder):
    (batch,) = AudioLoader(folder / "recordings", batch_size=2, seconds=0.75)
    assert batch.samples.shape == (2, 1, 12_000)
    assert batch.lengths.tolist() == [12_000, 8_000]
    numpy.testing.assert_array_equal(batch.samples[0, 0, :4] * 32768, [0, 1, 2, 3])
    starts = set()
    for epoch in range(4):
        (batch,) = AudioLoader(folder / "recordings", batch_size=2, seconds=0.75, train=True, seed=epoch, shuffle=False)
        starts.add(round(batch.samples[0, 0, 0] * 32768))
    assert len(starts) > 1


def test_all_channels_are_padded_too(folder):
    (batch,) = AudioLoader(folder / "recordings", batch_size=2, channels="all", seconds=0.75)
    assert batch.samples.shape == (2, 2, 12_000)
    assert not batch.samples[0, 1].any()
    assert batch.lengths.tolist() == [12_000, 8_000]


def test_spectrograms_are_those_of_whisper(folder):
    (batch,) = AudioLoader(folder / "recordings", batch_size=2, seconds=1, mel=128)
    (expected,) = Loader(folder / "recordings", batch_size=2, mel=fields.Mel(bins=128, frames=RATE))
    assert batch.samples.shape == (2, 128, 100)
    numpy.testing.assert_array_equal(batch.samples, expected["mel"])
    assert batch.lengths.tolist() == [100, 50]
    with pytest.raises(ValueError, match="mel needs sample_rate=16_000"):
        AudioLoader(folder / "recordings", batch_size=2, mel=80, sample_rate=8000)


def test_a_column_of_a_list_names_the_recordings(folder):
    (folder / "list.csv").write_text("id,clip,kind\n1,recordings/class0/1.wav,7\n2,recordings/class1/1.wav,9\n")
    (batch,) = AudioLoader(folder / "list.csv", batch_size=2, audio_field="clip", label_field="kind")
    assert batch.lengths.tolist() == [RATE, RATE // 2]
    assert batch.labels.tolist() == [7, 9]


def test_wrong_arguments_are_named(folder):
    with pytest.raises(TypeError, match="AudioLoader has no argument 'collate'; for other fields"):
        AudioLoader(folder / "recordings", batch_size=1, collate=list)
    with pytest.raises(ValueError, match="output"):
        AudioLoader(folder / "recordings", batch_size=1, output="dict")
    with pytest.raises(ValueError, match="seconds must be at least one frame"):
        AudioLoader(folder / "recordings", batch_size=1, seconds=0)
    with pytest.raises(ValueError, match="mel"):
        AudioLoader(folder / "recordings", batch_size=1, mel=81)


def test_options_are_arguments_of_the_loader():
    accepted = set(inspect.signature(Loader.__init__).parameters)
    assert set(_media_loaders.LoaderOptions.__annotations__) < accepted


def test_the_loader_is_described(folder):
    loader = AudioLoader(folder / "recordings", batch_size=2)
    assert repr(loader).startswith(f"AudioLoader(image folder {str(folder / 'recordings')!r}: 2 recordings, 1 batches of 2;")
    batch = loader.peek()
    copy = pickle.loads(pickle.dumps(batch))
    numpy.testing.assert_array_equal(copy.samples, batch.samples)


@pytest.mark.frameworks
def test_batches_of_tensors(folder):
    torch = pytest.importorskip("torch")
    (batch,) = AudioLoader(folder / "recordings", batch_size=2, output="torch")
    assert isinstance(batch, AudioBatch)
    assert batch.samples.dtype == torch.float32 and batch.lengths.tolist() == [RATE, RATE // 2]


# `Decode` in pipelines.


def decoded(paths, decode, **settings):
    builder = PipelineBuilder().add_source(paths).pipe(Fetch(), output_order="input")
    return builder.pipe(decode, output_order="input", **settings)


def run(builder):
    pipeline = builder.add_sink().build(num_threads=2)
    with pipeline.auto_stop():
        return list(pipeline)


@needs_ffmpeg
def test_clips_of_a_pipeline_are_those_of_a_loader(folder):
    paths = sorted(str(path) for path in (folder / "videos").glob("*/*.mp4"))
    video = fields.Video(24, frames=3, every=1, random=True, train=True)
    (expected,) = Loader(paths, batch_size=4, seed=9, video=video)
    found = run(decoded(zip(paths, range(4)), Decode(video, seed=9)))
    assert [label for _, label in found] == [0, 1, 2, 3]
    numpy.testing.assert_array_equal(numpy.stack([frames for frames, _ in found]), expected["video"])
    batched = decoded(zip(paths, range(4)), Decode(video, seed=9)).aggregate(BatchImages(4))
    ((frames, labels),) = run(batched)
    numpy.testing.assert_array_equal(frames, expected["video"])
    assert labels.tolist() == [0, 1, 2, 3]


def test_a_call_draws_the_numbers_of_its_index(folder):
    path = folder / "recordings" / "class0" / "1.wav"
    decode = Decode(fields.Audio(channels="mono", frames=100, random=True), seed=2)
    found = run(decoded([str(path)] * 5, decode))
    data = path.read_bytes()
    for index, samples in enumerate(found):
        numpy.testing.assert_array_equal(samples, decode(data, index=index))
    assert len({samples.tobytes() for samples in found}) > 1
    samples, label = decode((data, 7), rng=numpy.random.default_rng(0))
    assert samples.shape == (1, 100) and label == 7
    with pytest.raises(ValueError, match="needs the position of the item"):
        decode(data)


def test_values_have_the_shape_of_their_file(folder):
    paths = sorted(str(path) for path in (folder / "recordings").glob("*/*.wav"))
    found = run(decoded(paths, Decode(fields.Audio())))
    assert [samples.shape for samples in found] == [(1, RATE), (2, RATE // 2)]
    numpy.testing.assert_array_equal(found[0][0, :3] * 32768, [0, 1, 2])


def test_damaged_files_are_failures_of_the_stage(folder, tmp_path, caplog):
    (tmp_path / "bad.wav").write_bytes(b"RIFF....WAVE" + bytes(64))
    good = str(folder / "recordings" / "class0" / "1.wav")
    paths = [good, str(tmp_path / "bad.wav"), good]
    assert len(run(decoded(paths, Decode(fields.Audio())))) == 2
    assert "bad.wav" in caplog.text and "Decode" in caplog.text
    with pytest.raises(PipelineFailure):
        run(decoded(paths, Decode(fields.Audio()), max_failures=0))
    with pytest.raises(TruncatedError, match="^bytes: field \"audio\": ") as raised:
        Decode(fields.Audio())(b"RIFF....WAVE" + bytes(64))
    assert raised.value.key == "bytes"


def test_arguments_of_decode_are_checked():
    with pytest.raises(TypeError, match="DecodeImage decodes images"):
        Decode(fields.Image(8))
    with pytest.raises(TypeError, match="Decode is a class"):
        PipelineBuilder().add_source([1]).pipe(Decode)
    with pytest.raises(TypeError, match="Decode takes the bytes of a file"):
        Decode(fields.Audio())(3)
    assert repr(Decode(fields.Mel())) == "Decode(field=Mel(collate='list'), seed=0)"
    copy = pickle.loads(pickle.dumps(Decode(fields.Mel("fbank"), seed=4)))
    assert copy == Decode(fields.Mel("fbank"), seed=4)


@needs_ffmpeg
def test_doctests(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder / "recordings", "recordings")
    for number in range(2):
        (tmp_path / "videos" / f"class{number}").mkdir(parents=True)
        shutil.copy(VIDEO, tmp_path / "videos" / f"class{number}")
    result = doctest.testmod(_media_loaders)
    assert result.attempted > 4 and result.failed == 0
