//! The codec: decodes MCU rows to RGB pixels or to planes.

use std::ops::Range;

use fearless_simd::Level;
use spdl_core::{Error, ErrorKind, Result};

use super::bits::{EntropyReader, EntropyWindow};
use super::coefficients::CoefficientSet;
use super::errors::unsupported;
use super::header::{self, Coding, Color, EntropyCoding, Frame, Header, MAX_COMPONENTS};
use super::output::{ComponentOutputs, PlaneLayout};
use super::row_buffer::RowBuffer;
use super::scan::ScanDecoder;
use crate::image::{
    CHANNELS, ColorModel, DecodeRequest, Decoded, ImageCodec, ImageDecoder, ImageInfo, Limits,
    OnTruncated, Picture, PixelsMut,
};

/// JPEG: sequential and progressive DCT.
#[derive(Debug)]
pub(in crate::formats) struct JpegCodec;

impl ImageCodec for JpegCodec {
    fn name(&self) -> &'static str {
        "jpeg"
    }

    fn sniff(&self, head: &[u8]) -> bool {
        head.starts_with(&[0xFF, 0xD8, 0xFF])
    }

    fn decoder(&self, limits: &Limits) -> Result<Box<dyn ImageDecoder>> {
        Ok(Box::new(JpegDecoder::new(limits, Color::Cmyk)))
    }
}

/// A decoder of JPEG streams in TIFF; their CMYK is not inverted.
#[cfg(feature = "tiff")]
pub(in crate::formats) fn decoder_of_tiff_parts(limits: &Limits) -> impl ImageDecoder + use<> {
    JpegDecoder::new(limits, Color::PlainCmyk)
}

/// The SIMD level, at most AVX2: rows of eight coefficients do not fill wider registers.
fn level() -> Level {
    let level = Level::new();
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    let level = level.as_avx2().map_or(level, Level::Avx2);
    level
}

struct JpegDecoder {
    limits: Limits,
    /// The colour space of files with four components and no YCCK transform.
    four_component_color: Color,
    /// The SIMD level.
    level: Level,
    window: EntropyWindow,
    scans: ScanDecoder,
    row_buffer: RowBuffer,
}

impl ImageDecoder for JpegDecoder {
    fn inspect(&mut self, encoded: &[u8]) -> Result<ImageInfo> {
        let header = Header::read(encoded, &mut |_, _, _| Ok(()))?;
        self.check(encoded, &header)?;
        Ok(header.info())
    }

    fn decode_into(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        mut out: PixelsMut<'_>,
    ) -> Result<Decoded> {
        let (header, color) = self.read_header(encoded)?;
        let frame = &header.frame;
        let region = request.checked_region(frame.size, &out)?;
        let limits = &self.limits.after(region.size().pixels() * CHANNELS as u64, frame.size)?;
        let JpegDecoder { level, row_buffer, .. } = self;
        row_buffer.prepare(frame, region)?;
        let task = DecodeTask { encoded, header: &header, request, limits, level: *level };
        let kept = [CoefficientSet::All; MAX_COMPONENTS];
        let mut rows =
            McuRows::begin(task, &mut self.scans, &mut self.window, row_buffer.rows(), kept)?;
        while let Some(row) = rows.decode_next(|row| row_buffer.outputs(frame, row))? {
            row_buffer.emit(frame, row, region, color, &mut out, *level);
        }
        let valid = (row_buffer.emitted() as u32).saturating_sub(region.top).min(region.height);
        rows.check_valid(valid)?;
        (valid..region.height).for_each(|row| out.row_mut(row).fill(0));
        Ok(Decoded::partial(region.size(), valid))
    }

