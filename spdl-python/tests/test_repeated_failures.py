"""Repeated failures are logged without traceback after the first three."""

import logging

from pipelines import identity, refuse, run, source
from spdl_rs.pipeline._failures import log as _logging


def tracebacks(caplog, level=logging.ERROR):
    return [record for record in caplog.records if record.levelno == level and record.exc_info]


def lines(caplog):
    return [r.message for r in caplog.records if r.levelno == logging.ERROR and not r.exc_info]


def test_t05_the_first_three_repeated_failures_have_tracebacks(caplog):
    assert run(source(range(50)).pipe(refuse, name="decode")) == []
    assert len(tracebacks(caplog)) == 3
    rest = lines(caplog)
    assert len(rest) == 47 and not tracebacks(caplog, logging.DEBUG)
    assert ":1:decode failed on 3: ValueError: no 3 (pipelines.py:" in rest[0]
    assert [f"; failure {at} of this kind," in line for at, line in enumerate(rest, 4)] == [
        True
    ] * 47


def test_t05_repeated_failures_have_tracebacks_at_debug(caplog):
    with caplog.at_level(logging.DEBUG, logger="spdl_rs.pipeline"):
        run(source(range(5)).pipe(refuse))
    assert len(tracebacks(caplog)) == 3 and len(tracebacks(caplog, logging.DEBUG)) == 2
    reported = tracebacks(caplog, logging.DEBUG)[1]
    assert "failed on 4" in reported.message and str(reported.exc_info[1]) == "no 4"


def test_t05_failures_are_grouped_by_type_line_stage_and_pipeline(caplog):
    def differ(item):
        if item % 3 == 0:
            raise OSError(item)
        raise (OSError, ValueError)[item % 3 - 1](item)

    for name in ("differ", "again"):
        caplog.clear()
        run(source(range(9)).pipe(differ, name=name))
        assert len(tracebacks(caplog)) == 9 and not lines(caplog)


def test_t05_failures_without_an_item_always_have_tracebacks(caplog):
    for _ in range(5):
        _logging.log_failure("a callback", ValueError("x"))
    assert len(tracebacks(caplog)) == 5


def test_t04_the_compact_log_does_not_group_failures(caplog):
    before = _logging._compact
    _logging.set_compact_log(True)
    try:
        run(source(range(6)).pipe(identity).pipe(refuse))
    finally:
        _logging.set_compact_log(before)
    assert len(lines(caplog)) == 6 and not any("of this kind" in line for line in lines(caplog))


def test_t05_failure_counts_take_bounded_memory(caplog):
    _logging._counts.clear()
    for at in range(_logging._MAX_KINDS + 10):
        _logging.log_failure(f"stage {at}", ValueError("x"), "an item")
    assert len(_logging._counts) == _logging._MAX_KINDS
    _logging._counts.clear()
