"""`DataLoader`: its arguments, and the start of an epoch."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from .. import _notebook_page
from .._arguments import text_or_none, whole
from .._arguments import timeout as checked_timeout
from .._failure_policy import OnError, max_failures
from .._statistics import Statistics
from ..usage import log_api_usage_once
from ._arguments import (
    check_context,
    check_dataset,
    check_functions,
    check_order,
    checked_flag,
    checked_workers,
    warn_once,
)
from ._epoch_order import check_same_order, order_of_epoch
from ._failures import DroppedSamples
from ._identity import describe_loader
from ._iterable_style import IterableEpoch, IterableFetch, IterableProgress
from ._map_style import MapStyleEpoch, MapStyleFetch, Progress
from ._pytorch import default_collate_fn, draw_seed, is_iterable_style, pin_function
from ._resumable import Resumable
from ._samplers import batch_sampler_of, number_of_batches, sampler_of
from ._statistics import ReadStatistics, combine
from ._worker_info import init_worker, patch_pytorch
from ._workers import CallerWorkers, ThreadWorkers, Workers

T = TypeVar("T")
_Started: TypeAlias = "tuple[Iterator[T], Progress | IterableProgress, tuple[ReadStatistics, ...]]"

_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class DataLoader(Resumable, Generic[T]):
    """`torch.utils.data.DataLoader` with threads instead of worker processes.

    Arguments, defaults, the order of samples, batches and types of errors are the same as in PyTorch,
    so that only the import changes. The differences:

    - Workers are threads of this process. The data set and its samples are not pickled or copied.
      Several threads index the data set concurrently. With an iterable data set, each worker has
      its own iterator, and with several workers its own shallow copy of the data set.
    - All threads share the random number generators, and no worker is seeded. Use
      `get_worker_info().seed` to seed a generator for each worker.
    - An exception of the data set keeps its type and traceback, and gets a note with the index of
      the sample. `next` raises the exception in place of the batch; the next batch follows.
      `StopIteration` and `SystemExit` become a `RuntimeError`, so that neither the epoch nor the
      program ends silently.
    - `state_dict` and `load_state_dict` resume within an epoch, like those of torchdata's
      `StatefulDataLoader`.

    Args:
        dataset: The data set. An object with `__getitem__` is indexed. An `IterableDataset`, or an
            object with only `__iter__`, is iterated.
        batch_size: Samples per batch. `None`: samples are not batched. Default: 1.
        shuffle: If true, PyTorch draws a new random order for each epoch. Default: false.
        sampler: Iterable of indices, iterated in the consumer's thread. Not allowed with `shuffle=True`.
        batch_sampler: Iterable of lists of indices. Not allowed with `shuffle`, `sampler`, `drop_last`, or
            a `batch_size` other than 1.
        num_workers: The number of worker threads. 0: the consumer's thread makes the batches.
        collate_fn: Combines a list of samples into a batch, in a worker. Default: PyTorch's
            `default_collate`, or `default_convert` if samples are not batched. Without PyTorch, samples
            that are not batched stay unchanged, and batches require a `collate_fn`.
        pin_memory: If true, workers copy tensors to pinned memory. Default: false.
        drop_last: If true, an incomplete last batch is left out. Default: false.
        timeout: The maximum wait for a batch, in seconds. 0: no limit. Other values require workers.
        worker_init_fn: Called at the start of each worker thread, with the worker's number.
        multiprocessing_context: Has no effect. Rejected if invalid, or without workers.
        generator: A `torch.Generator` for random orders. Default: PyTorch's default generator.
        prefetch_factor: The number of batches that each worker prefetches, at least 1. Default: 2. Not
            allowed without workers.
        persistent_workers: If true, the seed of the workers is drawn once instead of for each epoch. No
            other effect. Requires workers. Default: false.
        pin_memory_device: Has no effect.
        in_order: If true, batches have the order of their indices. If false, a slow batch does not
            delay other batches. Batches of an iterable data set are always in order. Default: true.
        on_error: What to do if the data set raises an exception for a sample. `"raise"`: `next` raises the
            exception in place of the batch. `"skip"`: the batch is made without the sample, a batch of which all
            samples failed is omitted, and `stats()["dropped"]` lists the indices. If more than 1 % of
            the samples of an epoch fail, after at least 1,000 samples, each further failure raises its exception.
            `spdl_rs.skip(at_most=...)` sets another limit. An epoch of which all samples failed ends with a
            `RuntimeError`. At the end of an epoch with dropped samples, one warning with their number
            is logged to the logger `spdl_rs.torch`. Exceptions of `collate_fn` are always raised. Iterable data
            sets allow only `"raise"`, because a generator cannot continue after an exception.

    Raises:
        ValueError, TypeError: Arguments are out of range, or conflict.
        ModuleNotFoundError: An argument requires PyTorch, which is not installed.

    After `timeout`, iterating raises `LoaderTimedOutError`, a `TimeoutError` and `RuntimeError`.

    >>> from spdl_rs.torch import DataLoader
    >>> squares = [number * number for number in range(10)]
    >>> loader = DataLoader(squares, batch_size=4, num_workers=2, collate_fn=tuple)
    >>> for batch in loader:
    ...     print(batch)
    (0, 1, 4, 9)
    (16, 25, 36, 49)
    (64, 81)
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], T] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        on_error: OnError = "raise",
    ) -> None:
        super().__init__()
        log_api_usage_once("spdl_rs.torch.DataLoader")
        shuffle = checked_flag("shuffle", shuffle)
        pin_memory = checked_flag("pin_memory", pin_memory)
        persistent_workers = checked_flag("persistent_workers", persistent_workers)
        in_order = checked_flag("in_order", in_order)
        text_or_none("pin_memory_device", pin_memory_device)
        check_functions(collate_fn=collate_fn, worker_init_fn=worker_init_fn)
        num_workers, self.prefetch_factor = checked_workers(
            num_workers, timeout, prefetch_factor, persistent_workers
        )
        check_context(multiprocessing_context, num_workers)
        self._iterable_style = is_iterable_style(dataset)
        if max_failures(on_error) is not None and self._iterable_style:
            raise ValueError(
                'on_error="skip" requires a data set with __getitem__: an iterator cannot continue after an '
                "exception; handle exceptions in the data set"
            )
        if not self._iterable_style:
            check_dataset(dataset)
        check_order(
            iterable_style=self._iterable_style,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=drop_last,
        )
        self.dataset = dataset
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.in_order = in_order
        self.on_error: OnError = on_error
        self.generator = generator
        self.persistent_workers = persistent_workers

        if batch_sampler is not None:
            batch_size, drop_last = None, False
        if batch_size is not None:
            batch_size = whole("batch_size", batch_size, wrong_type=ValueError)
        if not self._iterable_style:
            if sampler is None:
                sampler = sampler_of(dataset, shuffle, generator)
            if batch_size is not None:
                batch_sampler = batch_sampler_of(sampler, batch_size, drop_last)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        batched = batch_sampler is not None or (self._iterable_style and batch_size is not None)
        self.collate_fn: Callable[[Any], Any] = (
            default_collate_fn(batched) if collate_fn is None else collate_fn
        )

        self._worker_statistics: tuple[ReadStatistics, ...] = ()
        self._dropped: DroppedSamples | None = None
        self._initialized = True

        for name in ("worker_init_fn", "persistent_workers", "multiprocessing_context"):
            if getattr(self, name):
                warn_once(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and "_initialized" in vars(self):
            raise ValueError(f"{name} cannot be set after the loader is created")
        super().__setattr__(name, value)

    def __len__(self) -> int:
        """The number of batches in an epoch.

        Raises:
            TypeError: The data set or the sampler has no length.
        """
        if not self._iterable_style:
            return len(self._index_sampler)
        items = len(self.dataset)
        if self.batch_size is None:
            return items
        return number_of_batches(items, self.batch_size, self.drop_last)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._described()})"

    def _repr_html_(self) -> str:
        return _notebook_page.page(repr(self), self.stats(), [], items="batches")

    def _described(self) -> str:
        order = None if self._iterable_style else self._order
        return describe_loader(self.dataset, self, self.batch_size, order, self.num_workers)

    def __iter__(self) -> Iterator[T]:
        """Starts an epoch, or resumes the epoch of a state that was loaded before."""
        with self._lock.held():
            return self._start()

    def _start(self) -> Iterator[T]:
        state, seed = self._loaded, self._seed
        if state is not None and state["_iterator_finished"]:
            seed = state["_base_seed"]
            state = self._state_after(state)
        epoch_order = None if self._iterable_style else order_of_epoch(self._index_sampler)
        if state is not None and epoch_order is not None:
            check_same_order(state, epoch_order)
        pin = pin_function() if self.pin_memory else None
        if self.num_workers:
            patch_pytorch()
        start = self._start_iterable if self._iterable_style else self._start_map_style
        its_seed = None if state is None else state["_base_seed"]
        saved = None if state is None else state["_random_state"]
        # If no index was drawn, PyTorch's default generator decides the order, as in a new epoch.
        drawn = state is not None and state.get("_sampler_iter_yielded", 0) > 0
        with self._restored(saved, default=drawn):
            if its_seed is not None:
                seed, randomness = its_seed, saved
            else:
                if seed is None or not self.persistent_workers:
                    seed = self._draw_seed()
                randomness = self._snapshot()
            epoch, progress, worker_statistics = start(pin, state, seed)
        # One update: after an interruption the loader has either the old or the new state.
        vars(self).update(
            _progress=progress,
            _worker_statistics=worker_statistics,
            _seed=seed,
            _randomness=randomness,
            _epoch_order=epoch_order,
            _loaded=None,
        )
        return epoch

    def _draw_seed(self) -> int:
        return draw_seed(self.generator)

    def _start_map_style(self, pin: Any, state: Mapping[str, Any] | None, seed: int) -> _Started[T]:
        progress = Progress(state)
        self._dropped = None
        if max_failures(self.on_error) is not None:
            self._dropped = DroppedSamples(self.on_error)
        workers = self._workers(self._fetch(pin), self.num_workers, seed)
        epoch = MapStyleEpoch(
            workers,
            self._index_sampler,
            progress,
            ahead=self._ahead * self.num_workers,
            timeout=self._seconds,
            dropped=self._dropped,
        )
        return epoch, progress, (workers.read_statistics,)

    def _fetch(self, pin: Any) -> Callable[[Any], Any]:
        """Returns the function that makes a batch. The epoch calls its method `close`, if any, last."""
        batched = self.batch_sampler is not None
        return MapStyleFetch(self.dataset, self.collate_fn, batched, pin, self._dropped)

    def _start_iterable(self, pin: Any, state: Mapping[str, Any] | None, seed: int) -> _Started[T]:
        count = max(1, self.num_workers)
        progress = IterableProgress(count, state)
        workers: list[Workers] = []
        for number, worker_state in enumerate(progress.states):
            dataset = copy.copy(self.dataset) if count > 1 else self.dataset
            fetch = IterableFetch(
                dataset,
                self.collate_fn,
                self.batch_size,
                self.drop_last,
                pin,
                None if worker_state == "end" else worker_state,
            )
            workers.append(self._workers(fetch, min(1, self.num_workers), seed, number, dataset))
        epoch = IterableEpoch(workers, progress, ahead=self._ahead, timeout=self._seconds)
        return epoch, progress, tuple(worker.read_statistics for worker in workers)

    @property
    def _seconds(self) -> float | None:
        """The maximum wait for a batch, in seconds."""
        return checked_timeout(self.timeout or None)

    @property
    def _ahead(self) -> int:
        """The number of batches that a worker prefetches, at least 1 with workers."""
        return max(1, self.prefetch_factor or 0) if self.num_workers else 0

    def _workers(
        self,
        fetch: Callable[[Any], Any],
        threads: int,
        seed: int,
        first: int = 0,
        dataset: Any = None,
    ) -> Workers:
        if threads == 0:
            return CallerWorkers(fetch)
        init = functools.partial(
            init_worker,
            num_workers=self.num_workers,
            seed=seed,
            dataset=self.dataset if dataset is None else dataset,
            init=self.worker_init_fn,
            first=first,
        )
        return ThreadWorkers(
            fetch,
            num_threads=threads,
            in_order=self.in_order,
            max_results=self._ahead * threads,
            init=init,
        )

    def stats(self) -> Statistics:
        """Returns the statistics of the latest epoch: batches, durations and waits of the loop.

        Before the first epoch all counts and times are 0, and all lists are empty.

        The stage `fetch` covers the work of the workers: loading samples, `collate_fn`, and copies to
        pinned memory. Its items are batches. With an iterable data set, the items include each worker's
        last attempt, which finds the end. Exceptions of the data set are raised in the loop, and count as
        failures only without workers. With an iterable data set and several workers, values that cannot be
        added, such as quantiles, are those of one slow worker.

        >>> from spdl_rs.torch import DataLoader
        >>> loader = DataLoader(range(10), batch_size=4, num_workers=2, collate_fn=sum)
        >>> list(loader)
        [6, 22, 17]
        >>> [(stage["name"], stage["items"]) for stage in loader.stats()["stages"]]
        [('source', 3), ('fetch', 3)]
        """
        statistics = combine(self._worker_statistics)
        return statistics if self._dropped is None else self._dropped.add_to(statistics)

    def diagnose(self) -> str:
        """Returns what limits the rate of the latest epoch, and what to change.

        The text is `stats()["diagnosis"]`, one or two sentences.

        >>> from spdl_rs.torch import DataLoader
        >>> loader = DataLoader("ab", batch_size=None)
        >>> list(loader)
        ['a', 'b']
        >>> "num_workers=0" in loader.diagnose()
        True
        """
        return self.stats()["diagnosis"]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_worker_statistics": (), "_dropped": None}
