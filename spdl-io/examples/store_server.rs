//! A local object store with a simulated latency: the server for `cargo xtask bench store` and
//! `cargo xtask bench checksums`.
//!
//! ```sh
//! cargo run --release -p spdl-io --features http,testing --example store_server -- \
//!     FOLDER BUCKET LATENCY_MS LOST_SHARE [CHECKSUM]
//! ```
//!
//! Serves the files below FOLDER from memory over HTTP and S3, in the bucket BUCKET. Each response
//! is delayed by LATENCY_MS milliseconds. LOST_SHARE (0 to 1) is the share of requests that get no
//! response. CHECKSUM, `crc32c` or `md5`, is the checksum in the headers of whole objects. The first
//! output line is the URL.
//!
//! A line `LATENCY_MS [BYTES_PER_S]` on standard input sets another latency, and a limit of the
//! bandwidth of all responses together. At the end of standard input, the program prints a JSON
//! object with the numbers of `requests`, of `lost` requests and of `bytes` sent, and exits.
#![expect(clippy::print_stdout, reason = "the program prints its URL and its counters")]

use std::io::Write as _;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use md5::{Digest, Md5};
use spdl_core::{Error, ErrorKind, Result};
use spdl_io::testing::{Fault, FaultPlan, FaultServer};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, bucket, latency, lost, checksum @ ..] = &arguments[..] else {
        return Err(invalid("expected arguments: FOLDER BUCKET LATENCY_MS LOST_SHARE [CHECKSUM]"));
    };
    let lost = lost.parse().ok().filter(|lost| (0.0..=1.0).contains(lost));
    let lost = lost.ok_or_else(|| invalid("LOST_SHARE must be a number from 0 to 1"))?;

    let server = FaultServer::start(Vec::<(String, Vec<u8>)>::new());
    server.insert_folder(folder, &format!("{bucket}/"));
    match checksum {
        [] => {}
        [name] if name == "crc32c" => server.set_header("x-amz-checksum-crc32c", |bytes| {
            BASE64_STANDARD.encode(crc32c::crc32c(bytes).to_be_bytes())
        }),
        [name] if name == "md5" => {
            server.set_header("Content-MD5", |bytes| BASE64_STANDARD.encode(Md5::digest(bytes)));
        }
        _ => return Err(invalid("CHECKSUM must be crc32c or md5")),
    }
    let faults = FaultPlan::random(7, lost, &[Fault::NoAnswer]);
    server.set_faults(limited(&faults, latency)?);
    println!("{}", server.url());
    std::io::stdout().flush()?;
    for line in std::io::stdin().lines() {
        server.set_faults(limited(&faults, &line?)?);
    }
    let served = server.served();
    println!(
        "{{\"requests\": {}, \"lost\": {}, \"bytes\": {}}}",
        served.requests, served.faults, served.bytes
    );
    // Exits without waiting for threads with open connections.
    std::process::exit(0);
}

/// Sets the latency in milliseconds, and optionally the bandwidth in bytes per second.
fn limited(faults: &FaultPlan, limits: &str) -> Result<FaultPlan> {
    let mut numbers = limits.split_whitespace().map(str::parse::<u32>);
    let (Some(Ok(latency)), bandwidth) = (numbers.next(), numbers.next()) else {
        return Err(invalid("LATENCY_MS must be an integer"));
    };
    let faults = faults.clone().latency(Duration::from_millis(latency.into()));
    Ok(match bandwidth {
        None => faults,
        Some(Ok(bandwidth @ 1..)) => faults.bandwidth(bandwidth.into()),
        Some(_) => return Err(invalid("BYTES_PER_S must be a positive integer")),
    })
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, what)
}
