//! Encoded images are decoded by this crate and by Pillow; the quality equals libjpeg-turbo's.

// promise of this file: IMG10

use std::io::{Cursor, Write};
use std::process::{Command, Stdio};

use spdl_core::ErrorKind;
#[cfg(feature = "webp-lossy")]
use spdl_media::encode::LossyWebpEncoder;
use spdl_media::encode::{
    BmpEncoder, ImageEncoder, JpegEncoder, PngCompression, PngEncoder, Subsampling, WebpEncoder,
};
use spdl_media::{CodecRegistry, Decoder, Image, Limits, Size};

use crate::files::{common, data, own};

fn decode(encoded: &[u8]) -> Image {
    let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
    decoder.decode_stored(encoded).unwrap()
}

fn photo() -> Image {
    decode(&std::fs::read(own("../assets/photos/astronaut.jpg")).unwrap())
}

/// The peak signal-to-noise ratio, in decibels.
fn psnr(one: &Image, other: &Image) -> f64 {
    assert_eq!(one.size, other.size);
    let squares: f64 =
        one.pixels.iter().zip(&other.pixels).map(|(a, b)| f64::from(a.abs_diff(*b)).powi(2)).sum();
    10.0 * (255.0f64.powi(2) * one.pixels.len() as f64 / squares).log10()
}

fn lossless() -> Vec<Box<dyn ImageEncoder>> {
    vec![
        Box::new(PngEncoder::new()),
        Box::new(PngEncoder::new().compression(PngCompression::Fast)),
        Box::new(PngEncoder::new().compression(PngCompression::High)),
        Box::new(WebpEncoder::new()),
        Box::new(BmpEncoder::new()),
    ]
}

/// Images of several sizes, with content.
fn images() -> Vec<Image> {
    let whole = decode(&common("rgb.png"));
    let sizes = [(1, 1), (1, 29), (37, 1), (8, 8), (17, 16), (16, 17), (37, 29)];
    let part = |(width, height): (u32, u32)| {
        let rows = (0..height as usize).flat_map(|y| {
            let start = y * whole.size.width as usize * 3;
            whole.pixels[start..start + width as usize * 3].to_vec()
        });
        Image { size: Size::new(width, height), pixels: rows.collect() }
    };
    sizes.map(part).to_vec()
}

#[test]
fn lossless_formats_preserve_pixels() {
    for encoder in lossless() {
        for image in images().iter().chain([&photo()]) {
            let encoded = encoder.encode_image(image).unwrap();
            let found = decode(&encoded);
            assert!(found == *image, "{encoder:?}: {}", image.size);
        }
    }
}

#[test]
fn jpeg_quality_and_size_equal_libjpeg_turbo() {
    let photo = photo();
    let table = String::from_utf8(data("jpeg-quality.tsv")).unwrap();
    let mut compared = 0;
    for line in table.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let quality: u8 = fields[0].parse().unwrap();
        let subsampling = match fields[1] {
            "4:4:4" => Subsampling::S444,
            "4:2:2" => Subsampling::S422,
            _ => Subsampling::S420,
        };
        let (expected, bytes): (f64, f64) =
            (fields[2].parse().unwrap(), fields[3].parse().unwrap());
        let encoder = JpegEncoder::new().quality(quality).subsampling(subsampling);
        let encoded = encoder.encode_image(&photo).unwrap();
        let found = psnr(&photo, &decode(&encoded));
        assert!((found - expected).abs() < 0.3, "{line}: {found:.3} dB");
        let larger = encoded.len() as f64 / bytes;
        assert!((0.95..1.05).contains(&larger), "{line}: {} bytes", encoded.len());
        // Progressive and optimised coding change the file size only.
        for (progressive, optimized) in [(true, false), (false, true), (true, true)] {
            let other = encoder.clone().progressive(progressive).optimized(optimized);
            let other = other.encode_image(&photo).unwrap();
            assert!(decode(&other) == decode(&encoded), "{line}, {progressive}, {optimized}");
            let has = |marker: u8| other.windows(2).any(|pair| pair == [0xFF, marker]);
            assert_eq!(has(0xC2), progressive, "{line}");
            let smaller = other.len() < encoded.len();
            assert!(smaller || progressive, "{line}: {}", other.len());
        }
        compared += 1;
    }
    assert_eq!(compared, 15);
}

#[test]
fn small_jpegs_of_each_subsampling_are_close_to_their_pixels() {
    for subsampling in [Subsampling::S444, Subsampling::S422, Subsampling::S420] {
        for progressive in [false, true] {
            for image in images() {
                let encoder = JpegEncoder::new()
                    .quality(100)
                    .subsampling(subsampling)
                    .progressive(progressive);
                let found = decode(&encoder.encode_image(&image).unwrap());
                assert_eq!(found.size, image.size);
                let (found, least) = (
                    psnr(&image, &found),
                    match subsampling {
                        Subsampling::S444 => 35.0,
                        // Subsampling blurs colour edges.
                        _ => 17.0,
                    },
                );
                assert!(found > least, "{encoder:?}, {}: {found:.1} dB", image.size);
            }
        }
    }
}

