"""Loaders as data sets of Hugging Face `datasets`.

The library `datasets` is optional: only `as_iterable_dataset` needs it.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import _arguments as check
from ._batch_loader import BatchLoader
from ._functions import samples_of
from ._image_loader import ImageLoader
from ._views import checked_loader, refuse_worker_process

__all__ = ["as_iterable_dataset"]


def as_iterable_dataset(loader: BatchLoader[Any]) -> Any:
    """Returns a `datasets.IterableDataset` whose examples are the samples of a loader.

    Use the data set if a library accepts only data sets of Hugging Face. An example is a `dict` of the fields of a
    sample, `{"image": …, "label": …}` for an `ImageLoader`. Arrays are views of the memory of their batch. Methods such
    as `map`, `filter`, `batch` and `with_format` work as usual.

    The data set and the results of these methods have an exact `state_dict`: the state of the loader, and the number of
    examples after it. As in `datasets`, the state of an epoch is loaded by each iteration of the same `epoch`: call
    `set_epoch` for each epoch. Each iteration takes the next epoch of the loader; `set_epoch` of the data set itself
    also sets the epoch of the loader.

    With several processes, `rank="auto"` of the loader divides the samples: do not call `split_dataset_by_node`.
    PyTorch's `DataLoader` needs `num_workers=0`, because the threads of the loader work in the background.

    Args:
        loader: An `ImageLoader`, or a `Loader` that yields dicts of fields. Sequences of `sequences.Pack` and
            `ConcatAndSplit` are not samples, so that loaders with them are refused when they are iterated.

    Raises:
        TypeError: `loader` is not such a loader; when iterated: a batch is not a `dict` of samples.
        ModuleNotFoundError: `datasets` is not installed.
        RuntimeError: The data set is iterated in a worker process of PyTorch.

    ```python
    loader = spdl_rs.Loader("photos", batch_size=32, image=fields.Image(224), label=fields.Label())
    dataset = spdl_rs.huggingface.as_iterable_dataset(loader)
    for example in dataset.with_format("torch"):
        example["image"], example["label"]
    ```
    """
    loader = checked_loader(loader)
    examples, dataset = _classes()
    return dataset(examples(loader))


def _samples(batch: Any, varying: Mapping[str, Sequence[int]]) -> list[dict[str, Any]]:
    """Splits a batch into its samples, whose sizes differ in the dimensions `varying`.

    Raises:
        TypeError: The batch is not a `dict` of samples.
    """
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"the batches of the loader must be dicts of fields, not {check.shown(batch)}: pass a Loader with "
            'output="dict", whose collate and batch_map return dicts'
        )
    return samples_of(batch, varying)


@functools.cache
def _classes() -> tuple[Any, Any]:
    """Returns the classes of the examples and of the data set, whose bases are in `datasets`."""
    module = importlib.import_module("datasets.iterable_dataset")

    # Only subclasses of this class can save an exact state.
    class LoaderExamples(module._BaseExamplesIterable):  # type: ignore[name-defined, misc]
        """The samples of a loader."""

        # The base class would ask the iterables that this one is made of.
        _sleep_on_threads_shutdown = False

        def __init__(self, loader: BatchLoader[Any]) -> None:
            super().__init__()
            self.loader = loader

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            # A loader cannot be copied: copies of the data set share it.
            return type(self)(self.loader)

        @property
        def num_shards(self) -> int:
            return 1

        def shuffle_data_sources(self, generator: Any) -> Any:
            return self

        def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> Any:
            return self

        def reshard_data_sources(self) -> Any:
            return self

        def _init_state_dict(self) -> dict[str, Any]:
            # Text, because the library merges nested dicts of the same keys only.
            self._state_dict = {"loader": None, "samples": 0}
            return self._state_dict

        def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
            refuse_worker_process()
            state = self._state_dict or self._init_state_dict()
            # Only a `Loader` has fields.
            spec = getattr(self.loader, "spec", {})
            varying = {
                name: [at for at, side in enumerate(one.shape) if side is None] for name, one in spec.items()
            }
            skipped = 0
            if state["loader"] is not None:
                self.loader.load_state_dict(json.loads(state["loader"]))
                skipped = state["samples"]
            count = 0
            with iter(self.loader) as batches:
                before = json.dumps(batches.state_dict())
                for batch in batches:
                    if isinstance(self.loader, ImageLoader):
                        batch = dict(zip(("image", "label"), batch))
                    samples = _samples(batch, varying)
                    after = json.dumps(batches.state_dict())
                    for number, sample in enumerate(samples[skipped:], skipped + 1):
                        # An example counts as delivered once the caller has received it.
                        is_last = number == len(samples)
                        state["loader"], state["samples"] = (after, 0) if is_last else (before, number)
                        yield count, sample
                        count += 1
                    before, skipped = after, 0

    class LoaderDataset(module.IterableDataset):  # type: ignore[name-defined, misc]
        """The samples of a loader as a data set."""

        def set_epoch(self, epoch: int) -> None:
            super().set_epoch(epoch)
            self._ex_iterable.loader.set_epoch(epoch)

    return LoaderExamples, LoaderDataset
