"""The files of a folder, as a source of paths."""

from __future__ import annotations

import hashlib
import os
import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, SupportsIndex, TypeVar

from .._errors import NotFoundError
from ._resumable import PositionedIterator, Resumable

__all__ = ["LocalDirectory"]

T = TypeVar("T")


class _Files(Resumable[T]):
    """The files of a folder whose paths match a pattern. `_item` converts each path."""

    _number_key = "seed"

    def __init__(self, root: str | os.PathLike[str], pattern: str) -> None:
        super().__init__(number=None)
        self.root = Path(root)
        self.pattern = pattern
        if not self.root.is_dir():
            key = str(self.root)
            raise NotFoundError(f'"{key}" is not a folder', kind="not-found", key=key)
        self._files = sorted(self.root.glob(pattern))
        self._names_digest: str | None = None

    @abstractmethod
    def _item(self, path: Path) -> T: ...

    def __len__(self) -> int:
        """The number of files."""
        return len(self._files)

    def shuffle(self, seed: SupportsIndex) -> None:
        """Sets the order of the next epochs: `random.Random(seed).shuffle` of the sorted files.

        The order does not depend on earlier calls. After `load_state_dict`, a seed other than
        the seed of the state starts a complete epoch.

        Raises:
            ValueError: `seed` is not in the range 0 to 2**64 - 1.
            TypeError: `seed` is not an integer.
        """
        self._set_number("seed", seed)

    def _iterator_at(self, position: int) -> PositionedIterator[T]:
        order: Sequence[int] = range(len(self._files))
        if self._number is not None:
            order = list(order)
            random.Random(self._number).shuffle(order)
        return _FilesIterator(self._files, order, self._item, position)

    def _identity(self) -> dict[str, Any]:
        if self._names_digest is None:
            self._names_digest = self._digest()
        identity = {"source": type(self).__name__, "pattern": self.pattern}
        return {**identity, "files": len(self), "names": self._names_digest}

    def _digest(self) -> str:
        # Paths relative to the root: a data set may be moved.
        start = len(os.fsencode(self.root))
        digest = hashlib.blake2b(digest_size=16)
        for path in self._files:
            digest.update(os.fsencode(path)[start:] + b"\0")
        return digest.hexdigest()

    def _check_number(self, name: str, number: Any) -> int | None:
        # `None` is the sorted order, before the first call of `shuffle`.
        return None if number is None and name == "seed" else super()._check_number(name, number)


class _FilesIterator(Generic[T]):
    def __init__(
        self, files: list[Path], order: Sequence[int], item: Callable[[Path], T], position: int
    ) -> None:
        self._files, self._order, self._item = files, order, item
        self.position = position

    def __iter__(self) -> _FilesIterator[T]:
        return self

    def __next__(self) -> T:
        if self.position >= len(self._order):
            raise StopIteration
        path = self._files[self._order[self.position]]
        self.position += 1
        return self._item(path)


class LocalDirectory(_Files[Path]):
    """Paths below a folder that match a pattern.

    Subfolders that match are listed too, so use a pattern that matches only files. The constructor lists
    the paths once. The paths are sorted until `shuffle` is called. The list and the seed of the last
    `shuffle` decide the order of each epoch. `state_dict` and `load_state_dict` resume within an epoch.

    Args:
        root: The folder.
        pattern: A pattern of `pathlib.Path.glob`, for example `"*.jpg"`, or `"**/*.jpg"` for any
            depth.

    Raises:
        NotFoundError: `root` is not a folder.

    >>> files = LocalDirectory("photos", "*/*.png")
    >>> len(files)
    4
    >>> files.shuffle(seed=0)
    >>> [path.as_posix() for path in files]
    ['photos/dog/1.png', 'photos/cat/1.png', 'photos/cat/2.png', 'photos/dog/2.png']
    """

    def _item(self, path: Path) -> Path:
        return path

    def __repr__(self) -> str:
        return f"LocalDirectory({str(self.root)!r}, {self.pattern!r}, {len(self)} files)"
