"""The functions of a `Loader`: `map` for samples and `batch_map` for batches."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from . import _arguments as check
from . import _spdl_rs

KEYS = "(keys)"
"""The field with the names of samples, for messages. Functions do not get it."""

# The native loader calls a function with a batch and with a random number for each of its samples.
Stage: TypeAlias = "tuple[str, Callable[[Any, list[int]], Any]]"


class _Named(NamedTuple):
    """A result of `map`, and the names of its samples for `batch_map`."""

    batch: Any
    keys: list[str]


class _Function:
    """A function of the user."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        check.function(name, function)
        if _is_asynchronous(function):
            raise TypeError(
                f"{name} must return its result; it cannot be a coroutine or a generator"
            )
        self._function, self._draws = function, _has_rng(function)
        code = getattr(function, "__code__", None)
        place = (
            f" at {os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code else ""
        )
        self._words = f"{name}, {getattr(function, '__name__', repr(function))}{place}"

    def __call__(self, batch: Any, seeds: list[int]) -> Any:
        ident = threading.get_ident()
        _running[ident] = _Running(ident, threading.get_native_id(), self._words)
        try:
            return self._apply(batch, seeds)
        finally:
            del _running[ident]

    def _apply(self, batch: Any, seeds: list[int]) -> Any:
        raise NotImplementedError

    def _call(self, value: Any, seed: int) -> Any:
        if not self._draws:
            return self._function(value)
        import numpy

        return self._function(value, rng=numpy.random.default_rng(seed))


class MapSamples(_Function):
    """Calls a function for each sample of a batch, and makes a batch of the results.

    Args:
        prepare: Is applied to the values of a batch before it is split.
        finish: Is applied to the new batch.
        lists: The names whose values become lists, as the fields of these names.
        is_last: Whether no `batch_map` follows.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        prepare: Callable[[dict[str, Any]], dict[str, Any]] | None,
        finish: Callable[[dict[str, Any]], Any] | None,
        *,
        lists: Collection[str],
        is_last: bool,
    ) -> None:
        super().__init__("map", function)
        self._prepare, self._finish = prepare, finish
        self._lists, self._is_last = lists, is_last

    def _apply(self, batch: dict[str, Any], seeds: list[int]) -> Any:
        keys = batch.pop(KEYS)
        if self._prepare is not None:
            batch = self._prepare(batch)
        rows = {name: _rows(value, len(seeds)) for name, value in batch.items()}
        samples: list[Mapping[str, Any]] = []
        for at, seed in enumerate(seeds):
            sample = {name: values[at] for name, values in rows.items()}
            try:
                result = self._call(sample, seed)
                if not isinstance(result, Mapping):
                    raise TypeError(
                        f"map must return a dict of values by name, not {check.shown(result)}"
                    )
                if samples and result.keys() != samples[0].keys():
                    raise ValueError(
                        "map must return the same names for all samples: it returned "
                        f"{_names(result)} after {_names(samples[0])}"
                    )
            except Exception as error:
                _note(error, f"map of the sample {keys[at]!r}")
                raise
            samples.append(result)
        try:
            made = {name: self._collated(name, samples) for name in samples[0]}
            finished = made if self._finish is None else self._finish(made)
        except Exception as error:
            _note(error, f"map of the samples {keys[0]!r} to {keys[-1]!r}")
            raise
        return finished if self._is_last else _Named(finished, keys)

    def _collated(self, name: str, samples: list[Mapping[str, Any]]) -> Any:
        """Stacks numbers, arrays and tensors; otherwise returns a list."""
        import numpy

        values = [sample[name] for sample in samples]
        if name in self._lists:
            return values
        if all(type(value) is int for value in values):
            return numpy.asarray(values, dtype=numpy.int64)
        if all(isinstance(value, (bool, int, float, numpy.generic)) for value in values):
            return numpy.asarray(values)
        arrays: tuple[type, ...] = (numpy.ndarray,)
        if "torch" in sys.modules:
            arrays += (importlib.import_module("torch").Tensor,)
        if not any(isinstance(value, arrays) for value in values):
            return values
        kinds = {
            (type(value), getattr(value, "shape", None), getattr(value, "dtype", None))
            for value in values
        }
        if len(kinds) > 1:
            shown = sorted({_described(value) for value in values})
            raise ValueError(
                f"cannot stack the values {name!r} of map: {' and '.join(shown[:2])}; pad them, or return "
                "each inside a list"
            )
        if isinstance(values[0], numpy.ndarray):
            return numpy.stack(values)
        return importlib.import_module("torch").stack(values)


class MapBatch(_Function):
    """Calls a function with each batch.

    Args:
        prepare: Is applied to the batch before.
    """

    def __init__(
        self, function: Callable[..., Any], prepare: Callable[[dict[str, Any]], Any] | None
    ) -> None:
        super().__init__("batch_map", function)
        self._prepare = prepare

    def _apply(self, batch: Any, seeds: list[int]) -> Any:
        batch, keys = batch if isinstance(batch, _Named) else (batch, batch.pop(KEYS))
        try:
            if self._prepare is not None:
                batch = self._prepare(batch)
            return self._call(batch, seeds[0])
        except Exception as error:
            _note(error, f"batch_map of the samples {keys[0]!r} to {keys[-1]!r}")
            raise


def _is_asynchronous(function: Callable[..., Any]) -> bool:
    import inspect

    return any(
        inspect.iscoroutinefunction(one)
        or inspect.isgeneratorfunction(one)
        or inspect.isasyncgenfunction(one)
        for one in (function, getattr(function, "__call__", None))  # noqa: B004
    )


def _has_rng(function: Callable[..., Any]) -> bool:
    """Returns whether the function needs an argument `rng`."""
    import inspect

    try:
        parameter = inspect.signature(function).parameters.get("rng")
    except (TypeError, ValueError):  # Functions of extensions may have no signature.
        return False
    return parameter is not None and parameter.default is parameter.empty


def _names(sample: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, sample)))


def _described(value: Any) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None:
        return f"an object of type {type(value).__name__}"
    return f"{dtype} of shape {tuple(shape)}"


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


_INTERRUPTED_S = 0.2
"""The longest wait at exit for functions after they were interrupted."""


class _Running(NamedTuple):
    """A thread that runs a function, with the attributes of `threading.Thread`."""

    ident: int
    native_id: int
    words: str


_running: dict[int, _Running] = {}


class ProcessExit(SystemExit):
    """Raised in functions that still run when the process exits."""


def end_python() -> None:
    """Stops all other threads from running Python code. Must be called at exit.

    Python up to 3.13 would end threads that still run functions during finalization, and crash.
    """
    is_left = _spdl_rs.Workers.forbid_python()
    running = list(_running.values())
    if not is_left or not running:
        return
    # First, because imports take long while other threads compute.
    _interrupt()
    deadline = time.monotonic() + _INTERRUPTED_S
    while is_left and time.monotonic() < deadline:
        time.sleep(0.002)
        is_left = _spdl_rs.Workers.forbid_python(0)
    from .pipeline._failures.log import log_warning
    from .pipeline._processes.suspend import suspend

    words = "; ".join(sorted({one.words for one in running}))
    log_warning(f"the process exits while functions of loaders are still running: {words}")
    if is_left and sys.version_info < (3, 14):
        suspend(list(_running.values()))


def _interrupt() -> None:
    try:
        import ctypes
    except ImportError:
        # Some builds of Python have no ctypes.
        return
    for ident in list(_running):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(ident), ctypes.py_object(ProcessExit)
        )
