//! The side information of a frame, and scale factors.
//!
//! Source of the format: ISO/IEC 11172-3, 2.4.1.7 and 2.4.2.7; ISO/IEC 13818-3, 2.4.1.7 and
//! 2.4.3.2 for low sample rates.

use super::bands::{Bands, MAX_BANDS, long_start};
use super::hybrid::LINES;
use crate::audio::mpeg::bits::MpegBits;

/// The window of a granule's blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Window {
    #[default]
    Normal,
    Start,
    Short,
    Stop,
}

/// The side information of a frame.
#[derive(Clone, Debug, Default)]
pub(super) struct SideInfo {
    /// The number of bytes of earlier frames in which the data of this one start.
    pub(super) main_data_begin: usize,
    /// Whether the second granule of a channel uses the scale factors of the first, for four groups
    /// of bands.
    pub(super) shares_scales: [[bool; 4]; 2],
    /// For each granule and channel.
    pub(super) granules: [[Granule; 2]; 2],
}

/// The side information of a channel in a granule.
#[derive(Clone, Debug, Default)]
pub(super) struct Granule {
    /// The number of bits of scale factors and lines.
    pub(super) size: usize,
    /// The number of pairs of lines (`big_values`).
    pub(super) pairs: usize,
    pub(super) global_gain: i32,
    /// `scalefac_compress`.
    scale_lengths: u32,
    pub(super) window: Window,
    /// Whether the lowest subbands have long blocks with a normal window.
    pub(super) is_mixed: bool,
    /// The tables of three regions of pairs.
    pub(super) tables: [u8; 3],
    /// The lines after the first two regions.
    pub(super) regions: [usize; 2],
    pub(super) subblock_gain: [i32; 3],
    pub(super) has_preemphasis: bool,
    /// How far scale factors are shifted, in steps of 2^(1/4).
    pub(super) scale_shift: u32,
    /// Whether quadruples have codes of four bits.
    pub(super) has_flat_quads: bool,
}

/// The scale factors of a channel in a granule, in the order of [`super::bands::BandLayout`].
#[derive(Clone, Debug)]
pub(super) struct Scales {
    pub(super) values: [u8; MAX_BANDS],
    /// In each band, the lowest value that is no position of intensity stereo.
    pub(super) positions: [u8; MAX_BANDS],
}

impl Default for Scales {
    fn default() -> Self {
        Scales { values: [0; MAX_BANDS], positions: [0; MAX_BANDS] }
    }
}

/// What of a frame's header affects its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Format {
    /// 1, 2 or 3, the latter for MPEG 2.5.
    pub(super) version: u8,
    /// The index of the sample rate in the tables of bands.
    pub(super) rate: usize,
    pub(super) channels: usize,
}

impl Format {
    pub(super) fn granules(self) -> usize {
        if self.version == 1 { 2 } else { 1 }
    }
}

impl SideInfo {
    /// Reads the side information. An error names what is not valid.
    #[inline(always)]
    pub(super) fn read(&mut self, data: &[u8], format: Format) -> Result<(), &'static str> {
        let mut bits = MpegBits::new(data, 0);
        let is_mono = format.channels == 1;
        if format.version == 1 {
            self.main_data_begin = bits.read(9) as usize;
            bits.read(if is_mono { 5 } else { 3 });
            for channel in &mut self.shares_scales[..format.channels] {
                *channel = std::array::from_fn(|_| bits.flag());
            }
        } else {
            self.main_data_begin = bits.read(8) as usize;
            bits.read(if is_mono { 1 } else { 2 });
        }
        for granule in &mut self.granules[..format.granules()] {
            for channel in &mut granule[..format.channels] {
                *channel = Granule::read(&mut bits, format)?;
            }
        }
        Ok(())
    }
}

impl Scales {
    /// The position of a band in intensity stereo, if it has one.
    pub(super) fn position(&self, band: usize) -> Option<u8> {
        let position = self.values[band];
        (position < self.positions[band]).then_some(position)
    }

    /// Reads the scale factors of a granule. `shared` has those of the frame's first granule, and
    /// which of four groups of long bands are equal to them.
    #[inline(always)]
    pub(super) fn read(
        &mut self,
        bits: &mut MpegBits<'_>,
        info: &Granule,
        shared: Option<(&Scales, [bool; 4])>,
    ) {
        const LENGTHS: [[u32; 2]; 16] = [
            [0, 0],
            [0, 1],
            [0, 2],
            [0, 3],
            [3, 0],
            [1, 1],
            [1, 2],
            [1, 3],
            [2, 1],
            [2, 2],
            [2, 3],
            [3, 1],
            [3, 2],
            [3, 3],
            [4, 2],
            [4, 3],
        ];
        let lengths = LENGTHS[(info.scale_lengths & 15) as usize];
        self.positions = [7; MAX_BANDS];
        let groups = match info.bands() {
            Bands::Long => [6, 5, 5, 5],
            Bands::Short => [18, 0, 18, 0],
            Bands::Mixed => [17, 0, 18, 0],
        };
        let shared = shared.filter(|_| info.bands() == Bands::Long);
        let mut start = 0;
        for (group, count) in groups.into_iter().enumerate() {
            let values = &mut self.values[start..][..count];
            match shared {
                Some((first, is_shared)) if is_shared[group] => {
                    values.copy_from_slice(&first.values[start..][..count]);
                }
                _ => {
                    for value in values {
                        *value = bits.read(lengths[group / 2]) as u8;
                    }
                }
            }
            start += count;
        }
        self.values[start..].fill(0);
    }

