//! Measures the cost of a sample, if requested, and prints the plan.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use spdl_core::observe::{ClusterPlan, PlanLimit, PlannedUse, StageKind, Workload};

use super::arguments::PlanArguments;
use crate::commands::bench::arguments::BenchArguments;
use crate::commands::bench::outcome::Outcome;
use crate::commands::bench::run::measure_whole;
use crate::ui::failure::Failure;
use crate::ui::format::{bytes, count, counted, measured, percent, seconds, time, wrap};
use crate::ui::stdout;
use crate::ui::table::Table;

/// The width of wrapped text, in characters.
const WIDTH: usize = 90;

pub(crate) fn run(arguments: &PlanArguments) -> Result<(), Failure> {
    let measured = match arguments.bench.as_slice() {
        [] => None,
        words => Some(Measured::on_data_set(words, arguments.json)?),
    };
    let workload = workload(arguments, measured.as_ref())?;
    let plan = workload.plan().map_err(|error| Failure::usage(error.message()))?;
    let mut variations = Vec::new();
    for (change, workload) in workload.variations() {
        let plan = workload.plan().map_err(|error| Failure::usage(error.message()))?;
        variations.push((change, plan));
    }
    match arguments.json {
        true => stdout::print(&format!("{}\n", as_json(&workload, &plan, &variations))),
        false => stdout::print(&as_text(&workload, &plan, &variations)),
    }
}

/// What `spdl bench` measured.
struct Measured {
    sample_bytes: u64,
    decoded_bytes: u64,
    samples: u64,
    cpu_time: Duration,
    latency: Duration,
}

impl Measured {
    fn on_data_set(words: &[std::ffi::OsString], is_quiet: bool) -> Result<Self, Failure> {
        let mut arguments = BenchArguments::parse(words)?;
        arguments.json |= is_quiet;
        arguments.no_checksum = true;
        Ok(Measured::of(&measure_whole(&arguments)?))
    }

    fn of(outcome: &Outcome) -> Self {
        let reads = outcome.statistics.stages.iter().find(|it| it.kind == StageKind::Async);
        let images = outcome.delivery.images.max(1);
        Measured {
            sample_bytes: reads.map_or(0, |it| it.bytes / it.items_out.max(1)),
            decoded_bytes: outcome.row_bytes,
            samples: outcome.images_found,
            cpu_time: outcome.cpu_time.div_f64(images as f64),
            // While all CPUs decode, reads wait for a CPU. The median contains less of this wait
            // than the mean.
            latency: reads.map_or(Duration::ZERO, |it| it.service.p50),
        }
    }
}

fn workload(arguments: &PlanArguments, measured: Option<&Measured>) -> Result<Workload, Failure> {
    let milliseconds = |value: f64| Duration::try_from_secs_f64(value / 1e3).unwrap_or_default();
    let positive = |time: Duration| Some(time).filter(|time| !time.is_zero());
    let sample_bytes = arguments.sample_bytes.or(measured.map(|it| it.sample_bytes));
    let Some(sample_bytes) = sample_bytes.filter(|&bytes| bytes > 0) else {
        return Err(Failure::usage(
            "the size of a sample could not be measured; add --sample-bytes before --",
        ));
    };
    let per_step = f64::from(arguments.batch) * f64::from(arguments.devices);
    let step_ms = match arguments.samples_per_s {
        Some(rate) => per_step / rate * 1e3,
        None => arguments.step_ms.unwrap_or_default(),
    };
    let mut workload = Workload::new(arguments.batch as usize, milliseconds(step_ms), sample_bytes);
    let decoded = arguments.decoded_bytes.or(measured.map(|it| it.decoded_bytes));
    workload.decoded_bytes = decoded.unwrap_or(workload.decoded_bytes);
    workload.samples = arguments.samples.or(measured.map(|it| it.samples));
    (workload.devices, workload.hosts) = (arguments.devices.into(), arguments.hosts.into());
    let cpu_time = measured.and_then(|it| positive(it.cpu_time));
    workload.cpu_time = arguments.cpu_ms.map(milliseconds).or(cpu_time);
    let latency = measured.and_then(|it| positive(it.latency));
    workload.latency = arguments.latency_ms.map(milliseconds).or(latency);
    workload.request_bytes = arguments.request_bytes;
    workload.cache_share = arguments.cache_share;
    workload.store_requests_per_s = arguments.store_iops;
    workload.store_bytes_per_s = arguments.store_bandwidth.map(|bytes| bytes as f64);
    workload.network_bytes_per_s = arguments.network.map(|bytes| bytes as f64);
    workload.cores = arguments.cores;
    Ok(workload)
}

