"""Checks of arguments: numbers, flags, strings, callables, lists and addresses."""

from __future__ import annotations

import math
import operator
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex, TypeAlias, TypeVar

from ._errors import InvalidArgumentError
from ._secrets import without_secrets

T = TypeVar("T")
Path: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"

MAX_THREADS = 2**16
"""The largest allowed number of threads."""
MAX_SIDE = 16_384
"""The largest width or height of a sample, in pixels."""
_LAYOUTS = ("nhwc-u8", "nhwc-f16", "nhwc-f32", "nchw-u8", "nchw-f16", "nchw-f32")
_WIDE_LAYOUTS = ("nhwc-u16", "nchw-u16")
_MAX = 2**63 - 1
_MAX_SECONDS = 1e9
# The longest path in bytes on Linux.
_MAX_PATH = 4096
# The length of the start of strings that messages are made from.
_MAX_INSPECTED = 4096

_SOURCE = "a folder, an address, a list of paths, a table, a data set, or an iterable of samples"


def addresses(source: Any) -> tuple[list[str], bool]:
    """Returns the addresses as strings, and whether `source` is a list."""
    if isinstance(source, (str, bytes, os.PathLike)):
        _refuse_content("source", source)
        return [os.fsdecode(source)], False
    if isinstance(source, Mapping):
        raise TypeError(
            f"source must be {_SOURCE}, not a dict; for a dict of columns, pass a table, such as "
            "pyarrow.table(columns), or a list with a dict for each sample"
        )
    # Exceptions raised during the iteration are not replaced.
    try:
        paths = iter(source)
    except TypeError:
        import inspect  # Large, so not imported with the package.

        hint = ""
        if inspect.isgeneratorfunction(source):
            hint = (
                f"; pass {source.__name__}() for one epoch, or for several epochs an object whose __iter__ calls "
                f"{source.__name__}"
            )
        raise TypeError(f"source must be {_SOURCE}, not {shown(source)}{hint}") from None
    found = []
    for path in paths:
        if isinstance(path, (Mapping, tuple)):
            raise TypeError(
                f"source must have either paths or samples as items; its first item is {shown(found[0])}, but "
                f"another item is {shown(path)}"
                if found
                else f"source must be {_SOURCE}; its first item is {shown(path)}"
            )
        _refuse_content(f"item {len(found)} of source", path)
        try:
            found.append(os.fsdecode(path))
        except TypeError as error:
            raise TypeError(f"source must be {_SOURCE}: {error}") from None
    return found, True


def _refuse_content(name: str, value: object) -> None:
    """Raises `TypeError` if a value that should be a path is the content of a file."""
    if isinstance(value, (bytearray, memoryview)):
        is_content = True
    elif isinstance(value, bytes):
        is_content = len(value) > _MAX_PATH or b"\0" in value
    elif isinstance(value, str):
        # Signed addresses may be long.
        is_content = "\0" in value or (len(value) > _MAX_PATH and "://" not in value[:16])
    else:
        return
    if is_content:
        unit = "characters" if isinstance(value, str) else "bytes"
        raise TypeError(
            f"{name} must be a path, but it looks like the content of a file ({len(value):,} {unit}); "
            "a sample in memory is a dict: yield {'image': data}, or pass a list of such dicts"
        )


def listed(name: str, value: Iterable[T], what: str) -> list[T]:
    """Returns the items of an iterable. `what` describes the expected type in error messages."""
    # Exceptions raised during the iteration are not replaced.
    try:
        items = iter(value)
    except TypeError:
        raise TypeError(f"{name} must be {what}, not {shown(value)}") from None
    return list(items)


def labels_of(labels: Iterable[SupportsIndex] | None) -> list[int] | None:
    """Returns labels as 64-bit integers."""
    if labels is None:
        return None
    if isinstance(labels, (str, bytes)):
        raise TypeError(f"labels must be a list of whole numbers, not {type(labels).__name__}")
    numbers = (int(label) if isinstance(label, bool) else label for label in labels)
    return [whole("labels", label, -(2**63), 2**63 - 1) for label in numbers]


def names(name: str, value: Iterable[str] | None) -> list[str] | None:
    """Returns a non-empty list of distinct strings, or `None`."""
    if value is None:
        return None
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{name} must be a list of str, not {type(value).__name__}")
    texts = listed(name, value, "a list of str")
    for each in texts:
        if not isinstance(each, str):
            raise TypeError(f"{name} must be a list of str, but it contains {shown(each)}")
    if not texts or len(set(texts)) < len(texts):
        raise ValueError(f"{name} must contain at least one name and no duplicates")
    return texts


def whole(
    name: str,
    value: SupportsIndex,
    least: int = 1,
    most: int | None = None,
    *,
    wrong_type: type[Exception] = TypeError,
) -> int:
    """Returns an integer from `least` to `most`. NumPy integers are accepted, `bool` is not.

    Without `most` the limit is 2**63 - 1.

    Raises:
        ValueError: `value` is out of range.
        TypeError: `value` is not an integer. `wrong_type` replaces the type of this exception.
    """
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise wrong_type(f"{name} must be a whole number, not {shown(value)}")
    number = operator.index(value)
    if not least <= number <= (_MAX if most is None else most):
        allowed = f"{least} to {_MAX if most is None else most}"
        if most is None and number < least:
            allowed = f"at least {least}"
        raise ValueError(f"{name} must be {allowed}, not {shown(number)}")
    return number


