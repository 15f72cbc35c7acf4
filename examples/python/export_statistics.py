"""Exports the statistics of a pipeline over time to SQLite, JSON and an SVG chart.

    python examples/python/export_statistics.py run statistics.db
    python examples/python/export_statistics.py json statistics.db > statistics.json
    python examples/python/export_statistics.py plot statistics.db statistics.svg

Requires only `spdl-rs`. `run` executes a small pipeline; each stage and each queue inserts one row
per interval into the database. Several runs can share a database. To record your own pipeline, pass
`task_hook_factory` and `queue_class` to `build`, as `run` does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import functools
import html
import json
import math
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spdl_rs.pipeline import (
    PipelineBuilder,
    QueuePerfStats,
    StageInfo,
    StatsQueue,
    TaskPerfStats,
    TaskStatsHook,
)

TABLES = {"stages": TaskPerfStats, "queues": QueuePerfStats}
WIDTH, HEIGHT, MARGIN = 640, 240, 40
COLOURS = ["#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#b8860b", "#444444"]


class Database:
    """An SQLite database with one table for stages and one for queues. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False)
        for table, kind in TABLES.items():
            columns = ", ".join(field.name for field in dataclasses.fields(kind))
            self._execute(f"CREATE TABLE IF NOT EXISTS {table} (time REAL, name TEXT, {columns})")

    def add(self, table: str, name: str, stats: TaskPerfStats | QueuePerfStats) -> None:
        values = [time.time(), name, *dataclasses.astuple(stats)]
        self._execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)

    def rows(self, table: str) -> list[dict[str, Any]]:
        cursor = self._execute(f"SELECT * FROM {table} ORDER BY time, name")
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def close(self) -> None:
        self._connection.close()

    def _execute(self, statement: str, values: list[Any] | None = None) -> sqlite3.Cursor:
        with self._lock, self._connection:
            return self._connection.execute(statement, values or [])


class RecordedStage(TaskStatsHook):
    """A hook that inserts the statistics of a stage for each interval."""

    def __init__(self, info: StageInfo, interval: float, database: Database) -> None:
        super().__init__(info, interval)
        self._database = database

    async def interval_stats_callback(self, stats: TaskPerfStats) -> None:
        # Write in a thread, so that the event loop does not wait for the disk.
        await asyncio.to_thread(self._database.add, "stages", str(self.info), stats)


class RecordedQueue(StatsQueue):
    """A queue that inserts its statistics for each interval.

    The native engine measures them; items do not pass through a Python queue.
    """

    def __init__(
        self, info: StageInfo, *, buffer_size: int, interval: float, database: Database
    ) -> None:
        super().__init__(info, buffer_size=buffer_size, interval=interval)
        self._database = database

    async def interval_stats_callback(self, stats: QueuePerfStats) -> None:
        await asyncio.to_thread(self._database.add, "queues", str(self.info), stats)


def run(database: Database, items: int, interval: float) -> None:
    """Runs a small pipeline and records its statistics."""

    def fetch(number: int) -> int:
        time.sleep(0.002)
        return number

    def decode(number: int) -> float:
        return sum(math.sqrt(number + step) for step in range(2000))

    pipeline = (
        PipelineBuilder()
        .add_source(range(items))
        .pipe(fetch, concurrency=4)
        .pipe(decode, concurrency=2)
        .aggregate(32)
        .add_sink()
        .build(
            num_threads=6,
            task_hook_factory=lambda info: [RecordedStage(info, interval, database)],
            queue_class=functools.partial(RecordedQueue, interval=interval, database=database),
        )
    )
    with pipeline.auto_stop():
        batches = sum(1 for _ in pipeline)
    print(f"{batches} batches; {len(database.rows('stages'))} rows in the table of stages")


def plot(database: Database, path: Path) -> None:
    """Writes an SVG chart of the items per second of each queue."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in database.rows("queues"):
        rate = row["num_items"] / row["elapsed"] if row["elapsed"] else 0.0
        curves.setdefault(row["name"], []).append((row["time"], rate))
    path.write_text("\n".join(picture(curves)) + "\n", encoding="utf-8")
    print(f"{len(curves)} curves in {path}")


def picture(curves: dict[str, list[tuple[float, float]]]) -> Iterator[str]:
    points = [point for curve in curves.values() for point in curve]
    begin, end = (of((when for when, _ in points), default=0.0) for of in (min, max))
    most = max((rate for _, rate in points), default=0.0) or 1.0
    span = end - begin or 1.0
    height = HEIGHT + 20 * len(curves)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}">'
    yield '<rect width="100%" height="100%" fill="white"/>'
    yield f'<text x="{MARGIN}" y="20" font-size="12">items/s, maximum {most:,.0f}</text>'
    for at, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[at % len(COLOURS)]
        line = " ".join(
            f"{MARGIN + (when - begin) / span * (WIDTH - 2 * MARGIN):.1f},"
            f"{HEIGHT - MARGIN - rate / most * (HEIGHT - 2 * MARGIN):.1f}"
            for when, rate in curve
        )
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
        label = f'x="{MARGIN}" y="{HEIGHT + 20 * at}" font-size="12" fill="{colour}"'
        yield f"<text {label}>{html.escape(name)}</text>"
    yield "</svg>"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("run", help="run a pipeline and record its statistics")
    command.add_argument("database", type=Path, help="SQLite file; rows are appended")
    command.add_argument("--items", type=int, default=2000, help="number of items [default: 2000]")
    command.add_argument(
        "--interval", type=float, default=0.25, help="seconds between two rows [default: 0.25]"
    )
    command = commands.add_parser("json", help="print all recorded rows as JSON")
    command.add_argument("database", type=Path, help="SQLite file of `run`")
    command = commands.add_parser("plot", help="write a chart of the throughput of each queue")
    command.add_argument("database", type=Path, help="SQLite file of `run`")
    command.add_argument("picture", type=Path, help="SVG file to write")
    options = parser.parse_args()
    if options.command != "run" and not options.database.is_file():
        raise SystemExit(f'"{options.database}" does not exist; create it with `run`')
    with contextlib.closing(Database(options.database)) as database:
        if options.command == "run":
            run(database, options.items, options.interval)
        elif options.command == "json":
            print(json.dumps({table: database.rows(table) for table in TABLES}, indent=1))
        else:
            plot(database, options.picture)


if __name__ == "__main__":
    main()
