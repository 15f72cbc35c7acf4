"""What a loader is, in words, and what its state must agree with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..source._resumable import value_of
from ._samplers import described

VERSION = 3
NOT_COMBINED = (
    "The states of several ranks cannot be combined: each rank goes on with its own, with as many "
    "ranks as before; ImageLoader.combine_states is for any number of ranks"
)


def check_identity(state_dict: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuses the state of another loader.

    Raises:
        ValueError: It is one; all that differs is named.
    """
    differ, hint = [], ""
    for key, here in identity.items():
        there = value_of(state_dict, key)
        if there == here:
            continue
        differ.append(f"{key} is {there!r} there, and {here!r} here")
        if key in ("version", "style"):
            # What follows is another matter there.
            break
        if " of rank " in f"{here}{there}":
            hint = f". {NOT_COMBINED}"
    if differ:
        raise ValueError(f"the state is not of this loader: {'; '.join(differ)}{hint}")


def in_words(
    dataset: Any, loader: Any, batch_size: int | None, order: Any, num_workers: int
) -> str:
    """What a loader gives, and how it is made."""
    samples, batches = _count(dataset, "sample", "samples"), _count(loader, "batch", "batches")
    if batch_size is not None:
        batches = f"{batches} of {batch_size}"
    order = "" if order is None else f"{described(order)}, "
    return f"{type(dataset).__name__} of {samples}: {batches}; {order}num_workers={num_workers}"


def _count(held: Any, one: str, many: str) -> str:
    """How many there are, where that is known."""
    try:
        count = len(held)
    except Exception:
        # It is the user's own function, and no reason to show nothing at all.
        return many
    return f"{count:,} {one if count == 1 else many}"
