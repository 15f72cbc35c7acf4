//! g7: memory leaks of opened devices, of uploads, and of killed processes.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use spdl_core::{Device, ErrorKind};
use spdl_cuda::{CudaDevice, NvJpeg};

use crate::Outcome;
use crate::copies::message;
use crate::images::{jpegs, resident_bytes};
use crate::lines::Measurement;
use crate::raw::Driver;

const MIB: f64 = (1 << 20) as f64;

/// Memory that the driver itself may keep, in MiB.
const MAX_DRIFT: f64 = 16.0;

pub(crate) fn measure(measurement: &Measurement) -> Outcome {
    // Keeps the primary context alive, so that only objects of the crate are created and dropped.
    let driver = Driver::open()?;
    let tiny = measurement.size.is_tiny();
    let (starts, batches, decodes) = if tiny { (20, 50, 10) } else { (2000, 20_000, 20_000) };
    drift(measurement, &driver, "devices opened and dropped", starts, 0.3, |number| {
        let device = CudaDevice::open(0).map_err(message)?;
        upload(&device, number)
    })?;
    let device = CudaDevice::open(0).map_err(message)?;
    drift(measurement, &driver, "uploads", batches, 0.5, |number| upload(&device, number))?;
    match (NvJpeg::new(&device), jpegs()) {
        (Ok(mut decoder), Ok(images)) => {
            drift(measurement, &driver, "JPEGs decoded", decodes, 0.75, |number| {
                let image = images[number % images.len()].clone();
                decoder.decode(&[image]).map(drop).map_err(message)
            })?;
        }
        (Err(error), _) if error.kind() == ErrorKind::Unsupported => {
            measurement.unsupported("JPEGs decoded", &error.report());
        }
        (Err(error), _) => return Err(message(error)),
        (_, Err(reason)) => measurement.unsupported("JPEGs decoded", &reason),
    }
    drop(device);
    killed(measurement, &driver)?;
    sanitizer(measurement)
}

fn upload(device: &CudaDevice, number: usize) -> Outcome {
    let bytes = (64 << 10) << (number % 4);
    let buffer = device.host_buffer(bytes).map_err(message)?;
    device.upload(buffer).map_err(message)?.ready.wait().map_err(message)
}

/// Repeats `work`, and compares the memory in use at the end with the memory in use after the first
/// tenth.
fn drift(
    measurement: &Measurement,
    driver: &Rc<Driver>,
    what: &str,
    times: usize,
    until: f64,
    mut work: impl FnMut(usize) -> Outcome,
) -> Outcome {
    let warm = times / 10;
    let mut before = None;
    let mut done = 0;
    while done < times && !(measurement.is_over(until) && done > warm) {
        work(done)?;
        done += 1;
        if done == warm {
            driver.synchronize()?;
            before = Some((driver.free_memory()?, resident_bytes()));
        }
    }
    driver.synchronize()?;
    let (Some((device, host)), free) = (before, driver.free_memory()?) else {
        return Err(format!("{what}: out of time before the warm-up of {warm} ended"));
    };
    let device = (device as f64 - free as f64) / MIB;
    measurement.figure(what, "repetitions", done as f64, "");
    measurement.figure(what, "growth of device memory", device, "MiB");
    if let (Some(before), Some(after)) = (host, resident_bytes()) {
        let host = (after as f64 - before as f64) / MIB;
        measurement.figure(what, "growth of host memory", host, "MiB");
    }
    measurement.promise(
        &format!("G9: {what}"),
        device <= MAX_DRIFT,
        &format!("{device:.1} MiB more after {done} repetitions"),
        &format!("at most {MAX_DRIFT:.0} MiB, which the driver may keep"),
    );
    Ok(())
}

/// The device memory of a killed process is released.
fn killed(measurement: &Measurement, driver: &Driver) -> Outcome {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let before = driver.free_memory()?;
    let mut child = Command::new(program)
        .args(["exit", "wait"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        let _ = std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line);
    }
    let during = driver.free_memory()?;
    child.kill().and_then(|()| child.wait()).map_err(|error| error.to_string())?;
    let start = Instant::now();
    let mut after = driver.free_memory()?;
    while before > after + 16 * MIB as usize && start.elapsed() < Duration::from_secs(5) {
        thread::sleep(Duration::from_millis(10));
        after = driver.free_memory()?;
    }
    let leaked = (before as f64 - after as f64) / MIB;
    let used = (before as f64 - during as f64) / MIB;
    measurement.figure("killed process", "device memory before", used, "MiB");
    measurement.promise(
        "the memory of a killed process is released",
        line.trim() == "waiting" && leaked <= MAX_DRIFT,
        &format!("{leaked:.1} MiB leaked"),
        &format!("at most {MAX_DRIFT:.0} MiB"),
    );
    Ok(())
}

/// Runs tests under NVIDIA's compute-sanitizer, if it is installed and time is left.
fn sanitizer(measurement: &Measurement) -> Outcome {
    let case = "tests under compute-sanitizer";
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let tests = program.parent().unwrap_or(Path::new(".")).join("tests").join("gpu");
    for tool in ["memcheck", "racecheck"] {
        let spawned = Command::new("compute-sanitizer")
            .args(["--tool", tool, "--error-exitcode", "7"])
            .arg(&tests)
            .args(["--test-threads=1", "downloads_equal", "delayed_consumers", "custom_allocator"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => {
                measurement.unsupported(case, &error.to_string());
                return Ok(());
            }
        };
        // The output fits the buffer of the pipe, so the output is read at the end.
        while child.try_wait().map_err(|error| error.to_string())?.is_none() {
            if measurement.is_over(1.0) {
                let _ = child.kill();
                let _ = child.wait();
                measurement.unsupported(&format!("{case}, {tool}"), "killed: out of time");
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let summary = text.lines().rev().find(|line| line.contains("SUMMARY"));
        let summary = summary.unwrap_or("no summary").trim_matches(|c| c == '=' || c == ' ');
        let is_clean = output.status.success();
        let failed = if is_clean { "" } else { "; the tests failed" };
        measurement.promise(
            &format!("{case}, {tool}"),
            is_clean,
            &format!("{summary}{failed}"),
            "no errors",
        );
    }
    Ok(())
}
