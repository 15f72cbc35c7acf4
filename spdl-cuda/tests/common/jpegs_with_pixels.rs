//! JPEGs with their decoded pixels in a comment, which the nvJPEG stub writes instead of decoding.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use spdl_media::encode::{ImageEncoder, JpegEncoder};
use spdl_media::{CodecRegistry, Decoder, Image, Limits, Size};

/// A smooth image that differs from its flipped and transposed versions.
pub(crate) fn picture(number: u32) -> Image {
    let size = Size::new(90 + number * 7 % 53, 110 + number * 5 % 31);
    let pixels = (0..size.height).flat_map(|y| (0..size.width).map(move |x| (x, y)));
    let value = |x: u32, y: u32, c: u32| {
        let wave =
            f64::from(x * (3 + c) + number) * 0.05 + f64::from(y) * (0.02 + 0.03 * f64::from(c));
        (128.0 + 100.0 * wave.sin() + f64::from(x) * 0.2) as u8
    };
    let pixels = pixels.flat_map(|(x, y)| [0, 1, 2].map(|c| value(x, y, c))).collect();
    Image { size, pixels }
}

/// A JPEG with an EXIF orientation, and with its decoded pixels in a comment.
pub(crate) fn jpeg(number: u32, orientation: u8, progressive: bool) -> Vec<u8> {
    let encoder = JpegEncoder::new().progressive(progressive);
    let encoded = encoder.encode_image(&picture(number)).unwrap();
    let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
    let pixels = decoder.decode_stored(&encoded).unwrap().pixels;
    let mut file = vec![0xFF, 0xD8, 0xFF, 0xFE];
    file.extend((pixels.len() as u16 + 2).to_be_bytes());
    file.extend(pixels);
    file.extend([0xFF, 0xE1, 0, 34]);
    file.extend(b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0");
    file.extend([orientation, 0, 0, 0, 0, 0, 0, 0]);
    file.extend(&encoded[2..]);
    file
}
