//! Writes resized planes as sample values: colour conversion, channel order, normalisation, type.

use std::ops::Range;

use fearless_simd::prelude::*;
use fearless_simd::{Level, dispatch, i16x16, i16x32, i32x16, u8x16};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use spdl_core::{DType, Error, ErrorKind, Result};

use super::format::{Layout, SampleColor};
use super::image_transform::ImageTransform;
use super::resize::ResizedPlanes;
use crate::image::CHANNELS;
use crate::image::{ColorModel, Rect, Size, YCbCrEncoding};

/// The number of pixels per vector operation.
const LANES: usize = 16;
/// After this number of interleaved values, the pattern of channels in vector lanes repeats.
const PERIOD: usize = CHANNELS * LANES;

/// The destination of the values of a sample, by data type.
#[derive(Debug)]
pub enum Sample<'a> {
    /// [`DType::U8`]
    U8(&'a mut [u8]),
    /// [`DType::U16`]
    U16(&'a mut [u16]),
    /// [`DType::F16`]
    F16(&'a mut [f16]),
    /// [`DType::BF16`]
    BF16(&'a mut [bf16]),
    /// [`DType::F32`]
    F32(&'a mut [f32]),
}

impl Sample<'_> {
    pub(crate) fn dtype(&self) -> DType {
        match self {
            Sample::U8(_) => DType::U8,
            Sample::U16(_) => DType::U16,
            Sample::F16(_) => DType::F16,
            Sample::BF16(_) => DType::BF16,
            Sample::F32(_) => DType::F32,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Sample::U8(values) => values.len(),
            Sample::U16(values) => values.len(),
            Sample::F16(values) => values.len(),
            Sample::BF16(values) => values.len(),
            Sample::F32(values) => values.len(),
        }
    }

    /// Sets all values to 0.
    pub(crate) fn fill_with_zeros(&mut self) {
        match self {
            Sample::U8(values) => values.fill(0),
            Sample::U16(values) => values.fill(0),
            Sample::F16(values) => values.fill(f16::ZERO),
            Sample::BF16(values) => values.fill(bf16::ZERO),
            Sample::F32(values) => values.fill(0.0),
        }
    }

    /// A range of the values.
    pub(crate) fn part(&mut self, range: Range<usize>) -> Sample<'_> {
        match self {
            Sample::U8(values) => Sample::U8(&mut values[range]),
            Sample::U16(values) => Sample::U16(&mut values[range]),
            Sample::F16(values) => Sample::F16(&mut values[range]),
            Sample::BF16(values) => Sample::BF16(&mut values[range]),
            Sample::F32(values) => Sample::F32(&mut values[range]),
        }
    }
}

/// Writes the samples of one transform. It keeps memory for a row.
#[derive(Debug)]
pub(crate) struct SampleWriter {
    level: Level,
    format: WriterFormat,
    row: RowBuffers,
}

/// Settings of the transform, prepared for the kernels.
#[derive(Debug)]
struct WriterFormat {
    size: Size,
    layout: Layout,
    color: SampleColor,
    fill: [u8; CHANNELS],
    /// Scale and offset per output channel.
    channels: [ScaleOffset; CHANNELS],
    /// Scale and offset for interleaved channels.
    interleaved: ScaleOffset,
}

/// The operands of `value × scale + offset`, repeated for one period of values.
#[derive(Clone, Debug)]
struct ScaleOffset {
    scale: [f32; PERIOD],
    offset: [f32; PERIOD],
}

/// Memory for a row of the sample.
#[derive(Debug, Default)]
struct RowBuffers {
    /// Planes of red, green and blue.
    components: [Vec<u8>; CHANNELS],
    /// Interleaved channels.
    bytes: Vec<u8>,
    floats: Vec<f32>,
}

impl SampleWriter {
    pub(crate) fn new(transform: &ImageTransform) -> Self {
        let size = transform.size();
        let padded = size.width as usize + LANES;
        let color = transform.sample_color();
        let of_channel = |channel: usize| transform.tensor().scale_and_offset(channel);
        let normalization = |channel: &dyn Fn(usize) -> usize| ScaleOffset {
            scale: std::array::from_fn(|at| of_channel(channel(at)).0),
            offset: std::array::from_fn(|at| of_channel(channel(at)).1),
        };
        SampleWriter {
            level: Level::new(),
            format: WriterFormat {
                size,
                layout: transform.sample_format().layout,
                color,
                fill: transform.fill(),
                channels: std::array::from_fn(|channel| normalization(&|_| channel)),
                interleaved: normalization(&|at| at % CHANNELS),
            },
            row: RowBuffers {
                components: std::array::from_fn(|_| vec![0; padded]),
                bytes: vec![0; padded * CHANNELS],
                floats: vec![0.0; padded * CHANNELS],
            },
        }
    }

    /// Writes `planes` into the rectangle `target`, and the fill colour outside it.
    ///
    /// # Errors
    /// `InvalidArgument` if `target` has another size than the planes, or is not inside the sample.
    pub(crate) fn write(
        &mut self,
        planes: &ResizedPlanes,
        target: Rect,
        sample: Sample<'_>,
    ) -> Result<()> {
        if target.size() != planes.size() || !target.is_within(self.format.size) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "cannot place {} pixels at {target:?} in a sample of {} pixels",
                    planes.size(),
                    self.format.size
                ),
            ));
        }
        self.write_from(&SampleSource::Planes(planes, target), sample);
        Ok(())
    }

    /// Writes interleaved RGB pixels of the sample's size.
    pub(crate) fn write_pixels(&mut self, pixels: &[u8], sample: Sample<'_>) {
        debug_assert_eq!(pixels.len(), self.format.size.pixels() as usize * CHANNELS);
        self.write_from(&SampleSource::Pixels(pixels), sample);
    }

    fn write_from(&mut self, source: &SampleSource<'_>, sample: Sample<'_>) {
        let SampleWriter { level, format, row } = self;
        let level = *level;
        match sample {
            Sample::U8(out) => {
                dispatch!(level, simd => write_rows(simd, source, format, row, out))
            }
            Sample::U16(out) => {
                dispatch!(level, simd => write_rows(simd, source, format, row, out));
            }
            Sample::F16(out) => {
                dispatch!(level, simd => write_rows(simd, source, format, row, out));
            }
            Sample::BF16(out) => {
                dispatch!(level, simd => write_rows(simd, source, format, row, out));
            }
            Sample::F32(out) => {
                dispatch!(level, simd => write_rows(simd, source, format, row, out));
            }
        }
    }
}

