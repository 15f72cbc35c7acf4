//! Ways for a process to end while it has a device: what its exit looks like from outside.

use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use spdl_core::Device;
use spdl_cuda::CudaDevice;

use crate::consumer::Kernels;
use crate::copies::{own, said};
use crate::raw::{Driver, HostKind};

/// The ways, and with what code a process ends by each.
pub(crate) const WAYS: [(&str, i32); 6] =
    [("normal", 0), ("failure", 1), ("held", 0), ("exit", 3), ("panic", 101), ("lost", 0)];

/// In the process that is to end so.
pub(crate) fn end(way: &str) -> ExitCode {
    match ends(way) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(42)
        }
    }
}

fn ends(way: &str) -> Result<ExitCode, String> {
    if way == "no-device" {
        return no_device();
    }
    let device = CudaDevice::open(0).map_err(said)?;
    let mut buffer = device.host_buffer(4 << 20).map_err(said)?;
    buffer.fill(7);
    let batch = own(device.upload(buffer).map_err(said)?.memory)?;
    match way {
        "normal" => Ok(ExitCode::SUCCESS),
        "failure" => Ok(ExitCode::FAILURE),
        "held" => {
            std::mem::forget((batch, device));
            Ok(ExitCode::SUCCESS)
        }
        "exit" => std::process::exit(3),
        #[expect(clippy::panic, reason = "that is what is to be seen")]
        "panic" => panic!("a panic on purpose"),
        "lost" => lost(&device),
        "wait" => {
            println!("waiting");
            thread::sleep(Duration::from_secs(600));
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(format!("{way:?} is no way to end")),
    }
}

/// A kernel of somebody else has spoilt the device for this process: each call says so, and nothing
/// else happens.
fn lost(device: &CudaDevice) -> Result<ExitCode, String> {
    let driver = Driver::open()?;
    let stream = driver.stream()?;
    Kernels::load(&driver)?.fault(&stream)?;
    if stream.synchronize().is_ok() {
        return Err("the kernel has done no harm".to_owned());
    }
    let host = driver.host(1, HostKind::Pageable).is_ok();
    let buffer = device.host_buffer(1 << 20);
    let told = match buffer.and_then(|buffer| device.upload(buffer)) {
        Err(error) => error,
        Ok(_) => return Err("a batch was sent to a device that is lost".to_owned()),
    };
    if told.is_fatal() && host && told.report().contains("restart") {
        Ok(ExitCode::SUCCESS)
    } else {
        Err(format!("it is not told that the device is lost: {}", told.report()))
    }
}

/// With no device to be seen there is an error that says so.
fn no_device() -> Result<ExitCode, String> {
    match CudaDevice::open(0) {
        Err(error) if error.kind() == spdl_core::ErrorKind::Unsupported => {
            println!("{}", error.report());
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => Err(format!("another kind of error: {}", error.report())),
        Ok(_) => Err("there is a device".to_owned()),
    }
}

/// This program, ending so.
pub(crate) fn command(way: &str) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["exit", way]);
    Ok(command)
}
