//! TIFF through the `tiff` crate: the first page.

use std::borrow::Cow;
use std::io::Cursor;

use spdl_core::{Error, ErrorKind, Result};
use tiff::ColorType;
use tiff::decoder::{
    BufferLayoutPreference, ChunkType, Decoder, DecodingResult, Limits as TiffLimits,
};
use tiff::tags::Tag;

use super::convert::cmyk_to_rgb;
use super::failure;
use super::frame::{Format, Job};
use crate::pixels::CHANNELS;
use crate::{Decoded, ImageInfo, Limits, Orientation, Size};

/// TIFF, the first page.
pub(super) struct Tiff {
    /// All samples of the page.
    samples: DecodingResult,
}

impl Default for Tiff {
    fn default() -> Self {
        Tiff { samples: DecodingResult::U8(Vec::new()) }
    }
}

/// A file up to its first page's pixels.
pub(super) struct Opened<'a> {
    decoder: Reader<'a>,
    has_palette: bool,
}

type Reader<'a> = Decoder<Cursor<Cow<'a, [u8]>>>;

impl Format for Tiff {
    const NAME: &'static str = "tiff";
    type File<'a> = Opened<'a>;

    fn sniff(head: &[u8]) -> bool {
        // Classic and 64-bit, in both byte orders.
        [b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"].iter().any(|magic| head.starts_with(*magic))
    }

    fn open<'a>(encoded: &'a [u8], own: &Limits) -> Result<(Opened<'a>, ImageInfo)> {
        let palette = says_palette(encoded);
        let mut encoded = Cow::Borrowed(encoded);
        if let Some(at) = palette {
            let grey = match encoded[0] {
                b'I' => BLACK_IS_ZERO.to_le_bytes(),
                _ => BLACK_IS_ZERO.to_be_bytes(),
            };
            encoded.to_mut()[at..at + 2].copy_from_slice(&grey);
        }
        let bytes = usize::try_from(own.bytes()).unwrap_or(usize::MAX);
        let mut limits = TiffLimits::default();
        limits.decoding_buffer_size = bytes;
        limits.intermediate_buffer_size = bytes;
        let mut decoder = Decoder::new(Cursor::new(encoded)).map_err(error)?.with_limits(limits);
        let (width, height) = decoder.dimensions().map_err(error)?;
        let orientation = match decoder.find_tag_unsigned::<u16>(Tag::Orientation) {
            Ok(Some(number)) => Orientation::from_exif(number).unwrap_or_default(),
            Ok(None) | Err(_) => Orientation::Upright,
        };
        let info = ImageInfo::new(Size::new(width, height), orientation);
        Ok((Opened { decoder, has_palette: palette.is_some() }, info))
    }

    fn decode(&mut self, file: Opened<'_>, mut job: Job<'_>) -> Result<Decoded> {
        let Opened { mut decoder, has_palette } = file;
        let reader = SampleReader::new(&mut decoder, has_palette)?;
        let outcome = decoder.read_image_to_buffer(&mut self.samples).map_err(error);
        let (layout, cut) = match outcome {
            Ok(layout) => (layout, None),
            Err(reason) if job.may_be_partial(&reason) => match rows_before_cut(&mut decoder) {
                Some((layout, rows)) if rows > 0 => (layout, Some((rows, reason))),
                _ => return Err(reason),
            },
            Err(reason) => return Err(reason),
        };
        if self.samples.as_buffer(0).byte_len() < layout.complete_len {
            return Err(failure::limit_exceeded(Self::NAME));
        }
        let samples = Samples::new(&self.samples)?;
        let rows = Rows::new(&layout, job.info.size, &reader, &samples)?;
        let columns = job.columns();
        for row in 0..job.region.height {
            let (pixels, _) = job.out.row_mut(row).as_chunks_mut::<CHANNELS>();
            let y = (job.region.top + row) as usize;
            for (x, pixel) in columns.clone().zip(pixels) {
                *pixel = reader.rgb(|channel| rows.sample(x, y, channel));
            }
        }
        match cut {
            Some((rows, reason)) => job.ended_after(rows, reason),
            None => Ok(job.done()),
        }
    }
}