/// The input of a sample.
enum SampleSource<'a> {
    /// Resized planes, and their rectangle in the sample.
    Planes(&'a ResizedPlanes, Rect),
    /// Interleaved RGB of the sample's size.
    Pixels(&'a [u8]),
}

impl SampleSource<'_> {
    /// Writes red, green and blue of a row of the sample; up to 16 bytes after the row may be
    /// overwritten.
    #[inline(always)]
    fn write_row<S: Simd>(
        &self,
        simd: S,
        row: u32,
        format: &WriterFormat,
        components: &mut [Vec<u8>; CHANNELS],
    ) {
        let (planes, target) = match *self {
            SampleSource::Planes(planes, target) => (planes, target),
            SampleSource::Pixels(pixels) => {
                let bytes = format.size.width as usize * CHANNELS;
                let (pixels, _) = pixels[row as usize * bytes..][..bytes].as_chunks::<CHANNELS>();
                for (channel, line) in components.iter_mut().enumerate() {
                    for (value, pixel) in line.iter_mut().zip(pixels) {
                        *value = pixel[channel];
                    }
                }
                return;
            }
        };
        let Rect { left, top, width, height } = target;
        let (left, end) = (left as usize, (left + width) as usize);
        let inside = row.checked_sub(top).filter(|&row| row < height);
        let Some(row) = inside else {
            components.iter_mut().zip(format.fill).for_each(|(line, fill)| line.fill(fill));
            return;
        };
        match planes.color() {
            ColorModel::Rgb => {
                for (component, line) in components.iter_mut().enumerate() {
                    let values = planes.padded_row(component, row);
                    line[left..left + values.len()].copy_from_slice(values);
                }
            }
            ColorModel::Grey => {
                let values = planes.padded_row(0, row);
                for line in components.iter_mut() {
                    line[left..left + values.len()].copy_from_slice(values);
                }
            }
            ColorModel::YCbCr => {
                let padded = |component| planes.padded_row(component, row);
                let source = [padded(0), padded(1), padded(2)];
                let [red, green, blue] = components;
                let out = [&mut red[left..], &mut green[left..], &mut blue[left..]];
                let encoding = planes.encoding();
                if encoding == YCbCrEncoding::BT601 {
                    write_rgb(simd, source, out);
                } else {
                    write_rgb_of(encoding, source, out);
                }
            }
        }
        if width < format.size.width {
            for (line, fill) in components.iter_mut().zip(format.fill) {
                line[..left].fill(fill);
                line[end..].fill(fill);
            }
        }
    }
}

