"""Loads images with NVIDIA DALI; all operators run on the CPU."""

import numpy as np
from nvidia.dali import fn, pipeline_def, types

import common


@pipeline_def
def loader(options):
    files = options.files * options.epochs
    encoded, labels = fn.readers.file(
        files=[path for path, _ in files],
        labels=[label for _, label in files],
        name="reader",
        prefetch_queue_depth=4,
    )
    size = common.SIZE
    settings = {"device": "cpu", "output_type": types.RGB, "adjust_orientation": False}
    if options.mode == "eval":
        pictures = fn.decoders.image(encoded, **settings)
        pictures = fn.resize(pictures, resize_shorter=common.EVAL_RESIZE, antialias=True)
        pictures = fn.crop(pictures, crop=(size, size))
    else:
        pictures = fn.decoders.image_random_crop(
            encoded, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3], **settings
        )
        pictures = fn.resize(pictures, resize_x=size, resize_y=size, antialias=True)
        pictures = fn.flip(pictures, horizontal=fn.random.coin_flip())
    return pictures, labels


def batches(options):
    pipeline = loader(
        options, batch_size=common.BATCH, num_threads=options.workers, device_id=None
    )
    pipeline.build()
    left = len(options.files) * options.epochs
    while left > 0:
        pictures, labels = pipeline.run()
        # The reader begins anew in the last batch, which is truncated here.
        here = min(left, common.BATCH)
        yield np.asarray(pictures.as_tensor())[:here], np.asarray(labels.as_tensor())[:here, 0]
        left -= here


if __name__ == "__main__":
    options = common.arguments()
    common.measure(lambda: batches(options))
