"""`state_dict` and `load_state_dict` of the loader."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from .._locks import ForkSafeLock
from ..source._resumable import check_mapping, value_of
from . import _randomness
from ._epoch_order import KEY as SAMPLER_ORDER
from ._epoch_order import order_before_epoch, restore_epoch
from ._identity import NOT_COMBINED, VERSION, check_identity
from ._iterable_style import IterableProgress
from ._map_style import Progress, stateful
from ._samplers import described, known_length, settings_of


class Resumable:
    """A loader that resumes within an epoch. Derived classes set the attributes declared first."""

    dataset: Any
    num_workers: int
    batch_size: int | None
    drop_last: bool
    sampler: Any
    batch_sampler: Any
    generator: Any
    _iterable_style: bool

    def __init__(self) -> None:
        self._progress: Progress | IterableProgress | None = None
        self._seed: int | None = None
        self._randomness: dict[str, Any] | None = None
        self._epoch_order: dict[str, Any] | None = None
        self._loaded: Mapping[str, Any] | None = None
        # Guards the attributes above, which threads that share the loader change.
        self._lock = ForkSafeLock()

    @property
    def _order(self) -> Any:
        """The sampler that decides the order: the user's batch sampler, or else the sampler."""
        return self._index_sampler if self.batch_size is None else self.sampler

    @property
    def _index_sampler(self) -> Any:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def state_dict(self) -> dict[str, Any]:
        """Returns the checkpoint state of the latest epoch, after its delivered batches.

        After `load_state_dict`, returns the loaded state until the next `iter(loader)`. The state is small:
        counts and settings, the states of PyTorch's generators if the order is random (5 kB each), and the
        state of a sampler with `state_dict`. For an iterable data set, the state contains the state of the
        data set or its iterator for each worker. Store the state with `torch.save` or `pickle`.

        Random orders resume if the sampler draws them from PyTorch's generators at the start of the epoch,
        as PyTorch's own samplers do. Other samplers must repeat their order when iterated again, or have
        `state_dict` and `load_state_dict`.
        """
        with self._lock.held():
            return dict(self._state() if self._loaded is None else self._loaded)

    def _state(self) -> dict[str, Any]:
        progress = self._progress
        begun = progress is not None and not progress.finished
        if progress is None:
            kind = IterableProgress(max(1, self.num_workers)) if self._iterable_style else None
            progress = kind or Progress()
        if self._iterable_style:
            order = None
        else:
            order = self._epoch_order if begun else order_before_epoch(self._index_sampler)
        return {
            **self._identity(),
            **progress.state(),
            SAMPLER_ORDER: order,
            "_iterator_finished": progress.finished,
            "_base_seed": self._seed,
            "_random_state": self._randomness if begun else self._snapshot(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Makes the next `iter(loader)` resume the epoch of a state. Later epochs are complete.

        A state from the end of an epoch starts the next epoch. The number of workers may change. For
        iterable data sets, only 0 and 1 are interchangeable. An empty mapping resets the loader.

        If the sampler has `set_epoch` and `epoch`, the method calls `set_epoch` with the epoch of the state.
        If the state is not from within an epoch, a later epoch of the sampler is kept. Iterating raises
        `ValueError` if a state from within an epoch has another epoch, other indices or other weights than
        the sampler.

        Raises:
            TypeError: `state_dict` is not a mapping.
            ValueError: The state is from another type of loader, from other batches, or from a
                sampler with another rank, seed or other settings. Exceptions of the sampler's
                `load_state_dict` are propagated.

        >>> from spdl_rs.torch import DataLoader
        >>> loader = DataLoader("abcd", batch_size=None)
        >>> for letter in loader:
        ...     if letter == "b":
        ...         break
        >>> state = loader.state_dict()
        >>> loader.load_state_dict(state)
        >>> list(loader), list(loader)
        (['c', 'd'], ['a', 'b', 'c', 'd'])
        """
        check_mapping(state_dict)
        if not state_dict:
            with self._lock.held():
                self._loaded = self._progress = self._seed = None
            return
        check_identity(state_dict, self._identity())
        for key in ("_num_yielded", "_iterator_finished", "_base_seed", "_random_state"):
            value_of(state_dict, key)
        if not self._iterable_style:
            restore_epoch(state_dict, self._index_sampler)
        sampler = stateful(self._index_sampler)
        if sampler is not None and state_dict.get("_index_sampler_state") is not None:
            sampler.load_state_dict(state_dict["_index_sampler_state"])
        with self._lock.held():
            self._loaded, self._progress = dict(state_dict), None

    @staticmethod
    def combine_states(states: Iterable[Mapping[str, Any]]) -> NoReturn:
        """Not supported: only the sampler knows which samples each rank has delivered.

        Each rank resumes from its own state, with the same number of ranks. To change the number
        of ranks, finish the epoch first, or use `spdl_rs.ImageLoader`, which combines the states of
        all ranks.

        Raises:
            NotImplementedError: Always.
        """
        del states
        raise NotImplementedError(NOT_COMBINED)

    def _identity(self) -> dict[str, Any]:
        """Returns the settings that a state must agree with."""
        identity: dict[str, Any] = {
            "version": VERSION,
            "style": "iterable" if self._iterable_style else "map",
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
        }
        if self._iterable_style:
            identity["_num_workers"] = max(1, self.num_workers)
            return identity
        if hasattr(self.dataset, "__len__"):
            identity["dataset_length"] = len(self.dataset)
        identity["sampler"] = described(self._order)
        identity["sampler_length"] = known_length(self._order)
        identity["sampler_settings"] = settings_of(self._order)
        return identity

    def _snapshot(self) -> dict[str, Any] | None:
        if self._iterable_style:
            return None
        return _randomness.snapshot(self._index_sampler, self.generator)

    def _state_after(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the state at the start of the epoch that follows a finished epoch."""
        with self._restored(state["_random_state"], default=False):
            pass
        sampler = {key: state.get(key) for key in ("_index_sampler_state", "_index_sampler_ended")}
        return {"_base_seed": None, "_random_state": None, **sampler}

    def _restored(
        self, saved: dict[str, Any] | None, *, default: bool
    ) -> contextlib.AbstractContextManager[None]:
        sampler = None if self._iterable_style else self._index_sampler
        return _randomness.restored(saved, sampler, self.generator, default=default)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no epoch in progress.
        return {**vars(self), "_progress": None, "_seed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
