//! JPEG by libjpeg-turbo, through the crate `turbojpeg`.
//!
//! Only the safe API of the crate is used: the crate checks the results of the C library, and that
//! the output is large enough for the scale.

use spdl_core::{Error, ErrorKind, Result};
use turbojpeg::{Colorspace, DecompressHeader, Decompressor, PixelFormat, ScalingFactor, Subsamp};

use super::adapter::reserve;
use super::convert::{PixelLayout, cmyk_to_rgb};
use super::errors;
use super::jpeg::{Header, max_block_visits};
use crate::image::{
    CHANNELS, ColorModel, DecodeRequest, Decoded, ImageCodec, ImageDecoder, ImageInfo, Limits,
    Picture, PixelsMut, PlaneShape, Rect, Size,
};

const NAME: &str = "turbojpeg";

/// The maximum number of scans of a progressive image, because each scan visits all blocks.
/// Encoders use up to about a dozen scans. For large images the maximum is smaller, see
/// [`max_block_visits`].
const MAX_SCANS: u64 = 500;

/// JPEG by libjpeg-turbo: baseline, progressive, lossless; Huffman and arithmetic coding; 8 bits.
///
/// The pixels are bit-identical to those of the default codec. The feature `turbojpeg` builds the C
/// library from the source in the crate `turbojpeg`. The build needs cmake, and on x86 nasm:
/// without nasm the build fails, because the library would lack SIMD.
///
/// The codec always decodes the whole image, and crops it for a region. Decoding at 1/2, 1/4 or 1/8
/// size is faster. [`decode_planes`](ImageDecoder::decode_planes) returns luma and chroma planes.
/// Truncated files are always an error: the library does not report the number of decoded rows.
///
/// ```
/// use spdl_media::formats::TurboJpegCodec;
/// use spdl_media::CodecRegistry;
/// let mut registry = CodecRegistry::with_defaults();
/// registry.register(TurboJpegCodec);
/// assert_eq!(registry.find(&[0xFF, 0xD8, 0xFF])?.name(), "turbojpeg");
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TurboJpegCodec;

impl ImageCodec for TurboJpegCodec {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sniff(&self, head: &[u8]) -> bool {
        head.starts_with(&[0xFF, 0xD8, 0xFF])
    }

    fn decoder(&self, limits: &Limits) -> Result<Box<dyn ImageDecoder>> {
        let (library, scratch) = (new_library()?, Vec::new());
        Ok(Box::new(TurboJpegDecoder { limits: limits.clone(), library, scratch }))
    }
}

fn new_library() -> Result<Decompressor> {
    Decompressor::new().map_err(error)
}

struct TurboJpegDecoder {
    limits: Limits,
    library: Decompressor,
    /// The whole image, if it cannot be decoded directly into the caller's memory.
    scratch: Vec<u8>,
}

impl TurboJpegDecoder {
    fn open(&self, encoded: &[u8]) -> Result<Header> {
        let markers = Header::read(encoded, &mut |_, _, _| Ok(()))?;
        let size = markers.info().size;
        self.limits.check_size(size)?;
        self.limits.check_ratio(encoded.len(), size)?;
        Ok(markers)
    }

    /// Replaces the library's decompressor after an error: data of a corrupt file that remain in it
    /// can make it reject the next file.
    fn reset_after_error<T>(&mut self, outcome: Result<T>) -> Result<T> {
        if outcome.is_err() {
            self.library = new_library()?;
        }
        outcome
    }

    /// Parses the header in the library, and sets the scale.
    fn begin(&mut self, encoded: &[u8], markers: &Header, factor: u32) -> Result<DecompressHeader> {
        let size = markers.info().size;
        self.limits.check_bytes(markers.coefficient_bytes(), size)?;
        let blocks = markers.blocks().max(1);
        let scans = (max_block_visits(blocks, encoded.len() as u64) / blocks).min(MAX_SCANS);
        self.library.set_scan_limit(scans as u32).map_err(error)?;
        let header = self.library.read_header(encoded).map_err(error)?;
        if (header.width, header.height) != dimensions(size) {
            let found = (header.width, header.height);
            return Err(errors::corrupt(NAME, format!("second frame header with size {found:?}")));
        }
        let scale = match factor {
            2 => ScalingFactor::ONE_HALF,
            4 => ScalingFactor::ONE_QUARTER,
            8 => ScalingFactor::ONE_EIGHTH,
            _ => ScalingFactor::ONE,
        };
        self.library.set_scaling_factor(scale).map_err(error)?;
        Ok(header)
    }

