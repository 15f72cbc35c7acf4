"""Several data sets as one source of a loader: concatenated, mixed by weights, or a choice of their samples.

`ImageLoader` and `Loader` accept these values as `source`. They are immutable, print as Python, and open nothing: the
loader opens each data set once, even if an expression has it several times.

| function | samples of an epoch |
|---|---|
| `concat(a, b)` | all samples of `a`, then all samples of `b` |
| `mix([a, b], weights=[0.7, 0.3])` | samples of `a` and `b` in these proportions; `until` ends the epoch |
| `Source(a).take(n)`, `.skip(n)` | the first `n` samples; all but the first `n` |
| `Source(a).where(chosen)` | the samples at these positions, or with keys for which a function returns `True` |
| `Source(a).classes("cat", "dog", at_most=500)` | the samples of these classes, and at most 500 of each |
| `Source(a).repeat(n)` | each sample `n` times |
| `curriculum(function)` | those of `function(epoch)` |
| `shuffled(iterable, window=10_000)` | those of an iterable of samples, shuffled within a window |

Concatenations and choices have a fixed order of samples. With `shuffle=True`, the loader shuffles all of them together
in each epoch; if a concatenated data set is of Parquet files, it is shuffled separately, and its samples are spread
over the whole epoch. Ranks, `state_dict()` and `combine_states` work as for one data set: states also depend on the
expression.

The data sets may be of different kinds, in different stores. All arguments of the loader apply to each of them, and
each must have the fields of the loader. If their classes differ, `loader.classes` has those of the first data set,
followed by the further names of the others, and labels are numbers in that list. The argument `classes` sets another
list, which must contain the classes of all data sets. Data sets whose labels are numbers cannot be combined with others
that have class names, unless `classes` names them.

>>> from spdl_rs import ImageLoader
>>> from spdl_rs.sources import Source, concat, mix
>>> cats = Source("photos").classes("cat")
>>> concat(cats.repeat(2), "photos")
concat(Source('photos').classes('cat').repeat(2), 'photos')
>>> loader = ImageLoader(concat(cats.repeat(2), "photos"), batch_size=8, size=32)
>>> images, labels = next(iter(loader))
>>> labels
array([0, 0, 0, 0, 0, 0, 1, 1])
>>> loader.classes
['cat', 'dog']
"""

from __future__ import annotations

import math
import operator
import os
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias

from . import _arguments as check
from ._iterables import Shuffled
from ._locks import ForkSafeLock
from ._secrets import without_secrets

if TYPE_CHECKING:
    from . import _spdl_rs

__all__ = ["Curriculum", "Mixture", "Shuffled", "Source", "concat", "curriculum", "mix", "shuffled"]

AnySource: TypeAlias = "Any"
"""A source of a loader, or one of the values of this module, except a curriculum."""

# Opens a data set. It gets the data set, whether it is part of an expression, and a data set with which it shares its
# cache.
Open: TypeAlias = "Callable[[Any, bool, _spdl_rs.Samples | None], _spdl_rs.Samples]"

_MOST_SHOWN = 8


