//! Tests on a device, if one is found. `cargo xtask gpu --pack` packs this program for machines without
//! cargo.
#![cfg(feature = "images")]
#![expect(clippy::print_stdout, reason = "prints why a test is skipped")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/consumer.rs"]
#[allow(dead_code, reason = "measurements use the other items")]
mod consumer;
mod images;
#[path = "../common/raw.rs"]
#[allow(dead_code, reason = "measurements use the other items")]
mod raw;
mod videos;

use std::collections::{HashMap, VecDeque};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{bytes_of, into_cuda_memory};
use consumer::{Consumer, checksum_of};
use raw::Driver;
use spdl_core::memory::{BufferPool, DeviceMemory};
use spdl_core::{Device, ErrorKind};
use spdl_cuda::runtime::DeviceAllocator;
use spdl_cuda::{ConsumerStream, CudaDevice};

/// Opens the device. Without one, prints `SKIPPED` and returns `None`, unless a device is required.
fn device() -> Option<CudaDevice> {
    match CudaDevice::open(0) {
        Ok(device) => Some(device),
        Err(error) if std::env::var_os("SPDL_REQUIRE_GPU").is_none() => {
            println!("SKIPPED: no GPU");
            println!("{}", error.report());
            None
        }
        Err(error) => panic!("a GPU is required: {}", error.report()),
    }
}

#[test]
fn downloads_equal_uploads_while_others_are_in_flight() {
    let Some(device) = device() else { return };
    let stream = ConsumerStream::legacy_default();
    let mut held = VecDeque::new();
    for number in 0..500 {
        let len = 1 << (10 + number % 12);
        let mut buffer = device.buffers().take(len).unwrap();
        buffer.copy_from_slice(&bytes_of(number, len));
        let memory = into_cuda_memory(device.upload(buffer).unwrap().memory);
        memory.wait_on(&stream).unwrap();
        let download = memory.download(Some(&stream)).unwrap();
        held.push_back((number, len, download));
        if held.len() > 3 {
            let (number, len, download) = held.pop_front().unwrap();
            assert!(*download.wait().unwrap() == bytes_of(number, len)[..], "batch {number}");
        }
    }
    let statistics = device.statistics();
    assert_eq!(statistics.release_failures, 0);
    println!("{:?}: {statistics:?}", device.description().unwrap());
}

#[test]
fn downloads_equal_uploads_of_pinned_and_pageable_memory() {
    let Some(device) = device() else { return };
    let pageable = BufferPool::new();
    for len in [0, 1, 3, 511, 512, 513, 4095, 4096, 4097, 100_000, (8 << 20) + 5] {
        for pool in [&device.buffers(), &pageable] {
            let mut buffer = pool.take(len).unwrap();
            buffer.copy_from_slice(&bytes_of(len, len));
            let upload = device.upload(buffer).unwrap();
            upload.ready.wait().unwrap();
            let found = into_cuda_memory(upload.memory).download(None).unwrap().wait().unwrap();
            assert!(*found == bytes_of(len, len)[..], "{len} bytes");
        }
    }
    assert_eq!(device.statistics().slabs.live_bytes, 0);
}

#[test]
fn g1_delayed_consumers_read_intact_batches_in_reused_memory() {
    let Some(device) = device() else { return };
    let driver = Driver::open().unwrap();
    for (holds, streams) in [(1, 1), (4, 3)] {
        let mut consumer = Consumer::new(&driver, streams, holds).unwrap();
        for number in 0..1000 {
            let len = (4 << 10) << (number % 3);
            let mut buffer = device.host_buffer(len).unwrap();
            buffer.copy_from_slice(&bytes_of(number, len));
            let checksum = checksum_of(&buffer);
            let memory = into_cuda_memory(device.upload(buffer).unwrap().memory);
            let delay = if number % 50 == 7 { 5000 } else { 20 * (number % 2) as u64 };
            consumer.take(memory, checksum, Duration::from_micros(delay)).unwrap();
        }
        assert_eq!(consumer.finish().unwrap(), (1000, 0), "holds {holds}, streams: {streams}");
    }
    // With three sizes, nearly all batches reuse memory.
    let slabs = device.statistics().slabs;
    assert!(slabs.allocations < 40, "{slabs:?}");
    assert_eq!((slabs.live_bytes, slabs.withheld_bytes), (0, 0));
}

