"""A pool of threads that decode clips of videos, frames of 224 x 224 RGB, by PyAV, TorchCodec, decord2 or SPDL.

Each thread decodes one video at a time, with one decoding thread.
"""

import collections
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import common

SIDE = common.CLASSIFICATION


def by_pyav(path, indices):
    import av

    wanted, found = set(indices), {}
    with av.open(path) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        # To the nearest key frame before the first frame, if there is one.
        rate, base = stream.average_rate, stream.time_base
        container.seek(int(indices[0] / rate / base), stream=stream)
        for frame in container.decode(stream):
            index = round(float(frame.pts * base * rate))
            if index in wanted:
                found[index] = frame.to_ndarray(width=SIDE, height=SIDE, format="rgb24")
                if len(found) == len(wanted):
                    break
    return np.stack([found[index] for index in indices])


def by_torchcodec(path, indices):
    import torchcodec
    from torchcodec.transforms import Resize

    decoder = torchcodec.decoders.VideoDecoder(
        path,
        dimension_order="NHWC",
        num_ffmpeg_threads=1,
        seek_mode="approximate",
        transforms=[Resize((SIDE, SIDE))],
    )
    return decoder.get_frames_at(indices).data.numpy()


def by_decord(path, indices):
    import decord

    reader = decord.VideoReader(path, ctx=decord.cpu(0), width=SIDE, height=SIDE, num_threads=1)
    return reader.get_batch(indices).asnumpy()


def by_spdl(path, indices):
    import spdl.io

    packets = spdl.io.demux_video(path)
    scale = spdl.io.get_video_filter_desc(scale_width=SIDE, scale_height=SIDE, scale_mode=None)
    frames = spdl.io.sample_decode_video(packets, indices, filter_desc=scale)
    return spdl.io.to_numpy(spdl.io.convert_frames(frames))


# The function of each program, and the modules that it imports.
PEERS = {
    "pyav": (by_pyav, ["av"]),
    "torchcodec": (by_torchcodec, ["torchcodec.decoders", "torchcodec.transforms"]),
    "decord": (by_decord, ["decord"]),
    "spdl": (by_spdl, ["spdl.io"]),
}


def batches(options, decode):
    files = common.video_files(options.data, options.task)
    for epoch in range(options.epochs):
        draw = random.Random(epoch)
        draw.shuffle(files)
        with ThreadPoolExecutor(options.workers) as pool:
            pending = collections.deque(
                pool.submit(decode, path, common.video_frames(options.task, draw)) for path in files
            )
            size = common.VIDEO_TASKS[options.task][2]
            while pending:
                batch = [pending.popleft().result() for _ in range(min(size, len(pending)))]
                yield np.stack(batch)


def main(name):
    options = common.arguments()
    decode, modules = PEERS[name]
    common.import_all(modules)
    common.measure(options.task, lambda: batches(options, decode))
