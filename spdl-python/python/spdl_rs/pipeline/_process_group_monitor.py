"""A background task that tells what all processes of a group use."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
from collections.abc import Awaitable, Callable
from multiprocessing.context import BaseContext
from typing import Any, TypeAlias

from ._background import BackgroundTask
from ._logging import log_failure
from ._process_group import ProcessGroupReader, ProcessGroupResourceUsage

_LOGGER = logging.getLogger("spdl_rs.pipeline")

# How long the process may take to end before it is killed.
_PATIENCE_S = 5.0

UsageCallback: TypeAlias = Callable[[ProcessGroupResourceUsage], Awaitable[None]]


class ProcessGroupStatsMonitor(BackgroundTask):
    """Tells what the processes of this process group use: one rank of several on a machine, say.

    A process of its own looks, so that it takes nothing from the pipeline, and calls `callback`.
    It ends with the pipeline. Linux only. In a daemon process of `multiprocessing`, which may have
    no children, nothing is told.

    Args:
        callback: An async function that is given a `ProcessGroupResourceUsage`, in that process.
        interval: How many seconds there are between two looks.
        mp_context: How the process is started. Default: as `multiprocessing` does; where that is
            not by a fork, `callback` is pickled. Safer beside other threads than a fork is
            `multiprocessing.get_context("spawn")`.

    Raises:
        ValueError: `interval` is not positive.

    >>> import functools
    >>> from spdl_rs.pipeline import ProcessGroupStatsMonitor
    >>> async def tell(usage):
    ...     print(usage.num_procs, usage.cpu_percent)
    >>> monitor = functools.partial(ProcessGroupStatsMonitor, tell, interval=10)
    >>> background_tasks = [monitor]  # for `build_pipeline`
    """

    def __init__(
        self,
        callback: UsageCallback,
        interval: float = 60.0,
        mp_context: BaseContext | None = None,
    ) -> None:
        if not interval > 0:
            raise ValueError(f"interval must be positive, not {interval}")
        self._callback = callback
        self._interval = interval
        self._context: Any = mp_context or multiprocessing.get_context()

    async def run(self) -> None:
        if multiprocessing.current_process().daemon:
            _LOGGER.info("a daemon process may have no children: its group is not looked at")
            return
        # Whoever holds the other end lives; the process ends where nobody does.
        alive, held = self._context.Pipe(duplex=False)
        arguments = (self._callback, self._interval, alive, held, os.getpid())
        process = self._context.Process(
            target=_look, args=arguments, name="spdl-process-group", daemon=True
        )
        process.start()
        alive.close()
        try:
            await _end_of(process)
            _LOGGER.warning("the process that looks at its group ended: %s", process.exitcode)
        finally:
            held.close()
            process.terminate()
            process.join(_PATIENCE_S)
            if process.is_alive():
                process.kill()
                process.join()


async def _end_of(process: Any) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(process.sentinel, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process.sentinel)


def _look(
    callback: UsageCallback,
    interval: float,
    alive: multiprocessing.connection.Connection,
    held: multiprocessing.connection.Connection,
    parent: int,
) -> None:
    """The body of the process: looks until it is ended, or its parent has."""
    held.close()
    # Ctrl-C is for the parent, which ends this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    reader = ProcessGroupReader()
    while True:
        try:
            asyncio.run(_tell(callback, reader.read()))
        except Exception as error:
            log_failure("the callback of ProcessGroupStatsMonitor", error)
        # Readable at the end of the parent, and of whoever else holds the other end.
        if alive.poll(interval) or os.getppid() != parent:
            return


async def _tell(callback: UsageCallback, usage: ProcessGroupResourceUsage) -> None:
    await callback(usage)
