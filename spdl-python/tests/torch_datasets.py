"""Helpers for tests of loaders with PyTorch's arguments."""

from spdl_rs.torch import get_worker_info


class Stream:
    """An iterable data set of the numbers below `length`, divided among workers."""

    def __init__(self, length=23):
        self.length = length

    def __iter__(self):
        info = get_worker_info()
        number, workers = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(number, self.length, workers)
