"""Samplers for distributed training: which items of a data set are whose, and in which order."""

from __future__ import annotations

import hashlib
import warnings
from array import array
from collections.abc import Iterable
from typing import Any, SupportsIndex

from .. import _spdl_rs
from .._arguments import flag, whole
from ._resumable import Pass, Resumable

_MOST_ITEMS = 2**63 - 1


class _Distributed(Resumable[int]):
    """One rank's part of an order that all ranks know."""

    def __init__(
        self, n: Any, rank: Any, world_size: Any, total: int | None, drop: Any, number: int
    ) -> None:
        super().__init__(number)
        self._number: int
        self._n = whole("n", n, 1, _MOST_ITEMS)
        self._world_size = whole("world_size", world_size, 1, _MOST_ITEMS)
        self._rank = whole("rank", rank, 0, self._world_size - 1)
        self._total = self._n if total is None else total
        self._drop = flag("ddp_drop_last_distributed_round", drop)
        if self._drop and self._total < self._world_size:
            raise ValueError(
                f"{self._total} items do not make a round of {self._world_size} ranks; with "
                "ddp_drop_last_distributed_round=False the first ranks get one each"
            )
        self._order = self._make_order()

    def _make_order(self) -> _spdl_rs.RankOrder:
        raise NotImplementedError

    def _begin(self, position: int) -> Pass[int]:
        return self._order.indices(self._number, position)

    def _identity(self) -> dict[str, Any]:
        # Without the rank: ranks that are in step have the same state, and may share it.
        return {
            "sampler": type(self).__name__,
            "n": self._n,
            "world_size": self._world_size,
            "ddp_drop_last_distributed_round": self._drop,
        }

    def __len__(self) -> int:
        """How many indices a pass of this rank has."""
        return len(self._order)

    def _longest(self) -> int:
        rounds, rest = divmod(self._total, self._world_size)
        return rounds + (rest > 0 and not self._drop)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_order"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._order = self._make_order()


def rank_of(sampler: object) -> tuple[int, int] | None:
    """The rank that one of these samplers is for, and of how many ranks; `None` for any other."""
    if not isinstance(sampler, _Distributed):
        return None
    return sampler._rank, sampler._world_size


