"""Messages of processes that a signal handler interrupts."""

import multiprocessing
import os
import signal
import struct
import threading

import pytest
from spdl_rs.pipeline._processes.message_reader import MessageReader
from test_interrupted_beginning import interrupted_at


@pytest.fixture
def pipe():
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        yield MessageReader(ours), theirs


def message(content):
    return struct.pack("!i", len(content)) + content


def test_messages_are_those_of_a_connection(pipe):
    reader, theirs = pipe
    contents = [b"a", b"", b"b" * 20_000, b"long"]
    for content in contents[:3]:
        theirs.send_bytes(content)
    # As for a message above 2 GiB.
    os.write(theirs.fileno(), struct.pack("!iQ", -1, 4) + b"long")
    assert [reader.read().tobytes() for _ in contents] == contents
    os.write(theirs.fileno(), message(b"lost")[:-1])
    theirs.close()
    for _ in range(2):
        with pytest.raises(EOFError):
            reader.read()


@pytest.mark.parametrize("sent", [0, 2, 4, 1000, 150_000])
def test_a_message_continues_after_a_signal(pipe, sent):
    reader, theirs = pipe
    whole = message(os.urandom(200_000))
    arrived = []

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        writer = threading.Thread(target=os.write, args=(theirs.fileno(), whole[:sent]))
        writer.start()
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            arrived.append(reader.read())
    finally:
        signal.signal(signal.SIGUSR1, before)
    writer.join()
    rest = threading.Thread(
        target=os.write, args=(theirs.fileno(), whole[sent:] + message(b"next"))
    )
    rest.start()
    assert not arrived and message(reader.read().tobytes()) == whole
    assert reader.read() == b"next"
    rest.join()


def test_no_interrupt_loses_a_part_of_a_message():
    place, came = 0, True
    while came:
        ours, theirs = multiprocessing.Pipe()
        with ours:
            # Then a lost byte is an `EOFError`, not an endless wait.
            with theirs:
                for content in (b"first", b"second"):
                    theirs.send_bytes(content)
            reader = MessageReader(ours)
            came = interrupted_at(place, reader.read, MessageReader.read)
            found = reader.read()
            if found == b"first":
                found = reader.read()
            assert found == b"second", place
        place += 1
    assert place > 10
