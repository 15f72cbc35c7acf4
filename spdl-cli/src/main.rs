//! The program `spdl`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    spdl_cli::restart_with_allocator_settings();
    ExitCode::from(spdl_cli::run(std::env::args_os()))
}
