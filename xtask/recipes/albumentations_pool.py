"""Albumentations (OpenCV) in a pool of threads, with libjpeg-turbo (simplejpeg): the recipe of DeiT.

Albumentations has no RandAugment: two of its operations are chosen for each image. MixUp is applied to all batches.
"""

import os
import random
from collections import deque
from concurrent.futures import ThreadPoolExecutor

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"

import albumentations as A  # noqa: E402
import cv2  # noqa: E402
import numpy as np  # noqa: E402
import simplejpeg  # noqa: E402

import common  # noqa: E402

# The pool uses all CPUs; OpenCV's threads would oversubscribe them.
cv2.setNumThreads(0)
BATCHES_AHEAD = 4


def transform():
    size = common.CLASSIFICATION
    operations = [
        A.AutoContrast(p=1),
        A.Equalize(p=1),
        A.InvertImg(p=1),
        A.Posterize(num_bits=4, p=1),
        A.Solarize(p=1),
        A.Sharpen(p=1),
        A.ColorJitter(brightness=0.27, contrast=0, saturation=0, hue=0, p=1),
        A.ColorJitter(brightness=0, contrast=0.27, saturation=0, hue=0, p=1),
        A.ColorJitter(brightness=0, contrast=0, saturation=0.27, hue=0, p=1),
        A.Affine(rotate=(-9, 9), p=1),
        A.Affine(shear={"x": (-5, 5)}, p=1),
        A.Affine(shear={"y": (-5, 5)}, p=1),
        A.Affine(translate_percent={"x": (-0.2, 0.2)}, p=1),
        A.Affine(translate_percent={"y": (-0.2, 0.2)}, p=1),
    ]
    return A.Compose(
        [
            A.RandomResizedCrop((size, size), interpolation=cv2.INTER_CUBIC),
            A.HorizontalFlip(),
            A.SomeOf(operations, 2),
            A.Normalize(common.MEAN, common.STD),
            A.CoarseDropout((1, 1), (0.15, 0.5), (0.15, 0.5), p=0.25),
        ]
    )


def load(transform, stem, out):
    with open(stem + ".jpg", "rb") as file:
        image = simplejpeg.decode_jpeg(file.read(), "RGB")
    out[:] = transform(image=image)["image"].transpose(2, 0, 1)
    with open(stem + ".cls") as file:
        return int(file.read())


def batches(options):
    stems = common.stems(options.data)
    # Transforms have state; each thread of the pool borrows one.
    transforms = deque(transform() for _ in range(options.workers))
    size = common.CLASSIFICATION

    def load_with_any(stem, out):
        mine = transforms.pop()
        try:
            return load(mine, stem, out)
        finally:
            transforms.append(mine)

    def finish(images, futures):
        targets = np.full((len(images), common.CLASSES), 0.1 / common.CLASSES, np.float32)
        targets[range(len(images)), [future.result() for future in futures]] += 0.9
        share = np.float32(random.betavariate(0.8, 0.8))
        mixed = images * share + np.roll(images, 1, 0) * (1 - share)
        return mixed, targets * share + np.roll(targets, 1, 0) * (1 - share)

    with ThreadPoolExecutor(options.workers) as pool:
        for _ in range(options.epochs):
            random.shuffle(stems)
            waiting = deque()
            for start in range(0, len(stems), common.BATCH):
                part = stems[start : start + common.BATCH]
                images = np.empty((len(part), 3, size, size), np.float32)
                waiting.append(
                    (images, [pool.submit(load_with_any, *pair) for pair in zip(part, images)])
                )
                if len(waiting) > BATCHES_AHEAD:
                    yield finish(*waiting.popleft())
            while waiting:
                yield finish(*waiting.popleft())


if __name__ == "__main__":
    options = common.arguments()
    common.measure(options.task, lambda: batches(options))