/// The JSON object that `spdl plan --help` documents.
fn as_json(workload: &Workload, plan: &ClusterPlan, variations: &[(String, ClusterPlan)]) -> Value {
    let mut object = json!({"workload": workload});
    add(&mut object, json!(plan));
    object["verdict"] = verdict(workload, plan).into();
    let changed = variations.iter().map(|(change, plan)| {
        let mut object = json!({"change": change});
        add(&mut object, json!(plan));
        object
    });
    object["sensitivity"] = changed.collect();
    object
}

/// Adds the keys of `more` to `object`.
fn add(object: &mut Value, more: Value) {
    if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
        object.extend(more);
    }
}

fn as_text(
    workload: &Workload,
    plan: &ClusterPlan,
    variations: &[(String, ClusterPlan)],
) -> String {
    let mut parts = vec![wrap(&describe(workload), WIDTH), needs(workload, plan)];
    if !plan.uses.is_empty() {
        parts.push(capacities(plan));
    }
    parts.push(sensitivity(plan, variations));
    parts.push(wrap(&verdict(workload, plan), WIDTH));
    parts.join("\n\n") + "\n"
}

/// The inputs in one line.
fn describe(workload: &Workload) -> String {
    let mut text = format!(
        "{} on {}, batches of {}, {} per step; samples of {}",
        counted(workload.devices, "device", "devices"),
        counted(workload.hosts, "host", "hosts"),
        count(workload.batch_size as u64),
        time(workload.step_time),
        bytes(workload.sample_bytes),
    );
    let times = [(workload.cpu_time, "of CPU time"), (workload.latency, "per request")];
    for (value, name) in times {
        if let Some(value) = value {
            let _ = write!(text, ", {} {name}", time(value));
        }
    }
    if workload.cache_share > 0.0 {
        let _ = write!(text, ", {} from a cache", percent(workload.cache_share));
    }
    text
}

fn rate_of_bytes(value: f64) -> String {
    format!("{}/s", bytes(value as u64))
}

fn known(value: Option<f64>) -> String {
    value.map_or_else(|| "unknown".to_owned(), measured)
}

fn needs(workload: &Workload, plan: &ClusterPlan) -> String {
    let (total, host) = (&plan.total, &plan.host);
    let mut table = Table::new(&["needed", "total", "per host"], 1);
    let mut add = |name: &str, total: String, host: String| {
        table.add([name.to_owned(), total, host]);
    };
    add("samples/s", measured(total.samples_per_s), measured(host.samples_per_s));
    add("requests/s", measured(total.requests_per_s), measured(host.requests_per_s));
    add("bandwidth", rate_of_bytes(total.bytes_per_s), rate_of_bytes(host.bytes_per_s));
    add("requests in flight", known(total.in_flight), known(host.in_flight));
    add("cores", known(total.cores), known(host.cores));
    let times_hosts = |value: u64| bytes(value.saturating_mul(workload.hosts));
    let memory = plan.host_memory_bytes;
    add("memory", times_hosts(memory), bytes(memory));
    if let Some(cache) = plan.host_cache_bytes.filter(|&bytes| bytes > 0) {
        add("cache", times_hosts(cache), bytes(cache));
    }
    let mut text = table.draw();
    if let (Some(size), Some(epoch), Some(shards)) = (plan.dataset_bytes, plan.epoch, plan.shards) {
        let _ = write!(
            text,
            "\n\n{}: {}, {} per epoch; as tar shards: {} of {}",
            counted(workload.samples.unwrap_or_default(), "sample", "samples"),
            bytes(size),
            seconds(epoch.as_secs_f64()),
            count(shards.count),
            bytes(shards.bytes),
        );
    }
    text
}