/// The layout of a page that could not be read to its end, and the rows that its sound strips, or
/// rows of tiles, hold from the top. `None` where components lie in planes of their own: the last
/// ones are missing then.
fn rows_before_cut(decoder: &mut Reader<'_>) -> Option<(BufferLayoutPreference, u32)> {
    let layout = decoder.image_buffer_layout().ok()?;
    let (width, height) = decoder.dimensions().ok()?;
    let (chunk_width, chunk_height) = decoder.chunk_dimensions();
    let chunks = match decoder.get_chunk_type() {
        ChunkType::Strip => decoder.strip_count().ok()?,
        ChunkType::Tile => decoder.tile_count().ok()?,
    };
    let across = width.div_ceil(chunk_width.max(1));
    if chunks != across.checked_mul(height.div_ceil(chunk_height.max(1)))? {
        return None;
    }
    let sound = (0..chunks).take_while(|&chunk| decoder.read_chunk(chunk).is_ok()).count() as u32;
    Some((layout, (sound / across).saturating_mul(chunk_height).min(height)))
}

/// Where the first page says, in two bytes, that its pixels are indices into a palette; `None`
/// where it does not.
///
/// The `tiff` crate decodes grey of any depth, but no palettes. So it is told that the indices are
/// grey, and the palette is applied here.
fn says_palette(encoded: &[u8]) -> Option<usize> {
    let little = encoded.first() == Some(&b'I');
    let number = |at: usize, bytes: usize| {
        let field = encoded.get(at..at.checked_add(bytes)?)?;
        let shift = |value: u64, &byte: &u8| value << 8 | u64::from(byte);
        Some(match little {
            true => field.iter().rev().fold(0, shift),
            false => field.iter().fold(0, shift),
        })
    };
    let big = number(2, 2)? == 43;
    let (directory, count_bytes, entry_bytes) =
        if big { (number(8, 8)?, 8, 20) } else { (number(4, 4)?, 2, 12) };
    let directory = usize::try_from(directory).ok()?;
    // More entries than the file could hold end the walk by themselves.
    for entry in 0..number(directory, count_bytes)? {
        let offset = usize::try_from(entry).ok()?.checked_mul(entry_bytes)?;
        let at = directory.checked_add(count_bytes)?.checked_add(offset)?;
        let value = at.checked_add(if big { 12 } else { 8 })?;
        if number(at, 2)? == u64::from(Tag::PhotometricInterpretation.to_u16()) {
            return (number(value, 2)? == PALETTE).then_some(value);
        }
    }
    None
}

const PALETTE: u64 = 3;
const BLACK_IS_ZERO: u16 = 1;
/// The value of the tag `ExtraSamples` where colours are multiplied by alpha.
const ASSOCIATED_ALPHA: u16 = 1;

/// What the samples of a pixel mean.
struct SampleReader {
    meaning: Meaning,
    bits: u8,
    channels: usize,
    /// The colours of a palette image.
    palette: Vec<[u8; CHANNELS]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Grey,
    Palette,
    Rgb,
    /// Red, green and blue were multiplied by alpha, the fourth.
    RgbTimesAlpha,
    Cmyk,
}

