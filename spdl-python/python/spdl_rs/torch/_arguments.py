"""Which arguments of PyTorch's loader go together. The kinds of errors are PyTorch's."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import warnings
from typing import Any

from .._arguments import MOST_THREADS, flag, function, seconds, shown, whole

MOST_PREFETCHED = 2**31 - 1
"""How many batches a worker may make ahead."""
_told: set[str] = set()

_NOTES = {
    "worker_init_fn": "it runs at the start of each worker thread, in this process: a seed that it "
    "sets is that of the whole process",
    "persistent_workers": "it has no effect: the data set is shared by all threads and is never "
    "copied again, and threads start in microseconds",
    "multiprocessing_context": "it has no effect: workers are threads of this process",
}


def check_dataset(dataset: Any) -> None:
    """Checks that a data set that is not iterated can be indexed."""
    if not (hasattr(type(dataset), "__getitem__") or hasattr(type(dataset), "__getitems__")):
        raise TypeError(
            f"dataset must have __getitem__ or __iter__, and {shown(dataset)} has neither"
        )


def check_functions(**functions: Any) -> None:
    """Checks what is called, where it is given."""
    for name, given in functions.items():
        if given is not None:
            function(name, given)


def checked_flag(name: str, value: Any) -> bool:
    """A flag. PyTorch asks whether a value is true, so 1, 0 and `None` are taken, too."""
    return value is not None and flag(name, value, or_number=True)


def checked_workers(
    num_workers: Any, timeout: Any, prefetch_factor: Any, persistent_workers: bool
) -> tuple[int, int | None]:
    """`num_workers`, and `prefetch_factor` with its default. `timeout` is only checked."""
    num_workers = whole("num_workers", num_workers, 0, MOST_THREADS)
    if seconds("timeout", timeout) < 0:
        raise ValueError(f"timeout must not be negative, not {shown(timeout)}")
    if num_workers == 0:
        if prefetch_factor is not None:
            raise ValueError("prefetch_factor needs num_workers of at least 1")
        if persistent_workers:
            raise ValueError("persistent_workers=True needs num_workers of at least 1")
        if timeout > 0:
            raise ValueError("timeout needs num_workers of at least 1")
        return 0, None
    if prefetch_factor is None:
        return num_workers, 2
    return num_workers, whole("prefetch_factor", prefetch_factor, 1, MOST_PREFETCHED)


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
                raise ValueError(
                    f"{name} says nothing of a data set that is iterated: {shown(value)}"
                )
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
    """Checks what batches are made by; PyTorch's own samplers look at `batch_size` less closely."""
    whole("batch_size", batch_size, wrong_type=ValueError)
    if not isinstance(drop_last, bool):
        raise ValueError(f"drop_last must be True or False, not {shown(drop_last)}")


def tell_once(argument: str) -> None:
    """Says, once in a process, what an argument means with threads."""
    if argument not in _told:
        _told.add(argument)
        warnings.warn(
            f"spdl_rs.torch.DataLoader({argument}=…): {_NOTES[argument]}", UserWarning, stacklevel=4
        )
