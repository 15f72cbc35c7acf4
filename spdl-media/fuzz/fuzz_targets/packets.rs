#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| spdl_media_fuzz::ffmpeg::read_packets(bytes));
