"""Reads shards with `webdataset.WebDataset`, in this process or in workers of PyTorch's DataLoader."""

import time

import webdataset

import tar_common


def samples(options):
    shards = options.shards * options.epochs
    data = webdataset.WebDataset(shards, shardshuffle=False, nodesplitter=None)
    if options.way == "plain":
        return data
    from torch.utils.data import DataLoader

    return DataLoader(data, batch_size=None, num_workers=int(options.way.split(":")[1]))


def run(options):
    count, size, first = 0, 0, None
    for sample in samples(options):
        if first is None:
            first = time.perf_counter()
        count += 1
        size += len(sample["jpg"]) + len(sample["cls"])
    return count, size, first


if __name__ == "__main__":
    options = tar_common.arguments()
    tar_common.measure(lambda: run(options))
