"""How busy the CPUs of this machine are, with other programs too."""

from __future__ import annotations

import time

# The system counts in ticks, and those of idle CPUs late: a shorter time, in seconds, says nothing.
_SHORTEST = 0.25
# Of a line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
_FIELDS, _IDLE = slice(1, 9), slice(4, 6)


class MachineLoad:
    """Begins to measure when it is made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._before = _ticks(_first_line())

    def busy_share(self) -> float | None:
        """The share of the CPUs that was at work since then, in 0..=1; `None` where the system does not
        tell, or too little time has passed."""
        after = _ticks(_first_line())
        if self._before is None or after is None or time.monotonic() - self._began < _SHORTEST:
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
    """The ticks of all CPUs since the start of the system, and those in which they did nothing."""
    words = line.split()
    if words[:1] != ["cpu"] or not all(word.isdigit() for word in words[1:]):
        return None
    return sum(map(int, words[_FIELDS])), sum(map(int, words[_IDLE]))
