"""`as_iterable_dataset`: a loader as an `IterableDataset` of PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from .._batch_loader import BatchLoader
from .._views import checked_loader, refuse_worker_process
from ._pytorch import needed_for


def as_iterable_dataset(loader: BatchLoader[Any]) -> Any:
    """Returns a `torch.utils.data.IterableDataset` whose items are the batches of a loader.

    Use the data set if a library accepts only PyTorch's `DataLoader`. Other libraries iterate over the loader itself.
    PyTorch's `DataLoader` needs `batch_size=None` and `num_workers=0`: the threads of the loader work in the
    background. By default, it makes tensors of arrays, without a copy.

    The data set has the methods `state_dict`, `load_state_dict` and `set_epoch` of the loader, for libraries that
    save the states of data sets, such as torchdata's `StatefulDataLoader`. With several processes, `rank="auto"`
    of the loader divides the samples; so disable the division by the library, such as that of Accelerate's
    `prepare`, which would divide them again.

    Args:
        loader: An `ImageLoader` or a `Loader`.

    Raises:
        TypeError: `loader` is not such a loader.
        ModuleNotFoundError: PyTorch is not installed.
        RuntimeError: The data set is iterated in a worker process of PyTorch.

    ```python
    loader = spdl_rs.ImageLoader("photos", batch_size=32, size=224, train=True, rank="auto")
    dataset = spdl_rs.torch.as_iterable_dataset(loader)
    for images, labels in torch.utils.data.DataLoader(dataset, batch_size=None):
        ...
    ```
    """
    return _dataset_class()(checked_loader(loader))


@functools.cache
def _dataset_class() -> Any:
    """Returns the class, which needs PyTorch as its base."""
    data = needed_for("as_iterable_dataset").utils.data

    class LoaderDataset(data.IterableDataset):  # type: ignore[name-defined, misc]
        """The batches of a loader."""

        def __init__(self, loader: BatchLoader[Any]) -> None:
            self.loader = loader

        def __iter__(self) -> Iterator[Any]:
            refuse_worker_process()
            return iter(self.loader)

        def __len__(self) -> int:
            return len(self.loader)  # type: ignore[arg-type]

        def __bool__(self) -> bool:
            return bool(self.loader)

        def set_epoch(self, epoch: int) -> None:
            self.loader.set_epoch(epoch)

        def state_dict(self) -> dict[str, Any]:
            return self.loader.state_dict()

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            self.loader.load_state_dict(state)

    return LoaderDataset
