"""`fields.Audio`, `fields.Mel` and `fields.AudioFrames` of a `Loader`."""

import math
import wave

import numpy
import pytest
from dataset_files import write_members
from spdl_rs import InvalidArgumentError, Loader, TruncatedError, fields

RATE = 8000
COUNT = 12


def samples_of(number):
    """Two channels of 16-bit samples; files differ in length."""
    time = numpy.arange(RATE // 4 + 200 * number) / RATE
    left = numpy.sin(2 * math.pi * (200 + 40 * number) * time)
    return numpy.round(numpy.stack([left, left[::-1] / 2]) * 20_000).astype("i2")


def write_wav(path, samples):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(len(samples))
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.T.tobytes())


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    """Audio files in the folders of two classes."""
    folder = tmp_path_factory.mktemp("speech")
    for number in range(COUNT):
        (folder / f"class{number % 2}").mkdir(exist_ok=True)
        write_wav(folder / f"class{number % 2}" / f"{number:02}.wav", samples_of(number))
    (folder / "class0" / "notes.txt").write_text("no audio")
    return folder


def numbers(batch):
    return [int(key.rsplit("/", 1)[-1].split(".")[0]) for key in batch["key"]]


def test_whole_files_have_their_samples(speech):
    loader = Loader(speech, batch_size=5, audio=fields.Audio(), n=fields.AudioFrames(), key=fields.Key())
    seen = []
    for batch in loader:
        for number, audio, frames in zip(numbers(batch), batch["audio"], batch["n"]):
            expected = samples_of(number)
            assert audio.dtype == numpy.float32 and frames == expected.shape[1]
            numpy.testing.assert_array_equal(audio, expected.astype("f4") / 32768)
            seen.append(number)
    assert sorted(seen) == list(range(COUNT))
    assert loader.spec["audio"] == ((None, None), "float32", "list")
    assert loader.classes == ["class0", "class1"]


def test_samples_of_one_length_are_cut_or_padded(speech):
    settings = dict(channels="mono", frames=2500, dtype="int16", layout="interleaved")
    loader = Loader(speech, batch_size=4, audio=fields.Audio(**settings), n=fields.AudioFrames(), key=fields.Key())
    for batch in loader:
        assert batch["audio"].shape == (4, 2500, 1) and batch["audio"].dtype == numpy.int16
        for number, audio, frames in zip(numbers(batch), batch["audio"][..., 0], batch["n"]):
            mean = samples_of(number).astype("f8").mean(axis=0)[:2500]
            assert frames == len(mean)
            assert abs(audio[: len(mean)] - mean).max() <= 0.5 and not audio[len(mean) :].any()


def test_parts_channels_and_padding(speech):
    part = fields.Audio(start=0.1, duration=0.05, channel=1, collate="pad")
    (batch,) = Loader(speech, batch_size=COUNT, audio=part, key=fields.Key())
    assert batch["audio"].values.shape == (COUNT, 1, 400)
    assert (batch["audio"].sizes == 400).all()
    for number, audio in zip(numbers(batch), batch["audio"].values[:, 0]):
        numpy.testing.assert_array_equal(audio, samples_of(number)[1, 800:1200].astype("f4") / 32768)


def test_ragged_samples_are_joined_along_their_frames(speech):
    whole = fields.Audio(layout="interleaved", channels=2, collate="ragged")
    features = {"mel": fields.Mel("fbank"), "ragged": fields.Mel("fbank", collate="ragged")}
    loader = Loader(speech, batch_size=5, audio=whole, n=fields.AudioFrames(), key=fields.Key(), **features)
    for batch in loader:
        values, offsets = batch["audio"]
        assert values.dtype == "float32" and values.shape == (batch["n"].sum(), 2)
        for number, first, last in zip(numbers(batch), offsets[:-1], offsets[1:], strict=True):
            numpy.testing.assert_array_equal(values[first:last], samples_of(number).T.astype("f4") / 32768)
        numpy.testing.assert_array_equal(batch["ragged"].values, numpy.concatenate(batch["mel"]))
        assert numpy.diff(batch["ragged"].offsets).tolist() == [len(one) for one in batch["mel"]]
    assert loader.spec["audio"] == ((None, 2), "float32", "ragged")
    for settings, message in [
        ({}, 'needs layout="interleaved"'),
        ({"layout": "interleaved"}, "channels or channel"),
        ({"layout": "interleaved", "channels": "mono", "frames": 100}, "drop frames"),
    ]:
        with pytest.raises(ValueError, match=message):
            fields.Audio(collate="ragged", **settings)
    with pytest.raises(ValueError, match='needs style="fbank" or "mfcc"'):
        fields.Mel(collate="ragged")