fn capacities(plan: &ClusterPlan) -> String {
    let mut table = Table::new(&["capacity", "needed", "available", "used"], 1);
    for used in &plan.uses {
        let show = |value: f64| amount(used, value);
        let row = [used.resource.to_string(), show(used.needed), show(used.available)];
        table.add([&row[..], &[percent(used.share())]].concat());
    }
    table.draw()
}

/// A need or a capacity with its unit.
fn amount(used: &PlannedUse, value: f64) -> String {
    match used.resource {
        PlanLimit::Network | PlanLimit::StoreBandwidth => rate_of_bytes(value),
        _ => measured(value),
    }
}

/// The needs after a change of one input.
fn sensitivity(plan: &ClusterPlan, variations: &[(String, ClusterPlan)]) -> String {
    let is_limited = !plan.uses.is_empty();
    let mut header = vec!["with", "requests/s", "bandwidth", "in flight", "cores/host"];
    header.extend(if is_limited { &["reached/s", "limit"][..] } else { &["memory/host"] });
    let mut table = Table::new(&header, 1);
    let present = [("these inputs".to_owned(), plan.clone())];
    for (change, plan) in present.iter().chain(variations) {
        let mut row = vec![
            change.clone(),
            measured(plan.total.requests_per_s),
            rate_of_bytes(plan.total.bytes_per_s),
            known(plan.total.in_flight),
            known(plan.host.cores),
        ];
        if is_limited {
            row.extend([measured(plan.reached_samples_per_s), short(plan.limited_by).to_owned()]);
        } else {
            row.push(bytes(plan.host_memory_bytes));
        }
        table.add(row);
    }
    table.draw()
}

/// A limit as a cell of a table.
fn short(limit: PlanLimit) -> &'static str {
    match limit {
        PlanLimit::Cores => "cores",
        PlanLimit::Network => "network",
        PlanLimit::StoreBandwidth => "bandwidth",
        PlanLimit::StoreRequests => "requests/s",
        _ => "step",
    }
}

/// Sentences about the limit, the balance of cores and network, and the cache.
fn verdict(workload: &Workload, plan: &ClusterPlan) -> String {
    let mut sentences = Vec::new();
    let limit = plan.uses.iter().find(|used| used.resource == plan.limited_by);
    match limit {
        Some(used) => {
            let place = match used.resource {
                PlanLimit::Cores | PlanLimit::Network => "each host",
                _ => "the training",
            };
            sentences.push(format!(
                "Training waits for the {}: {place} needs {} and has {}, so training reaches {} of its rate, {} \
                 samples/s.",
                used.resource,
                amount(used, used.needed),
                amount(used, used.available),
                percent(plan.reached_samples_per_s / plan.total.samples_per_s),
                measured(plan.reached_samples_per_s),
            ));
        }
        None if plan.uses.is_empty() => sentences.push(
            "To learn what limits the training, add --cores, --network, --store-bandwidth or --store-iops."
                .to_owned(),
        ),
        None => {
            let most = plan.uses.iter().max_by(|a, b| a.share().total_cmp(&b.share()));
            let next = most.map_or_else(String::new, |most| {
                format!(" The next limit is the {}, used to {}.", most.resource, percent(most.share()))
            });
            sentences.push(format!("Training does not wait for data.{next}"));
        }
    }
    if let Some(per_core) = plan.bytes_per_core_s {
        let network = workload.network_bytes_per_s.unwrap_or(1.25e9);
        sentences.push(format!(
            "One core decodes {}, so a network of {} feeds {} cores.",
            rate_of_bytes(per_core),
            rate_of_bytes(network),
            count((network / per_core) as u64),
        ));
    }
    if plan.needed_cache_share > 0.0 {
        let size =
            plan.needed_cache_bytes.map_or_else(String::new, |it| format!(", {}", bytes(it)));
        sentences.push(format!(
            "With a cache for {} % of the samples on each host{size}, store and network suffice after the first \
             epoch.",
            (plan.needed_cache_share * 100.0).ceil(),
        ));
    }
    sentences.join(" ")
}
