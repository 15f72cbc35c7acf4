"""torchvision's JPEG decoder and transforms in worker processes of PyTorch's DataLoader."""

import random
import warnings

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms.v2 import functional

import common


class Pictures(Dataset):
    def __init__(self, options):
        self.files = options.files * options.epochs
        self.mode = options.mode

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path, label = self.files[index]
        picture = decode_jpeg(read_file(path), mode=ImageReadMode.RGB)
        size = [common.SIZE, common.SIZE]
        if self.mode == "eval":
            picture = functional.resize(picture, [common.EVAL_RESIZE], antialias=True)
            picture = functional.center_crop(picture, size)
        else:
            left, top, width, height = common.region("train", picture.shape[2], picture.shape[1])
            picture = functional.resized_crop(
                picture, top, left, height, width, size, antialias=True
            )
            if random.random() < 0.5:
                picture = functional.horizontal_flip(picture)
        return picture.permute(1, 2, 0), label


if __name__ == "__main__":
    options = common.arguments()
    # One worker more than CPUs was the fastest in measurements; PyTorch warns about it.
    warnings.filterwarnings("ignore", message=".*worker processes in total.*")
    # Parallelism comes from the processes.
    torch.set_num_threads(1)
    common.measure(
        lambda: DataLoader(
            Pictures(options), batch_size=common.BATCH, num_workers=options.workers
        )
    )
