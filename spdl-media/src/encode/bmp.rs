//! Windows bitmaps: raw pixels after a short header.

use spdl_core::Result;

use super::encoder::{ImageEncoder, check, invalid};
use crate::image::{CHANNELS, Size};

const NAME: &str = "bmp";
/// `BITMAPFILEHEADER` and `BITMAPINFOHEADER` of the Windows GDI.
const HEADERS: u32 = 14 + 40;

/// Encodes BMP: 24 bits per pixel, top-down, uncompressed.
///
/// BMP suits pixels that are read far more often than written, as in a cache: BMP decodes fastest,
/// and other programs display it. A file has a header of 54 bytes. Each row has 3 bytes per pixel
/// and up to 3 bytes of padding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BmpEncoder(());

impl BmpEncoder {
    /// Creates an encoder.
    pub fn new() -> Self {
        BmpEncoder::default()
    }
}

impl ImageEncoder for BmpEncoder {
    fn name(&self) -> &'static str {
        NAME
    }

    fn encode(&self, pixels: &[u8], size: Size) -> Result<Vec<u8>> {
        check(NAME, pixels, size, i32::MAX as u32)?;
        let row = size.width as usize * CHANNELS;
        let stride = row.next_multiple_of(4);
        let data = stride as u64 * u64::from(size.height);
        let Ok(file) = u32::try_from(data + u64::from(HEADERS)) else {
            return Err(invalid(format!(
                "cannot encode {size} pixels as BMP: the file would exceed 4 GiB"
            )));
        };
        let mut encoded = Vec::with_capacity(file as usize);
        encoded.extend_from_slice(b"BM");
        let long = |encoded: &mut Vec<u8>, value: u32| encoded.extend(value.to_le_bytes());
        for value in [file, 0, HEADERS, HEADERS - 14, size.width] {
            long(&mut encoded, value);
        }
        // A negative height: rows are stored top-down.
        encoded.extend((-i64::from(size.height) as i32).to_le_bytes());
        // One plane of 24 bits.
        encoded.extend([1, 0, 24, 0]);
        for value in [0, data as u32, 0, 0, 0, 0] {
            long(&mut encoded, value);
        }
        for line in pixels.chunks_exact(row) {
            for pixel in line.chunks_exact(CHANNELS) {
                encoded.extend([pixel[2], pixel[1], pixel[0]]);
            }
            encoded.resize(encoded.len() + stride - row, 0);
        }
        Ok(encoded)
    }
}
