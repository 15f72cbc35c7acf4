//! A store on this machine that is as slow as one far away: the other side of `cargo xtask bench store`.
//!
//! ```sh
//! cargo run --release -p spdl-io --features testing --example store_server -- \
//!     FOLDER BUCKET LATENCY_MS LOST_SHARE
//! ```
//!
//! Serves the files below FOLDER from memory, as HTTP and as S3 do, in the bucket BUCKET. Each answer
//! comes LATENCY_MS milliseconds late; of all requests the share LOST_SHARE, 0 to 1, is never
//! answered. Prints its URL, a line; when standard input ends, a JSON object with the number of
//! `requests`, of those that were `lost`, and of the `bytes` that were sent; and ends.
#![expect(clippy::print_stdout, reason = "what it has done is told there")]

use std::io::Write as _;
use std::time::Duration;

use spdl_core::{Error, ErrorKind, Result};
use spdl_io::testing::{Fault, FaultPlan, FaultServer};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, bucket, latency, lost] = &arguments[..] else {
        return Err(wrong("FOLDER BUCKET LATENCY_MS LOST_SHARE are needed"));
    };
    let latency = latency.parse().map_err(|_| wrong("LATENCY_MS is a whole number"))?;
    let lost = lost.parse().ok().filter(|lost| (0.0..=1.0).contains(lost));
    let lost = lost.ok_or_else(|| wrong("LOST_SHARE is a number from 0 to 1"))?;

    let server = FaultServer::start(Vec::<(String, Vec<u8>)>::new());
    server.insert_folder(folder, &format!("{bucket}/"));
    let faults = FaultPlan::random(7, lost, &[Fault::NoAnswer]);
    server.set_faults(faults.latency(Duration::from_millis(latency)));
    println!("{}", server.url());
    std::io::stdout().flush()?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    let served = server.served();
    println!(
        "{{\"requests\": {}, \"lost\": {}, \"bytes\": {}}}",
        served.requests, served.faults, served.bytes
    );
    // Its threads may wait for connections that are still open; none of them matters now.
    std::process::exit(0);
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, what)
}
