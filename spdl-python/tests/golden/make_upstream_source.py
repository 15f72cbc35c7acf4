"""Generates upstream_source.json: the results of upstream's sources and samplers.

    python -m venv venv && venv/bin/pip install spdl==0.8.0 numpy==2.4.6
    venv/bin/python spdl-python/tests/golden/make_upstream_source.py

Run with spdl 0.8.0, NumPy 2.4.6, Python 3.11 on x86-64. A long pass is represented by its first
items and a hash over all; `test_source_golden.py` computes the same for this package.
"""

import hashlib
import itertools
import json
import random
import tempfile
import warnings
from pathlib import Path

import spdl.source
import spdl.source.utils
from spdl.source.imagenet import ImageNet, parse_wnid
from spdl.source.local_directory import LocalDirectory

INFINITY, NAN = float("inf"), float("nan")


def weights(kind, n):
    return {
        "integer": lambda: [float(at * 7919 % 101) for at in range(n)],
        "harmonic": lambda: [1 / (1 + at) for at in range(n)],
        "sparse": lambda: [float(at % 3 == 1) for at in range(n)],
        "random": lambda: [random.Random(at).random() for at in range(n)],
    }[kind]()


def reported(items):
    items = [int(item) for item in items]
    digest = hashlib.blake2b(json.dumps(items).encode(), digest_size=8).hexdigest()
    return {"len": len(items), "first": items[:12], "digest": digest}


def sampled(name, n, kind=None, reseed=None, **arguments):
    given = {"sampler": name, "n": n, "weights": kind, "reseed": reseed, "arguments": arguments}
    if kind is not None:
        arguments = {**arguments, "weights": weights(kind, n)}
    sampler = getattr(spdl.source, name)(n, **arguments)
    if reseed is not None:
        list(sampler)
        sampler.shuffle(seed=reseed)
    assert len(sampler) == len(list(sampler))
    return {**given, **reported(sampler)}


