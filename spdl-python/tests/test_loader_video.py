"""`fields.Video`, `fields.VideoFrames` and `fields.VideoTimes` of a `Loader`."""

import pathlib
import shutil

import numpy
import pytest
from dataset_files import write_members
from media_files import noise, write_video
from spdl_rs import CorruptError, InvalidArgumentError, Loader, TruncatedError, fields
from spdl_rs.io import FiveCrop, RandomResizedCrop, Resize, Stretch
from spdl_rs.io.utils import get_ffmpeg_versions

# 20 frames of 64 x 48 pixels at 10 frames per second.
SOURCE = pathlib.Path(__file__).parents[2] / "spdl-media" / "tests" / "video" / "h264.mp4"
FRAMES, HEIGHT, WIDTH = 20, 48, 64

pytestmark = pytest.mark.skipif(
    not get_ffmpeg_versions(), reason="spdl_rs was built without FFmpeg"
)


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Six copies of a video in the folders of two classes."""
    folder = tmp_path_factory.mktemp("videos")
    for number in range(6):
        (folder / f"class{number % 2}").mkdir(exist_ok=True)
        shutil.copy(SOURCE, folder / f"class{number % 2}" / f"{number}.mp4")
    (folder / "class0" / "notes.txt").write_text("no video")
    return folder


def whole(**settings):
    """All frames in the size of the video."""
    return fields.Video((HEIGHT, WIDTH), frames=FRAMES, every=1, crop=Stretch(), **settings)


@pytest.fixture(scope="module")
def frames():
    (batch,) = Loader([SOURCE], batch_size=1, video=whole())
    return batch["video"][0]


def clips(source=SOURCE, **settings):
    settings = {"size": (HEIGHT, WIDTH), "crop": Stretch(), **settings}
    (batch,) = Loader([source], batch_size=1, video=fields.Video(**settings), n=fields.VideoFrames(), t=fields.VideoTimes())
    return batch["video"][0], int(batch["n"][0]), batch["t"][0]


def test_frames_differ_and_have_the_shape_of_the_layout(frames):
    assert frames.shape == (FRAMES, HEIGHT, WIDTH, 3)
    assert frames.dtype == "uint8"
    assert len({frame.tobytes() for frame in frames}) == FRAMES
    # The picture of FFmpeg's testsrc: a black corner, and colours.
    assert frames[0].max() > 200
    assert frames[0].std() > 40


def test_frames_of_png_in_mp4_are_those_that_were_encoded(tmp_path):
    # Without the flags of key frames, FFmpeg's decoder of PNG adds each frame to the one before.
    pixels = noise((8, HEIGHT, WIDTH, 3))
    path = write_video(tmp_path / "png.mp4", pixels, "rgb24", "png")
    found, count, _ = clips(path, frames=8, every=1)
    assert count == 8
    assert numpy.array_equal(found, pixels)


@pytest.mark.parametrize(
    ("clip", "indices"),
    [
        ({"frames": 4}, [2, 7, 12, 17]),
        ({"frames": 4, "start": 1.0}, [11, 13, 16, 18]),
        ({"frames": 3, "every": 5}, [0, 5, 10]),
        ({"frames": 3, "every": "0.25s", "start": 0.5}, [5, 7, 10]),
        ({"frames": 5, "fps": 5}, [0, 2, 4, 6, 8]),
        ({"frames": 1}, [10]),
        ({"indices": [0, 7, 7, 19]}, [0, 7, 7, 19]),
        ({"times": numpy.array([0.05, 0.1, 1.99])}, [0, 1, 19]),
    ],
)
def test_clips_have_the_frames_of_their_times(frames, clip, indices):
    video, count, times = clips(**clip)
    assert count == len(indices)
    numpy.testing.assert_array_equal(video, frames[indices])
    numpy.testing.assert_allclose(times, numpy.array(indices) / 10)


def test_short_videos_are_errors_or_repeat_frames(frames):
    clip = {"frames": 6, "every": 4}
    with pytest.raises(InvalidArgumentError, match="the video has 5 of the 6 frames of the clip"):
        clips(**clip)
    video, count, times = clips(**clip, short="repeat")
    assert count == 5
    numpy.testing.assert_array_equal(video, frames[[0, 4, 8, 12, 16, 16]])
    assert times[-1] == times[-2] == 1.6
    video, count, _ = clips(**clip, short="cycle")
    assert count == 5
    numpy.testing.assert_array_equal(video[-1], frames[0])


def test_listed_frames_beyond_the_end_are_errors_or_counted(frames):
    for clip in ({"indices": [3, 19, 20]}, {"times": [0.3, 1.9, 2.0]}):
        with pytest.raises(InvalidArgumentError, match="the video has 2 of the 3 frames of the clip"):
            clips(**clip)
        video, count, _ = clips(**clip, short="repeat")
        assert count == 2
        numpy.testing.assert_array_equal(video, frames[[3, 19, 19]])
    with pytest.raises(InvalidArgumentError, match="20 frames and 2.000 s ends before the first frame"):
        clips(indices=[20], short="repeat")
    field = fields.Video(16, indices=range(3))
    assert field.frames == 3 and eval(repr(field), {"Video": fields.Video, "fields": fields}) == field


def test_layouts_and_types(frames):
    video = fields.Video((HEIGHT, WIDTH), frames=2, every=1, crop=Stretch(), layout="nchw-f32", mean=(0, 0, 0), std=(1, 1, 1))
    (batch,) = Loader([SOURCE], batch_size=1, video=video)
    assert batch["video"].shape == (1, 2, 3, HEIGHT, WIDTH)
    numpy.testing.assert_allclose(batch["video"][0], frames[:2].transpose(0, 3, 1, 2) / 255, atol=1e-6)


def test_all_frames_of_a_clip_have_one_crop_and_flip(frames):
    flipped, _, _ = clips(frames=FRAMES, every=1, horizontal_flip=1.0)
    numpy.testing.assert_array_equal(flipped, frames[:, :, ::-1])
    # A still picture: equal frames stay equal, whatever is drawn.
    settings = dict(frames=2, every=1, crop=RandomResizedCrop(), horizontal_flip=0.5, augment="randaugment(2, 9)")
    loader = Loader([SOURCE], batch_size=1, video=fields.Video(32, **settings), seed=1)
    again = Loader([SOURCE], batch_size=1, video=fields.Video(32, **settings), seed=1)
    first, second = next(iter(loader))["video"][0]
    difference = abs(first.astype(int) - second)
    # The frames show nearly the same picture.
    assert numpy.median(difference) < 16
    numpy.testing.assert_array_equal(next(iter(again))["video"][0][0], first)


def random_clips(source, **settings):
    video = fields.Video(16, frames=4, every=2, random=True, crop=RandomResizedCrop())
    return Loader(
        source, batch_size=2, shuffle=True, seed=3, video=video, key=fields.Key(), label=fields.Label(), **settings
    )


def test_random_clips_are_the_same_for_any_number_of_threads(videos):
    one = list(random_clips(videos, threads=1))
    four = list(random_clips(videos, threads=4))
    assert [batch["key"] for batch in one] == [batch["key"] for batch in four]
    for first, second in zip(one, four):
        numpy.testing.assert_array_equal(first["video"], second["video"])
        assert [key.endswith(("1.mp4", "3.mp4", "5.mp4")) for key in first["key"]] == list(first["label"] == 1)
    # The videos are equal, and their clips differ.
    assert len({clip.tobytes() for batch in one for clip in batch["video"]}) > 1


def test_a_run_resumes_with_the_same_clips(videos):
    expected = list(random_clips(videos))
    loader = random_clips(videos)
    next(iter(loader))
    state = loader.state_dict()
    resumed = random_clips(videos)
    resumed.load_state_dict(state)
    rest = list(resumed)
    assert len(rest) == len(expected) - 1
    for first, second in zip(rest, expected[1:]):
        assert first["key"] == second["key"]
        numpy.testing.assert_array_equal(first["video"], second["video"])


def test_videos_of_tar_shards(tmp_path, frames):
    write_members(tmp_path / "a.tar", [("0.mp4", SOURCE.read_bytes()), ("0.txt", b"colours")])
    video = fields.Video((HEIGHT, WIDTH), frames=2, every=1, crop=Stretch())
    (batch,) = Loader(tmp_path, batch_size=1, video=video, text=fields.Text(stored_as="txt"))
    assert batch["text"] == ["colours"]
    numpy.testing.assert_array_equal(batch["video"][0], frames[:2])


def test_damaged_videos_are_errors_or_black_frames(tmp_path, frames):
    data = SOURCE.read_bytes()
    # `moov` is at the end of the file: the table is lost.
    (tmp_path / "no_table.mp4").write_bytes(data[: len(data) // 2])
    with pytest.raises((TruncatedError, CorruptError), match="no_table.mp4"):
        clips(tmp_path / "no_table.mp4", frames=2)
    front = (SOURCE.parent / "h264_faststart.mp4").read_bytes()
    short = tmp_path / "short.mp4"
    short.write_bytes(front[:-400])
    with pytest.raises(TruncatedError, match=r"short.mp4.*the frame at .* s cannot be decoded"):
        clips(short, frames=FRAMES, every=1)
    loader = Loader([short], batch_size=1, video=whole(on_truncated="partial", min_partial=0.1), n=fields.VideoFrames(), t=fields.VideoTimes())
    (batch,) = loader
    count = int(batch["n"][0])
    assert 0 < count < FRAMES
    assert loader.stats()["partial"] == 1
    black = [not frame.any() for frame in batch["video"][0]]
    assert numpy.isnan(batch["t"][0]).tolist() == black
    assert sum(black) == FRAMES - count
    for found, expected, is_black in zip(batch["video"][0], frames, black):
        assert is_black or (found == expected).all()
    # The frames before the end of the file need no more than before.
    video, _, _ = clips(short, frames=2, every=1)
    numpy.testing.assert_array_equal(video, frames[:2])


@pytest.mark.parametrize(("degrees", "turns"), [(90, 1), (180, 2), (270, -1)])
def test_rotated_videos_are_upright(frames, degrees, turns):
    # As `ffmpeg` and `ffprobe`, which count the degrees counterclockwise.
    rotated = SOURCE.with_name(f"h264_rotated_{degrees}.mp4")
    size = (HEIGHT, WIDTH) if turns == 2 else (WIDTH, HEIGHT)
    video, count, _ = clips(rotated, size=size, frames=5, every=1)
    assert count == 5
    difference = abs(video.astype(int) - numpy.rot90(frames[:5], turns, axes=(1, 2)))
    # Rounding of each plane depends on the order of the axes.
    assert difference.max() <= 4 and difference.mean() < 0.5


def test_a_sample_without_its_video_has_zeros(tmp_path):
    write_members(tmp_path / "a.tar", [("0.txt", b"no video"), ("1.txt", b"a video"), ("1.mp4", SOURCE.read_bytes())])
    video = fields.Video(16, frames=2, every=5, optional=True)
    loader = Loader(tmp_path, batch_size=2, video=video, n=fields.VideoFrames(), t=fields.VideoTimes(), key=fields.Key())
    (batch,) = loader
    absent, present = batch["video"]
    assert not absent.any() and present.any()
    assert batch["n"].tolist() == [0, 2]
    assert batch["t"].tolist() == [[0, 0], [0, 0.5]]


def test_varying_sizes_are_a_list():
    video = fields.Video(frames=2, crop=Resize(24))
    (batch,) = Loader([SOURCE], batch_size=1, video=video)
    (clip,) = batch["video"]
    assert clip.shape == (2, 24, 32, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fields.Video(frames=0), "frames"),
        (lambda: fields.Video(every="0.5"), 'seconds such as "0.5s"'),
        (lambda: fields.Video(every="0s"), 'seconds such as "0.5s"'),
        (lambda: fields.Video(every=0), "every"),
        (lambda: fields.Video(every=2, fps=3), "exclude each other"),
        (lambda: fields.Video(fps=0), "fps must be above 0"),
        (lambda: fields.Video(indices=[]), "indices must be numbers of at least 0, in ascending order"),
        (lambda: fields.Video(indices=[2, 1]), "indices must be numbers"),
        (lambda: fields.Video(indices=[-1]), "indices"),
        (lambda: fields.Video(times=[float("nan")]), "times must be numbers"),
        (lambda: fields.Video(times=[1], indices=[1]), "indices and times exclude each other"),
        (lambda: fields.Video(times=[1], every=2), "times and every exclude each other"),
        (lambda: fields.Video(times=[1], random=True), "times and random exclude each other"),
        (lambda: fields.Video(indices=[1], frames=2), "frames must be omitted with indices, which are 1, not 2"),
        (lambda: fields.Video(indices=[1], frames=16), "frames must be omitted with indices, which are 1, not 16"),
        (lambda: fields.Video(times=[1, 2], frames=16), "frames must be omitted with times, which are 2, not 16"),
        (lambda: fields.Video(start=-1), "start must be at least 0"),
        (lambda: fields.Video(short="loop"), "short"),
        (lambda: fields.Video(exact=True), "exact=True is not supported for video"),
        (lambda: fields.Video(crop=FiveCrop()), "several crops of a frame"),
        (lambda: Loader("x", batch_size=1, n=fields.VideoFrames()), 'no field "video"'),
    ],
)
def test_invalid_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_number_of_frames_is_16_or_that_of_the_list():
    assert fields.Video().frames == fields.Video(frames=16).frames == 16
    listed = fields.Video(indices=[1, 5])
    assert listed.frames == 2 and listed == fields.Video(indices=[1, 5], frames=2)


@pytest.mark.parametrize("name", ["h264.mkv", "vp9.webm", "mpeg4.avi", "h264.ts", "h264_fragmented.mp4"])
def test_videos_that_end_early_are_errors_or_partial(tmp_path, name):
    data = (SOURCE.parent / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) * 5 // 6])
    for settings in ({"every": 1, "frames": FRAMES}, {"frames": 2}, {"frames": 2, "fps": 10}):
        with pytest.raises(TruncatedError, match=f"{name}.*the file ends before its container does"):
            clips(tmp_path / name, **settings)
    for settings, count in (({"every": 1, "frames": FRAMES}, None), ({"frames": 2}, 2)):
        video = fields.Video((HEIGHT, WIDTH), on_truncated="partial", min_partial=0.1, **settings)
        loader = Loader([tmp_path / name], batch_size=1, video=video, n=fields.VideoFrames())
        (batch,) = loader
        assert loader.stats()["partial"] == 1
        if count is None:
            assert 0 < int(batch["n"][0]) < FRAMES
            assert not batch["video"][0, -1].any()


def test_a_damaged_video_needs_a_share_of_its_frames(tmp_path):
    (tmp_path / "short.mp4").write_bytes((SOURCE.parent / "h264_faststart.mp4").read_bytes()[:-400])
    video = whole(on_truncated="partial", min_partial=1.0)
    with pytest.raises(CorruptError, match="a share below the minimum of 1"):
        list(Loader([tmp_path / "short.mp4"], batch_size=1, video=video))
