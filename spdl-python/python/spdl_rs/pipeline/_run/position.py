"""The positions of a pipeline in its sources, for checkpoint states."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ... import _spdl_rs
from ..._errors import UnsupportedError
from ..._locks import ForkSafeLock
from ...source._merge import MergeIterator
from ...source._resumable import Resumable
from ..defs import _native, _ops
from ..defs._configs import (
    AggregateConfig,
    DisaggregateConfig,
    JoinConfig,
    MergeConfig,
    PathVariantsConfig,
    PipelineConfig,
    StageConfig,
    ZipConfig,
)
from ..defs._executors import PlacementConfig
from .executors import Cancellable

NO_STATE = (
    "a pipeline with custom queues or merge functions has no checkpoint state; use native queues, and merge without a "
    "function, or merge the sources in one source, such as spdl_rs.source.utils.MergeIterator"
)

# The consumer is at most this number of epochs behind the source.
_MOST_EPOCHS = 1024


class Positions:
    """The positions in all sources of a pipeline.

    Args:
        config: The pipeline.
        first_epoch: The number of the first epoch.
    """

    def __init__(self, config: PipelineConfig[Any], first_epoch: int) -> None:
        self._refusal = _refusal(config)
        self._tree = _tree(config, first_epoch, self._refusal is None)
        self.sources = list(_leaves(self._tree))
        """The positions in the sources, in the order of the joined pipelines."""
        self.resumed: str | None = None
        """The state of the engine that the pipeline resumes from, as JSON."""

    def check(self) -> None:
        """Raises `UnsupportedError` if the pipeline has no checkpoint state."""
        if self._refusal is not None:
            raise UnsupportedError(self._refusal, kind="unsupported")

    def resume(self, text: str) -> None:
        """Makes the engine start from its state `text`."""
        self.resumed = text
        for source in self.sources:
            source.resumes = True

    def load(self, text: str, epoch: int, source_states: Any) -> None:
        """Starts at the positions of a state, before the pipeline starts."""
        self.resume(text)
        _load_tree(self._tree, epoch, source_states)

    def state(self, epoch: int) -> Any:
        """Returns the states of the sources at the start of an epoch: a list for joined pipelines.

        Raises the exception of a source's `state_dict`, if it raised one.
        """
        return _state_of(self._tree, epoch)


def _tree(config: PipelineConfig[Any], first_epoch: int, has_state: bool) -> Any:
    """Returns a `SourcePosition`, or a list of trees for joined pipelines."""
    if isinstance(config.src, JoinConfig):
        return [_tree(part, first_epoch, has_state) for part in config.src.pipeline_configs]
    return SourcePosition(config.src.source, first_epoch, has_state)


def _leaves(tree: Any) -> Iterator[SourcePosition]:
    if isinstance(tree, SourcePosition):
        yield tree
        return
    for part in tree:
        yield from _leaves(part)


def _state_of(tree: Any, epoch: int) -> Any:
    if isinstance(tree, SourcePosition):
        return tree.state(epoch)
    return [_state_of(part, epoch) for part in tree]


def _load_tree(tree: Any, epoch: int, states: Any) -> None:
    if isinstance(tree, SourcePosition):
        tree.load(epoch, states)
        return
    if not isinstance(states, Sequence) or len(states) != len(tree):
        raise ValueError(f"the state does not match this pipeline of {len(tree)} joined pipelines")
    for part, state in zip(tree, states, strict=True):
        _load_tree(part, epoch, state)


class SourcePosition:
    """Iterates a source of a pipeline, from the position of a checkpoint state if there is one.

    The engine counts which items of an epoch are done. A sequence is the same in each epoch. For other sources, this
    object stores the state of the source at the start of each epoch. A mixture of sources draws the same items again.

    Args:
        source: The source.
        first_epoch: The number of the first epoch.
        is_known: Whether the pipeline has checkpoint states.
    """

    def __init__(self, source: Any, first_epoch: int, is_known: bool) -> None:
        self._source = source
        self._is_known = is_known
        self._has_state = _has_state(self._source)
        self._epoch = first_epoch
        self._states: dict[int, Any] = {}
        self._lock = ForkSafeLock()
        self.resumes = False
        """Whether the engine starts at the position of a state."""
        self._resumed_source: Any = None

    @property
    def length(self) -> int | None:
        """The number of items of an epoch, if the source is a sequence."""
        return None if self._has_state or not _is_sequence(self._source) else len(self._source)

    def iterable(self) -> Any:
        """Returns the source for the engine."""
        if self._is_known and (self._has_state or self.resumes):
            return self
        return self._source

    def load(self, epoch: int, source_state: Any) -> None:
        """Starts at the position of a state, before the pipeline starts."""
        _load(self._source, source_state)
        self._epoch, self._resumed_source = epoch, source_state

    def state(self, epoch: int) -> Any:
        """Returns the state of the source at the start of an epoch; `None` for a sequence.

        Raises the exception of the source's `state_dict`, if it raised one.
        """
        with self._lock.held():
            if epoch in self._states:
                state = self._states[epoch]
            elif not self._states and self.resumes:
                state = self._resumed_source
            else:
                state = _start_state(self._source)
        if isinstance(state, _Raised):
            raise state.error
        return state

    def __iter__(self) -> Iterator[Any]:
        with self._lock.held():
            before = self._saved() if isinstance(self._source, (Resumable, MergeIterator)) else None
            items = iter(self._source)
            # Other sources may choose their next items in `iter`.
            self._begin(self._saved() if before is None else before)
        return items

    def iterate_from(self, position: int) -> Iterator[Any]:
        """Iterates the rest of the first epoch. The engine calls this method with the position of its state."""
        source = self._source
        with self._lock.held():
            self._begin(self._resumed_source)
            if isinstance(source, Resumable):
                source._skip(position)
                return iter(source)
        if isinstance(source, Sequence) and self.length is not None:
            return map(source.__getitem__, range(position, len(source)))
        return itertools.islice(source, position, None)

    def _begin(self, state: Any) -> None:
        self._states[self._epoch] = state
        self._states.pop(self._epoch - _MOST_EPOCHS, None)
        self._epoch += 1

    def _saved(self) -> Any:
        try:
            return _start_state(self._source)
        except Exception as error:
            # The pipeline runs nevertheless, if no state is requested.
            return _Raised(error)


class _Raised:
    """An exception of `state_dict`."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _start_state(source: Any) -> Any:
    """Returns the state from which the next iteration of a source starts; `None` for a sequence."""
    if isinstance(source, MergeIterator):
        return [_start_state(part) for part in source.iterables]
    if not _has_state(source):
        return None
    if isinstance(source, Resumable):
        return {**source.state_dict(), "position": source._resume_at}
    return source.state_dict()


