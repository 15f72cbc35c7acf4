"""`Retry`: repeated calls of a function after exceptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..._arguments import real, seconds, shown, whole


@dataclass(frozen=True)
class Retry:
    """Calls the function of a stage again for an item after some exceptions: `pipe(op, retry=Retry())`.

    Before attempt *n*, counted from 2, the stage waits min(`delay` × `factor`^(*n* − 2), `max_delay`) seconds,
    multiplied by a random number in (1 − `jitter`, 1]. Meanwhile the thread runs later stages, and the waits of async
    functions occupy no thread. `stats()["stages"]` has the number of `retries`.

    Args:
        attempts: The largest number of calls per item, at least 1.
        delay: The wait before the second attempt, in seconds.
        factor: The ratio of each wait to the one before, at least 1.
        max_delay: The longest wait in seconds, at least `delay`.
        jitter: The random share of a wait, 0 to 1.
        exceptions: A class, or a tuple of classes. Other exceptions are not retried. Most exceptions of network
            libraries are subclasses of `OSError`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range.

    >>> from spdl_rs.pipeline import PipelineBuilder, Retry
    >>> answers = iter([ConnectionError("busy"), "ready"])
    >>> def ask(item):
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return answer
    >>> builder = PipelineBuilder().add_source(["?"]).pipe(ask, retry=Retry(delay=0.01)).add_sink()
    >>> pipeline = builder.build(num_threads=1)
    >>> list(pipeline), pipeline.stats()["stages"][1]["retries"]
    (['ready'], 1)
    """

    attempts: int = 3
    delay: float = 0.05
    factor: float = 2.0
    max_delay: float = 5.0
    jitter: float = 0.5
    exceptions: type[Exception] | tuple[type[Exception], ...] = (OSError,)

    def __post_init__(self) -> None:
        whole("attempts", self.attempts, 1, 2**32 - 1)
        for name in ("delay", "max_delay"):
            if not 0 <= seconds(name, getattr(self, name)) < 1e9:
                raise ValueError(f"{name} must be at least 0 and less than 1e9, not {getattr(self, name)}")
        if not 1 <= real("factor", self.factor):
            raise ValueError(f"factor must be at least 1, not {self.factor}")
        if self.delay > self.max_delay:
            raise ValueError(f"delay, {self.delay}, must not exceed max_delay, {self.max_delay}")
        if not 0 <= real("jitter", self.jitter) <= 1:
            raise ValueError(f"jitter must be in range 0 to 1, not {self.jitter}")
        for one in self._classes():
            if not (isinstance(one, type) and issubclass(one, Exception)):
                raise TypeError(f"exceptions must be subclasses of Exception, not {shown(one)}")

    def _classes(self) -> tuple[Any, ...]:
        return self.exceptions if isinstance(self.exceptions, tuple) else (self.exceptions,)

    def _native(self) -> tuple[int, float, float, float, float, tuple[Any, ...]]:
        return (
            self.attempts,
            self.delay,
            self.factor,
            self.max_delay,
            self.jitter,
            self._classes(),
        )
