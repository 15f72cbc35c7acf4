//! g7: what is left behind by devices that are opened and left, by batches, and by processes that die.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use spdl_core::{Device, ErrorKind};
use spdl_cuda::{CudaDevice, NvJpeg};

use crate::Outcome;
use crate::copies::said;
use crate::images::{jpegs, resident_bytes};
use crate::lines::Measuring;
use crate::raw::Driver;

const MIB: f64 = (1 << 20) as f64;

/// What the driver itself may keep for later, in mebibytes.
const MOST_DRIFT: f64 = 16.0;

pub(crate) fn measure(measuring: &Measuring) -> Outcome {
    // Its context stays, so that starts and stops are the crate's alone.
    let driver = Driver::open()?;
    let tiny = measuring.size.is_tiny();
    let (starts, batches, decodes) = if tiny { (20, 50, 10) } else { (2000, 20_000, 20_000) };
    drift(measuring, &driver, "devices opened and left", starts, 0.3, |number| {
        let device = CudaDevice::open(0).map_err(said)?;
        upload(&device, number)
    })?;
    let device = CudaDevice::open(0).map_err(said)?;
    drift(measuring, &driver, "batches sent", batches, 0.5, |number| upload(&device, number))?;
    match (NvJpeg::new(&device), jpegs()) {
        (Ok(mut decoder), Ok(images)) => {
            drift(measuring, &driver, "JPEGs decoded", decodes, 0.75, |number| {
                let image = images[number % images.len()].clone();
                decoder.decode(&[image]).map(drop).map_err(said)
            })?;
        }
        (Err(error), _) if error.kind() == ErrorKind::Unsupported => {
            measuring.unsupported("JPEGs decoded", &error.report());
        }
        (Err(error), _) => return Err(said(error)),
        (_, Err(reason)) => measuring.unsupported("JPEGs decoded", &reason),
    }
    drop(device);
    killed(measuring, &driver)?;
    sanitizer(measuring)
}

fn upload(device: &CudaDevice, number: usize) -> Outcome {
    let bytes = (64 << 10) << (number % 4);
    let buffer = device.host_buffer(bytes).map_err(said)?;
    device.upload(buffer).map_err(said)?.ready.wait().map_err(said)
}

/// Does something many times. Memory of the device and the host is what it was after the first tenth.
fn drift(
    measuring: &Measuring,
    driver: &Rc<Driver>,
    what: &str,
    times: usize,
    until: f64,
    mut work: impl FnMut(usize) -> Outcome,
) -> Outcome {
    let warm = times / 10;
    let mut before = None;
    let mut done = 0;
    while done < times && !(measuring.is_over(until) && done > warm) {
        work(done)?;
        done += 1;
        if done == warm {
            driver.synchronize()?;
            before = Some((driver.free_memory()?, resident_bytes()));
        }
    }
    driver.synchronize()?;
    let (Some((device, host)), free) = (before, driver.free_memory()?) else {
        return Err(format!("{what}: there was no time for {warm}"));
    };
    let device = (device as f64 - free as f64) / MIB;
    measuring.figure(what, "times", done as f64, "");
    measuring.figure(what, "memory of the device that is gone", device, "MiB");
    if let (Some(before), Some(after)) = (host, resident_bytes()) {
        let host = (after as f64 - before as f64) / MIB;
        measuring.figure(what, "memory of the host that is gone", host, "MiB");
    }
    measuring.promise(
        &format!("G9: {what}"),
        device <= MOST_DRIFT,
        &format!("{device:.1} MiB gone after {done}"),
        &format!("at most {MOST_DRIFT:.0} MiB, which is the driver's own"),
    );
    Ok(())
}

/// A process that is killed gives back what it had.
fn killed(measuring: &Measuring, driver: &Driver) -> Outcome {
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
    let gone = (before as f64 - after as f64) / MIB;
    let taken = (before as f64 - during as f64) / MIB;
    measuring.figure("a process that is killed", "memory that it had", taken, "MiB");
    measuring.promise(
        "a process that is killed gives its memory back",
        line.trim() == "waiting" && gone <= MOST_DRIFT,
        &format!("{gone:.1} MiB gone"),
        &format!("at most {MOST_DRIFT:.0} MiB"),
    );
    Ok(())
}

/// The tests under NVIDIA's checkers of memory, where there are some and there is time.
fn sanitizer(measuring: &Measuring) -> Outcome {
    let case = "the tests under compute-sanitizer";
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let tests = program.parent().unwrap_or(Path::new(".")).join("tests").join("gpu");
    for tool in ["memcheck", "racecheck"] {
        let spawned = Command::new("compute-sanitizer")
            .args(["--tool", tool, "--error-exitcode", "7"])
            .arg(&tests)
            .args(["--test-threads=1", "back"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => {
                measuring.unsupported(case, &error.to_string());
                return Ok(());
            }
        };
        // It says little, which waits for being read.
        while child.try_wait().map_err(|error| error.to_string())?.is_none() {
            if measuring.is_over(1.0) {
                let _ = child.kill();
                let _ = child.wait();
                measuring.unsupported(&format!("{case}, {tool}"), "it did not end in its time");
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let summary = text.lines().rev().find(|line| line.contains("SUMMARY"));
        measuring.promise(
            &format!("{case}, {tool}"),
            output.status.success(),
            summary.unwrap_or("no summary").trim_matches(|c| c == '=' || c == ' '),
            "no errors",
        );
    }
    Ok(())
}
