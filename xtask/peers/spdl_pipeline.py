"""Loads images with upstream SPDL: each call decodes one image, as in SPDL's documentation.

FFmpeg's filters crop, scale and convert the frames.
"""

import random

import spdl.io
from spdl.pipeline import PipelineBuilder

import common


def batches(options):
    files = options.files * options.epochs
    side, batch = common.SIZE, common.BATCH

    def decode(item):
        path, label = item
        packets = spdl.io.demux_image(path)
        if options.mode == "eval":
            short = common.EVAL_RESIZE
            filters = f"scale={short}:{short}:force_original_aspect_ratio=increase:flags=bilinear,crop={side}:{side}"
        else:
            left, top, width, height = common.region("train", packets.width, packets.height)
            filters = f"crop={width}:{height}:{left}:{top},scale={side}:{side}:flags=bilinear"
            if random.random() < 0.5:
                filters += ",hflip"
        frames = spdl.io.decode_packets(packets, filter_desc=f"{filters},format=rgb24")
        return frames, label

    def convert(items):
        frames, labels = zip(*items)
        return spdl.io.to_numpy(spdl.io.convert_frames(list(frames))), labels

    pipeline = (
        PipelineBuilder()
        .add_source(files)
        .pipe(decode, concurrency=options.workers)
        .aggregate(batch)
        .pipe(convert)
        .add_sink(4)
        .build(num_threads=options.workers + 1)
    )
    with pipeline.auto_stop():
        yield from pipeline.get_iterator()


if __name__ == "__main__":
    options = common.arguments()
    common.measure(lambda: batches(options))
