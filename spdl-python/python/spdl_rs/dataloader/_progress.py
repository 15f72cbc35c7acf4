"""Which items of a source a loader has given, though others overtake them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..pipeline._failures.item_text import describe
from ..pipeline.defs._ops import function_of
from ..source._resumable import check_mapping, or_again, value_of

_VERSION = 1


class Numbered:
    """An item, or a batch made of some, with their numbers in the order of the source."""

    __slots__ = ("numbers", "value")

    def __init__(self, numbers: tuple[int, ...], value: Any) -> None:
        self.numbers = numbers
        self.value = value

    def __repr__(self) -> str:
        # As messages show it.
        return describe(self.value)


class Progress:
    """How far one pass has come.

    Args:
        source: It has `state_dict` and `load_state_dict`.
        state: Where it begins; it was loaded into the source already.
    """

    def __init__(self, source: Any, state: Mapping[str, Any] | None = None) -> None:
        state = state or {"source": None, "beyond": [], "ended": False}
        self._source = source
        # A handler of a signal may ask for the state amid the work of its own thread.
        self._lock = threading.RLock()
        self._skipped = frozenset(state["beyond"])
        self._after_end: bool = state["ended"]
        # Items are numbered from where it begins. Given or dropped were all before this one, and
        # those in the set; the states are those behind items.
        self._given = 0
        self._beyond: set[int] = set(self._skipped)
        self._state = state["source"]
        self._behind: dict[int, Any] = {}
        self._ended = False
        self.just_given: dict[int, tuple[int, ...]] = {}
        """The numbers of batches that were given and not counted yet, each batch at one of `places`.
        What one puts in, no signal comes between."""
        self.places = itertools.count()

    def source(self) -> Iterator[Numbered]:
        """The source's items that are left."""
        items = or_again(self._source) if self._after_end else iter(self._source)
        for number, item in enumerate(items):
            with self._lock:
                self._behind[number] = self._source.state_dict()
            if number not in self._skipped:
                yield Numbered((number,), item)
            else:
                self.done(())

    def count(self) -> None:
        """Counts what was just given. Wherever that is interrupted, nothing is lost of it."""
        with self._lock:
            for place, numbers in list(self.just_given.items()):
                self.done(numbers)
                del self.just_given[place]

    def done(self, numbers: tuple[int, ...]) -> None:
        with self._lock:
            if self._ended:
                # Another thread came to the end before this one had its item.
                return
            self._beyond.update(number for number in numbers if number >= self._given)
            while (given := self._given) in self._beyond and given in self._behind:
                state = self._behind[given]
                # Together: behind these no signal is heard.
                self._state, self._after_end, self._given = state, False, given + 1
                self._beyond.discard(given)
                self._behind.pop(given, None)

    def end(self) -> None:
        """All was given, but for what is left out at the end."""
        with self._lock:
            self.count()
            state, beyond = self._source.state_dict(), set[int]()
            # Together: behind these no signal is heard.
            self._state, self._beyond, self._ended = state, beyond, True

    def state_dict(self) -> dict[str, Any]:
        with self._lock:
            self.count()
            return {
                "version": _VERSION,
                "source": self._state,
                "beyond": [n - self._given for n in sorted(self._beyond) if n >= self._given],
                "ended": self._ended or self._after_end,
            }


def check(state: Mapping[str, Any]) -> None:
    """Checks that something is a state of a loader.

    Raises:
        TypeError: It is no mapping.
        ValueError: It is none, or one of another version.
    """
    check_mapping(state)
    version = value_of(state, "version")
    if version != _VERSION:
        raise ValueError(f"the state is of version {version!r}; known is {_VERSION}")
    for key in ("source", "beyond", "ended"):
        value_of(state, key)


class Tracked:
    """Calls a function with what has numbers, and hands those on with the result."""

    def __init__(self, function: Any, progress: Progress) -> None:
        self._function: Callable[[Any], Any] = function_of(function)
        self._progress = progress

    def __call__(self, item: Numbered | list[Numbered]) -> Numbered | None:
        item = joined(item)
        try:
            result = self._function(item.value)
        except BaseException:
            self._progress.done(item.numbers)
            raise
        if result is None:
            self._progress.done(item.numbers)
            return None
        return Numbered(item.numbers, result)


def joined(item: Numbered | list[Numbered]) -> Numbered:
    """A list of items as one."""
    if isinstance(item, Numbered):
        return item
    numbers = tuple(number for each in item for number in each.numbers)
    return Numbered(numbers, [each.value for each in item])