def test_another_sample_rate_keeps_the_signal(speech):
    audio = fields.Audio(sample_rate=16_000, channel=0)
    (batch,) = Loader(speech, batch_size=COUNT, audio=audio, key=fields.Key())
    for number, audio in zip(numbers(batch), batch["audio"]):
        time = numpy.arange(audio.shape[1]) / 16_000
        expected = numpy.sin(2 * math.pi * (200 + 40 * number) * time) * 20_000 / 32768
        # At the ends, the filter meets zeros.
        assert abs(audio[0] - expected)[20:-20].max() < 0.01


def run(speech, threads, *, state=None, steps=None):
    loader = Loader(
        speech,
        batch_size=2,
        shuffle=True,
        seed=5,
        threads=threads,
        audio=fields.Audio(channels="mono", frames=600, random=True),
        mel=fields.Mel("fbank", sample_rate=RATE, frames=600, random=True),
        key=fields.Key(),
    )
    if state is not None:
        loader.load_state_dict(state)
    batches = []
    for batch in loader:
        batches.append([batch["key"], batch["audio"].tobytes(), batch["mel"].tobytes()])
        if len(batches) == steps:
            return batches, loader.state_dict()
    return batches, None


def test_random_parts_do_not_depend_on_threads_or_resume(speech):
    whole, _ = run(speech, 1)
    assert run(speech, 3)[0] == whole
    for steps in (1, 4):
        first, state = run(speech, 2, steps=steps)
        assert first + run(speech, 1, state=state)[0] == whole
    audio = numpy.frombuffer(whole[0][1], "f4").reshape(2, 600)
    number = numbers({"key": whole[0][0]})[0]
    mean = (samples_of(number).astype("f4") / 32768).mean(axis=0, dtype="f4")
    starts = [at for at in range(len(mean) - 599) if abs(mean[at : at + 600] - audio[0]).max() < 1e-6]
    assert starts


def test_a_state_belongs_to_the_part_of_the_audio(speech):
    loader = Loader(speech, batch_size=2, audio=fields.Audio(start=0.1))
    next(iter(loader))
    other = Loader(speech, batch_size=2, audio=fields.Audio(start=0.2))
    with pytest.raises(InvalidArgumentError, match=r"audio: was audio \(.*from 0.1 s"):
        other.load_state_dict(loader.state_dict())
        list(other)


def test_audio_in_tar_shards_and_lists(speech, tmp_path):
    files = sorted(speech.rglob("*.wav"))
    write_members(tmp_path / "shard.tar", [(path.name, path.read_bytes()) for path in files])
    settings = dict(batch_size=COUNT, audio=fields.Audio(frames=100, channels=2), key=fields.Key())
    (sharded,) = Loader(tmp_path / "shard.tar", **settings)
    (listed,) = Loader([str(path) for path in files], **settings)
    numpy.testing.assert_array_equal(sharded["audio"], listed["audio"])
    assert [key.rsplit(":")[-1] for key in sharded["key"]] == [path.stem for path in files]


def voice():
    """A second of silence, one of five vowels, and one of silence."""
    time = numpy.arange(RATE) / RATE
    pitch, phase = 140 - 30 * time, 2 * math.pi * (140 * time - 15 * time**2)
    sound = numpy.zeros(RATE)
    for number in range(1, 27):
        gains = [
            gain / (1 + ((number * pitch - formant) / width) ** 2)
            for formant, width, gain in [(730, 90, 1.0), (1090, 110, 0.5), (2440, 170, 0.25)]
        ]
        sound += sum(gains) * numpy.sin(number * phase)
    sound *= 3000 * numpy.sin(math.pi * (5 * time % 1))
    return numpy.concatenate([numpy.zeros(RATE), sound, numpy.zeros(RATE)]).round().astype("i2")[None]


