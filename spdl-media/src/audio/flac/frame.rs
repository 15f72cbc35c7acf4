//! FLAC frames: headers, subframes, prediction.
//!
//! Source of the format: RFC 9639.

use spdl_core::Result;

use super::bits::FlacBits;
use super::{StreamInfo, corrupt};
use crate::audio::codec::truncated;
use crate::audio::crc::Crc;

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    /// The number of frames of audio in this block.
    pub(super) block_size: usize,
    /// The index of the first one.
    pub(super) first: u64,
    channels: ChannelAssignment,
    bits: u32,
    /// The size of the header in bytes, with its checksum.
    size: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChannelAssignment {
    Independent(usize),
    LeftSide,
    SideRight,
    MidSide,
}

impl FrameHeader {
    /// The maximum size of a header in bytes.
    pub(super) const MAX_SIZE: usize = 16;

    /// The header at the start of `data`; `None` if there is no valid one.
    pub(super) fn parse(data: &[u8], stream: &StreamInfo) -> Option<FrameHeader> {
        let &[0xFF, sync, sizes, format, ..] = data else { return None };
        if sync & 0xFE != 0xF8 || format & 1 != 0 {
            return None;
        }
        let has_sample_numbers = sync & 1 != 0;
        let mut at = 4;
        let number = coded_number(data, &mut at)?;
        let mut next = |bytes: usize| {
            let value = data.get(at..at + bytes)?;
            at += bytes;
            Some(value.iter().fold(0_u32, |value, byte| value << 8 | u32::from(*byte)))
        };
        let block_size = match sizes >> 4 {
            0 => return None,
            1 => 192,
            code @ 2..=5 => 576 << (code - 2),
            6 => next(1)? as usize + 1,
            7 => next(2)? as usize + 1,
            code => 256 << (code - 8),
        };
        let sample_rate = match sizes & 0x0F {
            0 => stream.sample_rate,
            code @ 1..=11 => RATES[usize::from(code) - 1],
            12 => next(1)? * 1000,
            13 => next(2)?,
            14 => next(2)? * 10,
            _ => return None,
        };
        let channels = match format >> 4 {
            code @ 0..=7 => ChannelAssignment::Independent(usize::from(code) + 1),
            8 => ChannelAssignment::LeftSide,
            9 => ChannelAssignment::SideRight,
            10 => ChannelAssignment::MidSide,
            _ => return None,
        };
        let bits = match format >> 1 & 7 {
            0 => stream.bits,
            3 => return None,
            code => [8, 12, 0, 16, 20, 24, 32][usize::from(code) - 1],
        };
        let size = at + 1;
        if crc8(data.get(..at)?) != *data.get(at)? {
            return None;
        }
        let count = match channels {
            ChannelAssignment::Independent(count) => count,
            _ => 2,
        };
        let is_of_stream = sample_rate == stream.sample_rate
            && count == usize::from(stream.channels)
            && bits == stream.bits
            && block_size <= stream.max_block_size;
        let first = match has_sample_numbers {
            true => number,
            // All blocks except the last one have this size.
            false => number.checked_mul(stream.max_block_size as u64)?,
        };
        is_of_stream.then_some(FrameHeader { block_size, first, channels, bits, size })
    }
}

/// The sample rates of the codes 1 to 11.
const RATES: [u32; 11] =
    [88_200, 176_400, 192_000, 8000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000];

/// A number in the extended form of UTF-8, at most 36 bits.
fn coded_number(data: &[u8], at: &mut usize) -> Option<u64> {
    let first = *data.get(*at)?;
    *at += 1;
    let following = match first.leading_ones() {
        0 => return Some(u64::from(first)),
        ones @ 2..=7 => ones as usize - 1,
        _ => return None,
    };
    let mut value = u64::from(first & (0x7F >> (following + 1)));
    for _ in 0..following {
        let byte = *data.get(*at)?;
        *at += 1;
        if byte & 0xC0 != 0x80 {
            return None;
        }
        value = value << 6 | u64::from(byte & 0x3F);
    }
    Some(value)
}

