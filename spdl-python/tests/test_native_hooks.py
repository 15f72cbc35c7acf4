"""Native operators combined with hooks, queue classes and merge functions of the user."""

import contextlib
import threading

import numpy
import pytest
from native import SIZE, assert_same, failure_of, files, native, stages
from pipelines import assert_no_threads, build, identity, run, source
from spdl_rs.io import AugmentImage, BatchImages, ColorJitter, DecodeImage, Fetch
from spdl_rs.pipeline import (
    AsyncQueue,
    PipelineFailure,
    TaskHook,
    TaskStatsHook,
    build_pipeline,
    is_eof,
)
from spdl_rs.pipeline.defs import Merge, Pipe, PipelineConfig, SinkConfig, SourceConfig


class Recorder(TaskHook):
    def __init__(self, info, events):
        self.name, self.events = info.stage_name, events

    @contextlib.asynccontextmanager
    async def stage_hook(self):
        self.events.append((self.name, "begins"))
        yield
        self.events.append((self.name, "ends"))

    @contextlib.asynccontextmanager
    async def task_hook(self, input_item=None):
        self.events.append((self.name, "before", input_item))
        yield
        self.events.append((self.name, "after", input_item))


def images(paths, *, batch=16):
    """A pipeline of all four operators."""
    decode, augment = DecodeImage(SIZE, train=True, seed=2), AugmentImage(ColorJitter(0.5), seed=3)
    builder = native(zip(paths, range(40)), decode).pipe(augment, output_order="input")
    return builder.aggregate(BatchImages(batch))


def flat(batches):
    return [array for batch in batches for array in batch]


def test_hooks_run_around_each_item_of_native_stages(many):
    paths = files(many)[:6]
    events = []
    pipeline = build(images(paths), task_hook_factory=lambda info: [Recorder(info, events)])
    found = list(pipeline)
    assert_same(flat(found), flat(run(images(paths))))
    for name in ("Fetch", "DecodeImage", "AugmentImage"):
        own = [event for event in events if event[0] == name]
        assert own[0] == (name, "begins") and own[-1] == (name, "ends")
        assert [event[1] for event in own].count("before") == 6
        assert [event[1] for event in own].count("after") == 6
    given = [event[2] for event in events if event[:2] == ("Fetch", "before")]
    assert sorted(given) == list(zip(paths, range(6)))
    given = [event[2] for event in events if event[:2] == ("DecodeImage", "before")]
    assert all(data.dtype == numpy.uint8 and isinstance(label, int) for data, label in given)
    assert_no_threads()


def test_a_failing_hook_fails_the_item(many):
    class FailingHook(TaskHook):
        @contextlib.asynccontextmanager
        async def task_hook(self, input_item=None):
            raise OSError("refused")
            yield

    builder = source(files(many)[:1]).pipe(Fetch())
    error = failure_of(builder, max_failures=0, task_hook_factory=lambda info: [FailingHook()])
    assert type(error) is OSError


def test_only_stages_with_hooks_are_not_native(many):
    def factory(info):
        return [TaskStatsHook(info)] if info.stage_name == "AugmentImage" else []

    paths = files(many)[:6]
    pipeline = build(images(paths), task_hook_factory=factory)
    assert_same(flat(list(pipeline)), flat(run(images(paths))))
    found = stages(pipeline)
    assert found["DecodeImage/part1"]["items"] == 6 and "AugmentImage/part0" not in found
    assert found["AugmentImage"]["kind"] == found["DecodeImage"]["kind"] == "cpu"
    assert "Not run in Rust because of hooks or queues: AugmentImage" in str(pipeline)
    assert "Not run in Rust" not in str(build(images(paths)))


def test_stats_hooks_count_items_of_native_stages(many, tmp_path):
    hooks = {}

    def factory(info):
        hooks[info.stage_name] = TaskStatsHook(info)
        return [hooks[info.stage_name]]

    paths = [*files(many)[:5], str(tmp_path / "missing.png")]
    builder = source(paths).pipe(Fetch(), concurrency=2).pipe(DecodeImage(SIZE), concurrency=3)
    assert len(run(builder, task_hook_factory=factory)) == 5
    assert (hooks["Fetch"].num_tasks, hooks["Fetch"].num_success) == (6, 5)
    assert hooks["DecodeImage"].num_tasks == 5


class CustomQueue(AsyncQueue):
    """A queue class that disables the engine's queue, because it overrides `put`."""

    async def put(self, item):
        await super().put(item)


def test_native_stages_work_between_queues_of_the_user(many):
    paths = files(many)
    pipeline = build(images(paths), queue_class=CustomQueue)
    assert_same(flat(list(pipeline)), flat(run(images(paths))))
    assert "Not run in Rust because of hooks or queues: Fetch, DecodeImage" in str(pipeline)
    assert_no_threads()


def test_failures_of_native_stages_count_for_all_runs_between_queues(many, tmp_path):
    missing = [str(tmp_path / f"{at}.png") for at in range(2)]
    builder = source([*missing, *files(many)]).pipe(Fetch()).pipe(identity)
    assert len(run(builder, queue_class=CustomQueue, max_failures=2)) == 40
    builder = source([*missing, *files(many)]).pipe(Fetch()).pipe(identity)
    with pytest.raises(PipelineFailure):
        run(builder, queue_class=CustomQueue, max_failures=1)
    # A stage with its own budget does not count against the total.
    builder = source([*missing, *files(many)]).pipe(Fetch(), max_failures=2).pipe(identity)
    assert len(run(builder, queue_class=CustomQueue, max_failures=0)) == 40


def test_native_stages_work_around_merge_functions(many):
    paths = files(many)

    async def in_turn(info, inputs, output):
        ended = [False] * len(inputs)
        while not all(ended):
            for at, queue in enumerate(inputs):
                if not ended[at]:
                    item = await queue.get()
                    ended[at] = is_eof(item)
                    if not ended[at]:
                        await output.put(item)

    parts = [
        PipelineConfig(
            SourceConfig(paths[at::2]), [Pipe(Fetch(), output_order="input")], SinkConfig(1)
        )
        for at in range(2)
    ]
    config = PipelineConfig(
        Merge(parts, op=in_turn), [Pipe(DecodeImage(SIZE), output_order="input")], SinkConfig(1)
    )
    found = list(build_pipeline(config, num_threads=1))
    assert_same(found, [DecodeImage(SIZE)(Fetch()(path)) for path in paths])
    assert_no_threads()


def test_hooks_run_in_native_stages_on_paths(many):
    events = []
    paths = files(many)[:4]
    builder = source(paths).path_variants(
        lambda path: 0, [[Pipe(Fetch(), name="read"), Pipe(DecodeImage(SIZE))]]
    )
    factory = lambda info: [Recorder(info, events)] if info.stage_name == "read" else []  # noqa: E731
    found = run(builder, task_hook_factory=factory)
    # The stage after a stage with hooks remains native.
    assert [image.shape for image in found] == [(SIZE, SIZE, 3)] * 4
    assert sorted(event[2] for event in events if event[1] == "before") == paths


def test_stage_hooks_end_when_the_pipeline_is_stopped(many):
    events = []
    begun = threading.Event()

    class Telling(Recorder):
        @contextlib.asynccontextmanager
        async def task_hook(self, input_item=None):
            begun.set()
            yield

    pipeline = build(
        source(files(many) * 20).pipe(Fetch()),
        task_hook_factory=lambda info: [Telling(info, events)],
    )
    pipeline.start()
    assert begun.wait(20)
    pipeline.stop()
    assert events[-1] == ("Fetch", "ends")
    assert_no_threads()
