"""Sources that are shuffled before each epoch, or repeated endlessly."""

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

# The version of the state format.
_VERSION = 1

# A warning is logged if `shuffle` takes more than this number of seconds.
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
    """Wraps a source so that each epoch starts with `src.shuffle(seed=epoch)`.

    With `shuffle_last`, each epoch ends with this call instead. `epoch` increases by 1 with each iteration,
    even if an iteration ends early. Use the wrapper if no code can call `shuffle` between epochs, for
    example in a worker process.

    `len` returns the length of `src`, and raises `TypeError` if `src` has none. A warning is logged if
    `shuffle` takes more than 3 seconds. If `src` has `state_dict` and `load_state_dict`, the result has
    them too and resumes within an epoch. A state saved after a complete epoch starts the next epoch.

    Args:
        src: A source with the method `shuffle(seed)`.
        shuffle_last: If true, shuffles after each epoch instead of before, even if the epoch
            ends early.
        epoch: The first seed, at least 0.

    Raises:
        TypeError: `src` has no method `shuffle`.
        ValueError: `epoch` is negative.

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
            raise TypeError(f"{type(src).__name__} has no method shuffle(seed)")
        self.src = src
        self._shuffle_last = flag("shuffle_last", shuffle_last)
        # The seed of the next call of `shuffle`.
        self._epoch = whole("epoch", epoch, 0, 2**63 - 1)
        # True from the start of an epoch to its end. An early exit leaves the value true.
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
            raise TypeError(f"{type(self.src).__name__} has no length: __len__ is missing")
        return len(self.src)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the current epoch, as values that JSON supports."""
        this = self._epoch - (self._within_pass and not self._shuffle_last)
        return {"version": _VERSION, "epoch": this, "source": _stateful(self.src).state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resumes at the position of `state_dict`.

        Raises:
            TypeError: `state_dict` is not a mapping, or the source does not support states.
            ValueError: The state is from another source.
        """
        epoch, source = _epoch_and_source(state_dict)
        _stateful(self.src).load_state_dict(source)
        self._epoch, self._within_pass = epoch, False


def repeat_source(src: Iterable[T], /, epoch: SupportsIndex = 0) -> Iterator[T]:
    """Returns an endless iterator that repeats a source, epoch after epoch.

    If `src` has the method `shuffle`, `src.shuffle(seed=epoch)` is called before each epoch. The
    number of items and the items per second of each epoch are logged. The iterator can be
    pickled before its first item is taken.

    If `src` has `state_dict` and `load_state_dict`, the result has them too and resumes within an
    epoch.

    Args:
        src: The source. An iterator cannot be used, because it can be read only once.
        epoch: The number of the first epoch, at least 0.

    Raises:
        ValueError: `epoch` is negative, or a started iterator is pickled.

    `next` raises `RuntimeError` if an epoch has no items, because `next` would never return. The rest of an
    epoch that resumes from a state may be empty.

    >>> from itertools import islice
    >>> from spdl_rs.source import DistributedRandomSampler
    >>> source = repeat_source(DistributedRandomSampler(5, rank=0, world_size=1))
    >>> list(islice(source, 10))
    [4, 2, 3, 0, 1, 3, 1, 2, 4, 0]
    """
    # The result is an object of a class, because generators cannot be pickled.
    return _RepeatedSource(src, epoch)


class _RepeatedSource(Iterator[T]):
    def __init__(self, src: Iterable[T], epoch: SupportsIndex) -> None:
        self.src = src
        self.epoch = whole("epoch", epoch, 0, 2**63 - 1)
        self._pass: Iterator[T] | None = None
        self._begun = 0.0
        self._count = 0
        # After a state is loaded, the current epoch may have no remaining items.
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
        _LOG.info("Epoch %d of the source started.", self.epoch)
        self._begun, self._count = time.monotonic(), 0
        if isinstance(self.src, IterableWithShuffle):
            self.src.shuffle(seed=self.epoch)
        return iter(self.src)

    def _end(self) -> None:
        self._pass = None
        if self._count == 0 and not self._may_be_empty:
            raise RuntimeError(
                f"epoch {self.epoch} of the source has no items; use a source that can be read "
                "more than once, not an iterator or a generator"
            )
        self._may_be_empty = False
        took = time.monotonic() - self._begun
        rate = self._count / took if took > 0 else math.nan
        _LOG.info(
            "Epoch %d of the source ended: %d items in %.2f seconds. QPS: %.2f",
            self.epoch,
            self._count,
            took,
            rate,
        )
        self.epoch += 1

    def __getstate__(self) -> dict[str, Any]:
        if self._pass is not None:
            raise ValueError("cannot pickle a repeated source after its iteration has started")
        return self.__dict__

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the current epoch, as values that JSON supports."""
        source = _stateful(self.src).state_dict()
        return {"version": _VERSION, "epoch": self.epoch, "source": source}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resumes at the item after `state_dict`.

        Raises:
            TypeError: `state_dict` is not a mapping, or the source does not support states.
            ValueError: The state is from another source.
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
            f"{type(src).__name__} cannot resume: it must define state_dict and load_state_dict"
        )
    return src


def _epoch_and_source(state_dict: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
    check_mapping(state_dict)
    version = value_of(state_dict, "version")
    if version != _VERSION:
        raise ValueError(f"unsupported version of the state: {version!r}; expected {_VERSION}")
    epoch = whole("epoch", value_of(state_dict, "epoch"), 0, 2**63 - 1)
    return epoch, value_of(state_dict, "source")
