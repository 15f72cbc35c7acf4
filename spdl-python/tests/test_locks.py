"""`ForkSafeLock`: mutual exclusion, forks and copies."""

import copy
import doctest
import os
import pickle
import signal
import threading
import time

from spdl_rs import _locks
from spdl_rs._locks import ForkSafeLock


def test_the_example_runs():
    assert doctest.testmod(_locks).failed == 0


def test_a_lock_excludes_other_threads():
    exclusive = ForkSafeLock()
    within, seen = [], []

    def enter():
        for _ in range(50):
            with exclusive.held():
                within.append(None)
                seen.append(len(within))
                time.sleep(0)
                within.pop()

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 400


def held_elsewhere(exclusive):
    """Starts a thread that holds the lock, and returns it with the event that ends it."""
    let_out, is_within = threading.Event(), threading.Event()

    def hold():
        with exclusive.held():
            is_within.set()
            let_out.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_within.wait(20)
    return thread, let_out


def test_a_lock_is_free_in_a_forked_child():
    exclusive = ForkSafeLock()
    thread, let_out = held_elsewhere(exclusive)
    child = os.fork()
    if child == 0:
        # Ends a deadlocked child.
        signal.alarm(10)
        with exclusive.held():
            os._exit(7)
    let_out.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_copies_of_a_held_lock_are_free():
    exclusive = ForkSafeLock()
    thread, let_out = held_elsewhere(exclusive)
    for same in (copy.deepcopy(exclusive), pickle.loads(pickle.dumps(exclusive))):
        with same.held():
            # The copy is independent of the held lock.
            assert thread.is_alive()
    let_out.set()
    thread.join()
