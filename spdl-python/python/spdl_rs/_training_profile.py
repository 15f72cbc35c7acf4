"""`profile`: whether a training waits for data, why, and how much a faster loader would gain."""

from __future__ import annotations

import copy
import math
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Generic, SupportsFloat, TypeVar, cast

from . import _arguments as check
from . import _spdl_rs
from ._statistics import SlowItem, StageStatistics, Statistics
from .usage import log_api_usage_once

T = TypeVar("T")

# Shares of the time limit.
_LOADER, _STEP, _TOGETHER = 0.4, 0.2, 0.4
# A run consists of about this many rounds, of at least this many seconds each.
_ROUNDS, _MIN_ROUND_S = 20, 0.05
# A run ends early after this many rounds, if the standard error of their median is below this share.
_ENOUGH_ROUNDS, _PRECISE = 8, 0.01
# The first batches and steps include imports, compilation and the start of threads.
_WARM_UP = 3
# A training is starved if a faster loader would save at least this share of its time.
_STARVED = 0.05
# Step and loader disturb each other if one of them takes this much longer.
_DISTURBED = 0.05
# A request for the GIL that takes longer than this waited for another thread.
_GIL_WAIT_S, _GIL_INTERVAL_S = 50e-6, 0.01
# A sample is shown as slow if it takes this many times the median.
_SLOW = 2
# A stage on threads computes if it uses a CPU for at least this share of its time.
_COMPUTES = 0.5
# The GIL is reported above this share of the time.
_GIL_BUSY = 0.5


@dataclass(frozen=True)
class Rate:
    """The rate of one run."""

    per_s: float
    """Batches, or steps, per second."""
    rounds_per_s: tuple[float, ...] = field(repr=False)
    """The rate of each round."""
    seconds: float
    """The length of the run."""

    @property
    def spread(self) -> float:
        """The median deviation of rounds from their median, relative to the median."""
        middle = median(self.rounds_per_s)
        return median(abs(rate - middle) for rate in self.rounds_per_s) / middle if middle else 0.0


@dataclass(frozen=True)
class StageTime:
    """The work of one stage of the loader."""

    name: str
    """The name of the stage."""
    waits: bool
    """Whether the stage loads, that is, waits for a disk or store. Other stages compute, for example decode."""
    waits_for_gil: bool
    """Whether the stage mostly waits for Python's GIL, which threads of the loader hold for most of the time."""
    ms_per_sample: float
    """Milliseconds for each sample that the stage has processed, summed over concurrent samples."""

    @property
    def _verb(self) -> str:
        if self.waits_for_gil:
            return "waits for the GIL for"
        return "waits for" if self.waits else "computes for"


@dataclass(frozen=True)
class Interference:
    """How much step and loader slow each other."""

    step_ms: float
    """The time of a call of the step on the cached batch, without the loader."""
    step_ms_together: float
    """The time of a call of the step while the loader runs."""
    step_cpu_ms: float
    """CPU time of the thread of the step per call, without the loader."""
    step_cpu_ms_together: float
    """CPU time of the thread of the step per call, while the loader runs. A longer time means that the loader uses
    the memory bandwidth, the caches, or the other half of the same core."""
    loader_cpu_ms: float
    """CPU time of the other threads of this process per batch, without the step."""
    loader_cpu_ms_together: float
    """CPU time of the other threads per batch, while the step runs, without threads that the step itself uses."""
    gil_of_loader: float
    """The share of the time in which threads held Python's GIL while only the loader ran, 0 to 1."""
    gil_of_step: float
    """The share of the time in which threads held Python's GIL while only the step ran, 0 to 1."""

    @property
    def slowdown(self) -> float:
        """How much longer a step takes while the loader runs: 0.1 is 10 % longer."""
        return self.step_ms_together / self.step_ms - 1 if self.step_ms else 0.0

    @property
    def causes(self) -> dict[str, float]:
        """Milliseconds per step by cause: `memory` (bandwidth and caches), and `gil` or `cpu` (waiting for them)."""
        work = max(0.0, self.step_cpu_ms_together - self.step_cpu_ms)
        longer = max(0.0, self.step_ms_together - self.step_ms)
        work = min(work, longer)
        waits_for = "gil" if self.gil_of_loader >= _GIL_BUSY else "cpu"
        return {"memory": work, waits_for: longer - work}


