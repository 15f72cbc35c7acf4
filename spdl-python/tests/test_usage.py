"""The usage hook: `spdl_rs.usage`."""

import doctest
import threading

import pytest
import spdl_rs
from pipelines import source
from spdl_rs import usage
from spdl_rs.dataloader import CacheDataLoader, DataLoader
from spdl_rs.usage import log_api_usage_once


@pytest.fixture
def reported():
    names = []
    usage.set_hook(lambda name, metadata: names.append((name, metadata)))
    yield names
    usage.set_hook(None)


def test_t08_the_hook_receives_each_name_once(reported):
    log_api_usage_once("one", metadata="more")
    log_api_usage_once("two")
    log_api_usage_once("one", metadata="else")
    assert reported == [("one", "more"), ("two", None)]
    source()
    source()
    CacheDataLoader([1], 1, 1)
    assert [name for name, _ in reported[2:]] == [
        "spdl_rs.pipeline.PipelineBuilder",
        "spdl_rs.dataloader.CacheDataLoader",
    ]


def test_t08_the_hook_receives_the_names_of_loaders(reported, photos):
    DataLoader([1])
    spdl_rs.torch.DataLoader([1, 2], collate_fn=list)
    spdl_rs.dataloader.get_pytorch_dataloader([1, 2], collate_fn=list)
    spdl_rs.ImageLoader(photos, batch_size=1)
    assert {name for name, _ in reported} == {
        "spdl_rs.ImageLoader",
        "spdl_rs.dataloader.DataLoader",
        "spdl_rs.dataloader.PyTorchDataLoader",
        "spdl_rs.pipeline.PipelineBuilder",
        "spdl_rs.torch.DataLoader",
    }


def test_t08_without_a_hook_no_name_is_recorded():
    usage.set_hook(None)
    log_api_usage_once("early")
    assert not usage._reported
    names = []
    usage.set_hook(lambda name, _: names.append(name))
    log_api_usage_once("early")
    usage.set_hook(None)
    log_api_usage_once("late")
    assert names == ["early"]


def test_t08_a_new_hook_receives_each_name_again(reported):
    log_api_usage_once("one")
    others = []
    usage.set_hook(lambda name, _: others.append(name))
    log_api_usage_once("one")
    assert len(reported) == 1 and others == ["one"]


def test_t08_exceptions_of_the_hook_are_only_logged(caplog):
    def fail(name, _):
        raise OSError("no network")

    usage.set_hook(fail)
    try:
        source()
    finally:
        usage.set_hook(None)
    assert "the hook of spdl_rs.usage failed for spdl_rs.pipeline.PipelineBuilder" in caplog.text


def test_t08_concurrent_threads_report_a_name_once(reported):
    barrier = threading.Barrier(8)

    def use():
        barrier.wait()
        log_api_usage_once("shared")

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reported) == 1


def test_the_examples_of_usage_run():
    result = doctest.testmod(usage)
    assert result.attempted >= 4 and result.failed == 0
