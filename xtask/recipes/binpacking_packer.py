"""The package `binpacking` on windows of samples, with the batches of `numpy_packer`."""

import binpacking
import numpy as np

import common
import numpy_packer

# The time for a window grows with the square of its size.
WINDOW = 1000


def pack(lengths, capacity):
    order = np.random.default_rng().permutation(len(lengths))
    sequences = []
    for start in range(0, len(order), WINDOW):
        window = order[start : start + WINDOW]
        volumes = dict(zip(window.tolist(), lengths[window].tolist()))
        sequences += [list(one) for one in binpacking.to_constant_volume(volumes, capacity)]
    return sequences


if __name__ == "__main__":
    options = common.arguments()
    common.measure(options.task, lambda: numpy_packer.batches(options, pack))
