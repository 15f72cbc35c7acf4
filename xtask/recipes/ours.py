"""`spdl_rs.Loader` with the recipes of all tasks."""

import time

import numpy as np
import spdl_rs
from spdl_rs import fields, recipes, sequences, sources
from spdl_rs.io import Letterbox, RandAugment, RandomErasing, RandomResizedCrop, Stretch

import common


def tokenize(batch):
    return batch["image"], np.array([common.tokenize(text) for text in batch["caption"]])


def arguments(task):
    layout = "nchw-f32"
    if task == "packing":
        group = sequences.Pack("tokens", length=common.CAPACITY)
        return {"tokens": fields.Array(None, "int64"), "group": group}
    if task == "deit":
        mix = recipes.deit_mix(common.CLASSES)
        # The RandAugment of torchvision, as for the other loaders.
        erasing = RandomErasing(p=0.25, scale=(0.02, 1 / 3), ratio=(0.3, 1 / 0.3), value="random")
        augment = (RandAugment(2, 9, interpolation="bilinear"), erasing)
        image = recipes.deit(common.CLASSIFICATION, augment=augment)
        return {"image": image, "label": fields.Label(stored_as="cls"), "mix": mix}
    if task == "simclr":
        return {"fields": recipes.simclr(common.CLASSIFICATION)}
    if task == "dino":
        return {"fields": recipes.dino(common.CLASSIFICATION)}
    if task == "detection":
        return {
            "image": fields.Image(
                common.DETECTION, crop=Letterbox(fill=114), horizontal_flip=0.5, layout=layout
            ),
            "boxes": fields.Boxes(stored_as="json", at="boxes", min_area=1.0),
            "classes": fields.Array(
                None, "int64", stored_as="json", at="classes", rows_of="boxes"
            ),
        }
    if task == "segmentation":
        crop = RandomResizedCrop((0.25, 1.0))
        return {
            "image": fields.Image(
                common.SEGMENTATION, crop=crop, horizontal_flip=0.5, layout=layout
            ),
            "mask": fields.Mask(stored_as="seg.png", outside=255),
        }
    image = recipes.clip(common.CLASSIFICATION)
    return {"image": image, "caption": fields.Text(stored_as="txt"), "batch_map": tokenize}


def audio(options):
    files = common.audio_files(options.data, options.task)
    if options.task == "whisper":
        field = fields.Mel(frames=common.SECONDS * common.RATES["whisper"])
    elif options.task == common.WINDOWS:
        files = sources.Source(files).where([0] * common.WINDOW_COUNT)
        field = fields.Audio(channels=1, frames=common.HOUR_RATE, random=True)
    else:
        field = fields.Audio(channels=1, frames=common.SECONDS * common.RATES[options.task])
    loader = spdl_rs.Loader(
        files, batch_size=common.BATCH, shuffle=True, threads=options.workers, audio=field
    )
    for _ in range(options.epochs):
        for batch in loader:
            yield batch["audio"]


def full_decode(options):
    """The seconds for all samples of the long file, on one thread."""
    frames = common.HOUR * common.HOUR_RATE
    files = common.audio_files(options.data, options.task)
    start = time.perf_counter()
    loader = spdl_rs.Loader(
        files,
        batch_size=1,
        threads=1,
        max_file_bytes=1 << 30,
        audio=fields.Audio(channels=1, frames=frames),
    )
    assert [batch["audio"].shape for batch in loader] == [(1, 1, frames)]
    return {"full_decode_s": time.perf_counter() - start}


def video(options):
    clip = {
        "even": {},
        "window": {"every": 4, "random": True},
        "all": {"every": 1},
    }[common.VIDEO_TASKS[options.task][1]]
    frames = common.frame_count(options.task)
    loader = spdl_rs.Loader(
        common.video_files(options.data, options.task),
        batch_size=common.VIDEO_TASKS[options.task][2],
        shuffle=True,
        threads=options.workers,
        video=fields.Video(common.CLASSIFICATION, frames=frames, crop=Stretch(), **clip),
    )
    for _ in range(options.epochs):
        for batch in loader:
            yield batch["video"]


def batches(options):
    given = arguments(options.task)
    packs = "group" in given
    loader = spdl_rs.Loader(
        common.token_table(options.data) if packs else common.shards(options.data),
        batch_size=common.SEQUENCES if packs else common.BATCH,
        shuffle=True,
        output="dict" if packs or "batch_map" in given else "tuple",
        threads=options.workers,
        **given,
    )
    for _ in range(options.epochs):
        for batch in loader:
            yield (batch["tokens"], batch["position_ids"], batch["cu_seqlens"]) if packs else batch


if __name__ == "__main__":
    options = common.arguments()
    if options.task in common.AUDIO:
        make = audio
    else:
        make = video if options.task in common.VIDEO_TASKS else batches
    more = full_decode(options) if options.task == common.WINDOWS else {}
    common.measure(options.task, lambda: make(options), **more)
