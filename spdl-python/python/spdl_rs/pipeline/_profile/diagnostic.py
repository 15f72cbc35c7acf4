"""The diagnostic mode: programs profile their pipeline instead of running it."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

from .._failures import environment as _environment
from .._run.pipeline import Pipeline
from ..defs._configs import PipelineConfig

T = TypeVar("T")

_MODE = "SPDL_PIPELINE_DIAGNOSTIC_MODE"
_ITEMS = "SPDL_PIPELINE_DIAGNOSTIC_MODE_NUM_ITEMS"
_DEFAULT_ITEMS = 1000


def is_diagnostic_mode_enabled() -> bool:
    """Whether pipelines are profiled instead of run: whether the environment variable
    `SPDL_PIPELINE_DIAGNOSTIC_MODE` is 1.

    The first pipeline of which an item is asked is then profiled by `profile_pipeline`, prints what
    was found, and ends the program with `SystemExit(0)`.
    """
    return _environment.is_set(_MODE)


def diagnostic_mode_num_sources() -> int:
    """How many items of each source are taken then: as the environment variable
    `SPDL_PIPELINE_DIAGNOSTIC_MODE_NUM_ITEMS` says, or else 1000."""
    return _environment.number(_ITEMS, _DEFAULT_ITEMS)


class DiagnosticPipeline(Pipeline[T]):
    """Stands for a pipeline. Whoever asks for an item gets its profile, printed."""

    def __init__(self, config: PipelineConfig[T]) -> None:
        # Nothing of it ever runs.
        self._config = config
        self._number = -1
        self._run = self._assembly = self._late_failure = None
        self._threads = []

    def start(self, *, timeout: float | None = None, **kwargs: Any) -> None:
        """Does nothing."""
        del timeout, kwargs

    def stop(self, *, timeout: float | None = None) -> None:
        """Does nothing."""
        del timeout

    def _started(self) -> NoReturn:
        from .profile import profile_pipeline

        report = profile_pipeline(self._config, diagnostic_mode_num_sources())
        if report:
            print(report, flush=True)
        raise SystemExit(0)

    def __repr__(self) -> str:
        return f"<Pipeline to be profiled: {_MODE} is set>"

    def __str__(self) -> str:
        return f"{self!r}\n{self._config!r}"
