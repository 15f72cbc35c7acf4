#![no_main]

libfuzzer_sys::fuzz_target!(|block: &[u8]| spdl_media_fuzz::orient(block));
