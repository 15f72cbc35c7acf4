"""SPDL's `DataLoader`: a source, a function per item, batches, a function per batch."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, Generic, Literal, TypeVar

from .._arguments import Path, flag, shown, whole
from .._arguments import timeout as checked_timeout
from .._failure_policy import OnError, Skip, max_failures, skip
from .._locks import ForkSafeLock
from ..pipeline import Pipeline, PipelineBuilder
from ..pipeline.defs._checks import threads
from ..pipeline.defs._ops import function_of, kind_of, name_of
from ..usage import log_api_usage_once
from ._epoch_iterator import EpochIterator
from ._progress import Progress, Tracked, check

T = TypeVar("T")
U = TypeVar("U")


class DataLoader(Generic[U]):
    """Processes the items of a source in threads and groups them into batches.

    ```text
    src ──► preprocessor ──► batches ──► aggregator ──► transfer_fn ──► iteration
    ```

    Each `iter(loader)` is one epoch and runs a separate pipeline. If a function raises an exception, its
    item is dropped and logged, up to the limit of `on_error`. Items for which a function returns `None` are
    dropped too. When an epoch that dropped items ends, one warning with their number by reason is logged. The random
    numbers of `spdl_rs.io.DecodeImage` and `AugmentImage` differ in each epoch.

    Args:
        src: The items: an iterable, which a dedicated thread iterates, or an async iterable.
        preprocessor: Called for each item by `num_threads` threads; or an async function.
        batch_size: The number of items per list. `None`: items are not grouped.
        drop_last: Whether to leave out an incomplete last list.
        aggregator: Called for each list (or item) by `num_threads` threads, for example to collate.
        transfer_fn: Called last, for one batch at a time, for example to move it to a GPU.
        buffer_size: How many finished batches may wait for the consumer.
        num_threads: The number of worker threads.
        timeout: The longest wait for a batch in seconds; `None`: no limit.
        output_order: `"completion"`: items are forwarded as they complete. `"input"`: in the order of the
            source.
        on_error: What to do if a function raises an exception. `"skip"`: the item is dropped; the epoch fails
            if more than 1 % of the items of a stage fail, after at least 1,000 items. `spdl_rs.skip(...)` sets
            another limit; `skip(at_most=None)` is the behaviour of SPDL. `"raise"`: the first failure ends
            the epoch.
        tune: `True`: the number of threads, the concurrency of the functions and the queues change while an epoch runs,
            to the fastest values. A path: settings that `freeze` of a `Pipeline` with the same stages wrote. `False`
            (default): nothing changes.
        monitor: The path of a socket, by which `spdl top` shows the epoch that runs. `None` (default): no socket. Only
            Unix systems have it.

    Raises:
        ValueError, TypeError: An argument is out of range or has the wrong type.
        OSError: The file `tune` cannot be read.

    Iteration raises `PipelineFailure` if the source raises, if more items fail than `on_error` allows, or if
    items failed and the epoch delivered no batch. If no batch is ready within `timeout`, iteration
    waits for running functions, and then raises `TimeoutError`.

    >>> from spdl_rs.dataloader import DataLoader
    >>> loader = DataLoader(
    ...     ["1", "2", "3", "4", "5"],
    ...     preprocessor=int,
    ...     batch_size=2,
    ...     aggregator=sum,
    ...     num_threads=2,
    ...     output_order="input",
    ... )
    >>> list(loader), len(loader)
    ([3, 7, 5], 3)

    If the source has a state, the loader also has a state, and resumes after the delivered batches:

    >>> from spdl_rs.source import DistributedRandomSampler
    >>> def make():
    ...     sampler = DistributedRandomSampler(9, rank=0, world_size=3)
    ...     return DataLoader(sampler, preprocessor=str, output_order="input")
    >>> loader, another = make(), make()
    >>> next(iter(loader))
    '0'
    >>> another.load_state_dict(loader.state_dict())
    >>> list(another), list(another)
    (['7', '4'], ['0', '7', '4'])
    """

    def __init__(
        self,
        src: Iterable[Any] | AsyncIterable[Any],
        *,
        preprocessor: Callable[[Any], Any] | None = None,
        batch_size: int | None = None,
        drop_last: bool = False,
        aggregator: Callable[[Any], Any] | None = None,
        transfer_fn: Callable[[Any], Any] | None = None,
        buffer_size: int = 3,
        num_threads: int = 8,
        timeout: float | None = None,
        output_order: Literal["completion", "input"] = "completion",
        on_error: OnError = "skip",
        tune: bool | Path = False,
        monitor: str | os.PathLike[str] | None = None,
    ) -> None:
        log_api_usage_once("spdl_rs.dataloader.DataLoader")
        for name, function in (
            ("preprocessor", preprocessor),
            ("aggregator", aggregator),
            ("transfer_fn", transfer_fn),
        ):
            if function is not None:
                function_of(function, name)
        if batch_size is not None:
            batch_size = whole("batch_size", batch_size)
        num_threads = threads(num_threads)
        buffer_size = whole("buffer_size", buffer_size, wrong_type=ValueError)
        if output_order not in ("completion", "input"):
            raise ValueError(
                f'output_order must be "completion" or "input", not {shown(output_order)}'
            )
        drop_last = flag("drop_last", drop_last, or_number=True)
        timeout = checked_timeout(timeout, least=0)
        policy = skip() if on_error == "skip" else on_error
        if max_failures(policy) is None:
            policy = Skip(0, 0)
        assert isinstance(policy, Skip)
        self._policy = policy
        self._src = src
        self._preprocessor = preprocessor
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._aggregator = aggregator
        self._transfer_fn = transfer_fn
        self._buffer_size = buffer_size
        self._num_threads = num_threads
        self._timeout = timeout
        self._output_order: Literal["completion", "input"] = output_order
        self._tune, self._monitor = tune, monitor
        self._progress: Progress | None = None
        self._loaded: dict[str, Any] | None = None
        # The number of the epoch that the next iteration starts.
        self._epoch = 0
        # Protects `_progress` and `_loaded`: threads may share the loader.
        self._lock = ForkSafeLock()
        # Builds a pipeline only to report invalid arguments here.
        self._build(None)

    def __len__(self) -> int:
        """The number of batches of an epoch if no item is dropped.

        Raises:
            TypeError: The source has no length, or a function is a generator.
        """
        if not isinstance(self._src, Sized):
            raise TypeError(f"the source, of type {type(self._src).__name__}, has no length")
        if any("iterate" in kind_of(op) for op in self._functions()):
            raise TypeError("the length is unknown: a generator may yield any number of items")
        items = len(self._src)
        if self._batch_size is None:
            return items
        return items // self._batch_size if self._drop_last else -(-items // self._batch_size)

    def __iter__(self) -> Iterator[U]:
        """Creates an iterator over one epoch, which starts when its first batch is requested.

        Threads may share the iterator: each batch goes to one of them. Leaving the iteration does not
        wait for running functions.
        """
        return EpochIterator(self._begin, self._timeout)

    def _begin(self) -> tuple[Pipeline[Any], Progress | None]:
        with self._lock.held():
            epoch = self._epoch
            if not hasattr(self._src, "state_dict") or self._why_no_state() is not None:
                pipeline = self._build(None, epoch)
                self._epoch = epoch + 1
                return pipeline, None
            progress = Progress(self._src, self._loaded, epoch)
            pipeline = self._build(progress, epoch)
            # Assigned in one statement, so that Ctrl-C leaves either the old state or the state of this epoch.
            self._progress, self._loaded, self._epoch = progress, None, epoch + 1
        return pipeline, progress

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the epoch that was started last, after its delivered batches.

        After `load_state_dict`, returns the loaded state until the next iteration starts. Dropped items
        count as delivered. With `output_order="completion"`, the state lists each item that was delivered
        out of order.

        Raises:
            TypeError: The source has no `state_dict` and `load_state_dict`, or a function is a generator
                or async, so that delivered items are unknown.
        """
        self._check_has_state()
        with self._lock.held():
            loaded, progress = self._loaded, self._progress
        if loaded is not None:
            return dict(loaded)
        return (progress or Progress(self._src, None, self._epoch)).state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resumes from a state: the next iteration delivers the remaining batches of the saved epoch.

        Later epochs are complete. If the state was taken at the end of an epoch, the next iteration
        delivers a complete epoch.

        Raises:
            TypeError: See the method `state_dict`; or the state is not a mapping.
            ValueError: `state_dict` is not a state of this class. Exceptions of the source are propagated.
        """
        self._check_has_state()
        check(state_dict)
        if state_dict["source"] is not None:
            self._src.load_state_dict(state_dict["source"])  # pyright: ignore
        with self._lock.held():
            self._loaded = dict(state_dict)
            self._epoch = int(state_dict.get("epoch", 0)) + bool(state_dict["ended"])

    def _functions(self) -> list[Any]:
        functions = (self._preprocessor, self._aggregator, self._transfer_fn)
        return [function for function in functions if function is not None]

    def _why_no_state(self) -> str | None:
        if not (hasattr(self._src, "state_dict") and hasattr(self._src, "load_state_dict")):
            return f"the source, of type {type(self._src).__name__}, has no state"
        for function in self._functions():
            if kind_of(function) != "call":
                return f"{name_of(function)} is a generator or async: delivered items are unknown"
        return None

    def _check_has_state(self) -> None:
        why = self._why_no_state()
        if why is not None:
            raise TypeError(why)

    def _build(self, progress: Progress | None, epoch: int = 0) -> Pipeline[Any]:
        def tracked(function: Any) -> Any:
            return function if progress is None else Tracked(function, progress)

        source = self._src if progress is None else progress.source()
        builder: PipelineBuilder[Any, Any] = PipelineBuilder()
        builder.add_source(source)
        if self._preprocessor is not None:
            builder.pipe(
                tracked(self._preprocessor),
                concurrency=self._num_threads,
                name=name_of(self._preprocessor),
                output_order=self._output_order,
            )
        if self._batch_size is not None:
            builder.aggregate(self._batch_size, drop_last=self._drop_last)
        if self._aggregator is not None:
            builder.pipe(
                tracked(self._aggregator),
                concurrency=self._num_threads,
                name=name_of(self._aggregator),
                output_order=self._output_order,
            )
        if self._transfer_fn is not None:
            builder.pipe(
                tracked(self._transfer_fn),
                name=name_of(self._transfer_fn),
                output_order=self._output_order,
            )
        builder.add_sink(self._buffer_size)
        return builder.build(
            num_threads=self._num_threads,
            max_failures=self._policy,
            epoch=epoch,
            tune=self._tune,
            monitor=self._monitor,
        )
