//! Colour operations.

use fearless_simd::prelude::*;
use fearless_simd::{Level, dispatch, f32x8};
use spdl_core::Result;

use super::super::checks::{check, check_factor};
use super::super::image::ImageMut;
use super::arithmetic::{
    BLOCK, ChangeBlock, Channel, MAX, change_blocks, clamped, multiply_add, read_blocks, rounded,
    truncated,
};
use crate::image::CHANNELS;

/// The weights of red, green and blue in grey, as in torchvision (their sum is 0.9999).
const GREY: [f32; CHANNELS] = [0.2989, 0.587, 0.114];
/// Scales 0..=1 to 0..=255, so that each level has an interval of equal length.
const TO_LEVELS: f32 = 255.999;
/// Pixels per vector operation of the hue shift.
const LANES: usize = 8;
/// The number of levels of a channel.
const LEVELS: usize = 256;

/// Multiplies all levels by `factor`: 0 gives black, 1 the original.
///
/// # Errors
/// `InvalidArgument` if the factor is negative or not finite.
pub fn adjust_brightness(image: &mut ImageMut<'_>, factor: f64) -> Result<()> {
    check_factor("brightness", factor)?;
    let factor = factor as f32;
    dispatch!(Level::new(), _simd => {
        for level in image.pixels_mut() {
            *level = truncated(clamped(f32::from(*level) * factor));
        }
    });
    Ok(())
}

/// Blends the image with its mean grey: 0 gives the mean grey, 1 the original.
///
/// The sum of the grey levels is exact here. torchvision's sum is rounded for images of more than
/// 65,000 pixels, so that levels may differ by 1.
///
/// # Errors
/// `InvalidArgument` if the factor is negative or not finite.
pub fn adjust_contrast(image: &mut ImageMut<'_>, factor: f64) -> Result<()> {
    check_factor("contrast", factor)?;
    let pixels = image.size().pixels();
    let sum = dispatch!(Level::new(), simd => grey_sum(simd, image.pixels()));
    let mean = sum as f32 / pixels as f32;
    let (own, other) = (factor as f32, (1.0 - factor) as f32);
    dispatch!(Level::new(), simd => {
        for level in image.pixels_mut() {
            let value = multiply_add(simd, mean, other, f32::from(*level) * own);
            *level = truncated(clamped(value));
        }
    });
    Ok(())
}

#[inline(always)]
fn grey_sum<S: Simd>(simd: S, pixels: &[u8]) -> u64 {
    let mut sum = 0;
    // Padding beyond the image is black.
    read_blocks(pixels, |block| {
        let grey = grey_levels(simd, block);
        sum += u64::from(grey.iter().map(|&level| u32::from(rounded(level))).sum::<u32>());
    });
    sum
}

/// Blends each pixel with its grey: 0 gives a grey image, 1 the original.
///
/// # Errors
/// `InvalidArgument` if the factor is negative or not finite.
pub fn adjust_saturation(image: &mut ImageMut<'_>, factor: f64) -> Result<()> {
    check_factor("saturation", factor)?;
    let (own, other) = (factor as f32, (1.0 - factor) as f32);
    let blend = BlendWithGrey { own, other };
    dispatch!(Level::new(), simd => change_blocks(simd, image.pixels_mut(), &blend));
    Ok(())
}

struct BlendWithGrey {
    own: f32,
    other: f32,
}

impl<S: Simd> ChangeBlock<S> for BlendWithGrey {
    #[inline(always)]
    fn change(&self, simd: S, block: &[Channel; CHANNELS]) -> [[u8; BLOCK]; CHANNELS] {
        let grey = grey_levels(simd, block);
        let mut changed = [[0; BLOCK]; CHANNELS];
        for (changed, levels) in changed.iter_mut().zip(block) {
            for at in 0..BLOCK {
                let value = multiply_add(simd, grey[at], self.other, levels[at] * self.own);
                changed[at] = truncated(clamped(value));
            }
        }
        changed
    }
}

/// Converts to grey: 0.2989 red + 0.587 green + 0.114 blue, truncated.
pub fn grayscale(image: &mut ImageMut<'_>) {
    dispatch!(Level::new(), simd => change_blocks(simd, image.pixels_mut(), &ToGrey));
}

struct ToGrey;

impl<S: Simd> ChangeBlock<S> for ToGrey {
    #[inline(always)]
    fn change(&self, simd: S, block: &[Channel; CHANNELS]) -> [[u8; BLOCK]; CHANNELS] {
        let grey = grey_levels(simd, block);
        let mut levels = [0; BLOCK];
        for at in 0..BLOCK {
            levels[at] = rounded(grey[at]);
        }
        [levels; CHANNELS]
    }
}

