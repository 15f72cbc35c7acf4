//! g8: injected faults. Each must cause a typed error, or no error at all.

use std::time::Instant;

use spdl_core::{Device, ErrorKind};
use spdl_cuda::CudaDevice;

use crate::Outcome;
use crate::copies::{median, message};
use crate::exits::{EXIT_MODES, command};
use crate::lines::Measurement;
use crate::raw::Driver;

pub(crate) fn measure(measurement: &Measurement) -> Outcome {
    // Occupies device memory and captures graphs, independently of the crate.
    let driver = Driver::open()?;
    out_of_memory(measurement, &driver)?;
    captured_graph(measurement, &driver)?;
    no_device(measurement)?;
    exits(measurement)
}

/// G11: an upload without free device memory fails with `LimitExceeded`, and the next upload
/// succeeds.
fn out_of_memory(measurement: &Measurement, driver: &std::rc::Rc<Driver>) -> Outcome {
    let device = CudaDevice::open(0).map_err(message)?;
    let bytes = 64 << 20;
    let buffer = device.host_buffer(bytes).map_err(message)?;
    let mut taken = Vec::new();
    let mut piece = driver.free_memory()?;
    while piece > 1 << 20 {
        match driver.memory(piece) {
            Ok(memory) => taken.push(memory),
            Err(_) => piece /= 2,
        }
        if taken.len() > 1000 {
            let reason = "device memory is not exhausted after 1,000 allocations";
            measurement.unsupported("G11: exhausted device memory", reason);
            return Ok(());
        }
    }
    let found = match device.upload(buffer) {
        Ok(_) => "the upload succeeded".to_owned(),
        Err(error) if error.kind() == ErrorKind::LimitExceeded && !error.is_fatal() => {
            "LimitExceeded".to_owned()
        }
        Err(error) => error.report(),
    };
    drop(taken);
    let next = device.host_buffer(bytes).and_then(|buffer| device.upload(buffer)?.ready.wait());
    let recovers = next.is_ok();
    measurement.promise(
        "G11: an upload without free device memory",
        found == "LimitExceeded" && recovers,
        &format!("{found}; the next upload {}", if recovers { "succeeds" } else { "fails" }),
        "LimitExceeded; the next upload succeeds",
    );
    Ok(())
}

/// An upload does not invalidate a graph capture of this thread.
fn captured_graph(measurement: &Measurement, driver: &std::rc::Rc<Driver>) -> Outcome {
    let device = CudaDevice::open(0).map_err(message)?;
    // The allocations of a first upload would invalidate the capture.
    let upload =
        || device.host_buffer(1 << 20).and_then(|buffer| device.upload(buffer)?.ready.wait());
    upload().map_err(message)?;
    let stream = driver.stream()?;
    stream.begin_capture()?;
    let uploaded = upload();
    let captured = stream.end_capture();
    let found = match (&uploaded, &captured) {
        (Ok(()), Ok(())) => "both succeed".to_owned(),
        (Err(error), _) => error.report(),
        (_, Err(error)) => format!("the capture was invalidated: {error}"),
    };
    measurement.promise(
        "an upload during a graph capture",
        uploaded.is_ok() && captured.is_ok(),
        &found,
        "both succeed",
    );
    Ok(())
}

/// G10: without a visible device, the error is `Unsupported`.
fn no_device(measurement: &Measurement) -> Outcome {
    let mut command = command("no-device")?;
    let output = command.env("CUDA_VISIBLE_DEVICES", "").output();
    let output = output.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_owned();
    measurement.promise(
        "G10: CUDA_VISIBLE_DEVICES is empty",
        output.status.success(),
        &text,
        "an error of kind Unsupported",
    );
    Ok(())
}

/// G12: processes end with their exit status, not by a signal.
fn exits(measurement: &Measurement) -> Outcome {
    let times = if measurement.size.is_tiny() { 2 } else { 200 / EXIT_MODES.len() };
    for (at, (mode, expected)) in EXIT_MODES.into_iter().enumerate() {
        let mut failures = Vec::new();
        let mut seconds = Vec::new();
        while seconds.len() < times {
            let share = (at + 1) as f64 / EXIT_MODES.len() as f64;
            if measurement.is_over(share) && !seconds.is_empty() {
                break;
            }
            let start = Instant::now();
            let output = command(mode)?.output().map_err(|error| error.to_string())?;
            seconds.push(start.elapsed().as_secs_f64());
            if output.status.code() != Some(expected) {
                let text = String::from_utf8_lossy(&output.stderr);
                failures.push(format!("{}: {}", output.status, text.trim()));
            }
        }
        let count = seconds.len();
        let case = format!("exit: {mode}");
        // Without a promise: the driver spends most of this time in opening the device.
        measurement.figure(&case, "start to end, median", median(seconds) * 1e3, "ms");
        measurement.promise(
            &format!("G12: {mode}, {count} times"),
            failures.is_empty(),
            &failures.first().cloned().unwrap_or_else(|| format!("exit status {expected}")),
            &format!("exit status {expected}"),
        );
    }
    Ok(())
}
