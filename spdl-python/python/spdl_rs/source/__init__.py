"""What to read, and in which order: samplers, and the protocols of sources.

>>> from spdl_rs.source import DistributedRandomSampler
>>> sampler = DistributedRandomSampler(9, rank=0, world_size=3)
>>> list(sampler)
[0, 7, 4]
>>> sampler.shuffle(seed=1)
>>> list(sampler)
[4, 3, 6]

| module | what it has |
|---|---|
| `spdl_rs.source` | samplers for distributed training, and the protocols |
| `spdl_rs.source.utils` | sources made of sources: merged, shuffled each epoch, repeated |
| `spdl_rs.source.local_directory` | the files of a folder |
| `spdl_rs.source.imagenet` | ImageNet, from its folders |
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
