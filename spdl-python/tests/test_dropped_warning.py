"""One warning at the end of each epoch, or of a pipeline, that has dropped items."""

import gc
import logging
import threading
import time

import pytest
from spdl_rs.dataloader import DataLoader
from spdl_rs.io import DecodeImage
from spdl_rs.pipeline import (
    AsyncQueue,
    PipelineBuilder,
    PipelineFailure,
    build_pipeline,
    run_pipeline_in_subprocess,
)
from spdl_rs.pipeline._failures import dropped
from spdl_rs.pipeline.defs import Pipe, PipelineConfig, ProcessPoolExecutorConfig
from spdl_rs.pipeline.defs import MAIN_PROCESS, SinkConfig, SourceConfig


def odd_fails(number):
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


def large_fails(number):
    if number > 5:
        raise KeyError(number)
    return number


def pipeline_of(source=range(10), stages=(odd_fails, large_fails), **options):
    builder = PipelineBuilder().add_source(source)
    for stage in stages:
        builder.pipe(stage, output_order="input")
    return builder.add_sink().build(num_threads=2, **options)


@pytest.fixture(autouse=True)
def no_counts_of_earlier_tests():
    """Another test may leave a pipeline that has not ended."""
    dropped._by_pipeline.clear()
    dropped._whole_of.clear()


@pytest.fixture
def warned(caplog):
    caplog.set_level(logging.WARNING, "spdl_rs.pipeline")

    def found():
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        return [warning.getMessage() for warning in warnings]

    return found


def test_the_warning_counts_by_stage_and_type_and_has_examples_and_the_limit(warned):
    pipeline = pipeline_of()
    assert list(pipeline) == [0, 2, 4]
    (message,) = warned()
    number = pipeline._number
    assert message.startswith(f"pipeline {number} ended, and 7 items were dropped (")
    assert f"({number}:1:odd_fails: 5 ValueError, {number}:2:large_fails: 2 KeyError)" in message
    assert f"; for example: {number}:1:odd_fails failed on " in message
    assert f" is odd; {number}:2:large_fails failed on " in message
    assert message.endswith("pass max_failures to build(), or on_error to a loader")
    pipeline.stop()
    del pipeline
    gc.collect()
    assert len(warned()) == 1


# feature: F01
@pytest.mark.parametrize("stages", [[odd_fails], [abs, odd_fails, large_fails]])
def test_a_pipeline_whose_items_all_fail_ends_normally_with_one_warning(stages, warned):
    # As in SPDL. With max_failures, the pipeline fails; loaders raise an exception.
    pipeline = pipeline_of([1, 3, 5], stages)
    assert list(pipeline) == []
    (message,) = warned()
    assert f"pipeline {pipeline._number} ended without any output, and 3 items were" in message
    pipeline.stop()
    del pipeline
    gc.collect()
    assert len(warned()) == 1


# promise: R9
def test_a_loader_whose_items_all_fail_raises(warned):
    with pytest.raises(PipelineFailure) as caught:
        list(DataLoader([1, 3, 5], preprocessor=odd_fails, batch_size=2))
    (error,) = caught.value.exceptions
    assert "delivered no batch, and 3 items failed" in str(error)


def test_a_pipeline_without_failures_does_not_warn(warned):
    with pipeline_of(range(0, 5, 2)).auto_stop():
        pass
    assert list(pipeline_of(range(0, 5, 2))) == [0, 2, 4] and warned() == []


def test_a_pipeline_that_fails_does_not_warn(warned):
    with pytest.raises(PipelineFailure):
        list(pipeline_of(max_failures=2))
    assert warned() == [] and not dropped._by_pipeline


def test_a_pipeline_that_is_stopped_warns_once(warned):
    pipeline = pipeline_of(range(100_000), [odd_fails])
    with pipeline.auto_stop():
        assert [pipeline.get_item() for _ in range(3)] == [0, 2, 4]
    pipeline.stop()
    assert len(warned()) == 1


def test_a_pipeline_that_is_abandoned_warns_once(warned):
    pipeline = pipeline_of(range(100_000), [odd_fails])
    assert [pipeline.get_item() for _ in range(3)] == [0, 2, 4]
    assert warned() == []
    del pipeline
    gc.collect()
    assert len(warned()) == 1


class Epochs:
    """Yields 3 items in each epoch: pairs of the epoch and an index."""

    def __init__(self):
        self.epoch = -1

    def __iter__(self):
        self.epoch += 1
        return iter([(self.epoch, index) for index in range(3)])


