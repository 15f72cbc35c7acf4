//! A ring buffer of two MCU rows: written by the inverse DCT, read by upsampling.

use std::ops::Range;

use fearless_simd::{Level, dispatch};
use spdl_core::Result;

use super::coefficients::resize;
use super::color::{self, Upsampling};
use super::header::{BLOCK, Color, Component, Frame, MAX_COMPONENTS};
use super::output::{BlockRange, BlockScale, ComponentOutput, ComponentOutputs};
use crate::image::{PixelsMut, Rect};

/// MCU rows in the ring buffer: image rows at the boundary of two MCU rows need samples of both.
const RING: usize = 2;

/// The samples of the current MCU rows.
#[derive(Debug, Default)]
pub(super) struct RowBuffer {
    /// One buffer per component; further elements are unused.
    planes: [ComponentRing; MAX_COMPONENTS],
    /// The MCU rows of the region: the first row, and the row after the last row.
    units: (usize, usize),
    /// The number of image rows converted so far.
    emitted: usize,
    /// Whether an image row needs samples of neighbouring sample rows.
    needs_context_rows: bool,
    scratch: color::UpsamplingScratch,
}

#[derive(Debug, Default)]
struct ComponentRing {
    samples: Vec<u8>,
    stride: usize,
    /// The number of sample rows in the ring buffer.
    rows: usize,
    wanted: BlockRange,
    upsampling: Upsampling,
}

impl ComponentRing {
    /// A sample row, counted from the top of the image.
    #[inline(always)]
    fn row(&self, row: usize, width: usize) -> &[u8] {
        &self.samples[row % self.rows * self.stride..][..width]
    }
}

impl RowBuffer {
    /// Prepares for `region` of an image.
    pub(super) fn prepare(&mut self, frame: &Frame, region: Rect) -> Result<()> {
        self.emitted = 0;
        self.needs_context_rows = false;
        self.units = (usize::MAX, 0);
        for (plane, component) in self.planes.iter_mut().zip(frame.components.iter()) {
            let (across, down) = (frame.across / component.across, frame.down / component.down);
            plane.upsampling = Upsampling::choose(across, down, component.width);
            plane.wanted = BlockRange::of(frame, component, region);
            self.needs_context_rows |= plane.upsampling.needs_context_rows();
            plane.stride = component.padded_wide * BLOCK;
            plane.rows = RING * component.down * BLOCK;
            // The buffer only grows; old samples are overwritten.
            let bytes = (plane.stride * plane.rows).max(plane.samples.len());
            resize(&mut plane.samples, bytes, 0)?;
            self.units.0 = self.units.0.min(plane.wanted.rows.start / component.down);
            self.units.1 = self.units.1.max(plane.wanted.rows.end.div_ceil(component.down));
        }
        Ok(())
    }

    /// The MCU rows of the region.
    pub(super) fn rows(&self) -> Range<usize> {
        self.units.0..self.units.1
    }

    /// The destination of MCU row `row`.
    pub(super) fn outputs(&mut self, frame: &Frame, row: usize) -> ComponentOutputs<'_> {
        let mut outputs = ComponentOutputs::default();
        for ((output, plane), component) in
            outputs.iter_mut().zip(&mut self.planes).zip(frame.components.iter())
        {
            // The first block row of this position in the ring buffer.
            let top = (row * component.down).wrapping_sub(row % RING * component.down);
            *output = Some(ComponentOutput {
                samples: &mut plane.samples,
                stride: plane.stride,
                height: plane.rows,
                wanted: plane.wanted.clone(),
                left: 0,
                top,
                side: BlockScale::Eight,
            });
        }
        outputs
    }

    /// The number of image rows, from the top, converted so far.
    pub(super) fn emitted(&self) -> usize {
        self.emitted
    }

    /// Converts the image rows that are complete after MCU row `row`.
    pub(super) fn emit(
        &mut self,
        frame: &Frame,
        row: usize,
        region: Rect,
        color: Color,
        out: &mut PixelsMut<'_>,
        level: Level,
    ) {
        let end = match row + 1 == frame.mcu_rows {
            true => frame.size.height as usize,
            // The last image row also needs the samples of the next MCU row.
            false => (row + 1) * frame.mcu_height() - usize::from(self.needs_context_rows),
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
            let RowBuffer { planes, scratch, .. } = self;
            let mut lines: [&[u8]; 4] = [&[]; 4];
            let parts = planes.iter().zip(frame.components.iter()).zip(&mut scratch.lines);
            for (((plane, component), memory), line) in parts.zip(&mut lines) {
                *line = plane.upsampled(component, y, &columns, memory, &mut scratch.sums);
            }
            color::convert(color, lines, target);
        }
    }
}

impl ComponentRing {
    /// The samples of an image row for these columns.
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
        // Of two image rows that share a sample row, the upper one is interpolated with the sample
        // row above.
        let far = if y.is_multiple_of(2) { near.saturating_sub(1) } else { near + 1 };
        match self.upsampling {
            Upsampling::None => return &row(y)[columns.clone()],
            Upsampling::Repeat { across, .. } => {
                color::repeat(row(near), across, columns, memory);
            }
            Upsampling::Horizontal => {
                color::upsample_horizontal::<false>(row(near), row(near), columns, memory, sums);
            }
            Upsampling::Vertical => {
                color::upsample_vertical(row(near), row(far), y % 2, columns, memory)
            }
            Upsampling::Both => {
                color::upsample_horizontal::<true>(row(near), row(far), columns, memory, sums);
            }
        }
        // Samples are produced in pairs.
        let skip = match self.upsampling {
            Upsampling::Horizontal | Upsampling::Both => columns.start % 2,
            _ => 0,
        };
        &memory[skip..][..columns.len()]
    }
}
