//! The coefficients of images whose blocks come in several scans.

use spdl_core::{Error, ErrorKind, Result};

use super::header::{BLOCK_AREA, Frame, MAX_COMPONENTS, ZIGZAG};
use crate::image::{Limits, Size};

/// A block's coefficients, row by row, not yet multiplied by their quantization.
pub(super) type Block = [i16; BLOCK_AREA];

/// Which coefficients of a component matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kept {
    #[default]
    All,
    /// A block becomes one sample: those of AC need not even be read.
    Dc,
}

/// All blocks of an image.
#[derive(Debug, Default)]
pub(super) struct Stored {
    components: [StoredComponent; MAX_COMPONENTS],
    lately: Lately,
}

/// All blocks of a component, row by row, as many as its coded units have.
#[derive(Debug, Default)]
pub(super) struct StoredComponent {
    /// The first coefficient of each block.
    dc: Vec<i16>,
    /// The others, of blocks of which `nonzero` tells any; else what a former image left there. Empty
    /// where only the first ones are kept.
    blocks: Vec<Block>,
    /// Which of a block's coefficients are not zero: a bit for each, in coded order.
    nonzero: Vec<u64>,
}

/// How much memory the last images needed.
#[derive(Debug, Default)]
struct Lately {
    images: u32,
    most: usize,
}

/// After so many images it is looked whether memory is far larger than they needed.
const IMAGES: u32 = 64;
/// Memory is given back where it is so many times larger.
const FAR_LARGER: usize = 4;
/// What may always be kept.
const FREE_BYTES: usize = 1 << 20;
const BYTES_OF_AC: usize = size_of::<Block>() + size_of::<u64>();

impl Stored {
    /// Takes note of an image that needs no stored coefficients.
    pub(super) fn pass(&mut self) {
        self.note(0);
    }

    /// Makes all coefficients of an image zero.
    pub(super) fn begin(
        &mut self,
        frame: &Frame,
        kept: [Kept; MAX_COMPONENTS],
        limits: &Limits,
    ) -> Result<()> {
        let counts: [(usize, usize); MAX_COMPONENTS] = std::array::from_fn(|at| {
            let blocks = frame.components.get(at).map_or(0, |part| part.blocks());
            (blocks, if kept[at] == Kept::All { blocks } else { 0 })
        });
        self.reserve(counts, limits, frame.size)
    }

    /// Makes room for so many blocks of each component, and for so many that are kept whole.
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
        self.note(needed);
        // What is large enough stays, and counts as it is.
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

    /// Gives memory back that is far larger than any of the last images needed.
    fn note(&mut self, needed: usize) {
        self.lately.most = self.lately.most.max(needed);
        self.lately.images += 1;
        if self.lately.images == IMAGES {
            if self.held() > FREE_BYTES.max(FAR_LARGER * self.lately.most) {
                self.components = Default::default();
            }
            self.lately = Lately::default();
        }
    }

    /// The bytes of memory that are kept.
    fn held(&self) -> usize {
        self.components.iter().map(|it| it.bytes_for((0, 0))).sum()
    }

    #[inline(always)]
    pub(super) fn component(&self, component: usize) -> &StoredComponent {
        &self.components[component]
    }

    #[inline(always)]
    pub(super) fn component_mut(&mut self, component: usize) -> &mut StoredComponent {
        &mut self.components[component]
    }
}

impl StoredComponent {
    /// The bytes of memory once there is room for so many blocks.
    fn bytes_for(&self, (all, whole): (usize, usize)) -> usize {
        self.dc.capacity().max(all) * size_of::<i16>()
            + self.nonzero.capacity().max(whole) * size_of::<u64>()
            + self.blocks.capacity().max(whole) * size_of::<Block>()
    }

    #[inline(always)]
    pub(super) fn dc_mut(&mut self, at: usize) -> &mut i16 {
        &mut self.dc[at]
    }

    /// The AC coefficients of a block of which they are kept.
    #[inline(always)]
    pub(super) fn ac(&mut self, at: usize) -> Ac<'_> {
        Ac { block: &mut self.blocks[at], nonzero: &mut self.nonzero[at] }
    }

    /// Copies a block; says from where on, in coded order, all is zero. Of a block without AC
    /// coefficients only the first is copied.
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

/// The AC coefficients of a block, by their places in coded order.
pub(super) struct Ac<'a> {
    block: &'a mut Block,
    nonzero: &'a mut u64,
}

