"""Batches made in other processes, for code that keeps the GIL."""

from __future__ import annotations

import multiprocessing.context
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from typing import Any

from ..pipeline._main_module import with_advice
from ..pipeline._remote_errors import TravellingError
from ..pipeline._worker_process import end_with_parent
from ..torch._map_style import MapStyleFetch
from ._thread_workers import ThreadDataLoader


class ProcessDataLoader(ThreadDataLoader):
    """The same loader, with a process pool of its own in each epoch.

    The data set and `collate_fn` are pickled once, here, and unpickled once in each process. A
    thread waits for each process.
    """

    def __init__(
        self,
        *arguments: Any,
        context: multiprocessing.context.BaseContext,
        begin_at_once: int | None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._context = context
        self._begin_at_once = begin_at_once
        batched = self.batch_sampler is not None
        self._pickled = pickle.dumps(MapStyleFetch(self.dataset, self.collate_fn, batched))

    def _fetch(self, pin: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
        turn = None
        if self._begin_at_once is not None:
            turn = self._context.BoundedSemaphore(self._begin_at_once)
        executor = ProcessPoolExecutor(
            self.num_workers,
            mp_context=self._context,
            initializer=end_with_parent,
            initargs=(_begin, (self._pickled, turn)),
        )
        # A fork copies no thread: better that there are few.
        executor.submit(int)
        return _InPool(executor, pin)


class _InPool:
    """Waits for a process of a pool."""

    def __init__(self, executor: ProcessPoolExecutor, pin: Callable[[Any], Any] | None) -> None:
        self._executor = executor
        self._pin = pin

    def __call__(self, index: Any) -> Any:
        batch = self._executor.submit(_make, index).result()
        if isinstance(batch, TravellingError):
            raise batch.arrived()
        return batch if self._pin is None else self._pin(batch)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


_fetch: MapStyleFetch | Exception | None = None
"""What a process of a pool makes batches with, or why it cannot."""


def _begin(pickled: bytes, turn: Any) -> None:
    global _fetch
    with nullcontext() if turn is None else turn:
        try:
            _fetch = pickle.loads(pickled)
        except AttributeError as error:
            _fetch = with_advice(error)
        except Exception as error:
            # Of a pool whose initializer fails, nobody would learn why.
            _fetch = error


def _make(index: Any) -> Any:
    """A batch, or what was raised: of that which the parent cannot read, the pool would break."""
    assert _fetch is not None, "the initializer ran first"
    if isinstance(_fetch, Exception):
        return TravellingError(_fetch)
    try:
        return _fetch(index)
    except BaseException as error:
        return TravellingError(error)
