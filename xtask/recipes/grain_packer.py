"""Grain's packing: each sample is added to the first of several open sequences in which it fits."""

import grain
import numpy as np
from grain.experimental import FirstFitPackIterDataset

import common
import numpy_packer

OPEN_SEQUENCES = 64


class Samples:
    def __init__(self, offsets, tokens):
        self.offsets, self.tokens = offsets, tokens

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, index):
        start, end = self.offsets[index], self.offsets[index + 1]
        return {"tokens": self.tokens[start:end].astype(np.int64)}


def with_boundaries(batch):
    tokens = batch["tokens"]
    positions = batch["tokens_positions"].astype(np.int64)
    segments = batch["tokens_segment_ids"]
    starts = np.ones(segments.shape, bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    boundaries = np.append(np.flatnonzero(starts), tokens.size).astype(np.int32)
    return tokens, positions, boundaries


def batches(options):
    samples = Samples(*numpy_packer.columns(common.token_table(options.data)))
    for epoch in range(options.epochs):
        data = grain.MapDataset.source(samples).shuffle(seed=epoch).to_iter_dataset()
        packed = FirstFitPackIterDataset(
            data,
            length_struct={"tokens": common.CAPACITY},
            num_packing_bins=OPEN_SEQUENCES,
            shuffle_bins=False,
        )
        batched = packed.batch(common.SEQUENCES).map(with_boundaries)
        yield from batched.mp_prefetch(grain.MultiprocessingOptions(num_workers=options.workers))


if __name__ == "__main__":
    options = common.arguments()
    common.measure(options.task, lambda: batches(options))
