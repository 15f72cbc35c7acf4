"""The progress bar of loaders and pipelines."""

import io
import re
import sys
import types

import pytest
from pipelines import build, source
from spdl_rs import ImageLoader, _progress_bar, progress


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def frames(self):
        return self.getvalue().rstrip("\n").split("\r")[1:]


@pytest.fixture
def terminal(monkeypatch):
    # Each item is drawn.
    monkeypatch.setattr(_progress_bar, "_REDRAW_S", 0)
    return Terminal()


def test_a_loader_shows_count_rate_remaining_time_and_readiness(terminal, photos):
    loader = ImageLoader(photos, batch_size=1, size=32)
    batches = list(progress(loader, file=terminal))
    assert len(batches) == 4
    first, *_, before, last = terminal.frames()
    assert first.startswith("─" * 30 + " 0 / 4 batches")
    assert before.startswith("━" * 22 + "─" * 8 + " 3 / 4 batches")
    assert re.search(r"  [\d.,]+(e\+\d+)? batches/s  0:0\d left  ready \d+%$", before.rstrip()), before
    assert last.startswith("━" * 30 + " 4 / 4 batches") and "left" not in last
    assert terminal.getvalue().endswith("\n")


def test_an_iterable_of_unknown_length_shows_count_and_rate(terminal):
    assert list(progress(iter("abc"), unit="words", file=terminal)) == ["a", "b", "c"]
    last = terminal.frames()[-1]
    assert re.search(r"3 words  [\d.,]+(e\+\d+)? words/s", last), last
    assert "left" not in last and "ready" not in last


def test_total_overrides_the_length_and_a_pipeline_has_readiness(terminal):
    pipeline = build(source(range(3)).pipe(abs))
    with pipeline.auto_stop():
        assert list(progress(pipeline, total=6, unit="items", file=terminal)) == [0, 1, 2]
    last = terminal.frames()[-1]
    assert "3 / 6 items" in last and "ready" in last
    with pytest.raises(TypeError, match="total"):
        progress([1], total="1")


def test_the_line_ends_if_the_loop_ends_early(terminal):
    items = progress([1, 2, 3], file=terminal)
    next(items)
    items.close()
    assert terminal.getvalue().endswith("\n")


def test_nothing_is_shown_without_a_terminal(photos, capsys):
    file = io.StringIO()
    assert list(progress([1, 2], file=file)) == [1, 2]
    assert list(progress([1, 2])) == [1, 2]
    assert file.getvalue() == "" and capsys.readouterr() == ("", "")


def test_a_notebook_updates_one_output(monkeypatch, terminal):
    shown = []

    class Handle:
        def update(self, data, raw):
            shown.append(data)

    def display(data, raw, display_id):
        shown.append(data)
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    assert list(progress(["a", "b"], unit="<b>")) == ["a", "b"]
    assert shown[-1]["text/html"].startswith('<progress value="2" max="2"')
    assert "2 / 2 &lt;b&gt;" in shown[-1]["text/html"] and "2 / 2 <b>" in shown[-1]["text/plain"]


def test_durations():
    assert [_progress_bar._duration(s) for s in (0.4, 59.6, 3599, 3661)] == ["0:00", "1:00", "59:59", "1:01:01"]
