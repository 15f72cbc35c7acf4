"""Runs of `Loader` that are killed at random moments, and resume: no batch and no sample differs.

The module is also the program that is killed: `python test_loader_kills.py LOADER FOLDER FILE [RANKS]`.
"""

import gzip
import importlib.util
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
import zlib

import numpy
import pytest
from arrow_columns import Columns
from conftest import picture, write_png
from dataset_files import (
    write_coco,
    write_csv,
    write_litdata,
    write_lmdb,
    write_mds,
    write_members,
    write_recordio,
    write_tfrecord,
    write_voc,
    write_zip,
)
from media_files import H264, ramp, wav_bytes
from spdl_rs import Loader, fields, recipes
from spdl_rs.fields import Ragged
from spdl_rs.io import AspectBuckets, Letterbox
from spdl_rs.io.utils import get_ffmpeg_versions
from spdl_rs.sequences import Bucket, ConcatAndSplit, Pack, SameSize
from spdl_rs.sources import Source, concat, curriculum, mix, shuffled
from test_loader import SAMPLES, all_fields, copies, from_json, frozen, grey_png, members, png_of_depths
from test_loader_items import ITEMS, Pets, of_pets
from test_sequences import LENGTHS, loader_of, samples, write

EPOCHS = 2
# The number of kills of each loader.
KILLS = int(os.environ.get("SPDL_KILLS", "1"))
PARQUET = pathlib.Path(__file__).parents[2] / "spdl-io/tests/data/parquet/images.parquet"
TOKENIZER = pathlib.Path(__file__).parent / "golden/tokenizers/bpe.json"


def brighter(sample, rng):
    return {**sample, "image": sample["image"] * rng.uniform(0.5, 1.0), "drawn": rng.random()}


def doubled(batch, rng):
    return {**batch, "of_batch": rng.random()}


def is_even(sample):
    return sample["label"] % 2 == 0


def of_shard(data, sample_fields, **settings):
    return Loader(data / "shard.tar", sample_fields, **settings)


def with_recipe(data, **settings):
    sample_fields = {
        "image": recipes.deit(16),
        "label": fields.Label(),
        "not_mixed": recipes.deit(16, view=1),
        "key": fields.Key(),
    }
    return of_shard(data, sample_fields, mix=recipes.deit_mix(3), **settings)


def with_functions(data, processes=2, **settings):
    functions = {"map": brighter, "batch_map": doubled, "executor": "processes", "processes": processes}
    sample_fields = {"image": fields.Image(16, train=True), "key": fields.Key()}
    return of_shard(data, sample_fields, **functions, **settings)


def of_geometry(data, **settings):
    sample_fields = {
        "image": fields.Image((30, 40), train=True),
        "depth": fields.Depth(stored_as="depth.png"),
        "points": from_json(fields.KeyPoints, "points", (2, 3)),
        "tokens": fields.Tokens(TOKENIZER, stored_as="txt"),
        "geometry": fields.Geometry(),
        "size": fields.ImageSize(),
        "key": fields.Key(),
    }
    return Loader(data / "targets.tar", sample_fields, **settings)


def with_boxes(combine):
    sample_fields = {
        "image": fields.Image(32, crop=Letterbox(), horizontal_flip=0.5),
        "boxes": from_json(fields.Boxes, "boxes", format="xywh"),
        "classes": from_json(fields.Array, "classes", None, "int64", rows_of="boxes"),
        "not_mixed": fields.Image(16, train=True, view=1),
        "key": fields.Key(),
    }
    return lambda data, **settings: of_shard(data, sample_fields, mix=combine, **settings)


def of_sequences(group):
    return lambda data, **settings: loader_of(data / "sequences.jsonl", group, collate="list", **settings)


def of_sizes(data, **settings):
    image = fields.Image(crop=AspectBuckets([(20, 40), (30, 30), (40, 20)], random=True))
    sample_fields = {"image": image, "key": fields.Key()}
    return Loader(data / "sizes.tar", sample_fields, group=SameSize("image"), **settings)


def of_columns(data, **settings):
    columns = Columns(
        image=[path.read_bytes() for path in images_in(data)], number=list(range(ITEMS))
    )
    sample_fields = {"image": fields.Image(16, train=True), "number": fields.Number("int64")}
    return Loader(columns, sample_fields, key=fields.Key(), **settings)


