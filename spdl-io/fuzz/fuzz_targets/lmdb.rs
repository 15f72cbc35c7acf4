#![no_main]

libfuzzer_sys::fuzz_target!(|file: &[u8]| spdl_io_fuzz::lmdb(file));
