//! g1: copies between the host and the device, by the driver alone and by the crate.

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
use crate::lines::{Measuring, Size};
use crate::machine::of_bus;
use crate::raw::{Driver, Host, HostKind, Raw};

const MIB: usize = 1 << 20;

const KINDS: [(HostKind, &str); 4] = [
    (HostKind::Allocated, "pinned by cuMemHostAlloc"),
    (HostKind::Registered, "pinned by cuMemHostRegister"),
    (HostKind::WriteCombined, "pinned, write-combined"),
    (HostKind::Pageable, "pageable"),
];

/// How many copies of the crate are under way, as in a pipeline.
const AT_ONCE: usize = 4;

/// How often each case is measured; the median is told.
fn repeats(size: Size) -> usize {
    if size.is_tiny() { 1 } else { 5 }
}

fn sizes(size: Size) -> Vec<usize> {
    match size {
        Size::Tiny => vec![4096, 64 << 10],
        Size::Full => [1, 4, 16, 64, 256, 1024, 4096, 16384].map(|of| of * (64 << 10)).to_vec(),
    }
}

/// So many copies take long enough for a clock.
fn copies_of(bytes: usize, size: Size) -> usize {
    if size.is_tiny() { 2 } else { ((512 * MIB) / bytes).clamp(4, 4096) }
}

pub(crate) fn measure(measuring: &Measuring) -> Outcome {
    let driver = Driver::open()?;
    if env::var_os(ON_NODE).is_some() {
        return raw_copies(measuring, &driver, 64 * MIB).map(|_| ());
    }
    bus(measuring, &driver)?;
    cost_of_pinning(measuring, &driver)?;
    let mut best = Vec::new();
    for bytes in sizes(measuring.size) {
        let raw = raw_copies(measuring, &driver, bytes)?;
        best.push((bytes, raw, own_copies(measuring, &driver, bytes)?));
        if measuring.is_over(0.9) {
            measuring.note("the time was over before all sizes were measured");
            break;
        }
    }
    promises(measuring, &best);
    Ok(())
}