impl SampleReader {
    fn new(decoder: &mut Reader<'_>, has_palette: bool) -> Result<Self> {
        let color = decoder.colortype().map_err(error)?;
        let bits = color.bit_depth();
        let channels = usize::from(color.num_samples());
        let whole = matches!(bits, 8 | 16);
        let meaning = match color {
            ColorType::Gray(1 | 2 | 4 | 8) if has_palette => Some(Meaning::Palette),
            ColorType::Gray(1 | 2 | 4 | 8 | 16 | 32) if !has_palette => Some(Meaning::Grey),
            // Grey, and something beside it that is not called alpha.
            ColorType::GrayA(_) | ColorType::Multiband { num_samples: 2, .. } if whole => {
                Some(Meaning::Grey)
            }
            ColorType::RGB(_) if whole => Some(Meaning::Rgb),
            ColorType::RGBA(_) if whole => {
                let extra = decoder.find_tag_unsigned_vec::<u16>(Tag::ExtraSamples);
                match extra {
                    Ok(Some(extra)) if extra.first() == Some(&ASSOCIATED_ALPHA) => {
                        Some(Meaning::RgbTimesAlpha)
                    }
                    _ => Some(Meaning::Rgb),
                }
            }
            // The `tiff` crate has turned it into RGB.
            ColorType::YCbCr(8) => Some(Meaning::Rgb),
            ColorType::CMYK(_) if whole => Some(Meaning::Cmyk),
            _ => None,
        };
        let Some(meaning) = meaning else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("TIFF pixels of the kind {color:?} are not supported"),
            ));
        };
        let palette = match meaning {
            Meaning::Palette => read_palette(decoder, bits)?,
            _ => Vec::new(),
        };
        Ok(SampleReader { meaning, bits, channels, palette })
    }

    /// A pixel from its samples, each 0 to 255 (a palette image's: the index).
    #[inline]
    fn rgb(&self, sample: impl Fn(usize) -> u8) -> [u8; CHANNELS] {
        match self.meaning {
            Meaning::Grey => [sample(0); CHANNELS],
            Meaning::Palette => {
                self.palette.get(usize::from(sample(0))).copied().unwrap_or_default()
            }
            Meaning::Rgb => [sample(0), sample(1), sample(2)],
            Meaning::RgbTimesAlpha => match u32::from(sample(3)) {
                0 => [0; CHANNELS],
                alpha => {
                    let divided = |value: u8| (u32::from(value) * 255 / alpha).min(255) as u8;
                    [divided(sample(0)), divided(sample(1)), divided(sample(2))]
                }
            },
            Meaning::Cmyk => cmyk_to_rgb([sample(0), sample(1), sample(2), sample(3)]),
        }
    }
}

fn read_palette(decoder: &mut Reader<'_>, bits: u8) -> Result<Vec<[u8; CHANNELS]>> {
    let map = decoder.get_tag_u16_vec(Tag::ColorMap).map_err(error)?;
    let colors = 1 << bits;
    if map.len() != CHANNELS * colors {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("expected {} TIFF palette values, found {}", CHANNELS * colors, map.len()),
        ));
    }
    // All reds come first, then all greens, all blues; 16 bits each.
    let upper = |at: usize| (map[at] >> 8) as u8;
    Ok((0..colors).map(|at| [upper(at), upper(colors + at), upper(2 * colors + at)]).collect())
}