@dataclass(frozen=True)
class TrainingProfile:
    """The result of `spdl_rs.profile`. `print` shows it in a few sentences."""

    step: Rate
    """The step on one cached batch, without the loader: the rate with an infinitely fast loader."""
    loader: Rate
    """The loader without a step."""
    together: Rate
    """The training: both."""
    samples_per_batch: float | None
    """The mean number of samples of a batch; `None` if unknown."""
    stages: list[StageTime]
    """The stages of the loader; empty if the loader has no statistics."""
    slowest: list[SlowItem]
    """Up to ten samples that took longest in a stage, the slowest first."""
    diagnosis: str
    """What limits the loader without a step; empty if the loader has no statistics."""
    statistics: Statistics | None = field(repr=False)
    """The statistics of the loader without a step."""
    interference: Interference
    """How much step and loader slow each other."""

    @property
    def headspace(self) -> float:
        """The share of the training time that an infinitely fast loader would save, 0 to 1.

        This is the headspace of upstream SPDL's guide: the step time with cached batches, compared with the step time
        with the loader (https://facebookresearch.github.io/spdl/main/performance_analysis/headspace_analysis.html).
        """
        return max(0.0, 1 - self.together.per_s / self.step.per_s)

    @property
    def gain(self) -> float:
        """The largest gain of the rate that a faster loader could bring: 0.5 is half as much again."""
        return max(0.0, self.step.per_s / self.together.per_s - 1)

    @property
    def starved(self) -> bool:
        """Whether the training waits for data: the headspace is at least 5 %."""
        return self.headspace >= _STARVED

    @property
    def cause(self) -> str:
        """Why the training is starved: `loader`, `interference`, or `none`."""
        if not self.starved:
            return "none"
        return "loader" if self.loader.per_s < self.step.per_s else "interference"

    def to_dict(self) -> dict[str, Any]:
        """Returns all values, as a `dict` that can be written as JSON."""
        return {
            **asdict(self),
            "headspace": self.headspace,
            "gain": self.gain,
            "starved": self.starved,
            "cause": self.cause,
            "slowdown": self.interference.slowdown,
            "causes": self.interference.causes,
        }

    def __str__(self) -> str:
        lines = [self._rates(), self._verdict(), *self._times(), *self._disturbance()]
        slow = [item for item in self.slowest if item["time_ms"] >= _SLOW * item["median_ms"]]
        if slow:
            lines.append(f"Samples that take {_SLOW} times the median, or longer:")
            lines += [f"  {_slow_in_words(item)}" for item in slow]
        return "\n".join(lines)

    def _rates(self) -> str:
        samples = ""
        if self.samples_per_batch is not None:
            samples = f" ({_figure(self.together.per_s * self.samples_per_batch)} samples/s)"
        return (
            f"The training runs at {_figure(self.together.per_s)} batches/s{samples}. The step alone reaches "
            f"{_figure(self.step.per_s)} batches/s, the loader alone {_figure(self.loader.per_s)}."
        )

    def _verdict(self) -> str:
        if self.cause == "none":
            return (
                f"The training is not starved: the fastest loader would gain {_percent(self.gain)}, so make the step "
                "faster."
            )
        gain = f"raise the rate by up to {_percent(self.gain)}"
        if self.gain >= 1:
            gain = f"make it up to {_figure(1 + self.gain)} times as fast"
        starved = (
            f"The training is starved: a faster loader could {gain} (headspace: the training waits for "
            f"{_percent(self.headspace)} of the time)."
        )
        if self.cause == "interference":
            return f"{starved} The loader alone is faster than the step: both compete for the same resource."
        limit = self._loader_limit()
        return f"{starved} For the loader alone: {limit}" if limit else starved

    def _loader_limit(self) -> str:
        """The diagnosis, without more threads if they would wait for the GIL."""
        helps = self.statistics["bottleneck"]["helps"] if self.statistics else []
        if not self._holds_gil() or not helps or helps[0]["change"]["setting"] != "threads":
            return self.diagnosis
        return self.diagnosis.partition(". ")[0].rstrip(".") + "."

    def _holds_gil(self) -> bool:
        """Whether the GIL is busy, although the loader has not found it by the waits of its threads."""
        return self.interference.gil_of_loader >= _GIL_BUSY and "GIL" not in self.diagnosis

    def _in_processes(self) -> str:
        """The argument that moves Python code to processes; empty if there is none."""
        bottleneck = self.statistics["bottleneck"] if self.statistics else {"helps": [], "does_not_help": []}
        effects = bottleneck["helps"] + bottleneck["does_not_help"]
        settings = [effect["setting"] for effect in effects if effect["change"]["setting"] == "without-gil"]
        return f" ({settings[0]})" if settings else ""

    def _times(self) -> list[str]:
        most = max((stage.ms_per_sample for stage in self.stages), default=0.0)
        stages = [stage for stage in self.stages if stage.ms_per_sample > 0.01 * most]
        if not stages:
            return []
        parts = [f"{stage.name} {stage._verb} {_figure(stage.ms_per_sample)} ms" for stage in stages]
        return [f"Per sample, {' and '.join([', '.join(parts[:-1])] * (len(parts) > 1) + parts[-1:])}."]

    def _disturbance(self) -> list[str]:
        lines, it = [], self.interference
        if self._holds_gil():
            lines.append(
                f"Python code of the loader holds the GIL for {_percent(it.gil_of_loader)} of the time, so that more "
                f"threads do not help: run it in processes{self._in_processes()}, or use fields and stages of Rust."
            )
        if it.slowdown >= _DISTURBED:
            names = {
                "memory": "memory bandwidth and caches",
                "gil": "waiting for the GIL",
                "cpu": "waiting for a CPU",
            }
            causes = [
                f"{_figure(ms)} ms {names[cause]}"
                for cause, ms in it.causes.items()
                if ms >= 0.2 * (it.step_ms_together - it.step_ms)
            ]
            lines.append(
                f"While the loader runs, a step takes {_percent(it.slowdown)} longer: {_figure(it.step_ms_together)} "
                f"instead of {_figure(it.step_ms)} ms ({', '.join(causes)})."
            )
        more = it.loader_cpu_ms_together - it.loader_cpu_ms
        if more > 2 * _DISTURBED * max(it.loader_cpu_ms, 1e3 / self.together.per_s):
            lines.append(
                f"While the step runs, the loader uses {_figure(it.loader_cpu_ms_together)} instead of "
                f"{_figure(it.loader_cpu_ms)} ms of CPU time per batch: memory bandwidth and caches."
            )
        return lines


