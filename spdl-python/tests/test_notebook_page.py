"""The repr, HTML page and diagnosis of loaders and pipelines."""

import html.parser
import re
import time

import pytest
import spdl_rs
from conftest import picture, write_png
from pipelines import build, identity, source
from spdl_rs import _notebook_page
from spdl_rs.pipeline import BackgroundTask


class Page(html.parser.HTMLParser):
    """Parses a page: collects the tags and the text."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_repr_describes_the_data_set_and_batches(many):
    loader = spdl_rs.ImageLoader(many, batch_size=8, train=True)
    batches = iter(loader)
    assert repr(loader) == (
        f"ImageLoader(image folder {str(many)!r}: 40 images, 5 classes; "
        "5 batches of uint8 [8, 224, 224, 3]; train=True, seed=0, epoch=1)"
    )
    assert repr(batches) == "ImageBatches(epoch=0)" and batches.epoch == 0
    paths = [str(path) for path in many.glob("*/*.png")]
    planes = spdl_rs.ImageLoader(paths, batch_size=9, size=32, layout="nchw-f32")
    assert f"list of images '{paths[0]} and 39 more': 40 images" in repr(planes)
    assert "5 batches of float32 [9, 3, 32, 32]" in repr(planes)


def test_diagnose_returns_a_sentence(many):
    loader = spdl_rs.ImageLoader(many, batch_size=8, size=32)
    assert loader.diagnose().endswith(".")
    batches = iter(loader)
    next(batches)
    batches.close()
    assert loader.diagnose() == batches.diagnose() == loader.stats()["diagnosis"]


def test_loader_html_has_a_table_and_a_chart(many):
    loader = spdl_rs.ImageLoader(many, batch_size=2, size=32)
    before = Page(loader._repr_html_())
    assert before.open == [] and "table" not in before.tags and "svg" not in before.tags
    list(loader)
    page = Page(loader._repr_html_())
    assert page.open == []
    assert {"table", "svg", "polyline"} <= set(page.tags) and "script" not in page.tags
    for word in ["source", "fetch", "decode", "40", repr(loader), loader.diagnose()]:
        assert word in page.text, word


def test_html_text_is_escaped(tmp_path):
    folder = tmp_path / "<script>alert('&amp;')<"
    try:
        write_png(str(folder / "1.png"), picture(1))
    except OSError:
        pytest.skip("this file system does not support such names")
    loader = spdl_rs.ImageLoader(folder, batch_size=1, size=8)
    list(loader)
    page = Page(loader._repr_html_())
    assert "script" not in page.tags and page.open == []
    assert repr(loader) in page.text and "&amp;" in repr(loader)


@pytest.mark.parametrize("counts", [[], [1], [7]])
def test_without_a_complete_time_slot_there_is_no_chart(counts):
    assert _notebook_page.rates(0.1, counts) == []
    statistics = {"stages": [], "diagnosis": ""}
    assert "svg" not in _notebook_page.page("x", statistics, _notebook_page.rates(0.1, counts))


def test_the_chart_shows_the_rate():
    # 100 batches/s for 10 s, then 10 batches/s for 10 s, and an incomplete time slot.
    rates = _notebook_page.rates(0.2, [20] * 50 + [2] * 50 + [0])
    assert rates[0] == pytest.approx(100) and rates[-1] == pytest.approx(10)
    assert 40 <= len(rates) <= 60 and max(rates) == pytest.approx(100)
    (points,) = re.findall(r'points="([^"]*)"', _notebook_page.page("x", {"stages": []}, rates))
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert len(heights) == len(rates) and heights[0] < heights[-1]
    assert all(0 <= height <= 32 for height in heights)


def test_the_chart_merges_sparse_time_slots():
    rates = _notebook_page.rates(0.001, [1, 0, 0, 0] * 6 + [1])
    assert rates == pytest.approx([250.0, 250.0])


class Nothing(BackgroundTask):
    async def run(self):
        pass


@pytest.mark.parametrize("beside", [[], [Nothing]], ids=["alone", "with a task beside"])
def test_pipeline_html_has_a_table_and_a_chart(beside):
    def slowly():
        for number in range(40):
            time.sleep(0.002)
            yield number

    builder = source(slowly()).pipe(identity, name="<b>same</b>").aggregate(2)
    pipeline = build(builder, background_tasks=beside)
    before = Page(pipeline._repr_html_())
    assert before.open == [] and "table" not in before.tags and "svg" not in before.tags
    assert repr(pipeline) in before.text
    list(pipeline)
    page = Page(pipeline._repr_html_())
    assert page.open == [] and page.tags.count("b") == 1
    assert {"table", "svg", "polyline"} <= set(page.tags) and "items" in page.text
    for word in ["40", repr(pipeline), pipeline.stats()["diagnosis"]]:
        assert word in page.text, word
    assert any(text.endswith(":<b>same</b>") for text in page.text)
    assert any("items/s, at most" in text for text in page.text)


def test_pace_counts_all_items_in_bounded_memory():
    def in_two_bursts():
        yield from range(1000)
        time.sleep(0.4)
        yield from range(500)

    pipeline = build(source(in_two_bursts()).pipe(identity))
    with pipeline.auto_stop():
        assert len(list(pipeline)) == 1500
        seconds, counts = pipeline._run.pace
    assert sum(counts) == 1500 and len(counts) <= 120
    assert seconds * len(counts) >= 0.4
    rates = _notebook_page.rates(seconds, counts)
    together = -(-(len(counts) - 1) // 60)
    assert len(rates) == (len(counts) - 1) // together <= 60
    assert rates[0] == pytest.approx(sum(counts[:together]) / (together * seconds))
