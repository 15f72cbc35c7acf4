"""Names of stages. A full name has the form `14:2.0.1:decode`.

The full name consists of the number of the pipeline, the position of the stage, and its plain name, which
the user gave. The local name is the full name without the number. Engine stages that belong to a stage have
its full name with a suffix, for example `/part0`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ..._statistics import Statistics

_FULL = re.compile(r"(?:\d+:(?P<place>[\d.]+):)?(?P<name>.*)", re.DOTALL)
_PART = re.compile(r"/part\d+\Z")
_USELESS = " would not help."


def plain(name: str) -> str:
    """Returns the plain name of a stage.

    >>> plain("14:1:decode"), plain("0:2.0.1:a:b/part0"), plain("fetch")
    ('decode', 'a:b/part0', 'fetch')
    """
    match = _FULL.fullmatch(name)
    return name if match is None else match["name"]


def place(name: str) -> str | None:
    """Returns the position of a stage in its pipeline, or `None`."""
    match = _FULL.fullmatch(name)
    return None if match is None else match["place"]


def of_pipeline(name: str) -> tuple[str, str]:
    """Splits a full name into the number of the pipeline and the local name."""
    number, _, local = name.partition(":")
    return number, local


def of_local(local: str) -> tuple[str, str]:
    """Splits a local name into the position and the plain name."""
    place, _, name = local.partition(":")
    return place, name


def is_or_is_part_of(name: str, stage: str) -> bool:
    """Returns whether `name` is `stage` or an engine stage that belongs to it."""
    return name == stage or _PART.sub("", name) == stage


def without_parts(names: Iterable[str]) -> dict[str, str]:
    """Maps names of engine stages to the stages that they belong to.

    A suffix that the user gave is not removed.

    >>> without_parts(["0:1:Fetch", "0:1:Fetch/part0", "0:2:load/part1"]).values()
    dict_values(['0:1:Fetch', '0:1:Fetch', '0:2:load/part1'])
    """
    stages = {name: _PART.sub("", name) for name in names}
    shared = Counter(stages.values())
    return {
        name: stage if stage in stages or shared[stage] > 1 else name
        for name, stage in stages.items()
    }


def in_plain_words(statistics: Statistics) -> Statistics:
    """Replaces full names in the diagnosis by plain names, with the position if plain names are shared."""
    stages = without_parts(stage["name"] for stage in statistics["stages"])
    shared = Counter(map(plain, set(stages.values())))
    known: dict[str, str] = {}
    for name, stage in stages.items():
        known[name] = plain(stage)
        if shared[known[name]] > 1 and place(stage):
            known[name] = f"{known[name]} (stage {place(stage)})"
    return _without_contradictions(renamed(statistics, known))


def _without_contradictions(statistics: Statistics) -> Statistics:
    """Removes changes that do not help from the diagnosis, if the same change of another part of the stage helps."""

    def kind(effect: Any) -> tuple[Any, Any]:
        return effect["change"]["setting"], effect["change"].get("stage")

    bottleneck = statistics.get("bottleneck") or {}
    helps = {kind(effect) for effect in bottleneck.get("helps", ())}
    useless = bottleneck.get("does_not_help", [])
    bottleneck["does_not_help"] = [effect for effect in useless if kind(effect) not in helps]
    before, _, last = statistics["diagnosis"].rpartition(". ")
    if last.endswith(_USELESS):
        stages = [stage for setting, stage in helps if setting == "concurrency"]
        contradicted = {
            f'{what} "{stage}"' for what in ("a higher concurrency of", "more items in flight in") for stage in stages
        }
        names = last.removesuffix(_USELESS).split(" or ")
        names = [name for name in names if name[0].lower() + name[1:] not in contradicted]
        last = f"{' or '.join(names)}{_USELESS}" if names else ""
        statistics["diagnosis"] = f"{before}. {last[:1].upper()}{last[1:]}".rstrip()
    return statistics


def renamed(statistics: Statistics, names: Mapping[str, str]) -> Statistics:
    """Replaces names of stages in the diagnosis, also in the diagnosis as data."""

    def rename(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: rename(item) for key, item in value.items()}
        if isinstance(value, list):
            return [rename(item) for item in value]
        if not isinstance(value, str) or value in names:
            return names.get(value, value)
        for name, new in names.items():
            value = value.replace(f'"{name}"', f'"{new}"')
        return value

    statistics["diagnosis"] = rename(statistics["diagnosis"])
    statistics["bottleneck"] = rename(statistics["bottleneck"])
    statistics["decisions"] = rename(statistics["decisions"])
    return statistics
