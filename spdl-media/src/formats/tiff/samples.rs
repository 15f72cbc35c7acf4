//! Decompressed samples as RGB pixels.

use spdl_core::{Error, ErrorKind, Result};

use super::super::adapter::DecodeJob;
use super::super::convert::{PixelLayout, cmyk_to_rgb};
use super::super::errors;
use super::chunks::overlap;
use super::directory::Directory;
use super::errors::{NAME, unsupported};
use super::tags::{
    ASSOCIATED_ALPHA, BLACK_IS_ZERO, FLOAT, PALETTE, RGB, SEPARATED, SIGNED, Tag,
    UNASSOCIATED_ALPHA, UNSIGNED, WHITE_IS_ZERO, YCBCR,
};
use super::ycbcr::{YCbCrCoefficients, uncompressed_rgb};
use crate::image::{CHANNELS, Rect, SampleDepth};

/// The samples of a pixel, from the tags of the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct PixelLayoutTags {
    photometric: u64,
    /// Bits per sample.
    pub(super) bits: usize,
    /// Samples per pixel.
    pub(super) channels: usize,
    format: u64,
    /// The number of samples that are no colours, and the first value of the tag `ExtraSamples`.
    extra: (usize, Option<u64>),
    /// Whether each channel is stored in separate chunks.
    pub(super) is_planar: bool,
}

impl PixelLayoutTags {
    pub(super) fn read(directory: &Directory<'_>) -> Result<PixelLayoutTags> {
        let photometric = directory.number(Tag::PhotometricInterpretation)?;
        let photometric =
            photometric.ok_or_else(|| unsupported("TIFF without a photometric interpretation"))?;
        let channels = directory.number(Tag::SamplesPerPixel)?.unwrap_or(1);
        let channels = usize::from(u16::try_from(channels).unwrap_or(0));
        if channels == 0 {
            return Err(errors::corrupt(NAME, "invalid number of samples per pixel"));
        }
        // libtiff does not read channels of different sizes either.
        let common = |tag, default| match directory.values(tag)? {
            None => Ok(default),
            Some(values) => values
                .common(channels)?
                .ok_or_else(|| unsupported(&format!("TIFF with channels that differ in {tag:?}"))),
        };
        let bits = common(Tag::BitsPerSample, 1)?;
        if !(1..=64).contains(&bits) {
            return Err(unsupported(&format!("TIFF with {bits} bits per sample")));
        }
        let format = common(Tag::SampleFormat, UNSIGNED)?;
        let extra = match directory.values(Tag::ExtraSamples)? {
            Some(values) => (values.len(), Some(values.number(0)?)),
            None => (0, None),
        };
        if extra.0 > channels {
            return Err(errors::corrupt(NAME, "more extra samples than samples per pixel"));
        }
        let is_planar = match directory.number(Tag::PlanarConfiguration)? {
            None | Some(1) => false,
            Some(2) => channels > 1,
            Some(other) => {
                let message = format!("invalid planar configuration {other}");
                return Err(errors::corrupt(NAME, message));
            }
        };
        Ok(PixelLayoutTags { photometric, bits: bits as usize, channels, format, extra, is_planar })
    }

    pub(super) fn is_float(&self) -> bool {
        self.format == FLOAT
    }

    /// The number of planes, each with its own chunks.
    pub(super) fn planes(&self) -> usize {
        if self.is_planar { self.channels } else { 1 }
    }

    /// The samples per pixel in a plane.
    pub(super) fn plane_channels(&self) -> usize {
        if self.is_planar { 1 } else { self.channels }
    }

    /// The size in bytes of a row of a plane; rows start at a byte boundary.
    pub(super) fn row_bytes(&self, width: u32) -> u64 {
        let bits = self.plane_channels() as u64 * self.bits as u64;
        u64::from(width).saturating_mul(bits).div_ceil(8)
    }
}

