"""Measures what parts of a `Loader` cost per sample: the figures of "What a loader fuses" in docs/parallelism.md.

Usage: loader_costs.py PHOTOS [ROUNDS]. PHOTOS is a folder of JPEG files, such as assets/photos. The program writes 256
samples (JPEG of 500 × 375 pixels with mask, boxes and caption) to a temporary tar shard, and measures the CPU time of
all threads and worker processes per sample, and of the thread that takes the batches. The cost is the difference from
the loader of the first line. Cases take turns in each round; the result is the minimum of all rounds.
"""

import io
import json
import os
import pathlib
import sys
import tarfile
import tempfile
import time

import numpy as np
from PIL import Image
from spdl_rs import Loader, fields, recipes
from spdl_rs.io import AspectBuckets, ColorJitter, GaussianBlur, Letterbox, RandAugment, RandomErasing
from spdl_rs.sequences import Pack, SameSize

SAMPLES, EPOCHS, BATCH, THREADS = 256, 4, 64, 2


def write_shard(photos, path):
    pictures = [Image.open(one).convert("RGB") for one in sorted(pathlib.Path(photos).glob("*.jpg"))]
    with tarfile.open(path, "w") as archive:
        for number in range(SAMPLES):
            draw = np.random.default_rng(number)
            encoded, mask = io.BytesIO(), io.BytesIO()
            picture = pictures[number % len(pictures)].rotate(number // len(pictures)).resize((500, 375))
            picture.save(encoded, "JPEG", quality=90)
            Image.fromarray(np.kron(draw.integers(0, 20, (5, 5), "u1"), np.ones((75, 100), "u1"))).save(mask, "PNG")
            document = {"boxes": [[10, 10, 200, 150], [250, 100, 100, 90]], "ids": draw.integers(0, 999, 40).tolist()}
            members = {
                "jpg": encoded.getvalue(),
                "seg.png": mask.getvalue(),
                "json": json.dumps(document).encode(),
                "txt": b"a photograph of a garden in the morning light",
                "cls": str(number % 10).encode(),
            }
            for extension, value in members.items():
                member = tarfile.TarInfo(f"{number:05}.{extension}")
                member.size = len(value)
                archive.addfile(member, io.BytesIO(value))


def same(value):
    return value


def keeps(sample):
    return True


BASE = {"image": fields.Image(224, train=True), "label": fields.Label()}
F32 = {"image": recipes.imagenet_train(224)}
BOXES = fields.Boxes(format="xywh", stored_as="json", at="boxes")


def image(**settings):
    return {"image": fields.Image(224, train=True, **settings)}


def cases():
    yield "Image(224, train=True), Label()", {}
    yield 'layout="nchw-f32", normalised', F32
    for one in (ColorJitter(0.4), RandAugment(2, 9), GaussianBlur(23), RandomErasing(0.25)):
        yield f"augment={type(one).__name__}", image(augment=one)
    yield "a second view", {"second": fields.Image(224, train=True, view=1)}
    yield "Mask", {"mask": fields.Mask(stored_as="seg.png", dtype="uint8")}
    yield "Boxes", {"boxes": BOXES}
    yield "Text", {"text": fields.Text(stored_as="txt")}
    yield "Key, Index, Geometry, ImageSize", {
        "key": fields.Key(), "index": fields.Index(), "geometry": fields.Geometry(), "size": fields.ImageSize()
    }
    ids = {"stored_as": "json", "at": "ids"}
    for collate in ("list", "ragged", "pad"):
        yield f'Array(None, collate="{collate}")', {"ids": fields.Array(None, "int64", collate=collate, **ids)}
    yield "crop=AspectBuckets, group=SameSize", {
        "image": fields.Image(crop=AspectBuckets([(224, 224), (192, 256), (256, 192)])), "group": SameSize("image")
    }
    yield "mix=Mix", {"mix": recipes.Mix(10, mixup=0.8, cutmix=1.0)}
    letterbox = {"image": fields.Image(224, crop=Letterbox()), "boxes": BOXES}
    yield "(Letterbox with Boxes)", letterbox
    yield "mix=Mosaic, with Letterbox and Boxes", {**letterbox, "mix": recipes.Mosaic()}
    yield "mix=CopyPaste, with Letterbox and Boxes", {**letterbox, "mix": recipes.CopyPaste()}
    yield 'output="tuple"', {"output": "tuple"}
    yield 'output="torch"', {"output": "torch"}
    yield "filter", {"filter": keeps}
    yield "map", {"map": same}
    yield "collate", {"collate": same}
    yield "batch_map", {"batch_map": same}
    yield 'batch_map, executor="inline"', {"batch_map": same, "executor": "inline"}
    yield 'batch_map, executor="processes"', {"batch_map": same, "executor": "processes", "processes": 1}
    yield 'map, executor="processes"', {"map": same, "executor": "processes", "processes": 1}
    yield "(Tokens)", {"image": None, "label": None, "ids": fields.Array(None, "int64", **ids)}
    yield "(Tokens), group=Pack", {
        "image": None, "label": None, "ids": fields.Array(None, "int64", **ids), "group": Pack("ids", length=256)
    }


def children_seconds():
    """The CPU time of the running worker processes, from /proc."""
    parents, seconds, ticks = {}, {}, os.sysconf("SC_CLK_TCK")
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            values = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended
        process = int(path.parent.name)
        parents[process] = int(values[1])
        seconds[process] = (int(values[11]) + int(values[12])) / ticks

    def is_worker(process):
        while process in parents:
            process = parents[process]
            if process == os.getpid():
                return True
        return False

    return sum(spent for process, spent in seconds.items() if is_worker(process))


def measure(loader, epochs):
    """CPU seconds of all threads and of the consumer per sample, in microseconds."""
    start, thread = time.process_time() + children_seconds(), time.thread_time()
    for _ in range(epochs):
        for _ in loader:
            pass
    count = SAMPLES * epochs / 1e6
    return (time.process_time() + children_seconds() - start) / count, (time.thread_time() - thread) / count


def main(photos, rounds=3):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "shard.tar")
        write_shard(photos, path)
        loaders = {}
        for name, own in cases():
            arguments = {**BASE, **own}
            arguments = {key: value for key, value in arguments.items() if value is not None}
            try:
                loaders[name] = Loader(path, batch_size=BATCH, shuffle=True, threads=THREADS, **arguments)
                list(loaders[name])
            except ImportError as error:
                print(f"{name}: {error}")
                loaders.pop(name, None)
        best = dict.fromkeys(loaders, (float("inf"), float("inf")))
        for _ in range(int(rounds)):
            for name, loader in loaders.items():
                best[name] = tuple(map(min, best[name], measure(loader, EPOCHS)))
        (first, first_thread), *_ = best.values()
        for name, (cpu, thread) in best.items():
            print(f"{name:45} {cpu:8.0f} µs ({cpu - first:+7.0f})   consumer {thread:6.2f} µs ({thread - first_thread:+6.2f})")


if __name__ == "__main__":
    main(*sys.argv[1:])
