"""Samplers for distributed training, and protocols and helpers for sources.

>>> from spdl_rs.source import DistributedRandomSampler
>>> sampler = DistributedRandomSampler(9, rank=0, world_size=3)
>>> list(sampler)
[0, 7, 4]
>>> sampler.shuffle(seed=1)
>>> list(sampler)
[4, 3, 6]

| module | content |
|---|---|
| `spdl_rs.source` | samplers for distributed training, and protocols for type checkers |
| `spdl_rs.source.utils` | `MergeIterator`, `embed_shuffle` (shuffle each epoch), `repeat_source` |
| `spdl_rs.source.local_directory` | the files of a folder |
| `spdl_rs.source.imagenet` | ImageNet images and class indices, from its folders |
"""

from ._sampler import DistributedDeterministicSampler, DistributedRandomSampler
from ._type import IterableWithShuffle, SizedIterable, SizedIterableWithShuffle

__all__ = [
    "DistributedDeterministicSampler",
    "DistributedRandomSampler",
    "IterableWithShuffle",
    "SizedIterable",
    "SizedIterableWithShuffle",
]
