"""HTML for notebooks: a table of stages and a plot of the throughput over time."""

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
    count_name: str = "batches",
) -> str:
    """Returns self-contained HTML: no scripts, no external styles, all text escaped.

    Args:
        title: The heading.
        statistics: The statistics so far.
        rate: Throughput per second, in equal intervals.
        items: The unit that stages process, as a plural noun, for example "images".
        count_name: The unit that `rate` counts, as a plural noun.
    """
    parts = [f"<p><b>{html.escape(title)}</b></p>"]
    if statistics["stages"]:
        parts.append(f"<p>{html.escape(statistics['diagnosis'])}</p>")
        parts.append(_table(statistics, items))
    if len(rate) > 1:
        line = _sparkline(rate, f"{count_name} per second over time")
        parts.append(f"<p>{line} {rate[-1]:,.3g} {count_name}/s, at most {max(rate):,.3g}</p>")
    return "<div>" + "".join(parts) + "</div>"


def rates(interval_s: float, counts: Sequence[int]) -> list[float]:
    """Converts counts per interval of `interval_s` seconds to rates, in at most `_BINS` bins."""
    # The last interval may be incomplete.
    whole = counts[:-1]
    if not whole:
        return []
    # At least three items per bin on average: bins with fewer show noise.
    bins = max(2, min(_BINS, sum(whole) // 3))
    together = -(-len(whole) // bins)
    # A shorter bin at the end is left out.
    begins = range(0, len(whole) - together + 1, together)
    return [sum(whole[at : at + together]) / (together * interval_s) for at in begins]


def _table(statistics: Statistics, items: str) -> str:
    columns = ("stage", items, "failed", "concurrency", "busy", "median", "p99")
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
