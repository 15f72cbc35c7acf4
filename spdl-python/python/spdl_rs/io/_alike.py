"""Whether images can be put into one batch, and which of them cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy

Part: TypeAlias = "tuple[Any, ...]"
"""An image, or an image and its label."""
_Kind: TypeAlias = "tuple[numpy.dtype[Any], tuple[int, ...], bool]"
# More are not told of.
_MOST_TOLD = 3


def odd_ones(parts: Sequence[Part]) -> list[int]:
    """The places of those that are not like most: of another type or shape, or the only ones with a
    label or without one. Where several kinds are equally many, the first of them is the others'."""
    kinds = [_kind(part) for part in parts]
    most, _ = Counter(kinds).most_common(1)[0]
    return [at for at, kind in enumerate(kinds) if kind != most]


def not_alike(parts: Sequence[Part], odd: Sequence[int]) -> str:
    """What is said of these, with places counted from 0."""
    dropped = set(odd)
    usual = next(part for at, part in enumerate(parts) if at not in dropped)
    told = ", ".join(f"number {at} is {_in_words(_kind(parts[at]))}" for at in odd[:_MOST_TOLD])
    more = len(odd) - _MOST_TOLD
    told += f", and {more} more" if more > 0 else ""
    labels = {len(part) for part in parts}
    if len(labels) > 1:
        advice = "give all a label, or none"
    else:
        advice = "resize or crop them before they are put together, as with DecodeImage(224)"
    return (
        f"the images of a batch must be of one type and shape: of these {len(parts)} most are "
        f"{_in_words(_kind(usual))}, but {told}; {advice}"
    )


def _kind(part: Part) -> _Kind:
    image = part[0]
    if not isinstance(image, numpy.ndarray):
        image = numpy.asarray(image)
    return image.dtype, image.shape, len(part) > 1


def _in_words(kind: _Kind) -> str:
    dtype, shape, has_label = kind
    return f"{dtype} {list(shape)}{' with a label' if has_label else ''}"