def continuous(function, source=None, **options):
    builder = PipelineBuilder().add_source(source or Epochs(), continuous=True)
    return builder.pipe(function, output_order="input").add_sink().build(num_threads=1, **options)


# promise: R9
@pytest.mark.parametrize("by_get_item", [False, True])
def test_a_continuous_pipeline_warns_once_at_the_end_of_each_epoch_with_failures(warned, by_get_item):
    # Items of the next epoch fail before the consumer reaches the end of an epoch.
    failed = [threading.Event() for _ in range(1000)]
    # The number of items that fail in each of the first epochs, and of others.
    failing, later = [0, 2, 0, 1, 3], 3

    def fails(item):
        epoch, index = item
        if index < (failing[epoch] if epoch < len(failing) else later):
            failed[epoch].set()
            raise ValueError(f"item {index} of epoch {epoch}")
        return item

    def epoch_of(pipeline):
        if not by_get_item:
            return list(pipeline)
        items = []
        while True:
            try:
                items.append(pipeline.get_item())
            except EOFError:
                return items

    pipeline = continuous(fails, epoch=0)
    number = pipeline._number
    with pipeline.auto_stop():
        for epoch, count in enumerate(failing):
            before = len(warned())
            assert [pipeline.get_item()[0] for _ in range(3 - count)] == [epoch] * (3 - count)
            if (failing[epoch + 1] if epoch + 1 < len(failing) else later) and count < 3:
                assert failed[epoch + 1].wait(20)
                # The engine counts the failure shortly afterwards.
                time.sleep(0.05)
            assert epoch_of(pipeline) == []
            messages = warned()[before:]
            if count == 0:
                assert messages == []
                continue
            (message,) = messages
            items = "1 item was" if count == 1 else f"{count} items were"
            start = f"epoch {epoch} of pipeline {number} ended, and {items} dropped ("
            assert message.startswith(f"{start}{number}:1:fails: {count} ValueError); for example: ")
            assert f" of epoch {epoch}; to end" in message
        before = len(warned())
    # Items of epochs that have not ended.
    (message,) = warned()[before:]
    assert message.startswith(f"pipeline {number} ended after epoch 4, and ")
    assert f"; for example: {number}:1:fails failed on " in message
    assert not dropped._by_pipeline


def test_a_continuous_pipeline_without_failures_does_not_warn(warned):
    with (pipeline := continuous(tuple)).auto_stop():
        assert list(pipeline) and list(pipeline)
    assert warned() == []


def test_a_resumed_pipeline_names_the_epochs_of_its_state(warned):
    with (pipeline := continuous(odd_fails, range(4), epoch=5)).auto_stop():
        list(pipeline)
        state = pipeline.state_dict()
    resumed = continuous(odd_fails, range(4))
    resumed.load_state_dict(state)
    before = len(warned())
    with resumed.auto_stop():
        # Items of epoch 6 that the first run has dropped are not repeated.
        assert list(resumed) == list(resumed) == [0, 2]
        message = [message for message in warned()[before:] if message.startswith("epoch ")][-1]
        assert message.startswith(f"epoch 7 of pipeline {resumed._number} ended, and 2 items were")


class ListOfItems(AsyncQueue):
    """A queue in Python, which divides the pipeline into several runs."""

    async def put(self, item):
        await super().put(item)


def test_a_continuous_pipeline_of_several_runs_warns_after_each_epoch(warned):
    pipeline = continuous(odd_fails, range(4), queue_class=ListOfItems)
    with pipeline.auto_stop():
        for epoch in range(3):
            assert list(pipeline) == [0, 2]
            assert len(warned()) == epoch + 1
            assert f"epoch {epoch} of pipeline" in warned()[-1] and "2 items were" in warned()[-1]


def test_a_continuous_pipeline_with_a_region_warns_after_each_epoch(warned):
    builder = PipelineBuilder().add_source(range(8), continuous=True).pipe(odd_fails)
    builder.to(ProcessPoolExecutorConfig(1)).pipe(large_fails).to(MAIN_PROCESS)
    with (pipeline := builder.add_sink().build(num_threads=1)).auto_stop():
        for epoch in range(3):
            assert sorted(pipeline) == [0, 2, 4]
            assert len(warned()) == epoch + 1
            message = warned()[-1]
            assert f"epoch {epoch} of pipeline" in message and "5 items were dropped (" in message
            assert "odd_fails: 4 ValueError" in message and "large_fails: 1 KeyError" in message
    assert not dropped._by_pipeline and not dropped._whole_of


