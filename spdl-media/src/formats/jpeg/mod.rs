//! JPEG: a decoder of our own, baseline and progressive, 8 bits, Huffman-coded.
//!
//! ```text
//! header ──► scans ──────────────► inverse DCT ──► upsampling, colour ──► caller's rows
//! markers    coefficients of one   planes of two   one row at a time
//! tables     row of blocks (or of  rows of blocks
//!            the image, where it
//!            has many scans)
//! ```
//!
//! Its arithmetic is that of libjpeg's accurate integer DCT, triangle ("fancy") upsampling and
//! 16-bit fixed-point colour conversion, so that results are equal to what libjpeg-turbo, and with
//! it Pillow, OpenCV and torchvision, give. No other crate that builds with gcc and rustup alone
//! does that within a level of 255.

mod color;
mod header;
mod huffman;
mod idct;
mod planes;
mod scan;

use fearless_simd::Level;
use spdl_core::{Error, ErrorKind, Result};

use self::header::{Coding, Header};
use self::planes::Planes;
use self::scan::Scans;
use crate::{DecodeRequest, Decoded, ImageCodec, ImageDecoder, ImageInfo, Limits, PixelsMut};

/// JPEG, baseline and progressive.
#[derive(Debug)]
pub(crate) struct JpegCodec;

impl ImageCodec for JpegCodec {
    fn name(&self) -> &'static str {
        "jpeg"
    }

    fn sniff(&self, head: &[u8]) -> bool {
        head.starts_with(&[0xFF, 0xD8, 0xFF])
    }

    fn decoder(&self, limits: &Limits) -> Result<Box<dyn ImageDecoder>> {
        Ok(Box::new(JpegDecoder {
            limits: limits.clone(),
            level: Level::new(),
            scans: Scans::default(),
            planes: Planes::default(),
        }))
    }
}

struct JpegDecoder {
    limits: Limits,
    /// What the processor can do.
    level: Level,
    scans: Scans,
    planes: Planes,
}

impl ImageDecoder for JpegDecoder {
    fn inspect(&mut self, encoded: &[u8]) -> Result<ImageInfo> {
        let header = Header::read(encoded, None)?;
        self.limits.check_size(header.frame.size)?;
        Ok(ImageInfo::new(header.frame.size, header.orientation))
    }

    fn decode_into(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        mut out: PixelsMut<'_>,
    ) -> Result<Decoded> {
        let header = Header::read(encoded, Some(&mut self.scans.tables))?;
        let frame = &header.frame;
        self.limits.check_size(frame.size)?;
        let region = request.checked_region(frame.size, &out)?;
        let color = header.color()?;
        self.planes.prepare(frame, region)?;

        let single = frame.coding == Coding::Sequential
            && header.scan.components.len() == frame.components.len();
        if single {
            self.scans.begin_single(frame, &header.scan)?;
            let mut reader = huffman::BitReader::new(encoded, header.data);
            for row in 0..frame.rows_of_blocks() {
                self.scans.read_row(frame, &header.scan, row, &mut reader, self.level)?;
                self.planes.draw(frame, row, &self.scans.row(), self.level);
                self.planes.emit(frame, row, region, color, &mut out, self.level);
            }
        } else {
            self.scans.read_all(encoded, &header, &self.limits, self.level)?;
            for row in 0..frame.rows_of_blocks() {
                self.planes.draw(frame, row, &self.scans.stored_row(frame, row), self.level);
                self.planes.emit(frame, row, region, color, &mut out, self.level);
            }
        }
        Ok(Decoded::new(region.size()))
    }
}

fn corrupt(message: impl Into<String>, offset: usize) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_offset(offset as u64)
}

fn truncated(message: impl Into<String>, offset: usize) -> Error {
    Error::new(ErrorKind::Truncated, message).with_offset(offset as u64)
}

fn unsupported(message: impl Into<String>, offset: usize) -> Error {
    Error::new(ErrorKind::Unsupported, message).with_offset(offset as u64)
}
