"""Passes that can be broken off and gone on with: what all sources with a state share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from .._arguments import whole

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_VERSION = 1
_MOST = 2**64 - 1


class Pass(Protocol[T_co]):
    """An iterator that knows how far it is."""

    def __iter__(self) -> Iterator[T_co]: ...
    def __next__(self) -> T_co: ...
    @property
    def position(self) -> int:
        """How many items of the pass were given."""
        ...


class Resumable(ABC, Generic[T]):
    """A source with passes of known length, each a function of one number: a seed, or an epoch.

    That number may be `None` where a source has an order of its own.
    """

    _number_is: ClassVar[str]
    """What a state calls that number."""

    def __init__(self, number: int | None) -> None:
        self._number = number
        self._resume_at = 0
        # The pass that was begun last, while no other number was set.
        self._latest: Pass[T] | None = None

    @abstractmethod
    def _begin(self, position: int) -> Pass[T]:
        """The pass of `self._number`, from `position` on."""

    @abstractmethod
    def _identity(self) -> dict[str, Any]:
        """What a state must agree with to be of this source, in values that JSON has."""

    @abstractmethod
    def __len__(self) -> int: ...

    def _longest(self) -> int:
        """The largest position that a state of this source, on any rank, may have."""
        return len(self)

    def __iter__(self) -> Iterator[T]:
        """Begins a pass: at its start, or where a state says that was loaded just before."""
        position, self._resume_at = self._resume_at, 0
        self._latest = self._begin(position)
        return iter(self._latest)

    def state_dict(self) -> dict[str, Any]:
        """Says how far the pass has come that was begun last, in values that JSON has.

        What was taken from the iterator counts as done. A loader that reads ahead of its consumer
        has taken more than that has seen.
        """
        position = self._resume_at if self._latest is None else self._latest.position
        progress = {self._number_is: self._number, "position": position}
        return {"version": _VERSION, **self._identity(), **progress}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Makes the next pass go on where `state_dict` says; those after it are whole.

        Of a pass that was at its end nothing is left: the next one is then empty, unless another
        order is asked for first.

        Raises:
            TypeError: It is no mapping, or what should be a number in it is none.
            ValueError: It is of another source, or of a version that is not known here.
        """
        check_mapping(state_dict)
        for key, here in {"version": _VERSION, **self._identity()}.items():
            there = state_dict.get(key)
            if there != here:
                raise ValueError(
                    f"the state is not of this {type(self).__name__}: "
                    f"{key} is {there!r} there, and {here!r} here"
                )
        number = self._checked(self._number_is, value_of(state_dict, self._number_is))
        position = whole("position", value_of(state_dict, "position"), 0, self._longest())
        self._number, self._resume_at, self._latest = number, position, None

    def _renumber(self, name: str, number: Any) -> None:
        """Gives the next passes another number.

        With the number they have, a pass that is to go on where a state says still does so: who
        goes on in epoch 3 says that it is epoch 3, too.
        """
        number = self._checked(name, number)
        if number != self._number:
            self._resume_at = 0
        self._number, self._latest = number, None

    def _checked(self, name: str, number: Any) -> int | None:
        return whole(name, number, 0, _MOST)

    def __getstate__(self) -> dict[str, Any]:
        # A copy, mostly for another process, begins passes of its own.
        return {**self.__dict__, "_latest": None}


def check_mapping(state_dict: object) -> None:
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"a state is a mapping, not {type(state_dict).__name__}")


def value_of(state_dict: Mapping[str, Any], key: str) -> Any:
    if key not in state_dict:
        raise ValueError(f"the state has no {key}")
    return state_dict[key]


def or_again(source: Iterable[T]) -> Iterator[T]:
    """Iterates a source whose state was loaded that it had at the end of a pass.

    With such a state some give nothing, and a whole pass the next time; some a whole pass at once.
    """
    empty = True
    for item in source:
        empty = False
        yield item
    if empty:
        yield from source
