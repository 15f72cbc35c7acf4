"""The order of one epoch as part of a state: the epoch number and a digest of the indices."""

from __future__ import annotations

import hashlib
import json
import operator
from array import array
from collections.abc import Mapping
from typing import Any

from ._pytorch import pytorch
from ._samplers import innermost

KEY = "_sampler_order"


def order_of_epoch(index_sampler: Any) -> dict[str, Any]:
    """Returns what the order of the next epoch depends on, as values that JSON supports."""
    return {**order_before_epoch(index_sampler), "digest": _digest(innermost(index_sampler))}


def order_before_epoch(index_sampler: Any) -> dict[str, Any]:
    """Returns `order_of_epoch` before the first batch, when only the epoch number matters."""
    counting = _sampler_with_epoch(index_sampler)
    return {"epoch": None if counting is None else counting.epoch, "digest": None}


def restore_epoch(state: Mapping[str, Any], index_sampler: Any) -> None:
    """Calls the sampler's `set_epoch` with the epoch of a state.

    If the state is from the start or end of an epoch, a later epoch of the sampler is kept.
    """
    counting, there = _sampler_with_epoch(index_sampler), (state.get(KEY) or {}).get("epoch")
    if counting is None or there is None or counting.epoch == there:
        return
    if _is_within_epoch(state) or counting.epoch < there:
        counting.set_epoch(there)


def check_same_order(state: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Checks that an epoch resumes in the order in which it started.

    Raises:
        ValueError: The sampler is set to another epoch, or has other indices or weights.
    """
    if not _is_within_epoch(state):
        return
    there = state.get(KEY) or {}
    if there.get("epoch") != here["epoch"]:
        raise ValueError(
            f"the state is from epoch {there.get('epoch')}, but the sampler is set to epoch "
            f"{here['epoch']}: call sampler.set_epoch({there.get('epoch')}) to resume"
        )
    if there.get("digest") != here["digest"]:
        raise ValueError(
            "the state is from an epoch with another order of samples: the sampler's indices or weights "
            "differ from those in the state"
        )


def _is_within_epoch(state: Mapping[str, Any]) -> bool:
    """Returns true if some, but not all, batches of an epoch were delivered."""
    given = state.get("_num_yielded", 0) > 0 or bool(state.get("_yielded_beyond"))
    return given and not state.get("_iterator_finished", False)


def _sampler_with_epoch(index_sampler: Any) -> Any:
    """Returns the sampler that has `set_epoch` and `epoch`, or `None`."""
    for candidate in (index_sampler, innermost(index_sampler)):
        if callable(getattr(candidate, "set_epoch", None)) and isinstance(
            getattr(candidate, "epoch", None), int
        ):
            return candidate
    return None


def _digest(sampler: Any) -> str | None:
    """Returns a digest of the sampler's indices or weights, or `None` if unknown."""
    if type(sampler) is range:
        return _of_bytes(repr(sampler).encode())
    if type(sampler) in (list, tuple):
        return _of_values(sampler)
    torch = pytorch()
    if torch is None:
        return None
    if isinstance(sampler, torch.utils.data.WeightedRandomSampler):
        return _of_bytes(array("d", sampler.weights.tolist()).tobytes())
    if isinstance(sampler, torch.utils.data.SubsetRandomSampler):
        return _of_values(sampler.indices)
    return None


def _of_values(values: Any) -> str | None:
    """Returns a digest of indices or lists of indices, or `None` for other values."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    try:
        # The fast path for integers.
        return _of_bytes(array("q", values).tobytes())
    except (TypeError, OverflowError):
        pass
    try:
        return _of_bytes(json.dumps(values, default=operator.index).encode())
    except (TypeError, ValueError, RecursionError):
        return None


def _of_bytes(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
