"""Command line, time limit and output format, shared by the scripts of measurements."""

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Measurement:
    """A running measurement. Prints each result as a line of JSON."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        parser = argparse.ArgumentParser()
        parser.add_argument("--seconds", type=float, default=60)
        parser.add_argument("--size", choices=("full", "tiny"), default="full")
        parser.add_argument("--images", type=Path)
        parser.add_argument("--videos", type=Path)
        arguments = parser.parse_args()
        self.seconds: float = arguments.seconds
        self.is_tiny: bool = arguments.size == "tiny"
        self.images: Path | None = arguments.images
        self.videos: Path | None = arguments.videos

    def is_over(self, share: float) -> bool:
        """Whether this share of the time, 0 to 1, has passed."""
        return time.monotonic() - self.start >= share * self.seconds

    def is_enough(self, share: float) -> bool:
        """Whether to continue with the next case: always in a tiny run; otherwise, after this share
        of the time.
        """
        return self.is_tiny or self.is_over(share)

    def figure(self, case: str, name: str, value: float, unit: str) -> None:
        """Print a figure."""
        self._print(kind="figure", case=case, name=name, value=value, unit=unit)

    def promise(self, promise: str, holds: bool, found: str, wanted: str) -> None:
        """Print whether a promise of the project holds."""
        self._print(kind="promise", promise=promise, holds=holds, found=found, wanted=wanted)

    def note(self, text: str) -> None:
        """Print further information."""
        self._print(kind="note", text=text)

    def unsupported(self, case: str, reason: str) -> None:
        """Print why a case is not measured."""
        self._print(kind="unsupported", case=case, reason=reason)

    def import_modules(self, case: str, *modules: str) -> list[Any]:
        """Import modules. If one is missing, report `case` as unsupported and exit."""
        found = []
        for name in modules:
            try:
                found.append(importlib.import_module(name))
            except Exception as error:  # A broken installation may raise anything.
                self.unsupported(case, f"cannot import {name}: {error}")
                sys.exit(0)
        return found

    def files(self) -> list[Path]:
        """Return the JPEGs of the pack, sorted by name."""
        return sorted(self.images.rglob("*.jpg")) if self.images else []

    @staticmethod
    def _print(**line: object) -> None:
        print(json.dumps(line), flush=True)


def cuda_device(measurement: Measurement, case: str, torch: Any) -> Any:
    """Return the CUDA device of PyTorch. If none is found, print `unsupported` and exit."""
    if not torch.cuda.is_available():
        measurement.unsupported(case, f"no CUDA device found by PyTorch {torch.__version__}")
        sys.exit(0)
    return torch.device("cuda")


def median_time(torch: Any, work: Callable[[], object], repeats: int) -> float:
    """Return the median duration of `repeats` calls in seconds, measured after a warm-up call."""
    times = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
