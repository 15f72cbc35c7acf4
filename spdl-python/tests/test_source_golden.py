"""Sources and samplers give the results of upstream SPDL, in `golden/upstream_source.json`.

The script next to that file creates it.
"""

import hashlib
import itertools
import json
import pathlib
import random
import warnings

import pytest
from spdl_rs import source
from spdl_rs.source import imagenet, local_directory, utils

GOLDEN = json.loads(
    (pathlib.Path(__file__).parent / "golden" / "upstream_source.json").read_text(encoding="utf-8")
)


def weights(kind, n):
    return {
        "integer": lambda: [float(at * 7919 % 101) for at in range(n)],
        "harmonic": lambda: [1 / (1 + at) for at in range(n)],
        "sparse": lambda: [float(at % 3 == 1) for at in range(n)],
        "random": lambda: [random.Random(at).random() for at in range(n)],
    }[kind]()


def reported(items):
    digest = hashlib.blake2b(json.dumps(items).encode(), digest_size=8).hexdigest()
    return {"len": len(items), "first": items[:12], "digest": digest}


def samplers(name):
    rows = [row for row in GOLDEN["samplers"] if row["sampler"] == name]
    assert len(rows) > 60
    for row in rows:
        arguments = dict(row["arguments"])
        if row["weights"]:
            arguments["weights"] = weights(row["weights"], row["n"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield row, getattr(source, name)(row["n"], **arguments)


def test_q01_indices_equal_those_of_upstream():
    for row, sampler in samplers("DistributedDeterministicSampler"):
        items = list(sampler)
        assert reported(items) == {key: row[key] for key in ("len", "first", "digest")}, row
        assert len(sampler) == len(items) and list(sampler) == items


def test_q02_draws_equal_those_of_upstream_and_numpy():
    for row, sampler in samplers("DistributedRandomSampler"):
        if row["reseed"] is not None:
            list(sampler)
            sampler.shuffle(seed=row["reseed"])
        items = list(sampler)
        assert reported(items) == {key: row[key] for key in ("len", "first", "digest")}, row
        assert len(sampler) == len(items) and list(sampler) == items
        assert all(type(item) is int for item in items)


@pytest.mark.parametrize(("name", "n", "arguments"), GOLDEN["refused samplers"])
def test_q02_samplers_reject_the_arguments_that_upstream_rejects(name, n, arguments):
    with pytest.raises(ValueError):
        getattr(source, name)(n, **arguments)


def test_q04_merged_items_equal_those_of_upstream():
    for row in GOLDEN["merges"]:
        lengths = row["lengths"]
        parts = [[100 * at + item for item in range(length)] for at, length in enumerate(lengths)]
        merged = utils.MergeIterator(parts, **row["arguments"])
        expected = {key: row[key] for key in ("len", "first", "digest")}
        # Each epoch has the same draws.
        assert reported(list(merged)) == expected and reported(list(merged)) == expected, row


@pytest.mark.parametrize(("lengths", "arguments"), GOLDEN["refused merges"])
def test_q04_merging_rejects_the_arguments_that_upstream_rejects(lengths, arguments):
    with pytest.raises(ValueError):
        utils.MergeIterator([range(length) for length in lengths], **arguments)


class Recorded:
    """Three items. `calls` lists the seeds of `shuffle`, and -1 for each iteration."""

    def __init__(self):
        self.calls = []

    def shuffle(self, seed):
        self.calls.append(seed)

    def __iter__(self):
        self.calls.append(-1)
        yield from "abc"


def test_q05_shuffle_is_called_as_in_upstream():
    for row in GOLDEN["shuffles"]:
        recorded = Recorded()
        embedded = utils.embed_shuffle(recorded, **row["arguments"])
        for _ in range(3):
            iterator = iter(embedded)
            list(itertools.islice(iterator, row["taken"]))
            del iterator
        assert recorded.calls == row["calls"], row


def test_q06_a_repeated_source_equals_that_of_upstream():
    for row in GOLDEN["repeats"]:
        recorded = Recorded()
        items = itertools.islice(utils.repeat_source(recorded, row["epoch"]), row["taken"])
        assert "".join(items) == row["items"] and recorded.calls == row["calls"], row


def make_files(root, names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_q07_files_have_the_order_of_upstream(tmp_path):
    make_files(tmp_path, [f"{name}.txt" for name in GOLDEN["names"]])
    for row in GOLDEN["directories"]:
        files = local_directory.LocalDirectory(tmp_path, row["pattern"])
        if row["seed"] is not None:
            files.shuffle(row["seed"])
        found = [path.relative_to(tmp_path).as_posix() for path in files]
        assert found == row["files"] and len(files) == len(found), row


def test_q07_images_and_labels_equal_those_of_upstream(tmp_path):
    make_files(tmp_path / "val", GOLDEN["image names"])
    # Upstream contains this list.
    classes = {label: [path.split("/")[1], ""] for path, label in GOLDEN["images"][0]["images"]}
    (tmp_path / "imagenet_class_index.json").write_text(json.dumps(classes))
    for row in GOLDEN["images"]:
        images = imagenet.ImageNet(tmp_path)
        if row["seed"] is not None:
            images.shuffle(row["seed"])
        found = [[path.relative_to(tmp_path).as_posix(), label] for path, label in images]
        assert found == row["images"] and len(images) == len(found)


@pytest.mark.parametrize(("text", "wnid"), GOLDEN["wnids"])
def test_q07_wordnet_ids_equal_those_of_upstream(text, wnid):
    if wnid is None:
        with pytest.raises(ValueError, match="no WordNet ID"):
            imagenet.parse_wnid(text)
    else:
        assert imagenet.parse_wnid(text) == wnid
