"""Checks that images fit into one batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy

BatchItem: TypeAlias = "tuple[Any, ...]"
"""An image, or an image and its label."""
_Kind: TypeAlias = "tuple[numpy.dtype[Any], tuple[int, ...], bool]"
# The largest number of images that an error message lists.
_MAX_LISTED = 3


def mismatched(items: Sequence[BatchItem]) -> list[int]:
    """Returns the indices of images that differ from the majority.

    Images differ by dtype, shape, or presence of a label. In a tie, the kind of the first image wins.
    """
    kinds = [_kind(item) for item in items]
    most, _ = Counter(kinds).most_common(1)[0]
    return [at for at, kind in enumerate(kinds) if kind != most]


def mismatch_message(items: Sequence[BatchItem], mismatches: Sequence[int]) -> str:
    """Returns the error message for mismatched images. Indices start at 0."""
    dropped = set(mismatches)
    usual = next(item for at, item in enumerate(items) if at not in dropped)
    listed = ", ".join(
        f"image {at} is {_in_words(_kind(items[at]))}" for at in mismatches[:_MAX_LISTED]
    )
    more = len(mismatches) - _MAX_LISTED
    listed += f", and {more} more" if more > 0 else ""
    labels = {len(item) for item in items}
    if len(labels) > 1:
        advice = "give all images a label, or none"
    else:
        advice = "resize or crop them first, for example with DecodeImage(224)"
    return (
        f"the images of a batch must have the same type and shape: most of these {len(items)} are "
        f"{_in_words(_kind(usual))}, but {listed}; {advice}"
    )


def _kind(item: BatchItem) -> _Kind:
    image = item[0]
    if not isinstance(image, numpy.ndarray):
        image = numpy.asarray(image)
    return image.dtype, image.shape, len(item) > 1


def _in_words(kind: _Kind) -> str:
    dtype, shape, has_label = kind
    return f"{dtype} {list(shape)}{' with a label' if has_label else ''}"
