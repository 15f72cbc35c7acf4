"""The loader: its arguments, and what is made when it is iterated."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from .. import _notebook_page
from .._arguments import text_or_none, whole
from .._arguments import timeout as checked_timeout
from .._statistics import Statistics
from ..usage import log_api_usage_once
from ._arguments import (
    check_context,
    check_dataset,
    check_functions,
    check_order,
    checked_flag,
    checked_workers,
    tell_once,
)
from ._epoch_order import check_same_order, order_of_epoch
from ._identity import in_words
from ._iterable_style import IterableEpoch, IterableFetch, IterableProgress
from ._map_style import MapStyleEpoch, MapStyleFetch, Progress
from ._pytorch import default_collate_fn, draw_seed, is_iterable_style, pinning
from ._resumable import Resumable
from ._samplers import batch_sampler_of, number_of_batches, sampler_of
from ._statistics import Tell, joined
from ._worker_info import begin_worker, tell_pytorch
from ._workers import InCaller, InThreads, Workers

T = TypeVar("T")
_Begun: TypeAlias = "tuple[Iterator[T], Progress | IterableProgress, tuple[Tell, ...]]"

_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")


class DataLoader(Resumable, Generic[T]):
    """`torch.utils.data.DataLoader` with threads in place of worker processes.

    Arguments, defaults, the order of samples, batches and kinds of errors are PyTorch's, so that
    changing the import is enough. What differs:

    - Workers are threads of this process. The data set is not pickled or copied, its samples
      neither; so it must bear being indexed by several threads at once. Workers of an iterable data
      set have an iterator each, and if there are several, a shallow copy of it.
    - Random number generators are shared by all threads, and no worker is seeded:
      `get_worker_info().seed` is there for those who seed one of their own.
    - What the data set raises comes with its own type, its traceback and a note of the sample's
      index, at the place of its batch; the next batch follows. A `StopIteration` is a
      `RuntimeError`, and no silent end.
    - `state_dict` and `load_state_dict` go on within an epoch, as those of torchdata's
      `StatefulDataLoader`.

    Args:
        dataset: What samples come from. With `__getitem__` it is indexed; if it is an
            `IterableDataset`, or has `__iter__` alone, it is iterated.
        batch_size: Samples per batch. `None`: no batches, each sample by itself.
        shuffle: Whether each epoch has an order of its own, drawn by PyTorch.
        sampler: Gives indices, in the thread that asks for batches; not together with `shuffle`.
        batch_sampler: Gives lists of indices; not together with `batch_size`, `shuffle`, `sampler`
            or `drop_last`.
        num_workers: How many threads make batches. 0: they are made by whoever asks for them.
        collate_fn: Makes a batch of a list of samples, in a worker. Default: PyTorch's
            `default_collate`, or `default_convert` where there are no batches.
        pin_memory: Whether tensors are moved to pinned memory, in a worker.
        drop_last: Whether a last batch that is not full is left out.
        timeout: How many seconds a batch may take, with workers; 0: as many as it takes.
        worker_init_fn: Called at the start of each thread, with the worker's number.
        multiprocessing_context: Has no effect.
        generator: A `torch.Generator` for random orders. Default: PyTorch's own, as in its loader.
        prefetch_factor: How many batches each worker makes ahead, at least 1. Default: 2.
        persistent_workers: Has no effect but on which random numbers are drawn.
        pin_memory_device: Has no effect.
        in_order: Whether batches come in the order of their indices. If not, a slow one holds up no
            other. Batches of an iterable data set always come in order.

    Raises:
        ValueError, TypeError: Arguments are out of range, or do not go together.
        ModuleNotFoundError: What is asked for needs PyTorch, and that is not installed.

    Iterating raises `LoaderTimedOutError`, a `TimeoutError` and `RuntimeError`, after `timeout`.

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

        self._tellers: tuple[Tell, ...] = ()
        self._initialized = True

        for name in ("worker_init_fn", "persistent_workers", "multiprocessing_context"):
            if getattr(self, name):
                tell_once(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and "_initialized" in vars(self):
            raise ValueError(f"{name} cannot be set once the loader is made")
        super().__setattr__(name, value)

    def __len__(self) -> int:
        """How many batches an epoch has. Of an iterable data set: if it has a length.

        Raises:
            TypeError: The data set or the sampler has none.
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
        return in_words(self.dataset, self, self.batch_size, order, self.num_workers)

    def __iter__(self) -> Iterator[T]:
        """Begins an epoch, or goes on with that of a state that was loaded just before."""
        with self._lock.held():
            return self._begin()

    def _begin(self) -> Iterator[T]:
        state, seed = self._loaded, self._seed
        if state is not None and state["_iterator_finished"]:
            seed = state["_base_seed"]
            state = self._behind(state)
        epoch_order = None if self._iterable_style else order_of_epoch(self._index_sampler)
        if state is not None and epoch_order is not None:
            check_same_order(state, epoch_order)
        pin = pinning() if self.pin_memory else None
        if self.num_workers:
            tell_pytorch()
        begin = self._iterable if self._iterable_style else self._map_style
        its_seed = None if state is None else state["_base_seed"]
        saved = None if state is None else state["_random_state"]
        # Where nothing was drawn, the order comes from PyTorch's own generator as in any epoch.
        drawn = state is not None and state.get("_sampler_iter_yielded", 0) > 0
        with self._rewound(saved, default=drawn):
            if its_seed is not None:
                seed, randomness = its_seed, saved
            else:
                if seed is None or not self.persistent_workers:
                    seed = self._draw_seed()
                randomness = self._snapshot()
            epoch, progress, tellers = begin(pin, state, seed)
        # In one step: whoever is interrupted has the state of before, or that of this epoch.
        vars(self).update(
            _progress=progress,
            _tellers=tellers,
            _seed=seed,
            _randomness=randomness,
            _epoch_order=epoch_order,
            _loaded=None,
        )
        return epoch

    def _draw_seed(self) -> int:
        return draw_seed(self.generator)

    def _map_style(self, pin: Any, state: Mapping[str, Any] | None, seed: int) -> _Begun[T]:
        progress = Progress(state)
        workers = self._workers(self._fetch(pin), self.num_workers, seed)
        epoch = MapStyleEpoch(
            workers,
            self._index_sampler,
            progress,
            ahead=self._ahead * self.num_workers,
            timeout=self._seconds,
        )
        return epoch, progress, (workers.tell,)

    def _fetch(self, pin: Any) -> Callable[[Any], Any]:
        """What makes a batch of indices. What has `close` is closed when the epoch ends."""
        return MapStyleFetch(self.dataset, self.collate_fn, self.batch_sampler is not None, pin)

    def _iterable(self, pin: Any, state: Mapping[str, Any] | None, seed: int) -> _Begun[T]:
        count = max(1, self.num_workers)
        progress = IterableProgress(count, state)
        workers: list[Workers] = []
        for number, behind in enumerate(progress.states):
            dataset = copy.copy(self.dataset) if count > 1 else self.dataset
            fetch = IterableFetch(
                dataset,
                self.collate_fn,
                self.batch_size,
                self.drop_last,
                pin,
                None if behind == "end" else behind,
            )
            workers.append(self._workers(fetch, min(1, self.num_workers), seed, number, dataset))
        epoch = IterableEpoch(workers, progress, ahead=self._ahead, timeout=self._seconds)
        return epoch, progress, tuple(worker.tell for worker in workers)

    @property
    def _seconds(self) -> float | None:
        """How long to wait for a batch."""
        return checked_timeout(self.timeout or None)

    @property
    def _ahead(self) -> int:
        """How many batches a worker makes ahead: at least one, or there would be none."""
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
            return InCaller(fetch)
        begin = functools.partial(
            begin_worker,
            num_workers=self.num_workers,
            seed=seed,
            dataset=self.dataset if dataset is None else dataset,
            init=self.worker_init_fn,
            first=first,
        )
        return InThreads(
            fetch,
            num_threads=threads,
            in_order=self.in_order,
            most=self._ahead * threads,
            begin=begin,
        )

    def stats(self) -> Statistics:
        """What the epoch that was begun last did so far: how many batches were made, in what time, and
        how long your loop waited for them. Before the first epoch everything is 0 or empty.

        Its `fetch` is what workers do: samples, `collate_fn`, pinned memory. Its items are batches;
        of an iterable data set, a worker's attempts to make one behind its end, too. What your data set
        raises is your loop's, and counted as a failure only without workers. Of several workers with
        iterators of their own, what cannot be added is that of the slowest.

        >>> from spdl_rs.torch import DataLoader
        >>> loader = DataLoader(range(10), batch_size=4, num_workers=2, collate_fn=sum)
        >>> list(loader)
        [6, 22, 17]
        >>> [(stage["name"], stage["items"]) for stage in loader.stats()["stages"]]
        [('source', 3), ('fetch', 3)]
        """
        return joined(self._tellers)

    def diagnose(self) -> str:
        """What limits the rate of the epoch that was begun last, in a sentence or two, and what to do
        about it. It is `stats()["diagnosis"]`.

        >>> from spdl_rs.torch import DataLoader
        >>> loader = DataLoader("ab", batch_size=None)
        >>> list(loader)
        ['a', 'b']
        >>> "num_workers=0" in loader.diagnose()
        True
        """
        return self.stats()["diagnosis"]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_tellers": ()}
