"""The names of stages as users know them, and the form of the full ones: `14:2.0.1:decode`.

That is the number of the pipeline, the place of the stage in it, and the name that it was given. What
follows the number is the stage's local name. What belongs to a stage, and is one of its own to the
engine, has the stage's full name and `/part0`, say.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from ..._statistics import Statistics

_FULL = re.compile(r"(?:\d+:(?P<place>[\d.]+):)?(?P<name>.*)", re.DOTALL)
_PART = re.compile(r"/part\d+\Z")


def plain(name: str) -> str:
    """The name that a user gave, or that of a function.

    >>> plain("14:1:decode"), plain("0:2.0.1:a:b/part0"), plain("fetch")
    ('decode', 'a:b/part0', 'fetch')
    """
    match = _FULL.fullmatch(name)
    return name if match is None else match["name"]


def place(name: str) -> str | None:
    """The place of a stage in its pipeline, as its name says."""
    match = _FULL.fullmatch(name)
    return None if match is None else match["place"]


def of_pipeline(name: str) -> tuple[str, str]:
    """The number of the pipeline, and the local name."""
    number, _, local = name.partition(":")
    return number, local


def of_local(local: str) -> tuple[str, str]:
    """The place, and the name that a user gave."""
    place, _, name = local.partition(":")
    return place, name


def is_or_is_part_of(name: str, stage: str) -> bool:
    """Whether a name is that of a stage, or of what belongs to it."""
    return name == stage or _PART.sub("", name) == stage


def without_parts(names: Iterable[str]) -> dict[str, str]:
    """Of which stage each name is. A name that a user ends so belongs to no other.

    >>> without_parts(["0:1:Fetch", "0:1:Fetch/part0", "0:2:load/part1"]).values()
    dict_values(['0:1:Fetch', '0:1:Fetch', '0:2:load/part1'])
    """
    stages = {name: _PART.sub("", name) for name in names}
    together = Counter(stages.values())
    return {
        name: stage if stage in stages or together[stage] > 1 else name
        for name, stage in stages.items()
    }


def in_plain_words(told: Statistics) -> Statistics:
    """The same, with plain names in the diagnosis; where several stages share one, with its place."""
    stages = without_parts(stage["name"] for stage in told["stages"])
    shared = Counter(map(plain, set(stages.values())))
    for name, stage in stages.items():
        known = plain(stage)
        if shared[known] > 1 and place(stage):
            known = f"{known} (stage {place(stage)})"
        told["diagnosis"] = told["diagnosis"].replace(f'"{name}"', f'"{known}"')
    return told