def profile(
    loader: Iterable[T],
    step: Callable[[T], object],
    *,
    max_seconds: SupportsFloat = 30.0,
    progress: bool | None = None,
) -> TrainingProfile:
    """Measures whether a training waits for data, why, and how much a faster loader would gain.

    Runs the loader without a step, the step on one cached batch, and both together. Each run ends early when its rate
    is stable. The model is trained meanwhile, so pass a copy, or load its state again.

    Args:
        loader: A loader, a pipeline, or any other iterable of batches. Loaders of `spdl_rs` keep their epoch and their
            position; other objects are iterated, from the beginning if an epoch ends. Statistics of stages and samples
            need `loader.stats()`.
        step: A function that is called with a batch: the training step. If the step uses CUDA by PyTorch, its work
            is synchronised at the end of each round of steps.
        max_seconds: The time limit of all runs. A batch or a step that takes longer is not interrupted.
        progress: Whether to write a line to standard error before each run. `None`: if it is a terminal.

    Raises:
        ValueError: The loader has fewer than 4 batches, or `max_seconds` is not positive.
        Exception: The loader or the step raises it.

    >>> import time, spdl_rs
    >>> class SlowLoader:
    ...     def __iter__(self):
    ...         for number in range(20):
    ...             time.sleep(0.01)
    ...             yield number
    >>> report = spdl_rs.profile(SlowLoader(), lambda batch: time.sleep(0.002), max_seconds=1)
    >>> report.starved, report.cause
    (True, 'loader')
    """
    log_api_usage_once("spdl_rs.profile")
    check.function("step", step)
    limit = check.seconds("max_seconds", max_seconds)
    if not 0 < limit < math.inf:
        raise ValueError(f"max_seconds must be positive and finite, not {limit}")
    show = _Progress(sys.stderr.isatty() if progress is None else progress)
    with _Batches(loader) as batches:
        show(f"the loader without a step, up to {_LOADER * limit:.0f} s")
        cached = batches.take()
        for _ in range(_WARM_UP - 1):
            batches.take()
        loading = _measure(batches.take, _LOADER * limit, ends=batches)
        statistics, samples = batches.statistics(), batches.samples_per_batch()

        show(f"the step on a cached batch, up to {_STEP * limit:.0f} s")
        timed = _Timed(step)
        for _ in range(_WARM_UP):
            step(cached)
        stepping = _measure(lambda: timed(cached), _STEP * limit)
        alone = timed.totals()

        show(f"both together, up to {_TOGETHER * limit:.0f} s")
        batches.restart()
        timed = _Timed(step)
        for _ in range(_WARM_UP):
            step(batches.take())
        training = _measure(lambda: timed(batches.take()), _TOGETHER * limit, ends=batches)
        together = timed.totals()
    helpers = stepping.other_cpu_s / stepping.count
    return TrainingProfile(
        step=stepping.rate,
        loader=loading.rate,
        together=training.rate,
        samples_per_batch=samples,
        stages=[] if statistics is None else _stage_times(statistics, samples or 1.0, loading.gil),
        slowest=[] if statistics is None else statistics["slowest"],
        diagnosis="" if statistics is None else statistics["diagnosis"],
        statistics=statistics,
        interference=Interference(
            step_ms=alone[0],
            step_ms_together=together[0],
            step_cpu_ms=alone[1],
            step_cpu_ms_together=together[1],
            loader_cpu_ms=1e3 * loading.other_cpu_s / loading.count,
            loader_cpu_ms_together=1e3
            * max(0.0, training.other_cpu_s / training.count - helpers),
            gil_of_loader=loading.gil,
            gil_of_step=stepping.gil,
        ),
    )