def test_errors_of_native_operators_are_counted_by_the_type_of_their_exceptions(warned):
    builder = PipelineBuilder().add_source([b"no image"] * 3, continuous=True)
    pipeline = builder.pipe(DecodeImage()).add_sink().build(num_threads=1)
    with pipeline.auto_stop():
        list(pipeline)
        (message,) = warned()
        assert "3 items were dropped (" in message and ": 3 UnsupportedError)" in message


def listed(epoch, index, reason, kind="user"):
    entry = {"key": None, "stage": "12345:1:f", "kind": kind, "reason": reason}
    return {**entry, "epoch": epoch, "index": index}


def summary(epoch, *entries):
    """Ends an epoch of a pipeline of which the engine lists these dropped items."""
    dropped._by_pipeline["12345"].statistics[:] = [lambda: {"dropped": list(entries)}]
    dropped.warn_of_epoch(12345, epoch)


def test_epochs_of_runs_with_very_many_failures_are_counted_without_their_list(warned, monkeypatch):
    monkeypatch.setattr(dropped, "_MAX_LISTED", 1)
    with (pipeline := continuous(odd_fails, range(10))).auto_stop():
        assert len(list(pipeline)) == len(list(pipeline)) == 5
        assert [message[:8] for message in warned()] == ["epoch 0 ", "epoch 1 "]
    # The engine does not list later items.
    for item in range(3):
        dropped.count_dropped("12345:1:f", ValueError("no"), str(item))
    before = len(warned())
    summary(7, listed(7, 0, "raised an exception: ValueError: no"))
    assert "epoch 7 of pipeline 12345 ended, and 3 items were" in warned()[before]


def test_examples_are_failures_of_the_epoch(warned):
    entries = [listed(epoch, 5, f"raised an exception: ValueError: {epoch}") for epoch in range(3)]
    # Epoch 1 fails first.
    for epoch in (1, 0, 2):
        dropped.count_dropped("12345:1:f", ValueError(epoch), f"<{epoch}>")
    summary(0, *entries)
    summary(1, *entries)
    dropped.warn_of_dropped(12345, lambda: True, False)
    names = ["epoch 0 of pipeline 12345 ended", "epoch 1 of pipeline 12345 ended"]
    names.append("pipeline 12345 ended after epoch 1")
    for epoch, (name, message) in enumerate(zip(names, warned(), strict=True)):
        assert message.startswith(
            f"{name}, and 1 item was dropped (12345:1:f: 1 ValueError); for example: 12345:1:f failed on "
            f"item 5: ValueError: {epoch}; to end"
        )


def test_the_described_item_is_the_example_if_it_failed_in_the_epoch(warned):
    dropped.count_dropped("12345:1:f", ValueError("no"), "'cat.jpg'")
    summary(0, listed(0, 5, "raised an exception: ValueError: no"))
    assert "; for example: 12345:1:f failed on 'cat.jpg': ValueError: no; to" in warned()[0]


def test_an_error_that_the_engine_describes_otherwise_is_counted_once(warned):
    dropped.count_dropped("12345:1:f", ValueError("no"), "'cat.jpg'")
    summary(0, listed(0, 5, "after 3 attempts: no", "corrupt"))
    dropped.warn_of_dropped(12345, lambda: True, False)
    (message,) = warned()
    assert "1 item was dropped (12345:1:f: 1 ValueError); for example: " in message


def of_type(number):
    raise type(f"Error{number}", (Exception,), {})("x" * 10_000)


def test_the_number_of_reasons_and_their_length_are_bounded(warned):
    pipeline = pipeline_of([0, 1, 2, 3, 0, 1, 2, 0, 0, *range(4, 1000)], [of_type])
    assert list(pipeline) == []
    (message,) = warned()
    number = pipeline._number
    counts = f"({number}:1:of_type: 4 Error0, {number}:1:of_type: 2 Error1, {number}:1:of_type: 2 Error2, "
    assert f"1005 items were dropped {counts}and 997 more for other reasons)" in message
    assert len(message) < 1500


def test_counts_of_reasons_are_bounded_in_memory():
    for number in range(1000):
        dropped.count_dropped("12345:1:f", type(f"Error{number}", (Exception,), {})(), "item")
    counts = dropped._by_pipeline["12345"].here
    assert len(counts.reasons) == dropped._MAX_REASONS and counts.total == 1000