/// Grey levels, truncated.
#[inline(always)]
fn grey_levels<S: Simd>(simd: S, [red, green, blue]: &[Channel; CHANNELS]) -> Channel {
    let mut grey = [0.0; BLOCK];
    for at in 0..BLOCK {
        let value = multiply_add(simd, green[at], GREY[1], red[at] * GREY[0]);
        grey[at] = multiply_add(simd, blue[at], GREY[2], value).floor();
    }
    grey
}

/// Shifts the hue of each pixel by `turn` turns: −0.5 and 0.5 give the complementary colours, 0 the
/// original.
///
/// # Errors
/// `InvalidArgument` if the shift is not in −0.5 to 0.5.
pub fn adjust_hue(image: &mut ImageMut<'_>, turn: f64) -> Result<()> {
    check((-0.5..=0.5).contains(&turn), || {
        format!("invalid hue shift {turn}: expected -0.5 to 0.5 turns")
    })?;
    let turn = HueShift(turn as f32);
    dispatch!(Level::new(), simd => change_blocks(simd, image.pixels_mut(), &turn));
    Ok(())
}

struct HueShift(f32);

impl<S: Simd> ChangeBlock<S> for HueShift {
    #[inline(always)]
    fn change(&self, simd: S, block: &[Channel; CHANNELS]) -> [[u8; BLOCK]; CHANNELS] {
        let mut changed = [[0; BLOCK]; CHANNELS];
        let mut levels = [0.0; LANES];
        for start in (0..BLOCK).step_by(LANES) {
            let red = f32x8::from_slice(simd, &block[0][start..start + LANES]);
            let green = f32x8::from_slice(simd, &block[1][start..start + LANES]);
            let blue = f32x8::from_slice(simd, &block[2][start..start + LANES]);
            let unit = 1.0 / MAX;
            let colors = shift_hue(simd, [red * unit, green * unit, blue * unit], self.0);
            for channel in 0..CHANNELS {
                (colors[channel] * TO_LEVELS).store_slice(&mut levels);
                for lane in 0..LANES {
                    changed[channel][start + lane] = truncated(levels[lane]);
                }
            }
        }
        changed
    }
}

/// Shifts the hue of colours in 0..=1, by conversion to HSV and back.
#[inline(always)]
fn shift_hue<S: Simd>(simd: S, color: [f32x8<S>; CHANNELS], turn: f32) -> [f32x8<S>; CHANNELS] {
    let [red, green, blue] = color;
    let (zero, one) = (f32x8::splat(simd, 0.0), f32x8::splat(simd, 1.0));
    let value = red.max(green).max(blue);
    let range = value - red.min(green).min(blue);
    let grey = range.simd_eq(zero);
    let saturation = range / grey.select(one, value);
    let divisor = grey.select(one, range);
    let from_red = (value - red) / divisor;
    let from_green = (value - green) / divisor;
    let from_blue = (value - blue) / divisor;
    let sixths = value.simd_eq(red).select(
        from_blue - from_green,
        value.simd_eq(green).select(from_red + 2.0 - from_blue, from_green + 4.0 - from_red),
    );
    // The hue in turns, 0 to 1.
    let hue = sixths * (1.0 / 6.0) + 1.0;
    let hue = hue - hue.trunc() + turn;
    let rest = hue - hue.trunc();
    let hue = rest.simd_lt(zero).select(rest + 1.0, rest);

    let sixths = hue * 6.0;
    let sector = sixths.floor();
    let part = saturation * (sixths - sector);
    let remaining = one - saturation;
    let falling = ((one - part) * value).max(zero).min(one);
    let rising = ((part + remaining) * value).max(zero).min(one);
    let least = (remaining * value).max(zero).min(one);
    // A hue that rounds up to a whole turn is outside all other sectors; such hues belong to the
    // first sector.
    let second = sector.simd_eq(f32x8::splat(simd, 1.0));
    let third = sector.simd_eq(f32x8::splat(simd, 2.0));
    let fourth = sector.simd_eq(f32x8::splat(simd, 3.0));
    let fifth = sector.simd_eq(f32x8::splat(simd, 4.0));
    let sixth = sector.simd_eq(f32x8::splat(simd, 5.0));
    [
        second.select(falling, (third | fourth).select(least, fifth.select(rising, value))),
        (second | third)
            .select(value, fourth.select(falling, (fifth | sixth).select(least, rising))),
        third.select(rising, (fourth | fifth).select(value, sixth.select(falling, least))),
    ]
}

/// Replaces each level by 255 minus the level.
pub fn invert(image: &mut ImageMut<'_>) {
    image.pixels_mut().iter_mut().for_each(|level| *level = !*level);
}

/// Keeps the upper `bits` bits of each level: 0 gives black, 8 the original.
///
/// # Errors
/// `InvalidArgument` for more than 8 bits.
pub fn posterize(image: &mut ImageMut<'_>, bits: u32) -> Result<()> {
    check(bits <= 8, || format!("invalid number of bits {bits}: expected 0 to 8"))?;
    let mask = (0xff00_u32 >> bits) as u8;
    image.pixels_mut().iter_mut().for_each(|level| *level &= mask);
    Ok(())
}