/// Decodes frames, and keeps its memory.
#[derive(Debug, Default)]
pub(super) struct FrameDecoder {
    /// The samples of each channel of the last block.
    blocks: Vec<Vec<i32>>,
    /// The side channel of 31- and 32-bit audio, which has one bit more.
    wide: Vec<i64>,
}

impl FrameDecoder {
    /// Decodes the frame at the offset `at`, and returns the offset of its end.
    ///
    /// # Errors
    /// `Truncated` if the file ends inside the frame, `Corrupt` if it violates the format or its
    /// checksum.
    pub(super) fn decode(&mut self, file: &[u8], at: usize, header: &FrameHeader) -> Result<usize> {
        let mut bits = FlacBits::new(file, at + header.size);
        let count = match header.channels {
            ChannelAssignment::Independent(count) => count,
            _ => 2,
        };
        self.blocks.resize_with(count, Vec::new);
        for block in &mut self.blocks {
            block.clear();
            block.resize(header.block_size, 0);
        }
        let side = match header.channels {
            ChannelAssignment::Independent(_) => None,
            ChannelAssignment::SideRight => Some(0),
            ChannelAssignment::LeftSide | ChannelAssignment::MidSide => Some(1),
        };
        for (channel, block) in self.blocks.iter_mut().enumerate() {
            let depth = header.bits + u32::from(side == Some(channel));
            if depth > 31 && side == Some(channel) {
                self.wide.clear();
                self.wide.resize(header.block_size, 0);
                subframe(&mut bits, depth, &mut self.wide, at)?;
            } else {
                subframe(&mut bits, depth, block, at)?;
            }
        }
        let end = bits.align();
        bits.check_end()?;
        let Some(checksum) = file.get(end..).and_then(<[u8]>::first_chunk::<2>) else {
            return Err(truncated("FLAC", file));
        };
        if crc16(&file[at..end]) != u16::from_be_bytes(*checksum) {
            return Err(corrupt("the checksum of a frame differs", at));
        }
        if side.is_some() {
            self.join_stereo(header);
        }
        Ok(end + 2)
    }

    /// The samples of each channel of the last frame.
    pub(super) fn blocks(&self) -> &[Vec<i32>] {
        &self.blocks
    }

    /// Computes left and right.
    fn join_stereo(&mut self, header: &FrameHeader) {
        let [first, second] = &mut self.blocks[..] else { return };
        if header.bits > 30 {
            let pairs = first.iter_mut().zip(second).zip(&self.wide);
            for ((first, second), &side) in pairs {
                let (left, right) = match header.channels {
                    ChannelAssignment::LeftSide => (i64::from(*first), i64::from(*first) - side),
                    ChannelAssignment::SideRight => (i64::from(*second) + side, i64::from(*second)),
                    _ => {
                        let right = ((i64::from(*first) << 1 | side & 1) - side) >> 1;
                        (right + side, right)
                    }
                };
                (*first, *second) = (left as i32, right as i32);
            }
            return;
        }
        let pairs = first.iter_mut().zip(second);
        match header.channels {
            ChannelAssignment::LeftSide => {
                pairs.for_each(|(left, side)| *side = left.wrapping_sub(*side));
            }
            ChannelAssignment::SideRight => {
                pairs.for_each(|(side, right)| *side = side.wrapping_add(*right));
            }
            _ => pairs.for_each(|(mid, side)| {
                let sum = (*mid << 1) | (*side & 1);
                let (left, right) = (sum.wrapping_add(*side) >> 1, sum.wrapping_sub(*side) >> 1);
                (*mid, *side) = (left, right);
            }),
        }
    }
}

