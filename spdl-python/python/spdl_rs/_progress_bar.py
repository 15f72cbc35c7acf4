"""A progress bar for loaders and pipelines, on terminals and in notebooks."""

from __future__ import annotations

import collections
import html
import importlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Protocol, TextIO, TypeVar

from ._arguments import whole

T = TypeVar("T")

_REDRAW_S = 0.25
"""The shortest time between two drawings."""
_RATE_S = 15.0
"""The rate is that of the last seconds, so that it follows a change."""
_WIDTH = 30


class _Display(Protocol):
    def draw(self, done: int, total: int | None, text: str) -> None: ...
    def end(self) -> None: ...


class _Terminal:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._length = 0

    def draw(self, done: int, total: int | None, text: str) -> None:
        if total:
            filled = min(_WIDTH, _WIDTH * done // total)
            text = "━" * filled + "─" * (_WIDTH - filled) + " " + text
        try:
            self._stream.write("\r" + text.ljust(self._length))
        except UnicodeEncodeError:
            self._stream.write("\r" + text.encode("ascii", "replace").decode().ljust(self._length))
        self._stream.flush()
        self._length = len(text)

    def end(self) -> None:
        self._stream.write("\n")
        self._stream.flush()


class _Notebook:
    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def draw(self, done: int, total: int | None, text: str) -> None:
        bar = f'<progress value="{done}" max="{total}" style="width: 20em"></progress> ' if total else ""
        shown = {"text/html": bar + html.escape(text), "text/plain": text}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def end(self) -> None:
        pass


def _display(file: TextIO | None) -> _Display | None:
    """Returns where the bar is drawn; `None` if neither a notebook nor a terminal is there."""
    if file is None:
        ipython = sys.modules.get("IPython")
        shell = None if ipython is None else ipython.get_ipython()
        if shell is not None and hasattr(shell, "kernel"):
            return _Notebook(importlib.import_module("IPython.display").display)
        file = sys.stderr
    return _Terminal(file) if file is not None and file.isatty() else None


def progress(
    items: Iterable[T],
    *,
    total: int | None = None,
    unit: str = "batches",
    file: TextIO | None = None,
) -> Iterator[T]:
    """Iterates, and shows a progress bar with the rate, the remaining time and data readiness.

    *Data readiness* is the share of the time in which an item was ready: near 100 %, your loop limits the rate; near
    0 %, the loop waits for nearly every item, and `loader.diagnose()` names the reason.

    In a notebook, the bar is part of the output of the cell. Otherwise it is drawn on standard error, if that is a
    terminal. Elsewhere, for example in a log file, nothing is shown.

    Args:
        items: A loader, a pipeline or any iterable. Readiness is shown for objects with the method `stats`.
        total: The number of items. Default: `len(items)`, or unknown.
        unit: The name of an item in the plural.
        file: A terminal. Default: standard error.

    >>> import spdl_rs
    >>> loader = spdl_rs.ImageLoader("photos", batch_size=2, size=64)
    >>> for images, labels in spdl_rs.progress(loader):
    ...     print(labels)
    [0 0]
    [1 1]
    """
    if total is not None:
        total = whole("total", total, 0, 2**63 - 1)
    elif isinstance(items, Sized):
        try:
            total = len(items)
        except TypeError:
            # The loader does not know the number.
            total = None
    return _iterate(items, total, unit, _display(file))


def _iterate(
    items: Iterable[T], total: int | None, unit: str, display: _Display | None
) -> Iterator[T]:
    if display is None:
        yield from items
        return
    began = time.monotonic()
    # Times and counts, of at most the last `_RATE_S` seconds.
    drawn = collections.deque([(began, 0)])
    done, due = 0, began
    try:
        for item in items:
            now = time.monotonic()
            if now >= due:
                due = now + _REDRAW_S
                while now - drawn[0][0] > _RATE_S and len(drawn) > 1:
                    drawn.popleft()
                display.draw(done, total, _text(items, done, total, unit, now, *drawn[0]))
                drawn.append((now, done))
            yield item
            done += 1
        now = time.monotonic()
        display.draw(done, done if total is None else total, _text(items, done, total, unit, now, began, 0))
    finally:
        display.end()


def _text(
    items: Any, done: int, total: int | None, unit: str, now: float, since: float, before: int
) -> str:
    count = f"{done:,}" if total is None else f"{done:,} / {total:,}"
    parts = [f"{count} {unit}"]
    rate = (done - before) / (now - since) if now > since else 0.0
    if rate > 0:
        parts.append(f"{rate:,.3g} {unit}/s" if rate < 1000 else f"{rate:,.0f} {unit}/s")
        if total is not None and done < total:
            parts.append(f"{_duration((total - done) / rate)} left")
    stats: Callable[[], Any] | None = getattr(items, "stats", None)
    if done and callable(stats):
        parts.append(f"ready {stats()['data_readiness']:.0%}")
    return "  ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
