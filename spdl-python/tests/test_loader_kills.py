"""Runs of `Loader` that are killed at random moments, and resume: no batch and no sample differs.

The module is also the program that is killed: `python test_loader_kills.py LOADER FOLDER FILE [RANKS]`.
"""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import zlib

import pytest
from arrow_columns import Columns
from conftest import picture, write_png
from dataset_files import write_litdata, write_lmdb, write_members, write_recordio, write_zip
from spdl_rs import Loader, fields, recipes
from spdl_rs.sequences import Bucket, ConcatAndSplit, Pack
from spdl_rs.sources import Source, concat, mix
from test_loader import SAMPLES, all_fields, copies, frozen, members
from test_loader_items import ITEMS, Pets, of_pets
from test_sequences import LENGTHS, loader_of, write

EPOCHS = 2
# The number of kills of each loader.
KILLS = int(os.environ.get("SPDL_KILLS", "1"))


def brighter(sample, rng):
    return {**sample, "image": sample["image"] * rng.uniform(0.5, 1.0), "drawn": rng.random()}


def doubled(batch, rng):
    return {**batch, "of_batch": rng.random()}


def is_even(sample):
    return sample["label"] % 2 == 0


def of_shard(data, sample_fields, **settings):
    return Loader(data / "shard.tar", sample_fields, **settings)


def with_recipe(data, **settings):
    sample_fields = {"image": recipes.deit(16), "label": fields.Label()}
    return of_shard(data, sample_fields, mix=recipes.deit_mix(3), **settings)


def with_functions(data, **settings):
    functions = {"map": brighter, "batch_map": doubled, "executor": "processes", "processes": 2}
    sample_fields = {"image": fields.Image(16, train=True), "key": fields.Key()}
    return of_shard(data, sample_fields, **functions, **settings)


def of_sequences(group):
    return lambda data, **settings: loader_of(data / "sequences.jsonl", group, collate="list", **settings)


def of_columns(data, **settings):
    columns = Columns(
        image=[path.read_bytes() for path in images_in(data)], number=list(range(ITEMS))
    )
    sample_fields = {"image": fields.Image(16, train=True), "number": fields.Number("int64")}
    return Loader(columns, sample_fields, key=fields.Key(), **settings)


def of_images(choose):
    sample_fields = {"image": fields.Image(16, train=True), "key": fields.Key()}
    return lambda data, **settings: Loader(choose(data), sample_fields, **settings)


def of_several(data):
    names = ["litdata", "images.rec", "images_lmdb", "images.zip"]
    parts = [Source(str(data / name)) for name in names]
    return mix([concat(parts[0], parts[1].take(5)), parts[2].skip(3), parts[3]], weights=[3, 2, 1])


def of_items(data, **settings):
    return of_pets(Pets(images_in(data)), **settings)


LOADERS = {
    "fields": lambda data, **settings: of_shard(data, all_fields(), **settings),
    "a recipe": with_recipe,
    "functions": with_functions,
    "a filter": lambda data, **settings: of_shard(data, all_fields(), filter=is_even, **settings),
    "packing": of_sequences(Pack("tokens", length=24)),
    "blocks": of_sequences(ConcatAndSplit("tokens", length=9, separator=-1)),
    "buckets": of_sequences(Bucket("tokens", max_tokens=40)),
    "a table": of_columns,
    "a data set": of_items,
    "chunks": of_images(lambda data: data / "litdata"),
    "a database": of_images(lambda data: data / "images_lmdb"),
    "an archive": of_images(lambda data: data / "images.zip"),
    "several data sets": of_images(of_several),
}


