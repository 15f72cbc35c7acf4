"""Samplers for distributed training: the indices of one rank, in order or at random."""

from __future__ import annotations

import hashlib
import warnings
from array import array
from collections.abc import Iterable
from typing import Any, SupportsIndex

from .. import _spdl_rs
from .._arguments import flag, whole
from ._resumable import PositionedIterator, Resumable

_MAX_ITEMS = 2**63 - 1


class _Distributed(Resumable[int]):
    """The indices of one rank, taken from an order that is the same on all ranks."""

    def __init__(
        self, n: Any, rank: Any, world_size: Any, total: int | None, drop: Any, number: int
    ) -> None:
        super().__init__(number)
        self._number: int
        self._n = whole("n", n, 1, _MAX_ITEMS)
        self._world_size = whole("`world_size`", world_size, 1, _MAX_ITEMS)
        self._rank = whole("`rank`", rank, 0, self._world_size - 1)
        self._total = self._n if total is None else total
        self._drop = flag("ddp_drop_last_distributed_round", drop)
        if self._drop and self._total < self._world_size:
            raise ValueError(
                f"{self._total} items are fewer than {self._world_size} ranks; set "
                "ddp_drop_last_distributed_round=False to give one item to each of the first ranks"
            )
        self._order = self._make_order()

    def _make_order(self) -> _spdl_rs.RankOrder:
        raise NotImplementedError

    def _iterator_at(self, position: int) -> PositionedIterator[int]:
        return self._order.indices(self._number, position)

    def _identity(self) -> dict[str, Any]:
        # The rank is left out, so that all ranks can share one state.
        return {
            "sampler": type(self).__name__,
            "n": self._n,
            "world_size": self._world_size,
            "ddp_drop_last_distributed_round": self._drop,
        }

    def __len__(self) -> int:
        """The number of indices of this rank in an epoch."""
        return len(self._order)

    def _max_position(self) -> int:
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
    """Returns rank and world size of one of these samplers, or `None` for other objects."""
    if not isinstance(sampler, _Distributed):
        return None
    return sampler._rank, sampler._world_size


