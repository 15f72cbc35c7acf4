"""Checks of the arguments of `DataLoader`, with PyTorch's types of errors."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import warnings
from typing import Any

from .._arguments import MAX_THREADS, flag, function, seconds, shown, whole

MAX_PREFETCH = 2**31 - 1
"""The largest `prefetch_factor`."""
_warned: set[str] = set()

_NOTES = {
    "worker_init_fn": "it runs at the start of each worker thread, in this process: a seed that it "
    "sets affects the whole process",
    "persistent_workers": "it has no effect: all threads share the data set, which is never "
    "copied, and threads start in microseconds",
    "multiprocessing_context": "it has no effect: workers are threads of this process",
}


def check_dataset(dataset: Any) -> None:
    """Checks that a map-style data set can be indexed."""
    if not (hasattr(type(dataset), "__getitem__") or hasattr(type(dataset), "__getitems__")):
        raise TypeError(
            f"dataset must have __getitem__ or __iter__, but {shown(dataset)} has neither"
        )


def check_functions(**functions: Any) -> None:
    """Checks that the functions that are not `None` are callable."""
    for name, given in functions.items():
        if given is not None:
            function(name, given)


def checked_flag(name: str, value: Any) -> bool:
    """Returns a flag. As in PyTorch, 1, 0 and `None` are accepted."""
    return value is not None and flag(name, value, or_number=True)


def checked_workers(
    num_workers: Any, timeout: Any, prefetch_factor: Any, persistent_workers: bool
) -> tuple[int, int | None]:
    """Returns `num_workers`, and `prefetch_factor` with its default. Checks `timeout`."""
    num_workers = whole("num_workers", num_workers, 0, MAX_THREADS)
    if seconds("timeout", timeout) < 0:
        raise ValueError(f"timeout must be at least 0, not {shown(timeout)}")
    if num_workers == 0:
        if prefetch_factor is not None:
            raise ValueError("prefetch_factor requires num_workers of at least 1")
        if persistent_workers:
            raise ValueError("persistent_workers=True requires num_workers of at least 1")
        if timeout > 0:
            raise ValueError("timeout requires num_workers of at least 1")
        return 0, None
    if prefetch_factor is None:
        return num_workers, 2
    return num_workers, whole("prefetch_factor", prefetch_factor, 1, MAX_PREFETCH)


def check_context(context: Any, num_workers: int) -> None:
    """Checks `multiprocessing_context`, which has no effect."""
    if context is None:
        return
    if num_workers == 0:
        raise ValueError("multiprocessing_context requires num_workers of at least 1")
    if isinstance(context, str):
        methods = multiprocessing.get_all_start_methods()
        if context not in methods:
            raise ValueError(f"multiprocessing_context must be one of {methods}, not {context!r}")
    elif not isinstance(context, multiprocessing.context.BaseContext):
        raise TypeError(
            "multiprocessing_context must be a multiprocessing context or the name of a start "
            f"method, not {shown(context)}"
        )


def check_order(
    *,
    iterable_style: bool,
    batch_size: Any,
    shuffle: Any,
    sampler: Any,
    batch_sampler: Any,
    drop_last: Any,
) -> None:
    """Checks that the arguments for order and batches are valid and do not conflict."""
    if iterable_style:
        given = {"shuffle": shuffle or None, "sampler": sampler, "batch_sampler": batch_sampler}
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} cannot be used with an iterable data set: {shown(value)}")
        if batch_size is not None:
            check_batches(batch_size, drop_last)
    if sampler is not None and shuffle:
        raise ValueError("sampler and shuffle are mutually exclusive")
    if batch_sampler is not None:
        if batch_size != 1 or shuffle or sampler is not None or drop_last:
            raise ValueError(
                "batch_sampler cannot be combined with batch_size, shuffle, sampler or drop_last; "
                "it replaces them"
            )
    elif batch_size is None and drop_last:
        raise ValueError("drop_last=True requires a batch_size")


def check_batches(batch_size: Any, drop_last: Any) -> None:
    """Checks `batch_size` and `drop_last` more strictly than PyTorch's samplers do."""
    whole("batch_size", batch_size, wrong_type=ValueError)
    if not isinstance(drop_last, bool):
        raise ValueError(f"drop_last must be True or False, not {shown(drop_last)}")


def warn_once(argument: str) -> None:
    """Warns once per process that an argument has another meaning with threads."""
    if argument not in _warned:
        _warned.add(argument)
        warnings.warn(
            f"spdl_rs.torch.DataLoader({argument}=…): {_NOTES[argument]}", UserWarning, stacklevel=4
        )
