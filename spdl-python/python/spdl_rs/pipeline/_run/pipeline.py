"""`Pipeline`: start, iteration, stop."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import os
import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, NoReturn, SupportsIndex, TypeVar, cast

from ... import _loader_state, _notebook_page, _spdl_rs
from ..._arguments import Path
from ..._arguments import timeout as checked_timeout
from ..._errors import UnsupportedError
from ..._locks import ForkSafeLock
from ..._statistics import Dropped, Statistics
from ...io import _repeated_draws as repeated_draws
from .._failures.dropped import has_epochs, warn_of_dropped, warn_of_epoch
from .._failures.failure import PipelineFailure
from .._failures.stage_names import in_plain_words
from .._processes.exit import PipelineThread, end_with_process, start_all, wait_at_exit
from .._processes.exit import has_begun as process_ends
from ..defs._configs import PipelineConfig, has_merge_op, is_continuous
from .assembly import Assembly
from .control import Control
from .instrumentation import Instrumentation
from .items import Items
from .options import BuildOptions
from .position import NO_STATE, Positions

if TYPE_CHECKING:
    from .supervised_run import SupervisedRun

T = TypeVar("T")

_END_OF_DATA = "the pipeline, or its epoch, has no more items"
_numbers = itertools.count()


class Pipeline(Generic[T]):
    """Runs stages concurrently and delivers their results, from a source to the consumer.

    ```text
    source ──► queue ──► stage ──► queue ──► … ──► sink ──► your loop, or get_item
    ```

    Created by `PipelineBuilder.build` and `build_pipeline`. The pipeline starts when `start` is called or the
    first item is requested. Iteration delivers all items; if the source is continuous, the items of one epoch.
    Any thread may request items, and each item is delivered to one thread. Leaving a loop does not stop the
    pipeline: the next loop resumes. Queues are bounded, so a slow consumer causes backpressure.

    A pipeline runs once. If the source is not continuous, a finished pipeline has no more items, and a loop
    over it issues a `UserWarning`: build another pipeline, or use `add_source(..., continuous=True)`.

    A pipeline ends at the end of its data, by `stop`, by Ctrl-C during a wait, and when the last reference is
    dropped. At exit, the process waits at most 0.6 s for running functions. Then it logs a warning that names
    these functions, raises an exception in those that run Python code, and ends 0.2 s later. To wait longer, stop
    the pipeline before the program ends.

    A pipeline belongs to the process that started it. A forked child process gets a `ForkedProcessError`. If a
    function of the pipeline forks the process and returns in the child, the child ends with that error.

    If a function raises, its item is dropped and logged. The number of failures is unlimited by default, and
    `max_failures` of `build` limits it. When a pipeline that dropped items ends without a `PipelineFailure`, it
    logs one warning with the number of dropped items by stage and type of the exception, and examples. If the source
    is continuous, it logs one at the end of each epoch that dropped items. A failure that ends the pipeline is raised
    as `PipelineFailure`, after the items that were finished before.

    `state_dict` returns a checkpoint state, from which another run resumes within an epoch. A pipeline
    cannot be pickled; its configuration can be pickled if its functions can be pickled.

    `print(pipeline)` shows the stages; `stats` and `diagnose` report statistics.

    >>> from spdl_rs.pipeline import PipelineBuilder
    >>> builder = PipelineBuilder().add_source("ab", continuous=True).add_sink()
    >>> pipeline = builder.build(num_threads=1)
    >>> with pipeline.auto_stop():
    ...     for epoch in range(2):
    ...         print(list(pipeline))
    ['a', 'b']
    ['a', 'b']
    """

    def __init__(
        self,
        config: PipelineConfig[T],
        options: BuildOptions,
    ) -> None:
        self._config = config
        self._number = next(_numbers)
        self._instrumentation = Instrumentation(options, has_merge_op(config))
        self._positions = Positions(config, options.epoch or 0)
        self._is_continuous = is_continuous(config)
        # The number of the epoch that the consumer receives.
        self._epoch = options.epoch or 0
        self._assemble = functools.partial(
            Assembly, config, self._number, self._instrumentation, self._positions
        )
        # Invalid combinations of options raise exceptions here, not only when the pipeline starts.
        self._called = self._assemble().called
        self._starting = ForkSafeLock()
        self._run: _spdl_rs.PipelineRun | SupervisedRun | None = None
        self._threads: list[threading.Thread] = []
        self._assembly: Assembly | None = None
        self._late_failure: Callable[[], BaseException | None] | None = None

    def start(self, *, timeout: float | None = None, **kwargs: Any) -> None:
        """Starts the pipeline.

        Args:
            timeout: Ignored: starting does not wait.

        Raises:
            RuntimeError: The pipeline was already started or stopped.
        """
        checked_timeout(timeout)
        if kwargs:
            warnings.warn(
                f"unknown arguments are ignored: {', '.join(kwargs)}", UserWarning, stacklevel=2
            )
        with self._starting.held():
            if self._run is not None:
                raise RuntimeError("the pipeline was already started; build another one")
            self._start()

    def stop(self, *, timeout: float | None = None) -> None:
        """Stops the pipeline and waits for running functions. Unfinished items are dropped.

        Has no effect before the start, or after the pipeline has stopped. A call after `TimeoutError` waits
        again.

        Args:
            timeout: The longest wait in seconds. Default: no limit.

        Raises:
            TimeoutError: Functions are still running. Their threads end when the functions return.
            PipelineFailure: The pipeline has failed, and the failure was not raised yet.
        """
        timeout = checked_timeout(timeout)
        run = self._run
        if run is None:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        halt(self)
        ended = run.stop(timeout)
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            ended = ended and not thread.is_alive()
        if not ended:
            raise TimeoutError(f"functions of the pipeline are still running after {timeout} s")
        failure = run.take_failure()
        if failure is not None:
            raise failure
        self._raise_late_failure()

    @contextlib.contextmanager
    def auto_stop(self, *, timeout: float | None = None) -> Iterator[None]:
        """Starts the pipeline, and stops it when the `with` block is left.

        If Ctrl-C or `sys.exit` ends the block, this method does not wait for running functions.

        Args:
            timeout: See `stop`.

        Raises:
            RuntimeError: The pipeline was already started.
            TimeoutError, PipelineFailure: See `stop`.
        """
        timeout = checked_timeout(timeout)
        self.start()
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            with contextlib.suppress(TimeoutError, PipelineFailure):
                self.stop(timeout=0)
            raise
        except BaseException:
            self.stop(timeout=timeout)
            raise
        else:
            self.stop(timeout=timeout)

    def get_item(self, *, timeout: float | None = None) -> T:
        """Waits for the next item. Starts the pipeline if necessary.

        Args:
            timeout: The longest wait in seconds. Default: no limit.

        Raises:
            EOFError: The pipeline has ended or was stopped, or an epoch of a continuous pipeline has ended.
                After the end of an epoch, the next call returns the first item of the next epoch.
            TimeoutError: No item was ready in time.
            ValueError: `timeout` is negative.
            PipelineFailure: The pipeline has failed. Items that were finished before have been delivered.
        """
        item = self._started().next(_not_negative(checked_timeout(timeout)))
        if item is None:
            self._end_epoch()
            self._raise_late_failure()
            raise EOFError(_END_OF_DATA)
        return cast(T, item[0])

    def get_item_nowait(self) -> T:
        """Returns the next item if it is ready. Starts the pipeline if necessary.

        Raises:
            queue.Empty: No item is ready.
            EOFError, PipelineFailure: See `get_item`.
        """
        try:
            return self.get_item(timeout=0)
        except TimeoutError:
            raise queue.Empty from None

    def get_iterator(self, *, timeout: float | None = None) -> Iterator[T]:
        """Iterates all items, or the items of one epoch if the source is continuous.

        Args:
            timeout: The longest wait for an item in seconds. Default: no limit.

        Raises:
            TimeoutError, PipelineFailure: During the iteration; see `get_item`.
            ValueError: `timeout` is negative.

        Warns:
            UserWarning: The pipeline has already ended, so there are no items.
        """
        timeout = _not_negative(checked_timeout(timeout))
        run = self._started()
        had_ended = run.ended and not process_ends()
        items: Iterator[T]
        if isinstance(run, _spdl_rs.PipelineRun):
            at_end = self._end_epoch if self._is_continuous else None
            items = _spdl_rs.ItemIterator(run, timeout, at_end)
        else:
            items = Items(run, timeout, self._end_epoch)
        if self._late_failure is not None:
            items = self._then_late_failure(items)
        return self._then_warning(items) if had_ended else items

    def __iter__(self) -> Iterator[T]:
        """Iterates as `get_iterator` does, without a timeout."""
        return self.get_iterator()

    def stats(self) -> Statistics:
        """Returns statistics so far, also after the end: items, failures and times of each stage.

        >>> from spdl_rs.pipeline import PipelineBuilder
        >>> builder = PipelineBuilder().add_source(range(5)).pipe(str).aggregate(2).add_sink()
        >>> pipeline = builder.build(num_threads=1)
        >>> list(pipeline)
        [['0', '1'], ['2', '3'], ['4']]
        >>> [(stage["name"].split(":")[-1], stage["items"]) for stage in pipeline.stats()["stages"]]
        [('src', 5), ('str', 5), ('aggregate', 5)]
        """
        monitor = _spdl_rs.Monitor() if self._run is None else self._run.monitor
        return in_plain_words(monitor.statistics())

    def take_dropped(self) -> list[Dropped]:
        """Returns the items that failures dropped before the item that was delivered last.

        These are the items whose positions in the source precede the last item of an aggregate, without those of
        earlier calls. So calls after each item return each dropped item once. After the end, or the end of an epoch, a
        call returns the remaining dropped items. If the stages keep the order, the lists do not depend on timing. At
        most 100,000 items are kept for the next call; `stats()["dropped_total"]` counts all.

        Items that stages in other processes (`to`) dropped are not returned.

        Raises:
            RuntimeError: The pipeline consists of several parts, because of a custom queue or merge function.

        >>> from spdl_rs.pipeline import PipelineBuilder
        >>> builder = PipelineBuilder().add_source(["1", "x", "3", "4"]).pipe(int).aggregate(2).add_sink()
        >>> pipeline = builder.build(num_threads=1)
        >>> for batch in pipeline:
        ...     print(batch, [one["index"] for one in pipeline.take_dropped()])
        [1, 3] [1]
        [4] []
        """
        if self._run is None or self._assembly is None:
            return []
        if self._assembly.inner_runs:
            raise RuntimeError("a pipeline with custom queues or merge functions lists dropped items in stats() only")
        return self._assembly.run.take_dropped()

    def diagnose(self) -> str:
        """Describes what limits the throughput, and how much a change would gain.

        The text is `stats()["diagnosis"]`, at most three sentences; `stats()["bottleneck"]` contains the same as data.

        >>> from spdl_rs.pipeline import PipelineBuilder
        >>> pipeline = PipelineBuilder().add_source(range(5)).add_sink().build(num_threads=1)
        >>> pipeline.diagnose()
        'The pipeline has not run long enough to find the bottleneck.'
        """
        return self.stats()["diagnosis"]

    def state_dict(self) -> dict[str, Any]:
        """Returns the checkpoint state after the items delivered so far, also after the end.

        A pipeline with the same source and stages that loads the state delivers exactly the remaining items: in the
        same order if the stages keep the order, and else each item once. Dropped items are not repeated. The state
        contains no items. Apart from the state of the source, it consists of values that JSON supports.

        Each source must be a sequence, such as a list or a range, a sampler of `spdl_rs.source`, or an object with
        `state_dict` and `load_state_dict`, which iterates the same items after `load_state_dict`. At the start
        of each epoch, the pipeline calls `state_dict` of such an object, and a resumed run skips its items of
        the epoch that are done. A custom `Aggregator` must return all items that it holds.

        A `Merge` or `Zip` has a position in each source. With `weights`, a resumed run repeats the draws of the epoch, so
        that the order continues if all stages keep it. Without, items are merged in the order of arrival. A resumed
        `Zip` makes the same tuples if the stages before it keep the order.

        Raises:
            UnsupportedError: The position in a source is unknown, stages run in other processes (`to`), or results pass
                through a custom queue or merge function. Or a stage splits lists of items whose order is not kept, such
                as those of a `Merge`, or the tuples of a `Zip`. Or a `Merge` with weights has pipelines that group,
                split, route, zip or merge items. Or an `Aggregator` has kept items.

        >>> from spdl_rs.pipeline import PipelineBuilder
        >>> builder = PipelineBuilder().add_source(range(7)).pipe(str).aggregate(2).add_sink()
        >>> first = builder.build(num_threads=1)
        >>> first.get_item(), first.get_item()
        (['0', '1'], ['2', '3'])
        >>> second = builder.build(num_threads=1)
        >>> second.load_state_dict(first.state_dict())
        >>> list(second)
        [['4', '5'], ['6']]
        >>> first.stop()
        """
        self._positions.check()
        assembly = self._assembly or self._assemble()
        if assembly.inner_runs:
            raise UnsupportedError(NO_STATE, kind="unsupported")
        state = _loader_state.to_dict("Pipeline", assembly.run.state())
        return {**state, "source": self._positions.state(state["epoch"])}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Makes the pipeline start at the position of a state. Call it before the pipeline starts.

        `num_threads`, concurrency and queue sizes may differ from the run that saved the state.

        Raises:
            UnsupportedError: See `state_dict`.
            TypeError: `state_dict` is not a `dict`.
            ValueError: The state is from a pipeline with another source or other stages, or is not a state.
            RuntimeError: The pipeline has started.
        """
        self._positions.check()
        engine_state = state_dict
        if isinstance(state_dict, Mapping):
            engine_state = {key: value for key, value in state_dict.items() if key != "source"}
        text = _loader_state.to_text("Pipeline", engine_state)
        with self._starting.held():
            if self._run is not None:
                raise RuntimeError("the pipeline was already started; build another one to resume")
            if self._assemble().inner_runs:
                raise UnsupportedError(NO_STATE, kind="unsupported")
            loaded = Positions(self._config, 0)
            loaded.resume(text)
            # Compares the state with the pipeline.
            Assembly(self._config, self._number, self._instrumentation, loaded)
            self._positions.load(text, state_dict["epoch"], state_dict.get("source"))
            self._epoch = state_dict["epoch"]
            repeated_draws.choose(self._number)

    def order_record(self) -> str:
        """Returns the order of the items delivered so far, as text for the argument `replay` of `build`.

        The text contains ranges of positions in the source. An aggregate counts as its items.

        Raises:
            RuntimeError: The pipeline was built without `record_order=True`.

        >>> from spdl_rs.pipeline import PipelineBuilder
        >>> builder = PipelineBuilder().add_source("abcdef").pipe(str.upper, concurrency=2).add_sink()
        >>> first = builder.build(num_threads=2, record_order=True)
        >>> items = list(first)
        >>> items == list(builder.build(num_threads=2, replay=first.order_record()))
        True
        """
        record = (self._assembly or self._assemble()).run.order_record()
        if record is None:
            raise RuntimeError("the order is not recorded; build the pipeline with record_order=True")
        return record

    def control(self) -> Control:
        """Returns an object that changes threads and concurrency. Starts the pipeline if necessary.

        Raises:
            RuntimeError: The pipeline consists of several parts, because of a custom queue or merge function.
        """
        self._started()
        if self._assembly is None or self._assembly.inner_runs:
            raise RuntimeError("a pipeline with custom queues or merge functions has no Control")
        return Control(self._assembly, self._threads, self._starting)

    def freeze(self, path: Path) -> None:
        """Writes the settings as a JSON file, which the argument `tune` of `build` reads.

        The file has the number of threads, the concurrency of the stages and the capacities of the queues: the
        present ones, or those at the end.

        Raises:
            RuntimeError: The pipeline was not started, or consists of several parts, because of a custom queue or merge
                function.
            OSError: The file cannot be written.

        >>> import tempfile
        >>> from spdl_rs.pipeline import PipelineBuilder
        >>> builder = PipelineBuilder().add_source(range(5)).pipe(str, concurrency=2).add_sink()
        >>> pipeline = builder.build(num_threads=2, tune=True)
        >>> items = list(pipeline)
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     pipeline.freeze(file.name)
        ...     sorted(builder.build(num_threads=1, tune=file.name))
        ['0', '1', '2', '3', '4']
        """
        if self._assembly is None or self._assembly.inner_runs:
            raise RuntimeError("the pipeline was not started, or has custom queues or merge functions")
        self._assembly.run.freeze(os.fsdecode(path))

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "a Pipeline cannot be pickled or copied, because it has threads and items in flight; pickle "
            "its configuration (PipelineBuilder.get_config()) and build it with build_pipeline, or use "
            "run_pipeline_in_subprocess"
        )

    def __repr__(self) -> str:
        return f"<Pipeline {self._number}: {self._state()}>"

    def __str__(self) -> str:
        called = ""
        if self._called:
            called = f"\nNot run in Rust because of hooks or queues: {', '.join(self._called)}"
        return f"Pipeline {self._number}, {self._state()}\n{self._config!r}{called}"

    def _repr_html_(self) -> str:
        rate = [] if self._run is None else _notebook_page.rates(*self._run.pace)
        return _notebook_page.page(
            repr(self), self.stats(), rate, items="items", count_name="items"
        )

    def _state(self) -> str:
        if self._run is None:
            return "not started"
        return "ended" if self._run.ended else "running"

    def _then_late_failure(self, items: Iterator[T]) -> Iterator[T]:
        yield from items
        self._raise_late_failure()

    def _then_warning(self, items: Iterator[T]) -> Iterator[T]:
        # If the pipeline ended with a failure, the iteration raises that failure instead.
        yield from items
        if is_continuous(self._config):
            why = ": the pipeline was stopped, or its source is empty or can be iterated only once"
        else:
            why = "; build another one, or add the source with continuous=True"
        warnings.warn(
            f"pipeline {self._number} has ended and has no items for another loop{why}",
            UserWarning,
            stacklevel=2,
        )

    def _raise_late_failure(self) -> None:
        failure = None if self._late_failure is None else self._late_failure()
        if failure is not None:
            raise failure

    def _end_epoch(self) -> None:
        """Logs a warning about dropped items if an epoch has ended. The end of the run logs a separate one."""
        if self._run is None or self._run.ended or not self._is_continuous:
            return
        with self._starting.held():
            epoch, self._epoch = self._epoch, self._epoch + 1
        warn_of_epoch(self._number, epoch)

    def _started(self) -> _spdl_rs.PipelineRun | SupervisedRun:
        run = self._run
        if run is not None:
            return run
        with self._starting.held():
            return self._start() if self._run is None else self._run

    def _start(self) -> _spdl_rs.PipelineRun | SupervisedRun:
        assembly = self._assemble()
        run = assembly.run
        end_with_process([run, *assembly.inner_runs])
        # The monitor does not keep the run alive.
        has_delivered = functools.partial(_has_delivered, run.monitor)
        run.on_end(functools.partial(warn_of_dropped, self._number, has_delivered))
        try:
            assembly.begin()
            whole: _spdl_rs.PipelineRun | SupervisedRun = run
            supervisor = self._instrumentation.supervisor
            if supervisor is not None:
                from .supervised_run import SupervisedRun

                whole = SupervisedRun(run, assembly.inner_runs, supervisor)
            threads: list[threading.Thread] = [
                PipelineThread(name, target) for name, target in assembly.threads
            ]
            wait_at_exit(threads, assembly.stages_of)
            # Signal handlers do not interrupt the start. The threads may inherit a copy of the caller's
            # context.
            context = contextvars.copy_context()
            _spdl_rs.uninterrupted(lambda: context.run(start_all, threads))
            if self._is_continuous:
                has_epochs(self._number, whole.monitor.statistics)
            run.start()
            # `_run` is set last, because other threads check it.
            self._threads, self._assembly, self._run = threads, assembly, whole
        except BaseException:
            run.stop(0)
            raise
        return whole


def _has_delivered(monitor: _spdl_rs.Monitor) -> bool:
    _, items = monitor.pace
    return any(items)


def _not_negative(timeout: float | None) -> float | None:
    if timeout is not None and timeout < 0:
        raise ValueError(f"timeout must be at least 0, not {timeout}")
    return timeout


def number_of(pipeline: Pipeline[Any]) -> int:
    """Returns the number of a pipeline, which is the first part of the names of its stages."""
    return pipeline._number


def show_as(pipeline: Pipeline[Any], config: PipelineConfig[Any]) -> None:
    """Makes the `repr` of a pipeline show `config` instead of its configuration."""
    pipeline._config = config


def check_at_end(pipeline: Pipeline[Any], late_failure: Callable[[], BaseException | None]) -> None:
    """Sets a function that is called at the end of all items and may return a failure."""
    pipeline._late_failure = late_failure


def halt(pipeline: Pipeline[Any]) -> None:
    """Makes a pipeline start no further calls. Does not wait for calls in progress."""
    if pipeline._run is not None:
        pipeline._run.halt()
    if pipeline._assembly is not None:
        for cancellable in pipeline._assembly.cancellables:
            cancellable.cancel()
