"""Short descriptions of items for messages."""

from __future__ import annotations

import array
import collections
import dataclasses
import reprlib
from typing import Any

from ..._secrets import without_secrets

_MAX_CHARACTERS = 200
# Limits of the inspected parts: items may be whole batches, and the calling thread holds the GIL.
_MAX_INSPECTED_CHARACTERS = 4096
_MAX_KEYS = 1000
_MAX_BITS = 1000
_MAX_DEPTH = 4


def describe(item: object) -> str:
    """Returns a short description of an item, without passwords and signatures in addresses.

    >>> describe({"key": "cat", "jpg": bytes(1000)})
    "{'jpg': <bytes of 1000>, 'key': 'cat'}"
    """
    text = without_secrets(_ITEM_TEXT.repr(item))
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"


def brief(value: object) -> str:
    """Returns the `repr` of a value without its middle parts, and without passwords and signatures in addresses.

    >>> brief(["https://me:pass@host/cat.png"] * 1000)
    "['https://host/cat.png', 'https://host/cat.png', 'https://host/cat.png', 'https://host/cat.png', \
'https://host/cat.png', 'https://host/cat.png', ...]"
    """
    return _BRIEF.repr(value)


class _ItemText(reprlib.Repr):
    """A `repr` with bounded length and running time, even for large, deep or failing objects."""

    def __init__(self, max_characters: int | None = None) -> None:
        super().__init__()
        self.maxlevel = _MAX_DEPTH
        if max_characters is not None:
            self.maxstring = self.maxother = max_characters

    def repr1(self, x: Any, level: int) -> str:
        try:
            return self._of_kind(x, level)
        except Exception:
            return f"<{type(x).__name__}>"

    def _of_kind(self, x: Any, level: int) -> str:
        # Dispatch on types: `reprlib` dispatches on type names, which are not unique.
        if isinstance(x, str):
            return self.repr_str(x, level)
        if isinstance(x, (bytes, bytearray, memoryview, array.array)):
            return _of_length(x)
        if isinstance(x, int):
            bits = x.bit_length()
            return repr(x) if bits <= _MAX_BITS else f"<{type(x).__name__} of {bits} bits>"
        if dataclasses.is_dataclass(x) and not isinstance(x, type):
            names = [field.name for field in dataclasses.fields(x) if field.repr]
            return self._fields(x, names, level)
        if isinstance(x, tuple):
            names = getattr(type(x), "_fields", None)
            return self.repr_tuple(x, level) if names is None else self._fields(x, names, level)
        if isinstance(x, list):
            return self.repr_list(x, level)
        if isinstance(x, collections.deque):
            return self.repr_deque(x, level)
        if isinstance(x, (dict, set, frozenset)):
            return self._sorted(x, level)
        return self.repr_instance(x, level)

    def _fields(self, x: Any, names: Any, level: int) -> str:
        if level <= 0:
            return f"{type(x).__name__}(...)"
        fields = [f"{name}={self.repr1(getattr(x, name), level - 1)}" for name in names]
        return f"{type(x).__name__}({', '.join(fields)})"

    def _sorted(self, x: Any, level: int) -> str:
        if len(x) > _MAX_KEYS:
            return _of_length(x)
        if isinstance(x, dict):
            return self.repr_dict(x, level)
        return self.repr_set(x, level) if isinstance(x, set) else self.repr_frozenset(x, level)

    def repr_str(self, x: str, level: int) -> str:
        text = without_secrets(x[:_MAX_INSPECTED_CHARACTERS])
        if len(x) > _MAX_INSPECTED_CHARACTERS:
            # The end is omitted: truncation may split a secret, so that it is not recognised.
            return repr(text[: self.maxstring]) + "..."
        return super().repr_str(text, level)

    def repr_instance(self, x: Any, level: int) -> str:
        # Secrets are removed before truncation.
        text = without_secrets(repr(x))
        if len(text) <= self.maxother:
            return text
        half = (self.maxother - 3) // 2
        return f"{text[:half]}...{text[half + 3 - self.maxother :]}"


def _of_length(x: Any) -> str:
    return f"<{type(x).__name__} of {len(x)}>"


_ITEM_TEXT = _ItemText()
_BRIEF = _ItemText(_MAX_CHARACTERS)
