"""`spdl_rs.Loader` with the recipes of all tasks."""

import numpy as np
import spdl_rs
from spdl_rs import fields, recipes, sequences
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
    image = recipes.clip_train(common.CLASSIFICATION)
    return {"image": image, "caption": fields.Text(stored_as="txt"), "batch_map": tokenize}


def audio(options):
    frames = common.SECONDS * common.RATES[options.task]
    field = fields.Mel(frames=frames) if options.task == "whisper" else fields.Audio(channels=1, frames=frames)
    loader = spdl_rs.Loader(
        common.audio_files(options.data, options.task),
        batch_size=common.BATCH,
        shuffle=True,
        threads=options.workers,
        audio=field,
    )
    for _ in range(options.epochs):
        for batch in loader:
            yield batch["audio"]


def video(options):
    clip = {"every": 4, "random": True} if common.VIDEO_TASKS[options.task][1] else {}
    loader = spdl_rs.Loader(
        common.video_files(options.data, options.task),
        batch_size=common.CLIPS,
        shuffle=True,
        threads=options.workers,
        video=fields.Video(common.CLASSIFICATION, frames=common.CLIP_FRAMES, crop=Stretch(), **clip),
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
    media = audio if options.task in common.RATES else video
    make = media if options.task in (*common.RATES, *common.VIDEO_TASKS) else batches
    common.measure(options.task, lambda: make(options))