class _Batches(Generic[T]):
    """The batches of a loader, over several epochs."""

    def __init__(self, loader: Iterable[T]) -> None:
        from ._batch_loader import BatchLoader

        # The copy has its own epoch and position.
        self._loader = copy.copy(loader) if isinstance(loader, BatchLoader) else loader
        self._iterator: Iterator[T] = iter(self._loader)
        self._is_once = self._iterator is self._loader or isinstance(loader, _pipeline_class())
        self._finished: Statistics | None = None
        self._sizes: list[int] = []
        self.ended = False

    def __enter__(self) -> _Batches[T]:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_once:
            _close(self._iterator)

    def take(self) -> T:
        """Returns the next batch, if necessary of a further epoch."""
        for batch in self._iterator:
            break
        else:
            self._finish()
            batch = self._of_next_epoch()
        self._sizes.append(_samples_of(batch))
        return batch

    def _of_next_epoch(self) -> T:
        with warnings.catch_warnings():
            # A pipeline that has ended warns that it has no items.
            warnings.simplefilter("ignore")
            self._iterator = iter(self._loader)
            for batch in self._iterator:
                return batch
        self.ended = True
        raise _NoBatchError(
            f"the loader has too few batches for all runs: it ended after {len(self._sizes)}; pass a loader with more "
            "batches, or one that can be iterated again"
        )

    def restart(self) -> None:
        """Starts an epoch for the next run, if the loader can be iterated again."""
        self.ended = False
        if not self._is_once:
            _close(self._iterator)
            self._iterator = iter(self._loader)

    def statistics(self) -> Statistics | None:
        """The statistics of the longest epoch."""
        self._finish()
        return self._finished

    def samples_per_batch(self) -> float | None:
        known = [size for size in self._sizes if size > 0]
        return sum(known) / len(known) if known else None

    def _finish(self) -> None:
        read = getattr(self._iterator, "stats", None) or getattr(self._loader, "stats", None)
        if callable(read):
            new, old = read(), self._finished
            if isinstance(new, dict) and "consumer" in new:
                if old is None or new["consumer"]["items"] >= old["consumer"]["items"]:
                    self._finished = cast("Statistics", new)


class _NoBatchError(ValueError):
    """The loader has ended."""


class _Timed(Generic[T]):
    """Calls a step, and adds up its time and the CPU time of its thread."""

    def __init__(self, step: Callable[[T], object]) -> None:
        self._step, self._count, self._s, self._cpu_s = step, 0, 0.0, 0.0

    def __call__(self, batch: T) -> None:
        began, cpu = time.perf_counter(), time.thread_time()
        self._step(batch)
        self._cpu_s += time.thread_time() - cpu
        self._s += time.perf_counter() - began
        self._count += 1

    def totals(self) -> tuple[float, float]:
        """The mean time and the mean CPU time of a call, in milliseconds."""
        count = max(self._count, 1)
        return 1e3 * self._s / count, 1e3 * self._cpu_s / count


@dataclass
class _Run:
    """What one run measured."""

    rate: Rate
    count: int
    other_cpu_s: float
    gil: float


def _measure(
    work: Callable[[], object], limit: float, *, ends: _Batches[Any] | None = None
) -> _Run:
    """Repeats `work` in rounds, until their rate is stable, or the time is over, or the batches end."""
    synchronize = _cuda_synchronize()
    round_s = max(_MIN_ROUND_S, limit / _ROUNDS)
    rounds: list[float] = []
    counts = 0
    synchronize()
    cpu, own = time.process_time(), time.thread_time()
    with _GilProbe() as gil:
        began = time.perf_counter()
        while time.perf_counter() - began < limit and not _is_stable(rounds):
            start, count = time.perf_counter(), 0
            try:
                while count == 0 or time.perf_counter() - start < round_s:
                    work()
                    count += 1
            except _NoBatchError:
                if ends is None or counts + count == 0:
                    raise
            if count:
                synchronize()
                rounds.append(count / (time.perf_counter() - start))
                counts += count
            if ends is not None and ends.ended:
                break
        took = time.perf_counter() - began
    other = time.process_time() - cpu - (time.thread_time() - own)
    return _Run(
        Rate(counts / took, tuple(rounds), took), counts, max(0.0, other), gil.share()
    )