/// The meaning of the samples of a pixel.
pub(super) struct PixelReader {
    meaning: ColorMeaning,
    encoding: SampleEncoding,
    pub(super) layout: PixelLayoutTags,
    /// The sample that is alpha, if it is kept.
    alpha: Option<usize>,
    /// The colour map of a palette image.
    palette: Vec<[u8; CHANNELS]>,
    luma: YCbCrCoefficients,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColorMeaning {
    Grey,
    /// Grey, premultiplied by the second sample, alpha.
    GreyPremultiplied,
    Palette,
    Rgb,
    /// Red, green and blue, premultiplied by the fourth sample, alpha.
    RgbPremultiplied,
    Cmyk,
    /// Luma and two colour differences.
    YCbCr,
    /// The same, uncompressed, which Pillow converts without libtiff.
    UncompressedYCbCr,
}

/// How a sample is stored, and reduced to 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SampleEncoding {
    /// 1, 2 or 4 bits. Grey is scaled to 0 to 255; white is zero if `inverted`.
    Packed {
        inverted: bool,
    },
    Byte,
    InvertedByte,
    /// 16 bits, of which the upper 8 are used.
    Word,
    /// 16 bits, clamped to 255, as in Pillow.
    ClampedWord,
    SignedWord,
    /// 32 bits, clamped to 0 to 255.
    Long,
    Float,
}

impl PixelReader {
    pub(super) fn new(directory: &Directory<'_>, layout: PixelLayoutTags) -> Result<Self> {
        let PixelLayoutTags { photometric, bits, channels, format, extra, .. } = layout;
        let has_alpha = matches!(extra.1, Some(ASSOCIATED_ALPHA | UNASSOCIATED_ALPHA));
        let is_premultiplied = extra.1 == Some(ASSOCIATED_ALPHA);
        let whole = matches!((bits, format), (8 | 16, UNSIGNED) | (8, SIGNED));
        let meaning = match (photometric, channels) {
            (WHITE_IS_ZERO | BLACK_IS_ZERO, 1) => Some(ColorMeaning::Grey),
            (BLACK_IS_ZERO, 2) if whole && is_premultiplied => {
                Some(ColorMeaning::GreyPremultiplied)
            }
            (BLACK_IS_ZERO, 2) if whole => Some(ColorMeaning::Grey),
            (PALETTE, 1) if matches!(bits, 1 | 2 | 4 | 8) => Some(ColorMeaning::Palette),
            (PALETTE, 2) if bits == 8 => Some(ColorMeaning::Palette),
            (RGB, _) if whole && matches!(channels - extra.0, 3 | 4) => {
                match channels > 3 && is_premultiplied {
                    true => Some(ColorMeaning::RgbPremultiplied),
                    false => Some(ColorMeaning::Rgb),
                }
            }
            (SEPARATED, _) if whole && channels - extra.0 == 4 && !has_alpha => {
                Some(ColorMeaning::Cmyk)
            }
            (YCBCR, 3) if bits == 8 && format == UNSIGNED => {
                match directory.number(Tag::Compression)?.unwrap_or(1) {
                    1 => Some(ColorMeaning::UncompressedYCbCr),
                    _ => Some(ColorMeaning::YCbCr),
                }
            }
            _ => None,
        };
        let is_inverted = photometric == WHITE_IS_ZERO;
        let is_grey = matches!(meaning, Some(ColorMeaning::Grey | ColorMeaning::GreyPremultiplied));
        let encoding = match (bits, format) {
            (1 | 2 | 4, UNSIGNED) => Some(SampleEncoding::Packed { inverted: is_inverted }),
            (8, UNSIGNED) if is_inverted => Some(SampleEncoding::InvertedByte),
            // As in other decoders, the sign is ignored.
            (8, UNSIGNED | SIGNED) => Some(SampleEncoding::Byte),
            // As in Pillow, white is not zero in samples of 16 bits and floats.
            (16, UNSIGNED) if is_grey => Some(SampleEncoding::ClampedWord),
            (16, UNSIGNED) => Some(SampleEncoding::Word),
            (16, SIGNED) if !is_inverted => Some(SampleEncoding::SignedWord),
            // As in Pillow, unsigned samples of 2³¹ or more are negative.
            (32, UNSIGNED | SIGNED) if !is_inverted => Some(SampleEncoding::Long),
            (32, FLOAT) => Some(SampleEncoding::Float),
            _ => None,
        };
        let (Some(meaning), Some(encoding)) = (meaning, encoding) else {
            return Err(unsupported(&format!(
                "TIFF with photometric interpretation {photometric} and {channels} samples per \
                 pixel of {bits} bits (sample format {format}, {} extra samples)",
                extra.0
            )));
        };
        let palette = match meaning {
            ColorMeaning::Palette => read_palette(directory, bits)?,
            _ => Vec::new(),
        };
        let luma = match meaning {
            ColorMeaning::YCbCr | ColorMeaning::UncompressedYCbCr => {
                for index in 0..2 {
                    let values = directory.values(Tag::YCbCrSubSampling)?;
                    let factor = values.map_or(Ok(2), |values| values.number(index))?;
                    if factor != 1 {
                        return Err(unsupported("TIFF with subsampled YCbCr other than JPEG"));
                    }
                }
                let luma = YCbCrCoefficients::read(directory)?;
                // Pillow ignores these coefficients, libtiff does not.
                if meaning == ColorMeaning::UncompressedYCbCr && !luma.is_jpeg() {
                    let what = "uncompressed TIFF with unusual YCbCr coefficients";
                    return Err(unsupported(what));
                }
                luma
            }
            _ => YCbCrCoefficients::JPEG,
        };
        let alpha = match meaning {
            ColorMeaning::Rgb | ColorMeaning::RgbPremultiplied => Some(3),
            ColorMeaning::Grey | ColorMeaning::GreyPremultiplied | ColorMeaning::Palette => Some(1),
            _ => None,
        };
        let alpha = alpha.filter(|&alpha| has_alpha && alpha < channels);
        Ok(PixelReader { meaning, encoding, layout, alpha, palette, luma })
    }

