"""What scripts of measurements share: arguments, time, and lines for the program that runs them."""

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Measuring:
    """A measurement that is under way. Each line is an object of JSON, said at once."""

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
        """Whether this share, from 0 to 1, of the time is over."""
        return time.monotonic() - self.start >= share * self.seconds

    def is_enough(self, share: float) -> bool:
        """Whether it is time to go on to what comes next: in a tiny run, at once."""
        return self.is_tiny or self.is_over(share)

    def figure(self, case: str, name: str, value: float, unit: str) -> None:
        """A number, and what it is of."""
        self._say(kind="figure", case=case, name=name, value=value, unit=unit)

    def promise(self, promise: str, holds: bool, found: str, wanted: str) -> None:
        """Whether something that is promised holds."""
        self._say(kind="promise", promise=promise, holds=holds, found=found, wanted=wanted)

    def note(self, text: str) -> None:
        """What else is to be known."""
        self._say(kind="note", text=text)

    def unsupported(self, case: str, reason: str) -> None:
        """That something is not measured, and why."""
        self._say(kind="unsupported", case=case, reason=reason)

    def needs(self, case: str, *modules: str) -> list[Any]:
        """The modules; where one is missing, that is said and the script ends."""
        found = []
        for name in modules:
            try:
                found.append(importlib.import_module(name))
            except Exception as error:  # What a broken installation raises is anybody's guess.
                self.unsupported(case, f"cannot import {name}: {error}")
                sys.exit(0)
        return found

    def files(self) -> list[Path]:
        """The JPEGs that came with the program, in the order of their names."""
        return sorted(self.images.rglob("*.jpg")) if self.images else []

    @staticmethod
    def _say(**line: object) -> None:
        print(json.dumps(line), flush=True)


def cuda_of(measuring: Measuring, case: str, torch: Any) -> Any:
    """PyTorch's device; where it has none, that is said and the script ends."""
    if not torch.cuda.is_available():
        measuring.unsupported(case, f"PyTorch {torch.__version__} finds no CUDA device")
        sys.exit(0)
    return torch.device("cuda")


def median_time(torch: Any, work: Callable[[], object], repeats: int) -> float:
    """The median time of some runs, in seconds, behind one that does not count."""
    times = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
