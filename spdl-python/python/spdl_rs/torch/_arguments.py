"""Which arguments of PyTorch's loader go together. The kinds of errors are PyTorch's."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import sys
import warnings
from typing import Any

from .._arguments import shown

_MOST = 2**31 - 1
_told: set[str] = set()

# What a number of workers, of batches or of seconds may be.
_MOST = 2**31 - 1

_NOTES = {
    "worker_init_fn": "it runs at the start of each worker thread, in this process: a seed that it "
    "sets is that of the whole process",
    "persistent_workers": "it has no effect: the data set is shared by all threads and is never "
    "copied again, and threads start in microseconds",
    "multiprocessing_context": "it has no effect: workers are threads of this process",
}


def check_workers(
    num_workers: int, timeout: float, prefetch_factor: int | None, persistent_workers: bool
) -> int | None:
    """Checks what is said of workers, and returns `prefetch_factor` with its default."""
    _not_negative("num_workers", num_workers)
    _not_negative("timeout", timeout, whole=False)
    if num_workers == 0:
        if prefetch_factor is not None:
            raise ValueError("prefetch_factor needs num_workers of at least 1")
        if persistent_workers:
            raise ValueError("persistent_workers=True needs num_workers of at least 1")
        return None
    if prefetch_factor is None:
        return 2
    return _not_negative("prefetch_factor", prefetch_factor)


def _not_negative(name: str, value: Any, *, whole: bool = True) -> Any:
    method = "__index__" if whole else "__float__"
    if isinstance(value, bool) or not hasattr(type(value), method):
        what = "a whole number" if whole else "a number"
        raise TypeError(f"{name} must be {what}, not {shown(value)}")
    if value < 0:
        raise ValueError(f"{name} must not be negative, and is {value!r}")
    if whole and value > _MOST:
        raise ValueError(f"{name} must be at most {_MOST}, not {shown(value)}")
    return value


def check_context(context: Any, num_workers: int) -> None:
    """Checks a `multiprocessing_context`, though it is not used."""
    if context is None:
        return
    if num_workers == 0:
        raise ValueError("multiprocessing_context needs num_workers of at least 1")
    if isinstance(context, str):
        methods = multiprocessing.get_all_start_methods()
        if context not in methods:
            raise ValueError(f"multiprocessing_context must be one of {methods}, not {context!r}")
    elif not isinstance(context, multiprocessing.context.BaseContext):
        raise TypeError(
            "multiprocessing_context must be a context of multiprocessing or the name of a start "
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
    """Checks what is said of the order and of batches."""
    if iterable_style:
        given = {"shuffle": shuffle or None, "sampler": sampler, "batch_sampler": batch_sampler}
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} says nothing of a data set that is iterated: {value!r}")
        if batch_size is not None:
            check_batches(batch_size, drop_last)
    if sampler is not None and shuffle:
        raise ValueError("sampler and shuffle exclude each other")
    if batch_sampler is not None:
        if batch_size != 1 or shuffle or sampler is not None or drop_last:
            raise ValueError(
                "batch_sampler excludes batch_size, shuffle, sampler and drop_last, as it decides "
                "all that"
            )
    elif batch_size is None and drop_last:
        raise ValueError("drop_last=True needs a batch_size")


def check_batches(batch_size: Any, drop_last: Any) -> None:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size must be a whole number of at least 1, not {batch_size!r}")
    if batch_size > sys.maxsize:
        raise ValueError(f"batch_size must be at most {sys.maxsize:,}, and is larger")
    if not isinstance(drop_last, bool):
        raise ValueError(f"drop_last must be True or False, not {drop_last!r}")


def tell_once(argument: str) -> None:
    """Says, once in a process, what an argument means with threads."""
    if argument not in _told:
        _told.add(argument)
        warnings.warn(
            f"spdl_rs.torch.DataLoader({argument}=…): {_NOTES[argument]}", UserWarning, stacklevel=4
        )
