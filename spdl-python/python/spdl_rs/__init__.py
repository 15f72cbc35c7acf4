"""Images from disk to NumPy batches, decoded and resized by Rust threads.

>>> import spdl_rs
>>> loader = spdl_rs.ImageLoader("photos", batch_size=2, size=64)
>>> loader.classes
['cat', 'dog']
>>> for images, labels in loader:
...     print(images.shape, images.dtype, labels)
(2, 64, 64, 3) uint8 [0 0]
(2, 64, 64, 3) uint8 [1 1]

`ImageLoader` does the work. All exceptions derive from `SpdlError`, and from Python's own where
one fits: a file that is missing is a `FileNotFoundError` too. `spdl_rs.cuda` tells what CUDA devices
there are; `ImageLoader(..., device="cuda")` puts batches there.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from ._errors import (
    ChangedError,
    CorruptError,
    CudaError,
    CudaFallbackWarning,
    CudaUnavailable,
    DataError,
    DatasetWarning,
    InternalError,
    InvalidArgumentError,
    IoError,
    LimitExceededError,
    NotFoundError,
    PanickedError,
    PermissionDeniedError,
    SpdlError,
    StoppedError,
    TimedOutError,
    TruncatedError,
    UnavailableError,
    UnsupportedError,
)
from ._image_batches import ImageBatches
from ._image_loader import ImageLoader
from ._spdl_rs import __version__
from ._statistics import (
    BufferStatistics,
    CacheStatistics,
    ConsumerStatistics,
    Dropped,
    Quantiles,
    QueueStatistics,
    StageStatistics,
    Statistics,
)

if TYPE_CHECKING:
    from . import compat, cuda, dataloader, io, pipeline, source, torch, usage

__all__ = [
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
    "ImageBatches",
    "ImageLoader",
    "InternalError",
    "InvalidArgumentError",
    "IoError",
    "LimitExceededError",
    "NotFoundError",
    "PanickedError",
    "PermissionDeniedError",
    "Quantiles",
    "QueueStatistics",
    "SpdlError",
    "StageStatistics",
    "Statistics",
    "StoppedError",
    "TimedOutError",
    "TruncatedError",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
]


def __getattr__(name: str) -> ModuleType:
    # Imported when they are asked for: who loads images need not wait for them.
    if name in ("compat", "cuda", "dataloader", "io", "pipeline", "source", "torch", "usage"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
