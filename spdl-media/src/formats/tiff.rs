//! TIFF through the `tiff` crate: the first page. What that crate does not decompress, CCITT's codes
//! and JPEG with subsampled chroma, is decompressed here.

use std::borrow::Cow;
use std::io::Cursor;

use spdl_core::{Error, ErrorKind, Result};
use tiff::ColorType;
use tiff::decoder::{
    BufferLayoutPreference, ChunkType, Decoder, DecodingResult, Limits as TiffLimits,
};
use tiff::tags::Tag;

use super::ccitt::{self, Fault, Scheme};
use super::convert::cmyk_to_rgb;
use super::failure;
use super::frame::{Format, Job, reserve};
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
    compression: Compression,
}

type Reader<'a> = Decoder<Cursor<Cow<'a, [u8]>>>;

/// Who decompresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    /// The `tiff` crate.
    Other,
    /// CCITT's, for facsimile; the crate has a part of it.
    Ccitt(Ccitt),
    /// JPEG of luma and chroma, which need not have the same size.
    Jpeg { is_old: bool },
}

/// CCITT's compressions, by TIFF's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ccitt {
    Runs = 2,
    Group3 = 3,
    Group4 = 4,
}

impl Format for Tiff {
    const NAME: &'static str = "tiff";
    type File<'a> = Opened<'a>;

    fn sniff(head: &[u8]) -> bool {
        // Classic and 64-bit, in both byte orders.
        [b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"].iter().any(|magic| head.starts_with(*magic))
    }

    fn open<'a>(encoded: &'a [u8], own: &Limits) -> Result<(Opened<'a>, ImageInfo)> {
        let directory = Directory::read(encoded).unwrap_or_default();
        let has_palette = directory.photometric == Some(PALETTE);
        let compression = directory.compression();
        let bytes = usize::try_from(own.bytes()).unwrap_or(usize::MAX);
        let mut limits = TiffLimits::default();
        limits.decoding_buffer_size = bytes;
        limits.intermediate_buffer_size = bytes;
        let encoded = directory.readable(encoded);
        let mut decoder = Decoder::new(Cursor::new(encoded)).map_err(error)?.with_limits(limits);
        let (width, height) = decoder.dimensions().map_err(error)?;
        let orientation = match decoder.find_tag_unsigned::<u16>(Tag::Orientation) {
            Ok(Some(number)) => Orientation::from_exif(number).unwrap_or_default(),
            Ok(None) | Err(_) => Orientation::Upright,
        };
        let info = ImageInfo::new(Size::new(width, height), orientation);
        Ok((Opened { decoder, has_palette, compression }, info))
    }

