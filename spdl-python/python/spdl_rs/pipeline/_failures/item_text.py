"""What messages say of an item."""

from __future__ import annotations

import array
import collections
import dataclasses
import reprlib
from typing import Any

from ..._secrets import without_secrets

_MOST_CHARACTERS = 200
# Only so much is looked at: items may be whole batches, and the thread that asks holds the GIL.
_MOST_OF_TEXT = 4096
_MOST_KEYS = 1000
_MOST_BITS = 1000
_MOST_DEEP = 4


def describe(item: object) -> str:
    """A short text for an item that may be a whole batch, without the secrets of addresses.

    >>> describe({"key": "cat", "jpg": bytes(1000)})
    "{'jpg': <bytes of 1000>, 'key': 'cat'}"
    """
    text = without_secrets(_ITEM_TEXT.repr(item))
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"


class _ItemText(reprlib.Repr):
    """Looks at little of what is large or deep, and copes with what raises."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = _MOST_DEEP

    def repr1(self, x: Any, level: int) -> str:
        try:
            return self._of_kind(x, level)
        except Exception:
            return f"<{type(x).__name__}>"

    def _of_kind(self, x: Any, level: int) -> str:
        # By type, where reprlib goes by the type's name, which any class may have.
        if isinstance(x, str):
            return self.repr_str(x, level)
        if isinstance(x, (bytes, bytearray, memoryview, array.array)):
            return _of_length(x)
        if isinstance(x, int):
            bits = x.bit_length()
            return repr(x) if bits <= _MOST_BITS else f"<{type(x).__name__} of {bits} bits>"
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
        if len(x) > _MOST_KEYS:
            return _of_length(x)
        if isinstance(x, dict):
            return self.repr_dict(x, level)
        return self.repr_set(x, level) if isinstance(x, set) else self.repr_frozenset(x, level)

    def repr_str(self, x: str, level: int) -> str:
        text = without_secrets(x[:_MOST_OF_TEXT])
        if len(x) > _MOST_OF_TEXT:
            # Not the end, where an address may be cut amid a secret.
            return repr(text[: self.maxstring]) + "..."
        return super().repr_str(text, level)

    def repr_instance(self, x: Any, level: int) -> str:
        # Cut only when nothing is secret in it.
        text = without_secrets(repr(x))
        if len(text) <= self.maxother:
            return text
        half = (self.maxother - 3) // 2
        return f"{text[:half]}...{text[half + 3 - self.maxother :]}"


def _of_length(x: Any) -> str:
    return f"<{type(x).__name__} of {len(x)}>"


_ITEM_TEXT = _ItemText()