    /// Sets whether alpha is kept. If the colours need it, it is read in any case.
    pub(super) fn keeping_alpha(self, keeps_alpha: bool) -> Self {
        PixelReader { alpha: self.alpha.filter(|_| keeps_alpha), ..self }
    }

    /// The number of channels that the pixels depend on.
    pub(super) fn used_channels(&self) -> usize {
        let colors = match self.meaning {
            ColorMeaning::Grey | ColorMeaning::Palette => 1,
            ColorMeaning::GreyPremultiplied => 2,
            ColorMeaning::Rgb | ColorMeaning::YCbCr | ColorMeaning::UncompressedYCbCr => 3,
            ColorMeaning::RgbPremultiplied | ColorMeaning::Cmyk => 4,
        };
        colors.max(self.alpha.map_or(0, |alpha| alpha + 1))
    }

    /// Converts the samples of a pixel of 16 bits.
    #[inline]
    fn wide_rgb(&self, sample: impl Fn(usize) -> u16) -> [u16; CHANNELS] {
        let divided = |value: u16, alpha: u16| match u32::from(alpha) {
            0 => 0,
            alpha => (u64::from(value) * 65_535 / u64::from(alpha)).min(65_535) as u16,
        };
        match self.meaning {
            ColorMeaning::Grey => [sample(0); CHANNELS],
            ColorMeaning::GreyPremultiplied => [divided(sample(0), sample(1)); CHANNELS],
            ColorMeaning::Rgb => [sample(0), sample(1), sample(2)],
            ColorMeaning::RgbPremultiplied => {
                [0, 1, 2].map(|channel| divided(sample(channel), sample(3)))
            }
            // The other meanings have 8 bits.
            _ => self.rgb(|channel| (sample(channel) >> 8) as u8).map(|it| u16::from(it) * 257),
        }
    }

    /// Whether samples have more than 8 bits.
    fn is_wide(&self) -> bool {
        use SampleEncoding::*;
        matches!(self.encoding, Word | ClampedWord | SignedWord | Long | Float)
    }

    /// Converts the samples of a pixel, each 0 to 255 (for a palette image, the index).
    #[inline]
    fn rgb(&self, sample: impl Fn(usize) -> u8) -> [u8; CHANNELS] {
        let divided = |value: u8, alpha: u8| match u32::from(alpha) {
            0 => 0,
            alpha => (u32::from(value) * 255 / alpha).min(255) as u8,
        };
        match self.meaning {
            ColorMeaning::Grey => [sample(0); CHANNELS],
            ColorMeaning::GreyPremultiplied => [divided(sample(0), sample(1)); CHANNELS],
            ColorMeaning::Palette => {
                self.palette.get(usize::from(sample(0))).copied().unwrap_or_default()
            }
            ColorMeaning::Rgb => [sample(0), sample(1), sample(2)],
            ColorMeaning::RgbPremultiplied => {
                [0, 1, 2].map(|channel| divided(sample(channel), sample(3)))
            }
            ColorMeaning::YCbCr => self.luma.rgb([sample(0), sample(1), sample(2)]),
            ColorMeaning::UncompressedYCbCr => uncompressed_rgb([sample(0), sample(1), sample(2)]),
            ColorMeaning::Cmyk => cmyk_to_rgb([sample(0), sample(1), sample(2), sample(3)]),
        }
    }