    fn decode_planes(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        picture: &mut Picture,
    ) -> Result<Decoded> {
        let (header, color) = self.read_header(encoded)?;
        let frame = &header.frame;
        let region = request.region_within(frame.size)?;
        let Some(color) = color_model(frame, color) else {
            picture.start_rgb(frame.size, region)?;
            return self.decode_into(encoded, request, picture.rgb_mut()?);
        };
        let layout = PlaneLayout::choose(frame, region, request.smallest());
        let shapes = &layout.shapes[..frame.components.len()];
        let bytes = shapes.iter().map(|it| it.stride as u64 * u64::from(it.area.height)).sum();
        let limits = &self.limits.after(bytes, frame.size)?;
        picture.start(frame.size, color, shapes)?;
        let task = DecodeTask { encoded, header: &header, request, limits, level: self.level };
        let (wanted, kept) = (layout.rows(frame), layout.kept());
        let mut rows = McuRows::begin(task, &mut self.scans, &mut self.window, wanted, kept)?;
        let mut drawn = 0;
        while let Some(row) = rows.decode_next(|_| layout.outputs(picture))? {
            drawn = row + 1;
        }
        let size = layout.size;
        let valid = match rows.is_truncated() {
            true => layout.fill_missing(frame, region, drawn, picture),
            false => size.height,
        };
        rows.check_valid(valid)?;
        Ok(Decoded::partial(size, valid))
    }
}

impl JpegDecoder {
    fn new(limits: &Limits, four_component_color: Color) -> Self {
        JpegDecoder {
            limits: limits.clone(),
            four_component_color,
            level: level(),
            window: EntropyWindow::default(),
            scans: ScanDecoder::default(),
            row_buffer: RowBuffer::default(),
        }
    }

    fn read_header(&mut self, encoded: &[u8]) -> Result<(Header, Color)> {
        let tables = &mut self.scans.tables;
        tables.clear();
        let header =
            Header::read(encoded, &mut |marker, segment, at| tables.read(marker, segment, at))?;
        self.check(encoded, &header)?;
        let color = match header.color()? {
            Color::Cmyk => self.four_component_color,
            color => color,
        };
        Ok((header, color))
    }

    fn check(&self, encoded: &[u8], header: &Header) -> Result<()> {
        if header.frame.coding == Coding::Lossless {
            return Err(unsupported("unsupported JPEG: lossless process", header.data));
        }
        self.limits.check_size(header.frame.size)?;
        self.limits.check_ratio(encoded.len(), header.frame.size)
    }
}

/// A decode request with its context.
struct DecodeTask<'a> {
    encoded: &'a [u8],
    header: &'a Header,
    request: &'a DecodeRequest,
    limits: &'a Limits,
    level: Level,
}

/// Decodes an image by MCU rows.
struct McuRows<'a> {
    task: DecodeTask<'a>,
    scans: &'a mut ScanDecoder,
    /// The reader of a single scan; `None` if all scans were decoded before.
    reader: Option<EntropyReader<'a>>,
    /// The rows that are not yet decoded.
    remaining: Range<usize>,
    /// The rows of the region.
    wanted: Range<usize>,
    /// The number of rows with all coefficients.
    complete: usize,
    /// Why rows of the region are missing.
    truncation: Option<Error>,
}

