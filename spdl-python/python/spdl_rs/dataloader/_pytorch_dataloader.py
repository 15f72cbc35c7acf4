"""SPDL's `get_pytorch_dataloader`: a loader with the arguments of PyTorch's."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from .. import _notebook_page
from .._arguments import MAX_THREADS, flag, function, whole
from .._arguments import timeout as checked_timeout
from .._statistics import Statistics
from ..torch._arguments import MAX_PREFETCH, check_context
from ..torch._loader import DataLoader
from ..torch._pytorch import is_iterable_style
from ..usage import log_api_usage_once
from ._thread_workers import ThreadDataLoader

V = TypeVar("V")


class PyTorchDataLoader(Generic[V]):
    """Batches of a map-style data set, created by `get_pytorch_dataloader`.

    Each `iter(loader)` is one epoch. If the data set raises an exception, `next` raises it in place of the
    batch, with a note of the sample's index. Iteration continues with the next batch. (SPDL logs the
    exception and leaves the batch out.)
    """

    def __init__(self, loader: DataLoader[V]) -> None:
        log_api_usage_once("spdl_rs.dataloader.PyTorchDataLoader")
        self._loader = loader
        self.dataset = loader.dataset

    def __len__(self) -> int:
        """The number of batches per epoch.

        Raises:
            TypeError: The sampler has no length.
        """
        return len(self._loader)

    def __iter__(self) -> Iterator[V]:
        """Starts an epoch, or resumes the epoch of a state that was just loaded."""
        return iter(self._loader)

    def __repr__(self) -> str:
        return f"PyTorchDataLoader({self._loader._described()})"

    def _repr_html_(self) -> str:
        return _notebook_page.page(repr(self), self.stats(), [], items="batches")

    def stats(self) -> Statistics:
        """Returns statistics of the epoch that was started last: see `spdl_rs.torch.DataLoader.stats`.

        >>> from spdl_rs.dataloader import get_pytorch_dataloader
        >>> loader = get_pytorch_dataloader(range(4), 2, collate_fn=sum)
        >>> sorted(loader), loader.stats()["consumer"]["items"]
        ([1, 5], 2)
        """
        return self._loader.stats()

    def diagnose(self) -> str:
        """Describes what limits the throughput of the epoch that was started last."""
        return self._loader.diagnose()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the epoch: see `spdl_rs.torch.DataLoader.state_dict`."""
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resumes from a state: the next iteration delivers the remaining batches of the saved epoch.

        Raises:
            TypeError, ValueError: See `spdl_rs.torch.DataLoader.load_state_dict`.
        """
        self._loader.load_state_dict(state_dict)


def get_pytorch_dataloader(
    dataset: Any,
    batch_size: int | None = 1,
    shuffle: bool = False,
    sampler: Iterable[Any] | None = None,
    batch_sampler: Iterable[Any] | None = None,
    num_workers: int = 1,
    collate_fn: Callable[[Any], V] | None = None,
    pin_memory: bool = False,
    drop_last: bool = False,
    timeout: float | None = None,
    worker_init_fn: None = None,
    multiprocessing_context: str | multiprocessing.context.BaseContext | None = None,
    generator: Any = None,
    *,
    prefetch_factor: int = 2,
    persistent_workers: bool = False,
    pin_memory_device: str | None = None,
    in_order: bool = False,
    worker_init_concurrency: int | None = None,
) -> PyTorchDataLoader[V]:
    """Creates a loader for a map-style data set, with SPDL's defaults.

    By default, workers are threads that share the data set. With `multiprocessing_context`, workers are
    processes, as in SPDL. Processes are faster for data sets that compute in Python code. The data set and
    `collate_fn` are then pickled once, and each process unpickles them.

    `spdl_rs.torch.DataLoader` is closer to PyTorch's loader: it supports iterable-style data sets,
    PyTorch's defaults and PyTorch's random orders. (The orders of SPDL differ for the same seed.)

    Args:
        dataset: The map-style data set. If it has `__getitems__`, each batch is requested in one call.
        batch_size: Samples per batch. `None`: samples are not batched, unless `batch_sampler` is given.
        shuffle: Whether each epoch has a different random order, drawn by PyTorch.
        sampler: Yields indices, in the thread that requests batches.
        batch_sampler: Yields lists of indices. Mutually exclusive with `shuffle`, `sampler`, `drop_last`, and
            a `batch_size` other than 1 and `None`.
        num_workers: The number of worker threads or processes, at least 1. (0 is treated as 1, with a
            warning.)
        collate_fn: Combines a list of samples into a batch. Default: PyTorch's `default_collate`, or
            `default_convert` if samples are not batched.
        pin_memory: Whether to move tensors to pinned memory.
        drop_last: Whether to leave out an incomplete last batch.
        timeout: The longest wait for a batch in seconds; `None` and 0: no limit.
        worker_init_fn: Must be `None`.
        multiprocessing_context: A start method (`"fork"`, `"spawn"`, `"forkserver"`) or a context for
            worker processes. `None`: worker threads.
        generator: A `torch.Generator` for random orders.
        prefetch_factor: How many batches each worker prefetches, at least 1.
        persistent_workers: Must be `False`.
        pin_memory_device: Must be `None`.
        in_order: Whether batches are delivered in the order of their indices, or as they complete.
        worker_init_concurrency: How many processes may unpickle the data set at the same time, at least
            1; `None`: all.

    Raises:
        ValueError: An argument is out of range, arguments are inconsistent, or the data set is
            iterable-style.
        TypeError: An argument has the wrong type, the data set has neither `__getitem__` nor
            `__getitems__`, or an object for worker processes cannot be pickled.
        ModuleNotFoundError: The arguments need PyTorch, which is not installed.

    >>> from spdl_rs.dataloader import get_pytorch_dataloader
    >>> loader = get_pytorch_dataloader(range(7), 3, collate_fn=sum, num_workers=2, in_order=True)
    >>> list(loader), len(loader)
    ([3, 12, 6], 3)
    """
    if is_iterable_style(dataset):
        raise ValueError(
            "iterable-style data sets are not supported here; use spdl_rs.torch.DataLoader"
        )
    if not (hasattr(type(dataset), "__getitem__") or hasattr(type(dataset), "__getitems__")):
        raise TypeError(
            f"dataset must have __getitem__ or __getitems__; {type(dataset).__name__!r} objects have neither"
        )
    _check(
        worker_init_fn=worker_init_fn is not None,
        pin_memory_device=pin_memory_device is not None,
        persistent_workers=persistent_workers,
    )
    _check_order(batch_size, shuffle, sampler, batch_sampler, drop_last)
    timeout = checked_timeout(timeout, least=0)
    num_workers = whole("num_workers", num_workers, 0, MAX_THREADS)
    prefetch_factor = whole("prefetch_factor", prefetch_factor, 1, MAX_PREFETCH)
    if worker_init_concurrency is not None:
        # The largest value of a semaphore.
        worker_init_concurrency = whole(
            "`worker_init_concurrency`", worker_init_concurrency, -(2**63), 2**31 - 1
        )
        if worker_init_concurrency < 1:
            raise ValueError(
                f"`worker_init_concurrency` must be greater than 0, not {worker_init_concurrency}"
            )
    if batch_size is not None:
        batch_size = whole("batch_size", batch_size, wrong_type=ValueError)
    if collate_fn is not None:
        function("collate_fn", collate_fn)
    shuffle = flag("shuffle", shuffle, or_number=True)
    pin_memory = flag("pin_memory", pin_memory, or_number=True)
    drop_last = flag("drop_last", drop_last, or_number=True)
    in_order = flag("in_order", in_order, or_number=True)
    check_context(multiprocessing_context, max(1, num_workers))
    if num_workers == 0:
        warnings.warn("num_workers=0 is treated as num_workers=1", UserWarning, stacklevel=2)
        num_workers = 1
    options: dict[str, Any] = {
        "batch_size": 1 if batch_sampler is not None else batch_size,
        "shuffle": shuffle,
        "sampler": sampler,
        "batch_sampler": batch_sampler,
        "num_workers": num_workers,
        "collate_fn": collate_fn,
        "pin_memory": pin_memory,
        "drop_last": drop_last,
        "timeout": timeout or 0,
        "generator": generator,
        "prefetch_factor": prefetch_factor,
        "in_order": in_order,
    }
    if multiprocessing_context is None:
        return PyTorchDataLoader(ThreadDataLoader(dataset, **options))
    # This module is imported lazily, because importing process pools is slow.
    from ._process_pool import ProcessDataLoader

    context = multiprocessing_context
    if not isinstance(context, multiprocessing.context.BaseContext):
        context = multiprocessing.get_context(context)
    return PyTorchDataLoader(
        ProcessDataLoader(
            dataset, context=context, init_concurrency=worker_init_concurrency, **options
        )
    )


def _check(**requested: bool) -> None:
    for name, is_requested in requested.items():
        if is_requested:
            raise ValueError(f"{name} is not supported here; use spdl_rs.torch.DataLoader")


def _check_order(
    batch_size: int | None, shuffle: bool, sampler: Any, batch_sampler: Any, drop_last: bool
) -> None:
    excluded = {
        "sampler and batch_sampler": sampler is not None and batch_sampler is not None,
        # As in PyTorch, 1 is the same as the default.
        "batch_size and batch_sampler": batch_size not in (None, 1) and batch_sampler is not None,
        "shuffle and sampler": shuffle and sampler is not None,
        "shuffle and batch_sampler": shuffle and batch_sampler is not None,
        "drop_last and batch_sampler": drop_last and batch_sampler is not None,
        "drop_last and batch_size=None": drop_last and batch_size is None,
    }
    for names, is_given in excluded.items():
        if is_given:
            raise ValueError(f"{names} are mutually exclusive")