impl Ac<'_> {
    /// Which coefficients of these places are not zero, a bit for each.
    #[inline(always)]
    pub(super) fn nonzero(&self, first: usize, last: usize) -> u64 {
        *self.nonzero & band(first, last)
    }

    #[inline(always)]
    pub(super) fn get(&self, at: usize) -> i16 {
        if *self.nonzero >> at & 1 == 0 { 0 } else { self.block[usize::from(ZIGZAG[at])] }
    }

    /// A coefficient that is not zero, and stays so.
    #[inline(always)]
    pub(super) fn known(&mut self, at: usize) -> &mut i16 {
        &mut self.block[usize::from(ZIGZAG[at])]
    }

    /// Sets a coefficient; of places behind the block the value goes where nobody looks.
    #[inline(always)]
    pub(super) fn set(&mut self, at: usize, value: i16) {
        if *self.nonzero == 0 {
            self.block.fill(0);
        }
        self.block[usize::from(ZIGZAG[at & 127]) & 63] = value;
        *self.nonzero |= u64::from(value != 0) << (at & 63);
    }

    /// Sets all of them, of which those from `zero_from` on, in coded order, are zero.
    #[inline(always)]
    pub(super) fn replace(&mut self, block: &[i16], zero_from: usize) {
        *self.nonzero = if zero_from > 1 { band(1, zero_from.min(BLOCK_AREA) - 1) } else { 0 };
        self.block.copy_from_slice(&block[..BLOCK_AREA]);
    }

    /// Makes all of them zero.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        *self.nonzero = 0;
    }
}

/// A bit for each of the places from `first` to `last`.
#[inline(always)]
fn band(first: usize, last: usize) -> u64 {
    u64::MAX << first & u64::MAX >> (BLOCK_AREA - 1 - last)
}

/// Makes `memory` so long, and no longer: what `Vec::resize` takes may be twice as much, and it
/// aborts where there is none. What is there already stays.
pub(super) fn resize<T: Copy>(memory: &mut Vec<T>, length: usize, value: T) -> Result<()> {
    if memory.capacity() < length {
        // Nothing of what is there is needed, so it is not carried along.
        *memory = Vec::new();
        memory.try_reserve_exact(length).map_err(|_| {
            let bytes = length.saturating_mul(size_of::<T>());
            let message = format!("the system has no {bytes} bytes of memory for a JPEG");
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

    fn reserve(stored: &mut Stored, counts: [usize; 2], limits: &Limits) -> Result<()> {
        let [first, second] = counts.map(|count| (count, count));
        stored.reserve([first, second, (0, 0), (0, 0)], limits, SIZE)
    }

    #[test]
    fn memory_grows_to_what_is_needed_and_no_further() {
        let mut stored = Stored::default();
        for count in [1000, 1001, 1500, 1501, 3000] {
            reserve(&mut stored, [count, 0], &Limits::default()).unwrap();
            assert_eq!(stored.held(), count * (2 + BYTES_OF_AC), "{count} blocks");
        }
    }

    #[test]
    fn memory_that_there_cannot_be_is_an_error() {
        let mut memory = vec![7u64; 10];
        let error = resize(&mut memory, usize::MAX / 16, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    }

    #[test]
    fn what_former_images_left_counts_against_the_limit() {
        let mut stored = Stored::default();
        let limits = Limits::default().max_bytes(2000 * (2 + BYTES_OF_AC as u64));
        reserve(&mut stored, [2000, 0], &limits).unwrap();
        reserve(&mut stored, [0, 2000], &limits).unwrap();
        assert_eq!(stored.held(), 2000 * (2 + BYTES_OF_AC));
        assert!(reserve(&mut stored, [1, 2000], &limits).is_err());
    }

    #[test]
    fn memory_is_given_back_where_the_last_images_needed_far_less() {
        let mut stored = Stored::default();
        let large = 4 * FREE_BYTES / BYTES_OF_AC;
        reserve(&mut stored, [large, 0], &Limits::default()).unwrap();
        // Where one of so many images is large, it stays.
        for round in 0..3 {
            for _ in 1..IMAGES {
                stored.pass();
            }
            assert!(stored.held() > FREE_BYTES, "{round}");
            reserve(&mut stored, [large, 0], &Limits::default()).unwrap();
        }
        for _ in 0..2 * IMAGES {
            stored.pass();
        }
        assert_eq!(stored.held(), 0);
    }

    #[test]
    fn what_a_former_image_left_in_a_block_is_not_seen() {
        let mut stored = Stored::default();
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
