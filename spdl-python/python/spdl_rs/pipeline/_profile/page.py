"""HTML of a profile for notebooks: tables, and plots of the rate by concurrency."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .result import ProfileReport, ProfileResult

_WIDTH, _HEIGHT = 260, 110
_LEFT, _RIGHT, _TOP, _BOTTOM = 8, 8, 14, 18


def report_page(report: ProfileReport) -> str:
    """Returns HTML without scripts or styles. All text is escaped."""
    parts = [f"<p><b>{html.escape(report.verdict)}</b></p>"]
    parts.extend(result_page(result) for result in report)
    return "<div>" + "".join(parts) + "</div>"


def result_page(result: ProfileResult) -> str:
    """Returns the table and the plot of one stage."""
    heads, rows = result.rows()
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    plot = _plot(result) if len(result.stats) > 1 else ""
    return (
        f"<div><p><b>{html.escape(result.name)}</b> ({result.kind}): "
        f"{html.escape(result.advice())}</p>{plot}"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _plot(result: ProfileResult) -> str:
    """Plots items per second by concurrency (logarithmic), and marks the advised concurrency."""
    stats = sorted(result.stats, key=lambda one: one.concurrency)
    most = max(one.qps for one in stats) or 1.0
    first, last = (math.log2(stats[at].concurrency) for at in (0, -1))
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    places = [
        (
            _LEFT + width * (math.log2(one.concurrency) - first) / (last - first or 1.0),
            _TOP + height * (1 - one.qps / most),
        )
        for one in stats
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    marks = []
    for one, (x, y) in zip(stats, places, strict=True):
        radius = 4 if one is result.advised else 2
        marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="currentColor"/>')
        marks.append(_text(x, _HEIGHT - 4, str(one.concurrency)))
    x, y = places[stats.index(result.advised)]
    marks.append(_text(x, y - 6, f"{result.advised.qps:,.0f}/s"))
    label = html.escape(f"items per second of {result.name} by concurrency", quote=True)
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{label}">'
        f'<path d="M0 {_TOP + height}H{_WIDTH}" stroke="currentColor" stroke-opacity="0.3"/>'
        f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
        f"{''.join(marks)}</svg>"
    )


def _text(x: float, y: float, text: str) -> str:
    anchor = "start" if x < _WIDTH / 4 else "end" if x > _WIDTH * 3 / 4 else "middle"
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="10" text-anchor="{anchor}" '
        f'fill="currentColor">{html.escape(text)}</text>'
    )
