"""Resource usage of the process group, read from `/proc` (Linux only)."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, TypeAlias

from .._failures.log import log_failure
from .background import BackgroundTask


@dataclass
class ProcessGroupResourceUsage:
    """Resources used by the processes of a group. `None`: unknown."""

    pid: int
    """The ID of the process that reads the values, a member of the group."""
    pgid: int
    """The process group ID."""
    cpu_percent: float | None = None
    """CPU time since the previous reading, in percent of one CPU; `None` at the first reading."""
    rss_bytes: int | None = None
    """Resident set size; shared memory counts for each process."""
    pss_bytes: int | None = None
    """Proportional set size; shared memory is divided among its users."""
    private_bytes: int | None = None
    """Private memory."""
    disk_read_bytes: int | None = None
    """Bytes that live processes have read from disks."""
    disk_write_bytes: int | None = None
    """Bytes that live processes have written to disks."""
    num_procs: int | None = None
    """The number of processes."""
    net_rx_bytes: int | None = None
    """Bytes that this machine or container has received, without the loopback interface."""
    net_tx_bytes: int | None = None
    """Bytes that this machine or container has sent, without the loopback interface."""


class ProcessGroupReader:
    """Reads the resource usage of the current process group.

    Args:
        proc: The path of `/proc`.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        # CPU seconds by process, and the time of the reading.
        self._last: tuple[dict[str, float], float] | None = None

    def read(self) -> ProcessGroupResourceUsage:
        """Returns the current usage."""
        usage = ProcessGroupResourceUsage(os.getpid(), os.getpgrp())
        now, cpu_s, rss = time.monotonic(), dict[str, float](), 0
        pss, private, reads, writes = _Sum(), _Sum(), _Sum(), _Sum()
        for process in self._processes():
            stat = self._stat(process)
            if stat is None or stat.group != usage.pgid:
                continue
            cpu_s[process] = stat.cpu_s
            rss += stat.rss_bytes
            memory = self._numbers(f"{process}/smaps_rollup")
            pss.add(memory.get("Pss"), 1024)
            private.add(memory.get("Private_Clean"), 1024)
            private.add(memory.get("Private_Dirty"), 1024)
            io = self._numbers(f"{process}/io")
            reads.add(io.get("read_bytes"))
            writes.add(io.get("write_bytes"))
        if cpu_s:
            usage.num_procs, usage.rss_bytes = len(cpu_s), rss
            usage.cpu_percent = self._cpu_percent(cpu_s, now)
            self._last = cpu_s, now
        usage.pss_bytes, usage.private_bytes = pss.total, private.total
        usage.disk_read_bytes, usage.disk_write_bytes = reads.total, writes.total
        usage.net_rx_bytes, usage.net_tx_bytes = self._network()
        return usage

    def _cpu_percent(self, cpu_s: dict[str, float], now: float) -> float | None:
        if self._last is None or now <= self._last[1]:
            return None
        before, then = self._last
        # Processes that have ended since are ignored, so the difference is never negative.
        used = sum(max(0.0, time - before.get(process, 0.0)) for process, time in cpu_s.items())
        return 100.0 * used / (now - then)

    def _processes(self) -> Iterator[str]:
        try:
            yield from (name for name in os.listdir(self._proc) if name.isdigit())
        except OSError:
            return

    def _stat(self, process: str) -> _Stat | None:
        # The program name in parentheses may contain any characters.
        fields = self._text(f"{process}/stat").rpartition(")")[2].split()
        try:
            group, user, system, pages = (int(fields[at]) for at in (2, 11, 12, 21))
        except (IndexError, ValueError):
            return None
        cpu_s = (user + system) / os.sysconf("SC_CLK_TCK")
        return _Stat(group, cpu_s, pages * os.sysconf("SC_PAGE_SIZE"))

    def _numbers(self, path: str) -> dict[str, int]:
        """Parses lines of the form `name: number`."""
        numbers: dict[str, int] = {}
        for line in self._text(path).splitlines():
            name, _, value = line.partition(":")
            words = value.split()
            if words and words[0].isdigit():
                numbers[name] = int(words[0])
        return numbers

    def _network(self) -> tuple[int | None, int | None]:
        received, sent = _Sum(), _Sum()
        for line in self._text("net/dev").splitlines():
            name, colon, counts = line.partition(":")
            numbers = counts.split()
            if colon and name.strip() != "lo" and len(numbers) >= 9:
                received.add(int(numbers[0]))
                sent.add(int(numbers[8]))
        return received.total, sent.total

    def _text(self, path: str) -> str:
        try:
            with open(f"{self._proc}/{path}", errors="replace") as file:
                return file.read()
        except OSError:
            # The process has ended, or belongs to another user.
            return ""


@dataclass
class _Stat:
    group: int
    cpu_s: float
    rss_bytes: int


class _Sum:
    """A sum of known values; `None` if no value is known."""

    def __init__(self) -> None:
        self.total: int | None = None

    def add(self, value: int | None, unit: int = 1) -> None:
        if value is not None:
            self.total = (self.total or 0) + value * unit


_LOGGER = logging.getLogger("spdl_rs.pipeline")

# How long the monitoring process may take to end before it is killed.
_TERMINATION_TIMEOUT_S = 5.0

UsageCallback: TypeAlias = Callable[[ProcessGroupResourceUsage], Awaitable[None]]


class ProcessGroupStatsMonitor(BackgroundTask):
    """Reports the resource usage of the current process group, for example of one rank.

    A separate process reads the values and calls `callback`, so that the pipeline is not slowed down. The
    process ends with the pipeline. Linux only. Has no effect in daemon processes of `multiprocessing`, which
    cannot have children.

    Args:
        callback: An async function that is called with a `ProcessGroupResourceUsage`, in the separate
            process.
        interval: Seconds between readings.
        mp_context: The context that starts the process. Default: that of `multiprocessing`. With start
            methods other than `fork`, `callback` is pickled. `multiprocessing.get_context("spawn")` is
            safer than a fork in processes with threads.

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
            _LOGGER.info("resource usage is not monitored: a daemon process cannot have children")
            return
        # `alive` becomes readable when all processes that hold `held` have ended.
        alive, held = self._context.Pipe(duplex=False)
        arguments = (self._callback, self._interval, alive, held, os.getpid())
        process = self._context.Process(
            target=_monitor, args=arguments, name="spdl-process-group", daemon=True
        )
        process.start()
        alive.close()
        try:
            await _end_of(process)
            _LOGGER.warning("the monitoring process ended with exit code %s", process.exitcode)
        finally:
            held.close()
            process.terminate()
            process.join(_TERMINATION_TIMEOUT_S)
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


def _monitor(
    callback: UsageCallback,
    interval: float,
    alive: multiprocessing.connection.Connection,
    held: multiprocessing.connection.Connection,
    parent: int,
) -> None:
    """The main function of the monitoring process. Ends with its parent."""
    held.close()
    # Ctrl-C interrupts the parent, which terminates this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    reader = ProcessGroupReader()
    while True:
        try:
            asyncio.run(_report(callback, reader.read()))
        except Exception as error:
            log_failure("the callback of ProcessGroupStatsMonitor", error)
        # The pipe becomes readable once the parent, and processes that inherited the pipe, have ended.
        if alive.poll(interval) or os.getppid() != parent:
            return


async def _report(callback: UsageCallback, usage: ProcessGroupResourceUsage) -> None:
    await callback(usage)