    /// The conversion of a row that only copies bytes.
    fn copied(&self) -> Option<PixelLayout> {
        let channels = self.layout.plane_channels();
        match (self.meaning, self.encoding) {
            (ColorMeaning::Grey, SampleEncoding::Byte) => Some(PixelLayout::Grey(channels)),
            (ColorMeaning::Rgb, SampleEncoding::Byte) if !self.layout.is_planar => {
                Some(PixelLayout::Rgb(channels))
            }
            _ => None,
        }
    }
}

fn read_palette(directory: &Directory<'_>, bits: usize) -> Result<Vec<[u8; CHANNELS]>> {
    let colors = 1 << bits;
    let map = directory.values(Tag::ColorMap)?;
    let map = map.ok_or_else(|| errors::corrupt(NAME, "missing tag ColorMap"))?;
    if map.len() != CHANNELS * colors {
        let message = format!(
            "colour map of {} values for {bits} bits: expected {}",
            map.len(),
            CHANNELS * colors
        );
        return Err(errors::corrupt(NAME, message));
    }
    // All reds, then all greens, then all blues; 16 bits each.
    let upper = |at: usize| map.number(at).map(|value| (value >> 8) as u8);
    let color = |at| Ok([upper(at)?, upper(colors + at)?, upper(2 * colors + at)?]);
    (0..colors).map(color).collect()
}

/// Rows of decompressed samples, in the byte order of the file.
pub(super) struct SampleRows<'a> {
    bytes: &'a [u8],
    is_little: bool,
    row_bytes: usize,
    /// The distance between channels in bytes, if each channel is a plane.
    plane_bytes: usize,
}

impl<'a> SampleRows<'a> {
    /// `bytes` holds `rows` rows of each plane that `reader` uses.
    pub(super) fn new(
        reader: &PixelReader,
        bytes: &'a [u8],
        is_little: bool,
        row_bytes: usize,
        rows: usize,
    ) -> Result<Self> {
        let plane_bytes = row_bytes.saturating_mul(rows);
        let planes = if reader.layout.is_planar { reader.used_channels() } else { 1 };
        let needed = plane_bytes.saturating_mul(planes);
        if bytes.len() < needed {
            let message = format!("truncated TIFF: expected {needed} bytes, found {}", bytes.len());
            return Err(Error::new(ErrorKind::Truncated, message));
        }
        Ok(SampleRows { bytes, is_little, row_bytes, plane_bytes })
    }

    #[inline]
    fn sample(&self, reader: &PixelReader, x: usize, y: usize, channel: usize) -> u8 {
        let layout = &reader.layout;
        let (start, index) = match layout.is_planar {
            true => (channel * self.plane_bytes + y * self.row_bytes, x),
            false => (y * self.row_bytes, x * layout.channels + channel),
        };
        let word = || self.number::<2>(start + 2 * index) as u16;
        let long = || self.number::<4>(start + 4 * index);
        match reader.encoding {
            SampleEncoding::Packed { inverted } => {
                let bit = index * layout.bits;
                let largest = (1u16 << layout.bits) - 1;
                let byte = u16::from(self.bytes[start + bit / 8]);
                let value = byte >> (8 - layout.bits - bit % 8) & largest;
                let value = if inverted { largest - value } else { value };
                match reader.meaning {
                    ColorMeaning::Palette => value as u8,
                    _ => (value * 255 / largest) as u8,
                }
            }
            SampleEncoding::Byte => self.bytes[start + index],
            SampleEncoding::InvertedByte => !self.bytes[start + index],
            SampleEncoding::Word => (word() >> 8) as u8,
            SampleEncoding::ClampedWord => word().min(255) as u8,
            SampleEncoding::SignedWord => (word() as i16).clamp(0, 255) as u8,
            SampleEncoding::Long => (long() as i32).clamp(0, 255) as u8,
            // A cast from `f32` saturates and truncates towards 0, as Pillow does.
            SampleEncoding::Float => f32::from_bits(long()) as u8,
        }
    }

