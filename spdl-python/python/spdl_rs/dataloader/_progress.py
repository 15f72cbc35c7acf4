"""The checkpoint state of a loader: which items of a source were delivered, in any order."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..pipeline._failures.item_text import describe
from ..pipeline.defs._ops import function_of
from ..source._resumable import check_mapping, skip_empty_epoch, value_of

_VERSION = 1


class NumberedItem:
    """An item, or a batch of items, with the numbers of its items in the order of the source."""

    __slots__ = ("numbers", "value")

    def __init__(self, numbers: tuple[int, ...], value: Any) -> None:
        self.numbers = numbers
        self.value = value

    def __repr__(self) -> str:
        # Error messages show the item alone.
        return describe(self.value)


class Progress:
    """Delivered items of one epoch.

    Args:
        source: The source, with `state_dict` and `load_state_dict`.
        epoch: The number of the epoch.
        state: The state from which the epoch resumes. The source has already loaded this state.
    """

    def __init__(
        self, source: Any, state: Mapping[str, Any] | None = None, epoch: int = 0
    ) -> None:
        self._epoch = epoch
        self.resumes = state is not None
        """Whether earlier batches of the epoch may have been delivered."""
        state = state or {"source": None, "beyond": [], "ended": False}
        self._source = source
        # Reentrant: a signal handler may request the state while its own thread holds the lock.
        self._lock = threading.RLock()
        self._skipped = frozenset(state["beyond"])
        self._after_end: bool = state["ended"]
        # Items are numbered from the start of this epoch. All items before `_given` are delivered or
        # dropped, as are the items in `_beyond`. `_states_after` maps an item to the source's state after it.
        self._given = 0
        self._beyond: set[int] = set(self._skipped)
        self._state = state["source"]
        self._states_after: dict[int, Any] = {}
        self._ended = False
        self.delivered: dict[int, tuple[int, ...]] = {}
        """The numbers of batches that were delivered but not counted yet, by sequence number. An insertion
        is a single step, which no signal interrupts."""
        self.places = itertools.count()

    def source(self) -> Iterator[NumberedItem]:
        """Yields the remaining items of the source."""
        items = skip_empty_epoch(self._source) if self._after_end else iter(self._source)
        for number, item in enumerate(items):
            with self._lock:
                self._states_after[number] = self._source.state_dict()
            if number not in self._skipped:
                yield NumberedItem((number,), item)
            else:
                self.done(())

    def count(self) -> None:
        """Counts delivered batches. If a signal interrupts this method, no count is lost."""
        with self._lock:
            for place, numbers in list(self.delivered.items()):
                self.done(numbers)
                del self.delivered[place]

    def done(self, numbers: tuple[int, ...]) -> None:
        with self._lock:
            if self._ended:
                # Another thread reached the end before this thread received its item.
                return
            self._beyond.update(number for number in numbers if number >= self._given)
            while (given := self._given) in self._beyond and given in self._states_after:
                state = self._states_after[given]
                # Python handles no signal within a single assignment.
                self._state, self._after_end, self._given = state, False, given + 1
                self._beyond.discard(given)
                self._states_after.pop(given, None)

    def end(self) -> None:
        """Marks all items as delivered, except items left out at the end of the epoch."""
        with self._lock:
            self.count()
            state, beyond = self._source.state_dict(), set[int]()
            # Python handles no signal within a single assignment.
            self._state, self._beyond, self._ended = state, beyond, True

    def state_dict(self) -> dict[str, Any]:
        with self._lock:
            self.count()
            return {
                "version": _VERSION,
                "source": self._state,
                "beyond": [n - self._given for n in sorted(self._beyond) if n >= self._given],
                "ended": self._ended or self._after_end,
                "epoch": self._epoch,
            }


def check(state: Mapping[str, Any]) -> None:
    """Checks that `state` is a state of a loader.

    Raises:
        TypeError: `state` is not a mapping.
        ValueError: `state` has another version or is incomplete.
    """
    check_mapping(state)
    version = value_of(state, "version")
    if version != _VERSION:
        raise ValueError(f"state version {version!r} is not supported; expected {_VERSION}")
    for key in ("source", "beyond", "ended"):
        value_of(state, key)


class Tracked:
    """Wraps a function so that the numbers of items are forwarded with its result."""

    def __init__(self, function: Any, progress: Progress) -> None:
        self._function: Callable[[Any], Any] = function_of(function)
        self._progress = progress

    def __call__(self, item: NumberedItem | list[NumberedItem]) -> NumberedItem | None:
        item = merged(item)
        try:
            result = self._function(item.value)
        except BaseException:
            self._progress.done(item.numbers)
            raise
        if result is None:
            self._progress.done(item.numbers)
            return None
        return NumberedItem(item.numbers, result)


def merged(item: NumberedItem | list[NumberedItem]) -> NumberedItem:
    """Merges a list of items into one item."""
    if isinstance(item, NumberedItem):
        return item
    numbers = tuple(number for each in item for number in each.numbers)
    return NumberedItem(numbers, [each.value for each in item])
