"""Data loading for training: Rust threads load images from disk or object stores as batches.

`ImageLoader` turns a folder, shards or a list of images into batches of arrays. `spdl_rs.pipeline` runs
your own Python functions as concurrent stages, with the interface of SPDL (`import spdl_rs as spdl`).

| task | use |
|---|---|
| images and labels as batches | `ImageLoader` |
| clips of videos, or recordings, and labels as batches | `VideoLoader`, `AudioLoader` |
| samples of any fields as batches: images, masks, boxes, text, numbers | `Loader`, `fields` |
| the augmentations of ImageNet, DeiT, SimCLR, DINO and CLIP | `recipes` |
| several data sets as one source: concatenated, mixed by weights, or a choice of samples | `sources` |
| sequences of tokens, packed, in blocks or in buckets | `Loader(group=…)`, `sequences` |
| a progress bar with the remaining time and data readiness | `progress` |
| custom functions as stages of a pipeline | `spdl_rs.pipeline.PipelineBuilder` |
| replace `torch.utils.data.DataLoader` | `spdl_rs.torch.DataLoader` |
| a loader as an `IterableDataset` of PyTorch or of Hugging Face | `spdl_rs.torch`, `spdl_rs.huggingface` |
| load a map-style data set in threads or processes | `spdl_rs.dataloader` |
| read and decode single images, archives, WAV | `spdl_rs.io` |
| file lists, samplers, shuffled and resumable sources | `spdl_rs.source` |
| CUDA devices, device arrays, allocators | `spdl_rs.cuda` |
| run programs written for `spdl` unchanged | `spdl_rs.compat` |

>>> import spdl_rs
>>> loader = spdl_rs.ImageLoader("photos", batch_size=2, size=64)
>>> loader.classes
['cat', 'dog']
>>> for images, labels in loader:
...     print(images.shape, images.dtype, labels)
(2, 64, 64, 3) uint8 [0 0]
(2, 64, 64, 3) uint8 [1 1]

Exceptions for failed reads, corrupt data and CUDA derive from `SpdlError`, and also from the matching built-in
exception: `NotFoundError` is a `FileNotFoundError`. Checks of arguments also raise plain `ValueError` and
`TypeError`. `loader.stats()` and `loader.diagnose()` report what limits the throughput, and `profile(loader, step)`
how much a faster loader would gain.

Terms: <https://github.com/spdl-rs/spdl/blob/main/docs/glossary.md>.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ._batches import Batches, ImageBatches
from ._errors import (
    ChangedError,
    CorruptError,
    CudaError,
    CudaFallbackWarning,
    CudaUnavailable,
    DataError,
    DatasetWarning,
    ForkedProcessError,
    InternalError,
    InvalidArgumentError,
    IoError,
    LimitExceededError,
    MediaError,
    NotFoundError,
    PanickedError,
    PermissionDeniedError,
    SpdlError,
    StoppedError,
    TimedOutError,
    TooManyFailuresError,
    TruncatedError,
    UnavailableError,
    UnsupportedError,
)
from ._failure_policy import Skip, skip
from ._image_loader import ImageLoader
from ._loader import Loader
from ._media_loaders import AudioBatch, AudioLoader, VideoBatch, VideoLoader
from ._progress_bar import progress
from ._spdl_rs import __version__
from ._statistics import (
    BufferStatistics,
    CacheStatistics,
    ConsumerStatistics,
    Dropped,
    DroppedCount,
    Quantiles,
    QueueStatistics,
    SlowItem,
    StageStatistics,
    Statistics,
)

if TYPE_CHECKING:
    from . import (
        compat,
        cuda,
        dataloader,
        fields,
        huggingface,
        io,
        pipeline,
        recipes,
        sequences,
        source,
        sources,
        torch,
        usage,
    )
    from ._training_profile import Interference, Rate, StageTime, TrainingProfile, profile

__all__ = [
    "AudioBatch",
    "AudioLoader",
    "Batches",
    "BufferStatistics",
    "CacheStatistics",
    "ChangedError",
    "ConsumerStatistics",
    "CorruptError",
    "CudaError",
    "CudaFallbackWarning",
    "CudaUnavailable",
    "DataError",
    "DatasetWarning",
    "Dropped",
    "DroppedCount",
    "ImageBatches",
    "ImageLoader",
    "ForkedProcessError",
    "Interference",
    "InternalError",
    "InvalidArgumentError",
    "IoError",
    "LimitExceededError",
    "MediaError",
    "Loader",
    "NotFoundError",
    "PanickedError",
    "PermissionDeniedError",
    "Quantiles",
    "QueueStatistics",
    "Rate",
    "Skip",
    "SlowItem",
    "SpdlError",
    "StageStatistics",
    "StageTime",
    "Statistics",
    "StoppedError",
    "TimedOutError",
    "TooManyFailuresError",
    "TrainingProfile",
    "TruncatedError",
    "UnavailableError",
    "UnsupportedError",
    "VideoBatch",
    "VideoLoader",
    "__version__",
    "profile",
    "progress",
    "skip",
]


_MODULES = {
    "compat",
    "cuda",
    "dataloader",
    "fields",
    "huggingface",
    "io",
    "pipeline",
    "recipes",
    "sequences",
    "source",
    "sources",
    "torch",
    "usage",
}
# Names of the module `_training_profile`.
_PROFILE = {"Interference", "Rate", "StageTime", "TrainingProfile", "profile"}


def __getattr__(name: str) -> Any:
    # Imported lazily, so that `import spdl_rs` stays fast.
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _PROFILE:
        return getattr(importlib.import_module("._training_profile", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
