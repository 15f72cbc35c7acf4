"""PyTorch's `DataLoader` with threads in place of processes: change the import, keep the rest.

```python
from spdl_rs.torch import DataLoader  # was: from torch.utils.data import DataLoader
```

>>> from spdl_rs.torch import DataLoader
>>> loader = DataLoader("abcdefg", batch_size=3, num_workers=2, collate_fn="".join)
>>> list(loader), len(loader)
(['abc', 'def', 'g'], 3)

Nothing is pickled, and nothing is copied from process to process; the data set is held once. It
pays where samples are made by code that lets go of the GIL, as reading files, decoding, NumPy and
PyTorch do for the most part. It can say how far it is, and go on from there:

>>> batches = iter(loader)
>>> next(batches)
'abc'
>>> another = DataLoader("abcdefg", batch_size=3, collate_fn="".join)
>>> another.load_state_dict(loader.state_dict())
>>> list(another)
['def', 'g']

PyTorch itself is needed only for what is its own: `default_collate`, random orders, pinned memory.
"""

from ._loader import DataLoader
from ._map_style import LoaderTimedOutError
from ._worker_info import WorkerInfo, get_worker_info

__all__ = ["DataLoader", "LoaderTimedOutError", "WorkerInfo", "get_worker_info"]
