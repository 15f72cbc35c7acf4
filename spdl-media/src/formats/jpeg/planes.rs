//! Component planes: a ring of two rows of coded units, drawn at one end and read at the other.

use fearless_simd::{Level, Simd, dispatch};
use spdl_core::Result;

use super::color::{self, Upsampling};
use super::header::{BLOCK, Color, Component, Frame};
use super::idct;
use super::scan::UnitRow;
use crate::{PixelsMut, Rect};

/// Rows of coded units that are kept: the rows at the seam of two need samples of both.
const RING: usize = 2;

/// The samples of the rows of units that are being worked on.
#[derive(Debug, Default)]
pub(super) struct Planes {
    planes: Vec<Plane>,
    /// Rows of units that the region needs: first, and one beyond the last.
    units: (usize, usize),
    /// Image rows that were passed.
    emitted: usize,
    /// Whether a row needs samples of the rows above and below.
    looks_around: bool,
    scratch: color::Scratch,
}

#[derive(Debug, Default)]
struct Plane {
    samples: Vec<u8>,
    stride: usize,
    /// Sample rows in the ring.
    rows: usize,
    /// Columns of blocks that the region needs: first, and one beyond the last.
    blocks: (usize, usize),
    upsampling: Upsampling,
}

impl Plane {
    /// A sample row, counted from the top of the image.
    #[inline(always)]
    fn row(&self, row: usize, width: usize) -> &[u8] {
        &self.samples[row % self.rows * self.stride..][..width]
    }
}

/// The samples of a component that `extent` pixels from `start` on depend on: first, and one
/// beyond the last. `ratio` pixels share a sample.
fn needed_samples(start: u32, extent: u32, ratio: usize, limit: usize) -> (usize, usize) {
    let first = (start as usize / ratio).saturating_sub(1);
    let end = (start + extent - 1) as usize / ratio + 2;
    (first, end.min(limit))
}

impl Planes {
    /// Prepares for an image of which `region` is wanted.
    pub(super) fn prepare(&mut self, frame: &Frame, region: Rect) -> Result<()> {
        self.planes.resize_with(frame.components.len(), Plane::default);
        self.emitted = 0;
        self.looks_around = false;
        self.units = (usize::MAX, 0);
        for (plane, component) in self.planes.iter_mut().zip(&frame.components) {
            let (across, down) = (frame.across / component.across, frame.down / component.down);
            plane.upsampling = Upsampling::choose(across, down, component.width);
            self.looks_around |= plane.upsampling.looks_around();
            plane.stride = component.padded_wide * BLOCK;
            plane.rows = RING * component.down * BLOCK;
            plane.samples.resize(plane.stride * plane.rows, 0);
            let (left, right) = needed_samples(region.left, region.width, across, component.width);
            plane.blocks = (left / BLOCK, right.div_ceil(BLOCK));
            let (top, bottom) = needed_samples(region.top, region.height, down, component.height);
            let height = component.down * BLOCK;
            self.units.0 = self.units.0.min(top / height);
            self.units.1 = self.units.1.max(bottom.div_ceil(height));
        }
        Ok(())
    }

    /// Draws a row of units.
    pub(super) fn draw(&mut self, frame: &Frame, row: usize, units: &UnitRow<'_>, level: Level) {
        if row < self.units.0 || row >= self.units.1 {
            return;
        }
        dispatch!(level, simd => self.draw_blocks(simd, frame, row, units));
    }

    #[inline(always)]
    fn draw_blocks<S: Simd>(&mut self, simd: S, frame: &Frame, row: usize, units: &UnitRow<'_>) {
        let parts = self.planes.iter_mut().zip(&frame.components).zip(units.components);
        for ((plane, component), part) in parts {
            let Some((blocks, quantization)) = part else { continue };
            let top = row % RING * component.down * BLOCK;
            for (y, blocks) in blocks.chunks_exact(component.padded_wide).enumerate() {
                let start = (top + y * BLOCK) * plane.stride;
                let band = &mut plane.samples[start..][..BLOCK * plane.stride];
                for x in plane.blocks.0..plane.blocks.1 {
                    let samples = idct::inverse(simd, &blocks[x], quantization);
                    for (line, samples) in band.chunks_exact_mut(plane.stride).zip(samples) {
                        line[x * BLOCK..][..BLOCK].copy_from_slice(&samples);
                    }
                }
            }
        }
    }

    /// Writes the image rows that can be made now that row `row` of units is drawn.
    pub(super) fn emit(
        &mut self,
        frame: &Frame,
        row: usize,
        region: Rect,
        color: Color,
        out: &mut PixelsMut<'_>,
        level: Level,
    ) {
        let end = match row + 1 == frame.units_high {
            true => frame.size.height as usize,
            // The last row waits for the samples below it.
            false => (row + 1) * frame.unit_height() - usize::from(self.looks_around),
        };
        let (top, bottom) = (region.top as usize, (region.top + region.height) as usize);
        let (from, to) = (self.emitted.max(top), end.min(bottom));
        self.emitted = end;
        if from < to {
            dispatch!(level, _simd => self.emit_rows(frame, from..to, region, color, out));
        }
    }

    #[inline(always)]
    fn emit_rows(
        &mut self,
        frame: &Frame,
        rows: std::ops::Range<usize>,
        region: Rect,
        color: Color,
        out: &mut PixelsMut<'_>,
    ) {
        let columns = region.left as usize..(region.left + region.width) as usize;
        for y in rows {
            let target = out.row_mut((y - region.top as usize) as u32);
            let Planes { planes, scratch, .. } = self;
            let mut lines: [&[u8]; 4] = [&[]; 4];
            let parts = planes.iter().zip(&frame.components).zip(&mut scratch.lines);
            for (((plane, component), memory), line) in parts.zip(&mut lines) {
                *line = plane.upsampled(component, y, &columns, memory, &mut scratch.sums);
            }
            color::convert(color, lines, target);
        }
    }
}

impl Plane {
    /// The samples of an image row at these columns.
    #[inline(always)]
    fn upsampled<'a>(
        &'a self,
        component: &Component,
        y: usize,
        columns: &std::ops::Range<usize>,
        memory: &'a mut Vec<u8>,
        sums: &mut Vec<u16>,
    ) -> &'a [u8] {
        let last = component.height - 1;
        let row = |row: usize| self.row(row.min(last), component.width);
        let near = y / self.upsampling.down();
        // Of two rows that share a sample row, the upper is mixed with the one above.
        let far = if y.is_multiple_of(2) { near.saturating_sub(1) } else { near + 1 };
        match self.upsampling {
            Upsampling::None => return &row(y)[columns.clone()],
            Upsampling::Repeat { across, .. } => {
                color::repeat(row(near), across, columns, memory);
            }
            Upsampling::Across => {
                color::mix_across::<false>(row(near), row(near), columns, memory, sums);
            }
            Upsampling::Down => color::mix_down(row(near), row(far), y % 2, columns, memory),
            Upsampling::Both => {
                color::mix_across::<true>(row(near), row(far), columns, memory, sums);
            }
        }
        // Samples were made in pairs.
        let skip = match self.upsampling {
            Upsampling::Across | Upsampling::Both => columns.start % 2,
            _ => 0,
        };
        &memory[skip..][..columns.len()]
    }
}
