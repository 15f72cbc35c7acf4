//! Stores of the network against servers on this machine: what they read, and what they live through.
#![cfg(all(feature = "testing", feature = "s3", feature = "gcs", feature = "azure"))]
#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the report")]
#![expect(clippy::print_stdout, reason = "what is said, to be looked through")]

mod faults;
mod http;
mod lists;
mod object_stores;
mod s3_server;
mod secrets;
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

/// The objects of the contract, in a folder.
fn contract_objects(folder: &str) -> Vec<(String, Bytes)> {
    let objects = spdl_io::testing::contract_objects().into_iter();
    objects.map(|(name, bytes)| (format!("{folder}/{name}"), bytes)).collect()
}

/// How long a client goes on that is to read through many faults: each read ends within it.
const BUDGET: Duration = Duration::from_secs(5);

/// Such a client's patience: many attempts, close behind each other, within [`BUDGET`].
fn patience() -> ResilientOptions {
    ResilientOptions::default()
        .attempts(20)
        .budget(BUDGET)
        .first_delay(Duration::from_millis(2))
        .most_delay(Duration::from_millis(20))
        .retry_tokens(10_000.0)
        .seed(7)
}

/// Bytes that differ from place to place.
fn contents(seed: usize, len: usize) -> Bytes {
    (0..len).map(|place| (place * 31 + place / 256 + seed * 7) as u8).collect()
}

/// A server that answers each request, by its head, with one text, and closes.
fn canned(answer: impl Fn(&str) -> String + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = vec![0; 16 << 10];
            let count = stream.read(&mut head).unwrap_or(0);
            let answer = answer(&String::from_utf8_lossy(&head[..count]));
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    url
}
