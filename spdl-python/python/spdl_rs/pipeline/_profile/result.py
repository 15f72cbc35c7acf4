"""The result of profiling, and the advice that follows from it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["threads", "event loop", "executor", "native", "one at a time"]

# A concurrency is sufficient if its rate is at least this share of the highest rate.
_ENOUGH = 0.9
# A rate counts as slower if it is less than this share of the rate at concurrency 1.
_SLOWER = 0.8
# All CPUs count as busy if at least this share of the CPU time is used.
ALL_CPUS = 0.85
# The range of the average number of busy CPUs that counts as one busy CPU.
_ONE_CPU = 0.7, 1.35


@dataclass
class ProfileStats:
    """The throughput of a stage at one concurrency."""

    concurrency: int
    """The number of items processed at the same time."""
    qps: float
    """Outputs per second."""
    occupancy_rate: float
    """The share of time in which an output waited in the queue, 0 to 1."""
    source_qps: float = math.nan
    """Source items per second. Comparable between stages, even if they group or split items."""
    cpus: float | None = None
    """The average number of busy CPUs; `None` if other processes do the work."""
    failures: int = 0
    """The number of failed items."""
    crowded: bool = False
    """True if other programs used CPUs that this stage could have used."""


@dataclass
class ProfileResult:
    """The throughput of a stage at several concurrencies. Its `str` is a table."""

    name: str
    """The name of the stage."""
    stats: Sequence[ProfileStats]
    """One measurement for each concurrency, the highest first."""
    kind: Kind = "threads"
    """Where the stage runs: in Python threads, on the event loop, on its own executor, or in Rust
    (`native`). A stage that groups or splits items runs one at a time."""
    concurrency: int | None = None
    """The configured concurrency; `None` if `spdl_rs` chooses it."""
    available_cpus: int = field(default_factory=lambda: available_cpus())
    """The number of CPUs that this process may use."""

    @property
    def best(self) -> ProfileStats:
        """The measurement with the highest rate."""
        return max(self.stats, key=lambda stats: stats.qps)

    @property
    def advised(self) -> ProfileStats:
        """The smallest concurrency that reaches 90 % of the highest rate."""
        enough = [stats for stats in self.stats if stats.qps >= _ENOUGH * self.best.qps]
        return min(enough, key=lambda stats: stats.concurrency)

    @property
    def why(self) -> str:
        """The reason for the advised concurrency."""
        if len(self.stats) == 1:
            return "the stage processes one item at a time"
        advised, top = self.advised, self._with_most
        if advised.concurrency == 1:
            if top.qps < _SLOWER * advised.qps:
                slower = f"higher concurrency is slower, {_rate(top.qps)} with {top.concurrency}"
                return f"{slower}{self._because(top)}"
            return f"higher concurrency gains less than 10 %{self._because(top)}"
        one = self._with_least
        times = advised.qps / one.qps if one.qps else math.inf
        gain = f"{times:.1f} times the rate of concurrency {one.concurrency}"
        if advised is top:
            return f"{gain}; each step was faster, so more than {top.concurrency} may be better"
        return f"{gain}; higher concurrency gains less than 10 %{self._because(advised)}"

    def source_qps(self, concurrency: int) -> float:
        """Returns source items per second at a concurrency, linear between measured points."""
        stats = sorted(self.stats, key=lambda stats: stats.concurrency)
        below = [one for one in stats if one.concurrency <= concurrency]
        above = [one for one in stats if one.concurrency >= concurrency]
        if not below or not above:
            return (above or below[-1:])[0].source_qps
        low, high = below[-1], above[0]
        if high.concurrency == low.concurrency:
            return low.source_qps
        share = (concurrency - low.concurrency) / (high.concurrency - low.concurrency)
        return low.source_qps + share * (high.source_qps - low.source_qps)

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Returns the column names and the cells of a table."""
        one = self._with_least
        cells = {
            "concurrency": [str(stats.concurrency) for stats in self.stats],
            "items/s": [f"{stats.qps:,.1f}" for stats in self.stats],
            "source/s": [f"{stats.source_qps:,.1f}" for stats in self.stats],
            "speed-up": [
                f"{stats.qps / one.qps:.1f}x" if one.qps else "-" for stats in self.stats
            ],
            "CPUs": ["-" if stats.cpus is None else f"{stats.cpus:.1f}" for stats in self.stats],
            "occupancy": [f"{stats.occupancy_rate:.0%}" for stats in self.stats],
        }
        # The column is left out if its values are unknown or the same as items/s.
        if cells["source/s"] == cells["items/s"] or math.isnan(one.source_qps):
            del cells["source/s"]
        return list(cells), [list(row) for row in zip(*cells.values(), strict=True)]

    def advice(self) -> str:
        """Returns the advised concurrency and the reason, as one sentence."""
        if len(self.stats) == 1:
            return self.why
        now = "" if self.concurrency is None else f" (set: {self.concurrency})"
        return f"advised: concurrency {self.advised.concurrency}{now}; {self.why}"

    def __str__(self) -> str:
        heads, rows = self.rows()
        widths = [max(len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]
        lines = [f"{self.name} ({self.kind})"]
        for row in [heads, *rows]:
            cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            lines.append("  " + "  ".join(cells))
        lines.append(f"  {self.advice()}")
        failures = self.stats[-1].failures
        if failures:
            lines.append(f"  {failures} items failed")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from .page import result_page

        return result_page(self)

    @property
    def _with_most(self) -> ProfileStats:
        return max(self.stats, key=lambda stats: stats.concurrency)

    @property
    def _with_least(self) -> ProfileStats:
        return min(self.stats, key=lambda stats: stats.concurrency)

    def _because(self, of: ProfileStats) -> str:
        """Returns why more concurrency does not help, if the number of busy CPUs shows the reason."""
        if self.kind == "executor":
            return ": its executor has no more workers, or all CPUs are busy"
        one = self._with_least
        if of.cpus is None or one.cpus is None:
            return ""
        if of.cpus >= ALL_CPUS * self.available_cpus:
            busy = "CPU is" if self.available_cpus == 1 else f"{self.available_cpus} CPUs are"
            return f": the {busy} busy"
        least, most = _ONE_CPU
        is_python = self.kind in ("threads", "event loop")
        if is_python and self.advised is one and least <= one.cpus and of.cpus <= most:
            return ": one CPU is busy at any concurrency, as if a function held the GIL"
        return ""


class ProfileReport(list[ProfileResult]):
    """The results of all stages. Its `str` starts with the slowest stage."""

    @property
    def verdict(self) -> str:
        """Names the bottleneck, and what would help."""
        if not self:
            return "the pipeline has no stages to profile"
        now = [_now(result) for result in self]
        slowest = self[now.index(min(now))]
        name, rate = slowest.name, min(now)
        text = f"{name} is the bottleneck: {_rate(rate)} source items"
        better = slowest.advised
        if better.source_qps <= rate * (2 - _ENOUGH):
            if len(slowest.stats) > 1:
                text += "; more concurrency does not help"
        else:
            rates = [better.source_qps if one is slowest else _now(one) for one in self]
            next_one = self[rates.index(min(rates))]
            text += f"; concurrency {better.concurrency} reaches {_rate(better.source_qps)}"
            if next_one is not slowest:
                text += f", then {next_one.name} is the bottleneck, with {_rate(min(rates))}"
        cpus = self[0].available_cpus
        shared = "one CPU" if cpus == 1 else f"{cpus} CPUs"
        text = f"{text}. Each stage ran alone; in the pipeline, they share {shared}."
        if any(stats.crowded for result in self for stats in result.stats):
            text += (
                " Other programs kept the CPUs busy, so the figures are unreliable: measure again "
                "on an idle machine."
            )
        return text

    def __str__(self) -> str:
        return "\n\n".join([self.verdict, *map(str, self)])

    def _repr_html_(self) -> str:
        from .page import report_page

        return report_page(self)


def _now(result: ProfileResult) -> float:
    """Returns source items per second at the configured concurrency."""
    if result.concurrency is None:
        return result.advised.source_qps
    return result.source_qps(result.concurrency)


def _rate(per_second: float) -> str:
    digits = 0 if per_second >= 100 else 1
    return f"{per_second:,.{digits}f}/s"


def available_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
