#![no_main]

libfuzzer_sys::fuzz_target!(|file: &[u8]| spdl_media_fuzz::video::index_mp4(file));