    fn decode(&mut self, file: Opened<'_>, mut job: Job<'_>) -> Result<Decoded> {
        let Opened { mut decoder, has_palette, compression } = file;
        let reader = SampleReader::new(&mut decoder, has_palette)?;
        let outcome = match compression {
            Compression::Other => {
                decoder.read_image_to_buffer(&mut self.samples).map(drop).map_err(error)
            }
            Compression::Ccitt(kind) => self.read_ccitt(&mut decoder, kind, &reader, &job),
            Compression::Jpeg { is_old: true }
                if decoder.find_tag(Tag::Unknown(JPEG_START)).map_err(error)?.is_none() =>
            {
                return Err(unsupported("old JPEG in a TIFF, in parts with common tables"));
            }
            Compression::Jpeg { is_old } => self.read_jpeg(&mut decoder, is_old, &job),
        };
        let layout = decoder.image_buffer_layout().map_err(error)?;
        let cut = match outcome {
            Ok(()) => None,
            Err(reason) if compression == Compression::Other && job.may_be_partial(&reason) => {
                match rows_before_cut(&mut decoder) {
                    Some(rows) if rows > 0 => Some((rows, reason)),
                    _ => return Err(reason),
                }
            }
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

impl Tiff {
    /// Makes room for all samples of a page, each of a byte or less: zeros.
    fn room(&mut self, bytes: usize, job: &Job<'_>) -> Result<&mut Vec<u8>> {
        let mut samples = match std::mem::replace(&mut self.samples, DecodingResult::U8(Vec::new()))
        {
            DecodingResult::U8(samples) => samples,
            _ => Vec::new(),
        };
        samples.clear();
        reserve(&mut samples, bytes as u64, job.limits, job.info.size)?;
        self.samples = DecodingResult::U8(samples);
        match &mut self.samples {
            DecodingResult::U8(samples) => Ok(samples),
            _ => Err(failure::limit_exceeded(Self::NAME)),
        }
    }

    /// Reads strips of a facsimile, one bit a pixel, 1 for white.
    fn read_ccitt(
        &mut self,
        decoder: &mut Reader<'_>,
        kind: Ccitt,
        reader: &SampleReader,
        job: &Job<'_>,
    ) -> Result<()> {
        if (reader.bits, reader.channels) != (1, 1) || decoder.get_chunk_type() != ChunkType::Strip
        {
            return Err(unsupported("CCITT compression but of one bit a pixel, in strips"));
        }
        let number = |decoder: &mut Reader<'_>, tag, default: u32| -> Result<u32> {
            Ok(decoder.find_tag_unsigned(tag).map_err(error)?.unwrap_or(default))
        };
        let scheme = match kind {
            Ccitt::Runs => Scheme::Runs,
            Ccitt::Group3 => Scheme::Group3 {
                two_dimensional: number(decoder, Tag::Unknown(T4_OPTIONS), 0)? & 1 != 0,
            },
            Ccitt::Group4 => Scheme::Group4,
        };
        let lowest_bit_first = number(decoder, Tag::FillOrder, 1)? == 2;
        let white_is_zero =
            number(decoder, Tag::PhotometricInterpretation, 0)? == u32::from(WHITE_IS_ZERO);
        let Size { width, height } = job.info.size;
        let row_bytes = (width as usize).div_ceil(8);
        let strip_rows = decoder.chunk_dimensions().1 as usize;
        let strips = chunks(decoder, job.encoded, (Tag::StripOffsets, Tag::StripByteCounts))?;
        let samples = self.room(row_bytes * height as usize, job)?;
        let parts = samples.chunks_mut(row_bytes.max(1).saturating_mul(strip_rows.max(1)));
        if parts.len() > strips.len() {
            return Err(failure::corrupt(Self::NAME, "fewer strips than rows need"));
        }
        for (index, (rows, data)) in parts.zip(strips).enumerate() {
            if let Err((row, fault)) = ccitt::decode(data, lowest_bit_first, scheme, width, rows) {
                let row = index * strip_rows + row;
                let (kind, what) = match fault {
                    Fault::Ended => (ErrorKind::Truncated, "end"),
                    Fault::BadCode => (ErrorKind::Corrupt, "match no code"),
                };
                let message = format!("the TIFF's CCITT data {what} after {row} of {height} rows");
                return Err(Error::new(kind, message));
            }
        }
        if white_is_zero {
            samples.iter_mut().for_each(|byte| *byte = !*byte);
        }
        Ok(())
    }

    /// Reads strips or tiles that are JPEG files but for their tables.
    #[cfg(feature = "jpeg")]
    fn read_jpeg(&mut self, decoder: &mut Reader<'_>, is_old: bool, job: &Job<'_>) -> Result<()> {
        use crate::{DecodeRequest, ImageCodec as _, PixelsMut, Rect};

        job.limits.check_depth(2)?;
        let mut jpeg = super::jpeg::JpegCodec.decoder(job.limits)?;
        let size = job.info.size;
        let row_bytes = size.width as usize * CHANNELS;
        if decoder.find_tag_unsigned::<u32>(Tag::PlanarConfiguration).map_err(error)? == Some(2) {
            return Err(unsupported("JPEG planes of a TIFF"));
        }
        let (chunk_width, chunk_height) =
            if is_old { (size.width, size.height) } else { decoder.chunk_dimensions() };
        let tags = match (is_old, decoder.get_chunk_type()) {
            // The whole page is one file, from its first marker on.
            (true, _) => (Tag::Unknown(JPEG_START), Tag::Unknown(JPEG_LENGTH)),
            (false, ChunkType::Strip) => (Tag::StripOffsets, Tag::StripByteCounts),
            (false, ChunkType::Tile) => (Tag::TileOffsets, Tag::TileByteCounts),
        };
        let parts = chunks(decoder, job.encoded, tags)?;
        let tables = match decoder.find_tag(Tag::JPEGTables).map_err(error)? {
            Some(tables) if !is_old => tables.into_u8_vec().map_err(error)?,
            _ => Vec::new(),
        };
        // They lie between a start and an end marker, and a part starts with a marker, too.
        let tables = tables.strip_suffix(b"\xFF\xD9").unwrap_or(&tables);
        let across = size.width.div_ceil(chunk_width.max(1));
        let needed = u64::from(across) * u64::from(size.height.div_ceil(chunk_height.max(1)));
        if (parts.len() as u64) < needed {
            return Err(failure::corrupt(Self::NAME, "fewer parts than the page needs"));
        }
        let samples = self.room(row_bytes * size.height as usize, job)?;
        let mut stream = Vec::new();
        for (index, data) in (0..needed as u32).zip(parts) {
            stream.clear();
            match data.strip_prefix(b"\xFF\xD8") {
                Some(rest) if !tables.is_empty() => {
                    stream.extend_from_slice(tables);
                    stream.extend_from_slice(rest);
                }
                _ => stream.extend_from_slice(data),
            }
            let (left, top) = (index % across * chunk_width, index / across * chunk_height);
            let part =
                Size::new(chunk_width.min(size.width - left), chunk_height.min(size.height - top));
            let found = jpeg.inspect(&stream)?.size;
            // The last ones may be filled up to the size of the others.
            if !(part.width..=chunk_width).contains(&found.width)
                || !(part.height..=chunk_height).contains(&found.height)
            {
                let message = format!("a JPEG of {found} pixels in a part of {part}");
                return Err(failure::corrupt(Self::NAME, message));
            }
            let start = top as usize * row_bytes + left as usize * CHANNELS;
            let end =
                start + (part.height as usize - 1) * row_bytes + part.width as usize * CHANNELS;
            let target = PixelsMut::with_stride(&mut samples[start..end], part, row_bytes)?;
            let request = DecodeRequest::full().region(Rect::full(part));
            jpeg.decode_into(&stream, &request, target)?;
        }
        Ok(())
    }

    #[cfg(not(feature = "jpeg"))]
    fn read_jpeg(&mut self, _: &mut Reader<'_>, _: bool, _: &Job<'_>) -> Result<()> {
        Err(unsupported("JPEG in a TIFF, which needs the feature `jpeg` of spdl-media"))
    }
}

/// Parts of a file, by the tags that tell where they start and how long they are.
fn chunks<'a>(
    decoder: &mut Reader<'_>,
    encoded: &'a [u8],
    (starts, lengths): (Tag, Tag),
) -> Result<Vec<&'a [u8]>> {
    let mut numbers = |tag| {
        let found = decoder.find_tag_unsigned_vec::<u64>(tag).map_err(error)?;
        found.ok_or_else(|| failure::corrupt(Tiff::NAME, format!("there is no tag {tag:?}")))
    };
    let (starts, lengths) = (numbers(starts)?, numbers(lengths)?);
    let part = |(&start, &length): (&u64, &u64)| {
        let start = usize::try_from(start).unwrap_or(usize::MAX).min(encoded.len());
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        &encoded[start..start.saturating_add(length).min(encoded.len())]
    };
    Ok(starts.iter().zip(&lengths).map(part).collect())
}

