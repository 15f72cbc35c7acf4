//! Resizes pixels with alpha or 16 bits, and writes them as sample values.
//!
//! Sums are computed in `f32`. If alpha is kept, colours are multiplied by alpha before the sums and divided
//! by alpha after them, as in Pillow, so that transparent pixels do not change the colours of others. As for
//! RGB of 8 bits, the width is resized first, and overshoot is clamped after each pass.

use half::{bf16, f16};
use spdl_core::{Error, ErrorKind, Result};

use super::format::{Layout, SampleColor, TensorSpec};
use super::resize::{AxisTaps, ResizeFilter};
use super::sample::Sample;
use crate::image::{CropBox, Limits, Orientation, Rect, RgbaPicture, Size};

const OPAQUE: u16 = u16::MAX;
const MAX: f32 = u16::MAX as f32;

/// A resize of one picture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RgbaRequest {
    /// The part of the upright image that becomes the target.
    pub(crate) source: CropBox,
    /// The pixels of the upright image that the filter may use.
    pub(crate) bounds: Rect,
    pub(crate) orientation: Orientation,
    pub(crate) target: Size,
    pub(crate) filter: ResizeFilter,
    pub(crate) keeps_alpha: bool,
}

/// Resizes pictures, and keeps the last result. Keeps its memory.
#[derive(Debug, Default)]
pub(crate) struct RgbaResizer {
    /// A row of the source.
    line: Vec<[f32; 4]>,
    /// The result of the first pass.
    across: Vec<[f32; 4]>,
    /// A row of the result.
    sum: Vec<[f32; 4]>,
    size: Size,
    pixels: Vec<[u16; 4]>,
}

