//! Decompressed samples as RGB pixels.

use spdl_core::{Error, ErrorKind, Result};
use tiff::ColorType;
use tiff::decoder::DecodingResult;
use tiff::tags::Tag;

use super::super::adapter::DecodeJob;
use super::super::convert::{PixelLayout, cmyk_to_rgb};
use super::chunks::overlap;
use super::directory::Reader;
use super::errors::convert_error;
use super::tags::{ASSOCIATED_ALPHA, PALETTE};
use super::ycbcr::YCbCrCoefficients;
use crate::image::{CHANNELS, Rect, Size};

/// The meaning of the samples of a pixel.
pub(super) struct PixelReader {
    pub(super) meaning: ColorMeaning,
    pub(super) bits: u8,
    pub(super) channels: usize,
    /// The colour map of a palette image.
    pub(super) palette: Vec<[u8; CHANNELS]>,
    pub(super) luma: YCbCrCoefficients,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColorMeaning {
    Grey,
    Palette,
    Rgb,
    /// Red, green and blue, premultiplied by the fourth sample, alpha.
    RgbPremultiplied,
    Cmyk,
    /// YCbCrCoefficients and two colour differences.
    YCbCr,
}

impl PixelReader {
    pub(super) fn new(decoder: &mut Reader<'_>, photometric: Option<u64>) -> Result<Self> {
        let has_palette = photometric == Some(PALETTE);
        let color = decoder.colortype().map_err(convert_error)?;
        let bits = color.bit_depth();
        let channels = usize::from(color.num_samples());
        let whole = matches!(bits, 8 | 16);
        let meaning = match color {
            ColorType::Gray(1 | 2 | 4 | 8) if has_palette => Some(ColorMeaning::Palette),
            ColorType::Gray(1 | 2 | 4 | 8 | 16 | 32) if !has_palette => Some(ColorMeaning::Grey),
            // Grey with an extra sample that is not declared as alpha.
            ColorType::GrayA(_) | ColorType::Multiband { num_samples: 2, .. } if whole => {
                Some(ColorMeaning::Grey)
            }
            ColorType::RGB(_) if whole => Some(ColorMeaning::Rgb),
            ColorType::RGBA(_) if whole => {
                let extra = decoder.find_tag_unsigned_vec::<u16>(Tag::ExtraSamples);
                match extra {
                    Ok(Some(extra)) if extra.first() == Some(&ASSOCIATED_ALPHA) => {
                        Some(ColorMeaning::RgbPremultiplied)
                    }
                    _ => Some(ColorMeaning::Rgb),
                }
            }
            ColorType::YCbCr(8) => Some(ColorMeaning::YCbCr),
            ColorType::CMYK(_) if whole => Some(ColorMeaning::Cmyk),
            _ => None,
        };
        let Some(meaning) = meaning else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("unsupported TIFF colour type {color:?}"),
            ));
        };
        let palette = match meaning {
            ColorMeaning::Palette => read_palette(decoder, bits)?,
            _ => Vec::new(),
        };
        let luma = match meaning {
            ColorMeaning::YCbCr => YCbCrCoefficients::read(decoder)?,
            _ => YCbCrCoefficients::JPEG,
        };
        Ok(PixelReader { meaning, bits, channels, palette, luma })
    }

    /// Converts the samples of a pixel, each 0 to 255 (for a palette image, the index).
    #[inline]
    pub(super) fn rgb(&self, sample: impl Fn(usize) -> u8) -> [u8; CHANNELS] {
        match self.meaning {
            ColorMeaning::Grey => [sample(0); CHANNELS],
            ColorMeaning::Palette => {
                self.palette.get(usize::from(sample(0))).copied().unwrap_or_default()
            }
            ColorMeaning::Rgb => [sample(0), sample(1), sample(2)],
            ColorMeaning::RgbPremultiplied => match u32::from(sample(3)) {
                0 => [0; CHANNELS],
                alpha => {
                    let divided = |value: u8| (u32::from(value) * 255 / alpha).min(255) as u8;
                    [divided(sample(0)), divided(sample(1)), divided(sample(2))]
                }
            },
            ColorMeaning::YCbCr => self.luma.rgb([sample(0), sample(1), sample(2)]),
            ColorMeaning::Cmyk => cmyk_to_rgb([sample(0), sample(1), sample(2), sample(3)]),
        }
    }
}

pub(super) fn read_palette(decoder: &mut Reader<'_>, bits: u8) -> Result<Vec<[u8; CHANNELS]>> {
    let map = decoder.get_tag_u16_vec(Tag::ColorMap).map_err(convert_error)?;
    let colors = 1 << bits;
    if map.len() != CHANNELS * colors {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "corrupt TIFF: colour map of {} values for {bits} bits: expected {}",
                map.len(),
                CHANNELS * colors
            ),
        ));
    }
    // All reds, then all greens, then all blues; 16 bits each.
    let upper = |at: usize| (map[at] >> 8) as u8;
    Ok((0..colors).map(|at| [upper(at), upper(colors + at), upper(2 * colors + at)]).collect())
}

