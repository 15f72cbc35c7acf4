"""Background tasks, default settings of pipelines, and logging of failures."""

import asyncio
import itertools
import logging
import os
import subprocess
import sys
import threading

import pytest
from pipelines import (
    assert_no_threads,
    build,
    identity,
    identity_async,
    refuse,
    run,
    source,
    twice,
    twice_async,
)
from spdl_rs.pipeline import (
    AsyncQueue,
    BackgroundTask,
    PipelineFailure,
    StatsQueue,
    TaskHook,
    TaskStatsHook,
    build_pipeline,
    config,
    create_task,
)
from test_pipeline_hooks import Recorder


@pytest.fixture(autouse=True)
def defaults():
    yield
    config.set_default_hook_class()
    config.set_default_queue_class()
    config.set_default_background_tasks(None)
    config.set_default_build_callback(None)
    config.set_compact_log(None)


class Watch(BackgroundTask):
    events = []

    async def run(self):
        Watch.events.append(("begins", threading.current_thread().name))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            Watch.events.append("cancelled")
            raise


@pytest.mark.parametrize("stopped", [True, False])
def test_s08_background_tasks_run_as_long_as_the_pipeline(stopped):
    Watch.events.clear()
    pipeline = build(source([1, 2, 3]).pipe(identity), background_tasks=[Watch])
    assert Watch.events == []
    if stopped:
        pipeline.get_item(timeout=20)
        pipeline.stop()
    else:
        assert list(pipeline) == [1, 2, 3]
    assert Watch.events == [("begins", "spdl_event_loop_thread"), "cancelled"]
    assert_no_threads()


def test_s08_errors_of_background_tasks_are_logged_only(caplog):
    class Broken(BackgroundTask):
        async def run(self):
            raise LookupError("no more")

    def unmakeable():
        raise LookupError("not made")

    assert run(source([1, 2]), background_tasks=[Broken, unmakeable, BackgroundTask]) == [1, 2]
    for text in ("no more", "not made", "does not define run"):
        assert text in caplog.text


def test_s08_a_background_task_may_end_early():
    class Short(BackgroundTask):
        async def run(self):
            pass

    assert run(source([1, 2]), background_tasks=[Short]) == [1, 2]


# feature: S08
def test_s08_default_background_tasks_run_in_addition_to_those_of_the_pipeline():
    made = []

    def factory(name):
        def make():
            made.append(name)
            return Watch()

        return make

    default, own = factory("default"), factory("own")
    config.set_default_background_tasks([default])
    assert config.get_default_background_tasks() == [default]
    for tasks, expected in [(None, ["default"]), ([], ["default"]), ([own], ["default", "own"])]:
        made.clear()
        run(source([1]), background_tasks=tasks)
        assert made == expected
    config.set_default_background_tasks(None)
    made.clear()
    run(source([1]), background_tasks=[own])
    assert made == ["own"]


def test_s07_the_default_hook_class_is_used_for_each_stage():
    made = []

    class Own(TaskStatsHook):
        def __init__(self, info, interval=-1):
            super().__init__(info, interval)
            made.append((info.stage_name, interval))

    assert config.get_default_hook_class() is TaskStatsHook
    config.set_default_hook_class(Own)
    run(source([1]).pipe(identity, name="op"), report_stats_interval=7)
    assert made == [("op", 7)]
    run(source([1]).pipe(identity, name="op"), task_hook_factory=lambda info: [])
    assert len(made) == 1


def test_s07_without_a_default_hook_stages_are_not_logged(caplog):
    caplog.set_level(logging.INFO, "spdl_rs.pipeline")
    config.set_default_hook_class(None)
    run(source([1]).pipe(identity, name="op"))
    assert not any("tasks" in message for message in caplog.messages)
    assert any("sink" in message for message in caplog.messages)


