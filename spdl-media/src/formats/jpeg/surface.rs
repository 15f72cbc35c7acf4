//! Where the samples of components go: which blocks are wanted, and how large they become.

use std::ops::Range;

use fearless_simd::Simd;

use super::header::{BLOCK, BLOCK_AREA, Component, Frame, MAX_COMPONENTS};
use super::huffman::Coefficients;
use super::idct;
use super::scan::Quantization;
use super::stored::Kept;
use crate::image::{Picture, PlaneShape, Rect, Size};

/// The blocks of a component that a region needs: columns and rows of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) columns: Range<usize>,
    pub(super) rows: Range<usize>,
}

impl Wanted {
    /// What `region` of the image needs of a component, with the samples around it that upsampling
    /// mixes in.
    pub(super) fn of(frame: &Frame, component: &Component, region: Rect) -> Self {
        let (across, down) = (frame.across / component.across, frame.down / component.down);
        let columns = needed_samples(region.left, region.width, across, component.width);
        let rows = needed_samples(region.top, region.height, down, component.height);
        let blocks = |samples: Range<usize>| samples.start / BLOCK..samples.end.div_ceil(BLOCK);
        Wanted { columns: blocks(columns), rows: blocks(rows) }
    }
}

/// The samples of a component that `extent` pixels from `start` on depend on, where `ratio` pixels
/// share a sample.
fn needed_samples(start: u32, extent: u32, ratio: usize, limit: usize) -> Range<usize> {
    // Only where pixels share samples are those beside them mixed in.
    let around = usize::from(ratio > 1);
    let first = (start as usize / ratio).saturating_sub(around);
    let end = (start + extent - 1) as usize / ratio + 1 + around;
    first..end.min(limit)
}

/// How many samples a block becomes on each side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Side {
    #[default]
    Eight,
    Four,
    Two,
    One,
}

impl Side {
    #[inline(always)]
    pub(super) fn samples(self) -> usize {
        match self {
            Side::Eight => 8,
            Side::Four => 4,
            Side::Two => 2,
            Side::One => 1,
        }
    }

    /// The last coefficient in coded order that matters.
    #[inline(always)]
    fn last_coefficient(self) -> usize {
        if self == Side::One { 0 } else { BLOCK_AREA - 1 }
    }
}

/// Which samples of each component are delivered, and where they go.
pub(super) struct PlaneLayout {
    /// Of the result, and how many pixels of the image share one of its pixels on each side.
    pub(super) size: Size,
    scale: u32,
    pub(super) shapes: [PlaneShape; MAX_COMPONENTS],
    wanted: [Wanted; MAX_COMPONENTS],
    sides: [Side; MAX_COMPONENTS],
    /// How many rows of the result's are not the same without the samples below them.
    looks_down: u32,
}

