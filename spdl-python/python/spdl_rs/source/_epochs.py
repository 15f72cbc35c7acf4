"""Sources that know their epochs: shuffled before each pass, and repeated without end."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import (
    Any,
    Generic,
    Protocol,
    SupportsIndex,
    TypeVar,
    overload,
    runtime_checkable,
)

from .._arguments import flag, whole
from ._resumable import check_mapping, value_of
from ._type import IterableWithShuffle, SizedIterable, SizedIterableWithShuffle

T = TypeVar("T")

_LOG = logging.getLogger("spdl_rs.source.utils")

# Of states.
_VERSION = 1

# Who shuffles for longer than this may want to know, in seconds.
_SLOW_SHUFFLE = 3.0


@overload
def embed_shuffle(
    src: SizedIterableWithShuffle[T], /, *, shuffle_last: bool = False, epoch: SupportsIndex = 0
) -> SizedIterable[T]: ...
@overload
def embed_shuffle(
    src: IterableWithShuffle[T], /, *, shuffle_last: bool = False, epoch: SupportsIndex = 0
) -> Iterable[T]: ...
def embed_shuffle(
    src: IterableWithShuffle[T], /, *, shuffle_last: bool = False, epoch: SupportsIndex = 0
) -> Iterable[T]:
    """Makes a source shuffle itself: before each pass, `src.shuffle(seed=epoch)` is called, with
    the next epoch each time.

    That is for sources that run where nobody can call `shuffle`, in another process say. Whoever
    leaves a pass early has begun it: the next has the next epoch. `len` is that of the source. A
    warning is logged where shuffling takes more than 3 seconds.

    The result has `state_dict` and `load_state_dict` where `src` has them, and goes on within a
    pass. A pass that came to its end is followed by the next epoch.

    Args:
        src: A source with `shuffle`.
        shuffle_last: Whether to shuffle after each pass, also one that is left early, instead of
            before.
        epoch: The first seed, at least 0.

    Raises:
        TypeError: `src` cannot be shuffled.
        ValueError: `epoch` is less than 0.

    >>> from spdl_rs.source import DistributedRandomSampler
    >>> source = embed_shuffle(DistributedRandomSampler(5, rank=0, world_size=1))
    >>> list(source), list(source)
    ([4, 2, 3, 0, 1], [3, 1, 2, 4, 0])
    """
    return _ShufflingSource(src, shuffle_last=shuffle_last, epoch=epoch)


class _ShufflingSource(Generic[T]):
    def __init__(
        self, src: IterableWithShuffle[T], *, shuffle_last: bool, epoch: SupportsIndex
    ) -> None:
        if not isinstance(src, IterableWithShuffle):
            raise TypeError(f"{type(src).__name__} cannot be shuffled: it has no shuffle(seed)")
        self.src = src
        self._shuffle_last = flag("shuffle_last", shuffle_last)
        # The seed of the next call of `shuffle`.
        self._epoch = whole("epoch", epoch, 0, 2**63 - 1)
        # From the start of a pass to its end, also when it was left early.
        self._within_pass = False

    def _shuffle(self) -> None:
        begun = time.monotonic()
        self.src.shuffle(seed=self._epoch)
        took = time.monotonic() - begun
        if took > _SLOW_SHUFFLE:
            _LOG.warning("Shuffling for epoch %d took %.2f seconds.", self._epoch, took)
        self._epoch += 1

    def __iter__(self) -> Iterator[T]:
        if not self._shuffle_last:
            self._shuffle()
        self._within_pass = True
        try:
            yield from self.src
            self._within_pass = False
        finally:
            if self._shuffle_last:
                self._shuffle()

    def __len__(self) -> int:
        if not isinstance(self.src, Sized):
            raise TypeError(f"{type(self.src).__name__} has no length")
        return len(self.src)

    def state_dict(self) -> dict[str, Any]:
        """Says how far the latest pass has come, in values that JSON has."""
        this = self._epoch - (self._within_pass and not self._shuffle_last)
        return {"version": _VERSION, "epoch": this, "source": _stateful(self.src).state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Makes the next pass go on where `state_dict` says.

        Raises:
            TypeError: It is no state, or the source has none.
            ValueError: It is the state of another source.
        """
        epoch, source = _epoch_and_source(state_dict)
        _stateful(self.src).load_state_dict(source)
        self._epoch, self._within_pass = epoch, False


