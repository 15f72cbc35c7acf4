#![no_main]

libfuzzer_sys::fuzz_target!(|file: &[u8]| spdl_media_fuzz::ffmpeg::decode_video(file));
