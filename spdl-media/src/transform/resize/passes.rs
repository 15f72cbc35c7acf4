//! The two passes of resizing a plane: first along the upright image's width, then along its height.
//!
//! 32 lines of the plane at a time go through both. Of what lies between, as much is kept as the
//! filters still look at: each position of a target is computed once its source is there, and what
//! none of the others needs any more is overwritten. So memory follows from the target and from how
//! far the filters reach, not from the size of the image.

use std::ops::Range;

use fearless_simd::Simd;
use spdl_core::{Error, ErrorKind, Result};

use super::axis::Axis;
use super::kernel::{
    LANES, WOVEN, Woven, columns_to_lines, lines_to_columns, weave, weave_channel, weigh,
};
use super::padded;
use crate::image::{CHANNELS, Plane};

/// Positions along a line that are taken at once: what becomes of them stays in a core's cache.
const CHUNK: usize = 512;
/// Pairs of lines that go through both passes together.
const LINE_PAIRS: usize = LANES / 2;
/// Pairs come to the first pass in blocks of so many.
const BLOCK_PAIRS: usize = 8;

/// Memory between the passes.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// A chunk of some lines of interleaved pixels, component by component.
    separated: Vec<u8>,
    /// For the components, or for all in turn: the woven columns that the first pass looks at.
    woven_columns: [Vec<i16>; CHANNELS],
    /// What it makes of them.
    columns: [Vec<u8>; CHANNELS],
    /// For each component, the woven rows that the second pass looks at.
    woven_rows: [Vec<i16>; CHANNELS],
}

impl Scratch {
    /// How many bytes it holds.
    pub(super) fn held_bytes(&self) -> usize {
        let bytes = self.columns.iter().chain([&self.separated]).map(Vec::capacity);
        let woven = self.woven_columns.iter().chain(&self.woven_rows);
        bytes.sum::<usize>() + woven.map(Vec::capacity).sum::<usize>() * size_of::<i16>()
    }
}

/// So many values of a buffer that grows where it must.
pub(super) fn grow<T: Clone + Default>(buffer: &mut Vec<T>, length: usize) -> Result<&mut [T]> {
    if buffer.len() < length {
        buffer.try_reserve_exact(length - buffer.len()).map_err(|_| {
            let bytes = length.saturating_mul(size_of::<T>());
            let message = format!("the system has no {bytes} bytes of memory to resize a picture");
            Error::new(ErrorKind::LimitExceeded, message)
        })?;
        buffer.resize(length, T::default());
    }
    Ok(&mut buffer[..length])
}

/// A plane and what it becomes.
pub(super) struct Passes<'a> {
    pub(super) plane: &'a Plane,
    /// Along the plane's rows, and down its columns.
    pub(super) across: &'a Axis,
    pub(super) down: &'a Axis,
    /// Whether the rows become columns of the target.
    pub(super) swapped: bool,
    /// Of the target.
    pub(super) width: usize,
}

/// How much memory the passes take.
struct Room {
    /// How many rings of woven columns there are: one for each component, or one for all in turn.
    rings: usize,
    /// Values of such a ring.
    woven_columns: usize,
    columns: usize,
    separated: usize,
    /// Rows of a ring of woven rows.
    kept_rows: usize,
    /// Values of such a row.
    row: usize,
}

