"""The memory of clips of videos by `spdl_rs.Loader`.

Usage: video_memory.py {concurrent,growth} OUT. `concurrent`: the peak with 64 threads, each of which decodes a clip of
a video of 1920 x 1080. `growth`: the growth per clip in the last third of 10,000 clips of small videos. Prints a JSON
object. Memory is the resident memory of the process (RSS).
"""

import json
import resource
import sys

import numpy as np
import spdl_rs
from spdl_rs import fields, sources
from spdl_rs.io import Stretch

import common

CONCURRENT, ROUNDS = 64, 3
EPOCHS, STEP = 10, 50


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def concurrent(folder):
    files = common.videos(folder, "1080p")
    positions = [number % len(files) for number in range(ROUNDS * CONCURRENT)]
    video = fields.Video(common.CLASSIFICATION, frames=common.CLIP_FRAMES, crop=Stretch())
    source = sources.Source(files).where(positions)
    loader = spdl_rs.Loader(source, batch_size=1, threads=CONCURRENT, video=video)
    samples = sum(len(batch["video"]) for batch in loader)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"samples": samples, "peak_bytes": peak}


def growth(folder):
    video = fields.Video(32, frames=4, random=True, crop=Stretch())
    files = common.videos(folder, "small")
    loader = spdl_rs.Loader(files, batch_size=STEP, threads=2, shuffle=True, video=video)
    samples, found = 0, []
    for _ in range(EPOCHS):
        for batch in loader:
            samples += len(batch["video"])
            found.append((samples, resident_bytes()))
    last = np.array(found[len(found) * 2 // 3 :], dtype=float)
    slope = np.polyfit(last[:, 0], last[:, 1], 1)[0]
    return {"samples": samples, "bytes": found[-1][1], "bytes_per_clip": float(slope)}


if __name__ == "__main__":
    task, folder = sys.argv[1:]
    print(json.dumps({"concurrent": concurrent, "growth": growth}[task](folder)))
