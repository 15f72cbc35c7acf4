"""The types of the results of `stats()`. Keys match the statistics of the Rust library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypedDict


class Quantiles(TypedDict):
    """Quantiles of durations, in milliseconds."""

    p50: float
    """The median: half of the values are at most this value."""
    p90: float
    """The 90th percentile: 90 % of the values are at most this value."""
    p99: float
    """The 99th percentile: 99 % of the values are at most this value."""
    max: float
    """The largest value."""


class StageStatistics(TypedDict):
    """Statistics of one stage."""

    name: str
    """For `ImageLoader`: `source`, `fetch` or `decode`; `upload` if batches are sent to a device; `group`,
    `nvjpeg` and `batch` if the device decodes."""
    kind: str
    """`source`, `async` (waits for I/O), `cpu` (computes) or `fill` (writes into batches)."""
    concurrency: int
    """The number of items (in `ImageLoader`, images) that the stage may process at the same time."""
    items: int
    """Items processed, failed items included."""
    failures: int
    """Items that failed."""
    retries: int
    """Repeated attempts of a stage with a `Retry`: all but the first attempt for each item."""
    busy_s: float
    """Seconds spent in the stage, summed over concurrent calls. For a source: seconds in its `next()`."""
    busy_share: float
    """The average share of its concurrency that was in use, 0 to 1."""
    cpu_share: float | None
    """The share of `busy_s` in which the stage used a CPU, 0 to 1, estimated from some of the items; the rest is
    waiting. The worker processes of a loader count. `None` if unknown, and for a stage that does not run on worker
    threads."""
    holds_gil: bool
    """Whether the stage calls Python functions, which hold Python's GIL while they run Python code."""
    fill_rate: float | None
    """For stages that group samples: the share of the capacity of groups that is not padding, 0 to 1. `None`
    for other stages, including those of `ImageLoader`."""
    service_ms: Quantiles
    """The service time of one item."""


class QueueStatistics(TypedDict):
    """Statistics of one queue."""

    capacity: int
    """The largest number of items in the queue."""
    len: int
    """The current number of items."""
    items: int
    """Items that passed through the queue."""
    mean_len: float
    """The average number of items over time."""
    put_wait_s: float
    """Seconds in which the queue was full and the stage before it waited (backpressure)."""
    get_wait_s: float
    """Seconds in which the queue was empty and the stage after it waited."""
    wait_per_put_ms: Quantiles
    """How long the upstream stage waited for room in the queue, per item."""
    wait_per_get_ms: Quantiles
    """How long the downstream stage waited for an item, per item."""
    occupancy: float
    """The share of time in which the queue was not empty, 0 to 1."""


class Interval(TypedDict):
    """Statistics of one interval of time."""

    length_s: float
    """The length of the interval in seconds."""
    stages: list[StageStatistics]
    """The stages from source to consumer."""
    queues: list[QueueStatistics]
    """The queues between them: `queues[i]` follows `stages[i]`."""


class ConsumerStatistics(TypedDict):
    """Statistics of the consumer, that is, your loop."""

    items: int
    """Batches delivered; for a pipeline, items."""
    first_item_s: float | None
    """Seconds from the start to the first batch; `None` before the first batch."""
    waited_s: float
    """Seconds that the consumer spent waiting."""
    wait_ms: Quantiles
    """How long the consumer waited for a batch, per batch."""


class BufferStatistics(TypedDict):
    """Statistics of the memory of batches."""

    live_bytes: int
    """Bytes in use: batches in preparation, and arrays that you still hold. After the end of the epoch the
    value no longer changes, even if arrays are freed."""
    peak_bytes: int
    """The maximum of `live_bytes`."""
    allocations: int
    """Buffers allocated. All other buffers were recycled."""


class CacheStatistics(TypedDict):
    """Statistics of the cache in one epoch."""

    hits: int
    """Images read from the cache."""
    misses: int
    """Images not found in the cache."""
    hit_rate: float
    """`hits / (hits + misses)`, 0 to 1."""
    memory_bytes: int
    """Bytes cached in memory."""
    disk_bytes: int
    """Bytes cached in the folder, by all processes that share it."""


