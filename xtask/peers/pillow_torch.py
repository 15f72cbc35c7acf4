"""Loads images with Pillow in worker processes of PyTorch's DataLoader."""

import warnings

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import common
import pillow_pool


class Pictures(Dataset):
    def __init__(self, options):
        self.files = options.files * options.epochs
        self.mode = options.mode

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path, label = self.files[index]
        out = np.empty((common.SIZE, common.SIZE, 3), np.uint8)
        pillow_pool.load(path, self.mode, out)
        return torch.from_numpy(out), label


if __name__ == "__main__":
    options = common.arguments()
    # One worker more than CPUs was the fastest in measurements; PyTorch warns about it.
    warnings.filterwarnings("ignore", message=".*worker processes in total.*")
    common.measure(
        lambda: DataLoader(
            Pictures(options), batch_size=common.BATCH, num_workers=options.workers
        )
    )
