"""The names of stages as users know them."""

from __future__ import annotations

import re
from collections import Counter

from .._statistics import Statistics

# The number of a pipeline, the place in it, the name; and what of several native parts one is.
_FULL = re.compile(r"(?:\d+:(?P<place>[\d.]+):)?(?P<name>.*?)(?:/part\d+)*", re.DOTALL)


def plain(name: str) -> str:
    """The name that a user gave, or that of a function.

    >>> plain("14:1:decode"), plain("0:2.0.1:Fetch/part0"), plain("fetch")
    ('decode', 'Fetch', 'fetch')
    """
    match = _FULL.fullmatch(name)
    return name if match is None else match["name"]


def place(name: str) -> str | None:
    """The place of a stage in its pipeline, as its name says."""
    match = _FULL.fullmatch(name)
    return None if match is None else match["place"]


def in_plain_words(told: Statistics) -> Statistics:
    """The same, with plain names in the diagnosis; where several stages share one, with its place."""
    names = [stage["name"] for stage in told["stages"]]
    # Several parts of one stage are one.
    shared = Counter(known for known, _ in {(plain(name), place(name)) for name in names})
    for name in names:
        known = plain(name)
        if shared[known] > 1 and place(name):
            known = f"{known} (stage {place(name)})"
        told["diagnosis"] = told["diagnosis"].replace(f'"{name}"', f'"{known}"')
    return told