/// How many rows the sound strips of a page that could not be read to its end, or its rows of tiles,
/// hold from the top. `None` where components lie in planes of their own: the last ones are missing
/// then.
fn rows_before_cut(decoder: &mut Reader<'_>) -> Option<u32> {
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
    Some((sound / across).saturating_mul(chunk_height).min(height))
}

/// What is read of the first page's directory before the `tiff` crate reads it, which refuses some
/// that can be read.
#[derive(Default)]
struct Directory {
    is_little: bool,
    photometric: Option<u64>,
    /// Where that is told, in two bytes.
    photometric_at: usize,
    compression: Option<u64>,
    /// Where the length of the only strip is told, in four bytes, and how long it can be.
    strip: Option<(usize, u64)>,
    /// Whether the file ends with the directory, before the address of the next one.
    is_last: bool,
}

impl Directory {
    fn read(encoded: &[u8]) -> Option<Directory> {
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
        let mut found = Directory { is_little: little, ..Directory::default() };
        let (mut start, mut length) = (None, None);
        let entries = number(directory, count_bytes)?;
        // More entries than the file could hold end the walk by themselves.
        for entry in 0..entries {
            let offset = usize::try_from(entry).ok()?.checked_mul(entry_bytes)?;
            let at = directory.checked_add(count_bytes)?.checked_add(offset)?;
            let value = at.checked_add(if big { 12 } else { 8 })?;
            let Some(tag) = number(at, 2) else { return Some(found) };
            let is = |name: Tag| tag == u64::from(name.to_u16());
            let is_one = !big && number(at + 4, 4) == Some(1);
            if is(Tag::PhotometricInterpretation) {
                (found.photometric, found.photometric_at) = (number(value, 2), value);
            } else if is(Tag::Compression) {
                found.compression = number(value, 2);
            } else if is_one && is(Tag::StripOffsets) && number(at + 2, 2) == Some(LONG) {
                start = number(value, 4);
            } else if is_one && is(Tag::StripByteCounts) && number(at + 2, 2) == Some(LONG) {
                length = number(value, 4).map(|length| (value, length));
            }
        }
        if let (Some(start), Some((at, length))) = (start, length) {
            let most = (encoded.len() as u64).saturating_sub(start);
            found.strip = (length > most).then_some((at, most));
        }
        let end = (entries as usize).checked_mul(entry_bytes)?.checked_add(directory + count_bytes);
        found.is_last = end == Some(encoded.len());
        Some(found)
    }

