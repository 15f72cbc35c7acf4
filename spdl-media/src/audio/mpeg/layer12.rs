//! MPEG audio layers I and II.
//!
//! Source of the formats and tables: ISO/IEC 11172-3, 2.4.1.5, 2.4.1.6 and tables B.1 to B.4;
//! ISO/IEC 13818-3, table B.1 for low sample rates.

use std::sync::LazyLock;

use fearless_simd::{Level, Simd, dispatch};
use spdl_core::Result;

use super::bits::MpegBits;
use super::synthesis::{SUBBANDS, Synthesis};
use super::{FrameFormat, LayerDecoder, corrupt};
use crate::audio::collector::Collector;
use crate::audio::packets::PacketDecoder;

/// The number of time slots that share a scale factor.
const SLOTS: usize = 12;
/// The number of scale factors of a subband in a frame of layer II.
const PARTS: usize = 3;
/// The greatest number of values that a sample can have.
const ALL: u16 = 65_535;

/// The numbers of values for each allocation of a subband from 1 on, and the bits of an allocation.
type Allocations = (&'static [u16], u32);

/// For the number of bits of its allocations, and from the lowest subbands to the highest.
const TWO_FINE: Allocations = (&[3, 5, ALL], 2);
const TWO: Allocations = (&[3, 5, 9], 2);
const THREE: Allocations = (&[3, 5, 9, 15, 31, 63, 127], 3);
const THREE_FINE: Allocations = (&[3, 5, 7, 9, 15, 31, ALL], 3);
const FOUR: Allocations =
    (&[3, 5, 7, 9, 15, 31, 63, 127, 255, 511, 1023, 2047, 4095, 8191, 16_383], 4);
const FOUR_COARSE: Allocations =
    (&[3, 5, 9, 15, 31, 63, 127, 255, 511, 1023, 2047, 4095, 8191, 16_383, 32_767], 4);
const FOUR_FINE: Allocations =
    (&[3, 5, 7, 9, 15, 31, 63, 127, 255, 511, 1023, 2047, 4095, 8191, ALL], 4);
const FOUR_LOWEST: Allocations =
    (&[3, 7, 15, 31, 63, 127, 255, 511, 1023, 2047, 4095, 8191, 16_383, 32_767, ALL], 4);

/// Numbers of subbands and their allocations.
type Table = &'static [(usize, Allocations)];

const MEDIUM: Table = &[(3, FOUR_LOWEST), (8, FOUR_FINE), (12, THREE_FINE), (4, TWO_FINE)];
const HIGH: Table = &[(3, FOUR_LOWEST), (8, FOUR_FINE), (12, THREE_FINE), (7, TWO_FINE)];
const LOW: Table = &[(2, FOUR_COARSE), (6, THREE)];
const LOW_32_KHZ: Table = &[(2, FOUR_COARSE), (10, THREE)];
const LOW_RATES: Table = &[(4, FOUR), (7, THREE), (19, TWO)];

/// The scale factors; the last index is not valid.
static SCALES: LazyLock<[f32; 64]> = LazyLock::new(|| {
    std::array::from_fn(|at| if at < 63 { (1.0 - at as f64 / 3.0).exp2() as f32 } else { 0.0 })
});

/// Decodes the frames of one stream.
#[derive(Debug)]
pub(super) struct Layer12 {
    level: Level,
    format: FrameFormat,
    channels: [SubbandChannel; 2],
}

/// The state of a channel.
#[derive(Clone, Debug)]
struct SubbandChannel {
    /// The number of values of each subband's samples; 0 if all are zero.
    values: [u16; SUBBANDS],
    scales: [[f32; PARTS]; SUBBANDS],
    subbands: [[[f32; SUBBANDS]; SLOTS]; PARTS],
    samples: [[[f32; SUBBANDS]; SLOTS]; PARTS],
    synthesis: Synthesis,
}

impl Default for SubbandChannel {
    fn default() -> Self {
        SubbandChannel {
            values: [0; SUBBANDS],
            scales: [[0.0; PARTS]; SUBBANDS],
            subbands: [[[0.0; SUBBANDS]; SLOTS]; PARTS],
            samples: [[[0.0; SUBBANDS]; SLOTS]; PARTS],
            synthesis: Synthesis::default(),
        }
    }
}

/// The sample of a subband for a value from 0 to `values - 1`, before scaling.
#[inline(always)]
fn sample(value: u32, values: u16) -> f32 {
    (2 * value as i32 + 1 - i32::from(values)) as f32 / f32::from(values)
}

impl Layer12 {
    /// A decoder of a stream with frames such as `frame`.
    pub(super) fn new(frame: FrameFormat) -> Self {
        Layer12 { level: Level::new(), format: frame, channels: Default::default() }
    }

    /// Reads a frame of layer I. From the subband `bound` on, the channels share their samples.
    #[inline(always)]
    fn read_first(&mut self, bits: &mut MpegBits<'_>, bound: usize) -> Result<(), &'static str> {
        let channels = &mut self.channels[..usize::from(self.format.channels)];
        for subband in 0..SUBBANDS {
            let mut shared = None;
            for channel in &mut *channels {
                let allocation = shared.unwrap_or_else(|| bits.read(4));
                if subband >= bound {
                    shared = Some(allocation);
                }
                channel.values[subband] = match allocation {
                    0 => 0,
                    15 => return Err("invalid allocation of bits"),
                    bits => ((2u32 << bits) - 1) as u16,
                };
            }
        }
        for subband in 0..SUBBANDS {
            for channel in channels.iter_mut().filter(|it| it.values[subband] > 0) {
                channel.scales[subband][0] = SCALES[bits.read(6) as usize];
            }
        }
        for slot in 0..SLOTS {
            for subband in 0..SUBBANDS {
                let mut shared = None;
                for channel in &mut *channels {
                    let values = channel.values[subband];
                    let mut scaled = 0.0;
                    if values > 0 {
                        let count = u32::from(values).count_ones();
                        let value = shared.unwrap_or_else(|| bits.read(count));
                        scaled = sample(value, values) * channel.scales[subband][0];
                        if subband >= bound {
                            shared = Some(value);
                        }
                    }
                    channel.subbands[0][slot][subband] = scaled;
                }
            }
        }
        Ok(())
    }

    /// The allocations of layer II for each subband; none for those without samples.
    fn allocations(&self) -> [Option<Allocations>; SUBBANDS] {
        let format = self.format;
        let table = match format.kbps / usize::from(format.channels) {
            _ if format.version > 1 => LOW_RATES,
            0..=48 if format.sample_rate == 32_000 => LOW_32_KHZ,
            0..=48 => LOW,
            49..=80 => MEDIUM,
            _ if format.sample_rate == 48_000 => MEDIUM,
            _ => HIGH,
        };
        let mut allocations = [None; SUBBANDS];
        let rows = table.iter().flat_map(|(count, row)| std::iter::repeat_n(*row, *count));
        allocations.iter_mut().zip(rows).for_each(|(allocation, row)| *allocation = Some(row));
        allocations
    }

    /// Reads a frame of layer II. From the subband `bound` on, the channels share their samples.
    #[inline(always)]
    fn read_second(&mut self, bits: &mut MpegBits<'_>, bound: usize) {
        let allocations = self.allocations();
        let limit = allocations.iter().flatten().count();
        let channels = &mut self.channels[..usize::from(self.format.channels)];
        for channel in &mut *channels {
            channel.values = [0; SUBBANDS];
            channel.subbands = [[[0.0; SUBBANDS]; SLOTS]; PARTS];
        }
        for (subband, (values, count)) in allocations.into_iter().flatten().enumerate() {
            let mut shared = None;
            for channel in &mut *channels {
                let allocation = shared.unwrap_or_else(|| bits.read(count) as usize);
                if subband >= bound {
                    shared = Some(allocation);
                }
                if let Some(&values) = allocation.checked_sub(1).and_then(|at| values.get(at)) {
                    channel.values[subband] = values;
                }
            }
        }
        let mut shares = [[0; SUBBANDS]; 2];
        for subband in 0..limit {
            for (channel, shares) in channels.iter().zip(&mut shares) {
                if channel.values[subband] > 0 {
                    shares[subband] = bits.read(2);
                }
            }
        }
        for subband in 0..limit {
            for (channel, shares) in channels.iter_mut().zip(&shares) {
                if channel.values[subband] > 0 {
                    let mut scale = || SCALES[bits.read(6) as usize];
                    let first = scale();
                    channel.scales[subband] = match shares[subband] {
                        0 => [first, scale(), scale()],
                        1 => [first, first, scale()],
                        2 => [first; PARTS],
                        _ => {
                            let second = scale();
                            [first, second, second]
                        }
                    };
                }
            }
        }
        for part in 0..PARTS {
            for slot in (0..SLOTS).step_by(3) {
                for subband in 0..limit {
                    let mut shared = None;
                    for channel in &mut *channels {
                        let values = channel.values[subband];
                        if values == 0 {
                            continue;
                        }
                        let samples = shared.unwrap_or_else(|| triple(bits, values));
                        if subband >= bound {
                            shared = Some(samples);
                        }
                        let scale = channel.scales[subband][part];
                        let slots = &mut channel.subbands[part][slot..slot + 3];
                        for (slot, sample) in slots.iter_mut().zip(samples) {
                            slot[subband] = sample * scale;
                        }
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn run<S: Simd>(
        &mut self,
        simd: S,
        bits: &mut MpegBits<'_>,
        bound: usize,
    ) -> Result<(), &'static str> {
        let parts = if self.format.layer == 1 {
            self.read_first(bits, bound)?;
            1
        } else {
            self.read_second(bits, bound);
            PARTS
        };
        for channel in &mut self.channels[..usize::from(self.format.channels)] {
            let parts = channel.subbands[..parts].iter().zip(&mut channel.samples);
            parts.for_each(|(subbands, samples)| channel.synthesis.run(simd, subbands, samples));
        }
        Ok(())
    }
}

/// Reads three consecutive samples of a subband.
#[inline(always)]
fn triple(bits: &mut MpegBits<'_>, values: u16) -> [f32; 3] {
    let group = match values {
        3 => 5,
        5 => 7,
        9 => 10,
        _ => {
            let count = u32::from(values).count_ones();
            return std::array::from_fn(|_| sample(bits.read(count), values));
        }
    };
    let mut group = bits.read(group);
    std::array::from_fn(|_| {
        let value = group % u32::from(values);
        group /= u32::from(values);
        sample(value, values)
    })
}

impl LayerDecoder for Layer12 {
    fn load(&mut self, _frame: &[u8]) {}
}

impl PacketDecoder for Layer12 {
    fn decode(&mut self, packet: &[u8], offset: usize, out: &mut Collector<'_>) -> Result<()> {
        let fault = |why| corrupt(why, offset);
        let format = FrameFormat::parse(packet).ok_or_else(|| fault("a frame is too short"))?;
        self.format.kbps = format.kbps;
        let mode = packet[3];
        let bound = if mode >> 6 == 1 { 4 + 4 * usize::from(mode >> 4 & 3) } else { SUBBANDS };
        let head = if format.has_checksum { 6 } else { 4 };
        let mut bits = MpegBits::new(packet, 8 * head);
        dispatch!(self.level, simd => self.run(simd, &mut bits, bound)).map_err(fault)?;
        if bits.position() > 8 * packet.len() {
            return Err(fault("the samples exceed the frame"));
        }
        let parts = if format.layer == 1 { 1 } else { PARTS };
        let channels = self.channels[..usize::from(self.format.channels)].iter();
        let channels = channels.map(|channel| channel.samples.as_flattened().as_flattened());
        out.push(channels, parts * SLOTS * SUBBANDS, |samples, part, out| {
            out.copy_from_slice(&samples[part]);
        })
    }
}
