"""The functions of a `Loader`: `filter` and `map` for samples, `collate` and `batch_map` for batches."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from . import _arguments as check
from . import _spdl_rs

KEYS = "(keys)"
"""The field with the names of samples, for messages. Functions do not get it."""

# The native loader calls a function with a batch and, for each stage whose work the function does, with a list of
# random numbers, one for each sample.
Call: TypeAlias = "Callable[[Any, list[list[int]]], Any]"


class Functions(NamedTuple):
    """The functions of a loader, for the native module."""

    filter: tuple[_spdl_rs.SampleFields, Function] | None
    """The fields that `filter` gets, and the function."""
    stages: list[tuple[str, Call | None]]
    """The stages of the other functions. A stage without a function forwards batches, because the function of an
    earlier stage, or `inline`, does its work."""
    inline: Call | None = None
    """Does the work of all stages on the thread that takes a batch."""
    processes: int | None = None
    """The number of calls at the same time, if they wait for other processes."""
    get_item: Call | None = None
    """Returns the sample at a position, if the source is a map-style data set."""
    map_samples: tuple[_spdl_rs.SampleFields, Function] | None = None
    """The fields that `map` gets, and the function, if it is called before samples are grouped."""
    iterate: Callable[[int, int], Any] | None = None
    """Starts an iteration of an epoch at a position, if the source is an iterable: see `_iterables.Iterations`."""


class _Named(NamedTuple):
    """A result, and the names of its samples for the next function."""

    batch: Any
    keys: list[str]


class Function:
    """A function of the user. The native loader calls it."""

    varying: Mapping[str, Sequence[int]] = {}
    """The dimensions in which the samples of a field differ, by name: see `samples_of`."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        check.function(name, function)
        if _is_asynchronous(function):
            raise TypeError(
                f"{name} must return its result; it cannot be a coroutine or a generator"
            )
        self._name, self._function = name, function
        self._generators = _generators_of(function)
        code = getattr(function, "__code__", None)
        place = (
            f" at {os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code else ""
        )
        self._words = f"{name}, {getattr(function, '__name__', repr(function))}{place}"

    def __call__(self, value: Any, seeds: list[list[int]]) -> Any:
        with running(self._words):
            return call(self._words, self._apply, value, *seeds)

    def _apply(self, value: Any, seeds: list[int], /) -> Any:
        raise NotImplementedError

    def check_picklable(self) -> None:
        """Raises `TypeError` if the function cannot be sent to another process."""
        import pickle

        try:
            pickle.dumps(self, protocol=5)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(
                f"{self._name} cannot be pickled for a worker process: {error}; define functions and classes at "
                'the top level of a module, without lambda, or use executor="threads"'
            ) from error

    def _call(self, value: Any, seed: int) -> Any:
        if not self._generators:
            return self._function(value)
        drawn = {name: _GENERATORS[name](seed) for name in self._generators}
        return self._function(value, **drawn)


class FilterSample(Function):
    """Calls a function for a sample. Returns whether to keep the sample."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__("filter", function)

    def _apply(self, batch: dict[str, Any], seeds: list[int]) -> bool:
        (key,) = batch.pop(KEYS)
        (sample,) = _samples(batch, 1, self.varying)
        try:
            keeps = self._call(sample, seeds[0])
            if keeps is not True and keeps is not False:
                # `numpy.bool_` has this method too.
                keeps = keeps.item() if hasattr(keeps, "item") else keeps
                if not isinstance(keeps, bool):
                    raise TypeError(f"filter must return True or False, not {check.shown(keeps)}")
        except (Exception, SystemExit) as error:
            note(error, f"filter of the sample {key!r}")
            raise
        return keeps


class MapSample(Function):
    """Calls a function for a sample that is not decoded yet. Returns new values of fields.

    Args:
        names: The fields whose values the function may return.
    """

    def __init__(self, function: Callable[..., Any], names: Collection[str]) -> None:
        super().__init__("map", function)
        self._names = names

    def _apply(self, batch: dict[str, Any], seeds: list[int]) -> dict[str, Any]:
        (key,) = batch.pop(KEYS)
        (sample,) = _samples(batch, 1, self.varying)
        try:
            result = self._call(sample, seeds[0])
            if not isinstance(result, Mapping):
                raise TypeError(f"map must return a dict of values by name, not {check.shown(result)}")
            for name in result:
                if name not in self._names:
                    raise ValueError(
                        f"map before group returns values of the fields {', '.join(self._names)}, not {name!r}; add a "
                        "field of this name, with optional=True if it is not stored"
                    )
        except (Exception, SystemExit) as error:
            note(error, f"map of the sample {key!r}")
            raise
        return dict(result)


class MapSamples(Function):
    """Calls a function for each sample of a batch. Yields a list of the results.

    Args:
        prepare: Is applied to the values of a batch before it is split.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        prepare: Callable[[dict[str, Any]], dict[str, Any]] | None,
    ) -> None:
        super().__init__("map", function)
        self._prepare = prepare

    def _apply(self, batch: dict[str, Any], seeds: list[int]) -> Any:
        keys = batch.pop(KEYS)
        if self._prepare is not None:
            batch = self._prepare(batch)
        results: list[Any] = []
        for key, sample, seed in zip(keys, _samples(batch, len(seeds), self.varying), seeds):
            try:
                result = self._call(sample, seed)
                self._check(result, results)
            except (Exception, SystemExit) as error:
                note(error, f"map of the sample {key!r}")
                raise
            results.append(result)
        return self._finished(results, keys)

    def _check(self, result: Any, earlier: list[Any]) -> None:
        """Raises an exception if the result does not fit to earlier ones."""

    def _finished(self, results: list[Any], keys: list[str]) -> Any:
        return _Named(results, keys)