class Effect(TypedDict):
    """A change, and what it would do."""

    change: dict[str, Any]
    """The change: `setting` is `threads`, `cpus`, `concurrency`, `queue`, `cost`, `cache-share`, `completion-order`,
    `memory`, `without-gil` or `step-time`; other keys are the new value, and the `stage`."""
    description: str
    """The change in words, with the present value."""
    setting: str
    """The argument that makes the change: `threads=8`; empty for a change of the work or the machine."""
    items_per_s: float
    """The items (for `ImageLoader`, batches) per second after the change."""
    gain: float
    """The change of `items_per_s`, relative to the measured value: 0.5 is half as much again."""
    consumer_wait_s: float
    """How long the consumer would wait for an item, on average."""
    limited_by: dict[str, str]
    """What limits the throughput after the change: its `kind`, and its `stage` if it has one."""


class Bottleneck(TypedDict):
    """What limits the throughput, what would help and by how much, and what would not."""

    limit: dict[str, Any]
    """The bottleneck: its `kind`, such as `cpu`, `latency` or `consumer`, and the evidence."""
    items_per_s: float
    """Items (for `ImageLoader`, batches) per second, after the first one was ready."""
    source_items: float
    """Source items, such as samples, for one item."""
    consumer_waits: float
    """The share of the time in which the consumer waited, 0 to 1."""
    helps: list[Effect]
    """Changes that help: settings first, then the work and the machine, the largest gain first."""
    does_not_help: list[Effect]
    """Changes of settings that gain less than 2 %."""


class Decoded(TypedDict):
    """Where the images of an epoch were decoded, with `decode="device"`."""

    hardware: int
    """Images decoded by the JPEG engines of the device."""
    hybrid: int
    """Images decoded by the CPU and the multiprocessors of the device together."""
    host: int
    """Images decoded by the CPU alone and then uploaded."""
    failed: int
    """Images that could not be decoded, or whose pixels did not fit into the memory of the device."""
    fallbacks: dict[str, int]
    """The number of images that the device did not decode, by reason, whether or not the CPU decoded them:
    `other-format` (not JPEG), `damaged-header`, `coding` (for example more than 8 bits), `color` (for
    example CMYK), `refused` (by nvJPEG), `too-large` (not enough device memory) and `no-decoder` (nvJPEG is
    not available)."""
    missing: str | None
    """Why nvJPEG is not available; `None` if nvJPEG is available."""


class Dropped(TypedDict):
    """An item or image that a failure dropped."""

    key: str | None
    """The path of the image, or the index of the sample; `None` if unknown."""
    stage: str
    """The name of the stage that failed."""
    kind: str
    """The error kind, as in `SpdlError.kind`."""
    reason: str
    """The error message."""
    epoch: int
    """The number of the epoch; -1 if unknown."""
    index: int
    """The position in the order of that epoch, as `fields.Index`; -1 if unknown. `key` has the row or path: with
    `shuffle`, the position is not the number of the row."""


class DroppedCount(TypedDict):
    """The number of items or images that one stage dropped because of errors of one kind."""

    stage: str
    """The name of the stage that failed."""
    kind: str
    """The error kind, as in `SpdlError.kind`."""
    count: int
    """The number of items or images."""


class SlowItem(TypedDict):
    """A sample that took long in one stage."""

    key: str | None
    """The path or address of the sample; `None` if unknown."""
    stage: str
    """The name of the stage."""
    time_ms: float
    """The processing time of the sample."""
    median_ms: float
    """The median processing time of the stage."""
    bytes: int | None
    """The encoded bytes of the sample; `None` if they are not counted."""
    mean_bytes: int | None
    """The mean number of encoded bytes of the samples."""
    cause: str
    """Why: `size` (many bytes), `latency` (a store or disk responded late), `cpu` (other programs or threads used the
    CPUs), or `work` (decoding takes longer than the size explains, for example because of the format)."""
    epoch: int
    """The number of the epoch."""
    index: int
    """The position in the order of that epoch."""


# `from` is a keyword, so it cannot be an attribute of a class.
_From = TypedDict("_From", {"from": int})


class TuningDecision(_From):
    """A change of a setting that tuning has tried."""

    time_s: float
    """Seconds from the start of the epoch or pipeline to the change."""
    setting: Literal["threads", "concurrency", "queue"]
    stage: str | None
    """The name of the stage; `None` for `threads`. `queue` is the queue after the stage."""
    to: int
    """The value after the change; `from` is the value before."""
    reason: str
    """What limited the throughput, and the predicted gain."""
    rate_before: float
    """Items per second of one stage before the change."""
    rate_after: float | None
    """Items per second of this stage after the change; `None` while it is measured."""
    kept: bool | None
    """Whether the change was kept, or reset; `None` while its effect is measured."""