/// A vector in which two factors alternate.
const fn pairs(first: i16, second: i16) -> [i16; 2 * LANES] {
    let mut all = [first; 2 * LANES];
    let mut at = 1;
    while at < all.len() {
        all[at] = second;
        at += 2;
    }
    all
}

/// A factor in 16-bit fixed point.
const fn fixed(value: f64) -> i32 {
    (value * 65536.0 + 0.5) as i32
}

const HALF: i32 = 1 << 15;
const ONE: i32 = 1 << 16;
// A factor that exceeds 16 bits is split into an integer and a remainder; their sum is exact.
const RED: [i16; 2 * LANES] = pairs(0, (fixed(1.402) - ONE) as i16);
const GREEN: [i16; 2 * LANES] = pairs(-fixed(0.344_14) as i16, (ONE - fixed(0.714_14)) as i16);
const BLUE: [i16; 2 * LANES] = pairs((fixed(1.772) - 2 * ONE) as i16, 0);

/// YCbCr to RGB as in libjpeg: ITU-R BT.601, full range, 16-bit fixed point.
#[inline(always)]
fn write_rgb<S: Simd>(simd: S, source: [&[u8]; CHANNELS], out: [&mut [u8]; CHANNELS]) {
    let [luma, blueness, redness] = source;
    let (luma, _) = luma.as_chunks::<LANES>();
    let (blueness, _) = blueness.as_chunks::<LANES>();
    let (redness, _) = redness.as_chunks::<LANES>();
    let [red, green, blue] = out;
    let (red, _) = red.as_chunks_mut::<LANES>();
    let (green, _) = green.as_chunks_mut::<LANES>();
    let (blue, _) = blue.as_chunks_mut::<LANES>();
    let widen = |bytes: &[u8; LANES]| -> i16x16<S> {
        let (low, high) = u8x16::from_slice(simd, bytes).widen();
        low.combine(high).bitcast()
    };
    let middle = i16x16::splat(simd, 128);
    let half = i32x16::splat(simd, HALF);
    // In code for SIMD, the compiler does not always inline `map` and `from_fn` of arrays.
    let factors = [
        i16x32::from_slice(simd, &RED),
        i16x32::from_slice(simd, &GREEN),
        i16x32::from_slice(simd, &BLUE),
    ];
    let sources = luma.iter().zip(blueness).zip(redness);
    let places = red.iter_mut().zip(green).zip(blue);
    for (((y, cb), cr), ((red, green), blue)) in sources.zip(places) {
        // The values are centred at zero, so that signed saturation limits them to the range of
        // bytes.
        let y = widen(y) - middle;
        let (cb, cr) = (widen(cb) - middle, widen(cr) - middle);
        let (low, high) = cb.interleave(cr);
        let chroma = low.combine(high);
        let weighed = |factors: i16x32<S>| -> i16x16<S> {
            let (low, high) = ((chroma.pairwise_dot_product(factors) + half) >> 16).split();
            low.saturating_narrow(high)
        };
        let store = |value: i16x16<S>, place: &mut [u8; LANES]| {
            let (low, high) = value.split();
            let bytes: u8x16<S> = low.saturating_narrow(high).bitcast();
            (bytes + u8x16::splat(simd, 128)).store_slice(place);
        };
        store(y + cr + weighed(factors[0]), red);
        store(y - cr + weighed(factors[1]), green);
        store(y + cb + cb + weighed(factors[2]), blue);
    }
}

/// The number of bits after the point of factors of [`write_rgb_of`].
const FRACTION: i32 = 13;

/// YCbCr to RGB with any matrix and range, in 13-bit fixed point: within 1 of the exact value.
#[inline(always)]
fn write_rgb_of(encoding: YCbCrEncoding, source: [&[u8]; CHANNELS], out: [&mut [u8]; CHANNELS]) {
    let (black, luma_factor, factors) = encoding.factors();
    let fixed = |factor: f64| (factor * f64::from(1 << FRACTION)).round() as i32;
    let luma_factor = fixed(luma_factor);
    let [red_factor, green_blue, green_red, blue_factor] = factors.map(fixed);
    let half = 1 << (FRACTION - 1);
    let [luma, blueness, redness] = source;
    let [red, green, blue] = out;
    let sources = luma.iter().zip(blueness).zip(redness);
    let places = red.iter_mut().zip(green).zip(blue);
    for (((&y, &cb), &cr), ((red, green), blue)) in sources.zip(places) {
        let y = (i32::from(y) - i32::from(black)) * luma_factor + half;
        let (cb, cr) = (i32::from(cb) - 128, i32::from(cr) - 128);
        let byte = |value: i32| (value >> FRACTION).clamp(0, 255) as u8;
        *red = byte(y + red_factor * cr);
        *green = byte(y + green_blue * cb + green_red * cr);
        *blue = byte(y + blue_factor * cb);
    }
}

