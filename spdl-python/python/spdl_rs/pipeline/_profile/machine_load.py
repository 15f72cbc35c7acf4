"""The CPU load of this machine, including other programs."""

from __future__ import annotations

import time

# The kernel updates the idle time late: measurements over fewer seconds are inaccurate.
_MIN_INTERVAL = 0.25
# Columns of the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
_FIELDS, _IDLE = slice(1, 9), slice(4, 6)


class MachineLoad:
    """Measures the CPU load since its creation."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._before = _ticks(_first_line())

    def busy_share(self) -> float | None:
        """Returns the share of busy CPU time, 0 to 1.

        Returns `None` if the system does not report CPU times, or after less than 0.25 seconds.
        """
        after = _ticks(_first_line())
        elapsed = time.monotonic() - self._began
        if self._before is None or after is None or elapsed < _MIN_INTERVAL:
            return None
        total, idle = after[0] - self._before[0], after[1] - self._before[1]
        return None if total <= 0 else min(1.0, max(0.0, 1 - idle / total))


def _first_line() -> str:
    try:
        with open("/proc/stat", encoding="ascii") as file:
            return file.readline()
    except OSError:
        return ""


def _ticks(line: str) -> tuple[int, int] | None:
    """Returns the ticks of all CPUs since boot, and the idle ticks; `None` for invalid text."""
    words = line.split()
    if words[:1] != ["cpu"] or not all(word.isdigit() for word in words[1:]):
        return None
    return sum(map(int, words[_FIELDS])), sum(map(int, words[_IDLE]))