/// A sample of a subframe: `i32`, or `i64` for a wide side channel.
trait FlacSample: Copy {
    fn from_wide(value: i64) -> Self;
    fn wide(self) -> i64;
    /// Adds the prediction to each residual after the first `N` samples. `last_first` has the
    /// coefficients in the order of the samples.
    fn predict<const N: usize>(
        samples: &mut [Self],
        last_first: &[i32; N],
        shift: u32,
        is_narrow: bool,
    );
}

impl FlacSample for i32 {
    #[inline(always)]
    fn from_wide(value: i64) -> Self {
        value as i32
    }

    #[inline(always)]
    fn wide(self) -> i64 {
        i64::from(self)
    }

    #[inline(always)]
    fn predict<const N: usize>(
        samples: &mut [i32],
        last_first: &[i32; N],
        shift: u32,
        is_narrow: bool,
    ) {
        match is_narrow {
            true => predict_narrow(samples, last_first, shift),
            false => predict_wide(samples, last_first, shift),
        }
    }
}

impl FlacSample for i64 {
    fn from_wide(value: i64) -> Self {
        value
    }

    fn wide(self) -> i64 {
        self
    }

    fn predict<const N: usize>(
        samples: &mut [i64],
        last_first: &[i32; N],
        shift: u32,
        _is_narrow: bool,
    ) {
        predict_wide(samples, last_first, shift);
    }
}

/// Adds each new sample, multiplied by the coefficients, to the predictions of the next `N` samples,
/// which stay in registers. A sum over the samples before would load a vector of them from memory;
/// it would have to wait until the latest one is stored.
#[inline(always)]
fn predict_narrow<const N: usize>(samples: &mut [i32], last_first: &[i32; N], shift: u32) {
    let Some((first, rest)) = samples.split_first_chunk_mut::<N>() else { return };
    // The prediction of the sample that follows after `ahead` others.
    let mut predictions: [i32; N] = std::array::from_fn(|ahead| {
        let known = first[ahead..].iter().zip(last_first);
        known.fold(0, |sum: i32, (sample, by)| sum.wrapping_add(sample.wrapping_mul(*by)))
    });
    for sample in rest {
        *sample = sample.wrapping_add(predictions[0] >> shift);
        for ahead in 1..N {
            let term = sample.wrapping_mul(last_first[N - ahead]);
            predictions[ahead - 1] = predictions[ahead].wrapping_add(term);
        }
        predictions[N - 1] = sample.wrapping_mul(last_first[0]);
    }
}

#[inline(always)]
fn predict_wide<const N: usize, T: FlacSample>(
    samples: &mut [T],
    last_first: &[i32; N],
    shift: u32,
) {
    for at in N..samples.len() {
        let (before, after) = samples.split_at_mut(at);
        let Some(before) = before.last_chunk::<N>() else { return };
        let mut sum = 0_i64;
        for (sample, coefficient) in before.iter().zip(last_first) {
            sum = sum.wrapping_add(sample.wide().wrapping_mul(i64::from(*coefficient)));
        }
        after[0] = T::from_wide(after[0].wide().wrapping_add(sum >> shift));
    }
}

/// Decodes one channel of a block.
fn subframe<T: FlacSample>(
    bits: &mut FlacBits<'_>,
    depth: u32,
    out: &mut [T],
    frame: usize,
) -> Result<()> {
    if bits.read(1) != 0 {
        return Err(corrupt("invalid subframe header", frame));
    }
    let kind = bits.read(6);
    let wasted = if bits.read(1) != 0 { bits.unary()? + 1 } else { 0 };
    let Some(depth) = depth.checked_sub(wasted).filter(|depth| *depth > 0) else {
        return Err(corrupt("a subframe has no valid bits", frame));
    };
    match kind {
        0 => {
            let value = T::from_wide(bits.read_signed(depth));
            out.fill(value);
        }
        1 => out.iter_mut().for_each(|out| *out = T::from_wide(bits.read_signed(depth))),
        8..=12 => {
            // The polynomials of RFC 9639, section 9.2.5, with the latest sample last.
            let order = kind as usize - 8;
            first_samples(bits, depth, order, out, frame)?;
            residuals(bits, order, out, frame)?;
            let is_narrow = depth < 29;
            match order {
                0 => {}
                1 => T::predict(out, &[1], 0, is_narrow),
                2 => T::predict(out, &[-1, 2], 0, is_narrow),
                3 => T::predict(out, &[1, -3, 3], 0, is_narrow),
                _ => T::predict(out, &[-1, 4, -6, 4], 0, is_narrow),
            }
        }
        32..=63 => linear(bits, depth, kind as usize - 31, out, frame)?,
        _ => return Err(corrupt("reserved type of subframe", frame)),
    }
    if wasted > 0 {
        out.iter_mut().for_each(|out| *out = T::from_wide(out.wide() << wasted));
    }
    bits.check_end()
}

