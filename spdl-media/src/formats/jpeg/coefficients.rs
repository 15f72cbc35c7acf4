//! The coefficients of images with several scans.

use spdl_core::{Error, ErrorKind, Result};

use super::header::{BLOCK_AREA, Frame, MAX_COMPONENTS, ZIGZAG};
use crate::image::{Limits, Size};

/// The coefficients of a block in row order, before dequantisation.
pub(super) type Block = [i16; BLOCK_AREA];

/// Which coefficients of a component are needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CoefficientSet {
    #[default]
    All,
    /// Only DC: each block becomes one sample, and AC coefficients are not decoded.
    DcOnly,
}

/// The coefficients of an image.
#[derive(Debug, Default)]
pub(super) struct CoefficientBuffer {
    components: [ComponentCoefficients; MAX_COMPONENTS],
    recent: RecentNeed,
}

/// The coefficients of a component, row by row, padded to whole MCUs.
#[derive(Debug, Default)]
pub(super) struct ComponentCoefficients {
    /// The DC coefficient of each block.
    dc: Vec<i16>,
    /// The AC coefficients of blocks with a non-zero bit in `nonzero`; the content of other blocks
    /// is unspecified. Empty if only DC coefficients are kept.
    blocks: Vec<Block>,
    /// One bit per non-zero coefficient of a block, in zigzag order.
    nonzero: Vec<u64>,
}

/// The memory that recent images needed.
#[derive(Debug, Default)]
struct RecentNeed {
    images: u32,
    most: usize,
}

/// The number of images between checks for excessive memory.
const IMAGES: u32 = 64;
/// Memory is released if it exceeds the recent need by this factor.
const FAR_LARGER: usize = 4;
/// Memory of up to this many bytes is always kept.
const FREE_BYTES: usize = 1 << 20;
const BYTES_OF_AC: usize = size_of::<Block>() + size_of::<u64>();

impl CoefficientBuffer {
    /// Records an image that needs no coefficient buffer.
    pub(super) fn record_unused(&mut self) {
        self.record_need(0);
    }

    /// Sets all coefficients of an image to zero.
    pub(super) fn begin(
        &mut self,
        frame: &Frame,
        kept: [CoefficientSet; MAX_COMPONENTS],
        limits: &Limits,
    ) -> Result<()> {
        let counts: [(usize, usize); MAX_COMPONENTS] = std::array::from_fn(|at| {
            let blocks = frame.components.get(at).map_or(0, |part| part.blocks());
            (blocks, if kept[at] == CoefficientSet::All { blocks } else { 0 })
        });
        self.reserve(counts, limits, frame.size)
    }

    /// Allocates DC and AC coefficients, for the given number of blocks of each component.
    fn reserve(
        &mut self,
        counts: [(usize, usize); MAX_COMPONENTS],
        limits: &Limits,
        size: Size,
    ) -> Result<()> {
        let needed =
            counts.iter().map(|&(all, whole)| all * size_of::<i16>() + whole * BYTES_OF_AC);
        let needed: usize = needed.sum();
        limits.check_bytes(needed as u64, size)?;
        self.record_need(needed);
        // Buffers that are large enough are reused; their whole capacity counts towards the limit.
        let kept = self.components.iter().zip(counts).map(|(it, counts)| it.bytes_for(counts));
        if limits.check_bytes(kept.sum::<usize>() as u64, size).is_err() {
            self.components = Default::default();
        }
        for (component, (all, whole)) in self.components.iter_mut().zip(counts) {
            component.dc.clear();
            component.nonzero.clear();
            resize(&mut component.dc, all, 0)?;
            resize(&mut component.nonzero, whole, 0)?;
            resize(&mut component.blocks, whole, [0; BLOCK_AREA])?;
        }
        Ok(())
    }

    /// Records the memory that an image needs, in bytes. After every [`IMAGES`] images, releases the
    /// buffers if they are far larger than the largest recorded need.
    fn record_need(&mut self, needed: usize) {
        self.recent.most = self.recent.most.max(needed);
        self.recent.images += 1;
        if self.recent.images == IMAGES {
            if self.held() > FREE_BYTES.max(FAR_LARGER * self.recent.most) {
                self.components = Default::default();
            }
            self.recent = RecentNeed::default();
        }
    }