impl PlaneLayout {
    /// The samples that `region` needs, at the smallest scale that gives `smallest` pixels.
    pub(super) fn choose(frame: &Frame, region: Rect, smallest: Option<Size>) -> Self {
        let reduced =
            |scale: u32| Size::new(region.width.div_ceil(scale), region.height.div_ceil(scale));
        // A part of a sample is none: what it is reduced with may lie outside the region.
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
            looks_down: 0,
        };
        for (at, component) in frame.components.iter().enumerate() {
            let (across, down) = (frame.across / component.across, frame.down / component.down);
            // Where pixels share samples, those need not become fewer by as much; and none becomes
            // fewer than the result has pixels.
            let shrunk = (scale as usize / across.max(down)).max(1);
            let side = match shrunk {
                8 => Side::One,
                4 => Side::Two,
                2 => Side::Four,
                _ => Side::Eight,
            };
            let wanted = Wanted::of(frame, component, region);
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
            layout.looks_down |= u32::from(down * shrunk > scale as usize);
            layout.wanted[at] = wanted;
            layout.sides[at] = side;
        }
        layout
    }

    /// The coefficients that are needed.
    pub(super) fn kept(&self) -> [Kept; MAX_COMPONENTS] {
        self.sides.map(|side| if side == Side::One { Kept::Dc } else { Kept::All })
    }

    /// The rows of units that are needed.
    pub(super) fn rows(&self, frame: &Frame) -> Range<usize> {
        let rows = |(wanted, component): (&Wanted, &Component)| {
            (wanted.rows.start / component.down, wanted.rows.end.div_ceil(component.down))
        };
        let parts = self.wanted.iter().zip(frame.components.iter()).map(rows);
        let (start, end) =
            parts.fold((usize::MAX, 0), |(a, b), (start, end)| (a.min(start), b.max(end)));
        start..end
    }

    pub(super) fn surfaces<'p>(&self, picture: &'p mut Picture) -> Surfaces<'p> {
        let mut surfaces = Surfaces::default();
        let places = surfaces.iter_mut().zip(picture.planes_mut());
        for (at, (surface, plane)) in places.enumerate() {
            let shape = &self.shapes[at];
            *surface = Some(Surface {
                samples: plane.samples_mut(),
                stride: shape.stride,
                height: shape.area.height as usize,
                wanted: self.wanted[at].clone(),
                left: self.wanted[at].columns.start,
                top: self.wanted[at].rows.start,
                side: self.sides[at],
            });
        }
        surfaces
    }

    /// Makes black what lies below the first `drawn` rows of units, and says how many rows of the
    /// result do not depend on it.
    pub(super) fn blacken(
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
        let pixels = ((drawn * frame.unit_height()) as u32).saturating_sub(region.top);
        (pixels / self.scale).saturating_sub(self.looks_down).min(self.size.height)
    }
}

/// The place of a component's samples.
pub(super) struct Surface<'a> {
    pub(super) samples: &'a mut [u8],
    /// Bytes from row to row: as many as the samples of all wanted columns, at least.
    pub(super) stride: usize,
    /// Rows of samples there is room for, where these are fewer than the blocks have.
    pub(super) height: usize,
    /// The blocks that are drawn.
    pub(super) wanted: Wanted,
    /// The column of blocks at the start of each row of samples.
    pub(super) left: usize,
    /// The row of blocks at the start of `samples`; wraps.
    pub(super) top: usize,
    pub(super) side: Side,
}

/// A place for each component.
pub(super) type Surfaces<'a> = [Option<Surface<'a>>; MAX_COMPONENTS];

impl Surface<'_> {
    /// Whether a block is drawn.
    #[inline(always)]
    pub(super) fn wants(&self, column: usize, row: usize) -> bool {
        self.wanted.columns.contains(&column) && self.wanted.rows.contains(&row)
    }

    /// The last coefficient in coded order that matters.
    #[inline(always)]
    pub(super) fn last_coefficient(&self) -> usize {
        self.side.last_coefficient()
    }

    /// Draws a block that is wanted, of which coefficients are zero from `zero_from` on.
    #[inline(always)]
    pub(super) fn draw<S: Simd>(
        &mut self,
        simd: S,
        (column, row): (usize, usize),
        block: &Coefficients,
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
                Side::Eight => put(target, stride, rows, [[value; 8]; 8]),
                Side::Four => put(target, stride, rows, [[value; 4]; 4]),
                Side::Two => put(target, stride, rows, [[value; 2]; 2]),
                Side::One => put(target, stride, rows, [[value]]),
            };
        }
        match self.side {
            Side::Eight if zero_from <= idct::LOW => {
                put(target, stride, rows, idct::inverse_low(simd, block, quantization));
            }
            Side::Eight => put(target, stride, rows, idct::inverse(simd, block, quantization)),
            Side::Four => put(target, stride, rows, idct::inverse_half(simd, block, quantization)),
            Side::Two => {
                put(target, stride, rows, idct::inverse_quarter(simd, block, quantization))
            }
            Side::One => put(target, stride, rows, [[idct::flat(block, quantization)]]),
        }
    }
}

/// Writes the samples of a block, as many rows as there is room for.
#[inline(always)]
fn put<const SIDE: usize>(
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
