"""Albumentations (OpenCV) in a pool of threads, with libjpeg-turbo (simplejpeg): the recipe of DeiT.

Albumentations has no RandAugment: two of its operations are chosen for each image. MixUp is applied to all batches.
"""

import os

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"

import albumentations as A  # noqa: E402
import cv2  # noqa: E402
import simplejpeg  # noqa: E402

import common  # noqa: E402
import image_pool  # noqa: E402

# The pool uses all CPUs; OpenCV's threads would oversubscribe them.
cv2.setNumThreads(0)


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
    return image_pool.class_of(stem)


if __name__ == "__main__":
    options = common.arguments()
    # Transforms have state.
    common.measure(options.task, lambda: image_pool.batches(options, transform, load))