    /// The allocated memory in bytes.
    fn held(&self) -> usize {
        self.components.iter().map(|it| it.bytes_for((0, 0))).sum()
    }

    #[inline(always)]
    pub(super) fn component(&self, component: usize) -> &ComponentCoefficients {
        &self.components[component]
    }

    #[inline(always)]
    pub(super) fn component_mut(&mut self, component: usize) -> &mut ComponentCoefficients {
        &mut self.components[component]
    }
}

impl ComponentCoefficients {
    /// The allocated memory in bytes, if it has to hold this number of blocks.
    fn bytes_for(&self, (all, whole): (usize, usize)) -> usize {
        self.dc.capacity().max(all) * size_of::<i16>()
            + self.nonzero.capacity().max(whole) * size_of::<u64>()
            + self.blocks.capacity().max(whole) * size_of::<Block>()
    }

    #[inline(always)]
    pub(super) fn dc_mut(&mut self, at: usize) -> &mut i16 {
        &mut self.dc[at]
    }

    /// The DC coefficient of a block; 0 beyond the last block.
    pub(super) fn dc(&self, at: usize) -> i16 {
        self.dc.get(at).copied().unwrap_or(0)
    }

    /// The AC coefficients of a block.
    #[inline(always)]
    pub(super) fn ac(&mut self, at: usize) -> AcBlock<'_> {
        AcBlock { block: &mut self.blocks[at], nonzero: &mut self.nonzero[at] }
    }

    /// Copies a block. Returns the index, in zigzag order, from which all coefficients are zero.
    /// Without AC coefficients, only DC is copied.
    #[inline(always)]
    pub(super) fn copy(&self, at: usize, block: &mut [i16]) -> usize {
        let nonzero = self.nonzero.get(at).copied().unwrap_or(0);
        if nonzero != 0 {
            block[..BLOCK_AREA].copy_from_slice(&self.blocks[at]);
        }
        block[0] = self.dc[at];
        if nonzero == 0 { 1 } else { BLOCK_AREA - nonzero.leading_zeros() as usize }
    }
}

/// The AC coefficients of a block, by their index in zigzag order.
pub(super) struct AcBlock<'a> {
    block: &'a mut Block,
    nonzero: &'a mut u64,
}

impl AcBlock<'_> {
    /// One bit per non-zero coefficient from `first` to `last`.
    #[inline(always)]
    pub(super) fn nonzero(&self, first: usize, last: usize) -> u64 {
        *self.nonzero & band(first, last)
    }

    /// One bit per zero coefficient from `first` to `last`.
    #[inline(always)]
    pub(super) fn zeros(&self, first: usize, last: usize) -> u64 {
        !*self.nonzero & band(first, last)
    }

    #[inline(always)]
    pub(super) fn get(&self, at: usize) -> i16 {
        if *self.nonzero >> at & 1 == 0 { 0 } else { self.block[usize::from(ZIGZAG[at])] }
    }

    /// A coefficient that is known to be non-zero.
    #[inline(always)]
    pub(super) fn known(&mut self, at: usize) -> &mut i16 {
        &mut self.block[usize::from(ZIGZAG[at])]
    }

    /// Sets a coefficient. If the index is beyond the block, the value is discarded.
    #[inline(always)]
    pub(super) fn set(&mut self, at: usize, value: i16) {
        if *self.nonzero == 0 {
            self.block.fill(0);
        }
        self.block[usize::from(ZIGZAG[at & 127]) & 63] = value;
        *self.nonzero |= u64::from(value != 0) << (at & 63);
    }

    /// Sets all coefficients. The coefficients from index `zero_from` in zigzag order on are zero.
    #[inline(always)]
    pub(super) fn replace(&mut self, block: &[i16], zero_from: usize) {
        *self.nonzero = if zero_from > 1 { band(1, zero_from.min(BLOCK_AREA) - 1) } else { 0 };
        self.block.copy_from_slice(&block[..BLOCK_AREA]);
    }

    /// Sets all coefficients to zero.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        *self.nonzero = 0;
    }
}

