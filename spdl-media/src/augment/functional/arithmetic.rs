//! Pixel arithmetic in blocks that the compiler vectorises, and rounding.

use fearless_simd::{Level, Simd};

use crate::image::CHANNELS;

/// Pixels per block.
pub(super) const BLOCK: usize = 64;
/// One channel of a block of pixels.
pub(super) type Channel = [f32; BLOCK];

/// The maximum level.
pub(super) const MAX: f32 = 255.0;
/// If this constant is added to a number from 0 to 255, the lowest bits of the sum are the nearest
/// integer.
const MAGIC: f32 = (1 << 23) as f32;

/// `a × b + c` with a single rounding (fused multiply-add).
///
/// Without a hardware instruction, the computation uses `f64`. The product is exact; for levels and
/// weights the sum is exact too. For other values, the result is rounded twice, and differs about
/// once in 2²⁹ results.
#[inline(always)]
pub(super) fn multiply_add<S: Simd>(simd: S, a: f32, b: f32, c: f32) -> f32 {
    if has_fused_multiply_add(simd.level()) {
        a.mul_add(b, c)
    } else {
        (f64::from(a) * f64::from(b) + f64::from(c)) as f32
    }
}

#[inline(always)]
fn has_fused_multiply_add(level: Level) -> bool {
    match level {
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        Level::Avx2(_) | Level::Avx512(_) => true,
        #[cfg(target_arch = "aarch64")]
        Level::Neon(_) => true,
        _ => false,
    }
}

/// Casts an integral `f32` from 0 to 2²³ − 1 to an integer, without the range checks of a normal
/// cast.
#[inline(always)]
pub(super) fn index(value: f32) -> usize {
    ((value + MAGIC).to_bits() - MAGIC.to_bits()) as usize
}

/// Truncates a number from 0 to 255.
#[inline(always)]
pub(super) fn truncated(value: f32) -> u8 {
    (value.trunc() + MAGIC).to_bits() as u8
}

/// Rounds a number from 0 to 255 to the nearest integer, ties to even.
#[inline(always)]
pub(super) fn rounded(value: f32) -> u8 {
    (value + MAGIC).to_bits() as u8
}

/// Clamps to 0 to 255; NaN becomes 0.
#[inline(always)]
#[expect(clippy::manual_clamp, reason = "`clamp` would keep NaN")]
pub(super) fn clamped(value: f32) -> f32 {
    value.max(0.0).min(MAX)
}

/// Calls `read` with the red, green and blue levels of each block of pixels; the last block is
/// padded with 0.
#[inline(always)]
pub(super) fn read_blocks(pixels: &[u8], mut read: impl FnMut(&[Channel; CHANNELS])) {
    let (blocks, rest) = pixels.as_chunks::<{ BLOCK * CHANNELS }>();
    for block in blocks {
        read(&separated(block));
    }
    if !rest.is_empty() {
        let mut block = [0; BLOCK * CHANNELS];
        block[..rest.len()].copy_from_slice(rest);
        read(&separated(&block));
    }
}

/// A change of pixels, one block at a time. This is a trait instead of a closure, because a closure
/// is not always compiled for the SIMD level.
pub(super) trait ChangeBlock<S> {
    /// The changed levels of red, green and blue. Implementations must be `#[inline(always)]`.
    fn change(&self, simd: S, block: &[Channel; CHANNELS]) -> [[u8; BLOCK]; CHANNELS];
}

/// Changes all pixels; the last block is padded with black.
#[inline(always)]
pub(super) fn change_blocks<S: Simd>(simd: S, pixels: &mut [u8], change: &impl ChangeBlock<S>) {
    let (blocks, rest) = pixels.as_chunks_mut::<{ BLOCK * CHANNELS }>();
    for block in blocks {
        interleave(&change.change(simd, &separated(block)), block);
    }
    if !rest.is_empty() {
        let mut block = [0; BLOCK * CHANNELS];
        block[..rest.len()].copy_from_slice(rest);
        interleave(&change.change(simd, &separated(&block)), &mut block);
        rest.copy_from_slice(&block[..rest.len()]);
    }
}

#[inline(always)]
fn separated(block: &[u8; BLOCK * CHANNELS]) -> [Channel; CHANNELS] {
    let mut channels = [[0.0; BLOCK]; CHANNELS];
    for at in 0..BLOCK {
        channels[0][at] = f32::from(block[at * CHANNELS]);
        channels[1][at] = f32::from(block[at * CHANNELS + 1]);
        channels[2][at] = f32::from(block[at * CHANNELS + 2]);
    }
    channels
}

#[inline(always)]
fn interleave(channels: &[[u8; BLOCK]; CHANNELS], block: &mut [u8; BLOCK * CHANNELS]) {
    for at in 0..BLOCK {
        block[at * CHANNELS] = channels[0][at];
        block[at * CHANNELS + 1] = channels[1][at];
        block[at * CHANNELS + 2] = channels[2][at];
    }
}

#[cfg(test)]
mod tests {
    use fearless_simd::dispatch;
    use proptest::prelude::*;

    use super::*;

    /// The result of processors without the instruction.
    fn stand_in(a: f32, b: f32, c: f32) -> f32 {
        (f64::from(a) * f64::from(b) + f64::from(c)) as f32
    }

    #[test]
    fn levels_are_rounded_and_truncated() {
        for (value, near, below) in
            [(0.0, 0, 0), (0.5, 0, 0), (1.5, 2, 1), (254.5, 254, 254), (254.51, 255, 254)]
        {
            assert_eq!((rounded(value), truncated(value)), (near, below), "{value}");
        }
        assert_eq!((rounded(255.0), truncated(255.0)), (255, 255));
        assert_eq!([-1.0, 300.0, f32::NAN].map(clamped), [0.0, 255.0, 0.0]);
    }

    proptest! {
        #[test]
        fn processors_agree(level: u8, weight in -4.0f32..4.0, c in -1020.0f32..1020.0) {
            let level = f32::from(level);
            let fused = dispatch!(Level::new(), simd => multiply_add(simd, level, weight, c));
            prop_assert_eq!(fused, level.mul_add(weight, c));
            prop_assert_eq!(fused, stand_in(level, weight, c));
        }
    }
}
