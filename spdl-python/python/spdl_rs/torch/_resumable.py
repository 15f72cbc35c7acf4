"""What a loader remembers of its epochs, and says of them in states."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from .._locks import ForkSafeLock
from ..source._resumable import check_mapping, value_of
from . import _randomness
from ._epoch_order import KEY as SAMPLER_ORDER
from ._epoch_order import before_epoch, restore_epoch
from ._identity import NOT_COMBINED, VERSION, check_identity
from ._iterable_style import IterableProgress
from ._map_style import Progress, stateful
from ._samplers import described, known_length, settings_of


class Resumable:
    """A loader that goes on within an epoch. Whoever derives from it sets what is named first."""

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
        # Around what is above, which threads that share the loader change.
        self._lock = ForkSafeLock()

    @property
    def _order(self) -> Any:
        """What decides the order: a batch sampler of the user's, or else the sampler."""
        return self._index_sampler if self.batch_size is None else self.sampler

    @property
    def _index_sampler(self) -> Any:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def state_dict(self) -> dict[str, Any]:
        """Says how far the epoch has come that was begun last, as its consumer saw it.

        It stays small: a few numbers, PyTorch's generators where the order is random (5 kB each),
        the state of the sampler if it has a `state_dict`, and that of an iterable data set or its
        iterator, for each worker. `torch.save` and `pickle` store it.

        Random orders go on by themselves where PyTorch draws them when the epoch begins, as its own
        samplers do. Other samplers must give the same order when they are iterated again, or have
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
            order = self._epoch_order if begun else before_epoch(self._index_sampler)
        return {
            **self._identity(),
            **progress.state(),
            SAMPLER_ORDER: order,
            "_iterator_finished": progress.finished,
            "_base_seed": self._seed,
            "_random_state": self._randomness if begun else self._snapshot(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Makes the next epoch the rest of that which a state is of. Those after it are whole.

        The state of an epoch at its end makes the next one a whole one. The number of workers may
        be another one, but for iterable data sets. An empty mapping makes it begin anew.

        Calls the sampler's `set_epoch` with the epoch that the state is of. Iterating raises
        `ValueError` where another one is set after that amid an epoch, and where a list of indices
        or weights is not that of the state.

        Raises:
            TypeError: It is no mapping.
            ValueError: It is of another kind of loader, of other batches, or of a sampler with
                another rank, seed or other settings; or what the sampler raises, whose state is
                loaded, too.

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
        """Is not there for these loaders: only the sampler knows which samples each rank has had.

        Each rank goes on with its own state, with as many ranks as before. For another number of
        ranks, let the run come to the end of its epoch first; or use `spdl_rs.ImageLoader`, which
        combines the states of all ranks.

        Raises:
            NotImplementedError: Always.
        """
        del states
        raise NotImplementedError(NOT_COMBINED)

    def _identity(self) -> dict[str, Any]:
        """What a state must agree with."""
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

    def _behind(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state of the epoch that follows one at its end."""
        with self._rewound(state["_random_state"], default=False):
            pass
        sampler = {key: state.get(key) for key in ("_index_sampler_state", "_index_sampler_ended")}
        return {"_base_seed": None, "_random_state": None, **sampler}

    def _rewound(
        self, saved: dict[str, Any] | None, *, default: bool
    ) -> contextlib.AbstractContextManager[None]:
        sampler = None if self._iterable_style else self._index_sampler
        return _randomness.rewound(saved, sampler, self.generator, default=default)

    def __getstate__(self) -> dict[str, Any]:
        # A copy begins epochs of its own.
        return {**vars(self), "_progress": None, "_seed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
