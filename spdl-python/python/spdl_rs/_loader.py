"""`Loader`: batches of samples with any fields."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, SupportsIndex, TypeAlias, cast

from . import _arguments as check
from . import _ranks, _spdl_rs
from ._arguments import Path
from ._batch_loader import BatchLoader
from ._batches import Batches
from ._failure_policy import OnError
from ._other_names import advice
from ._functions import (
    KEYS,
    FilterSample,
    Functions,
    InTurn,
    MapBatch,
    MapSample,
    MapSamples,
    StackSamples,
    call,
    jax_arrays_of,
    tensors_of,
)
from .usage import log_api_usage_once

if TYPE_CHECKING:
    from ._tables import Source
    from .fields import Field, FieldSpec
    from .recipes import CopyPaste, Mix, Mosaic
    from .sequences import Bucket, ConcatAndSplit, Pack, SameSize

Output: TypeAlias = 'Literal["dict", "tuple", "torch", "torch-tuple", "jax"] | Callable[..., Any]'


class Loader(BatchLoader[Any]):
    """Batches of samples with any fields: images, masks, boxes, text, numbers and so on.

    Each `iter(loader)` is one epoch and yields a `dict` with a value for each field. Rust threads read and
    decode all fields, and write images directly into the batch. As for `ImageLoader`, batches depend only on
    the data, the arguments and the epoch, and an epoch resumes from `state_dict()` with identical bytes.

    A few batches exist at the same time. The memory budget counts encoded samples and the arrays of fields with
    one shape, but neither text, bytes, and images and arrays whose sizes differ, nor the results of functions: up
    to `threads` batches are in each function at the same time, or up to `processes` in all functions together.

    Args:
        source: Where the samples are: see `ImageLoader`. The stored fields of a table are its columns; those of
            a map-style data set or an iterable are the items of its dicts. For iterables, see below. In folders and
            patterns, the files are images if there is an `Image`, otherwise videos for `Video`, audio for `Audio`, and
            arrays (`.npy`, `.npz`, `.bin`, `.raw`) for `Array` and `Tokens`. A pattern with an extension, such as
            `"scans/*.dat"`, selects all its files.
        fields: The fields by name, for names that are arguments of this class.
        batch_size: Samples per batch, at least 1. With `group`: sequences per batch, or the maximum of samples.
        shuffle: Whether each epoch has a different order.
        output: `"dict"`: a `dict` of NumPy arrays and lists. `"tuple"`: a tuple of the same values, in the
            order of the fields. `"torch"`: a `dict` with tensors in place of arrays. `"torch-tuple"`: a tuple with
            tensors in place of arrays, for loops such as `for images, labels in loader`. `"jax"`: a `dict` with JAX
            arrays on the default device, except that `map` gets NumPy arrays; on CPUs, arrays share the memory, and
            without `jax_enable_x64`, 64-bit numbers become 32-bit numbers; not with `executor="processes"`. Or a class
            or function, such as a dataclass, that is called with the fields as keyword arguments, on the thread that
            takes the batch (if Ctrl-C interrupts this call, its batch counts as delivered), or with `map` or
            `batch_map` where these run.
        group: How samples are grouped by their number of tokens: `sequences.Pack`, `ConcatAndSplit` or `Bucket`; or
            by the size of an image: `SameSize`. `None`: each batch has the next samples. Grouped samples do not count
            in the memory budget. `filter` is called before samples are grouped. With `Pack` and `ConcatAndSplit`, whose
            batches have no samples, `map` is called before too: it gets the values that `filter` gets, on the threads
            of the loader, and the values that it returns replace those of fields, such as the ids of the grouped field,
            a list or array of integers. `collate` and `mix` cannot be combined with them; `batch_map` gets the
            sequences.
        mix: A `recipes.Mix`, which mixes the images and labels of each batch, or a `recipes.Mosaic` or
            `recipes.CopyPaste`, which combine images with boxes; before `map`.
        filter: A function that gets the values of one sample as a `dict` and returns whether to keep the sample.
            It is called before images are decoded, so the `dict` has no `Image`, `Mask`, `Depth`,
            `Geometry` and `ImageSize`; `Boxes`, `KeyPoints` and arrays have the stored values. See below.
        map: A function that gets the values of one sample as a `dict` and returns a `dict`. Its numbers, arrays
            and tensors are stacked, and must have one shape and dtype; other values become lists. Values with
            the name of a field whose `collate` is not `"stack"` also become lists. See below.
        collate: A function that gets the samples of a batch as a list, and returns the batch, like PyTorch's
            `collate_fn`. The samples are the results of `map`, which may then be any objects; without `map`,
            they are `dict`s, with tensors in place of arrays if `output` is `"torch"`. Further values of `output`
            cannot be combined with `collate`. See below.
        batch_map: A function that gets each batch, as `output` or `collate` makes it, and returns what the loader
            yields.
        executor: Where `map`, `collate` and `batch_map` run. `"threads"`: on the threads of the loader.
            `"processes"`: in worker processes. `"inline"`: on the thread that takes the batch, during `next`.
            `filter`, and `__getitem__` of a map-style data set, always run on the threads of the loader. See below.
        processes: The maximum number of worker processes with `executor="processes"`. Default: `threads`, or the number
            of CPUs that this process may use, which ranks on one machine share.
        seed, threads, on_error, drop_last, rank, world_size, remainder: See `ImageLoader`.
        cache, cache_size, cache_memory, max_file_bytes: See `ImageLoader`. `max_file_bytes` limits all fields
            of a sample together.
        sequential, sequential_memory: See `ImageLoader`.
        image_folder: The folder of the images of COCO annotations, or of labels of ImageNet's validation images.
            Default: the first folder near the annotations that contains the first image.
        memory_budget: See `ImageLoader`. `mix`, `map` and `batch_map` need a further batch each.
        tune: See `ImageLoader`. `None`: as `True`, but only for the number of threads, only while they mostly wait,
            and not if `threads` is given.
        monitor: See `ImageLoader`.
        named_fields: The fields: `image=fields.Image(224)`.

    Batches are filled with the samples that `filter` keeps, and `stats()["filtered"]` counts the others: those of
    prefetched batches too, so that the count is exact for the delivered batches only at the end of an epoch. So
    `len(loader)` is an upper bound, and ranks may have different numbers of batches. An epoch without any sample is
    empty, and logs a warning.

    An iterable of samples, such as a generator, a `torch.utils.data.IterableDataset` or a streaming data set of Hugging
    Face, is iterated by one separate thread, while other threads decode. Each epoch calls `source.set_epoch(epoch)`, if
    this method exists, then `iter(source)`, and delivers the samples in their order. An iterator can be used for one
    epoch only. `shuffle=True` is an error; `sources.shuffled` shuffles within a window. Each rank iterates all items
    and delivers its share; at the end of an epoch, `remainder="drop"` leaves out samples that do not suffice for all
    ranks, and `"pad"` is an error. If each rank has a separate iterable, pass `rank=0, world_size=1`. A resumed epoch
    starts from the beginning and skips the items that are done, or calls `source.iterate_from(position)`, if this
    method exists; the items must be the same as before. `len(loader)` needs `len(source)`. An exception of the iterable
    ends the epoch, whatever `on_error` is, and its notes name the position; `on_error` applies to items that are no
    samples, and to decoding. Samples wait in memory before they are decoded: up to about 100, or 16 MiB and 17 samples.

    Functions are called on the threads of the loader, several at the same time, and must neither depend on the order
    of calls nor wait for other calls. An exception of a function ends the epoch, whatever `on_error` is; its notes
    (`__notes__`) name the sample. `StopIteration`, and `SystemExit` except on the main thread, become `RuntimeError`.
    At the end of the program, functions that still run are interrupted.

    If a function has an argument `rng`, it gets a `numpy.random.Generator` that depends only on `seed`, the epoch and
    the sample (for `collate` and `batch_map`, the first sample), or the part of a sample that `Bucket` has split: so
    its results are the same after resuming, on any number of threads. An argument `generator` likewise gets a
    `torch.Generator` on the CPU. An argument with a default keeps its default. States belong to loaders with the same
    functions: whether a function exists is compared, but not its code.

    With `executor="processes"`, a process calls all functions of a batch. Batches and results are copied through shared
    memory, which holds the largest batch and the largest result of each process. Functions and results must be
    picklable; the pixels of arrays and tensors are not pickled. Scripts must iterate under
    `if __name__ == "__main__":`, because processes are started as by `iterate_in_subprocess`. They start during the
    first epoch, stay for later epochs, and end with the loader. If a process dies, the epoch raises
    `spdl_rs.pipeline.WorkerError`. In each process, PyTorch computes on one thread, unless a function calls
    `torch.set_num_threads`.

    With `executor="inline"`, functions are called in turn, also if several threads take batches, and may use objects
    that belong to a thread. A batch counts as delivered after its functions. A batch whose function raises an
    exception, or is interrupted by Ctrl-C, does not count, and ends the epoch. The executor changes neither batches
    nor states.

    Raises:
        InvalidArgumentError: There is no field, or a field refers to a field that does not exist.
        TypeError, ValueError: An argument has the wrong type or is out of range.
        TypeError: With `executor="processes"`, a function cannot be pickled.
        ModuleNotFoundError: A function has an argument `generator`, and PyTorch is not installed.

    Opening the data set and iterating raise the exceptions of `ImageLoader`. Messages of fields that cannot be
    decoded begin with the field, and `error.key` is the sample.

    >>> from spdl_rs import Loader, fields
    >>> loader = Loader(
    ...     "photos",
    ...     batch_size=3,
    ...     image=fields.Image(32),
    ...     label=fields.Label(),
    ...     key=fields.Key(),
    ... )
    >>> for batch in loader:
    ...     print(batch["image"].shape, batch["label"], batch["key"])
    (3, 32, 32, 3) [0 0 1] ['photos/cat/1.png', 'photos/cat/2.png', 'photos/dog/1.png']
    (1, 32, 32, 3) [1] ['photos/dog/2.png']

    >>> def is_cat(sample):
    ...     return "cat" in sample["key"]
    >>> loader = Loader("photos", batch_size=4, image=fields.Image(32), key=fields.Key(), filter=is_cat)
    >>> [batch["key"] for batch in loader]
    [['photos/cat/1.png', 'photos/cat/2.png']]

    >>> samples = [{"text": "a cat", "score": 0.5}, {"text": "a dog", "score": 1.5}]
    >>> loader = Loader(samples, batch_size=2, text=fields.Text(), score=fields.Number())
    >>> next(iter(loader))
    {'text': ['a cat', 'a dog'], 'score': array([0.5, 1.5], dtype=float32)}

    >>> def samples():
    ...     for number in range(5):
    ...         yield {"number": number, "text": "a" * number}
    >>> loader = Loader(samples(), batch_size=4, number=fields.Number("int64"), text=fields.Text())
    >>> [batch["text"] for batch in loader]
    [['', 'a', 'aa', 'aaa'], ['aaaa']]

    >>> def darker(sample, rng):
    ...     return {"image": sample["image"] * rng.uniform(0.5, 1.0), "key": sample["key"].upper()}
    >>> loader = Loader("photos", batch_size=4, image=fields.Image(32), key=fields.Key(), map=darker)
    >>> batch = loader.peek()
    >>> batch["image"].dtype, batch["key"][0]
    (dtype('float64'), 'PHOTOS/CAT/1.PNG')
    """

    _NAME: ClassVar[str] = "Loader"

    def __init__(
        self,
        source: Source,
        fields: Mapping[str, Field] | None = None,
        *,
        batch_size: SupportsIndex,
        shuffle: bool = False,
        output: Output = "dict",
        group: Pack | ConcatAndSplit | Bucket | SameSize | None = None,
        mix: CopyPaste | Mix | Mosaic | None = None,
        filter: Callable[..., bool] | None = None,
        map: Callable[..., Any] | None = None,
        collate: Callable[..., Any] | None = None,
        batch_map: Callable[..., Any] | None = None,
        executor: Literal["threads", "processes", "inline"] = "threads",
        processes: SupportsIndex | None = None,
        seed: SupportsIndex = 0,
        threads: SupportsIndex | None = None,
        on_error: OnError = "raise",
        drop_last: bool = False,
        rank: SupportsIndex | Literal["auto"] | None = None,
        world_size: SupportsIndex | None = None,
        remainder: Literal["drop", "pad", "uneven"] = "drop",
        cache: Path | None = None,
        cache_size: SupportsIndex = 10_000_000_000,
        cache_memory: SupportsIndex = 0,
        max_file_bytes: SupportsIndex = 64 * 2**20,
        sequential: bool = False,
        sequential_memory: SupportsIndex = 2**30,
        image_folder: Path | None = None,
        memory_budget: SupportsIndex | None = None,
        tune: bool | Path | None = None,
        monitor: Path | None = None,
        **named_fields: Field,
    ) -> None:
        from .fields import Array, Audio, Depth, Image, Key, Mask, Video
        from .recipes import Mix

        log_api_usage_once("spdl_rs.Loader")
        self._fields = _checked_fields(fields, named_fields)
        self._group = _checked_group(group, self._fields, collate=collate, mix=mix)
        is_before_group = group is not None and self._group._packs
        self._shown = {
            "group": group,
            "mix": mix,
            "filter": filter,
            "map": map,
            "collate": collate,
            "batch_map": batch_map,
        }
        convert = converter(output, self._fields)
        _check_bfloat16(self._fields, output)
        if collate is not None and convert not in (None, tensors_of):
            raise ValueError(
                f"output={check.shown(output)} cannot be combined with collate, whose result is the batch; use "
                '"dict" or "torch", which determine the samples that collate gets'
            )
        if convert is jax_arrays_of and executor == "processes":
            raise ValueError(
                'output="jax" cannot be combined with executor="processes", because each process would reserve memory '
                "of the devices; convert the batches with spdl_rs.io.to_jax or jax.device_put"
            )
        lists = {
            name
            for name, one in self._fields.items()
            if _collate_of(one, self._fields) != "stack" and not _has_one_size(name, self._fields, group)
        }
        stages = _stages(None if is_before_group else map, collate, batch_map, convert, lists)
        # The functions convert the batches.
        self._convert = None if stages else convert
        native = _native(self._fields, group)
        if stages:
            native.append((KEYS, Key()._native()))
        functions = _placed(stages, executor, processes, threads)
        functions = functions._replace(filter=_filter(filter, self._fields))
        if is_before_group and map is not None:
            functions = functions._replace(map_samples=_map_samples(map, self._fields))
        self._native_fields = _spdl_rs.SampleFields(
            native, None if group is None else group._native()
        )
        varying = {
            name: tuple(at for at, side in enumerate(shape) if not side)
            for name, _, _, shape in self._native_fields.describe()
        }
        for early in (functions.filter, functions.map_samples):
            if early is not None:
                early[1].varying = varying
        for _, stage in stages:
            stage.varying = varying
        self._configure(
            self._native_fields,
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            threads=threads,
            on_error=on_error,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
            remainder=remainder,
            mix=_checked_mix(mix, self._fields, group),
            functions=functions,
            memory_budget=memory_budget,
            tune=tune,
            monitor=monitor,
        )
        label = _label_of(self._fields)
        self._data_warnings |= dict.fromkeys(_padded_masks(self._fields))
        self._open(
            source,
            label_field=None if label is None else label.stored_as,
            classes=None if label is None else label.classes,
            cache=cache,
            cache_size=cache_size,
            cache_memory=cache_memory,
            max_file_bytes=max_file_bytes,
            sequential=sequential,
            sequential_memory=sequential_memory,
            has_labels=label is not None,
            drops_unlabeled=label is not None and label.missing == "drop",
            file_fields=_file_fields(self._fields, (Image, Audio, Video, Mask, Depth, Array)),
            path_fields=_file_fields(self._fields, (Image, Audio, Video, Array)),
            value_fields=_value_fields(self._fields),
            images=image_folder,
            media=_media_of(self._fields),
        )
        if isinstance(mix, Mix) and label is self._fields.get(mix.label):
            if len(self.classes) > int(mix.classes):
                raise ValueError(
                    f"mix has {mix.classes} classes, but the data set has {len(self.classes)}"
                )

    def _open_data(
        self, data: Any, is_part: bool, shares: _spdl_rs.Samples | None
    ) -> _spdl_rs.Samples:
        samples = super()._open_data(data, is_part, shares)
        found = _checked_box_fields(self._fields, dict(samples.box_fields))
        self._data_warnings |= dict.fromkeys(found)
        return samples

    @property
    def fields(self) -> dict[str, Field]:
        """The fields by name."""
        return dict(self._fields)

    @property
    def spec(self) -> dict[str, FieldSpec]:
        """The shape of a sample, the dtype and the collation of each field. No sample is read.

        It describes the fields before `group`, `map`, `collate` and `batch_map`, whose results `peek` shows.

        >>> from spdl_rs import Loader, fields
        >>> loader = Loader("photos", batch_size=2, image=fields.Image((32, 48)), key=fields.Key())
        >>> loader.spec["image"]
        FieldSpec(shape=(32, 48, 3), dtype='uint8', collate='stack')
        """
        from .fields import FieldSpec
        from .recipes import Mix

        spec: dict[str, FieldSpec] = {}
        for name, collate, dtype, shape in self._native_fields.describe():
            if name in self._fields:
                sides = tuple(side or None for side in shape)
                spec[name] = FieldSpec(sides, dtype, cast(Any, collate))
        mix = self._shown["mix"]
        if isinstance(mix, Mix):
            spec[mix.label] = FieldSpec((int(mix.classes),), "float32", "stack")
        return spec

    def __len__(self) -> int:
        """The number of batches in a full epoch of this rank, if no sample is dropped or filtered out.

        Raises:
            TypeError: The loader has a `group`, so the number depends on the lengths of the samples, or the source is
                an iterable without `__len__`.
        """
        if self._group is not None:
            raise TypeError(
                "the number of batches of a loader with group depends on the lengths or sizes of its samples; "
                "count them in an epoch, or limit the epoch in the training loop"
            )
        return super().__len__()

    def _unknown_steps(self) -> str | None:
        if self._group is not None:
            return f"{type(self._group).__name__} groups samples by their lengths or sizes"
        if self._functions is not None and self._functions.filter is not None:
            return "filter leaves out samples"
        for name, one in self._fields.items():
            if "drop" in (getattr(one, "missing", None), getattr(one, "empty", None)):
                return f"the field {name!r} drops samples"
        return super()._unknown_steps()

    def __bool__(self) -> bool:
        return self._group is not None or super().__bool__()

    def _start(self, epoch: int, state: str | None, is_frozen: bool) -> Batches[Any]:
        samples = self._samples_of(epoch)
        arguments = samples, self._settings, epoch, state, self._functions
        if self._convert is None:
            return Batches(*arguments, is_frozen=is_frozen)
        batches = _Converted(*arguments, is_frozen=is_frozen)
        batches._convert = self._convert
        return batches

    def __repr__(self) -> str:
        rank = f"rank {self._rank} of {self._world_size}, " if self._world_size > 1 else ""
        samples, batches = self._counts()
        functions = {
            name: getattr(one, "__qualname__", None) or repr(one)
            for name, one in self._shown.items()
            if one is not None
        }
        shown = {**{name: repr(one) for name, one in self._fields.items()}, **functions}
        fields = "".join(f"\n  {name}={text}," for name, text in shown.items())
        return (
            f"{self._NAME}({self._samples.kind} {self._samples.place!r}: {samples}, "
            f"{batches} of {self._batch_size}; {rank}epoch={self._epoch};{fields}\n)"
        )


class _Converted(Batches[Any]):
    """Batches that a function converts."""

    _convert: Callable[[dict[str, Any]], Any]

    def __next__(self) -> Any:
        return call("output", self._convert, super().__next__())


def _checked_fields(fields: Any, named: Mapping[str, Any]) -> dict[str, Field]:
    from .fields import Field

    if fields is not None and not isinstance(fields, Mapping):
        raise TypeError(f"fields must be a dict of fields by name, not {check.shown(fields)}")
    repeated = set(fields or ()) & set(named)
    if repeated:
        raise ValueError(f"a field is given twice: {min(repeated)!r}")
    found = {**(fields or {}), **named}
    for name, one in found.items():
        if not isinstance(name, str):
            raise TypeError(f"names of fields must be str, not {check.shown(name)}")
        if not isinstance(one, Field):
            if text := advice("Loader", name):
                raise TypeError(text)
            hint = "; call the class" if isinstance(one, type) and issubclass(one, Field) else ""
            raise TypeError(
                f"{name} must be a field of spdl_rs.fields, such as fields.Text(), or an argument of Loader; "
                f"it is {check.shown(one)}{hint}"
            )
    return found


def _collate_of(one: Field, fields: Mapping[str, Field]) -> str:
    """How samples are collated. Masks and depth maps are collated like their image."""
    from .fields import Depth, Mask

    followed = fields.get(one.like) if isinstance(one, (Mask, Depth)) else None
    return getattr(followed or one, "collate", None) or "stack"


def _native(
    fields: Mapping[str, Field], group: Any
) -> list[tuple[str, tuple[str, dict[str, Any]]]]:
    """Returns names and parameters of the fields for the native module."""
    from .fields import Depth, Mask

    native = []
    for name, one in fields.items():
        kind, settings = one._native()
        if isinstance(one, (Mask, Depth)):
            settings["collate"] = _collate_of(one, fields)
        if _has_one_size(name, fields, group):
            settings["collate"] = "same"
        native.append((name, (kind, settings)))
    return native


def _has_one_size(name: str, fields: Mapping[str, Field], group: Any) -> bool:
    """Whether `SameSize` groups this image, or the image that this mask or depth map follows."""
    from .fields import Depth, Mask
    from .sequences import SameSize

    one = fields[name]
    image = one.like if isinstance(one, (Mask, Depth)) else name
    return isinstance(group, SameSize) and image == group.image


def _checked_group(group: Any, fields: Mapping[str, Field], **functions: Any) -> Any:
    """Checks a grouping. `functions` are those that get samples, by name."""
    if group is None:
        return None
    from .fields import Array, Image, Tokens
    from .io._crops import AspectBuckets
    from .sequences import _ADDED, SameSize, _Grouping

    if isinstance(group, SameSize):
        image = fields.get(group.image)
        if not isinstance(image, Image) or not isinstance(image.crop, AspectBuckets):
            raise ValueError(
                f"group needs an Image with the name {group.image!r} and crop=AspectBuckets(...); the fields are "
                f"{', '.join(fields)}"
            )
        return group
    if not isinstance(group, _Grouping):
        raise TypeError(
            "group must be a class of spdl_rs.sequences, such as Pack(\"tokens\", length=2048), not "
            f"{check.shown(group)}"
        )
    for name in group._names:
        one = fields.get(name)
        shape = one.shape if isinstance(one, Array) else (one.length,) if isinstance(one, Tokens) else ()
        rest = shape[1:] if isinstance(shape, tuple) else ()
        is_valid = isinstance(shape, tuple) and shape[:1] == (None,)
        if not is_valid or (group._packs and None in rest):
            raise ValueError(
                f"group needs Tokens with the name {name!r}, or an Array with the shape None, or (None, …) with fixed "
                f"further dimensions; the fields are {', '.join(fields)}"
            )
    if group._packs:
        for name in _ADDED:
            if name in fields:
                raise ValueError(f"the field {name!r} has the name of an array of {type(group).__name__}")
        for name, given in functions.items():
            if given is not None:
                raise ValueError(
                    f"{name} needs batches of samples, but {type(group).__name__} makes batches of sequences; use "
                    "batch_map, or Bucket"
                )
    return group


def _label_of(fields: Mapping[str, Field]) -> Any:
    from .fields import Label

    labels = [one for one in fields.values() if isinstance(one, Label)]
    if len(labels) > 1:
        raise ValueError("a loader has at most one Label; use Number for other class numbers")
    return labels[0] if labels else None


def _checked_box_fields(fields: Mapping[str, Field], defined: dict[str, str | None]) -> list[str]:
    """Compares fields with the values per box that annotations define, and their formats. Returns warnings."""
    from .fields import Array, Boxes, KeyPoints

    def stored(name: str) -> str | None:
        value = fields[name].stored_as or name
        names = [value] if isinstance(value, str) else [each for each in value if each in defined][:1]
        return names[0] if fields[name].at is None and names and names[0] in defined else None

    boxes = []
    for name, one in fields.items():
        format = defined.get(stored(name) or "")
        if not isinstance(one, Boxes) or format is None:
            continue
        boxes.append(name)
        if (one.format, one.normalized) != (format, False):
            others = (f"stored_as={other!r}" for other, its in defined.items() if its == one.format)
            cure = " or ".join(others) if format == "xyxy" and not one.normalized else ""
            own = "leave out format" if format == "xyxy" else f"pass format={format!r}"
            own += " and normalized" if one.normalized else ""
            raise ValueError(
                f"{name}: the annotations define the boxes {stored(name)!r} as format={format!r} in pixels; {own}"
                + (f", or pass {cure} for format={one.format!r}" if cure else "")
            )
    return [
        f"{name!r} has a value for each box, but keeps the values of boxes that are dropped; pass "
        f"rows_of={boxes[0]!r} to its field"
        for name, one in fields.items()
        if boxes and isinstance(one, (Array, KeyPoints)) and one.rows_of is None and stored(name)
    ]


def _padded_masks(fields: Mapping[str, Field]) -> list[str]:
    """Warnings about masks whose padding gets the number of a class."""
    from .fields import Image, Mask
    from .io._crops import Letterbox, RandomCrop, RandomScaledCrop

    found = []
    for name, one in fields.items():
        image = fields.get(one.like) if isinstance(one, Mask) and one.outside is None else None
        crop = image.crop if isinstance(image, Image) else None
        # Others pad only images that are smaller than the sample, or none.
        pads = isinstance(crop, (Letterbox, RandomScaledCrop)) or (isinstance(crop, RandomCrop) and crop.padding > 0)
        step = type(crop).__name__
        if isinstance(image, Image) and image.zoom_out is not None:
            pads, step = True, "RandomZoomOut"
        if pads:
            found.append(
                f"{name!r}: {step} may pad the image, and the mask has 0 there, which is usually a class; "
                f"pass outside=255 or another number that the loss ignores, or outside=0 to its field"
            )
    return found


def _value_fields(fields: Mapping[str, Field]) -> list[list[str]]:
    """The alternative columns of each field; empty if a field needs the file that a row of a list names."""
    from .fields import Audio, Depth, Image, Label, Mask, Video, _Unstored

    found = []
    for name, one in fields.items():
        if isinstance(one, (Label, _Unstored)):
            continue
        stored = name if one.stored_as is None else one.stored_as
        names = [stored] if isinstance(stored, str) else list(stored)
        if isinstance(one, (Image, Audio, Video, Mask, Depth)) or _is_file(one) or "file" in names:
            return []
        found.append(names)
    return found


def _is_file(one: Field) -> bool:
    """Whether an array is stored as bytes that are no text."""
    from .fields import Array

    return isinstance(one, Array) and (one.member is not None or one.stored_dtype is not None)


def _media_of(fields: Mapping[str, Field]) -> Literal["audio", "video", "array"] | None:
    """What the files of a folder are, if they are not images."""
    from .fields import Array, Audio, Image, Tokens, Video

    def has(*kinds: type[Field]) -> bool:
        return any(isinstance(one, kinds) for one in fields.values())

    if has(Image):
        return None
    if has(Video) or has(Audio):
        return "video" if has(Video) else "audio"
    # A field with a default may be missing in every file.
    arrays = (one for one in fields.values() if isinstance(one, (Array, Tokens)))
    return "array" if any(one.default is None for one in arrays) else None


def _file_fields(fields: Mapping[str, Field], classes: tuple[type[Field], ...]) -> list[str]:
    """The columns of a list that name the files of these fields."""
    from .fields import Array

    names: list[str] = []
    for name, one in fields.items():
        is_file = isinstance(one, classes) and (_is_file(one) or not isinstance(one, Array))
        if is_file and one.at is None:
            stored = name if one.stored_as is None else one.stored_as
            names += [stored] if isinstance(stored, str) else stored
    return names


def _checked_mix(mix: Any, fields: Mapping[str, Field], group: Any) -> CopyPaste | Mix | Mosaic | None:
    from .recipes import CopyPaste, Mix, Mosaic

    if mix is None:
        return None
    if not isinstance(mix, (CopyPaste, Mix, Mosaic)):
        raise TypeError(f"mix must be a CopyPaste, Mix or Mosaic of spdl_rs.recipes, not {check.shown(mix)}")
    image = fields.get(mix.image)
    is_padded = image is not None and _collate_of(image, fields) == "pad"
    if is_padded and not _has_one_size(mix.image, fields, group):
        raise ValueError(f"mix needs images of one size; choose another crop for {mix.image!r}")
    return mix


def _filter(
    function: Any, fields: Mapping[str, Field]
) -> tuple[_spdl_rs.SampleFields, FilterSample] | None:
    """The function that selects samples, and its fields: all without pixels."""
    from .fields import Key

    if function is None:
        return None
    found = [(name, one._stored()) for name, one in fields.items()]
    native = [(name, one) for name, one in found if one is not None]
    return _spdl_rs.SampleFields([*native, (KEYS, Key()._native())]), FilterSample(function)


def _map_samples(
    function: Any, fields: Mapping[str, Field]
) -> tuple[_spdl_rs.SampleFields, MapSample]:
    """The function that replaces values before samples are grouped, and its fields: all without pixels."""
    from .fields import Key, Label, _Unstored

    found = {name: one._stored() for name, one in fields.items()}
    native = [(name, one) for name, one in found.items() if one is not None]
    names = [name for name, _ in native if not isinstance(fields[name], (Label, _Unstored))]
    samples = _spdl_rs.SampleFields([*native, (KEYS, Key()._native())])
    return samples, MapSample(function, names)


def _stages(
    map: Any,
    collate: Any,
    batch_map: Any,
    convert: Callable[[dict[str, Any]], Any] | None,
    lists: set[str],
) -> list[tuple[str, MapSamples | MapBatch]]:
    """The stages of the functions of a loader. The last one yields batches as `output` wants them."""
    stages: list[tuple[str, MapSamples | MapBatch]] = []
    if map is not None:
        # The function gets tensors, but neither tuples nor other classes of batches.
        early = tensors_of if convert in (tensors_of, _tensor_tuple_of) else None
        if collate is not None:
            stages.append(("map", MapSamples(map, early)))
        else:
            mapped = StackSamples(map, early, convert, lists=lists, is_last=batch_map is None)
            stages.append(("map", mapped))
        convert = None
    if collate is not None:
        is_last = batch_map is None
        whole = MapBatch("collate", collate, convert, splits=True, is_last=is_last)
        stages.append(("collate", whole))
        convert = None
    if batch_map is not None:
        stages.append(("batch_map", MapBatch("batch_map", batch_map, convert)))
    return stages


def _placed(
    stages: list[tuple[str, MapSamples | MapBatch]],
    executor: str,
    processes: SupportsIndex | None,
    threads: SupportsIndex | None,
) -> Functions:
    """Where the functions run."""
    check.choice("executor", executor, ("threads", "processes", "inline"))
    if processes is not None:
        processes = check.whole("processes", processes, 1, 2**16)
    if executor == "threads":
        return Functions(None, list(stages))
    if not stages:
        raise ValueError(f"executor={executor!r} requires map, collate or batch_map")
    in_turn = InTurn([function for _, function in stages])
    names = [name for name, _ in stages]
    if executor == "inline":
        return Functions(None, [(name, None) for name in names], inline=in_turn)
    from ._function_processes import FunctionProcesses

    for _, function in stages:
        function.check_picklable()
    if processes is not None:
        count = processes
    elif threads is not None:
        count = check.whole("threads", threads, 1, 2**16)
    else:
        count = _ranks.threads_of(_ranks.found()) or _spdl_rs.Epoch.default_threads()
    whole = FunctionProcesses(in_turn, count)
    forwarding = [(name, None) for name in names[1:]]
    return Functions(None, [(names[0], whole), *forwarding], processes=count)


def converter(
    output: Any, fields: Mapping[str, Field]
) -> Callable[[dict[str, Any]], Any] | None:
    """The function that makes an `output` of a `dict` of arrays; `None` if that is the `dict`."""
    if output == "dict":
        return None
    if output == "tuple":
        return _tuple_of
    if output in ("torch", "torch-tuple"):
        has_uint16 = hasattr(importlib.import_module("torch"), "uint16")
        for name, one in fields.items():
            is_uint16 = getattr(one, "dtype", None) == "uint16" or getattr(one, "layout", "").endswith("-u16")
            if is_uint16 and not has_uint16:
                raise NotImplementedError(
                    f"PyTorch before 2.3 has no uint16, the dtype of {name!r}; use int32 or float32"
                )
        return tensors_of if output == "torch" else _tensor_tuple_of
    if output == "jax":
        importlib.import_module("jax")
        return jax_arrays_of
    if not callable(output):
        raise ValueError(
            'output must be "dict", "tuple", "torch", "torch-tuple", "jax" or a function, not '
            f"{check.shown(output)}"
        )
    # No lambda, because other processes may need the function.
    return functools.partial(_call, output)


def _check_bfloat16(fields: Mapping[str, Field], output: Any) -> None:
    """Raises `NotImplementedError` if NumPy needs the package `ml_dtypes`, and it is not installed."""
    from importlib.util import find_spec

    # `VideoLoader` passes the converter as an argument of its function.
    makes_tensors = output in ("torch", "torch-tuple") or tensors_of in getattr(output, "args", ())
    for name, one in fields.items():
        layout = getattr(one, "layout", "")
        if not layout.endswith("-bf16") or makes_tensors or find_spec("ml_dtypes"):
            continue
        order, _ = layout.split("-")
        raise NotImplementedError(
            f'{name}: layout="{layout}": NumPy has no bfloat16; pass output="torch" to the loader, install the package '
            f'ml_dtypes, or use layout="{order}-f32"'
        )


def _tuple_of(batch: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(batch.values())


def _tensor_tuple_of(batch: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(tensors_of(batch).values())


def _call(output: Callable[..., Any], batch: dict[str, Any]) -> Any:
    return output(**batch)
