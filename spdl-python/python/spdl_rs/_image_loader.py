"""`ImageLoader`: batches of images from local files or object stores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

from . import _arguments as check
from . import _spdl_rs
from ._arguments import Path
from ._batch_loader import BatchLoader
from ._batches import ImageBatches
from ._failure_policy import OnError
from ._other_names import explained
from .usage import log_api_usage_once

if TYPE_CHECKING:
    from ._tables import Source
    from .cuda._allocators import AllocatorLike

_NAMES = {"u8": "uint8", "f16": "float16", "f32": "float32"}


@explained
class ImageLoader(BatchLoader["tuple[Any, Any]"]):
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
        source: Where the images are: a folder, an address, a list, a table, or a data set.

            - A folder of images: the classes are the direct subfolders, sorted by name, with images at
              any depth. A folder that contains only images has no classes. Names that start with a dot
              are ignored. The file extension identifies images (`.jpg`, `.jpeg`, `.png`, `.webp`,
              `.gif`, `.bmp`, `.tif` and so on, in any case). The content selects the decoder.
            - Tar shards in the layout of `webdataset` (`.tar`), zip archives of class folders or in that layout
              (`.zip`), Parquet (`.parquet`), TFRecord (`.tfrecord`), RecordIO of MXNet (`.rec`), LMDB (`.mdb`, `.lmdb`,
              or a folder with `data.mdb`); MDS of MosaicML Streaming or LitData of Lightning (its folder, or its
              `index.json`); a data set that `spdl pack` wrote; lists of files (`.txt`, `.csv`, `.jsonl`), whose rows
              may be addresses in any store; COCO annotations (`.json`); an image set of Pascal VOC
              (`VOC2012/ImageSets/Main/train.txt`); labels of ImageNet's validation images (`LOC_val_solution.csv`,
              `imagenet_2012_validation_synset_labels.txt`), in a folder next to them. Names may contain braces, as in
              `"shard-{000..147}.tar"`, and `*`
              and `?` if the store can list objects. A folder of such files is one data set. Several
              files may be passed as a list.
            - Addresses of such data: `http://`, `https://`, `s3://`, `gs://`, `az://`, and
              `hf://datasets/USER/NAME@REVISION/PATH` for data sets of Hugging Face. Web servers cannot
              list objects, so each file must be named. Credentials come from the environment, as for the
              command-line tools of each store. Passwords and signatures in addresses are never printed.
            - A list of paths of images, or of their addresses in one store; or a pattern of files, such as
              `"photos/*.jpg"`, in the order of their names. Their labels are -1.
            - A table with the Arrow PyCapsule interface, such as `polars.DataFrame` and `pyarrow.Table`, or a
              data set of Hugging Face. Columns are not copied. An image is a binary column, or a struct of
              `bytes` and `path` as Hugging Face stores images.
            - A map-style data set: an object with `__len__` and `__getitem__` whose items are dicts or tuples of
              values, such as a list of dicts or a `torch.utils.data.Dataset`. The threads of the loader call
              `__getitem__`, several at the same time; the constructor calls it once. Images are `bytes` or
              `pathlib.Path`. The fields of a tuple are `"0"`, `"1"` and so on. `on_error` applies to exceptions
              of `__getitem__`.
            - An iterable of such samples, without positions: see `Loader`.
            - Several of these, or a choice of their samples: a value of `spdl_rs.sources`, such as
              `mix(["photos", "more"], weights=[0.7, 0.3])`.

            Tables, data sets and iterables of samples cannot be cached.

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
        threads: Decoding threads, at least 1. `None`: the number of CPUs that this process may use. Ranks that a
            launcher started on one machine share its CPUs: the variables of `rank="auto"` include their number,
            which divides the CPUs, unless the launcher has assigned CPUs to each rank.
        on_error: What to do if a file cannot be read or decoded. `"raise"`: the epoch ends with an
            exception that names the file, after the images before it. The last batch may be smaller.
            `"skip"`: the next image takes its slot, and `stats()["dropped"]` lists the file. If more than 1 %
            of the images of an epoch fail, after at least 1,000 images, the epoch ends with an exception.
            `skip(at_most=...)` sets another limit. An epoch of which all images failed always ends with an
            exception. At the end of an epoch with dropped images, one warning with their number by reason is
            logged to the logger `spdl_rs`.
        on_truncated: What to do if a file is truncated. `"error"`: `on_error` applies. `"partial"`:
            missing rows are filled with black, and `stats()["partial"]` counts such images. `"partial"` applies to
            JPEG, and to PNG, GIF, BMP and TIFF if rows are stored in order. Other truncated files, WebP for example,
            remain errors.
        min_partial: The minimum share of the rows of the sample's crop that must be decoded with
            `on_truncated="partial"`, 0 to 1. With fewer rows, the image remains an error.
        labels: The label of each path, a 64-bit integer, if `source` is a list of paths.
        drop_last: Whether to leave out an incomplete last batch. If no batch remains, a `DatasetWarning`
            is issued.
        rank: The rank of this loader, 0 to `world_size - 1`. `"auto"`: rank and number of ranks of
            `torch.distributed`, or of the launcher (`RANK` and `WORLD_SIZE` of torchrun and others, or the variables
            of `mpirun` or of Slurm's `srun`, in this order), or of `jax.distributed`, else 0 of 1; incomplete variables of a launcher
            are an error; and if `threads` is `None` and the launcher has not assigned CPUs, the CPUs of
            the machine are divided among its ranks. `None`: 0; a `DatasetWarning` is issued if this process
            is one of several ranks. The loader delivers the images `rank`,
            `rank + world_size` and so on of the global order, which is the same for all ranks.
        world_size: The number of ranks. `None`: 1, or that of `rank="auto"`. All other arguments except `rank`,
            `threads`, `on_error`, `memory_budget`, `tune`, `monitor`, `device`, `allocator`, the cache, and, of
            `Loader`, `executor` and `processes` must be the same on all ranks.
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
        classes: The names of the classes, in the order of their numbers, if the labels of tar shards, TFRecord, MDS,
            LitData, RecordIO or LMDB are names. For Parquet without `classes` and for lists of files, a label column of
            names defines the classes: all distinct names, sorted by their bytes. Such a column must contain either
            integers or names. If a column mixes both, `ValueError` is raised and names the row, except for Parquet with
            `classes`. For folders, lists of files and lists of paths, passing `classes` raises `InvalidArgumentError`.
        cache: A local folder that caches files, so that cached files are not read from their store again.
            Several runs and ranks may share the folder. If not all files fit, a fixed subset is cached.
        cache_size: The size limit of the folder `cache` in bytes. Default: 10,000,000,000.
        cache_memory: The size limit of a cache in memory in bytes; works with and without `cache`. Default:
            0, no cache in memory.
        max_file_bytes: The largest encoded image in bytes. Larger images fail with `LimitExceededError`
            before they are read. The memory in use exceeds the memory budget by at most one image.
            Default: 64 MiB.
        sequential: Whether tar shards are read in parts of 8 MiB, which many images share. For shards of small images in
            a store, this is faster than one request per image. Also reads compressed shards (`.tar.gz`, `.tgz`, `.tar.zst`)
            and shards of servers without range requests: these are in memory as a whole. `shuffle` then shuffles the order
            of the shards, and images within a window: the largest one of which two fit into `sequential_memory`. Each
            rank reads all parts. Data sets of other kinds are read as without `sequential`.
        sequential_memory: The memory for parts in bytes, at least 64 MiB, in addition to the memory budget. Checkpoint
            states depend on the window, and so on this value. Default: 1 GiB.
        memory_budget: The memory for encoded images and for batches in bytes, at least two batches (four with
            `decode="device"`). Batches that your loop has received do not count. `None`: enough for all batches
            in preparation, at least 32 MiB and at most a quarter of the memory that this process may use.
        tune: `True`: the number of threads, the concurrency of stages and the prefetch depth change while an epoch
            runs. One of them changes at a time, and only changes that raise the measured throughput are kept;
            `stats()["decisions"]` lists them. A path: the settings that `freeze` has written, which do not change.
            `False`, or `None`: only the number of requests in flight adapts. The next epoch begins with the settings
            of the last one. Batches never depend on these settings.
        monitor: The path of a Unix socket that serves the statistics of the running epoch, for `spdl top PATH`. Only the
            user of this process may connect. Each rank needs a separate path. A later epoch, also of another loader of
            this process, replaces the socket; the end of the epoch removes it. Iteration raises
            `InvalidArgumentError` if another process or file uses the path. Default: no socket.
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

    _NAME = "ImageLoader"
    _SAMPLES = "images"

    def __init__(
        self,
        source: Source,
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
        rank: SupportsIndex | Literal["auto"] | None = None,
        world_size: SupportsIndex | None = None,
        remainder: Literal["drop", "pad", "uneven"] = "drop",
        image_field: str | None = None,
        label_field: str | None = None,
        classes: Iterable[str] | None = None,
        cache: Path | None = None,
        cache_size: SupportsIndex = 10_000_000_000,
        cache_memory: SupportsIndex = 0,
        max_file_bytes: SupportsIndex = 64 * 2**20,
        sequential: bool = False,
        sequential_memory: SupportsIndex = 2**30,
        memory_budget: SupportsIndex | None = None,
        tune: bool | Path | None = None,
        monitor: Path | None = None,
        device: str = "cpu",
        allocator: AllocatorLike | None = None,
        decode: Literal["host", "device"] = "host",
    ) -> None:
        log_api_usage_once("spdl_rs.ImageLoader")
        train = check.flag("train", train)
        check.choice("on_truncated", on_truncated, ("error", "partial"))
        check.choice("decode", decode, ("host", "device"))
        if decode == "device" and on_truncated == "partial":
            raise ValueError(
                'on_truncated="partial" requires decode="host": devices do not report partial images'
            )
        if decode == "device" and device == "cpu":
            raise ValueError(
                'decode="device" requires a CUDA device: pass device="cuda" or "auto", not "cpu"'
            )
        self._size = check.whole("size", size, 1, check.MAX_SIDE)
        self._layout = check.layout(layout)
        seed = check.whole("seed", seed, 0, 2**64 - 1)
        on_device = _device(device, allocator)
        self._configure(
            _spdl_rs.ImageDecoder(
                {
                    "size": self._size,
                    "train": train,
                    "layout": layout,
                    "on_truncated": on_truncated,
                    "min_partial": check.min_partial(min_partial, on_truncated),
                },
                seed,
            ),
            batch_size=batch_size,
            seed=seed,
            shuffle=train if shuffle is None else shuffle,
            threads=threads,
            on_error=on_error,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
            remainder=remainder,
            device=on_device,
            decode_with=_libraries(device, on_device) if decode == "device" else None,
            memory_budget=memory_budget,
            # Decoding threads compute: more of them would not help.
            tune=False if tune is None else tune,
            monitor=monitor,
        )
        self._description = f"train={train}, seed={seed}"
        self._open(
            source,
            labels=labels,
            image_field=image_field,
            label_field=label_field,
            classes=classes,
            cache=cache,
            cache_size=cache_size,
            cache_memory=cache_memory,
            max_file_bytes=max_file_bytes,
            sequential=sequential,
            sequential_memory=sequential_memory,
        )

    def _start(self, epoch: int, state: str | None, is_frozen: bool) -> ImageBatches:
        samples = self._samples_of(epoch)
        return ImageBatches(samples, self._settings, epoch, state, self._functions, is_frozen=is_frozen)

    def __repr__(self) -> str:
        order, _, number = self._layout.partition("-")
        side = self._size
        planes = [3, side, side] if order == "nchw" else [side, side, 3]
        shape = f"{_NAMES.get(number, number)} {[self._batch_size, *planes]}"
        place = "" if self._device is None else f" on {self.device}"
        rank = f"rank {self._rank} of {self._world_size}, " if self._world_size > 1 else ""
        images, batches = self._counts()
        return (
            f"ImageLoader({self._samples.kind} {self._samples.place!r}: {images}, "
            f"{len(self.classes)} classes; {batches} of {shape}{place}; "
            f"{rank}{self._description}, epoch={self._epoch})"
        )

    @property
    def device(self) -> str:
        """The device of batches: `cpu`, or for example `cuda:0`."""
        return "cpu" if self._device is None else f"cuda:{self._device.ordinal}"


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