    /// Reads the scale factors of a granule at low sample rates. `is_intensity` is true for the
    /// right channel of intensity stereo. Returns whether there is preemphasis.
    #[inline(always)]
    pub(super) fn read_low_rate(
        &mut self,
        bits: &mut MpegBits<'_>,
        info: &Granule,
        is_intensity: bool,
    ) -> bool {
        /// The numbers of bands with each length, for long, short and mixed blocks.
        const GROUPS: [[[usize; 4]; 3]; 6] = [
            [[6, 5, 5, 5], [9, 9, 9, 9], [6, 9, 9, 9]],
            [[6, 5, 7, 3], [9, 9, 12, 6], [6, 9, 12, 6]],
            [[11, 10, 0, 0], [18, 18, 0, 0], [15, 18, 0, 0]],
            [[7, 7, 7, 0], [12, 12, 12, 0], [6, 15, 12, 0]],
            [[6, 6, 6, 3], [12, 9, 9, 6], [6, 12, 9, 6]],
            [[8, 8, 5, 0], [15, 12, 9, 0], [6, 18, 9, 0]],
        ];
        let code = info.scale_lengths;
        let half = code / 2;
        let (groups, lengths) = match (is_intensity, code) {
            (false, 0..400) => (0, [code / 80, code / 16 % 5, code / 4 % 4, code % 4]),
            (false, 400..500) => {
                let code = code - 400;
                (1, [code / 20, code / 4 % 5, code % 4, 0])
            }
            (false, _) => {
                let code = code.saturating_sub(500);
                (2, [code / 3, code % 3, 0, 0])
            }
            (true, 0..360) => (3, [half / 36, half % 36 / 6, half % 6, 0]),
            (true, 360..488) => {
                let half = half - 180;
                (4, [half / 16, half / 4 % 4, half % 4, 0])
            }
            (true, _) => {
                let half = half.saturating_sub(244);
                (5, [half / 3, half % 3, 0, 0])
            }
        };
        let mut start = 0;
        for (count, length) in GROUPS[groups][info.bands() as usize].into_iter().zip(lengths) {
            for value in &mut self.values[start..][..count] {
                *value = bits.read(length) as u8;
            }
            // The highest number of a length is no position; without bits, the position is 0.
            let positions = if length == 0 { 1 } else { (1u32 << length) - 1 };
            self.positions[start..][..count].fill(positions as u8);
            start += count;
        }
        self.values[start..].fill(0);
        !is_intensity && code >= 500
    }
}

impl Granule {
    fn read(bits: &mut MpegBits<'_>, format: Format) -> Result<Granule, &'static str> {
        let is_low_rate = format.version > 1;
        let mut granule = Granule {
            size: bits.read(12) as usize,
            pairs: bits.read(9) as usize,
            global_gain: bits.read(8) as i32,
            scale_lengths: bits.read(if is_low_rate { 9 } else { 4 }),
            ..Granule::default()
        };
        if granule.pairs > LINES / 2 {
            return Err("too many pairs of lines");
        }
        if bits.flag() {
            granule.window = match bits.read(2) {
                0 => return Err("reserved block type"),
                1 => Window::Start,
                2 => Window::Short,
                _ => Window::Stop,
            };
            granule.is_mixed = bits.flag();
            granule.tables = [bits.read(5) as u8, bits.read(5) as u8, 0];
            granule.subblock_gain = std::array::from_fn(|_| bits.read(3) as i32);
            let end = match (format.version, granule.bands()) {
                (3, Bands::Short) => long_start(format.rate, 6),
                (3, _) => long_start(format.rate, 8),
                (2, Bands::Long) => 54,
                _ => 36,
            };
            granule.regions = [end, LINES];
        } else {
            granule.tables = std::array::from_fn(|_| bits.read(5) as u8);
            let first = bits.read(4) as usize + 1;
            let second = first + bits.read(3) as usize + 1;
            granule.regions = [first, second].map(|band| long_start(format.rate, band));
        }
        granule.has_preemphasis = !is_low_rate && bits.flag();
        granule.scale_shift = 1 + bits.read(1);
        granule.has_flat_quads = bits.flag();
        Ok(granule)
    }

    /// The kind of the granule's bands.
    #[inline(always)]
    pub(super) fn bands(&self) -> Bands {
        match (self.window, self.is_mixed) {
            (Window::Short, false) => Bands::Short,
            (Window::Short, true) => Bands::Mixed,
            _ => Bands::Long,
        }
    }

    /// Whether the odd positions of intensity stereo at low sample rates are steps of 1/√2; else of
    /// 2^(-1/4).
    pub(super) fn has_coarse_positions(&self) -> bool {
        self.scale_lengths & 1 != 0
    }
}