def test_samples_are_trimmed_to_speech(tmp_path):
    write_wav(tmp_path / "voice.wav", voice())
    audio = fields.Audio(trim_to_speech=0.5)
    (batch,) = Loader(tmp_path, batch_size=1, audio=audio, n=fields.AudioFrames())
    (found,) = batch["audio"]
    assert 0.9 * RATE < found.shape[1] < 1.4 * RATE and batch["n"] == [found.shape[1]]
    assert "trim_to_speech=0.5" in repr(audio)
    write_wav(tmp_path / "voice.wav", voice()[:, :RATE])
    with pytest.raises(InvalidArgumentError, match="no speech"):
        list(Loader(tmp_path, batch_size=1, audio=audio))
    for wrong in (0, 1, math.nan):
        with pytest.raises(ValueError, match="trim_to_speech must be above 0 and below 1"):
            fields.Audio(trim_to_speech=wrong)


def test_damaged_files_are_errors_or_dropped(speech, tmp_path):
    for number in range(4):
        write_wav(tmp_path / f"{number}.wav", samples_of(number))
    cut = (tmp_path / "2.wav").read_bytes()[:2000]
    (tmp_path / "2.wav").write_bytes(cut)
    with pytest.raises(TruncatedError, match=r"2\.wav: field \"audio\": truncated WAV"):
        list(Loader(tmp_path, batch_size=4, audio=fields.Audio()))
    loader = Loader(tmp_path, batch_size=4, audio=fields.Audio(), on_error="skip")
    assert [len(batch["audio"]) for batch in loader] == [3]
    assert len(loader.stats()["dropped"]) == 1
    partial = fields.Audio(on_truncated="partial")
    loader = Loader(tmp_path, batch_size=4, audio=partial, n=fields.AudioFrames())
    (batch,) = loader
    assert list(batch["n"]) == [2000, 2200, (2000 - 44) // 4, 2600]
    assert loader.stats()["partial"] == 1


def test_features_have_the_shape_of_their_padded_audio(speech):
    shapes = {
        fields.Mel(frames=16_000): (80, 100),
        fields.Mel(bins=128, frames=16_000, dtype="float16"): (128, 100),
        fields.Mel("fbank", frames=16_000): (98, 23),
        fields.Mel("mfcc", frames=16_000, channel=1): (98, 13),
        fields.Mel("spectrogram", size=512, hop=256, frames=16_000): (257, 63),
    }
    for mel, shape in shapes.items():
        loader = Loader(speech, batch_size=3, mel=mel, n=fields.AudioFrames(like="mel"))
        batch = loader.peek()
        assert batch["mel"].shape == (3, *shape) and numpy.isfinite(batch["mel"]).all()
        assert loader.spec["mel"].shape == shape
        # The padding has no windows: of 4000, 4800 and 5600 samples, windows begin every 160 or 256.
        windows = {"whisper": [25, 30, 35], "spectrogram": [16, 19, 22]}
        assert batch["n"].tolist() == windows.get(mel.style, [23, 28, 33])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fields.Audio(random=True), "random=True needs frames"),
        (lambda: fields.Audio(start=-1), "start must be at least 0"),
        (lambda: fields.Audio(duration=0), "duration must be above 0"),
        (lambda: fields.Audio(channels="stereo"), 'channels must be "all" or "mono"'),
        (lambda: fields.Audio(channels=2, channel=1), "exclude each other"),
        (lambda: fields.Audio(collate="stack"), "needs frames"),
        (lambda: fields.Mel(layout="interleaved"), "no argument layout"),
        (lambda: Loader("x", batch_size=1, mel=fields.Mel(sample_rate=8000)), "sample rate of 16000"),
        (lambda: fields.Mel(channels=2), "Mel needs one channel, .*not channels=2"),
        (lambda: fields.Mel(channels="all"), "Mel needs one channel, .*not channels='all'"),
        (lambda: fields.Mel(dtype="int16"), "dtype=.int16. is for samples of audio; style='whisper'"),
        (lambda: fields.Mel("spectrogram", bins=80), "bins=80 has no effect on style='spectrogram'"),
        (lambda: fields.Mel(scale=2), "scale=2 has no effect on style='whisper'"),
        (lambda: fields.Mel("spectrogram", scale=2), "scale=2 has no effect on style='spectrogram'"),
        (lambda: fields.Mel("fbank", size=512), "size=512 has no effect on style='fbank'; it is for style=.spectrogram."),
        (lambda: fields.Mel("mfcc", hop=80), "hop=80 has no effect on style='mfcc'"),
        (lambda: Loader("x", batch_size=1, n=fields.AudioFrames()), 'no field "audio"'),
    ],
)
def test_invalid_arguments_are_errors(make, message):
    with pytest.raises((ValueError, InvalidArgumentError), match=message):
        make()
