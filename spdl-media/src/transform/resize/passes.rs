//! The two passes over a plane: first along the width of the upright image, then along its height.
//!
//! Both passes process 32 rows of the plane at a time. A target position is computed as soon as its
//! source rows are complete, and source rows are overwritten as soon as no target position needs
//! them. Therefore, memory depends on the target size and the filter support, not on the image
//! size.

use std::ops::Range;

use fearless_simd::Simd;
use spdl_core::{Error, ErrorKind, Result};

use super::axis::Axis;
use super::kernel::{
    InterleavedRows, LANES, PAIR_VALUES, columns_to_lines, convolve, interleave_channel,
    interleave_rows, lines_to_columns, padded,
};
use crate::image::{CHANNELS, Plane};

/// The number of positions of a row per step; intermediate data stay in the cache.
const CHUNK: usize = 512;
/// The number of pairs of rows that both passes process together.
const LINE_PAIRS: usize = LANES / 2;
/// The number of pairs per block of the first pass.
const BLOCK_PAIRS: usize = 8;

/// Memory for the data between the passes.
#[derive(Debug, Default)]
pub(super) struct ResizeScratch {
    /// A chunk of rows of interleaved pixels, separated into components.
    separated: Vec<u8>,
    /// The interleaved columns of the first pass, per component, or shared by all components.
    interleaved_columns: [Vec<i16>; CHANNELS],
    /// The result of the first pass.
    columns: [Vec<u8>; CHANNELS],
    /// The interleaved rows of the second pass, per component.
    interleaved_rows: [Vec<i16>; CHANNELS],
}

impl ResizeScratch {
    /// The allocated memory in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        let bytes = self.columns.iter().chain([&self.separated]).map(Vec::capacity);
        let interleaved = self.interleaved_columns.iter().chain(&self.interleaved_rows);
        bytes.sum::<usize>() + interleaved.map(Vec::capacity).sum::<usize>() * size_of::<i16>()
    }
}

/// The first `length` values of a buffer; the buffer grows if it is too short.
pub(super) fn grow<T: Clone + Default>(buffer: &mut Vec<T>, length: usize) -> Result<&mut [T]> {
    if buffer.len() < length {
        buffer.try_reserve_exact(length - buffer.len()).map_err(|_| {
            let bytes = length.saturating_mul(size_of::<T>());
            let message = format!("cannot allocate {bytes} bytes to resize an image");
            Error::new(ErrorKind::LimitExceeded, message)
        })?;
        buffer.resize(length, T::default());
    }
    Ok(&mut buffer[..length])
}

/// The passes over one plane.
pub(super) struct ResizePasses<'a> {
    pub(super) plane: &'a Plane,
    /// The axes along rows and columns of the plane.
    pub(super) across: &'a Axis,
    pub(super) down: &'a Axis,
    /// Whether rows become columns of the target.
    pub(super) swapped: bool,
    /// The width of the target.
    pub(super) width: usize,
}

/// The buffer sizes of the passes.
struct BufferSizes {
    /// The number of ring buffers of interleaved columns: one per component, or one for all
    /// components.
    rings: usize,
    /// The number of values of such a ring buffer.
    interleaved_columns: usize,
    columns: usize,
    separated: usize,
    /// The number of rows of a ring buffer of interleaved rows.
    kept_rows: usize,
    /// The number of values of such a row.
    row: usize,
}

