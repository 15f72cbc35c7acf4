//! The same on a device, where there is one.

mod common;

use std::collections::VecDeque;

use common::{bytes_of, own};
use spdl_core::Device;
use spdl_cuda::{ConsumerStream, CudaDevice};

#[test]
fn every_byte_comes_back_from_a_device_while_others_are_on_their_way() {
    let device = match CudaDevice::open(0) {
        Ok(device) => device,
        Err(error) if std::env::var_os("SPDL_REQUIRE_GPU").is_none() => {
            println!("SKIPPED: no GPU");
            return println!("{}", error.report());
        }
        Err(error) => panic!("a GPU is required: {}", error.report()),
    };
    let stream = ConsumerStream::legacy_default();
    let mut held = VecDeque::new();
    for number in 0..500 {
        let len = 1 << (10 + number % 12);
        let mut buffer = device.buffers().take(len).unwrap();
        buffer.copy_from_slice(&bytes_of(number, len));
        let memory = own(device.upload(buffer).unwrap().memory);
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