class Statistics(TypedDict):
    """Statistics so far: of one epoch, or of the whole run of a pipeline.

    | key | value |
    |---|---|
    | `elapsed_s`, `threads` | seconds since the start; worker threads |
    | `stages` | per stage: `name`, `kind`, `concurrency`, `items`, `failures`, `retries`, `busy_s`, `busy_share`, `cpu_share`, `holds_gil`, `fill_rate`, `service_ms` |
    | `queues` | per queue: `capacity`, `len`, `items`, `mean_len`, `put_wait_s`, `get_wait_s`, `wait_per_put_ms`, `wait_per_get_ms`, `occupancy` |
    | `consumer` | your loop: `items`, `first_item_s`, `waited_s`, `wait_ms` |
    | `buffers` | memory of batches: `live_bytes`, `peak_bytes`, `allocations` |
    | `data_readiness` | the share of time in which a batch was ready, 0 to 1 |
    | `dropped` | per dropped sample: `key`, `stage`, `kind`, `reason`, `epoch`, `index`; at most 100,000 |
    | `dropped_total`, `dropped_counts` | their number, in total and for each stage and kind of error |
    | `left_out`, `filtered`, `partial` | samples in incomplete batches; rejected by `filter`; delivered in part |
    | `slowest` | up to ten samples that took longest in a stage, with the likely cause |
    | `cache`, `decoded` | statistics of the cache; where images were decoded; `None` without them |
    | `decisions` | the changes of settings that tuning has tried |
    | `diagnosis` | at most three sentences: what limits the throughput, and what would help by how much |
    | `bottleneck` | the same as data |

    The types are in `spdl_rs._statistics`, with a description of each key.
    """

    elapsed_s: float
    """Seconds since the start of the epoch or pipeline; constant after its end."""
    threads: int
    """Worker threads. In `ImageLoader`, these threads decode."""
    stages: list[StageStatistics]
    """The stages, from source to consumer."""
    queues: list[QueueStatistics]
    """The queues between stages: `queues[i]` follows `stages[i]`. Your loop takes batches from
    the last queue."""
    consumer: ConsumerStatistics
    """Statistics of your loop."""
    buffers: BufferStatistics
    """Statistics of the memory of batches."""
    data_readiness: float
    """The share of time since the first batch in which a batch was ready, 0 to 1; 0 before the first batch.
    Near 1, your loop rarely waits."""
    dropped: list[Dropped]
    """Dropped items or images, in the order of the epoch; at most 100,000 are listed."""
    dropped_total: int
    """The total number of dropped items or images."""
    dropped_counts: list[DroppedCount]
    """The number of dropped items or images for each stage and kind of error."""
    left_out: int
    """Images or samples left out because the last batch was incomplete (`drop_last=True`); of packed sequences
    (`spdl_rs.sequences`), the number of sequences."""
    slowest: list[SlowItem]
    """Samples that took longest in a stage, the slowest first; at most ten."""
    filtered: int | None
    """Samples for which the `filter` of a `Loader` returned `False`, or items of a `Pipeline` that an earlier run
    quarantined; `None` without `filter` and `quarantine`. Samples that are prefetched count too."""
    partial: int | None
    """Images decoded so far with missing rows filled with black, because their files are truncated, and samples
    whose sequence was shortened. `None` unless `on_truncated="partial"`, or `long="truncate"` of a group."""
    cache: CacheStatistics | None
    """Statistics of the cache; `None` without a cache."""
    decoded: Decoded | None
    """Where images were decoded, with `decode="device"`. `None` with `decode="host"`, and if `device="auto"`
    found no device: see `spdl_rs.cuda.fallbacks`."""
    decisions: list[TuningDecision]
    """The changes of settings that tuning has tried, the oldest first; at most the last 256."""
    diagnosis: str
    bottleneck: Bottleneck
    """A text that names what limits the throughput: a stage, the source, the worker threads, the GIL, the CPUs,
    the memory or the consumer."""


def slowest_of(parts: Iterable[Statistics]) -> list[SlowItem]:
    """The slowest samples of several runs."""
    items = [item for part in parts for item in part["slowest"]]
    return sorted(items, key=lambda item: -item["time_ms"])[:10]