impl Passes<'_> {
    /// Those of the first pass and of the second.
    fn axes(&self) -> (&Axis, &Axis) {
        if self.swapped { (self.down, self.across) } else { (self.across, self.down) }
    }

    fn channels(&self) -> usize {
        self.plane.shape().channels
    }

    fn room(&self) -> Room {
        let (first, second) = self.axes();
        let whole = first.source.len() <= CHUNK;
        let separated = self.channels() > 1 && !self.swapped;
        let kept_columns = if whole {
            first.source_pairs().next_multiple_of(BLOCK_PAIRS)
        } else {
            first.kept_pairs(CHUNK / 2)
        };
        Room {
            rings: if whole { 1 } else { self.channels() },
            woven_columns: kept_columns * WOVEN,
            columns: self.width.next_multiple_of(BLOCK_PAIRS) * LANES,
            separated: if separated { CHANNELS * LANES * first.source.len().min(CHUNK) } else { 0 },
            kept_rows: second.kept_pairs(LINE_PAIRS),
            row: 2 * padded(self.width),
        }
    }

    /// How many bytes of [`Scratch`] they take.
    pub(super) fn bytes(&self) -> usize {
        let room = self.room();
        let of_columns = room.rings * (room.woven_columns * size_of::<i16>() + room.columns);
        let of_rows = self.channels() * room.kept_rows * room.row * size_of::<i16>();
        of_columns + of_rows + room.separated
    }

    /// Writes a plane for each channel, rows a whole number of 32 bytes apart.
    #[inline(always)]
    pub(super) fn run<S: Simd>(
        self,
        simd: S,
        scratch: &mut Scratch,
        outputs: &mut [Vec<u8>],
    ) -> Result<()> {
        let (first, second) = self.axes();
        let room = self.room();
        let Scratch { separated, woven_columns, columns, woven_rows } = scratch;
        let separated = grow(separated, room.separated)?;
        for ring in 0..room.rings {
            grow(&mut woven_columns[ring], room.woven_columns)?;
            grow(&mut columns[ring], room.columns)?;
        }
        for ring in &mut woven_rows[..outputs.len()] {
            grow(ring, room.kept_rows * room.row)?;
        }
        let stride = padded(self.width);
        let mut rows_done = 0;
        for (block, line) in second.source.clone().step_by(LANES).enumerate() {
            let lines = line..(line + LANES).min(second.source.end);
            let mut columns_done = 0;
            for start in first.source.clone().step_by(CHUNK) {
                let chunk = start..(start + CHUNK).min(first.source.end);
                let pair = (start - first.source.start) / 2;
                let pairs = chunk.len().div_ceil(2);
                let ready = first.ready(columns_done, pair + pairs);
                let is_last = chunk.end == first.source.end;
                if room.separated > 0 {
                    self.separate(&lines, &chunk, separated);
                }
                for (component, woven_rows) in woven_rows[..outputs.len()].iter_mut().enumerate() {
                    let ring = component.min(room.rings - 1);
                    let woven = &mut woven_columns[ring][..room.woven_columns];
                    let columns = &mut columns[ring][..room.columns];
                    let at = pair * WOVEN % woven.len();
                    let place = &mut woven[at..][..pairs.next_multiple_of(BLOCK_PAIRS) * WOVEN];
                    if self.swapped {
                        self.weave_tile(&lines, &chunk, component, place);
                    } else {
                        let lines = self.lines(&lines, &chunk, component, separated);
                        lines_to_columns(simd, lines, place);
                    }
                    let woven = Woven { values: woven, stride: WOVEN };
                    weigh(simd, first, columns_done..ready, woven, LANES, columns, LANES);
                    if is_last {
                        let at = block * LINE_PAIRS % room.kept_rows * room.row;
                        let place = &mut woven_rows[at..][..LINE_PAIRS * room.row];
                        columns_to_lines(simd, columns, place, room.row);
                    }
                }
                columns_done = ready;
            }
            let pairs = (lines.end - second.source.start).div_ceil(2);
            let ready = second.ready(rows_done, pairs);
            for (woven, output) in woven_rows.iter().zip(&mut *outputs) {
                let values = &woven[..room.kept_rows * room.row];
                let woven = Woven { values, stride: room.row };
                weigh(simd, second, rows_done..ready, woven, stride, output, stride);
            }
            rows_done = ready;
        }
        Ok(())
    }

    /// Each component of some rows' pixels by itself.
    #[inline(always)]
    fn separate(&self, rows: &Range<usize>, columns: &Range<usize>, separated: &mut [u8]) {
        let length = columns.len();
        for (at, row) in rows.clone().enumerate() {
            let row = self.plane.row(row as u32);
            let (pixels, _) =
                row[columns.start * CHANNELS..columns.end * CHANNELS].as_chunks::<CHANNELS>();
            let (first, others) = separated.split_at_mut(LANES * length);
            let (second, third) = others.split_at_mut(LANES * length);
            let line = at * length..(at + 1) * length;
            let places = first[line.clone()].iter_mut();
            let places = places.zip(&mut second[line.clone()]).zip(&mut third[line]);
            for (((first, second), third), pixel) in places.zip(pixels) {
                [*first, *second, *third] = *pixel;
            }
        }
    }

    /// A part of some rows of a component, the last of them again and again where there are no more.
    #[inline(always)]
    fn lines<'a>(
        &'a self,
        rows: &Range<usize>,
        columns: &Range<usize>,
        component: usize,
        separated: &'a [u8],
    ) -> [&'a [u8]; LANES] {
        let (length, last) = (columns.len(), rows.len() - 1);
        std::array::from_fn(|at| {
            let at = at.min(last);
            if self.channels() == 1 {
                &self.plane.row((rows.start + at) as u32)[columns.clone()]
            } else {
                &separated[(component * LANES + at) * length..][..length]
            }
        })
    }

    /// Some columns of some rows, of which two at a time are woven.
    #[inline(always)]
    fn weave_tile(
        &self,
        columns: &Range<usize>,
        rows: &Range<usize>,
        component: usize,
        woven: &mut [i16],
    ) {
        let channels = self.channels();
        let tile = columns.start * channels..columns.end * channels;
        let (places, _) = woven.as_chunks_mut::<WOVEN>();
        for (place, upper) in places.iter_mut().zip(rows.clone().step_by(2)) {
            let lower = (upper + 1).min(rows.end - 1);
            let [upper, lower] =
                [upper, lower].map(|row| &self.plane.row(row as u32)[tile.clone()]);
            if channels == 1 {
                weave(upper, lower, place);
            } else {
                weave_channel(upper, lower, component, place);
            }
        }
    }
}
