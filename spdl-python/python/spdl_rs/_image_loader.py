"""Batches of images from files of this machine, and from stores."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, SupportsIndex

from . import _arguments as check
from . import _loader_state, _notebook_page, _spdl_rs
from ._arguments import Path
from ._errors import CudaUnavailable, DatasetWarning
from ._image_batches import ImageBatches, import_numpy
from ._locks import Exclusive
from ._statistics import Statistics
from .usage import log_api_usage_once

if TYPE_CHECKING:
    from .cuda._allocators import AllocatorLike

# A data set with a million bad links shall not print a million lines.
_MOST_WARNINGS = 10
_NAMES = {"u8": "uint8", "f16": "float16", "f32": "float32"}


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

    The batches are a pure function of the data, `seed` and the number of the epoch: they depend
    neither on `threads` nor on timing, nor on whether a run was broken off and resumed. While it
    waits, the loader holds no GIL, and Ctrl-C is heard at once. Leaving the loop, by `break` or by
    an exception, ends the work. Threads may share a loader: each `iter` is an epoch of its own, and
    of a shared epoch each batch goes to one of them.

    Args:
        source: Where the images are. A folder, an address, or a list:

            - a folder of images: the classes are the folders directly below, sorted by name, with
              images at any depth; a folder that only holds images has no classes. Names that start
              with a dot are left out. Images are known by the ends of their names (`.jpg`, `.jpeg`,
              `.png`, `.webp`, `.gif`, `.bmp`, `.tif` and so on, in any case), but decoded by what
              they hold;
            - tar shards as of `webdataset` (`.tar`), Parquet (`.parquet`), TFRecord (`.tfrecord`);
              MDS of MosaicML Streaming (its folder, or the `index.json` in it); a set that
              `spdl pack` wrote; lists of files (`.txt`, `.csv`, `.jsonl`), whose rows may be
              addresses in any stores. Names may have braces, as `"shard-{000..147}.tar"`, and,
              where the store lists, `*` and `?`. A folder of such files is one data set; several
              files may be given as a list;
            - any of these at `http://`, `https://`, `s3://`, `gs://` or `az://`. Web servers do not
              list, so there the files are named. Credentials are taken from the environment, as by
              each store's own tools; passwords and signatures in addresses are never shown;
            - the paths of images, or their addresses in one store, as a list.

            Paths need not be valid text: `bytes` and what `os.fsdecode` gives are fine.
        batch_size: Images per batch, at least 1.
        size: The side of the square images in pixels, 1 to 16,384.
        train: Whether to augment: a random crop of 8 to 100 % of the area with an aspect ratio of
            3:4 to 4:3, mirrored half of the time. If not, the shorter side is resized to
            `size / 0.875` and the centre is taken.
        layout: `"nhwc-u8"` or `"nchw-f32"`, see above; or `nhwc` and `nchw` with any of `u8`, `f16`
            and `f32`. NumPy has no `bf16`.
        seed: Decides the order and all augmentation, 0 to 2**64 - 1.
        shuffle: Whether each epoch comes in an order of its own. `None`: as `train`. Parquet is
            shuffled by row groups, and within 10,000 samples.
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
        drop_last: Whether a short last batch is left out. Where that leaves none, there is a
            `DatasetWarning`.
        rank: Which part of each epoch this loader takes, 0 to `world_size - 1`: images `rank`,
            `rank + world_size` and so on of the order, which is the same for all.
        world_size: How many ranks there are, which must agree on all other arguments.
        remainder: What becomes of the last images where they cannot be divided evenly. `"drop"`: no
            rank takes them. `"pad"`: images from the epoch's beginning come again. With both, all
            ranks have equally many images, and so equally long epochs. `"uneven"`: some ranks have
            one more.
        image_field: The field of a sample that is its image; of a list, the column that names the
            file. `None`: by the usual names, such as `jpg`, `png`, `image`, `path`.
        label_field: The field of a sample that is its label: a whole number (`3.0` is one), or the
            name of a class; every sample must have it. `None`: the first of `cls`, `label`, `class`
            and `image/class/label` that is there; of a list, its column `label`, or else `class`, or
            else `cls`; else the folder, in tar shards too, where those hold nothing but images in
            folders: `train/cat/1.jpg` is a `cat` beside `train/dog/1.jpg`. Else -1: a
            `DatasetWarning` says which fields there are where no sample has a label (of the first
            1,000, but of all in tar shards and lists), and how many have none where others in
            tar shards, a list or Parquet have one. One whose text is empty there has none.
        classes: The names of the classes, in the order of their numbers, where the labels of tar
            shards, TFRecord or MDS are names. Of a column of Parquet or of a list they are known:
            all that are in it, sorted by their bytes. Such a column holds whole numbers or names; one
            of both is a `ValueError` that says where, unless it is of Parquet and its classes are
            told here. Folders, and lists, bring their own.
        cache: A folder of this machine in which files are kept, so that each is read only once from
            where it comes. Several runs and ranks may share it. Where not all fit, a part that
            never changes is kept.
        cache_size: The most bytes of that folder.
        cache_memory: Bytes of files that are kept in memory; with or without `cache`.
        device: Where batches go. `"cpu"`: they are arrays of NumPy. `"cuda"`, or `"cuda:1"` and so on:
            they are `spdl_rs.cuda.DeviceArray`s on that GPU, assembled in pinned memory; each is on its
            way before your loop asks for it, and nobody waits for the copy but the stream that uses it.
            `"auto"`: `"cuda"` where there is such a device, or else `"cpu"`, which a
            `CudaFallbackWarning` says once and `spdl_rs.cuda.fallbacks()` counts.
        allocator: Who allocates the device's memory: `None` the driver, `"torch"` the caching allocator of
            PyTorch, or two functions as of `spdl_rs.io.cuda_config`. It is asked for the first few
            batches, whose memory is used again.
        decode: Who decodes images. `"host"`: the CPU. `"device"`: JPEGs are decoded by the CUDA device, with
            nvJPEG, and all images are cropped, resized and normalised there. What the device does not decode,
            such as a PNG or a JPEG of CMYK, the CPU does; `stats()["decoded"]` counts who has decoded how
            many, and why. Pixels differ by a level or so from those of the host, and in their last bit from
            run to run where a device has several ways to decode. With `device="auto"`, the CPU decodes all
            where there is no nvJPEG, which is counted too, and a `CudaFallbackWarning` says it once.

    Raises:
        NotFoundError: There is no such folder or file, or it holds no images.
        PermissionDeniedError: A folder may not be listed.
        UnavailableError: A store cannot be reached, `TimedOutError` where that takes too long.
        DataError: A shard is damaged, or of a kind that is not supported.
        ValueError: An argument is out of range (`InvalidArgumentError` is one, too).
        CudaUnavailable: `device` is a CUDA device, and there is none that can be used; or it is to decode,
            and there is no nvJPEG.
        NotImplementedError: `layout` is of `bf16`.
        ImportError: `allocator` is `"torch"`, and PyTorch is not installed.
        TypeError: An argument is of the wrong type.

    Iterating raises `NotFoundError`, `PermissionDeniedError` or `IoError` for files that cannot be
    read, and `DataError` for those that give no image, with the file in `error.key`. What comes from
    a store is tried again for a while, before `UnavailableError` or `TimedOutError`; but for 2 seconds
    alone where connections are refused, or the name of the server is unknown, and nothing has ever
    answered. That is told in the log `spdl_rs` while the data set is opened. `CudaError` is raised where
    the device or its allocator fails, or its memory is full.

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

    Broken off in the middle of an epoch, and gone on with, in another process say:

    >>> loader = ImageLoader("photos", batch_size=2, size=32, train=True)
    >>> for images, labels in loader:
    ...     state = loader.state_dict()
    ...     break
    >>> again = ImageLoader("photos", batch_size=2, size=32, train=True)
    >>> again.load_state_dict(state)
    >>> [images.shape for images, labels in again]
    [(2, 32, 32, 3)]
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
        rank: SupportsIndex = 0,
        world_size: SupportsIndex = 1,
        remainder: Literal["drop", "pad", "uneven"] = "drop",
        image_field: str | None = None,
        label_field: str | None = None,
        classes: Iterable[str] | None = None,
        cache: Path | None = None,
        cache_size: SupportsIndex = 10_000_000_000,
        cache_memory: SupportsIndex = 0,
        device: str = "cpu",
        allocator: AllocatorLike | None = None,
        decode: Literal["host", "device"] = "host",
    ) -> None:
        log_api_usage_once("spdl_rs.ImageLoader")
        train = check.flag("train", train)
        check.choice("on_error", on_error, ("raise", "skip"))
        check.choice("on_truncated", on_truncated, ("error", "partial"))
        check.choice("remainder", remainder, ("drop", "pad", "uneven"))
        check.choice("decode", decode, ("host", "device"))
        if decode == "device" and on_truncated == "partial":
            raise ValueError(
                'on_truncated="partial" goes with decode="host": a device tells of no part'
            )
        if decode == "device" and device == "cpu":
            raise ValueError(
                'decode="device" goes with a CUDA device, or with "auto", not with "cpu"'
            )
        self._batch_size = check.whole("batch_size", batch_size, 1, 2**63 - 1)
        self._size = check.whole("size", size, 1, check.MOST_SIDE)
        self._layout = check.layout(layout)
        self._drop_last = check.flag("drop_last", drop_last)
        self._world_size = check.whole("world_size", world_size, 1, 2**20)
        self._rank = check.whole("rank", rank, 0, self._world_size - 1)
        seed = check.whole("seed", seed, 0, 2**64 - 1)
        self._device, self._home = _device(device, allocator), os.getpid()
        self._settings = _spdl_rs.Settings(
            batch_size=self._batch_size,
            size=self._size,
            train=train,
            layout=layout,
            seed=seed,
            shuffle=train if shuffle is None else check.flag("shuffle", shuffle),
            threads=None if threads is None else check.whole("threads", threads, 1, 2**16),
            skip_errors=on_error == "skip",
            keep_partial=on_truncated == "partial",
            drop_last=self._drop_last,
            rank=self._rank,
            world_size=self._world_size,
            remainder=remainder,
            device=self._device,
            decode_with=_libraries(device, self._device) if decode == "device" else None,
        )
        places, is_list = check.addresses(source)
        if labels is not None and not is_list:
            raise ValueError(
                "labels goes with a list of paths; those of a data set come from the folders in it, "
                "or from its samples"
            )
        self._images = _spdl_rs.Images.open(
            places,
            is_list=is_list,
            labels=check.labels_of(labels),
            image_field=check.text_or_none("image_field", image_field),
            label_field=check.text_or_none("label_field", label_field),
            classes=check.names("classes", classes),
            cache=None if cache is None else os.fsdecode(cache),
            cache_size=check.whole("cache_size", cache_size, 1, 2**63 - 1),
            cache_memory=check.whole("cache_memory", cache_memory, 0, 2**63 - 1),
        )
        self._words = f"train={train}, seed={seed}"
        self._monitor = _spdl_rs.Monitor()
        # Around what follows, which threads that share the loader change.
        self._exclusive = Exclusive()
        self._epoch = 0
        # Where the next epoch begins, if not at its beginning.
        self._resume: str | None = None
        # Whether the epoch that was started last is what `state_dict` tells of.
        self._began = False
        import_numpy()
        self._warn()

    def _warn(self) -> None:
        found = self._images.warnings
        for warning in found[:_MOST_WARNINGS]:
            warnings.warn(warning, DatasetWarning, stacklevel=3)
        if len(found) > _MOST_WARNINGS:
            more = len(found) - _MOST_WARNINGS
            warnings.warn(f"and {more} more such warnings", DatasetWarning, stacklevel=3)
        if len(self) == 0:
            warnings.warn(self._no_batch(), DatasetWarning, stacklevel=3)

    def _no_batch(self) -> str:
        """Why an epoch has no batch, and what to do."""
        images = len(self._images)
        of_rank = self._settings.images_of_rank(images)
        ranks = f"of rank {self._rank} of {self._world_size}"
        if of_rank == 0:
            return (
                f"no epoch {ranks} has a batch, as {images} images are fewer than ranks: make "
                f'world_size {images} or less, or remainder "pad"'
            )
        whose = f" {ranks}" if self._world_size > 1 else ""
        return (
            f"no epoch{whose} has a batch, as drop_last leaves out short ones and {of_rank} of "
            f"{images} images are fewer than a batch: make batch_size {of_rank} or less instead of "
            f"{self._batch_size}, or drop_last false"
        )

    def __iter__(self) -> ImageBatches:
        """Starts the epoch `self.epoch`, or what is left of it by `load_state_dict`, and counts on to
        the next."""
        if self._device is not None and os.getpid() != self._home:
            raise CudaUnavailable(
                "CUDA does not work in a process that was forked from one that uses it: "
                "spawn it instead",
                kind="unsupported",
            )
        with self._exclusive.held():
            batches = ImageBatches(self._images, self._settings, self._epoch, self._resume)
            # Together: whoever is interrupted has the state of before, or that of this epoch.
            self._monitor, self._resume, self._began = batches._monitor, None, True
            self._epoch = batches._number + 1
        return batches

    def __len__(self) -> int:
        """The number of batches in a whole epoch of this rank, when no image is left out by
        `on_error="skip"`."""
        full, rest = divmod(self._settings.images_of_rank(len(self._images)), self._batch_size)
        return full + (rest > 0 and not self._drop_last)

    def __repr__(self) -> str:
        order, _, number = self._layout.partition("-")
        side = self._size
        planes = [3, side, side] if order == "nchw" else [side, side, 3]
        shape = f"{_NAMES.get(number, number)} {[self._batch_size, *planes]}"
        place = "" if self._device is None else f" on {self.device}"
        rank = f"rank {self._rank} of {self._world_size}, " if self._world_size > 1 else ""
        return (
            f"ImageLoader({self._images.kind} {self._images.place!r}: {len(self._images)} images, "
            f"{len(self.classes)} classes; {len(self)} batches of {shape}{place}; "
            f"{rank}{self._words}, epoch={self._epoch})"
        )

    def _repr_html_(self) -> str:
        rate = _notebook_page.rates(*self._monitor.pace)
        return _notebook_page.page(repr(self), self.stats(), rate)

    def __copy__(self) -> ImageLoader:
        # It begins epochs of its own.
        again = object.__new__(type(self))
        vars(again).update({**vars(self), "_exclusive": Exclusive()})
        return again

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "an ImageLoader cannot be pickled, as it holds open files and connections; pickle its "
            "arguments and its state_dict(), make another one of those arguments, and load the state"
        )

    @property
    def device(self) -> str:
        """Where batches go: `cpu`, or `cuda:0`, say."""
        return "cpu" if self._device is None else f"cuda:{self._device.ordinal}"

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
        """Makes the next `iter(loader)` start this epoch, from its beginning; but from where it was
        left, where that is the epoch of a state that was just loaded.

        >>> loader = ImageLoader("photos", batch_size=4, size=32, train=True)
        >>> first, second = (next(iter(loader))[0] for _ in range(2))
        >>> loader.set_epoch(1)
        >>> bool((next(iter(loader))[0] == second).all())
        True
        """
        epoch = check.whole("epoch", epoch, 0, 2**63)
        with self._exclusive.held():
            if epoch != self._epoch:
                self._resume = None
            self._epoch, self._began = epoch, False

    def state_dict(self) -> dict[str, Any]:
        """How far the loader has come: with the batches that the epoch started last has given.

        A plain `dict` that can be pickled, or written as JSON. It takes some hundred bytes, holds
        neither images nor names, and may be asked for at any moment: between batches, after `break`,
        an exception or Ctrl-C, and between epochs. A batch counts as given once a `for` loop has it.

        >>> loader = ImageLoader("photos", batch_size=1, size=32)
        >>> batches = iter(loader)
        >>> images, labels = next(batches)
        >>> state = loader.state_dict()
        >>> state["epoch"], state["steps_in_epoch"]
        (0, 1)
        """
        with self._exclusive.held():
            began, monitor, epoch, resume = self._began, self._monitor, self._epoch, self._resume
        if began:
            return _loader_state.to_dict(monitor.state())
        return _loader_state.to_dict(
            _spdl_rs.Epoch.position(self._images, self._settings, epoch, resume)
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next `iter(loader)` go on where `state_dict` was asked for, in this process or in
        another: it gives exactly the batches that were left of the epoch, byte by byte. Where none
        were left, it gives none, and the one after that is the next epoch.

        The data and the arguments must be the same, but for `threads`, `on_error`, `device`, `allocator`
        and the cache. Epochs that are under way are not touched.

        Args:
            state: What `state_dict` gave, of the same rank; or `combine_states`, of all ranks.

        Raises:
            InvalidArgumentError: It is of other data, of other arguments, or of another rank; the
                loader is as it was before.
            ValueError: It is no state of an `ImageLoader`.
            TypeError: It is no `dict`.

        >>> loader = ImageLoader("photos", batch_size=3, size=32)
        >>> for images, labels in loader:
        ...     state = loader.state_dict()
        ...     break
        >>> loader.load_state_dict(state)
        >>> [labels.tolist() for images, labels in loader]
        [[1]]
        """
        position = _spdl_rs.Epoch.position(
            self._images, self._settings, self._epoch, _loader_state.to_text(state)
        )
        epoch = json.loads(position)["epoch"]
        with self._exclusive.held():
            self._epoch, self._resume, self._began = epoch, position, False

    @staticmethod
    def combine_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Makes one state of those of all ranks, for another number of ranks: each of them loads it, and
        they take what is left of the epoch between them, each image once.

        Every rank's state must be there, once, in any order. All are of one epoch, or at its end; how
        many batches each had given may differ. Which rank gives which image next, in which batch, is
        decided anew.

        Raises:
            InvalidArgumentError: A rank is missing, or there twice; they are of different runs; or of
                epochs that are too far from each other.
            ValueError, TypeError: One is no state of an `ImageLoader`.

        >>> def rank_of(rank, world_size):
        ...     return ImageLoader("photos", batch_size=1, rank=rank, world_size=world_size, size=32)
        >>> states = []
        >>> for loader in (rank_of(0, 2), rank_of(1, 2)):
        ...     images, labels = next(iter(loader))
        ...     states.append(loader.state_dict())
        >>> loader = rank_of(0, 1)
        >>> loader.load_state_dict(ImageLoader.combine_states(states))
        >>> [labels.tolist() for images, labels in loader]
        [[1], [1]]
        """
        return _loader_state.combined(states)

    def diagnose(self) -> str:
        """What limits the rate of the epoch that was started last, in a sentence or two, and what to
        do about it: more CPUs, more speed of the store, or nothing, as your loop is the slower one.

        It is `stats()["diagnosis"]`.

        >>> loader = ImageLoader("photos", batch_size=4, size=32)
        >>> batches = list(loader)
        >>> loader.diagnose() == loader.stats()["diagnosis"]
        True
        """
        return self.stats()["diagnosis"]

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


def _device(name: str, allocator: AllocatorLike | None) -> _spdl_rs.CudaDevice | None:
    if isinstance(name, str) and name == "cpu" and allocator is None:
        return None
    # Not imported before: who stays on the host need not wait for it.
    from .cuda import _devices

    return _devices.chosen(name, allocator)


def _libraries(name: str, device: _spdl_rs.CudaDevice | None) -> list[str] | None:
    """Where libraries to decode with may lie; `None` where the host decodes."""
    if device is None:
        return None
    from .cuda import _devices

    return _devices.to_decode(name)
