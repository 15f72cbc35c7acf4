"""Which worker this is: what `torch.utils.data.get_worker_info` says on our threads."""

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
    """Which worker of a loader a thread is.

    >>> from spdl_rs.torch import DataLoader, get_worker_info
    >>> class Numbers:
    ...     def __iter__(self):
    ...         worker = get_worker_info()
    ...         return iter(range(worker.id, 6, worker.num_workers))
    >>> list(DataLoader(Numbers(), batch_size=None, num_workers=2, collate_fn=int))
    [0, 1, 2, 3, 4, 5]
    """

    id: int
    """Counted from 0."""
    num_workers: int
    """How many there are."""
    seed: int
    """A seed of this worker's own, another one in each epoch. Nothing is seeded with it."""
    dataset: Any
    """The data set. Of an iterable one each worker has a shallow copy, if there are several."""


def get_worker_info() -> WorkerInfo | None:
    """Which worker the calling thread is; `None` where it is none.

    `torch.utils.data.get_worker_info` says the same on these threads, however it was imported. For
    that it is changed when a loader with workers is iterated; elsewhere it says what it always has.
    """
    return getattr(_here, "info", None)


def become(info: WorkerInfo) -> None:
    """Makes the calling thread a worker, for as long as it lives."""
    _here.info = info


def begin_worker(
    number: int,
    *,
    num_workers: int,
    seed: int,
    dataset: Any,
    init: Callable[[int], object] | None,
    first: int,
) -> None:
    """Makes the calling thread a worker, and runs the user's own beginning of one."""
    number += first
    become(WorkerInfo(number, num_workers, seed + number, dataset))
    if init is not None:
        init(number)


def tell_pytorch() -> None:
    """Makes PyTorch's function know our threads."""
    if pytorch() is None:
        return
    from torch.utils.data._utils import worker  # pyright: ignore[reportMissingImports]

    with _patching:
        # Programs have imported the function itself from several places. So it stays the object
        # that it is, and gets another body.
        known = worker.get_worker_info
        if isinstance(known, types.FunctionType):
            known.__code__ = _instead_of_pytorchs.__code__


def _instead_of_pytorchs() -> Any:
    # PyTorch's function runs this code with the globals of its own module: imports must be absolute.
    from spdl_rs.torch import get_worker_info

    return get_worker_info() or _worker_info  # noqa: F821  # pyright: ignore