impl RgbaResizer {
    /// The allocated memory in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        let floats = self.line.capacity() + self.across.capacity() + self.sum.capacity();
        floats * size_of::<[f32; 4]>() + self.pixels.capacity() * size_of::<[u16; 4]>()
    }

    /// Resizes a part of `picture`, which holds all pixels that the filter needs.
    ///
    /// # Errors
    /// `InvalidArgument` if the picture lacks pixels; `LimitExceeded` if scratch memory exceeds the limits,
    /// or an allocation fails.
    pub(crate) fn resize(
        &mut self,
        picture: &RgbaPicture,
        request: &RgbaRequest,
        limits: &Limits,
    ) -> Result<()> {
        let RgbaRequest { source, bounds, target, filter, .. } = *request;
        let (width, height) = (target.width as usize, target.height as usize);
        let x = AxisTaps::new(source.left, source.width, bounds.left, bounds.width, width, filter);
        let y = AxisTaps::new(source.top, source.height, bounds.top, bounds.height, height, filter);
        let view = UprightView::new(picture, request.orientation, &x, &y)?;
        let (columns, rows) = (x.range(), y.range());
        let is_copy = x.is_copy() && y.is_copy();
        let floats = match is_copy {
            true => 0,
            false => columns.len() + rows.len().saturating_mul(width) + width,
        };
        let pixels = width.saturating_mul(height);
        let bytes = (floats as u64).saturating_mul(size_of::<[f32; 4]>() as u64);
        let bytes =
            bytes.saturating_add((pixels as u64).saturating_mul(size_of::<[u16; 4]>() as u64));
        limits.check_bytes(bytes, picture.image())?;
        self.size = target;
        resized(&mut self.pixels, pixels)?;
        if is_copy {
            // Copied pixels keep the colours of transparent pixels.
            for (y, row) in y.positions().zip(self.pixels.chunks_exact_mut(width)) {
                x.positions().zip(row).for_each(|(x, pixel)| *pixel = view.pixel(x, y));
            }
            return Ok(());
        }
        let RgbaResizer { line, across, sum, pixels, .. } = self;
        resized(line, columns.len())?;
        resized(across, rows.len() * width)?;
        resized(sum, width)?;
        for (row, out) in rows.clone().zip(across.chunks_exact_mut(width)) {
            for (x, pixel) in columns.clone().zip(&mut *line) {
                *pixel = floats_of(view.pixel(x, row), request.keeps_alpha);
            }
            for (at, place) in out.iter_mut().enumerate() {
                let (first, weights) = x.taps(at);
                let taps = line[(first - columns.start) as usize..].iter().zip(weights);
                let mut total = [0.0; 4];
                taps.for_each(|(pixel, weight)| add(&mut total, pixel, *weight));
                *place = total.map(|value| value.clamp(0.0, MAX));
            }
        }
        for (at, out) in pixels.chunks_exact_mut(width).enumerate() {
            let (first, weights) = y.taps(at);
            let source = across.chunks_exact(width).skip((first - rows.start) as usize);
            sum.fill([0.0; 4]);
            for (line, weight) in source.zip(weights) {
                sum.iter_mut().zip(line).for_each(|(total, pixel)| add(total, pixel, *weight));
            }
            for (pixel, total) in out.iter_mut().zip(&*sum) {
                *pixel = levels_of(*total, request.keeps_alpha);
            }
        }
        Ok(())
    }

    /// Writes the last result into the rectangle `target` of a sample, flipped, and the opaque fill colour
    /// outside it.
    ///
    /// # Errors
    /// `InvalidArgument` if `target` has another size than the result, or is not inside the sample.
    pub(crate) fn write(
        &self,
        target: Rect,
        (mirrored, upended): (bool, bool),
        fill: [u8; 3],
        tensor: &TensorSpec,
        sample: Sample<'_>,
    ) -> Result<()> {
        if target.size() != self.size || !target.is_within(tensor.size) {
            let message = format!(
                "cannot place {} pixels at {target:?} in a sample of {} pixels",
                self.size, tensor.size
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let [red, green, blue] = fill.map(|level| u16::from(level) * 257);
        let fill = [red, green, blue, OPAQUE];
        let Size { width, height } = self.size;
        let pixel = |x: u32, y: u32| {
            let (column, row) = (x.wrapping_sub(target.left), y.wrapping_sub(target.top));
            if column >= width || row >= height {
                return fill;
            }
            let column = if mirrored { width - 1 - column } else { column };
            let row = if upended { height - 1 - row } else { row };
            self.pixels[(row as usize) * width as usize + column as usize]
        };
        match sample {
            Sample::U8(out) => write_values(tensor, out, pixel, |level, _| byte(level)),
            Sample::U16(out) => write_values(tensor, out, pixel, |level, _| level),
            Sample::F16(out) => {
                write_values(tensor, out, pixel, |level, by| f16::from_f32(normalized(level, by)));
            }
            Sample::BF16(out) => {
                write_values(tensor, out, pixel, |level, by| bf16::from_f32(normalized(level, by)));
            }
            Sample::F32(out) => write_values(tensor, out, pixel, normalized),
        }
        Ok(())
    }
}

/// The picture, upright.
struct UprightView<'a> {
    picture: &'a RgbaPicture,
    orientation: Orientation,
}