def of_source(choose, **own):
    """Images of a source: the fields `own`, or an image."""
    sample_fields = {**(own or {"image": fields.Image(16, train=True)}), "key": fields.Key()}
    return lambda data, **settings: Loader(choose(data), sample_fields, **settings)


def of_several(data):
    names = ["litdata", "images.rec", "images_lmdb", "images.zip"]
    parts = [Source(str(data / name)) for name in names]
    return mix([concat(parts[0], parts[1].take(5)), parts[2].skip(3), parts[3]], weights=[3, 2, 1])


def of_epoch(data):
    return curriculum(lambda epoch: concat(data / "images.zip", Source(data / "images.rec").take(4 + 4 * epoch)))


class Rows:
    """An iterable of samples."""

    def __init__(self, folder):
        self.images = images_in(folder)

    def __iter__(self):
        return ({"image": path.read_bytes(), "number": number} for number, path in enumerate(self.images))


def of_iterable(data, **settings):
    # The source shuffles.
    settings["shuffle"] = False
    sample_fields = {"image": fields.Image(16, train=True), "number": fields.Number("int64"), "key": fields.Key()}
    return Loader(shuffled(Rows(data), window=8, seed=3), sample_fields, **settings)


def of_items(data, **settings):
    return of_pets(Pets(images_in(data)), **settings)


LOADERS = {
    "fields": lambda data, **settings: of_shard(data, all_fields(), **settings),
    "fields of geometry": of_geometry,
    "a recipe": with_recipe,
    "views": of_source(lambda data: data / "mds", **recipes.simclr(16)),
    "crops": of_source(
        lambda data: data / "images.tfrecord", **recipes.dino(16, local_size=8, local_crops=2)
    ),
    "functions": with_functions,
    "a filter": lambda data, **settings: of_shard(data, all_fields(), filter=is_even, **settings),
    "mosaics": with_boxes(recipes.Mosaic(p=0.5)),
    "pasted objects": with_boxes(recipes.CopyPaste(p=0.5)),
    "packing": of_sequences(Pack("tokens", length=24)),
    "blocks": of_sequences(ConcatAndSplit("tokens", length=9, separator=-1)),
    "buckets": of_sequences(Bucket("tokens", max_tokens=40)),
    "sizes": of_sizes,
    "a table": of_columns,
    "a data set": of_items,
    "chunks": of_source(lambda data: data / "litdata"),
    "a database": of_source(lambda data: data / "images_lmdb"),
    "an archive": of_source(lambda data: data / "images.zip"),
    "COCO": of_source(lambda data: data / "coco/annotations/instances.json", **recipes.coco_detection(32)),
    "zooms and crops around boxes": of_source(
        lambda data: data / "coco/annotations/instances.json", **recipes.ssd_detection(32)
    ),
    "VOC": of_source(lambda data: data / "voc/ImageSets/Segmentation/train.txt", **recipes.ade20k(16, mask="mask")),
    "CSV": of_source(
        lambda data: data / "images.csv", image=fields.Image(16, train=True), label=fields.Label()
    ),
    "JSON lines": of_source(
        lambda data: data / "images.jsonl", image=fields.Image(16, train=True), mask=fields.Mask()
    ),
    "Parquet": of_source(
        lambda data: str(data / "images-*.parquet"), image=fields.Image(16, train=True), text=fields.Text(stored_as="caption")
    ),
    "bytes and addresses": of_source(
        lambda data: data / "part-{0..2}.tar", image=fields.Bytes(stored_as="png"), url=fields.Url()
    ),
    "images and captions": of_source(
        lambda data: data / "shard.tar", image=recipes.clip(16), caption=fields.Text(stored_as="txt")
    ),
    "compressed shards": lambda data, **settings: Loader(
        data / "part-{0..2}.tgz", {"image": recipes.clip(16), "key": fields.Key()}, sequential=True, **settings
    ),
    "an Arrow file": of_source(
        lambda data: data / "images.arrow", image=fields.Image(16, train=True), number=fields.Number("int64")
    ),
    "shards in order": lambda data, **settings: Loader(
        data / "part-{0..2}.tar", {"image": recipes.imagenet_train(16), "key": fields.Key()}, sequential=True, **settings
    ),
    "several data sets": of_source(of_several),
    "a curriculum": of_source(of_epoch),
    "an iterable": of_iterable,
    "audio": of_source(
        lambda data: data / "audio", audio=fields.Audio(frames=1000, channel=0, random=True), frames=fields.AudioFrames()
    ),
    "features of audio": of_source(lambda data: data / "audio", mel=fields.Mel("fbank"), n=fields.AudioFrames(like="mel")),
}
if get_ffmpeg_versions():
    clip = fields.Video(16, frames=3, every=2, random=True, train=True)
    LOADERS["video"] = of_source(lambda data: data / "video", video=clip, times=fields.VideoTimes())