/// How the device is connected.
fn bus(measuring: &Measuring, driver: &Driver) -> Outcome {
    let address = driver.pci_address()?;
    let of = |what| of_bus(&address, what).unwrap_or_else(|| "unknown".to_owned());
    measuring.note(&format!(
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
        measuring.unsupported("memory of each NUMA node", "the host has one node");
        return Ok(());
    }
    for (node, cpus) in nodes {
        on_node(measuring, &node, &cpus);
    }
    Ok(())
}

/// The host's NUMA nodes, and the CPUs of each.
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

/// Set where a process measures one size for another one, on a node.
const ON_NODE: &str = "SPDL_GPU_ON_NODE";

/// One size, by a process whose threads, and so its memory, are on a node.
fn on_node(measuring: &Measuring, node: &str, cpus: &str) {
    let case = format!("memory of NUMA {node}");
    let Ok(program) = env::current_exe() else { return };
    let run = Command::new("taskset")
        .args(["--cpu-list", cpus])
        .arg(program)
        .args(["measure", "g1", "10", measuring.size.word()])
        .env(ON_NODE, "1")
        .output();
    let output = match run {
        Ok(output) if output.status.success() => output.stdout,
        Ok(output) => {
            let reason = String::from_utf8_lossy(&output.stderr);
            return measuring.unsupported(&case, reason.trim());
        }
        Err(error) => return measuring.unsupported(&case, &format!("taskset: {error}")),
    };
    for line in String::from_utf8_lossy(&output).lines() {
        let Ok(line) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        if let (Some(of), Some(value)) = (line["case"].as_str(), line["value"].as_f64())
            && line["name"] == "rate"
        {
            measuring.figure(&format!("{case}: {of}"), "rate", value, "GB/s");
        }
    }
}

/// What it costs to make host memory fit for copies, and to let it go.
fn cost_of_pinning(measuring: &Measuring, driver: &Rc<Driver>) -> Outcome {
    let bytes = if measuring.size.is_tiny() { MIB } else { 1024 * MIB };
    let gibibytes = bytes as f64 / (1024.0 * MIB as f64);
    for (kind, name) in &KINDS[..3] {
        let start = Instant::now();
        let host = driver.host(bytes, *kind)?;
        let made = start.elapsed();
        let start = Instant::now();
        drop(host);
        let per_gibibyte = |time: std::time::Duration| time.as_secs_f64() * 1e3 / gibibytes;
        // Zeroing is counted for all of them alike.
        measuring.figure(name, "allocate and zero", per_gibibyte(made), "ms/GiB");
        measuring.figure(name, "free", per_gibibyte(start.elapsed()), "ms/GiB");
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Rates {
    to_device: f64,
    to_host: f64,
}

/// The driver's copies of a size; the best rates among pinned memory and numbers of streams.
fn raw_copies(measuring: &Measuring, driver: &Rc<Driver>, bytes: usize) -> Raw<Rates> {
    let mut best = Rates { to_device: 0.0, to_host: 0.0 };
    for (kind, name) in KINDS {
        for streams in [1, 2, 4] {
            if streams > 1 && kind != HostKind::Allocated {
                continue;
            }
            let case = format!("{}, {name}, {}", shown(bytes), counted(streams, "stream"));
            let Rates { to_device, to_host } =
                raw_rates(driver, kind, bytes, streams, measuring.size)?;
            measuring.figure(&format!("to device, {case}"), "rate", to_device, "GB/s");
            measuring.figure(&format!("to host, {case}"), "rate", to_host, "GB/s");
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
    // Two of each, so that no copy is of what the last one has left in a cache; of the largest one.
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
        // The first round does not count.
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

struct Own {
    rates: Rates,
    /// What a call takes of the CPU's time, in microseconds.
    call_us: f64,
}

/// The crate's copies of a size, as pipelines make them.
fn own_copies(measuring: &Measuring, driver: &Driver, bytes: usize) -> Result<Own, String> {
    let device = CudaDevice::open(0).map_err(said)?;
    let (mut to_device, mut to_host, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..=repeats(measuring.size) {
        let (rate, call) = own_uploads(&device, driver, bytes, measuring.size)?;
        to_device.push(rate);
        calls.push(call);
        to_host.push(own_downloads(&device, driver, bytes, measuring.size)?);
    }
    // The first round has allocated what the others use again.
    let rest = |values: Vec<f64>| median(values[1..].to_vec());
    let own = Own {
        rates: Rates { to_device: rest(to_device), to_host: rest(to_host) },
        call_us: rest(calls),
    };
    let case = format!("{}, CudaDevice", shown(bytes));
    measuring.figure(&format!("to device, {case}"), "rate", own.rates.to_device, "GB/s");
    measuring.figure(&format!("to device, {case}"), "upload, a call", own.call_us, "us");
    measuring.figure(&format!("to host, {case}"), "rate", own.rates.to_host, "GB/s");
    Ok(own)
}

fn own_uploads(
    device: &CudaDevice,
    driver: &Driver,
    bytes: usize,
    size: Size,
) -> Result<(f64, f64), String> {
    let count = copies_of(bytes, size);
    let mut spent = 0.0;
    let mut under_way = VecDeque::new();
    let start = Instant::now();
    for _ in 0..count {
        let buffer = device.host_buffer(bytes).map_err(said)?;
        let call = Instant::now();
        under_way.push_back(device.upload(buffer).map_err(said)?.ready);
        spent += call.elapsed().as_secs_f64();
        wait_for_oldest(&mut under_way)?;
    }
    driver.synchronize()?;
    let rate = (count * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9;
    Ok((rate, spent / count as f64 * 1e6))
}

/// Leaves as many as a pipeline has on their way.
fn wait_for_oldest(under_way: &mut VecDeque<Box<dyn Fence>>) -> Outcome {
    if under_way.len() < AT_ONCE {
        return Ok(());
    }
    under_way.pop_front().map_or(Ok(()), |oldest| oldest.wait().map_err(said))
}

fn own_downloads(
    device: &CudaDevice,
    driver: &Driver,
    bytes: usize,
    size: Size,
) -> Result<f64, String> {
    let upload = device.upload(device.host_buffer(bytes).map_err(said)?).map_err(said)?;
    upload.ready.wait().map_err(said)?;
    let memory = own(upload.memory)?;
    let count = copies_of(bytes, size);
    let start = Instant::now();
    let mut under_way = VecDeque::new();
    for _ in 0..count {
        under_way.push_back(memory.download(None).map_err(said)?);
        if under_way.len() == AT_ONCE {
            under_way.pop_front().map(Download::wait).transpose().map_err(said)?;
        }
    }
    for download in under_way {
        download.wait().map_err(said)?;
    }
    driver.synchronize()?;
    Ok((count * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9)
}

/// G3: 97 % of the driver's rate from 4 MiB on, 90 % at 1 MiB, and less than 10 us for a call.
fn promises(measuring: &Measuring, best: &[(usize, Rates, Own)]) {
    for (bytes, raw, own) in best {
        let wanted = match *bytes {
            bytes if measuring.size.is_tiny() || bytes < MIB => continue,
            bytes if bytes < 4 * MIB => 0.90,
            _ => 0.97,
        };
        for (way, own, raw) in [
            ("to device", own.rates.to_device, raw.to_device),
            ("to host", own.rates.to_host, raw.to_host),
        ] {
            let share = own / raw;
            measuring.promise(
                &format!("G3: rate {way}, {}", shown(*bytes)),
                share >= wanted,
                &format!("{:.1} % of the driver's best", share * 100.0),
                &format!("{:.0} %", wanted * 100.0),
            );
        }
        measuring.promise(
            &format!("G3: a call, {}", shown(*bytes)),
            own.call_us < 10.0,
            &format!("{:.1} us", own.call_us),
            "less than 10 us",
        );
    }
}

/// The crate's own type of a device's memory.
pub(crate) fn own(memory: Box<dyn DeviceMemory>) -> Result<Box<CudaMemory>, String> {
    (memory as Box<dyn std::any::Any>)
        .downcast()
        .map_err(|_| "it is memory of another device".to_owned())
}

pub(crate) fn said(error: spdl_core::Error) -> String {
    error.report()
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

pub(crate) fn shown(bytes: usize) -> String {
    match bytes {
        _ if bytes >= MIB => format!("{} MiB", bytes / MIB),
        _ => format!("{} KiB", bytes / 1024),
    }
}

fn counted(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}
