//! The fuzz targets of `spdl-media` as ordinary tests.

// promise of this file: R1

#[path = "../../fuzz/tests.rs"]
mod fuzz;
#[path = "../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "the library of the fuzz targets, included as a module")]
mod targets;

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

#[test]
fn a_second_decode_gives_the_same_pixels() {
    fuzz("any", &images(&IMAGES), targets::decode_any);
}

#[test]
fn audio_decoders() {
    let extensions = ["aac", "flac", "mp2", "mp3", "ogg", "opus", "wav"];
    let folders = ["tests/audio", "tests/mp3"];
    let stored: Vec<_> = folders.iter().flat_map(|folder| files(folder, &extensions)).collect();
    fuzz("audio", &[wavs(), stored].concat(), targets::decode_audio);
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
    fuzz("wav", &wavs(), targets::read_wav);
}

#[test]
fn webp_decoder() {
    fuzz("webp", &images(&["webp"]), |file| targets::decode_as("webp", file));
}
