"""A loader with the arguments of PyTorch's, as SPDL has it."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from .. import _notebook_page
from .._arguments import MOST_THREADS, flag, function, whole
from .._arguments import timeout as checked_timeout
from .._statistics import Statistics
from ..torch._arguments import MOST_PREFETCHED, check_context
from ..torch._loader import DataLoader
from ..torch._pytorch import is_iterable_style
from ..usage import log_api_usage_once
from ._thread_workers import ThreadDataLoader

V = TypeVar("V")


class PyTorchDataLoader(Generic[V]):
    """Batches of a map-style data set. `get_pytorch_dataloader` makes it.

    Each `iter(loader)` is an epoch. What the data set raises comes at the place of its batch, with
    its own type and a note of the sample's index; the next batch follows. (SPDL logs it, and leaves
    the batch out.)
    """

    def __init__(self, loader: DataLoader[V]) -> None:
        log_api_usage_once("spdl_rs.dataloader.PyTorchDataLoader")
        self._loader = loader
        self.dataset = loader.dataset

    def __len__(self) -> int:
        """How many batches an epoch has.

        Raises:
            TypeError: The sampler has no length.
        """
        return len(self._loader)

    def __iter__(self) -> Iterator[V]:
        """Begins an epoch, or goes on with that of a state that was loaded just before."""
        return iter(self._loader)

    def __repr__(self) -> str:
        return f"PyTorchDataLoader({self._loader._described()})"

    def _repr_html_(self) -> str:
        return _notebook_page.page(repr(self), self.stats(), [], items="batches")

    def stats(self) -> Statistics:
        """What the epoch that was begun last did so far: see `spdl_rs.torch.DataLoader.stats`.

        >>> from spdl_rs.dataloader import get_pytorch_dataloader
        >>> loader = get_pytorch_dataloader(range(4), 2, collate_fn=sum)
        >>> sorted(loader), loader.stats()["consumer"]["items"]
        ([1, 5], 2)
        """
        return self._loader.stats()

    def diagnose(self) -> str:
        """What limits the rate of the epoch that was begun last, in a sentence or two."""
        return self._loader.diagnose()

    def state_dict(self) -> dict[str, Any]:
        """Says how far the epoch has come: see `spdl_rs.torch.DataLoader.state_dict`."""
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Makes the next epoch the rest of that which a state is of.

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
    """Makes a loader for a map-style data set, with SPDL's defaults.

    Workers are threads, which share the data set. With a `multiprocessing_context` they are
    processes, as SPDL's always are: worth it for data sets that compute in Python itself. Then the
    data set and `collate_fn` are pickled once, and each process unpickles them.

    `spdl_rs.torch.DataLoader` is closer to PyTorch's loader: it has iterable data sets too,
    PyTorch's defaults, and its random orders. (Those of SPDL are others for the same seed.)

    Args:
        dataset: What is indexed. With `__getitems__`, for a whole batch at once.
        batch_size: Samples per batch. `None`: no batches, or those of `batch_sampler`.
        shuffle: Whether each epoch has an order of its own, drawn by PyTorch.
        sampler: Gives indices, in the thread that asks for batches.
        batch_sampler: Gives lists of indices; not together with `batch_size`, `shuffle`, `sampler` or
            `drop_last`.
        num_workers: How many threads or processes make batches, at least 1. (0 is 1, with a
            warning.)
        collate_fn: Makes a batch of a list of samples. Default: PyTorch's `default_collate`, or
            `default_convert` where there are no batches.
        pin_memory: Whether tensors are moved to pinned memory.
        drop_last: Whether a last batch that is not full is left out.
        timeout: How many seconds a batch may take; `None` and 0: as many as it takes.
        worker_init_fn: Must be `None`.
        multiprocessing_context: A start method (`"fork"`, `"spawn"`, `"forkserver"`) or a context:
            workers are processes.
        generator: A `torch.Generator` for random orders.
        prefetch_factor: How many batches each worker makes ahead, at least 1.
        persistent_workers: Must be `False`.
        pin_memory_device: Must be `None`.
        in_order: Whether batches come in the order of their indices, or as they are ready.
        worker_init_concurrency: How many processes unpickle the data set at once, at least 1;
            `None`: all.

    Raises:
        ValueError: Arguments are out of range or do not go together; or the data set is iterated
            and not indexed.
        TypeError: An argument is of the wrong type, or the data set cannot be indexed; or what worker
            processes need cannot be pickled.
        ModuleNotFoundError: What is asked for needs PyTorch, and that is not installed.

    >>> from spdl_rs.dataloader import get_pytorch_dataloader
    >>> loader = get_pytorch_dataloader(range(7), 3, collate_fn=sum, num_workers=2, in_order=True)
    >>> list(loader), len(loader)
    ([3, 12, 6], 3)
    """
    if is_iterable_style(dataset):
        raise ValueError(
            "a data set that is iterated is not supported; spdl_rs.torch.DataLoader takes it"
        )
    if not (hasattr(type(dataset), "__getitem__") or hasattr(type(dataset), "__getitems__")):
        raise TypeError(
            f"dataset must have __getitem__ and a length; {type(dataset).__name__!r} objects have not"
        )
    _check(
        worker_init_fn=worker_init_fn is not None,
        pin_memory_device=pin_memory_device is not None,
        persistent_workers=persistent_workers,
    )
    _check_order(batch_size, shuffle, sampler, batch_sampler, drop_last)
    timeout = checked_timeout(timeout, least=0)
    num_workers = whole("num_workers", num_workers, 0, MOST_THREADS)
    prefetch_factor = whole("prefetch_factor", prefetch_factor, 1, MOST_PREFETCHED)
    if worker_init_concurrency is not None:
        # A semaphore counts no further.
        worker_init_concurrency = whole(
            "worker_init_concurrency", worker_init_concurrency, 1, 2**31 - 1
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
        warnings.warn("num_workers=0 is taken as 1", UserWarning, stacklevel=2)
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
    # Pools of processes take a while to import.
    from ._process_pool import ProcessDataLoader

    context = multiprocessing_context
    if not isinstance(context, multiprocessing.context.BaseContext):
        context = multiprocessing.get_context(context)
    return PyTorchDataLoader(
        ProcessDataLoader(
            dataset, context=context, begin_at_once=worker_init_concurrency, **options
        )
    )


def _check(**asked: bool) -> None:
    for name, is_asked in asked.items():
        if is_asked:
            raise ValueError(f"{name} is not supported; spdl_rs.torch.DataLoader takes it")


def _check_order(
    batch_size: int | None, shuffle: bool, sampler: Any, batch_sampler: Any, drop_last: bool
) -> None:
    excluded = {
        "sampler and batch_sampler": sampler is not None and batch_sampler is not None,
        # As for PyTorch, 1 is the same as nothing said.
        "batch_size and batch_sampler": batch_size not in (None, 1) and batch_sampler is not None,
        "shuffle and sampler": shuffle and sampler is not None,
        "shuffle and batch_sampler": shuffle and batch_sampler is not None,
        "drop_last and batch_sampler": drop_last and batch_sampler is not None,
        "drop_last and batch_size=None": drop_last and batch_size is None,
    }
    for names, is_asked in excluded.items():
        if is_asked:
            raise ValueError(f"{names} exclude each other")
