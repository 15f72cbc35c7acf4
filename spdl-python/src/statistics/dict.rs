//! Statistics as Python dictionaries, with the field names of the Rust structs.
//!
//! Times are in seconds; quantiles are in milliseconds.

use std::io;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use spdl_core::Statistics;
use spdl_core::observe::{
    Dropped, DroppedCount, Interval, Quantiles, QueueStatistics, SlowItem, StageStatistics,
    TuningDecision,
};
use spdl_cuda::images::ImageStatistics;
use spdl_io::layers::CacheStatistics;

use super::diagnosis::in_words;

/// Statistics beyond those of the pipeline.
pub(crate) struct ExtraStatistics<'a> {
    /// The number of truncated images whose missing rows are black.
    pub(crate) partial: Option<u64>,
    /// The number of samples that a function filtered out.
    pub(crate) filtered: Option<u64>,
    pub(crate) cache: Option<CacheStatistics>,
    /// The number of images by decoder, if a device decodes.
    pub(crate) decoded: Option<ImageStatistics>,
    /// The address of the store that holds the keys.
    pub(crate) store: Option<&'a str>,
    /// Whether stages run on executors of the user.
    pub(crate) has_executors: bool,
}

/// All statistics as a dictionary.
pub(crate) fn to_dict<'py>(
    py: Python<'py>,
    from: &Statistics,
    extra: &ExtraStatistics<'_>,
) -> PyResult<Bound<'py, PyDict>> {
    let consumer = PyDict::new(py);
    consumer.set_item("items", from.consumer.items)?;
    consumer.set_item("first_item_s", from.consumer.first_item.map(|time| time.as_secs_f64()))?;
    consumer.set_item("waited_s", from.consumer.waited.as_secs_f64())?;
    consumer.set_item("wait_ms", quantiles(py, &from.consumer.wait)?)?;

    let buffers = PyDict::new(py);
    buffers.set_item("live_bytes", from.buffers.live_bytes)?;
    buffers.set_item("peak_bytes", from.buffers.peak_bytes)?;
    buffers.set_item("allocations", from.buffers.allocations)?;

    let dict = PyDict::new(py);
    dict.set_item("elapsed_s", from.elapsed.as_secs_f64())?;
    dict.set_item("threads", from.threads)?;
    dict.set_item("stages", list(py, &from.stages, |one| stage(py, one, from.elapsed))?)?;
    dict.set_item("queues", list(py, &from.queues, |one| queue(py, one))?)?;
    dict.set_item("consumer", consumer)?;
    dict.set_item("buffers", buffers)?;
    dict.set_item("data_readiness", from.data_readiness())?;
    dict.set_item("dropped", list(py, &from.dropped, |one| dropped(py, one, extra.store))?)?;
    dict.set_item("dropped_total", from.dropped_total)?;
    dict.set_item("dropped_counts", list(py, &from.dropped_counts, |one| dropped_count(py, one))?)?;
    dict.set_item("left_out", from.left_out)?;
    dict.set_item("slowest", list(py, &from.slowest, |one| slow_item(py, one, extra.store))?)?;
    dict.set_item("filtered", extra.filtered)?;
    dict.set_item("partial", extra.partial)?;
    dict.set_item("cache", extra.cache.map(|it| cache(py, &it)).transpose()?)?;
    dict.set_item("decoded", extra.decoded.as_ref().map(|it| decoded(py, it)).transpose()?)?;
    dict.set_item("decisions", list(py, &from.decisions, |one| decision(py, one))?)?;
    let diagnosis = py.detach(|| from.diagnose());
    dict.set_item("diagnosis", in_words(&diagnosis, extra.has_executors))?;
    let as_json = serde_json::to_string(&diagnosis).map_err(io::Error::other)?;
    dict.set_item("bottleneck", py.import("json")?.call_method1("loads", (as_json,))?)?;
    Ok(dict)
}

/// The statistics of one interval.
pub(crate) fn interval_to_dict<'py>(
    py: Python<'py>,
    from: &Interval,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("length_s", from.length.as_secs_f64())?;
    dict.set_item("stages", list(py, &from.stages, |one| stage(py, one, from.length))?)?;
    dict.set_item("queues", list(py, &from.queues, |one| queue(py, one))?)?;
    Ok(dict)
}

/// Whether this Python has a GIL, and it is enabled.
pub(crate) fn has_gil(py: Python<'_>) -> PyResult<bool> {
    let sys = py.import("sys")?;
    // The function exists from Python 3.13 on.
    match sys.getattr_opt("_is_gil_enabled")? {
        Some(is_enabled) => is_enabled.call0()?.extract(),
        None => Ok(true),
    }
}

fn list<'py, T>(
    py: Python<'py>,
    items: &[T],
    to_dict: impl Fn(&T) -> PyResult<Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, items.iter().map(to_dict).collect::<PyResult<Vec<_>>>()?)
}