def _is_stable(rounds: list[float]) -> bool:
    if len(rounds) < _ENOUGH_ROUNDS:
        return False
    middle = median(rounds)
    deviation = 1.4826 * median(abs(rate - middle) for rate in rounds)
    return 1.2533 * deviation / len(rounds) ** 0.5 < _PRECISE * middle


class _GilProbe:
    """Estimates the share of the time in which threads hold the GIL, by requests for it."""

    def __init__(self) -> None:
        self._requests = self._waited = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._probe, name="spdl-gil-probe", daemon=True)

    def __enter__(self) -> _GilProbe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _probe(self) -> None:
        while not self._stop.is_set():
            self._waited += _spdl_rs.gil_wait(_GIL_INTERVAL_S) > _GIL_WAIT_S
            self._requests += 1

    def share(self) -> float:
        return self._waited / self._requests if self._requests else 0.0


class _Progress:
    """Writes a line before each run."""

    def __init__(self, shows: bool) -> None:
        self._shows = shows

    def __call__(self, what: str) -> None:
        if self._shows:
            print(f"spdl profile: {what}", file=sys.stderr, flush=True)


def _stage_times(statistics: Statistics, samples_per_batch: float, gil_share: float) -> list[StageTime]:
    from .pipeline._failures.stage_names import plain

    stages = [stage for stage in statistics["stages"] if stage["items"] > 0]
    # The items of a stage are samples or batches. Stages near the source are ahead by full queues.
    batches = statistics["consumer"]["items"]
    per_item = [
        samples_per_batch if stage["items"] < batches * samples_per_batch**0.5 else 1.0 for stage in stages
    ]
    for_gil = [gil_share >= _GIL_BUSY and _may_wait_for_gil(stage) for stage in stages]
    return [
        StageTime(
            name=plain(stage["name"]),
            waits=_waits(stage) and not gil,
            waits_for_gil=gil,
            ms_per_sample=1e3 * stage["busy_s"] / (stage["items"] * samples),
        )
        for stage, samples, gil in zip(stages, per_item, for_gil)
    ]


def _waits(stage: StageStatistics) -> bool:
    share = stage["cpu_share"]
    return stage["kind"] in ("source", "async") or (share is not None and share < _COMPUTES)


def _may_wait_for_gil(stage: StageStatistics) -> bool:
    return stage["holds_gil"] and stage["kind"] not in ("source", "async") and _waits(stage)


def _slow_in_words(item: SlowItem) -> str:
    from .pipeline._failures.stage_names import plain

    name = item["key"] if item["key"] is not None else f"epoch {item['epoch']}, index {item['index']}"
    text = f"{name}: {_figure(item['time_ms'])} ms in {plain(item['stage'])} (median {_figure(item['median_ms'])} ms)"
    if item["bytes"] is not None and item["mean_bytes"] is not None:
        text += f", {item['bytes']:,} bytes (mean {item['mean_bytes']:,})"
    causes = {
        "size": "its size",
        "latency": "it waited, for example for a store or the GIL",
        "cpu": "other programs or threads used the CPUs",
        "work": "its content or format",
    }
    return f"{text}: {causes.get(item['cause'], item['cause'])}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _figure(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _samples_of(batch: Any) -> int:
    """The number of samples of a batch, by its first value; 0 if unknown."""
    if isinstance(batch, Mapping):
        batch = next(iter(batch.values()), None)
    elif isinstance(batch, tuple) or (isinstance(batch, list) and batch and hasattr(batch[0], "shape")):
        batch = batch[0] if batch else None
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) > 0 else 0
    if isinstance(batch, Sized) and not isinstance(batch, str | bytes):
        return len(batch)
    return 0


def _cuda_synchronize() -> Callable[[], object]:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        synchronize: Callable[[], object] = torch.cuda.synchronize
        return synchronize
    return lambda: None


def _close(iterator: object) -> None:
    close = getattr(iterator, "close", None)
    if callable(close):
        close()


def _pipeline_class() -> type[Any]:
    module = sys.modules.get("spdl_rs.pipeline._run.pipeline")
    return type(None) if module is None else module.Pipeline
