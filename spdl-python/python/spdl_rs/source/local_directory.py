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
from ._resumable import Pass, Resumable

__all__ = ["LocalDirectory"]

T = TypeVar("T")


class _Files(Resumable[T]):
    """The files of a folder whose names fit a pattern; what is made of each is up to `_item`."""

    _number_is = "seed"

    def __init__(self, root: str | os.PathLike[str], pattern: str) -> None:
        super().__init__(number=None)
        self.root = Path(root)
        self.pattern = pattern
        if not self.root.is_dir():
            key = str(self.root)
            raise NotFoundError(f"{key}: no such folder", kind="not-found", key=key)
        self._files = sorted(self.root.glob(pattern))
        self._names_digest: str | None = None

    @abstractmethod
    def _item(self, path: Path) -> T: ...

    def __len__(self) -> int:
        """How many files there are."""
        return len(self._files)

    def shuffle(self, seed: SupportsIndex) -> None:
        """Gives the next passes the order of `seed`, whatever came before.

        It is that of `random.Random(seed).shuffle`, applied to the sorted files. After
        `load_state_dict`, another seed than that of the state is a whole pass.

        Raises:
            ValueError: `seed` is not 0 to 2**64 - 1.
            TypeError: It is no whole number.
        """
        self._renumber("seed", seed)

    def _begin(self, position: int) -> Pass[T]:
        order: Sequence[int] = range(len(self._files))
        if self._number is not None:
            order = list(order)
            random.Random(self._number).shuffle(order)
        return _FilesPass(self._files, order, self._item, position)

    def _identity(self) -> dict[str, Any]:
        if self._names_digest is None:
            self._names_digest = self._digest()
        identity = {"source": type(self).__name__, "pattern": self.pattern}
        return {**identity, "files": len(self), "names": self._names_digest}

    def _digest(self) -> str:
        # Without the root: a data set that was moved is the same.
        start = len(os.fsencode(self.root))
        digest = hashlib.blake2b(digest_size=16)
        for path in self._files:
            digest.update(os.fsencode(path)[start:] + b"\0")
        return digest.hexdigest()

    def _checked(self, name: str, number: Any) -> int | None:
        # Sorted as they are, until they are shuffled.
        return None if number is None and name == "seed" else super()._checked(name, number)


class _FilesPass(Generic[T]):
    def __init__(
        self, files: list[Path], order: Sequence[int], item: Callable[[Path], T], position: int
    ) -> None:
        self._files, self._order, self._item = files, order, item
        self.position = position

    def __iter__(self) -> _FilesPass[T]:
        return self

    def __next__(self) -> T:
        if self.position >= len(self._order):
            raise StopIteration
        path = self._files[self._order[self.position]]
        self.position += 1
        return self._item(path)


class LocalDirectory(_Files[Path]):
    """The paths of the files below a folder whose names fit a pattern.

    They are listed once, when this is made, and come sorted until they are shuffled. Each pass is
    a function of the files and of the seed that was given last. `state_dict` and `load_state_dict`
    go on within a pass.

    Args:
        root: The folder.
        pattern: Which files, as for `pathlib.Path.glob`: `"*.jpg"`, or `"**/*.jpg"` at any depth.

    Raises:
        NotFoundError: There is no such folder.

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
