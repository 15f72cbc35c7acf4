"""The random numbers of PyTorch that an epoch's order depends on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ._pytorch import pytorch
from ._samplers import has_fixed_order


def snapshot(index_sampler: Any, generator: Any) -> dict[str, Any] | None:
    """What decides the order that a sampler is about to draw; `None` where nothing does."""
    torch = pytorch()
    if torch is None or has_fixed_order(index_sampler):
        return None
    states = [known.get_state() for known in _generators(index_sampler, generator)]
    return {"generators": states, "default": torch.get_rng_state()}


@contextlib.contextmanager
def rewound(
    saved: dict[str, Any] | None, index_sampler: Any, generator: Any, *, default: bool
) -> Iterator[None]:
    """Sets generators to what they were. PyTorch's default one is so only in the `with` block.

    The default one is the training's too, which restores it by itself if it wants to.

    Args:
        saved: What `snapshot` gave.
        index_sampler: The sampler.
        generator: The loader's generator.
        default: Whether the default one is rewound at all.
    """
    torch = pytorch()
    if saved is None or torch is None:
        yield
        return
    known = _generators(index_sampler, generator)
    if len(known) != len(saved["generators"]):
        raise ValueError(
            f"the state is of a loader with {len(saved['generators'])} generators; here are "
            f"{len(known)}"
        )
    for each, state in zip(known, saved["generators"], strict=True):
        each.set_state(state)
    with torch.random.fork_rng(devices=[], enabled=default):
        if default:
            torch.set_rng_state(saved["default"])
        yield


def _generators(index_sampler: Any, generator: Any) -> list[Any]:
    """The generators of the user's, each once."""
    inner = getattr(index_sampler, "sampler", None)
    candidates = [generator, *(getattr(held, "generator", None) for held in (index_sampler, inner))]
    found = {id(each): each for each in candidates if hasattr(each, "get_state")}
    return list(found.values())
