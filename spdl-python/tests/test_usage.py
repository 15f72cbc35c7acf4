"""`spdl_rs.usage`: who wants to know what a program uses."""

import doctest
import threading

import pytest
import spdl_rs
from pipelines import source
from spdl_rs import usage
from spdl_rs.dataloader import CacheDataLoader, DataLoader
from spdl_rs.usage import log_api_usage_once


@pytest.fixture
def told():
    names = []
    usage.set_hook(lambda name, metadata: names.append((name, metadata)))
    yield names
    usage.set_hook(None)


def test_t08_the_hook_is_told_once_of_each_name(told):
    log_api_usage_once("one", metadata="more")
    log_api_usage_once("two")
    log_api_usage_once("one", metadata="else")
    assert told == [("one", "more"), ("two", None)]
    source()
    source()
    CacheDataLoader([1], 1, 1)
    assert [name for name, _ in told[2:]] == [
        "spdl_rs.pipeline.PipelineBuilder",
        "spdl_rs.dataloader.CacheDataLoader",
    ]


def test_t08_loaders_are_told_of(told, photos):
    DataLoader([1])
    spdl_rs.torch.DataLoader([1, 2], collate_fn=list)
    spdl_rs.dataloader.get_pytorch_dataloader([1, 2], collate_fn=list)
    spdl_rs.ImageLoader(photos, batch_size=1)
    assert {name for name, _ in told} == {
        "spdl_rs.ImageLoader",
        "spdl_rs.dataloader.DataLoader",
        "spdl_rs.dataloader.PyTorchDataLoader",
        "spdl_rs.pipeline.PipelineBuilder",
        "spdl_rs.torch.DataLoader",
    }


def test_t08_without_a_hook_nobody_is_told_and_nothing_remembered():
    usage.set_hook(None)
    log_api_usage_once("early")
    assert not usage._reported
    names = []
    usage.set_hook(lambda name, _: names.append(name))
    log_api_usage_once("early")
    usage.set_hook(None)
    log_api_usage_once("late")
    assert names == ["early"]


def test_t08_a_new_hook_is_told_anew(told):
    log_api_usage_once("one")
    others = []
    usage.set_hook(lambda name, _: others.append(name))
    log_api_usage_once("one")
    assert len(told) == 1 and others == ["one"]


def test_t08_what_a_hook_raises_is_logged_and_ends_nothing(caplog):
    def fail(name, _):
        raise OSError("no network")

    usage.set_hook(fail)
    try:
        source()
    finally:
        usage.set_hook(None)
    assert "the hook of spdl_rs.usage failed for spdl_rs.pipeline.PipelineBuilder" in caplog.text


def test_t08_threads_that_begin_together_tell_once(told):
    barrier = threading.Barrier(8)

    def use():
        barrier.wait()
        log_api_usage_once("shared")

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 1


def test_the_examples_of_usage_run():
    result = doctest.testmod(usage)
    assert result.attempted >= 4 and result.failed == 0
