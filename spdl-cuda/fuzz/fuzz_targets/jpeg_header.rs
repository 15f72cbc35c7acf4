#![no_main]

libfuzzer_sys::fuzz_target!(|file: &[u8]| spdl_cuda_fuzz::jpeg_header(file));
