//! Scale factor bands, and the order in which the lines of a granule are stored.
//!
//! Source of the numbers: ISO/IEC 11172-3, table B.8; ISO/IEC 13818-3, table B.2; MPEG 2.5 as
//! encoders use it.

use std::sync::LazyLock;

use super::hybrid::{LINES, SLOTS, SUBBANDS};

/// The maximum number of bands: 13 for each of three windows.
pub(super) const MAX_BANDS: usize = 39;
/// The first short band of a mixed block.
const FIRST_MIXED: usize = 3;

/// The first lines of the long bands, and the number of lines. Some sample rates share them.
const LONG: [[u16; 23]; 6] = [
    [
        0, 4, 8, 12, 16, 20, 24, 30, 36, 44, 52, 62, 74, 90, 110, 134, 162, 196, 238, 288, 342,
        418, 576,
    ],
    [
        0, 4, 8, 12, 16, 20, 24, 30, 36, 42, 50, 60, 72, 88, 106, 128, 156, 190, 230, 276, 330,
        384, 576,
    ],
    [
        0, 4, 8, 12, 16, 20, 24, 30, 36, 44, 54, 66, 82, 102, 126, 156, 194, 240, 296, 364, 448,
        550, 576,
    ],
    [
        0, 6, 12, 18, 24, 30, 36, 44, 54, 66, 80, 96, 116, 140, 168, 200, 238, 284, 336, 396, 464,
        522, 576,
    ],
    [
        0, 6, 12, 18, 24, 30, 36, 44, 54, 66, 80, 96, 114, 136, 162, 194, 232, 278, 332, 394, 464,
        540, 576,
    ],
    [
        0, 12, 24, 36, 48, 60, 72, 88, 108, 132, 160, 192, 232, 280, 336, 400, 476, 566, 568, 570,
        572, 574, 576,
    ],
];

/// The numbers of lines of the short bands, for each window.
const SHORT: [[u16; 13]; 7] = [
    [4, 4, 4, 4, 6, 8, 10, 12, 14, 18, 22, 30, 56],
    [4, 4, 4, 4, 6, 6, 10, 12, 14, 16, 20, 26, 66],
    [4, 4, 4, 4, 6, 8, 12, 16, 20, 26, 34, 42, 12],
    [4, 4, 4, 6, 6, 8, 10, 14, 18, 26, 32, 42, 18],
    [4, 4, 4, 6, 8, 10, 12, 14, 18, 24, 32, 44, 12],
    [4, 4, 4, 6, 8, 10, 12, 14, 18, 24, 30, 40, 18],
    [8, 8, 8, 12, 16, 20, 24, 28, 36, 2, 2, 2, 26],
];

/// For each of the sample rates 44.1, 48 and 32 kHz, then half and a quarter of them: the indexes
/// in `LONG` and `SHORT`.
const RATES: [(usize, usize); 9] =
    [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (3, 5), (3, 5), (3, 5), (5, 6)];

/// The kinds of blocks that have different bands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bands {
    Long,
    Short,
    /// Long bands for the lowest subbands, then short bands.
    Mixed,
}

/// The bands of a granule in the order of the bit stream.
#[derive(Clone, Debug)]
pub(super) struct BandLayout {
    /// The number of bands; those of short blocks count once for each window.
    pub(super) count: usize,
    /// The number of bands that are long.
    pub(super) long: usize,
    /// The line after the last one of each band; `LINES` after the last band.
    pub(super) ends: [u16; MAX_BANDS + 1],
    /// Where each line is stored: `SUBBANDS × (line within its subband) + subband`.
    pub(super) places: [u16; LINES],
}

/// For each sample rate: the layouts of long, short and mixed blocks.
static LAYOUTS: LazyLock<Vec<[BandLayout; 3]>> = LazyLock::new(|| {
    let kinds = [Bands::Long, Bands::Short, Bands::Mixed];
    (0..RATES.len()).map(|rate| kinds.map(|bands| BandLayout::new(rate, bands))).collect()
});