    /// Classifies a warning or error of the library after it wrote all pixels.
    fn classify(
        &self,
        encoded: &[u8],
        markers: &Header,
        outcome: turbojpeg::Result<()>,
    ) -> Result<()> {
        let Err(reason) = outcome.map_err(error) else { return Ok(()) };
        // The library reports only the first warning, which may hide a truncation.
        markers.check_end(encoded)?;
        // Corrupt data are a warning for the library, which then continues.
        if self.limits.is_strict() || !reason.message().contains("Corrupt JPEG data") {
            return Err(reason);
        }
        Ok(())
    }

    /// Decodes the whole image, reduced by `factor`, into the scratch memory. Returns its pixel
    /// layout.
    fn decode_whole(
        &mut self,
        encoded: &[u8],
        markers: &Header,
        header: &DecompressHeader,
        size: Size,
    ) -> Result<PixelLayout> {
        let format = if is_cmyk(header) { PixelFormat::CMYK } else { PixelFormat::RGB };
        let bytes = size.pixels() * format.size() as u64;
        reserve(&mut self.scratch, bytes, &self.limits, markers.info().size)?;
        let stride = size.width as usize * format.size();
        let outcome =
            self.library.decompress(encoded, image(&mut self.scratch, size, stride, format));
        self.classify(encoded, markers, outcome)?;
        if is_cmyk(header) {
            for pixel in self.scratch.as_chunks_mut::<4>().0 {
                // CMYK is stored inverted: Adobe's programs write CMYK in this way, and all
                // decoders expect it.
                let [red, green, blue] = cmyk_to_rgb(pixel.map(|stored| 255 - stored));
                *pixel = [red, green, blue, 0];
            }
        }
        Ok(PixelLayout::Rgb(format.size()))
    }

    fn write_pixels(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        mut out: PixelsMut<'_>,
    ) -> Result<Decoded> {
        let markers = self.open(encoded)?;
        let size = markers.info().size;
        let region = request.checked_region(size, &out)?;
        let whole = region == Rect::full(size);
        let factor = if whole { reduction_factor(request, size) } else { 1 };
        let header = self.begin(encoded, &markers, factor)?;
        let direct = whole && factor == 1 && !is_cmyk(&header);
        if let Some(target) = out.as_contiguous_mut().filter(|_| direct) {
            let stride = size.width as usize * CHANNELS;
            let target = image(target, size, stride, PixelFormat::RGB);
            let outcome = self.library.decompress(encoded, target);
            self.classify(encoded, &markers, outcome)?;
            return Ok(Decoded::new(size));
        }
        let size = scaled(size, factor);
        let pixel = self.decode_whole(encoded, &markers, &header, size)?;
        let area = if factor == 1 { region } else { Rect::full(size) };
        let stride = size.width as usize * pixel.bytes();
        for row in 0..area.height {
            let start = (area.top + row) as usize * stride + area.left as usize * pixel.bytes();
            let source = &self.scratch[start..][..area.width as usize * pixel.bytes()];
            let target = &mut out.row_mut(row)[..area.width as usize * CHANNELS];
            pixel.copy_row(source, target);
        }
        Ok(Decoded::new(area.size()))
    }

