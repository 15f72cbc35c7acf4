//! The fuzz targets of `spdl-media` as ordinary tests.

// promise of this file: R1

#[path = "../../fuzz/tests.rs"]
mod fuzz;
#[path = "../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "the library of the fuzz targets, included as a module")]
mod targets;

#[cfg(feature = "ffmpeg")]
use fuzz::fuzz_native;
use fuzz::{files, fuzz};

/// Extensions of the test images.
const IMAGES: [&str; 19] = [
    "bmp", "dds", "exr", "ff", "gif", "hdr", "ico", "jpg", "jxl", "pbm", "pgm", "png", "ppm",
    "qoi", "tga", "tif", "tiff", "wav", "webp",
];

fn images(extensions: &[&str]) -> Vec<Vec<u8>> {
    let folders = ["tests/data", "tests/formats/data", "tests/formats/variants"];
    folders.iter().flat_map(|folder| files(folder, extensions)).collect()
}

/// A WAV file with 16-bit samples, and one with 24-bit samples and the extensible header.
fn wavs() -> Vec<Vec<u8>> {
    let wav = |format: &[u8], data: &[u8]| {
        let mut chunks = b"WAVEfmt ".to_vec();
        chunks.extend((format.len() as u32).to_le_bytes());
        chunks.extend(format);
        chunks.extend(b"data");
        chunks.extend((data.len() as u32).to_le_bytes());
        chunks.extend(data);
        [b"RIFF", &(chunks.len() as u32).to_le_bytes()[..], &chunks].concat()
    };
    let plain = b"\x01\0\x02\0\x44\xAC\0\0\x10\xB1\x02\0\x04\0\x10\0";
    let extensible = b"\xFE\xFF\x01\0\x44\xAC\0\0\xCC\x04\x02\0\x03\0\x18\0\x16\0\x18\0\x04\0\0\0\
        \x01\0\0\0\0\0\x10\0\x80\0\0\xAA\0\x38\x9B\x71";
    vec![wav(plain, &[7; 64]), wav(extensible, &[9; 66])]
}

/// Bytes that choose the content of a file: 0 stands for the simplest one.
fn choices() -> Vec<Vec<u8>> {
    let mut state = 1_u64;
    let mut byte = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..64).map(|length| (0..8 * length).map(|_| byte()).collect()).collect()
}

#[test]
fn a_second_decode_gives_the_same_pixels() {
    fuzz("any", &images(&IMAGES), targets::decode_any);
}

#[test]
fn audio_decoders() {
    let extensions = ["aac", "flac", "mp2", "mp3", "ogg", "opus", "wav"];
    let folders = ["tests/audio", "tests/mp3"];
    let stored: Vec<_> = folders.iter().flat_map(|folder| files(folder, &extensions)).collect();
    fuzz("audio", &[wavs(), stored].concat(), targets::audio::decode_audio);
}

/// Audio in containers, which FFmpeg decodes.
#[cfg(feature = "ffmpeg")]
#[test]
fn audio_in_containers() {
    let containers = files("tests/audio", &["m4a", "mka", "ts"]);
    fuzz_native("audio", &containers, targets::audio::decode_audio);
}

#[test]
fn bmp_decoder() {
    fuzz("bmp", &images(&["bmp"]), |file| targets::decode_as("bmp", file));
}

#[test]
fn exif_blocks_never_fail_an_image() {
    let blocks: Vec<Vec<u8>> = images(&["tif", "tiff"]);
    fuzz("exif", &blocks, targets::orient);
}

#[test]
fn fill_from_any_file() {
    fuzz("fill", &images(&IMAGES), targets::fill);
}

#[test]
fn every_decoder_that_sniffs_a_file() {
    fuzz("formats", &images(&IMAGES), targets::decode_every);
}

#[test]
fn gif_decoder() {
    fuzz("gif", &images(&["gif"]), |file| targets::decode_as("gif", file));
}

#[test]
fn jpeg_decoder() {
    fuzz("jpeg", &images(&["jpg"]), |file| targets::decode_as("jpeg", file));
}

#[test]
fn jpeg_headers() {
    fuzz("jpeg_header", &images(&["jpg"]), targets::jpeg_header);
}

#[test]
fn jpeg_regions_are_parts_of_the_whole() {
    fuzz("jpeg_region", &images(&["jpg"]), |file| targets::compare_parts("jpeg", file));
}

#[test]
fn indexes_of_matroska() {
    fuzz("matroska", &files("tests/video", &["mkv", "webm"]), targets::video::index_matroska);
}

#[test]
fn indexes_of_matroska_with_valid_elements() {
    fuzz("matroska_clusters", &choices(), targets::video::index_matroska_clusters);
}

#[test]
fn indexes_of_mp4() {
    fuzz("mp4", &files("tests/video", &["mov", "mp4"]), targets::video::index_mp4);
}

#[test]
fn indexes_of_mp4_with_valid_boxes() {
    fuzz("mp4_tables", &choices(), targets::video::index_mp4_tables);
}

/// The targets with valid boxes and elements reach the code after the checks of these.
#[test]
fn many_files_with_valid_structure_have_an_index() {
    let shares = targets::video::shares_with_index(&choices());
    assert!(shares.iter().all(|share| *share > 0.3), "{shares:?}");
}

#[cfg(feature = "ffmpeg")]
#[test]
fn media_files_read_by_ffmpeg() {
    let media = [
        files("tests/video", &["avi", "mkv", "mov", "mp4", "ts", "webm"]),
        files("tests/audio", &["aac", "flac", "m4a", "mka", "mp3", "ogg", "opus", "ts", "wav"]),
        images(&["bmp", "gif", "jpg", "png", "tiff", "webp"]),
    ];
    fuzz_native("media", &media.concat(), targets::ffmpeg::read_media);
}

#[cfg(feature = "ffmpeg")]
#[test]
fn packets_from_bytes() {
    let stored = files("tests/packets", &["packets"]);
    for bytes in &stored {
        let bytes = bytes::Bytes::copy_from_slice(bytes);
        let packets =
            spdl_media::ffmpeg::Packets::from_bytes(&bytes).expect("packets of version 1");
        assert!(!packets.is_empty() && packets.to_bytes() == bytes);
    }
    fuzz_native("packets", &stored, targets::ffmpeg::read_packets);
}

#[cfg(feature = "ffmpeg")]
#[test]
fn clips_of_videos() {
    let videos = files("tests/video", &["avi", "mkv", "mov", "mp4", "ts", "webm"]);
    fuzz_native("video", &videos, targets::ffmpeg::decode_video);
}

#[test]
fn images_within_large_limits() {
    fuzz("large", &images(&IMAGES), targets::decode_large);
}

#[test]
fn fill_from_a_picture_of_any_shape() {
    fuzz("picture", &images(&IMAGES), targets::fill_from_picture);
}

#[test]
fn png_decoder() {
    fuzz("png", &images(&["png"]), |file| targets::decode_as("png", file));
}

#[test]
fn tiff_decoder() {
    fuzz("tiff", &images(&["tif", "tiff"]), |file| targets::decode_as("tiff", file));
}

#[test]
fn wav_headers() {
    fuzz("wav", &wavs(), targets::audio::read_wav);
}

#[test]
fn webp_decoder() {
    fuzz("webp", &images(&["webp"]), |file| targets::decode_as("webp", file));
}