impl ResizePasses<'_> {
    /// The axes of the first and the second pass.
    fn axes(&self) -> (&Axis, &Axis) {
        if self.swapped { (self.down, self.across) } else { (self.across, self.down) }
    }

    fn channels(&self) -> usize {
        self.plane.shape().channels
    }

    fn sizes(&self) -> BufferSizes {
        let (first, second) = self.axes();
        let whole = first.source.len() <= CHUNK;
        let separated = self.channels() > 1 && !self.swapped;
        let kept_columns = if whole {
            first.source_pairs().next_multiple_of(BLOCK_PAIRS)
        } else {
            first.kept_pairs(CHUNK / 2)
        };
        BufferSizes {
            rings: if whole { 1 } else { self.channels() },
            interleaved_columns: kept_columns * PAIR_VALUES,
            columns: self.width.next_multiple_of(BLOCK_PAIRS) * LANES,
            separated: if separated { CHANNELS * LANES * first.source.len().min(CHUNK) } else { 0 },
            kept_rows: second.kept_pairs(LINE_PAIRS),
            row: 2 * padded(self.width),
        }
    }

    /// The memory that the passes use of [`ResizeScratch`], in bytes.
    pub(super) fn bytes(&self) -> usize {
        let sizes = self.sizes();
        let of_columns =
            sizes.rings * (sizes.interleaved_columns * size_of::<i16>() + sizes.columns);
        let of_rows = self.channels() * sizes.kept_rows * sizes.row * size_of::<i16>();
        of_columns + of_rows + sizes.separated
    }

    /// Writes one plane per channel. The distance between rows is a multiple of 32 bytes.
    #[inline(always)]
    pub(super) fn run<S: Simd>(
        self,
        simd: S,
        scratch: &mut ResizeScratch,
        outputs: &mut [Vec<u8>],
    ) -> Result<()> {
        let (first, second) = self.axes();
        let sizes = self.sizes();
        let ResizeScratch { separated, interleaved_columns, columns, interleaved_rows } = scratch;
        let separated = grow(separated, sizes.separated)?;
        for ring in 0..sizes.rings {
            grow(&mut interleaved_columns[ring], sizes.interleaved_columns)?;
            grow(&mut columns[ring], sizes.columns)?;
        }
        for ring in &mut interleaved_rows[..outputs.len()] {
            grow(ring, sizes.kept_rows * sizes.row)?;
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
                if sizes.separated > 0 {
                    self.separate(&lines, &chunk, separated);
                }
                for (component, interleaved_rows) in
                    interleaved_rows[..outputs.len()].iter_mut().enumerate()
                {
                    let ring = component.min(sizes.rings - 1);
                    let interleaved = &mut interleaved_columns[ring][..sizes.interleaved_columns];
                    let columns = &mut columns[ring][..sizes.columns];
                    let at = pair * PAIR_VALUES % interleaved.len();
                    let place =
                        &mut interleaved[at..][..pairs.next_multiple_of(BLOCK_PAIRS) * PAIR_VALUES];
                    if self.swapped {
                        self.interleave_tile(&lines, &chunk, component, place);
                    } else {
                        let lines = self.lines(&lines, &chunk, component, separated);
                        lines_to_columns(simd, lines, place);
                    }
                    let interleaved = InterleavedRows { values: interleaved, stride: PAIR_VALUES };
                    convolve(simd, first, columns_done..ready, interleaved, LANES, columns, LANES);
                    if is_last {
                        let at = block * LINE_PAIRS % sizes.kept_rows * sizes.row;
                        let place = &mut interleaved_rows[at..][..LINE_PAIRS * sizes.row];
                        columns_to_lines(simd, columns, place, sizes.row);
                    }
                }
                columns_done = ready;
            }
            let pairs = (lines.end - second.source.start).div_ceil(2);
            let ready = second.ready(rows_done, pairs);
            for (interleaved, output) in interleaved_rows.iter().zip(&mut *outputs) {
                let values = &interleaved[..sizes.kept_rows * sizes.row];
                let interleaved = InterleavedRows { values, stride: sizes.row };
                convolve(simd, second, rows_done..ready, interleaved, stride, output, stride);
            }
            rows_done = ready;
        }
        Ok(())
    }

    /// Separates the components of some rows.
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

    /// Takes parts of 32 rows of a component; if there are fewer rows, the last row repeats.
    #[inline(always)]
    fn lines<'a>(
        &'a self,
        rows: &Range<usize>,
        columns: &Range<usize>,
        component: usize,
        separated: &'a [u8],
    ) -> [&'a [u8]; LANES] {
        let (length, last) = (columns.len(), rows.len() - 1);
        let mut lines: [&[u8]; LANES] = [&[]; LANES];
        for (at, line) in lines.iter_mut().enumerate() {
            let at = at.min(last);
            *line = if self.channels() == 1 {
                &self.plane.row((rows.start + at) as u32)[columns.clone()]
            } else {
                &separated[(component * LANES + at) * length..][..length]
            };
        }
        lines
    }

    /// Interleaves some columns of pairs of rows.
    #[inline(always)]
    fn interleave_tile(
        &self,
        columns: &Range<usize>,
        rows: &Range<usize>,
        component: usize,
        interleaved: &mut [i16],
    ) {
        let channels = self.channels();
        let tile = columns.start * channels..columns.end * channels;
        let (places, _) = interleaved.as_chunks_mut::<PAIR_VALUES>();
        for (place, upper) in places.iter_mut().zip(rows.clone().step_by(2)) {
            let lower = (upper + 1).min(rows.end - 1);
            let upper = &self.plane.row(upper as u32)[tile.clone()];
            let lower = &self.plane.row(lower as u32)[tile.clone()];
            if channels == 1 {
                interleave_rows(upper, lower, place);
            } else {
                interleave_channel(upper, lower, component, place);
            }
        }
    }
}