/// Whether a WebP has alpha, and its pixels with alpha. Our decoder drops alpha.
fn decode_rgba(encoded: &[u8]) -> (bool, Vec<u8>) {
    let mut decoder = image_webp::WebPDecoder::new(Cursor::new(encoded)).unwrap();
    let mut pixels = vec![0; decoder.output_buffer_size().unwrap()];
    decoder.read_image(&mut pixels).unwrap();
    (decoder.has_alpha(), pixels)
}

/// The photo with an alpha gradient from left to right.
fn with_alpha(photo: &Image) -> Vec<u8> {
    let width = photo.size.width as usize;
    let alpha = |at: usize| (255 - at % width * 255 / (width - 1)) as u8;
    let pixels = photo.pixels.chunks(3).enumerate();
    pixels.flat_map(|(at, pixel)| [pixel[0], pixel[1], pixel[2], alpha(at)]).collect()
}

#[test]
fn lossless_webp_preserves_alpha() {
    let photo = photo();
    let pixels = with_alpha(&photo);
    let encoded = WebpEncoder::new().encode_rgba(&pixels, photo.size).unwrap();
    assert!(decode_rgba(&encoded) == (true, pixels));
    let error = WebpEncoder::new().encode_rgba(&photo.pixels, photo.size).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[cfg(feature = "webp-lossy")]
#[test]
fn lossy_webp_quality_and_size_equal_pillow() {
    let photo = photo();
    let table = String::from_utf8(data("webp-quality.tsv")).unwrap();
    let (mut before, mut compared) = ((0.0, 0), 0);
    for line in table.lines() {
        let fields: Vec<f64> = line.split('\t').map(|field| field.parse().unwrap()).collect();
        let encoder = LossyWebpEncoder::new().quality(fields[0] as u8).effort(fields[1] as u8);
        let encoded = encoder.encode_image(&photo).unwrap();
        assert!(encoded.windows(4).any(|name| name == b"VP8 "), "{line}");
        let found = psnr(&photo, &decode(&encoded));
        assert!((found - fields[2]).abs() < 0.3, "{line}: {found:.3} dB");
        let larger = encoded.len() as f64 / fields[3];
        assert!((0.95..1.05).contains(&larger), "{line}: {} bytes", encoded.len());
        // For one effort, PSNR and size increase with the quality.
        if fields[1] == 4.0 {
            assert!(found > before.0 && encoded.len() > before.1, "{line}");
            before = (found, encoded.len());
        }
        compared += 1;
    }
    assert_eq!(compared, 8);
}

#[cfg(feature = "webp-lossy")]
#[test]
fn lossy_webp_preserves_alpha() {
    let photo = photo();
    let pixels = with_alpha(&photo);
    let encoder = LossyWebpEncoder::new().quality(90);
    let alpha = |pixels: &[u8]| -> Vec<u8> { pixels.iter().skip(3).step_by(4).copied().collect() };
    let (has_alpha, found) = decode_rgba(&encoder.encode_rgba(&pixels, photo.size).unwrap());
    assert!(has_alpha && alpha(&found) == alpha(&pixels));
    // The colours are preserved.
    let colors = |pixels: &[u8]| Image {
        size: photo.size,
        pixels: pixels.chunks(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect(),
    };
    assert!(psnr(&photo, &colors(&found)) > 35.0);
    let smaller = encoder.clone().alpha_quality(0).encode_rgba(&pixels, photo.size).unwrap();
    let (has_alpha, found) = decode_rgba(&smaller);
    assert!(has_alpha && alpha(&found) != alpha(&pixels));
    // Opaque images are encoded without alpha.
    let opaque: Vec<u8> =
        pixels.chunks(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2], 255]).collect();
    let encoded = encoder.encode_rgba(&opaque, photo.size).unwrap();
    assert_eq!(encoded, encoder.encode_image(&photo).unwrap());
    assert!(!decode_rgba(&encoded).0);
    let error = encoder.encode_rgba(&photo.pixels, photo.size).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[cfg(feature = "webp-lossy")]
#[test]
fn lossy_webp_options_out_of_range_are_rejected() {
    let size = Size::new(16, 16);
    let encoder = LossyWebpEncoder::new;
    for (encoder, words) in [
        (encoder().quality(101), "invalid WebP quality 101: expected 0 to 100"),
        (encoder().alpha_quality(101), "invalid WebP alpha quality 101: expected 0 to 100"),
        (encoder().effort(7), "invalid WebP effort 7: expected 0 to 6"),
    ] {
        let error = encoder.encode(&[90; 16 * 16 * 3], size).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(
            encoder.encode_rgba(&[90; 16 * 16 * 4], size).unwrap_err().message(),
            error.message()
        );
    }
    // The documented defaults, which are those of libwebp.
    assert_eq!(encoder(), encoder().quality(75).alpha_quality(100).effort(4));
    for encoder in [encoder().quality(0), encoder().quality(100), encoder().effort(6)] {
        assert_eq!(decode(&encoder.encode(&[90; 16 * 16 * 3], size).unwrap()).size, size);
    }
    let side = |side: u32| (vec![0; side as usize * 3], Size::new(side, 1));
    let (pixels, size) = side(16_384);
    let error = encoder().encode(&pixels, size).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let (pixels, size) = side(16_383);
    assert_eq!(decode(&encoder().encode(&pixels, size).unwrap()).size, size);
}

#[test]
fn invalid_sizes_and_qualities_are_errors() {
    let pixels = vec![0; 4 * 4 * 3];
    let mut encoders = lossless();
    encoders.push(Box::new(JpegEncoder::new()));
    #[cfg(feature = "webp-lossy")]
    encoders.push(Box::new(LossyWebpEncoder::new()));
    for encoder in encoders {
        let kind = |pixels: &[u8], size| encoder.encode(pixels, size).err().map(|e| e.kind());
        let refused = Some(ErrorKind::InvalidArgument);
        assert_eq!(kind(&pixels, Size::new(4, 4)), None);
        assert_eq!(kind(&pixels, Size::new(4, 5)), refused, "{encoder:?}");
        assert_eq!(kind(&pixels, Size::new(4, 3)), refused, "{encoder:?}");
        assert_eq!(kind(&[], Size::new(0, 4)), refused, "{encoder:?}");
        assert_eq!(kind(&[], Size::new(u32::MAX, u32::MAX)), refused, "{encoder:?}");
    }
    let wide = |side: u32| (vec![0; side as usize * 3], Size::new(side, 1));
    let (pixels, size) = wide(65_536);
    assert!(JpegEncoder::new().encode(&pixels, size).is_err());
    let (pixels, size) = wide(16_384);
    assert!(WebpEncoder::new().encode(&pixels, size).is_err());
    let (pixels, size) = wide(16_383);
    assert_eq!(decode(&WebpEncoder::new().encode(&pixels, size).unwrap()).size, size);
    for quality in [0, 101] {
        let error = JpegEncoder::new().quality(quality).encode(&[0; 3], Size::new(1, 1));
        assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

/// Format, mode, size and pixels of a file by Pillow. `None` if Pillow is not installed.
fn read_with_pillow(encoded: &[u8]) -> Option<(String, Image)> {
    const PROGRAM: &str = "
import io, struct, sys
try:
    from PIL import Image
except ImportError:
    sys.exit(7)
image = Image.open(io.BytesIO(sys.stdin.buffer.read()))
image.load()
kind = (image.format + ' ' + image.mode).encode()
size = struct.pack('<III', len(kind), *image.size)
sys.stdout.buffer.write(size + kind + image.convert('RGB').tobytes())
";
    let python = std::env::var_os("SPDL_PYTHON").unwrap_or("python3".into());
    let child = Command::new(python)
        .args(["-c", PROGRAM])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        println!("SKIPPED: no Python");
        return None;
    };
    // Without Pillow, the process has already exited.
    drop(child.stdin.take().unwrap().write_all(encoded));
    let output = child.wait_with_output().unwrap();
    if output.status.code() == Some(7) {
        println!("SKIPPED: Python has no Pillow");
        return None;
    }
    assert!(output.status.success(), "Pillow cannot read the encoded image");
    let bytes = output.stdout;
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (kind, pixels) = bytes[12..].split_at(number(0) as usize);
    let image = Image { size: Size::new(number(4), number(8)), pixels: pixels.to_vec() };
    Some((String::from_utf8(kind.to_vec()).unwrap(), image))
}

#[test]
fn pillow_reads_encoded_images() {
    let photo = photo();
    let mut encoders = lossless();
    for subsampling in [Subsampling::S444, Subsampling::S422, Subsampling::S420] {
        let encoder = JpegEncoder::new().subsampling(subsampling);
        encoders.push(Box::new(encoder.clone().progressive(true).optimized(true)));
        encoders.push(Box::new(encoder));
    }
    #[cfg(feature = "webp-lossy")]
    encoders.push(Box::new(LossyWebpEncoder::new()));
    for encoder in encoders {
        let encoded = encoder.encode_image(&photo).unwrap();
        let Some((kind, found)) = read_with_pillow(&encoded) else { return };
        assert_eq!(kind, format!("{} RGB", encoder.name().to_uppercase()));
        // Other tests compare our decoders with Pillow.
        assert!(found == decode(&encoded), "{encoder:?}");
    }
}
