//! Processes that end in different ways while they use a device, to check their exit status.

use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use spdl_core::Device;
use spdl_cuda::CudaDevice;

use crate::consumer::Kernels;
use crate::copies::{cuda_memory, message};
use crate::raw::{Driver, HostKind};

/// The tested ways in which a process ends, with the expected exit status.
pub(crate) const EXIT_MODES: [(&str, i32); 6] =
    [("normal", 0), ("failure", 1), ("held", 0), ("exit", 3), ("panic", 101), ("lost", 0)];

/// Ends this process in the way that `mode` names.
pub(crate) fn run(mode: &str) -> ExitCode {
    match try_run(mode) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(42)
        }
    }
}

fn try_run(mode: &str) -> Result<ExitCode, String> {
    if mode == "no-device" {
        return no_device();
    }
    let device = CudaDevice::open(0).map_err(message)?;
    let mut buffer = device.host_buffer(4 << 20).map_err(message)?;
    buffer.fill(7);
    let batch = cuda_memory(device.upload(buffer).map_err(message)?.memory)?;
    match mode {
        "normal" => Ok(ExitCode::SUCCESS),
        "failure" => Ok(ExitCode::FAILURE),
        "held" => {
            std::mem::forget((batch, device));
            Ok(ExitCode::SUCCESS)
        }
        "exit" => std::process::exit(3),
        #[expect(clippy::panic, reason = "tests the exit status of a panic")]
        "panic" => panic!("deliberate panic"),
        "lost" => lost(&device),
        "wait" => {
            println!("waiting");
            thread::sleep(Duration::from_secs(600));
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(format!("unknown exit mode {mode:?}")),
    }
}

/// After an illegal memory access by another kernel, the context is unusable: an upload must return
/// a fatal error.
fn lost(device: &CudaDevice) -> Result<ExitCode, String> {
    let driver = Driver::open()?;
    let stream = driver.stream()?;
    Kernels::load(&driver)?.fault(&stream)?;
    if stream.synchronize().is_ok() {
        return Err("the faulty kernel succeeded".to_owned());
    }
    let host = driver.host(1, HostKind::Pageable).is_ok();
    let buffer = device.host_buffer(1 << 20);
    let error = match buffer.and_then(|buffer| device.upload(buffer)) {
        Err(error) => error,
        Ok(_) => return Err("an upload succeeded after the kernel fault".to_owned()),
    };
    if error.is_fatal() && host && error.report().contains("restart") {
        Ok(ExitCode::SUCCESS)
    } else {
        Err(format!(
            "no fatal error that requests a restart, or no host memory: {}",
            error.report()
        ))
    }
}

/// Without a visible device, opening a device must fail with `Unsupported`.
fn no_device() -> Result<ExitCode, String> {
    match CudaDevice::open(0) {
        Err(error) if error.kind() == spdl_core::ErrorKind::Unsupported => {
            println!("{}", error.report());
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => Err(format!("unexpected kind of error: {}", error.report())),
        Ok(_) => Err("a device was opened".to_owned()),
    }
}

/// The command for a process that ends in the way that `mode` names.
pub(crate) fn command(mode: &str) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["exit", mode]);
    Ok(command)
}
