"""Loaders, and what helps to measure them.

| loader | for whom |
|---|---|
| `DataLoader` | a source, a function for each item, batches, a function for each batch |
| `get_pytorch_dataloader` | PyTorch's map-style data sets, with SPDL's defaults |
| `CacheDataLoader` | who wants to know what loading costs |
| `spdl_rs.torch.DataLoader` | programs written for PyTorch's `DataLoader` |

>>> from spdl_rs.dataloader import DataLoader
>>> list(DataLoader("abc", batch_size=2, aggregator="".join, output_order="input"))
['ab', 'c']
"""

from ._cache_dataloader import CacheDataLoader
from ._dataloader import DataLoader
from ._pytorch_dataloader import PyTorchDataLoader, get_pytorch_dataloader

__all__ = ["CacheDataLoader", "DataLoader", "PyTorchDataLoader", "get_pytorch_dataloader"]