/// The samples of a chunk or page, reduced to 8 bits on access.
pub(super) enum Samples<'a> {
    Bytes(&'a [u8]),
    SignedBytes(&'a [i8]),
    Words(&'a [u16]),
    Signed(&'a [i16]),
    Longs(&'a [u32]),
    SignedLongs(&'a [i32]),
    Floats(&'a [f32]),
}

impl<'a> Samples<'a> {
    pub(super) fn new(result: &'a DecodingResult) -> Result<Self> {
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
                    "unsupported TIFF sample type: expected 8- to 32-bit integers or 32-bit floats",
                ));
            }
        })
    }

    pub(super) fn len(&self) -> usize {
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

/// The memory layout of the samples.
pub(super) struct SampleRows<'a> {
    pub(super) samples: &'a Samples<'a>,
    pub(super) bits: usize,
    /// The distance between rows: in bytes for packed samples, otherwise in samples.
    pub(super) row_stride: usize,
    /// The distance between pixels, in samples.
    pub(super) pixel_stride: usize,
    /// The distance between channels, in samples.
    pub(super) channel_stride: usize,
    /// Whether the samples are grey of more than 8 bits, which is clamped to 255; colours keep
    /// their upper byte.
    pub(super) saturates: bool,
}

impl<'a> SampleRows<'a> {
    pub(super) fn new(
        planes: usize,
        size: Size,
        reader: &PixelReader,
        samples: &'a Samples<'a>,
    ) -> Result<Self> {
        let bits = usize::from(reader.bits);
        let width = size.width as usize;
        let planar = planes > 1;
        let channels = if planar { 1 } else { reader.channels };
        let row_stride =
            if bits < 8 { (width * channels * bits).div_ceil(8) } else { width * channels };
        let plane = row_stride * size.height as usize;
        let (pixel_stride, channel_stride) = if planar { (1, plane) } else { (channels, 1) };
        let needed = if planar { reader.channels } else { 1 };
        if samples.len() < plane * needed || (planar && planes < needed) {
            return Err(Error::new(
                ErrorKind::Truncated,
                format!(
                    "truncated TIFF: expected {} samples, found {}",
                    plane * needed,
                    samples.len()
                ),
            ));
        }
        let saturates = reader.meaning == ColorMeaning::Grey;
        Ok(SampleRows { samples, bits, row_stride, pixel_stride, channel_stride, saturates })
    }

    /// A row of bytes that needs no conversion except a copy.
    pub(super) fn plain(&self, reader: &PixelReader, y: usize) -> Option<(PixelLayout, &'a [u8])> {
        let pixel = match reader.meaning {
            ColorMeaning::Grey => PixelLayout::Grey(self.pixel_stride),
            ColorMeaning::Rgb => PixelLayout::Rgb(self.pixel_stride),
            _ => return None,
        };
        match self.samples {
            Samples::Bytes(samples) if self.bits == 8 && self.channel_stride == 1 => {
                Some((pixel, &samples[y * self.row_stride..][..self.row_stride]))
            }
            _ => None,
        }
    }

    #[inline]
    pub(super) fn sample(&self, x: usize, y: usize, channel: usize) -> u8 {
        if self.bits < 8 {
            return self.packed(x, y, channel);
        }
        let at = y * self.row_stride + x * self.pixel_stride + channel * self.channel_stride;
        match self.samples {
            Samples::Bytes(samples) => samples[at],
            // As in other decoders, the sign is ignored.
            Samples::SignedBytes(samples) => samples[at] as u8,
            Samples::Words(samples) if self.saturates => samples[at].min(255) as u8,
            Samples::Words(samples) => (samples[at] >> 8) as u8,
            Samples::Signed(samples) => samples[at].clamp(0, 255) as u8,
            Samples::Longs(samples) => samples[at].min(255) as u8,
            Samples::SignedLongs(samples) => samples[at].clamp(0, 255) as u8,
            // A cast from `f32` saturates and truncates towards 0, as Pillow does.
            Samples::Floats(samples) => samples[at] as u8,
        }
    }

    /// A sample of 1, 2 or 4 bits; rows start at a byte boundary. Grey is scaled to 0 to 255.
    pub(super) fn packed(&self, x: usize, y: usize, channel: usize) -> u8 {
        let Samples::Bytes(bytes) = self.samples else { return 0 };
        let bit = (x * self.pixel_stride + channel) * self.bits;
        let byte = bytes[y * self.row_stride + bit / 8];
        let largest = (1u16 << self.bits) - 1;
        let value = u16::from(byte) >> (8 - self.bits - bit % 8) & largest;
        if self.saturates { (value * 255 / largest) as u8 } else { value as u8 }
    }
}

/// Converts the intersection of a chunk and the region.
pub(super) fn write_chunk(
    reader: &PixelReader,
    samples: &Samples<'_>,
    planes: usize,
    part: Rect,
    job: &mut DecodeJob<'_>,
) -> Result<()> {
    let Some(shared) = overlap(part, job.region) else { return Ok(()) };
    let rows = SampleRows::new(planes, part.size(), reader, samples)?;
    let columns = (shared.left - part.left) as usize..;
    let target =
        Rect { left: shared.left - job.region.left, top: shared.top - job.region.top, ..shared };
    let mut out = job.out.part_mut(target)?;
    for row in 0..shared.height {
        let y = (shared.top - part.top + row) as usize;
        let target = out.row_mut(row);
        if let Some((pixel, source)) = rows.plain(reader, y) {
            let columns = columns.start * pixel.bytes()..;
            pixel.copy_row(&source[columns][..shared.width as usize * pixel.bytes()], target);
            continue;
        }
        let (pixels, _) = target.as_chunks_mut::<CHANNELS>();
        for (x, pixel) in columns.clone().zip(pixels) {
            *pixel = reader.rgb(|channel| rows.sample(x, y, channel));
        }
    }
    Ok(())
}