impl<'a> UprightView<'a> {
    /// Checks that the picture holds the pixels of the taps.
    fn new(
        picture: &'a RgbaPicture,
        orientation: Orientation,
        x: &AxisTaps,
        y: &AxisTaps,
    ) -> Result<Self> {
        let upright = orientation.apply(picture.image());
        let (columns, rows) = (x.range(), y.range());
        let Rect { left, top, width, height } = picture.region();
        let holds = |x: u32, y: u32| {
            let (x, y) = orientation.point_to_stored(x, y, picture.image());
            x.wrapping_sub(left) < width && y.wrapping_sub(top) < height
        };
        let is_inside = columns.end <= upright.width && rows.end <= upright.height;
        if !is_inside || !holds(columns.start, rows.start) || !holds(columns.end - 1, rows.end - 1)
        {
            let message = format!(
                "cannot resize columns {columns:?} and rows {rows:?} of an image of {upright} pixels: the \
                 picture only holds {:?}",
                picture.region()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(UprightView { picture, orientation })
    }

    #[inline]
    fn pixel(&self, x: u32, y: u32) -> [u16; 4] {
        let (x, y) = self.orientation.point_to_stored(x, y, self.picture.image());
        let Rect { left, top, .. } = self.picture.region();
        self.picture.row(y - top)[(x - left) as usize]
    }
}

/// Resizes a buffer whose content does not matter.
fn resized<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) -> Result<()> {
    buffer.clear();
    buffer.try_reserve_exact(len).map_err(|_| {
        let bytes = len.saturating_mul(size_of::<T>());
        let message = format!("cannot allocate {bytes} bytes to resize an image");
        Error::new(ErrorKind::LimitExceeded, message)
    })?;
    buffer.resize(len, T::default());
    Ok(())
}

#[inline]
fn add(total: &mut [f32; 4], pixel: &[f32; 4], weight: f32) {
    total.iter_mut().zip(pixel).for_each(|(total, value)| *total += value * weight);
}

/// A pixel as floats from 0 to 65,535; premultiplied if alpha is kept.
#[inline]
fn floats_of(pixel: [u16; 4], keeps_alpha: bool) -> [f32; 4] {
    let [red, green, blue, alpha] = pixel.map(f32::from);
    let share = if keeps_alpha { alpha / MAX } else { 1.0 };
    [red * share, green * share, blue * share, alpha]
}

/// The inverse of [`floats_of`], rounded. The colour of transparent pixels is black.
#[inline]
fn levels_of(total: [f32; 4], keeps_alpha: bool) -> [u16; 4] {
    // A cast to an integer saturates.
    let level = |value: f32| (value + 0.5) as u16;
    let alpha = level(total[3]);
    let share = if keeps_alpha { total[3] / MAX } else { 1.0 };
    match alpha {
        0 if keeps_alpha => [0; 4],
        _ => [level(total[0] / share), level(total[1] / share), level(total[2] / share), alpha],
    }
}

/// A level from 0 to 65,535 as one from 0 to 255, rounded.
#[inline]
fn byte(level: u16) -> u8 {
    ((u32::from(level) + 128) / 257) as u8
}

#[inline]
fn normalized(level: u16, (scale, offset): (f32, f32)) -> f32 {
    f32::from(byte(level)) * scale + offset
}

/// ITU-R BT.601 luma, as for 8 bits.
#[inline]
fn grey([red, green, blue, _]: [u16; 4]) -> u16 {
    let sum = 19_595 * u32::from(red) + 38_470 * u32::from(green) + 7_471 * u32::from(blue);
    ((sum + (1 << 15)) >> 16) as u16
}

fn write_values<T>(
    tensor: &TensorSpec,
    out: &mut [T],
    pixel: impl Fn(u32, u32) -> [u16; 4],
    value: impl Fn(u16, (f32, f32)) -> T,
) {
    let channels = tensor.color.channels();
    let scales: [(f32, f32); 4] =
        std::array::from_fn(|at| tensor.scale_and_offset(at.min(channels - 1)));
    let area = tensor.size.pixels() as usize;
    let (per_pixel, per_channel) = match tensor.format.layout {
        Layout::Nhwc => (channels, 1),
        Layout::Nchw => (1, area),
    };
    let positions =
        (0..tensor.size.height).flat_map(|y| (0..tensor.size.width).map(move |x| (x, y)));
    for (at, (x, y)) in positions.enumerate() {
        let [red, green, blue, alpha] = pixel(x, y);
        let levels = match tensor.color {
            SampleColor::Rgb | SampleColor::Rgba => [red, green, blue, alpha],
            SampleColor::Bgr => [blue, green, red, alpha],
            SampleColor::Grey => [grey([red, green, blue, alpha]); 4],
        };
        for (channel, level) in levels.into_iter().take(channels).enumerate() {
            out[at * per_pixel + channel * per_channel] = value(level, scales[channel]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(size: Size, pixel: impl Fn(u32, u32) -> [u16; 4]) -> RgbaPicture {
        let mut picture = RgbaPicture::new();
        picture.start(size, Rect::full(size)).unwrap();
        for y in 0..size.height {
            let row = picture.row_mut(y).iter_mut().enumerate();
            row.for_each(|(x, place)| *place = pixel(x as u32, y));
        }
        picture
    }

    fn resize(picture: &RgbaPicture, target: Size, keeps_alpha: bool) -> Vec<[u16; 4]> {
        let image = picture.image();
        let request = RgbaRequest {
            source: Rect::full(image).into(),
            bounds: Rect::full(image),
            orientation: Orientation::Upright,
            target,
            filter: ResizeFilter::Bicubic,
            keeps_alpha,
        };
        let mut resizer = RgbaResizer::default();
        resizer.resize(picture, &request, &Limits::default()).unwrap();
        resizer.pixels
    }

    #[test]
    fn transparent_pixels_do_not_change_the_colours_of_others() {
        // Opaque red beside transparent green.
        let (red, green) = ([65_535, 0, 0, 65_535], [0, 65_535, 0, 0]);
        let picture = picture(Size::new(8, 8), |x, _| if x % 2 == 0 { red } else { green });
        for pixel in resize(&picture, Size::new(4, 4), true) {
            assert_eq!((pixel[0], pixel[1], pixel[2]), (65_535, 0, 0));
            assert!((26_000..39_000).contains(&pixel[3]), "{pixel:?}");
        }
        let without = resize(&picture, Size::new(4, 4), false);
        assert!(without.iter().all(|pixel| pixel[1] > 25_000), "{without:?}");
    }

    #[test]
    fn copied_pixels_keep_all_bits_and_the_colours_of_transparent_pixels() {
        let size = Size::new(5, 4);
        let pixel = |x, y| [(x * 13_001 % 65_536) as u16, (y * 257 + 1) as u16, 3, (x % 2) as u16];
        let picture = picture(size, pixel);
        let copied = resize(&picture, size, true);
        let expected = (0..4).flat_map(|y| (0..5).map(move |x| pixel(x, y)));
        assert!(copied.into_iter().eq(expected));
    }

    #[test]
    fn an_orientation_turns_the_picture() {
        let stored = Size::new(3, 2);
        let picture = picture(stored, |x, y| [(10 * x + y) as u16; 4]);
        for orientation in Orientation::ALL {
            let upright = orientation.apply(stored);
            let request = RgbaRequest {
                source: Rect::full(upright).into(),
                bounds: Rect::full(upright),
                orientation,
                target: upright,
                filter: ResizeFilter::Nearest,
                keeps_alpha: true,
            };
            let mut resizer = RgbaResizer::default();
            resizer.resize(&picture, &request, &Limits::default()).unwrap();
            for y in 0..upright.height {
                for x in 0..upright.width {
                    let (column, row) = orientation.point_to_stored(x, y, stored);
                    let found = resizer.pixels[(y * upright.width + x) as usize];
                    assert_eq!(found, [(10 * column + row) as u16; 4], "{orientation:?}");
                }
            }
        }
    }

    #[test]
    fn a_picture_without_the_needed_pixels_is_an_error() {
        let mut part = RgbaPicture::new();
        let image = Size::new(8, 8);
        part.start(image, Rect { left: 1, top: 0, width: 7, height: 8 }).unwrap();
        let request = RgbaRequest {
            source: Rect::full(image).into(),
            bounds: Rect::full(image),
            orientation: Orientation::Upright,
            target: Size::new(4, 4),
            filter: ResizeFilter::Bilinear,
            keeps_alpha: true,
        };
        let outcome = RgbaResizer::default().resize(&part, &request, &Limits::default());
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn bytes_are_rounded_and_words_of_bytes_are_exact() {
        assert!((0..=255).all(|level: u8| byte(u16::from(level) * 257) == level));
        assert_eq!((byte(128), byte(129), byte(65_406)), (0, 1, 254));
        // Grey values keep all bits.
        assert!((0..=u16::MAX).all(|level| grey([level, level, level, 0]) == level));
    }
}