def _load(source: Any, state: Any) -> None:
    if not isinstance(source, MergeIterator):
        if _has_state(source):
            source.load_state_dict(state)
        return
    if not isinstance(state, Sequence) or len(state) != len(source.iterables):
        raise ValueError(f"the state does not match this MergeIterator of {len(source.iterables)} iterables")
    for part, state_of_part in zip(source.iterables, state, strict=True):
        _load(part, state_of_part)


def _has_state(source: Any) -> bool:
    """Returns whether a source has a state, or has one if its parts have positions."""
    return isinstance(source, MergeIterator) or all(
        callable(getattr(source, name, None)) for name in ("state_dict", "load_state_dict")
    )


def _has_position(source: Any) -> bool:
    if isinstance(source, MergeIterator):
        return all(map(_has_position, source.iterables))
    return _has_state(source) or _is_sequence(source)


def _is_sequence(source: Any) -> bool:
    is_indexed = hasattr(type(source), "__len__") and hasattr(type(source), "__getitem__")
    return is_indexed and not isinstance(source, (Mapping, Iterator))


def _refusal(config: PipelineConfig[Any]) -> str | None:
    """Returns why a pipeline has no checkpoint state, if it has none."""
    source = config.src
    refusal = _join_refusal(source) if isinstance(source, JoinConfig) else _source_refusal(source.source)
    if refusal is not None:
        return refusal
    stages = _stages_of(config)
    if isinstance(source, ZipConfig):
        if _splits_aggregates(stages, aggregated=True):
            return (
                "a stage after a zip splits tuples or lists, so those that were delivered in part could not be made "
                "again; split them after they are delivered"
            )
        return None
    if isinstance(source, MergeConfig):
        if _splits_aggregates(stages):
            return (
                "a stage after a merge splits lists, so lists that were delivered in part could not be made again; split "
                "lists before the pipelines are merged, or merge the sources in one source, such as "
                "spdl_rs.source.utils.MergeIterator"
            )
        return None
    unordered = next((name for stage in stages for name in _unordered(stage)), None)
    if unordered is not None and _splits_aggregates(stages):
        return (
            f"stage {unordered!r} does not keep the order of its items, and a later stage splits lists, so lists that "
            'were delivered in part could not be made again; set output_order="input"'
        )
    return None


