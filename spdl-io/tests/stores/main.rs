//! Tests of network stores against local servers with injected faults.
#![cfg(all(feature = "testing", feature = "s3", feature = "gcs", feature = "azure"))]
#![expect(clippy::unwrap_used, reason = "test helpers report failures by panics")]
#![expect(clippy::print_stdout, reason = "prints output that tests search for secrets")]

mod fault_grid;
mod faults;
mod http;
mod lists;
mod object_stores;
mod replaced;
mod s3_server;
mod secrets;
mod sequential;
mod soak;
mod tail;
mod tls;
mod tls_front;
mod unknown_names;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use bytes::Bytes;
use spdl_io::ResilientOptions;
use spdl_io::testing::Fault;

/// The objects of the fetcher contract in a folder.
fn contract_objects(folder: &str) -> Vec<(String, Bytes)> {
    let objects = spdl_io::testing::contract_objects().into_iter();
    objects.map(|(name, bytes)| (format!("{folder}/{name}"), bytes)).collect()
}

/// Retry time of clients in tests with many faults.
const BUDGET: Duration = Duration::from_secs(5);

/// Options with many attempts and short delays within [`BUDGET`].
fn many_retries() -> ResilientOptions {
    ResilientOptions::default()
        .attempts(20)
        .budget(BUDGET)
        .first_delay(Duration::from_millis(2))
        .most_delay(Duration::from_millis(20))
        .retry_tokens(10_000.0)
        .seed(7)
}

/// Faults after which a retry returns the right bytes.
fn survivable_faults() -> Vec<Fault> {
    let is_final = |fault: &Fault| match fault {
        // The response is an error that a retry does not change.
        Fault::OtherVersion
        | Fault::NotFound
        | Fault::Forbidden
        | Fault::NoLength
        | Fault::NoContent
        | Fault::UnavailableForAges => true,
        // The response is complete in itself. `fault_grid` checks what epochs make of it.
        Fault::ShortLength | Fault::EmptyBody | Fault::OtherContent | Fault::WebPage => true,
        // A read that resumes after another fault must not continue with an unknown version.
        Fault::NoVersion => true,
        // A range has no checksum. `fault_grid` reads shards with checksum files.
        Fault::FlippedBit => true,
        _ => false,
    };
    Fault::ALL.into_iter().filter(|fault| !is_final(fault)).collect()
}

/// Bytes that differ by position.
fn contents(seed: usize, len: usize) -> Bytes {
    (0..len).map(|place| (place * 31 + place / 256 + seed * 7) as u8).collect()
}

/// Starts a server that sends a text for the head of each request, and closes the connection.
fn start_raw_server(response: impl Fn(&str) -> String + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = vec![0; 16 << 10];
            let count = stream.read(&mut head).unwrap_or(0);
            let response = response(&String::from_utf8_lossy(&head[..count]));
            let _ = stream.write_all(response.as_bytes());
        }
    });
    url
}