def samplers():
    drop = "ddp_drop_last_distributed_round"
    for n, world_size, whole in itertools.product([1, 7, 12, 103], [1, 3, 4, 8], [True, False]):
        if whole and n < world_size:
            continue
        for rank in {0, world_size // 2, world_size - 1}:
            ranked = {"rank": rank, "world_size": world_size, drop: whole}
            yield sampled("DistributedDeterministicSampler", n, **ranked)
            yield sampled("DistributedRandomSampler", n, seed=n, **ranked)
    ranked = {"rank": 1, "world_size": 3}
    for n in [9, 10_000, 10_001, 70_000]:
        for seed in [0, 1, 2**32, 2**64 - 1]:
            yield sampled("DistributedRandomSampler", n, seed=seed, **ranked)
        for num_draws in {n, n - 1, n // 51, n // 49} - {0}:
            if num_draws >= 3:
                yield sampled("DistributedRandomSampler", n, num_draws=num_draws, **ranked)
    for kind in ["integer", "harmonic", "sparse", "random"]:
        for n, num_draws in [(5, None), (5, 1000), (129, 50), (1003, None), (1003, 4001)]:
            for whole in [True, False]:
                arguments = {"num_draws": num_draws, drop: whole, **ranked}
                yield sampled("DistributedRandomSampler", n, kind, seed=3, **arguments)
    for reseed in [0, 5, 2**63]:
        yield sampled("DistributedRandomSampler", 50, None, reseed, seed=9, **ranked)
        yield sampled("DistributedRandomSampler", 50, "random", reseed, seed=9, **ranked)


def refused_samplers():
    for name in ["DistributedDeterministicSampler", "DistributedRandomSampler"]:
        yield name, 0, {"rank": 0, "world_size": 1}
        yield name, -5, {"rank": 0, "world_size": 1}
        yield name, 9, {"rank": 0, "world_size": 0}
        yield name, 9, {"rank": 3, "world_size": 3}
        yield name, 9, {"rank": -1, "world_size": 3}
        yield name, 3, {"rank": 0, "world_size": 4}
    one = {"rank": 0, "world_size": 1}
    for arguments in [
        {"num_draws": 0},
        {"num_draws": -1},
        {"num_draws": 5},
        {"weights": [1, 1, 1]},
        {"weights": [1] * 5},
        {"weights": [1, 1, 1, -1]},
        {"weights": [-1, -1, -1, -1]},
        {"weights": [1, 1, 1, NAN]},
        {"weights": [1, 1, 1, INFINITY]},
        {"weights": [0, 0, 0, 0]},
        {"weights": [1e308] * 4},
    ]:
        yield "DistributedRandomSampler", 4, {**one, **arguments}
    ranked = {"rank": 0, "world_size": 3, "num_draws": 2, "weights": [1] * 4}
    yield "DistributedRandomSampler", 4, ranked


def merged(lengths, **arguments):
    parts = [[100 * at + item for item in range(length)] for at, length in enumerate(lengths)]
    items = spdl.source.utils.MergeIterator(parts, **arguments)
    return {"lengths": lengths, "arguments": arguments, **reported(items)}


def merges():
    for lengths in [[3], [0], [3, 3, 3], [3, 2, 3], [0, 2, 0, 5], [1, 1, 1, 1, 9]]:
        for stop_after in [-1, 0, 1, 4, 9, 100]:
            yield merged(lengths, stop_after=stop_after)
            even = [1.0] * len(lengths)
            yield merged(lengths, stop_after=stop_after, weights=even, seed=stop_after + 1)
    for shares in [
        [0.7, 0.2, 0.1],
        [1, 0, 3],
        [0, 0, 2],
        [1e-300, 1e300, 1.0],
        [5e-324, 1e308, 1e307],
        [0.1, 0.3, 1 / 3],
        [30, 10, 50],
    ]:
        for seed in [0, 1, 42]:
            yield merged([200, 90, 150], weights=shares, seed=seed)
            yield merged([200, 90, 150], weights=shares, seed=seed, stop_after=-1)
            yield merged([200, 90, 150], weights=shares, seed=seed, stop_after=120)


def refused_merges():
    yield [], {}
    yield [2, 2], {"stop_after": -2}
    for shares in [[1], [1, 1, 1], [1, -1], [0, 0], [1, NAN], [1, INFINITY], [1e308, 1e308]]:
        yield [2, 2], {"weights": shares}
    yield [2, 2], {"weights": [1, None]}
    yield [2, 2], {"weights": [1, "x"]}


class Recorded:
    """Three items. `calls` lists the seeds of `shuffle`, and -1 for each iteration."""

    def __init__(self):
        self.calls = []

    def shuffle(self, seed):
        self.calls.append(seed)

    def __iter__(self):
        self.calls.append(-1)
        yield from "abc"


def shuffles():
    for shuffle_last, epoch, taken in itertools.product([False, True], [0, 5], [0, 1, 3, 4]):
        source = Recorded()
        embedded = spdl.source.utils.embed_shuffle(source, shuffle_last=shuffle_last, epoch=epoch)
        for _ in range(3):
            iterator = iter(embedded)
            list(itertools.islice(iterator, taken))
            del iterator
        arguments = {"shuffle_last": shuffle_last, "epoch": epoch}
        yield {"arguments": arguments, "taken": taken, "calls": source.calls}


def repeats():
    for epoch, taken in itertools.product([0, 7], [0, 1, 3, 4, 11]):
        source = Recorded()
        items = itertools.islice(spdl.source.utils.repeat_source(source, epoch), taken)
        yield {"epoch": epoch, "taken": taken, "items": "".join(items), "calls": source.calls}


NAMES = [
    f"{folder}/{name}" for folder in ["b", "a", "a-b", "a/b", "B"] for name in ["2", "10", "1"]
]


def directories():
    with tempfile.TemporaryDirectory() as root:
        for name in NAMES:
            path = Path(root, f"{name}.txt")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        for pattern in ["*/*.txt", "**/*.txt", "a/*", "*.none"]:
            for seed in [None, 0, 3]:
                files = LocalDirectory(root, pattern)
                if seed is not None:
                    files.shuffle(seed)
                found = [path.relative_to(root).as_posix() for path in files]
                yield {"pattern": pattern, "seed": seed, "files": found}


IMAGES = ["n01440764/b_1.JPEG", "n01440764/b_2.JPEG", "n03709823/a.JPEG", "n15075141/c.JPEG"]


def images():
    with tempfile.TemporaryDirectory() as root:
        for name in IMAGES:
            path = Path(root, "val", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        for seed in [None, 1]:
            source = ImageNet(root)
            if seed is not None:
                source.shuffle(seed)
            found = [[path.relative_to(root).as_posix(), label] for path, label in source]
            yield {"seed": seed, "images": found}


def wnids():
    for text in [
        "n01440764",
        "a/n01440764/n03709823_1.JPEG",
        "xn012345678",
        "n0144076",
        "N01440764",
    ]:
        try:
            yield [text, parse_wnid(text)]
        except ValueError:
            yield [text, None]


def fails(make):
    try:
        make()
    except ValueError:
        return True
    return False


warnings.simplefilter("ignore")
refused = [list(case) for case in refused_samplers()]
for name, n, arguments in refused:
    assert fails(lambda: getattr(spdl.source, name)(n, **arguments)), (name, n, arguments)
wrong = [list(case) for case in refused_merges()]
for lengths, arguments in wrong:
    parts = [range(length) for length in lengths]
    assert fails(lambda: spdl.source.utils.MergeIterator(parts, **arguments)), arguments
golden = {
    "samplers": list(samplers()),
    "refused samplers": refused,
    "merges": list(merges()),
    "refused merges": wrong,
    "shuffles": list(shuffles()),
    "repeats": list(repeats()),
    "names": NAMES,
    "directories": list(directories()),
    "image names": IMAGES,
    "images": list(images()),
    "wnids": list(wnids()),
}
parts = []
for key, rows in golden.items():
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    parts.append(f"{json.dumps(key)}: [\n  {lines}\n]")
out = Path(__file__).resolve().parent / "upstream_source.json"
out.write_text("{\n" + ",\n".join(parts) + "\n}\n")
