"""Tar shards that are read in parts, and compressed shards."""

import gzip
import multiprocessing

import numpy
import pytest
import spdl_rs
from dataset_files import write_tar
from servers import serving
from spdl_rs import fields
from spdl_rs.sources import Source, concat

SETTINGS = {"batch_size": 16, "size": 32, "sequential": True}


@pytest.fixture(scope="module")
def shards(many, tmp_path_factory):
    """Three shards of 40 images, also compressed."""
    paths = enumerate(sorted(many.glob("*/*.png")))
    samples = [(f"{number:02}", path.read_bytes(), number % 3) for number, path in paths]
    root = tmp_path_factory.mktemp("shards")
    for number in range(3):
        path = root / f"shard-{number}.tar"
        write_tar(path, samples[number * 15 : number * 15 + 15])
        (root / f"shard-{number}.tgz").write_bytes(gzip.compress(path.read_bytes()))
    return root


def keys_of(source, **settings):
    loader = spdl_rs.Loader(source, batch_size=7, key=fields.Key(), **settings)
    return [key.rpartition(":")[2] for batch in loader for key in batch["key"]]


def load(loader):
    batches = [(images.copy(), labels.copy()) for images, labels in loader]
    return [numpy.concatenate(arrays) for arrays in zip(*batches, strict=True)]


def test_each_shard_is_requested_once_per_epoch(shards):
    expected = load(spdl_rs.ImageLoader(shards / "shard-{0..2}.tar", shuffle=True, **SETTINGS))
    with serving(shards) as server:
        source = f"{server.address}/shard-{{0..2}}.tar"
        loader = spdl_rs.ImageLoader(source, shuffle=True, **SETTINGS)
        opened = len(server.requested)
        images, labels = load(loader)
        assert len(server.requested) == opened + 3
        assert (images == expected[0]).all() and (labels == expected[1]).all()
        # Parts stay in memory.
        load(loader)
        assert len(server.requested) == opened + 3
        plain = spdl_rs.ImageLoader(source, **{**SETTINGS, "sequential": False})
        opened = len(server.requested)
        load(plain)
        assert len(server.requested) > opened + 20


def test_the_shuffle_window_is_shown(shards):
    source = shards / "shard-{0..2}.tar"
    shuffled = spdl_rs.ImageLoader(source, shuffle=True, **SETTINGS)
    assert "40 images shuffled in windows of 40, " in repr(shuffled)
    assert "windows" not in repr(spdl_rs.ImageLoader(source, **SETTINGS))
    loader = spdl_rs.Loader(source, batch_size=7, shuffle=True, sequential=True, key=fields.Key())
    assert "40 samples shuffled in windows of 40, " in repr(loader)
    loader = spdl_rs.Loader(source, batch_size=7, shuffle=True, key=fields.Key())
    assert "windows" not in repr(loader)


def test_a_server_without_ranges_is_read(shards):
    expected = keys_of(shards / "shard-{0..2}.tar", sequential=True, shuffle=True)
    assert sorted(expected) == sorted(keys_of(shards / "shard-{0..2}.tar"))
    with serving(shards) as server:
        server.has_ranges = False
        source = f"{server.address}/shard-{{0..2}}.tar"
        assert keys_of(source, sequential=True, shuffle=True) == expected
        with pytest.raises(spdl_rs.UnsupportedError, match="sequential=True"):
            keys_of(source)


@pytest.mark.parametrize("is_remote", [False, True])
def test_compressed_shards_are_read(shards, is_remote):
    order = keys_of(shards / "shard-{0..2}.tar", sequential=True, shuffle=True, seed=3)
    with serving(shards) as server:
        source = f"{server.address if is_remote else shards}/shard-{{0..2}}.tgz"
        assert keys_of(source, sequential=True, shuffle=True, seed=3) == order
        with pytest.raises(spdl_rs.UnsupportedError, match="sequential=True"):
            keys_of(source)

        def loader():
            return spdl_rs.ImageLoader(source, shuffle=True, **SETTINGS)

        images, _ = load(loader())
        first = loader()
        batches = iter(first)
        begin, _ = next(batches)
        begin = begin.copy()
        state = first.state_dict()
        del batches
        again = loader()
        again.load_state_dict(state)
        rest, _ = load(again)
        assert (numpy.concatenate([begin, rest]) == images).all()


def _count(loader, results):
    results.put(sum(len(labels) for _, labels in loader))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.parametrize("ending", ["tar", "tgz"])
def test_a_forked_child_reads_parts(shards, ending):
    with serving(shards) as server:
        for place in (shards, server.address):
            loader = spdl_rs.ImageLoader(f"{place}/shard-{{0..2}}.{ending}", **SETTINGS)
            # Threads of the parent hold parts.
            assert len(load(loader)[1]) == 40
            context = multiprocessing.get_context("fork")
            results = context.Queue()
            child = context.Process(target=_count, args=(loader, results))
            child.start()
            assert results.get(timeout=60) == 40
            child.join(60)
            assert child.exitcode == 0
            assert len(load(loader)[1]) == 40


def test_sources_of_shards_and_others_are_combined(shards, photos):
    with serving(shards) as server:
        remote = Source(f"{server.address}/shard-{{0..2}}.tgz").skip(2).take(20)
        loader = spdl_rs.Loader(
            concat(remote, photos), batch_size=8, sequential=True, shuffle=True, key=fields.Key()
        )
        keys = [key for batch in loader for key in batch["key"]]
    assert len(set(keys)) == 24
    assert sum("tgz:" in key for key in keys) == 20


def test_the_window_is_part_of_the_state(shards):
    # A window of all samples, because they fit.
    one = spdl_rs.ImageLoader(shards / "shard-{0..2}.tar", shuffle=True, **SETTINGS)
    next(iter(one))
    other = spdl_rs.ImageLoader(
        shards / "shard-{0..2}.tar", shuffle=True, **{**SETTINGS, "sequential": False}
    )
    with pytest.raises(spdl_rs.InvalidArgumentError, match="was shuffle with seed 0, window: 40"):
        other.load_state_dict(one.state_dict())


def test_invalid_arguments_are_errors(shards):
    with pytest.raises(TypeError, match="sequential must be True or False"):
        spdl_rs.ImageLoader(shards, batch_size=1, sequential=1)
    with pytest.raises(ValueError, match="sequential_memory must be 67108864 to"):
        spdl_rs.ImageLoader(shards, batch_size=1, sequential=True, sequential_memory=1000)
