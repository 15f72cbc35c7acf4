"""Warnings about a consumer that waits for data for much of the time."""

import logging
import threading
import time

import pytest
from pipelines import build, source
from spdl_rs import Loader, fields
from spdl_rs.pipeline import config


@pytest.fixture
def warnings(caplog):
    """The messages of warnings about starvation, checked every 0.2 s."""
    caplog.set_level(logging.WARNING, logger="spdl_rs")
    config.set_starvation_interval(0.2)
    yield lambda: [record.getMessage() for record in caplog.records if record.name == "spdl_rs"]
    config.set_starvation_interval()


def slow(item):
    time.sleep(0.02)
    return item


def test_a_starving_consumer_is_warned_with_the_diagnosis(warnings):
    assert len(list(build(source(range(60)).pipe(slow)))) == 60
    messages = warnings()
    assert 1 <= len(messages) <= 8
    for message in messages:
        assert message.startswith("the consumer waited for data ") and " % of the last " in message
        assert "slow" in message


def test_the_warning_names_the_gil(warnings):
    def compute(item):
        end = time.monotonic() + 0.01
        while time.monotonic() < end:
            sum(range(1000))
        return item

    builder = source(range(120)).pipe(compute, concurrency=4).add_sink()
    assert len(list(builder.build(num_threads=4))) == 120
    messages = warnings()
    # A free-threaded Python has no GIL.
    import sys

    if getattr(sys, "_is_gil_enabled", lambda: True)():
        assert any("GIL" in message for message in messages), messages


def test_a_loader_is_watched_and_a_slow_consumer_is_not_warned(warnings):
    samples = [{"number": number} for number in range(40)]

    def decode(sample):
        time.sleep(0.02)
        return sample

    loader = Loader(samples, batch_size=1, number=fields.Number(), map=decode, threads=1)
    assert len(list(loader)) == 40
    assert any("the consumer waited for data" in message for message in warnings())
    before = len(warnings())
    fast = Loader(samples, batch_size=1, number=fields.Number(), threads=1)
    pause = threading.Event()
    for _ in fast:
        pause.wait(0.03)
    assert len(warnings()) == before


def test_the_interval_must_be_a_number():
    config.set_starvation_interval(None)
    with pytest.raises(TypeError, match="interval must be a number of seconds"):
        config.set_starvation_interval("1")
    config.set_starvation_interval()