/// For output block `block` of 16 interleaved bytes, the pixel of `channel` that each byte holds;
/// 255 for bytes of other channels.
const fn spread(block: usize, channel: usize) -> [u8; LANES] {
    let mut indices = [255; LANES];
    let mut at = 0;
    while at < LANES {
        let place = block * LANES + at;
        if place % CHANNELS == channel {
            indices[at] = (place / CHANNELS) as u8;
        }
        at += 1;
    }
    indices
}

const SPREAD: [[[u8; LANES]; CHANNELS]; 3] = [
    [spread(0, 0), spread(0, 1), spread(0, 2)],
    [spread(1, 0), spread(1, 1), spread(1, 2)],
    [spread(2, 0), spread(2, 1), spread(2, 2)],
];

/// Interleaves three rows.
#[inline(always)]
fn interleave<S: Simd>(simd: S, lines: [&[u8]; CHANNELS], out: &mut [u8]) {
    let [a, b, c] = lines;
    let (a, b, c) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>(), c.as_chunks::<LANES>());
    let (blocks, rest) = out.as_chunks_mut::<PERIOD>();
    for (((block, first), second), third) in blocks.iter_mut().zip(a.0).zip(b.0).zip(c.0) {
        let channels = [
            u8x16::from_slice(simd, first),
            u8x16::from_slice(simd, second),
            u8x16::from_slice(simd, third),
        ];
        for (place, spread) in block.as_chunks_mut::<LANES>().0.iter_mut().zip(&SPREAD) {
            let taken = |channel: usize| {
                channels[channel].swizzle_dyn_precise(u8x16::from_slice(simd, &spread[channel]))
            };
            (taken(0) | taken(1) | taken(2)).store_slice(place);
        }
    }
    let (pixels, _) = rest.as_chunks_mut::<CHANNELS>();
    for (((pixel, &first), &second), &third) in pixels.iter_mut().zip(a.1).zip(b.1).zip(c.1) {
        *pixel = [first, second, third];
    }
}

/// Replaces red by grey, computed as in Pillow (ITU-R BT.601 luma, 16-bit fixed point).
#[inline(always)]
fn convert_to_grey(components: &mut [Vec<u8>; CHANNELS], width: usize) {
    let [red, green, blue] = components;
    for ((red, &green), &blue) in red[..width].iter_mut().zip(&*green).zip(&*blue) {
        let sum = 19_595 * u32::from(*red) + 38_470 * u32::from(green) + 7_471 * u32::from(blue);
        *red = ((sum + (1 << 15)) >> 16) as u8;
    }
}

/// A data type of sample values.
trait SampleValue: Sized {
    /// Converts values; `floats` is scratch memory of the same length.
    fn convert(bytes: &[u8], normalization: &ScaleOffset, floats: &mut [f32], out: &mut [Self]);

    /// Converts three rows to interleaved values; `bytes` is scratch memory.
    #[inline(always)]
    fn convert_interleaved<S: Simd>(
        simd: S,
        lines: [&[u8]; CHANNELS],
        normalization: &ScaleOffset,
        bytes: &mut [u8],
        floats: &mut [f32],
        out: &mut [Self],
    ) {
        let bytes = &mut bytes[..out.len()];
        interleave(simd, lines, bytes);
        Self::convert(bytes, normalization, floats, out);
    }
}

impl SampleValue for u8 {
    #[inline(always)]
    fn convert(bytes: &[u8], _: &ScaleOffset, _: &mut [f32], out: &mut [u8]) {
        out.copy_from_slice(bytes);
    }

    #[inline(always)]
    fn convert_interleaved<S: Simd>(
        simd: S,
        lines: [&[u8]; CHANNELS],
        _: &ScaleOffset,
        _: &mut [u8],
        _: &mut [f32],
        out: &mut [u8],
    ) {
        interleave(simd, lines, out);
    }
}

impl SampleValue for u16 {
    #[inline(always)]
    fn convert(bytes: &[u8], _: &ScaleOffset, _: &mut [f32], out: &mut [u16]) {
        out.iter_mut().zip(bytes).for_each(|(place, byte)| *place = u16::from(*byte) * 257);
    }
}

