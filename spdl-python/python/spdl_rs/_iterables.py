"""Sources that are iterables of samples, without positions: generators, streaming data sets, and so on."""

from __future__ import annotations

import itertools
import os
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, SupportsIndex

from . import _arguments as check
from ._functions import call, note, running
from ._items import fields_of
from ._locks import ForkSafeLock
from ._tables import is_hugging_face

_END = object()


class Once:
    """The items of an iterator, such as a generator, which can be iterated only once.

    Args:
        items: The remaining items.
        name: The name of the iterator, for messages.
    """

    def __init__(self, items: Iterator[Any], name: str) -> None:
        self._items: Iterator[Any] | None = items
        self.name = name

    def __iter__(self) -> Iterator[Any]:
        items, self._items = self._items, None
        if items is None:
            raise RuntimeError(
                f"{self.name} is an iterator, such as a generator, which can be iterated only once; for further "
                "epochs, pass an object whose __iter__ starts from the beginning"
            )
        return items


class Shuffled:
    """The items of an iterable, shuffled within a window: see `spdl_rs.sources.shuffled`."""

    def __init__(self, source: Iterable[Any], window: SupportsIndex, seed: SupportsIndex) -> None:
        self._window = check.whole("window", window, 1, 2**40)
        self._seed = check.whole("seed", seed, 0, 2**64 - 1)
        if isinstance(source, (str, bytes, os.PathLike, Mapping)) or not hasattr(source, "__iter__"):
            is_path = isinstance(source, (str, bytes, os.PathLike))
            hint = ""
            if is_path:
                hint = "; pass it to the loader with shuffle=True; with sequential=True, tar shards are shuffled in windows"
            raise TypeError(f"source must be an iterable of samples, not {check.shown(source)}{hint}")
        items = _once_or_again(source)
        self._source, self.name = items, _name_of(source)
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, which determines the order, for the next `iter`."""
        self._epoch = epoch
        _set_epoch(self._source, epoch)

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        # Not in a generator, whose code would run later, after another `set_epoch`.
        return _in_window(iter(self._source), self._window, f"{self._seed} {self._epoch}")

    def __repr__(self) -> str:
        return f"shuffled(<{self.name}>, window={self._window}, seed={self._seed})"


def _in_window(items: Iterator[Any], window: int, seed: str) -> Iterator[Any]:
    draw = random.Random(seed).random
    held = list(itertools.islice(items, window))
    for item in items:
        at = int(draw() * window)
        yield held[at]
        held[at] = item
    while held:
        at = int(draw() * len(held))
        held[at], held[-1] = held[-1], held[at]
        yield held.pop()


class Iterations:
    """Starts iterations of an iterable. The native loader calls it on a separate thread, once for each epoch."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.name = _name_of(source)
        self.len = _len_of(source)
        self._words = f"source, {self.name}"
        self._lock = ForkSafeLock()

    @property
    def is_once(self) -> bool:
        """Whether the source can be iterated only once."""
        source = self._source
        return isinstance(source._source if isinstance(source, Shuffled) else source, Once)

    def __call__(self, epoch: int, position: int) -> tuple[Iteration, int]:
        """Starts an epoch. Returns the iteration, and the position of its first item: 0, or `position`."""
        with running(self._words):
            try:
                items, first = call(self._words, self._begin, epoch, position)
            except (Exception, SystemExit) as error:
                note(error, f"start of epoch {epoch} of {self.name}")
                raise
        return Iteration(items, self.name, self._words, epoch, first), first

    def _begin(self, epoch: int, position: int) -> tuple[Iterator[Any], int]:
        # The epochs of a loader share the source.
        with self._lock.held():
            _set_epoch(self._source, epoch)
            iterate_from: Any = getattr(self._source, "iterate_from", None)
            if position > 0 and callable(iterate_from):
                begun: Any = iterate_from(position)
                return iter(begun), position
            return iter(self._source), 0


class Iteration:
    """An iteration of an epoch, for the thread of the native loader."""

    def __init__(
        self, items: Iterator[Any], name: str, words: str, epoch: int, first: int
    ) -> None:
        self._items, self._name, self._words = items, name, words
        self._epoch, self._is_empty = epoch, first == 0

    def take(self, position: int) -> tuple[Any] | None:
        """Returns the next item, whose position is for messages; `None` at the end."""
        with running(self._words):
            try:
                item = call(self._words, next, self._items, _END)
            except (Exception, SystemExit) as error:
                note(error, f"item {position} of {self._name}")
                raise
        if item is not _END:
            self._is_empty = False
            return (item,)
        if self._is_empty:
            raise ValueError(
                f"{self._name} has no items in epoch {self._epoch}; its __iter__ must start from the beginning in each "
                "epoch"
            )
        return None

    def fields(self, item: Any, position: int) -> dict[str, Any]:
        """Returns the fields of an item."""
        with running(self._words):
            try:
                return call(self._words, fields_of, item)
            except Exception as error:
                note(error, f"item {position} of {self._name}")
                raise

    def close(self) -> None:
        """Ends the iteration, so that the cleanup code of a generator runs."""
        close = getattr(self._items, "close", None)
        if callable(close):
            with running(self._words):
                call(self._words, close)


def iterations_of(source: Any) -> tuple[Iterations | None, Any]:
    """Finds out whether `source` is an iterable of samples, and not of paths.

    Takes the first item, unless the class of the source determines its items. Returns the iterations, if it is, and
    the source for other uses, because iterators are used up.
    """
    kind = type(source)
    if isinstance(source, (Shuffled, *_classes_of_samples())) or is_hugging_face(source, "IterableDataset"):
        return Iterations(source), source
    if isinstance(source, (str, bytes, os.PathLike, Mapping, list, tuple, type)) or not hasattr(kind, "__iter__"):
        return None, source
    items = iter(source)
    first = next(items, _END)
    is_of_samples = isinstance(first, (Mapping, tuple))
    if items is source:
        rest = items if first is _END else itertools.chain((first,), items)
        return (Iterations(Once(rest, _name_of(source))), source) if is_of_samples else (None, rest)
    close = getattr(items, "close", None)
    if callable(close):
        close()
    return (Iterations(source), source) if is_of_samples else (None, source)


def _classes_of_samples() -> tuple[type, ...]:
    """The class `IterableDataset` of PyTorch, if the program has imported PyTorch."""
    data = getattr(getattr(sys.modules.get("torch"), "utils", None), "data", None)
    found = getattr(data, "IterableDataset", None)
    return (found,) if isinstance(found, type) else ()


def _once_or_again(source: Iterable[Any]) -> Iterable[Any]:
    if not isinstance(source, Iterator):
        return source
    return Once(source, _name_of(source))


def _set_epoch(source: Any, epoch: int) -> None:
    set_epoch = getattr(source, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)


def _name_of(source: Any) -> str:
    if isinstance(source, (Once, Shuffled)):
        return source.name
    # Generators have the name of their function.
    name = getattr(source, "__name__", None)
    return name if isinstance(name, str) else type(source).__name__


def _len_of(source: Any) -> int | None:
    if not hasattr(type(source), "__len__"):
        return None
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        # Wrappers may have `__len__` although what they wrap has none.
        return None
