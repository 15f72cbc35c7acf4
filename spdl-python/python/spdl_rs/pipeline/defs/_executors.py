"""Configurations of executors, and placement of stages on them."""

from __future__ import annotations

import enum
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

from ..._arguments import function, shown, whole

_START_METHODS = ("fork", "forkserver", "spawn")


@dataclass(frozen=True)
class ExecutorConfig:
    """The configuration of an executor.

    Args:
        max_workers: The number of workers. Default: the number of CPUs.
        initializer: Called once at the start of each worker.
        initargs: The arguments of `initializer`.

    Raises:
        ValueError: `max_workers` is not an integer, or less than 1.
        TypeError: `initializer` is not callable.
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
    """Worker processes, for `PipelineBuilder.to`.

    Args:
        max_workers: The number of processes. Default: the number of CPUs.
        initializer: Called once at the start of each process.
        initargs: The arguments of `initializer`.
        mp_context: The name of a start method. Default: as for `iterate_in_subprocess`.

    Raises:
        ValueError: `max_workers` is not an integer, or less than 1, or the start method is unknown.
        TypeError: `initializer` is not callable, or `mp_context` is not a string.

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
                f"mp_context must be the name of a start method, not {shown(self.mp_context)}"
            )
        if self.mp_context not in _START_METHODS:
            raise ValueError(
                f"mp_context must be one of {', '.join(_START_METHODS)}, not {self.mp_context!r}"
            )


@dataclass(frozen=True)
class InterpreterPoolExecutorConfig(ExecutorConfig):
    """Subinterpreters, for `PipelineBuilder.to`. Not supported yet: see `iterate_in_subinterpreter`."""


def needs_interpreters(what: str, instead: str) -> NoReturn:
    """Raises the exception for features that would run `spdl_rs` in a subinterpreter.

    Raises:
        NotImplementedError: Always, a `RuntimeError`.
    """
    raise NotImplementedError(
        f"{what} requires Python 3.14 in SPDL, and is not supported by spdl_rs: extension modules built "
        f"with PyO3 run in the main interpreter only; use {instead}"
    )


class _MainProcess(enum.Enum):
    MAIN_PROCESS = "MAIN_PROCESS"

    def __repr__(self) -> str:
        return self.value


MAIN_PROCESS: Final = _MainProcess.MAIN_PROCESS
"""The target of stages that run in this process: `PipelineBuilder.to(MAIN_PROCESS)`."""

Target: TypeAlias = ProcessPoolExecutorConfig | InterpreterPoolExecutorConfig | _MainProcess


@dataclass(frozen=True)
class PlacementConfig:
    """Where the following stages run. Created by `PipelineBuilder.to`.

    Args:
        target: The executor, or `MAIN_PROCESS`.
        buffer_size: The number of items per message between processes.

    Raises:
        TypeError: `target` has another type.
        ValueError: `buffer_size` is not an integer, or less than 1.
    """

    target: Target
    buffer_size: int = 1

    def __post_init__(self) -> None:
        if not isinstance(
            self.target, (ProcessPoolExecutorConfig, InterpreterPoolExecutorConfig, _MainProcess)
        ):
            if isinstance(self.target, Executor):
                raise TypeError(
                    "to() requires a ProcessPoolExecutorConfig, an InterpreterPoolExecutorConfig or "
                    f"MAIN_PROCESS, not a live Executor ({type(self.target).__name__}); pass an executor "
                    "to pipe(executor=...)"
                )
            raise TypeError(
                "target must be a ProcessPoolExecutorConfig, an InterpreterPoolExecutorConfig or "
                f"MAIN_PROCESS, not {shown(self.target)}"
            )
        try:
            buffer_size = whole("buffer_size", self.buffer_size, wrong_type=ValueError)
        except ValueError:
            raise ValueError(
                f"buffer_size must be a positive integer below 2**63, not {shown(self.buffer_size)}"
            ) from None
        object.__setattr__(self, "buffer_size", buffer_size)

    def __repr__(self) -> str:
        target = repr(self.target)
        if isinstance(self.target, ExecutorConfig):
            target = f"{type(self.target).__name__}(max_workers={self.target.max_workers})"
        buffer_size = f", buffer_size={self.buffer_size}" if self.buffer_size > 1 else ""
        return f"placement({target}{buffer_size})"
