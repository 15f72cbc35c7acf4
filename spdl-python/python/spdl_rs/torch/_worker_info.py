"""The worker of the calling thread, also for `torch.utils.data.get_worker_info`."""

from __future__ import annotations

import dataclasses
import threading
import types
from collections.abc import Callable
from typing import Any

from ._pytorch import pytorch

_here = threading.local()
_patching = threading.Lock()


@dataclasses.dataclass(frozen=True)
class WorkerInfo:
    """The worker of the calling thread.

    >>> from spdl_rs.torch import DataLoader, get_worker_info
    >>> class Numbers:
    ...     def __iter__(self):
    ...         worker = get_worker_info()
    ...         return iter(range(worker.id, 6, worker.num_workers))
    >>> list(DataLoader(Numbers(), batch_size=None, num_workers=2, collate_fn=int))
    [0, 1, 2, 3, 4, 5]
    """

    id: int
    """The number of the worker, from 0."""
    num_workers: int
    """The number of workers."""
    seed: int
    """A seed that differs for each worker, and for each epoch unless `persistent_workers` is set. The
    loader itself does not use this seed."""
    dataset: Any
    """The data set. With several workers and an iterable data set: the worker's shallow copy."""


def get_worker_info() -> WorkerInfo | None:
    """Returns the worker of the calling thread, or `None` in other threads.

    In worker threads, `torch.utils.data.get_worker_info` returns the same object, however it was
    imported. To achieve this, the first epoch of a loader with workers replaces the code of that function.
    Other threads still get PyTorch's own result.
    """
    return getattr(_here, "info", None)


def set_worker_info(info: WorkerInfo) -> None:
    """Marks the calling thread as a worker until it ends."""
    _here.info = info


def init_worker(
    number: int,
    *,
    num_workers: int,
    seed: int,
    dataset: Any,
    init: Callable[[int], object] | None,
    first: int,
) -> None:
    """Marks the calling thread as a worker, and calls the user's `worker_init_fn`."""
    number += first
    set_worker_info(WorkerInfo(number, num_workers, seed + number, dataset))
    if init is not None:
        init(number)


def patch_pytorch() -> None:
    """Makes `torch.utils.data.get_worker_info` recognise the threads of this package."""
    if pytorch() is None:
        return
    from torch.utils.data._utils import worker  # pyright: ignore[reportMissingImports]

    with _patching:
        # Programs may have imported the function under several names, so only its code is
        # replaced, not the object.
        known = worker.get_worker_info
        if isinstance(known, types.FunctionType):
            known.__code__ = _get_worker_info_in_pytorch.__code__


def _get_worker_info_in_pytorch() -> Any:
    # PyTorch runs this code with the globals of its module, so imports must be absolute.
    from spdl_rs.torch import get_worker_info

    return get_worker_info() or _worker_info  # noqa: F821  # pyright: ignore