impl<'a> McuRows<'a> {
    /// Prepares to decode the MCU rows of the region. Rows above the region must be read too; rows
    /// below it are only read to detect truncation.
    fn begin(
        task: DecodeTask<'a>,
        scans: &'a mut ScanDecoder,
        window: &'a mut EntropyWindow,
        wanted: Range<usize>,
        kept: [CoefficientSet; MAX_COMPONENTS],
    ) -> Result<Self> {
        let DecodeTask { encoded, header, request, limits, level } = task;
        let frame = &header.frame;
        let all = request.is_exact() || !has_end_marker(encoded, header.data);
        let single = (frame.coding, frame.entropy) == (Coding::Sequential, EntropyCoding::Huffman)
            && header.scan.components.len() == frame.components.len();
        let (reader, remaining, complete, truncation) = if single {
            scans.begin_single(frame, &header.scan)?;
            let (rows, data) = match all {
                true => (0..frame.mcu_rows, header.data),
                false => {
                    let (start, data) = scans.skip_rows(encoded, header, wanted.start);
                    (start..wanted.end, data)
                }
            };
            let reader = EntropyReader::new(encoded, data, window, level);
            (Some(reader), rows, frame.mcu_rows, None)
        } else {
            let lenience = (limits, request.truncation());
            let kept = match (all, frame.coding) {
                (false, Coding::Progressive) => kept,
                _ => [CoefficientSet::All; MAX_COMPONENTS],
            };
            let (complete, truncation) =
                scans.read_all(encoded, header, window, kept, lenience, level)?;
            // A truncation is an error only if it affects rows of the region.
            (None, wanted.clone(), complete, truncation.filter(|_| complete < wanted.end))
        };
        Ok(McuRows { task, scans, reader, remaining, wanted, complete, truncation })
    }

    /// Decodes the next row of the region into the given outputs, and returns its index. Returns
    /// `None` after the last row, or if the data are truncated and the request accepts it.
    fn decode_next<'s>(
        &mut self,
        outputs: impl FnOnce(usize) -> ComponentOutputs<'s>,
    ) -> Result<Option<usize>> {
        let DecodeTask { header, level, .. } = self.task;
        let frame = &header.frame;
        let Some(reader) = &mut self.reader else {
            let row = self.remaining.next().filter(|&row| row < self.complete);
            if let Some(row) = row {
                self.scans.write_stored_row(frame, row, &mut outputs(row), level);
            }
            return Ok(row);
        };
        let mut outputs = Some(outputs);
        for row in self.remaining.by_ref() {
            let wanted = self.wanted.contains(&row);
            let mut place = match outputs.take_if(|_| wanted) {
                Some(outputs) => outputs(row),
                None => ComponentOutputs::default(),
            };
            let outcome =
                self.scans.decode_row(frame, &header.scan, row, reader, &mut place, level);
            match outcome {
                Ok(()) if wanted => return Ok(Some(row)),
                Ok(()) => {}
                Err(error) => {
                    let allowed = self.task.request.truncation() == OnTruncated::Partial
                        && error.kind() == ErrorKind::Truncated;
                    self.remaining = 0..0;
                    if !allowed {
                        return Err(error);
                    }
                    // A truncation is an error only if it affects rows of the region.
                    if row < self.wanted.end {
                        self.truncation = Some(error);
                    }
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    /// Whether rows of the region are missing.
    fn is_truncated(&self) -> bool {
        self.truncation.is_some()
    }

    /// Returns the truncation error if no row is valid.
    fn check_valid(self, rows: u32) -> Result<()> {
        match self.truncation {
            Some(error) if rows == 0 => Err(error),
            _ => Ok(()),
        }
    }
}

/// Whether the file ends with an EOI marker, so that it is not truncated. Up to 30 bytes, and then
/// any number of zero bytes, may follow the marker.
fn has_end_marker(encoded: &[u8], data: usize) -> bool {
    const MAX_TRAILING: usize = 32;
    let end = encoded.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let tail = encoded.get(data.max(end.saturating_sub(MAX_TRAILING))..end).unwrap_or_default();
    tail.windows(2).any(|pair| pair == [0xFF, 0xD9])
}

/// The colour model of the planes, if they can be returned without conversion.
fn color_model(frame: &Frame, color: Color) -> Option<ColorModel> {
    match color {
        Color::Grey => Some(ColorModel::Grey),
        Color::YCbCr => {
            let ratios = |component: &header::Component| {
                [frame.across / component.across, frame.down / component.down]
            };
            let usual = frame.components.iter().flat_map(ratios).all(|ratio| ratio != 3);
            usual.then_some(ColorModel::YCbCr)
        }
        Color::Rgb | Color::Cmyk | Color::Ycck | Color::PlainCmyk => None,
    }
}
