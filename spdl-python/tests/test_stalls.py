"""Warnings about stages that make no progress."""

import logging
import threading

import pytest
from pipelines import build, source
from spdl_rs import ImageLoader
from spdl_rs.pipeline import config


@pytest.fixture
def stalls(caplog):
    """The messages of warnings about stalls of 0.2 s."""
    caplog.set_level(logging.WARNING, logger="spdl_rs")
    config.set_stall_timeout(0.2)
    yield lambda: [record.getMessage() for record in caplog.records if record.name == "spdl_rs"]
    config.set_stall_timeout()


def opens_after_warning(stalls):
    """Returns an event that is set once a stall has been logged."""
    opened = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record):
            if "no item for" in record.getMessage():
                opened.set()

    handler = Handler()
    logging.getLogger("spdl_rs").addHandler(handler)
    return opened, lambda: logging.getLogger("spdl_rs").removeHandler(handler)


# promise: R18
@pytest.mark.parametrize("place", ["function", "source"])
def test_a_stage_that_blocks_is_named_in_one_warning(place, stalls):
    opened, remove = opens_after_warning(stalls)

    def blocks(item):
        if item == 3:
            assert opened.wait(60)
        return item

    items = (blocks(item) if place == "source" else item for item in range(6))
    builder = source(items).pipe(abs).pipe(blocks if place == "function" else abs, name="last")
    try:
        assert list(builder.add_sink().build(num_threads=2)) == [0, 1, 2, 3, 4, 5]
    finally:
        remove()
    (message,) = stalls()
    if place == "function":
        assert message.startswith("stage ") and "last" in message and "its function has not returned" in message
    else:
        assert message.startswith("source ") and "has yielded no item for" in message


# promise: R18
def test_a_slow_consumer_causes_no_warning(stalls, photos):
    pause = threading.Event()
    config.set_stall_timeout(1)
    for item in build(source(range(6)).pipe(abs)):
        if item == 1:
            pause.wait(3)
    for number, _ in enumerate(ImageLoader(photos, batch_size=1, size=32, threads=1)):
        if number == 1:
            pause.wait(3)
    assert stalls() == []


def test_the_timeout_of_stalls_must_be_a_number():
    config.set_stall_timeout(None)
    with pytest.raises(TypeError, match="timeout must be a number of seconds"):
        config.set_stall_timeout("1")
    config.set_stall_timeout()