impl SampleValue for f32 {
    #[inline(always)]
    fn convert(bytes: &[u8], normalization: &ScaleOffset, _: &mut [f32], out: &mut [f32]) {
        let ScaleOffset { scale, offset } = normalization;
        let (periods, rest) = bytes.as_chunks::<PERIOD>();
        let (places, rest_places) = out.as_chunks_mut::<PERIOD>();
        for (place, period) in places.iter_mut().zip(periods) {
            for at in 0..PERIOD {
                place[at] = f32::from(period[at]) * scale[at] + offset[at];
            }
        }
        // The remaining values are processed in chunks of one vector.
        let chunks = rest.chunks(LANES).zip(rest_places.chunks_mut(LANES));
        for ((chunk, place), at) in chunks.zip((0..PERIOD).step_by(LANES)) {
            let (scale, offset) = (&scale[at..at + LANES], &offset[at..at + LANES]);
            for (((place, &byte), scale), offset) in
                place.iter_mut().zip(chunk).zip(scale).zip(offset)
            {
                *place = f32::from(byte) * scale + offset;
            }
        }
    }
}

impl SampleValue for f16 {
    #[inline(always)]
    fn convert(bytes: &[u8], normalization: &ScaleOffset, floats: &mut [f32], out: &mut [f16]) {
        let floats = &mut floats[..out.len()];
        f32::convert(bytes, normalization, &mut [], floats);
        out.convert_from_f32_slice(floats);
    }
}

impl SampleValue for bf16 {
    #[inline(always)]
    fn convert(bytes: &[u8], normalization: &ScaleOffset, floats: &mut [f32], out: &mut [bf16]) {
        let floats = &mut floats[..out.len()];
        f32::convert(bytes, normalization, &mut [], floats);
        for (place, float) in out.iter_mut().zip(floats) {
            // Rounding is to nearest, ties to even. All values are finite, because the transform
            // was validated.
            let bits = float.to_bits();
            *place = bf16::from_bits(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) as u16);
        }
    }
}

#[inline(always)]
fn write_rows<S: Simd, T: SampleValue>(
    simd: S,
    source: &SampleSource<'_>,
    format: &WriterFormat,
    memory: &mut RowBuffers,
    out: &mut [T],
) {
    let RowBuffers { components, bytes, floats } = memory;
    let (width, height) = (format.size.width as usize, format.size.height as usize);
    for row in 0..height {
        source.write_row(simd, row as u32, format, components);
        let channels: &[usize] = match format.color {
            // Alpha is not written here: see `RgbaResizer`.
            SampleColor::Rgb | SampleColor::Rgba => &[0, 1, 2],
            SampleColor::Bgr => &[2, 1, 0],
            SampleColor::Grey => {
                convert_to_grey(components, width);
                &[0]
            }
        };
        let line = |channel: usize| &components[channel][..width];
        match (format.layout, channels) {
            (Layout::Nhwc, &[first, second, third]) => {
                let out = &mut out[row * width * CHANNELS..][..width * CHANNELS];
                let lines = [line(first), line(second), line(third)];
                T::convert_interleaved(simd, lines, &format.interleaved, bytes, floats, out);
            }
            _ => {
                for (at, &channel) in channels.iter().enumerate() {
                    let out = &mut out[(at * height + row) * width..][..width];
                    T::convert(line(channel), &format.channels[at], floats, out);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_matrix_and_range_is_within_one_of_the_exact_value() {
        let encodings = [
            YCbCrEncoding::BT601.limited(),
            YCbCrEncoding::BT709,
            YCbCrEncoding::BT709.limited(),
            YCbCrEncoding::BT2020.limited(),
            YCbCrEncoding::SMPTE240M.limited(),
            YCbCrEncoding::FCC.limited(),
        ];
        let levels: Vec<u8> = (0..=255).step_by(5).collect();
        for encoding in encodings {
            for &blueness in &levels {
                for &redness in &levels {
                    let lines = [vec![blueness; levels.len()], vec![redness; levels.len()]];
                    let mut out: [Vec<u8>; CHANNELS] =
                        std::array::from_fn(|_| vec![0; levels.len()]);
                    let [red, green, blue] = &mut out;
                    write_rgb_of(encoding, [&levels, &lines[0], &lines[1]], [red, green, blue]);
                    for (at, &luma) in levels.iter().enumerate() {
                        let exact = encoding.rgb([luma, blueness, redness]);
                        let found = [out[0][at], out[1][at], out[2][at]];
                        let is_near = exact.iter().zip(found).all(|(a, b)| a.abs_diff(b) <= 1);
                        assert!(
                            is_near,
                            "{encoding:?} {luma} {blueness} {redness}: {found:?}, not {exact:?}"
                        );
                    }
                }
            }
        }
    }
}
