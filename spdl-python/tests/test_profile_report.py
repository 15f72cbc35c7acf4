"""The report of a profile: numbers, advice, tables, HTML."""

import concurrent.futures
import html.parser
import math

import pytest
from pipelines import source
from profiles import AT_ONCE, described
from spdl_rs.pipeline import (
    ProfileReport,
    ProfileResult,
    ProfileStats,
    profile_pipeline,
)
from spdl_rs.pipeline._profile import machine_load as _machine_load
from spdl_rs.pipeline._profile import profile as _profile


def made(qps, cpus=(1.0,) * 5, **options):
    stats = [
        ProfileStats(at_once, rate, 0.5, rate, cpu)
        for at_once, rate, cpu in zip(AT_ONCE, qps, cpus)
    ]
    return ProfileResult("decode", stats, available_cpus=8, **options)


@pytest.mark.parametrize(
    ("result", "advised", "why"),
    [
        (
            made([800, 805, 790, 400, 100], [8, 8, 7.9, 4, 1]),
            8,
            "7.9 times the rate of concurrency 1; higher concurrency gains less than 10 %: the 8 CPUs are busy",
        ),
        (
            made([400, 200, 100, 50, 10]),
            32,
            "40.0 times the rate of concurrency 1; each step was faster, so more than 32 may be better",
        ),
        (
            made([60, 70, 80, 90, 100]),
            1,
            "higher concurrency is slower, 60.0/s with 32: one CPU is busy at any concurrency, as if a function "
            "held the GIL",
        ),
        # Other programs use the CPUs, or the stage waits: the GIL is not the reason.
        (made([100] * 5, [1.0, 1.0, 1.0, 1.0, 0.5]), 1, "higher concurrency gains less than 10 %"),
        (
            made([400, 400, 400, 400, 100]),
            4,
            "4.0 times the rate of concurrency 1; higher concurrency gains less than 10 %",
        ),
        (made([104, 103, 102, 101, 100], [0.1] * 5), 1, "higher concurrency gains less than 10 %"),
        (
            made([400, 400, 400, 390, 100], [None] * 5, kind="executor"),
            4,
            "3.9 times the rate of concurrency 1; higher concurrency gains less than 10 %: its executor has no "
            "more workers, or all CPUs are busy",
        ),
    ],
)
def test_t01_the_advised_concurrency_is_the_smallest_sufficient_one(result, advised, why):
    assert (result.advised.concurrency, result.why) == (advised, why)


def test_t01_rates_are_interpolated_linearly():
    result = made([320, 160, 80, 40, 10])
    assert result.source_qps(1) == 10 and result.source_qps(16) == 160
    assert result.source_qps(2) == pytest.approx(20) and result.source_qps(12) == pytest.approx(120)
    assert result.source_qps(64) == 320


def test_t01_a_result_is_printed_as_a_table():
    assert str(made([804, 804, 800, 400, 100], [8, 8, 7.9, 4, 1], concurrency=2)).splitlines() == [
        "decode (threads)",
        "  concurrency  items/s  speed-up  CPUs  occupancy",
        "           32    804.0      8.0x   8.0        50%",
        "           16    804.0      8.0x   8.0        50%",
        "            8    800.0      8.0x   7.9        50%",
        "            4    400.0      4.0x   4.0        50%",
        "            1    100.0      1.0x   1.0        50%",
        "  advised: concurrency 8 (set: 2); 8.0 times the rate of concurrency 1; higher "
        "concurrency gains less than 10 %: the 8 CPUs are busy",
    ]
    lists = ProfileResult("lists", [ProfileStats(1, 10.0, 0.5, 320.0, 1.0)], "one at a time")
    assert str(lists).splitlines()[1:3] == [
        "  concurrency  items/s  source/s  speed-up  CPUs  occupancy",
        "            1     10.0     320.0      1.0x   1.0        50%",
    ]
    # As created by upstream SPDL, with its fields only.
    one = ProfileResult("sum", [ProfileStats(1, 10.0, 0.25)])
    assert str(one).splitlines()[-1] == "  the stage processes one item at a time"
    assert math.isnan(one.stats[0].source_qps)