def images_in(data):
    return sorted(data.glob("*.png"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kills")
    (folder / "parts").mkdir()
    parts = [member for number in range(SAMPLES) for member in members(number, folder / "parts")]
    write_members(folder / "shard.tar", parts)
    for number in range(ITEMS):
        write_png(str(folder / f"{number:02}.png"), picture(number))
    write(folder / "sequences.jsonl", LENGTHS)
    samples = [(path.stem, path.read_bytes(), 0) for path in images_in(folder)]
    write_litdata(folder / "litdata", samples)
    write_recordio(folder / "images.rec", samples)
    (folder / "images_lmdb").mkdir()
    write_lmdb(folder / "images_lmdb" / "data.mdb", samples)
    write_zip(folder / "images.zip", [(f"{name}.png", image) for name, image, _ in samples])
    return folder


def checksum(value):
    return zlib.crc32(repr(value).encode())


def save(file, *saved):
    new = f"{file}.new"
    with open(new, "w") as opened:
        json.dump(saved, opened)
    os.replace(new, file)
    print("step", flush=True)


def train(name, folder, file):
    """Saves the state and the checksums of all batches after each batch."""
    loader = LOADERS[name](
        pathlib.Path(folder), batch_size=3, shuffle=True, seed=5, threads=random.choice([1, 3])
    )
    checksums = []
    if os.path.exists(file):
        state, checksums = json.loads(pathlib.Path(file).read_text())
        loader.load_state_dict(state)
    while loader.epoch < EPOCHS:
        for batch in loader:
            checksums.append(checksum(copies([batch])))
            save(file, loader.state_dict(), checksums)


def samples_of(batch):
    """The checksum of each sample of a batch, by its key."""
    values = {name: frozen(list(value)) for name, value in batch.items()}
    return {
        key: checksum([value[row] for name, value in values.items() if name != "index"])
        for row, key in enumerate(batch["key"])
    }


def train_ranks(name, folder, file, ranks):
    """One epoch of all ranks, in turns; the number of ranks may differ from that of the last run."""
    samples, state = [], None
    if os.path.exists(file):
        states, samples = json.loads(pathlib.Path(file).read_text())
        state = Loader.combine_states(states)
    loaders = []
    for rank in range(ranks):
        loader = LOADERS[name](
            pathlib.Path(folder),
            batch_size=2,
            shuffle=True,
            seed=5,
            rank=rank,
            world_size=ranks,
            remainder="uneven",
        )
        if state:
            loader.load_state_dict(state)
        loaders.append(loader)
    running = {rank: iter(loader) for rank, loader in enumerate(loaders)}
    while running:
        for rank, batches in list(running.items()):
            batch = next(batches, None)
            if batch is None:
                del running[rank]
                continue
            samples += sorted(samples_of(batch).items())
            save(file, [loader.state_dict() for loader in loaders], samples)


class Training:
    """Runs of the program with one file of states."""

    def __init__(self, name, data, file, seed):
        self.command = [sys.executable, __file__, name, str(data), str(file)]
        self.draw = random.Random(seed)

    def run(self, *arguments, kill_after=None):
        """Runs the program; it is killed at a random moment after a number of batches. Returns its exit code."""
        program = subprocess.Popen(
            [*self.command, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        with program:
            if kill_after is not None:
                for _ in range(kill_after):
                    program.stdout.readline()
                time.sleep(self.draw.uniform(0, 0.02))
                program.kill()
            program.stdout.read()
        return program.returncode


# promise: R11
@pytest.mark.parametrize("name", LOADERS)
def test_a_killed_run_resumes_with_identical_batches(name, data, tmp_path):
    whole = tmp_path / "whole.json"
    assert Training(name, data, whole, 0).run() == 0
    expected = json.loads(whole.read_text())[1]
    assert len(expected) > 2 * EPOCHS and len(set(expected)) == len(expected)
    file = tmp_path / "killed.json"
    training = Training(name, data, file, name)
    kills = 0
    while kills < KILLS:
        left = len(expected)
        if file.exists():
            left -= len(json.loads(file.read_text())[1])
        if left < 2:
            file.unlink()
            continue
        kills += training.run(kill_after=training.draw.randrange(min(left, 6))) == -signal.SIGKILL
    assert training.run() == 0
    assert json.loads(file.read_text())[1] == expected


# promise: R11
@pytest.mark.parametrize("name", ["fields", "a table"])
def test_killed_ranks_resume_with_other_numbers_of_ranks(name, data, tmp_path):
    whole = tmp_path / "whole.json"
    assert Training(name, data, whole, 0).run(1) == 0
    expected = sorted(json.loads(whole.read_text())[1])
    assert len(expected) == ITEMS == SAMPLES
    file = tmp_path / "killed.json"
    training = Training(name, data, file, name)
    kills = 0
    while kills < KILLS:
        ranks = training.draw.randrange(1, 4)
        kills += training.run(ranks, kill_after=training.draw.randrange(4)) == -signal.SIGKILL
        if file.exists() and len(json.loads(file.read_text())[1]) > SAMPLES - 4:
            file.unlink()
    assert training.run(2) == 0
    assert sorted(json.loads(file.read_text())[1]) == expected


if __name__ == "__main__":
    train_ranks(*sys.argv[1:4], int(sys.argv[4])) if sys.argv[4:] else train(*sys.argv[1:])
