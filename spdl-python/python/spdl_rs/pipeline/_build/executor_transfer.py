"""Executors of a pipeline that runs in another process.

That process creates them on first use. If it may not start processes, this process has the process pools.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from .._processes.remote_pool import RemotePool
from ..defs._configs import JoinConfig, PathVariantsConfig, PipeConfig, PipelineConfig

T = TypeVar("T")


def transferable(
    config: PipelineConfig[T], *, processes: bool = True
) -> tuple[PipelineConfig[T], list[concurrent.futures.ProcessPoolExecutor]]:
    """Returns the same pipeline with executors that can be pickled, and the pools of `RemotePool`s.

    Args:
        config: The pipeline.
        processes: If false, the other process is not allowed to start processes.

    Raises:
        ValueError: An executor was used before.
    """
    pools: list[concurrent.futures.ProcessPoolExecutor] = []
    made: dict[int, concurrent.futures.Executor] = {}

    def replaced(executor: concurrent.futures.Executor) -> concurrent.futures.Executor:
        # Stages that share an executor share its replacement.
        if id(executor) not in made:
            made[id(executor)] = _transferable_executor(executor, None if processes else pools)
        return made[id(executor)]

    return _with_executors(config, replaced), pools


class LazyExecutor(concurrent.futures.Executor):
    """An executor that is created by the first `submit`, in the process that calls it."""

    def __init__(self, make: Callable[..., concurrent.futures.Executor], *arguments: Any) -> None:
        self._make = make
        self._arguments = arguments
        self._lock = threading.Lock()
        self._made: concurrent.futures.Executor | None = None
        self.has_own_objects = make is _make_processes

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._make, *self._arguments)

    def submit(
        self, fn: Callable[..., T], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[T]:
        with self._lock:
            if self._made is None:
                self._made = self._make(*self._arguments)
        return self._made.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            made = self._made
        if made is not None:
            made.shutdown(wait, cancel_futures=cancel_futures)


def _make_threads(
    workers: int, prefix: str, initializer: Any, initargs: tuple[Any, ...]
) -> concurrent.futures.Executor:
    return concurrent.futures.ThreadPoolExecutor(workers, prefix, initializer, initargs)


def _make_processes(
    workers: int, start_method: str | None, initializer: Any, initargs: tuple[Any, ...]
) -> concurrent.futures.ProcessPoolExecutor:
    from .._processes import worker_process as _worker_process

    return concurrent.futures.ProcessPoolExecutor(
        workers,
        _worker_process.start_method(start_method),
        _worker_process.end_with_parent,
        (initializer, initargs),
    )


def _transferable_executor(
    executor: concurrent.futures.Executor,
    pools: list[concurrent.futures.ProcessPoolExecutor] | None,
) -> concurrent.futures.Executor:
    # Subclasses are not transferable, because they may have more state. Only private attributes
    # show the arguments of an executor of the standard library.
    known: dict[str, Any] = vars(executor)
    if type(executor) is concurrent.futures.ThreadPoolExecutor:
        make, specific, used = _make_threads, "_thread_name_prefix", bool(known.get("_threads"))
    elif type(executor) is concurrent.futures.ProcessPoolExecutor:
        make, specific = _make_processes, "_mp_context"
        used = bool(known.get("_processes") or known.get("_queue_count"))
    else:
        return executor
    if used:
        raise ValueError(
            f"a {type(executor).__name__} that was used before cannot be moved to another process; "
            "pass a new one"
        )
    initializer, initargs = known.get("_initializer"), known.get("_initargs", ())
    second = known[specific]
    if make is _make_processes:
        second = second.get_start_method() if second is not None else None
    arguments = (known["_max_workers"], second, initializer, initargs)
    if make is _make_processes and pools is not None:
        pools.append(_make_processes(*arguments))
        return RemotePool(len(pools) - 1)
    return LazyExecutor(make, *arguments)


def _with_executors(config: Any, replaced: Callable[[Any], Any]) -> Any:
    """Returns a copy of a configuration with other executors."""

    def within(part: Any) -> Any:
        return _with_executors(part, replaced)

    if isinstance(config, PipelineConfig):
        pipes = tuple(map(within, config.pipes))
        return dataclasses.replace(config, src=within(config.src), pipes=pipes)
    if isinstance(config, JoinConfig):
        parts = tuple(map(within, config.pipeline_configs))
        return dataclasses.replace(config, pipeline_configs=parts)
    if isinstance(config, PathVariantsConfig):
        paths = tuple(tuple(map(within, path)) for path in config.paths)
        return dataclasses.replace(config, paths=paths)
    if isinstance(config, PipeConfig) and config.executor is not None:
        return dataclasses.replace(config, executor=replaced(config.executor))
    return config
