"""A packer in Python and NumPy: best-fit decreasing of all samples, then one array per batch."""

import numpy as np

import common


def best_fit(lengths, capacity):
    """Packs samples, the longest first, each into the fullest sequence in which it fits.

    Returns the samples of each sequence. Sequences with the same free space share a list, and the bits of an integer
    are the free spaces that occur, so that each step takes constant time.
    """
    sequences, by_space, spaces = [], [[] for _ in range(capacity + 1)], 0
    order = np.argsort(-lengths, kind="stable")
    for sample, length in zip(order.tolist(), lengths[order].tolist()):
        fitting = spaces >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            same = by_space[space]
            sequence = same.pop()
            if not same:
                spaces ^= 1 << space
            sequence.append(sample)
        else:
            space, sequence = capacity, [sample]
            sequences.append(sequence)
        left = space - length
        if left:
            by_space[left].append(sequence)
            spaces |= 1 << left
    return sequences


def columns(table):
    """The offsets of the samples, and their tokens. Copies nothing."""
    lists = table.column("tokens").chunk(0)
    return lists.offsets.to_numpy(), lists.values.to_numpy()


def joined(sequences, offsets, tokens):
    """A batch of packed sequences."""
    capacity = common.CAPACITY
    batch = np.zeros((len(sequences), capacity), np.int64)
    boundaries = []
    for row, (samples, values) in enumerate(zip(sequences, batch)):
        place, base = 0, row * capacity
        for start, end in zip(offsets[samples].tolist(), offsets[np.add(samples, 1)].tolist()):
            boundaries.append(base + place)
            values[place : place + end - start] = tokens[start:end]
            place += end - start
        if place < capacity:
            boundaries.append(base + place)
    boundaries.append(batch.size)
    boundaries = np.array(boundaries, np.int32)
    positions = np.arange(batch.size) - np.repeat(boundaries[:-1], np.diff(boundaries))
    return batch, positions.reshape(batch.shape), boundaries


def batches(options, pack=best_fit):
    """`pack` returns the samples of each sequence. Sequences are shuffled."""
    draw = np.random.default_rng()
    offsets, tokens = columns(common.token_table(options.data))
    for _ in range(options.epochs):
        sequences = pack(np.diff(offsets), common.CAPACITY)
        draw.shuffle(sequences)
        for start in range(0, len(sequences), common.SEQUENCES):
            yield joined(sequences[start : start + common.SEQUENCES], offsets, tokens)


if __name__ == "__main__":
    options = common.arguments()
    common.measure(options.task, lambda: batches(options))
