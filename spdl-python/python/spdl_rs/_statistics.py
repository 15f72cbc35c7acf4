"""The shape of `ImageLoader.stats()`. The names are those of the Rust library and of `spdl`."""

from __future__ import annotations

from typing import TypedDict


class Quantiles(TypedDict):
    """How long something took, in milliseconds."""

    p50: float
    """Half of the values are at or below this."""
    p90: float
    """90 % of the values are at or below this."""
    p99: float
    """99 % of the values are at or below this."""
    max: float
    """The largest value."""


class StageStatistics(TypedDict):
    """What one stage did."""

    name: str
    """`source`, `fetch` or `decode`; `upload`, where batches go to a device; `group`, `nvjpeg` and
    `batch`, where that decodes."""
    kind: str
    """`source`, `async` (it waits), `cpu` (it computes) or `fill` (and writes into batches)."""
    concurrency: int
    """How many images it may work on at once."""
    items: int
    """Images it has finished, failed ones included."""
    failures: int
    """Images that failed."""
    busy_s: float
    """Seconds spent in it, summed over everything that ran at once."""
    busy_share: float
    """The share of its concurrency that was in use on average, in 0..=1."""
    fill_rate: float | None
    """The share that is not padding of what the stage groups, in 0..=1; `None` where it groups
    nothing, as the stages of `ImageLoader` do not."""
    service_ms: Quantiles
    """The time that one image takes."""


class QueueStatistics(TypedDict):
    """What one queue held."""

    capacity: int
    """How many items it may hold."""
    len: int
    """How many it holds now."""
    items: int
    """Items that have gone through."""
    mean_len: float
    """How many it held on average over time."""
    put_wait_s: float
    """Seconds for which it was full, so that the stage before it had to wait."""
    get_wait_s: float
    """Seconds for which it was empty, so that the stage after it had to wait."""
    wait_per_put_ms: Quantiles
    """How long putting one item in had to wait for room."""
    wait_per_get_ms: Quantiles
    """How long taking one item out had to wait for it."""
    occupancy: float
    """The share of the time in which it was not empty, in 0..=1."""


class Interval(TypedDict):
    """What a pipeline did in a stretch of time."""

    length_s: float
    """How long that is, in seconds."""
    stages: list[StageStatistics]
    """The stages from source to consumer."""
    queues: list[QueueStatistics]
    """The queues between them: `queues[i]` follows `stages[i]`."""


class ConsumerStatistics(TypedDict):
    """What the consumer, that is your loop, saw."""

    items: int
    """Batches delivered."""
    first_item_s: float | None
    """Seconds from the start to the first batch; `None` before it."""
    waited_s: float
    """Seconds for which the consumer waited in all."""
    wait_ms: Quantiles
    """How long it waited for one batch."""


class BufferStatistics(TypedDict):
    """The memory of batches."""

    live_bytes: int
    """Bytes in use now: by batches in the making, and by arrays that you still hold. Stands still
    once the epoch has ended: arrays that you let go of later are still counted."""
    peak_bytes: int
    """The most that were in use at once."""
    allocations: int
    """How many buffers were ever allocated; the others were used again."""


class CacheStatistics(TypedDict):
    """What a cache did in the epoch."""

    hits: int
    """Images that were not read again."""
    misses: int
    """Images that were not kept."""
    hit_rate: float
    """The share that was not read again, in 0..=1."""
    memory_bytes: int
    """Bytes kept in memory."""
    disk_bytes: int
    """Bytes kept in the folder, by all its users."""


class Decoded(TypedDict):
    """Who has decoded the images of an epoch, with `decode="device"`."""

    hardware: int
    """Images that the device's engines for JPEGs have decoded."""
    hybrid: int
    """Those that the CPU and the device's multiprocessors have decoded together."""
    host: int
    """Those that the CPU has decoded alone, and that were put on the device."""
    failed: int
    """Those that nobody could decode, and those that the CPU has decoded but for whose pixels the device has
    no memory."""
    fallbacks: dict[str, int]
    """Why the device did not decode images, and how many, whether the CPU could or not:
    `other-format` (no JPEG), `damaged-header`, `coding` (more than 8 bits, say), `color` (CMYK, say),
    `refused` (by nvJPEG), `too-large` (the device has no memory left for it) and `no-decoder` (there is no
    nvJPEG)."""
    missing: str | None
    """Why there is no nvJPEG; `None` where there is."""


class Dropped(TypedDict):
    """An image that `on_error="skip"` left out."""

    key: str | None
    """Its path."""
    stage: str
    """The stage in which it failed."""
    kind: str
    """The kind of failure, as `SpdlError.kind`."""
    reason: str
    """What went wrong."""
    epoch: int
    """The epoch in which it was left out."""
    index: int
    """Its position in the order of that epoch."""


class Statistics(TypedDict):
    """What one epoch's pipeline did so far."""

    elapsed_s: float
    """Seconds since the epoch began; it stands still once the epoch has ended."""
    threads: int
    """Worker threads that decode."""
    stages: list[StageStatistics]
    """The stages from source to consumer."""
    queues: list[QueueStatistics]
    """The queues between them: `queues[i]` follows `stages[i]`, the last one feeds your loop."""
    consumer: ConsumerStatistics
    """What your loop saw."""
    buffers: BufferStatistics
    """The memory of batches."""
    data_readiness: float
    """The share of the time in which a batch was ready, in 0..=1; near 1, your loop never waits."""
    dropped: list[Dropped]
    """The images left out, in the order of the epoch; at most 100,000 are listed."""
    dropped_total: int
    """How many were left out in all."""
    left_out: int
    """Images of a short last batch that was left out (`drop_last=True`)."""
    partial: int | None
    """Images decoded so far that are black in part, since their files end early; `None` unless
    `on_truncated="partial"` asks for them."""
    cache: CacheStatistics | None
    """What the cache did; `None` without one."""
    decoded: Decoded | None
    """Who has decoded the images, with `decode="device"`; `None` without it, and where `device="auto"` has
    found no device, or no nvJPEG, and the host decodes: see `spdl_rs.cuda.fallbacks`."""
    diagnosis: str
    """A sentence that says what limits the rate."""
