"""Addresses in texts that people read: without what is secret in them."""

from __future__ import annotations

import re

# A scheme, name and password, the host with what lies there, and a query, which may be a signature.
_ADDRESS = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^\s/'\"]*@)?([^\s'\"?]*)(\?[^\s'\"]*)?",
)


def without_secrets(text: str) -> str:
    """The text, with addresses as `spdl_rs` shows them.

    >>> without_secrets("GET https://me:pass@host/cat.png?signature=1")
    'GET https://host/cat.png?***'
    """
    if "://" not in text:
        return text
    return _ADDRESS.sub(lambda it: f"{it[1]}{it[2]}{'?***' if it[3] else ''}", text)