    fn write_planes(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        picture: &mut Picture,
    ) -> Result<Decoded> {
        let markers = self.open(encoded)?;
        let size = markers.info().size;
        let region = request.region_within(size)?;
        let factor = reduction_factor(request, region.size());
        let header = self.begin(encoded, &markers, factor)?;
        let sampling = header.subsamp;
        let color = match header.colorspace {
            _ if header.is_lossless => ColorModel::Rgb,
            Colorspace::Gray => ColorModel::Grey,
            Colorspace::YCbCr if sampling != Subsamp::Unknown => ColorModel::YCbCr,
            _ => ColorModel::Rgb,
        };
        if color == ColorModel::Rgb {
            picture.start_rgb(size, region)?;
            let request = DecodeRequest::full().region(region);
            return self.write_pixels(encoded, &request, picture.rgb_mut()?);
        }
        let (width, height) = dimensions(scaled(size, factor));
        let bytes = turbojpeg::yuv_pixels_len(width, 1, height, sampling).map_err(error)?;
        reserve(&mut self.scratch, bytes as u64, &self.limits, size)?;
        let pixels = &mut self.scratch[..];
        let planes = turbojpeg::YuvImage { pixels, width, align: 1, height, subsamp: sampling };
        let (luma, difference) = (planes.y_size(), planes.uv_size());
        let outcome = self.library.decompress_to_yuv(encoded, planes);
        self.classify(encoded, &markers, outcome)?;

        // The library pads planes to whole MCUs; the padding is dropped.
        let (across, down) = sampling.size();
        let (across, down) = (factor * across as u32, factor * down as u32);
        let planes =
            [(luma, factor, factor), (difference, across, down), (difference, across, down)];
        let planes = &planes[..color.planes()];
        let shapes: Vec<PlaneShape> = planes
            .iter()
            .map(|&((stride, _), across, down)| {
                let positions = Size::new(size.width.div_ceil(across), size.height.div_ceil(down));
                PlaneShape { channels: 1, area: Rect::full(positions), across, down, stride }
            })
            .collect();
        picture.start(size, color, &shapes)?;
        let mut rest = &self.scratch[..];
        for (plane, &((stride, rows), ..)) in picture.planes_mut().iter_mut().zip(planes) {
            let (samples, after) = rest.split_at(stride * rows);
            let kept = stride * plane.shape().area.height as usize;
            plane.samples_mut()[..kept].copy_from_slice(&samples[..kept]);
            rest = after;
        }
        Ok(Decoded::new(scaled(region.size(), factor)))
    }
}

impl ImageDecoder for TurboJpegDecoder {
    fn inspect(&mut self, encoded: &[u8]) -> Result<ImageInfo> {
        self.open(encoded).map(|markers| markers.info())
    }

    fn decode_into(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        out: PixelsMut<'_>,
    ) -> Result<Decoded> {
        let outcome = self.write_pixels(encoded, request, out);
        self.reset_after_error(outcome)
    }

    fn decode_planes(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        picture: &mut Picture,
    ) -> Result<Decoded> {
        let outcome = self.write_planes(encoded, request, picture);
        self.reset_after_error(outcome)
    }
}

fn is_cmyk(header: &DecompressHeader) -> bool {
    matches!(header.colorspace, Colorspace::CMYK | Colorspace::YCCK)
}

/// The reduction factor for a result that is at least as large as requested.
fn reduction_factor(request: &DecodeRequest, size: Size) -> u32 {
    let Some(smallest) = request.smallest() else { return 1 };
    let large_enough =
        |factor| size.width / factor >= smallest.width && size.height / factor >= smallest.height;
    [8, 4, 2].into_iter().find(|&factor| large_enough(factor)).unwrap_or(1)
}

fn scaled(size: Size, factor: u32) -> Size {
    Size::new(size.width.div_ceil(factor), size.height.div_ceil(factor))
}

fn dimensions(size: Size) -> (usize, usize) {
    (size.width as usize, size.height as usize)
}

fn image(
    pixels: &mut [u8],
    size: Size,
    pitch: usize,
    format: PixelFormat,
) -> turbojpeg::Image<&mut [u8]> {
    let (width, height) = dimensions(size);
    turbojpeg::Image { pixels, width, pitch, height, format }
}

/// Classifies an error by its text, because the library reports errors as text only.
fn error(error: turbojpeg::Error) -> Error {
    let words = error.to_string();
    let has = |part: &str| words.contains(part);
    if has("Premature end") {
        Error::new(ErrorKind::Truncated, format!("truncated JPEG: {words}"))
    } else if has("more than") && has("scans") {
        Error::new(
            ErrorKind::LimitExceeded,
            format!("too many scans for the image and file size: {words}"),
        )
    } else if has("Insufficient memory") {
        errors::limit_exceeded(NAME)
    } else if has("nsupported") || has("not supported") || has("precision") {
        errors::unsupported(NAME, words)
    } else {
        errors::corrupt(NAME, words)
    }
}
