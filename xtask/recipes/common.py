"""Common code of the programs of `cargo xtask bench recipes`, `audio` and `video`: arguments, timing, results, captions.

All programs of a task yield batches with arrays of the same shapes and dtypes, from the same stored samples: 32
images, audio files or windows, 6 clips, all frames of one video, or 8 packed sequences. Random numbers differ. Time is measured from the construction of the loader to its
last batch, with worker start-up but without imports. CPU time is that of the process and of its worker processes
that have ended.
"""

import argparse
import importlib
import json
import os
import resource
import time
import zlib

BATCH = 32
CLASSES = 1000
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Sides of the images of the tasks.
CLASSIFICATION, DETECTION, SEGMENTATION = 224, 640, 512
# The shape of the images of each task.
SHAPES = {
    "deit": (3, CLASSIFICATION, CLASSIFICATION),
    "simclr": (3, CLASSIFICATION, CLASSIFICATION),
    "dino": (3, CLASSIFICATION, CLASSIFICATION),
    "detection": (3, DETECTION, DETECTION),
    "segmentation": (3, SEGMENTATION, SEGMENTATION),
    "clip": (3, CLASSIFICATION, CLASSIFICATION),
}
# Seconds and sample rate of the audio of each task; the sample rate of `whisper` is that of the model.
SECONDS = 10
RATES = {"wav": 44_100, "flac": 44_100, "mp3": 44_100, "whisper": 16_000}
# The task with random windows of one long file: its seconds and sample rate, and the windows, of 1 second.
WINDOWS, HOUR, HOUR_RATE, WINDOW_COUNT = "flac-windows", 3600, 16_000, 10_000
AUDIO = [*RATES, WINDOWS]
# Width, height and number of the videos of each size, the frames of each, and the videos of a batch.
VIDEOS = {"360p": (640, 360, 24), "1080p": (1920, 1080, 6)}
VIDEO_FRAMES, CLIP_FRAMES = 300, 16
SMALL_VIDEOS = 1000
# The size of the videos of each task; which frames: spread evenly, every fourth one from a random position, or all; and
# the clips of a batch.
VIDEO_TASKS = {
    "video360": ("360p", "even", 6),
    "video1080": ("1080p", "even", 6),
    "windows": ("360p", "window", 6),
    "windows1080": ("1080p", "window", 6),
    "sequential": ("360p", "all", 1),
}
TOKENS = 77
# The length of packed sequences in tokens, and how many are in a batch.
CAPACITY, SEQUENCES = 2048, 8


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=[*SHAPES, *AUDIO, *VIDEO_TASKS, "packing"])
    parser.add_argument("data", help="a folder written by data.py")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


def stems(folder):
    """The paths of the samples without their extensions."""
    files = os.path.join(folder, "files")
    names = sorted(name for name in os.listdir(files) if name.endswith(".jpg"))
    return [os.path.join(files, name.removesuffix(".jpg")) for name in names]


def shards(folder):
    return sorted(
        os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".tar")
    )


def audio_files(folder, task):
    """The paths of the audio files of a task."""
    folder = os.path.join(folder, "audio", task)
    return sorted(os.path.join(folder, name) for name in os.listdir(folder))


def video_files(folder, task):
    """The paths of the videos of a task."""
    return videos(folder, VIDEO_TASKS[task][0])


def videos(folder, size):
    """The paths of the videos of a size."""
    folder = os.path.join(folder, "video", size)
    return sorted(os.path.join(folder, name) for name in os.listdir(folder))


def frame_count(task):
    """The number of frames of a clip."""
    return VIDEO_FRAMES if VIDEO_TASKS[task][1] == "all" else CLIP_FRAMES


