"""Items of several iterables, in turn or drawn by weight."""

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
    """Items of several iterables, in turn or at random.

    Without weights, one item of each is taken in turn. With weights, each item comes from an
    iterable that is drawn anew, as often as its weight says. Draws are exact, without a rounding
    error: a weight of 0.1 means the `float` of that name. Iterables of weight 0 are never begun.

    An iterable that is exhausted is left out from then on, until all are. Each `iter` begins
    all of them anew, and with weights draws the same again.

    Args:
        iterables: What is merged, at least one.
        weights: How often each is drawn, relative to the others: finite, and not negative.
        stop_after: When to end. 0: when all iterables are exhausted. `n > 0`: after `n` items, or
            when all are exhausted. -1: when the first is found exhausted.
        seed: Decides the draws, where there are weights.

    Raises:
        ValueError: There are no iterables; `stop_after` is less than -1; the weights are not as
            many as the iterables, or one is no number, negative or not finite, or they add up to 0
            or to infinity.
        TypeError: `stop_after` or `seed` is no whole number.

    >>> letters = [["a", "b", "c"], ["A", "B"]]
    >>> "".join(MergeIterator(letters))
    'aAbBc'
    >>> "".join(MergeIterator(letters, stop_after=3))
    'aAb'

    In turn, an iterable is found exhausted when it is asked for the item it does not have:

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
            raise ValueError("there are no iterables to merge")
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
            merged = _in_turn(iterators, stop_at_first=self.stop_after == -1)
        else:
            shares = _whole_shares(self.weights)
            merged = _drawn(iterators, shares, self.seed, stop_at_first=self.stop_after == -1)
        if self.stop_after <= 0:
            yield from merged
            return
        for count, item in enumerate(merged, start=1):
            yield item
            if count == self.stop_after:
                return


def _in_turn(iterators: list[Iterator[T]], *, stop_at_first: bool) -> Iterator[T]:
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


def _drawn(
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
    # Nothing is left to draw.
    yield from iterators[0]


def _draw(generator: random.Random, shares: list[int], bounds: list[int]) -> int:
    """An index with the probability of its share. `bounds` are the sums of the shares."""
    total = bounds[-1]
    if total.bit_length() <= 256:
        return bisect_right(bounds, generator.randrange(total))
    # Weights of 1e-300 and 1e300 make numbers of thousands of bits. A few of them decide mostly.
    for at, share in enumerate(shares[:-1]):
        if _happens(generator, share, total):
            return at
        total -= share
    return len(shares) - 1


def _happens(generator: random.Random, share: int, total: int) -> bool:
    """True with the probability `share / total`, by comparing random bits with the quotient's."""
    rest = share
    while True:
        digit, rest = divmod(2 * rest, total)
        bit = generator.getrandbits(1)
        if bit != digit:
            return bit < digit


def _whole_shares(weights: Sequence[float]) -> list[int]:
    """The smallest whole numbers in the proportions of the weights, which are positive."""
    fractions = [Fraction(weight) for weight in weights]
    # Denominators are powers of two.
    scale = max(fraction.denominator for fraction in fractions)
    shares = [int(fraction * scale) for fraction in fractions]
    divisor = math.gcd(*shares)
    return [share // divisor for share in shares]


def _floats(weights: Sequence[float], count: int) -> list[float]:
    try:
        floats = [float(weight) for weight in weights]
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"weights must be finite numbers: {error}") from error
    if len(floats) != count:
        raise ValueError(f"there are {len(floats)} weights for {count} iterables")
    for weight in floats:
        if not math.isfinite(weight) or weight < 0:
            raise ValueError(f"weights must be finite and not negative, not {weight}")
    total = sum(floats)
    if not math.isfinite(total) or total <= 0:
        raise ValueError(f"weights must add up to a positive finite number, not {total}")
    return floats