def test_s07_the_default_queue_class_gets_the_interval():
    made = []

    class Own(StatsQueue):
        def __init__(self, info, *, buffer_size=1, interval=-1):
            super().__init__(info, buffer_size=buffer_size, interval=interval)
            made.append((info.stage_name, buffer_size, interval))

    class Plain(AsyncQueue):
        def __init__(self, info, *, buffer_size=1):
            super().__init__(info, buffer_size=buffer_size)
            made.append(info.stage_name)

    assert config.get_default_queue_class() is StatsQueue
    config.set_default_queue_class(Own)
    run(source([1]), report_stats_interval=7, buffer_size=4)
    config.set_default_queue_class(Plain)
    assert config.get_default_queue_class() is Plain
    run(source([1]), report_stats_interval=7)
    assert made == [("sink", 4, 7), "sink"]


def test_b15_the_build_callback_gets_each_configuration():
    given = []
    config.set_default_build_callback(given.append)
    assert config.get_default_build_callback() == given.append
    whole = source([1]).pipe(identity).add_sink().get_config()
    build_pipeline(whole, num_threads=1)
    assert given == [whole]

    def refuse_all(config):
        raise LookupError("not this one")

    config.set_default_build_callback(refuse_all)
    with pytest.raises(LookupError):
        build_pipeline(whole, num_threads=1)


def test_c10_a_failed_task_is_logged_with_its_name(caplog):
    async def main():
        async def broken():
            raise LookupError("no more")

        task = create_task(broken(), name="mine")
        assert task.get_name() == "mine"
        with pytest.raises(LookupError):
            await task
        assert await create_task(asyncio.sleep(0, 3)) == 3

    asyncio.run(main())
    (record,) = caplog.records
    assert record.getMessage() == "task mine failed" and "LookupError" in caplog.text


@pytest.mark.parametrize("log_cancelled", [True, False])
def test_c10_log_cancelled_logs_cancelled_tasks(log_cancelled, caplog):
    async def main():
        task = create_task(asyncio.sleep(100), name="mine", log_cancelled=log_cancelled)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == (
        ["task mine was cancelled"] if log_cancelled else []
    )


@pytest.mark.parametrize("suppress", [True, False])
def test_c10_suppress_repeated_logs_limits_the_log(suppress, caplog):
    async def broken():
        raise LookupError("no more")

    async def main():
        for _ in range(12):
            task = create_task(
                broken(),
                suppress_repeated_logs=suppress,
                suppression_threshold=3,
                suppression_warning_interval=4,
            )
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    levels = [record.levelname for record in caplog.records]
    # The 4th announces the suppression; the 7th and the 11th are reminders.
    assert levels == (["ERROR"] * 3 + ["WARNING"] * 3 if suppress else ["ERROR"] * 12)


@pytest.mark.parametrize(
    ("value", "variable", "compact"),
    [
        (True, None, True),
        (False, "1", False),
        (None, "1", True),
        (None, "yes", True),
        (None, "0", False),
        (None, None, False),
    ],
)
def test_t04_a_compact_log_has_one_line_per_failure(value, variable, compact, caplog, monkeypatch):
    monkeypatch.delenv("SPDL_PIPELINE_COMPACT_LOG", raising=False)
    if variable is not None:
        monkeypatch.setenv("SPDL_PIPELINE_COMPACT_LOG", variable)
    config.set_compact_log(value)
    run(source([1]).pipe(refuse))
    record, _summary = caplog.records
    assert "refuse failed on 1" in record.getMessage()
    assert (record.exc_info is None) == compact
    assert ("ValueError: no 1" in record.getMessage()) == compact
    assert ("pipelines.py:" in record.getMessage()) == compact


def test_t04_an_invalid_variable_causes_a_warning(caplog, monkeypatch):
    monkeypatch.setenv("SPDL_PIPELINE_COMPACT_LOG", "perhaps")
    run(source([1]).pipe(refuse))
    assert "perhaps" in caplog.text and "Traceback" in caplog.text