def indices(pipeline):
    return [(one["epoch"], one["index"]) for one in pipeline.take_dropped()]


# promise: R9
@pytest.mark.parametrize("by_get_item", [False, True])
def test_each_dropped_item_is_listed_with_the_aggregate_that_follows(by_get_item):
    builder = PipelineBuilder().add_source(range(9)).pipe(odd_fails, output_order="input", concurrency=3)
    pipeline = builder.aggregate(2).add_sink().build(num_threads=3)
    assert pipeline.take_dropped() == []
    listed = []
    for aggregate in iter(pipeline.get_item, None) if by_get_item else pipeline:
        listed.append((aggregate, indices(pipeline)))
        assert pipeline.take_dropped() == []
        if aggregate == [8]:
            break
    assert listed == [([0, 2], [(0, 1)]), ([4, 6], [(0, 3), (0, 5)]), ([8], [(0, 7)])]
    assert list(pipeline) == [] and pipeline.take_dropped() == []
    assert pipeline.stats()["dropped_total"] == 4


# promise: R9
def test_dropped_items_after_the_last_one_are_listed_at_the_end():
    pipeline = pipeline_of(range(8), [odd_fails])
    assert list(pipeline) == [0, 2, 4, 6]
    names = [(one["stage"], one["kind"], one["reason"]) for one in pipeline.take_dropped()]
    stage = f"{pipeline._number}:1:odd_fails"
    assert names == [(stage, "user", f"raised an exception: ValueError: {n} is odd") for n in (1, 3, 5, 7)]
    assert pipeline.take_dropped() == []


# promise: R9
def test_dropped_items_are_listed_after_each_epoch_and_after_stop():
    pipeline = continuous(odd_fails, range(4))
    with pipeline.auto_stop():
        for epoch in range(3):
            assert list(pipeline) == [0, 2] and indices(pipeline) == [(epoch, 1), (epoch, 3)]
        assert [pipeline.get_item(), pipeline.get_item()] == [0, 2]
    # The item 3 follows the one that was delivered last.
    assert indices(pipeline) == [(3, 1)] and pipeline.take_dropped() == []


# promise: R9
def test_a_pipeline_of_several_runs_lists_dropped_items_in_its_statistics_only():
    pipeline = continuous(odd_fails, range(4), queue_class=ListOfItems)
    assert pipeline.take_dropped() == []
    with pipeline.auto_stop():
        assert list(pipeline) == [0, 2]
        with pytest.raises(RuntimeError, match=r"stats\(\)"):
            pipeline.take_dropped()


def test_a_loader_warns_with_reasons_after_each_epoch(warned):
    loader = DataLoader(range(8), preprocessor=odd_fails, aggregator=sum, batch_size=2)
    for epoch in range(2):
        assert sum(loader) == 12
        assert len(warned()) == epoch + 1
        assert ":1:odd_fails: 4 ValueError); for example: " in warned()[-1]


def test_the_end_of_an_epoch_by_get_item_warns(warned):
    pipeline = pipeline_of([1])
    with pytest.raises(EOFError):
        pipeline.get_item()
    (message,) = warned()
    assert "1 item was dropped" in message and "ValueError: 1 is odd" in message


def test_a_pipeline_in_another_process_warns_there_after_each_iteration(capfd):
    config = PipelineBuilder().add_source(range(10)).pipe(odd_fails, output_order="input")
    numbers = run_pipeline_in_subprocess(
        config.add_sink().get_config(), num_threads=1, mp_context="spawn"
    )
    for _ in range(2):
        assert list(numbers) == [0, 2, 4, 6, 8]
    del numbers
    gc.collect()
    assert capfd.readouterr().err.count("ended, and 5 items were dropped (") == 2


def test_a_pipeline_with_a_region_warns_once_for_all_processes(warned):
    stages = [Pipe(odd_fails), Pipe(large_fails), Pipe(odd_fails)]
    placement = PipelineBuilder().add_source([0]).to(ProcessPoolExecutorConfig(2)).pipe(odd_fails)
    to, back = placement.to(MAIN_PROCESS).add_sink().get_config().pipes[::2]
    pipes = [stages[0], to, stages[1], back, stages[2]]
    config = PipelineConfig(SourceConfig(range(10)), pipes, SinkConfig(2))
    assert sorted(build_pipeline(config, num_threads=1)) == [0, 2, 4]
    (message,) = warned()
    assert "7 items were dropped" in message
    assert not dropped._by_pipeline and not dropped._whole_of
