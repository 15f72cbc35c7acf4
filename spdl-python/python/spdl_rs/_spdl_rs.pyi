"""The native module. Private: use `spdl_rs` instead."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Literal, NoReturn, TypeVar, final

from typing_extensions import Self, disjoint_base

from ._functions import Functions
from ._statistics import Dropped, Interval, Statistics
from .cuda import MemoryStatistics

_T = TypeVar("_T")

__version__: str

@final
class Array:
    """An array in host memory. `Array(shape, dtype)` contains zeros.

    `dtype` is `"uint8"`, `"uint16"`, `"int16"`, `"int32"`, `"int64"`, `"float16"`, `"bfloat16"`, `"float32"` or
    `"float64"`. The array is C-contiguous, writable and aligned to 64 bytes.

    `numpy.asarray`, `spdl_rs.io.to_torch` and DLPack consumers use the memory without a copy, and
    keep the memory alive. After the last array that uses the memory is deleted, the memory returns to its
    pool.
    """

    def __new__(cls, shape: tuple[int, ...] | list[int], dtype: str) -> Array: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

@final
class CudaDevice:
    """An open CUDA device, closed after the last object (for example a batch) that uses the device."""

    @staticmethod
    def choose(
        request: str,
        packages: list[str],
        allocator: tuple[Callable[[int, int, int], int], Callable[[int], object]] | None = None,
    ) -> tuple[CudaDevice | None, str | None, bool]: ...
    @staticmethod
    def status(packages: list[str]) -> list[tuple[str, bool, str, str]]: ...
    @staticmethod
    def count() -> int: ...
    @staticmethod
    def fallbacks() -> int: ...
    @property
    def ordinal(self) -> int: ...
    def name(self) -> str: ...
    def decoders(self, packages: list[str]) -> DeviceDecoders: ...
    def pinned(self, nbytes: int) -> Array: ...
    def wait_for_event(self, event: int) -> None: ...
    def statistics(self) -> MemoryStatistics: ...

@final
class DeviceMemory:
    """Bytes on a device. The upload may be in progress."""

    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def ordinal(self) -> int: ...
    def is_of(self, device: CudaDevice) -> bool: ...
    def device(self) -> CudaDevice: ...
    def is_ready(self) -> bool: ...
    def wait(self) -> None: ...
    def wait_on(self, stream: int | None) -> None: ...
    def record_stream(self, stream: int | None) -> None: ...
    def download(
        self, offset: int, nbytes: int, stream: int | None, event: int | None = None
    ) -> Array: ...
    def dlpack(
        self, offset: int, shape: tuple[int, ...], dtype: tuple[int, int], versioned: bool
    ) -> object: ...

@final
class DeviceDecoders:
    """The decoders of a device, kept as long as the device is open."""

    def __new__(cls, device: CudaDevice, packages: list[str]) -> DeviceDecoders: ...
    def jpegs(
        self,
        encoded: Sequence[Any],
        names: Sequence[str],
        size: tuple[int, int] | None,
        pix_fmt: str,
    ) -> tuple[DeviceMemory, list[int]]: ...
    def nv12(
        self,
        memory: DeviceMemory,
        offset: int,
        frames: tuple[int, int, int],
        is_wide: bool,
        color: tuple[int, bool],
        pix_fmt: str,
        stream: int,
    ) -> tuple[DeviceMemory, list[int]]: ...
    def video_statistics(self) -> list[int]: ...

@final
class VideoDecoder:
    """A video decoder on a device. Calls from several threads are serialised."""

    def __new__(cls, decoders: DeviceDecoders, codec: str, use_cache: bool) -> VideoDecoder: ...
    @staticmethod
    def codec_of_ivf(data: Any) -> str | None: ...
    def push(
        self, packet: Any, timestamp: int | None, window: tuple[int, int] | None = None
    ) -> int: ...
    def cut(self, data: Any) -> list[tuple[int, int, int | None]]: ...
    def finish(self) -> int: ...
    def forget(self) -> None: ...
    def take(
        self, most: int, wanted: tuple[str, tuple[int, int, int, int], tuple[int, int] | None]
    ) -> tuple[DeviceMemory, list[int], bool] | None: ...

@disjoint_base
class PlacedArray:
    """An array in device memory: the memory, a byte offset, a shape and a dtype.

    Created without running Python code, so that no signal handler runs between counting a batch as
    delivered and returning it.
    """

    def __new__(
        cls, memory: DeviceMemory, shape: tuple[int, ...], dtype: str, offset: int = 0
    ) -> Self: ...
    @property
    def _memory(self) -> DeviceMemory: ...
    @property
    def _shape(self) -> tuple[int, ...]: ...
    @property
    def _dtype(self) -> str: ...
    @property
    def _offset(self) -> int: ...

@final
class Staging:
    """Pinned bytes that NumPy writes before an upload. No NumPy view of the bytes may exist during the
    upload."""

    def __new__(cls, device: CudaDevice, nbytes: int) -> Staging: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def upload(self) -> DeviceMemory: ...

@final
class Reader:
    """Reads whole files and objects."""

    def __new__(cls, max_bytes: int) -> Reader: ...
    def read(self, path: Any) -> Array: ...

@final
class Draws:
    """The random numbers of one item in one stage. Can be used once."""

    def __new__(cls, seed: int, epoch: int, index: int, stage: str) -> Draws: ...
    @staticmethod
    def of_item(seed: int, stage: str) -> tuple[Draws, str, int, int] | None: ...

@final
class ImageDecoder:
    """Decodes encoded images to samples.

    `settings` are parameters of `spdl_rs.fields.Image`; those that are missing or `None` have their defaults.
    """

    def __new__(cls, settings: dict[str, Any], seed: int) -> ImageDecoder: ...
    def decode(self, data: Any, draws: Draws) -> Array: ...

@final
class FieldDecoder:
    """Decodes files to the values of a field of `spdl_rs.fields`: the name of its class, and its parameters."""

    def __new__(cls, field: tuple[str, dict[str, Any]], seed: int) -> FieldDecoder: ...
    def decode(self, data: Any, draws: Draws) -> Array: ...

@final
class ImageAugmenter:
    """A sequence of augmentations."""

    def __new__(
        cls, augmentations: list[tuple[str, dict[str, Any]]], seed: int
    ) -> ImageAugmenter: ...
    def apply(self, data: Any, draws: Draws) -> Array: ...

def ffmpeg_versions() -> list[tuple[str, tuple[int, int, int]]]: ...
def ffmpeg_filters() -> list[str]: ...
def ffmpeg_log_level() -> int: ...
def set_ffmpeg_log_level(level: int) -> None: ...

# The names below are missing if the module was built without FFmpeg.

@final
class MediaCodec:
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def time_base(self) -> tuple[int, int]: ...
    @property
    def frame_rate(self) -> tuple[int, int]: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def pix_fmt(self) -> str: ...
    @property
    def sample_aspect_ratio(self) -> tuple[int, int]: ...
    @property
    def color_numbers(self) -> list[int]: ...
    @property
    def sample_rate(self) -> int: ...
    @property
    def num_channels(self) -> int: ...
    @property
    def sample_fmt(self) -> str: ...
    @property
    def channel_layout(self) -> str: ...

@final
class MediaPackets:
    @staticmethod
    def from_bytes(data: Any) -> MediaPackets: ...
    def to_bytes(self) -> bytes: ...
    @property
    def kind(self) -> str: ...
    @property
    def codec(self) -> MediaCodec | None: ...
    @property
    def window(self) -> tuple[float, float] | None: ...
    def window_stamps(self) -> tuple[int, int] | None: ...
    def __len__(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    def packet_times(self) -> list[float]: ...
    def payloads(self) -> list[tuple[bytes, int | None]]: ...
    def frame_times(self) -> list[float]: ...
    def slice(self, window: tuple[int, int, int, int]) -> MediaPackets: ...
    def share(self) -> MediaPackets: ...

@final
class MediaFrames:
    @staticmethod
    def of_pictures(
        data: Any,
        shape: Sequence[int],
        dtype: str,
        pix_fmt: str,
        frame_rate: tuple[int, int],
        pts: int,
    ) -> MediaFrames: ...
    @staticmethod
    def of_samples(
        data: Any,
        shape: Sequence[int],
        dtype: str,
        sample_fmt: str,
        sample_rate: int,
        pts: int,
    ) -> MediaFrames: ...
    @staticmethod
    def to_array(frames: Sequence[MediaFrames], is_list: bool) -> Array: ...
    @property
    def kind(self) -> str: ...
    def __len__(self) -> int: ...
    @property
    def num_samples(self) -> int: ...
    @property
    def num_planes(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def color_numbers(self) -> list[int]: ...
    @property
    def is_full_range(self) -> bool | None: ...
    @property
    def format(self) -> str: ...
    @property
    def sample_rate(self) -> int: ...
    @property
    def num_channels(self) -> int: ...
    @property
    def time_base(self) -> tuple[int, int]: ...
    def timestamps(self) -> list[int]: ...
    def times(self) -> list[float]: ...
    def metadata(self) -> list[tuple[str, str]]: ...
    def pick(self, positions: Sequence[int]) -> MediaFrames: ...
    def image(self, position: int) -> MediaFrames: ...
    def joined(self, others: MediaFrames) -> MediaFrames: ...
    def share(self) -> MediaFrames: ...

@final
class MediaDemuxer:
    def __new__(
        cls,
        source: Any,
        name: str | None,
        *,
        format: str | None,
        options: Sequence[tuple[str, str]],
        buffer_size: int,
    ) -> MediaDemuxer: ...
    @property
    def format(self) -> str: ...
    def seconds(self, kind: str) -> float | None: ...
    def has_audio(self) -> bool: ...
    def stream_index(self, kind: str) -> int: ...
    def codec(self, kind: str) -> MediaCodec: ...
    def demux(
        self, kind: str, window: tuple[int, int, int, int] | None, bsf: str | None
    ) -> MediaPackets: ...
    def read_some(
        self, streams: set[int], num_packets: int, duration: float
    ) -> dict[int, MediaPackets]: ...
    def close(self) -> None: ...

@final
class MediaBitStreamFilter:
    def __new__(cls, codec: MediaCodec, description: str) -> MediaBitStreamFilter: ...
    def filter(self, packets: MediaPackets | None, flush: bool) -> MediaPackets: ...

def decode_media_packets(
    packets: MediaPackets,
    *,
    filters: str | None,
    decoder: str | None,
    options: Sequence[tuple[str, str]],
    num_frames: int | None,
) -> tuple[MediaFrames, int, str | None]: ...
def decode_media_frames(
    packets: MediaPackets,
    indices: Sequence[int],
    *,
    filters: str | None,
    decoder: str | None,
    options: Sequence[tuple[str, str]],
) -> MediaFrames: ...

@final
class MediaDecoder:
    def __new__(
        cls,
        codec: MediaCodec,
        *,
        filters: str | None,
        decoder: str | None,
        options: Sequence[tuple[str, str]],
    ) -> MediaDecoder: ...
    def decode(self, packets: MediaPackets | None) -> MediaFrames: ...
    def failures(self) -> tuple[int, str | None]: ...

@final
class MediaFilterGraph:
    def __new__(cls, description: str) -> MediaFilterGraph: ...
    def add(self, frames: MediaFrames, name: str | None) -> None: ...
    def finish(self) -> None: ...
    def take(self, name: str | None) -> MediaFrames: ...
    def drawing(self) -> str: ...

@final
class MediaMuxer:
    def __new__(cls, path: str, format: str | None) -> MediaMuxer: ...
    def add_audio(
        self,
        channels: tuple[int, int],
        sample_fmt: str | None,
        rates: tuple[int | None, int | None, int | None],
        encoder: str | None,
        options: Sequence[tuple[str, str]],
    ) -> MediaEncoder: ...
    def add_video(
        self,
        size: tuple[int, int],
        frame_rate: tuple[int, int],
        pix_fmt: str | None,
        rates: tuple[int | None, int | None, int | None],
        groups: tuple[int | None, int | None],
        colors: tuple[str | None, str | None, str | None],
        encoder: str | None,
        options: Sequence[tuple[str, str]],
    ) -> MediaEncoder: ...
    def add_encoded(self, codec: MediaCodec) -> None: ...
    def start(self, options: Sequence[tuple[str, str]]) -> None: ...
    def write(self, stream: int, packets: MediaPackets) -> None: ...
    def flush(self) -> None: ...
    def finish(self) -> None: ...

@final
class MediaEncoder:
    def encode(self, frames: MediaFrames | None) -> MediaPackets: ...
    @property
    def frame_size(self) -> int: ...

@final
class NpyHeader:
    """The header of a `.npy` file in memory."""

    def __new__(cls, data: Any) -> NpyHeader: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def order(self) -> Literal["C", "F"]: ...
    @property
    def offset(self) -> int: ...

@final
class ZipDirectory:
    """The central directory of a zip archive in memory."""

    def __new__(cls, data: Any) -> ZipDirectory: ...
    def names(self) -> list[str]: ...
    def inflated_bytes(self) -> int: ...
    def stored(self, name: str) -> tuple[int, int, int] | None: ...
    def inflated(self, name: str) -> Array: ...

@final
class TarFiles:
    """An iterator over the members of a tar archive: pairs of name and content."""

    def __new__(cls, source: Any, accept_missing_end: bool) -> TarFiles: ...
    def __iter__(self) -> Iterator[tuple[str, Any]]: ...
    def __next__(self) -> tuple[str, Any]: ...

@final
class WAVHeader:
    """The header of a WAV file, returned by `spdl_rs.io.parse_wav`."""

    def __new__(cls, data: Any) -> WAVHeader: ...
    @property
    def audio_format(self) -> int:
        """The format tag: 1 is PCM, 3 is floating point, 65534 is extensible."""
    @property
    def num_channels(self) -> int:
        """The number of channels."""
    @property
    def sample_rate(self) -> int:
        """Frames per second."""
    @property
    def byte_rate(self) -> int:
        """Bytes per second, as stored in the file."""
    @property
    def block_align(self) -> int:
        """The size of a frame (one sample of each channel) in bytes."""
    @property
    def bits_per_sample(self) -> int:
        """Bits per sample."""
    @property
    def data_size(self) -> int:
        """The size of the sample data in bytes."""
    @property
    def num_frames(self) -> int:
        """The number of frames."""
    def _stretch(
        self, time_offset_seconds: float | None, duration_seconds: float | None
    ) -> tuple[str, int, int]: ...
    def _widened(self, data: Any, start: int, frames: int) -> Array: ...

@final
class ArrowTable:
    """The rows of a Python object with the Arrow PyCapsule interface."""

    @staticmethod
    def imported(table: object, order: object | None, name: str) -> ArrowTable | None: ...
    @staticmethod
    def concatenated(tables: Sequence[ArrowTable], warning: str | None) -> ArrowTable: ...
    @staticmethod
    def files(pattern: str) -> list[str]: ...

@final
class Samples:
    """The samples of a data set."""

    @staticmethod
    def open(
        addresses: list[str],
        *,
        is_list: bool,
        table: ArrowTable | None = None,
        items: tuple[str, int, int] | None = None,
        iterable: tuple[str, int | None] | None = None,
        labels: list[int] | None = None,
        image_field: str | None = None,
        label_field: str | None = None,
        file_fields: list[str] | None = None,
        path_fields: list[str] | None = None,
        value_fields: list[list[str]] | None = None,
        images: str | None = None,
        media: Literal["audio", "video", "array"] | None = None,
        classes: list[str] | None = None,
        cache: str | None = None,
        cache_size: int = 0,
        cache_memory: int = 0,
        max_file_bytes: int | None = None,
        sequential: int | None = None,
        has_labels: bool = True,
        drops_unlabeled: bool = False,
        is_part: bool = False,
        shares: Samples | None = None,
    ) -> Samples: ...
    @staticmethod
    def joined(
        parts: list[Samples],
        shown: str,
        has_labels: bool,
        weights: list[float] | None = None,
        until: int | str | None = None,
    ) -> Samples: ...
    def chosen(
        self,
        shown: str,
        *,
        take: int | None = None,
        skip: int | None = None,
        positions: Sequence[int] | None = None,
        times: int | None = None,
        classes: list[str] | None = None,
        at_most: int | None = None,
    ) -> Samples: ...
    def keys(self) -> list[str]: ...
    def check(self, settings: Settings) -> None: ...
    @property
    def epoch_len(self) -> int | None: ...
    @property
    def shuffle_window(self) -> int | None: ...
    @property
    def classes(self) -> list[str]: ...
    @property
    def box_fields(self) -> list[tuple[str, str | None]]: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def kind(self) -> str: ...
    @property
    def place(self) -> str: ...

@final
class SampleFields:
    """The fields of the samples of a loader: names, and for each the name and parameters of its class.

    `group` is the name and the parameters of a class of `spdl_rs.sequences`.
    """

    def __new__(
        cls,
        fields: list[tuple[str, tuple[str, dict[str, Any]]]],
        group: tuple[str, dict[str, Any]] | None = None,
    ) -> SampleFields: ...
    def describe(self) -> list[tuple[str, str, str, list[int]]]: ...

@final
class Settings:
    """The settings of a loader, the same for each epoch."""

    def __new__(
        cls,
        content: ImageDecoder | SampleFields,
        *,
        batch_size: int,
        seed: int,
        shuffle: bool,
        threads: int | None,
        max_failures: int | tuple[float, int, bool] | None,
        drop_last: bool,
        rank: int,
        world_size: int,
        remainder: str,
        mix: tuple[str, dict[str, Any]] | None,
        device: CudaDevice | None = None,
        decode_with: list[str] | None = None,
        memory_budget: int | None = None,
        tune: bool | str | None = None,
        monitor: str | None = None,
    ) -> Settings: ...
    def freeze(self, path: str) -> None: ...
    def samples_of_rank(self, samples: int) -> int: ...
    @property
    def drops_failed(self) -> bool: ...

@final
class Epoch:
    """One epoch of a loader. Thread-safe."""

    def __new__(
        cls,
        samples: Samples,
        settings: Settings,
        epoch: int,
        state: str | None = None,
        functions: Functions | None = None,
        *,
        is_frozen: bool = True,
    ) -> Epoch: ...
    @staticmethod
    def position(
        samples: Samples,
        settings: Settings,
        epoch: int,
        state: str | None = None,
        functions: Functions | None = None,
    ) -> str: ...
    @staticmethod
    def at_steps(
        samples: Samples,
        settings: Settings,
        epoch: int,
        steps: tuple[int, int | None],
        state: str | None = None,
        functions: Functions | None = None,
    ) -> str: ...
    @staticmethod
    def default_threads() -> int: ...
    @staticmethod
    def combined(states: list[str], loader: str, repeat_parts: bool) -> str: ...
    def close(self) -> None: ...
    def take_dropped(self) -> list[Dropped]: ...
    @property
    def monitor(self) -> Monitor: ...

@disjoint_base
class BatchIterator:
    """The batches of an epoch, as NumPy or device arrays.

    No Python code, such as a signal handler, runs between counting a batch as delivered and returning it.
    """

    def __new__(cls, epoch: Epoch) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...

@final
class Monitor:
    """Statistics and position of an epoch or pipeline, even after its end. Does not keep the epoch or
    pipeline alive."""

    def __new__(cls) -> Monitor: ...
    def statistics(self) -> Statistics: ...
    @property
    def pace(self) -> tuple[float, list[int]]: ...
    def state(self) -> str | None: ...

@final
class Intervals:
    """Statistics of a pipeline by interval."""

    def __new__(cls, seconds: float) -> Intervals: ...
    def next(self) -> Interval | None: ...

@final
class Inbox:
    """The queue of jobs of an event loop."""

    def __new__(cls) -> Inbox: ...
    def run_loop(self, main: Callable[[], None]) -> None: ...
    def fileno(self) -> int: ...
    def take(self) -> tuple[list[Job], list[int], bool]: ...
    def close(self) -> None: ...

@final
class Job:
    """An awaitable that runs on the event loop."""

    @property
    def id(self) -> int: ...
    def start(self) -> Awaitable[Any]: ...
    def done(self, result: Any) -> None: ...
    def cancel(self) -> None: ...
    def fail(self, exception: BaseException) -> None: ...

@final
class Feed:
    """A source. A dedicated thread calls this object to iterate the source."""

    def __new__(
        cls,
        name: str,
        source: Any,
        continuous: bool,
        inbox: Inbox | None = None,
        epoch_end: Any = None,
        key: Callable[[Any], str] | None = None,
        len: int | None = None,
        resumes: bool = False,
    ) -> Feed: ...
    def __call__(self) -> None: ...
    def close(self) -> None: ...

@final
class TaskQueue:
    """A source that receives its items with `put`. Needs no dedicated thread."""

    def __new__(cls) -> TaskQueue: ...
    def put(self, item: Any) -> None: ...
    def __iter__(self) -> NoReturn: ...

@final
class Workers:
    """A worker pool. Each worker thread calls this object as its main function."""

    def __new__(cls, threads: int) -> Workers: ...
    def __call__(self) -> None: ...
    def close(self) -> None: ...
    @staticmethod
    def forbid_python(timeout: float = 0.5) -> bool: ...
    @staticmethod
    def has_forked() -> None: ...
    @property
    def threads(self) -> int: ...

@final
class Stage:
    """The configuration of a stage."""

    @staticmethod
    def function(
        kind: str,
        name: str,
        function: Callable[..., Any],
        *,
        concurrency: int,
        ordered: bool,
        max_failures: int | float | tuple[float, int, bool] | None = None,
        workers: Workers | None = None,
        inbox: Inbox | None = None,
        draws: tuple[int, str] | None = None,
        look_at: Callable[[Any], object] | None = None,
        retry: tuple[int, float, float, float, float, tuple[Any, ...]] | None = None,
        size: Callable[[Any], int] | None = None,
    ) -> Stage: ...
    @staticmethod
    def lists(name: str, size: int, drop_last: bool, releases: bool) -> Stage: ...
    @staticmethod
    def aggregate(
        name: str, make: Callable[[], Any], drop_last: bool, releases: bool
    ) -> Stage: ...
    @staticmethod
    def bucket(
        name: str,
        length: Callable[[Any], float],
        boundaries: list[float],
        sizes: list[int],
        budget: int | None,
        drop_last: bool,
        releases: bool,
    ) -> Stage: ...
    @staticmethod
    def route(
        name: str,
        router: Callable[[Any], Any],
        paths: list[list[Stage]],
        *,
        batched: bool,
        inbox: Inbox | None = None,
    ) -> Stage: ...
    @staticmethod
    def native(
        *,
        fetch: tuple[tuple[str, int | None, bool, int | float | tuple[float, int, bool] | None], int] | None = None,
        decode: tuple[
            tuple[str, int | None, bool, int | float | tuple[float, int, bool] | None], ImageDecoder | FieldDecoder
        ]
        | None = None,
        augment: tuple[tuple[str, int | None, bool, int | float | tuple[float, int, bool] | None], ImageAugmenter]
        | None = None,
        batch: tuple[int, bool] | None = None,
    ) -> Stage: ...

@final
class Graph:
    """The configuration of a pipeline, before it runs."""

    @staticmethod
    def source(
        feed: Feed,
        quarantined: set[str] | None = None,
        size: Callable[[Any], int] | None = None,
    ) -> Graph: ...
    @staticmethod
    def merge(
        graphs: list[Graph], weights: Sequence[float] | None = None, seed: int = 0
    ) -> Graph: ...
    @staticmethod
    def zip(name: str, graphs: list[Graph], strict: bool, releases: bool) -> Graph: ...
    def then(self, stages: list[Stage]) -> Graph: ...

@final
class PipelineRun:
    """A running pipeline. Thread-safe."""

    def __new__(
        cls,
        graph: Graph,
        workers: Workers,
        pools: list[Workers],
        inbox: Inbox | None,
        prefetch: int,
        max_failures: int | float | tuple[float, int, bool],
        intervals: Intervals | None = None,
        epoch: int = 0,
        settings: dict[str, Any] | None = None,
    ) -> PipelineRun: ...
    @staticmethod
    def quarantined(path: str) -> list[str]: ...
    def on_end(self, call: Callable[[bool], object]) -> None: ...
    def start(self) -> None: ...
    def next(self, timeout: float | None = None) -> tuple[Any] | None: ...
    def halt(self) -> None: ...
    def stop(self, timeout: float | None = None) -> bool: ...
    def take_failure(self) -> BaseException | None: ...
    def state(self) -> str: ...
    def order_record(self) -> str | None: ...
    def take_dropped(self) -> list[Dropped]: ...
    def set_concurrency(self, stage: str, concurrency: int) -> None: ...
    def set_threads(self, threads: int) -> None: ...
    def freeze(self, path: str) -> None: ...
    @property
    def ended(self) -> bool: ...
    @property
    def pace(self) -> tuple[float, list[int]]: ...
    @property
    def monitor(self) -> Monitor: ...

@final
class ItemIterator:
    """An iterator over the items of a pipeline, or of one epoch. Calls `at_end` at the end."""

    def __new__(
        cls,
        run: PipelineRun,
        timeout: float | None = None,
        at_end: Callable[[], object] | None = None,
    ) -> ItemIterator: ...
    def __iter__(self) -> ItemIterator: ...
    def __next__(self) -> Any: ...

@final
class RankOrder:
    """The order of the indices of one rank."""

    @staticmethod
    def sequential(items: int, rank: int, world_size: int, drop_last_round: bool) -> RankOrder: ...
    @staticmethod
    def random(
        items: int,
        draws: int,
        weights: Sequence[float] | None,
        rank: int,
        world_size: int,
        drop_last_round: bool,
    ) -> RankOrder: ...
    def indices(self, seed: int, position: int) -> Indices: ...
    def __len__(self) -> int: ...

@final
class Indices(Iterator[int]):
    """An iterator over the indices of one epoch. It counts the returned indices."""

    def __iter__(self) -> Indices: ...
    def __next__(self) -> int: ...
    def __length_hint__(self) -> int: ...
    @property
    def position(self) -> int: ...

@final
class Trace:
    """Records events until it is stopped, in the trace event format."""

    def __new__(cls, process_name: str, capacity: int, elapsed: int | None = None) -> Trace: ...
    def next(self) -> bytes | None: ...
    def stop(self) -> None: ...
    def close(self) -> int: ...
    @staticmethod
    def forget() -> None: ...
    @staticmethod
    def now() -> int | None: ...
    @staticmethod
    def span(name: str, began: int, nested: bool, details: list[tuple[str, int]]) -> None: ...
    @staticmethod
    def counter(name: str, value: float) -> None: ...

def run_command_line(arguments: list[bytes]) -> int: ...
def allocator_settings() -> list[tuple[str, str]]: ...
def end_after(parent: int, grace: float) -> None: ...
def add_cpu_time(seconds: float) -> None: ...
def set_stall_time(seconds: float) -> None: ...
def set_starvation_time(seconds: float) -> None: ...
def gil_wait(seconds: float) -> float:
    """Sleeps without the GIL, and returns how many seconds the thread then waited for the GIL."""

def uninterrupted(work: Callable[[], _T]) -> _T: ...