def test_b10_asyncio_is_imported_lazily():
    script = (
        "import sys, spdl_rs.pipeline as p\n"
        "from spdl_rs.pipeline import config, TaskHook, BackgroundTask\n"
        "b = p.PipelineBuilder().add_source([1]).pipe(str).add_sink()\n"
        "assert list(b.build(num_threads=1)) == ['1']\n"
        "assert 'asyncio' not in sys.modules\n"
        "p.StatsQueue\n"
        "assert 'asyncio' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env=dict(os.environ))


def test_s07_lazily_imported_classes_are_attributes():
    import spdl_rs.pipeline

    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        spdl_rs.pipeline.Nothing  # noqa: B018
    assert issubclass(StatsQueue, AsyncQueue) and issubclass(TaskStatsHook, TaskHook)


@pytest.mark.parametrize("error", [SystemExit("x"), asyncio.CancelledError("x")])
@pytest.mark.parametrize("by_factory", [True, False])
@pytest.mark.parametrize("op", [identity, identity_async])
def test_s08_base_exceptions_of_background_tasks_are_logged(op, by_factory, error, caplog):
    def refused():
        raise error

    class Refuse(BackgroundTask):
        async def run(self):
            refused()

    factory = refused if by_factory else Refuse
    assert run(source([1, 2, 3]).pipe(op), background_tasks=[factory]) == [1, 2, 3]
    assert f"background task {factory.__name__} failed" in caplog.text
    assert type(error).__name__ in caplog.text
    assert_no_threads()


def hooks(info):
    return [Recorder([])]


@pytest.mark.parametrize("op", [identity, identity_async, twice, twice_async])
@pytest.mark.parametrize("hook_factory", [None, hooks])
def test_s08_an_event_loop_that_cannot_start_fails_the_pipeline(hook_factory, op, monkeypatch):
    def refused():
        raise OSError("too many open files")

    monkeypatch.setattr(asyncio, "new_event_loop", refused)
    pipeline = build(
        source(itertools.count()).pipe(op),
        task_hook_factory=hook_factory,
        background_tasks=None if op in (identity_async, twice_async) else [Watch],
    )
    if hook_factory is None and op in (identity, twice):
        # No stage needs the loop, so the failure is reported at the end.
        pipeline.get_item(timeout=30)
        with pytest.raises(PipelineFailure, match="the event loop"):
            pipeline.stop(timeout=30)
    else:
        with pytest.raises(PipelineFailure, match="the event loop") as raised:
            pipeline.get_item(timeout=30)
        assert [str(error) for error in raised.value.exceptions] == ["too many open files"]
        pipeline.stop(timeout=30)
    assert_no_threads()


def test_s04_an_event_loop_that_cannot_start_fails_custom_queues(monkeypatch):
    class ReplacingQueue(AsyncQueue):
        async def put(self, item):
            await super().put(item)

    def refused():
        raise OSError("too many open files")

    monkeypatch.setattr(asyncio, "new_event_loop", refused)
    pipeline = build(source(itertools.count()).pipe(identity), queue_class=ReplacingQueue)
    with pytest.raises(PipelineFailure, match="the event loop"):
        pipeline.get_item(timeout=30)
    pipeline.stop(timeout=30)
    assert_no_threads()


@pytest.mark.parametrize("op", [identity, identity_async])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_s08_a_task_that_ends_the_event_loop_fails_the_pipeline(op, error):
    events = []

    class Begin(BackgroundTask):
        async def run(self):
            async def leave():
                raise error("x")

            self.task = asyncio.get_running_loop().create_task(leave())
            await asyncio.Event().wait()

    pipeline = build(
        source(itertools.count()).pipe(op),
        background_tasks=[Begin],
        task_hook_factory=lambda info: [Recorder(events)],
    )
    with pytest.raises(PipelineFailure, match="the event loop") as raised:
        for _ in pipeline.get_iterator(timeout=30):
            pass
    assert isinstance(raised.value.exceptions[0].__cause__, error)
    # Hooks that were entered are exited.
    assert events[-1] == ("hook", "stage ends")
    pipeline.stop(timeout=30)
    assert_no_threads()
