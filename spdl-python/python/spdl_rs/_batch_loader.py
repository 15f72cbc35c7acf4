"""What all loaders of batches share: epochs, ranks, checkpoint states and statistics."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NoReturn, SupportsIndex, TypeVar

from . import _arguments as check
from . import (
    _functions,
    _items,
    _iterables,
    _loader_state,
    _notebook_page,
    _ranks,
    _spdl_rs,
    _tables,
    sources,
)
from ._arguments import Path
from ._batches import Batches, import_numpy
from ._errors import CudaUnavailable, DatasetWarning, warn_caller
from ._failure_policy import OnError, max_failures
from ._locks import ForkSafeLock
from ._statistics import Statistics

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._tables import Source
    from .recipes import CopyPaste, Mix, Mosaic

# The number of printed warnings is limited, for data sets with many broken links.
_MAX_WARNINGS = 10
B = TypeVar("B")


class BatchLoader(Generic[B]):
    """Base class of `ImageLoader` and `Loader`."""

    _NAME: ClassVar[str]
    _SAMPLES: ClassVar[str] = "samples"

    def _configure(
        self,
        content: _spdl_rs.ImageDecoder | _spdl_rs.SampleFields,
        *,
        batch_size: SupportsIndex,
        seed: SupportsIndex,
        shuffle: bool,
        threads: SupportsIndex | None,
        on_error: OnError,
        drop_last: bool,
        rank: SupportsIndex | Literal["auto"] | None,
        world_size: SupportsIndex | None,
        remainder: str,
        device: _spdl_rs.CudaDevice | None = None,
        decode_with: list[str] | None = None,
        mix: CopyPaste | Mix | Mosaic | None = None,
        functions: _functions.Functions | None = None,
        memory_budget: SupportsIndex | None = None,
        tune: bool | Path | None = None,
        monitor: Path | None = None,
    ) -> None:
        """Checks the arguments that do not depend on the data."""
        check.choice("remainder", remainder, ("drop", "pad", "uneven"))
        self._batch_size = check.whole("batch_size", batch_size, 1, 2**63 - 1)
        self._drop_last = check.flag("drop_last", drop_last)
        self._shuffle = check.flag("shuffle", shuffle)
        self._rank, self._world_size = _ranks.chosen(rank, world_size)
        # Warnings about the fields of data sets, without duplicates.
        self._data_warnings: dict[str, None] = {}
        self._overlooked = _ranks.overlooked(rank, world_size)
        if tune is None and threads is not None:
            # The caller has chosen the number.
            tune = False
        if threads is None:
            threads = _ranks.threads_of(_ranks.found())
        # Python attributes, so that the garbage collector finds cycles through the functions.
        self._functions = functions
        self._device, self._home = device, os.getpid()
        self._settings = _spdl_rs.Settings(
            content,
            batch_size=self._batch_size,
            seed=check.whole("seed", seed, 0, 2**64 - 1),
            shuffle=self._shuffle,
            threads=None if threads is None else check.whole("threads", threads, 1, 2**16),
            max_failures=max_failures(on_error),
            drop_last=self._drop_last,
            rank=self._rank,
            world_size=self._world_size,
            remainder=remainder,
            device=device,
            decode_with=decode_with,
            mix=None if mix is None else mix._native(),
            memory_budget=None
            if memory_budget is None
            else check.whole("memory_budget", memory_budget, 1, 2**63 - 1),
            tune=tune if tune is None else check.tune(tune),
            monitor=None if monitor is None else os.fsdecode(monitor),
        )

    def _open(
        self,
        source: Source,
        *,
        labels: Iterable[SupportsIndex] | None = None,
        image_field: str | None = None,
        label_field: str | None,
        classes: Iterable[str] | None,
        cache: Path | None,
        cache_size: SupportsIndex,
        cache_memory: SupportsIndex,
        max_file_bytes: SupportsIndex,
        sequential: bool,
        sequential_memory: SupportsIndex,
        has_labels: bool = True,
        drops_unlabeled: bool = False,
        file_fields: Sequence[str] = (),
        path_fields: Sequence[str] = (),
        value_fields: Sequence[Sequence[str]] = (),
        images: Path | None = None,
        media: Literal["audio", "video", "array"] | None = None,
    ) -> None:
        """Opens the data set. Issues its warnings to the caller of the constructor."""
        part_bytes = check.whole("sequential_memory", sequential_memory, 64 * 2**20, 2**63 - 1)
        self._open_arguments: dict[str, Any] = dict(
            labels=check.labels_of(labels),
            image_field=check.text_or_none("image_field", image_field),
            label_field=check.text_or_none("label_field", label_field),
            classes=check.names("classes", classes),
            cache=None if cache is None else os.fsdecode(cache),
            cache_size=check.whole("cache_size", cache_size, 1, 2**63 - 1),
            cache_memory=check.whole("cache_memory", cache_memory, 0, 2**63 - 1),
            max_file_bytes=check.whole("max_file_bytes", max_file_bytes, 1, 2**63 - 1),
            sequential=part_bytes if check.flag("sequential", sequential) else None,
            has_labels=has_labels,
            drops_unlabeled=drops_unlabeled,
            file_fields=list(file_fields),
            path_fields=list(path_fields),
            value_fields=[list(names) for names in value_fields],
            images=None if images is None else os.fsdecode(images),
            media=media,
        )
        self._opened = sources.Opened(source, has_labels)
        self._epoch = 0
        self._samples.check(self._settings)
        self._monitor = _spdl_rs.Monitor()
        # Protects the attributes below: threads may share the loader.
        self._lock = ForkSafeLock()
        # The state from which the next epoch resumes; `None` if it starts from the beginning.
        self._resume: str | None = None
        # The state that was loaded last, and its epoch. Its epoch is divided into steps from there on.
        self._loaded: tuple[int, str] | None = None
        # Whether `state_dict` describes the epoch that was started last.
        self._began = False
        import_numpy()
        self._warn()

    def _open_data(
        self, data: Any, is_part: bool, shares: _spdl_rs.Samples | None
    ) -> _spdl_rs.Samples:
        """Opens a data set of the source."""
        table = _tables.table_of(data)
        iterations = None
        items = None if table is not None else _items.items_of(data)
        if table is None and items is None:
            iterations, data = _iterables.iterations_of(data)
        if iterations is not None and is_part:
            raise TypeError(
                f"{iterations.name} is an iterable of samples, which have no positions to choose, concatenate or mix; "
                "pass it as the source of the loader, and choose samples in the iterable itself"
            )
        if table is not None or items is not None or iterations is not None:
            places, is_list = [], False
        else:
            places, is_list = check.addresses(data)
        arguments = self._open_arguments
        # Only one data set can have labels.
        labels = arguments.pop("labels", None)
        if labels is not None and (is_part or not is_list):
            raise ValueError(
                "labels can be set only for a list of paths; the labels of a data set come from its "
                "folders or from its samples"
            )
        first = 0
        if items is not None:
            # Also a Python attribute, so that the garbage collector finds cycles.
            functions = self._functions or _functions.Functions(None, [])
            get_item, first = _items.added(functions.get_item, items)
            self._functions = functions._replace(get_item=get_item)
        if iterations is not None:
            functions = self._functions or _functions.Functions(None, [])
            self._functions = functions._replace(iterate=iterations)
        return _spdl_rs.Samples.open(
            places,
            is_list=is_list,
            table=table,
            items=None if items is None else (items.name, items.len, first),
            iterable=None if iterations is None else (iterations.name, iterations.len),
            labels=labels,
            is_part=is_part,
            shares=shares,
            **arguments,
        )

    @property
    def _samples(self) -> _spdl_rs.Samples:
        """The samples of the epoch that the next `iter` starts."""
        return self._samples_of(self._epoch)

    def _samples_of(self, epoch: int) -> _spdl_rs.Samples:
        return self._opened.at(epoch, self._open_data)

    def _start(self, epoch: int, state: str | None, is_frozen: bool) -> Batches[B]:
        """Starts an epoch. `freeze` writes the settings of the last one with `is_frozen`."""
        raise NotImplementedError

    def _start_here(self, epoch: int, state: str | None, *, is_frozen: bool) -> Batches[B]:
        """Starts an epoch, if this process can."""
        if self._device is not None and os.getpid() != self._home:
            raise CudaUnavailable(
                "CUDA cannot be used in a forked child of a process that uses CUDA: start the child "
                'with the method "spawn"',
                kind="unsupported",
            )
        return self._start(epoch, state, is_frozen)

    def _warn(self) -> None:
        if self._overlooked is not None:
            warn_caller(self._overlooked, DatasetWarning)
        found = [*self._data_warnings, *self._samples.warnings]
        for warning in found[:_MAX_WARNINGS]:
            warn_caller(warning, DatasetWarning)
        if len(found) > _MAX_WARNINGS:
            more = len(found) - _MAX_WARNINGS
            warn_caller(f"number of warnings not shown: {more}", DatasetWarning)
        if not self:
            warn_caller(self._no_batch(), DatasetWarning)

    def _no_batch(self) -> str:
        """Explains why an epoch has no batch, and what to change."""
        samples, what = self._samples.epoch_len or 0, self._SAMPLES
        of_rank = self._settings.samples_of_rank(samples)
        ranks = f"of rank {self._rank} of {self._world_size}"
        if of_rank == 0:
            return (
                f"an epoch {ranks} has no batch: the data set has only {samples} {what}; set "
                f'world_size to {samples} or less, or remainder to "pad"'
            )
        whose = f" {ranks}" if self._world_size > 1 else ""
        return (
            f"an epoch{whose} has no batch: drop_last leaves out incomplete batches, and {of_rank} of "
            f"{samples} {what} do not fill a batch; set batch_size to {of_rank} or less instead of "
            f"{self._batch_size}, or drop_last to False"
        )

    def __iter__(self) -> Batches[B]:
        """Starts the epoch `self.epoch`, or resumes this epoch after `load_state_dict`, and
        increments `self.epoch`."""
        with self._lock.held():
            batches = self._start_here(self._epoch, self._resume, is_frozen=True)
            # Assigned in one statement, so that Ctrl-C leaves either the old state or the state of this epoch.
            self._monitor, self._resume, self._began = batches._monitor, None, True
            self._epoch = batches._number + 1
        return batches

    def __getitem__(self, index: Any) -> NoReturn:
        # Without this method, PyTorch's `DataLoader` of a loader reports only that it is not subscriptable.
        raise TypeError(
            f"{_loader_state.with_article(self._NAME)} has no positions: iterate over the loader itself, in place of "
            "a DataLoader of PyTorch; if a library needs a DataLoader, pass "
            "DataLoader(spdl_rs.torch.as_iterable_dataset(loader), batch_size=None)"
        )

    def peek(self) -> B:
        """Returns the batch that the next `iter(loader)` begins with, without using up an epoch.

        The batch is read for this call only, and so is the next one: if a sample of the first batch fails, the epoch
        ends after an incomplete batch.

        Raises:
            ValueError: The epoch has no batch.
            TypeError: The source is an iterator, such as a generator, whose samples would be used up.
            Exception: The epoch ends with an exception within its first two batches.

        >>> loader = ImageLoader("photos", batch_size=3, size=32)
        >>> images, labels = loader.peek()
        >>> images.shape, loader.epoch
        ((3, 32, 32, 3), 0)
        """
        with self._lock.held():
            epoch, resume = self._epoch, self._resume
        iterate = None if self._functions is None else self._functions.iterate
        if isinstance(iterate, _iterables.Iterations) and iterate.is_once:
            raise TypeError(
                f"peek would use up {iterate.name}, which can be iterated only once; pass an object whose __iter__ "
                "starts from the beginning"
            )
        with self._start_here(epoch, resume, is_frozen=False) as batches:
            for batch in batches:
                # Raises the exception because of which this batch may lack samples.
                next(batches, None)
                return batch
        raise ValueError(f"epoch {epoch} has no batch left")

    def __len__(self) -> int:
        """The number of batches in a full epoch of this rank, if no sample is dropped or filtered out.

        Raises:
            TypeError: The source is an iterable without `__len__`.
        """
        samples = self._samples.epoch_len
        if samples is None:
            raise TypeError(
                f"the number of batches is unknown, because the iterable {self._samples.place} has no __len__"
            )
        full, rest = divmod(self._settings.samples_of_rank(samples), self._batch_size)
        return full + (rest > 0 and not self._drop_last)

    def __bool__(self) -> bool:
        return self._samples.epoch_len is None or len(self) > 0

    def _counts(self) -> tuple[str, str]:
        """The numbers of samples and of batches, as far as they are known, for `repr`."""
        samples = self._samples.epoch_len
        if samples is None:
            return self._SAMPLES, "batches"
        try:
            batches = f"{len(self)} batches"
        except TypeError:
            # The number depends on the samples.
            batches = "batches"
        window = self._samples.shuffle_window if self._shuffle else None
        within = "" if window is None else f" shuffled in windows of {window}"
        return f"{samples} {self._SAMPLES}{within}", batches

    def _repr_html_(self) -> str:
        rate = _notebook_page.rates(*self._monitor.pace)
        return _notebook_page.page(repr(self), self.stats(), rate, items=self._SAMPLES)

    def __copy__(self) -> Self:
        # The copy counts its epochs separately.
        again = object.__new__(type(self))
        vars(again).update({**vars(self), "_lock": ForkSafeLock()})
        return again

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"{_loader_state.with_article(self._NAME)} cannot be pickled, because it holds open files and "
            "connections; pickle its arguments and its state_dict(), create another loader and load the state"
        )

    @property
    def classes(self) -> list[str]:
        """The names of the classes. Labels that are class names become indices into this list.

        The list is empty for a list of paths, for a folder without subfolders, and if labels are integers and
        no `classes` are given.

        Bytes of names that are not valid UTF-8 appear as `\\xff`.
        """
        return self._samples.classes

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
                self._resume = self._loaded = None
            self._epoch, self._began = epoch, False

    def state_dict(self) -> dict[str, Any]:
        """Returns the checkpoint state of the epoch that was started last, after its delivered batches.

        After `set_epoch` or `load_state_dict`, `state_dict` returns the state from which the next
        `iter(loader)` starts. The state is a plain `dict` that can be pickled or written as JSON. The state
        takes about a kilobyte and contains neither samples nor names. `state_dict` can be called at any
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
            return _loader_state.to_dict(self._NAME, monitor.state())
        position = _spdl_rs.Epoch.position(
            self._samples_of(epoch), self._settings, epoch, resume, self._functions
        )
        return _loader_state.to_dict(self._NAME, position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next `iter(loader)` resume from a state, in this process or another process.

        The iterator delivers the remaining batches of the epoch, with identical bytes if the host decodes
        (`decode="host"`). If no batch remains, the iterator is empty, and the following iterator starts the
        next epoch.

        The data and the arguments must be the same, except `threads`, `on_error`, `memory_budget`, `tune`, `monitor`,
        `device`, `allocator`, the cache, and, of `Loader`, `executor` and `processes`. For a result of
        `combine_states`, `rank` and `world_size` may differ too. `output` of `Loader` is not compared: it may differ
        if the functions accept what they then get. Existing iterators are not affected.

        Args:
            state: A result of `state_dict` of the same rank, or a result of `combine_states`, which all
                ranks load.

        Raises:
            InvalidArgumentError: The state belongs to other data, arguments or another rank. The loader
                is unchanged.
            ValueError: `state` is not a state of this class.
            TypeError: `state` is not a `dict`.

        >>> loader = ImageLoader("photos", batch_size=3, size=32)
        >>> for images, labels in loader:
        ...     state = loader.state_dict()
        ...     break
        >>> loader.load_state_dict(state)
        >>> [labels.tolist() for images, labels in loader]
        [[1]]
        """
        text = _loader_state.to_text(self._NAME, state)
        epoch = state.get("epoch")
        if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 0:
            # `Epoch.position` refuses the state.
            epoch = self._epoch
        samples = self._samples_of(epoch)
        position = _spdl_rs.Epoch.position(
            samples, self._settings, self._epoch, text, self._functions
        )
        epoch = json.loads(position)["epoch"]
        with self._lock.held():
            # Assigned in one statement, so that Ctrl-C leaves either the old state or the new one.
            self._epoch, self._resume, self._began, self._loaded = epoch, position, False, (epoch, position)

    def state_at(self, epoch: SupportsIndex, step: SupportsIndex) -> dict[str, Any]:
        """Returns the checkpoint state after the first `step` batches of an epoch, without reading a sample.

        If a state of this epoch was loaded, such as one of `combine_states`, the steps of its epoch continue at its
        `steps_in_epoch`. The loader is unchanged.

        Raises:
            ValueError: The epoch has fewer batches (if the source has a known length), the batches precede a loaded
                state, or the samples of a batch are known only after a run: with `group`, `filter`, `on_error="skip"`,
                or a field with `missing="drop"`.

        >>> loader = ImageLoader("photos", batch_size=1, size=32)
        >>> batches = iter(loader)
        >>> images, labels = next(batches)
        >>> loader.state_at(0, 1) == loader.state_dict()
        True
        """
        epoch = check.whole("epoch", epoch, 0, 2**63)
        step = check.whole("step", step, 0, 2**63)
        return _loader_state.to_dict(self._NAME, self._at_steps(epoch, step))

    def steps(self, epoch: SupportsIndex, start: SupportsIndex, stop: SupportsIndex) -> Batches[B]:
        """Iterates over the batches from `start` to before `stop` of an epoch.

        Other samples are not decoded. With `sequential=True`, whole parts of files are read, and an iterable without
        `iterate_from` is iterated from its beginning. The batches have the same bytes as in the whole epoch, on each
        machine with the same data and arguments. The loader is unchanged: `epoch`, `state_dict` and `stats` do not
        depend on these batches, and iterators over several steps may run at the same time. The iterator's `state_dict`
        resumes the rest of these batches, not of the epoch. See `state_at` for the steps after a loaded state.

        Raises:
            ValueError: As for `state_at`. Or the number of samples is unknown, because the source is an iterable
                without `__len__`.

        >>> loader = ImageLoader("photos", batch_size=1, size=32)
        >>> labels_of_epoch = [int(labels[0]) for images, labels in loader]
        >>> [int(labels[0]) for images, labels in loader.steps(0, 1, 3)] == labels_of_epoch[1:3]
        True
        """
        epoch = check.whole("epoch", epoch, 0, 2**63)
        start = check.whole("start", start, 0, 2**63)
        stop = check.whole("stop", stop, start, 2**63)
        return self._start_here(epoch, self._at_steps(epoch, start, stop), is_frozen=False)

    def _at_steps(self, epoch: int, start: int, stop: int | None = None) -> str:
        reason = self._unknown_steps()
        if reason is not None:
            raise ValueError(f"the samples of a batch are known only after a run, because {reason}")
        with self._lock.held():
            loaded = self._loaded
        state = None if loaded is None or loaded[0] != epoch else loaded[1]
        return _spdl_rs.Epoch.at_steps(
            self._samples_of(epoch), self._settings, epoch, (start, stop), state, self._functions
        )

    def _unknown_steps(self) -> str | None:
        """Why the samples of a batch depend on earlier samples; `None` if they do not."""
        if self._settings.drops_failed:
            return "on_error drops samples that cannot be read; pass on_error=\"raise\""
        return None

    @classmethod
    def combine_states(
        cls, states: Iterable[Mapping[str, Any]], *, repeat_parts: bool = False
    ) -> dict[str, Any]:
        """Combines the states of all ranks into one state that another number of ranks can load.

        Each new rank loads the combined state. Together the ranks deliver the remaining samples of
        the epoch. With `remainder="uneven"`, each sample is delivered once; `"drop"` leaves out up to one sample
        less than there are ranks, and `"pad"` repeats so many. `batch_size`, the number of samples in a batch of a
        rank, must be the same as before.

        The state of each rank is required once, in any order. All states must be in the same epoch or at
        its end, but the ranks may have delivered different numbers of batches. The assignment of samples
        to ranks and batches is new.

        Args:
            repeat_parts: With `sequences.ConcatAndSplit`, a sample may be delivered in part. Another number of ranks
                divides samples differently, so such a state is an error, unless `repeat_parts` is set: then samples
                of which a part was delivered are delivered again as a whole.

        Raises:
            InvalidArgumentError: The state of a rank is missing or repeated, or the states belong to
                different runs or to epochs that are too far apart. Or a sample was delivered in part.
            ValueError, TypeError: An element is not a state of this class.

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
        return _loader_state.combined(cls._NAME, states, repeat_parts)

    def diagnose(self) -> str:
        """Describes what limits the throughput of the epoch that was started last, and how much a change would gain.

        For example: more requests in flight, more CPUs, or nothing, because your loop is the bottleneck. The text
        is `stats()["diagnosis"]`, at most three sentences; `stats()["bottleneck"]` contains the same as data. Gains are
        predicted from the fourth batch on.

        >>> loader = ImageLoader("photos", batch_size=4, size=32)
        >>> batches = list(loader)
        >>> loader.diagnose() == loader.stats()["diagnosis"]
        True
        """
        return self.stats()["diagnosis"]

    def freeze(self, path: Path) -> None:
        """Writes the settings of the epoch that was started last as a JSON file, which the argument `tune` reads.

        The file has the number of threads, the concurrency of the stages and the capacities of the queues: as tuned
        with `tune=True`, or by default. `peek` and `steps` start no epoch.

        Raises:
            ValueError: No epoch was started.
            OSError: The file cannot be written.

        >>> loader = ImageLoader("photos", batch_size=4, size=32, tune=True)
        >>> batches = list(loader)
        >>> loader.freeze("settings.json")
        >>> len(list(ImageLoader("photos", batch_size=4, size=32, tune="settings.json")))
        1
        """
        self._settings.freeze(os.fsdecode(path))

    def stats(self) -> Statistics:
        """Returns the statistics of the epoch that was started last: timings, throughput, dropped samples.

        Before the first epoch all counts and times are 0, and all lists are empty. Raises `RuntimeError` in
        a forked child of the process that runs the epoch, as `next` does.

        >>> loader = ImageLoader("photos", batch_size=4, size=32)
        >>> batches = list(loader)
        >>> [(stage["name"], stage["items"]) for stage in loader.stats()["stages"]]
        [('source', 4), ('fetch', 4), ('decode', 4)]
        """
        return self._monitor.statistics()
