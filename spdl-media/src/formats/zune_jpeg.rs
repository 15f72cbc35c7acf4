//! JPEG by the crate `zune-jpeg`.

use spdl_core::{Error, ErrorKind, Result};
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::bytestream::{ZByteIoError, ZCursor};
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::adapter::{DecodeJob, FormatCodec, FormatReader, reserve};
use super::convert::PixelLayout;
use super::errors;
use super::jpeg::Header;
use crate::image::{Decoded, ImageCodec, ImageDecoder, ImageInfo, Limits};

/// JPEG by the crate `zune-jpeg`, a pure-Rust decoder: baseline and progressive.
///
/// The pixels differ by a few levels of 255 from those of libjpeg-turbo and of the default codec.
/// The codec always decodes the whole image at full size and crops it for a region. Truncated files
/// are always an error.
///
/// ```
/// use spdl_media::formats::ZuneJpegCodec;
/// use spdl_media::CodecRegistry;
/// let mut registry = CodecRegistry::with_defaults();
/// registry.register(ZuneJpegCodec);
/// assert_eq!(registry.find(&[0xFF, 0xD8, 0xFF])?.name(), "zune-jpeg");
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ZuneJpegCodec;

impl ImageCodec for ZuneJpegCodec {
    fn name(&self) -> &'static str {
        Zune::NAME
    }

    fn sniff(&self, head: &[u8]) -> bool {
        Zune::sniff(head)
    }

    fn decoder(&self, limits: &Limits) -> Result<Box<dyn ImageDecoder>> {
        FormatCodec::<Zune>::new().decoder(limits)
    }
}

#[derive(Default)]
struct Zune {
    /// The whole image, if it cannot be decoded directly into the caller's memory.
    scratch: Vec<u8>,
}

impl FormatReader for Zune {
    const NAME: &'static str = "zune-jpeg";
    type File<'a> = Header;

    fn sniff(head: &[u8]) -> bool {
        head.starts_with(&[0xFF, 0xD8, 0xFF])
    }

    fn open(encoded: &[u8], _: &Limits) -> Result<(Header, ImageInfo)> {
        let header = Header::read(encoded, &mut |_, _, _| Ok(()))?;
        let info = header.info();
        Ok((header, info))
    }

    fn decode(&mut self, header: Header, mut job: DecodeJob<'_>) -> Result<Decoded> {
        header.check_end(job.encoded)?;
        job.limits.check_bytes(header.coefficient_bytes(), job.info.size)?;
        let size = job.info.size;
        let options = DecoderOptions::default()
            .set_strict_mode(job.limits.is_strict())
            .set_max_width(size.width as usize)
            .set_max_height(size.height as usize)
            .jpeg_set_out_colorspace(ColorSpace::RGB);
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(job.encoded), options);
        decoder.decode_headers().map_err(error)?;
        let bytes = size.pixels() * PixelLayout::Rgb(3).bytes() as u64;
        let color = decoder.output_colorspace();
        if color != Some(ColorSpace::RGB) || decoder.output_buffer_size() != Some(bytes as usize) {
            let message = format!("unsupported JPEG: wrong size or non-RGB output {color:?}");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if let Some(target) = job.whole_output() {
            decoder.decode_into(target).map_err(error)?;
            return Ok(job.done());
        }
        reserve(&mut self.scratch, bytes, job.limits, job.info.size)?;
        decoder.decode_into(&mut self.scratch).map_err(error)?;
        let decoded = job.done();
        PixelLayout::Rgb(3).copy_region(&self.scratch, size, job.region, job.out);
        Ok(decoded)
    }
}

fn error(error: DecodeErrors) -> Error {
    match error {
        DecodeErrors::ExhaustedData | DecodeErrors::IoErrors(ZByteIoError::NotEnoughBytes(..)) => {
            Error::new(ErrorKind::Truncated, "the JPEG data end early")
        }
        DecodeErrors::LargeDimensions(_) => errors::limit_exceeded(Zune::NAME),
        error @ DecodeErrors::Unsupported(_) => errors::unsupported(Zune::NAME, error),
        error => errors::corrupt(Zune::NAME, error),
    }
}