class StackSamples(MapSamples):
    """Calls a function for each sample of a batch, and stacks the results, which are dicts.

    Args:
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
        super().__init__(function, prepare)
        self._finish, self._lists, self._is_last = finish, lists, is_last

    def _check(self, result: Any, earlier: list[Any]) -> None:
        if not isinstance(result, Mapping):
            raise TypeError(f"map must return a dict of values by name, not {check.shown(result)}")
        if earlier and result.keys() != earlier[0].keys():
            raise ValueError(
                "map must return the same names for all samples: it returned "
                f"{_names(result)} after {_names(earlier[0])}"
            )

    def _finished(self, results: list[Any], keys: list[str]) -> Any:
        try:
            made = {name: self._stacked(name, results) for name in results[0]}
            finished = made if self._finish is None else self._finish(made)
        except (Exception, SystemExit) as error:
            note(error, f"map of the samples {keys[0]!r} to {keys[-1]!r}")
            raise
        return finished if self._is_last else _Named(finished, keys)

    def _stacked(self, name: str, samples: list[Mapping[str, Any]]) -> Any:
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


class MapBatch(Function):
    """Calls a function with each batch: `collate` or `batch_map`.

    Args:
        prepare: Is applied to the batch before.
        splits: Whether the function gets a list of samples.
        is_last: Whether no other function follows.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        prepare: Callable[[dict[str, Any]], Any] | None,
        *,
        splits: bool = False,
        is_last: bool = True,
    ) -> None:
        super().__init__(name, function)
        self._prepare, self._splits, self._is_last = prepare, splits, is_last

    def _apply(self, batch: Any, seeds: list[int]) -> Any:
        is_first = not isinstance(batch, _Named)
        batch, keys = (batch, batch.pop(KEYS)) if is_first else batch
        try:
            if self._prepare is not None:
                batch = self._prepare(batch)
            if self._splits and is_first:
                batch = _samples(batch, len(seeds), self.varying)
            result = self._call(batch, seeds[0])
        except (Exception, SystemExit) as error:
            note(error, f"{self._name} of the samples {keys[0]!r} to {keys[-1]!r}")
            raise
        return result if self._is_last else _Named(result, keys)


class InTurn:
    """Calls functions, each with the result of the one before."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self._functions = functions

    def __call__(self, batch: Any, seeds: list[list[int]]) -> Any:
        for function, own in zip(self._functions, seeds):
            batch = function(batch, [own])
        return batch


def _is_asynchronous(function: Callable[..., Any]) -> bool:
    import inspect

    return any(
        inspect.iscoroutinefunction(one)
        or inspect.isgeneratorfunction(one)
        or inspect.isasyncgenfunction(one)
        for one in (function, getattr(function, "__call__", None))  # noqa: B004
    )


def _numpy_generator(seed: int) -> Any:
    import numpy

    return numpy.random.default_rng(seed)


def _torch_generator(seed: int) -> Any:
    generator = importlib.import_module("torch").Generator()
    generator.manual_seed(seed)
    return generator


_GENERATORS: dict[str, Callable[[int], Any]] = {"rng": _numpy_generator, "generator": _torch_generator}
"""The arguments of functions that get random generators."""


def _generators_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the arguments of the function that need a random generator.

    Raises:
        ModuleNotFoundError: A generator of PyTorch is needed, and PyTorch is not installed.
    """
    import inspect

    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # Functions of extensions may have no signature.
        return ()
    needed = tuple(
        name
        for name in _GENERATORS
        if name in parameters and parameters[name].default is inspect.Parameter.empty
    )
    if "generator" in needed:
        importlib.import_module("torch")
    return needed


def _names(sample: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, sample)))


def _described(value: Any) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None:
        return f"an object of type {type(value).__name__}"
    return f"{dtype} of shape {tuple(shape)}"