/// A subframe with linear prediction.
fn linear<T: FlacSample>(
    bits: &mut FlacBits<'_>,
    depth: u32,
    order: usize,
    out: &mut [T],
    frame: usize,
) -> Result<()> {
    first_samples(bits, depth, order, out, frame)?;
    let precision = bits.read(4) + 1;
    let shift = bits.read_signed(5);
    if precision == 16 || shift < 0 {
        return Err(corrupt("invalid linear prediction", frame));
    }
    let mut coefficients = [0; 32];
    for coefficient in &mut coefficients[..order] {
        *coefficient = bits.read_signed(precision) as i32;
    }
    coefficients[..order].reverse();
    residuals(bits, order, out, frame)?;
    let is_narrow = depth + precision + (order as u32).ilog2() <= 32;
    macro_rules! predict {
        ($($order:literal)*) => {
            match order {
                $($order => {
                    if let Some(all) = coefficients.first_chunk::<$order>() {
                        T::predict(out, all, shift as u32, is_narrow);
                    }
                })*
                _ => {}
            }
        };
    }
    predict!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);
    Ok(())
}

/// The first samples, which are not predicted.
fn first_samples<T: FlacSample>(
    bits: &mut FlacBits<'_>,
    depth: u32,
    order: usize,
    out: &mut [T],
    frame: usize,
) -> Result<()> {
    let Some(out) = out.get_mut(..order) else {
        return Err(corrupt("a block is shorter than its prediction", frame));
    };
    out.iter_mut().for_each(|out| *out = T::from_wide(bits.read_signed(depth)));
    Ok(())
}

/// The residuals after the first `order` samples.
fn residuals<T: FlacSample>(
    bits: &mut FlacBits<'_>,
    order: usize,
    out: &mut [T],
    frame: usize,
) -> Result<()> {
    let parameter_bits = match bits.read(2) {
        0 => 4,
        1 => 5,
        _ => return Err(corrupt("reserved coding of residuals", frame)),
    };
    let partitions = 1_usize << bits.read(4);
    let of_partition = out.len() / partitions;
    if !out.len().is_multiple_of(partitions) || of_partition < order {
        return Err(corrupt("invalid partitions of residuals", frame));
    }
    let escape = (1 << parameter_bits) - 1;
    let mut start = order;
    for end in (1..=partitions).map(|count| count * of_partition) {
        let partition = &mut out[start..end];
        let parameter = bits.read(parameter_bits);
        if parameter == escape {
            let size = bits.read(5);
            partition.iter_mut().for_each(|out| *out = T::from_wide(bits.read_signed(size)));
        } else {
            for out in partition {
                *out = T::from_wide(i64::from(bits.rice(parameter)?));
            }
        }
        start = end;
    }
    bits.check_end()
}

fn crc8(data: &[u8]) -> u8 {
    data.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ byte, |crc: u8, _| if crc & 0x80 != 0 { crc << 1 ^ 7 } else { crc << 1 })
    })
}

/// The checksum of a frame.
pub(super) fn crc16(data: &[u8]) -> u16 {
    static CRC: Crc = Crc::new(0x8005 << 16);
    (CRC.update(0, data) >> 16) as u16
}