/// The samples of a page, reduced to 8 bits on access.
enum Samples<'a> {
    Bytes(&'a [u8]),
    SignedBytes(&'a [i8]),
    Words(&'a [u16]),
    Signed(&'a [i16]),
    Longs(&'a [u32]),
    SignedLongs(&'a [i32]),
    Floats(&'a [f32]),
}

impl<'a> Samples<'a> {
    fn new(result: &'a DecodingResult) -> Result<Self> {
        Ok(match result {
            DecodingResult::U8(samples) => Samples::Bytes(samples),
            DecodingResult::I8(samples) => Samples::SignedBytes(samples),
            DecodingResult::U16(samples) => Samples::Words(samples),
            DecodingResult::I16(samples) => Samples::Signed(samples),
            DecodingResult::U32(samples) => Samples::Longs(samples),
            DecodingResult::I32(samples) => Samples::SignedLongs(samples),
            DecodingResult::F32(samples) => Samples::Floats(samples),
            _ => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "TIFF samples of this width are not supported",
                ));
            }
        })
    }

    fn len(&self) -> usize {
        match self {
            Samples::Bytes(samples) => samples.len(),
            Samples::SignedBytes(samples) => samples.len(),
            Samples::Words(samples) => samples.len(),
            Samples::Signed(samples) => samples.len(),
            Samples::Longs(samples) => samples.len(),
            Samples::SignedLongs(samples) => samples.len(),
            Samples::Floats(samples) => samples.len(),
        }
    }
}

/// Where each sample lies.
struct Rows<'a> {
    samples: &'a Samples<'a>,
    bits: usize,
    /// From one row to the next: bytes where samples are packed, otherwise samples.
    row_stride: usize,
    /// From one pixel to the next.
    pixel_stride: usize,
    /// From one channel to the next.
    channel_stride: usize,
    /// Wide grey is cut at 255; colours keep their upper byte.
    saturates: bool,
}

impl<'a> Rows<'a> {
    fn new(
        layout: &BufferLayoutPreference,
        size: Size,
        reader: &SampleReader,
        samples: &'a Samples<'a>,
    ) -> Result<Self> {
        let bits = usize::from(reader.bits);
        let width = size.width as usize;
        let planar = layout.planes > 1;
        let channels = if planar { 1 } else { reader.channels };
        let row_stride =
            if bits < 8 { (width * channels * bits).div_ceil(8) } else { width * channels };
        let plane = row_stride * size.height as usize;
        let (pixel_stride, channel_stride) = if planar { (1, plane) } else { (channels, 1) };
        let planes = if planar { reader.channels.min(layout.planes) } else { 1 };
        if samples.len() < plane * planes || (planar && layout.planes < reader.channels) {
            return Err(Error::new(
                ErrorKind::Truncated,
                format!("expected {} TIFF samples, found {}", plane * planes, samples.len()),
            ));
        }
        let saturates = reader.meaning == Meaning::Grey;
        Ok(Rows { samples, bits, row_stride, pixel_stride, channel_stride, saturates })
    }

    #[inline]
    fn sample(&self, x: usize, y: usize, channel: usize) -> u8 {
        if self.bits < 8 {
            return self.packed(x, y, channel);
        }
        let at = y * self.row_stride + x * self.pixel_stride + channel * self.channel_stride;
        match self.samples {
            Samples::Bytes(samples) => samples[at],
            // As everyone reads them: the sign is not looked at.
            Samples::SignedBytes(samples) => samples[at] as u8,
            Samples::Words(samples) if self.saturates => samples[at].min(255) as u8,
            Samples::Words(samples) => (samples[at] >> 8) as u8,
            Samples::Signed(samples) => samples[at].clamp(0, 255) as u8,
            Samples::Longs(samples) => samples[at].min(255) as u8,
            Samples::SignedLongs(samples) => samples[at].clamp(0, 255) as u8,
            // A cast from a float saturates, and cuts towards 0 as Pillow does.
            Samples::Floats(samples) => samples[at] as u8,
        }
    }

    /// A sample of 1, 2 or 4 bits (rows start at a byte), stretched to 0 to 255 where it is grey.
    fn packed(&self, x: usize, y: usize, channel: usize) -> u8 {
        let Samples::Bytes(bytes) = self.samples else { return 0 };
        let bit = (x * self.pixel_stride + channel) * self.bits;
        let byte = bytes[y * self.row_stride + bit / 8];
        let largest = (1u16 << self.bits) - 1;
        let value = u16::from(byte) >> (8 - self.bits - bit % 8) & largest;
        if self.saturates { (value * 255 / largest) as u8 } else { value as u8 }
    }
}

fn error(error: tiff::TiffError) -> Error {
    use tiff::TiffError::*;
    match error {
        IoError(error) => failure::read_error(Tiff::NAME, error),
        LimitsExceeded | IntSizeError => failure::limit_exceeded(Tiff::NAME),
        error @ UnsupportedError(_) => failure::unsupported(Tiff::NAME, error),
        error => failure::corrupt(Tiff::NAME, error),
    }
}
