"""Sources made of sources: merged, shuffled before each pass, repeated."""

from ._epochs import embed_shuffle, repeat_source
from ._merge import MergeIterator

__all__ = ["MergeIterator", "embed_shuffle", "repeat_source"]

# Tracebacks and pickles shall name the module that users import.
MergeIterator.__module__ = __name__
