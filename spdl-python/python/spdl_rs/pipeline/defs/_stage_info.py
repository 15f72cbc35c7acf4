"""Which stage of which pipeline."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StageInfo:
    """Which stage of which pipeline. As text it reads `0:1:decode[4]`.

    >>> from spdl_rs.pipeline import StageInfo
    >>> print(StageInfo(0, "1", "decode", 4), StageInfo(0, "1", "decode"))
    0:1:decode[4] 0:1:decode
    """

    pipeline_id: int
    """The pipeline's number in this process."""
    stage_id: str
    """The stage's place, counted from the source: `"1"`, or `"1.0.2"` for the third stage on the
    first path there, or in the first of the pipelines that are merged."""
    stage_name: str
    """What the stage is called."""
    concurrency: int | None = None
    """How many items it works on at once; `None` where that has no meaning."""

    def __str__(self) -> str:
        concurrency = "" if self.concurrency is None else f"[{self.concurrency}]"
        return f"{self.pipeline_id}:{self.stage_id}:{self.stage_name}{concurrency}"
