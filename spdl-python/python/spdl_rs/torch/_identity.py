"""The description of a loader, and the settings that its state must agree with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..source._resumable import value_of
from ._samplers import described

VERSION = 3
NOT_COMBINED = (
    "states of several ranks cannot be combined: each rank resumes from its own state, with the "
    "same number of ranks; ImageLoader.combine_states supports another number of ranks"
)


def check_identity(state_dict: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Checks that a state belongs to this loader.

    Raises:
        ValueError: The state belongs to another loader. The message lists all differences.
    """
    differ, hint = [], ""
    for key, here in identity.items():
        there = value_of(state_dict, key)
        if there == here:
            continue
        differ.append(f"{key} is {there!r} in the state and {here!r} here")
        if key in ("version", "style"):
            # The remaining keys of that state have another meaning.
            break
        if " of rank " in f"{here}{there}":
            hint = f"; {NOT_COMBINED}"
    if differ:
        raise ValueError(f"the state does not match this loader: {'; '.join(differ)}{hint}")


def describe_loader(
    dataset: Any, loader: Any, batch_size: int | None, order: Any, num_workers: int
) -> str:
    """Describes data set, batches and workers, for `repr`."""
    samples, batches = _count(dataset, "sample", "samples"), _count(loader, "batch", "batches")
    if batch_size is not None:
        batches = f"{batches} of {batch_size}"
    order = "" if order is None else f"{described(order)}, "
    return f"{type(dataset).__name__} of {samples}: {batches}; {order}num_workers={num_workers}"


def _count(held: Any, one: str, many: str) -> str:
    """Returns a count with its unit, or only the unit if the length is unknown."""
    try:
        count = len(held)
    except Exception:
        # An error in the user's `__len__` must not break `repr`.
        return many
    return f"{count:,} {one if count == 1 else many}"