/// A mask of the bits from `first` to `last`.
#[inline(always)]
fn band(first: usize, last: usize) -> u64 {
    u64::MAX << first & u64::MAX >> (BLOCK_AREA - 1 - last)
}

/// Sets the length of `memory` to exactly this value, and keeps existing values. `Vec::resize` is
/// not used, because it may allocate twice as much and aborts on failure.
pub(super) fn resize<T: Copy>(memory: &mut Vec<T>, length: usize, value: T) -> Result<()> {
    if memory.capacity() < length {
        // Dropping the old buffer before the new one is allocated avoids copying its content.
        *memory = Vec::new();
        memory.try_reserve_exact(length).map_err(|_| {
            let bytes = length.saturating_mul(size_of::<T>());
            let message = format!("cannot allocate {bytes} bytes to decode a JPEG");
            Error::new(ErrorKind::LimitExceeded, message)
        })?;
    }
    memory.resize(length, value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { width: 1, height: 1 };

    fn reserve(stored: &mut CoefficientBuffer, counts: [usize; 2], limits: &Limits) -> Result<()> {
        let [first, second] = counts.map(|count| (count, count));
        stored.reserve([first, second, (0, 0), (0, 0)], limits, SIZE)
    }

    #[test]
    fn memory_grows_to_the_required_size_only() {
        let mut stored = CoefficientBuffer::default();
        for count in [1000, 1001, 1500, 1501, 3000] {
            reserve(&mut stored, [count, 0], &Limits::default()).unwrap();
            assert_eq!(stored.held(), count * (2 + BYTES_OF_AC), "{count} blocks");
        }
    }

    #[test]
    fn impossible_sizes_of_coefficients_are_errors() {
        let mut memory = vec![7u64; 10];
        let error = resize(&mut memory, usize::MAX / 16, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    }

    #[test]
    fn memory_kept_from_earlier_images_counts_towards_the_limit() {
        let mut stored = CoefficientBuffer::default();
        let limits = Limits::default().max_bytes(2000 * (2 + BYTES_OF_AC as u64));
        reserve(&mut stored, [2000, 0], &limits).unwrap();
        reserve(&mut stored, [0, 2000], &limits).unwrap();
        assert_eq!(stored.held(), 2000 * (2 + BYTES_OF_AC));
        assert!(reserve(&mut stored, [1, 2000], &limits).is_err());
    }

    #[test]
    fn memory_is_freed_after_many_smaller_images() {
        let mut stored = CoefficientBuffer::default();
        let large = 4 * FREE_BYTES / BYTES_OF_AC;
        reserve(&mut stored, [large, 0], &Limits::default()).unwrap();
        // If at least one of this many images is large, the memory is kept.
        for round in 0..3 {
            for _ in 1..IMAGES {
                stored.record_unused();
            }
            assert!(stored.held() > FREE_BYTES, "{round}");
            reserve(&mut stored, [large, 0], &Limits::default()).unwrap();
        }
        for _ in 0..2 * IMAGES {
            stored.record_unused();
        }
        assert_eq!(stored.held(), 0);
    }

    #[test]
    fn blocks_are_cleared_between_images() {
        let mut stored = CoefficientBuffer::default();
        let mut block = [9; BLOCK_AREA];
        reserve(&mut stored, [1, 0], &Limits::default()).unwrap();
        stored.component_mut(0).ac(0).replace(&[5; BLOCK_AREA], BLOCK_AREA);
        reserve(&mut stored, [1, 0], &Limits::default()).unwrap();
        assert_eq!(stored.component(0).copy(0, &mut block), 1);
        assert_eq!((block[0], stored.component_mut(0).ac(0).get(3)), (0, 0));
        stored.component_mut(0).ac(0).set(2, -3);
        assert_eq!(stored.component(0).copy(0, &mut block), 3);
        let mut expected = [0; BLOCK_AREA];
        expected[8] = -3;
        assert_eq!(block, expected);
    }
}
