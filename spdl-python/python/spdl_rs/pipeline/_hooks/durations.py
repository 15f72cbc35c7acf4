"""A histogram of durations in bounded memory."""

from __future__ import annotations

import math

_STEPS_PER_OCTAVE = 32


class DurationHistogram:
    """A log-linear histogram of durations. Each bucket is 2.2 % wider than the previous one."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.count = 0
        self.total = 0.0
        self._least = math.inf
        self._most = 0.0
        self._buckets: dict[int, int] = {}

    def record(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        self._least = min(self._least, seconds)
        self._most = max(self._most, seconds)
        bucket = math.floor(math.log2(max(seconds, 1e-9)) * _STEPS_PER_OCTAVE)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    @property
    def mean(self) -> float:
        """The mean in seconds; 0 if the histogram is empty."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """Returns a percentile, accurate to 1.1 %; 0 if the histogram is empty."""
        left = math.ceil(self.count * percent / 100)
        for bucket, count in sorted(self._buckets.items()):
            left -= count
            if left <= 0:
                middle = 2.0 ** ((bucket + 0.5) / _STEPS_PER_OCTAVE)
                return min(max(middle, self._least), self._most)
        return 0.0


def format_duration(seconds: float) -> str:
    """Formats a duration with a unit, for example `1.5 ms`."""
    if seconds >= 1.0:
        return f"{seconds:.1f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.1f} µs"