fn stage<'py>(
    py: Python<'py>,
    stage: &StageStatistics,
    elapsed: Duration,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("name", &*stage.name)?;
    dict.set_item("kind", stage.kind.as_str())?;
    dict.set_item("concurrency", stage.concurrency)?;
    dict.set_item("items", stage.items)?;
    dict.set_item("failures", stage.failures)?;
    dict.set_item("retries", stage.retries)?;
    dict.set_item("busy_s", stage.busy.as_secs_f64())?;
    dict.set_item("busy_share", stage.busy_share(elapsed))?;
    dict.set_item("cpu_share", stage.cpu_share)?;
    dict.set_item("holds_gil", stage.holds_gil)?;
    dict.set_item("fill_rate", stage.fill_rate)?;
    dict.set_item("service_ms", quantiles(py, &stage.service)?)?;
    Ok(dict)
}

fn queue<'py>(py: Python<'py>, queue: &QueueStatistics) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("capacity", queue.capacity)?;
    dict.set_item("len", queue.len)?;
    dict.set_item("items", queue.items)?;
    dict.set_item("mean_len", queue.mean_len)?;
    dict.set_item("put_wait_s", queue.put_wait.as_secs_f64())?;
    dict.set_item("get_wait_s", queue.get_wait.as_secs_f64())?;
    dict.set_item("wait_per_put_ms", quantiles(py, &queue.wait_per_put)?)?;
    dict.set_item("wait_per_get_ms", quantiles(py, &queue.wait_per_get)?)?;
    dict.set_item("occupancy", queue.occupancy)?;
    Ok(dict)
}

/// A change of a setting that the tuner has tried.
fn decision<'py>(py: Python<'py>, decision: &TuningDecision) -> PyResult<Bound<'py, PyDict>> {
    let (setting, stage) = decision.setting();
    let dict = PyDict::new(py);
    dict.set_item("time_s", decision.time.as_secs_f64())?;
    dict.set_item("setting", setting)?;
    dict.set_item("stage", stage)?;
    dict.set_item("from", decision.from)?;
    dict.set_item("to", decision.to())?;
    dict.set_item("reason", &decision.reason)?;
    dict.set_item("rate_before", decision.rate_before)?;
    dict.set_item("rate_after", decision.rate_after)?;
    dict.set_item("kept", decision.kept)?;
    Ok(dict)
}

fn cache<'py>(py: Python<'py>, cache: &CacheStatistics) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("hits", cache.memory_hits + cache.disk_hits)?;
    dict.set_item("misses", cache.misses)?;
    dict.set_item("hit_rate", cache.hit_rate())?;
    dict.set_item("memory_bytes", cache.memory_bytes)?;
    dict.set_item("disk_bytes", cache.disk_bytes)?;
    Ok(dict)
}

fn decoded<'py>(py: Python<'py>, images: &ImageStatistics) -> PyResult<Bound<'py, PyDict>> {
    let fallbacks = PyDict::new(py);
    for (reason, count) in &images.fallbacks {
        fallbacks.set_item(reason.as_str(), count)?;
    }
    let dict = PyDict::new(py);
    dict.set_item("hardware", images.hardware)?;
    dict.set_item("hybrid", images.hybrid)?;
    dict.set_item("host", images.host)?;
    dict.set_item("failed", images.failed)?;
    dict.set_item("fallbacks", fallbacks)?;
    dict.set_item("missing", images.missing.as_deref())?;
    Ok(dict)
}

pub(crate) fn dropped<'py>(
    py: Python<'py>,
    dropped: &Dropped,
    store: Option<&str>,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("key", dropped.key.as_deref().map(|key| address_in(store, key)))?;
    dict.set_item("stage", &*dropped.stage)?;
    dict.set_item("kind", dropped.kind.as_str())?;
    dict.set_item("reason", &dropped.reason)?;
    dict.set_item("epoch", dropped.id.epoch)?;
    dict.set_item("index", dropped.id.index)?;
    Ok(dict)
}

fn slow_item<'py>(
    py: Python<'py>,
    slow: &SlowItem,
    store: Option<&str>,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("key", slow.key.as_deref().map(|key| address_in(store, key)))?;
    dict.set_item("stage", &*slow.stage)?;
    dict.set_item("time_ms", milliseconds(slow.time))?;
    dict.set_item("median_ms", milliseconds(slow.median))?;
    dict.set_item("bytes", slow.bytes)?;
    dict.set_item("mean_bytes", slow.mean_bytes)?;
    dict.set_item("cause", slow.cause.as_str())?;
    dict.set_item("epoch", slow.id.epoch)?;
    dict.set_item("index", slow.id.index)?;
    Ok(dict)
}

/// Quantiles in milliseconds.
fn quantiles<'py>(py: Python<'py>, quantiles: &Quantiles) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("p50", milliseconds(quantiles.p50))?;
    dict.set_item("p90", milliseconds(quantiles.p90))?;
    dict.set_item("p99", milliseconds(quantiles.p99))?;
    dict.set_item("max", milliseconds(quantiles.max))?;
    Ok(dict)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The address of a key in a store.
pub(crate) fn address_in(store: Option<&str>, key: &str) -> String {
    match store {
        Some(store) if !key.contains("://") => format!("{store}/{key}"),
        _ => key.to_owned(),
    }
}

fn dropped_count<'py>(py: Python<'py>, count: &DroppedCount) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("stage", &*count.stage)?;
    dict.set_item("kind", count.kind.as_str())?;
    dict.set_item("count", count.count)?;
    Ok(dict)
}
