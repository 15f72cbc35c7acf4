"""A replacement for PyTorch's `DataLoader` that uses threads instead of processes.

Only the import changes:

```python
from spdl_rs.torch import DataLoader  # was: from torch.utils.data import DataLoader
```

>>> from spdl_rs.torch import DataLoader
>>> loader = DataLoader("abcdefg", batch_size=3, num_workers=2, collate_fn="".join)
>>> list(loader), len(loader)
(['abc', 'def', 'g'], 3)

Samples are not pickled or copied between processes, and there is one copy of the data set. Threads
are faster than processes if the work releases the GIL, as file reads, image decoding and most of
NumPy and PyTorch do. The loader saves its position within an epoch and resumes from it:

>>> batches = iter(loader)
>>> next(batches)
'abc'
>>> another = DataLoader("abcdefg", batch_size=3, collate_fn="".join)
>>> another.load_state_dict(loader.state_dict())
>>> list(another)
['def', 'g']

`as_iterable_dataset` makes an `IterableDataset` of an `ImageLoader` or a `Loader`.

PyTorch is optional: only `default_collate`, random orders and pinned memory need it.
"""

from ._iterable_dataset import as_iterable_dataset
from ._loader import DataLoader
from ._map_style import LoaderTimedOutError
from ._worker_info import WorkerInfo, get_worker_info

__all__ = [
    "DataLoader",
    "LoaderTimedOutError",
    "WorkerInfo",
    "as_iterable_dataset",
    "get_worker_info",
]