def test_t01_the_report_names_the_bottleneck():
    slow = made([400, 400, 400, 400, 100], concurrency=1)
    slow.name = "slow"
    other = made([200] * 5, concurrency=4)
    assert ProfileReport([other, slow]).verdict.startswith("slow is the bottleneck: 100/s")
    report = ProfileReport([slow, other])
    assert report.verdict == (
        "slow is the bottleneck: 100/s source items; concurrency 4 reaches 400/s, then decode is "
        "the bottleneck, with 200/s. Each stage ran alone; in the pipeline, they share 8 CPUs."
    )
    assert str(report).startswith(report.verdict) and str(report).count("concurrency  items/s") == 2
    assert ProfileReport([other]).verdict.startswith(
        "decode is the bottleneck: 200/s source items; more concurrency does not help. "
    )
    # Without a configured concurrency, the advised one counts.
    left_to_us = made([400, 400, 400, 400, 100])
    assert ProfileReport([left_to_us]).verdict.startswith("decode is the bottleneck: 400/s")
    other.stats[2].crowded = True
    assert ProfileReport([slow, other]).verdict.endswith(
        " Other programs kept the CPUs busy, so the figures are unreliable: measure again on an "
        "idle machine."
    )
    assert ProfileReport().verdict == "the pipeline has no stages to profile"


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        if tag not in ("polyline", "circle"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_t01_notebooks_show_tables_and_plots_with_all_text_escaped():
    result = made([400, 200, 100, 50, 10])
    result.name = "<script>'\"&"
    single = ProfileResult("one", [ProfileStats(1, 0.0, 0.0, 0.0)])
    for page, plots in [
        (result._repr_html_(), 1),
        (single._repr_html_(), 0),
        (ProfileReport([result, single])._repr_html_(), 1),
        (ProfileReport()._repr_html_(), 0),
    ]:
        tags = Tags()
        tags.feed(page)
        assert not tags.open and "script" not in tags.seen
        assert tags.seen.count("svg") == plots and tags.seen.count("circle") == 5 * plots
    assert "advised: concurrency 32" in result._repr_html_()


BEFORE = "cpu  10 0 10 100 0 0 0 0 0 0"


@pytest.mark.parametrize(
    ("before", "after", "seconds", "share"),
    [
        (BEFORE, "cpu  40 5 20 150 10 0 5 0 7 7", 0.3, 0.4545),
        (BEFORE, "cpu  110 0 10 100 0 0 0 0 0 0", 9.0, 1.0),
        (BEFORE, "cpu  110 0 10 100 0 0 0 0 0 0", 0.2, None),
        (BEFORE, BEFORE, 0.3, None),
        ("", "", 0.3, None),
        ("cpu x", BEFORE, 0.3, None),
        ("processor 1", "processor 2", 0.3, None),
    ],
)
def test_t01_the_machine_load_follows_from_its_ticks(before, after, seconds, share, monkeypatch):
    lines, times = iter([before, after]), iter([0.0, seconds])
    monkeypatch.setattr(_machine_load, "_first_line", lambda: next(lines))
    with monkeypatch.context() as patched:
        patched.setattr(_machine_load.time, "monotonic", lambda: next(times))
        found = _machine_load.MachineLoad().busy_share()
    assert found is share is None or found == pytest.approx(share, abs=1e-3)


def test_t01_the_machine_load_can_be_read():
    line = _machine_load._first_line()
    assert not line or _machine_load._ticks(line)[0] > 0


@pytest.mark.parametrize(
    ("busy", "cpus", "crowded"),
    [(1.0, 0, True), (0.5, 0, False), (None, 0, False), (1.0, 100, False)],
)
def test_t01_a_stage_is_crowded_if_other_programs_use_the_cpus(busy, cpus, crowded, monkeypatch):
    monkeypatch.setattr(_machine_load.MachineLoad, "busy_share", lambda self: busy)
    # As if the stage had used this many CPUs.
    times = iter([0.0, 1e6 * cpus] * 6)
    monkeypatch.setattr(_profile.time, "process_time", lambda: next(times))
    (result,) = profile_pipeline(described(source(range(3)).pipe(abs)))
    assert [stats.crowded for stats in result.stats] == [crowded] * 5


def test_t01_processes_of_an_executor_do_not_count_as_other_programs(monkeypatch):
    monkeypatch.setattr(_machine_load.MachineLoad, "busy_share", lambda self: 1.0)
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        (result,) = profile_pipeline(described(source(range(3)).pipe(abs, executor=executor)))
    assert [stats.crowded for stats in result.stats] == [False] * 5
