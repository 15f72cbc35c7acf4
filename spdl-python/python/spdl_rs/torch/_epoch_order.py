"""What decides the order of one epoch, apart from random numbers: its number, and given indices."""

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
    """What the next epoch's order depends on, in values that JSON has."""
    return {**before_epoch(index_sampler), "digest": _digest(innermost(index_sampler))}


def before_epoch(index_sampler: Any) -> dict[str, Any]:
    """The same where no batch was given: only the number of the epoch matters."""
    counting = _counting(index_sampler)
    return {"epoch": None if counting is None else counting.epoch, "digest": None}


def restore_epoch(state: Mapping[str, Any], index_sampler: Any) -> None:
    """Calls the sampler's `set_epoch` with the epoch of a state.

    If that was at its end, or not begun, the next one may have been set already: then it stays.
    """
    counting, there = _counting(index_sampler), (state.get(KEY) or {}).get("epoch")
    if counting is None or there is None or counting.epoch == there:
        return
    if _is_amid(state) or counting.epoch < there:
        counting.set_epoch(there)


def check_same_order(state: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuses to go on within an epoch in another order.

    Raises:
        ValueError: The sampler is set to another epoch, or has other indices or weights.
    """
    if not _is_amid(state):
        return
    there = state.get(KEY) or {}
    if there.get("epoch") != here["epoch"]:
        raise ValueError(
            f"the state is amid epoch {there.get('epoch')}, and the sampler is set to epoch "
            f"{here['epoch']}: call sampler.set_epoch({there.get('epoch')}) for the rest of it"
        )
    if there.get("digest") != here["digest"]:
        raise ValueError(
            "the state is amid an epoch of another order: the sampler's indices or weights are "
            "not those that it had there"
        )


def _is_amid(state: Mapping[str, Any]) -> bool:
    """Whether some batches of an epoch were given, and not all."""
    given = state.get("_num_yielded", 0) > 0 or bool(state.get("_yielded_beyond"))
    return given and not state.get("_iterator_finished", False)


def _counting(index_sampler: Any) -> Any:
    """What of a sampler is told the number of the epoch, and knows it."""
    for candidate in (index_sampler, innermost(index_sampler)):
        if callable(getattr(candidate, "set_epoch", None)) and isinstance(
            getattr(candidate, "epoch", None), int
        ):
            return candidate
    return None


def _digest(sampler: Any) -> str | None:
    """A digest of given indices or weights; `None` where there are none that can be asked for."""
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
    """Of indices, or of lists of them. `None`: They are something else."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    try:
        # Most are whole numbers: that is several times faster.
        return _of_bytes(array("q", values).tobytes())
    except (TypeError, OverflowError):
        pass
    try:
        return _of_bytes(json.dumps(values, default=operator.index).encode())
    except (TypeError, ValueError, RecursionError):
        return None


def _of_bytes(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
