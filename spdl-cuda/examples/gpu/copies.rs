//! g1: copies between host and device, by direct driver calls and by `CudaDevice`.

use std::collections::VecDeque;
use std::env;
use std::fs;
use std::process::Command;
use std::rc::Rc;
use std::time::Instant;

use spdl_core::Device;
use spdl_core::memory::{DeviceMemory, Fence};
use spdl_cuda::runtime::Download;
use spdl_cuda::{CudaDevice, CudaMemory};

use crate::Outcome;
use crate::lines::{Measurement, Size};
use crate::machine::pci_attribute;
use crate::raw::{Driver, Host, HostKind, Raw};

const MIB: usize = 1 << 20;

const KINDS: [(HostKind, &str); 4] = [
    (HostKind::Allocated, "pinned by cuMemHostAlloc"),
    (HostKind::Registered, "pinned by cuMemHostRegister"),
    (HostKind::WriteCombined, "pinned, write-combined"),
    (HostKind::Pageable, "pageable"),
];

/// The number of copies of `CudaDevice` in flight, as in a pipeline.
const IN_FLIGHT: usize = 4;

/// The number of measured rounds of each case, after a warm-up round. The median is reported.
fn repeats(size: Size) -> usize {
    if size.is_tiny() { 1 } else { 5 }
}

fn sizes(size: Size) -> Vec<usize> {
    match size {
        Size::Tiny => vec![4096, 64 << 10],
        Size::Full => [1, 4, 16, 64, 256, 1024, 4096, 16384].map(|of| of * (64 << 10)).to_vec(),
    }
}

/// The number of copies in a round: enough that the duration can be measured.
fn copies_of(bytes: usize, size: Size) -> usize {
    if size.is_tiny() { 2 } else { ((512 * MIB) / bytes).clamp(4, 4096) }
}

pub(crate) fn measure(measurement: &Measurement) -> Outcome {
    let driver = Driver::open()?;
    if env::var_os(ON_NODE).is_some() {
        return raw_copies(measurement, &driver, 64 * MIB).map(|_| ());
    }
    bus(measurement, &driver)?;
    cost_of_pinning(measurement, &driver)?;
    for bytes in sizes(measurement.size) {
        // The largest copies take about half of the time of all.
        if measurement.is_over(0.5) {
            measurement.note("some sizes were not measured: out of time");
            break;
        }
        let raw = raw_copies(measurement, &driver, bytes)?;
        promises(measurement, bytes, raw, &crate_copies(measurement, &driver, bytes)?);
    }
    Ok(())
}

/// Prints the PCI link and the NUMA node of the device. On a host with several nodes, measures each
/// node.
fn bus(measurement: &Measurement, driver: &Driver) -> Outcome {
    let address = driver.pci_address()?;
    let of = |what| pci_attribute(&address, what).unwrap_or_else(|| "unknown".to_owned());
    measurement.note(&format!(
        "bus {address}: {} x{} now, {} x{} at most; NUMA node {}; nodes of the host: {}; driver \
         {}",
        of("current_link_speed"),
        of("current_link_width"),
        of("max_link_speed"),
        of("max_link_width"),
        of("numa_node"),
        nodes().len(),
        driver.version()?,
    ));
    let nodes = nodes();
    if nodes.len() < 2 {
        measurement.unsupported("host memory on each NUMA node", "the host has one NUMA node");
        return Ok(());
    }
    for (node, cpus) in nodes {
        on_node(measurement, &node, &cpus);
    }
    Ok(())
}

/// The NUMA nodes of the host, each with its CPUs.
fn nodes() -> Vec<(String, String)> {
    let folders = fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    let mut nodes: Vec<(String, String)> = folders
        .filter_map(|folder| {
            let name = folder.file_name().into_string().ok()?;
            name.strip_prefix("node")?.parse::<u32>().ok()?;
            let cpus = fs::read_to_string(folder.path().join("cpulist")).ok()?;
            Some((name, cpus.trim().to_owned()))
        })
        .filter(|(_, cpus)| !cpus.is_empty())
        .collect();
    nodes.sort();
    nodes
}

/// The environment variable that is set in processes that measure the memory of one NUMA node.
const ON_NODE: &str = "SPDL_GPU_ON_NODE";

/// Measures one size in a process that is bound to the CPUs of a NUMA node, so that the memory of
/// the process is allocated on that node.
fn on_node(measurement: &Measurement, node: &str, cpus: &str) {
    let case = format!("host memory on NUMA {node}");
    let Ok(program) = env::current_exe() else { return };
    let run = Command::new("taskset")
        .args(["--cpu-list", cpus])
        .arg(program)
        .args(["measure", "g1", "10", measurement.size.word()])
        .env(ON_NODE, "1")
        .output();
    let output = match run {
        Ok(output) if output.status.success() => output.stdout,
        Ok(output) => {
            let reason = String::from_utf8_lossy(&output.stderr);
            return measurement.unsupported(&case, reason.trim());
        }
        Err(error) => return measurement.unsupported(&case, &format!("taskset: {error}")),
    };
    for line in String::from_utf8_lossy(&output).lines() {
        let Ok(line) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        if let (Some(of), Some(value)) = (line["case"].as_str(), line["value"].as_f64())
            && line["name"] == "rate"
        {
            measurement.figure(&format!("{case}: {of}"), "rate", value, "GB/s");
        }
    }
}