def video_frames(task, draw):
    """The frames of a clip: spread evenly, every fourth from a random one on, or all."""
    frames = VIDEO_TASKS[task][1]
    if frames == "all":
        return list(range(VIDEO_FRAMES))
    if frames == "window":
        start = draw.randrange(VIDEO_FRAMES - 4 * (CLIP_FRAMES - 1))
        return list(range(start, start + 4 * CLIP_FRAMES, 4))
    return [(2 * i + 1) * VIDEO_FRAMES // (2 * CLIP_FRAMES) for i in range(CLIP_FRAMES)]


def token_table(folder):
    """The tokens of the samples: a memory-mapped Arrow table with one column of lists of `int32`."""
    import pyarrow

    return pyarrow.ipc.open_file(pyarrow.memory_map(os.path.join(folder, "tokens.arrow"))).read_all()


def tokenize(caption):
    """A tokenizer in Python: hashes of words and of their three-letter prefixes, 77 numbers."""
    tokens = [1]
    for word in caption.lower().split():
        word = "".join(letter for letter in word if letter.isalnum())
        for part in (word[:3], word[3:]):
            if part:
                tokens.append(2 + zlib.crc32(part.encode()) % 49_000)
    tokens = tokens[:TOKENS]
    return tokens + [0] * (TOKENS - len(tokens))


def import_all(modules):
    """Imports modules before time is measured. Upstream's native modules are loaded by their first use."""
    for name in modules:
        module = importlib.import_module(name)
        if name == "spdl.io":
            module.demux_config()


def _cpu_seconds():
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Images:
    """Checks batches of images: tuples of arrays or lists, the first `float32 [N, 3, height, width]`."""

    def __init__(self, task):
        self.shape, self.samples, self.total = SHAPES[task], 0, 0.0

    def add(self, batch):
        images = batch[0]
        assert tuple(images.shape[1:]) == self.shape, images.shape
        assert "float32" in str(images.dtype), images.dtype
        assert all(len(part) == len(images) for part in batch), [len(part) for part in batch]
        self.samples += len(images)
        # Reads one pixel of each image as a cheap check.
        centre = images[:, :, images.shape[2] // 2, images.shape[3] // 2]
        self.total += float(centre.mean()) * len(images)

    def report(self):
        return {"mean_centre": self.total / max(self.samples, 1)}


class Audio:
    """Checks batches of audio: `float32 [N, 1, frames]`, or log-mel spectrograms `float32 [N, 80, 1000]`."""

    def __init__(self, task):
        if task == "whisper":
            self.shape = (80, SECONDS * 100)
        else:
            self.shape = (1, HOUR_RATE if task == WINDOWS else SECONDS * RATES[task])
        self.samples, self.total = 0, 0.0

    def add(self, batch):
        assert tuple(batch.shape[1:]) == self.shape, batch.shape
        assert "float32" in str(batch.dtype), batch.dtype
        self.samples += len(batch)
        self.total += float(abs(batch[:, :, 100]).mean()) * len(batch)

    def report(self):
        return {"mean_of_one_frame": self.total / max(self.samples, 1)}


class Clips:
    """Checks batches of clips: `uint8 [N, frames, 224, 224, 3]`."""

    def __init__(self, task):
        self.shape = (frame_count(task), CLASSIFICATION, CLASSIFICATION, 3)
        self.samples, self.total = 0, 0.0

    def add(self, batch):
        assert batch.shape[1:] == self.shape, batch.shape
        assert batch.dtype == "uint8", batch.dtype
        self.samples += len(batch)
        self.total += float(batch[:, :, ::8, ::8].mean()) * len(batch)

    def report(self):
        return {"mean": self.total / max(self.samples, 1)}


class Packed:
    """Checks batches of packed sequences: tokens, position ids, and the boundaries of samples.

    Tokens and position ids are `int64 [N, CAPACITY]`. Boundaries are `cu_seqlens` for FlashAttention, `int32`: the
    start of each sample in the flattened tokens, and the end of the last one. The padding of a sequence is one more
    part. Tokens are positive, and padding is 0.
    """

    def __init__(self, task):
        self.samples, self.tokens, self.places = 0, 0, 0

    def add(self, batch):
        tokens, positions, boundaries = batch
        assert tokens.shape == positions.shape == (len(tokens), CAPACITY), tokens.shape
        dtypes = [str(part.dtype) for part in batch]
        assert dtypes == ["int64", "int64", "int32"], dtypes
        assert boundaries[0] == 0 and boundaries[-1] == tokens.size
        starts = boundaries[:-1]
        assert not positions.reshape(-1)[starts].any()
        self.samples += int((tokens.reshape(-1)[starts] > 0).sum())
        self.tokens += int((tokens > 0).sum())
        self.places += tokens.size

    def report(self):
        return {"fill": self.tokens / max(self.places, 1)}


def measure(task, make_batches, **more):
    """Iterates over the batches of `make_batches()`, checks them, and prints one JSON object, with `more`."""
    cpu_start, start = _cpu_seconds(), time.perf_counter()
    media = Audio if task in AUDIO else Clips if task in VIDEO_TASKS else Images
    checker = Packed if task == "packing" else media
    first, found = None, checker(task)
    batches = iter(make_batches())
    for batch in batches:
        if first is None:
            first = time.perf_counter() - start
        found.add(batch)
    seconds = time.perf_counter() - start
    del batches
    report = {
        "samples": found.samples,
        "seconds": seconds,
        "cpu_s_per_1000": (_cpu_seconds() - cpu_start) * 1000 / max(found.samples, 1),
        "first_batch_ms": 1000 * (first or 0.0),
        **found.report(),
        **more,
    }
    print(json.dumps(report))
