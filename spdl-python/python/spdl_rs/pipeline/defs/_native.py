"""Which stages run in Rust, without the GIL: operators of `spdl_rs.io`, one behind the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ... import _spdl_rs
from ...io._operators import AugmentImage, BatchImages, DecodeImage, Fetch
from ._aggregators import Aggregator
from ._checks import native_budget

if TYPE_CHECKING:
    from ._configs import PipeConfig, StageConfig

Stage = TypeVar("Stage")

_OPERATORS = (Fetch, DecodeImage, AugmentImage)
# How many threads read files, where a stage is called for each.
_READERS = 8

# It cannot be a subclass: `spdl_rs.io` is there without pipelines.
Aggregator.register(BatchImages)


def is_native(config: object) -> bool:
    """Whether a stage runs in Rust: an operator, but for batches, and not on an executor."""
    return getattr(config, "executor", None) is None and type(_op(config)) in _OPERATORS


def check_is_no_class(op: object) -> None:
    """Refuses the class of an operator, which would be called with each item.

    Raises:
        TypeError: It is one.
    """
    if isinstance(op, type) and issubclass(op, (*_OPERATORS, BatchImages)):
        example = {Fetch: "Fetch()", DecodeImage: "DecodeImage(224)"}.get(op, f"{op.__name__}(...)")
        raise TypeError(f"{op.__name__} is a class; give an operator made of it, as in {example}")


def pieces(
    pipes: Sequence[Stage], is_alone: Callable[[int], bool] = lambda at: False
) -> Iterator[tuple[int, Sequence[Stage]]]:
    """The stages, each with its place; native ones together that become one piece.

    Args:
        pipes: The stages.
        is_alone: Whether the stage at this place is a piece of its own.
    """
    at = 0
    while at < len(pipes):
        end = at + 1
        joins = is_native(pipes[at]) and not is_alone(at)
        while joins and end < len(pipes) and _joins(pipes[at:end], pipes[end]):
            if is_alone(end):
                break
            end += 1
        yield at, pipes[at:end]
        at = end


def called(config: PipeConfig[Any, Any]) -> tuple[Callable[..., Any], tuple[int, str] | None, int]:
    """What is called for each item where an operator is run as a function: what that is, whose random
    numbers it is called with, too, and how many threads it has."""
    op = config.op
    if isinstance(op, Fetch):
        return op, None, config.concurrency or _READERS
    return op._drawn, op._draws, config.concurrency or os.cpu_count() or 1


def stage(configs: Sequence[Any], names: Sequence[str]) -> _spdl_rs.Stage:
    """The native description of a piece."""
    fetch = decode = augment = batch = None
    for config, name in zip(configs, names, strict=True):
        op = config.op
        if isinstance(op, Fetch):
            fetch = (_settings(config, name), op.max_bytes)
        elif isinstance(op, DecodeImage):
            decode = (_settings(config, name), op._native())
        elif isinstance(op, AugmentImage):
            augment = (_settings(config, name), op._native())
        else:
            batch = (op.batch_size, op.drop_last or config.drop_last)
    return _spdl_rs.Stage.native(fetch=fetch, decode=decode, augment=augment, batch=batch)


def described(pipes: Sequence[Any]) -> list[str]:
    """A line for each stage, which says whether it is native."""
    lines: list[str] = []
    for _, configs in pieces(pipes):
        mark = " [native]" if is_native(configs[0]) else ""
        lines.extend(f"{config!r}{mark}" for config in configs)
    return lines


def refuse_misfits(pipes: Sequence[StageConfig]) -> None:
    """Refuses what cannot take what the operator in front of it gives.

    Raises:
        ValueError: Images that are decoded are to be put into batches by `pipe`, or are no pixels
            that can be changed.
    """
    for config, after in zip(pipes, pipes[1:], strict=False):
        before, op = _op(config), _op(after)
        is_image = type(before) in (DecodeImage, AugmentImage)
        if is_image and type(op) is BatchImages and _is_piped(after):
            raise ValueError(
                f"aggregate makes batches: write .aggregate({op!r}), not .pipe({op!r})"
            )
        if (
            type(before) is DecodeImage
            and type(op) is AugmentImage
            and (before.layout, before.color) != ("nhwc-u8", "rgb")
        ):
            raise ValueError(
                f"AugmentImage changes images of layout nhwc-u8 and color rgb, and {before!r} gives "
                "others; hand the augmentations to it: DecodeImage(..., augment=[...])"
            )


def refuse_in_lists(paths: Sequence[Sequence[StageConfig]]) -> None:
    """Refuses native stages where items are lists.

    Raises:
        ValueError: There is one.
    """
    for at, path in enumerate(paths):
        for config in path:
            if is_native(config):
                op = _op(config)
                raise ValueError(
                    f"path {at} holds {op!r}, which works on single items, but with batched=True "
                    "items are lists; choose a path for each item instead (batched=False), or call "
                    "it for each element in a function of your own"
                )


def _joins(piece: Sequence[object], after: object) -> bool:
    """Whether a stage takes from those in front of it what never was Python's."""
    ops, op = [type(_op(config)) for config in piece], type(_op(after))
    if op is BatchImages:
        return DecodeImage in ops and ops[-1] is not BatchImages and not _is_piped(after)
    follows = {Fetch: DecodeImage, DecodeImage: AugmentImage}.get(ops[-1])
    return follows is not None and op is follows and is_native(after)


def _is_piped(config: object) -> bool:
    return hasattr(config, "executor")


def _op(config: object) -> Any:
    return getattr(config, "op", None)


def _settings(
    config: PipeConfig[Any, Any], name: str
) -> tuple[str, int | None, bool, int | float | None]:
    budget = None if config.max_failures is None else native_budget(config.max_failures)
    return name, config.concurrency, config.output_order == "input", budget
