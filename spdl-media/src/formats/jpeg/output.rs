//! Which blocks of each component a region needs, and where their samples are stored.

use std::ops::Range;

use fearless_simd::Simd;

use super::coefficients::CoefficientSet;
use super::header::Quantization;
use super::header::{BLOCK, BLOCK_AREA, Component, Frame, MAX_COMPONENTS};
use super::huffman::WorkBlock;
use super::idct;
use crate::image::{Picture, PlaneShape, Rect, Size};

/// Columns and rows of blocks of a component that a region needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockRange {
    pub(super) columns: Range<usize>,
    pub(super) rows: Range<usize>,
}

impl BlockRange {
    /// The blocks of a component for `region` of the image, including the neighbours that
    /// upsampling needs.
    pub(super) fn of(frame: &Frame, component: &Component, region: Rect) -> Self {
        let (across, down) = (frame.across / component.across, frame.down / component.down);
        let columns = needed_samples(region.left, region.width, across, component.width);
        let rows = needed_samples(region.top, region.height, down, component.height);
        let blocks = |samples: Range<usize>| samples.start / BLOCK..samples.end.div_ceil(BLOCK);
        BlockRange { columns: blocks(columns), rows: blocks(rows) }
    }
}

/// The samples of a component for `extent` pixels from `start`, with one sample per `ratio` pixels.
fn needed_samples(start: u32, extent: u32, ratio: usize, limit: usize) -> Range<usize> {
    // Upsampling needs neighbours only if pixels share samples.
    let around = usize::from(ratio > 1);
    let first = (start as usize / ratio).saturating_sub(around);
    let end = (start + extent - 1) as usize / ratio + 1 + around;
    first..end.min(limit)
}

/// Width and height of the output of a block, in samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum BlockScale {
    #[default]
    Eight,
    Four,
    Two,
    One,
}

impl BlockScale {
    #[inline(always)]
    pub(super) fn samples(self) -> usize {
        match self {
            BlockScale::Eight => 8,
            BlockScale::Four => 4,
            BlockScale::Two => 2,
            BlockScale::One => 1,
        }
    }

    /// The last coefficient, in zigzag order, that affects the output.
    #[inline(always)]
    fn last_coefficient(self) -> usize {
        if self == BlockScale::One { 0 } else { BLOCK_AREA - 1 }
    }
}

/// The samples of each component to decode, and their planes.
pub(super) struct PlaneLayout {
    /// The size of the result.
    pub(super) size: Size,
    /// The reduction factor of the result.
    scale: u32,
    pub(super) shapes: [PlaneShape; MAX_COMPONENTS],
    wanted: [BlockRange; MAX_COMPONENTS],
    sides: [BlockScale; MAX_COMPONENTS],
    /// 1 if the last row of the result depends on samples below it, otherwise 0.
    context_rows: u32,
}

impl PlaneLayout {
    /// The samples for `region`, at the largest reduction that gives at least `smallest` pixels.
    pub(super) fn choose(frame: &Frame, region: Rect, smallest: Option<Size>) -> Self {
        let reduced =
            |scale: u32| Size::new(region.width.div_ceil(scale), region.height.div_ceil(scale));
        // A partial pixel does not count: its samples may lie outside the region.
        let fits = |&scale: &u32| {
            smallest.is_some_and(|it| {
                it.width <= region.width / scale && it.height <= region.height / scale
            })
        };
        let scale = [8, 4, 2].into_iter().find(fits).unwrap_or(1);
        let mut layout = PlaneLayout {
            size: reduced(scale),
            scale,
            shapes: Default::default(),
            wanted: Default::default(),
            sides: Default::default(),
            context_rows: 0,
        };
        for (at, component) in frame.components.iter().enumerate() {
            let (across, down) = (frame.across / component.across, frame.down / component.down);
            // A subsampled component needs less reduction, and never becomes smaller than the
            // result.
            let shrunk = (scale as usize / across.max(down)).max(1);
            let side = match shrunk {
                8 => BlockScale::One,
                4 => BlockScale::Two,
                2 => BlockScale::Four,
                _ => BlockScale::Eight,
            };
            let wanted = BlockRange::of(frame, component, region);
            let scaled = |samples: usize| (samples * side.samples()).div_ceil(BLOCK);
            let (left, top) =
                (wanted.columns.start * side.samples(), wanted.rows.start * side.samples());
            let right = (wanted.columns.end * side.samples()).min(scaled(component.width));
            let bottom = (wanted.rows.end * side.samples()).min(scaled(component.height));
            layout.shapes[at] = PlaneShape {
                channels: 1,
                area: Rect {
                    left: left as u32,
                    top: top as u32,
                    width: (right - left) as u32,
                    height: (bottom - top) as u32,
                },
                across: (across * shrunk) as u32,
                down: (down * shrunk) as u32,
                stride: wanted.columns.len() * side.samples(),
            };
            layout.context_rows |= u32::from(down * shrunk > scale as usize);
            layout.wanted[at] = wanted;
            layout.sides[at] = side;
        }
        layout
    }

    /// The coefficients that are needed.
    pub(super) fn kept(&self) -> [CoefficientSet; MAX_COMPONENTS] {
        self.sides.map(|side| {
            if side == BlockScale::One { CoefficientSet::DcOnly } else { CoefficientSet::All }
        })
    }