# Fields whose values depend on the other samples of the batch.
OF_BATCHES = {
    "a recipe": ["image", "label"],
    "functions": ["of_batch"],
    "mosaics": ["image", "boxes", "classes"],
    "pasted objects": ["image", "boxes", "classes"],
}
# Blocks divide samples: another number of ranks divides them at other places, and repeats samples of which a part was
# delivered. So tokens are compared, not samples.
DIVIDED = "blocks"
NEEDS_PYARROW = [
    pytest.mark.frameworks,
    pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed"),
]
NAMES = [pytest.param(name, marks=NEEDS_PYARROW) if name == "an Arrow file" else name for name in LOADERS]


def images_in(data):
    return sorted(data.glob("*.png"))


def targets(number, folder):
    """The files of a sample for `of_geometry`."""
    write_png(str(folder / "image.png"), picture(number, 40 + number, 60))
    depths = numpy.arange((40 + number) * 60, dtype="u2").reshape(40 + number, 60) * (number + 1)
    points = {"points": [[number, 10, 2], [30, 20 + number, 1]]}
    return [
        (f"{number:03}.png", (folder / "image.png").read_bytes()),
        (f"{number:03}.depth.png", png_of_depths(depths)),
        (f"{number:03}.json", json.dumps(points).encode()),
        (f"{number:03}.txt", f"the cats sat on {number} mats".encode()),
    ]


