//! MPEG audio layer III (MP3).
//!
//! ```text
//! frame ──► side information ──► scale factors, lines ──► stereo ──► inverse MDCT ──► filter bank
//! ```
//!
//! | file | content |
//! |---|---|
//! | `hybrid` | alias reduction, inverse MDCT, overlap |
//! | `bands` | scale factor bands; the order of the lines |
//! | `side_info` | side information and scale factors |
//! | `huffman` | Huffman codes of the lines |
//! | `stereo` | quantization steps; joint stereo |
//!
//! Source of the format: ISO/IEC 11172-3; ISO/IEC 13818-3 for low sample rates. This file has the
//! bit reservoir, and the decoding of a frame.

mod bands;
mod huffman;
mod hybrid;
mod side_info;
mod stereo;

use fearless_simd::{Level, Simd, dispatch};
use spdl_core::Result;

use self::bands::{Bands, layouts, mixed_subbands};
use self::huffman::{HuffmanTables, TABLES, read_lines};
use self::hybrid::{Blocks, Hybrid, LINES, Lines, SLOTS, SUBBANDS, Samples};
use self::side_info::{Format, Scales, SideInfo};
use self::stereo::{Intensity, middle_to_left, steps};
use super::bits::MpegBits;
use super::synthesis::Synthesis;
use super::{FrameFormat, LayerDecoder, MAX_RESERVOIR, corrupt};
use crate::audio::collector::Collector;
use crate::audio::packets::PacketDecoder;

/// The maximum size of a frame: 320 kbit/s at 32 kHz, or 160 kbit/s at 8 kHz, and a byte of padding.
const MAX_FRAME: usize = 1441;
/// Bytes after the data, so that the reader of bits loads whole words.
const PADDING: usize = 8;

/// Decodes the frames of one stream.
#[derive(Debug)]
pub(super) struct Layer3 {
    level: Level,
    format: Format,
    side_size: usize,
    side: SideInfo,
    /// The data of this frame and before it, then zeros.
    reservoir: [u8; MAX_RESERVOIR + MAX_FRAME + PADDING],
    /// The number of bytes of data.
    kept: usize,
    channels: [GranuleChannel; 2],
    /// The samples of a frame.
    samples: [[[[f32; SUBBANDS]; SLOTS]; 2]; 2],
}

/// The state of a channel.
#[derive(Clone, Debug)]
struct GranuleChannel {
    scales: [Scales; 2],
    lines: Lines,
    /// The number of lines that may not be zero.
    used: usize,
    hybrid: Hybrid,
    subbands: Samples,
    synthesis: Synthesis,
}

impl Default for GranuleChannel {
    fn default() -> Self {
        GranuleChannel {
            scales: Default::default(),
            lines: [0.0; LINES],
            used: 0,
            hybrid: Hybrid::default(),
            subbands: [[0.0; SUBBANDS]; SLOTS],
            synthesis: Synthesis::default(),
        }
    }
}

/// How the channels of a frame are stored.
#[derive(Clone, Copy, Debug, Default)]
struct Stereo {
    has_middle: bool,
    has_intensity: bool,
}

impl Layer3 {
    /// A decoder of a stream with frames such as `frame`.
    pub(super) fn new(frame: FrameFormat) -> Self {
        let base = match u64::from(frame.sample_rate) << (frame.version - 1) {
            44_100 => 0,
            48_000 => 1,
            _ => 2,
        };
        let format = Format {
            version: frame.version,
            rate: usize::from(frame.version - 1) * 3 + base,
            channels: usize::from(frame.channels),
        };
        Layer3 {
            level: Level::new(),
            format,
            side_size: frame.side_size(),
            side: SideInfo::default(),
            reservoir: [0; _],
            kept: 0,
            channels: Default::default(),
            samples: [[[[0.0; SUBBANDS]; SLOTS]; 2]; 2],
        }
    }