    /// The MCU rows that are needed.
    pub(super) fn rows(&self, frame: &Frame) -> Range<usize> {
        let rows = |(wanted, component): (&BlockRange, &Component)| {
            (wanted.rows.start / component.down, wanted.rows.end.div_ceil(component.down))
        };
        let parts = self.wanted.iter().zip(frame.components.iter()).map(rows);
        let (start, end) =
            parts.fold((usize::MAX, 0), |(a, b), (start, end)| (a.min(start), b.max(end)));
        start..end
    }

    pub(super) fn outputs<'p>(&self, picture: &'p mut Picture) -> ComponentOutputs<'p> {
        let mut outputs = ComponentOutputs::default();
        let places = outputs.iter_mut().zip(picture.planes_mut());
        for (at, (output, plane)) in places.enumerate() {
            let shape = &self.shapes[at];
            *output = Some(ComponentOutput {
                samples: plane.samples_mut(),
                stride: shape.stride,
                height: shape.area.height as usize,
                wanted: self.wanted[at].clone(),
                left: self.wanted[at].columns.start,
                top: self.wanted[at].rows.start,
                side: self.sides[at],
            });
        }
        outputs
    }

    /// Fills the samples below the first `drawn` MCU rows with black. Returns the number of rows of
    /// the result that do not depend on the black samples.
    pub(super) fn fill_missing(
        &self,
        frame: &Frame,
        region: Rect,
        drawn: usize,
        picture: &mut Picture,
    ) -> u32 {
        for (at, plane) in picture.planes_mut().iter_mut().enumerate() {
            let shape = &self.shapes[at];
            let rows = drawn * frame.components[at].down * self.sides[at].samples();
            let valid = rows.saturating_sub(shape.area.top as usize);
            let end = shape.area.height as usize * shape.stride;
            if let Some(missing) = plane.samples_mut().get_mut(valid * shape.stride..end) {
                missing.fill(if at == 0 { 0 } else { 128 });
            }
        }
        let pixels = ((drawn * frame.mcu_height()) as u32).saturating_sub(region.top);
        (pixels / self.scale).saturating_sub(self.context_rows).min(self.size.height)
    }
}

/// The destination of the samples of a component.
pub(super) struct ComponentOutput<'a> {
    pub(super) samples: &'a mut [u8],
    /// The distance between rows in bytes: at least the samples of all needed columns.
    pub(super) stride: usize,
    /// The number of sample rows, if the plane has fewer rows than the blocks.
    pub(super) height: usize,
    /// The blocks to write.
    pub(super) wanted: BlockRange,
    /// The block column at the start of each sample row.
    pub(super) left: usize,
    /// The block row at the start of `samples`; in a ring buffer, later rows wrap around.
    pub(super) top: usize,
    pub(super) side: BlockScale,
}

/// The destination of each component.
pub(super) type ComponentOutputs<'a> = [Option<ComponentOutput<'a>>; MAX_COMPONENTS];

impl ComponentOutput<'_> {
    /// Whether a block is needed.
    #[inline(always)]
    pub(super) fn needs(&self, column: usize, row: usize) -> bool {
        self.wanted.columns.contains(&column) && self.wanted.rows.contains(&row)
    }

    /// The last coefficient, in zigzag order, that affects the output.
    #[inline(always)]
    pub(super) fn last_coefficient(&self) -> usize {
        self.side.last_coefficient()
    }

    /// Writes the samples of a needed block. Its coefficients from `zero_from` on are zero.
    #[inline(always)]
    pub(super) fn write_block<S: Simd>(
        &mut self,
        simd: S,
        (column, row): (usize, usize),
        block: &WorkBlock,
        zero_from: usize,
        quantization: &Quantization,
    ) {
        let side = self.side.samples();
        let y = row.wrapping_sub(self.top) * side;
        let start = y * self.stride + (column - self.left) * side;
        let rows = self.height.saturating_sub(y);
        let Some(target) = self.samples.get_mut(start..) else { return };
        let stride = self.stride;
        if zero_from <= 1 {
            let value = idct::flat(block, quantization);
            return match self.side {
                BlockScale::Eight => store(target, stride, rows, [[value; 8]; 8]),
                BlockScale::Four => store(target, stride, rows, [[value; 4]; 4]),
                BlockScale::Two => store(target, stride, rows, [[value; 2]; 2]),
                BlockScale::One => store(target, stride, rows, [[value]]),
            };
        }
        match self.side {
            BlockScale::Eight if zero_from <= idct::LOW => {
                store(target, stride, rows, idct::inverse_low(simd, block, quantization));
            }
            BlockScale::Eight => {
                store(target, stride, rows, idct::inverse(simd, block, quantization))
            }
            BlockScale::Four => {
                store(target, stride, rows, idct::inverse_half(simd, block, quantization))
            }
            BlockScale::Two => {
                store(target, stride, rows, idct::inverse_quarter(simd, block, quantization))
            }
            BlockScale::One => store(target, stride, rows, [[idct::flat(block, quantization)]]),
        }
    }
}

/// Stores the samples of a block, at most `rows` rows.
#[inline(always)]
fn store<const SIDE: usize>(
    target: &mut [u8],
    stride: usize,
    rows: usize,
    samples: [[u8; SIDE]; SIDE],
) {
    if rows >= SIDE && target.len() >= (SIDE - 1) * stride + SIDE {
        for (y, samples) in samples.iter().enumerate() {
            target[y * stride..][..SIDE].copy_from_slice(samples);
        }
        return;
    }
    for (y, samples) in samples.iter().take(rows).enumerate() {
        if let Some(target) = target.get_mut(y * stride..y * stride + SIDE) {
            target.copy_from_slice(samples);
        }
    }
}
