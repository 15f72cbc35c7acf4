"""Native stages: operators of `spdl_rs.io` that run in Rust, without the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ... import _spdl_rs
from ...io import _repeated_draws as repeated_draws
from ...io._operators import AugmentImage, BatchImages, Decode, DecodeImage, Fetch
from ._aggregators import Aggregator
from ._checks import native_budget

if TYPE_CHECKING:
    from ._configs import PipeConfig, StageConfig

Stage = TypeVar("Stage")

_OPERATORS = (Fetch, Decode, DecodeImage, AugmentImage)
# The default number of reader threads if `Fetch` is called as a function.
_READERS = 8

# `BatchImages` is registered, not derived from `Aggregator`: `spdl_rs.io` does not depend on pipelines.
Aggregator.register(BatchImages)


def is_native(config: object) -> bool:
    """Returns whether a stage is an operator that runs in Rust (`BatchImages` excluded)."""
    return getattr(config, "executor", None) is None and type(_op(config)) in _OPERATORS


def check_is_instance(op: object) -> None:
    """Refuses a class where an instance is required: a pipeline would call the class for each item.

    Raises:
        TypeError: `op` is a class.
    """
    if isinstance(op, type) and issubclass(op, (*_OPERATORS, BatchImages)):
        example = {Fetch: "Fetch()", DecodeImage: "DecodeImage(224)"}.get(op, f"{op.__name__}(...)")
        raise TypeError(f"{op.__name__} is a class; pass an instance, for example {example}")


def groups(
    pipes: Sequence[Stage], is_alone: Callable[[int], bool] = lambda at: False
) -> Iterator[tuple[int, Sequence[Stage]]]:
    """Groups consecutive native stages that form one engine stage. Yields positions and groups.

    Args:
        pipes: The stages.
        is_alone: Whether the stage at a position must not be grouped.
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
    """Returns how to run an operator as a Python function.

    The result consists of the function, the seed and stage name of its random numbers if any, and the number
    of threads.
    """
    op = config.op
    if isinstance(op, Fetch):
        return op, None, config.concurrency or _READERS
    return op._apply, op._draws, config.concurrency or os.cpu_count() or 1


def check_random_numbers(configs: Sequence[Any], names: Sequence[str], epoch: int) -> None:
    """Logs a warning if operators repeat the random numbers of an earlier pipeline."""
    for config, name in zip(configs, names, strict=True):
        op = _op(config)
        if isinstance(op, (Decode, DecodeImage, AugmentImage)) and op._is_random:
            repeated_draws.check(op, name, epoch)


def stage(configs: Sequence[Any], names: Sequence[str]) -> _spdl_rs.Stage:
    """Returns the native description of a group of stages."""
    fetch = decode = augment = batch = None
    for config, name in zip(configs, names, strict=True):
        op = config.op
        if isinstance(op, Fetch):
            fetch = (_settings(config, name), op.max_bytes)
        elif isinstance(op, (Decode, DecodeImage)):
            decode = (_settings(config, name), op._native())
        elif isinstance(op, AugmentImage):
            augment = (_settings(config, name), op._native())
        else:
            batch = (op.batch_size, op.drop_last or config.drop_last)
    return _spdl_rs.Stage.native(fetch=fetch, decode=decode, augment=augment, batch=batch)


def described(pipes: Sequence[Any]) -> list[str]:
    """Describes each stage in a line, and marks native stages."""
    lines: list[str] = []
    for _, configs in groups(pipes):
        mark = " [native]" if is_native(configs[0]) else ""
        lines.extend(f"{config!r}{mark}" for config in configs)
    return lines


def check_compatible(pipes: Sequence[StageConfig]) -> None:
    """Refuses stages that cannot process the results of the preceding operator.

    Raises:
        ValueError: `BatchImages` is passed to `pipe` after an image operator, or the images have a layout
            that the following augmentation does not support.
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
                f"AugmentImage requires images with layout nhwc-u8 and color rgb, but {before!r} "
                "produces another format; use DecodeImage(..., augment=[...]) instead of AugmentImage"
            )


def check_not_batched(paths: Sequence[Sequence[StageConfig]]) -> None:
    """Refuses native stages on paths whose items are lists.

    Raises:
        ValueError: A path contains a native stage.
    """
    for at, path in enumerate(paths):
        for config in path:
            if is_native(config):
                op = _op(config)
                raise ValueError(
                    f"path {at} contains {op!r}, which processes single items, but with batched=True "
                    "items are lists; use batched=False, or call the operator for each element in a "
                    "custom function"
                )


def _joins(group: Sequence[object], after: object) -> bool:
    """Returns whether a stage can take native data from the preceding stages."""
    ops, op = [type(_op(config)) for config in group], type(_op(after))
    if op is BatchImages:
        return DecodeImage in ops and ops[-1] is not BatchImages and not _is_piped(after)
    follows = {Fetch: (Decode, DecodeImage), DecodeImage: (AugmentImage,)}.get(ops[-1], ())
    return op in follows and is_native(after)


def _is_piped(config: object) -> bool:
    return hasattr(config, "executor")


def _op(config: object) -> Any:
    return getattr(config, "op", None)


def _settings(
    config: PipeConfig[Any, Any], name: str
) -> tuple[str, int | None, bool, int | float | tuple[float, int, bool] | None]:
    budget = None if config.max_failures is None else native_budget(config.max_failures)
    return name, config.concurrency, config.output_order == "input", budget
