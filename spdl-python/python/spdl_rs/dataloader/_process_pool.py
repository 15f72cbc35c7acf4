"""Batches made in other processes, for code that keeps the GIL."""

from __future__ import annotations

import multiprocessing.context
import pickle
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from typing import Any

from ..pipeline._failures.child_process import (
    check_can_be_imported,
    exit_code_in_words,
    with_advice,
)
from ..pipeline._processes.remote_errors import TravellingError
from ..pipeline._processes.worker_process import end_with_parent
from ..torch._map_style import MapStyleFetch
from ._thread_workers import ThreadDataLoader

# How long a process of a pool that is broken may take to end.
_TERMINATION_S = 1.0


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
        check_can_be_imported(context)
        super().__init__(*arguments, **options)
        self._context = context
        self._begin_at_once = begin_at_once
        batched = self.batch_sampler is not None
        try:
            self._pickled = pickle.dumps(MapStyleFetch(self.dataset, self.collate_fn, batched))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise _cannot_be_sent(self.dataset, error) from error

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


def _cannot_be_sent(dataset: Any, error: Exception) -> TypeError:
    """What is raised where the data set, or else `collate_fn`, cannot be pickled."""
    try:
        pickle.dumps(dataset)
    except Exception:
        what = "dataset"
    else:
        what = "collate_fn"
    return TypeError(
        f"{what} cannot be pickled, and so not be sent to worker processes ({error}); functions and "
        "classes must be defined in a module, not within a function, and not be lambdas. Without "
        "multiprocessing_context workers are threads, which take anything"
    )


class _InPool:
    """Waits for a process of a pool."""

    def __init__(self, executor: ProcessPoolExecutor, pin: Callable[[Any], Any] | None) -> None:
        self._executor = executor
        self._pin = pin
        # A pool that breaks forgets its processes.
        self._processes: dict[int, Any] = {}
        self._has_given = False

    def __call__(self, index: Any) -> Any:
        broken: tuple[BaseException | None] | None = None
        made = batch = None
        try:
            made = self._executor.submit(_make, index)
            self._processes.update(vars(self._executor).get("_processes") or {})
            batch = made.result()
        except BrokenProcessPool as error:
            # All that waits for the pool raises this same object, and its traceback would hold the
            # loops in which it was raised before.
            broken, made = (error.__cause__,), None
        if broken is not None:
            raise BrokenProcessPool(self._what_ended()) from broken[0]
        self._has_given = True
        if isinstance(batch, TravellingError):
            raise batch.arrived()
        return batch if self._pin is None else self._pin(batch)

    def _what_ended(self) -> str:
        """Which process is not there any more, and how it ended."""
        processes = dict(self._processes)
        for process in processes.values():
            process.join(_TERMINATION_S)
        # The pool ends the others with SIGTERM.
        codes = {pid: process.exitcode for pid, process in processes.items()}
        told = [
            f"process {pid} {exit_code_in_words(code, at_start=not self._has_given)}"
            for pid, code in codes.items()
            if code not in (None, 0, -signal.SIGTERM)
        ]
        what = "; ".join(told) or f"one of the processes {list(codes)} was ended"
        if -signal.SIGKILL in codes.values():
            what += ", as the system does where memory runs out"
        return (
            f"{what}. It made batches of the loader, which needs all its processes: iterate it anew"
        )

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
