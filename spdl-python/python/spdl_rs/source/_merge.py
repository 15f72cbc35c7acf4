"""Merges iterables, round-robin or by weighted random draws."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Generic, SupportsIndex, TypeVar

from .._arguments import whole

T = TypeVar("T")


class MergeIterator(Generic[T]):
    """Merges several iterables, round-robin or at random.

    Without weights, the iterator takes one item of each iterable in turn. With weights, the iterator draws
    an iterable for each item, with a probability proportional to its weight. Draws have no
    rounding error: a weight is the exact value of its `float`. Iterables of weight 0 are ignored.

    By default, an exhausted iterable is removed, and iteration ends when all are exhausted. Each call of
    `iter(merged)` calls `iter` on all iterables and repeats the same draws. Iterators, such as generators,
    do not restart.

    Args:
        iterables: At least one iterable.
        weights: The relative frequency of each iterable: finite, non-negative numbers.
        stop_after: 0: end when all iterables are exhausted. `n > 0`: end after `n` items, or when
            all are exhausted. -1: end when the first iterable is exhausted.
        seed: The seed of the weighted draws, passed to `random.Random`.

    Raises:
        ValueError: `iterables` is empty, or `stop_after` is less than -1. Or `weights` has the
            wrong length, a value that is not a finite number of at least 0, or a sum of 0 or
            infinity.
        TypeError: `stop_after` is not an integer.

    >>> letters = [["a", "b", "c"], ["A", "B"]]
    >>> "".join(MergeIterator(letters))
    'aAbBc'
    >>> "".join(MergeIterator(letters, stop_after=3))
    'aAb'

    Without weights, an iterable counts as exhausted when its `next` raises `StopIteration`:

    >>> "".join(MergeIterator([["A", "B"], ["a", "b", "c"]], stop_after=-1))
    'AaBb'
    >>> "".join(MergeIterator(letters, stop_after=-1))
    'aAbBc'

    With weights:

    >>> "".join(MergeIterator(["aaaaaaaa", "AAAAAAAA"], weights=[3, 1], stop_after=8))
    'AAaaAAaA'
    """

    def __init__(
        self,
        iterables: Sequence[Iterable[T]],
        *,
        weights: Sequence[float] | None = None,
        stop_after: SupportsIndex = 0,
        seed: int = 0,
    ) -> None:
        if not iterables:
            raise ValueError("iterables must not be empty")
        self.stop_after = whole("stop_after", stop_after, -1, 2**63 - 1)
        self.seed = seed
        self.iterables = iterables
        self.weights: Sequence[float] | None = None
        if weights is not None:
            floats = _floats(weights, len(iterables))
            self.iterables = [
                part for part, weight in zip(iterables, floats, strict=True) if weight
            ]
            self.weights = [weight for weight in floats if weight]

    def __iter__(self) -> Iterator[T]:
        iterators = [iter(iterable) for iterable in self.iterables]
        if self.weights is None:
            merged = _round_robin(iterators, stop_at_first=self.stop_after == -1)
        else:
            shares = _integer_weights(self.weights)
            merged = _weighted(iterators, shares, self.seed, stop_at_first=self.stop_after == -1)
        if self.stop_after <= 0:
            yield from merged
            return
        for count, item in enumerate(merged, start=1):
            yield item
            if count == self.stop_after:
                return


def _round_robin(iterators: list[Iterator[T]], *, stop_at_first: bool) -> Iterator[T]:
    while iterators:
        left: list[Iterator[T]] = []
        for iterator in iterators:
            try:
                item = next(iterator)
            except StopIteration:
                if stop_at_first:
                    return
            else:
                left.append(iterator)
                yield item
        iterators = left


def _weighted(
    iterators: list[Iterator[T]], shares: list[int], seed: int, *, stop_at_first: bool
) -> Iterator[T]:
    generator = random.Random(seed)
    while len(iterators) > 1:
        bounds = list(accumulate(shares))
        exhausted = None
        while exhausted is None:
            at = _draw(generator, shares, bounds)
            try:
                item = next(iterators[at])
            except StopIteration:
                exhausted = at
            else:
                yield item
        if stop_at_first:
            return
        del iterators[exhausted], shares[exhausted]
    # One iterable is left, so no draw is needed.
    yield from iterators[0]


def _draw(generator: random.Random, shares: list[int], bounds: list[int]) -> int:
    """Returns an index with the probability of its share. `bounds` are the cumulative shares."""
    total = bounds[-1]
    if total.bit_length() <= 256:
        return bisect_right(bounds, generator.randrange(total))
    # Weights of 1e-300 and 1e300 give integers of thousands of bits; a few random bits suffice.
    for at, share in enumerate(shares[:-1]):
        if _bernoulli(generator, share, total):
            return at
        total -= share
    return len(shares) - 1


def _bernoulli(generator: random.Random, share: int, total: int) -> bool:
    """Returns true with probability `share / total`: compares random bits with the binary digits of the
    quotient."""
    rest = share
    while True:
        digit, rest = divmod(2 * rest, total)
        bit = generator.getrandbits(1)
        if bit != digit:
            return bit < digit


def _integer_weights(weights: Sequence[float]) -> list[int]:
    """Returns the smallest integers in the ratio of the weights, which must be positive."""
    fractions = [Fraction(weight) for weight in weights]
    # The denominators of floats are powers of two.
    scale = max(fraction.denominator for fraction in fractions)
    shares = [int(fraction * scale) for fraction in fractions]
    divisor = math.gcd(*shares)
    return [share // divisor for share in shares]


def _floats(weights: Sequence[float], count: int) -> list[float]:
    try:
        floats = [float(weight) for weight in weights]
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"weights must be finite and non-negative numbers: {error}") from error
    if len(floats) != count:
        raise ValueError(f"weights must have {count} values, not {len(floats)}")
    for weight in floats:
        if not math.isfinite(weight) or weight < 0:
            raise ValueError(f"weights must be finite and non-negative, not {weight}")
    total = sum(floats)
    if not math.isfinite(total) or total <= 0:
        raise ValueError(f"the sum of weights must be positive and finite, not {total}")
    return floats