class DistributedDeterministicSampler(_Distributed):
    """Indices in their own order, divided among ranks: the same in every pass.

    Rank `r` of `w` gets `r`, `r + w`, `r + 2 * w` and so on, as whole numbers. Where `n` is no
    multiple of `w`, the last round is incomplete: it is left out, or the first ranks get one index
    more than the others.

    ```text
    n = 11, world_size = 4
    ddp_drop_last_distributed_round=True     0: 0 4      1: 1 5      2: 2 6       3: 3 7
    ddp_drop_last_distributed_round=False    0: 0 4 8    1: 1 5 9    2: 2 6 10    3: 3 7
    ```

    It can be the `sampler=` of PyTorch's `DataLoader`. `state_dict` and `load_state_dict` go on
    within a pass.

    Args:
        n: The number of items in the data set, at least 1.
        rank: Which rank this is, 0 to `world_size - 1`: `torch.distributed.get_rank()`.
        world_size: How many ranks there are, at least 1: `torch.distributed.get_world_size()`.
        ddp_drop_last_distributed_round: Whether all ranks get the same number of indices, and an
            incomplete last round is left out (with a warning that there is one).

    Raises:
        ValueError: A number is out of range, or there are fewer items than ranks and incomplete
            rounds are left out.
        TypeError: An argument is of the wrong type.

    >>> every_rank = {"world_size": 4, "ddp_drop_last_distributed_round": False}
    >>> list(DistributedDeterministicSampler(11, rank=2, **every_rank))
    [2, 6, 10]
    >>> len(DistributedDeterministicSampler(11, rank=3, **every_rank))
    2

    A pass that goes on elsewhere:

    >>> sampler = DistributedDeterministicSampler(8, rank=1, world_size=2)
    >>> indices = iter(sampler)
    >>> next(indices), next(indices)
    (1, 3)
    >>> another = DistributedDeterministicSampler(8, rank=1, world_size=2)
    >>> another.load_state_dict(sampler.state_dict())
    >>> list(another), list(another)
    ([5, 7], [1, 3, 5, 7])
    """

    _number_is = "epoch"

    def __init__(
        self,
        n: SupportsIndex,
        /,
        *,
        rank: SupportsIndex,
        world_size: SupportsIndex,
        ddp_drop_last_distributed_round: bool = True,
    ) -> None:
        super().__init__(n, rank, world_size, None, ddp_drop_last_distributed_round, number=0)
        rest = self._n % self._world_size
        if self._drop and rest:
            warnings.warn(
                f"{self._n} items are no whole rounds of {self._world_size} ranks: "
                f"the last {rest} are never visited",
                stacklevel=2,
            )

    def _make_order(self) -> _spdl_rs.RankOrder:
        return _spdl_rs.RankOrder.sequential(self._n, self._rank, self._world_size, self._drop)

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Tells which epoch the next pass is. The order is the same in all.

        After `load_state_dict`, another epoch than that of the state is a whole one.
        """
        self._renumber("epoch", epoch)

    def __repr__(self) -> str:
        return (
            f"DistributedDeterministicSampler({self._n}, rank={self._rank}, "
            f"world_size={self._world_size}, ddp_drop_last_distributed_round={self._drop})"
        )


class DistributedRandomSampler(_Distributed):
    """Indices in random order, divided among ranks.

    All ranks draw the same indices, and rank `r` of `w` takes those at `r`, `r + w` and so on. The
    draws are those of NumPy, to the last one; NumPy itself is not called. With `k` for the number
    of draws, rounded down to a multiple of `w` where incomplete rounds are left out, a pass is

    ```python
    p = None if weights is None else weights / np.sum(weights)
    np.random.default_rng(seed).choice(n, k, replace=weights is not None, p=p)[rank::world_size]
    ```

    Every pass has the same order until `shuffle` or `set_epoch` gives another. The order is
    computed when the first index of a pass is taken, with the GIL free. It takes 8 bytes a draw
    until the last one is taken, and for a moment 8 bytes an item more (24 with weights).

    It can be the `sampler=` of PyTorch's `DataLoader`. `state_dict` and `load_state_dict` go on
    within a pass.

    Args:
        n: The number of items in the data set, at least 1.
        rank: Which rank this is, 0 to `world_size - 1`: `torch.distributed.get_rank()`.
        world_size: How many ranks there are, at least 1: `torch.distributed.get_world_size()`.
        num_draws: How many indices all ranks draw together in a pass, at least 1; `None`: `n`.
            Without weights it is at most `n`.
        weights: How often each item is drawn, relative to the others: one finite number that is
            not negative for each item, `float [n]`. An item may then come again in a pass.
        seed: Decides the order, 0 to 2**64 - 1.
        ddp_drop_last_distributed_round: Whether all ranks get the same number of indices, and an
            incomplete last round is not drawn. If not, the first ranks may get one index more.

    Raises:
        ValueError: A number is out of range; there are fewer draws than ranks, and incomplete
            rounds are left out; the weights are not as many as the items, or not as above.
        TypeError: An argument is of the wrong type.

    Iterating raises `LimitExceededError` where an order does not fit in memory.

    >>> [list(DistributedRandomSampler(9, rank=rank, world_size=3)) for rank in range(3)]
    [[0, 7, 4], [8, 2, 6], [3, 5, 1]]

    More draws than items, with weights:

    >>> weights = [0, 0, 1, 1, 1]
    >>> sampler = DistributedRandomSampler(5, rank=0, world_size=1, weights=weights, num_draws=10)
    >>> list(sampler)
    [3, 2, 2, 2, 4, 4, 3, 4, 3, 4]

    A pass that goes on elsewhere:

    >>> sampler = DistributedRandomSampler(9, rank=0, world_size=3)
    >>> next(iter(sampler))
    0
    >>> another = DistributedRandomSampler(9, rank=0, world_size=3)
    >>> another.load_state_dict(sampler.state_dict())
    >>> list(another), list(another)
    ([7, 4], [0, 7, 4])
    """

    _number_is = "seed"

    def __init__(
        self,
        n: SupportsIndex,
        /,
        *,
        rank: SupportsIndex,
        world_size: SupportsIndex,
        num_draws: SupportsIndex | None = None,
        weights: Iterable[float] | None = None,
        seed: SupportsIndex = 0,
        ddp_drop_last_distributed_round: bool = True,
    ) -> None:
        items = whole("n", n, 1, _MOST_ITEMS)
        self._weights = None if weights is None else _doubles(weights, items)
        self._weights_digest = None if self._weights is None else _digest(self._weights)
        draws = items if num_draws is None else whole("num_draws", num_draws, 1, _MOST_ITEMS)
        if weights is None and draws > items:
            raise ValueError(
                f"num_draws must be 1 to {items}, the number of items, not {draws}: without "
                "weights no item is drawn twice"
            )
        self._base = whole("seed", seed, 0, 2**64 - 1)
        drop = ddp_drop_last_distributed_round
        super().__init__(items, rank, world_size, draws, drop, number=self._base)

    def _make_order(self) -> _spdl_rs.RankOrder:
        return _spdl_rs.RankOrder.random(
            self._n, self._total, self._weights, self._rank, self._world_size, self._drop
        )

    def _identity(self) -> dict[str, Any]:
        draws = {"num_draws": self._total, "weights": self._weights_digest}
        return {**super()._identity(), **draws}

    def shuffle(self, seed: SupportsIndex) -> None:
        """Gives the next passes the order of `seed`, whatever came before.

        After `load_state_dict`, another seed than that of the state is a whole pass.
        """
        self._renumber("seed", seed)

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Gives the next passes the order of an epoch: `shuffle(seed + epoch)`, with the `seed`
        that the sampler was made with.

        >>> sampler = DistributedRandomSampler(9, rank=0, world_size=3, seed=5)
        >>> sampler.set_epoch(2)
        >>> list(sampler) == list(DistributedRandomSampler(9, rank=0, world_size=3, seed=7))
        True
        """
        epoch = whole("epoch", epoch, 0, 2**64 - 1 - self._base)
        self._renumber("seed", self._base + epoch)

    def __repr__(self) -> str:
        weights = "" if self._weights is None else f", weights=<{len(self._weights)}>"
        return (
            f"DistributedRandomSampler({self._n}, rank={self._rank}, "
            f"world_size={self._world_size}, num_draws={self._total}{weights}, "
            f"seed={self._number}, ddp_drop_last_distributed_round={self._drop})"
        )


def _doubles(weights: Iterable[float], items: int) -> array[float]:
    try:
        doubles = array("d", iter(weights))
    except TypeError as error:
        raise TypeError(f"weights must be numbers, one for each item: {error}") from None
    except OverflowError as error:
        raise ValueError(f"weights must be finite: {error}") from None
    if len(doubles) != items:
        raise ValueError(f"there are {len(doubles)} weights for {items} items")
    return doubles


def _digest(weights: array[float]) -> str:
    return hashlib.blake2b(weights, digest_size=16).hexdigest()
