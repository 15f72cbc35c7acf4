//! Component planes: a ring of two rows of coded units, drawn at one end and read at the other.

use std::ops::Range;

use fearless_simd::{Level, dispatch};
use spdl_core::Result;

use super::color::{self, Upsampling};
use super::header::{BLOCK, Color, Component, Frame, MAX_COMPONENTS};
use super::stored::resize;
use super::surface::{Side, Surface, Surfaces, Wanted};
use crate::image::{PixelsMut, Rect};

/// Rows of coded units that are kept: the rows at the seam of two need samples of both.
const RING: usize = 2;

/// The samples of the rows of units that are being worked on.
#[derive(Debug, Default)]
pub(super) struct Planes {
    /// One for each component; the others are not used.
    planes: [Plane; MAX_COMPONENTS],
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
    wanted: Wanted,
    upsampling: Upsampling,
}

impl Plane {
    /// A sample row, counted from the top of the image.
    #[inline(always)]
    fn row(&self, row: usize, width: usize) -> &[u8] {
        &self.samples[row % self.rows * self.stride..][..width]
    }
}

impl Planes {
    /// Prepares for an image of which `region` is wanted.
    pub(super) fn prepare(&mut self, frame: &Frame, region: Rect) -> Result<()> {
        self.emitted = 0;
        self.looks_around = false;
        self.units = (usize::MAX, 0);
        for (plane, component) in self.planes.iter_mut().zip(frame.components.iter()) {
            let (across, down) = (frame.across / component.across, frame.down / component.down);
            plane.upsampling = Upsampling::choose(across, down, component.width);
            plane.wanted = Wanted::of(frame, component, region);
            self.looks_around |= plane.upsampling.looks_around();
            plane.stride = component.padded_wide * BLOCK;
            plane.rows = RING * component.down * BLOCK;
            // Only grows: what is there is drawn over.
            let bytes = (plane.stride * plane.rows).max(plane.samples.len());
            resize(&mut plane.samples, bytes, 0)?;
            self.units.0 = self.units.0.min(plane.wanted.rows.start / component.down);
            self.units.1 = self.units.1.max(plane.wanted.rows.end.div_ceil(component.down));
        }
        Ok(())
    }

    /// The rows of units that the region needs: first, and one beyond the last.
    pub(super) fn rows(&self) -> Range<usize> {
        self.units.0..self.units.1
    }

    /// Where row `row` of units is drawn.
    pub(super) fn surfaces(&mut self, frame: &Frame, row: usize) -> Surfaces<'_> {
        let mut surfaces = Surfaces::default();
        for ((surface, plane), component) in
            surfaces.iter_mut().zip(&mut self.planes).zip(frame.components.iter())
        {
            // The first row of blocks is where the ring has come to.
            let top = (row * component.down).wrapping_sub(row % RING * component.down);
            *surface = Some(Surface {
                samples: &mut plane.samples,
                stride: plane.stride,
                height: plane.rows,
                wanted: plane.wanted.clone(),
                left: 0,
                top,
                side: Side::Eight,
            });
        }
        surfaces
    }

    /// How many rows of the image, from the top, were passed.
    pub(super) fn emitted(&self) -> usize {
        self.emitted
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
        rows: Range<usize>,
        region: Rect,
        color: Color,
        out: &mut PixelsMut<'_>,
    ) {
        let columns = region.left as usize..(region.left + region.width) as usize;
        for y in rows {
            let target = out.row_mut((y - region.top as usize) as u32);
            let Planes { planes, scratch, .. } = self;
            let mut lines: [&[u8]; 4] = [&[]; 4];
            let parts = planes.iter().zip(frame.components.iter()).zip(&mut scratch.lines);
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
        columns: &Range<usize>,
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
