"""Which stages run in Rust, without the GIL: operators of `spdl_rs.io`, one behind the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .. import _spdl_rs
from ..io._operators import BatchImages, DecodeImage, Fetch
from .defs._aggregators import Aggregator
from .defs._checks import native_budget

if TYPE_CHECKING:
    from .defs._configs import PipeConfig, StageConfig

Stage = TypeVar("Stage")

# It cannot be a subclass: `spdl_rs.io` is there without pipelines.
Aggregator.register(BatchImages)


def is_native(config: object) -> bool:
    """Whether a stage reads files or decodes images in Rust: an operator, and not on an executor."""
    return getattr(config, "executor", None) is None and type(_op(config)) in (Fetch, DecodeImage)


def pieces(pipes: Sequence[Stage]) -> Iterator[tuple[int, Sequence[Stage]]]:
    """The stages, each with its place; native ones together that become one piece."""
    at = 0
    while at < len(pipes):
        end = at + 1
        while end < len(pipes) and is_native(pipes[at]) and _joins(pipes[end - 1], pipes[end]):
            end += 1
        yield at, pipes[at:end]
        at = end


def stage(configs: Sequence[Any], names: Sequence[str]) -> _spdl_rs.Stage:
    """The native description of a piece."""
    fetch = decode = batch = None
    for config, name in zip(configs, names, strict=True):
        op = config.op
        if isinstance(op, Fetch):
            fetch = (_settings(config, name), op.max_bytes)
        elif isinstance(op, DecodeImage):
            decode = (_settings(config, name), op._native())
        else:
            batch = (op.batch_size, op.drop_last or config.drop_last)
    return _spdl_rs.Stage.native(fetch=fetch, decode=decode, batch=batch)


def described(pipes: Sequence[Any]) -> list[str]:
    """A line for each stage, which says whether it is native."""
    lines: list[str] = []
    for _, configs in pieces(pipes):
        mark = " [native]" if is_native(configs[0]) else ""
        lines.extend(f"{config!r}{mark}" for config in configs)
    return lines


def refuse_piped_batches(pipes: Sequence[StageConfig]) -> None:
    """Refuses what gives lists to nobody.

    Raises:
        ValueError: Images that are decoded are to be put into batches by `pipe`.
    """
    for config, after in zip(pipes, pipes[1:], strict=False):
        op = _op(after)
        if type(_op(config)) is DecodeImage and type(op) is BatchImages and _is_piped(after):
            raise ValueError(
                f"aggregate makes batches: write .aggregate({op!r}), not .pipe({op!r})"
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


def _joins(before: object, after: object) -> bool:
    """Whether a stage takes from the one in front of it what never was Python's."""
    op = type(_op(after))
    if type(_op(before)) is Fetch:
        return op is DecodeImage and is_native(after)
    return type(_op(before)) is DecodeImage and op is BatchImages and not _is_piped(after)


def _is_piped(config: object) -> bool:
    return hasattr(config, "executor")


def _op(config: object) -> Any:
    return getattr(config, "op", None)


def _settings(
    config: PipeConfig[Any, Any], name: str
) -> tuple[str, int | None, bool, int | float | None]:
    budget = None if config.max_failures is None else native_budget(config.max_failures)
    return name, config.concurrency, config.output_order == "input", budget