class Source:
    """A data set, of which samples can be chosen.

    Args:
        data: A source of a loader, such as a path: see `ImageLoader`.

    Each method returns a new source. Positions count from 0, in the order in which a loader without `shuffle` delivers
    the samples. If no sample is left, opening the loader raises `InvalidArgumentError`.

    >>> Source("photos").skip(1).take(2)
    Source('photos').skip(1).take(2)
    """

    __slots__ = ("_data", "_method", "_parts", "_settings")

    def __init__(self, data: Any) -> None:
        if isinstance(data, (Source, Mixture, Curriculum)):
            raise TypeError(f"data must be a data set, such as a path, not {data!r}")
        self._data: Any = data
        self._parts: tuple[Source, ...] = ()
        self._method = ""
        self._settings: dict[str, Any] = {}

    def take(self, samples: SupportsIndex) -> Source:
        """The first samples. Opening the loader raises `InvalidArgumentError` if there are fewer.

        >>> from spdl_rs import ImageLoader
        >>> len(ImageLoader(Source("photos").take(3), batch_size=1))
        3
        """
        return self._chosen("take", take=check.whole("samples", samples, 1, 2**63 - 1))

    def skip(self, samples: SupportsIndex) -> Source:
        """All samples except the first ones.

        >>> from spdl_rs import ImageLoader
        >>> len(ImageLoader(Source("photos").skip(3), batch_size=1))
        1
        """
        return self._chosen("skip", skip=check.whole("samples", samples, 0, 2**63 - 1))

    def where(self, chosen: Iterable[SupportsIndex] | Callable[[str], bool]) -> Source:
        """The samples at some positions, or with some keys.

        Args:
            chosen: Positions, whose order is the order of the samples; a position that occurs twice is a sample that
                occurs twice. Or a function that gets the key of each sample, as `fields.Key` returns it, when the
                loader is opened; the keys of a Python data set are its class and the position, as in `list:17`.

        >>> Source("photos").where([3, 0])
        Source('photos').where([3, 0])
        """
        if callable(chosen):
            return self._chosen("where", where=chosen)
        # Arrays convert their elements faster than `list`.
        convert: Any = getattr(chosen, "tolist", None)
        listed = list(chosen) if convert is None else convert()
        for position in listed[:1]:
            if isinstance(position, bool):
                raise TypeError("chosen must be positions, not bools; pass numpy.flatnonzero(mask)")
        try:
            positions = array("Q", map(operator.index, listed))
        except OverflowError:
            raise ValueError("chosen must be positions, which count from 0") from None
        return self._chosen("where", positions=positions)

    def classes(self, *names: str | SupportsIndex, at_most: SupportsIndex | None = None) -> Source:
        """The samples of some classes.

        `loader.classes` is then `names`, and labels are numbers in this list, unless the loader has the argument
        `classes`. If the data set has class numbers without
        names, `names` are such numbers, and labels do not change. The labels of all samples are read when the loader
        is opened: for tar shards, a read for each sample. Samples without a label are left out.

        Args:
            names: The classes. Default: all classes.
            at_most: The maximum number of samples of a class: the first ones. Default: all samples.

        >>> from spdl_rs import ImageLoader
        >>> loader = ImageLoader(Source("photos").classes("dog"), batch_size=2, size=32)
        >>> loader.classes, next(iter(loader))[1]
        (['dog'], array([0, 0]))
        """
        given = [name if isinstance(name, str) else operator.index(name) for name in names]
        if len(set(given)) < len(given):
            raise ValueError("a class is given twice")
        if at_most is not None:
            at_most = check.whole("at_most", at_most, 1, 2**63 - 1)
        elif not given:
            raise ValueError("classes needs names of classes, or at_most")
        return self._chosen("classes", classes=given, at_most=at_most)

    def repeat(self, times: SupportsIndex) -> Source:
        """Each sample several times in an epoch: pass after pass, or with `shuffle=True`, all passes shuffled together.

        >>> from spdl_rs import ImageLoader
        >>> [labels.tolist() for _, labels in ImageLoader(Source("photos").repeat(2), batch_size=4)]
        [[0, 0, 1, 1], [0, 0, 1, 1]]
        """
        return self._chosen("repeat", times=check.whole("times", times, 1, 2**32))

    def _chosen(self, method: str, **settings: Any) -> Source:
        source = object.__new__(Source)
        source._data, source._parts, source._method = None, (self,), method
        source._settings = settings
        return source

    def _open(self, opened: Opened, before: Any) -> _spdl_rs.Samples:
        if not self._method:
            return opened.data(self._data)
        parts = [opened.samples(part, before) for part in self._parts]
        if self._method == "concat":
            return opened.joined(parts, self, None, None)
        settings = dict(self._settings)
        if (function := settings.pop("where", None)) is not None:
            settings["positions"] = [at for at, key in enumerate(parts[0].keys()) if function(key)]
        if (names := settings.get("classes")) is not None:
            settings["classes"] = [str(name) for name in names]
        return parts[0].chosen(repr(self), **settings)

    def __repr__(self) -> str:
        if not self._method:
            return f"Source({_shown(self._data)})"
        if self._method == "concat":
            return f"concat({', '.join(_shown_part(part) for part in self._parts)})"
        arguments = []
        for name, value in self._settings.items():
            if name == "at_most":
                arguments += [] if value is None else [f"at_most={value}"]
            elif name == "classes":
                arguments += map(repr, value)
            elif name == "positions":
                arguments.append(_shown_positions(value))
            else:
                arguments.append(getattr(value, "__qualname__", None) or repr(value))
        return f"{self._parts[0]!r}.{self._method}({', '.join(arguments)})"