/// The layouts for a sample rate, an index in `RATES`: of long, short and mixed blocks.
pub(super) fn layouts(rate: usize) -> &'static [BandLayout; 3] {
    &LAYOUTS[rate]
}

/// The line of a long band's start.
pub(super) fn long_start(rate: usize, band: usize) -> usize {
    usize::from(LONG[RATES[rate].0][band.min(22)])
}

/// The number of subbands of a mixed block that have long blocks.
pub(super) fn mixed_subbands(rate: usize) -> usize {
    let (_, short) = RATES[rate];
    let lines: u16 = SHORT[short][..FIRST_MIXED].iter().sum();
    usize::from(3 * lines) / SLOTS
}

impl BandLayout {
    fn new(rate: usize, bands: Bands) -> Self {
        let mut layout =
            BandLayout { count: 0, long: 0, ends: [LINES as u16; _], places: [0; LINES] };
        let (long, short) = RATES[rate];
        let widths = match bands {
            Bands::Long => &[],
            Bands::Short => &SHORT[short][..],
            Bands::Mixed => &SHORT[short][FIRST_MIXED..],
        };
        let first_short = LINES - 3 * usize::from(widths.iter().sum::<u16>());
        let place = |line: usize| (line % SLOTS * SUBBANDS + line / SLOTS) as u16;
        for (line, target) in layout.places[..first_short].iter_mut().enumerate() {
            *target = place(line);
        }
        for &end in LONG[long][1..].iter().take_while(|end| usize::from(**end) <= first_short) {
            layout.push(end);
        }
        layout.long = layout.count;
        let mut start = first_short;
        for width in widths.iter().map(|width| usize::from(*width)) {
            for window in 0..3 {
                let from = start + window * width;
                for at in 0..width {
                    layout.places[from + at] = place(start + 3 * at + window);
                }
                layout.push((from + width) as u16);
            }
            start += 3 * width;
        }
        layout
    }

    fn push(&mut self, end: u16) {
        self.ends[self.count] = end;
        self.count += 1;
    }

    /// The lines of a band.
    pub(super) fn band(&self, band: usize) -> std::ops::Range<usize> {
        let start = if band == 0 { 0 } else { self.ends[band - 1] };
        usize::from(start)..usize::from(self.ends[band])
    }

    /// The number of subbands that have one of the first `lines` lines.
    #[inline(always)]
    pub(super) fn subbands(&self, lines: usize) -> usize {
        // The lines of the three windows of a short band alternate, so all windows count.
        let end = match self.ends.iter().position(|end| usize::from(*end) >= lines) {
            Some(band) if lines > 0 && band >= self.long => {
                usize::from(self.ends[band + 2 - (band - self.long) % 3])
            }
            _ => lines,
        };
        end.div_ceil(SLOTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_a_place_and_bands_cover_all_lines() {
        for rate in 0..RATES.len() {
            for (layout, bands) in layouts(rate).iter().zip([22, 39, 38]) {
                let is_lsf_mixed = bands == 38 && rate >= 3;
                assert_eq!(layout.count, if is_lsf_mixed { 36 } else { bands });
                assert_eq!(usize::from(layout.ends[layout.count - 1]), LINES);
                assert!(layout.ends.is_sorted());
                let mut places = layout.places;
                places.sort_unstable();
                assert!(places.iter().enumerate().all(|(at, place)| at == usize::from(*place)));
                for lines in 0..=LINES {
                    let used = layout.places[..lines].iter();
                    let last = used.map(|place| usize::from(*place) % SUBBANDS + 1).max();
                    assert!(layout.subbands(lines) >= last.unwrap_or(0));
                    assert!(layout.subbands(lines) <= SUBBANDS);
                }
            }
            assert_eq!(mixed_subbands(rate), if rate == 8 { 4 } else { 2 });
        }
    }
}
