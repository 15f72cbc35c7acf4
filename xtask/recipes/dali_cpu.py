"""NVIDIA DALI with the recipe of DeiT; all operators run on the CPU. MixUp is applied to all batches."""

import numpy as np
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.auto_aug import rand_augment

import common


@pipeline_def(enable_conditionals=True)
def deit(options):
    stems = common.stems(options.data)
    labels = [int(open(stem + ".cls").read()) for stem in stems]
    encoded, label = fn.readers.file(
        files=[stem + ".jpg" for stem in stems],
        labels=labels,
        random_shuffle=True,
        initial_fill=len(stems),
        prefetch_queue_depth=4,
    )
    images = fn.decoders.image_random_crop(
        encoded,
        device="cpu",
        output_type=types.RGB,
        random_area=[0.08, 1.0],
        random_aspect_ratio=[3 / 4, 4 / 3],
    )
    size = common.CLASSIFICATION
    images = fn.resize(
        images, size=(size, size), interp_type=types.INTERP_CUBIC, antialias=True
    )
    images = rand_augment.rand_augment(images, n=2, m=9, shape=(size, size))
    images = fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="CHW",
        mean=[255 * value for value in common.MEAN],
        std=[255 * value for value in common.STD],
        mirror=fn.random.coin_flip(),
    )
    if fn.random.coin_flip(probability=0.25, dtype=types.BOOL):
        images = fn.erase(
            images,
            anchor=fn.random.uniform(range=[0.0, 0.6], shape=2),
            shape=fn.random.uniform(range=[0.15, 0.5], shape=2),
            axis_names="HW",
            normalized_anchor=True,
            normalized_shape=True,
        )
    targets = fn.one_hot(label, num_classes=common.CLASSES) * 0.9 + 0.1 / common.CLASSES
    others = fn.batch_permutation()
    share = fn.random.beta(alpha=0.8, beta=0.8)
    images = images * share + fn.permute_batch(images, indices=others) * (1 - share)
    targets = targets * share + fn.permute_batch(targets, indices=others) * (1 - share)
    return images, targets


def batches(options):
    pipeline = deit(
        options, batch_size=common.BATCH, num_threads=options.workers, device_id=None
    )
    pipeline.build()
    left = len(common.stems(options.data)) * options.epochs
    while left > 0:
        images, targets = pipeline.run()
        # The reader begins anew in the last batch, which is truncated here.
        here = min(left, common.BATCH)
        yield np.asarray(images.as_tensor())[:here], np.asarray(targets.as_tensor())[:here]
        left -= here


if __name__ == "__main__":
    options = common.arguments()
    common.measure(options.task, lambda: batches(options))
