"""`VideoLoader` and `AudioLoader`: `Loader` with the fields of clips and of waveforms."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex, TypedDict

from . import _arguments as check
from ._arguments import Path
from ._failure_policy import OnError
from ._loader import Loader, converter
from .usage import log_api_usage_once

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._tables import Source
    from .fields import Audio, Field


class VideoBatch(NamedTuple):
    """A batch of `VideoLoader`.

    Attributes:
        frames: `uint8 [N, frames, height, width, 3]`, or as `layout` determines.
        times: When the frames are presented, `float64 [N, frames]`, in seconds from the first frame of the video.
        labels: `int64 [N]`, indices into `classes`, or -1.
    """

    frames: Any
    times: Any
    labels: Any


class AudioBatch(NamedTuple):
    """A batch of `AudioLoader`.

    Attributes:
        samples: `float32 [N, channels, frames]`, where ±1 is full scale; with `mel`, `float32 [N, mel, frames // 160]`.
        lengths: The number of frames of each recording, without padding, `int64 [N]`; a *frame* is one sample of each
            channel. With `mel`, the number of windows.
        labels: `int64 [N]`, indices into `classes`, or -1.
    """

    samples: Any
    lengths: Any
    labels: Any


class LoaderOptions(TypedDict, total=False):
    """Arguments of `Loader` that `VideoLoader` and `AudioLoader` accept."""

    seed: SupportsIndex
    threads: SupportsIndex | None
    on_error: OnError
    drop_last: bool
    rank: SupportsIndex | Literal["auto"] | None
    world_size: SupportsIndex | None
    remainder: Literal["drop", "pad", "uneven"]
    cache: Path | None
    cache_size: SupportsIndex
    cache_memory: SupportsIndex
    max_file_bytes: SupportsIndex
    sequential: bool
    sequential_memory: SupportsIndex
    memory_budget: SupportsIndex | None
    tune: bool | Path | None
    monitor: Path | None


class _MediaLoader(Loader):
    """A loader of one medium with labels, in batches of the class `batch`."""

    def _open_media(
        self,
        source: Source,
        fields: dict[str, Field],
        batch: type[VideoBatch | AudioBatch],
        output: Any,
        options: dict[str, Any],
        *,
        label_field: str | None,
        classes: Iterable[str] | None,
        **settings: Any,
    ) -> None:
        from .fields import Label

        log_api_usage_once(f"spdl_rs.{self._NAME}")
        unknown = sorted(set(options) - set(LoaderOptions.__annotations__))
        if unknown:
            raise TypeError(
                f"{self._NAME} has no argument {unknown[0]!r}; for other fields and functions, use spdl_rs.Loader"
            )
        check.choice("output", output, ("numpy", "torch", "jax"))
        convert = None if output == "numpy" else converter(output, fields)
        labels = Label(stored_as=label_field, classes=check.names("classes", classes))
        Loader.__init__(
            self,
            source,
            {**fields, "labels": labels},
            output=functools.partial(_batch_of, batch, convert),
            **settings,
            **options,
        )


def _batch_of(
    batch: type[VideoBatch | AudioBatch],
    convert: Callable[[dict[str, Any]], Any] | None,
    **values: Any,
) -> Any:
    from .fields import Padded

    # The lengths of padded recordings are a separate field.
    values = {
        name: value.values if isinstance(value, Padded) else value for name, value in values.items()
    }
    return batch(**(values if convert is None else convert(values)))


class VideoLoader(_MediaLoader):
    """Batches of clips of videos. Rust threads decode only the packets that the frames of a clip need.

    Each `iter(loader)` is one epoch and yields `VideoBatch(frames, times, labels)`, a named tuple:

    - `frames`: `uint8 [N, frames, size, size, 3]`, RGB, or as `layout` determines;
    - `times`: when the frames are presented, `float64 [N, frames]`, in seconds from the first frame of the video;
    - `labels`: `int64 [N]`, as those of `ImageLoader`.

    Order, resume, ranks, stores, shards, errors and statistics are those of `ImageLoader`. Other fields of a sample,
    such as its sound or a caption, and augmentations, need `Loader` with `fields.Video`.

    Args:
        source: Where the videos are: a folder, whose subfolders are the classes, or any source of `ImageLoader`.
        batch_size: Clips per batch, at least 1.
        size: Width and height of the frames in pixels, or (height, width).
        frames: The number of frames of a clip.
        every: The distance of the frames: seconds as text (`"0.5s"`), or a number of frames. Default: the frames are
            spread evenly over the video.
        fps: Frames per second of a clip, instead of `every`.
        train: Whether to augment: clips at random positions, each with one random crop and one random flip for all of
            its frames, as `ImageLoader` draws them.
        layout: `"nhwc-u8"`, or another layout of `ImageLoader`; the layouts that begin with `nchw` give
            `[N, frames, 3, size, size]`.
        short: What to do with a video that has fewer frames: `"error"`, `"repeat"` the last frame, or `"cycle"`.
        on_truncated: `"error"`, or `"partial"`: frames that cannot be decoded are filled with 0, and their time is NaN.
        shuffle: Whether each epoch has a different order. `None`: the value of `train`.
        video_field: The field of a sample that holds the video; for a list of files, the column of file names. `None`:
            the common names, such as `mp4`, `webm`, `video`, `file`.
        label_field, classes: See `ImageLoader`.
        output: The arrays of a batch: `"numpy"`, `"torch"` or `"jax"`.
        options: `seed`, `threads`, `on_error`, `drop_last`, `rank`, `world_size`, `remainder`, `cache`, `cache_size`,
            `cache_memory`, `max_file_bytes`, `sequential`, `sequential_memory`, `memory_budget`, `tune` and `monitor`:
            see `ImageLoader`.

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range.
        UnsupportedError: During iteration, if `spdl_rs` was built without FFmpeg.

    Opening the data set and iterating raise the exceptions of `ImageLoader`.

    >>> from spdl_rs import VideoLoader
    >>> loader = VideoLoader("videos", batch_size=2, size=32, frames=4)
    >>> for batch in loader:
    ...     print(batch.frames.shape, batch.frames.dtype, batch.times[0].round(2), batch.labels)
    (2, 4, 32, 32, 3) uint8 [0.2 0.7 1.2 1.7] [0 1]
    """

    _NAME = "VideoLoader"
    _SAMPLES = "clips"

    def __init__(
        self,
        source: Source,
        *,
        batch_size: SupportsIndex,
        size: int | tuple[int, int] = 224,
        frames: SupportsIndex = 16,
        every: str | SupportsIndex | None = None,
        fps: float | None = None,
        train: bool = False,
        layout: Literal[
            "nhwc-u8", "nhwc-f16", "nhwc-f32", "nchw-u8", "nchw-f16", "nchw-f32"
        ] = "nhwc-u8",
        short: Literal["error", "repeat", "cycle"] = "error",
        on_truncated: Literal["error", "partial"] = "error",
        shuffle: bool | None = None,
        video_field: str | None = None,
        label_field: str | None = None,
        classes: Iterable[str] | None = None,
        output: Literal["numpy", "torch", "jax"] = "numpy",
        **options: Unpack[LoaderOptions],
    ) -> None:
        from .fields import Video, VideoTimes

        train = check.flag("train", train)
        video = Video(
            size,
            frames=frames,
            every=every,
            fps=fps,
            random=train,
            train=train,
            layout=layout,
            short=short,
            on_truncated=on_truncated,
            stored_as=video_field,
        )
        self._open_media(
            source,
            {"frames": video, "times": VideoTimes(like="frames")},
            VideoBatch,
            output,
            dict(options),
            label_field=label_field,
            classes=classes,
            batch_size=batch_size,
            shuffle=train if shuffle is None else shuffle,
        )


class AudioLoader(_MediaLoader):
    """Batches of waveforms, or of log-mel spectrograms. Rust threads decode only the part that a sample needs.

    Each `iter(loader)` is one epoch and yields `AudioBatch(samples, lengths, labels)`, a named tuple:

    - `samples`: `float32 [N, channels, frames]`, where ±1 is full scale; with `mel`, `float32 [N, mel, frames // 160]`.
      Shorter recordings are padded with zeros at their end;
    - `lengths`: the number of frames of each recording without padding, `int64 [N]`. A *frame* is one sample of each
      channel. With `mel`, the number of windows, one for each 160 frames;
    - `labels`: `int64 [N]`, as those of `ImageLoader`.

    Order, resume, ranks, stores, shards, errors and statistics are those of `ImageLoader`. Other fields of a sample,
    such as a transcript, and other features, need `Loader` with `fields.Audio` or `fields.Mel`.

    Args:
        source: Where the recordings are: a folder, whose subfolders are the classes, or any source of `ImageLoader`.
        batch_size: Recordings per batch, at least 1.
        sample_rate: Frames per second; files with another rate are resampled.
        channels: `"mono"`: the mean of the channels. `"all"`: those of the file. A number: that of the file must be
            equal.
        seconds: The duration of every sample: longer recordings end earlier, shorter ones are padded. `None`: whole
            recordings, padded to the longest one of the batch.
        mel: The number of bins of log-mel spectrograms as OpenAI's Whisper computes them, 80 or 128. `None`: waveforms.
            Needs `sample_rate=16_000` and `channels="mono"`.
        train: With `seconds`: whether longer recordings begin at a random frame.
        on_truncated: `"error"`, or `"partial"`: the frames of a truncated file are used.
        shuffle: Whether each epoch has a different order. `None`: the value of `train`.
        audio_field: The field of a sample that holds the recording; for a list of files, the column of file names.
            `None`: the common names, such as `wav`, `flac`, `mp3`, `audio`, `file`.
        label_field, classes: See `ImageLoader`.
        output: The arrays of a batch: `"numpy"`, `"torch"` or `"jax"`.
        options: As for `VideoLoader`.

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range.

    Opening the data set and iterating raise the exceptions of `ImageLoader`.

    >>> from spdl_rs import AudioLoader
    >>> loader = AudioLoader("recordings", batch_size=2)
    >>> for batch in loader:
    ...     print(batch.samples.shape, batch.lengths, batch.labels)
    (2, 1, 16000) [16000  8000] [0 1]
    >>> loader = AudioLoader("recordings", batch_size=2, seconds=0.75, mel=80, train=True)
    >>> loader.peek().samples.shape
    (2, 80, 75)
    """

    _NAME = "AudioLoader"
    _SAMPLES = "recordings"

    def __init__(
        self,
        source: Source,
        *,
        batch_size: SupportsIndex,
        sample_rate: SupportsIndex = 16_000,
        channels: Literal["mono", "all"] | SupportsIndex = "mono",
        seconds: float | None = None,
        mel: Literal[80, 128] | None = None,
        train: bool = False,
        on_truncated: Literal["error", "partial"] = "error",
        shuffle: bool | None = None,
        audio_field: str | None = None,
        label_field: str | None = None,
        classes: Iterable[str] | None = None,
        output: Literal["numpy", "torch", "jax"] = "numpy",
        **options: Unpack[LoaderOptions],
    ) -> None:
        from .fields import Audio, AudioFrames, Mel

        train = check.flag("train", train)
        rate = check.whole("sample_rate", sample_rate, 1, 2**32 - 1)
        frames = None if seconds is None else _frames(seconds, rate)
        arguments: dict[str, Any] = {
            "sample_rate": rate,
            "channels": channels,
            "frames": frames,
            "random": train and frames is not None,
            "on_truncated": on_truncated,
            "stored_as": audio_field,
            "collate": "pad" if frames is None or channels == "all" else "stack",
        }
        if mel is None:
            samples: Audio = Audio(**arguments)
        else:
            if mel not in (80, 128):
                raise ValueError(f"mel must be 80, 128 or None, not {check.shown(mel)}")
            if rate != 16_000 or channels != "mono":
                raise ValueError(
                    'mel needs sample_rate=16_000 and channels="mono"; fields.Mel of Loader has other spectrograms'
                )
            samples = Mel(bins=mel, **arguments)
        self._open_media(
            source,
            {"samples": samples, "lengths": AudioFrames(like="samples")},
            AudioBatch,
            output,
            dict(options),
            label_field=label_field,
            classes=classes,
            batch_size=batch_size,
            shuffle=train if shuffle is None else shuffle,
        )


def _frames(seconds: Any, rate: int) -> int:
    seconds = check.real("seconds", seconds)
    if not 0.5 <= seconds * rate < 2**31:
        raise ValueError(
            f"seconds must be at least one frame and less than 2**31 frames of {rate} Hz, not {seconds}"
        )
    return round(seconds * rate)
