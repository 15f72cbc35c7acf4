"""The diagnostic mode: pipelines are profiled instead of run."""

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
    """Returns true if the environment variable `SPDL_PIPELINE_DIAGNOSTIC_MODE` is 1.

    Then the first pipeline from which an item is requested is profiled by `profile_pipeline`
    instead of run. The report is printed, and the program exits with `SystemExit(0)`.
    """
    return _environment.is_set(_MODE)


def diagnostic_mode_num_sources() -> int:
    """Returns the number of items that the diagnostic mode takes from each source.

    Set by the environment variable `SPDL_PIPELINE_DIAGNOSTIC_MODE_NUM_ITEMS`. Default: 1000.
    """
    return _environment.number(_ITEMS, _DEFAULT_ITEMS)


class DiagnosticPipeline(Pipeline[T]):
    """Replaces a pipeline. The first request for an item profiles the pipeline and exits."""

    def __init__(self, config: PipelineConfig[T]) -> None:
        # The pipeline itself is never built.
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
