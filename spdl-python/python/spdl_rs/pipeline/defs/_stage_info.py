"""The identity of a stage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StageInfo:
    """Identifies a stage of a pipeline. `str` returns, for example, `0:1:decode[4]`.

    >>> from spdl_rs.pipeline import StageInfo
    >>> print(StageInfo(0, "1", "decode", 4), StageInfo(0, "1", "decode"))
    0:1:decode[4] 0:1:decode
    """

    pipeline_id: int
    """The number of the pipeline in this process."""
    stage_id: str
    """The position of the stage, counted from the source: `"1"`; or `"1.0.2"` for the third stage of the
    first path, or of the first merged pipeline."""
    stage_name: str
    """The name of the stage."""
    concurrency: int | None = None
    """The number of items processed at the same time; `None` if not applicable."""

    def __str__(self) -> str:
        concurrency = "" if self.concurrency is None else f"[{self.concurrency}]"
        return f"{self.pipeline_id}:{self.stage_id}:{self.stage_name}{concurrency}"
