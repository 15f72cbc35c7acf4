"""Executors as data, and which stages run on them."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

from ..._arguments import function, shown, whole

_START_METHODS = ("fork", "forkserver", "spawn")


@dataclass(frozen=True)
class ExecutorConfig:
    """How an executor is to be made.

    Args:
        max_workers: How many workers it has. Default: one for each CPU.
        initializer: Called in each worker before all else.
        initargs: What it is given.

    Raises:
        ValueError: `max_workers` is no int, or less than 1.
        TypeError: `initializer` cannot be called.
    """

    max_workers: int | None = None
    initializer: Callable[..., object] | None = None
    initargs: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if self.max_workers is not None:
            max_workers = whole("max_workers", self.max_workers, wrong_type=ValueError)
            object.__setattr__(self, "max_workers", max_workers)
        if self.initializer is not None:
            function("initializer", self.initializer)


@dataclass(frozen=True)
class ProcessPoolExecutorConfig(ExecutorConfig):
    """Processes, for `PipelineBuilder.to`.

    Args:
        max_workers: How many. Default: one for each CPU.
        initializer: Called in each before all else.
        initargs: What it is given.
        mp_context: The name of a start method. Default: as for `iterate_in_subprocess`.

    Raises:
        ValueError: `max_workers` is no int, or less than 1, or there is no such start method.
        TypeError: `initializer` cannot be called, or `mp_context` is no text.

    >>> from spdl_rs.pipeline.defs import ProcessPoolExecutorConfig
    >>> ProcessPoolExecutorConfig(max_workers=2).mp_context is None
    True
    """

    mp_context: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mp_context is None:
            return
        if not isinstance(self.mp_context, str):
            raise TypeError(
                f"mp_context must be a start method's name, not {shown(self.mp_context)}"
            )
        if self.mp_context not in _START_METHODS:
            raise ValueError(
                f"mp_context must be one of {', '.join(_START_METHODS)}, not {self.mp_context!r}"
            )


@dataclass(frozen=True)
class InterpreterPoolExecutorConfig(ExecutorConfig):
    """Interpreters of this process, for `PipelineBuilder.to`, which refuses them as yet: see
    `iterate_in_subinterpreter`."""


def needs_interpreters(what: str, instead: str) -> NoReturn:
    """Refuses what needs interpreters of their own, and says what to use instead.

    Raises:
        RuntimeError: Python has none.
        NotImplementedError: It has, which is a `RuntimeError` too.
    """
    if sys.version_info < (3, 14):
        version = ".".join(map(str, sys.version_info[:2]))
        raise RuntimeError(
            f"{what} needs Python 3.14 or newer; this is Python {version}, where {instead} will do"
        )
    raise NotImplementedError(
        f"{what} is not supported: native code of spdl_rs runs in the main interpreter alone, as "
        f"all that is made with PyO3; use {instead}"
    )


class _MainProcess(enum.Enum):
    MAIN_PROCESS = "MAIN_PROCESS"

    def __repr__(self) -> str:
        return self.value


MAIN_PROCESS: Final = _MainProcess.MAIN_PROCESS
"""Where stages run that are sent nowhere else: `PipelineBuilder.to(MAIN_PROCESS)`."""

Target: TypeAlias = ProcessPoolExecutorConfig | InterpreterPoolExecutorConfig | _MainProcess


@dataclass(frozen=True)
class PlacementConfig:
    """Where the stages run that follow. `PipelineBuilder.to` makes it.

    Args:
        target: The executor, or `MAIN_PROCESS`.
        buffer_size: How many items travel at once.

    Raises:
        TypeError: `target` is neither.
        ValueError: `buffer_size` is no int, or less than 1.
    """

    target: Target
    buffer_size: int = 1

    def __post_init__(self) -> None:
        if not isinstance(
            self.target, (ProcessPoolExecutorConfig, InterpreterPoolExecutorConfig, _MainProcess)
        ):
            raise TypeError(
                "stages are sent to a ProcessPoolExecutorConfig, an InterpreterPoolExecutorConfig "
                f"or MAIN_PROCESS, and not a live Executor or else: {shown(self.target)}"
            )
        buffer_size = whole("buffer_size", self.buffer_size, wrong_type=ValueError)
        object.__setattr__(self, "buffer_size", buffer_size)

    def __repr__(self) -> str:
        target = repr(self.target)
        if isinstance(self.target, ExecutorConfig):
            target = f"{type(self.target).__name__}(max_workers={self.target.max_workers})"
        buffer_size = f", buffer_size={self.buffer_size}" if self.buffer_size > 1 else ""
        return f"to({target}{buffer_size})"