    /// The byte of a frame that has its mode, its side information, and its data.
    fn split<'a>(&self, frame: &'a [u8]) -> Option<(u8, &'a [u8], &'a [u8])> {
        let &[_, kind, _, mode, ..] = frame else { return None };
        let head = if kind & 1 == 0 { 6 } else { 4 };
        let (side, data) = frame.get(head..)?.split_at_checked(self.side_size)?;
        Some((mode, side, data))
    }

    /// Appends the data of a frame to the reservoir, and returns their start.
    fn keep(&mut self, data: &[u8]) -> usize {
        let data = &data[..data.len().min(MAX_FRAME)];
        let old = self.kept.min(MAX_RESERVOIR);
        self.reservoir.copy_within(self.kept - old..self.kept, 0);
        self.kept = old + data.len();
        self.reservoir[old..self.kept].copy_from_slice(data);
        self.reservoir[self.kept..][..PADDING].fill(0);
        old
    }

    /// Decodes the granules of a frame, whose data start at the byte `start` of the reservoir;
    /// negative if earlier data are missing.
    #[inline(always)]
    fn granules<S: Simd>(&mut self, simd: S, start: isize, stereo: Stereo) -> Result<(), Damage> {
        let tables = &**TABLES;
        let mut position = 8 * start;
        for granule in 0..self.format.granules() {
            // A granule is silent if its data start before the stream.
            let is_silent = position < 0;
            for channel in 0..self.format.channels {
                let end = position + self.side.granules[granule][channel].size as isize;
                if is_silent {
                    self.channels[channel].lines.fill(0.0);
                    self.channels[channel].used = 0;
                } else {
                    let range = position as usize..end as usize;
                    self.read(tables, granule, channel, range, stereo)?;
                }
                position = end;
            }
            self.join(granule, stereo);
            let granules = &self.side.granules[granule];
            for (index, channel) in self.channels[..self.format.channels].iter_mut().enumerate() {
                let info = &granules[index];
                let layout = &layouts(self.format.rate)[info.bands() as usize];
                let long_subbands = match (info.is_mixed, info.bands()) {
                    (false, _) => 0,
                    (true, Bands::Long) => 2,
                    (true, _) => mixed_subbands(self.format.rate),
                };
                let subbands = layout.subbands(channel.used);
                let blocks = Blocks { window: info.window, long_subbands, subbands };
                channel.hybrid.run(simd, blocks, &mut channel.lines, &mut channel.subbands);
                let samples = &mut self.samples[index][granule];
                channel.synthesis.run(simd, &channel.subbands, samples);
            }
        }
        Ok(())
    }

    /// Reads the lines of a granule from the bits `range`.
    #[inline(always)]
    fn read(
        &mut self,
        tables: &HuffmanTables,
        granule: usize,
        channel: usize,
        range: std::ops::Range<usize>,
        stereo: Stereo,
    ) -> Result<(), Damage> {
        if range.end > 8 * self.kept {
            return Err("the data of a granule exceed the frame");
        }
        let data = &self.reservoir[..self.kept + PADDING];
        let info = &self.side.granules[granule][channel];
        let state = &mut self.channels[channel];
        let mut bits = MpegBits::new(data, range.start);
        let [first, second] = &mut state.scales;
        let (scales, first) = if granule == 0 { (first, None) } else { (second, Some(&*first)) };
        let mut has_preemphasis = info.has_preemphasis;
        if self.format.version > 1 {
            let is_intensity = stereo.has_intensity && channel == 1;
            has_preemphasis = scales.read_low_rate(&mut bits, info, is_intensity);
        } else {
            let shared = first.map(|first| (first, self.side.shares_scales[channel]));
            scales.read(&mut bits, info, shared);
        }
        if bits.position() > range.end {
            return Err("the scale factors of a granule exceed its data");
        }
        let layout = &layouts(self.format.rate)[info.bands() as usize];
        // Middle and side are divided by the root of 2; `Intensity` does so for some bands.
        let reduction = if stereo.has_middle && !stereo.has_intensity { 2 } else { 0 };
        let steps = steps(info, scales, layout, has_preemphasis, reduction);
        state.lines.fill(0.0);
        state.used =
            read_lines(tables, &mut bits, range.end, info, layout, &steps, &mut state.lines);
        Ok(())
    }

    /// Replaces joint stereo by left and right.
    #[inline(always)]
    fn join(&mut self, granule: usize, stereo: Stereo) {
        if !stereo.has_middle && !stereo.has_intensity {
            return;
        }
        let [left, right] = &mut self.channels;
        if stereo.has_intensity {
            let info = &self.side.granules[granule][1];
            let intensity = Intensity {
                is_low_rate: self.format.version > 1,
                has_middle: stereo.has_middle,
                right: info,
                scales: &right.scales[granule],
                layout: &layouts(self.format.rate)[info.bands() as usize],
            };
            intensity.apply(&mut left.lines, &mut right.lines);
        } else {
            middle_to_left(&mut left.lines, &mut right.lines);
        }
        // The channels can have different orders of lines.
        let subbands = |at: usize, used: usize| {
            let info = &self.side.granules[granule][at];
            layouts(self.format.rate)[info.bands() as usize].subbands(used)
        };
        let used = SLOTS * subbands(0, left.used).max(subbands(1, right.used));
        (left.used, right.used) = (used, used);
    }
}

/// Why data are not valid.
type Damage = &'static str;

impl LayerDecoder for Layer3 {
    fn load(&mut self, frame: &[u8]) {
        if let Some((_, _, data)) = self.split(frame) {
            self.keep(data);
        }
    }
}

impl PacketDecoder for Layer3 {
    fn decode(&mut self, packet: &[u8], offset: usize, out: &mut Collector<'_>) -> Result<()> {
        let fault = |why: Damage| corrupt(why, offset);
        let (mode, side, data) = self.split(packet).ok_or_else(|| fault("a frame is too short"))?;
        self.side.read(side, self.format).map_err(fault)?;
        let is_joint = mode >> 6 == 1;
        let stereo = Stereo {
            has_middle: is_joint && mode & 0x20 != 0,
            has_intensity: is_joint && mode & 0x10 != 0,
        };
        let start = self.keep(data) as isize - self.side.main_data_begin as isize;
        dispatch!(self.level, simd => self.granules(simd, start, stereo)).map_err(fault)?;
        let granules = self.format.granules();
        let channels = self.samples[..self.format.channels].iter();
        let channels = channels.map(|granules| granules.as_flattened().as_flattened());
        out.push(channels, granules * LINES, |samples, part, out| {
            out.copy_from_slice(&samples[part]);
        })
    }
}