class Mixture:
    """A mixture of data sets, made by `mix`."""

    __slots__ = ("_parts", "_until", "_weights")

    def __init__(
        self, parts: tuple[Source | Mixture, ...], weights: tuple[float, ...], until: str | int
    ) -> None:
        self._parts, self._weights, self._until = parts, weights, until

    def _open(self, opened: Opened, before: Any) -> _spdl_rs.Samples:
        parts = [opened.samples(part, before) for part in self._parts]
        return opened.joined(parts, self, list(self._weights), self._until)

    def __repr__(self) -> str:
        parts = ", ".join(_shown_part(part) for part in self._parts)
        weights = ", ".join(map(repr, self._weights))
        return f"mix([{parts}], weights=[{weights}], until={self._until!r})"


class Curriculum:
    """A source that depends on the epoch, made by `curriculum`."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[int], AnySource]) -> None:
        self._function = function

    def __repr__(self) -> str:
        return f"curriculum({getattr(self._function, '__qualname__', None) or repr(self._function)})"


def concat(*sources: AnySource) -> Source:
    """The samples of several data sets, one data set after the other.

    >>> concat("photos", Source("photos").take(1))
    concat('photos', Source('photos').take(1))
    """
    parts = tuple(_part(source) for source in check.listed("sources", sources, "data sets"))
    if not parts:
        raise ValueError("concat needs at least one source")
    fixed: list[Source] = []
    for part in parts:
        if isinstance(part, Mixture):
            raise TypeError(f"a mixture has no fixed samples to concatenate: {part!r}")
        fixed.append(part)
    source = object.__new__(Source)
    source._data, source._parts, source._method, source._settings = None, tuple(fixed), "concat", {}
    return source


def mix(
    sources: Iterable[AnySource] | Mapping[AnySource, float],
    weights: Iterable[float] | None = None,
    *,
    until: Literal["all_exhausted", "first_exhausted"] | SupportsIndex = "all_exhausted",
) -> Mixture:
    """Samples of several data sets in given proportions.

    Each source keeps its own order, shuffled if the loader shuffles. A source that ends earlier is repeated, each time
    in a new order. After every 1,024 samples, counted over all ranks, the number of samples of each source is exact
    (rounded); the order of the sources in between is random, and depends on the seed and, unless `until` is a number,
    the epoch. Mixtures can be mixed again, but neither concatenated nor shortened.

    Args:
        sources: The sources; or a `dict` with the weight of each.
        weights: A number of 0 or more for each source; the proportions are weight / sum of weights. A source of weight
            0 is opened, but not read. Default: equal weights.
        until: When an epoch ends. `"all_exhausted"`: when each sample of each source has occurred at least once.
            `"first_exhausted"`: when all samples of one source have occurred; no sample occurs twice. A number: after
            this many samples, and the next epoch continues with the next samples of each source.

    >>> from spdl_rs import ImageLoader
    >>> both = mix([Source("photos").take(1), Source("photos").skip(2)], weights=[1, 2])
    >>> both
    mix([Source('photos').take(1), Source('photos').skip(2)], weights=[1.0, 2.0], until='all_exhausted')
    >>> loader = ImageLoader(both, batch_size=3)
    >>> [sorted(labels.tolist()) for images, labels in loader]
    [[0, 1, 1]]
    """
    if isinstance(sources, Mapping):
        if weights is not None:
            raise ValueError("weights are given twice: as values of the dict, and as an argument")
        sources, weights = list(sources), list(sources.values())
    parts = tuple(_part(source) for source in check.listed("sources", sources, "data sets"))
    if not parts:
        raise ValueError("mix needs at least one source")
    given = [1.0] * len(parts) if weights is None else check.listed("weights", weights, "numbers")
    numbers = tuple(float(weight) for weight in given)
    if len(numbers) != len(parts):
        raise ValueError(f"{len(numbers)} weights for {len(parts)} sources; give one per source")
    for weight in numbers:
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"weights must be finite numbers of 0 or more, not {weight!r}")
    if sum(numbers) == 0:
        raise ValueError("at least one weight must be greater than 0")
    if isinstance(until, str):
        check.choice("until", until, ("all_exhausted", "first_exhausted"))
        return Mixture(parts, numbers, until)
    return Mixture(parts, numbers, check.whole("until", until, 1, 2**62))


def curriculum(function: Callable[[int], AnySource]) -> Curriculum:
    """A source that depends on the number of the epoch.

    `function` gets the number of an epoch, from 0, and returns a path, a `Source` or a `Mixture`. It must return the
    same source each time it is called with the same number: a resumed run calls it again. The classes must be the same
    in all epochs: pass `classes` to the loader if the data sets differ. `len(loader)` is that of the epoch that the
    next `iter` starts. Data sets stay open, and are opened when an epoch first uses them. If `until` of a mixture is a
    number and its weights change between epochs, a sample may occur again before all samples of its source have
    occurred.

    >>> from spdl_rs import ImageLoader
    >>> def more_samples(epoch):
    ...     return Source("photos").take(min(2 + epoch, 4))
    >>> loader = ImageLoader(curriculum(more_samples), batch_size=1)
    >>> [len(list(loader)) for _ in range(4)]
    [2, 3, 4, 4]
    """
    check.function("function", function)
    return Curriculum(function)


def shuffled(
    source: Iterable[Any], window: SupportsIndex = 10_000, *, seed: SupportsIndex = 0
) -> Shuffled:
    """Shuffles the items of an iterable of samples within a window, for a loader without `shuffle`.

    The iterable fills a buffer of `window` items. Then each item is drawn at random from the buffer, and the next item
    of the iterable takes its place. The draws depend only on the seed and the epoch, so an epoch resumes exactly, after
    the iterable has been read from its beginning. With ranks, all of them draw the same order.

    Args:
        source: An iterable of samples, or any other iterable.
        window: The number of items in memory, at least 1.
        seed: Determines the order, 0 to 2**64 - 1.

    >>> from spdl_rs import Loader, fields
    >>> samples = ({"number": number} for number in range(6))
    >>> loader = Loader(shuffled(samples, window=4), batch_size=6, number=fields.Number("int64"))
    >>> sorted(next(iter(loader))["number"].tolist())
    [0, 1, 2, 3, 4, 5]
    """
    return Shuffled(source, window, seed)


class Opened:
    """The opened data sets of a loader.

    Args:
        source: The source of the loader.
        has_labels: Whether the loader uses labels.
    """

    def __init__(self, source: Any, has_labels: bool) -> None:
        self._source, self._has_labels = source, has_labels
        # `None` between calls of `at`, because the function refers to the loader, which would be part of a cycle.
        self._open: Open | None = None
        self._data: dict[Any, tuple[Any, _spdl_rs.Samples]] = {}
        # Those of the last epoch, because an expression may have a source several times, and epochs share sources.
        self._made: dict[int, tuple[Source | Mixture, _spdl_rs.Samples]] = {}
        self._last: tuple[int, _spdl_rs.Samples] | None = None
        self._classes: list[str] | None = None
        self._lock = ForkSafeLock()

    def at(self, epoch: int, open: Open) -> _spdl_rs.Samples:
        """Returns the samples of an epoch. `open` opens a data set."""
        with self._lock.held():
            self._open = open
            try:
                return self._at(epoch)
            finally:
                self._open = None

    def _at(self, epoch: int) -> _spdl_rs.Samples:
        last = self._last
        if last is not None and (last[0] == epoch or not isinstance(self._source, Curriculum)):
            return last[1]
        source = self._source
        if isinstance(source, Curriculum):
            source = source._function(epoch)
            if isinstance(source, Curriculum):
                raise TypeError("the function of a curriculum must not return a curriculum")
            source = _part(source)
        before, self._made = self._made, {}
        samples = self.samples(source, before)
        classes = samples.classes
        if self._classes is not None and classes != self._classes:
            raise ValueError(
                f"epoch {epoch} of the curriculum has other classes than epoch 0, so labels would change; pass "
                "the names of all classes as classes of the loader, or of fields.Label"
            )
        self._classes, self._last = classes, (epoch, samples)
        return samples

    def samples(
        self, source: Any, before: dict[int, tuple[Source | Mixture, _spdl_rs.Samples]] | None = None
    ) -> _spdl_rs.Samples:
        """Returns the samples of a source. `before` has those of an earlier epoch."""
        if not isinstance(source, (Source, Mixture)):
            return self.data(source)
        key = id(source)
        made = self._made.get(key) or (before or {}).get(key)
        # The source is kept, so that its `id` stays unique.
        self._made[key] = made or (source, source._open(self, before))
        return self._made[key][1]

    def data(self, data: Any) -> _spdl_rs.Samples:
        """Returns the samples of a data set, opened once."""
        key = os.fsdecode(data) if isinstance(data, (str, bytes, os.PathLike)) else id(data)
        if key not in self._data:
            others = [samples for _, samples in self._data.values()]
            is_part = isinstance(self._source, (Source, Mixture, Curriculum))
            assert self._open is not None
            opened = self._open(data, is_part, others[0] if others else None)
            # The data is kept, so that its `id` stays unique.
            self._data[key] = data, opened
        return self._data[key][1]

    def joined(
        self,
        parts: list[_spdl_rs.Samples],
        source: Source | Mixture,
        weights: list[float] | None,
        until: str | int | None,
    ) -> _spdl_rs.Samples:
        """Returns the samples of several data sets."""
        return type(parts[0]).joined(parts, repr(source), self._has_labels, weights, until)


def _part(source: Any) -> Source | Mixture:
    if isinstance(source, Curriculum):
        raise TypeError("a curriculum cannot be a part of another source")
    return source if isinstance(source, (Source, Mixture)) else Source(source)


def _shown_part(part: Source | Mixture) -> str:
    if isinstance(part, Source) and not part._method:
        return _shown(part._data)
    return repr(part)


def _shown(data: Any) -> str:
    if isinstance(data, (str, bytes, os.PathLike)):
        return without_secrets(repr(os.fsdecode(data)))
    if isinstance(data, (list, tuple)) and 0 < len(data) <= _MOST_SHOWN:
        if all(isinstance(one, (str, bytes, os.PathLike)) for one in data):
            return f"[{', '.join(map(_shown, data))}]"
    return f"<{type(data).__name__}>"


def _shown_positions(positions: array[int]) -> str:
    shown = ", ".join(map(str, positions[:_MOST_SHOWN]))
    more = len(positions) - _MOST_SHOWN
    return f"[{shown}, …]" if more > 0 else f"[{shown}]"
