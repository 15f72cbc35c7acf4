"""What profiling has found, and what follows from it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["threads", "event loop", "executor", "native", "one at a time"]

# What gives this share of the most is as good.
_ENOUGH = 0.9
# What gives less than this share of what one at a time does is slower.
_SLOWER = 0.8
# From this share of the CPUs on all of them are taken to be at work.
ALL_CPUS = 0.85
# As many CPUs at work are taken for one.
_ONE_CPU = 0.7, 1.35


@dataclass
class ProfileStats:
    """How fast a stage was with so many items at once."""

    concurrency: int
    """How many items it worked on at once."""
    qps: float
    """How many items it gave per second."""
    occupancy_rate: float
    """The share of the time in which an item that it gave waited to be taken, in 0..=1."""
    source_qps: float = math.nan
    """How many of the source's items that was per second: where a stage puts items together, or
    takes them apart, this is what compares with other stages."""
    cpus: float | None = None
    """How many CPUs were at work on average; `None` where other processes do the work."""
    failures: int = 0
    """How many items failed."""
    crowded: bool = False
    """Whether other programs kept CPUs busy that this one might have used."""


@dataclass
class ProfileResult:
    """How fast a stage is, with several numbers of items at once. Printed, it is a table."""

    name: str
    """The name of the stage."""
    stats: Sequence[ProfileStats]
    """One for each number of items at once, the largest number first."""
    kind: Kind = "threads"
    """Where it runs: in threads of Python, on the event loop, on the executor of its own, in Rust
    (`native`); or it puts items together or takes them apart, one at a time."""
    concurrency: int | None = None
    """How many items at once it is set to work on; `None` where that is left to `spdl_rs`."""
    available_cpus: int = field(default_factory=lambda: available_cpus())
    """How many CPUs this process may use."""

    @property
    def best(self) -> ProfileStats:
        """Where it was fastest."""
        return max(self.stats, key=lambda stats: stats.qps)

    @property
    def advised(self) -> ProfileStats:
        """The fewest items at once that give 90 % of the most."""
        enough = [stats for stats in self.stats if stats.qps >= _ENOUGH * self.best.qps]
        return min(enough, key=lambda stats: stats.concurrency)

    @property
    def why(self) -> str:
        """Why so many at once are advised."""
        if len(self.stats) == 1:
            return "it works on one item at a time"
        advised, top = self.advised, self._with_most
        if advised.concurrency == 1:
            if top.qps < _SLOWER * advised.qps:
                slower = f"more make it slower, {_rate(top.qps)} with {top.concurrency}"
                return f"{slower}{self._because(top)}"
            return f"more bring less than 10 %{self._because(top)}"
        one = self._with_least
        times = advised.qps / one.qps if one.qps else math.inf
        gain = f"that gives {times:.1f} times what {one.concurrency} gives"
        if advised is top:
            return f"{gain}, and each step brought more: more than {top.concurrency} may be better"
        return f"{gain}, and more bring less than 10 %{self._because(advised)}"

    def source_qps(self, concurrency: int) -> float:
        """How many of the source's items it does per second with so many at once: between what was
        measured, along a straight line."""
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
        """Heads and cells of a table."""
        one = self._with_least
        cells = {
            "at once": [str(stats.concurrency) for stats in self.stats],
            "items/s": [f"{stats.qps:,.1f}" for stats in self.stats],
            "source/s": [f"{stats.source_qps:,.1f}" for stats in self.stats],
            f"against {one.concurrency}": [
                f"{stats.qps / one.qps:.1f}x" if one.qps else "-" for stats in self.stats
            ],
            "CPUs": ["-" if stats.cpus is None else f"{stats.cpus:.1f}" for stats in self.stats],
            "output waits": [f"{stats.occupancy_rate:.0%}" for stats in self.stats],
        }
        # What is the same, or not known, is not said twice.
        if cells["source/s"] == cells["items/s"] or math.isnan(one.source_qps):
            del cells["source/s"]
        return list(cells), [list(row) for row in zip(*cells.values(), strict=True)]

    def advice(self) -> str:
        """A sentence: how many at once, and why."""
        if len(self.stats) == 1:
            return self.why
        now = "" if self.concurrency is None else f" (set: {self.concurrency})"
        return f"advised: {self.advised.concurrency} at once{now}; {self.why}"

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
            lines.append(f"  {failures} of its items failed")
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
        """What keeps more from being better, where the CPUs at work tell."""
        if self.kind == "executor":
            return ": its executor has no more workers, or these no more CPUs"
        one = self._with_least
        if of.cpus is None or one.cpus is None:
            return ""
        if of.cpus >= ALL_CPUS * self.available_cpus:
            are = "CPU is" if self.available_cpus == 1 else f"{self.available_cpus} CPUs are"
            return f": the {are} at work already"
        least, most = _ONE_CPU
        is_python = self.kind in ("threads", "event loop")
        if is_python and self.advised is one and least <= one.cpus and of.cpus <= most:
            return ": one CPU is at work however many there are, as where a function holds the GIL"
        return ""


class ProfileReport(list[ProfileResult]):
    """The results of all stages. Printed, it says first which stage holds the others back."""

    @property
    def verdict(self) -> str:
        """Which stage holds the others back, and what would help."""
        if not self:
            return "there are no stages to be profiled"
        now = [_now(result) for result in self]
        slowest = self[now.index(min(now))]
        name, rate = slowest.name, min(now)
        text = f"{name} holds the others back: {_rate(rate)} of the source's items"
        better = slowest.advised
        if better.source_qps <= rate * (2 - _ENOUGH):
            if len(slowest.stats) > 1:
                text += "; more at once do not help there"
        else:
            rates = [better.source_qps if one is slowest else _now(one) for one in self]
            next_one = self[rates.index(min(rates))]
            text += f"; with {better.concurrency} at once it does {_rate(better.source_qps)}"
            if next_one is not slowest:
                text += f", and then {next_one.name} holds back, with {_rate(min(rates))}"
        cpus = self[0].available_cpus
        shared = "one CPU" if cpus == 1 else f"{cpus} CPUs"
        text = f"{text}. Each stage ran alone; together they share {shared}."
        if any(stats.crowded for result in self for stats in result.stats):
            text += (
                " Other programs kept the CPUs busy meanwhile, so that the figures say little: measure "
                "again when they have ended."
            )
        return text

    def __str__(self) -> str:
        return "\n\n".join([self.verdict, *map(str, self)])

    def _repr_html_(self) -> str:
        from .page import report_page

        return report_page(self)


def _now(result: ProfileResult) -> float:
    """How many of the source's items it does per second, as it is set."""
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