class DistributedDeterministicSampler(_Distributed):
    """Indices in ascending order, divided among ranks. Each epoch has the same order.

    Rank `r` of `w` gets the indices `r`, `r + w`, `r + 2 * w` and so on, as `int`. If `n` is not
    a multiple of `w`, the last round is incomplete. An incomplete last round is left out, or
    the first ranks get one more index than the other ranks.

    ```text
    n = 11, world_size = 4
    ddp_drop_last_distributed_round=True     0: 0 4      1: 1 5      2: 2 6       3: 3 7
    ddp_drop_last_distributed_round=False    0: 0 4 8    1: 1 5 9    2: 2 6 10    3: 3 7
    ```

    The sampler works as `sampler=` of PyTorch's `DataLoader`. `state_dict` and `load_state_dict`
    resume within an epoch.

    Args:
        n: The number of items in the data set, at least 1.
        rank: The rank, 0 to `world_size - 1`, for example `torch.distributed.get_rank()`.
        world_size: The number of ranks, at least 1, for example `torch.distributed.get_world_size()`.
        ddp_drop_last_distributed_round: If true, an incomplete last round is left out, so that
            all ranks get the same number of indices. A warning reports the number of indices
            left out.

    Raises:
        ValueError: A number is out of range. Or there are fewer items than ranks, and incomplete
            rounds are left out.
        TypeError: An argument has the wrong type.

    >>> every_rank = {"world_size": 4, "ddp_drop_last_distributed_round": False}
    >>> list(DistributedDeterministicSampler(11, rank=2, **every_rank))
    [2, 6, 10]
    >>> len(DistributedDeterministicSampler(11, rank=3, **every_rank))
    2

    Resume within an epoch:

    >>> sampler = DistributedDeterministicSampler(8, rank=1, world_size=2)
    >>> indices = iter(sampler)
    >>> next(indices), next(indices)
    (1, 3)
    >>> another = DistributedDeterministicSampler(8, rank=1, world_size=2)
    >>> another.load_state_dict(sampler.state_dict())
    >>> list(another), list(another)
    ([5, 7], [1, 3, 5, 7])
    """

    _number_key = "epoch"

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
                f"{self._n} items cannot be divided evenly among {self._world_size} ranks: "
                f"the indices of the last {rest} are never yielded",
                stacklevel=2,
            )

    def _make_order(self) -> _spdl_rs.RankOrder:
        return _spdl_rs.RankOrder.sequential(self._n, self._rank, self._world_size, self._drop)

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Sets the number of the next epoch. The order is the same in all epochs.

        After `load_state_dict`, an epoch other than the epoch of the state starts from its beginning.
        """
        self._set_number("epoch", epoch)

    def __repr__(self) -> str:
        return (
            f"DistributedDeterministicSampler({self._n}, rank={self._rank}, "
            f"world_size={self._world_size}, ddp_drop_last_distributed_round={self._drop})"
        )


class DistributedRandomSampler(_Distributed):
    """Indices in random order, divided among ranks.

    All ranks draw the same indices. Rank `r` of `w` takes the draws at positions `r`, `r + w` and so
    on. The indices are exactly those of NumPy, without a call to NumPy. With `k` draws, rounded
    down to a multiple of `w` if incomplete rounds are left out, an epoch is

    ```python
    p = None if weights is None else weights / np.sum(weights)
    np.random.default_rng(seed).choice(n, k, replace=weights is not None, p=p)[rank::world_size]
    ```

    All epochs have the same order until `shuffle` or `set_epoch` sets another. The order is computed
    without the GIL when the first index of an epoch is taken. The order takes 8 bytes per draw
    until the last index is taken. Computing the order takes 8 more bytes per item (24 with weights).

    The sampler works as `sampler=` of PyTorch's `DataLoader`. `state_dict` and `load_state_dict`
    resume within an epoch.

    Args:
        n: The number of items in the data set, at least 1.
        rank: The rank, 0 to `world_size - 1`, for example `torch.distributed.get_rank()`.
        world_size: The number of ranks, at least 1, for example `torch.distributed.get_world_size()`.
        num_draws: The number of indices of all ranks in an epoch, at least 1. Default: `n`.
            Without weights, at most `n`.
        weights: The relative frequency of each item: `n` finite, non-negative numbers. With weights, an
            item may be drawn more than once in an epoch. Default: no item is drawn more than once.
        seed: The seed of the order, 0 to 2**64 - 1.
        ddp_drop_last_distributed_round: If true, an incomplete last round is left out, so that
            all ranks get the same number of indices. If false, the first ranks may get one more.

    Raises:
        ValueError: A number is out of range. Or there are fewer draws than ranks, and incomplete
            rounds are left out. Or `weights` has the wrong length or invalid values.
        TypeError: An argument has the wrong type.

    Iterating raises `LimitExceededError` if the order does not fit in memory.

    >>> [list(DistributedRandomSampler(9, rank=rank, world_size=3)) for rank in range(3)]
    [[0, 7, 4], [8, 2, 6], [3, 5, 1]]

    More draws than items, with weights:

    >>> weights = [0, 0, 1, 1, 1]
    >>> sampler = DistributedRandomSampler(5, rank=0, world_size=1, weights=weights, num_draws=10)
    >>> list(sampler)
    [3, 2, 2, 2, 4, 4, 3, 4, 3, 4]

    Resume within an epoch:

    >>> sampler = DistributedRandomSampler(9, rank=0, world_size=3)
    >>> next(iter(sampler))
    0
    >>> another = DistributedRandomSampler(9, rank=0, world_size=3)
    >>> another.load_state_dict(sampler.state_dict())
    >>> list(another), list(another)
    ([7, 4], [0, 7, 4])
    """

    _number_key = "seed"

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
        items = whole("n", n, 1, _MAX_ITEMS)
        self._weights = None if weights is None else _doubles(weights, items)
        self._weights_digest = None if self._weights is None else _digest(self._weights)
        draws = items if num_draws is None else whole("num_draws", num_draws, 1, _MAX_ITEMS)
        if weights is None and draws > items:
            raise ValueError(
                f"num_draws must be 1 to {items} (the number of items) without replacement, not {draws}; "
                "pass weights to draw items more than once"
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
        """Sets the order of the next epochs. The order does not depend on earlier calls.

        After `load_state_dict`, a seed other than the seed of the state starts a complete epoch.
        """
        self._set_number("seed", seed)

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Sets the order of the next epochs, as `shuffle(seed + epoch)` does.

        `seed` is the argument of the constructor.

        >>> sampler = DistributedRandomSampler(9, rank=0, world_size=3, seed=5)
        >>> sampler.set_epoch(2)
        >>> list(sampler) == list(DistributedRandomSampler(9, rank=0, world_size=3, seed=7))
        True
        """
        epoch = whole("epoch", epoch, 0, 2**64 - 1 - self._base)
        self._set_number("seed", self._base + epoch)

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
        raise TypeError(f"weights must be one number for each item: {error}") from None
    except OverflowError as error:
        raise ValueError(f"weights must be finite numbers: {error}") from None
    if len(doubles) != items:
        raise ValueError(f"weights must have {items} values, one for each item, not {len(doubles)}")
    return doubles


def _digest(weights: array[float]) -> str:
    return hashlib.blake2b(weights, digest_size=16).hexdigest()