def shown(value: object) -> str:
    """Describes a value in error messages: a number or string by its `repr`, others by their type."""
    if isinstance(value, int) and abs(value) >> 64:
        return f"a number of {value.bit_length()} bits"
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        if isinstance(value, (str, bytes)):
            value = value[:_MAX_INSPECTED]
        # Secrets are removed before truncation.
        text = without_secrets(repr(value))
        return text if len(text) <= 60 else f"{text[:60]}…"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"an object of type {type(value).__name__}"


def real(name: str, value: Any) -> float:
    """Returns a number as `float`."""
    if isinstance(value, (bool, str, bytes)) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{name} must be a number, not {shown(value)}")
    return float(value)


def reals(name: str, value: Any, *counts: int) -> tuple[float, ...]:
    """Returns a tuple of numbers whose length is one of `counts`."""
    values = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(values) not in counts:
        wanted = " or ".join(map(str, counts))
        raise TypeError(f"{name} must be a tuple or list of {wanted} numbers, not {value!r}")
    return tuple(real(name, number) for number in values)


def flag(name: str, value: Any, *, or_number: bool = False) -> bool:
    """Returns a `bool`. Accepts `numpy.bool_`, and with `or_number` also the integers 0 and 1."""
    if or_number and type(value) is int and value in (0, 1):
        return bool(value)
    # Avoids importing NumPy: a NumPy bool exists only if NumPy is imported.
    numpy = sys.modules.get("numpy")
    if not isinstance(value, bool) and not (numpy and isinstance(value, numpy.bool_)):
        raise TypeError(f"{name} must be True or False, not {shown(value)}")
    return bool(value)


def tune(value: Any) -> bool | str:
    """Returns the argument `tune`: a flag, or the path of a file of settings."""
    if isinstance(value, (str, bytes, os.PathLike)):
        return os.fsdecode(value)
    try:
        return flag("tune", value)
    except TypeError:
        raise TypeError(f"tune must be True, False or a path, not {shown(value)}") from None


def choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Returns `value` if it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        *some, last = [f'"{choice}"' for choice in choices]
        raise ValueError(f"{name} must be {', '.join(some)} or {last}, not {shown(value)}")
    return value


def layout(value: Any, *, bfloat16: bool = False, uint16: bool = False) -> str:
    """Returns `value` if it is a memory layout of samples that NumPy can represent.

    Args:
        bfloat16: Whether the caller itself checks that arrays of bfloat16 are possible.
        uint16: Whether arrays of `uint16` are possible.
    """
    if not isinstance(value, str):
        raise TypeError(f'layout must be a str such as "nhwc-u8" or "nchw-f32", not {value!r}')
    if value in ("nhwc-bf16", "nchw-bf16"):
        if bfloat16:
            return value
        order, _ = value.split("-")
        raise NotImplementedError(
            f'layout="{value}": NumPy has no bfloat16; use Loader with output="torch", or use "{order}-f32" or '
            f'"{order}-u8" and convert batches in the training loop: torch.from_numpy(images).to(torch.bfloat16)'
        )
    layouts = (*_LAYOUTS, *_WIDE_LAYOUTS) if uint16 else _LAYOUTS
    if value not in layouts:
        names = ", ".join(f'"{name}"' for name in layouts)
        raise InvalidArgumentError(
            f"layout must be one of {names}, not {shown(value)}", kind="invalid-argument"
        )
    return value


def min_partial(share: Any, on_truncated: str) -> float | None:
    """Returns the minimum share of rows of truncated images; `None` if truncated images are errors."""
    share = real("min_partial", share)
    if not 0 <= share <= 1:
        raise ValueError(f"min_partial must be 0 to 1, not {share}")
    if on_truncated == "partial":
        return share
    if share != 0.5:
        raise ValueError(f'min_partial={share} requires on_truncated="partial"')
    return None


def text(name: str, value: Any) -> str:
    """Returns a string."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {shown(value)}")
    return value


def text_or_none(name: str, value: Any) -> str | None:
    """Returns a string or `None`."""
    return None if value is None else text(name, value)


def options(name: str, value: Mapping[str, str] | None) -> dict[str, str]:
    """Returns names and values of options."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict of str, not {type(value).__name__}")
    return {text(f"a name in {name}", key): text(f"{name}[{key!r}]", each) for key, each in value.items()}


def function(name: str, value: Any) -> None:
    """Checks that `value` is callable."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {shown(value)}")


def seconds(name: str, value: Any) -> float:
    """Returns a number of seconds. Negative and infinite values are allowed, NaN is not."""
    if isinstance(value, (bool, str, bytes)) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{name} must be a number of seconds, not {shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if math.isnan(number):
        raise ValueError(f"{name} must be a number of seconds, not nan")
    return number


def timeout(value: Any, *, least: float = -math.inf) -> float | None:
    """Returns a timeout in seconds; `None` means no limit."""
    if value is None:
        return None
    number = seconds("timeout", value)
    if number < least:
        raise ValueError(f"timeout must be at least 0, not {number}")
    # The operating system's clocks overflow beyond this limit; longer waits count as unlimited.
    return None if number > _MAX_SECONDS else number
