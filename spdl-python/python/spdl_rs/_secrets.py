"""Removal of passwords and signatures from addresses in text."""

from __future__ import annotations

import re

# Scheme, user information, host and path, query (which may hold a signature).
_ADDRESS = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^\s/'\"]*@)?([^\s'\"?]*)(\?[^\s'\"]*)?",
)


def without_secrets(text: str) -> str:
    """Returns the text with user information and queries removed from addresses.

    >>> without_secrets("GET https://me:pass@host/cat.png?signature=1")
    'GET https://host/cat.png?***'
    """
    if "://" not in text:
        return text
    return _ADDRESS.sub(lambda it: f"{it[1]}{it[2]}{'?***' if it[3] else ''}", text)
