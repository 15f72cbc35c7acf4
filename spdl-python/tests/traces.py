"""Validation of trace files."""

import json
import os

PHASES = {"M", "X", "b", "e", "C"}


def read(path, *, has_workers=False):
    """Reads the events of a file, and checks them against the trace event format."""
    events = json.loads(path.read_text("utf-8"))
    assert events[0]["name"] == "process_name"
    if not has_workers:
        # Worker processes of other tests may still run, and their names are recorded.
        events = [event for event in events if event["pid"] == os.getpid()]
    for event in events:
        assert event["ph"] in PHASES and isinstance(event["name"], str)
        assert event["pid"] > 0 and event["tid"] > 0
        if event["ph"] == "M":
            assert isinstance(event["args"]["name"], str)
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0 and isinstance(event["cat"], str)
        if event["ph"] in "be":
            assert event["id2"]["local"].startswith("0x") and isinstance(event["cat"], str)
        if event["ph"] == "C":
            assert isinstance(event["args"]["value"], (int, float))
    beside = [event for event in events if event["ph"] in "be"]
    for begun, ended in zip(beside[::2], beside[1::2]):
        assert (begun["ph"], ended["ph"]) == ("b", "e") and begun["ts"] <= ended["ts"]
        for same in ("name", "cat", "id2", "pid"):
            assert begun[same] == ended[same]
    ids = [(event["pid"], event["id2"]["local"]) for event in beside[::2]]
    assert len(ids) == len(set(ids))
    assert_nested(events)
    return events


def assert_nested(events):
    """Checks that the spans of each thread are nested or disjoint."""
    by_thread = {}
    for event in events:
        if event["ph"] == "X":
            # Timestamps have nanosecond resolution, so rounding is exact.
            begun, length = (round(1000 * event[what]) for what in ("ts", "dur"))
            by_thread.setdefault(event["tid"], []).append((begun, -(begun + length), event["name"]))
    for spans in by_thread.values():
        under_way = []
        for begun, ended, name in sorted(spans):
            while under_way and under_way[-1] <= begun:
                under_way.pop()
            assert not under_way or -ended <= under_way[-1], name
            under_way.append(-ended)


def named(events, name, phase="X"):
    return [event for event in events if event["name"] == name and event["ph"] == phase]


def thread_names(events):
    return {event["tid"]: event["args"]["name"] for event in named(events, "thread_name", "M")}