    /// A sample with up to 16 bits. 32-bit integers and floats are clamped to 0 to 65,535.
    #[inline]
    fn wide_sample(&self, reader: &PixelReader, x: usize, y: usize, channel: usize) -> u16 {
        let at = |size: usize| {
            let layout = &reader.layout;
            match layout.is_planar {
                true => channel * self.plane_bytes + y * self.row_bytes + size * x,
                false => y * self.row_bytes + size * (x * layout.channels + channel),
            }
        };
        match reader.encoding {
            SampleEncoding::Word | SampleEncoding::ClampedWord => self.number::<2>(at(2)) as u16,
            SampleEncoding::SignedWord => (self.number::<2>(at(2)) as u16 as i16).max(0) as u16,
            SampleEncoding::Long => (self.number::<4>(at(4)) as i32).clamp(0, 65_535) as u16,
            SampleEncoding::Float => f32::from_bits(self.number::<4>(at(4))) as u16,
            _ => u16::from(self.sample(reader, x, y, channel)) * 257,
        }
    }

    /// Red, green, blue and alpha of a pixel.
    #[inline]
    fn rgba(&self, reader: &PixelReader, depth: SampleDepth, x: usize, y: usize) -> [u16; 4] {
        let wide = |channel| self.wide_sample(reader, x, y, channel);
        let [red, green, blue] = match depth {
            SampleDepth::Sixteen if reader.is_wide() => reader.wide_rgb(wide),
            _ => {
                let rgb = reader.rgb(|channel| self.sample(reader, x, y, channel));
                rgb.map(|level| u16::from(level) * 257)
            }
        };
        let alpha = match (reader.alpha, depth) {
            (None, _) => u16::MAX,
            (Some(alpha), SampleDepth::Sixteen) => wide(alpha),
            (Some(alpha), SampleDepth::Eight) => (wide(alpha) >> 8) * 257,
        };
        [red, green, blue, alpha]
    }

    #[inline]
    fn number<const N: usize>(&self, at: usize) -> u32 {
        let shift = |value: u32, &byte: &u8| value << 8 | u32::from(byte);
        let bytes = &self.bytes[at..at + N];
        match self.is_little {
            true => bytes.iter().rev().fold(0, shift),
            false => bytes.iter().fold(0, shift),
        }
    }

    /// Converts the intersection of a chunk and the region.
    pub(super) fn write(
        &self,
        reader: &PixelReader,
        part: Rect,
        job: &mut DecodeJob<'_>,
    ) -> Result<()> {
        let Some(shared) = overlap(part, job.region) else { return Ok(()) };
        let columns = (shared.left - part.left) as usize..;
        let (left, top) = (shared.left - job.region.left, shared.top - job.region.top);
        if let Some(rgba) = job.rgba.as_mut().filter(|_| reader.alpha.is_some() || reader.is_wide())
        {
            let depth = rgba.depth;
            for row in 0..shared.height {
                let y = (shared.top - part.top + row) as usize;
                let pixels = &mut rgba.row_mut(top + row)[left as usize..];
                for (x, pixel) in columns.clone().zip(&mut pixels[..shared.width as usize]) {
                    *pixel = self.rgba(reader, depth, x, y);
                }
            }
            return Ok(());
        }
        let mut out = job.out.part_mut(Rect { left, top, ..shared })?;
        let copied = reader.copied();
        for row in 0..shared.height {
            let y = (shared.top - part.top + row) as usize;
            let target = out.row_mut(row);
            if let Some(pixel) = copied {
                let start = y * self.row_bytes + columns.start * pixel.bytes();
                pixel.copy_row(
                    &self.bytes[start..][..shared.width as usize * pixel.bytes()],
                    target,
                );
                continue;
            }
            let (pixels, _) = target.as_chunks_mut::<CHANNELS>();
            for (x, pixel) in columns.clone().zip(pixels) {
                *pixel = reader.rgb(|channel| self.sample(reader, x, y, channel));
            }
        }
        Ok(())
    }
}
