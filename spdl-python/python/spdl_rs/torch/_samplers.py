"""Samplers of a map-style data set, chosen by the same rules as in PyTorch's loader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import Any

from ..source._sampler import rank_of
from ._arguments import check_batches
from ._pytorch import needed_for, pytorch


def sampler_of(dataset: Any, shuffle: bool, generator: Any) -> Any:
    """Returns a sampler for indices in ascending or random order."""
    if shuffle:
        return needed_for("shuffle=True").utils.data.RandomSampler(dataset, generator=generator)
    torch = pytorch()
    if torch is None:
        return SequentialSampler(dataset)
    return torch.utils.data.SequentialSampler(dataset)


def batch_sampler_of(sampler: Any, batch_size: int, drop_last: bool) -> Any:
    """Returns a sampler for lists of indices.

    Raises:
        ValueError: `batch_size` is out of range, or `drop_last` is not a `bool`.
    """
    check_batches(batch_size, drop_last)
    torch = pytorch()
    batches = BatchSampler if torch is None else torch.utils.data.BatchSampler
    return batches(sampler, batch_size, drop_last)


def has_fixed_order(sampler: Any) -> bool:
    """Returns true if the sampler is sequential."""
    sampler = getattr(sampler, "sampler", sampler)
    torch = pytorch()
    return isinstance(sampler, SequentialSampler) or (
        torch is not None and type(sampler) is torch.utils.data.SequentialSampler
    )


def described(sampler: Any) -> str:
    """Returns the type of order and the rank, for states and `repr`."""
    if has_fixed_order(sampler) and not hasattr(sampler, "sampler"):
        # The name is the same with and without PyTorch.
        return "sequential"
    if hasattr(sampler, "sampler") and hasattr(sampler, "batch_size"):
        return f"batches of {described(sampler.sampler)}"
    name, rank = type(sampler).__qualname__, _rank_of(sampler)
    return name if rank is None else f"{name} of rank {rank[0]} of {rank[1]}"


def settings_of(sampler: Any) -> str | None:
    """Returns the accessible settings of a sampler that decide its order, or `None`."""
    settings: dict[str, Any] = {}
    if innermost(sampler) is not sampler:
        settings |= {name: getattr(sampler, name, None) for name in ("batch_size", "drop_last")}
    sampler = innermost(sampler)
    names = ("replacement",) if _rank_of(sampler) is None else ("shuffle", "seed", "drop_last")
    settings |= {f"sampler.{name}": getattr(sampler, name, None) for name in names}
    known = [f"{name}={value}" for name, value in settings.items() if isinstance(value, int)]
    return ", ".join(known) or None


def innermost(sampler: Any) -> Any:
    """Returns the sampler below batch samplers, or `sampler` itself."""
    while hasattr(sampler, "sampler") and hasattr(sampler, "batch_size"):
        sampler = sampler.sampler
    return sampler


def _rank_of(sampler: Any) -> tuple[int, int] | None:
    """Returns rank and world size of a sampler, or `None`."""
    rank, ranks = (getattr(sampler, name, None) for name in ("rank", "num_replicas"))
    if isinstance(rank, int) and isinstance(ranks, int):
        return rank, ranks
    return rank_of(sampler)


def known_length(sampler: Any) -> int | None:
    """Returns the sampler's length if it is the same in each epoch, else `None`."""
    kinds: tuple[type, ...] = (SequentialSampler, BatchSampler, range, list, tuple)
    if type(sampler) not in kinds and not type(sampler).__module__.startswith("torch.utils.data"):
        return None
    if hasattr(sampler, "sampler") and known_length(sampler.sampler) is None:
        return None
    try:
        return len(sampler)
    except TypeError:
        return None


class SequentialSampler:
    """Replaces `torch.utils.data.SequentialSampler` if PyTorch is not installed."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class BatchSampler:
    """Replaces `torch.utils.data.BatchSampler` if PyTorch is not installed."""

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        indices = iter(self.sampler)
        while batch := list(islice(indices, self.batch_size)):
            if self.drop_last and len(batch) < self.batch_size:
                return
            yield batch

    def __len__(self) -> int:
        return number_of_batches(len(self.sampler), self.batch_size, self.drop_last)  # pyright: ignore[reportArgumentType]


def number_of_batches(items: int, batch_size: int, drop_last: bool) -> int:
    return items // batch_size if drop_last else -(-items // batch_size)
