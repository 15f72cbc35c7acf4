"""Combines and wraps sources: merge, shuffle before each epoch, repeat."""

from ._epochs import embed_shuffle, repeat_source
from ._merge import MergeIterator

# Programs for SPDL also import the protocols from here.
from ._type import IterableWithShuffle, SizedIterable, SizedIterableWithShuffle  # noqa: F401

__all__ = ["MergeIterator", "embed_shuffle", "repeat_source"]

# Tracebacks and pickles contain the name of the public module.
MergeIterator.__module__ = __name__