def _stages_of(config: PipelineConfig[Any]) -> list[StageConfig]:
    return [stage for stage in config.pipes if not isinstance(stage, PlacementConfig)]


def _source_refusal(source: Any) -> str | None:
    if isinstance(source, Cancellable):
        return (
            "a pipeline with stages in other processes (to) has no checkpoint state; use a process pool as the "
            "executor of the stages instead"
        )
    if isinstance(source, (AsyncIterable, _spdl_rs.TaskQueue)) or not _has_position(source):
        return (
            f"the position in a source of type {type(source).__name__!r} is unknown, so the pipeline has no checkpoint "
            "state; use a sequence, such as a list or a range, a sampler of spdl_rs.source, or an object with "
            "state_dict and load_state_dict"
        )
    return None


def _join_refusal(join: MergeConfig | ZipConfig) -> str | None:
    what, weights = ("zip", None) if isinstance(join, ZipConfig) else ("merge", join.weights)
    if isinstance(join, MergeConfig) and join.op is not None:
        return NO_STATE
    for part in join.pipeline_configs:
        if (refusal := _refusal(part)) is not None:
            return refusal
        stages = _stages_of(part)
        if _splits_aggregates(stages):
            return (
                f"a {'merged' if what == 'merge' else 'zipped'} pipeline splits lists, so lists that were delivered in part could not be made again; use "
                "lists as the items of its source, or split them after they are delivered"
            )
        if weights is not None and (isinstance(part.src, JoinConfig) or any(map(_regroups, stages))):
            return (
                "a merge with weights of pipelines that group, split, route, zip or merge items has no checkpoint state; "
                "do so after the merge, or merge without weights"
            )
    shared = [source for source in _sources_of(join) if _has_state(source)]
    if len({id(source) for source in shared}) < len(shared):
        return "a source with a state_dict is in several pipelines of a merge or zip, but has one position; use a copy in each"
    return None


def _sources_of(join: JoinConfig) -> Iterator[Any]:
    for part in join.pipeline_configs:
        if isinstance(part.src, JoinConfig):
            yield from _sources_of(part.src)
        else:
            yield part.src.source


def _regroups(stage: StageConfig) -> bool:
    """Returns whether the items that leave a stage may differ from single items that enter it."""
    if isinstance(stage, (AggregateConfig, DisaggregateConfig, PathVariantsConfig)):
        return True
    return not _native.is_native(stage) and _ops.kind_of(stage.op).startswith("iterate")


def _unordered(stage: StageConfig) -> Iterator[str]:
    """Yields the names of stages that may forward results in another order."""
    if isinstance(stage, PathVariantsConfig):
        if not stage.batched:
            yield stage.name
        for path in stage.paths:
            for inner in path:
                yield from _unordered(inner)
    elif getattr(stage, "output_order", "input") != "input":
        if getattr(stage, "concurrency", 1) != 1:
            yield stage.name


def _splits_aggregates(stages: Iterable[StageConfig], aggregated: bool = False) -> bool:
    """Returns whether a stage may split what an earlier stage, or the source, aggregated."""
    for stage in stages:
        if isinstance(stage, AggregateConfig):
            aggregated = True
        elif isinstance(stage, PathVariantsConfig):
            if aggregated or any(map(_splits_aggregates, stage.paths)):
                return True
            aggregated = any(isinstance(inner, AggregateConfig) for path in stage.paths for inner in path)
        elif aggregated and (
            isinstance(stage, DisaggregateConfig)
            or (not _native.is_native(stage) and _ops.kind_of(stage.op).startswith("iterate"))
        ):
            return True
    return False