def repeat_source(src: Iterable[T], /, epoch: SupportsIndex = 0) -> Iterator[T]:
    """Makes an endless iterator of a source: pass after pass, each an epoch.

    Before each pass `src.shuffle(seed=epoch)` is called, where `src` has that. Each epoch's items
    and its rate are logged. The result can be pickled until its first item is taken.

    It has `state_dict` and `load_state_dict` where `src` has them, and goes on within a pass.

    Args:
        src: The source. An iterator will not do: it can be read only once.
        epoch: The first epoch, at least 0.

    Raises:
        ValueError: `epoch` is less than 0, or the result is pickled when it has begun.

    Taking an item raises `RuntimeError` where a whole pass gives none, as there would be no end.

    >>> from itertools import islice
    >>> from spdl_rs.source import DistributedRandomSampler
    >>> source = repeat_source(DistributedRandomSampler(5, rank=0, world_size=1))
    >>> list(islice(source, 10))
    [4, 2, 3, 0, 1, 3, 1, 2, 4, 0]
    """
    # An object, and no generator, so that it can be given to another process.
    return _RepeatedSource(src, epoch)


class _RepeatedSource(Iterator[T]):
    def __init__(self, src: Iterable[T], epoch: SupportsIndex) -> None:
        self.src = src
        self.epoch = whole("epoch", epoch, 0, 2**63 - 1)
        self._pass: Iterator[T] | None = None
        self._begun = 0.0
        self._count = 0
        # Of a pass that is gone on with, nothing may be left.
        self._may_be_empty = False

    def __next__(self) -> T:
        while True:
            if self._pass is None:
                self._pass = self._begin()
            for item in self._pass:
                self._count += 1
                return item
            self._end()

    def _begin(self) -> Iterator[T]:
        _LOG.info("Epoch %d of the source begins.", self.epoch)
        self._begun, self._count = time.monotonic(), 0
        if isinstance(self.src, IterableWithShuffle):
            self.src.shuffle(seed=self.epoch)
        return iter(self.src)

    def _end(self) -> None:
        self._pass = None
        if self._count == 0 and not self._may_be_empty:
            raise RuntimeError(
                f"epoch {self.epoch} of the source had no items, and no later one may have any; "
                "an iterator, such as a generator, can be read only once"
            )
        self._may_be_empty = False
        took = time.monotonic() - self._begun
        rate = self._count / took if took > 0 else math.nan
        _LOG.info(
            "Epoch %d of the source ends: %d items in %.2f seconds. QPS: %.2f",
            self.epoch,
            self._count,
            took,
            rate,
        )
        self.epoch += 1

    def __getstate__(self) -> dict[str, Any]:
        if self._pass is not None:
            raise ValueError("a repeated source cannot be pickled when its iteration has begun")
        return self.__dict__

    def state_dict(self) -> dict[str, Any]:
        """Says how far the epoch has come, in values that JSON has."""
        source = _stateful(self.src).state_dict()
        return {"version": _VERSION, "epoch": self.epoch, "source": source}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Makes the next item be the one that comes after `state_dict`.

        Raises:
            TypeError: It is no state, or the source has none.
            ValueError: It is the state of another source.
        """
        epoch, source = _epoch_and_source(state_dict)
        _stateful(self.src).load_state_dict(source)
        self.epoch, self._pass, self._may_be_empty = epoch, None, True


@runtime_checkable
class _Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None: ...


def _stateful(src: object) -> _Stateful:
    if not isinstance(src, _Stateful):
        raise TypeError(
            f"{type(src).__name__} cannot be gone on with: it has no state_dict and load_state_dict"
        )
    return src


def _epoch_and_source(state_dict: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
    check_mapping(state_dict)
    version = value_of(state_dict, "version")
    if version != _VERSION:
        raise ValueError(f"the state is of version {version!r}, and {_VERSION} is known here")
    epoch = whole("epoch", value_of(state_dict, "epoch"), 0, 2**63 - 1)
    return epoch, value_of(state_dict, "source")
