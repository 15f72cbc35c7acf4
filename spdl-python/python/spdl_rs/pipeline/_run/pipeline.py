"""A pipeline that can be run."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, NoReturn, SupportsIndex, TypeVar, cast

from ... import _notebook_page, _spdl_rs
from ..._arguments import timeout as checked_timeout
from ..._locks import ForkSafeLock
from ..._statistics import Statistics
from .._failures.dropped import warn_of_dropped
from .._failures.failure import PipelineFailure
from .._failures.stage_names import in_plain_words
from .._processes.exit import end_with_process, start_all, wait_at_exit
from .._processes.exit import has_begun as process_ends
from ..defs._configs import PipelineConfig, has_merge_op, is_continuous
from .assembly import Assembly
from .instrumentation import Instrumentation
from .options import BuildOptions

if TYPE_CHECKING:
    from .supervised_run import SupervisedRun

T = TypeVar("T")

_END_OF_DATA = "the pipeline, or its epoch, has no more items"
_numbers = itertools.count()


class Pipeline(Generic[T]):
    """Gives the items that a source and stages make, while these are at work on the next ones.

    ```text
    source ──► queue ──► stage ──► queue ──► … ──► sink ──► your loop, or get_item
    ```

    `PipelineBuilder.build` and `build_pipeline` make it. It starts with the first item that is
    asked for, or by `start`. Iterating gives all items, or, where the source is continuous, those
    of one epoch. Any thread may ask for items, and each item goes to one of them. Leaving a loop
    does not stop it: the next one goes on where that was left. Queues are bounded, so whoever does
    not ask for items holds everything up.

    It runs once. Where the source is not continuous, a pipeline that has ended gives nothing more,
    and a loop over it warns of that (`UserWarning`): build another one for another pass, or say
    `add_source(..., continuous=True)`.

    It ends with its data, by `stop`, by Ctrl-C while it is waited for, and when nobody holds it
    any more. When the process ends, functions that are under way are waited for, for 10 s at most;
    after 1 s a warning is logged that names them, and those that still compute then get an exception.

    Items whose function raises are dropped and logged, up to `max_failures`; what ends the pipeline
    is raised as `PipelineFailure`, behind the items that were finished before. It has no state:
    loaders have one, and sources that go on where they were left. It cannot be pickled; its
    configuration can, where its functions can.

    `print(pipeline)` shows its stages; `stats` and `diagnose` tell what they did.

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
        self._assemble = functools.partial(Assembly, config, self._number, self._instrumentation)
        # What cannot be put together is told now, not when it is started.
        self._called = self._assemble().called
        self._starting = ForkSafeLock()
        self._run: _spdl_rs.PipelineRun | SupervisedRun | None = None
        self._threads: list[threading.Thread] = []
        self._assembly: Assembly | None = None
        self._late_failure: Callable[[], BaseException | None] | None = None

    def start(self, *, timeout: float | None = None, **kwargs: Any) -> None:
        """Starts the work.

        Args:
            timeout: Changes nothing: starting does not wait.

        Raises:
            RuntimeError: It was started already, or stopped.
        """
        checked_timeout(timeout)
        if kwargs:
            warnings.warn(
                f"these arguments have no meaning: {', '.join(kwargs)}", UserWarning, stacklevel=2
            )
        with self._starting.held():
            if self._run is not None:
                raise RuntimeError("the pipeline was already started; build another one")
            self._start()

    def stop(self, *, timeout: float | None = None) -> None:
        """Ends the work, and waits for the functions that are under way. Items are dropped.

        Does nothing before the start, or the second time.

        Args:
            timeout: How many seconds to wait. Default: as long as it takes.

        Raises:
            TimeoutError: Some functions are still under way. Their threads end with them.
            PipelineFailure: The pipeline has failed, and nobody has been told yet.
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
            raise TimeoutError(f"some functions are still under way after {timeout} s")
        failure = run.take_failure()
        if failure is not None:
            raise failure
        self._raise_late_failure()

    @contextlib.contextmanager
    def auto_stop(self, *, timeout: float | None = None) -> Iterator[None]:
        """Starts the work, and ends it when the `with` block is left. Left by Ctrl-C, it does not
        wait for the functions that are under way.

        Args:
            timeout: As for `stop`.

        Raises:
            RuntimeError: It was started already.
            TimeoutError, PipelineFailure: As for `stop`.
        """
        timeout = checked_timeout(timeout)
        self.start()
        try:
            yield
        except KeyboardInterrupt:
            with contextlib.suppress(TimeoutError, PipelineFailure):
                self.stop(timeout=0)
            raise
        except BaseException:
            self.stop(timeout=timeout)
            raise
        else:
            self.stop(timeout=timeout)

    def get_item(self, *, timeout: float | None = None) -> T:
        """Waits for the next item. Starts the work where that has not been done.

        Args:
            timeout: How many seconds to wait. Default: as long as it takes.

        Raises:
            EOFError: There is none: the pipeline has ended or was stopped, or an epoch of a
                continuous one has ended. After the end of an epoch, the next call gives the first
                item of the next one.
            TimeoutError: None was ready in time.
            ValueError: `timeout` is negative.
            PipelineFailure: The pipeline has failed; all that was finished before was given.
        """
        item = self._started().next(_not_negative(checked_timeout(timeout)))
        if item is None:
            self._raise_late_failure()
            raise EOFError(_END_OF_DATA)
        return cast(T, item[0])

    def get_item_nowait(self) -> T:
        """The next item, where one is ready. Starts the work where that has not been done.

        Raises:
            queue.Empty: None is ready.
            EOFError, PipelineFailure: As for `get_item`.
        """
        try:
            return self.get_item(timeout=0)
        except TimeoutError:
            raise queue.Empty from None

    def get_iterator(self, *, timeout: float | None = None) -> Iterator[T]:
        """Iterates all items, or those of one epoch of a continuous source.

        Args:
            timeout: How many seconds to wait for each.

        Raises:
            TimeoutError, PipelineFailure: As for `get_item`, while it is iterated.
            ValueError: `timeout` is negative.

        Warns:
            UserWarning: It had ended before: there are no items.
        """
        timeout = _not_negative(checked_timeout(timeout))
        run = self._started()
        had_ended = run.ended and not process_ends()
        items: Iterator[T]
        if isinstance(run, _spdl_rs.PipelineRun):
            items = _spdl_rs.ItemIterator(run, timeout)
        else:
            items = run.items(timeout)
        if self._late_failure is not None:
            items = self._then_late_failure(items)
        return self._then_warning(items) if had_ended else items

    def __iter__(self) -> Iterator[T]:
        """The same, without a timeout."""
        return self.get_iterator()

    def stats(self) -> Statistics:
        """What was done so far, also after the end: items, failures and times of each stage, and
        what limits the whole.

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

    def diagnose(self) -> str:
        """What limits the rate, in a sentence or two, and what to do about it.

        It is `stats()["diagnosis"]`.

        >>> from spdl_rs.pipeline import PipelineBuilder
        >>> pipeline = PipelineBuilder().add_source(range(5)).add_sink().build(num_threads=1)
        >>> pipeline.diagnose()
        'Too little has run to say what limits.'
        """
        return self.stats()["diagnosis"]

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "a Pipeline cannot be pickled or copied, as it has threads and items under way; pickle the "
            "configuration (PipelineBuilder.get_config()) and build it there with build_pipeline, or "
            "use run_pipeline_in_subprocess"
        )

    def __repr__(self) -> str:
        return f"<Pipeline {self._number}: {self._state()}>"

    def __str__(self) -> str:
        called = ""
        if self._called:
            called = f"\nNot in Rust, for hooks or queues of yours: {', '.join(self._called)}"
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
        # What ended with a failure says so itself.
        yield from items
        if is_continuous(self._config):
            why = ": it was stopped, or its source can be iterated only once, or is empty"
        else:
            why = "; build another one, or add the source with continuous=True"
        warnings.warn(
            f"pipeline {self._number} has ended, and has no items for another loop{why}",
            UserWarning,
            stacklevel=2,
        )

    def _raise_late_failure(self) -> None:
        failure = None if self._late_failure is None else self._late_failure()
        if failure is not None:
            raise failure

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
        run.on_end(functools.partial(warn_of_dropped, self._number))
        try:
            assembly.begin()
            whole: _spdl_rs.PipelineRun | SupervisedRun = run
            companions = self._instrumentation.companions
            if companions is not None:
                from .supervised_run import SupervisedRun

                whole = SupervisedRun(run, assembly.inner_runs, companions)
            threads = [
                threading.Thread(target=target, name=name, daemon=True)
                for name, target in assembly.threads
            ]
            wait_at_exit(threads, assembly.stages_of)
            # In one step, and with the variables of the caller's context, where threads inherit them.
            context = contextvars.copy_context()
            _spdl_rs.uninterrupted(lambda: context.run(start_all, threads))
            run.start()
            # The run last: other threads take what they find there.
            self._threads, self._assembly, self._run = threads, assembly, whole
        except BaseException:
            run.stop(0)
            raise
        return whole


def _not_negative(timeout: float | None) -> float | None:
    if timeout is not None and timeout < 0:
        raise ValueError(f"timeout must not be negative, and is {timeout}")
    return timeout


def number_of(pipeline: Pipeline[Any]) -> int:
    """The number with which the names of a pipeline's stages begin."""
    return pipeline._number


def show_as(pipeline: Pipeline[Any], config: PipelineConfig[Any]) -> None:
    """Shows another configuration than that of which the pipeline was made."""
    pipeline._config = config


def check_at_end(pipeline: Pipeline[Any], late_failure: Callable[[], BaseException | None]) -> None:
    """Lets a function say at the end of all items whether the pipeline has failed after all."""
    pipeline._late_failure = late_failure


def halt(pipeline: Pipeline[Any]) -> None:
    """Lets a pipeline begin nothing more, and does not wait for what is under way."""
    if pipeline._run is not None:
        pipeline._run.halt()
    if pipeline._assembly is not None:
        for cancellable in pipeline._assembly.cancellables:
            cancellable.cancel()