/// Inverts levels that are at least `threshold`.
///
/// # Errors
/// `InvalidArgument` if the threshold is above 255 or NaN.
pub fn solarize(image: &mut ImageMut<'_>, threshold: f64) -> Result<()> {
    check(threshold <= f64::from(MAX), || {
        format!("invalid threshold {threshold}: expected at most 255")
    })?;
    let least = (threshold as f32).ceil().max(0.0) as u8;
    let invert = |level: &mut u8| *level = if *level >= least { !*level } else { *level };
    image.pixels_mut().iter_mut().for_each(invert);
    Ok(())
}

/// Adds `levels` to all levels below 128; at most 255.
pub fn solarize_add(image: &mut ImageMut<'_>, levels: u8) {
    let add =
        |level: &mut u8| *level = if *level < 128 { level.saturating_add(levels) } else { *level };
    image.pixels_mut().iter_mut().for_each(add);
}

/// Stretches each channel so that its minimum becomes 0 and its maximum 255. A channel with a
/// single level does not change.
pub fn autocontrast(image: &mut ImageMut<'_>) {
    dispatch!(Level::new(), simd => stretch(simd, image.pixels_mut()));
}

#[inline(always)]
fn stretch<S: Simd>(simd: S, pixels: &mut [u8]) {
    /// The block length in bytes: a multiple of the number of channels, and of several vectors.
    const WIDTH: usize = 32 * CHANNELS;
    let (mut least, mut largest) = ([u8::MAX; WIDTH], [0; WIDTH]);
    let (chunks, rest) = pixels.as_chunks::<WIDTH>();
    for chunk in chunks {
        for at in 0..WIDTH {
            least[at] = least[at].min(chunk[at]);
            largest[at] = largest[at].max(chunk[at]);
        }
    }
    for (at, &level) in rest.iter().enumerate() {
        least[at] = least[at].min(level);
        largest[at] = largest[at].max(level);
    }
    let mut scale = [(0.0, 1.0); CHANNELS];
    for (channel, scale) in scale.iter_mut().enumerate() {
        let least = least.iter().skip(channel).step_by(CHANNELS).fold(u8::MAX, |a, &b| a.min(b));
        let largest = largest.iter().skip(channel).step_by(CHANNELS).fold(0, |a, &b| a.max(b));
        if least < largest {
            *scale = (f32::from(least), f32::from(largest - least) * (1.0 / MAX));
        }
    }
    change_blocks(simd, pixels, &Stretch(scale));
}

/// The offset and divisor of the levels of each channel.
struct Stretch([(f32, f32); CHANNELS]);

impl<S: Simd> ChangeBlock<S> for Stretch {
    #[inline(always)]
    fn change(&self, _simd: S, block: &[Channel; CHANNELS]) -> [[u8; BLOCK]; CHANNELS] {
        let mut changed = [[0; BLOCK]; CHANNELS];
        for ((changed, levels), (offset, divisor)) in changed.iter_mut().zip(block).zip(self.0) {
            for at in 0..BLOCK {
                changed[at] = truncated(clamped((levels[at] - offset) / divisor));
            }
        }
        changed
    }
}

/// Equalises the histogram of each channel. A channel does not change if fewer than 255 of its
/// pixels are below its maximum level.
pub fn equalize(image: &mut ImageMut<'_>) {
    let pixels = image.size().pixels();
    // Two histograms, so that two equal neighbouring levels do not wait for the same counter.
    let mut counts = [[[0_u32; LEVELS]; CHANNELS]; 2];
    let (pairs, rest) = image.pixels().as_chunks::<{ 2 * CHANNELS }>();
    for pair in pairs {
        for (at, &level) in pair.iter().enumerate() {
            counts[at / CHANNELS][at % CHANNELS][usize::from(level)] += 1;
        }
    }
    for (channel, &level) in rest.iter().enumerate() {
        counts[0][channel][usize::from(level)] += 1;
    }
    let mut tables = [[0; LEVELS]; CHANNELS];
    for (channel, table) in tables.iter_mut().enumerate() {
        let count = |level: usize| {
            u64::from(counts[0][channel][level]) + u64::from(counts[1][channel][level])
        };
        let largest = (0..LEVELS).rfind(|&level| count(level) > 0).unwrap_or(0);
        let step = (pixels - count(largest)) / (LEVELS as u64 - 1);
        let mut below = 0;
        for (level, entry) in table.iter_mut().enumerate() {
            *entry = match step {
                0 => level as u8,
                _ if level == 0 => 0,
                _ => ((below + step / 2) / step).min(LEVELS as u64 - 1) as u8,
            };
            below += count(level);
        }
    }
    for pixel in image.pixels_mut().as_chunks_mut::<CHANNELS>().0 {
        for (level, table) in pixel.iter_mut().zip(&tables) {
            *level = table[usize::from(*level)];
        }
    }
}
