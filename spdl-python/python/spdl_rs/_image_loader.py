"""`ImageLoader`: batches of images from local files or object stores."""

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
from ._failure_policy import OnError, max_failures
from ._image_batches import ImageBatches, import_numpy
from ._locks import ForkSafeLock
from ._statistics import Statistics
from .usage import log_api_usage_once

if TYPE_CHECKING:
    from .cuda._allocators import AllocatorLike

# The number of printed warnings is limited, for data sets with many broken links.
_MAX_WARNINGS = 10
_NAMES = {"u8": "uint8", "f16": "float16", "f32": "float32"}


class ImageLoader:
    """Batches of images and labels. Rust threads read, decode, crop and resize the images.

    Each `iter(loader)` is one epoch and yields `(images, labels)`:

    - `images`: `uint8 [N, size, size, 3]`, RGB from 0 to 255 (`layout="nhwc-u8"`), or
      `float32 [N, 3, size, size]`, normalised per channel to `(value / 255 - mean) / std` with the mean
      and standard deviation of ImageNet (`layout="nchw-f32"`);
    - `labels`: `int64 [N]`, indices into `classes`, or -1 for samples without a label.

    `N` is `batch_size`, except that the last batch of an epoch may be smaller. You may keep and modify
    the arrays. Their memory is recycled after the last reference is dropped. Decoders write into the
    batch without copies.

    The data, the arguments (such as `seed`) and the number of the epoch determine the batches. The batches
    do not depend on `threads`, on timing, or on whether an epoch was interrupted and resumed. Exceptions:
    with `decode="device"`, the last bit of pixel values may differ; with `on_error="skip"`, an image that
    could not be read is missing. A waiting loader releases the GIL and handles Ctrl-C immediately. Leaving
    the loop by `break` or an exception stops loading. Threads may share a loader: each `iter` starts a
    separate epoch, and each batch of a shared iterator is delivered to one thread.

    Args:
        source: Where the images are: a folder, an address, or a list.

            - A folder of images: the classes are the direct subfolders, sorted by name, with images at
              any depth. A folder that contains only images has no classes. Names that start with a dot
              are ignored. The file extension identifies images (`.jpg`, `.jpeg`, `.png`, `.webp`,
              `.gif`, `.bmp`, `.tif` and so on, in any case). The content selects the decoder.
            - Tar shards in the layout of `webdataset` (`.tar`), Parquet (`.parquet`), TFRecord
              (`.tfrecord`); MDS of MosaicML Streaming (its folder, or its `index.json`); a data set
              that `spdl pack` wrote; lists of files (`.txt`, `.csv`, `.jsonl`), whose rows may be
              addresses in any store. Names may contain braces, as in `"shard-{000..147}.tar"`, and `*`
              and `?` if the store can list objects. A folder of such files is one data set. Several
              files may be passed as a list.
            - Addresses of such data: `http://`, `https://`, `s3://`, `gs://`, `az://`. Web servers cannot
              list objects, so each file must be named. Credentials come from the environment, as for the
              command-line tools of each store. Passwords and signatures in addresses are never printed.
            - A list of paths of images, or of their addresses in one store.

            Paths need not be valid UTF-8: `bytes` and results of `os.fsdecode` are accepted.
        batch_size: Images per batch, at least 1.
        size: Width and height of the images in pixels, 1 to 16,384.
        train: Whether to augment: a random crop of 8 to 100 % of the area with an aspect ratio of 3:4 to
            4:3, flipped horizontally with probability 0.5. If `False`, the shorter side is resized to
            `size / 0.875` and the centre is cropped.
        layout: `"nhwc-u8"` or `"nchw-f32"`, see above; or `nhwc` and `nchw` with `u8`, `f16` or `f32`.
            NumPy has no `bf16`.
        seed: Determines the order and all augmentations, 0 to 2**64 - 1.
        shuffle: Whether each epoch has a different order. `None`: the value of `train`. Parquet files are
            shuffled by row groups and within a window of 10,000 samples.
        threads: Decoding threads, at least 1. `None`: the number of CPUs that this process may use.
        on_error: What to do if a file cannot be read or decoded. `"raise"`: the epoch ends with an
            exception that names the file, after the batches that were complete before the failure.
            `"skip"`: the next image takes its slot, and `stats()["dropped"]` lists the file. If more than 1 %
            of the images of an epoch fail, after at least 1,000 images, the epoch ends with an exception.
            `skip(at_most=...)` sets another limit. An epoch of which all images failed always ends with an
            exception. At the end of an epoch with dropped images, one warning with their number by reason is
            logged to the logger `spdl_rs`.
        on_truncated: What to do if a file is truncated. `"error"`: `on_error` applies. `"partial"`:
            missing rows are filled with black, and `stats()["partial"]` counts such images. `"partial"` applies to JPEG, and to PNG, GIF, BMP and TIFF if rows are stored in order. Other
            truncated files, WebP for example, remain errors.
        min_partial: The minimum share of the rows of the sample's crop that must be decoded with
            `on_truncated="partial"`, 0 to 1. With fewer rows, the image remains an error.
        labels: The label of each path, a 64-bit integer, if `source` is a list of paths.
        drop_last: Whether to leave out an incomplete last batch. If no batch remains, a `DatasetWarning`
            is issued.
        rank: The rank of this loader, 0 to `world_size - 1`. The loader delivers the images `rank`,
            `rank + world_size` and so on of the global order, which is the same for all ranks.
        world_size: The number of ranks. All other arguments except `rank`, `threads`, `on_error`, `device`,
            `allocator` and the cache must be the same on all ranks.
        remainder: What to do with the last images if the data set is not divisible by `world_size`.
            `"drop"`: no rank delivers these images. `"pad"`: images from the beginning of the epoch are
            repeated. With `"drop"` and `"pad"`, all ranks deliver the same number of images. `"uneven"`: some
            ranks deliver one more image than others.
        image_field: The field of a sample that holds the image; for a list of files, the column of file
            names. `None`: the common names, such as `jpg`, `png`, `image`, `path`.
        label_field: The field of a sample that holds the label: an integer (`3.0` is accepted) or the
            name of a class. If `label_field` is given, every sample must have this field. `None`: the first
            of `cls`, `label`, `class` and `image/class/label` that exists; for a list of files, the column
            `label`, `class` or `cls`. If there is no such field, the name of the folder is the label, for
            example `cat` for `train/cat/1.jpg`. This rule also applies to tar shards that contain only
            images in folders. If there is no folder either, labels are -1. If no sample has a label, a
            `DatasetWarning` lists the available fields. This check reads all samples of tar shards and
            lists, but only the first 1,000 of other formats. If only some samples of tar shards, a list or
            Parquet have no label, the warning counts them. An empty string counts as no label.
        classes: The names of the classes, in the order of their numbers, if the labels of tar shards,
            TFRecord or MDS are names. For Parquet without `classes` and for lists of files, a label column of
            names defines the classes: all distinct names, sorted by their bytes. Such a column must contain
            either integers or names. If a column mixes both, `ValueError` is raised and names the row, except for
            Parquet with `classes`. For folders, lists of files and lists of paths, passing `classes` raises
            `InvalidArgumentError`.
        cache: A local folder that caches files, so that cached files are not read from their store again.
            Several runs and ranks may share the folder. If not all files fit, a fixed subset is cached.
        cache_size: The size limit of the folder `cache` in bytes. Default: 10,000,000,000.
        cache_memory: The size limit of a cache in memory in bytes; works with and without `cache`. Default:
            0, no cache in memory.
        max_file_bytes: The largest encoded image in bytes. Larger images fail with `LimitExceededError`
            before they are read. The memory in use exceeds the memory budget by at most one image.
            Default: 64 MiB.
        device: Where batches are delivered. `"cpu"`: NumPy arrays. `"cuda"`, `"cuda:1"` and so on:
            `spdl_rs.cuda.DeviceArray`s on that GPU. Batches are assembled in pinned memory and uploaded
            ahead of your loop; only the stream that uses a batch waits for its transfer. `"auto"`:
            `"cuda"` if there is such a device, else `"cpu"`, with one `CudaFallbackWarning`;
            `spdl_rs.cuda.fallbacks()` counts such fallbacks.
        allocator: The allocator of device memory. `None`: the driver. `"torch"`: PyTorch's caching
            allocator. Or two functions, as for `spdl_rs.io.cuda_config`. The loader allocates memory only
            for the first few batches, and recycles this memory.
        decode: Where to decode images. `"host"`: on the CPU. `"device"`: the CUDA device decodes JPEG with
            nvJPEG and crops, resizes and normalises all images. The CPU decodes images that the device
            does not support, such as PNG or CMYK JPEG; `stats()["decoded"]` counts images by decoder, and
            the fallbacks to the CPU by reason. Pixel values differ from those of host decoding by about one
            level (of 255). On devices with several decoding engines, the last bit of pixel values may
            differ between runs. With `device="auto"` and without nvJPEG, the CPU decodes all images. These
            images are counted too, and one `CudaFallbackWarning` is issued.

    Raises:
        NotFoundError: The folder or file does not exist or contains no images.
        PermissionDeniedError: A folder cannot be listed.
        UnavailableError: A store cannot be reached (`TimedOutError` if it does not respond in time).
        DataError: A shard is corrupt, or its format is not supported.
        ValueError: An argument is out of range (`InvalidArgumentError` is a subclass).
        CudaUnavailable: `device` requires a CUDA device and no device is usable, or `decode="device"` is
            set and nvJPEG is not available.
        NotImplementedError: `layout` specifies `bf16`.
        ImportError: `allocator` is `"torch"` and PyTorch is not installed.
        TypeError: An argument has the wrong type.

    Iteration raises `NotFoundError`, `PermissionDeniedError` or `IoError` if a file cannot be read, and
    `DataError` if it cannot be decoded; `error.key` names the file. Reads from stores are retried up to a
    time limit before `UnavailableError` or `TimedOutError` is raised. The limit is 2 seconds if connections
    are refused or the host name is unknown and the store has never responded. While the data set is
    opened, the first failure to reach a store that has never responded is logged as a warning to the logger
    `spdl_rs`. `CudaError` is raised if the device or its allocator fails or its memory is full.

    >>> loader = ImageLoader("photos", batch_size=3, size=32, layout="nchw-f32")
    >>> len(loader), loader.class_to_idx
    (2, {'cat': 0, 'dog': 1})
    >>> for images, labels in loader:
    ...     print(images.shape, images.dtype, labels)
    (3, 3, 32, 32) float32 [0 0 1]
    (1, 3, 32, 32) float32 [1]

    A list of paths with custom labels:

    >>> paths = ["photos/dog/1.png", "photos/cat/1.png"]
    >>> images, labels = next(iter(ImageLoader(paths, labels=[7, 3], batch_size=2)))
    >>> labels
    array([7, 3])

    Interrupting an epoch and resuming it, for example in another process:

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
        on_error: OnError = "raise",
        on_truncated: Literal["error", "partial"] = "error",
        min_partial: float = 0.5,
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
        max_file_bytes: SupportsIndex = 64 * 2**20,
        device: str = "cpu",
        allocator: AllocatorLike | None = None,
        decode: Literal["host", "device"] = "host",
    ) -> None:
        log_api_usage_once("spdl_rs.ImageLoader")
        train = check.flag("train", train)
        check.choice("on_truncated", on_truncated, ("error", "partial"))
        check.choice("remainder", remainder, ("drop", "pad", "uneven"))
        check.choice("decode", decode, ("host", "device"))
        if decode == "device" and on_truncated == "partial":
            raise ValueError(
                'on_truncated="partial" requires decode="host": devices do not report partial images'
            )
        if decode == "device" and device == "cpu":
            raise ValueError(
                'decode="device" requires a CUDA device: pass device="cuda" or "auto", not "cpu"'
            )
        self._batch_size = check.whole("batch_size", batch_size, 1, 2**63 - 1)
        self._size = check.whole("size", size, 1, check.MAX_SIDE)
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
            max_failures=max_failures(on_error),
            min_partial=check.min_partial(min_partial, on_truncated),
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
                "labels can be set only for a list of paths; the labels of a data set come from its "
                "folders or from its samples"
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
            max_file_bytes=check.whole("max_file_bytes", max_file_bytes, 1, 2**63 - 1),
        )
        self._description = f"train={train}, seed={seed}"
        self._monitor = _spdl_rs.Monitor()
        # Protects the attributes below: threads may share the loader.
        self._lock = ForkSafeLock()
        self._epoch = 0
        # The state from which the next epoch resumes; `None` if it starts from the beginning.
        self._resume: str | None = None
        # Whether `state_dict` describes the epoch that was started last.
        self._began = False
        import_numpy()
        self._warn()

    def _warn(self) -> None:
        found = self._images.warnings
        for warning in found[:_MAX_WARNINGS]:
            warnings.warn(warning, DatasetWarning, stacklevel=3)
        if len(found) > _MAX_WARNINGS:
            more = len(found) - _MAX_WARNINGS
            warnings.warn(f"number of warnings not shown: {more}", DatasetWarning, stacklevel=3)
        if len(self) == 0:
            warnings.warn(self._no_batch(), DatasetWarning, stacklevel=3)

    def _no_batch(self) -> str:
        """Explains why an epoch has no batch, and what to change."""
        images = len(self._images)
        of_rank = self._settings.images_of_rank(images)
        ranks = f"of rank {self._rank} of {self._world_size}"
        if of_rank == 0:
            return (
                f"an epoch {ranks} has no batch: the data set has only {images} images; set "
                f'world_size to {images} or less, or remainder to "pad"'
            )
        whose = f" {ranks}" if self._world_size > 1 else ""
        return (
            f"an epoch{whose} has no batch: drop_last leaves out incomplete batches, and {of_rank} of "
            f"{images} images do not fill a batch; set batch_size to {of_rank} or less instead of "
            f"{self._batch_size}, or drop_last to False"
        )

    def __iter__(self) -> ImageBatches:
        """Starts the epoch `self.epoch`, or resumes this epoch after `load_state_dict`, and
        increments `self.epoch`."""
        if self._device is not None and os.getpid() != self._home:
            raise CudaUnavailable(
                "CUDA cannot be used in a forked child of a process that uses CUDA: start the child "
                'with the method "spawn"',
                kind="unsupported",
            )
        with self._lock.held():
            batches = ImageBatches(self._images, self._settings, self._epoch, self._resume)
            # Assigned in one statement, so that Ctrl-C leaves either the old state or the state of this epoch.
            self._monitor, self._resume, self._began = batches._monitor, None, True
            self._epoch = batches._number + 1
        return batches

    def __len__(self) -> int:
        """The number of batches in a full epoch of this rank, if no image is dropped."""
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
            f"{rank}{self._description}, epoch={self._epoch})"
        )

    def _repr_html_(self) -> str:
        rate = _notebook_page.rates(*self._monitor.pace)
        return _notebook_page.page(repr(self), self.stats(), rate)

    def __copy__(self) -> ImageLoader:
        # The copy counts its epochs separately.
        again = object.__new__(type(self))
        vars(again).update({**vars(self), "_lock": ForkSafeLock()})
        return again

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "an ImageLoader cannot be pickled, because it holds open files and connections; pickle its "
            "arguments and its state_dict(), create another loader and load the state"
        )

    @property
    def device(self) -> str:
        """The device of batches: `cpu`, or for example `cuda:0`."""
        return "cpu" if self._device is None else f"cuda:{self._device.ordinal}"

    @property
    def classes(self) -> list[str]:
        """The names of the classes. Labels that are class names become indices into this list.

        The list is empty for a list of paths, for a folder without subfolders, and if labels are integers and
        no `classes` are given.

        Bytes of names that are not valid UTF-8 appear as `\\xff`.
        """
        return self._images.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next `iter(loader)` starts, initially 0."""
        return self._epoch

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Makes the next `iter(loader)` start this epoch from its beginning.

        If a loaded state belongs to this epoch, the next `iter(loader)` still resumes from that state.

        >>> loader = ImageLoader("photos", batch_size=4, size=32, train=True)
        >>> first, second = (next(iter(loader))[0] for _ in range(2))
        >>> loader.set_epoch(1)
        >>> bool((next(iter(loader))[0] == second).all())
        True
        """
        epoch = check.whole("epoch", epoch, 0, 2**63)
        with self._lock.held():
            if epoch != self._epoch:
                self._resume = None
            self._epoch, self._began = epoch, False

    def state_dict(self) -> dict[str, Any]:
        """Returns the checkpoint state of the epoch that was started last, after its delivered batches.

        After `set_epoch` or `load_state_dict`, `state_dict` returns the state from which the next
        `iter(loader)` starts. The state is a plain `dict` that can be pickled or written as JSON. The state
        takes a few hundred bytes and contains neither images nor names. `state_dict` can be called at any
        time: between batches, after `break`, an exception or Ctrl-C, and between epochs. A batch counts as
        delivered once a `for` loop or `next` has received it.

        >>> loader = ImageLoader("photos", batch_size=1, size=32)
        >>> batches = iter(loader)
        >>> images, labels = next(batches)
        >>> state = loader.state_dict()
        >>> state["epoch"], state["steps_in_epoch"]
        (0, 1)
        """
        with self._lock.held():
            began, monitor, epoch, resume = self._began, self._monitor, self._epoch, self._resume
        if began:
            return _loader_state.to_dict(monitor.state())
        return _loader_state.to_dict(
            _spdl_rs.Epoch.position(self._images, self._settings, epoch, resume)
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next `iter(loader)` resume from a state, in this process or another process.

        The iterator delivers the remaining batches of the epoch, with identical bytes if the host decodes
        (`decode="host"`). If no batch remains, the iterator is empty, and the following iterator starts the
        next epoch.

        The data and the arguments must be the same, except `threads`, `on_error`, `device`, `allocator` and
        the cache. For a result of `combine_states`, `rank` and `world_size` may differ too. Existing
        iterators are not affected.

        Args:
            state: A result of `state_dict` of the same rank, or a result of `combine_states`, which all
                ranks load.

        Raises:
            InvalidArgumentError: The state belongs to other data, arguments or another rank. The loader
                is unchanged.
            ValueError: `state` is not a state of an `ImageLoader`.
            TypeError: `state` is not a `dict`.

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
        with self._lock.held():
            self._epoch, self._resume, self._began = epoch, position, False

    @staticmethod
    def combine_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Combines the states of all ranks into one state that another number of ranks can load.

        Each new rank loads the combined state. Together the ranks deliver the remaining images of
        the epoch, each image once.

        The state of each rank is required once, in any order. All states must be in the same epoch or at
        its end, but the ranks may have delivered different numbers of batches. The assignment of images
        to ranks and batches is new.

        Raises:
            InvalidArgumentError: The state of a rank is missing or repeated, or the states belong to
                different runs or to epochs that are too far apart.
            ValueError, TypeError: An element is not a state of an `ImageLoader`.

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
        """Describes what limits the throughput of the epoch that was started last, and what to do.

        For example: more CPUs, a faster store, or nothing, because your loop is the bottleneck. The text
        is `stats()["diagnosis"]`.

        >>> loader = ImageLoader("photos", batch_size=4, size=32)
        >>> batches = list(loader)
        >>> loader.diagnose() == loader.stats()["diagnosis"]
        True
        """
        return self.stats()["diagnosis"]

    def stats(self) -> Statistics:
        """Returns the statistics of the epoch that was started last: timings, throughput, dropped images.

        Before the first epoch all counts and times are 0, and all lists are empty. Raises `RuntimeError` in
        a forked child of the process that runs the epoch, as `next` does.

        >>> loader = ImageLoader("photos", batch_size=4, size=32)
        >>> batches = list(loader)
        >>> [(stage["name"], stage["items"]) for stage in loader.stats()["stages"]]
        [('source', 4), ('fetch', 4), ('decode', 4)]
        """
        return self._monitor.statistics()


def _device(name: str, allocator: AllocatorLike | None) -> _spdl_rs.CudaDevice | None:
    if isinstance(name, str) and name == "cpu" and allocator is None:
        return None
    # This module is imported lazily, because loaders without a device do not need it.
    from .cuda import _devices

    return _devices.chosen(name, allocator)


def _libraries(name: str, device: _spdl_rs.CudaDevice | None) -> list[str] | None:
    """Returns the folders to search for decoding libraries; `None` if the host decodes."""
    if device is None:
        return None
    from .cuda import _devices

    return _devices.to_decode(name)
