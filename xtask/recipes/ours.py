"""`spdl_rs.Loader` with the recipes of all tasks."""

import numpy as np
import spdl_rs
from spdl_rs import fields, recipes
from spdl_rs.io import Letterbox, RandAugment, RandomErasing, RandomResizedCrop

import common


def tokenize(batch):
    return batch["image"], np.array([common.tokenize(text) for text in batch["caption"]])


def arguments(task):
    layout = "nchw-f32"
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


def batches(options):
    given = arguments(options.task)
    output = "dict" if "batch_map" in given else "tuple"
    loader = spdl_rs.Loader(
        common.shards(options.data),
        batch_size=common.BATCH,
        shuffle=True,
        output=output,
        threads=options.workers,
        **given,
    )
    for _ in range(options.epochs):
        yield from loader


if __name__ == "__main__":
    options = common.arguments()
    common.measure(options.task, lambda: batches(options))
