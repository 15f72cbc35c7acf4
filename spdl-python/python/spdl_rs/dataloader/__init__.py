"""Data loaders for arbitrary samples, and a loader that shows how much data loading slows training.

| task | use |
|---|---|
| process a source in threads, in batches | `DataLoader` |
| load a map-style data set of PyTorch with SPDL's defaults | `get_pytorch_dataloader` |
| measure how much faster training could be | `CacheDataLoader` |
| replace PyTorch's `DataLoader` | `spdl_rs.torch.DataLoader` |

>>> from spdl_rs.dataloader import DataLoader
>>> list(DataLoader("abc", batch_size=2, aggregator="".join, output_order="input"))
['ab', 'c']
"""

from ._cache_dataloader import CacheDataLoader
from ._dataloader import DataLoader
from ._pytorch_dataloader import PyTorchDataLoader, get_pytorch_dataloader

__all__ = ["CacheDataLoader", "DataLoader", "PyTorchDataLoader", "get_pytorch_dataloader"]
