"""Items in messages: short, computed quickly, and without secrets."""

import collections
import dataclasses

import pytest
from spdl_rs.pipeline import PipelineBuilder
from spdl_rs.pipeline._failures.item_text import describe

LARGE = bytes(1 << 20)


@dataclasses.dataclass
class Sample:
    key: str
    data: object
    hidden: object = dataclasses.field(default=None, repr=False)


Pair = collections.namedtuple("Pair", "key data")


class NeverShown(bytes):
    def __repr__(self):
        raise AssertionError("repr of the whole value")


class array:  # noqa: N801
    """A class with the name of one that `reprlib` treats specially."""

    def __repr__(self):
        return "array()"


class Broken:
    def __repr__(self):
        raise ValueError("repr failed")


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (LARGE, "<bytes of 1048576>"),
        (NeverShown(5), "<NeverShown of 5>"),
        ({"jpg": NeverShown(5)}, "{'jpg': <NeverShown of 5>}"),
        (("key", [memoryview(LARGE)]), "('key', [<memoryview of 1048576>])"),
        (Sample("a", NeverShown(5)), "Sample(key='a', data=<NeverShown of 5>)"),
        (Pair("a", NeverShown(5)), "Pair(key='a', data=<NeverShown of 5>)"),
        pytest.param(10**6000, "<int of 19932 bits>", id="a large number"),
        (True, "True"),
        (Broken(), "<Broken>"),
        ([Broken(), 1], "[<Broken>, 1]"),
        ({number: 0 for number in range(2000)}, "<dict of 2000>"),
    ],
)
def test_descriptions_are_short_and_lazy(item, text):
    assert describe(item) == text


def test_a_class_may_have_any_name():
    assert describe(array()) == "array()"


def test_descriptions_limit_the_depth():
    assert describe([[[[[[1]]]]]]) == "[[[[[...]]]]]"


def test_recursive_items_are_described():
    item = [1]
    item.append(item)
    assert describe(item).startswith("[1, [1, [")
    sample = Sample("a", None)
    sample.data = sample
    assert describe(sample).startswith("Sample(key='a', data=Sample(")


class Opened:
    def __repr__(self):
        return "<from s3://me:secret@host/a>"


@pytest.mark.parametrize(
    "item",
    [
        "https://me:secret@h/a?secret",
        {"url": "https://me:secret@h/a?secret"},
        Sample("https://me:secret@h/a", None),
        "https://secret:" + "x" * 60 + "@host/a",
        Opened(),
        "a" * 4090 + "s3://me:secret@host/",
    ],
)
def test_descriptions_contain_no_secrets(item):
    assert "secret" not in describe(item) and "cret" not in describe(item)


def test_a_printed_pipeline_is_short_for_any_source():
    for items in (list(range(100_000)), ["x" * 1_000_000], {"large": LARGE}):
        builder = PipelineBuilder().add_source(items).pipe(str)
        assert len(str(builder)) < 2_000 and len(repr(builder.add_sink().get_config())) < 2_000
