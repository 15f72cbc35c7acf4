//! g8: faults on purpose, each of which has to end in a typed error, or in nothing at all.

use std::time::Instant;

use spdl_core::{Device, ErrorKind};
use spdl_cuda::CudaDevice;

use crate::Outcome;
use crate::copies::{median, said};
use crate::exits::{WAYS, command};
use crate::lines::Measuring;
use crate::raw::Driver;

pub(crate) fn measure(measuring: &Measuring) -> Outcome {
    // Its own context holds the device's memory of this process, and captures.
    let driver = Driver::open()?;
    out_of_memory(measuring, &driver)?;
    captured_graph(measuring, &driver)?;
    no_device(measuring)?;
    exits(measuring)
}

/// G11: where the device is full, that is an error with its kind, and the next batch goes through.
fn out_of_memory(measuring: &Measuring, driver: &std::rc::Rc<Driver>) -> Outcome {
    let device = CudaDevice::open(0).map_err(said)?;
    let bytes = 64 << 20;
    let buffer = device.host_buffer(bytes).map_err(said)?;
    let mut taken = Vec::new();
    let mut piece = driver.free_memory()?;
    while piece > 1 << 20 {
        match driver.memory(piece) {
            Ok(memory) => taken.push(memory),
            Err(_) => piece /= 2,
        }
        if taken.len() > 1000 {
            measuring.unsupported("G11: a full device", "this device is never full");
            return Ok(());
        }
    }
    let found = match device.upload(buffer) {
        Ok(_) => "it was sent".to_owned(),
        Err(error) if error.kind() == ErrorKind::LimitExceeded && !error.is_fatal() => {
            "LimitExceeded".to_owned()
        }
        Err(error) => error.report(),
    };
    drop(taken);
    let next = device.host_buffer(bytes).and_then(|buffer| device.upload(buffer)?.ready.wait());
    let went_on = next.is_ok();
    measuring.promise(
        "G11: a batch for which the device has no memory",
        found == "LimitExceeded" && went_on,
        &format!("{found}; the next one {}", if went_on { "went through" } else { "did not" }),
        "LimitExceeded; the next one went through",
    );
    Ok(())
}

/// A graph that this thread captures is not broken off by batches.
fn captured_graph(measuring: &Measuring, driver: &std::rc::Rc<Driver>) -> Outcome {
    let device = CudaDevice::open(0).map_err(said)?;
    // What a first batch allocates would break it off; a training loop has had some before.
    let send =
        || device.host_buffer(1 << 20).and_then(|buffer| device.upload(buffer)?.ready.wait());
    send().map_err(said)?;
    let stream = driver.stream()?;
    stream.begin_capture()?;
    let sent = send();
    let ended = stream.end_capture();
    let found = match (&sent, &ended) {
        (Ok(()), Ok(())) => "both went on".to_owned(),
        (Err(error), _) => error.report(),
        (_, Err(error)) => format!("the capture was broken off: {error}"),
    };
    measuring.promise(
        "a batch while a graph is captured",
        sent.is_ok() && ended.is_ok(),
        &found,
        "both went on",
    );
    Ok(())
}

/// G10: where no device may be seen, an error that says so.
fn no_device(measuring: &Measuring) -> Outcome {
    let mut command = command("no-device")?;
    let output = command.env("CUDA_VISIBLE_DEVICES", "").output();
    let output = output.map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_owned();
    measuring.promise(
        "G10: with CUDA_VISIBLE_DEVICES empty",
        output.status.success(),
        &said,
        "an error of kind Unsupported",
    );
    Ok(())
}

/// G12: processes end with their own code, and by no signal.
fn exits(measuring: &Measuring) -> Outcome {
    let times = if measuring.size.is_tiny() { 2 } else { 200 / WAYS.len() };
    for (at, (way, wanted)) in WAYS.into_iter().enumerate() {
        let mut wrong = Vec::new();
        let mut seconds = Vec::new();
        while seconds.len() < times {
            if measuring.is_over((at + 1) as f64 / WAYS.len() as f64) && !seconds.is_empty() {
                break;
            }
            let start = Instant::now();
            let output = command(way)?.output().map_err(|error| error.to_string())?;
            seconds.push(start.elapsed().as_secs_f64());
            if output.status.code() != Some(wanted) {
                let said = String::from_utf8_lossy(&output.stderr);
                wrong.push(format!("{}: {}", output.status, said.trim()));
            }
        }
        let count = seconds.len();
        let case = format!("a process that ends: {way}");
        // Opening the device is most of it: the driver's part is not ours to promise.
        measuring.figure(&case, "start to end, median", median(seconds) * 1e3, "ms");
        measuring.promise(
            &format!("G12: {way}, {count} times"),
            wrong.is_empty(),
            &wrong.first().cloned().unwrap_or_else(|| format!("code {wanted}")),
            &format!("code {wanted}"),
        );
    }
    Ok(())
}
