"""Base class of sources that save and resume their position within an epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from .._arguments import whole

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_VERSION = 1
_MAX = 2**64 - 1


class PositionedIterator(Protocol[T_co]):
    """An iterator that counts the items that it returned."""

    def __iter__(self) -> Iterator[T_co]: ...
    def __next__(self) -> T_co: ...
    @property
    def position(self) -> int:
        """The number of items returned in this epoch, skipped items included."""
        ...


class Resumable(ABC, Generic[T]):
    """A source with a known number of items per epoch. One number determines the order of an epoch.

    The number is a seed or an epoch number. `None` means the unshuffled order.
    """

    _number_key: ClassVar[str]
    """The key of the number in a state: `"seed"` or `"epoch"`."""

    def __init__(self, number: int | None) -> None:
        self._number = number
        self._resume_at = 0
        # The iterator that was created last. A new order resets this attribute to `None`.
        self._current: PositionedIterator[T] | None = None

    @abstractmethod
    def _iterator_at(self, position: int) -> PositionedIterator[T]:
        """Returns an iterator over the epoch of `self._number`, starting at `position`."""

    @abstractmethod
    def _identity(self) -> dict[str, Any]:
        """Returns the settings that a state must agree with, as values that JSON supports."""

    @abstractmethod
    def __len__(self) -> int: ...

    def _max_position(self) -> int:
        """The largest position in a valid state of this source, on any rank."""
        return len(self)

    def __iter__(self) -> Iterator[T]:
        """Starts an epoch, or resumes the epoch of a state that was loaded before."""
        position, self._resume_at = self._resume_at, 0
        self._current = self._iterator_at(position)
        return iter(self._current)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the current epoch, as values that JSON supports.

        The position counts the items taken from the iterator. A loader with prefetch takes
        more items than it has delivered.
        """
        position = self._resume_at if self._current is None else self._current.position
        progress = {self._number_key: self._number, "position": position}
        return {"version": _VERSION, **self._identity(), **progress}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resumes at the position of `state_dict`. Later epochs are complete.

        If the state is from the end of an epoch, the next epoch is empty, unless `shuffle` or
        `set_epoch` sets another order first.

        Raises:
            TypeError: `state_dict` is not a mapping, or one of its numbers has the wrong type.
            ValueError: The state is from another source or an unsupported version.
        """
        check_mapping(state_dict)
        for key, here in {"version": _VERSION, **self._identity()}.items():
            there = state_dict.get(key)
            if there != here:
                raise ValueError(
                    f"the state does not match this {type(self).__name__}: "
                    f"{key} is {there!r} in the state and {here!r} here"
                )
        number = self._check_number(self._number_key, value_of(state_dict, self._number_key))
        position = whole("position", value_of(state_dict, "position"), 0, self._max_position())
        self._number, self._resume_at, self._current = number, position, None

    def _skip(self, count: int) -> None:
        """Makes the next epoch start `count` items later."""
        self._resume_at += count

    def _set_number(self, name: str, number: Any) -> None:
        """Sets the number that decides the order of the next epochs.

        An unchanged number keeps a loaded position: `set_epoch(3)` does not restart epoch 3.
        """
        number = self._check_number(name, number)
        if number != self._number:
            self._resume_at = 0
        self._number, self._current = number, None

    def _check_number(self, name: str, number: Any) -> int | None:
        return whole(name, number, 0, _MAX)

    def __getstate__(self) -> dict[str, Any]:
        # A copy, usually for another process, has no iterator in progress.
        return {**self.__dict__, "_current": None}


def check_mapping(state_dict: object) -> None:
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"state_dict must be a mapping, not {type(state_dict).__name__}")


def value_of(state_dict: Mapping[str, Any], key: str) -> Any:
    if key not in state_dict:
        raise ValueError(f"the state has no key {key!r}")
    return state_dict[key]


def skip_empty_epoch(source: Iterable[T]) -> Iterator[T]:
    """Iterates an epoch of `source`, and one more if that epoch is empty.

    After a state from the end of an epoch is loaded, the first epoch of some sources is empty.
    Other sources start a complete epoch immediately.
    """
    empty = True
    for item in source:
        empty = False
        yield item
    if empty:
        yield from source
