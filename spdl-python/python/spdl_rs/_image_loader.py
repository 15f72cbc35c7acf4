"""Batches of images from files of this machine."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Literal, SupportsIndex, TypeAlias

import numpy
import numpy.typing

from . import _spdl_rs
from ._errors import DatasetWarning
from ._statistics import Statistics

Path: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"
Images: TypeAlias = "numpy.typing.NDArray[numpy.uint8] | numpy.typing.NDArray[numpy.float32]"
Labels: TypeAlias = "numpy.typing.NDArray[numpy.int64]"

# A data set with a million bad links shall not print a million lines.
_MOST_WARNINGS = 10


class ImageLoader:
    """Batches of images and labels, read, decoded, cropped and resized by Rust threads.

    Each `iter(loader)` is one epoch, and yields `(images, labels)`:

    - `images`: `uint8 [N, size, size, 3]`, RGB from 0 to 255 (`layout="nhwc-u8"`), or
      `float32 [N, 3, size, size]`, per channel `(value / 255 - mean) / std` with the mean and
      standard deviation of ImageNet (`layout="nchw-f32"`);
    - `labels`: `int64 [N]`, indices into `classes`; -1 where there are none.

    `N` is `batch_size`; only the last batch of an epoch may be smaller. The arrays are yours: they
    may be kept and written to, and their memory is used again once the last reference is gone.
    Nothing is copied on the way from the decoder.

    The batches are a pure function of the files, `seed` and the number of the epoch: they depend
    neither on `threads` nor on timing. While it waits, the loader holds no GIL, and Ctrl-C is
    heard at once. Leaving the loop, by `break` or by an exception, ends the work.

    Args:
        source: A folder, or the paths of images. In a folder the classes are the folders directly
            below, sorted by name, with images at any depth; a folder that only holds images has no
            classes. Names that start with a dot are left out. Images are known by the ends of
            their names (`.jpg`, `.jpeg`, `.png`, `.webp`, `.gif`, `.bmp`, `.tif` and so on, in any
            case), but decoded by what they hold. Paths need not be valid text: `bytes` and what
            `os.fsdecode` gives are fine.
        batch_size: Images per batch, at least 1.
        size: The side of the square images in pixels, 1 to 16,384.
        train: Whether to augment: a random crop of 8 to 100 % of the area with an aspect ratio of
            3:4 to 4:3, mirrored half of the time. If not, the shorter side is resized to
            `size / 0.875` and the centre is taken.
        layout: `"nhwc-u8"` or `"nchw-f32"`, see above; or `nhwc` and `nchw` with any of `u8`, `f16`
            and `f32`. NumPy has no `bf16`.
        seed: Decides the order and all augmentation, 0 to 2**64 - 1.
        shuffle: Whether each epoch comes in an order of its own. `None`: as `train`.
        threads: Threads that decode, at least 1. `None`: as many as this process may use CPUs.
        on_error: What happens to a file that cannot be read or decoded. `"raise"`: the epoch ends
            with an exception that names it, after the batches that were ready before. `"skip"`:
            the next image takes its place, and `stats()["dropped"]` lists it.
        on_truncated: What happens to a file that ends early. `"error"`: it is damaged, as
            `on_error` says. `"partial"`: what there is of the image is used, the rest is black,
            and `stats()["partial"]` counts such images. That holds for JPEG, and for PNG, GIF, BMP
            and TIFF whose rows are stored in their order; other files that are cut, WebP among
            them, stay damaged.
        labels: The class of each path, where `source` is a list of paths.
        drop_last: Whether a short last batch is left out.

    Raises:
        NotFoundError: There is no such folder, or it holds no images.
        PermissionDeniedError: A folder may not be listed.
        ValueError: An argument is out of range (`InvalidArgumentError` is one, too).
        NotImplementedError: `layout` is of `bf16`.
        TypeError: An argument is of the wrong type.

    Iterating raises `NotFoundError`, `PermissionDeniedError` or `IoError` for files that cannot be
    read, and `DataError` for those that give no image, with the file in `error.key`.

    >>> loader = ImageLoader("photos", batch_size=3, size=32, layout="nchw-f32")
    >>> len(loader), loader.class_to_idx
    (2, {'cat': 0, 'dog': 1})
    >>> for images, labels in loader:
    ...     print(images.shape, images.dtype, labels)
    (3, 3, 32, 32) float32 [0 0 1]
    (1, 3, 32, 32) float32 [1]

    A list of paths, with labels of your own:

    >>> paths = ["photos/dog/1.png", "photos/cat/1.png"]
    >>> images, labels = next(iter(ImageLoader(paths, labels=[7, 3], batch_size=2)))
    >>> labels
    array([7, 3])
    """

    def __init__(
        self,
        source: Path | Iterable[Path],
        *,
        batch_size: SupportsIndex,
        size: SupportsIndex = 224,
        train: bool = False,
        layout: Literal[
            "nhwc-u8", "nhwc-f16", "nhwc-f32", "nchw-u8", "nchw-f16", "nchw-f32"
        ] = "nhwc-u8",
        seed: SupportsIndex = 0,
        shuffle: bool | None = None,
        threads: SupportsIndex | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        on_truncated: Literal["error", "partial"] = "error",
        labels: Iterable[SupportsIndex] | None = None,
        drop_last: bool = False,
    ) -> None:
        train = _flag("train", train)
        if on_error not in ("raise", "skip"):
            raise ValueError(f'on_error must be "raise" or "skip", not {on_error!r}')
        if on_truncated not in ("error", "partial"):
            raise ValueError(f'on_truncated must be "error" or "partial", not {on_truncated!r}')
        if not isinstance(layout, str):
            raise TypeError(f'layout must be "nhwc-u8" or "nchw-f32", not {layout!r}')
        self._batch_size = _whole("batch_size", batch_size, 1, 2**63 - 1)
        self._drop_last = _flag("drop_last", drop_last)
        self._settings = _spdl_rs.Settings(
            batch_size=self._batch_size,
            size=_whole("size", size, 1, 2**32 - 1),
            train=train,
            layout=layout,
            seed=_whole("seed", seed, 0, 2**64 - 1),
            shuffle=train if shuffle is None else _flag("shuffle", shuffle),
            threads=None if threads is None else _whole("threads", threads, 1, 2**16),
            skip_errors=on_error == "skip",
            keep_partial=on_truncated == "partial",
            drop_last=self._drop_last,
        )
        self._images = _open(source, labels)
        self._monitor = _spdl_rs.Monitor()
        self._epoch = 0
        self._words = f"train={train}, layout={layout!r}"

    def __iter__(self) -> ImageBatches:
        """Starts the epoch `self.epoch`, and counts on to the next."""
        batches = ImageBatches(self._images, self._settings, self._epoch)
        self._monitor = batches._monitor
        self._epoch += 1
        return batches

    def __len__(self) -> int:
        """The number of batches in an epoch, when no image is left out by `on_error="skip"`."""
        full, rest = divmod(len(self._images), self._batch_size)
        return full + (rest > 0 and not self._drop_last)

    def __repr__(self) -> str:
        return (
            f"ImageLoader({len(self._images)} images, {len(self.classes)} classes, "
            f"batch_size={self._batch_size}, {self._words}, epoch={self._epoch})"
        )

    @property
    def classes(self) -> list[str]:
        """The names of the classes; a label is an index into them. Empty for a list of paths.

        Names that are no valid text are shown with their odd bytes as `\\xff`.
        """
        return self._images.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next `iter(loader)` starts; 0 at first."""
        return self._epoch

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Makes the next `iter(loader)` start this epoch, for resuming say.

        >>> loader = ImageLoader("photos", batch_size=4, size=32, train=True)
        >>> first, second = (next(iter(loader))[0] for _ in range(2))
        >>> loader.set_epoch(1)
        >>> bool((next(iter(loader))[0] == second).all())
        True
        """
        self._epoch = _whole("epoch", epoch, 0, 2**63)

    def stats(self) -> Statistics:
        """What the epoch that was started last did so far: where the time went, what was dropped.

        Before the first epoch everything is 0 or empty. In a fork of the process that runs the
        epoch, this raises `RuntimeError`, as `next` does.

        >>> loader = ImageLoader("photos", batch_size=4, size=32)
        >>> batches = list(loader)
        >>> [(stage["name"], stage["items"]) for stage in loader.stats()["stages"]]
        [('source', 4), ('fetch', 4), ('decode', 4)]
        """
        return self._monitor.statistics()


class ImageBatches(Iterator["tuple[Images, Labels]"]):
    """One epoch of an `ImageLoader`, made by `iter(loader)`. Any thread may take batches from it.

    Dropping it ends the work, and so does `close`. It is a context manager too:

    >>> loader = ImageLoader("photos", batch_size=2, size=32)
    >>> with iter(loader) as batches:
    ...     images, labels = next(batches)
    >>> list(batches)
    []
    """

    def __init__(
        self, images: _spdl_rs.ImageFolder, settings: _spdl_rs.Settings, epoch: int
    ) -> None:
        self._number = epoch
        self._run = _spdl_rs.Epoch(images, settings, epoch)
        self._monitor = self._run.monitor

    def __next__(self) -> tuple[Images, Labels]:
        batch = self._run.next()
        if batch is None:
            raise StopIteration
        images, labels = batch
        # Each keeps its native array as its base, and with it the memory.
        return numpy.asarray(images), numpy.asarray(labels)

    def __enter__(self) -> ImageBatches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ImageBatches(epoch={self._number})"

    @property
    def epoch(self) -> int:
        """The number of this epoch."""
        return self._number

    def close(self) -> None:
        """Ends the work. Batches that were not taken are lost; arrays that you hold are not."""
        self._run.close()

    def stats(self) -> Statistics:
        """As `ImageLoader.stats`, for this epoch."""
        return self._monitor.statistics()


def _open(
    source: Path | Iterable[Path], labels: Iterable[SupportsIndex] | None
) -> _spdl_rs.ImageFolder:
    if isinstance(source, (str, bytes, os.PathLike)):
        if labels is not None:
            raise ValueError(
                "labels goes with a list of paths; those of a folder come from the folders in it"
            )
        images = _spdl_rs.ImageFolder.open(os.fsdecode(source))
    else:
        images = _spdl_rs.ImageFolder.from_paths(_paths(source), _labels(labels))
    found = images.warnings
    for warning in found[:_MOST_WARNINGS]:
        warnings.warn(warning, DatasetWarning, stacklevel=3)
    if len(found) > _MOST_WARNINGS:
        more = len(found) - _MOST_WARNINGS
        warnings.warn(f"and {more} more such warnings", DatasetWarning, stacklevel=3)
    return images


def _paths(source: Iterable[Path]) -> list[str]:
    try:
        paths = iter(source)
    except TypeError:
        raise TypeError(
            f"source must be a folder or a list of paths, not {type(source).__name__}"
        ) from None
    try:
        return [os.fsdecode(path) for path in paths]
    except TypeError as error:
        raise TypeError(f"source must be a folder or a list of paths: {error}") from None


def _labels(labels: Iterable[SupportsIndex] | None) -> list[int] | None:
    if labels is None:
        return None
    if isinstance(labels, (str, bytes)):
        raise TypeError(f"labels must be a list of whole numbers, not {type(labels).__name__}")
    return [_whole("labels", label, -(2**63), 2**63 - 1) for label in labels]


def _whole(name: str, value: SupportsIndex, least: int, most: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None
    if not least <= number <= most:
        raise ValueError(f"{name} must be {least} to {most}, not {number}")
    return number


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, numpy.bool_)):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return bool(value)
