"""What a notebook shows of a loader: a small table, and a line of how the rate was."""

from __future__ import annotations

import html
from collections.abc import Sequence

from ._statistics import Statistics

_WIDTH, _HEIGHT, _BINS = 240, 32, 60
_COLUMNS = ("stage", "images", "failed", "at once", "busy", "median", "99 %")


def page(title: str, statistics: Statistics, moments: Sequence[float]) -> str:
    """HTML of its own: no script, no style of the page around it, all text escaped.

    `moments` are the seconds at which batches came.
    """
    parts = [f"<p><b>{html.escape(title)}</b></p>"]
    if statistics["stages"]:
        parts.append(f"<p>{html.escape(statistics['diagnosis'])}</p>")
        parts.append(_table(statistics))
    rate = rates(moments)
    if rate:
        parts.append(
            f"<p>{_sparkline(rate)} {rate[-1]:,.3g} batches/s, at most {max(rate):,.3g}</p>"
        )
    return "<div>" + "".join(parts) + "</div>"


def rates(moments: Sequence[float]) -> list[float]:
    """Batches per second, in as many equal stretches of time as a line can show."""
    if len(moments) < 3:
        return []
    first, last = moments[0], moments[-1]
    span = last - first
    if span <= 0:
        return []
    # A stretch without a batch says nothing where there are as few batches as stretches.
    bins = max(2, min(_BINS, (len(moments) - 1) // 3))
    counts = [0] * bins
    for moment in moments[1:]:
        counts[min(int((moment - first) / span * bins), bins - 1)] += 1
    return [count * bins / span for count in counts]


def _table(statistics: Statistics) -> str:
    rows = []
    for stage in statistics["stages"]:
        rows.append(
            [
                stage["name"],
                f"{stage['items']:,}",
                f"{stage['failures']:,}",
                f"{stage['concurrency']:,}",
                f"{stage['busy_share']:.0%}",
                f"{stage['service_ms']['p50']:.3g} ms",
                f"{stage['service_ms']['p99']:.3g} ms",
            ]
        )
    head = "".join(f"<th>{html.escape(name)}</th>" for name in _COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _sparkline(values: list[float]) -> str:
    most = max(values) or 1.0
    step = _WIDTH / (len(values) - 1)
    points = " ".join(
        f"{place * step:.1f},{_HEIGHT - 1 - value / most * (_HEIGHT - 2):.1f}"
        for place, value in enumerate(values)
    )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        'aria-label="batches per second over time">'
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
    )