    fn compression(&self) -> Compression {
        match (self.compression, self.photometric) {
            (Some(2), _) => Compression::Ccitt(Ccitt::Runs),
            (Some(3), _) => Compression::Ccitt(Ccitt::Group3),
            (Some(4), _) => Compression::Ccitt(Ccitt::Group4),
            (Some(6), Some(YCBCR)) => Compression::Jpeg { is_old: true },
            (Some(7), Some(YCBCR)) => Compression::Jpeg { is_old: false },
            _ => Compression::Other,
        }
    }

    /// The file in such a form that the crate reads what we leave to it: indices into a palette, of
    /// which it knows nothing, are said to be grey, and are made colours here; luma and chroma of a
    /// JPEG are said to be RGB, which they are made here; and a strip is not longer than the file.
    fn readable<'a>(&self, encoded: &'a [u8]) -> Cow<'a, [u8]> {
        let mut encoded = Cow::Borrowed(encoded);
        let mut write = |at: usize, value: u64, bytes: usize| {
            let little = value.to_le_bytes();
            let target = &mut encoded.to_mut()[at..at + bytes];
            target.copy_from_slice(&little[..bytes]);
            if !self.is_little {
                target.reverse();
            }
        };
        match (self.photometric, self.compression()) {
            (Some(PALETTE), _) => write(self.photometric_at, BLACK_IS_ZERO, 2),
            (_, Compression::Jpeg { .. }) => write(self.photometric_at, RGB, 2),
            _ => {}
        }
        if let Some((at, most)) = self.strip {
            write(at, most, 4);
        }
        if self.is_last {
            encoded.to_mut().extend([0; 8]);
        }
        encoded
    }
}

/// The type of a tag's value: a number of 32 bits.
const LONG: u64 = 4;
/// Values of the tag `PhotometricInterpretation`.
const WHITE_IS_ZERO: u16 = 0;
const RGB: u64 = 2;
const YCBCR: u64 = 6;
const T4_OPTIONS: u16 = 292;
const JPEG_START: u16 = 513;
#[cfg(feature = "jpeg")]
const JPEG_LENGTH: u16 = 514;
const PALETTE: u64 = 3;
const BLACK_IS_ZERO: u64 = 1;
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

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{what} is not supported"))
}
