"""What a notebook shows of a loader or a pipeline: a small table, and a line of the rate."""

from __future__ import annotations

import html
from collections.abc import Sequence

from ._statistics import Statistics

_WIDTH, _HEIGHT, _BINS = 240, 32, 60


def page(
    title: str,
    statistics: Statistics,
    rate: Sequence[float],
    *,
    items: str = "images",
    given: str = "batches",
) -> str:
    """HTML of its own: no script, no style of the page around it, all text escaped.

    Args:
        title: What it is of.
        statistics: What was done so far.
        rate: How many were given per second, in equal stretches of time.
        items: What stages work on.
        given: What is given in the end.
    """
    parts = [f"<p><b>{html.escape(title)}</b></p>"]
    if statistics["stages"]:
        parts.append(f"<p>{html.escape(statistics['diagnosis'])}</p>")
        parts.append(_table(statistics, items))
    if len(rate) > 1:
        line = _sparkline(rate, f"{given} per second over time")
        parts.append(f"<p>{line} {rate[-1]:,.3g} {given}/s, at most {max(rate):,.3g}</p>")
    return "<div>" + "".join(parts) + "</div>"


def rates(stretch: float, counts: Sequence[int]) -> list[float]:
    """How many came per second, of how many came in each stretch of so many seconds: in as many
    equal stretches as a line can show."""
    # The last one may not be over.
    whole = counts[:-1]
    if not whole:
        return []
    # A stretch in which nothing came says nothing where as few came as there are stretches.
    bins = max(2, min(_BINS, sum(whole) // 3))
    together = -(-len(whole) // bins)
    # What is left over at the end would be a shorter one.
    begins = range(0, len(whole) - together + 1, together)
    return [sum(whole[at : at + together]) / (together * stretch) for at in begins]


def _table(statistics: Statistics, items: str) -> str:
    columns = ("stage", items, "failed", "at once", "busy", "median", "99 %")
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
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _sparkline(values: Sequence[float], label: str) -> str:
    most = max(values) or 1.0
    step = _WIDTH / (len(values) - 1)
    points = " ".join(
        f"{place * step:.1f},{_HEIGHT - 1 - value / most * (_HEIGHT - 2):.1f}"
        for place, value in enumerate(values)
    )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{html.escape(label)}">'
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
    )
