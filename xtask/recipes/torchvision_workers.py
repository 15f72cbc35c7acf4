"""torchvision's transforms (v2) in worker processes of PyTorch's DataLoader, from loose files."""

import json
import warnings

import torch
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision import tv_tensors
from torchvision.io import ImageReadMode, decode_image, decode_jpeg, read_file
from torchvision.transforms import InterpolationMode, v2

import common


def to_floats():
    return [v2.ToDtype(torch.float32, scale=True), v2.Normalize(common.MEAN, common.STD)]


def transform_of(task):
    size = common.SHAPES[task][1]
    if task == "deit":
        first = [
            v2.RandomResizedCrop(size, interpolation=InterpolationMode.BICUBIC, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandAugment(2, 9, interpolation=InterpolationMode.BILINEAR),
        ]
        return v2.Compose([*first, *to_floats(), v2.RandomErasing(0.25)])
    if task == "simclr":
        first = [
            v2.RandomResizedCrop(size, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([v2.GaussianBlur(size // 10 // 2 * 2 + 1)], p=0.5),
        ]
        return v2.Compose([*first, *to_floats()])
    if task == "dino":
        large = [
            crop_of_dino(size, (0.4, 1.0), blur=1.0),
            crop_of_dino(size, (0.4, 1.0), blur=0.1, solarize=0.2),
        ]
        return large + 8 * [crop_of_dino(96, (0.05, 0.4), blur=0.5)]
    if task == "detection":
        first = [v2.RandomHorizontalFlip(), v2.Resize(None, max_size=size, antialias=True), Pad(size)]
        return v2.Compose([*first, *to_floats(), v2.SanitizeBoundingBoxes(min_size=1)])
    if task == "segmentation":
        first = [v2.RandomResizedCrop(size, (0.25, 1.0), antialias=True), v2.RandomHorizontalFlip()]
        return v2.Compose([*first, *to_floats()])
    raise ValueError(task)


def crop_of_dino(size, scale, blur, solarize=0.0):
    steps = [
        v2.RandomResizedCrop(
            size, scale, interpolation=InterpolationMode.BICUBIC, antialias=True
        ),
        v2.RandomHorizontalFlip(),
        v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
        v2.RandomGrayscale(0.2),
        v2.RandomApply([v2.GaussianBlur(13, (0.1, 2.0))], p=blur),
    ]
    if solarize:
        steps.append(v2.RandomSolarize(128, p=solarize))
    return v2.Compose([*steps, *to_floats()])


class Pad(torch.nn.Module):
    """Pads to a square, on all sides alike."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, image, target):
        height, width = image.shape[-2:]
        left, top = (self.size - width) // 2, (self.size - height) // 2
        sides = [left, top, self.size - width - left, self.size - height - top]
        return v2.Pad(sides, fill=114)(image, target)


class Samples(Dataset):
    def __init__(self, options):
        self.stems = common.stems(options.data)
        self.task = options.task
        self.transform = transform_of(options.task)

    def __len__(self):
        return len(self.stems)

    def __getitem__(self, index):
        stem = self.stems[index]
        image = decode_jpeg(read_file(stem + ".jpg"), mode=ImageReadMode.RGB)
        if self.task == "deit":
            with open(stem + ".cls") as file:
                return self.transform(image), int(file.read())
        if self.task == "simclr":
            return self.transform(image), self.transform(image)
        if self.task == "dino":
            return tuple(transform(image) for transform in self.transform)
        if self.task == "detection":
            with open(stem + ".json") as file:
                stored = json.load(file)
            boxes = tv_tensors.BoundingBoxes(
                stored["boxes"], format="XYXY", canvas_size=image.shape[-2:]
            )
            target = {"boxes": boxes, "labels": torch.tensor(stored["classes"])}
            return self.transform(tv_tensors.Image(image), target)
        mask = decode_image(stem + ".seg.png", mode=ImageReadMode.UNCHANGED)[0]
        image, mask = self.transform(tv_tensors.Image(image), tv_tensors.Mask(mask))
        return image, mask.long()


class Mixed:
    """MixUp or CutMix of a batch, with label smoothing."""

    def __init__(self):
        mixup = v2.MixUp(alpha=0.8, num_classes=common.CLASSES)
        cutmix = v2.CutMix(alpha=1.0, num_classes=common.CLASSES)
        self.mix = v2.RandomChoice([mixup, cutmix])

    def __call__(self, samples):
        images, labels = self.mix(*default_collate(samples))
        return images, labels * 0.9 + 0.1 / common.CLASSES


def with_lists(samples):
    images, targets = zip(*samples)
    return torch.stack(images), targets


def batches(options):
    collate = {"deit": Mixed(), "detection": with_lists}.get(options.task)
    loader = DataLoader(
        Samples(options),
        batch_size=common.BATCH,
        shuffle=True,
        num_workers=options.workers,
        collate_fn=collate,
        persistent_workers=options.epochs > 1,
    )
    for _ in range(options.epochs):
        yield from loader


if __name__ == "__main__":
    options = common.arguments()
    warnings.filterwarnings("ignore", message=".*worker processes in total.*")
    # The processes use all CPUs.
    torch.set_num_threads(1)
    common.measure(options.task, lambda: batches(options))