def call(words: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function, and replaces the exceptions that would end the loop or the program of the consumer.

    Args:
        words: The function, for messages.

    Raises:
        RuntimeError: The function raised `StopIteration`, or, not on the main thread, `SystemExit`.
    """
    try:
        return function(*arguments)
    except (StopIteration, SystemExit) as error:
        # Signal handlers raise `SystemExit` on the main thread. Subclasses end functions when the process exits.
        is_main = threading.get_ident() == threading.main_thread().ident
        if isinstance(error, SystemExit) and (is_main or type(error) is not SystemExit):
            raise
        raised = RuntimeError(f"{error!r} was raised by {words}")
        for text in getattr(error, "__notes__", ()):
            note(raised, text)
        raise raised from error


def note(error: BaseException, text: str) -> None:
    """Adds a note to an exception."""
    if sys.version_info >= (3, 11):
        error.add_note(text)
    else:
        error.__notes__ = [*getattr(error, "__notes__", []), text]  # type: ignore[attr-defined]


def samples_of(batch: Mapping[str, Any], varying: Mapping[str, Sequence[int]]) -> list[dict[str, Any]]:
    """The values of each sample of a batch, whose number of samples is unknown.

    Args:
        varying: The dimensions of a sample in which padded samples differ, by field. Default: the first ones.

    Raises:
        TypeError: The values have no samples, or different numbers of samples.
    """
    from .fields import Padded, Ragged

    counts = {}
    for name, value in batch.items():
        if isinstance(value, Ragged):
            counts[name] = len(value.offsets) - 1
        elif isinstance(value, Padded):
            counts[name] = len(value.values)
        elif hasattr(value, "__len__"):
            counts[name] = len(value)
        else:
            raise TypeError(f"{name!r} must have a value for each sample, not {check.shown(value)}")
    if len(set(counts.values())) > 1:
        raise TypeError(f"the fields of a batch must have the same number of samples, not {counts}")
    return _samples(batch, max(counts.values(), default=0), varying)


def _samples(
    batch: Mapping[str, Any], count: int, varying: Mapping[str, Sequence[int]]
) -> list[dict[str, Any]]:
    """The values of each sample of a batch."""
    rows = {name: _rows(value, count, varying.get(name)) for name, value in batch.items()}
    return [{name: values[at] for name, values in rows.items()} for at in range(count)]


def _rows(value: Any, count: int, varying: Sequence[int] | None) -> Sequence[Any]:
    """The value of each sample. Arrays are views of the array of the batch."""
    from .fields import Padded, Ragged

    if isinstance(value, Ragged):
        ends = [int(end) for end in value.offsets]
        return [value.values[start:end] for start, end in zip(ends, ends[1:])]
    if isinstance(value, Padded):
        rows = []
        for at in range(count):
            sizes = value.sizes[at]
            dimensions = varying or range(len(sizes))
            parts = [slice(None)] * (1 + max(dimensions))
            for dimension, size in zip(dimensions, sizes):
                parts[dimension] = slice(int(size))
            rows.append(value.values[at][tuple(parts)])
        return rows
    return value


def tensors_of(batch: dict[str, Any]) -> dict[str, Any]:
    """Replaces the arrays of a batch by tensors of PyTorch with the same memory."""
    torch = importlib.import_module("torch")

    def tensor_of(array: Any) -> Any:
        # Without the package `ml_dtypes`, NumPy sees two opaque bytes.
        if array.dtype.name == "bfloat16" or array.dtype == "V2":
            return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
        return torch.from_numpy(array)

    return {name: _converted(value, tensor_of) for name, value in batch.items()}


def jax_arrays_of(batch: dict[str, Any]) -> dict[str, Any]:
    """Replaces the arrays of a batch by arrays of JAX on its default device.

    On CPUs, they share the memory, which is not written until it has no user.
    """
    device_put = importlib.import_module("jax").device_put
    convert = functools.partial(device_put, may_alias=True)
    return {name: _converted(value, convert) for name, value in batch.items()}


def _converted(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Calls `convert` for each array of a value."""
    import numpy

    if isinstance(value, numpy.ndarray):
        return convert(value)
    if isinstance(value, tuple):
        return type(value)(*(_converted(one, convert) for one in value))
    if isinstance(value, list):
        return [_converted(one, convert) for one in value]
    return value


_INTERRUPTED_S = 0.2
"""The longest wait at exit for functions after they were interrupted."""


class _Running(NamedTuple):
    """A thread that runs a function, with the attributes of `threading.Thread`."""

    ident: int
    native_id: int
    words: str


_running: dict[int, _Running] = {}


@contextlib.contextmanager
def running(words: str) -> Iterator[None]:
    """Registers that this thread runs a function, for the end of the process."""
    ident = threading.get_ident()
    # A function on the thread that takes batches may itself take batches of another loader.
    outer = _running.get(ident)
    _running[ident] = _Running(ident, threading.get_native_id(), words)
    try:
        yield
    finally:
        if outer is None:
            del _running[ident]
        else:
            _running[ident] = outer


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