/// Measures the allocation and release of pinned memory.
fn cost_of_pinning(measurement: &Measurement, driver: &Rc<Driver>) -> Outcome {
    let bytes = if measurement.size.is_tiny() { MIB } else { 1024 * MIB };
    let gibibytes = bytes as f64 / (1024.0 * MIB as f64);
    for (kind, name) in &KINDS[..3] {
        let start = Instant::now();
        let host = driver.host(bytes, *kind)?;
        let made = start.elapsed();
        let start = Instant::now();
        drop(host);
        let per_gibibyte = |time: std::time::Duration| time.as_secs_f64() * 1e3 / gibibytes;
        // All kinds include zeroing.
        measurement.figure(name, "allocate and zero", per_gibibyte(made), "ms/GiB");
        measurement.figure(name, "free", per_gibibyte(start.elapsed()), "ms/GiB");
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Rates {
    to_device: f64,
    to_host: f64,
}

/// Measures direct driver calls. Returns the best rates of pinned memory over kinds and stream
/// counts.
fn raw_copies(measurement: &Measurement, driver: &Rc<Driver>, bytes: usize) -> Raw<Rates> {
    let mut best = Rates { to_device: 0.0, to_host: 0.0 };
    for (kind, name) in KINDS {
        for streams in [1, 2, 4] {
            if streams > 1 && kind != HostKind::Allocated {
                continue;
            }
            let case = format!("{}, {name}, {}", size_text(bytes), counted(streams, "stream"));
            let Rates { to_device, to_host } =
                raw_rates(driver, kind, bytes, streams, measurement.size)?;
            measurement.figure(&format!("to device, {case}"), "rate", to_device, "GB/s");
            measurement.figure(&format!("to host, {case}"), "rate", to_host, "GB/s");
            if kind != HostKind::Pageable {
                best.to_device = best.to_device.max(to_device);
                best.to_host = best.to_host.max(to_host);
            }
        }
    }
    Ok(best)
}

fn raw_rates(
    driver: &Rc<Driver>,
    kind: HostKind,
    bytes: usize,
    streams: usize,
    size: Size,
) -> Raw<Rates> {
    let streams = (0..streams).map(|_| driver.stream()).collect::<Raw<Vec<_>>>()?;
    // Two buffers per stream, so that no copy reads bytes that the last copy left in a cache. Large
    // buffers exceed the CPU caches.
    let places = if bytes < 512 * MIB { 2 * streams.len() } else { streams.len() };
    let host = (0..places).map(|_| driver.host(bytes, kind)).collect::<Raw<Vec<Host>>>()?;
    let device = (0..places).map(|_| driver.memory(bytes)).collect::<Raw<Vec<_>>>()?;
    let rate = |to_device: bool| -> Raw<f64> {
        let copy = |at: usize| {
            let (stream, place) = (&streams[at % streams.len()], at % places);
            if to_device {
                stream.to_device(&device[place], &host[place], bytes)
            } else {
                stream.to_host(&host[place], &device[place], bytes)
            }
        };
        let count = copies_of(bytes, size);
        let mut rates = Vec::new();
        // The first round is a warm-up.
        for _ in 0..=repeats(size) {
            let start = Instant::now();
            (0..count).try_for_each(copy)?;
            driver.synchronize()?;
            rates.push((count * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9);
        }
        Ok(median(rates[1..].to_vec()))
    };
    Ok(Rates { to_device: rate(true)?, to_host: rate(false)? })
}

/// The duration of the driver call that queues a copy to the device, in microseconds. As many copies
/// are in flight as in [`crate_uploads`].
fn raw_call_us(driver: &Rc<Driver>, bytes: usize, size: Size) -> Raw<f64> {
    let (stream, host) = (driver.stream()?, driver.host(bytes, HostKind::Registered)?);
    let device = driver.memory(bytes)?;
    let mut calls = Vec::new();
    for number in 0..copies_of(bytes, size).min(256) {
        let start = Instant::now();
        stream.to_device(&device, &host, bytes)?;
        calls.push(start.elapsed().as_secs_f64() * 1e6);
        if number % IN_FLIGHT == IN_FLIGHT - 1 {
            driver.synchronize()?;
        }
    }
    driver.synchronize()?;
    Ok(calls.iter().sum::<f64>() / calls.len() as f64)
}

struct CrateRates {
    rates: Rates,
    /// The duration of a call of `upload` in microseconds.
    call_us: f64,
    /// The duration of a direct driver call in microseconds.
    direct_call_us: f64,
}

/// Measures the copies of `CudaDevice`, as a pipeline makes them.
fn crate_copies(
    measurement: &Measurement,
    driver: &Rc<Driver>,
    bytes: usize,
) -> Result<CrateRates, String> {
    let device = CudaDevice::open(0).map_err(message)?;
    let (mut to_device, mut to_host, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..=repeats(measurement.size) {
        let (rate, call) = crate_uploads(&device, driver, bytes, measurement.size)?;
        to_device.push(rate);
        calls.push(call);
        to_host.push(crate_downloads(&device, driver, bytes, measurement.size)?);
    }
    // The first round allocates the buffers that the later rounds reuse.
    let rest = |values: Vec<f64>| median(values[1..].to_vec());
    let own = CrateRates {
        rates: Rates { to_device: rest(to_device), to_host: rest(to_host) },
        call_us: rest(calls),
        direct_call_us: raw_call_us(driver, bytes, measurement.size)?,
    };
    let case = format!("to device, {}", size_text(bytes));
    measurement.figure(&case, "time of a direct driver call", own.direct_call_us, "us");
    let case = format!("{}, CudaDevice", size_text(bytes));
    measurement.figure(&format!("to device, {case}"), "rate", own.rates.to_device, "GB/s");
    measurement.figure(&format!("to device, {case}"), "time of an upload call", own.call_us, "us");
    measurement.figure(&format!("to host, {case}"), "rate", own.rates.to_host, "GB/s");
    Ok(own)
}

fn crate_uploads(
    device: &CudaDevice,
    driver: &Driver,
    bytes: usize,
    size: Size,
) -> Result<(f64, f64), String> {
    let count = copies_of(bytes, size);
    let mut spent = 0.0;
    let mut in_flight = VecDeque::new();
    let start = Instant::now();
    for _ in 0..count {
        let buffer = device.host_buffer(bytes).map_err(message)?;
        let call = Instant::now();
        in_flight.push_back(device.upload(buffer).map_err(message)?.ready);
        spent += call.elapsed().as_secs_f64();
        wait_for_oldest(&mut in_flight)?;
    }
    driver.synchronize()?;
    let rate = (count * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9;
    Ok((rate, spent / count as f64 * 1e6))
}

/// Limits the number of copies in flight.
fn wait_for_oldest(in_flight: &mut VecDeque<Box<dyn Fence>>) -> Outcome {
    if in_flight.len() < IN_FLIGHT {
        return Ok(());
    }
    in_flight.pop_front().map_or(Ok(()), |oldest| oldest.wait().map_err(message))
}

fn crate_downloads(
    device: &CudaDevice,
    driver: &Driver,
    bytes: usize,
    size: Size,
) -> Result<f64, String> {
    let upload = device.upload(device.host_buffer(bytes).map_err(message)?).map_err(message)?;
    upload.ready.wait().map_err(message)?;
    let memory = cuda_memory(upload.memory)?;
    let count = copies_of(bytes, size);
    let start = Instant::now();
    let mut in_flight = VecDeque::new();
    for _ in 0..count {
        in_flight.push_back(memory.download(None).map_err(message)?);
        if in_flight.len() == IN_FLIGHT {
            in_flight.pop_front().map(Download::wait).transpose().map_err(message)?;
        }
    }
    for download in in_flight {
        download.wait().map_err(message)?;
    }
    driver.synchronize()?;
    Ok((count * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9)
}

/// G3: the rate is at least 97 % of the rate of direct driver calls for copies of 4 MiB or more,
/// and at least 90 % for smaller copies of 1 MiB or more. A call takes less than 10 µs more than a
/// direct call of the driver, which takes about 10 µs for large copies.
fn promises(measurement: &Measurement, bytes: usize, raw: Rates, own: &CrateRates) {
    let wanted = match bytes {
        bytes if measurement.size.is_tiny() || bytes < MIB => return,
        bytes if bytes < 4 * MIB => 0.90,
        _ => 0.97,
    };
    for (way, own, raw) in [
        ("to device", own.rates.to_device, raw.to_device),
        ("to host", own.rates.to_host, raw.to_host),
    ] {
        let share = own / raw;
        measurement.promise(
            &format!("G3: rate {way}, {}", size_text(bytes)),
            share >= wanted,
            &format!("{:.1} % of the best rate of direct driver calls", share * 100.0),
            &format!("{:.0} %", wanted * 100.0),
        );
    }
    let added = own.call_us - own.direct_call_us;
    measurement.promise(
        &format!("G3: time of an upload call, {}", size_text(bytes)),
        added < 10.0,
        &format!("{:.1} us, a direct driver call {:.1} us", own.call_us, own.direct_call_us),
        "less than 10 us more than a direct driver call",
    );
}

/// Downcasts device memory to [`CudaMemory`].
pub(crate) fn cuda_memory(memory: Box<dyn DeviceMemory>) -> Result<Box<CudaMemory>, String> {
    (memory as Box<dyn std::any::Any>)
        .downcast()
        .map_err(|_| "the memory does not belong to a CUDA device".to_owned())
}

pub(crate) fn message(error: spdl_core::Error) -> String {
    error.report()
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

pub(crate) fn size_text(bytes: usize) -> String {
    match bytes {
        _ if bytes >= MIB => format!("{} MiB", bytes / MIB),
        _ => format!("{} KiB", bytes / 1024),
    }
}

pub(crate) fn counted(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}
