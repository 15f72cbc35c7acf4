"""Saves and restores the PyTorch generators that decide the order of an epoch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ._pytorch import pytorch
from ._samplers import has_fixed_order


def snapshot(index_sampler: Any, generator: Any) -> dict[str, Any] | None:
    """Returns the generator states before a sampler draws, or `None` if the order is fixed."""
    torch = pytorch()
    if torch is None or has_fixed_order(index_sampler):
        return None
    states = [known.get_state() for known in _generators(index_sampler, generator)]
    return {"generators": states, "default": torch.get_rng_state()}


@contextlib.contextmanager
def restored(
    saved: dict[str, Any] | None, index_sampler: Any, generator: Any, *, default: bool
) -> Iterator[None]:
    """Restores generators. PyTorch's default generator is restored only in the `with` block.

    Training code also uses the default generator, and must restore that generator itself if needed.

    Args:
        saved: The result of `snapshot`.
        index_sampler: The sampler.
        generator: The loader's generator.
        default: If true, the default generator is restored in the `with` block.
    """
    torch = pytorch()
    if saved is None or torch is None:
        yield
        return
    known = _generators(index_sampler, generator)
    if len(known) != len(saved["generators"]):
        raise ValueError(
            f"the state has {len(saved['generators'])} random number generators, but this loader has "
            f"{len(known)}"
        )
    for each, state in zip(known, saved["generators"], strict=True):
        each.set_state(state)
    with torch.random.fork_rng(devices=[], enabled=default):
        if default:
            torch.set_rng_state(saved["default"])
        yield


def _generators(index_sampler: Any, generator: Any) -> list[Any]:
    """Returns the user's generators, without duplicates."""
    inner = getattr(index_sampler, "sampler", None)
    candidates = [generator, *(getattr(held, "generator", None) for held in (index_sampler, inner))]
    found = {id(each): each for each in candidates if hasattr(each, "get_state")}
    return list(found.values())
