"""Detection of pipelines that repeat the random numbers of an earlier pipeline."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Hashable

from .._locks import ForkSafeLock

_LOGGER = logging.getLogger("spdl_rs.pipeline")

# The number of operators and pipelines that are kept in memory.
_MAX = 1024

_first: OrderedDict[tuple[Hashable, int], str] = OrderedDict()
_reported: OrderedDict[Hashable, None] = OrderedDict()
_chosen: OrderedDict[str, None] = OrderedDict()
_lock = ForkSafeLock()


def choose(number: int) -> None:
    """Records that the caller chose the epoch of a pipeline, which may repeat random numbers."""
    with _lock.held():
        _add(_chosen, str(number), None)


def check(operator: Hashable, stage: str, epoch: int) -> None:
    """Logs one warning for each operator if a second pipeline draws its random numbers for the same epoch.

    Args:
        operator: The operator, with its seed.
        stage: The full name of a stage, which starts with the number of the pipeline.
        epoch: The epoch that the pipeline runs.
    """
    number = stage.partition(":")[0]
    with _lock.held():
        if number in _chosen or operator in _reported:
            return
        first = _first.get((operator, epoch))
        if first is None:
            _add(_first, (operator, epoch), number)
        if first in (None, number):
            return
        _add(_reported, operator, None)
    _LOGGER.warning(
        "pipelines %s and %s draw the same random numbers for %r, because both run epoch %d; if each epoch has a "
        "separate pipeline, pass epoch= to build(), or else another seed",
        first,
        number,
        operator,
        epoch,
    )


def _add(known: OrderedDict, key: Hashable, value: object) -> None:
    known[key] = value
    if len(known) > _MAX:
        known.popitem(last=False)