#[test]
fn a_consumer_detects_wrong_bytes() {
    let Some(device) = device() else { return };
    let driver = Driver::open().unwrap();
    let mut consumer = Consumer::new(&driver, 2, 1).unwrap();
    for number in 0..300 {
        let mut buffer = device.host_buffer(4096).unwrap();
        buffer.copy_from_slice(&bytes_of(number, 4096));
        let checksum = checksum_of(&buffer);
        if number % 100 == 50 {
            buffer[number] ^= 1;
        }
        let memory = into_cuda_memory(device.upload(buffer).unwrap().memory);
        consumer.take(memory, checksum, Duration::ZERO).unwrap();
    }
    assert_eq!(consumer.finish().unwrap(), (300, 3));
}

#[test]
fn g11_a_device_that_does_not_exist_is_an_invalid_argument() {
    let Some(_device) = device() else { return };
    let error = CudaDevice::open(4096).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{}", error.report());
}

/// The allocator of a training framework, with memory of another `CudaDevice`.
#[derive(Debug)]
struct Framework {
    device: CudaDevice,
    lent: Mutex<HashMap<u64, Box<dyn DeviceMemory>>>,
}

// SAFETY: each allocation is a slab of the other device object, with at least this size and an alignment of
// 512 bytes, which is held until it is freed.
unsafe impl DeviceAllocator for Framework {
    fn allocate(&self, bytes: usize) -> spdl_core::Result<u64> {
        let upload = self.device.upload(BufferPool::new().take(bytes)?)?;
        upload.ready.wait()?;
        let address = upload.memory.address() as u64;
        self.lent.lock().unwrap().insert(address, upload.memory);
        Ok(address)
    }

    fn free(&self, address: u64, _: usize) {
        assert!(self.lent.lock().unwrap().remove(&address).is_some(), "{address:#x} was not lent");
    }
}

#[test]
fn memory_of_a_custom_allocator_holds_batches_and_is_returned() {
    let Some(device) = device() else { return };
    let lent = Mutex::default();
    let framework = Arc::new(Framework { device: CudaDevice::open(0).unwrap(), lent });
    device.set_allocator(Arc::clone(&framework) as _);
    for number in 0..20 {
        let len = 1000 << (number % 4);
        let mut buffer = device.host_buffer(len).unwrap();
        buffer.copy_from_slice(&bytes_of(number, len));
        let memory = into_cuda_memory(device.upload(buffer).unwrap().memory);
        assert!(framework.lent.lock().unwrap().contains_key(&(memory.address() as u64)));
        let found = memory.download(None).unwrap().wait().unwrap();
        assert!(*found == bytes_of(number, len)[..], "batch {number}");
    }
    assert!(!framework.lent.lock().unwrap().is_empty());
    drop(device);
    assert!(framework.lent.lock().unwrap().is_empty());
}

/// Set in the child processes of the test below: the way in which they end.
const END: &str = "SPDL_TEST_END";

#[test]
fn g12_a_process_ends_with_its_exit_status_while_it_holds_memory() {
    let Some(device) = device() else { return };
    if let Ok(mode) = std::env::var(END) {
        let memory = device.upload(device.host_buffer(1 << 20).unwrap()).unwrap().memory;
        match &*mode {
            "held" => std::mem::forget((memory, device)),
            "exit" => std::process::exit(3),
            "panic" => panic!("deliberate panic"),
            _ => {}
        }
        return;
    }
    drop(device);
    for (mode, code) in [("dropped", 0), ("held", 0), ("exit", 3), ("panic", 101)] {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "g12_a_process_ends_with_its_exit_status_while_it_holds_memory"])
            .env(END, mode)
            .output()
            .unwrap();
        assert_eq!(child.status.code(), Some(code), "{mode}: {child:?}");
    }
}