def write_arrow(path, images):
    import pyarrow.ipc

    table = pyarrow.table({"image": images, "number": range(len(images))})
    with pyarrow.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=10)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kills")
    (folder / "parts").mkdir()
    parts = [member for number in range(SAMPLES) for member in members(number, folder / "parts")]
    write_members(folder / "shard.tar", parts)
    parts = [member for number in range(SAMPLES) for member in targets(number, folder / "parts")]
    write_members(folder / "targets.tar", parts)
    for number in range(ITEMS):
        write_png(str(folder / f"{number:02}.png"), picture(number))
    write(folder / "sequences.jsonl", LENGTHS)
    samples = [(path.stem, path.read_bytes(), number % 3) for number, path in enumerate(images_in(folder))]
    images = [image for _, image, _ in samples]
    write_litdata(folder / "litdata", samples)
    write_mds(folder / "mds", samples)
    write_tfrecord(folder / "images.tfrecord", samples)
    write_recordio(folder / "images.rec", samples)
    (folder / "images_lmdb").mkdir()
    write_lmdb(folder / "images_lmdb" / "data.mdb", samples)
    write_zip(folder / "images.zip", [(f"{name}.png", image) for name, image, _ in samples])
    for number in range(3):
        shard = [(f"{name}.png", image) for name, image, _ in samples[number::3]]
        write_members(folder / f"part-{number}.tar", shard)
        (folder / f"part-{number}.tgz").write_bytes(gzip.compress((folder / f"part-{number}.tar").read_bytes()))
    for number in range(2):
        shutil.copy(PARQUET, folder / f"images-{number}.parquet")
    boxes = [[[number, 10, 20, 30], [40, 5, 30, 20]][: 1 + number % 2] for number in range(ITEMS)]
    write_coco(folder / "coco", images, boxes)
    masks = [grey_png(numpy.full((60, 80), number % 20, "u1")) for number in range(ITEMS)]
    write_voc(folder / "voc", images, masks)
    write_csv(folder / "images.csv", [(f"{name}.png", label) for name, _, label in samples])
    rows = [{"image": f"{name}.png", "mask": f"voc/SegmentationClass/{int(name):03}.png"} for name, _, _ in samples]
    if importlib.util.find_spec("pyarrow"):
        write_arrow(folder / "images.arrow", images)
    (folder / "images.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for number in range(ITEMS):
        write_png(str(folder / "parts/image.png"), picture(number, 20 + number, 50 - number))
        rows[number] = (f"{number:02}.png", (folder / "parts/image.png").read_bytes())
    write_members(folder / "sizes.tar", rows)
    for name in ("audio", "video"):
        (folder / name).mkdir()
    for number in range(ITEMS):
        (folder / f"audio/{number:02}.wav").write_bytes(wav_bytes(ramp(1500 + 100 * number, 2) + number, 8000))
        shutil.copy(H264, folder / f"video/{number:02}.mp4")
    return folder


def checksum(value):
    return zlib.crc32(repr(value).encode())


def save(file, *saved):
    new = f"{file}.new"
    with open(new, "w") as opened:
        json.dump(saved, opened)
    os.replace(new, file)
    print("step", flush=True)


def batches_of(loader):
    """The checksum of each batch of the remaining epochs."""
    while loader.epoch < EPOCHS:
        for batch in loader:
            yield checksum(copies([batch]))


def loader_to_train(name, folder):
    threads = random.choice([1, 3])
    return LOADERS[name](pathlib.Path(folder), batch_size=3, shuffle=True, seed=5, threads=threads)


def train(name, folder, file):
    """Saves the state and the checksums of all batches after each batch."""
    loader = loader_to_train(name, folder)
    checksums = []
    if os.path.exists(file):
        state, checksums = json.loads(pathlib.Path(file).read_text())
        loader.load_state_dict(state)
    for one in batches_of(loader):
        checksums.append(one)
        save(file, loader.state_dict(), checksums)


def rows_of(value):
    """The value of each sample of a field."""
    if isinstance(value, Ragged):
        return [frozen(value.values[start:end]) for start, end in zip(value.offsets, value.offsets[1:])]
    return frozen(list(value))


def samples_of(name, batch):
    """The key of each sample of a batch, and the checksum of its values that do not depend on the batch."""
    if name == DIVIDED:
        parts = zip(batch["key"], samples(batch), strict=True)
        return [[key, token] for key, tokens in parts for token in tokens]
    if "cu_seqlens" in batch:
        return [[key, checksum(tokens)] for key, tokens in zip(batch["key"], samples(batch), strict=True)]
    values = [rows_of(value) for field, value in batch.items() if field not in OF_BATCHES.get(name, [])]
    return [[key, checksum([value[row] for value in values])] for row, key in enumerate(batch["key"])]


def loader_of_rank(name, folder, rank, ranks):
    settings = {"batch_size": 2, "shuffle": True, "seed": 5, "remainder": "uneven"}
    if name == "functions":
        settings["processes"] = 1
    return LOADERS[name](pathlib.Path(folder), rank=rank, world_size=ranks, **settings)


def train_ranks(name, folder, file, ranks):
    """One epoch of all ranks, in turns; the number of ranks may differ from that of the last run."""
    delivered, state = [], None
    if os.path.exists(file):
        states, delivered = json.loads(pathlib.Path(file).read_text())
        state = Loader.combine_states(states, repeat_parts=name == DIVIDED)
    loaders = []
    for rank in range(ranks):
        loader = loader_of_rank(name, folder, rank, ranks)
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
            delivered += sorted(samples_of(name, batch))
            save(file, [loader.state_dict() for loader in loaders], delivered)


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


# promise: R11, PY4, PY5, PY6
@pytest.mark.parametrize("name", NAMES)
def test_a_killed_run_resumes_with_identical_batches(name, data, tmp_path):
    # This process makes the batches that other processes must repeat.
    expected = list(batches_of(loader_to_train(name, data)))
    assert len(expected) > 2 * EPOCHS and len(set(expected)) == len(expected)
    file = tmp_path / "killed.json"
    training = Training(name, data, file, name)
    kills = 0
    # A run that was killed before its first step has nothing to resume.
    while kills < KILLS or not file.exists():
        left = len(expected)
        if file.exists():
            left -= len(json.loads(file.read_text())[1])
        if left < 2:
            file.unlink()
            continue
        kills += training.run(kill_after=training.draw.randrange(min(left, 6))) == -signal.SIGKILL
    assert training.run() == 0
    assert json.loads(file.read_text())[1] == expected


# promise: R11, PY4, PY6
@pytest.mark.parametrize("name", NAMES)
def test_killed_ranks_resume_with_other_numbers_of_ranks(name, data, tmp_path):
    batches = loader_of_rank(name, data, 0, 1)
    expected = sorted(pair for batch in batches for pair in samples_of(name, batch))
    assert len(expected) >= 12
    file = tmp_path / "killed.json"
    training = Training(name, data, file, name)
    kills = 0
    # A run that was killed before its first step has nothing to resume.
    while kills < KILLS or not file.exists():
        ranks = training.draw.randrange(1, 4)
        kills += training.run(ranks, kill_after=training.draw.randrange(4)) == -signal.SIGKILL
        if file.exists() and len(json.loads(file.read_text())[1]) > len(expected) - 4:
            file.unlink()
    assert training.run(2) == 0
    found = sorted(json.loads(file.read_text())[1])
    if name == DIVIDED:
        # Each rank had delivered a part of at most one sample when it was killed.
        repeated = len(found) - len(expected)
        assert repeated <= kills * 3 * max(LENGTHS)
        found = sorted([key, token] for key, token in set(map(tuple, found)))
    assert found == expected


# Loaders whose steps are known only after a run, and why.
UNKNOWN_STEPS = {
    "a filter": "filter",
    "packing": "Pack",
    "blocks": "ConcatAndSplit",
    "buckets": "Bucket",
    "sizes": "SameSize",
    "an iterable": "unknown length",
    "COCO": "'boxes' drops",
    "zooms and crops around boxes": "'boxes' drops",
}


# promise: R13
@pytest.mark.parametrize("name", NAMES)
def test_steps_of_an_epoch_have_the_batches_of_the_whole_epoch(name, data):
    loader = loader_to_train(name, data)
    if name in UNKNOWN_STEPS:
        with pytest.raises(ValueError, match=UNKNOWN_STEPS[name]):
            loader.steps(1, 0, 1)
        return
    for epoch in range(EPOCHS):
        expected, states = [], []
        for batch in loader:
            expected.append(checksum(copies([batch])))
            states.append(loader.state_dict())
        last = len(expected)
        other = loader_to_train(name, data)
        assert [other.state_at(epoch, step) for step in range(1, last + 1)] == states
        for start, stop in [(0, 1), (1, 3), (last - 2, last), (2, 2)]:
            found = [checksum(copies([batch])) for batch in other.steps(epoch, start, stop)]
            assert found == expected[start:stop], (epoch, start, stop)
        assert other.epoch == 0
        with pytest.raises(ValueError, match=f"{last + 1}.*{last}"):
            other.state_at(epoch, last + 1)


@pytest.mark.parametrize("name", ["fields", "several data sets", "shards in order"])
def test_steps_continue_a_combined_state(name, data):
    states = []
    for rank in range(2):
        loader = loader_of_rank(name, data, rank, 2)
        for _, _batch in zip(range(1 + rank), loader):
            state = loader.state_dict()
        states.append(state)
    combined = Loader.combine_states(states)
    loader, other = loader_of_rank(name, data, 0, 1), loader_of_rank(name, data, 0, 1)
    loader.load_state_dict(combined)
    other.load_state_dict(combined)
    first = combined["steps_in_epoch"]
    assert first == 2
    expected, after = [], []
    for batch in loader:
        expected.append(checksum(copies([batch])))
        after.append(loader.state_dict())
    for step in (1, 2):
        assert other.state_at(0, first + step) == after[step - 1]
        found = [checksum(copies([batch])) for batch in other.steps(0, first + step, first + step + 2)]
        assert found == expected[step : step + 2]
        # The loader has read the rest of the epoch, and can be asked again.
        assert loader.state_at(0, first + step) == after[step - 1]
    with pytest.raises(ValueError, match="step 1 of epoch 0 was delivered before"):
        other.steps(0, 1, 3)


def test_steps_are_refused_if_failed_samples_are_dropped(data):
    loader = LOADERS["fields"](data, batch_size=3, on_error="skip")
    with pytest.raises(ValueError, match="on_error drops samples"):
        loader.state_at(0, 1)


if __name__ == "__main__":
    train_ranks(*sys.argv[1:4], int(sys.argv[4])) if sys.argv[4:] else train(*sys.argv[1:])
