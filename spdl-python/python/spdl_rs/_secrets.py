"""Addresses in texts that people read: without what is secret in them."""

from __future__ import annotations

import re
from typing import Any

# A scheme, name and password, the host with what lies there, and a query, which may be a signature.
_ADDRESS = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^\s/'\"]*@)?([^\s'\"?]*)(\?[^\s'\"]*)?",
)
# How much of a list is looked at, which is more than is shown of one.
_MOST = 8


def without_secrets(text: str) -> str:
    """The text, with addresses as `spdl_rs` shows them.

    >>> without_secrets("GET https://me:pass@host/cat.png?signature=1")
    'GET https://host/cat.png?***'
    """
    if "://" not in text:
        return text
    return _ADDRESS.sub(lambda it: f"{it[1]}{it[2]}{'?***' if it[3] else ''}", text)


def shown(item: Any) -> Any:
    """An item to be described in a message: addresses in it without secrets."""
    if type(item) is str:
        return without_secrets(item)
    if type(item) in (tuple, list):
        return type(item)(shown(part) for part in item[:_MOST])
    return item
