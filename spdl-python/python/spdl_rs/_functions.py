"""The functions of a `Loader`: `map` for samples and `batch_map` for batches."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from . import _arguments as check

# The hidden field with the names of samples, for messages.
KEYS = "\0keys"

# The native loader calls a function with a batch and with a random number for each of its samples.
Stage: TypeAlias = "tuple[str, Callable[[Any, list[int]], Any]]"


class MapSamples:
    """Calls a function for each sample of a batch, and makes a batch of the results.

    Args:
        prepare: Is applied to the values of a batch before it is split.
        finish: Is applied to the new batch.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        prepare: Callable[[dict[str, Any]], dict[str, Any]] | None,
        finish: Callable[[dict[str, Any]], Any] | None,
    ) -> None:
        self._function, self._draws = _checked("map", function)
        self._prepare, self._finish = prepare, finish

    def __call__(self, batch: dict[str, Any], seeds: list[int]) -> Any:
        keys = batch.pop(KEYS)
        if self._prepare is not None:
            batch = self._prepare(batch)
        rows = {name: _rows(value, len(seeds)) for name, value in batch.items()}
        samples = []
        for at, seed in enumerate(seeds):
            sample = {name: values[at] for name, values in rows.items()}
            try:
                result = _call(self._function, sample, seed if self._draws else None)
                if not isinstance(result, Mapping):
                    raise TypeError(
                        f"map must return a dict of values by name, not {check.shown(result)}"
                    )
                if samples and result.keys() != samples[0].keys():
                    raise ValueError(
                        f"map must return the same names for all samples: it returned {sorted(result)} "
                        f"after {sorted(samples[0])}"
                    )
            except Exception as error:
                _note(error, f"map of the sample {keys[at]!r}")
                raise
            samples.append(result)
        collated = {name: _collated([sample[name] for sample in samples]) for name in samples[0]}
        return collated if self._finish is None else self._finish(collated)


class MapBatch:
    """Calls a function with each batch."""

    def __init__(
        self,
        function: Callable[..., Any],
        prepare: Callable[[dict[str, Any]], Any] | None,
        *,
        is_first: bool,
    ) -> None:
        self._function, self._draws = _checked("batch_map", function)
        self._prepare, self._is_first = prepare, is_first

    def __call__(self, batch: Any, seeds: list[int]) -> Any:
        keys = batch.pop(KEYS) if self._is_first else None
        if self._prepare is not None:
            batch = self._prepare(batch)
        try:
            return _call(self._function, batch, seeds[0] if self._draws else None)
        except Exception as error:
            if keys:
                _note(error, f"batch_map of the samples {keys[0]!r} to {keys[-1]!r}")
            raise


def _checked(name: str, function: Any) -> tuple[Callable[..., Any], bool]:
    """Returns the function, and whether it has an argument `rng`."""
    check.function(name, function)
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{name} must return its result; it cannot be a coroutine or a generator")
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # Functions of extensions may have no signature.
        return function, False
    return function, "rng" in parameters


def _call(function: Callable[..., Any], value: Any, seed: int | None) -> Any:
    if seed is None:
        return function(value)
    import numpy

    return function(value, rng=numpy.random.default_rng(seed))


def _note(error: Exception, note: str) -> None:
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:
        error.__notes__ = [*getattr(error, "__notes__", []), note]  # type: ignore[attr-defined]


def _rows(value: Any, count: int) -> Sequence[Any]:
    """The value of each sample. Arrays are views of the array of the batch."""
    from .fields import Padded, Ragged

    if isinstance(value, Ragged):
        ends = [int(end) for end in value.offsets]
        return [value.values[start:end] for start, end in zip(ends, ends[1:])]
    if isinstance(value, Padded):
        rows = []
        for at in range(count):
            rows.append(value.values[at][tuple(slice(int(size)) for size in value.sizes[at])])
        return rows
    return value


def _collated(values: list[Any]) -> Any:
    """Stacks numbers, and arrays or tensors of one shape and dtype; otherwise returns the list."""
    import numpy

    first = values[0]
    kind = type(first)
    if isinstance(first, (bool, int, float, numpy.generic)):
        same = all(isinstance(value, (bool, int, float, numpy.generic)) for value in values)
        return numpy.asarray(values) if same else values
    shape = getattr(first, "shape", None)
    for value in values:
        if type(value) is not kind or getattr(value, "shape", None) != shape:
            return values
    if isinstance(first, numpy.ndarray):
        same = all(value.dtype == first.dtype for value in values)
        return numpy.stack(values) if same else values
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(first, torch.Tensor):
        return torch.stack(values)
    return values


def tensors_of(batch: dict[str, Any]) -> dict[str, Any]:
    """Replaces the arrays of a batch by tensors of PyTorch with the same memory."""
    return {name: _tensors(value) for name, value in batch.items()}


def _tensors(value: Any) -> Any:
    import numpy

    if isinstance(value, numpy.ndarray):
        return importlib.import_module("torch").from_numpy(value)
    if isinstance(value, tuple):
        return type(value)(*map(_tensors, value))
    if isinstance(value, list):
        return [_tensors(one) for one in value]
    return value
