"""Loaders, and what helps to measure them."""

from ._cache_dataloader import CacheDataLoader

__all__ = ["CacheDataLoader"]
